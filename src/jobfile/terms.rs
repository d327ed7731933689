//! The fields that say on which terms a command runs, each checked by itself.

use std::collections::{BTreeMap, BTreeSet};

use toml::de::DeValue;

use super::fields::{is_variable, value};
use super::found::{At, Found, Spot};
use super::names::nearest;
use super::remark::quoted;
use super::value::{Field, show_size};
use crate::job::{CREDENTIALS, IoNice, Limit, LimitUnit, Terms};

/// What a table says of these fields.
#[derive(Clone, Default)]
pub(super) struct Written {
    user: Option<At<String>>,
    group: Option<At<String>>,
    umask: Option<u32>,
    nice: Option<i32>,
    ionice: Option<IoNice>,
    limits: BTreeMap<Limit, Option<u64>>,
    stdin: Option<String>,
    no_new_privs: Option<At<bool>>,
    kill_leftovers: Option<At<bool>>,
    env_file: Option<At<String>>,
    credential: Option<String>,
    redact: Option<BTreeSet<String>>,
    timestamps: Option<At<bool>>,
}

/// A limit of more is a slip of the pen.
const LARGEST: u64 = 1 << 50;

impl Written {
    /// Reads a field if it is one of these.
    pub(super) fn read(&mut self, name: &str, field: &Field<'_>, found: &mut Found) -> bool {
        match name {
            "user" => self.user = account(field, found),
            "group" => self.group = account(field, found),
            "umask" => self.umask = umask(field, found),
            "nice" => self.nice = nice(field, found),
            "ionice" => self.ionice = ionice(field, found),
            "limits" => self.limits = limits(field, found),
            "stdin" => self.stdin = stdin(field, found),
            "no_new_privs" => self.no_new_privs = field.flag(found),
            "kill_leftovers" => self.kill_leftovers = field.flag(found),
            "env_file" => self.env_file = field.path(found),
            "env_from" => self.credential = credential(field, found),
            "redact" => self.redact = redact(field, found),
            "timestamps" => self.timestamps = field.flag(found),
            _ => return false,
        }
        true
    }

    /// What the job says, and where it is silent what the defaults say. Limits are merged one by one.
    pub(super) fn or(self, defaults: Written) -> Written {
        let mut limits = defaults.limits;
        limits.extend(self.limits);
        Written {
            user: self.user.or(defaults.user),
            group: self.group.or(defaults.group),
            umask: self.umask.or(defaults.umask),
            nice: self.nice.or(defaults.nice),
            ionice: self.ionice.or(defaults.ionice),
            limits,
            stdin: self.stdin.or(defaults.stdin),
            no_new_privs: self.no_new_privs.or(defaults.no_new_privs),
            kill_leftovers: self.kill_leftovers.or(defaults.kill_leftovers),
            env_file: self.env_file.or(defaults.env_file),
            credential: self.credential.or(defaults.credential),
            redact: self.redact.or(defaults.redact),
            timestamps: self.timestamps.or(defaults.timestamps),
        }
    }

    pub(super) fn check(self) -> Terms {
        Terms {
            user: value(self.user),
            group: value(self.group),
            umask: self.umask,
            nice: self.nice,
            ionice: self.ionice,
            limits: self.limits,
            stdin: self.stdin,
            no_new_privs: value(self.no_new_privs).unwrap_or(false),
            kill_leftovers: value(self.kill_leftovers).unwrap_or(false),
            env_file: value(self.env_file),
            credential: self.credential,
            redact: self.redact.unwrap_or_default(),
            timestamps: value(self.timestamps).unwrap_or(false),
        }
    }
}

/// The fields that a job says, as they can be written in a job file.
pub(super) fn fields(terms: &Terms) -> Vec<(&'static str, String)> {
    let text = |text: &str| format!("{text:?}");
    let flag = |name, flag: bool| flag.then(|| (name, "true".to_owned()));
    let mut fields = Vec::new();
    fields.extend(terms.user.as_deref().map(|user| ("user", text(user))));
    fields.extend(terms.group.as_deref().map(|group| ("group", text(group))));
    fields.extend(terms.umask.map(|umask| ("umask", format!("\"{umask:03o}\""))));
    fields.extend(terms.nice.map(|nice| ("nice", nice.to_string())));
    fields.extend(terms.ionice.map(|ionice| ("ionice", text(&ionice.to_string()))));
    if !terms.limits.is_empty() {
        let limit = |(limit, most): (&Limit, &Option<u64>)| {
            let most = match (most, limit.unit()) {
                (None, _) => text("unlimited"),
                (Some(bytes), LimitUnit::Bytes) => text(&show_size(*bytes)),
                (Some(seconds), LimitUnit::Seconds) => text(&format!("{seconds}s")),
                (Some(count), LimitUnit::Count) => count.to_string(),
            };
            format!("{} = {most}", limit.word())
        };
        let limits: Vec<_> = terms.limits.iter().map(limit).collect();
        fields.push(("limits", format!("{{ {} }}", limits.join(", "))));
    }
    fields.extend(terms.stdin.as_deref().map(|stdin| ("stdin", text(stdin))));
    fields.extend(flag("no_new_privs", terms.no_new_privs));
    fields.extend(flag("kill_leftovers", terms.kill_leftovers));
    fields.extend(terms.env_file.as_deref().map(|path| ("env_file", text(path))));
    fields
        .extend(terms.credential.as_deref().map(|name| ("env_from", text(&format!("{CREDENTIALS}{name}")))));
    if !terms.redact.is_empty() {
        let names: Vec<_> = terms.redact.iter().map(|name| text(name)).collect();
        fields.push(("redact", format!("[{}]", names.join(", "))));
    }
    fields.extend(flag("timestamps", terms.timestamps));
    fields
}

