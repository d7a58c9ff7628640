//! YAML as a tree in which every key and value knows its line.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;
use serde_saphyr::options::DuplicateKeyPolicy;

#[derive(Debug)]
pub enum Node {
    /// As written, in the order written, including duplicate keys.
    Map(Vec<Entry>),
    /// With the line of each.
    List(Vec<(Node, u64)>),
    Scalar(String),
    Null,
}

#[derive(Debug)]
pub struct Entry {
    pub key: String,
    pub line: u64,
    pub value: Node,
    pub value_line: u64,
}

impl Node {
    /// The line of a key of this map.
    pub fn line_of(&self, key: &str) -> Option<u64> {
        let Node::Map(entries) = self else { return None };
        entries.iter().find(|entry| entry.key == key).map(|entry| entry.line)
    }
}

/// What is wrong with a file, and in which line of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Complaint {
    pub line: u64,
    pub message: String,
}

pub fn parse(yaml: &str) -> Result<Node, Complaint> {
    // Duplicates are passed on, because the complaint about one should name both lines.
    let options = serde_saphyr::options! {
        duplicate_keys: DuplicateKeyPolicy::LastWins,
        with_snippet: false,
    };
    match serde_saphyr::from_str_with_options::<Option<Node>>(yaml, options) {
        Ok(node) => Ok(node.unwrap_or(Node::Null)),
        Err(error) => {
            let error = error.without_snippet();
            let line = error.location().map_or(1, |location| location.line().max(1));
            if let Some(line) = tab_after(yaml, line).filter(|_| is_about_tabs(error)) {
                let message = "not YAML: the line is indented with a tab; YAML needs spaces".to_owned();
                return Err(Complaint { line, message });
            }
            let message = match error {
                serde_saphyr::Error::MultipleDocuments { .. } => "a second document; keep one".to_owned(),
                error => format!("not YAML: {}", without_place(&error.to_string())),
            };
            Err(Complaint { line, message })
        }
    }
}

/// The parser has no kind for it, and says it in these ways.
fn is_about_tabs(error: &serde_saphyr::Error) -> bool {
    let message = error.to_string();
    ["tabs disallowed", "tab cannot be used", "cannot start with a tab", "found a tab"]
        .iter()
        .any(|words| message.contains(words))
}

/// The first line from this one on that has a tab in its indentation: the parser may name the line before it.
fn tab_after(yaml: &str, line: u64) -> Option<u64> {
    let has_tab = |text: &str| text[..text.len() - text.trim_start().len()].contains('\t');
    (1..).zip(yaml.lines()).find(|&(at, text)| at >= line && has_tab(text)).map(|(at, _)| at)
}

/// The parser's message without its own position: the line is already in front.
fn without_place(message: &str) -> &str {
    let line = message.lines().next().unwrap_or(message);
    let place = line.rfind(" at line ").or_else(|| line.rfind(" (line "));
    place.map_or(line, |end| &line[..end]).trim_end_matches([',', ':'])
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Node, D::Error> {
        from.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, to: &mut fmt::Formatter) -> fmt::Result {
        to.write_str("a mapping or a value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut entries = Vec::new();
        while let Some(key) = map.next_key::<Spanned<String>>()? {
            let value = map.next_value::<Spanned<Node>>()?;
            entries.push(Entry {
                line: key.referenced.line(),
                key: key.value,
                value_line: value.referenced.line(),
                value: value.value,
            });
        }
        Ok(Node::Map(entries))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Node, A::Error> {
        let mut nodes = Vec::new();
        while let Some(node) = list.next_element::<Spanned<Node>>()? {
            let line = node.referenced.line();
            nodes.push((node.value, line));
        }
        Ok(Node::List(nodes))
    }

    fn visit_str<E>(self, text: &str) -> Result<Node, E> {
        Ok(Node::Scalar(text.to_owned()))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Scalar(value.to_string()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Scalar(value.to_string()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
        Ok(Node::Scalar(value.to_string()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
        Ok(Node::Scalar(value.to_string()))
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_none<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<Node, D::Error> {
        Node::deserialize(from)
    }
}

/// A file with one key twice means one thing to its author and another to us.
pub fn refuse_duplicates(entries: &[Entry], prefix: &str) -> Result<(), Complaint> {
    for (index, entry) in entries.iter().enumerate() {
        if let Some(first) = entries[..index].iter().find(|first| first.key == entry.key) {
            let message =
                format!("duplicate key {:?}, first at line {}", format!("{prefix}{}", entry.key), first.line);
            return Err(Complaint { line: entry.line, message });
        }
    }
    Ok(())
}

pub fn unknown(entry: &Entry, prefix: &str, known: &[&str]) -> Complaint {
    let name = format!("{prefix}{}", entry.key);
    let nearest = known
        .iter()
        .map(|known| (strsim::damerau_levenshtein(&entry.key.to_lowercase(), &known.to_lowercase()), known))
        .min_by_key(|(distance, _)| *distance)
        // Half the letters wrong is another word.
        .filter(|(distance, known)| *distance <= known.len() / 2);
    let advice = match nearest {
        Some((_, nearest)) => format!("did you mean \"{prefix}{nearest}\"?"),
        None => format!("the keys here are {}", known.join(", ")),
    };
    Complaint { line: entry.line, message: format!("unknown key {name:?}; {advice}") }
}
