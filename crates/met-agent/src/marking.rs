//! Marks of work, from inside a job: as words, or found in its output by a regular expression.

use std::convert::Infallible;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use met_config::Failure;
use met_core::work::{self, MARKS_BYTES_MAX};
use met_host::clock;
use met_jobs::processes;
use regex_lite::{Regex, RegexBuilder};
use rustix::io::retry_on_intr;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, WaitOptions};

use crate::launch;
use crate::timeout::BlockingFile;

const PATTERN_BYTES_MAX: usize = 1 << 10;
const COMPILED_BYTES_MAX: usize = 256 << 10;
/// The beginning of a line that is searched.
const LINE_BYTES_MAX: usize = 4 << 10;
const CHUNK_BYTES: usize = 64 << 10;
/// What is left of the file of marks for the last one.
const RESERVE_BYTES: u64 = 4 << 10;
/// Full chunks that follow each other sooner come faster than they shall be searched: 3 MiB/s.
const SEARCH_EVERY: Duration = Duration::from_millis(20);

/// What is looked for in lines of output: numbers in named groups.
#[derive(Clone, Debug)]
pub struct Pattern {
    regex: Regex,
}

impl Pattern {
    pub fn parse(text: &str) -> Result<Pattern, String> {
        if text.len() > PATTERN_BYTES_MAX {
            return Err(format!("the pattern is longer than {PATTERN_BYTES_MAX} bytes"));
        }
        let regex = compiled(text)
            .map_err(|error| format!("{error}, at character {}", text[..wrong_at(text)].chars().count()))?;
        let mut names = regex.capture_names().flatten().peekable();
        if names.peek().is_none() {
            return Err(r"no number is named; write a group such as (?P<step>\d+)".to_owned());
        }
        if names.clone().count() > work::NAMES_MAX {
            return Err(format!("more than {} numbers are named; others would not be kept", work::NAMES_MAX));
        }
        match names.find(|name| !work::is_name(name)) {
            Some(name) => {
                Err(format!("{name:?} cannot name a mark; write a letter, then letters, digits and _"))
            }
            None => Ok(Pattern { regex }),
        }
    }

    /// The pairs of a line, each behind a space; empty if there are none.
    fn pairs_in(&self, line: &[u8]) -> String {
        let line = String::from_utf8_lossy(line);
        let mut pairs = String::new();
        let Some(found) = self.regex.captures(&line) else { return pairs };
        for name in self.regex.capture_names().flatten() {
            let value = found.name(name).and_then(|value| value.as_str().parse().ok());
            if let Some(value) = value.filter(|value: &f64| value.is_finite()) {
                // Writing to a string cannot fail.
                write!(pairs, " {name}={value}").unwrap_or_default();
            }
        }
        pairs
    }
}

/// Matching takes time in proportion to the line and the compiled pattern, whatever they are.
fn compiled(text: &str) -> Result<Regex, regex_lite::Error> {
    RegexBuilder::new(text).size_limit(COMPILED_BYTES_MAX).build()
}

/// Where a pattern goes wrong: the end of the shortest of its beginnings from which on all are wrong.
fn wrong_at(text: &str) -> usize {
    let ends = text.char_indices().map(|(index, _)| index).rev();
    ends.take_while(|&end| compiled(&text[..end]).is_err()).last().unwrap_or(text.len())
}

/// The file of a job's marks.
pub struct Marks {
    file: File,
}

/// What became of marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    Yes,
    /// The file has the size that it may have.
    Full,
}

impl Marks {
    /// The file that `MET_MARKS` names. `None` if it was removed, with its job.
    pub fn of_job() -> Result<Option<Marks>> {
        let path = std::env::var_os(processes::MARKS).filter(|path| !path.is_empty());
        let path = path.ok_or_else(|| {
            Failure::usage(
                "not inside a job of met: MET_MARKS is not set; start it with `met run` or `met time`",
            )
        })?;
        Ok(Marks::open(Path::new(&path)).ok())
    }

    fn open(path: &Path) -> io::Result<Marks> {
        let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW;
        Ok(Marks { file: OpenOptions::new().append(true).custom_flags(flags).open(path)? })
    }

    fn len(&self) -> io::Result<u64> {
        let known = self.file.metadata()?;
        // Something else in its place is not written to.
        Ok(if known.is_file() { known.len() } else { MARKS_BYTES_MAX })
    }

