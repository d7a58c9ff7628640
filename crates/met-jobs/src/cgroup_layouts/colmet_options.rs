//! How Colmet's options say where the cgroups of jobs are, as a layout of ours.

use met_core::managers::Scheduler;

use super::Layout;

/// Colmet's default: a user and a number.
const REGEX: &str = r"_(\d+)$";

/// The layout, or why there is none.
pub fn layout(root: Option<&str>, regex: Option<&str>) -> Result<Layout, String> {
    let manager = Scheduler::Oar.name();
    let root = match root {
        // A path in the hierarchy of cpusets, whichever mount or link leads there.
        Some(root) => root.rsplit_once("/cpuset/").map(|(_, below)| below.trim_matches('/')),
        None => Some(manager),
    };
    let root = root.filter(|root| !root.is_empty()).ok_or("it is not a cgroup below /cpuset/")?;
    let regex = regex.unwrap_or(REGEX);
    match name(regex) {
        Some(name) => Layout::parse(manager, &format!("{root}/{name}"), ""),
        None => Layout::searched(manager, root, regex),
    }
}

/// The pattern of a job's directory, of simple expressions: of Colmet's own it knows the user, too.
fn name(regex: &str) -> Option<String> {
    let (is_whole, rest) = match regex.strip_prefix('^') {
        Some(rest) => (true, rest),
        None => (false, regex),
    };
    let fixed = rest.strip_suffix(r"(\d+)$").or_else(|| rest.strip_suffix("([0-9]+)$"))?;
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-');
    if !fixed.chars().all(is_plain) {
        return None;
    }
    Some(match (is_whole, fixed) {
        (true, fixed) => format!("{fixed}{{id:#}}"),
        (false, "_") => "{user}_{id:#}".to_owned(),
        (false, fixed) => format!("*{fixed}{{id:#}}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_and_a_simple_expression_are_a_layout() {
        let is_layout = |root: Option<&str>, regex: Option<&str>, expected: &str| {
            assert_eq!(layout(root, regex), Layout::parse("oar", expected, ""));
        };
        is_layout(Some("/dev/oar_cgroups_links/cpuset/oar/"), Some(REGEX), "oar/{user}_{id:#}");
        is_layout(Some("/sys/fs/cgroup/cpuset/a/b"), Some(r"^job-(\d+)$"), "a/b/job-{id:#}");
        is_layout(None, Some(r"-([0-9]+)$"), "oar/*-{id:#}");
        for regex in [r"_(\d+)", r"(?:a|b)_(\d+)$", r"[a-z]+_(\d+)$", r"_(\w+)$"] {
            assert_eq!(layout(None, Some(regex)), Layout::searched("oar", "oar", regex), "{regex}");
        }
        for regex in ["", r"_\d+$", "(", r"(?=a)(\d+)"] {
            assert!(layout(None, Some(regex)).is_err(), "{regex}");
        }
        for root in ["/srv/jobs", "/sys/fs/cgroup/cpuset/", ""] {
            assert!(layout(Some(root), None).is_err(), "{root}");
        }
    }
}
