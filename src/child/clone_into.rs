//! A new process that begins in a cgroup, without being moved there.
//!
//! To move a process, even one of a single thread that was only just made, the kernel first waits until no processor
//! is making any: milliseconds on a quiet machine. One that begins there costs next to nothing, but only `clone3`
//! makes it, which no library wraps: the child goes on where the system call returns, on a stack of its own.

use std::ffi::c_void;
use std::io;
use std::os::fd::RawFd;

use nix::unistd::Pid;

/// Makes a process in the cgroup whose folder is open as `cgroup`, and has it call `child` with `argument`. It shares
/// all memory, and the caller stands still until it becomes another program or ends, as with `vfork`.
///
/// Errors: it was not made. Kernels before 5.7, and some that filter system calls, cannot.
///
/// # Safety
/// The caller is a process of one thread; `child` never returns, makes nothing but system calls, and has room on `stack`.
pub(super) unsafe fn clone_into(
    cgroup: RawFd,
    stack: &mut [u8],
    child: extern "C" fn(*const c_void) -> !,
    argument: *const c_void,
) -> io::Result<Pid> {
    let from = stack.as_ptr() as u64;
    // As every function expects it when it is called.
    let top = (from + stack.len() as u64) & !15;
    // SAFETY: plain numbers, of which nought means that it is not used.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = (libc::CLONE_VM | libc::CLONE_VFORK) as u64 | CLONE_INTO_CGROUP;
    args.exit_signal = libc::SIGCHLD as u64;
    args.stack = from;
    args.stack_size = top - from;
    args.cgroup = cgroup as u64;
    // SAFETY: as the caller promises; the arguments are on this frame, which stands still.
    match unsafe { clone3(&args, child, argument) } {
        pid @ 1.. => Ok(Pid::from_raw(pid as i32)),
        errno => Err(io::Error::from_raw_os_error(-errno as i32)),
    }
}

/// The C library's header has it too narrow.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// The process's number, or an error's below nought.
#[cfg(target_arch = "x86_64")]
unsafe fn clone3(
    args: &libc::clone_args,
    child: extern "C" fn(*const c_void) -> !,
    argument: *const c_void,
) -> isize {
    let result;
    // SAFETY: the parent goes on at the label with all its registers but those named; the child never gets there.
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            // Where the child's calls end.
            "xor ebp, ebp",
            "mov rdi, r12",
            "call r13",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone3 as isize => result,
            in("rdi") args,
            in("rsi") size_of::<libc::clone_args>(),
            in("r12") argument,
            in("r13") child,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    result
}

#[cfg(target_arch = "aarch64")]
unsafe fn clone3(
    args: &libc::clone_args,
    child: extern "C" fn(*const c_void) -> !,
    argument: *const c_void,
) -> isize {
    let result;
    // SAFETY: as above.
    unsafe {
        std::arch::asm!(
            "svc 0",
            "cbnz x0, 2f",
            "mov x29, xzr",
            "mov x0, x20",
            "blr x21",
            "brk #1",
            "2:",
            inlateout("x0") args => result,
            in("x1") size_of::<libc::clone_args>(),
            in("x8") libc::SYS_clone3,
            in("x20") argument,
            in("x21") child,
        );
    }
    result
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
unsafe fn clone3(_: &libc::clone_args, _: extern "C" fn(*const c_void) -> !, _: *const c_void) -> isize {
    -(libc::ENOSYS as isize)
}
