//! Names: the nearest known one to a misspelt one, and a good one for a bad one.

use crate::job::JobName;

/// What people write who come from elsewhere.
const OTHER_WORDS: [(&str, &str); 17] = [
    ("cmd", "command"),
    ("exec", "command"),
    ("run", "command"),
    ("script", "command"),
    ("cron", "schedule"),
    ("when", "schedule"),
    ("tz", "timezone"),
    ("zone", "timezone"),
    ("cwd", "workdir"),
    ("dir", "workdir"),
    ("working_directory", "workdir"),
    ("environment", "env"),
    ("concurrency", "overlap"),
    ("disabled", "enabled"),
    ("selector", "nodes"),
    ("retries", "retry"),
    ("deadline", "start_within"),
];

/// A hint that names the known word that was probably meant.
pub(super) fn nearest<'k>(name: &str, known: impl Iterator<Item = &'k str>) -> Option<String> {
    meant(name, known).map(|meant| format!("did you mean \"{meant}\"?"))
}

/// The known word that was probably meant.
pub(super) fn meant<'k>(name: &str, known: impl Iterator<Item = &'k str>) -> Option<&'k str> {
    // A name far longer than all others is nobody's slip, and comparing takes time in proportion.
    if name.len() > 40 {
        return None;
    }
    let plain = name.to_lowercase().replace('-', "_");
    let by_distance = known.map(|known| (strsim::damerau_levenshtein(&plain, known), known));
    let close = by_distance.filter(|(distance, known)| *distance <= known.len().div_ceil(4).min(3));
    let translated = || OTHER_WORDS.iter().find(|(other, _)| *other == plain).map(|(_, ours)| *ours);
    close.min().map(|(_, known)| known).or_else(translated)
}

/// What a name may be, with one that may be in its stead.
pub(super) fn name_hint(bad: &str) -> String {
    let rule = "a name has 1 to 64 of a-z, 0-9, '.', '_', '-' and begins with a letter or digit";
    let plain =
        |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c.to_ascii_lowercase() } else { '-' };
    let better: String = bad.trim().chars().map(plain).collect();
    match better.parse::<JobName>() {
        Ok(better) => format!("{rule}; how about {better}?"),
        Err(_) => rule.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_names_the_word_that_was_meant() {
        let known = ["command", "schedule", "timezone", "kill_after", "env", "user"];
        for (slip, meant) in [
            ("comand", "command"),
            ("Command", "command"),
            ("shedule", "schedule"),
            ("kill-after", "kill_after"),
            ("time_zone", "timezone"),
            ("cmd", "command"),
            ("usr", "user"),
        ] {
            let hint = nearest(slip, known.into_iter());
            assert_eq!(hint, Some(format!("did you mean \"{meant}\"?")), "{slip}");
        }
        for other in ["", "x", "colour", &"command".repeat(9)] {
            assert_eq!(nearest(other, known.into_iter()), None, "{other}");
        }
    }
}
