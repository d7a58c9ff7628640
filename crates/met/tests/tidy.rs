//! Rules that no compiler checks.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

const FUNCTION_LINES_MAX: usize = 70;
const FIELDS_MAX: usize = 12;
const IMPL_FILES_MAX: usize = 2;

/// Types that change themselves and have more fields than that. The list and its numbers may only become smaller.
const LARGE: [(&str, &str, usize); 19] = [
    ("met-agent", "Charged", 20),
    ("met-agent", "NodeEnergy", 18),
    ("met-agent", "Sampler", 24),
    ("met-agent", "Supervision", 16),
    ("met-agent", "Tracked", 20),
    ("met-core", "Cards", 17),
    ("met-core", "Exit", 13),
    ("met-core", "Ledger", 16),
    ("met-core", "Meter", 13),
    ("met-core", "Scheduling", 15),
    ("met-core", "Use", 34),
    ("met-core", "Whole", 15),
    ("met-jobs", "Discovery", 30),
    ("met-jobs", "Identity", 14),
    ("met-jobs", "Job", 22),
    ("met-jobs", "Recorded", 19),
    ("met-server", "Work", 14),
    ("met-sinks", "Maker", 13),
    ("met-sources", "Nvidia", 15),
];

/// Names of types whose methods are in more files than that; types of one name in a crate count together. The list and its numbers may only become smaller.
const SPREAD: [(&str, &str, usize); 9] = [
    ("met", "Page", 4),
    ("met-agent", "Sampler", 10),
    ("met-core", "Cards", 3),
    ("met-insight", "Reader", 6),
    ("met-jobs", "Discovery", 5),
    ("met-server", "ClusterView", 3),
    ("met-server", "Work", 6),
    ("met-store", "Queries", 4),
    ("met-store", "Writer", 5),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn files_below(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files_below(&path, found);
        } else {
            found.push(path);
        }
    }
}

fn sources() -> Vec<(PathBuf, String)> {
    let mut files = Vec::new();
    files_below(&root().join("crates"), &mut files);
    files_below(&root().join("benches"), &mut files);
    files.retain(|path| path.extension().is_some_and(|extension| extension == "rs"));
    files.into_iter().map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect()
}

/// The name and length of every function: rustfmt puts its closing brace at its own indentation.
fn functions(text: &str) -> Vec<(String, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (begin, line) in lines.iter().enumerate() {
        let trimmed = line.trim_start();
        let is_function = ["fn ", "pub fn ", "pub(crate) fn ", "unsafe fn ", "pub(super) fn "];
        if !is_function.iter().any(|prefix| trimmed.starts_with(prefix))
            || trimmed.ends_with('}')
            || trimmed.ends_with(';')
        {
            continue;
        }
        let indentation = &line[..line.len() - trimmed.len()];
        let (closing, signature_end) = (format!("{indentation}}}"), format!("{indentation})"));
        let ends = |line: &&str| **line == closing || line.starts_with(&signature_end) && line.ends_with(';');
        if let Some(length) = lines[begin..].iter().position(ends)
            // What a trait only names has no body.
            && lines[begin + length] == closing
        {
            found.push((trimmed.to_owned(), length + 1));
        }
    }
    found
}

#[test]
fn no_function_is_too_long_to_read() {
    let mut seen = 0;
    for (path, text) in sources() {
        for (name, length) in functions(&text) {
            seen += 1;
            assert!(length <= FUNCTION_LINES_MAX, "{}: {name} has {length} lines", path.display());
        }
    }
    assert!(seen > 300, "only {seen} functions found: the search is broken");
}

/// The production code of a crate's file, with the name of the crate; nothing for other files.
fn production<'a>(path: &Path, text: &'a str) -> Option<(String, &'a str)> {
    let inside = path.strip_prefix(root().join("crates")).ok()?;
    let mut parts = inside.iter().map(|part| part.to_str().unwrap());
    let (name, is_source) = (parts.next()?.to_owned(), parts.next()? == "src");
    let is_test = parts.any(|part| part == "tests" || part == "tests.rs" || part.ends_with("_tests.rs"));
    let mut ends = text.match_indices("\n#[cfg(test)]\n").map(|(at, _)| at);
    // A module of tests is the last thing in its file.
    let end = ends.find(|&at| text[at..].lines().nth(2).unwrap().ends_with("mod tests {"));
    (is_source && !is_test).then(|| (name, &text[..end.unwrap_or(text.len())]))
}

