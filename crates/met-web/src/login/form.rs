//! Fields of forms and query strings, `application/x-www-form-urlencoded`.

use axum::http::{HeaderMap, header};

const FIELDS_MAX: usize = 64;

/// Whether the headers say that the body is one of these.
pub fn is_form(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let kind = kind.and_then(|kind| kind.split(';').next()).map(str::trim);
    kind.is_some_and(|kind| kind.eq_ignore_ascii_case("application/x-www-form-urlencoded"))
}

/// Pairs in their order. What is not UTF-8 afterwards is left out.
pub fn parse(text: &[u8]) -> Vec<(String, String)> {
    let pairs = text.split(|&byte| byte == b'&').filter(|pair| !pair.is_empty()).take(FIELDS_MAX);
    let pair = |pair: &[u8]| {
        let equals = pair.iter().position(|&byte| byte == b'=');
        let (name, value) = equals.map_or((pair, &[][..]), |at| (&pair[..at], &pair[at + 1..]));
        Some((unescape(name)?, unescape(value)?))
    };
    pairs.filter_map(pair).collect()
}

/// The field of this name, unless it is given twice.
pub fn field<'f>(fields: &'f [(String, String)], name: &str) -> Option<&'f str> {
    let mut given = fields.iter().filter(|(known, _)| known == name).map(|(_, value)| value.as_str());
    given.next().filter(|_| given.next().is_none())
}

fn unescape(text: &[u8]) -> Option<String> {
    let digit = |byte: Option<&u8>| byte.and_then(|&byte| char::from(byte).to_digit(16));
    let (mut bytes, mut at) = (Vec::with_capacity(text.len()), 0);
    while at < text.len() {
        match (text[at], digit(text.get(at + 1)), digit(text.get(at + 2))) {
            (b'+', _, _) => bytes.push(b' '),
            (b'%', Some(high), Some(low)) => {
                bytes.push((high * 16 + low) as u8);
                at += 2;
            }
            (byte, _, _) => bytes.push(byte),
        }
        at += 1;
    }
    String::from_utf8(bytes).ok()
}

pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => escaped.push(byte.into()),
            _ => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

pub fn encode(fields: &[(&str, &str)]) -> String {
    let pairs: Vec<String> =
        fields.iter().map(|(name, value)| format!("{}={}", escape(name), escape(value))).collect();
    pairs.join("&")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn fields_are_read_as_browsers_write_them() {
        let fields = parse(b"user=ada+l&password=a%26b%3D%C3%A4&empty=&flag&x=%zz&x=2&%FF=1");
        assert_eq!(field(&fields, "user"), Some("ada l"));
        assert_eq!(field(&fields, "password"), Some("a&b=\u{e4}"));
        assert_eq!((field(&fields, "empty"), field(&fields, "flag")), (Some(""), Some("")));
        assert_eq!((field(&fields, "x"), field(&fields, "none")), (None, None));
        assert_eq!(fields.len(), 6);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(name in "\\PC{1,20}", value in "\\PC{0,40}") {
            let fields = parse(encode(&[(&name, &value)]).as_bytes());
            prop_assert_eq!(field(&fields, &name), Some(value.as_str()));
        }

        #[test]
        fn any_bytes_are_read_within_bounds(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            prop_assert!(parse(&bytes).len() <= FIELDS_MAX);
        }
    }
}
