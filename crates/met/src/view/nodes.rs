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
    let name_columns = nodes.iter().map(|node| node.name.len()).max().unwrap_or(0).max(4);
    let head = format!(
        "{:<name_columns$}  {:<6}  {:>9}  {:>4}  {:>5}  {:>8}  {:>9}  {}",
        "NODE", "STATE", "SEEN", "JOBS", "CPUS", "MEMORY", "CLOCK", "VERSION"
    );
    let mut drawn = style.paint(Paint::Bold, head.trim_end()) + "\n";
    for node in nodes {
        drawn.push_str(&line(node, name_columns, now_ns, style));
        drawn.push('\n');
    }
    let late = nodes.iter().filter(|node| node.late).count();
    let plural = if nodes.len() == 1 { "" } else { "s" };
    drawn.push_str(&format!("{} node{plural}, {late} late\n", nodes.len()));
    if style.ascii { text::to_ascii(&drawn) } else { drawn }
}

fn line(node: &NodeStatus, name_columns: usize, now_ns: i64, style: &Style) -> String {
    let or_dash = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    let (state, paint) = match (node.seen_ns, node.late) {
        (None, _) => ("never", Paint::Dim),
        (_, true) => ("late", Paint::Red),
        (_, false) => ("ok", Paint::Green),
    };
    let seen = node.seen_ns.map(|seen_ns| units::duration((now_ns - seen_ns).max(0) as f64 / 1e9));
    let clock = node.clock_offset_ns.map(|offset_ns| match offset_ns.abs() < OFFSET_SHOWN_NS {
        true => "ok".to_owned(),
        false => {
            // Behind the server is what a positive offset means.
            let sign = if offset_ns > 0 { '-' } else { '+' };
            format!("{sign}{}", units::duration(offset_ns.abs() as f64 / 1e9))
        }
    });
    let mut drawn = format!(
        "{:<name_columns$}  {}  {:>9}  {:>4}  {:>5}  {:>8}  {:>9}  {}",
        text::escape(&node.name),
        style.paint(paint, &format!("{state:<6}")),
        or_dash(seen),
        node.jobs,
        or_dash(node.cpus.map(|cpus| cpus.to_string())),
        or_dash(node.memory_bytes.map(|bytes| units::bytes(bytes as f64))),
        or_dash(clock),
        or_dash(node.version.as_deref().map(text::escape)),
    );
    if node.dropped_samples > 0 {
        let lost = format!("  {} samples dropped", units::count(node.dropped_samples as f64));
        drawn.push_str(&style.paint(Paint::Red, &lost));
    }
    if let Some(problem) = &node.problem {
        drawn.push_str(&style.paint(Paint::Red, &format!("\n  {}", text::escape(problem))));
    }
    drawn
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn nodes_in_lines() {
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
        };
        let nodes = [node("n1", Some(995), 3), node("gpu-node-17", Some(100), -2500), node("n3", None, 900)];
        expect![[r#"
            NODE         STATE        SEEN  JOBS   CPUS    MEMORY      CLOCK  VERSION
            n1           ok             5s     3     64   256 GiB         ok  0.1.0
            gpu-node-17  late        15m0s     3     64   256 GiB      +2.5s  0.1.0
            n3           never           -     3     64   256 GiB     -900ms  0.1.0  1,200 samples dropped
              by job.cpu it means something else
            3 nodes, 2 late
        "#]]
        .assert_eq(&list(&nodes, 1000 * 1_000_000_000, &Style::plain()));
        assert!(list(&nodes[..1], 1000 * 1_000_000_000, &Style::plain()).ends_with("\n1 node, 0 late\n"));
        assert_eq!(list(&[], 0, &Style::plain()), "no nodes; on the server: met server enroll NODE\n");
    }
}
