//! What goes wrong when a source is read: counted, reported once for each error, and since when it goes on.

use met_core::{Batch, Unparsed};
use met_host::clock;

use super::NewError;
use crate::ReadError;

/// Distinct errors remembered for each source; one that changes its text all the time is not logged for ever.
const ERRORS_REMEMBERED: usize = 16;

/// What was wrong with the last reading of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub what: Wrong,
    /// Unix time of the first of the readings in a row of which this is true.
    pub since_ns: i64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// It failed in part or whole.
    Error(String),
    /// Some of it could not be parsed; the file of the first that ever could not be.
    Unparsed(String),
}

/// Of one source.
#[derive(Default)]
pub(super) struct Faults {
    pub errors: i64,
    pub unparsed: Unparsed,
    failing: Option<Fault>,
    unparsed_since_ns: Option<i64>,
    /// The same of what is met outside of its own readings.
    unparsed_outside_since_ns: Option<i64>,
    seen_errors: Vec<String>,
}

impl Faults {
    pub fn is_failing(&self) -> bool {
        self.failing.is_some()
    }

    /// What is wrong now; an error comes before what could not be parsed.
    pub fn now(&self) -> Option<Fault> {
        let unparsed_ns = self.unparsed_since_ns.into_iter().chain(self.unparsed_outside_since_ns).min();
        let file = || self.unparsed.first.clone().unwrap_or_default();
        self.failing.clone().or_else(|| Some(Fault { since_ns: unparsed_ns?, what: Wrong::Unparsed(file()) }))
    }

    /// Takes how a reading went, and what of it could not be parsed.
    pub fn take(
        &mut self,
        source: &'static str,
        error: Option<&ReadError>,
        read: &mut [Batch],
        new: &mut Vec<NewError>,
    ) {
        let mut is_unparsed = false;
        for batch in read {
            is_unparsed |= self.count(source, &mut batch.unparsed, new);
        }
        since(&mut self.unparsed_since_ns, is_unparsed);
        let Some(error) = error else {
            self.failing = None;
            return;
        };
        self.errors += 1;
        let message = error.to_string();
        if self.seen_errors.len() < ERRORS_REMEMBERED && !self.seen_errors.contains(&message) {
            self.seen_errors.push(message.clone());
            new.push(NewError { source, message: message.clone() });
        }
        let since_ns = self.failing.as_ref().map_or_else(clock::realtime_ns, |failing| failing.since_ns);
        self.failing = Some(Fault { what: Wrong::Error(message), since_ns });
    }

    /// Takes what could not be parsed outside of its own readings, since the last call.
    pub fn take_outside(&mut self, source: &'static str, unparsed: &mut Unparsed, new: &mut Vec<NewError>) {
        let is_unparsed = self.count(source, unparsed, new);
        since(&mut self.unparsed_outside_since_ns, is_unparsed);
    }

    /// True if there was any. The first one is reported.
    fn count(&mut self, source: &'static str, more: &mut Unparsed, new: &mut Vec<NewError>) -> bool {
        let (is_any, is_first) = (more.count > 0, self.unparsed.count == 0);
        self.unparsed.take_from(more);
        if let Some(file) = self.unparsed.first.as_ref().filter(|_| is_any && is_first) {
            let message = format!("cannot parse {file}: its values are missing; `met doctor` counts them");
            new.push(NewError { source, message });
        }
        is_any
    }
}

/// Remembers when something began that goes on, and forgets it when it is over.
fn since(since_ns: &mut Option<i64>, is_so: bool) {
    match is_so {
        true => _ = since_ns.get_or_insert_with(clock::realtime_ns),
        false => *since_ns = None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::TABLE;
    use super::*;

    fn failed(path: &str) -> ReadError {
        ReadError::Retry { path: path.to_owned(), error: std::io::Error::from_raw_os_error(5) }
    }

    #[test]
    fn a_fault_lasts_until_a_reading_without_it_and_keeps_its_beginning() {
        let (mut faults, mut new) = (Faults::default(), Vec::new());
        let mut take = |faults: &mut Faults, error: Option<&ReadError>, unparsed: i64| {
            let mut batches = [Batch::new(&TABLE), Batch::new(&TABLE)];
            (0..unparsed).for_each(|_| batches[1].unparsed.add(|| "/proc/stat".to_owned()));
            faults.take("test", error, &mut batches, &mut new);
        };
        take(&mut faults, Some(&failed("/a")), 0);
        let first = faults.now().unwrap();
        let is_error =
            |fault: &Fault, path: &str| matches!(&fault.what, Wrong::Error(error) if error.starts_with(path));
        assert!(is_error(&first, "/a: "), "{first:?}");
        take(&mut faults, Some(&failed("/b")), 1);
        let second = faults.now().unwrap();
        assert!(is_error(&second, "/b: "), "{second:?}");
        assert_eq!(second.since_ns, first.since_ns);
        take(&mut faults, None, 2);
        let left = Some(Wrong::Unparsed("/proc/stat".to_owned()));
        assert_eq!(faults.now().map(|fault| fault.what), left);
        take(&mut faults, None, 0);
        assert_eq!((faults.now(), faults.errors, faults.unparsed.count), (None, 2, 3));
        assert_eq!(new.len(), 3, "{new:?}");
    }

    #[test]
    fn what_is_met_outside_of_readings_is_not_forgotten_by_a_reading() {
        let (mut faults, mut new) = (Faults::default(), Vec::new());
        let bad = || Unparsed { count: 1, first: Some("/proc/9/stat".to_owned()) };
        faults.take_outside("test", &mut bad(), &mut new);
        let since_ns = faults.now().unwrap().since_ns;
        faults.take("test", None, &mut [], &mut new);
        faults.take_outside("test", &mut bad(), &mut new);
        assert_eq!(faults.now().unwrap().since_ns, since_ns);
        faults.take_outside("test", &mut Unparsed::default(), &mut new);
        assert_eq!(faults.now(), None);
    }
}
