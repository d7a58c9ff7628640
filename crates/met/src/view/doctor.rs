//! What can be measured on a machine, as text: a summary, what can be improved, what works, what the machine lacks.

use super::{Paint, Style, text};

/// One thing looked at.
pub struct Finding {
    pub what: &'static str,
    pub health: Health,
    pub detail: String,
    /// The exact command that would make it better.
    pub remedy: Option<String>,
}

impl Finding {
    pub fn new(what: &'static str, health: Health, detail: impl Into<String>) -> Finding {
        Finding { what, health, detail: detail.into(), remedy: None }
    }

    pub fn remedied_by(self, command: impl Into<String>) -> Finding {
        Finding { remedy: Some(command.into()), ..self }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Health {
    Good,
    /// Works in part, or with less precision.
    Less,
    /// The machine has no such thing: nothing is wrong.
    Absent,
    /// It is not configured: nothing is wrong either.
    Unset,
    /// It could be had, and is not allowed or not switched on.
    Denied,
    /// It is there, or was asked for, and does not work.
    Broken,
}

impl Health {
    pub fn name(self) -> &'static str {
        match self {
            Health::Good => "ok",
            Health::Less => "less",
            Health::Absent | Health::Unset | Health::Denied | Health::Broken => "no",
        }
    }

    /// As the screen shows it.
    fn word(self) -> &'static str {
        if self == Health::Less { "part" } else { self.name() }
    }

    /// Why there is nothing.
    pub fn cause(self) -> Option<&'static str> {
        match self {
            Health::Good | Health::Less => None,
            // Programs know no other word.
            Health::Absent | Health::Unset => Some("absent"),
            Health::Denied => Some("denied"),
            Health::Broken => Some("broken"),
        }
    }

    /// Nothing there to be well or ill.
    fn is_nothing(self) -> bool {
        matches!(self, Health::Absent | Health::Unset)
    }

    fn paint(self) -> Paint {
        match self {
            Health::Good => Paint::Green,
            Health::Less | Health::Denied => Paint::Yellow,
            Health::Absent | Health::Unset => Paint::Dim,
            Health::Broken => Paint::Red,
        }
    }

    /// What can be improved comes first, the worst of it before the rest.
    fn order(self) -> u8 {
        match self {
            Health::Broken => 0,
            Health::Denied => 1,
            Health::Less => 2,
            Health::Good => 3,
            Health::Unset => 4,
            Health::Absent => 5,
        }
    }
}

const WHAT_COLUMNS: usize = 14;
/// Details begin here, and so does the rest of one that is too long for a line.
const DETAIL_COLUMN: usize = 4 + 1 + WHAT_COLUMNS + 1;
const ENABLE: &str = "enable:";

/// What the machine does not have is one line, unless all is asked for.
pub fn lines(findings: &[Finding], all: bool, style: &Style) -> String {
    let mut ordered: Vec<&Finding> = findings.iter().collect();
    ordered.sort_by_key(|finding| finding.health.order());
    let is_folded = |finding: &&&Finding| !all && finding.health.is_nothing();
    let mut drawn = String::new();
    for line in text::words(&summary(findings), style.width.unwrap_or(usize::MAX)) {
        drawn += &format!("{}\n", style.paint(Paint::Bold, &line));
    }
    for finding in ordered.iter().filter(|finding| !is_folded(finding)) {
        drawn += &line(finding, style);
    }
    let folds =
        [("not set up", Health::Unset, "--all says how"), ("not here", Health::Absent, "--all says why")];
    for (what, health, more) in folds {
        let names = ordered.iter().filter(is_folded).filter(|finding| finding.health == health);
        let names: Vec<&str> = names.map(|finding| finding.what).collect();
        if !names.is_empty() {
            drawn += &line(&Finding::new(what, health, format!("{}; {more}", names.join(", "))), style);
        }
    }
    if style.ascii { text::to_ascii(&drawn) } else { drawn }
}

fn summary(findings: &[Finding]) -> String {
    let of = |health: Health| {
        let names = findings.iter().filter(move |finding| finding.health == health);
        let mut names: Vec<&str> = names.map(|finding| finding.what).collect();
        names.dedup();
        names
    };
    let good = findings.iter().filter(|finding| finding.health == Health::Good).count();
    let present = findings.iter().filter(|finding| !finding.health.is_nothing()).count();
    let mut words = format!("{good} of {present} ok");
    for (what, health) in
        [("broken", Health::Broken), ("not permitted", Health::Denied), ("in part", Health::Less)]
    {
        let names = of(health);
        if !names.is_empty() {
            words += &format!("; {what}: {}", names.join(", "));
        }
    }
    words
}