    /// Appends pairs with the time, by one write: lines of several processes do not mix.
    pub fn write(&mut self, time_ns: i64, pairs: &str) -> io::Result<Written> {
        let line = format!("@{time_ns}{pairs}\n");
        if self.len()?.saturating_add(line.len() as u64) > MARKS_BYTES_MAX {
            return Ok(Written::Full);
        }
        self.file.write_all(line.as_bytes())?;
        Ok(Written::Yes)
    }
}

/// `step=100 loss=0.5` as the words of one mark, for [`Marks::write`].
pub fn pairs(words: &[String]) -> Result<String> {
    let mut pairs = String::new();
    for word in words {
        let Some((name, value)) = work::parse_pair(word) else {
            return Err(Failure::usage(format!("{word:?} is not a mark; write NAME=NUMBER, as in step=100")));
        };
        write!(pairs, " {name}={value}").unwrap_or_default();
    }
    Ok(pairs)
}

/// Marks that were found in output: a long job writes them less often as its file fills, and the last one in any case.
struct Found {
    marks: Option<Marks>,
    written_ns: i64,
    /// The newest that is not written.
    waiting: Option<(i64, String)>,
}

impl Found {
    fn new(marks: Option<Marks>) -> Found {
        Found { marks, written_ns: 0, waiting: None }
    }

    fn take(&mut self, time_ns: i64, pairs: String) {
        let length = self.marks.as_ref().and_then(|marks| marks.len().ok()).unwrap_or(MARKS_BYTES_MAX);
        self.waiting = Some((time_ns, pairs));
        let is_due = time_ns - self.written_ns >= apart_ns(length);
        if is_due && length <= MARKS_BYTES_MAX - RESERVE_BYTES {
            self.write();
        }
    }

    fn write(&mut self) {
        let (Some(marks), Some((time_ns, pairs))) = (&mut self.marks, self.waiting.take()) else { return };
        self.written_ns = time_ns;
        // Marks are not worth the end of a job.
        let _ = marks.write(time_ns, &pairs);
    }
}

/// How far apart marks are in a file of this length. The last quarter is enough for three weeks.
fn apart_ns(length: u64) -> i64 {
    const SECOND_NS: i64 = 1_000_000_000;
    match length * 4 / MARKS_BYTES_MAX {
        0 => 0,
        1 => SECOND_NS,
        2 => 10 * SECOND_NS,
        _ => 60 * SECOND_NS,
    }
}

/// Cuts output into lines.
#[derive(Default)]
struct Lines {
    begin: Vec<u8>,
    /// The rest of this line is not looked at.
    is_cut: bool,
}

impl Lines {
    /// A progress bar ends its lines with a carriage return.
    fn feed(&mut self, bytes: &[u8], mut each: impl FnMut(&[u8])) {
        for piece in bytes.split_inclusive(|byte| matches!(byte, b'\n' | b'\r')) {
            let (text, is_whole) = match piece.split_last() {
                Some((b'\n' | b'\r', text)) => (text, true),
                _ => (piece, false),
            };
            if !self.is_cut {
                let room = LINE_BYTES_MAX - self.begin.len();
                self.begin.extend_from_slice(&text[..text.len().min(room)]);
            }
            if is_whole {
                self.end(&mut each);
            }
        }
    }

    fn end(&mut self, each: &mut impl FnMut(&[u8])) {
        if !self.is_cut && !self.begin.is_empty() {
            each(&self.begin);
        }
        self.begin.clear();
        self.is_cut = false;
    }

    /// Output was left out: the line that goes on behind it is not whole.
    fn skip(&mut self) {
        self.begin.clear();
        self.is_cut = true;
    }
}

/// What could not be written. A job whose output fails goes on, as it could without a filter, and so does its output: a
/// full disk may have room again.
#[derive(Default)]
struct Losses {
    bytes: u64,
    first: Option<io::Error>,
}

impl Losses {
    /// Writes as much as possible of a chunk. Fails only if the reader is gone.
    fn pass_on(&mut self, chunk: &[u8], output: &mut dyn Write, warnings: &mut dyn Write) -> io::Result<()> {
        let mut rest = chunk;
        while !rest.is_empty() {
            match output.write(rest) {
                Ok(0) => return self.lose(rest, io::ErrorKind::WriteZero.into(), warnings),
                Ok(count) => rest = &rest[count..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return self.lose(rest, error, warnings),
            }
        }
        // What is left in a buffer is written with the next chunk.
        output.flush().or_else(|error| self.lose(&[], error, warnings))
    }

    fn lose(&mut self, bytes: &[u8], error: io::Error, warnings: &mut dyn Write) -> io::Result<()> {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Err(error);
        }
        self.bytes += bytes.len() as u64;
        if self.first.is_none() {
            // It may be the same full disk.
            let _ = writeln!(
                warnings,
                "met: cannot pass on the output of this job: {error}; it is left out until it can be written"
            );
            self.first = Some(error);
        }
        Ok(())
    }

