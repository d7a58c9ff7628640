//! Follows a scheduler: queries what changed since the last reply, and returns what is new.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::{self, Write};
use std::hash::{DefaultHasher, Hasher};
use std::time::Duration;

use met_core::queue::Queue;

use super::command::{Programs, Trouble};
use super::{Recorded, Scheduler, Window};

/// Asked for once more each time: clocks differ, and a scheduler may record an end late.
const OVERLAP_S: i64 = 600;
/// A long past is queried in pieces.
const PIECE_S: i64 = 86_400;
/// A piece that is still too much when it is this short cannot be asked for.
const PIECE_MIN_S: i64 = 60;
/// Jobs handed over at a time.
const BATCH: usize = 50;
/// Jobs that vanished from the answers and are queried by id, per round.
const VANISHED_MAX: usize = 1000;

/// Everything up to this time was reported, in unix seconds.
pub type Cursor = i64;

/// New records. All runs of one job are in one piece.
#[derive(Debug, Default, PartialEq)]
pub struct Update {
    pub manager: &'static str,
    pub recorded: Vec<Recorded>,
    /// Ids of jobs that were alive and that the scheduler knows no more.
    pub gone: Vec<String>,
    /// To be stored after the rest.
    pub cursor: Option<Cursor>,
    /// How many jobs wait, as the scheduler counts them.
    pub queue: Option<Queue>,
}

pub struct Sync {
    scheduler: Box<dyn Scheduler>,
    cursor: Option<Cursor>,
    lookback_s: i64,
    /// Jobs that were alive in the last reply.
    live: BTreeSet<String>,
    /// What was reported of each run, so that it is reported once.
    reported: HashMap<(String, Option<i64>), u64>,
}

impl Sync {
    /// `live`: ids of jobs that an earlier sync reported alive.
    pub fn new(
        scheduler: Box<dyn Scheduler>,
        cursor: Option<Cursor>,
        lookback: Duration,
        live: impl IntoIterator<Item = String>,
    ) -> Sync {
        let lookback_s = i64::try_from(lookback.as_secs()).unwrap_or(i64::MAX);
        Sync { scheduler, cursor, lookback_s, live: live.into_iter().collect(), reported: HashMap::new() }
    }

    /// Queries once. What was reported before an error stays reported; the next round continues from there.
    pub fn round(
        &mut self,
        programs: &mut Programs,
        now_s: i64,
        report: &mut dyn FnMut(Update),
    ) -> Result<(), Trouble> {
        let before = std::mem::take(&mut self.reported);
        let mut since_s = match self.cursor {
            Some(cursor) => cursor.min(now_s).saturating_sub(OVERLAP_S),
            None => now_s.saturating_sub(self.lookback_s),
        };
        let mut piece_s = PIECE_S;
        loop {
            let until_s = since_s.saturating_add(piece_s).min(now_s);
            let answer = match self.scheduler.ask(programs, Window { since_s, until_s, now_s }) {
                Err(Trouble::TooMuch { .. }) if until_s - since_s > PIECE_MIN_S => {
                    piece_s = (until_s - since_s) / 2;
                    continue;
                }
                Err(mut trouble) => {
                    self.pass_on_read(&mut trouble, &before, report);
                    // The failure loses nothing: what was reported before is still reported.
                    for (run, fingerprint) in before {
                        self.reported.entry(run).or_insert(fingerprint);
                    }
                    return Err(trouble);
                }
                Ok(answer) => answer,
            };
            let is_last = until_s >= now_s;
            let vanished = if is_last { self.vanished(&answer) } else { Vec::new() };
            self.pass_on(answer, &before, Some(until_s), report);
            if is_last {
                return self.follow(programs, vanished, &before, report);
            }
            (since_s, piece_s) = (until_s, (piece_s * 2).min(PIECE_S));
        }
    }

