//! How long a job waits to enter its cgroup v1 directories: the kernel makes every move wait for all CPUs, unless its
//! cgroups are mounted to favour moves.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use met_host::cgroup::Kind;
use met_jobs::job_cgroup::{Enable, JobCgroup};

use super::{Finding, Health};
use met_query::setting::Setting;

/// A grace period takes longer: 6 to 26 ms.
const SHORT: Duration = Duration::from_millis(4);
const TRIES: usize = 3;
/// Right after another move one costs nothing.
const APART: Duration = Duration::from_millis(50);
/// The first Linux with the mount option.
const FAVORDYNMODS_SINCE: u32 = 6;

/// `None` where no v1 directory is created for a job.
pub(super) fn cgroup_entry(setting: &Setting) -> Option<Finding> {
    let hierarchies = setting.host.hierarchies();
    if !matches!(hierarchies.kind(), Kind::V1 | Kind::Hybrid) {
        return None;
    }
    let entry = measured(setting)?;
    let unified = hierarchies.unified.as_ref().map(|mount| mount.point.as_path());
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    Some(finding(entry, unified, &release))
}

/// Tried for real with a process that only waits: the time depends on the CPUs of the machine and on how its cgroups
/// are mounted. The median of some tries.
fn measured(setting: &Setting) -> Option<Duration> {
    let name = format!("met-doctor-{}", std::process::id());
    let enclosure = JobCgroup::create(&setting.host, std::process::id(), &name, Enable::No);
    if enclosure.procs().is_empty() {
        return None;
    }
    let mut tries: Vec<Duration> = (0..TRIES).filter_map(|_| time_move(&enclosure)).collect();
    tries.sort_unstable();
    tries.get(tries.len() / 2).copied()
}

fn time_move(enclosure: &JobCgroup) -> Option<Duration> {
    std::thread::sleep(APART);
    let mut waiting = Command::new("/bin/cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().ok()?;
    let begin = Instant::now();
    let moved = enclosure.move_in(waiting.id());
    let took = begin.elapsed();
    // The end of its input ends it.
    drop(waiting.stdin.take());
    let _ = waiting.wait();
    moved.ok().map(|()| took)
}

fn finding(entry: Duration, unified: Option<&Path>, release: &str) -> Finding {
    let ms = entry.as_secs_f64() * 1e3;
    if entry < SHORT {
        let detail = format!("a job enters its cgroup v1 directory in {ms:.1} ms");
        return Finding::new("cgroup entry", Health::Good, detail);
    }
    let detail = format!("each job waits {ms:.1} ms to enter its cgroup v1 directory");
    let major = release.split('.').next().and_then(|major| major.parse::<u32>().ok());
    if major.is_none_or(|major| major < FAVORDYNMODS_SINCE) {
        return Finding::new("cgroup entry", Health::Less, detail)
            .remedied_by("set jobs.start_before_cgroup: yes    (memory figures are then lower bounds)");
    }
    let remedy = match unified {
        Some(point) => format!("mount -o remount,favordynmods {}", point.display()),
        None => "mkdir -p /run/cgroup2 && mount -t cgroup2 -o favordynmods none /run/cgroup2".to_owned(),
    };
    Finding::new("cgroup entry", Health::Less, format!("{detail}; below 1 ms with favordynmods"))
        .remedied_by(remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_wait_is_shown_with_what_would_shorten_it() {
        let unified = Some(Path::new("/sys/fs/cgroup/unified"));
        let of = |ms: u64, unified, release| finding(Duration::from_millis(ms), unified, release);
        let short = of(1, unified, "6.18.4");
        assert!(short.health == Health::Good && short.remedy.is_none());
        let long = of(20, unified, "6.18.44-fc");
        assert!(long.health == Health::Less);
        assert_eq!(
            long.detail,
            "each job waits 20.0 ms to enter its cgroup v1 directory; below 1 ms with favordynmods"
        );
        assert_eq!(long.remedy.as_deref(), Some("mount -o remount,favordynmods /sys/fs/cgroup/unified"));
        assert!(of(20, None, "6.0").remedy.unwrap().contains("mount -t cgroup2 -o favordynmods"));
        let old = of(20, unified, "5.14.0-503.el9");
        assert!(!old.detail.contains("favordynmods"), "the kernel does not have it");
        assert!(old.remedy.unwrap().contains("start_before_cgroup"));
    }
}
