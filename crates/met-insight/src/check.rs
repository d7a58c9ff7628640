//! Findings of many jobs together: by user and rule, with the gates of a cluster.

mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::time::Duration;

use met_core::by_threads::{both, by_threads};
use met_core::job::{LOCAL, Record, State};
use met_core::reaction::Reaction;
use met_core::series::{Columns, Series};
use met_core::{Table, job_table};
use serde::Serialize;
use serde_json::{Value, json};

use crate::answers::{Beside, FollowUp, Job, Known, follow_ups};
use crate::finding::{self, Finding, Saving, Severity};
use crate::lineage::Lineages;
use crate::neighbours::Neighbours;
use crate::report::Machine;
use crate::rules::user::WEEK_NS;
use crate::rules::{self, Rules};
use crate::{average, handled};
pub use watch::{Wanted, wanted};

/// Runs before a job that are looked at.
const EARLIER: usize = 20;

/// What a user must have wasted by one rule in a week before it is worth a message.
const CLUSTER_CORE_HOURS: f64 = 100.0;
const CLUSTER_GPU_HOURS: f64 = CLUSTER_CORE_HOURS / finding::GPU_HOUR;
/// Jobs that one thread looks at before it takes the next ones.
const PIECE: usize = 500;
/// Jobs that a group names, the most worthwhile.
const NAMED: usize = 5;
/// No rule that needs samples speaks of a shorter job.
pub const SHORTEST_NS: i64 = 60_000_000_000;

/// One user and rule.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    pub user: Option<String>,
    pub rule: String,
    pub severity: Severity,
    pub count: usize,
    /// About weeks of a user, not about jobs.
    pub is_sum: bool,
    pub saving: Saving,
    /// Labels of jobs, or the user where it is about the sum.
    pub subjects: Vec<String>,
    pub what: String,
    pub how: String,
}

/// What `met check` has found.
pub struct Checked<'a> {
    pub jobs: usize,
    pub findings: Vec<Finding>,
    /// With why they are left out.
    pub hidden: Vec<(Finding, &'a Reaction)>,
    pub followed: Vec<FollowUp>,
    pub with_hidden: bool,
}

/// How jobs are looked at.
pub struct Look<'a> {
    pub rules: &'a Rules,
    /// Of all these jobs, that are each other's earlier runs and neighbours, only some.
    pub is_wanted: &'a (dyn Fn(&Record) -> bool + Sync),
    pub machine: &'a (dyn Fn(&Record) -> Machine + Sync),
    /// Nothing is said of a shorter job, unless it was killed for its memory.
    pub shortest_ns: i64,
    /// Jobs are sampled at most at this interval.
    pub interval: Duration,
    pub now_ns: i64,
}

/// Gives the samples of a job, a table and a part. Columns that are not wanted may be empty.
pub type ReadSeries<'s, E> =
    dyn FnMut(&Record, &'static Table, &str, Columns) -> Result<Series, E> + Send + 's;

type Found = (Vec<Finding>, Vec<FollowUp>);

/// The findings of jobs, and which advice was followed. Samples are read of the jobs that a rule may speak of, by one
/// thread for each of the readers.
pub fn of_jobs<E: Send>(
    look: &Look<'_>,
    records: &[Record],
    readers: &mut [&mut ReadSeries<'_, E>],
) -> Result<Found, E> {
    let (neighbours, lineages) =
        both(readers.len() > 1, || Neighbours::of(records, look.now_ns), || Lineages::of(records));
    let around = Around { records, lineages, neighbours };
    let pieces = by_threads(readers, records.len().div_ceil(PIECE), |series, number| {
        let begin = number * PIECE;
        around.of_piece(look, begin..records.len().min(begin + PIECE), &mut **series)
    });
    let (mut findings, mut followed) = (Vec::new(), Vec::new());
    for found in pieces {
        let found = found?;
        findings.extend(found.0);
        followed.extend(found.1);
    }
    Ok((findings, followed))
}

/// Jobs, and what they are to each other.
struct Around<'a> {
    records: &'a [Record],
    lineages: Lineages<'a>,
    neighbours: Neighbours<'a>,
}

impl Around<'_> {
    fn of_piece<E>(
        &self,
        look: &Look<'_>,
        piece: Range<usize>,
        series: &mut ReadSeries<'_, E>,
    ) -> Result<Found, E> {
        let Around { records, lineages, neighbours } = self;
        let (mut findings, mut followed) = (Vec::new(), Vec::new());
        for index in piece {
            let record = &records[index];
            if !(look.is_wanted)(record) || !look.is_worth_reading(record) {
                continue;
            }
            let earlier = lineages.before(index, EARLIER);
            let gpus = Beside { gpus: neighbours.gpus(record), ..Beside::default() };
            let machine = (look.machine)(record);
            let unread = Job::new(record, machine, look.now_ns).after(&earlier).beside(gpus);
            followed.extend(follow_ups(&unread));
            let (candidates, needs) = rules::candidates(look.rules, &unread);
            if candidates.is_empty() {
                continue;
            }
            let mut of_job =
                |table: &'static Table, part: &str, wanted: Columns| series(record, table, part, wanted);
            let known = Known::read_needed(needs, look.interval, record, machine, &mut of_job)?;
            let beside = if needs.neighbours { neighbours.beside(record) } else { gpus };
            let known = known.beside(beside).among(&look.rules.systems);
            known.with_job(record, &earlier, look.now_ns, |job| {
                findings.extend(rules::judge_all(candidates, job));
            });
        }
        Ok((findings, followed))
    }
}

