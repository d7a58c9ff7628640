//! Query strings: which parameters an endpoint has, and what they mean. Pages read theirs with the same functions.

use axum::extract::Query as Search;
use axum::http::Uri;
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use jiff::tz::TimeZone;
use met_core::conditions::Conditions;
use met_core::job::State;
use met_core::listing::{Cursor, Sort, SortColumn, SortValue, Sorted};
use met_core::units;
use met_host::clock;
use met_query::jobs::{JobOwner, JobTimes, JobsFilter, PageAsk};

use crate::problem::Problem;

/// Jobs in an answer that names no limit.
pub const JOBS_USUAL: i64 = 100;
pub const JOBS_MAX: i64 = 500;
/// Points of a series that is reduced.
pub const POINTS_MAX: i64 = 5_000;
/// Bytes of one text.
const TEXT_BYTES_MAX: usize = 1 << 10;
/// Bytes of a cursor, which holds the value of a job: its name may be long, and is escaped and encoded.
const CURSOR_BYTES_MAX: usize = 16 << 10;
/// Parameters in one query string.
const GIVEN_MAX: usize = 64;

/// What the text of a parameter means.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Text,
    Whole {
        least: i64,
        most: i64,
    },
    /// A number of at least 0.
    Amount,
    /// RFC 3339, unix milliseconds, or how long ago.
    Time,
    /// Seconds, or a number with a unit.
    Duration,
    Flag,
    /// Separated by commas, or given several times.
    States,
    /// The same, of any texts.
    List,
    Choice(&'static [&'static str]),
    Cursor,
    /// A table of the catalogue.
    Table,
    /// A column of a list, and a direction.
    Sort,
}

#[derive(Clone, Copy, Debug)]
pub struct Parameter {
    pub name: &'static str,
    pub kind: Kind,
    pub help: &'static str,
    /// An earlier name, which is accepted and not documented.
    pub earlier_name: Option<&'static str>,
}

pub const fn parameter(name: &'static str, kind: Kind, help: &'static str) -> Parameter {
    Parameter { name, kind, help, earlier_name: None }
}

impl Parameter {
    pub const fn renamed_from(self, earlier_name: &'static str) -> Parameter {
        Parameter { earlier_name: Some(earlier_name), ..self }
    }

    fn is_named(&self, name: &str) -> bool {
        self.name == name || self.earlier_name == Some(name)
    }
}

pub const FORMAT: Parameter = parameter(
    "format",
    Kind::Choice(&["json", "csv"]),
    "json (default) or csv; `Accept: text/csv` is the same as csv",
);
pub const SINCE: Parameter = parameter("since", Kind::Time, "from this time on");
pub const UNTIL: Parameter = parameter("until", Kind::Time, "before this time");
pub const POINTS: Parameter = parameter(
    "points",
    Kind::Whole { least: 1, most: POINTS_MAX },
    "reduce the series to this number of equal spans, each with minimum, mean and maximum; a span without samples stays empty",
);
pub const COLUMNS: Parameter =
    parameter("columns", Kind::List, "only these columns, by name and separated by commas");

/// Which jobs, in which order: the parameters of `/api/v1/jobs` and of the page of jobs.
pub const JOBS: &[Parameter] = &[
    parameter("user", Kind::Text, "owner, by name or uid"),
    parameter("name", Kind::Text, "name of the job"),
    parameter("account", Kind::Text, "account or project"),
    parameter("manager", Kind::Text, "resource manager, such as slurm or local"),
    parameter("state", Kind::States, "one or more states"),
    parameter("since", Kind::Time, "started at or after this time"),
    parameter("until", Kind::Time, "started before this time"),
    parameter("uid", Kind::Whole { least: 0, most: u32::MAX as i64 }, "uid of the owner"),
    parameter(
        "pid",
        Kind::Whole { least: 1, most: u32::MAX as i64 },
        "a stored process of the job has this pid",
    ),
    parameter("gpu", Kind::Flag, "only jobs that had a GPU"),
    parameter("command", Kind::Text, "is somewhere in the command line"),
    parameter("partition", Kind::Text, "partition or queue"),
    parameter("node", Kind::Text, "one of its nodes"),
    parameter("tag", Kind::Text, "one of its tags"),
    parameter("min_duration", Kind::Duration, "ran at least this long: seconds, or 10m, 2h"),
    parameter("min_energy", Kind::Amount, "used at least this many joules"),
    parameter("max_efficiency", Kind::Amount, "used at most this share of its CPUs: 0.5 is half"),
    parameter("sort", Kind::Sort, "column, with :asc (default) or :desc; newest first if not given"),
    parameter("limit", Kind::Whole { least: 1, most: JOBS_MAX }, "jobs per answer (default: 100)"),
    parameter("after", Kind::Cursor, "`next` of the previous answer"),
    parameter("columns", Kind::List, "columns of the CSV (default: all)"),
    FORMAT,
];

