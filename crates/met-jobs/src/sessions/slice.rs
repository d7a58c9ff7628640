//! The slice in which systemd keeps all that a user runs. Its counter includes processes that were never seen.

use met_host::cgroup::Mount;
use met_host::cgroup_files::V2;
use met_host::{Host, parse};

/// The CPU time of everything that a user runs, except the user's own systemd.
pub fn slice_cpu_ns(host: &Host, unified: &Mount, uid: u32) -> Option<u64> {
    let slice = unified.point.join(format!("user.slice/user-{uid}.slice"));
    let mut text = Vec::new();
    let mut used_ns = |path: std::path::PathBuf| {
        host.read_small(path.join(V2.cpu_usage), &mut text).ok()?;
        u64::try_from(parse::value_of(&text, "usage_usec")).ok()?.checked_mul(1000)
    };
    let init_ns = used_ns(slice.join(format!("user@{uid}.service/init.scope"))).unwrap_or(0);
    used_ns(slice)?.checked_sub(init_ns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use met_host::cgroup::Hierarchies;

    #[test]
    fn a_slice_is_counted_without_the_systemd_in_it() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("proc/self/mountinfo", "31 1 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
        let slice = "sys/fs/cgroup/unified/user.slice/user-1000.slice";
        write(&format!("{slice}/cpu.stat"), "usage_usec 500\nuser_usec 400\n");
        let host = Host::at(root.path()).unwrap();
        let unified = Hierarchies::read(&host).unwrap().unified.unwrap();
        assert_eq!(slice_cpu_ns(&host, &unified, 1000), Some(500_000));
        write(&format!("{slice}/user@1000.service/init.scope/cpu.stat"), "usage_usec 20\n");
        assert_eq!(slice_cpu_ns(&host, &unified, 1000), Some(480_000));
        assert_eq!(slice_cpu_ns(&host, &unified, 1001), None, "no such slice");
    }
}
