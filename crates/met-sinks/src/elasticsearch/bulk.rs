//! Bodies of `_bulk` requests, and what a server says of them. Pure: any bytes may come as a reply.

use std::borrow::Cow;
use std::ops::Range;

use serde::Deserialize;

use crate::link::{LINE_CHARS_MAX, one_line};

pub const PATH: &str = "/_bulk?filter_path=errors,items.*.status,items.*.error.type,items.*.error.reason";
pub const CONTENT_TYPE: &str = "application/x-ndjson";
const REASON_CHARS_MAX: usize = LINE_CHARS_MAX;
/// What a server gives to documents that it cannot take now, but can later.
const TOO_MANY_REQUESTS: u16 = 429;
const UNAVAILABLE: u16 = 503;

/// Documents, each after a line that says where it belongs.
#[derive(Debug, Default)]
pub struct Body {
    pub bytes: Vec<u8>,
    pub documents: u64,
}

impl Body {
    /// Adds a document. One with this id that is there already stays as it is: so nothing is sent twice.
    pub fn push(&mut self, index: &str, id: &str, document: &[u8]) {
        self.bytes.extend_from_slice(b"{\"create\":{\"_index\":");
        write_text(&mut self.bytes, index);
        self.bytes.extend_from_slice(b",\"_id\":");
        write_text(&mut self.bytes, id);
        self.bytes.extend_from_slice(b"}}\n");
        self.bytes.extend_from_slice(document);
        self.bytes.push(b'\n');
        self.documents += 1;
    }
}

fn write_text(out: &mut Vec<u8>, text: &str) {
    // Text can always be written to memory.
    let _ = serde_json::to_writer(out, text);
}

#[derive(Deserialize)]
struct Action<'a> {
    #[serde(borrow)]
    create: Target<'a>,
}

#[derive(Deserialize)]
struct Target<'a> {
    #[serde(borrow)]
    _index: Cow<'a, str>,
}

/// A document of a body: both of its lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    pub lines: Range<usize>,
    pub index: String,
}

/// The documents of a body. What is damaged is left out.
pub fn documents(body: &[u8]) -> Vec<Document> {
    let (mut found, mut begin) = (Vec::new(), 0);
    let line_end = |from: usize| body[from..].iter().position(|&byte| byte == b'\n').map(|at| from + at + 1);
    while let Some((middle, end)) = line_end(begin).and_then(|middle| Some((middle, line_end(middle)?))) {
        if let Ok(action) = serde_json::from_slice::<Action<'_>>(&body[begin..middle]) {
            found.push(Document { lines: begin..end, index: action.create._index.into_owned() });
        }
        begin = end;
    }
    found
}

/// What becomes of one document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The server has it.
    Taken,
    /// It will never be taken.
    Refused(String),
    Later {
        why: String,
        /// Only this document is the cause: after some attempts it is refused.
        is_own_fault: bool,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// One for each document.
    Each(Vec<Fate>),
    /// Fewer at once may be taken; one that is refused alone is the cause.
    Divide(String),
    Later(String),
}

#[derive(Deserialize)]
struct Reply<'a> {
    errors: bool,
    #[serde(borrow, default)]
    items: Vec<Item<'a>>,
}

#[derive(Deserialize)]
struct Item<'a> {
    #[serde(borrow)]
    create: Outcome<'a>,
}

#[derive(Deserialize)]
struct Outcome<'a> {
    status: u16,
    #[serde(borrow)]
    error: Option<Failure<'a>>,
}

/// Other fields are not kept: a long reply takes little memory.
#[derive(Default, Deserialize)]
struct Failure<'a> {
    #[serde(borrow, rename = "type")]
    kind: Option<Cow<'a, str>>,
    #[serde(borrow)]
    reason: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct Refusal<'a> {
    #[serde(borrow)]
    error: Failure<'a>,
}

/// What a reply to a request with this many documents means.
pub fn judge(status: u16, body: &[u8], count: usize) -> Verdict {
    match status {
        200..=299 => match serde_json::from_slice::<Reply<'_>>(body) {
            Ok(reply) if !reply.errors => Verdict::Each(vec![Fate::Taken; count]),
            Ok(reply) if reply.items.len() == count => {
                Verdict::Each(reply.items.into_iter().map(|item| fate(item.create)).collect())
            }
            _ => Verdict::Later(format!("not a reply of Elasticsearch to _bulk: {}", reason(body))),
        },
        413 => Verdict::Divide(format!("413 {}", reason(body))),
        // A proxy, too, finds a request bad. Only the server has read the documents.
        400 if kind(body).is_some() => Verdict::Divide(format!("400 {}", reason(body))),
        _ => Verdict::Later(format!("{status} {}", reason(body))),
    }
}

fn fate(Outcome { status, error }: Outcome<'_>) -> Fate {
    let why = || format!("{status} {}", error.as_ref().map(words).unwrap_or_default());
    match status {
        // With its id it is there already: the answer to an earlier attempt was lost.
        200..=299 | 409 => Fate::Taken,
        // An index that is gone is made again; access may be granted, blocks may be lifted.
        401 | 403 | 404 | TOO_MANY_REQUESTS | UNAVAILABLE => Fate::Later { why: why(), is_own_fault: false },
        500..=599 => Fate::Later { why: why(), is_own_fault: true },
        _ => Fate::Refused(why()),
    }
}

/// The kind of an error that the server itself reports.
pub fn kind(body: &[u8]) -> Option<String> {
    let refusal = serde_json::from_slice::<Refusal<'_>>(body).ok()?;
    refusal.error.kind.map(Cow::into_owned)
}

