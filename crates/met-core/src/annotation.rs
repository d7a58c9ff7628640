//! What people say of a job: tags and a note. No other statement of a job replaces them; of two, the one that was
//! written later counts.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::text;

pub const TAGS_MAX: usize = 16;
pub const TAG_BYTES_MAX: usize = 32;
pub const NOTE_BYTES_MAX: usize = 4 << 10;

/// Tags and note of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Annotation {
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub tags: BTreeSet<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// When it was last written, in unix nanoseconds; `None` if it never was. An emptied one is a statement, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written_ns: Option<i64>,
}

impl Annotation {
    pub fn is_empty(&self) -> bool {
        *self == Annotation::default()
    }

    /// The one that was written later.
    pub fn later<'a>(known: &'a Annotation, said: &'a Annotation) -> &'a Annotation {
        // The rest decides between two of one instant, so that their order does not matter.
        let rank = |one: &'a Annotation| (one.written_ns, &one.tags, &one.note);
        if rank(said) >= rank(known) { said } else { known }
    }

    /// Removes what no [`AnnotationChange`] could have written: a record may come from elsewhere.
    pub fn bound(&mut self) {
        self.tags.retain(|tag| check_tag(tag).is_ok());
        while self.tags.len() > TAGS_MAX {
            self.tags.pop_last();
        }
        self.note = self.note.take().filter(|note| check_note(note).is_ok() && !note.is_empty());
    }
}

/// What is to be changed of an annotation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AnnotationChange {
    pub add: Vec<String>,
    pub remove: Vec<String>,
    /// Another note; an empty one removes it. `None` leaves it.
    pub note: Option<String>,
}

impl AnnotationChange {
    /// The annotation after the change, or what is wrong with the change.
    pub fn apply(&self, before: &Annotation, now_ns: i64) -> Result<Annotation, String> {
        let mut after = before.clone();
        self.add.iter().chain(&self.remove).try_for_each(|tag| check_tag(tag))?;
        if let Some(both) = self.add.iter().find(|tag| self.remove.contains(tag)) {
            return Err(format!("{both:?} is both added and removed"));
        }
        for tag in &self.remove {
            after.tags.remove(tag);
        }
        after.tags.extend(self.add.iter().cloned());
        if after.tags.len() > TAGS_MAX {
            return Err(format!("a job has at most {TAGS_MAX} tags; this would be {}", after.tags.len()));
        }
        if let Some(note) = &self.note {
            check_note(note)?;
            after.note = Some(note.clone()).filter(|note| !note.is_empty());
        }
        // Later than the last also where a clock was set back.
        after.written_ns =
            Some(before.written_ns.map_or(now_ns, |last_ns| now_ns.max(last_ns.saturating_add(1))));
        Ok(after)
    }
}

/// Whether a tag can be one: it is in addresses, file names and queries of other programs.
pub fn check_tag(tag: &str) -> Result<(), String> {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-".contains(&byte);
    let begins_plain = tag.bytes().next().is_some_and(|first| first != b'-');
    match begins_plain && tag.len() <= TAG_BYTES_MAX && tag.bytes().all(is_plain) {
        true => Ok(()),
        false => Err(format!(
            "{:?} is not a tag: 1 to {TAG_BYTES_MAX} of a-z, 0-9, dot, underscore and hyphen, no hyphen in front",
            shortened(tag)
        )),
    }
}

fn check_note(note: &str) -> Result<(), String> {
    if note.len() > NOTE_BYTES_MAX {
        return Err(format!("a note has at most {NOTE_BYTES_MAX} bytes, not {}", note.len()));
    }
    let is_refused =
        |letter: char| !matches!(letter, '\n' | '\t') && (text::is_harmful(letter) || is_invisible(letter));
    if let Some(letter) = note.chars().find(|&letter| is_refused(letter)) {
        return Err(format!("a note is printable text; it contains {letter:?}"));
    }
    match !note.is_empty() && note.trim().is_empty() {
        true => Err("a note is not blank; an empty one removes it".to_owned()),
        false => Ok(()),
    }
}

/// Letters that nothing shows: a text of them says one thing to a reader and another to a program.
fn is_invisible(letter: char) -> bool {
    matches!(letter,
        '\u{ad}'                        // soft hyphen
        | '\u{34f}' | '\u{61c}'         // grapheme joiner, Arabic letter mark
        | '\u{115f}' | '\u{1160}' | '\u{3164}' | '\u{ffa0}' // Hangul fillers
        | '\u{17b4}' | '\u{17b5}'       // Khmer inherent vowels
        | '\u{180b}'..='\u{180f}'       // Mongolian selectors and separator
        | '\u{fff0}'..='\u{fffb}'       // unassigned, annotation anchors
        | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' // format controls of shorthand and music
        | '\u{e0000}'..='\u{e0fff}') // tags, and selectors that carry any data
}

