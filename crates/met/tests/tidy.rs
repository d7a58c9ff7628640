//! Rules that no compiler checks.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use met_core::managers::Scheduler;

#[path = "tidy/words.rs"]
mod words;

use words::{is_word, literals, occurrences};

const FUNCTION_LINES_MAX: usize = 70;
const ARCHITECTURE_WORDS_MAX: usize = 3_500;
const FIELDS_MAX: usize = 12;
/// Methods of more than one line that only compute: more of them make a type more than data.
const DERIVING_MAX: usize = 1;
const IMPL_FILES_MAX: usize = 2;

/// Plain data with more fields than that, and what it is: its methods only combine or complete its own fields.
const PLAIN_DATA: &[(&str, &str, &str)] = &[
    ("met-core", "Exit", "the kernel's record of a process that ended"),
    ("met-core", "GpuUse", "what a job did with a GPU"),
    ("met-core", "Record", "a job as it is stored and sent"),
    ("met-core", "Scheduling", "what a scheduler reports of a job"),
    ("met-jobs", "Identity", "what was learned of a job"),
    ("met-jobs", "Recorded", "one run of a job as its scheduler reports it"),
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
        let is_modifier = |word: &str| {
            word.starts_with("pub") || ["async", "const", "unsafe", "extern", "\"C\""].contains(&word)
        };
        if trimmed.split(' ').find(|word| !is_modifier(word)) != Some("fn")
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

/// The names of our own traits, as they are declared in a file.
fn traits_in(text: &str) -> impl Iterator<Item = String> + '_ {
    let begins = ["trait ", "pub trait ", "pub(super) trait ", "pub(crate) trait "];
    let declared =
        text.lines().filter_map(move |line| begins.iter().find_map(|begin| line.strip_prefix(begin)));
    declared.map(|rest| rest.chars().take_while(|letter| is_word(*letter)).collect())
}

/// The types that implement one of these traits in a file.
fn implementors<'a>(text: &'a str, traits: &BTreeSet<String>) -> Vec<&'a str> {
    let of_line = |line: &'a str| {
        let rest = line.strip_prefix("impl")?;
        let rest =
            rest.strip_prefix('<').and_then(|rest| rest.split_once("> ")).map_or(rest, |(_, rest)| rest);
        let (implemented, kind) = rest.trim_start().split_once(" for ")?;
        let name = implemented.split('<').next()?.rsplit("::").next()?;
        traits.contains(name).then(|| kind.split(|letter| !is_word(letter)).next().unwrap_or_default())
    };
    text.lines().filter_map(of_line).collect()
}

#[test]
fn an_impl_of_a_trait_of_ours_counts_and_one_of_the_standard_library_does_not() {
    let traits: BTreeSet<String> = traits_in("pub(super) trait OnEnd: Send {\ntrait Ask<T> {\n").collect();
    assert_eq!(traits, ["Ask", "OnEnd"].map(str::to_owned).into());
    let text =
        "impl OnEnd for Outputs {\nimpl<T> super::Ask<T> for One<T> {\nimpl Drop for Two {\nimpl Three {\n";
    assert_eq!(implementors(text, &traits), ["Outputs", "One"]);
}

fn check_max(what: &str, max: usize, counted: &BTreeMap<(String, String), usize>) {
    let over: Vec<_> = counted.iter().filter(|(_, count)| **count > max).collect();
    assert!(over.is_empty(), "more than {max} {what}; split them: {over:?}");
}

/// Whether the methods of one `impl` are behaviour: one that changes the value, or several that compute something. A
/// body of one line is a getter or a call; one longer method derives a value, as plain data may.
fn behaviour(body: &str) -> usize {
    let lines: Vec<&str> = body.lines().collect();
    let begins = |line: &str| line.starts_with("    ") && !line.starts_with("     ") && line.contains("fn ");
    let mut count = 0;
    for (begin, _) in lines.iter().enumerate().filter(|(_, line)| begins(line)) {
        let Some(open) = lines[begin..].iter().position(|line| line.ends_with('{')) else { continue };
        let signature = lines[begin..=begin + open].join(" ");
        let length = lines[begin + open..].iter().position(|line| *line == "    }").unwrap_or(0);
        count += match (signature.contains("&mut self"), signature.contains("self")) {
            (true, _) => DERIVING_MAX + 1,
            (false, true) => usize::from(length > 2),
            (false, false) => 0,
        };
    }
    count
}

#[test]
fn a_method_is_behaviour_if_it_changes_or_computes_something() {
    let getter = "impl A {\n    fn a(&self) -> i64 {\n        self.a\n    }\n";
    let computes =
        "    fn b(\n        &self,\n    ) -> i64 {\n        let b = 1;\n        self.a + b\n    }\n";
    let changes = "    fn c(&mut self) {\n        self.a = 1;\n    }\n";
    let constructs = "    fn new() -> A {\n        let a = 1;\n        A { a }\n    }\n";
    assert_eq!(behaviour(&format!("{getter}{constructs}")), 0);
    assert_eq!(behaviour(&format!("{getter}{computes}{constructs}")), 1);
    assert!(behaviour(&format!("{getter}{changes}")) > DERIVING_MAX);
    assert!(behaviour(&format!("{getter}{computes}{computes}")) > DERIVING_MAX);
}

