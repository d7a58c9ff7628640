//! What all pages share: head, navigation, messages, and the small parts that tables and figures are made of.

use jiff::tz::TimeZone;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use met_core::job::{QualityKind, State};
use met_core::text::escape;
use met_core::units;
use met_insight::json;
use met_insight::report::Amount;
use met_insight::report::words;

use super::assets::{ASSETS, integrity};

/// For whom and when a page is made.
pub struct Site {
    /// The path that everything is below, with a slash at its end.
    pub base: String,
    /// Who is logged in; empty where no login is needed.
    pub who: String,
    /// The token that forms send back with what they change, for who is logged in by a session.
    pub csrf: Option<String>,
    /// People log in here and may log out.
    pub has_logout: bool,
    /// Starts and ends of jobs are streamed.
    pub has_stream: bool,
    /// The page is a file of its own, without a server behind it.
    pub is_file: bool,
    pub now_ns: i64,
    pub zone: TimeZone,
}

impl Site {
    pub fn to(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    pub fn job_path(&self, label: &str) -> String {
        self.to(&format!("jobs/{}", percent_encoded(label)))
    }

    pub fn node_path(&self, node: &str) -> String {
        self.to(&format!("nodes/{}", percent_encoded(node)))
    }

    /// A time on the clock of the server; the script writes it on the reader's.
    pub fn time(&self, unix_ns: i64) -> Markup {
        let exact = json::time(unix_ns).unwrap_or_default();
        let whole = units::time(unix_ns, &self.zone);
        html! {
            time datetime=(exact) title=(whole) data-time="short" {
                (units::time_short(unix_ns, self.now_ns, &self.zone))
            }
        }
    }

    /// From when to when; the day is said once.
    pub fn time_span(&self, start_ns: i64, end_ns: Option<i64>) -> Markup {
        let exact = |unix_ns| json::time(unix_ns).unwrap_or_default();
        let start = units::time(start_ns, &self.zone);
        let end = end_ns.map(|end_ns| (end_ns, units::time(end_ns, &self.zone)));
        html! {
            time datetime=(exact(start_ns)) data-time="long" { (start) }
            @if let Some((end_ns, end)) = end {
                @let is_same_day = end.split_once(' ').map(|(day, _)| day) == start.split_once(' ').map(|(day, _)| day);
                @let written = if is_same_day { end.split_once(' ').map_or(&*end, |(_, clock)| clock) } else { &end };
                " – " time datetime=(exact(end_ns)) data-time="end" data-start=(exact(start_ns)) { (written) }
            }
        }
    }

    /// How long ago something was.
    pub fn ago(&self, unix_ns: i64) -> String {
        let seconds = (self.now_ns - unix_ns).max(0) as f64 / 1e9;
        if seconds < 2.0 { "now".to_owned() } else { format!("{} ago", units::duration(seconds.floor())) }
    }
}

/// One of the pages in the navigation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Tab {
    Now,
    Jobs,
    Nodes,
    Usage,
    Findings,
}

/// The navigation: what a page is called, and where it is below the base.
const TABS: &[(Tab, &str, &str)] = &[
    (Tab::Now, "Now", ""),
    (Tab::Jobs, "Jobs", "jobs"),
    (Tab::Nodes, "Nodes", "nodes"),
    (Tab::Usage, "Usage", "usage"),
    (Tab::Findings, "Findings", "findings"),
];

/// A whole page. `every_s`: how often its live parts are fetched again while it is visible.
pub fn page(site: &Site, tab: Option<Tab>, title: &str, every_s: Option<u32>, content: &Markup) -> Markup {
    let title = escape(title);
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                @if site.is_file { meta http-equiv="Content-Security-Policy" content=(file_policy()); }
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) " · met" }
                (linked(site))
            }
            body data-every=[every_s] data-stream=[every_s.filter(|_| site.has_stream).map(|_| site.to("api/v1/stream"))] {
                @if !site.is_file { (head(site, tab)) }
                main id="main" tabindex="-1" { (content) }
                @if !site.is_file { (foot(site)) }
            }
        }
    }
}

fn linked(site: &Site) -> Markup {
    let assets = &*ASSETS;
    let to = |name: &str| site.to(&format!("assets/{name}"));
    html! {
        @if site.is_file {
            link rel="icon" href="data:,";
            style { (PreEscaped(assets.style.text)) }
            script type="module" { (PreEscaped(file_script())) }
        } @else {
            link rel="icon" href=(to(&assets.icon.name)) type="image/svg+xml";
            link rel="stylesheet" href=(to(&assets.style.name));
            script src=(to(&assets.uplot.name)) defer {}
            script src=(to(&assets.script.name)) defer {}
        }
    }
}

/// Both scripts in one, as a module: it runs when the page has been read.
fn file_script() -> String {
    let assets = &*ASSETS;
    format!("{}\n{}", assets.uplot.text, assets.script.text)
}

/// A file may run its own script and use its own style, and load nothing.
fn file_policy() -> String {
    let (style, script) = (ASSETS.style.integrity(), integrity(&file_script()));
    format!(
        "default-src 'none'; img-src data:; style-src {style}; script-src {script}; base-uri 'none'; form-action 'none'"
    )
}

