//! JSON as schedulers write it: raw control characters, unescaped quotes, bare words.
//!
//! A total function over bytes. Objects are handed out entry by entry, so that only one job is held at a time.

/// Deeper than any scheduler nests.
const DEPTH_MAX: usize = 32;

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Null,
    /// A string, a number or a bare word, as it was written.
    Text(String),
    List(Vec<Value>),
    Map(Vec<(String, Value)>),
}

impl Value {
    /// The last of that name: a later one replaces an earlier one.
    pub fn get(&self, key: &str) -> Option<&Value> {
        let Value::Map(entries) = self else { return None };
        entries.iter().rev().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    pub fn text(&self) -> Option<&str> {
        match self {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The text under a key, unless it is empty.
    pub fn text_at(&self, key: &str) -> Option<&str> {
        self.get(key)?.text().map(str::trim).filter(|text| !text.is_empty())
    }

    pub fn number(&self, key: &str) -> Option<i64> {
        self.text_at(key)?.parse().ok()
    }

    pub fn list(&self, key: &str) -> &[Value] {
        match self.get(key) {
            Some(Value::List(items)) => items,
            _ => &[],
        }
    }

    pub fn entries(&self) -> &[(String, Value)] {
        match self {
            Value::Map(entries) => entries,
            _ => &[],
        }
    }
}

/// A place in the text. Everything returns `None` where no sense can be made of what follows.
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    depth: usize,
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes, at: 0, depth: 0 }
    }

    /// Whether there was nothing more to be read where a reading failed.
    fn is_at_end(&self) -> bool {
        self.at + 1 >= self.bytes.len()
    }

    /// Whether an object that could not be read was cut off. What makes no sense in the middle was written so,
    /// and will be again; no text at all is no object.
    pub fn is_cut_short(&self, read: Option<()>) -> bool {
        read.is_none() && self.is_at_end() && !self.bytes.trim_ascii().is_empty()
    }

    /// Calls `each` with the name of every entry of an object; it must take the value.
    pub fn each_entry(&mut self, mut each: impl FnMut(String, &mut Reader) -> Option<()>) -> Option<()> {
        self.expect(b'{')?;
        self.depth += 1;
        while self.peek()? != b'}' {
            let name = self.scalar()?;
            self.expect(b':')?;
            each(name, self)?;
            self.skip_comma()?;
        }
        self.depth -= 1;
        self.expect(b'}')
    }

    pub fn each_item(&mut self, mut each: impl FnMut(&mut Reader) -> Option<()>) -> Option<()> {
        self.expect(b'[')?;
        self.depth += 1;
        while self.peek()? != b']' {
            each(self)?;
            self.skip_comma()?;
        }
        self.depth -= 1;
        self.expect(b']')
    }

    pub fn value(&mut self) -> Option<Value> {
        if self.depth > DEPTH_MAX {
            return None;
        }
        match self.peek()? {
            b'{' => {
                let mut entries = Vec::new();
                self.each_entry(|name, reader| {
                    entries.push((name, reader.value()?));
                    Some(())
                })?;
                Some(Value::Map(entries))
            }
            b'[' => {
                let mut items = Vec::new();
                self.each_item(|reader| {
                    items.push(reader.value()?);
                    Some(())
                })?;
                Some(Value::List(items))
            }
            b'"' => self.scalar().map(Value::Text),
            _ => Some(match self.scalar()? {
                word if word == "null" => Value::Null,
                word => Value::Text(word),
            }),
        }
    }

    fn peek(&mut self) -> Option<u8> {
        while self.bytes.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
        self.bytes.get(self.at).copied()
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        (self.peek()? == byte).then(|| self.at += 1)
    }

    fn skip_comma(&mut self) -> Option<()> {
        match self.peek()? {
            b',' => self.at += 1,
            b'}' | b']' => {}
            _ => return None,
        }
        Some(())
    }

    fn scalar(&mut self) -> Option<String> {
        match self.peek()? {
            b'"' => self.quoted(),
            _ => self.bare(),
        }
    }

