//! How people name a job, and which one is meant.

use anyhow::Result;
use met_core::job::{LOCAL, Record};
use met_core::managers;
use met_host::users;
use met_jobs::cgroup_layouts::Layout;
use met_store::{Filter, PageBounds, Queries, StoreError};
use serde::{Deserialize, Serialize};

use super::sort_ns;
use met_config::Failure;

/// Steps of a job that have a name instead of a number.
const STEPS: [&str; 3] = ["batch", "extern", "interactive"];

/// Jobs of one name that are searched together, from the newest on, for one of a node.
const PAGE_JOBS: usize = 100;

/// How a user names a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobRef {
    /// The newest of all.
    Last,
    Id {
        manager: Option<String>,
        id: String,
        /// Of a cluster: the node, where ids are those of nodes.
        #[serde(default)]
        node: Option<String>,
        /// The owner, where users have jobs of the same id.
        #[serde(default)]
        user: Option<String>,
    },
    /// The newest of this name.
    Name(String),
}

impl JobRef {
    /// `own`: managers that the configuration names.
    pub fn parse(text: &str, own: &[Layout]) -> Result<JobRef> {
        if text == "@last" {
            return Ok(JobRef::Last);
        }
        if text.is_empty() || text.starts_with('@') {
            return Err(Failure::usage(format!(
                "{text:?} is not a job; write 12, local:12, a name or @last"
            )));
        }
        // alice/12: of the jobs with this id that of alice. Any other text with a slash is a name.
        if let Some((owner, rest)) = text.split_once('/').filter(|(owner, _)| !owner.is_empty())
            && let Ok(JobRef::Id { manager, id, node, user: None }) = JobRef::parse(rest, own)
        {
            return Ok(JobRef::Id { manager, id, node, user: Some(owner.to_owned()) });
        }
        let (whole, node) = match text.rsplit_once('@') {
            Some((whole, node)) if !node.is_empty() => (whole, Some(node.to_owned())),
            _ => (text, None),
        };
        if let Some((manager, id)) = whole.split_once(':')
            && (manager == LOCAL
                || managers::find(manager).is_some()
                || own.iter().any(|layout| layout.manager() == manager))
            && !id.is_empty()
        {
            return Ok(JobRef::Id { manager: Some(manager.to_owned()), id: id.to_owned(), node, user: None });
        }
        if is_number(whole) {
            return Ok(JobRef::Id { manager: None, id: whole.to_owned(), node, user: None });
        }
        Ok(JobRef::Name(text.to_owned()))
    }
}

/// Whether a job can be given this name: references of this form mean something else.
pub fn is_free_as_name(text: &str, own: &[Layout]) -> bool {
    let is_imported = text.strip_prefix("imported:").is_some_and(is_number);
    matches!(JobRef::parse(text, own), Ok(JobRef::Name(_))) && !is_imported && process_in(text).is_none()
}

/// The process that a text names, and its node: `pid:4711`, `pid:4711@n1`.
pub fn process_in(text: &str) -> Option<(u32, Option<&str>)> {
    let rest = text.strip_prefix("pid:")?;
    let (pid, node) = rest.split_once('@').map_or((rest, None), |(pid, node)| (pid, Some(node)));
    Some((pid.parse().ok()?, node))
}