/// What a server gives as a reason, within bounds and in printable letters.
pub fn reason(body: &[u8]) -> String {
    match serde_json::from_slice::<Refusal<'_>>(body) {
        Ok(refusal) => words(&refusal.error),
        Err(_) => one_line(body),
    }
}

fn words(failure: &Failure<'_>) -> String {
    let parts = [failure.kind.as_deref(), failure.reason.as_deref()];
    printable(&parts.into_iter().flatten().collect::<Vec<_>>().join(": "))
}

fn printable(text: &str) -> String {
    let letters = text.chars().map(|letter| if letter.is_control() { ' ' } else { letter });
    letters.take(REASON_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(items: &str) -> Vec<u8> {
        format!(r#"{{"errors":true,"items":[{items}]}}"#).into_bytes()
    }

    #[test]
    fn each_document_has_the_fate_that_its_item_says() {
        let body = of(concat!(
            r#"{"create":{"status":201}},{"create":{"status":409,"error":{"type":"version_conflict_engine_exception"}}},"#,
            r#"{"create":{"status":400,"error":{"type":"mapper_parsing_exception","reason":"failed\nhere"}}},"#,
            r#"{"create":{"status":429,"error":{"type":"es_rejected_execution_exception","reason":"busy"}}},"#,
            r#"{"create":{"status":500}}"#,
        ));
        let later = |why: &str, is_own_fault| Fate::Later { why: why.to_owned(), is_own_fault };
        let fates = vec![
            Fate::Taken,
            Fate::Taken,
            Fate::Refused("400 mapper_parsing_exception: failed here".to_owned()),
            later("429 es_rejected_execution_exception: busy", false),
            later("500 ", true),
        ];
        assert_eq!(judge(200, &body, 5), Verdict::Each(fates));
        assert!(matches!(judge(200, &body, 4), Verdict::Later(_)), "items that are not those of the request");
        assert_eq!(judge(200, br#"{"errors":false,"took":1}"#, 2), Verdict::Each(vec![Fate::Taken; 2]));
    }

    #[test]
    fn what_is_not_said_of_the_documents_is_tried_again() {
        let security =
            br#"{"error":{"type":"security_exception","reason":"missing credentials"},"status":401}"#;
        assert_eq!(
            judge(401, security, 1),
            Verdict::Later("401 security_exception: missing credentials".to_owned())
        );
        for (status, body) in [
            (200, &b"<html>login</html>"[..]),
            (200, b"{}"),
            (200, br#"{"errors":"no"}"#),
            (302, b""),
            (400, b"<html>The plain HTTP request was sent to HTTPS port</html>"),
            (400, br#"{"error":"bad"}"#),
            (404, b""),
            (502, b"bad gateway"),
        ] {
            assert!(matches!(judge(status, body, 1), Verdict::Later(_)), "{status}");
        }
        let malformed =
            br#"{"error":{"type":"illegal_argument_exception","reason":"Malformed action"},"status":400}"#;
        assert!(matches!(judge(400, malformed, 1), Verdict::Divide(_)));
        assert!(matches!(judge(413, b"<html>too large</html>", 1), Verdict::Divide(_)));
    }

    #[test]
    fn a_body_is_read_as_it_was_written_and_a_damaged_one_as_far_as_it_goes() {
        let mut body = Body::default();
        body.push("colmet_a", "n1-\"7\"-1", b"{\"a\":1}");
        body.push("colmet_b", "n1-7-2", b"{\"b\":2}");
        let found = documents(&body.bytes);
        assert_eq!(found.iter().map(|one| one.index.as_str()).collect::<Vec<_>>(), ["colmet_a", "colmet_b"]);
        assert_eq!(found[1].lines, found[0].lines.end..body.bytes.len());
        assert_eq!(documents(&body.bytes[..body.bytes.len() - 1]), found[..1]);
        assert_eq!(documents(b"\n\n\n{}\n{}\n"), []);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_reply(status in 0_u16..1000, body in proptest::collection::vec(any::<u8>(), 0..200), count in 0_usize..5) {
            if let Verdict::Each(fates) = judge(status, &body, count) {
                prop_assert_eq!(fates.len(), count);
            }
            documents(&body);
        }

        #[test]
        fn any_json_is_a_reply(
            status in prop_oneof![Just(200_u16), Just(400), any::<u16>()],
            items in proptest::collection::vec(
                (any::<u16>(), prop_oneof![Just("create"), Just("index")], "[ -~]{0,8}", any::<bool>()), 0..5),
            errors in prop_oneof![Just("true"), Just("false"), Just("null"), Just("1e999")],
            cut in 0_usize..400,
            count in 0_usize..5,
        ) {
            let item = |(status, name, text, has): &(u16, &str, String, bool)| {
                let text = serde_json::to_string(text).unwrap();
                let error = if *has { format!(r#","error":{{"type":{text},"reason":{text},"caused_by":[1]}}"#) } else { String::new() };
                format!(r#"{{"{name}":{{"status":{status}{error}}}}}"#)
            };
            let items = items.iter().map(item).collect::<Vec<_>>().join(",");
            let body = format!(r#"{{"took":3,"errors":{errors},"items":[{items}]}}"#);
            let body = &body.as_bytes()[..body.len().min(cut)];
            if let Verdict::Each(fates) = judge(status, body, count) {
                prop_assert_eq!(fates.len(), count);
            }
            prop_assert!(reason(body).chars().count() <= REASON_CHARS_MAX);
        }
    }
}