    /// `007`, `-nan`, `true`: whatever was not quoted, up to what ends a value.
    fn bare(&mut self) -> Option<String> {
        let rest = &self.bytes[self.at..];
        let length = rest.iter().position(|byte| matches!(byte, b',' | b':' | b'}' | b']' | b'\n'));
        let Some(length) = length else {
            self.at = self.bytes.len();
            return None;
        };
        let word = &rest[..length];
        if word.is_empty() {
            return None;
        }
        self.at += word.len();
        Some(String::from_utf8_lossy(word.trim_ascii()).into_owned())
    }

    fn quoted(&mut self) -> Option<String> {
        self.at += 1;
        let mut text = Vec::new();
        loop {
            match *self.bytes.get(self.at)? {
                b'"' if self.ends_a_string(self.at + 1) => break,
                b'\\' => self.escape(&mut text)?,
                byte => {
                    text.push(byte);
                    self.at += 1;
                }
            }
        }
        self.at += 1;
        Some(String::from_utf8_lossy(&text).into_owned())
    }

    /// An unescaped quote is followed by more text, the closing one by what follows a value.
    fn ends_a_string(&self, mut at: usize) -> bool {
        while self.bytes.get(at).is_some_and(u8::is_ascii_whitespace) {
            at += 1;
        }
        matches!(self.bytes.get(at), None | Some(b',' | b':' | b'}' | b']'))
    }

    fn escape(&mut self, text: &mut Vec<u8>) -> Option<()> {
        let letter = *self.bytes.get(self.at + 1)?;
        self.at += 2;
        let plain = match letter {
            b'n' => b'\n',
            b't' => b'\t',
            b'r' => b'\r',
            b'b' => 8,
            b'f' => 12,
            b'u' => {
                let letter = self.unicode();
                text.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
                return Some(());
            }
            letter => letter,
        };
        text.push(plain);
        Some(())
    }

    /// The character behind `\u`, or of two in a row that mean one.
    fn unicode(&mut self) -> char {
        let Some(first) = self.hex_at(self.at) else { return char::REPLACEMENT_CHARACTER };
        self.at += 4;
        if (0xd800..0xdc00).contains(&first) && self.bytes[self.at..].starts_with(b"\\u") {
            let second = self.hex_at(self.at + 2).filter(|second| (0xdc00..0xe000).contains(second));
            if let Some(second) = second {
                self.at += 6;
                let code = 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00);
                return char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
            }
        }
        char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER)
    }

    fn hex_at(&self, at: usize) -> Option<u32> {
        let digits = self.bytes.get(at..at + 4)?;
        let text = std::str::from_utf8(digits).ok().filter(|_| digits.iter().all(u8::is_ascii_hexdigit))?;
        u32::from_str_radix(text, 16).ok()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(text: &[u8], expected: expect_test::Expect) {
        expected.assert_eq(&format!("{:?}", Reader::new(text).value()));
    }

    #[test]
    fn what_schedulers_write_is_read() {
        check(
            br#"{"a": 1, "b": [true, null, 007], "c": "x\ny\u00e9\ud83d\ude00\q"}"#,
            expect_test::expect![[
                r#"Some(Map([("a", Text("1")), ("b", List([Text("true"), Null, Text("007")])), ("c", Text("x\nyé😀q"))]))"#
            ]],
        );
        check(
            b"{\"a\":\"tab\there\x01\", \"b\":\"say \"hi\" now\", \"c\":\"\xff\", \"d\":,}",
            expect_test::expect!["None"],
        );
        check(
            b"{\"a\":\"tab\there\x01\", \"b\":\"say \"hi\" now\", \"c\":\"\xff\"}",
            expect_test::expect![[
                r#"Some(Map([("a", Text("tab\there\u{1}")), ("b", Text("say \"hi\" now")), ("c", Text("�"))]))"#
            ]],
        );
        check(&[b'['; 10_000], expect_test::expect!["None"]);
    }

    proptest! {
        #[test]
        fn any_bytes_end(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Reader::new(&bytes).value();
        }

        #[test]
        fn anything_that_looks_like_json_ends(text in r#"[\[\]{},:"\\u0-9a ]{0,80}"#) {
            let _ = Reader::new(text.as_bytes()).value();
        }
    }
}
