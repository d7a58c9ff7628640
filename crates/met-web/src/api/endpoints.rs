//! What can be asked for. Lists are bounded and continued by `next`; times are RFC 3339.

use met_core::job::State;
use met_core::series::Course;
use met_core::{DETAIL, event};
use met_host::clock;
use met_insight::json;
use met_query::jobs::{JobsFilter, Meant};
use serde_json::{Value, json};

use super::row::row;
use super::{Asked, Endpoint, Visible, decode, encode};
use crate::problem::Problem;

pub(super) const ENDPOINTS: &[(&str, Endpoint)] = &[
    ("/api/v1/jobs", jobs),
    ("/api/v1/jobs/{job}", job),
    ("/api/v1/jobs/{job}/series", series),
    ("/api/v1/nodes", nodes),
];

/// Jobs in an answer that names no limit.
const JOBS: usize = 100;
const JOBS_MAX: usize = 500;
/// Samples in an answer: some megabytes.
const SAMPLES_MAX: usize = 5_000;

fn jobs(visible: &Visible<'_>, asked: &Asked) -> Result<Value, Problem> {
    let [user, name, account, manager, state, since, until, limit, after] = asked
        .parameters(["user", "name", "account", "manager", "state", "since", "until", "limit", "after"])?;
    let owned = |text: Option<&str>| text.map(str::to_owned);
    let filter = JobsFilter {
        name: owned(name),
        account: owned(account),
        manager: owned(manager),
        states: state.map_or(Ok(Vec::new()), states)?,
        since_ns: time("since", since)?,
        until_ns: time("until", until)?,
        limit: Some(limit.map_or(Ok(JOBS), number_of_jobs)?),
        after: after.map(decode).transpose()?,
        paged: true,
        ..JobsFilter::default()
    }
    .of_user(user);
    let (page, warnings) = visible.jobs(&filter)?;
    let now_ns = clock::realtime_ns();
    let object = |record| {
        let mut object = json::object(record, now_ns);
        object["row"] = row(record, &object, now_ns);
        object
    };
    let jobs: Vec<Value> = page.jobs.iter().map(object).collect();
    let next = page.next.as_ref().and_then(encode);
    Ok(match warnings.is_empty() {
        true => json!({ "jobs": jobs, "next": next }),
        false => json!({ "jobs": jobs, "next": next, "warnings": warnings }),
    })
}

fn job(visible: &Visible<'_>, asked: &Asked) -> Result<Value, Problem> {
    let [] = asked.parameters([])?;
    let (Meant::Job(record) | Meant::Step(record)) = visible.find(asked.path("job"))?;
    Ok(json::object(&record, clock::realtime_ns()))
}

/// The samples of a job, of one of its cards or events, or of its details.
fn series(visible: &Visible<'_>, asked: &Asked) -> Result<Value, Problem> {
    let [card, event, details, after] = asked.parameters(["card", "event", "details", "after"])?;
    if [card, event, details].iter().flatten().count() > 1 {
        return Err(Problem::asked("one request returns one series; give a single selector"));
    }
    let after_ms = time("after", after)?.map_or(i64::MIN, |after_ns| after_ns.div_euclid(1_000_000));
    let key = match visible.find(asked.path("job"))? {
        Meant::Job(record) => record.key,
        Meant::Step(_) => return Err(Problem::asked("a step has no series of its own; ask for its job")),
    };
    let mut course = match card {
        Some(uuid) => visible.card_course(&key, uuid, after_ms)?,
        None if event.is_some() => {
            visible.job_series(&key, &event::TABLE, event.unwrap_or_default(), after_ms)?
        }
        None if details.is_some() => visible.job_series(&key, &DETAIL, "", after_ms)?,
        None => visible.course(&key, after_ms)?,
    };
    course.truncate(SAMPLES_MAX);
    Ok(object(&course, card.or(event)))
}

fn object(course: &Course, card: Option<&str>) -> Value {
    let mut object = json::course(course);
    let last_ms = course.times_ms.last().filter(|_| course.len() == SAMPLES_MAX);
    object.insert("table".to_owned(), course.table.name.into());
    object.insert("part".to_owned(), card.unwrap_or("").into());
    object.insert("next".to_owned(), last_ms.and_then(|last_ms| json::time(last_ms * 1_000_000)).into());
    Value::Object(object)
}

fn nodes(visible: &Visible<'_>, asked: &Asked) -> Result<Value, Problem> {
    let [] = asked.parameters([])?;
    Ok(json!({ "nodes": visible.nodes()? }))
}

fn states(text: &str) -> Result<Vec<State>, Problem> {
    let state = |name: &str| {
        State::parse(name).ok_or_else(|| {
            let known = State::ALL.map(State::name).join(", ");
            Problem::asked(format!("state: unknown state {name:?}; known: {known}"))
        })
    };
    text.split(',').map(state).collect()
}

fn number_of_jobs(text: &str) -> Result<usize, Problem> {
    let number = text.parse().ok().filter(|number| (1..=JOBS_MAX).contains(number));
    number.ok_or_else(|| Problem::asked(format!("limit: {text:?} is not a number from 1 to {JOBS_MAX}")))
}

fn time(name: &str, text: Option<&str>) -> Result<Option<i64>, Problem> {
    let Some(text) = text else { return Ok(None) };
    let time = json::parse_time(text);
    let wrong = || Problem::asked(format!("{name}: {text:?} is not a time such as 2026-01-31T12:00:00Z"));
    time.map(Some).ok_or_else(wrong)
}