/// What to say of a reference that means no job, on a machine or on a server.
pub fn not_found(text: &str, job: &JobRef, of_server: bool) -> String {
    let unknown = |manager: &str| {
        manager != LOCAL
            && managers::find(manager).is_none()
            && manager.bytes().all(|byte| byte.is_ascii_alphabetic())
    };
    match job {
        JobRef::Last => "no jobs yet; start one with: met run -- CMD".to_owned(),
        JobRef::Id { node: Some(node), .. } if !of_server => {
            format!("no job {text} on this machine; jobs of node {node} are queried with --server URL")
        }
        JobRef::Id { user: Some(user), .. }
            if !of_server && users::uid_of(user).is_none() && user.parse::<u32>().is_err() =>
        {
            format!("no job {text}: there is no user {user:?}; run `met list`")
        }
        JobRef::Id { .. } => format!("no job {text}; run `met list`"),
        JobRef::Name(name) => match name.split_once(':') {
            Some(("pid", pid)) if pid.parse::<u32>().is_ok() => {
                format!("a process does not name a job here; `met show {name}` shows the job it belongs to")
            }
            Some(("pid", _)) => format!("{name:?} is not a process; write its number, as in pid:4711"),
            Some(("imported", id)) if is_number(id) => {
                format!("an imported job is only shown, explained, exported and removed: met show {name}")
            }
            Some((manager, id)) if is_number(id) && unknown(manager) => {
                let known: Vec<&str> = managers::MANAGERS.iter().map(|manager| manager.name).collect();
                format!(
                    "no job {name}: unknown resource manager {manager:?}; known: {LOCAL}, {}",
                    known.join(", ")
                )
            }
            _ => format!("no job named {name:?}; run `met list`"),
        },
    }
}

/// `12`, `1234_7`, `1234+1`, `17[3]`, and a step of one of them: `1234.0`, `1234.batch`.
fn is_number(text: &str) -> bool {
    let step = text.rsplit_once('.').filter(|(_, step)| STEPS.contains(step));
    let number = step.map_or(text, |(job, _)| job);
    let of_it = |byte: u8| byte.is_ascii_digit() || b"_.+[]".contains(&byte);
    number.bytes().next().is_some_and(|first| first.is_ascii_digit()) && number.bytes().all(of_it)
}

/// What a reference turned out to mean.
pub enum Meant {
    Job(Record),
    /// A step, in the form of a job.
    Step(Record),
}

/// The candidates for a reference, newest first, of those that the uid and the member of a filter own.
pub fn find(store: &Queries, job: &JobRef, whose: &Filter) -> Result<Vec<Record>, StoreError> {
    let JobRef::Id { manager, id, node, .. } = job else { return newest_of(store, job, whose) };
    let mut found = store.find_of(manager.as_deref(), id, whose)?;
    found.retain(|record| node.as_ref().is_none_or(|node| record.nodes.contains(node)));
    found.retain(|record| is_users(job, record));
    Ok(found)
}

impl JobRef {
    /// Whether a record is a candidate, as [`find`] selects them in a store.
    pub fn may_mean(&self, record: &Record) -> bool {
        let is_on = |node: &str| record.nodes.iter().any(|known| known == node);
        match self {
            JobRef::Last => true,
            JobRef::Name(text) => {
                let on_node = text.rsplit_once('@').filter(|(_, node)| is_on(node));
                record.name == *text || on_node.is_some_and(|(name, _)| record.name == name)
            }
            JobRef::Id { manager, id, node, .. } => {
                let is_known_as = record.key.id == *id || record.scheduling.alias.as_ref() == Some(id);
                is_known_as
                    && manager.as_ref().is_none_or(|manager| record.key.manager == *manager)
                    && node.as_deref().is_none_or(is_on)
                    && is_users(self, record)
            }
        }
    }
}

/// The name of a user, or the number of one who has none any more.
fn owner(record: &Record) -> String {
    let number = || record.uid.map_or_else(|| "unknown".to_owned(), |uid| uid.to_string());
    record.user.clone().unwrap_or_else(number)
}

fn is_users(job: &JobRef, record: &Record) -> bool {
    match job {
        JobRef::Id { user: Some(user), .. } => record.user.as_ref() == Some(user) || owner(record) == *user,
        _ => true,
    }
}

/// The newest job that fits, where it is not known by a number. `whose`: among which.
fn newest_of(store: &Queries, job: &JobRef, whose: &Filter) -> Result<Vec<Record>, StoreError> {
    let name = match job {
        JobRef::Id { .. } => return Ok(Vec::new()),
        JobRef::Name(name) => Some(name),
        JobRef::Last => None,
    };
    let newest = Filter {
        name: name.cloned(),
        with_summaries: true,
        page: PageBounds { limit: Some(1), ..whose.page.clone() },
        ..whose.clone()
    };
    let found = store.jobs(&newest)?;
    let Some(name) = name.filter(|_| found.is_empty()) else { return Ok(found) };
    match newest_on_node(store, name, whose)? {
        Some(hit) => Ok(vec![hit]),
        // Ids of some managers look like names: `f2tZgz5` of Flux.
        None => store.find_of(None, name, whose),
    }
}

