//! Markdown of our own as a terminal shows it best: headings, paragraphs, and each row of a table as an entry.

use super::{Paint, Style, text};

const INDENT: usize = 6;
const COLUMNS_MAX: usize = 100;

/// A page of headings, paragraphs, numbered lists, code and tables of four cells: name, kind, default, meaning.
pub fn page(markdown: &str, style: &Style) -> String {
    let width = style.width.unwrap_or(COLUMNS_MAX).min(COLUMNS_MAX);
    let mut page = Manual { style, width, drawn: String::new(), paragraph: Vec::new() };
    let (mut in_code, mut in_table) = (false, false);
    for line in markdown.lines() {
        let is_row = line.starts_with('|') && !in_code;
        if line.starts_with("```") {
            page.end_paragraph();
            in_code = !in_code;
        } else if in_code {
            page.put(&format!("    {line}"));
        } else if is_row && in_table {
            page.entry(line);
        } else if is_row {
            // The head of a table says what the entries show anyway.
        } else if let Some(heading) = line.strip_prefix('#') {
            page.put(&style.paint(Paint::Bold, &plain(heading.trim_start_matches('#').trim())));
        } else if line.is_empty() {
            page.put("");
        } else if line.starts_with(|first: char| first.is_ascii_digit()) {
            let wrapped = text::hanging(&plain(line), 3, &Style { width: Some(width), ..style.clone() });
            page.put(wrapped.trim_end());
        } else {
            page.paragraph.push(plain(line));
        }
        in_table = is_row;
    }
    page.end_paragraph();
    if style.ascii { text::to_ascii(&page.drawn) } else { page.drawn }
}

struct Manual<'a> {
    style: &'a Style,
    width: usize,
    drawn: String,
    /// Lines of one paragraph, which are wrapped again.
    paragraph: Vec<String>,
}

impl Manual<'_> {
    fn put(&mut self, line: &str) {
        self.end_paragraph();
        self.drawn += &format!("{line}\n");
    }

    fn end_paragraph(&mut self) {
        let paragraph = std::mem::take(&mut self.paragraph).join(" ");
        for line in text::wrap(&paragraph, self.width).iter().filter(|_| !paragraph.is_empty()) {
            self.drawn += &format!("{line}\n");
        }
    }

    /// A row of a table; what draws its lines is none.
    fn entry(&mut self, row: &str) {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let [name, kind, default, meaning] = cells[..] else { return };
        if name.starts_with("---") {
            return;
        }
        let kind = format!("{}, default {}", plain(kind), plain(default));
        let name = plain(name);
        let fits = text::width(&name) + 2 + text::width(&kind) <= self.width;
        let painted = self.style.paint(Paint::Bold, &name);
        if fits {
            self.put(&format!("{painted}  {}", self.style.paint(Paint::Dim, &kind)));
        } else {
            self.put(&painted);
            for words in text::wrap(&kind, self.width.saturating_sub(INDENT).max(20)) {
                let words = self.style.paint(Paint::Dim, &words);
                self.put(&format!("{:INDENT$}{words}", ""));
            }
        }
        for words in text::wrap(&plain(meaning), self.width.saturating_sub(INDENT).max(20)) {
            self.put(&format!("{:INDENT$}{words}", ""));
        }
    }
}

/// Without the marks of code and of emphasis around words.
fn plain(markdown: &str) -> String {
    let words = markdown.replace('`', "");
    words
        .split(' ')
        .map(|word| word.strip_prefix('*').map_or(word, |word| word.trim_end_matches('*')))
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn a_table_becomes_entries_that_fit_the_terminal() {
        let markdown = "# The file\n\nAn *interval* is `1s`.\n\n```yaml\na:\n  b: 1s\n```\n\n## `a`\n\n\
                        | key | what | default | meaning |\n| --- | --- | --- | --- |\n\
                        | `a.b` | interval | `1s` | time between two samples, which is never shorter than it takes |\n\
                        | `a.c` | text | none | *one* word |\n";
        let style = Style { width: Some(40), ..Style::plain() };
        expect![[r#"
            The file

            An interval is 1s.

                a:
                  b: 1s

            a

            a.b  interval, default 1s
                  time between two samples, which is
                  never shorter than it takes
            a.c  text, default none
                  one word
        "#]]
        .assert_eq(&page(markdown, &style));
    }

    #[test]
    fn the_reference_of_the_configuration_has_no_marks_left_and_every_key() {
        let markdown = met_config::Config::reference();
        let style = Style { width: Some(80), ..Style::plain() };
        let drawn = page(&markdown, &style);
        assert!(!drawn.contains('`') && !drawn.contains("| "), "{drawn}");
        let keys = markdown.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
        let mut count = 0;
        for key in keys {
            let is_its = |line: &str| line == key || line.starts_with(&format!("{key}  "));
            assert!(drawn.lines().any(is_its), "{key}");
            count += 1;
        }
        let narrow = page(&markdown, &Style { width: Some(60), ..Style::plain() });
        let long = |line: &&str| text::width(line) > 60 && line.trim_start().contains(' ');
        assert_eq!(narrow.lines().find(long), None);
        assert!(count > 50);
    }
}
