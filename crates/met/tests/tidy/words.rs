//! The English of messages, help, comments and documentation.

use std::fs;
use std::path::Path;

use super::{files_below, root, sources};

/// Words that puzzle a reader who does not know the code, and what to write instead. Whole words, in any case unless
/// they are written with a capital here.
const ODD_WORDS: &[(&str, &str)] = &[
    ("Kept.", "Saved."),
    ("Taken back.", "Removed."),
    ("a folder of yours", "a folder you own"),
    ("all on the way", "in transit"),
    ("anew", "again"),
    ("any more", "no longer"),
    ("are asked", "are queried"),
    ("asked for", "requested, configured"),
    ("at ease", "idle"),
    ("behind --", "after --"),
    ("breaks off", "is cut off, ends"),
    ("by heat", "temperature"),
    ("cannot keep", "cannot store"),
    ("card", "GPU"),
    ("cards", "GPUs"),
    ("course", "series, charts"),
    ("dear", "expensive"),
    ("doing nothing", "idle"),
    ("door", "access"),
    ("does nothing", "is idle"),
    ("empty text", "empty string"),
    ("everybody", "all users"),
    ("for all to see", "unencrypted"),
    ("from 1 on", "≥ 1"),
    ("goes on", "continues"),
    ("going on without", "continuing without"),
    ("good grace", "grace period"),
    ("heard", "received"),
    ("heed", "apply"),
    ("heeded", "applied"),
    ("held down", "throttled"),
    ("his own", "their own"),
    ("holds for", "applies to"),
    ("holds no", "has no"),
    ("is asked", "is queried"),
    ("is kept by", "is stuck in"),
    ("is over", "is finished"),
    ("jobs run on", "jobs keep running"),
    ("laid aside", "quarantined"),
    ("lie aside", "are quarantined"),
    ("lies", "is"),
    ("looked at", "read, sampled"),
    ("mend", "repair"),
    ("mends", "repairs"),
    ("no job fits", "no jobs match"),
    ("no job with a card", "no jobs used a GPU"),
    ("nobody", "no user, no process"),
    ("not understood", "cannot parse"),
    ("of old", "before"),
    ("of the world", "world average"),
    ("of this moment", "current"),
    ("other emissions", "emissions updated"),
    ("passed over", "skipped, ignored"),
    ("per cent", "percent"),
    ("process runs on", "process keeps running"),
    ("put right", "corrected"),
    ("question", "request, query"),
    ("questions", "requests, queries"),
    ("reads hangs", "a source is blocked"),
    ("ready to run", "runnable"),
    ("run already", "are already running"),
    ("runs already", "is already running"),
    ("says otherwise", "differs, overrides"),
    ("such thing", "not found"),
    ("somebody", "a user, another program"),
    ("something that it reads", "a source"),
    ("speaks", "uses"),
    ("spoken", "supported"),
    ("stands", "is"),
    ("stood", "was"),
    ("tell", "report, print"),
    ("tells", "reports, prints"),
    ("that are over", "finished"),
    ("those there are", "all"),
    ("thrown away", "dropped"),
    ("told", "reported, printed"),
    ("towards", "to"),
    ("used for nothing", "free"),
    ("vouch", "certify"),
    ("vouches", "CA certificate"),
    ("what holds", "the settings"),
    ("what waited", "the spool"),
    ("what was learned", "what it is: the idle power"),
    ("who is asking", "caller identity"),
    ("which server?", "no server given"),
    ("whoever", "the user who"),
    ("whose names", "authentication required"),
];

/// Where an odd word stays: the file, a part of the text around it, and why.
const WORDS_THAT_STAY: &[(&str, &str, &str)] = &[];

pub(crate) fn is_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

/// Where a phrase begins, as whole words.
pub(crate) fn occurrences<'a>(text: &'a str, phrase: &'a str) -> impl Iterator<Item = usize> + 'a {
    text.match_indices(phrase).map(|(at, _)| at).filter(move |at| {
        let begins_inside = text[..*at].chars().next_back().is_some_and(is_word);
        let ends_inside = phrase.ends_with(is_word) && text[at + phrase.len()..].starts_with(is_word);
        !begins_inside && !ends_inside
    })
}