/// The newest job of a name on a node, where `train@n1` is no name.
fn newest_on_node(store: &Queries, text: &str, whose: &Filter) -> Result<Option<Record>, StoreError> {
    let Some((name, node)) = text.rsplit_once('@') else { return Ok(None) };
    let mut page = Filter {
        name: Some(name.to_owned()),
        page: PageBounds { limit: Some(PAGE_JOBS), ..whose.page.clone() },
        ..whose.clone()
    };
    loop {
        let jobs = store.jobs(&page)?;
        if let Some(hit) = jobs.iter().find(|record| record.nodes.iter().any(|known| known == node)) {
            return store.get(&hit.key);
        }
        let Some(last) = jobs.last().filter(|_| page.page.limit == Some(jobs.len())) else { return Ok(None) };
        // Pages overlap in the jobs of one instant. Those that wait have none to go on from.
        let until_ns = sort_ns(last).checked_add(1);
        match until_ns == page.times.until_ns {
            true => page.page.limit = page.page.limit.map(|limit| limit * 2),
            false => page.times.until_ns = until_ns,
        }
    }
}

/// The one job that is meant, of those that a reference may mean, newest first.
pub fn one_of(text: &str, job: &JobRef, mut found: Vec<Record>) -> Result<Option<Record>> {
    // An older daemon does not know of users.
    found.retain(|record| is_users(job, record));
    let found = &found[..];
    let Some(newest) = found.first() else { return Ok(None) };
    // Of one manager's jobs with the same id the newest incarnation is meant; of two managers', none.
    if let JobRef::Id { manager: None, .. } = job {
        one_managers(text, found)?;
    }
    if let JobRef::Id { id, node: None, .. } = job {
        one_nodes(text, id, found)?;
    }
    if let JobRef::Id { .. } = job {
        one_users(text, found)?;
    }
    Ok(Some(newest.clone()))
}

/// What is said where a name could be any of several jobs, newest first.
pub fn several_named(text: &str, jobs: &[Record]) -> String {
    const LISTED: usize = 8;
    let mut owners: Vec<String> = jobs.iter().map(owner).collect();
    owners.dedup();
    let one = |job: &Record| {
        let whose = if owners.len() > 1 { format!(" of {}", owner(job)) } else { String::new() };
        format!("{}{whose} ({})", job.label(), job.state.name())
    };
    let mut listed: Vec<String> = jobs.iter().take(LISTED).map(one).collect();
    listed.extend(jobs.len().checked_sub(LISTED + 1).map(|more| format!("{} more", more + 1)));
    format!("{} jobs are named {text:?}: {}; give the number of one", jobs.len(), listed.join(", "))
}

/// The step that is meant, in the form of a job; `None` if the text names a job.
pub fn step(
    text: &str,
    own: &[Layout],
    mut find: impl FnMut(&JobRef) -> Result<Option<Record>>,
) -> Result<Option<Record>> {
    let meant = JobRef::parse(text, own)?;
    let JobRef::Id { manager, id, node, user } = &meant else { return Ok(None) };
    let Some((whole, step)) = id.rsplit_once('.') else { return Ok(None) };
    if find(&meant)?.is_some() {
        return Ok(None);
    }
    let (manager, node, user) = (manager.clone(), node.clone(), user.clone());
    let whole = JobRef::Id { manager, id: whole.to_owned(), node, user };
    let Some(record) = find(&whole)? else { return Ok(None) };
    met_insight::allocation::step(&record, step).map(Some).ok_or_else(|| {
        let mut steps: Vec<&str> = record.parts.iter().map(|part| part.step.as_str()).collect();
        steps.retain(|step| !step.is_empty());
        // Each node has its parts of them.
        steps.sort_unstable();
        steps.dedup();
        let label = record.label();
        Failure::usage(match steps[..] {
            [] => format!("job {label} has no steps"),
            _ => format!("job {label} has no step {step}; known: {}", steps_in_words(&steps)),
        })
    })
}

