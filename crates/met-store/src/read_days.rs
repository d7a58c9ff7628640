//! Files of days that stay open for reading: to open one takes longer than to read a series from it, and a question
//! asks for many series of few days.

use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::Connection;

use crate::error::StoreError;
use crate::file_id::{FileId, file_at};

/// Enough for a job of ten days. Each holds up to three descriptors.
const OPEN_MAX: usize = 12;
/// Files that were not read for so long are closed by the writer.
const UNUSED_MAX: Duration = Duration::from_secs(30);

struct OpenDay {
    day: i64,
    file: FileId,
    used: Instant,
    connection: Connection,
}

/// The least recently used first.
#[derive(Default)]
pub(crate) struct ReadDays {
    days: VecDeque<OpenDay>,
}

impl ReadDays {
    /// The connection to the file of a day, which `open` opens unless it is; `None` where there is no such file. One
    /// that was removed or replaced since is not read any more.
    pub fn get(
        &mut self,
        day: i64,
        path: &Path,
        open: impl FnOnce() -> Result<Option<Connection>, StoreError>,
    ) -> Result<Option<&Connection>, StoreError> {
        let Some(file) = file_at(path)? else {
            self.close(day);
            return Ok(None);
        };
        let known = self.days.iter().position(|open| open.day == day).and_then(|at| self.days.remove(at));
        let connection = match known.filter(|open| open.file == file) {
            Some(known) => known.connection,
            None => match open()? {
                Some(connection) => connection,
                None => return Ok(None),
            },
        };
        if self.days.len() == OPEN_MAX {
            self.days.pop_front();
        }
        self.days.push_back(OpenDay { day, file, used: Instant::now(), connection });
        Ok(self.days.back().map(|open| &open.connection))
    }

    /// The connection to the file of a day that is open, however it is now; for callers who know that there is no writer.
    pub fn opened(&mut self, day: i64) -> Option<&Connection> {
        // Who looks at many jobs asks for the same few days.
        let at = self.days.iter().rposition(|open| open.day == day)?;
        let mut open = self.days.remove(at)?;
        open.used = Instant::now();
        self.days.push_back(open);
        self.days.back().map(|open| &open.connection)
    }

    /// Before the file of a day is written or removed.
    pub fn close(&mut self, day: i64) {
        self.days.retain(|open| open.day != day);
    }

    pub fn close_unused(&mut self) {
        self.days.retain(|open| open.used.elapsed() < UNUSED_MAX);
    }

    pub fn close_all(&mut self) {
        self.days.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;
    use crate::samples::{MIDNIGHT_S, finished, series};
    use crate::{Reader, Writer, day, series};

    const DAY_S: i64 = 86_400;

    /// How many descriptors of this process are of files of days.
    fn open_files(state: &Path) -> usize {
        let folder = state.join(series::FOLDER);
        let entries = fs::read_dir("/proc/self/fd").unwrap().flatten();
        entries
            .filter_map(|entry| fs::read_link(entry.path()).ok())
            .filter(|to| to.starts_with(&folder))
            .count()
    }

    fn path(state: &Path, second: i64) -> PathBuf {
        series::path_of(state, day::of_ms(second * 1000))
    }

    #[test]
    fn a_day_that_is_removed_or_replaced_is_not_read_from_the_open_file() {
        let state = tempfile::tempdir().unwrap();
        let record = finished(1, MIDNIGHT_S + 100);
        let write = |count: i64| {
            let mut writer = Writer::open(state.path()).unwrap();
            writer.put(&record).unwrap();
            writer.append_series(&record.key, &series((MIDNIGHT_S + 100) * 1000, 1000, count)).unwrap();
        };
        write(5);
        let reader = Reader::open(state.path()).unwrap();
        let count = || reader.series(&record.key).unwrap().len();
        assert_eq!((count(), count()), (5, 5));
        assert!(open_files(state.path()) > 0, "the next question would open it again");
        write(8);
        assert_eq!(count(), 8, "what is written meanwhile is read");
        let path = path(state.path(), MIDNIGHT_S);
        series::unlink(&path).unwrap();
        assert_eq!(count(), 0);
        assert_eq!(open_files(state.path()), 0, "its space is given back");
        write(3);
        assert_eq!(count(), 3);
        reader.close_files();
        assert_eq!((open_files(state.path()), count()), (0, 3));
    }

    #[test]
    fn the_files_that_stay_open_are_bounded() {
        let state = tempfile::tempdir().unwrap();
        let mut record = finished(1, MIDNIGHT_S);
        record.end_ns = record.start_ns.map(|start_ns| start_ns + 40 * DAY_S * 1_000_000_000);
        let mut writer = Writer::open(state.path()).unwrap();
        writer.put(&record).unwrap();
        writer.append_series(&record.key, &series(MIDNIGHT_S * 1000, DAY_S * 250, 160)).unwrap();
        drop(writer);
        let reader = Reader::open(state.path()).unwrap();
        for _ in 0..2 {
            assert_eq!(reader.series(&record.key).unwrap().len(), 160);
            let open = open_files(state.path());
            assert!((1..=3 * OPEN_MAX).contains(&open), "{open} descriptors");
        }
    }
}