/// A text without the names of variables in a format, of code in backticks, and of targets of links.
fn without_names(text: &str) -> String {
    let mut rest = text;
    let mut kept = String::new();
    let closings = [("{", '}'), ("`", '`'), ("](", ')')];
    let first = |rest: &str| {
        closings.iter().filter_map(|(open, close)| Some((rest.find(open)? + open.len(), *close))).min()
    };
    while let Some((at, close)) = first(rest) {
        let end = rest[at..].find(close).filter(|&end| !rest[at..at + end].contains(' '));
        kept.push_str(&rest[..at]);
        rest = &rest[at + end.map_or(0, |end| end + close.len_utf8())..];
    }
    kept + rest
}

/// The odd phrases of a text, each with what to write instead.
fn odd_words(text: &str) -> Vec<(&'static str, &'static str)> {
    let text = without_names(text).split_whitespace().collect::<Vec<_>>().join(" ");
    let lower = text.to_lowercase();
    let is_odd = |phrase: &str| match phrase {
        "course" => occurrences(&lower, phrase).any(|at| !lower[..at].ends_with("of ")),
        _ if phrase.contains(char::is_uppercase) => occurrences(&text, phrase).next().is_some(),
        _ => occurrences(&lower, phrase).next().is_some(),
    };
    let mut found: Vec<_> = ODD_WORDS.iter().filter(|(phrase, _)| is_odd(phrase)).copied().collect();
    let is_no = |at: usize| {
        let (before, after) = (&lower[..at], &lower[at + "is no ".len()..]);
        !before.ends_with("there ") && !after.starts_with("longer") && !after.starts_with("more")
    };
    if occurrences(&lower, "is no ").any(is_no) {
        found.push(("is no", "is not a"));
    }
    found
}

/// What a program of this file may print: its string literals without those of its tests, each with its line.
pub(crate) fn literals(text: &str) -> Vec<(usize, String)> {
    let is_inline = |at: &usize| text[*at..].lines().nth(1).is_some_and(|line| line.ends_with('{'));
    let tests = text.match_indices("#[cfg(test)]\nmod ").map(|(at, _)| at).find(is_inline);
    let text = &text[..tests.unwrap_or(text.len())];
    let letters: Vec<char> = text.chars().collect();
    let (mut found, mut line, mut at) = (Vec::new(), 1, 0);
    while at < letters.len() {
        let rest = &letters[at..];
        let length = match rest {
            ['/', '/', ..] => rest.iter().position(|&letter| letter == '\n').unwrap_or(rest.len()),
            ['\'', '\\', _, '\'', ..] => 4,
            ['\'', _, '\'', ..] => 3,
            ['r', '#' | '"', ..] if at == 0 || !is_word(letters[at - 1]) => {
                raw_literal(rest, line, &mut found)
            }
            ['"', ..] => literal(rest, line, &mut found),
            _ => 1,
        };
        line += rest[..length].iter().filter(|&&letter| letter == '\n').count();
        at += length;
    }
    found
}

fn literal(rest: &[char], line: usize, found: &mut Vec<(usize, String)>) -> usize {
    let mut at = 1;
    let mut text = String::new();
    while rest[at] != '"' {
        if rest[at] == '\\' {
            at += 1;
            text.push(' ');
        } else {
            text.push(rest[at]);
        }
        at += 1;
    }
    found.push((line, text));
    at + 1
}

fn raw_literal(rest: &[char], line: usize, found: &mut Vec<(usize, String)>) -> usize {
    let hashes = rest[1..].iter().take_while(|&&letter| letter == '#').count();
    if rest.get(1 + hashes) != Some(&'"') {
        return 1;
    }
    let text: String = rest[2 + hashes..].iter().collect();
    let end = format!("\"{}", "#".repeat(hashes));
    let text = &text[..text.find(&end).unwrap()];
    found.push((line, text.to_owned()));
    2 + hashes + text.chars().count() + end.len()
}

