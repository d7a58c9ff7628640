//! The nodes of a cluster, as its server knows them.

use super::{Paint, Style, text};
use met_core::units;
use met_query::protocol::NodeStatus;

/// A clock that is off by less is not worth a word.
const OFFSET_SHOWN_NS: i64 = 100_000_000;

pub fn list(nodes: &[NodeStatus], now_ns: i64, style: &Style) -> String {
    if nodes.is_empty() {
        return "no nodes; on the server: met server enroll NODE\n".to_owned();
    }
    let room = style.width.unwrap_or(usize::MAX);
    let columns = fitting(columns(nodes, now_ns), room);
    let row = |cells: Vec<&str>| {
        let padded = columns.iter().zip(cells).map(|(column, cell)| column.pad(cell));
        padded.collect::<Vec<_>>().join(GAP).trim_end().to_owned()
    };
    let head = row(columns.iter().map(|column| column.header).collect());
    let mut drawn = style.paint(Paint::Bold, &head) + "\n";
    for (index, node) in nodes.iter().enumerate() {
        let line = row(columns.iter().map(|column| column.cells[index].as_str()).collect());
        let (word, paint) = state(node);
        // The word is in the second column, behind a name that may hold it, too.
        let name = columns[0].pad(&columns[0].cells[index]);
        let rest = line.strip_prefix(&name).unwrap_or_default();
        drawn += &format!("{name}{}\n", rest.replacen(word, &style.paint(paint, word), 1));
        for problem in problems(node, now_ns).iter().flat_map(|one| text::words(one, room.saturating_sub(2)))
        {
            drawn += &format!("{}\n", style.paint(Paint::Red, &format!("  {problem}")));
        }
    }
    let late = nodes.iter().filter(|node| node.late).count();
    let plural = if nodes.len() == 1 { "" } else { "s" };
    drawn.push_str(&format!("{} node{plural}, {late} late\n", nodes.len()));
    if style.ascii { text::to_ascii(&drawn) } else { drawn }
}

const GAP: &str = "  ";

/// A column, and when it leaves on a narrow terminal: the highest rank first, 0 never.
struct Column {
    header: &'static str,
    rank: u8,
    right: bool,
    cells: Vec<String>,
}

impl Column {
    fn width(&self) -> usize {
        let widths = self.cells.iter().map(|cell| text::width(cell));
        widths.max().unwrap_or(0).max(text::width(self.header))
    }

    fn pad(&self, cell: &str) -> String {
        if self.right { text::pad_left(cell, self.width()) } else { text::pad(cell, self.width()) }
    }
}

fn fitting(mut columns: Vec<Column>, room: usize) -> Vec<Column> {
    let total = |columns: &[Column]| columns.iter().map(|column| column.width() + GAP.len()).sum::<usize>();
    while total(&columns) > room.saturating_add(GAP.len()) {
        let ranked = columns.iter().enumerate().filter(|(_, column)| column.rank > 0);
        let Some((index, _)) = ranked.max_by_key(|(_, column)| column.rank) else { break };
        columns.remove(index);
    }
    columns
}

fn columns(nodes: &[NodeStatus], now_ns: i64) -> Vec<Column> {
    let column = |header, rank, right, cell: &dyn Fn(&NodeStatus) -> Option<String>| {
        let cells = nodes.iter().map(|node| cell(node).unwrap_or_else(|| "-".to_owned())).collect();
        Column { header, rank, right, cells }
    };
    let seen = |node: &NodeStatus| Some(units::duration((now_ns - node.seen_ns?).max(0) as f64 / 1e9));
    vec![
        column("NODE", 0, false, &|node| Some(text::escape(&node.name))),
        column("STATE", 0, false, &|node| Some(state(node).0.to_owned())),
        column("SEEN", 0, true, &seen),
        column("JOBS", 0, true, &|node| Some(node.jobs.to_string())),
        column("CPUS", 3, true, &|node| Some(node.cpus?.to_string())),
        column("MEMORY", 4, true, &|node| Some(units::bytes(node.memory_bytes? as f64))),
        column("CLOCK", 1, true, &|node| clock(node.clock_offset_ns?)),
        column("VERSION", 2, false, &|node| node.version.as_deref().map(text::escape)),
    ]
}