/// The jobs that a query string with [`JOBS`] means.
pub fn jobs_filter(given: &Given) -> Result<JobsFilter, Problem> {
    let sort = given.sort("sort");
    let after = given.cursor("after").map(|after| in_list(after, sort, clock::realtime_ns())).transpose()?;
    let filter = JobsFilter {
        name: given.text("name"),
        manager: given.text("manager"),
        states: given.states("state"),
        pid: given.whole("pid").and_then(|pid| u32::try_from(pid).ok()),
        with_gpus: given.flag("gpu"),
        conditions: Conditions {
            command: given.text("command"),
            partition: given.text("partition"),
            node: given.text("node"),
            tag: given.text("tag"),
            min_duration_ns: given.ns("min_duration"),
            min_energy_uj: given.amount("min_energy").map(|joules| (joules * 1e6) as i64),
            max_efficiency: given.amount("max_efficiency"),
        },
        owner: JobOwner {
            account: given.text("account"),
            uid: given.whole("uid").and_then(|uid| u32::try_from(uid).ok()),
            ..JobOwner::default()
        },
        times: JobTimes { since_ns: given.ns("since"), until_ns: given.ns("until"), ..JobTimes::default() },
        page: PageAsk {
            limit: usize::try_from(given.whole("limit").unwrap_or(JOBS_USUAL)).ok(),
            after,
            paged: true,
            sort,
            ..PageAsk::default()
        },
        ..JobsFilter::default()
    };
    Ok(filter.of_user(given.text("user").as_deref()))
}

/// Whether a list is sorted by texts here, and not by numbers.
fn is_text(column: SortColumn) -> bool {
    use SortColumn::*;
    matches!(column, Name | User | Account | State | Manager | Partition | Tags | Command)
}

/// A cursor that is one of a list with this order; another would continue somewhere else.
fn in_list(mut after: Cursor, sort: Option<Sort>, now_ns: i64) -> Result<Cursor, Problem> {
    let is_of_list = match (&after.sorted, sort) {
        (None, None) => true,
        (Some(Sorted { sort: Some(of), .. }), Some(sort)) if *of != sort => false,
        (Some(sorted), Some(sort)) => match &sorted.value {
            None => true,
            Some(SortValue::Text(_)) => is_text(sort.column),
            Some(SortValue::Number(_)) => !is_text(sort.column),
        },
        _ => false,
    };
    if !is_of_list {
        return Err(Problem::field("after", "is the `next` of a list with another sort"));
    }
    if let Some(sorted) = &mut after.sorted {
        sorted.as_of_ns = sorted.as_of_ns.clamp(0, now_ns);
    }
    Ok(after)
}

#[derive(Clone, Debug, PartialEq)]
enum Value {
    Text(String),
    Whole(i64),
    Amount(f64),
    /// A time or a duration.
    Ns(i64),
    Flag(bool),
    States(Vec<State>),
    List(Vec<String>),
    Cursor(Box<Cursor>),
    Sort(Sort),
}

