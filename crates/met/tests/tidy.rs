//! Rules that no compiler checks.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

const FUNCTION_LINES_MAX: usize = 70;

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