/// A name of the user database. Numbers are none: a name that is missing must never turn into somebody's number.
fn account(field: &Field<'_>, found: &mut Found) -> Option<At<String>> {
    let text = field.text(found)?;
    let name = &text.value;
    if name.bytes().all(|c| c.is_ascii_digit()) {
        let message = format!("{} must be a name, not the number {}", field.name, quoted(name));
        found.mistake(&field.spot, message, "write the name that `getent` shows for it");
        return None;
    }
    if name.len() > 256
        || name.starts_with('-')
        || name.contains([':', ',', '/'])
        || name.contains(char::is_whitespace)
    {
        found.mistake(&field.spot, format!("bad {}: {}", field.name, quoted(name)), None);
        return None;
    }
    Some(text)
}

fn umask(field: &Field<'_>, found: &mut Found) -> Option<u32> {
    const HINT: &str = "write it as text in octal digits, like umask = \"027\"";
    let DeValue::String(text) = field.value else {
        found.mistake(&field.spot, "umask must be text", HINT);
        return None;
    };
    let digits = text.len() <= 4 && text.bytes().all(|c| matches!(c, b'0'..=b'7'));
    match u32::from_str_radix(text, 8) {
        Ok(umask) if digits && umask <= 0o777 => Some(umask),
        _ => {
            found.mistake(&field.spot, format!("bad umask {}", quoted(text)), HINT);
            None
        }
    }
}

fn nice(field: &Field<'_>, found: &mut Found) -> Option<i32> {
    let number = match field.value {
        DeValue::Integer(digits) => i32::from_str_radix(digits.as_str(), digits.radix()).ok(),
        _ => None,
    };
    let number = number.filter(|number| (-20..=19).contains(number));
    if number.is_none() {
        found.mistake(&field.spot, "nice must be a whole number from -20 to 19", None);
    }
    number
}

fn ionice(field: &Field<'_>, found: &mut Found) -> Option<IoNice> {
    let text = field.text(found)?;
    match text.value.parse() {
        Ok(ionice) => Some(ionice),
        Err(hint) => {
            found.mistake(&field.spot, format!("bad ionice {}", quoted(&text.value)), hint);
            None
        }
    }
}

fn limits(field: &Field<'_>, found: &mut Found) -> BTreeMap<Limit, Option<u64>> {
    let mut limits = BTreeMap::new();
    for (key, value) in field.table(found).into_iter().flatten() {
        let name: &str = key.get_ref();
        let Ok(limit) = name.parse::<Limit>() else {
            let spot = Spot::new(field.spot.file, key.span());
            let names = Limit::ALL.map(Limit::word);
            let hint = nearest(name, names.into_iter()).unwrap_or(format!("limits has {}", names.join(", ")));
            found.mistake(&spot, format!("unknown key {} in limits", quoted(name)), &*hint);
            continue;
        };
        let label = format!("limits.{name}");
        let field = Field::new(field.spot.file, &label, value);
        if let Some(most) = most(limit, &field, found) {
            limits.insert(limit, most);
        }
    }
    limits
}

/// `Some(None)`: no limit.
fn most(limit: Limit, field: &Field<'_>, found: &mut Found) -> Option<Option<u64>> {
    if matches!(field.value, DeValue::String(text) if text == "unlimited") {
        return Some(None);
    }
    let most = match limit.unit() {
        LimitUnit::Bytes => field.size(LARGEST, found)?.value,
        LimitUnit::Count => field.number(0, LARGEST, found)?.value,
        // The kernel counts whole seconds.
        LimitUnit::Seconds => field.duration(found)?.value.as_millis().div_ceil(1000) as u64,
    };
    Some(Some(most))
}

/// Any text but none with a NUL: it may be empty, or all blanks.
fn stdin(field: &Field<'_>, found: &mut Found) -> Option<String> {
    match field.value {
        DeValue::String(text) if text.trim().is_empty() => Some(text.to_string()),
        _ => Some(field.text(found)?.value),
    }
}

fn credential(field: &Field<'_>, found: &mut Found) -> Option<String> {
    let text = field.text(found)?.value;
    let name = text.strip_prefix(CREDENTIALS).filter(|name| {
        let is_file = !matches!(*name, "" | "." | "..") && name.len() <= 255;
        is_file && name.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-'))
    });
    if name.is_none() {
        let hint = "write \"credentials:NAME\" for a credential of the service that runs fleetcron";
        found.mistake(&field.spot, format!("bad env_from {}", quoted(&text)), hint);
    }
    name.map(str::to_owned)
}

fn redact(field: &Field<'_>, found: &mut Found) -> Option<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for name in field.texts(found)?.value {
        if !is_variable(&name.value) {
            let message = format!("redact names variables, and {} cannot be one", quoted(&name.value));
            found.mistake(&name.spot, message, "write the name; its value is replaced wherever it is set");
            return None;
        }
        names.insert(name.value);
    }
    Some(names)
}
