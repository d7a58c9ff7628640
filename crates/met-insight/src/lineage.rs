//! Which jobs are runs of the same command. Everything that speaks of earlier runs asks here.

use std::borrow::Cow;
use std::fmt;

use met_core::FastMap;
use met_core::job::Record;
use met_core::managers;

/// The beginning of a tag that names the lineage of a job by hand: `lineage.night-run`.
pub const TAG: &str = "lineage.";

/// What the runs of one command have in common. Elements of an array are alike, and so are sizes: `mpirun -n 4` and
/// `mpirun -n 8`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lineage {
    pub user: Option<String>,
    /// The command's base name; the job's name where the command is not known.
    pub program: String,
    /// The first argument that is neither an option, a number nor an assignment.
    pub argument: Option<String>,
    pub folder: Option<String>,
}

pub fn lineage(record: &Record) -> Lineage {
    let Words { user, program, argument, folder } = words(record);
    Lineage {
        user: user.map(Cow::into_owned),
        program: program.to_owned(),
        argument: argument.map(str::to_owned),
        folder: folder.map(Cow::into_owned),
    }
}

/// A lineage in the words of its record: many jobs are compared, and few lineages kept.
#[derive(PartialEq, Eq, Hash)]
struct Words<'a> {
    user: Option<Cow<'a, str>>,
    program: &'a str,
    argument: Option<&'a str>,
    folder: Option<Cow<'a, str>>,
}

fn words(record: &Record) -> Words<'_> {
    let by_number = || record.uid.map(|uid| Cow::Owned(uid.to_string()));
    let user = record.user.as_deref().map(Cow::Borrowed).or_else(by_number);
    if let Some(program) = given(record) {
        return Words { user, program, argument: None, folder: None };
    }
    let command = own_command(record);
    let program = command.first().map(|word| base_name(word)).filter(|name| !name.is_empty());
    // The first process of a found job is not asked for its folder.
    let is_batch = managers::spans_nodes(&record.key.manager);
    let of_process = || record.local.as_ref().map(|local| local.cwd.to_string_lossy());
    let submitted = record.scheduling.folder.as_deref().map(Cow::Borrowed);
    let folder = submitted.or_else(|| of_process().filter(|_| !is_batch));
    Words {
        user,
        program: program.unwrap_or(&record.name),
        argument: subject(command).map(String::as_str),
        folder: folder.filter(|folder| !folder.is_empty()),
    }
}

/// What a scheduler started runs from a copy of the script, in a place that has the job's number: that is no command.
fn own_command(record: &Record) -> &[String] {
    let is_batch = managers::spans_nodes(&record.key.manager);
    match is_batch && record.command.iter().any(|word| is_spooled(record, word)) {
        true => &[],
        false => &record.command,
    }
}

/// The words of its command that say of which lineage it is.
pub(crate) fn telling_words(record: &Record) -> Vec<String> {
    let command = own_command(record);
    command.first().into_iter().chain(subject(command)).cloned().collect()
}

/// The name that a person gave it: by `met run --lineage`, a tag, or `MET_LINEAGE` in a batch job.
fn given(record: &Record) -> Option<&str> {
    let tagged = tag(record).and_then(|tag| tag.strip_prefix(TAG));
    tagged.or(record.scheduling.lineage.as_deref().filter(|name| !name.is_empty()))
}

/// The tag that names its lineage, if it has one: by it the runs are found among all jobs.
pub fn tag(record: &Record) -> Option<&str> {
    record
        .annotation
        .tags
        .iter()
        .map(String::as_str)
        .find(|tag| tag.len() > TAG.len() && tag.starts_with(TAG))
}

/// `/var/spool/slurmd/job01240/slurm_script`, `/var/lib/oar/…/1240`, `/var/spool/pbs/mom_priv/jobs/17.server.SC`.
fn is_spooled(record: &Record, word: &str) -> bool {
    const FOLDERS: [&str; 3] = ["/var/", "/opt/", "/tmp/"];
    let id = record.key.id.split(['.', '[', '_']).next().unwrap_or_default();
    let mut numbers = word.split(|letter: char| !letter.is_ascii_digit());
    let has_id = numbers.any(|number| !number.is_empty() && number.trim_start_matches('0') == id);
    let is_copy = managers::find(&record.key.manager).and_then(|manager| manager.is_script_copy);
    is_copy.is_some_and(|is_copy| is_copy(word, has_id))
        || word.contains("/spool/")
        || has_id && FOLDERS.iter().any(|folder| word.starts_with(folder))
}

fn base_name(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or(word)
}

fn subject(command: &[String]) -> Option<&String> {
    command.iter().skip(1).find(|word| is_subject(word))
}

/// Whether a word says what is run, rather than how or how large.
fn is_subject(word: &str) -> bool {
    let is_number = word.parse::<f64>().is_ok();
    let is_assignment = word.split_once('=').is_some_and(|(name, _)| {
        !name.is_empty() && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
    });
    !word.is_empty() && !word.starts_with('-') && !is_number && !is_assignment
}