/// What begins in the first column with one of these words, by name, with the lines up to its closing brace.
fn items<'a>(text: &'a str, begins: &[&str]) -> Vec<(&'a str, &'a str)> {
    let mut found = Vec::new();
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let rest = begins.iter().find_map(|begin| line.strip_prefix(begin)).map(|rest| {
            // Past the parameters of `impl<'a> Name<'a>`.
            rest.strip_prefix('<').and_then(|rest| rest.split_once("> ")).map_or(rest, |(_, rest)| rest)
        });
        if let Some(rest) = rest.filter(|rest| rest.ends_with("{\n") && !rest.contains(" for ")) {
            let name = rest.trim_start().split(|letter: char| !letter.is_alphanumeric()).next().unwrap();
            let length = text[at..].find("\n}\n").unwrap_or(text.len() - at);
            found.push((name, &text[at..at + length]));
        }
        at += line.len();
    }
    found
}

/// Fails where a number is above its limit and not that of an exception, or an exception is out of date.
fn compare(
    what: &str,
    max: usize,
    counted: &BTreeMap<(String, String), usize>,
    listed: &[(&str, &str, usize)],
) {
    let over = counted.iter().filter(|(_, count)| **count > max);
    let over: Vec<_> = over.map(|((name, kind), count)| (name.as_str(), kind.as_str(), *count)).collect();
    assert_eq!(over, listed, "{what}: split those that are new, and correct what is smaller");
}

#[test]
fn no_type_with_behaviour_knows_everything() {
    let (mut fields, mut files) = (BTreeMap::new(), BTreeMap::new());
    let mut behaves = BTreeSet::new();
    for (path, text) in sources() {
        let Some((name, text)) = production(&path, &text) else { continue };
        let mut here = BTreeSet::new();
        for (kind, body) in items(text, &["impl"]) {
            here.insert(kind);
            if body.contains("(&mut self") || body.contains("        &mut self,\n") {
                behaves.insert((name.clone(), kind.to_owned()));
            }
        }
        here.iter().for_each(|kind| *files.entry((name.clone(), (*kind).to_owned())).or_insert(0) += 1);
        for (kind, body) in items(text, &["struct", "pub struct", "pub(super) struct", "pub(crate) struct"]) {
            let is_field = |line: &&str| {
                let rest = line.strip_prefix("    ").filter(|rest| !rest.starts_with([' ', '/', '#']));
                rest.is_some_and(|rest| rest.contains(": "))
            };
            let count = body.lines().filter(is_field).count();
            let known = fields.entry((name.clone(), kind.to_owned())).or_insert(0);
            *known = count.max(*known);
        }
    }
    assert!(behaves.len() > 100 && fields.len() > 300, "the search is broken");
    fields.retain(|kind, _| behaves.contains(kind));
    compare("fields", FIELDS_MAX, &fields, &LARGE);
    compare("files with methods", IMPL_FILES_MAX, &files, &SPREAD);
}

#[test]
fn every_fixture_is_used() {
    let mut fixtures = Vec::new();
    files_below(&root().join("fixtures"), &mut fixtures);
    let code: String = sources().into_iter().map(|(_, text)| text).collect();
    assert!(!fixtures.is_empty());
    for fixture in fixtures {
        let name = fixture.file_name().unwrap().to_str().unwrap();
        let stem = fixture.file_stem().unwrap().to_str().unwrap();
        assert!(
            code.contains(name) || code.contains(&format!("\"{stem}\"")),
            "{} is used by no test",
            fixture.display()
        );
    }
}

#[test]
fn links_in_the_documentation_lead_somewhere() {
    let mut pages: Vec<PathBuf> =
        ["README.md", "ARCHITECTURE.md", "BENCHMARKS.md"].map(|page| root().join(page)).into();
    files_below(&root().join("docs"), &mut pages);
    let mut links = 0;
    for page in pages.iter().filter(|page| page.extension().is_some_and(|extension| extension == "md")) {
        let text = fs::read_to_string(page).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if !link.starts_with("http") && !link.starts_with('#') {
                let target = link.split('#').next().unwrap();
                assert!(page.parent().unwrap().join(target).exists(), "{}: {link}", page.display());
                links += 1;
            }
        }
    }
    assert!(links > 5);
}