/// A job may have hundreds; a few are enough to correct a mistyped one.
fn steps_in_words(steps: &[&str]) -> String {
    const SHOWN: usize = 16;
    match steps.len() {
        0..=SHOWN => steps.join(", "),
        _ => format!("{} and {} more", steps[..SHOWN].join(", "), steps.len() - SHOWN),
    }
}

/// A number that several managers gave is ambiguous.
fn one_managers(text: &str, found: &[Record]) -> Result<()> {
    let mut names: Vec<String> =
        found.iter().map(|record| format!("{}:{}", record.key.manager, record.shown_id())).collect();
    let mut managers: Vec<&str> = found.iter().map(|record| record.key.manager.as_str()).collect();
    managers.sort_unstable();
    managers.dedup();
    if managers.len() < 2 {
        return Ok(());
    }
    names.sort_unstable();
    names.dedup();
    Err(Failure::usage(format!("job {text} is ambiguous: {}", names.join(" or "))))
}

/// A number that several nodes gave is ambiguous.
fn one_nodes(text: &str, id: &str, found: &[Record]) -> Result<()> {
    const SHOWN: usize = 4;
    let mut nodes: Vec<&str> = found.iter().filter_map(|record| record.own_node()).collect();
    nodes.sort_unstable();
    nodes.dedup();
    if nodes.len() < 2 {
        return Ok(());
    }
    let names: Vec<String> = nodes.iter().take(SHOWN).map(|node| format!("{id}@{node}")).collect();
    let more = if nodes.len() > SHOWN { ", …" } else { "" };
    Err(Failure::usage(format!(
        "job {text} is ambiguous on {} nodes: {}{more}",
        nodes.len(),
        names.join(", ")
    )))
}

/// Two users may have jobs of one id: they were numbered while no system daemon ran. None of them is guessed at.
fn one_users(text: &str, found: &[Record]) -> Result<()> {
    let mut newest_of_each: Vec<&Record> = Vec::new();
    for record in found {
        if newest_of_each.iter().all(|known| known.uid != record.uid) {
            newest_of_each.push(record);
        }
    }
    if newest_of_each.len() < 2 {
        return Ok(());
    }
    let choice = |record: &&Record| format!("{}/{} ({})", owner(record), record.label(), record.state.name());
    let choices: Vec<String> = newest_of_each.iter().map(choice).collect();
    Err(Failure::usage(format!("job {text} is ambiguous: {}", choices.join(" or "))))
}

#[cfg(test)]
mod tests {
    use met_core::job::State;
    use met_store::JobOwner;

    use super::*;

    fn id(manager: Option<&str>, id: &str) -> JobRef {
        JobRef::Id { manager: manager.map(str::to_owned), id: id.to_owned(), node: None, user: None }
    }

    #[test]
    fn a_reference_without_a_job_says_what_is_wrong_with_it() {
        let said = |text: &str| not_found(text, &JobRef::parse(text, &[]).unwrap(), false);
        assert_eq!(said("99"), "no job 99; run `met list`");
        assert_eq!(said("slurm:99"), "no job slurm:99; run `met list`");
        assert_eq!(said("train"), "no job named \"train\"; run `met list`");
        assert_eq!(
            said("12@n1"),
            "no job 12@n1 on this machine; jobs of node n1 are queried with --server URL"
        );
        assert!(said("no-such-user/1").contains("there is no user \"no-such-user\""));
        assert_eq!(said("pid:abc"), "\"pid:abc\" is not a process; write its number, as in pid:4711");
        assert!(said("pid:7").contains("`met show pid:7`"));
        assert!(
            said("slrum:12")
                .starts_with("no job slrum:12: unknown resource manager \"slrum\"; known: local, slurm,")
        );
        assert_eq!(
            said("imported:1"),
            "an imported job is only shown, explained, exported and removed: met show imported:1"
        );
        let of_server = |text: &str| not_found(text, &JobRef::parse(text, &[]).unwrap(), true);
        assert_eq!(of_server("12@n1"), "no job 12@n1; run `met list`");
    }