/// The parameters of a request, checked.
#[derive(Clone, Debug, Default)]
pub struct Given(Vec<(&'static str, Value)>);

impl Given {
    /// Reads the query string of an address. A parameter that is not known is refused: it would be overlooked. An empty
    /// one is not given: forms send all their fields.
    pub fn parse(uri: &Uri, known: &[Parameter]) -> Result<Given, Problem> {
        let Search(pairs): Search<Vec<(String, String)>> =
            Search::try_from_uri(uri).map_err(|error| Problem::asked(format!("query string: {error}")))?;
        Given::of(&pairs, known)
    }

    pub fn of(pairs: &[(String, String)], known: &[Parameter]) -> Result<Given, Problem> {
        if pairs.len() > GIVEN_MAX {
            return Err(Problem::asked(format!("more than {GIVEN_MAX} parameters")));
        }
        let mut given = Given::default();
        for (name, text) in pairs {
            let parameter =
                known.iter().find(|known| known.is_named(name)).ok_or_else(|| unknown(name, known))?;
            if !text.is_empty() {
                let value = read(parameter, text).map_err(|why| Problem::field(parameter.name, why))?;
                given.add(parameter.name, value)?;
            }
        }
        Ok(given)
    }

    fn add(&mut self, name: &'static str, value: Value) -> Result<(), Problem> {
        let before = self.0.iter_mut().find(|(known, _)| *known == name).map(|(_, value)| value);
        match (before, value) {
            (None, value) => self.0.push((name, value)),
            (Some(Value::States(before)), Value::States(more)) => before.extend(more),
            (Some(Value::List(before)), Value::List(more)) => before.extend(more),
            _ => return Err(Problem::field(name, "given twice")),
        }
        Ok(())
    }

    fn value(&self, name: &str) -> Option<&Value> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    pub fn text(&self, name: &str) -> Option<String> {
        match self.value(name) {
            Some(Value::Text(text)) => Some(text.clone()),
            _ => None,
        }
    }

    pub fn whole(&self, name: &str) -> Option<i64> {
        match self.value(name) {
            Some(Value::Whole(number)) => Some(*number),
            _ => None,
        }
    }

    pub fn amount(&self, name: &str) -> Option<f64> {
        match self.value(name) {
            Some(Value::Amount(number)) => Some(*number),
            _ => None,
        }
    }

    /// A time in unix nanoseconds, or a duration.
    pub fn ns(&self, name: &str) -> Option<i64> {
        match self.value(name) {
            Some(Value::Ns(ns)) => Some(*ns),
            _ => None,
        }
    }

    pub fn flag(&self, name: &str) -> bool {
        self.value(name) == Some(&Value::Flag(true))
    }

    pub fn states(&self, name: &str) -> Vec<State> {
        match self.value(name) {
            Some(Value::States(states)) => states.clone(),
            _ => Vec::new(),
        }
    }

    pub fn list(&self, name: &str) -> Option<&[String]> {
        match self.value(name) {
            Some(Value::List(list)) => Some(list),
            _ => None,
        }
    }

    pub fn sort(&self, name: &str) -> Option<Sort> {
        match self.value(name) {
            Some(Value::Sort(sort)) => Some(*sort),
            _ => None,
        }
    }

    pub fn cursor(&self, name: &str) -> Option<Cursor> {
        match self.value(name) {
            Some(Value::Cursor(cursor)) => Some((**cursor).clone()),
            _ => None,
        }
    }
}

fn unknown(name: &str, known: &[Parameter]) -> Problem {
    let names: Vec<&str> = known.iter().map(|known| known.name).collect();
    let known = match names.is_empty() {
        true => "this endpoint has no parameters".to_owned(),
        false => format!("known: {}", names.join(", ")),
    };
    let reason = format!("unknown parameter {name:?}; {known}");
    Problem { field: Some(name.to_owned()), ..Problem::asked(reason) }
}

/// What a text means, or why it means nothing.
fn read(parameter: &Parameter, text: &str) -> Result<Value, String> {
    let bytes_max = if matches!(parameter.kind, Kind::Cursor) { CURSOR_BYTES_MAX } else { TEXT_BYTES_MAX };
    if text.len() > bytes_max {
        return Err(format!("longer than {bytes_max} bytes"));
    }
    // PostgreSQL has no text with it, and no name does.
    if text.contains('\0') {
        return Err("contains a NUL character".to_owned());
    }
    match parameter.kind {
        Kind::Text => Ok(Value::Text(text.to_owned())),
        Kind::Whole { least, most } => {
            let number = text.parse().ok().filter(|number| (least..=most).contains(number));
            let wrong = || format!("{text:?} is not a number from {least} to {most}");
            number.map(Value::Whole).ok_or_else(wrong)
        }
        Kind::Amount => {
            let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0);
            number.map(Value::Amount).ok_or_else(|| format!("{text:?} is not a number ≥ 0"))
        }
        Kind::Time => time_ns(text).map(Value::Ns),
        Kind::Duration => duration_ns(text).map(Value::Ns),
        Kind::Flag => match text {
            "1" | "true" | "yes" | "on" => Ok(Value::Flag(true)),
            "0" | "false" | "no" | "off" => Ok(Value::Flag(false)),
            _ => Err(format!("{text:?} is neither true nor false")),
        },
        Kind::States => text.split(',').map(state).collect::<Result<_, _>>().map(Value::States),
        Kind::List => Ok(Value::List(text.split(',').map(str::to_owned).collect())),
        Kind::Choice(choices) => match choices.contains(&text) {
            true => Ok(Value::Text(text.to_owned())),
            false => Err(format!("{text:?} is not one of {}", choices.join(", "))),
        },
        Kind::Sort => text.parse().map(Value::Sort),
        Kind::Table => match met_sources::table(text) {
            Some(table) => Ok(Value::Text(table.name.to_owned())),
            None => Err(format!("no table named {text:?}; /api/v1/catalogue lists all")),
        },
        Kind::Cursor => {
            let wrong = || format!("{text:?} is not the `next` of an earlier answer");
            decode(text).map(|cursor| Value::Cursor(Box::new(cursor))).ok_or_else(wrong)
        }
    }
}

fn state(name: &str) -> Result<State, String> {
    let known = || State::ALL.map(State::name).join(", ");
    State::parse(name).ok_or_else(|| format!("unknown state {name:?}; known: {}", known()))
}

/// Grafana writes unix milliseconds.
fn time_ns(text: &str) -> Result<i64, String> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        let ns = text.parse::<i64>().ok().and_then(|ms| ms.checked_mul(1_000_000));
        return ns.ok_or_else(|| format!("{text:?} is not a time in unix milliseconds"));
    }
    units::parse_since(text, clock::realtime_ns(), &TimeZone::UTC).map_err(|error| error.to_string())
}