#[test]
fn no_type_with_behaviour_knows_everything() {
    let (mut fields, mut files) = (BTreeMap::new(), BTreeMap::new());
    let mut behaves = BTreeMap::new();
    let files_read = sources();
    let traits: BTreeSet<String> = files_read.iter().flat_map(|(_, text)| traits_in(text)).collect();
    for (path, text) in &files_read {
        let Some((name, text)) = production(path, text) else { continue };
        let mut here: BTreeSet<&str> = implementors(text, &traits).into_iter().collect();
        for (kind, body) in items(text, &["impl"]) {
            here.insert(kind);
            *behaves.entry((name.clone(), kind.to_owned())).or_insert(0) += behaviour(body);
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
    behaves.retain(|_, count| *count > DERIVING_MAX);
    assert!(behaves.len() > 100 && fields.len() > 300, "the search is broken");
    fields.retain(|kind, _| behaves.contains_key(kind));
    for (name, kind, _) in PLAIN_DATA {
        let count = fields.remove(&((*name).to_owned(), (*kind).to_owned()));
        assert!(count > Some(FIELDS_MAX), "{name} {kind} has few fields: it needs no exception");
    }
    check_max("fields", FIELDS_MAX, &fields);
    check_max("files with methods", IMPL_FILES_MAX, &files);
}

/// The text from after an opening parenthesis to its closing one.
fn until_closed(text: &str) -> &str {
    let mut depth = 1_i32;
    let end = text.find(|letter: char| {
        depth += i32::from(letter == '(') - i32::from(letter == ')');
        depth == 0
    });
    &text[..end.unwrap_or(text.len())]
}

/// Where columns are named by text: the folder, and the test that compares the names with the catalogue.
const NAMED_BY_TEXT: &[(&str, &str)] =
    &[("met-wire/src/colmet", "every_column_of_the_mapping_is_in_the_catalogue_with_the_unit_of_its_factor")];

/// The names of functions that take a column or a table by its name: `Table::column`, `met_sources::table`, and those
/// whose parameters say so.
fn takers_of_names(files: &[(PathBuf, String)]) -> BTreeSet<String> {
    let mut takers: BTreeSet<String> =
        ["column", "met_sources::table", "table_named"].map(str::to_owned).into();
    for (path, text) in files {
        let Some((_, text)) = production(path, text) else { continue };
        for (name, parameters) in text.split("fn ").skip(1).filter_map(|rest| rest.split_once('(')) {
            let (name, parameters) = (name.split('<').next().unwrap(), until_closed(parameters));
            let takes =
                |what: &str| occurrences(parameters, what).any(|at| is_text(&parameters[at + what.len()..]));
            if name.chars().all(is_word) && (takes("table: &") || takes("column: &")) {
                takers.insert(name.to_owned());
            }
        }
    }
    takers
}

/// Whether a type behind its `&` is a text, with a lifetime or without.
fn is_text(kind: &str) -> bool {
    let kind = kind.strip_prefix('\'').map_or(kind, |rest| rest.trim_start_matches(is_word).trim_start());
    kind.strip_prefix("str").is_some_and(|rest| !rest.starts_with(is_word))
}

/// Comparisons of a name of a table or column with a literal.
fn compared_names(text: &str) -> Vec<&str> {
    let banned = [".feeds(\"", "table.name == \"", ".table == \"", ".column == \""];
    let lines: Vec<&str> = text.lines().collect();
    let begins_match = |line: &str| {
        line.contains("match ")
            && (line.ends_with("table {") || line.ends_with("table.name {") || line.ends_with("column {"))
    };
    let arms = lines.windows(2).filter(|pair| begins_match(pair[0]) && pair[1].trim_start().starts_with('"'));
    let compared = lines.iter().copied().filter(|line| banned.iter().any(|banned| line.contains(banned)));
    compared.chain(arms.map(|pair| pair[1])).collect()
}

/// A misspelt name of a column or table would be a figure that is silently missing; a misspelt constant does not compile.
#[test]
fn no_column_or_table_is_looked_up_by_a_literal() {
    let files = sources();
    let takers = takers_of_names(&files);
    assert!(takers.contains("replaces"), "the search is broken: {takers:?}");
    let catalogue = met_sources::catalogue();
    let names: BTreeSet<&str> = catalogue
        .iter()
        .flat_map(|table| table.columns.iter().map(|column| column.name).chain([table.name]))
        .collect();
    let mut seen = 0;
    for (path, text) in &files {
        let Some((_, text)) = production(path, text) else { continue };
        if NAMED_BY_TEXT.iter().any(|(folder, _)| path.to_str().unwrap().contains(folder)) {
            continue;
        }
        seen += text.matches("::TABLE").count();
        let compared = compared_names(text);
        assert!(compared.is_empty(), "{}: use the table's constants: {compared:?}", path.display());
        for taker in &takers {
            let calls = occurrences(text, taker).map(|at| &text[at + taker.len()..]);
            for call in calls.filter_map(|rest| rest.strip_prefix('(')).map(until_closed) {
                let named = call.split('"').skip(1).step_by(2).find(|literal| names.contains(literal));
                assert!(named.is_none(), "{}: {taker}({call}): use the table's constants", path.display());
            }
        }
    }
    assert!(seen > 30, "only {seen} tables found: the search is broken");
    for (_, test) in NAMED_BY_TEXT {
        assert!(files.iter().any(|(_, text)| text.contains(&format!("fn {test}("))), "{test} is gone");
    }
}

/// A scheduler is a row in the table of managers and a file: other code that names one would miss the next.
#[test]
fn no_scheduler_is_named_outside_its_row_and_its_file() {
    let schedulers = || Scheduler::ALL.iter().map(|scheduler| scheduler.row());
    let is_name = |text: &str| {
        let variable = |name: &str| text.starts_with(&format!("{}_", name.to_uppercase()));
        schedulers().any(|(row, query)| text == row.name || text == query.program || variable(row.name))
    };
    let mut own = 0;
    for (path, text) in sources() {
        let Some((_, text)) = production(&path, &text) else { continue };
        let is_own = path.ends_with("met-core/src/managers.rs")
            || schedulers().any(|(row, _)| path.ends_with(format!("met-jobs/src/scheduler/{}.rs", row.name)));
        for (line, literal) in literals(text).into_iter().filter(|(_, literal)| is_name(literal)) {
            assert!(is_own, "{}:{line}: {literal:?} belongs in the row or the KIND", path.display());
            own += 1;
        }
    }
    assert!(own > 30, "only {own} names found: the search is broken");
}

/// What `met node`, plots and pages show of a source follows from its file: a view that names one would miss the next.
#[test]
fn no_view_names_a_source() {
    // The machine itself is no device: its uptime, its CPUs in use, and its memory are at the head of a page.
    let sources = || met_sources::SOURCES.iter().map(|spec| spec.name).filter(|name| *name != "node");
    let mut seen = 0;
    for (path, text) in sources_of_views() {
        let text = text.split("#[cfg(test)]\nmod tests").next().unwrap();
        seen += usize::from(text.contains("met_sources::"));
        for import in text.split("met_sources::").skip(1) {
            let names = import.split([';', '(']).next().unwrap();
            let named = sources().find(|source| occurrences(names, source).next().is_some());
            assert!(named.is_none(), "{}: describe it in the file of the source: {named:?}", path.display());
        }
    }
    assert!(seen >= 3, "only {seen} views use sources: the search is broken");
}

fn sources_of_views() -> Vec<(PathBuf, String)> {
    let mut files = Vec::new();
    files_below(&root().join("crates/met/src/view"), &mut files);
    files_below(&root().join("crates/met-web/src/pages"), &mut files);
    let is_code = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "rs");
    files.retain(is_code);
    files.into_iter().map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect()
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
fn the_architecture_names_files_that_exist() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let mut files = Vec::new();
    files_below(&root().join("crates"), &mut files);
    let files: Vec<String> = files.iter().map(|path| path.to_str().unwrap().to_owned()).collect();
    let mut seen = 0;
    for name in text.split('`').skip(1).step_by(2).filter(|name| name.ends_with(".rs") && !name.contains(' '))
    {
        assert!(files.iter().any(|file| file.ends_with(&format!("/{name}"))), "{name} is gone");
        seen += 1;
    }
    assert!(seen > 60, "only {seen} files named: the search is broken");
}

/// The way through the code is short: reasons have pages of their own.
#[test]
fn the_architecture_is_short() {
    let words = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap().split_whitespace().count();
    assert!(words <= ARCHITECTURE_WORDS_MAX, "ARCHITECTURE.md has {words} words");
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

#[test]
fn the_map_of_crates_says_what_each_uses() {
    let map = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let mut compared = 0;
    for row in map.lines().filter(|line| line.starts_with("| `crates/")) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let (folder, said) = (cells[1].trim_matches('`'), cells[3]);
        if said.starts_with("all") {
            continue;
        }
        let manifest = fs::read_to_string(root().join(folder).join("Cargo.toml")).unwrap();
        let dependencies = manifest.split("[dependencies]").nth(1).unwrap_or_default();
        let dependencies = dependencies.split("\n[").next().unwrap();
        let used = |line: &str| Some(line.strip_prefix("met-")?.split(['.', ' ']).next()?.to_owned());
        let used: BTreeSet<String> = dependencies.lines().filter_map(used).collect();
        let said: BTreeSet<String> =
            said.split(", ").filter(|name| *name != "–").map(str::to_owned).collect();
        assert_eq!(said, used, "{folder} in ARCHITECTURE.md");
        compared += 1;
    }
    assert!(compared >= 10, "only {compared} crates compared");
}