    #[test]
    fn a_process_is_named_by_its_number_and_node() {
        assert_eq!(process_in("pid:4711"), Some((4711, None)));
        assert_eq!(process_in("pid:4711@n1"), Some((4711, Some("n1"))));
        assert_eq!(["4711", "pid:", "pid:x", "pid:-1"].map(process_in), [None; 4]);
    }

    #[test]
    fn a_name_that_means_another_job_or_a_process_is_not_free() {
        for taken in ["12", "slurm:7", "@last", "pid:4711", "pid:1@n1", "imported:1", "alice/12", "12@n1"] {
            assert!(!is_free_as_name(taken, &[]), "{taken}");
        }
        for free in ["train", "pid:", "pid:x", "imported:", "imported:x", "a/b", "train@n1"] {
            assert!(is_free_as_name(free, &[]), "{free}");
        }
    }

    #[test]
    fn a_number_of_two_managers_names_both() {
        let [slurm, ours] = [met_core::sample::scheduled(), met_core::sample::full(1240, "train")];
        assert!(one_managers("1240", std::slice::from_ref(&slurm)).is_ok());
        let error = one_managers("1240", &[ours, slurm]).unwrap_err().to_string();
        assert_eq!(error, "job 1240 is ambiguous: local:1240 or slurm:1234_7");
    }

    /// Three hundred jobs called train on n2, of which many began at once or wait, and older ones on n1.
    fn many_jobs() -> (tempfile::TempDir, met_store::Writer) {
        let root = tempfile::tempdir().unwrap();
        let mut writer = met_store::Writer::open(root.path()).unwrap();
        let job = |id: u32, node: &str, user: &str, uid: u32, start_ns: Option<i64>| {
            let mut record = met_core::sample::full(id, "train");
            record.nodes = vec![node.to_owned()];
            (record.user, record.uid) = (Some(user.to_owned()), Some(uid));
            (record.start_ns, record.end_ns) = (start_ns, None);
            record
        };
        let mut jobs: Vec<Record> = (10..310)
            .map(|id| {
                let start_ns = match id {
                    ..130 => None,
                    130..250 => Some(5_000_000_000),
                    _ => Some(4_000_000_000 + i64::from(id)),
                };
                job(id, "n2", "alice", 1000, start_ns)
            })
            .collect();
        jobs.push(job(2, "n1", "alice", 1000, Some(2_000_000_000)));
        jobs.push(job(1, "n1", "bob", 1001, Some(1_000_000_000)));
        writer.put_all(&jobs).unwrap();
        (root, writer)
    }

    #[test]
    fn a_job_is_found_by_name_and_node_however_many_are_newer_elsewhere() {
        let (_root, writer) = many_jobs();
        let found = |text: &str| find(&writer, &JobRef::Name(text.to_owned()), &Filter::default()).unwrap();
        let on_n1 = found("train@n1");
        assert_eq!(on_n1.iter().map(|record| record.key.id.as_str()).collect::<Vec<_>>(), ["2"]);
        assert!(!on_n1[0].summaries.is_empty(), "with all that is known of it");
        assert!(found("train@n3").is_empty() && found("sum@n1").is_empty());
        assert_eq!(found("train@n2")[0].key.id, found("train")[0].key.id);
    }

    #[test]
    fn an_id_that_looks_like_a_name_is_found_where_no_job_has_that_name() {
        let (_root, mut writer) = many_jobs();
        let mut flux = met_core::sample::full(1, "sim");
        (flux.key.manager, flux.key.id) = ("flux".to_owned(), "f2tZgz5".to_owned());
        writer.put(&flux).unwrap();
        let job = JobRef::parse("f2tZgz5", &[]).unwrap();
        let found = |writer: &met_store::Writer, whose: &Filter| {
            find(writer, &job, whose).unwrap().into_iter().map(|record| record.name).collect::<Vec<_>>()
        };
        assert_eq!(found(&writer, &Filter::default()), ["sim"]);
        assert!(
            found(&writer, &Filter { owner: JobOwner::of_uid(7), ..Filter::default() }).is_empty(),
            "of another user"
        );
        writer.put(&met_core::sample::full(999, "f2tZgz5")).unwrap();
        assert_eq!(found(&writer, &Filter::default()), ["f2tZgz5"], "a name comes first");
    }