fn duration_ns(text: &str) -> Result<i64, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| *seconds >= 0.0 && *seconds < 1e9);
    if let Some(seconds) = seconds {
        return Ok((seconds * 1e9) as i64);
    }
    let duration = units::parse_duration(text).map_err(|error| error.to_string())?;
    i64::try_from(duration.as_nanos()).map_err(|_| format!("{text:?} is too long; write at most 106751d"))
}

/// Where a list continues, as a client hands it back.
pub fn encode(cursor: &Cursor) -> Option<String> {
    serde_json::to_vec(cursor).ok().map(|bytes| BASE64_URL_SAFE_NO_PAD.encode(bytes))
}

fn decode(text: &str) -> Option<Cursor> {
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(text).ok()?;
    serde_json::from_slice(&bytes).ok()
}

#[cfg(test)]
mod tests {
    use met_core::job::{JobKey, Record};
    use met_core::listing::Order;
    use proptest::prelude::*;

    use super::*;

    fn jobs(search: &str) -> Result<JobsFilter, Problem> {
        let uri: Uri = format!("/jobs?{search}").parse().unwrap();
        Given::parse(&uri, JOBS).and_then(|given| jobs_filter(&given))
    }

    #[test]
    fn a_query_string_becomes_a_filter() {
        let search = "user=ada&state=running,failed&state=lost&since=2026-01-31T12:00:00Z&until=1769860801000&limit=7&gpu=1&pid=12";
        let filter = jobs(search).unwrap();
        assert_eq!((filter.owner.user.as_deref(), filter.owner.uid), (Some("ada"), None));
        assert_eq!(filter.states, [State::Running, State::Failed, State::Lost]);
        assert_eq!(filter.times.until_ns.unwrap() - filter.times.since_ns.unwrap(), 1_000_000_000);
        assert_eq!((filter.page.limit, filter.with_gpus, filter.pid), (Some(7), true, Some(12)));
        assert_eq!(jobs("user=1000").unwrap().owner.uid, Some(1000));
        assert_eq!(jobs("").unwrap().page.limit, Some(100));
    }