impl Look<'_> {
    fn is_worth_reading(&self, record: &Record) -> bool {
        let wall_ns = average::wall_ns(record, self.now_ns);
        let is_long = wall_ns.is_some_and(|wall_ns| wall_ns >= self.shortest_ns);
        let killed = record.totals.get(job_table::OOM_KILLS).is_some_and(|kills| kills > 0);
        record.state != State::Pending
            && (is_long || killed)
            && (record.inside.is_none() || record.key.manager != LOCAL)
    }
}

/// The findings that are worth a line: on a cluster those of a user and rule that passed the gate in one week at least.
pub fn worthwhile(findings: Vec<Finding>, is_cluster: bool) -> Vec<Finding> {
    let key = |finding: &Finding| (finding.user.clone(), finding.rule.clone());
    let mut by_key: BTreeMap<_, Vec<&Finding>> = BTreeMap::new();
    for finding in &findings {
        by_key.entry(key(finding)).or_default().push(finding);
    }
    let passed: BTreeSet<_> =
        by_key.into_iter().filter(|(_, found)| !is_cluster || passes(found)).map(|(key, _)| key).collect();
    findings.into_iter().filter(|finding| passed.contains(&key(finding))).collect()
}

/// Groups of findings, the most worthwhile first. The order of findings does not matter.
pub fn groups(findings: &[Finding]) -> Vec<Group> {
    let mut ordered: Vec<&Finding> = findings.iter().collect();
    ordered.sort_by(|one, other| {
        let weight = |finding: &Finding| finding.saving.weight();
        weight(other).total_cmp(&weight(one)).then_with(|| one.subject.cmp(&other.subject))
    });
    let mut by_key: BTreeMap<(Option<&str>, &str), Vec<&Finding>> = BTreeMap::new();
    for finding in ordered {
        by_key.entry((finding.user.as_deref(), &finding.rule)).or_default().push(finding);
    }
    let of_group = |found: Vec<&Finding>| {
        let first = found.first()?;
        let is_sum = first.held_core_hours.is_none();
        let named = found.iter().map(|finding| finding.subject.clone());
        let saving = found.iter().fold(Saving::default(), |sum, finding| sum.plus(&finding.saving));
        Some(Group {
            user: first.user.clone(),
            rule: first.rule.clone(),
            severity: first.severity,
            count: found.len(),
            is_sum,
            saving,
            // The sums of a user are all his.
            subjects: named.take(if is_sum { 1 } else { NAMED }).collect(),
            what: first.what.clone(),
            how: first.how.clone(),
        })
    };
    let mut groups: Vec<Group> = by_key.into_values().filter_map(of_group).collect();
    groups.sort_by(|one, other| {
        (other.saving.weight().total_cmp(&one.saving.weight()))
            .then(other.severity.cmp(&one.severity))
            .then_with(|| (&one.rule, &one.user).cmp(&(&other.rule, &other.user)))
    });
    groups
}

/// The same for a program.
pub fn object(group: &Group) -> Value {
    json!({
        "user": group.user,
        "rule": group.rule,
        "severity": group.severity.name(),
        "count": group.count,
        "saving": finding::saving(&group.saving),
        "subjects": group.subjects,
        "what": group.what,
        "how": group.how,
    })
}

/// What was found, for a program.
#[derive(Serialize)]
pub struct CheckedObject<'a> {
    jobs: usize,
    groups: Vec<Value>,
    findings: Vec<finding::Object<'a>>,
    hidden: usize,
    followed: FollowedObject,
    #[serde(skip_serializing_if = "Option::is_none")]
    muted: Option<Vec<finding::Object<'a>>>,
    /// Running jobs that are sampled more often because rules want it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub watched: Vec<Value>,
    /// Whom a policy would hit, where that is asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dry_run: Option<Value>,
}

#[derive(Serialize)]
struct FollowedObject {
    taken: usize,
    not_taken: usize,
    saving: finding::SavingObject,
}

fn muted_object<'a>((finding, reaction): &'a (Finding, &Reaction)) -> finding::Object<'a> {
    finding::Object::of(finding).muted(handled::object(reaction))
}

