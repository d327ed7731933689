//! Where texts become a [`Schedule`], and where a schedule becomes texts again.

use chrono::SecondsFormat;

use super::found::{At, Found, Spot};
use super::remark::quoted;
use crate::job::{Job, JobName};
use crate::schedule::{Calendar, CalendarText, Dates, Schedule, Timestamp, Zone, ZoneError, crowded};

/// What a job says about its instants, as it was written.
pub(super) struct When<'w> {
    pub schedule: &'w At<Vec<At<String>>>,
    pub timezone: Option<Zone>,
    pub start_at: Option<&'w At<String>>,
    pub end_at: Option<&'w At<String>>,
    pub skip_dates: Option<&'w At<Vec<At<String>>>>,
    pub only_dates: Option<&'w At<Vec<At<String>>>>,
}

/// The zone, when there is one of that name.
pub(super) fn zone_of(zone: &At<String>, found: &mut Found) -> Option<Zone> {
    if !is_short(zone, found) {
        return None;
    }
    let error = match zone.value.parse() {
        Ok(zone) => return Some(zone),
        Err(error) => error,
    };
    let said = ZoneError::to_string(&error);
    let (message, hint) = said.split_once("; ").map_or((&*said, None), |(said, hint)| (said, Some(hint)));
    found.mistake(&zone.spot, message, hint);
    None
}

/// The schedule, when all of it is right. A bad zone was said where it was read; the rest is checked
/// nevertheless, as if in UTC.
pub(super) fn schedule_of(job: &JobName, when: &When<'_>, found: &mut Found) -> Option<Schedule> {
    let zone = when.timezone.unwrap_or(Zone::utc());
    let schedule = texts(job, &when.schedule.value, &zone, found);
    let calendar = calendar(when, found);
    let schedule = schedule?.within(calendar?);
    let emptied = || schedule.calendar().is_some() && schedule.next_after(BEGINNING).is_none();
    if !schedule.has_reboot() && emptied() {
        let hint = "start_at, end_at, skip_dates and only_dates leave no instant of it";
        found.mistake(&when.schedule.spot, "schedule never fires", hint);
    }
    Some(schedule)
}

/// Schedules have no instants before the year 1.
const BEGINNING: Timestamp = match Timestamp::from_timestamp(-62_135_596_800, 0) {
    Some(beginning) => beginning,
    None => panic!("chrono knows the year 1"),
};

/// No schedule, zone or date needs more. What is longer is a slip, and would be looked at and said at length.
const LONGEST: usize = 1000;

pub(super) fn is_short(text: &At<String>, found: &mut Found) -> bool {
    let length = text.value.len();
    if length > LONGEST {
        let message = format!("{} has {length} bytes, more than {LONGEST}", quoted(&text.value));
        found.mistake(&text.spot, message, None);
    }
    length <= LONGEST
}

fn texts(job: &JobName, texts: &[At<String>], zone: &Zone, found: &mut Found) -> Option<Schedule> {
    if texts.iter().filter(|text| !is_short(text, found)).count() > 0 {
        return None;
    }
    let words: Vec<_> = texts.iter().map(|text| text.value.as_str()).collect();
    let schedule = match Schedule::parse(&words, zone, job.as_str()) {
        Ok(schedule) => schedule,
        Err(errors) => {
            for (index, error) in errors {
                let spot = inside(&texts[index], error.at.clone(), found);
                found.mistake(&spot, format!("bad schedule: {}", error.message), error.hint.as_deref());
            }
            return None;
        }
    };
    let impossible = schedule.impossible();
    for (index, error) in &impossible {
        let text = &texts[*index];
        // The error points into the text as it is kept, with one blank between two fields.
        let spot = match schedule.texts()[*index] == text.value {
            true => inside(text, error.at.clone(), found),
            false => text.spot.clone(),
        };
        let hint = "no date of any year matches; look at day of month and month";
        found.mistake(
            &spot,
            format!("schedule {} never fires: {}", quoted(&text.value), error.message),
            hint,
        );
    }
    impossible.is_empty().then_some(schedule)
}

