//! Foreign text on a terminal: escaped, quoted, and cut to a width.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

pub use met_core::text::{command_line, escape};

use super::Style;

pub fn width(text: &str) -> usize {
    text.width()
}

/// At most `columns` wide; what is cut off is marked.
pub fn cut(text: &str, columns: usize, ascii: bool) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let mark = if ascii { "~" } else { "…" };
    let Some(room) = columns.checked_sub(1) else { return String::new() };
    let mut kept = String::new();
    let mut used = 0;
    for character in text.chars() {
        used += character.width().unwrap_or(0);
        if used > room {
            break;
        }
        kept.push(character);
    }
    kept + mark
}

/// Lines of at most `columns`, broken at spaces where there are any.
pub fn wrap(words: &str, columns: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in words.split(' ') {
        if !line.is_empty() && width(&line) + 1 + width(word) > columns {
            lines.push(std::mem::take(&mut line));
        }
        if !line.is_empty() {
            line.push(' ');
        }
        for character in word.chars() {
            if width(&line) + width(character.encode_utf8(&mut [0; 4])) > columns {
                lines.push(std::mem::take(&mut line));
            }
            line.push(character);
        }
    }
    lines.push(line);
    lines
}

/// Lines of at most `columns`, broken between words only: a path or command that is longer stays in one piece.
pub fn words(words: &str, columns: usize) -> Vec<String> {
    filled(words.split(' ').map(str::to_owned), " ", columns)
}

/// One line in words; where it is too long for the terminal, the rest is indented. No word is broken.
pub fn hanging(line: &str, indent: usize, style: &Style) -> String {
    let own = line.len() - line.trim_start().len();
    let room = style.width.map_or(usize::MAX, |width| width.saturating_sub(indent.max(own)).max(20));
    let lines = words(line.trim_start(), room);
    let drawn: Vec<String> = (lines.iter().enumerate())
        .map(|(index, line)| format!("{:1$}{line}", "", if index == 0 { own } else { indent }))
        .collect();
    drawn.join("\n") + "\n"
}

/// The same of each line.
pub fn hanging_lines(lines: &str, indent: usize, style: &Style) -> String {
    lines.lines().map(|line| hanging(line, indent, style)).collect()
}

/// Parts in as few lines as they fit into, each in one piece.
pub fn filled(parts: impl Iterator<Item = String>, separator: &str, columns: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for part in parts {
        match lines.last_mut() {
            Some(last) if width(last) + width(separator) + width(&part) <= columns => {
                last.push_str(separator);
                last.push_str(&part);
            }
            _ => lines.push(part),
        }
    }
    lines
}

/// `text` followed by spaces up to `columns`.
pub fn pad(text: &str, columns: usize) -> String {
    format!("{text}{}", " ".repeat(columns.saturating_sub(width(text))))
}

/// `text` with spaces in front, up to `columns`.
pub fn pad_left(text: &str, columns: usize) -> String {
    format!("{}{text}", " ".repeat(columns.saturating_sub(width(text))))
}

/// Box-drawing and other fancy characters as the nearest plain ones. Other people's text, which may
/// hold anything, becomes `?` where it cannot be shown; what was in line stays in line.
pub fn to_ascii(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for character in text.chars() {
        plain.push(match character {
            _ if character.is_ascii() => character,
            '─' | '·' => '-',
            '│' | '┤' | '├' | '▏' => '|',
            '┌' | '┐' | '└' | '┘' | '┬' | '┴' | '┼' => '+',
            '█' => '#',
            '░' => '.',
            '…' => '~',
            '≥' => '>',
            'µ' => 'u',
            _ => {
                plain.push_str(&"?".repeat(character.width().unwrap_or(0)));
                continue;
            }
        });
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_speak_to_the_terminal() {
        assert_eq!(escape("a\x1b]0;pwned\x07b\nJOB 1\r\u{9b}2J"), "a\\x1b]0;pwned\\x07b\\nJOB 1\\r\\u009b2J");
        assert_eq!(escape("abc\u{202e}fdp.exe"), "abc\\u202efdp.exe");
        assert_eq!(escape("größe 大 \\d"), "größe 大 \\d");
    }

    #[test]
    fn a_command_can_be_pasted_into_a_shell() {
        let words = ["sh", "-c", "echo 'a b' > c", "", "x\ny'", "ü=1"].map(str::to_owned);
        assert_eq!(command_line(&words), r"sh -c 'echo '\''a b'\'' > c' '' $'x\ny\'' ü=1");
    }

    #[test]
    fn cutting_counts_columns_and_marks_the_cut() {
        assert_eq!(cut("abcdef", 6, false), "abcdef");
        assert_eq!(cut("abcdef", 4, false), "abc…");
        assert_eq!(cut("abcdef", 4, true), "abc~");
        assert_eq!(cut("大大大", 5, false), "大大…");
        assert_eq!(cut("大大大", 4, false), "大…");
        assert_eq!(cut("abc", 0, false), "");
    }

    #[test]
    fn a_long_line_goes_on_indented_and_no_word_is_broken() {
        let style = Style { width: Some(40), ..Style::plain() };
        let drawn =
            hanging("  http: not listening: 0.0.0.0:19518 can be reached by other machines", 4, &style);
        assert_eq!(drawn, "  http: not listening: 0.0.0.0:19518\n    can be reached by other machines\n");
        assert_eq!(hanging("a b", 4, &Style::plain()), "a b\n");
    }

    #[test]
    fn plain_characters_are_as_wide_as_what_they_stand_for() {
        for text in ["│ größe 大きい ─┼", "e\u{301}…≥1"] {
            assert_eq!(width(&to_ascii(text)), width(text), "{text}");
            assert!(to_ascii(text).is_ascii());
        }
        assert_eq!(to_ascii("≥61µs"), ">61us");
    }
}
