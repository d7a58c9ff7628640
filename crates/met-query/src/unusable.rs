//! Daemons that run but cannot be used, because they hang or speak another version. A command waits for such a
//! daemon once and reports it once, however often it needs it.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::client::Unreachable;

/// A command that lasts asks again after this long.
const ASK_AGAIN: Duration = Duration::from_secs(10);

/// What a command has found out so far.
#[derive(Default)]
pub struct Reach {
    pub system: Known,
    pub user: Known,
}

/// The same of one daemon.
#[derive(Default)]
pub struct Known(Mutex<Option<Missed>>);

struct Missed {
    why: Unreachable,
    since: Instant,
}

/// How an unusable daemon is reported.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Report {
    Warn,
    /// For commands that read jobs: some of them are known only to that daemon.
    WarnReader,
    ByCaller,
}

impl Known {
    pub fn once<T>(
        &self,
        report: Report,
        connect: impl FnOnce() -> Result<T, Unreachable>,
    ) -> Result<T, Unreachable> {
        let mut missed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = missed.as_ref().filter(|missed| missed.since.elapsed() < ASK_AGAIN);
        if let Some(again) = known.and_then(|missed| missed.why.again()) {
            return Err(again);
        }
        let result = connect();
        if let Err(error) = &result
            && let Some(why) = error.again()
        {
            match report {
                Report::Warn if missed.is_none() => tracing::warn!("{why}; continuing without it"),
                Report::WarnReader if missed.is_none() => {
                    tracing::warn!("{why}; continuing without it: its jobs are not shown");
                }
                _ => {}
            }
            *missed = Some(Missed { why, since: Instant::now() });
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_daemon_that_hangs_is_waited_for_once() {
        let reach = Reach::default();
        let asked = Cell::new(0);
        let hung = || -> Result<(), Unreachable> {
            asked.set(asked.get() + 1);
            Err(Unreachable::Silent { pid: Some(7) })
        };
        for _ in 0..3 {
            assert!(matches!(
                reach.system.once(Report::Warn, hung),
                Err(Unreachable::Silent { pid: Some(7) })
            ));
        }
        assert_eq!(asked.get(), 1);
        assert!(reach.user.once(Report::Warn, || Ok(())).is_ok(), "another daemon is another matter");
        if let Some(missed) = reach.system.0.lock().unwrap().as_mut() {
            missed.since -= ASK_AGAIN;
        }
        assert!(reach.system.once(Report::Warn, hung).is_err());
        assert_eq!(asked.get(), 2, "it may answer again");
    }

    #[test]
    fn an_absent_daemon_is_searched_each_time() {
        let reach = Reach::default();
        assert!(reach.user.once(Report::Warn, || Err::<(), _>(Unreachable::Absent)).is_err());
        assert!(reach.user.once(Report::Warn, || Ok(())).is_ok());
    }
}