    /// At the end, when what is left in a buffer can only be lost.
    fn result(self, output: &mut dyn Write) -> io::Result<()> {
        output.flush()?;
        match self.first.filter(|_| self.bytes > 0) {
            Some(error) => Err(io::Error::new(
                error.kind(),
                format!("{} bytes of the output of this job are lost: {error}", self.bytes),
            )),
            None => Ok(()),
        }
    }
}

/// Copies output and marks what the pattern finds in it, with the time at which it came. The first failure to write is
/// said at once, in `warnings`.
pub fn filter(
    pattern: &Pattern,
    marks: Option<Marks>,
    input: &mut dyn Read,
    output: &mut dyn Write,
    warnings: &mut dyn Write,
) -> io::Result<()> {
    let (mut found, mut lines) = (Found::new(marks), Lines::default());
    let mut take = |line: &[u8], time_ns: i64| {
        let pairs = pattern.pairs_in(line);
        if !pairs.is_empty() {
            found.take(time_ns, pairs);
        }
    };
    let (mut chunk, mut searched, mut losses) = (vec![0; CHUNK_BYTES], None::<Instant>, Losses::default());
    loop {
        let count = match input.read(&mut chunk) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        losses.pass_on(&chunk[..count], output, warnings)?;
        if count == CHUNK_BYTES && searched.is_some_and(|searched| searched.elapsed() < SEARCH_EVERY) {
            lines.skip();
            continue;
        }
        let time_ns = clock::realtime_ns();
        lines.feed(&chunk[..count], |line| take(line, time_ns));
        searched = Some(Instant::now());
    }
    let time_ns = clock::realtime_ns();
    lines.end(&mut |line: &[u8]| take(line, time_ns));
    found.write();
    losses.result(output)
}

/// The command line of a command whose output is searched; `pattern` is what an option of this name gives.
pub fn searched(option: &str, pattern: &str, command: &[OsString]) -> Result<Vec<OsString>> {
    Pattern::parse(pattern).map_err(|error| Failure::usage(format!("{option} {pattern:?}: {error}")))?;
    let own = ["met", "mark", "--regex", pattern, "--"].map(OsString::from);
    Ok(own.into_iter().chain(command.iter().cloned()).collect())
}

/// Executes a command in place of this process. What it writes passes through processes that search it, which end when
/// nothing can write to them any more. Only while this process has one thread.
pub fn exec(pattern: &Pattern, command: &[OsString]) -> Result<Infallible> {
    let here = std::env::current_dir().context("the current folder is gone")?;
    let path = std::env::var_os("PATH");
    let program = launch::find_program(command, path.as_deref(), &here)?;
    // Marks are for a job, and without one its output is only passed on.
    let marks = || Marks::of_job().ok().flatten();
    let (out, err) = (File::from(rustix::io::dup(io::stdout())?), File::from(rustix::io::dup(io::stderr())?));
    // Where both go to one file, one filter keeps their order.
    let is_one = same_file(&out, &err);
    let (from_out, to_out) = pipe_with(PipeFlags::CLOEXEC)?;
    let (from_err, to_err) = pipe_with(PipeFlags::CLOEXEC)?;
    let writers = [to_out.as_fd(), to_err.as_fd()];
    let others = [&writers[..], &[from_err.as_fd()]].concat();
    let is_out_searched = is_started("output", start_filter(pattern, marks(), from_out, out, &others));
    let is_err_searched = match is_one {
        true => is_out_searched,
        false => is_started("errors", start_filter(pattern, marks(), from_err, err, &writers)),
    };
    if is_out_searched {
        rustix::stdio::dup2_stdout(&to_out)?;
    }
    if is_err_searched {
        rustix::stdio::dup2_stderr(if is_one { &to_out } else { &to_err })?;
    }
    let (name, arguments) = command.split_first().context("no command")?;
    let mut error = Command::new(&program).arg0(name).args(arguments).exec();
    if error.raw_os_error() == Some(libc::ENOEXEC) {
        // A script without an interpreter line, as for execvp.
        error = Command::new("/bin/sh").arg(&program).args(arguments).exec();
    }
    Err(Failure::with_code(126, format!("cannot run {}: {error}", program.display())))
}

