//! Lists of nodes as schedulers write them. Total and bounded.

/// As many as the largest machines have.
pub const NODES_MAX: usize = 16 << 10;
/// More dimensions than any machine's naming scheme has.
const BRACKETS_MAX: usize = 8;

/// The names in `node[01-03,7],gpu1`.
pub fn hosts(list: &str) -> Vec<String> {
    let mut found = Vec::new();
    // Counts every name begun: one whose last range is empty names no node, and costs as much.
    let mut steps = NODES_MAX * (BRACKETS_MAX + 1);
    for pattern in split_outside_brackets(list) {
        match pattern.matches('[').count() {
            0..=BRACKETS_MAX => expand(pattern, String::new(), &mut found, &mut steps),
            _ => found.push(pattern.to_owned()),
        }
        if found.len() >= NODES_MAX {
            break;
        }
    }
    found
}

fn split_outside_brackets(list: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_i32;
    let parts = list.split(move |letter| {
        depth += i32::from(letter == '[') - i32::from(letter == ']');
        letter == ',' && depth <= 0
    });
    parts.map(str::trim).filter(|part| !part.is_empty())
}

/// One bracket at a time, from the left; malformed text is taken as a literal name.
fn expand(pattern: &str, before: String, found: &mut Vec<String>, steps: &mut usize) {
    *steps = steps.saturating_sub(1);
    if found.len() >= NODES_MAX || *steps == 0 {
        return;
    }
    let bracket = pattern.split_once('[').and_then(|(head, rest)| {
        let (inside, tail) = rest.split_once(']')?;
        Some((head, inside, tail))
    });
    let Some((head, inside, tail)) = bracket else {
        found.push(before + pattern);
        return;
    };
    for range in inside.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (Ok(from), Ok(to)) = (first.parse::<u64>(), last.parse::<u64>()) else {
            expand(tail, format!("{before}{head}{range}"), found, steps);
            continue;
        };
        for number in from..=to {
            if found.len() >= NODES_MAX || *steps == 0 {
                return;
            }
            expand(tail, format!("{before}{head}{number:0width$}", width = first.len()), found, steps);
        }
    }
}