    #[test]
    fn everybody_finds_his_own_by_name_and_node() {
        let (_root, writer) = many_jobs();
        let job = JobRef::Name("train@n1".to_owned());
        let id = |whose: Filter| newest_of(&writer, &job, &whose).unwrap().pop().map(|record| record.key.id);
        assert_eq!(id(Filter { owner: JobOwner::of_uid(1001), ..Filter::default() }).as_deref(), Some("1"));
        assert_eq!(id(Filter { owner: JobOwner::of_user("bob"), ..Filter::default() }).as_deref(), Some("1"));
        assert_eq!(id(Filter { owner: JobOwner::of_uid(7), ..Filter::default() }), None);
        let newest =
            newest_of(&writer, &JobRef::Last, &Filter { owner: JobOwner::of_uid(1001), ..Filter::default() });
        assert_eq!(newest.unwrap()[0].key.id, "1");
    }

    #[test]
    fn a_few_steps_of_many_are_named() {
        let names: Vec<String> = (0..20).map(|step| step.to_string()).collect();
        let steps: Vec<&str> = names.iter().map(String::as_str).collect();
        assert_eq!(steps_in_words(&steps[..2]), "0, 1");
        assert!(steps_in_words(&steps[..16]).ends_with("14, 15"));
        assert!(steps_in_words(&steps).ends_with("15 and 4 more"));
    }

    #[test]
    fn jobs_are_named_in_four_ways() {
        let parse = |text| JobRef::parse(text, &[]).unwrap();
        assert_eq!(parse("12"), id(None, "12"));
        assert_eq!(parse("local:12"), id(Some("local"), "12"));
        assert_eq!(parse("slurm:1234_7"), id(Some("slurm"), "1234_7"));
        assert_eq!(parse("1234.0"), id(None, "1234.0"));
        assert_eq!(parse("1234_7.batch"), id(None, "1234_7.batch"));
        assert_eq!(parse("1234+1"), id(None, "1234+1"));
        assert_eq!(parse("17[3]"), id(None, "17[3]"));
        assert_eq!(parse("2024.run"), JobRef::Name("2024.run".to_owned()));
        assert_eq!(parse("@last"), JobRef::Last);
        assert_eq!(parse("train"), JobRef::Name("train".to_owned()));
        assert_eq!(parse("a:b"), JobRef::Name("a:b".to_owned()));
        assert!(JobRef::parse("", &[]).is_err() && JobRef::parse("@first", &[]).is_err());
        // A manager that the configuration names.
        let own = [Layout::parse("mysched", "mysched/{id}", "").unwrap()];
        assert_eq!(JobRef::parse("mysched:12", &own).unwrap(), id(Some("mysched"), "12"));
        assert_eq!(JobRef::parse("mysched:", &own).unwrap(), JobRef::Name("mysched:".to_owned()));
        assert_eq!(parse("mysched:12"), JobRef::Name("mysched:12".to_owned()));
    }

    #[test]
    fn a_number_of_two_users_is_nobodys_unless_one_is_named() {
        let job = |user: &str, uid: u32, state: State| {
            let mut record = met_core::sample::full(1, "train");
            (record.user, record.uid, record.state) = (Some(user.to_owned()), Some(uid), state);
            record
        };
        let both = || vec![job("alice", 1000, State::Running), job("root", 0, State::Finished)];
        let meant = |text: &str, found| one_of(text, &JobRef::parse(text, &[]).unwrap(), found);
        let error = meant("1", both()).unwrap_err().to_string();
        assert_eq!(error, "job 1 is ambiguous: alice/1 (running) or root/1 (finished)");
        let user = |text: &str| meant(text, both()).unwrap().and_then(|record| record.user);
        assert_eq!(user("alice/1").as_deref(), Some("alice"));
        assert_eq!(user("root/local:1").as_deref(), Some("root"));
        assert_eq!(user("bob/1"), None);
        assert_eq!(JobRef::parse("runs/train", &[]).unwrap(), JobRef::Name("runs/train".to_owned()));
    }
}
