//! Mutants: planted faults of the protocol, by which a test shows that the simulation would find a real one.
//!
//! `FLEETCRON_MUTANT=no-lane-compare` plants the one of that name. `make mutants` plants each in turn, and each has to be
//! caught. Only builds with debug assertions have them; a release has nothing at these places.

/// Whether the fault of this name is planted. Each name stands once in the code, at what the protocol asks for.
#[macro_export]
macro_rules! mutant {
    ($name:literal) => {{
        #[cfg(debug_assertions)]
        let planted = $crate::mutant::is_planted($name);
        #[cfg(not(debug_assertions))]
        let planted = false;
        planted
    }};
}

/// The environment variable that names the fault.
pub const MUTANT: &str = "FLEETCRON_MUTANT";

#[cfg(debug_assertions)]
pub fn is_planted(name: &str) -> bool {
    use std::sync::LazyLock;

    static PLANTED: LazyLock<Option<String>> = LazyLock::new(|| std::env::var(MUTANT).ok());
    PLANTED.as_deref() == Some(name)
}
