//! Which jobs are runs of the same command. Everything that speaks of earlier runs asks here.

use std::fmt;

use met_core::job::Record;

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
    let program = record.command.first().map(|word| base_name(word)).filter(|name| !name.is_empty());
    let arguments = record.command.iter().skip(1);
    let folder = record.local.as_ref().map(|local| local.cwd.to_string_lossy().into_owned());
    Lineage {
        user: record.user.clone().or_else(|| record.uid.map(|uid| uid.to_string())),
        program: program.unwrap_or(&record.name).to_owned(),
        argument: arguments.map(String::as_str).find(|word| is_subject(word)).map(str::to_owned),
        folder: folder.filter(|folder| !folder.is_empty()),
    }
}

fn base_name(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or(word)
}

/// Whether a word says what is run, rather than how or how large.
fn is_subject(word: &str) -> bool {
    let is_number = word.parse::<f64>().is_ok();
    let is_assignment = word.split_once('=').is_some_and(|(name, _)| {
        !name.is_empty() && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
    });
    !word.is_empty() && !word.starts_with('-') && !is_number && !is_assignment
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
    let of = lineage(record);
    let is_earlier = |other: &&Record| {
        other.key != record.key
            && !other.state.is_live()
            && other.start_ns.is_some()
            && other.start_ns < record.start_ns.or(Some(i64::MAX))
            && lineage(other) == of
    };
    let mut runs: Vec<&Record> = others.iter().filter(is_earlier).collect();
    runs.sort_by(|one, other| (other.start_ns, &other.key).cmp(&(one.start_ns, &one.key)));
    runs
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

    #[test]
    fn elements_of_an_array_are_alike() {
        let (mut one, mut other) = (sample::scheduled(), sample::scheduled());
        (one.command, other.command) = (Vec::new(), Vec::new());
        (other.key.id, other.scheduling.array_index) = ("1241".to_owned(), Some(8));
        assert_eq!(lineage(&one), lineage(&other));
        assert_eq!(lineage(&one).program, "sum", "without a command the name is what there is");
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
        let found: Vec<&str> = earlier(&now, &others).iter().map(|run| run.key.id.as_str()).collect();
        assert_eq!(found, ["2", "1"]);
    }
}
