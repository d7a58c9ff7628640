//! What people see: text from records, reports and series. Nothing here prints; callers do.

pub mod compare;
pub mod doctor;
pub mod findings;
#[cfg(test)]
mod gpu_tests;
pub mod gpus;
pub mod job_list;
pub mod manual;
pub mod node;
pub mod node_part_series;
pub mod nodes;
pub mod plot;
pub mod ps;
pub mod report;
#[cfg(test)]
#[path = "sample_tests.rs"]
mod sample;
pub mod scale;
pub mod text;
pub mod usage;
pub mod who;

use std::ffi::OsStr;
use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::path::Path;

use jiff::tz::TimeZone;

/// How a view is drawn. Made once, from the stream it goes to.
#[derive(Clone, Debug)]
pub struct Style {
    pub color: bool,
    /// Columns of the terminal, or those that the environment asks for; `None` where the output is not a terminal and nothing is cut.
    pub width: Option<usize>,
    /// Only characters that every terminal has, for a locale that is not UTF-8.
    pub ascii: bool,
    /// Where the reader's clock is.
    pub zone: TimeZone,
}

impl Style {
    /// No colour, no cutting, UTC: what a file or a test gets.
    pub fn plain() -> Style {
        Style { color: false, width: None, ascii: false, zone: TimeZone::UTC }
    }

    /// What fits the stream: colour and width on a terminal only.
    pub fn of_stream(stream: &(impl IsTerminal + AsFd)) -> Style {
        let terminal = stream.is_terminal();
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let columns = rustix::termios::tcgetwinsize(stream).ok().map(|size| usize::from(size.ws_col));
        Style {
            color: terminal && !dumb && !no_color,
            width: width(terminal, columns, std::env::var("COLUMNS").ok().as_deref()),
            ascii: !utf8_locale(|name| std::env::var(name).ok()),
            zone: local_zone(),
        }
    }

    pub fn paint(&self, paint: Paint, text: &str) -> String {
        if !self.color || text.is_empty() {
            return text.to_owned();
        }
        format!("\x1b[{}m{text}\x1b[0m", paint.code())
    }
}

/// The columns of a terminal, or those that the environment asks for where the output is none: a pager or a test says so.
fn width(is_terminal: bool, columns: Option<usize>, asked: Option<&str>) -> Option<usize> {
    // A terminal that does not know its size (a serial line) says 0.
    let known = columns.filter(|&columns| columns > 0);
    match is_terminal {
        true => Some(known.unwrap_or(80)),
        false => asked?.parse().ok().filter(|&columns| columns > 0),
    }
}

/// The zone of the reader's clock. Where no variable names another, the machine's own file holds its rules; to ask
/// for its name would list the whole database of zones, which takes longer than a short job.
pub fn local_zone() -> TimeZone {
    zone_of(std::env::var_os("TZ").as_deref(), Path::new("/etc/localtime"))
}

fn zone_of(variable: Option<&OsStr>, file: &Path) -> TimeZone {
    let machines = || TimeZone::tzif("local", &std::fs::read(file).ok()?).ok();
    if variable.is_some() { None } else { machines() }.unwrap_or_else(TimeZone::system)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paint {
    Bold,
    Dim,
    Green,
    Yellow,
    Red,
    Cyan,
}

impl Paint {
    fn code(self) -> &'static str {
        match self {
            Paint::Bold => "1",
            Paint::Dim => "2",
            Paint::Green => "32",
            Paint::Yellow => "33",
            Paint::Red => "31",
            Paint::Cyan => "36",
        }
    }
}

/// The locale of characters, by the precedence of setlocale(3). With no locale at all, as in a container
/// or a cron job, the terminal is most likely a UTF-8 one.
fn utf8_locale(variable: impl Fn(&str) -> Option<String>) -> bool {
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
        .into_iter()
        .find_map(|name| variable(name).filter(|value| !value.is_empty()));
    match locale {
        None => true,
        Some(locale) => {
            let locale = locale.to_ascii_lowercase();
            locale.contains("utf-8") || locale.contains("utf8")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn locale(variables: &[(&str, &str)]) -> bool {
        utf8_locale(|name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn the_width_is_that_of_the_terminal_or_what_the_environment_says_without_one() {
        assert_eq!(width(true, Some(132), Some("60")), Some(132));
        assert_eq!(width(true, Some(0), None), Some(80), "a serial line");
        assert_eq!(width(false, None, Some("60")), Some(60));
        for nothing in [None, Some(""), Some("0"), Some("-4"), Some("wide")] {
            assert_eq!(width(false, None, nothing), None, "nothing is cut: {nothing:?}");
        }
    }

    #[test]
    fn the_more_specific_locale_decides() {
        assert!(locale(&[]));
        assert!(locale(&[("LANG", "en_US.UTF-8")]));
        assert!(!locale(&[("LC_ALL", "C"), ("LANG", "en_US.UTF-8")]));
        assert!(locale(&[("LC_ALL", ""), ("LC_CTYPE", "C.utf8"), ("LANG", "C")]));
        assert!(!locale(&[("LANG", "POSIX")]));
    }

    /// A file of a zone in which it is always the same number of hours later than in Greenwich.
    fn zone_file(hours: i8) -> Vec<u8> {
        let counts = [0_u32, 0, 0, 0, 1, 4].map(u32::to_be_bytes).concat();
        let seconds = i32::from(hours) * 3600;
        let block =
            [b"TZif2".as_slice(), &[0; 15], &counts, &seconds.to_be_bytes(), &[0, 0], b"XYZ\0"].concat();
        [block.as_slice(), &block, format!("\nXYZ{}\n", -hours).as_bytes()].concat()
    }

    #[test]
    fn the_zone_is_that_of_the_machines_file_unless_a_variable_names_another() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("localtime");
        std::fs::write(&file, zone_file(5)).unwrap();
        for second in [0, 1_700_000_000, 1_720_000_000, 4_000_000_000] {
            let at = jiff::Timestamp::from_second(second).unwrap();
            assert_eq!(zone_of(None, &file).to_offset(at), jiff::tz::offset(5), "{at}");
            let elsewhere = TimeZone::system().to_offset(at);
            assert_eq!(zone_of(Some(OsStr::new("UTC")), &file).to_offset(at), elsewhere, "{at}");
            assert_eq!(zone_of(None, &folder.path().join("none")).to_offset(at), elsewhere, "{at}");
        }
    }
}
