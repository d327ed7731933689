//! The guard: the one small process that owns a command, and how a node speaks with it.
//!
//! A node makes a [run file](folder), takes its lock and has a guard begin, which is given that lock. The
//! guard starts the command, drains its output, ends it when it must end, writes to disk how it ended, and goes. The
//! node listens to it over a socket beside the file; when the node is gone the guard goes on, and the next one finds
//! it by the file.
//!
//! [`folder`] is what lies on disk, [`life`] and [`hold`] decide, [`process`] is the guard itself, [`stem`] what it is forked
//! off, [`link`] the node's side; [`sim`] stands in for the process where time is simulated.

mod due;
mod env_file;
pub mod folder;
pub mod hold;
pub mod life;
pub mod link;
pub mod process;
pub mod sim;
pub mod stem;
mod terms;

pub use folder::{Ended, FolderName, How, RunFolder, Spec};
pub use hold::Contact;
pub use link::{Guard, Guards, Heard};