/// All that users read: literals of production code that are sentences and no SQL, the help of the command line,
/// descriptions of crates, and the pages for users.
fn user_visible() -> Vec<(String, usize, String)> {
    let mut found = Vec::new();
    let place = |path: &Path| path.strip_prefix(root()).unwrap().display().to_string();
    for (path, text) in sources() {
        let name = place(&path);
        let is_test = ["/tests/", "/tests.rs", "_tests.rs", "/fuzz.rs", "benches/"];
        if is_test.iter().any(|part| name.contains(part)) {
            continue;
        }
        let is_sql = |text: &str| {
            ["SELECT", "INSERT", "UPDATE", "DELETE", "CREATE", "WHERE"].iter().any(|word| text.contains(word))
        };
        let said = literals(&text).into_iter().filter(|(_, text)| text.trim().contains(' ') && !is_sql(text));
        found.extend(said.map(|(line, text)| (name.clone(), line, text)));
        if name.ends_with("met/src/cli.rs") || name.contains("met/src/cli/") {
            let help = text
                .lines()
                .enumerate()
                .filter_map(|(at, line)| Some((at, line.trim().strip_prefix("///")?)));
            found.extend(help.map(|(at, help)| (name.clone(), at + 1, help.to_owned())));
        }
    }
    let mut manifests = Vec::new();
    files_below(&root().join("crates"), &mut manifests);
    files_below(&root().join("benches"), &mut manifests);
    for path in manifests.iter().filter(|path| path.ends_with("Cargo.toml")) {
        let text = fs::read_to_string(path).unwrap();
        let lines = text.lines().enumerate().filter(|(_, line)| line.starts_with("description = "));
        found.extend(lines.map(|(at, line)| (place(path), at + 1, line.to_owned())));
    }
    let mut pages = vec![root().join("README.md"), root().join("crates/met-insight/src/rules/built_in.yaml")];
    files_below(&root().join("docs"), &mut pages);
    for page in pages {
        let text = fs::read_to_string(&page).unwrap();
        found.extend(text.lines().enumerate().map(|(at, line)| (place(&page), at + 1, line.to_owned())));
    }
    found
}

#[test]
fn what_users_read_is_in_usual_words() {
    let all = user_visible();
    let described = all.iter().filter(|(file, ..)| file.ends_with("Cargo.toml")).count();
    assert!(described >= 15, "only {described} descriptions of crates found");
    assert!(all.len() > 3000, "only {} texts found: the search is broken", all.len());
    let excepted: Vec<(&str, &str)> = WORDS_THAT_STAY.iter().map(|(path, part, _)| (*path, *part)).collect();
    let mut used = vec![false; excepted.len()];
    let mut odd = Vec::new();
    for (file, line, text) in &all {
        for (word, usual) in odd_words(text) {
            match excepted.iter().position(|(path, part)| file.starts_with(path) && text.contains(part)) {
                Some(index) => used[index] = true,
                None => odd.push(format!("{file}:{line}: {word:?} (write: {usual}): {}", text.trim())),
            }
        }
    }
    assert!(odd.is_empty(), "{} odd words:\n{}", odd.len(), odd.join("\n"));
    let unused: Vec<_> = excepted.iter().zip(used).filter(|(_, used)| !used).collect();
    assert!(unused.is_empty(), "exceptions that except nothing: {unused:?}");
}

/// Words that are odd in comments, too: they hide which user, process or program is meant.
const ODD_IN_COMMENTS: &[&str] =
    &["anybody", "everybody", "nobody", "somebody", "tell", "tells", "told", "whoever"];

/// The comments of a file, those behind code included, each with its line. A `//` in a literal looks like one.
fn comments(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let begin =
        |line: &str| line.match_indices("//").map(|(at, _)| at).find(|&at| !line[..at].ends_with(':'));
    text.lines().enumerate().filter_map(move |(at, line)| Some((at + 1, &line[begin(line)?..])))
}