/// For a message: the text may be as long as a request.
fn shortened(text: &str) -> String {
    text.chars().take(2 * TAG_BYTES_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(add: &[&str], remove: &[&str], note: Option<&str>) -> AnnotationChange {
        let owned = |tags: &[&str]| tags.iter().map(|&tag| tag.to_owned()).collect();
        AnnotationChange { add: owned(add), remove: owned(remove), note: note.map(str::to_owned) }
    }

    #[test]
    fn tags_are_added_and_removed_and_a_note_is_replaced() {
        let first =
            change(&["run-1", "good"], &[], Some("first\ttry\n")).apply(&Annotation::default(), 5).unwrap();
        let second = change(&["best"], &["good", "never"], None).apply(&first, 6).unwrap();
        assert_eq!(second.tags.iter().map(String::as_str).collect::<Vec<_>>(), ["best", "run-1"]);
        assert_eq!((second.note.as_deref(), second.written_ns), (Some("first\ttry\n"), Some(6)));
        let third = change(&[], &["best", "run-1"], Some("")).apply(&second, 1).unwrap();
        assert_eq!(
            (third.tags.len(), &third.note, third.written_ns),
            (0, &None, Some(7)),
            "a clock set back"
        );
        assert!(!third.is_empty(), "that it was emptied is known");
        for (one, other) in [(&second, &third), (&third, &second)] {
            assert_eq!(Annotation::later(one, other), &third);
        }
    }

    #[test]
    fn what_is_too_long_or_not_printable_is_refused() {
        let none = Annotation::default();
        let refused = |change: AnnotationChange| change.apply(&none, 1).unwrap_err();
        for tag in ["", "A", "a b", "é", "-x", "a/b", "<b>", "x\u{202e}", &"x".repeat(33)] {
            assert!(refused(change(&[tag], &[], None)).contains("not a tag"), "{tag:?}");
            assert!(refused(change(&[], &[tag], None)).contains("not a tag"), "{tag:?}");
        }
        let many: Vec<String> = (0..17).map(|number| format!("t{number}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert!(refused(change(&many, &[], None)).contains("at most 16 tags; this would be 17"));
        assert!(change(&many[..16], &[], None).apply(&none, 1).is_ok());
        assert!(change(&[&"x".repeat(32)], &[], Some(&"n".repeat(4096))).apply(&none, 1).is_ok());
        assert!(refused(change(&[], &[], Some(&"n".repeat(4097)))).contains("4096 bytes, not 4097"));
        assert!(refused(change(&["a", "b"], &["b"], None)).contains("\"b\" is both added and removed"));
        for note in [" ", "\t", "\n \n", "\u{a0}"] {
            assert!(refused(change(&[], &[], Some(note))).contains("not blank"), "{note:?}");
        }
        for note in ["\x1b[2J", "a\rb", "\0", "\u{202e}gnp.exe", "\u{7f}", "a\u{ad}b", "a\u{e0041}"] {
            assert!(refused(change(&[], &[], Some(note))).contains("printable"), "{note:?}");
        }
    }

    #[test]
    fn a_blank_note_is_refused_and_any_language_is_not() {
        for blank in [" ", "\n\t ", "\u{a0}\u{3000}"] {
            let refused = change(&[], &[], Some(blank)).apply(&Annotation::default(), 1).unwrap_err();
            assert!(refused.contains("blank"), "{blank:?}");
        }
        for note in ["naïve", "実験 1", "ok \u{2764}\u{fe0f}", " indented\n"] {
            assert!(change(&[], &[], Some(note)).apply(&Annotation::default(), 1).is_ok(), "{note:?}");
        }
    }

    #[test]
    fn an_annotation_from_elsewhere_is_bounded() {
        let tags = (0..20).map(|number| format!("t{number}")).chain(["<b>".to_owned()]).collect();
        let mut foreign = Annotation { tags, note: Some("\x1b[2J".to_owned()), written_ns: Some(1) };
        foreign.bound();
        assert_eq!((foreign.tags.len(), &foreign.note), (16, &None));
        assert!(foreign.tags.iter().all(|tag| tag.starts_with('t')));
    }
}