fn calendar(when: &When<'_>, found: &mut Found) -> Option<Calendar> {
    let lists = [when.skip_dates, when.only_dates].into_iter().flatten().flat_map(|dates| &dates.value);
    let all = [when.start_at, when.end_at].into_iter().flatten().chain(lists);
    if all.filter(|date| !is_short(date, found)).count() > 0 {
        return None;
    }
    let words = |dates: Option<&At<Vec<At<String>>>>| {
        dates.map(|dates| dates.value.iter().map(|date| date.value.clone()).collect::<Vec<_>>())
    };
    let (skip_dates, only_dates) = (words(when.skip_dates), words(when.only_dates));
    let text = CalendarText {
        start_at: when.start_at.map(|at| at.value.as_str()),
        end_at: when.end_at.map(|at| at.value.as_str()),
        skip_dates: skip_dates.as_deref().unwrap_or_default(),
        only_dates: only_dates.as_deref(),
    };
    let errors = match Calendar::parse(text) {
        Ok(calendar) => return Some(calendar),
        Err(errors) => errors,
    };
    for error in errors {
        let list = |dates: Option<&At<Vec<At<String>>>>| {
            dates.and_then(|dates| dates.value.get(error.index).map(|date| date.spot.clone()))
        };
        let spot = match error.field {
            "start_at" => when.start_at.map(|at| at.spot.clone()),
            "end_at" => when.end_at.map(|at| at.spot.clone()),
            "skip_dates" => list(when.skip_dates),
            _ => list(when.only_dates),
        };
        found.mistake(&spot.unwrap_or(when.schedule.spot.clone()), error.to_string(), None);
    }
    None
}

/// The spot of a part of a text. In a text with escapes or over several lines letters of the file and of the
/// text are not the same, so there it is the text as a whole.
pub(super) fn inside(text: &At<String>, part: std::ops::Range<usize>, found: &Found) -> Spot {
    let written = found.written(&text.spot);
    match written.get(1..written.len().saturating_sub(1)) {
        Some(inner) if inner == text.value => {
            let start = text.spot.start + 1;
            Spot::new(text.spot.file, start + part.start..start + part.end)
        }
        _ => text.spot.clone(),
    }
}

/// This many jobs that start in one minute are worth a word.
const CROWD: usize = 10;

/// Says what is valid and probably not meant. `jobs` come with the spots of their schedules' texts.
pub(super) fn warn<'j>(
    jobs: impl Iterator<Item = (&'j Job, &'j [Spot])> + Clone,
    now: Timestamp,
    found: &mut Found,
) {
    for (job, spots) in jobs.clone() {
        for warning in job.schedule.warnings(now) {
            found.warning(&spots[warning.index.min(spots.len() - 1)], warning.message, None);
        }
    }
    let mut together = jobs.filter(|(job, _)| !is_spread(job));
    let by_name = together.clone().map(|(job, _)| (job.name.as_str(), &job.schedule));
    let Some(crowd) = crowded(by_name, now, CROWD) else { return };
    let first = together.find(|(job, _)| crowd.jobs.iter().any(|name| name == job.name.as_str()));
    let Some((_, spots)) = first else { return };
    let hint = "H in place of a number picks one for each job: \"H 2 * * *\"; splay delays each by a time of its own";
    found.warning(&spots[0], crowd.to_string(), hint);
}

/// Whether its author has seen to it already that it does not start with all the others.
fn is_spread(job: &Job) -> bool {
    let minute = |text: &String| text.split(' ').next().is_some_and(|minute| minute.contains('H'));
    !job.splay.is_zero() || job.schedule.texts().iter().any(minute)
}

/// The schedule's own fields, as they can be written in a job file.
pub(super) fn fields(schedule: &Schedule) -> Vec<(&'static str, String)> {
    let texts = match schedule.texts() {
        [one] => format!("{one:?}"),
        many => format!("{many:?}"),
    };
    let mut fields = vec![("timezone", format!("{:?}", schedule.zone().name()))];
    if !schedule.is_none() {
        fields.insert(0, ("schedule", texts));
    }
    let Some(calendar) = schedule.calendar() else { return fields };
    let instant = |at: Timestamp| format!("{:?}", at.to_rfc3339_opts(SecondsFormat::AutoSi, true));
    let dates = |dates: &[Dates]| format!("{:?}", dates.iter().map(Dates::to_string).collect::<Vec<_>>());
    fields.extend(calendar.start_at().map(|at| ("start_at", instant(at))));
    fields.extend(calendar.end_at().map(|at| ("end_at", instant(at))));
    if !calendar.skip_dates().is_empty() {
        fields.push(("skip_dates", dates(calendar.skip_dates())));
    }
    fields.extend(calendar.only_dates().map(|only| ("only_dates", dates(only))));
    fields
}