#[test]
fn comments_name_the_user_or_program_that_is_meant() {
    let (mut seen, mut odd) = (0, Vec::new());
    for (path, text) in sources() {
        let name = path.strip_prefix(root()).unwrap().display().to_string();
        // This test has an example.
        for (line, comment) in comments(&text).filter(|_| !name.ends_with("tests/tidy/words.rs")) {
            seen += 1;
            let lower = without_names(comment).to_lowercase();
            let word = ODD_IN_COMMENTS.iter().find(|word| occurrences(&lower, word).next().is_some());
            odd.extend(word.map(|word| format!("{name}:{line}: {word:?}: {comment}")));
        }
    }
    assert!(seen > 5_000, "only {seen} comments found: the search is broken");
    assert!(odd.is_empty(), "{} odd comments:\n{}", odd.len(), odd.join("\n"));
}

#[test]
fn odd_words_are_found_as_whole_words_and_in_literals_only() {
    let found = |text: &str| odd_words(text).into_iter().map(|(word, _)| word).collect::<Vec<_>>();
    assert_eq!(found("It is TOLD to  nobody"), ["nobody", "told"]);
    assert_eq!(found("a card\nis no GPU"), ["card", "is no"]);
    assert_eq!(
        found("there is no job; it is no longer kept. of course, a discarded card_name {cards} `told.rs`"),
        [""; 0]
    );
    assert_eq!(found("Kept. `met list` tells more"), ["Kept.", "tells"]);
    let code = "// told\nlet told = \"one \\\n   two\"; let x = ('\"', r#\"a \"b\" c\"#);\n#[cfg(test)]\nmod tests {\n \"d\" }";
    let texts: Vec<_> = literals(code)
        .into_iter()
        .map(|(line, text)| (line, text.split_whitespace().collect::<Vec<_>>().join(" ")))
        .collect();
    assert_eq!(texts, [(2, "one two".to_owned()), (3, "a \"b\" c".to_owned())]);
}

/// The longest paragraph or item of a list, and the longest list, in words.
const PARAGRAPH_MAX: usize = 120;
const LIST_MAX: usize = 200;

/// The paragraphs, items and lists of a page that are too long, each with its line and its words. Tables and examples
/// are none.
fn too_long(page: &str) -> Vec<(usize, usize)> {
    let (mut found, mut is_example) = (Vec::new(), false);
    let (mut paragraph, mut list) = ((1, 0), (1, 0));
    for (at, line) in page.lines().chain([""]).enumerate() {
        let (begin, words) = (line.trim_start(), line.split_whitespace().count());
        let is_item = begin.starts_with("- ");
        let is_text =
            !(is_example || line.is_empty() || line.starts_with(['#', '|']) || line.starts_with("```"));
        if !is_text || is_item {
            found.extend(Some(paragraph).filter(|&(_, words)| words > PARAGRAPH_MAX));
            paragraph = (if is_item { at + 1 } else { at + 2 }, 0);
        }
        if !is_text {
            found.extend(Some(list).filter(|&(_, words)| words > LIST_MAX));
            list = (at + 2, 0);
        } else {
            paragraph.1 += words;
            list.1 += if is_item || list.1 > 0 { words } else { 0 };
        }
        is_example ^= line.starts_with("```");
    }
    found
}

#[test]
fn paragraphs_of_the_guides_are_short() {
    for page in ["README.md", "docs/user.md", "docs/operator.md"] {
        let long = too_long(&fs::read_to_string(root().join(page)).unwrap());
        assert!(
            long.is_empty(),
            "{page}: too long; write a table, an example or a list: {long:?} (line, words)"
        );
    }
}

#[test]
fn long_paragraphs_items_and_lists_are_found() {
    let words = |count: usize| vec!["word"; count].join(" ");
    let item = |count: usize| format!("- {}\n", words(count - 1));
    assert_eq!(too_long(&format!("# A\n\n{}\n{}\n\nB\n", words(100), words(21))), [(3, 121)]);
    assert_eq!(too_long(&format!("{}\n{}{}", words(100), item(100), item(100))), []);
    assert_eq!(too_long(&format!("A:\n\n{}{}", item(100), item(101))), [(3, 201)]);
    assert_eq!(too_long(&format!("`a` {}\n", words(120))), [(1, 121)]);
    assert_eq!(too_long(&format!("```\n{0}\n```\n\n| {0} |\n", words(300))), []);
}