pub fn checked_object<'a>(checked: &'a Checked<'_>) -> CheckedObject<'a> {
    let (taken, not_taken): (Vec<&FollowUp>, Vec<&FollowUp>) =
        checked.followed.iter().partition(|one| one.is_taken);
    let saved = taken.iter().fold(Saving::default(), |sum, one| sum.plus(&one.saving));
    CheckedObject {
        jobs: checked.jobs,
        groups: groups(&checked.findings).iter().map(object).collect(),
        findings: checked.findings.iter().map(finding::Object::of).collect(),
        hidden: checked.hidden.len(),
        followed: FollowedObject {
            taken: taken.len(),
            not_taken: not_taken.len(),
            saving: finding::SavingObject::of(&saved),
        },
        muted: checked.with_hidden.then(|| checked.hidden.iter().map(muted_object).collect()),
        watched: Vec::new(),
        dry_run: None,
    }
}

/// Writes it as JSON, in one line.
pub fn write_checked(object: &CheckedObject<'_>, to: &mut dyn Write) -> io::Result<()> {
    // A buffer: it is written number by number.
    let mut to = BufWriter::with_capacity(1 << 16, to);
    serde_json::to_writer(&mut to, object)?;
    to.write_all(b"\n")?;
    to.flush()
}

/// What saves no countable time is weighed by what the jobs held; the sum of a user has gates of its own.
fn passes(found: &[&Finding]) -> bool {
    let mut weeks: BTreeMap<i64, (Saving, Option<f64>)> = BTreeMap::new();
    for finding in found {
        let (saving, held) =
            weeks.entry(finding.window_ns.1.div_euclid(WEEK_NS)).or_insert((Saving::default(), Some(0.0)));
        *saving = saving.plus(&finding.saving);
        *held = held.zip(finding.held_core_hours).map(|(sum, hours)| sum + hours);
    }
    let saves = |saving: &Saving| saving.core_hours.is_some() || saving.gpu_hours.is_some();
    weeks.values().any(|(saving, held)| match saves(saving) {
        true => {
            saving.core_hours.is_some_and(|hours| hours >= CLUSTER_CORE_HOURS)
                || saving.gpu_hours.is_some_and(|hours| hours >= CLUSTER_GPU_HOURS)
        }
        false => held.is_none_or(|hours| hours >= CLUSTER_CORE_HOURS),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn finding(user: &str, rule: &str, subject: &str, core_hours: f64, week: i64) -> Finding {
        Finding {
            rule: rule.to_owned(),
            severity: Severity::Low,
            subject: subject.to_owned(),
            user: Some(user.to_owned()),
            lineage: None,
            window_ns: (week * WEEK_NS, week * WEEK_NS + 1),
            what: String::new(),
            why: Vec::new(),
            how: String::new(),
            saving: Saving { core_hours: Some(core_hours), ..Saving::default() },
            held_core_hours: Some(core_hours),
            coverage: 1.0,
        }
    }

    #[test]
    fn a_cluster_looks_at_a_week_of_a_user() {
        let some = [finding("a", "r", "1", 60.0, 1), finding("a", "r", "2", 60.0, 1)];
        let spread = [finding("a", "r", "1", 60.0, 1), finding("a", "r", "2", 60.0, 2)];
        let on_cluster = |found: &[Finding]| groups(&worthwhile(found.to_vec(), true));
        assert_eq!(on_cluster(&some)[0].saving.core_hours, Some(120.0));
        assert_eq!(on_cluster(&spread), [], "60 a week are below the gate");
        assert_eq!(groups(&worthwhile(spread.to_vec(), false))[0].count, 2);
    }

    #[test]
    fn what_saves_no_countable_time_is_weighed_by_what_was_held() {
        let of = |hours: f64| Finding { saving: Saving::default(), ..finding("a", "r", "1", hours, 1) };
        assert_eq!(worthwhile(vec![of(99.0)], true), [], "one small job is no line for a cluster");
        assert_eq!(worthwhile(vec![of(99.0)], false).len(), 1);
        assert_eq!(worthwhile(vec![of(60.0), of(60.0)], true).len(), 2);
        let sum = Finding { held_core_hours: None, ..of(0.0) };
        assert_eq!(worthwhile(vec![sum], true).len(), 1, "a user's sum has gates of its own");
    }

    proptest! {
        #[test]
        fn the_order_of_jobs_does_not_matter_and_more_waste_is_never_less_of_a_finding(
            hours in proptest::collection::vec((0usize..3, 1u32..80), 1..20), seed in 0usize..20, more in 0u32..50)
        {
            let made = |extra: u32| hours.iter().enumerate().map(|(index, (user, hours))| {
                finding(&user.to_string(), "r", &index.to_string(), f64::from(hours + extra), 1)
            }).collect::<Vec<_>>();
            let found = made(0);
            let mut turned = found.clone();
            turned.rotate_left(seed % found.len());
            let on_cluster = |found: &[Finding]| groups(&worthwhile(found.to_vec(), true));
            prop_assert_eq!(on_cluster(&found), on_cluster(&turned));
            let users = |found: &[Finding]| {
                on_cluster(found).into_iter().map(|group| group.user).collect::<std::collections::BTreeSet<_>>()
            };
            prop_assert!(users(&found).is_subset(&users(&made(more))));
        }
    }
}