/// A word that may be a whole script: its beginning, and a number that differs where the rest does.
fn bounded(word: &str) -> Cow<'_, str> {
    const BYTES_MAX: usize = 300;
    if word.len() <= BYTES_MAX {
        return Cow::Borrowed(word);
    }
    // With the number it is short enough to stay as it is.
    let begin = met_core::text::prefix(word, BYTES_MAX - 20);
    // FNV-1a: the same in every version, unlike the hash of the standard library.
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = word.bytes().fold(0xcbf2_9ce4_8422_2325, mix);
    Cow::Owned(format!("{begin}…{hash:016x}"))
}

impl Lineage {
    /// All but the user, as one text that no other lineage has.
    pub fn key(&self) -> String {
        let folder = self.folder.as_deref().map(bounded);
        serde_json::json!([bounded(&self.program), self.argument.as_deref().map(bounded), folder]).to_string()
    }

    /// The words of such a text.
    pub fn of_key(user: &str, key: &str) -> Option<Lineage> {
        let (program, argument, folder) = serde_json::from_str(key).ok()?;
        Some(Lineage {
            user: Some(user.to_owned()).filter(|user| !user.is_empty()),
            program,
            argument,
            folder,
        })
    }
}

impl fmt::Display for Lineage {
    fn fmt(&self, to: &mut fmt::Formatter) -> fmt::Result {
        write!(to, "{}", self.program)?;
        if let Some(argument) = &self.argument {
            write!(to, " {argument}")?;
        }
        if let Some(user) = &self.user {
            write!(to, " of {user}")?;
        }
        if let Some(folder) = &self.folder {
            write!(to, " in {folder}")?;
        }
        Ok(())
    }
}

/// The runs among `others` that are of the record's lineage, began before it and are over, newest first.
pub fn earlier<'a>(record: &Record, others: &'a [Record]) -> Vec<&'a Record> {
    let of = words(record);
    let is_earlier = |other: &&Record| is_before(other, record) && words(other) == of;
    let mut runs: Vec<&Record> = others.iter().filter(is_earlier).collect();
    runs.sort_by(|one, other| rank(other).cmp(&rank(one)));
    runs
}

/// The runs of many jobs, each of which is there once, by lineage: those before each are found without a search.
pub struct Lineages<'a> {
    records: &'a [Record],
    /// Newest first.
    runs: Vec<Vec<Run>>,
    /// Of each record: its lineage, and its position there.
    places: Vec<(usize, usize)>,
}

/// What decides whether a run is before another one, without a look at its record.
struct Run {
    index: usize,
    /// Of one that is over.
    start_ns: Option<i64>,
}

impl<'a> Lineages<'a> {
    pub fn of(records: &'a [Record]) -> Lineages<'a> {
        let mut numbers: FastMap<Words<'_>, usize> = FastMap::default();
        let mut runs: Vec<Vec<Run>> = Vec::new();
        let mut places = vec![(0, 0); records.len()];
        let mut order: Vec<usize> = (0..records.len()).collect();
        order.sort_by(|&one, &other| rank(&records[other]).cmp(&rank(&records[one])));
        for index in order {
            let (next, record) = (runs.len(), &records[index]);
            let number = *numbers.entry(words(record)).or_insert(next);
            if number == next {
                runs.push(Vec::new());
            }
            places[index] = (number, runs[number].len());
            runs[number].push(Run { index, start_ns: record.start_ns.filter(|_| !record.state.is_live()) });
        }
        Lineages { records, runs, places }
    }

    /// The same as [`earlier`], of these records: at most so many.
    pub fn before(&self, index: usize, most: usize) -> Vec<&'a Record> {
        let (number, position) = self.places[index];
        let start_ns = self.records[index].start_ns.unwrap_or(i64::MAX);
        let is_before = |run: &&Run| run.start_ns.is_some_and(|run_ns| run_ns < start_ns);
        let later = self.runs[number][position + 1..].iter().filter(is_before);
        later.take(most).map(|run| &self.records[run.index]).collect()
    }
}

fn rank(record: &Record) -> (Option<i64>, &met_core::job::JobKey) {
    (record.start_ns, &record.key)
}

fn is_before(run: &Record, record: &Record) -> bool {
    run.key != record.key
        && !run.state.is_live()
        && run.start_ns.is_some()
        && run.start_ns < record.start_ns.or(Some(i64::MAX))
}

#[cfg(test)]
mod tests {
    use met_core::job::{Local, Origin};

    use super::*;
    use crate::sample;

    fn of(command: &[&str]) -> String {
        let mut record = sample::finished();
        record.command = command.iter().map(|&word| word.to_owned()).collect();
        record.local = Some(Local::new("", Origin::Run, "/home/alice/run"));
        lineage(&record).to_string()
    }