    /// Queries these jobs alone, in one question. The ids that the scheduler knows, and whether each job is over.
    pub fn about(
        &mut self,
        programs: &mut Programs,
        ids: &[String],
        report: &mut dyn FnMut(Update),
    ) -> Result<BTreeMap<String, bool>, Trouble> {
        let before = std::mem::take(&mut self.reported);
        let found = match self.scheduler.ask_about(programs, ids) {
            Ok(found) => found,
            Err(mut trouble) => {
                self.reported = before;
                self.pass_on_read(&mut trouble, &HashMap::new(), report);
                return Err(trouble);
            }
        };
        let mut known = BTreeMap::new();
        for recorded in &found {
            *known.entry(recorded.id.clone()).or_insert(true) &= !recorded.state.is_live();
        }
        self.pass_on(found, &before, None, report);
        // A job that is asked about again later is no news unless it has changed.
        let asked: BTreeSet<&String> = ids.iter().collect();
        self.reported.extend(before.into_iter().filter(|((id, _), _)| !asked.contains(id)));
        self.reported.retain(|(id, _), _| known.get(id) != Some(&true));
        Ok(known)
    }

    /// Jobs that should still be there and are not: their end was recorded late, or they were forgotten.
    fn vanished(&self, answer: &[Recorded]) -> Vec<String> {
        let answered: BTreeSet<&str> = answer.iter().map(|recorded| recorded.id.as_str()).collect();
        let vanished = self.live.iter().filter(|id| !answered.contains(id.as_str()));
        vanished.take(VANISHED_MAX).cloned().collect()
    }

    fn follow(
        &mut self,
        programs: &mut Programs,
        vanished: Vec<String>,
        before: &HashMap<(String, Option<i64>), u64>,
        report: &mut dyn FnMut(Update),
    ) -> Result<(), Trouble> {
        if vanished.is_empty() {
            return Ok(());
        }
        let found = match self.scheduler.ask_about(programs, &vanished) {
            Ok(found) => found,
            Err(mut trouble) => {
                self.pass_on_read(&mut trouble, before, report);
                return Err(trouble);
            }
        };
        let known: BTreeSet<String> = found.iter().map(|recorded| recorded.id.clone()).collect();
        let gone: Vec<String> = vanished.into_iter().filter(|id| !known.contains(id)).collect();
        self.pass_on(found, before, Some(self.cursor.unwrap_or_default()), report);
        if !gone.is_empty() {
            self.live.retain(|id| !gone.contains(id));
            report(Update { manager: self.scheduler.manager(), gone, ..Update::default() });
        }
        Ok(())
    }

    /// The rest of a reply that was cut off is queried again: its window is not complete yet.
    fn pass_on_read(
        &mut self,
        trouble: &mut Trouble,
        before: &HashMap<(String, Option<i64>), u64>,
        report: &mut dyn FnMut(Update),
    ) {
        if let Trouble::CutShort { read, .. } = trouble {
            self.pass_on(std::mem::take(read), before, None, report);
        }
    }

    /// `cursor`: everything up to it was reported, if known.
    fn pass_on(
        &mut self,
        answer: Vec<Recorded>,
        before: &HashMap<(String, Option<i64>), u64>,
        cursor: Option<Cursor>,
        report: &mut dyn FnMut(Update),
    ) {
        let mut jobs: BTreeMap<String, Vec<Recorded>> = BTreeMap::new();
        for recorded in answer {
            jobs.entry(recorded.id.clone()).or_default().push(recorded);
        }
        let manager = self.scheduler.manager();
        let mut batch = Vec::new();
        for (id, runs) in jobs {
            if runs.iter().any(|run| run.state.is_live()) {
                self.live.insert(id);
            } else {
                self.live.remove(&id);
            }
            let mut is_news = false;
            for run in &runs {
                let key = (run.id.clone(), run.scheduling.submit_ns);
                let fingerprint = fingerprint(run);
                let previous = self.reported.insert(key.clone(), fingerprint).or(before.get(&key).copied());
                is_news |= previous != Some(fingerprint);
            }
            if is_news {
                batch.extend(runs);
            }
            if batch.len() >= BATCH {
                let recorded = std::mem::take(&mut batch);
                report(Update { manager, recorded, ..Update::default() });
            }
        }
        self.cursor = cursor.or(self.cursor);
        report(Update { manager, recorded: batch, cursor, ..Update::default() });
    }
}