fn state(node: &NodeStatus) -> (&'static str, Paint) {
    match (node.seen_ns, node.late) {
        (None, _) => ("never", Paint::Dim),
        (_, true) => ("late", Paint::Red),
        (_, false) => ("ok", Paint::Green),
    }
}

fn clock(offset_ns: i64) -> Option<String> {
    Some(match offset_ns.abs() < OFFSET_SHOWN_NS {
        true => "ok".to_owned(),
        // Behind the server is what a positive offset means.
        false => {
            let sign = if offset_ns > 0 { '-' } else { '+' };
            format!("{sign}{}", units::duration(offset_ns.abs() as f64 / 1e9))
        }
    })
}

fn problems(node: &NodeStatus, now_ns: i64) -> Vec<String> {
    let dropped = (node.dropped_samples > 0)
        .then(|| format!("{} samples dropped", units::count(node.dropped_samples as f64)));
    dropped.into_iter().chain(node.problems(now_ns).iter().map(|problem| text::escape(problem))).collect()
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use met_core::node_health::{FailingSource, NodeHealth};

    use super::*;

    #[test]
    fn nodes_in_lines() {
        let failing = |name: &str| match name {
            "n3" => vec![FailingSource {
                problem: "reading fails: EIO".to_owned(),
                since_ns: Some(900 * 1_000_000_000),
                ..FailingSource::of("rapl")
            }],
            _ => Vec::new(),
        };
        let node = |name: &str, seen_s: Option<i64>, offset_ms: i64| NodeStatus {
            name: name.to_owned(),
            jobs: 3,
            late: seen_s.is_none_or(|seen_s| seen_s < 500),
            seen_ns: seen_s.map(|seen_s| seen_s * 1_000_000_000),
            version: Some("0.1.0".to_owned()),
            cpus: Some(64),
            memory_bytes: Some(256 << 30),
            clock_offset_ns: Some(offset_ms * 1_000_000),
            dropped_samples: i64::from(name == "n3") * 1200,
            problem: (name == "n3").then(|| "by job.cpu it means something else".to_owned()),
            health: NodeHealth { gpus: (name == "n3").then_some(4), failing_sources: failing(name) },
            ..NodeStatus::default()
        };
        let nodes = [node("n1", Some(995), 3), node("gpu-node-17", Some(100), -2500), node("n3", None, 900)];
        expect![[r#"
            NODE         STATE   SEEN  JOBS  CPUS   MEMORY   CLOCK  VERSION
            n1           ok        5s     3    64  256 GiB      ok  0.1.0
            gpu-node-17  late   15m0s     3    64  256 GiB   +2.5s  0.1.0
            n3           never      -     3    64  256 GiB  -900ms  0.1.0
              1,200 samples dropped
              by job.cpu it means something else
              source rapl: reading fails: EIO (for 1m40s)
            3 nodes, 2 late
        "#]]
        .assert_eq(&list(&nodes, 1000 * 1_000_000_000, &Style::plain()));
        let problem = "the clock of this node is wrong by more than anybody can put up with: set it right";
        let long = NodeStatus {
            problem: Some(problem.to_owned()),
            ..node("a-node-with-a-long-name-17", Some(995), 3)
        };
        for width in [60, 80, 200] {
            let style = Style { width: Some(width), ..Style::plain() };
            let drawn = list(std::slice::from_ref(&long), 1000 * 1_000_000_000, &style);
            assert!(drawn.lines().all(|line| text::width(line) <= width), "{drawn}");
            let words: Vec<&str> = drawn.split_whitespace().collect();
            assert!(problem.split(' ').all(|word| words.contains(&word)), "{drawn}");
        }
        assert!(list(&nodes[..1], 1000 * 1_000_000_000, &Style::plain()).ends_with("\n1 node, 0 late\n"));
        assert_eq!(list(&[], 0, &Style::plain()), "no nodes; on the server: met server enroll NODE\n");
    }
}