    #[test]
    fn an_empty_field_of_a_form_is_not_given() {
        let filter = jobs("user=&limit=&state=&since=&gpu=").unwrap();
        assert_eq!((filter.owner.user, filter.page.limit, filter.times.since_ns), (None, Some(100), None));
        assert!(filter.states.is_empty() && !filter.with_gpus);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (search, field, reason) in [
            ("limit=0", "limit", "limit: \"0\" is not a number from 1 to 500"),
            ("limit=-1", "limit", "limit: \"-1\" is not a number from 1 to 500"),
            ("limit=501", "limit", "limit: \"501\" is not a number from 1 to 500"),
            (
                "limit=99999999999999999999",
                "limit",
                "limit: \"99999999999999999999\" is not a number from 1 to 500",
            ),
            ("limit=1&limit=2", "limit", "limit: given twice"),
            ("after=x", "after", "after: \"x\" is not the `next` of an earlier answer"),
            ("format=xml", "format", "format: \"xml\" is not one of json, csv"),
            ("name=a%00b", "name", "name: contains a NUL character"),
        ] {
            let problem = jobs(search).unwrap_err();
            assert_eq!((problem.field.as_deref(), &*problem.reason), (Some(field), reason));
        }
        assert!(
            jobs("order=name").unwrap_err().reason.starts_with("unknown parameter \"order\"; known: user, ")
        );
        assert!(
            jobs("since=never").unwrap_err().reason.starts_with("since: \"never\" is not a time; write ")
        );
    }

    fn cursor_in(sort: Option<&str>, record: &Record) -> Cursor {
        let sort = sort.map(|sort| sort.parse().unwrap());
        Cursor::in_order(record, &Order::new(sort, None, 7))
    }

    #[test]
    fn the_cursor_behind_a_long_name_is_taken_back() {
        let mut record = met_core::sample::full(1, "train");
        record.name = "ä".repeat(1_000);
        let cursor = cursor_in(Some("name"), &record);
        let filter = jobs(&format!("sort=name&after={}", encode(&cursor).unwrap())).unwrap();
        assert_eq!(filter.page.after.unwrap().sorted, cursor.sorted);
    }

    #[test]
    fn a_cursor_of_another_order_is_refused() {
        let record = met_core::sample::full(1, "train");
        let orders = [None, Some("name"), Some("name:desc"), Some("user"), Some("cpu")];
        for (of, asked) in orders.into_iter().flat_map(|of| orders.map(|asked| (of, asked))) {
            let after = encode(&cursor_in(of, &record)).unwrap();
            let sort = asked.map_or_else(String::new, |sort| format!("&sort={sort}"));
            let read = jobs(&format!("after={after}{sort}"));
            assert_eq!(read.is_ok(), of == asked, "{of:?} {asked:?}");
            assert!(read.err().is_none_or(|problem| problem.field.as_deref() == Some("after")));
        }
    }

    #[test]
    fn values_of_every_column_have_the_kind_that_cursors_are_checked_for() {
        let record = met_core::sample::full(1, "train");
        for column in SortColumn::ALL {
            let value = Sort { column, descending: false }.value(&record, 7);
            let text = matches!(value, Some(SortValue::Text(_)));
            assert!(value.is_none() || text == is_text(column), "{column:?}");
        }
    }

    #[test]
    fn a_list_does_not_continue_in_the_future() {
        let mut cursor = cursor_in(Some("duration"), &met_core::sample::full(1, "train"));
        cursor.sorted.as_mut().unwrap().as_of_ns = i64::MAX;
        let filter = jobs(&format!("sort=duration&after={}", encode(&cursor).unwrap())).unwrap();
        assert!(filter.page.after.unwrap().sorted.unwrap().as_of_ns <= clock::realtime_ns());
    }

    proptest! {
        #[test]
        fn any_text_is_a_cursor_or_not(text in ".{0,80}") {
            let _ = decode(&text);
        }

        #[test]
        fn any_value_is_read_or_refused_with_its_field(name in prop::sample::select(JOBS.iter().map(|one| one.name).collect::<Vec<_>>()), text in ".{0,80}") {
            if let Err(problem) = Given::of(&[(name.to_owned(), text)], JOBS) {
                prop_assert_eq!(problem.field.as_deref(), Some(name));
            }
        }

        #[test]
        fn a_cursor_comes_back_as_it_was(start_ns: i64, id in ".{0,20}", cluster in proptest::option::of(".{0,9}"), incarnation: i64) {
            let key = JobKey { cluster, manager: "slurm".to_owned(), id, incarnation };
            let cursor = Cursor::at(start_ns, key);
            prop_assert_eq!(decode(&encode(&cursor).unwrap()).unwrap(), cursor);
        }
    }
}