/// Of everything that is known of a run.
fn fingerprint(run: &Recorded) -> u64 {
    struct Hashed(DefaultHasher);
    impl Write for Hashed {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0.write(text.as_bytes());
            Ok(())
        }
    }
    let mut hashed = Hashed(DefaultHasher::new());
    // Writing into a hash cannot fail.
    let _ = write!(hashed, "{run:?}");
    hashed.0.finish()
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::path::Path;
    use std::sync::{Arc, Mutex};

    use met_core::job::State;

    use super::*;

    type Answers = VecDeque<Result<Vec<Recorded>, Trouble>>;

    /// Replies as configured, and records the queries.
    #[derive(Clone, Default)]
    struct Script {
        answers: Arc<Mutex<Answers>>,
        asked: Arc<Mutex<Vec<String>>>,
    }

    impl Script {
        fn answer(&self, question: String) -> Result<Vec<Recorded>, Trouble> {
            self.asked.lock().unwrap().push(question);
            self.answers.lock().unwrap().pop_front().unwrap_or(Ok(Vec::new()))
        }

        fn will(&self, answers: impl IntoIterator<Item = Result<Vec<Recorded>, Trouble>>) {
            self.answers.lock().unwrap().extend(answers);
        }

        fn was_asked(&self) -> Vec<String> {
            std::mem::take(&mut self.asked.lock().unwrap())
        }
    }

    impl Scheduler for Script {
        fn manager(&self) -> &'static str {
            "slurm"
        }

        fn ask(&mut self, _: &mut Programs, window: Window) -> Result<Vec<Recorded>, Trouble> {
            self.answer(format!("{}..{}", window.since_s, window.until_s))
        }

        fn ask_about(&mut self, _: &mut Programs, ids: &[String]) -> Result<Vec<Recorded>, Trouble> {
            self.answer(ids.join(","))
        }
    }

    fn run(id: &str, state: State) -> Recorded {
        Recorded { state, ..Recorded::new("slurm", id.into()) }
    }

    fn failed() -> Trouble {
        Trouble::Failed { program: "sacct", message: "down".into() }
    }

    /// The result of a round: the jobs with their states, those gone, and the cursor.
    fn round(sync: &mut Sync, now_s: i64) -> (Vec<String>, Vec<String>, Result<(), Trouble>) {
        let mut programs = Programs::only(Path::new("/nonexistent"), Duration::ZERO, 0);
        let (mut changed, mut gone) = (Vec::new(), Vec::new());
        let result = sync.round(&mut programs, now_s, &mut |part| {
            changed.extend(part.recorded.iter().map(|run| format!("{} {}", run.id, run.state.name())));
            gone.extend(part.gone);
        });
        (changed, gone, result)
    }

    #[test]
    fn only_changes_are_reported() {
        let script = Script::default();
        let mut sync = Sync::new(Box::new(script.clone()), None, Duration::from_secs(3600), []);
        script.will([Ok(vec![run("1", State::Running), run("2", State::Pending)])]);
        assert_eq!(round(&mut sync, 100_000).0, ["1 running", "2 pending"]);
        script.will([Ok(vec![run("1", State::Running), run("2", State::Running)])]);
        assert_eq!(round(&mut sync, 100_060).0, ["2 running"]);
        assert_eq!(script.was_asked(), ["96400..100000", "99400..100060"]);
    }

    #[test]
    fn all_runs_of_a_job_are_reported_together() {
        let script = Script::default();
        let mut sync = Sync::new(Box::new(script.clone()), Some(100_000), Duration::ZERO, []);
        let second = |state| {
            let mut second = run("1", state);
            second.scheduling.submit_ns = Some(7);
            second
        };
        script.will([Ok(vec![run("1", State::Cancelled), second(State::Pending)])]);
        assert_eq!(round(&mut sync, 100_000).0, ["1 cancelled", "1 pending"]);
        script.will([Ok(vec![run("1", State::Cancelled), second(State::Running)])]);
        assert_eq!(round(&mut sync, 100_060).0, ["1 cancelled", "1 running"]);
    }

    #[test]
    fn a_job_that_vanished_is_queried_and_may_be_gone() {
        let script = Script::default();
        let live = ["1", "2", "3"].map(String::from);
        let mut sync = Sync::new(Box::new(script.clone()), Some(100_000), Duration::ZERO, live);
        script.will([Ok(vec![run("2", State::Running)]), Ok(vec![run("1", State::Finished)])]);
        let (changed, gone, result) = round(&mut sync, 100_060);
        assert_eq!((changed, gone), (vec!["2 running".into(), "1 finished".into()], vec!["3".into()]));
        assert_eq!(result, Ok(()));
        assert_eq!(script.was_asked(), ["99400..100060", "1,3"]);
        script.will([Ok(vec![run("2", State::Running)])]);
        assert_eq!(round(&mut sync, 100_120).0, Vec::<String>::new());
        assert_eq!(script.was_asked(), ["99460..100120"], "no job is missing any more");
    }

    #[test]
    fn jobs_are_asked_about_by_their_ids_and_only_changes_are_reported() {
        let script = Script::default();
        let mut sync = Sync::new(Box::new(script.clone()), None, Duration::from_secs(3600), []);
        let mut programs = Programs::only(Path::new("/nonexistent"), Duration::ZERO, 0);
        let mut about = |ids: &[&str]| {
            let ids: Vec<String> = ids.iter().map(|&id| id.to_owned()).collect();
            let mut changed = Vec::new();
            let known = sync.about(&mut programs, &ids, &mut |part| {
                assert_eq!((part.cursor, part.gone.len()), (None, 0), "a window was not asked for");
                changed.extend(part.recorded.iter().map(|run| format!("{} {}", run.id, run.state.name())));
            });
            (changed, known)
        };
        let known = |of: &[(&str, bool)]| Ok(of.iter().map(|(id, over)| ((*id).to_owned(), *over)).collect());
        script.will([Ok(vec![run("1", State::Running), run("2", State::Running)])]);
        let both = vec!["1 running".to_owned(), "2 running".to_owned()];
        assert_eq!(about(&["1", "2", "3"]), (both, known(&[("1", false), ("2", false)])));
        script.will([Err(failed())]);
        assert_eq!(about(&["1", "2"]), (Vec::new(), Err(failed())));
        script.will([Ok(vec![run("1", State::Running), run("2", State::Finished)])]);
        let second = about(&["1", "2"]);
        assert_eq!(second, (vec!["2 finished".to_owned()], known(&[("1", false), ("2", true)])));
        assert_eq!(script.was_asked(), ["1,2,3", "1,2", "1,2"]);
    }

    #[test]
    fn a_long_past_comes_in_pieces_and_a_trouble_does_not_begin_it_anew() {
        let script = Script::default();
        let mut sync = Sync::new(Box::new(script.clone()), None, Duration::from_secs(3 * 86_400), []);
        script.will([
            Ok(vec![run("1", State::Finished)]),
            Err(Trouble::TooMuch { program: "sacct" }),
            Ok(vec![run("2", State::Finished)]),
            Err(failed()),
        ]);
        let (changed, _, result) = round(&mut sync, 1_000_000);
        assert_eq!((changed, result), (vec!["1 finished".into(), "2 finished".into()], Err(failed())));
        let pieces = ["740800..827200", "827200..913600", "827200..870400", "870400..956800"];
        assert_eq!(script.was_asked(), pieces);
        let (changed, _, result) = round(&mut sync, 1_000_060);
        assert_eq!((changed, result), (vec![], Ok(())));
        assert_eq!(script.was_asked(), ["869800..956200", "956200..1000060"]);
    }

    #[test]
    fn an_incomplete_answer_is_kept_and_requested_again() {
        let script = Script::default();
        let mut sync = Sync::new(Box::new(script.clone()), Some(100_000), Duration::ZERO, ["3".to_owned()]);
        let cut = |read| Trouble::CutShort { program: "oarstat", read };
        script.will([Err(cut(vec![run("1", State::Running)]))]);
        let (changed, gone, result) = round(&mut sync, 100_060);
        assert_eq!((changed, gone), (vec!["1 running".to_owned()], vec![]));
        assert_eq!(result, Err(cut(Vec::new())));
        script.will([Ok(vec![
            run("1", State::Running),
            run("2", State::Finished),
            run("3", State::Running),
        ])]);
        assert_eq!(round(&mut sync, 100_120).0, ["2 finished", "3 running"]);
        assert_eq!(script.was_asked(), ["99400..100060", "99400..100120"], "the cursor stayed");
    }

    #[test]
    fn what_can_never_be_asked_for_is_a_trouble_and_not_a_loop() {
        let script = Script::default();
        let mut sync = Sync::new(Box::new(script.clone()), Some(100_000), Duration::ZERO, []);
        script.will((0..50).map(|_| Err(Trouble::TooMuch { program: "sacct" })));
        assert_eq!(round(&mut sync, 100_060).2, Err(Trouble::TooMuch { program: "sacct" }));
        assert!(script.was_asked().len() < 10);
    }
}