fn same_file(one: &File, other: &File) -> bool {
    let file = |file: &File| file.metadata().ok().map(|known| (known.dev(), known.ino()));
    file(one).is_some() && file(one) == file(other)
}

/// A command runs without its marks rather than not at all, and never on a pipe that no process reads.
fn is_started(what: &str, started: io::Result<()>) -> bool {
    if let Err(error) = &started {
        let _ = writeln!(
            io::stderr(),
            "met: the {what} of this job cannot be searched for marks: no process for it: {error}; see `ulimit -u`"
        );
    }
    started.is_ok()
}

/// A filter is no child of the command, which might wait for all of its children: its parent is gone at once. `others`:
/// ends of pipes that are not its own.
fn start_filter(
    pattern: &Pattern,
    marks: Option<Marks>,
    from: OwnedFd,
    to: File,
    others: &[BorrowedFd<'_>],
) -> io::Result<()> {
    // SAFETY: no handler. A parent may have left it ignored: then there is no status to wait for.
    let before = unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    // SAFETY: one thread; the children go on as ordinary single-threaded processes.
    let started = match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            // SAFETY: as above.
            let forked = unsafe { libc::fork() };
            let mut status = 0;
            if forked == -1 {
                // An error number fits into a status.
                status = io::Error::last_os_error().raw_os_error().unwrap_or(libc::EAGAIN);
            }
            if forked == 0 {
                met_host::name_process(c"met-mark");
                for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT] {
                    // SAFETY: no handler: what the command still has to say when it is ended is written.
                    unsafe { libc::signal(signal, libc::SIG_IGN) };
                }
                for other in others {
                    // SAFETY: nothing in this process uses it after the fork.
                    unsafe { rustix::io::close(other.as_raw_fd()) };
                }
                let (mut from, mut to) = (File::from(from), BlockingFile(to));
                let done = filter(pattern, marks, &mut from, &mut to, &mut io::stderr());
                if let Err(error) = done {
                    let _ = writeln!(io::stderr(), "met: {error}");
                }
            }
            // SAFETY: ends the child without running what the parent registered for its own end.
            unsafe { libc::_exit(status) }
        }
        pid => {
            let waited = retry_on_intr(|| rustix::process::waitpid(Pid::from_raw(pid), WaitOptions::empty()));
            match waited.map(|waited| waited.and_then(|(_, status)| status.exit_status())) {
                Ok(Some(0)) => Ok(()),
                Ok(status) => Err(io::Error::from_raw_os_error(status.unwrap_or(libc::EAGAIN))),
                Err(error) => Err(error.into()),
            }
        }
    };
    // SAFETY: as it was.
    unsafe { libc::signal(libc::SIGCHLD, before) };
    started
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pattern(text: &str) -> Pattern {
        Pattern::parse(text).unwrap()
    }

    /// What is copied and what is marked, with bytes that come in pieces of this size.
    fn filtered(text: &str, bytes: &[u8], size: usize) -> (Vec<u8>, Vec<(String, u64, f64)>) {
        struct Pieces<'a>(&'a [u8], usize);
        impl Read for Pieces<'_> {
            fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
                let count = self.0.len().min(self.1).min(to.len());
                to[..count].copy_from_slice(&self.0[..count]);
                self.0 = &self.0[count..];
                Ok(count)
            }
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut copied = Vec::new();
        let marks = Marks::open(file.path()).unwrap();
        filter(&pattern(text), Some(marks), &mut Pieces(bytes, size), &mut copied, &mut io::sink()).unwrap();
        let work = work::parse(&std::fs::read(file.path()).unwrap());
        assert!(work.iter().all(|one| one.first.time_ns.is_some()));
        (copied, work.into_iter().map(|one| (one.name, one.marks, one.last.value)).collect())
    }

    #[test]
    fn a_wrong_pattern_is_refused_with_its_place() {
        let wrong = |text: &str| Pattern::parse(text).unwrap_err();
        for (text, place) in
            [(r"step (\d+", 6), ("(a)(b", 4), (r"(?P<n>\d+) [0-9", 12), (r"é\q(?P<n>\d)", 2), ("*", 1)]
        {
            assert!(wrong(text).ends_with(&format!(", at character {place}")), "{text}: {}", wrong(text));
        }
        assert!(wrong(r"step (\d+)").contains("no number is named"));
        assert!(wrong(r"(?P<_x>\d+)").contains("cannot name a mark"));
        let groups = |count: usize| (0..count).map(|index| format!(r"(?P<n{index}>\d)")).collect::<String>();
        assert!(Pattern::parse(&groups(work::NAMES_MAX)).is_ok());
        assert!(wrong(&groups(work::NAMES_MAX + 1)).contains("more than 16 numbers are named"));
        assert!(wrong(&"a".repeat(PATTERN_BYTES_MAX + 1)).contains("longer than"));
        assert!(wrong("(?P<n>(a{1000}){1000})").len() < 200, "too large when compiled");
    }

    #[test]
    fn numbers_in_lines_are_marked_and_the_output_is_copied() {
        let output = b"start\nstep 1 loss 0.5\rstep 2 loss 0.25\nstep x\n\xff\xfestep 3 loss nan\nstep 4";
        for size in [1, 7, 1 << 20] {
            let (copied, marked) = filtered(r"step (?P<step>\d+)( loss (?P<loss>[\d.]+))?", output, size);
            assert_eq!(copied, output);
            assert_eq!(marked, [("loss".to_owned(), 2, 0.25), ("step".to_owned(), 4, 4.0)], "{size}");
        }
    }

    /// Output that cannot be written for some of the writes.
    struct Disk {
        kept: Vec<u8>,
        writes: usize,
        full: std::ops::Range<usize>,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.writes += 1;
            if self.full.contains(&self.writes) {
                return Err(io::ErrorKind::StorageFull.into());
            }
            // A part of a chunk, as a disk does that becomes full.
            let count = bytes.len().min(4);
            self.kept.extend(&bytes[..count]);
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_cannot_be_written_is_lost_and_counted_and_the_rest_is_copied() {
        let mut disk = Disk { kept: Vec::new(), writes: 0, full: 2..4 };
        let mut pieces = (&b"step 1\n"[..]).chain(&b"step 2\n"[..]).chain(&b"step 3\n"[..]);
        let (file, mut warnings) = (tempfile::NamedTempFile::new().unwrap(), Vec::new());
        let marks = Marks::open(file.path()).unwrap();
        let done =
            filter(&pattern(r"step (?P<step>\d+)"), Some(marks), &mut pieces, &mut disk, &mut warnings);
        assert_eq!(disk.kept, b"stepstep 3\n");
        let error = done.unwrap_err().to_string();
        assert!(
            error.starts_with("10 bytes of the output of this job are lost: no storage space"),
            "{error}"
        );
        let warnings = String::from_utf8(warnings).unwrap();
        assert_eq!(warnings.lines().count(), 1, "{warnings}");
        let work = work::parse(&std::fs::read(file.path()).unwrap());
        assert_eq!((work[0].marks, work[0].last.value), (3, 3.0));
    }

    #[test]
    fn a_reader_that_is_gone_ends_the_copying() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let mut output = BlockingFile(File::from(OwnedFd::from(writer)));
        let done = filter(&pattern(r"(?P<n>\d)"), None, &mut &b"1\n"[..], &mut output, &mut io::sink());
        assert_eq!(done.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn a_long_line_is_searched_at_its_beginning_and_output_in_a_flood_in_part() {
        let mut output = b"step 1 ".repeat(LINE_BYTES_MAX);
        output.extend(b"step 7\nstep 8\n");
        assert_eq!(filtered(r"^step (?P<step>\d+)", &output, 100).1, [("step".to_owned(), 2, 8.0)]);
        let flood = b"step 9 of many\n".repeat(1 << 18);
        let (copied, marked) = filtered(r"step (?P<step>\d+)", &flood, usize::MAX);
        assert!(copied == flood && marked[0].1 >= 1 && marked[0].2 == 9.0);
    }

    #[test]
    fn a_full_file_gets_fewer_marks_and_the_last_one() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "\n".repeat((MARKS_BYTES_MAX - RESERVE_BYTES) as usize - 60)).unwrap();
        let mut found = Found::new(Some(Marks::open(file.path()).unwrap()));
        let second_ns = 1_000_000_000;
        for second in 1..=130 {
            found.take(1_700_000_000_000_000_000 + second * second_ns, format!(" step={second}"));
        }
        found.write();
        let work = work::parse(&std::fs::read(file.path()).unwrap());
        assert_eq!((work[0].marks, work[0].last.value), (4, 130.0), "at 1, 61 and 121 s");
    }

    proptest! {
        #[test]
        fn any_output_is_copied_as_it_is(bytes in proptest::collection::vec(any::<u8>(), 0..3000), size in 1usize..900) {
            prop_assert_eq!(filtered(r"(?P<n>\d+)", &bytes, size).0, bytes);
        }
    }
}
