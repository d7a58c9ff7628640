//! What the cgroup of a job allows it on this node.

use std::path::{Path, PathBuf};

use met_core::gpu_holding::{self, GpuRef};
use met_core::job::CgroupPaths;
use met_host::cgroup_files::{CPU_PERIOD_V1, UNLIMITED_BYTES, V1, V2};
use met_host::{Host, parse};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    pub cpus: Option<i64>,
    pub memory_bytes: Option<i64>,
    pub gpus: Option<i64>,
}

pub fn read(host: &Host, cgroup: &CgroupPaths) -> Limits {
    let mut reader = Reader { host, buffer: Vec::new() };
    Limits { cpus: reader.cpus(cgroup), memory_bytes: reader.memory(cgroup), gpus: reader.gpus(cgroup) }
}

struct Reader<'a> {
    host: &'a Host,
    buffer: Vec<u8>,
}

impl Reader<'_> {
    fn file(&mut self, folder: &Path, name: &str) -> Option<&[u8]> {
        self.host.read_small(folder.join(name), &mut self.buffer).ok()?;
        Some(self.buffer.trim_ascii())
    }

    /// The CPUs it may run on, or as many as its quota is worth, whichever is less.
    fn cpus(&mut self, cgroup: &CgroupPaths) -> Option<i64> {
        let machine = i64::from(self.host.facts().cpu_count);
        let folders = folders(cgroup, "cpuset");
        let allowed = folders.iter().find_map(|folder| {
            let count = parse::cpu_list_count(self.file(folder, "cpuset.cpus")?)?;
            Some(i64::from(count)).filter(|&count| count > 0)
        });
        let quota = self.quota(cgroup).filter(|&cpus| cpus < machine);
        match (allowed, quota) {
            (Some(allowed), Some(quota)) => Some(allowed.min(quota)),
            (allowed, quota) => allowed.or(quota),
        }
    }

    /// A part of a CPU counts as one.
    fn quota(&mut self, cgroup: &CgroupPaths) -> Option<i64> {
        let cpus = |quota: u64, period: u64| {
            (quota > 0 && period > 0).then(|| i64::try_from(quota.div_ceil(period)).ok()).flatten()
        };
        if let Some(unified) = &cgroup.unified
            && let Some(text) = self.file(unified, V2.cpu_quota)
        {
            let mut fields = parse::fields(text);
            return cpus(parse::u64(fields.next()?)?, parse::u64(fields.next()?)?);
        }
        folders(cgroup, "cpu").iter().find_map(|folder| {
            let quota = parse::u64(self.file(folder, V1.cpu_quota)?)?;
            cpus(quota, parse::u64(self.file(folder, CPU_PERIOD_V1)?)?)
        })
    }

    fn memory(&mut self, cgroup: &CgroupPaths) -> Option<i64> {
        let unified = cgroup.unified.as_deref().map(|folder| (folder, V2.memory_limit));
        let memory = cgroup.memory.as_deref().map(|folder| (folder, V1.memory_limit));
        // Hybrid hosts have no memory in the unified hierarchy; the file is not there, then.
        [unified, memory].into_iter().flatten().find_map(|(folder, name)| {
            parse::i64(self.file(folder, name)?).filter(|bytes| (1..UNLIMITED_BYTES).contains(bytes))
        })
    }

    /// Only cgroup v1 shows which devices are allowed; on v2 it is a program in the kernel.
    fn gpus(&mut self, cgroup: &CgroupPaths) -> Option<i64> {
        const NVIDIA: u32 = 195;
        /// GPUs of the other makers have two device files; the second ones are numbered from here.
        const RENDER_FIRST: u32 = 128;
        let held = folders(cgroup, "devices")
            .iter()
            .find_map(|folder| gpu_holding::of_devices(self.file(folder, "devices.list")?))?;
        let is_gpu = |gpu: &&GpuRef| match **gpu {
            GpuRef::Device(major, minor) => major == NVIDIA || minor >= RENDER_FIRST,
            _ => false,
        };
        i64::try_from(held.gpus.iter().filter(is_gpu).count()).ok().filter(|&count| count > 0)
    }
}

/// Where the files of a controller may be: in the known directories themselves, where hierarchies are mounted
/// together, and in the directory of the same name below the controller's own mount.
fn folders(cgroup: &CgroupPaths, controller: &str) -> Vec<PathBuf> {
    let known = [&cgroup.unified, &cgroup.cpuacct, &cgroup.memory];
    let known: Vec<&PathBuf> = known.into_iter().flatten().collect();
    let mut folders: Vec<PathBuf> = known.iter().map(|folder| (*folder).clone()).collect();
    for folder in [&cgroup.cpuacct, &cgroup.memory].into_iter().flatten() {
        if let Ok(below) = folder.strip_prefix("/sys/fs/cgroup") {
            let name: PathBuf = below.components().skip(1).collect();
            folders.push(Path::new("/sys/fs/cgroup").join(controller).join(name));
        }
    }
    folders
}