    #[test]
    fn a_key_is_short_and_differs_where_a_long_script_does() {
        let of = |script: String| Lineage {
            user: None,
            program: "bash".to_owned(),
            argument: Some(script),
            folder: None,
        };
        let (one, other) = (of("x".repeat(9000)).key(), of("x".repeat(9000) + "y").key());
        assert!(one.len() < 500 && one != other, "{one}");
        assert_eq!(of("train.py".to_owned()).key(), r#"["bash","train.py",null]"#);
        assert_eq!(Lineage::of_key("", &one).map(|lineage| lineage.key()), Some(one));
    }

    #[test]
    fn runs_of_one_command_are_alike_whatever_their_options_and_sizes() {
        let train = "python train.py of alice in /home/alice/run";
        assert_eq!(of(&["/usr/bin/python", "-u", "train.py", "--epochs", "3"]), train);
        assert_eq!(of(&["python", "train.py"]), train);
        let solve = "mpirun ./solve of alice in /home/alice/run";
        assert_eq!(of(&["mpirun", "-n", "4", "./solve"]), solve);
        assert_eq!(of(&["mpirun", "-n", "8", "OMP_NUM_THREADS=2", "./solve"]), solve);
        assert_eq!(of(&["sleep", "60"]), "sleep of alice in /home/alice/run");
        assert_ne!(of(&["python", "test.py"]), train);
    }

    /// As it is found on a node: the command is that of the first process.
    fn batch(id: &str, command: &[&str]) -> Record {
        let mut record = sample::scheduled();
        record.key.id = id.to_owned();
        record.command = command.iter().map(|&word| word.to_owned()).collect();
        record.local = Some(Local::new("", Origin::Found, "/"));
        record.scheduling.folder = Some("/home/alice/run".to_owned());
        record
    }

    #[test]
    fn elements_of_an_array_and_runs_of_one_batch_script_are_alike() {
        let one = batch("1240", &["/bin/bash", "/var/spool/slurmd/job01240/slurm_script"]);
        let mut other = batch("1241", &["/bin/bash", "/var/spool/slurmd/job01241/slurm_script"]);
        other.scheduling.array_index = Some(8);
        assert_eq!(lineage(&one), lineage(&other));
        assert_eq!(lineage(&one).to_string(), "sum of alice in /home/alice/run");
        other.name = "train".to_owned();
        assert_ne!(lineage(&one), lineage(&other), "two scripts have two names");
        let pbs = |id: &str| {
            let script = format!("/var/spool/pbs/mom_priv/jobs/{id}.server.SC");
            let mut record = batch(&format!("{id}.server"), &["-bash", &script]);
            record.key.manager = "pbs".to_owned();
            lineage(&record)
        };
        assert_eq!(pbs("17"), pbs("18"));
        let script = |id: &str| {
            let mut record = batch(id, &["/bin/sh", "/home/alice/.lsbatch/1700000000.31.shell"]);
            record.key.manager = "lsf".to_owned();
            lineage(&record)
        };
        assert_eq!(script("31").argument, None);
        assert!(script("32").argument.is_some(), "a number that is not the job's");
        let allocated = batch("7", &["python", "/var/data/train.py"]);
        assert_eq!(lineage(&allocated).argument.as_deref(), Some("/var/data/train.py"));
    }

    #[test]
    fn a_given_name_is_the_lineage() {
        let (mut one, mut other) = (sample::finished(), sample::finished());
        other.command = vec!["other".to_owned()];
        assert_ne!(lineage(&one), lineage(&other));
        one.annotation.tags.insert("lineage.night".to_owned());
        other.scheduling.lineage = Some("night".to_owned());
        assert_eq!(lineage(&one), lineage(&other));
        assert_eq!(lineage(&one).to_string(), "night of alice");
        other.user = Some("bob".to_owned());
        assert_ne!(lineage(&one), lineage(&other), "another user's runs are others");
    }

    #[test]
    fn earlier_runs_are_over_and_began_before() {
        let now = sample::finished();
        let run = |id: &str, hours: i64, state| {
            let mut run = sample::finished();
            (run.key.id, run.state) = (id.to_owned(), state);
            run.start_ns = now.start_ns.map(|start_ns| start_ns + hours * 3_600_000_000_000);
            run
        };
        use met_core::job::State::{Failed, Finished, Running};
        let mut another = run("6", -1, Finished);
        another.user = Some("bob".to_owned());
        let others = [
            run("1", -2, Finished),
            run("2", -1, Failed),
            run("3", -1, Running),
            run("4", 1, Finished),
            another,
        ];
        let ids = |runs: Vec<&Record>| runs.iter().map(|run| run.key.id.clone()).collect::<Vec<_>>();
        assert_eq!(ids(earlier(&now, &others)), ["2", "1"]);
        let all = [&others[..], &[now]].concat();
        assert_eq!(ids(Lineages::of(&all).before(5, 20)), ["2", "1"], "the same of all at once");
        assert_eq!(ids(Lineages::of(&all).before(5, 1)), ["2"]);
    }
}
