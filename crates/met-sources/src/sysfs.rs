//! Small files of one value each, which is what most of /sys is.

use std::io;

use met_core::{MISSING, Unparsed};
use met_host::{Host, parse};

/// What is below a directory, sorted: parts keep their order from one start to the next. Nothing where there
/// is no such directory.
pub(crate) fn names(host: &Host, path: &str) -> Vec<String> {
    let mut names = Vec::new();
    let Ok(dir) = host.open_dir(path) else { return names };
    let _ = dir.list(&mut Vec::new(), |name, _, _| names.extend(String::from_utf8(name.to_vec())));
    names.sort_by_key(|name| natural(name));
    names
}

/// Numbers in names by their value: zone 10 comes after zone 9.
fn natural(name: &str) -> (String, u64) {
    let digits = name.bytes().rev().take_while(u8::is_ascii_digit).count();
    let (stem, number) = name.split_at(name.len() - digits);
    (stem.to_owned(), number.parse().unwrap_or(0))
}

/// A device file cannot be read, but its directory says that it is there.
pub(crate) fn exists(host: &Host, path: &str) -> bool {
    let Some((folder, name)) = path.rsplit_once('/') else { return false };
    let mut found = false;
    if let Ok(folder) = host.open_dir(folder) {
        let _ = folder.list(&mut Vec::new(), |entry, _, _| found |= entry == name.as_bytes());
    }
    found
}

pub(crate) fn text(host: &Host, path: &str, buffer: &mut Vec<u8>) -> Option<String> {
    host.read_small(path, buffer).ok()?;
    let text = String::from_utf8_lossy(buffer.trim_ascii()).into_owned();
    (!text.is_empty()).then_some(text)
}

/// The number in a file. A file that is not there or that holds something else is a missing number; one that
/// cannot be read is an error.
pub(crate) fn cell(host: &Host, path: &str, buffer: &mut Vec<u8>) -> io::Result<i64> {
    match host.read_small(path, buffer) {
        Ok(()) => Ok(parse::cell(buffer.trim_ascii())),
        Err(error) if crate::is_gone(&error) => Ok(MISSING),
        Err(error) => Err(error),
    }
}

/// As `cell`, and counts what is no number. A driver says in angle brackets that it does not know.
pub(crate) fn reading(
    host: &Host,
    path: &str,
    buffer: &mut Vec<u8>,
    unparsed: &mut Unparsed,
) -> io::Result<i64> {
    buffer.clear();
    let cell = cell(host, path, buffer)?;
    let is_unknown = buffer.is_empty() || buffer.starts_with(b"<");
    unparsed.expect(cell != MISSING || is_unknown, || path.to_owned());
    Ok(cell)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tenth_comes_after_the_ninth() {
        let mut names = ["zone10", "zone9", "a", "zone", "zone1"].map(str::to_owned);
        names.sort_by_key(|name| natural(name));
        assert_eq!(names, ["a", "zone", "zone1", "zone9", "zone10"]);
    }
}
