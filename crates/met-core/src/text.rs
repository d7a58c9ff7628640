//! Foreign text made harmless: escaped, and quoted as a shell would have it.

/// Makes text harmless: control characters, which could move the cursor, rename the window or fake a line, are
/// shown as escapes. So are characters that reorder or hide adjacent text.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' => escaped.push_str("\\n"),
            '\t' => escaped.push_str("\\t"),
            '\r' => escaped.push_str("\\r"),
            '\0'..='\x1f' | '\x7f' => escaped.push_str(&format!("\\x{:02x}", character as u32)),
            _ if is_hostile(character) => escaped.push_str(&format!("\\u{:04x}", character as u32)),
            _ => escaped.push(character),
        }
    }
    escaped
}

/// Whether a character moves the cursor, reorders or hides adjacent text.
pub fn is_harmful(character: char) -> bool {
    matches!(character, '\0'..='\x1f' | '\x7f') || is_hostile(character)
}

fn is_hostile(character: char) -> bool {
    matches!(character,
        '\u{80}'..='\u{9f}'           // C1 controls: some terminals take U+009B for ESC [
        | '\u{200b}'..='\u{200f}'     // zero width, direction marks
        | '\u{2028}'..='\u{202e}'     // line and paragraph separators, direction overrides
        | '\u{2060}'..='\u{206f}'     // invisible operators, direction isolates
        | '\u{feff}')
}

/// As many whole characters from the start as fit these bytes.
pub fn prefix(text: &str, bytes_max: usize) -> &str {
    let end = (0..=text.len().min(bytes_max)).rev().find(|&end| text.is_char_boundary(end));
    &text[..end.unwrap_or(0)]
}

/// A command as it could be typed into a shell, on one line.
pub fn command_line(words: &[String]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| quote(word)).collect();
    quoted.join(" ")
}

fn quote(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:=@%+,".contains(&byte) || byte >= 0x80;
    let escaped = escape(word);
    if escaped != word {
        // With $'…' the shell reads the escapes back.
        return format!("$'{}'", escape(&word.replace('\\', "\\\\").replace('\'', "\\'")));
    }
    if !word.is_empty() && word.bytes().all(plain) {
        return escaped;
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}