fn line(finding: &Finding, style: &Style) -> String {
    let paint = finding.health.paint();
    let health = style.paint(paint, &format!("{:<4}", finding.health.word()));
    // Names of cgroups and of what a controller calls its parts are others' words.
    let line = format!("{:<WHAT_COLUMNS$} {}", finding.what, hanging(&text::escape(&finding.detail), style));
    let line = if paint == Paint::Dim { style.paint(paint, &line) } else { line };
    let mut drawn = format!("{health} {line}\n");
    if let Some(remedy) = &finding.remedy {
        let indent = DETAIL_COLUMN - ENABLE.len() - 1;
        let enable = style.paint(Paint::Dim, ENABLE);
        drawn += &format!("{:indent$}{enable} {}\n", "", hanging(&text::escape(remedy), style));
    }
    drawn
}

fn hanging(words: &str, style: &Style) -> String {
    let room = style.width.map_or(usize::MAX, |width| width.saturating_sub(DETAIL_COLUMN).max(20));
    let lines: Vec<String> = text::words(words, room).iter().map(|line| line.trim_end().to_owned()).collect();
    lines.join(&format!("\n{:DETAIL_COLUMN$}", ""))
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    fn finding(what: &'static str, health: Health, detail: &str, remedy: Option<&str>) -> Finding {
        Finding { remedy: remedy.map(str::to_owned), ..Finding::new(what, health, detail) }
    }

    fn findings() -> [Finding; 7] {
        [
            finding("perf", Health::Unset, "no events configured", Some("perf: {events: [x]}")),
            finding("node", Health::Good, "CPU, memory and load", None),
            finding("job cgroup", Health::Less, "memory is estimated", Some("sudo met daemon")),
            finding("infiniband", Health::Absent, "no InfiniBand device", None),
            finding("thermal", Health::Absent, "no thermal zone", None),
            finding("rapl", Health::Denied, "energy_uj may not be read", Some("run as root")),
            finding("ipmi", Health::Broken, "power, but: no answer", None),
        ]
    }

    #[test]
    fn on_a_terminal_only_what_does_not_work_is_red() {
        let style = Style { color: true, ..Style::plain() };
        expect![[r#"
            ^[1m1 of 4 ok; broken: ipmi; not permitted: rapl; in part: job cgroup^[0m
            ^[31mno  ^[0m ipmi           power, but: no answer
            ^[33mno  ^[0m rapl           energy_uj may not be read
                        ^[2menable:^[0m run as root
            ^[33mpart^[0m job cgroup     memory is estimated
                        ^[2menable:^[0m sudo met daemon
            ^[32mok  ^[0m node           CPU, memory and load
            ^[2mno  ^[0m ^[2mperf           no events configured^[0m
                        ^[2menable:^[0m perf: {events: [x]}
            ^[2mno  ^[0m ^[2minfiniband     no InfiniBand device^[0m
            ^[2mno  ^[0m ^[2mthermal        no thermal zone^[0m
        "#]]
        .assert_eq(&lines(&findings(), true, &style).replace('\x1b', "^"));
        let causes = findings().map(|finding| finding.health.cause());
        assert_eq!(
            causes,
            [Some("absent"), None, None, Some("absent"), Some("absent"), Some("denied"), Some("broken")]
        );
    }

    #[test]
    fn what_can_be_improved_comes_first_and_what_is_not_there_is_one_line() {
        expect![[r#"
            1 of 4 ok; broken: ipmi; not permitted: rapl; in part: job cgroup
            no   ipmi           power, but: no answer
            no   rapl           energy_uj may not be read
                        enable: run as root
            part job cgroup     memory is estimated
                        enable: sudo met daemon
            ok   node           CPU, memory and load
            no   not set up     perf; --all says how
            no   not here       infiniband, thermal; --all says why
        "#]]
        .assert_eq(&lines(&findings(), false, &Style::plain()));
        let odd = finding("redfish", Health::Less, "\x1b[2Jchassis\n", Some("chassis: \x1b]0;x\x07"));
        expect![[r#"
            0 of 1 ok; in part: redfish
            part redfish        \x1b[2Jchassis\n
                        enable: chassis: \x1b]0;x\x07
        "#]]
        .assert_eq(&lines(&[odd], false, &Style::plain()));
    }

    #[test]
    fn no_word_is_broken_and_nothing_is_cut() {
        let path = "/var/lib/a/very/long/path/that/no/terminal/of/sixty/columns/has/room/for";
        let detail =
            format!("at most 20000; a quarter of it for files kept open, above that reopened {path}");
        let wide = finding("open files", Health::Good, &detail, Some("sudo sysctl kernel.task_delayacct=1"));
        for width in [60, 80, 200] {
            let drawn =
                lines(std::slice::from_ref(&wide), false, &Style { width: Some(width), ..Style::plain() });
            let shown: Vec<&str> = drawn.split_whitespace().collect();
            assert!(detail.split(' ').all(|word| shown.contains(&word)), "{drawn}");
            let long = |line: &&str| text::width(line) > width && !line.contains(path);
            assert_eq!(drawn.lines().find(long), None, "{width} columns");
        }
    }
}