fn head(site: &Site, tab: Option<Tab>) -> Markup {
    html! {
        a.skip href="#main" { "Skip to content" }
        header.top {
            a.brand href=(site.to("")) { "met" }
            nav aria-label="Pages" {
                @for &(one, name, path) in TABS {
                    a href=(site.to(path)) aria-current=[(tab == Some(one)).then_some("page")] { (name) }
                }
            }
            div.session {
                span.live id="live" hidden { "live" }
                @if !site.who.is_empty() { span.user title="logged in" { (escape(&site.who)) } }
                @if let Some(csrf) = site.csrf.as_ref().filter(|_| site.has_logout) {
                    form method="post" action=(site.to("logout")) {
                        input type="hidden" name="csrf" value=(csrf);
                        button.plain type="submit" { "Log out" }
                    }
                }
            }
        }
    }
}

fn foot(site: &Site) -> Markup {
    html! {
        footer {
            "met " (env!("CARGO_PKG_VERSION")) " · as of " span data-live id="as-of" { (site.time(site.now_ns)) }
            " · times in " span data-zone { (zone_name(site)) }
        }
    }
}

fn zone_name(site: &Site) -> String {
    site.zone.iana_name().map_or_else(|| "the server's time zone".to_owned(), str::to_owned)
}

/// A state in a word and a colour; the word says it all.
pub fn state(state: State) -> Markup {
    let kind = match state {
        State::Running => "run",
        State::Pending | State::Suspended => "wait",
        State::Finished => "ok",
        State::Cancelled => "off",
        State::Failed | State::Timeout | State::OutOfMemory | State::Lost => "bad",
    };
    html! { span.state.(kind) { (state.name().replace('_', " ")) } }
}

/// How much of a whole: a bar. The number beside it says the same.
pub fn bar(share: f64, kind: &str) -> Markup {
    let width = (share.clamp(0.0, 1.0) * 100.0).round();
    html! {
        svg.bar.(kind) viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true" focusable="false" {
            rect.whole width="100" height="6" {}
            rect.part width=(width) height="6" {}
        }
    }
}

/// A share that is low for what was allocated; high use of memory is close to its limit instead.
pub fn efficiency_kind(share: f64) -> &'static str {
    match share {
        s if s < 0.25 => "low",
        s if s < 0.5 => "mid",
        _ => "good",
    }
}

pub fn closeness_kind(share: f64) -> &'static str {
    match share {
        s if s > 0.95 => "low",
        s if s > 0.85 => "mid",
        _ => "good",
    }
}

/// An amount with the sign of its quality, which is explained where it is touched and by screen readers.
pub fn amount(amount: &Amount) -> Markup {
    html! { span.amount { (quality_mark(amount.quality)) (words::marked(&Amount { quality: QualityKind::Measured, ..*amount })) } }
}

pub fn quality_mark(quality: QualityKind) -> Markup {
    html! {
        @if let Some((sign, words)) = words::mark(quality) {
            abbr.mark title=(words) aria-label=(words) { (sign) }
        }
    }
}

/// A message above the content.
pub fn notice(kind: &str, text: &str) -> Markup {
    html! { p.notice.(kind) role="status" { (said(text)) } }
}

/// A message of a program; what is to be typed is between backticks.
pub fn said(text: &str) -> Markup {
    let parts: Vec<&str> = text.split('`').collect();
    // One that has no partner is part of the text.
    let is_paired = parts.len() % 2 == 1;
    html! {
        @if is_paired {
            @for (index, part) in parts.iter().enumerate() {
                @if index % 2 == 1 { code { (escape(part)) } } @else { (escape(part)) }
            }
        } @else { (escape(text)) }
    }
}

/// A page without navigation, for those who cannot go anywhere yet. Works without its style.
pub fn plain(style: Option<&str>, title: &str, content: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) " · met" }
                // A browser would ask for one, and be refused.
                link rel="icon" href="data:,";
                @if let Some(style) = style { link rel="stylesheet" href=(style); }
            }
            body.plain { main { p.brand { "met" } div.box { (content) } } }
        }
    }
}

/// Everything but what is certainly harmless in a path or a query.
pub fn percent_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => encoded.push(byte.into()),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    // A browser would take these for folders.
    if matches!(text, "." | "..") { encoded.replace('.', "%2E") } else { encoded }
}

/// A query string of these parameters.
pub fn search<'a>(parameters: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let pairs = parameters.into_iter().map(|(name, value)| format!("{name}={}", percent_encoded(value)));
    pairs.collect::<Vec<_>>().join("&")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_to_be_typed_is_marked_and_a_lone_backtick_is_text() {
        assert_eq!(said("run `met web` <b>").into_string(), "run <code>met web</code> &lt;b&gt;");
        assert_eq!(said("a ` b").into_string(), "a ` b");
    }

    #[test]
    fn foreign_text_in_a_path_stays_one_segment() {
        assert_eq!(percent_encoded("slurm:12_3@n1"), "slurm%3A12_3%40n1");
        assert_eq!(percent_encoded("../a/b?c#d"), "..%2Fa%2Fb%3Fc%23d");
        assert_eq!(percent_encoded(".."), "%2E%2E");
        assert_eq!(search([("user", "a&b=c"), ("name", "x y")]), "user=a%26b%3Dc&name=x%20y");
    }
}
