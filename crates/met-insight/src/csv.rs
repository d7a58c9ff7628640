//! Comma-separated values, RFC 4180: the one writer for lists, exports, sinks and the API.

use std::fmt::Write;

use met_core::text;
use serde_json::{Number, Value};

/// The end of a line in files.
pub const CRLF: &str = "\r\n";

/// What a spreadsheet would take for a formula.
const FORMULAS: [char; 4] = ['=', '+', '-', '@'];

#[derive(Clone, Debug, PartialEq)]
pub enum Cell<'a> {
    Unknown,
    /// Foreign text: escaped, so that a row stays one line, and never a formula.
    Text(&'a str),
    /// A number, a time or a name of ours, written as it is.
    Plain(&'a str),
    Real(f64),
    Whole(i64),
    Number(&'a Number),
}

impl<'a> From<Option<&'a str>> for Cell<'a> {
    fn from(text: Option<&'a str>) -> Cell<'a> {
        text.map_or(Cell::Unknown, Cell::Text)
    }
}

impl<'a> From<&'a Value> for Cell<'a> {
    fn from(value: &'a Value) -> Cell<'a> {
        match value {
            Value::String(text) => Cell::Text(text),
            Value::Bool(true) => Cell::Plain("true"),
            Value::Bool(false) => Cell::Plain("false"),
            Value::Number(number) => Cell::Number(number),
            Value::Null | Value::Array(_) | Value::Object(_) => Cell::Unknown,
        }
    }
}

/// Appends one line; what is unknown is empty.
pub fn write_line<'a>(lines: &mut String, cells: impl IntoIterator<Item = Cell<'a>>, end: &str) {
    for (index, cell) in cells.into_iter().enumerate() {
        if index > 0 {
            lines.push(',');
        }
        match cell {
            Cell::Unknown => {}
            Cell::Text(text) => quote(lines, &harmless(text)),
            Cell::Plain(text) => quote(lines, text),
            // Writing to a string cannot fail.
            Cell::Real(value) => write!(lines, "{value}").unwrap_or_default(),
            Cell::Whole(value) => write!(lines, "{value}").unwrap_or_default(),
            Cell::Number(value) => write!(lines, "{value}").unwrap_or_default(),
        }
    }
    lines.push_str(end);
}

/// One line of names.
pub fn header<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let mut line = String::new();
    write_line(&mut line, names.into_iter().map(Cell::Plain), CRLF);
    line
}

/// Spreadsheets run a text that begins like a formula; after an apostrophe they show it.
fn harmless(text: &str) -> String {
    let escaped = text::escape(text);
    match text.starts_with(FORMULAS) {
        true => format!("'{escaped}"),
        false => escaped,
    }
}

fn quote(lines: &mut String, field: &str) {
    match field.contains([',', '"', '\n', '\r']) {
        true => {
            lines.push('"');
            lines.push_str(&field.replace('"', "\"\""));
            lines.push('"');
        }
        false => lines.push_str(field),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn line(cells: &[Cell<'_>]) -> String {
        let mut line = String::new();
        write_line(&mut line, cells.iter().cloned(), CRLF);
        line
    }

    #[test]
    fn what_is_unknown_is_empty_and_a_number_is_a_number() {
        let cells =
            [Cell::Unknown, Cell::Real(-1.5), Cell::Whole(-2), Cell::Plain("-x"), Cell::Text("a,\"b\"")];
        assert_eq!(line(&cells), ",-1.5,-2,-x,\"a,\"\"b\"\"\"\r\n");
        assert_eq!(header(["a", "b"]), "a,b\r\n");
    }

    #[test]
    fn a_text_is_never_a_formula() {
        for text in ["=1+1", "+1", "-1", "@SUM(A1)"] {
            assert_eq!(line(&[Cell::Text(text)]), format!("'{text}\r\n"));
        }
        assert_eq!(line(&[Cell::Text("\t=1")]), "\\t=1\r\n");
        assert_eq!(line(&[Cell::Text("a=b")]), "a=b\r\n");
    }

    /// The fields of one line, as RFC 4180 has it.
    fn fields(line: &str) -> Vec<String> {
        let (mut fields, mut quoted) = (vec![String::new()], false);
        let mut letters = line.chars().peekable();
        while let Some(letter) = letters.next() {
            let field = fields.last_mut().unwrap();
            match letter {
                '"' if quoted && letters.peek() == Some(&'"') => field.extend(letters.next()),
                '"' => quoted = !quoted,
                ',' if !quoted => fields.push(String::new()),
                letter => field.push(letter),
            }
        }
        fields
    }

    proptest! {
        #[test]
        fn any_texts_are_one_line_and_come_back_escaped(texts in prop::collection::vec("\\PC{0,12}|[=+@\n\r\",-]{0,6}", 1..6)) {
            let cells: Vec<Cell<'_>> = texts.iter().map(|text| Cell::Text(text)).collect();
            let line = line(&cells);
            let body = line.strip_suffix(CRLF).unwrap();
            prop_assert!(!body.contains(['\n', '\r']));
            let read = fields(body);
            prop_assert_eq!(read.len(), texts.len());
            for (field, text) in read.iter().zip(&texts) {
                prop_assert!(!field.starts_with(FORMULAS));
                prop_assert_eq!(field.strip_prefix('\'').filter(|_| text.starts_with(FORMULAS)).unwrap_or(field), text::escape(text));
            }
        }
    }
}
