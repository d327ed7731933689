//! The guards of a node; `fleetcron run` starts it. See the library's `guard` module.
//!
//! Without the standard library's `main`, which hides where the arguments are: there each guard says which run it has. Nor
//! does a guard need what that sets up for programs of many threads.

#![no_main]

use std::ffi::{c_char, c_int};
use std::slice;

use fleetcron::guard::{process, stem};

/// # Safety
///
/// Called by the C library alone, with the program's arguments.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn main(count: c_int, arguments: *const *mut c_char) -> c_int {
    let title: &mut [u8] = match count {
        // SAFETY: there are two, both end with a NUL, and nobody else looks at them.
        2 => unsafe {
            let title = *arguments.add(1);
            slice::from_raw_parts_mut(title.cast(), libc::strlen(title))
        },
        _ => &mut [],
    };
    if title == b"--version" {
        println!("fleetcron-guard {}", env!("CARGO_PKG_VERSION"));
        return 0;
    }
    let done = stem::stem(title).and_then(|handed| handed.map_or(Ok(()), process::guard));
    match done {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("fleetcron-guard: {error} (it is started by fleetcron itself)");
            1
        }
    }
}
