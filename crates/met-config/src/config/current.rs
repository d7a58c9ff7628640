//! Every key with the value that a file gives it, or its default.

use super::keys;
use super::tree::{self, Entry, Node};

/// The value of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Current {
    /// Section and key, as in `sampling.interval`.
    pub name: String,
    /// As written; empty if there is none.
    pub value: String,
    /// The line of the file; `None` for a default.
    pub line: Option<u64>,
}

/// All keys in the order of the reference, then what the file says of sources, sinks and systems.
pub fn current(yaml: &str) -> Vec<Current> {
    let root = tree::parse(yaml).unwrap_or(Node::Null);
    let mut all = Vec::new();
    for section in keys::SECTIONS {
        for key in section.keys {
            let name = format!("{}.{}", section.name, key.name);
            all.push(match entry(&root, section.name).and_then(|found| entry(&found.value, key.name)) {
                Some(Entry { line, value, .. }) => Current { name, value: text(value), line: Some(*line) },
                None => Current { name, value: key.usual().to_owned(), line: None },
            });
        }
    }
    for name in [keys::SOURCES, keys::SINKS, keys::SYSTEMS] {
        if let Some(Entry { value, line, .. }) = entry(&root, name) {
            add_leaves(name, value, *line, &mut all);
        }
    }
    all
}

fn entry<'n>(node: &'n Node, key: &str) -> Option<&'n Entry> {
    let Node::Map(entries) = node else { return None };
    entries.iter().find(|entry| entry.key == key)
}

fn add_leaves(name: &str, node: &Node, line: u64, all: &mut Vec<Current>) {
    match node {
        Node::Map(entries) => {
            entries.iter().for_each(|entry| {
                add_leaves(&format!("{name}.{}", entry.key), &entry.value, entry.line, all);
            });
        }
        node => all.push(Current { name: name.to_owned(), value: text(node), line: Some(line) }),
    }
}

/// In one line, as YAML would have it.
fn text(node: &Node) -> String {
    let listed = |parts: Vec<String>| parts.join(", ");
    match node {
        Node::Null => String::new(),
        Node::Scalar(text) => without_password(text),
        Node::List(nodes) => {
            format!("[{}]", listed(nodes.iter().map(|(node, _)| self::text(node)).collect()))
        }
        Node::Map(entries) => {
            let pair = |entry: &Entry| format!("{}: {}", entry.key, self::text(&entry.value));
            format!("{{{}}}", listed(entries.iter().map(pair).collect()))
        }
    }
}

/// An address may hold one.
fn without_password(text: &str) -> String {
    let hidden = || {
        let (scheme, rest) = text.split_once("://")?;
        let (who, place) = rest.split_once('@')?;
        let (user, _) = who.split_once(':')?;
        Some(format!("{scheme}://{user}:***@{place}"))
    };
    hidden().unwrap_or_else(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_a_value_and_says_where_it_is_from() {
        let yaml = "sampling:\n  interval: 5s\nperf:\n  events: [cycles, instructions]\nstore:\n  \
                    catalogue: postgresql://met:secret@db/met\nsources:\n  ipmi: off\n";
        let all = current(yaml);
        let of = |name: &str| {
            let found = all.iter().find(|current| current.name == name).unwrap();
            (found.value.as_str(), found.line)
        };
        assert_eq!(of("sampling.interval"), ("5s", Some(2)));
        assert_eq!(of("perf.events"), ("[cycles, instructions]", Some(4)));
        assert_eq!(of("store.catalogue"), ("postgresql://met:***@db/met", Some(6)));
        assert_eq!(of("sources.ipmi").1, Some(8));
        assert_eq!(of("storage.keep").1, None);
        // Such as depend on something else.
        assert_eq!(of("node.interval"), ("10s while jobs run, 60s without", None));
        let of_queries = "60s on a server; 10m on a daemon that sends to no server";
        assert_eq!(of("schedulers.interval"), (of_queries, None));
        assert_eq!(of("forward.ca_file"), ("system CAs", None));
        assert_eq!(of("daemon.operators"), ("", None), "it has none");
        assert_eq!(of("sampling.ladder"), ("1s, 10s after 5m, 30s after 1h, 60s after 1d", None));
        let keys: usize = keys::SECTIONS.iter().map(|section| section.keys.len()).sum();
        assert_eq!(current("").len(), keys);
    }
}
