//! Which GPUs a job was given, by what its environment and its devices cgroup say.

use crate::gpu::vendor::{AMD, INTEL, NVIDIA};
use crate::managers::MANAGERS;

/// The GPUs that a process was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    /// The variable, or another source of it.
    pub source: &'static str,
    /// Only GPUs of this maker are meant; `None`: of any maker.
    pub vendor: Option<&'static str>,
    pub gpus: Vec<GpuRef>,
    /// Its numbers are CUDA's, which puts the fastest GPU first unless configured to count as the driver does:
    /// with different GPUs they may mean others.
    pub fastest_first: bool,
}

/// How a GPU is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuRef {
    All,
    /// The driver's number; of a part of a GPU also the number of the part.
    Index(u32, Option<u32>),
    /// A uuid or an unambiguous prefix of one.
    Uuid(String),
    /// A device file.
    Device(u32, u32),
}

const CUDA: &str = "CUDA_VISIBLE_DEVICES";

/// Of each maker's own variables the first that names a GPU is believed.
const OF_MAKERS: [(&str, &[&str]); 3] = [
    (NVIDIA, &[CUDA, "NVIDIA_VISIBLE_DEVICES"]),
    (AMD, &["ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"]),
    (INTEL, &["ZE_AFFINITY_MASK"]),
];
/// More GPUs than any machine has; a longer list is bogus.
const GPUS_MAX: usize = 1024;

/// What the environment of a process, as /proc/PID/environ has it, says about GPUs: one holding, or one for
/// each maker whose GPUs it names.
pub fn of_environ(environ: &[u8]) -> Vec<Holding> {
    let environ = Environ(environ);
    // A scheduler sets the variables of all makers, whatever the GPUs are: there is no other source. It does not say
    // whose GPUs it counts. What the job has comes before what one of its steps has: the job holds the rest, too.
    let mut of_schedulers = MANAGERS.iter().flat_map(|manager| manager.gpu_variables);
    if let Some(scheduler) = of_schedulers.find_map(|name| environ.holding(name, None)) {
        // Its numbers count what it hands out, of which a part of a GPU is one: then only the uuid is exact.
        // Numbers for CUDA begin at 0 again in a job whose other GPUs are hidden.
        let exact = environ.holding(CUDA, Some(NVIDIA)).filter(Holding::names_uuids);
        return vec![exact.unwrap_or(scheduler)];
    }
    let of_maker = |(vendor, names): (&'static str, &'static [&'static str])| {
        for &name in names {
            let held = environ.holding(name, Some(vendor));
            // `void` says nothing; an empty list for CUDA says: none.
            if held.is_some() || (name == CUDA && environ.value_of(name).is_some()) {
                return held;
            }
        }
        None
    };
    OF_MAKERS.into_iter().filter_map(of_maker).collect()
}

#[derive(Clone, Copy)]
struct Environ<'a>(&'a [u8]);

impl Environ<'_> {
    fn value_of(self, name: &str) -> Option<String> {
        self.0.split(|&byte| byte == 0).find_map(|entry| {
            let (key, value) = entry.split_at(entry.iter().position(|&byte| byte == b'=')?);
            (key == name.as_bytes()).then(|| String::from_utf8_lossy(&value[1..]).into_owned())
        })
    }

    fn holding(self, source: &'static str, vendor: Option<&'static str>) -> Option<Holding> {
        let mut gpus = gpus(&self.value_of(source)?);
        if vendor == Some(INTEL) {
            // Tiles are not separate GPUs here: a job with a tile has the GPU.
            for gpu in &mut gpus {
                if let GpuRef::Index(_, tile) = gpu {
                    *tile = None;
                }
            }
            gpus.dedup();
        }
        let fastest_first =
            source == CUDA && self.value_of("CUDA_DEVICE_ORDER").as_deref() != Some("PCI_BUS_ID");
        (!gpus.is_empty()).then_some(Holding { source, vendor, gpus, fastest_first })
    }
}

/// What a list of GPUs names; CUDA ends its list at the first entry that is none.
fn gpus(text: &str) -> Vec<GpuRef> {
    let mut gpus = Vec::new();
    for entry in text.split(',').map(str::trim) {
        let entry = entry.strip_prefix("gpu:").unwrap_or(entry);
        match entry {
            "all" => gpus.push(GpuRef::All),
            _ if entry.starts_with("GPU-") || entry.starts_with("MIG-") => {
                gpus.push(GpuRef::Uuid(entry.to_owned()));
            }
            _ => match numbers(entry) {
                Some(found) => gpus.extend(found),
                None => break,
            },
        }
        if gpus.len() >= GPUS_MAX {
            gpus.truncate(GPUS_MAX);
            break;
        }
    }
    gpus
}

/// `3`, `0-3`, or `1.0` and `1:0` for part 0 of GPU 1.
fn numbers(entry: &str) -> Option<Vec<GpuRef>> {
    if let Some((gpu, part)) = entry.split_once(['.', ':']) {
        return Some(vec![GpuRef::Index(gpu.parse().ok()?, Some(part.parse().ok()?))]);
    }
    let (first, last) = match entry.split_once('-') {
        Some((first, last)) => (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?),
        None => (entry.parse().ok()?, entry.parse().ok()?),
    };
    (last >= first && last - first < GPUS_MAX as u32)
        .then(|| (first..=last).map(|index| GpuRef::Index(index, None)).collect())
}

/// What `devices.list` of a cgroup v1 allows, unless it allows everything.
pub fn of_devices(list: &[u8]) -> Option<Holding> {
    /// nvidia and drm; of the former 255 is the control device and no GPU.
    const MAJORS: [u32; 2] = [195, 226];
    let text = String::from_utf8_lossy(list);
    let mut gpus = Vec::new();
    for line in text.lines().take(GPUS_MAX) {
        let mut fields = line.split_whitespace();
        let (kind, device) = (fields.next()?, fields.next()?);
        let (major, minor) = device.split_once(':')?;
        if kind == "a" || (major == "*" && minor == "*") {
            return None;
        }
        if let (Ok(major), Ok(minor)) = (major.parse(), minor.parse::<u32>())
            && kind == "c"
            && MAJORS.contains(&major)
            && !(major == 195 && minor >= 254)
        {
            gpus.push(GpuRef::Device(major, minor));
        }
    }
    (!gpus.is_empty()).then_some(Holding {
        source: "devices cgroup",
        vendor: None,
        gpus,
        fastest_first: false,
    })
}

/// A GPU as a holding may name it.
#[derive(Clone, Copy, Debug)]
pub struct Named<'a> {
    pub index: &'a str,
    pub uuid: &'a str,
    pub vendor: &'a str,
    /// The uuid of the GPU this is a part of, or nothing.
    pub parent: &'a str,
    pub device: &'a str,
    /// Of a part its GPU instance and compute instance, as `1/0`; else nothing.
    pub mig: &'a str,
}

impl Holding {
    fn names_uuids(&self) -> bool {
        self.gpus.iter().any(|gpu| matches!(gpu, GpuRef::Uuid(_)))
    }

    /// Whether it names GPUs by numbers that may mean others where the machine has different ones. A uuid
    /// and a part's uuid are exact.
    pub fn is_doubtful(&self) -> bool {
        self.fastest_first && self.gpus.iter().any(|gpu| matches!(gpu, GpuRef::Index(..)))
    }

    /// Whether it names a GPU; `numbered` is whose GPUs are meant by a number without a maker.
    pub fn includes(&self, gpu: Named<'_>, numbered: &str) -> bool {
        if self.vendor.is_some_and(|vendor| vendor != gpu.vendor) {
            return false;
        }
        self.gpus.iter().any(|held| match held {
            GpuRef::All => true,
            GpuRef::Uuid(uuid) => is_meant(uuid, gpu),
            GpuRef::Index(..) if self.vendor.is_none() && gpu.vendor != numbered => false,
            // What a scheduler counts beside whole GPUs are parts: whose it is, its number does not say.
            GpuRef::Index(_, None) if self.vendor.is_none() && !gpu.parent.is_empty() => false,
            GpuRef::Index(index, None) => {
                let whole = gpu.index.split_once('.').map_or(gpu.index, |(whole, _)| whole);
                whole.parse() == Ok(*index)
            }
            GpuRef::Index(index, Some(part)) => gpu.index == format!("{index}.{part}"),
            GpuRef::Device(major, minor) => gpu.device == format!("{major}:{minor}"),
        })
    }
}

/// Whether a uuid, or the beginning of one, means a GPU.
fn is_meant(uuid: &str, gpu: Named<'_>) -> bool {
    // What older drivers call a part: `MIG-GPU-<uuid of the card>/1/0`, of which `/1/0` is not the beginning of
    // `/1/01`. Newer ones take it, too, and call the part by a uuid of its own.
    if let Some((parent, mig)) = uuid.strip_prefix("MIG-").and_then(|rest| rest.split_once('/')) {
        return gpu.uuid == uuid || (gpu.parent == parent && gpu.mig == mig);
    }
    gpu.uuid.starts_with(uuid) || gpu.parent == uuid
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GPU: Named<'_> =
        Named { index: "1", uuid: "GPU-8f2c-77", vendor: "nvidia", parent: "", device: "195:1", mig: "" };

    fn all_of(environ: &str) -> Vec<Holding> {
        of_environ(environ.replace(' ', "\0").as_bytes())
    }

    /// Its value for the GPUs of one maker.
    fn of(environ: &str) -> Option<Holding> {
        let mut all = all_of(environ);
        assert!(all.len() <= 1, "{all:?}");
        all.pop()
    }

    #[test]
    fn the_scheduler_is_believed_before_cuda() {
        let held = of("A=1 CUDA_VISIBLE_DEVICES=0 SLURM_JOB_GPUS=2-3").unwrap();
        assert_eq!(held.source, "SLURM_JOB_GPUS");
        assert_eq!(held.gpus, [GpuRef::Index(2, None), GpuRef::Index(3, None)]);
    }

    #[test]
    fn what_the_job_has_comes_before_what_its_first_step_has() {
        let held = of("SLURM_STEP_GPUS=1 SLURM_JOB_GPUS=0,1").unwrap();
        assert_eq!(held.source, "SLURM_JOB_GPUS");
        assert_eq!(held.gpus, [GpuRef::Index(0, None), GpuRef::Index(1, None)]);
        assert_eq!(of("SLURM_STEP_GPUS=1 SLURM_JOB_GPUS=").unwrap().gpus, [GpuRef::Index(1, None)]);
    }

    #[test]
    fn a_scheduler_that_hands_out_parts_is_believed_by_their_uuids() {
        let part = |uuid, index| Named { index, uuid, parent: "GPU-8f2c-77", device: "", ..GPU };
        let parts = [part("MIG-1", "0.0"), part("MIG-2", "0.1")];
        let holds = |environ: &str| {
            let held = of(environ).unwrap();
            parts.map(|part| held.includes(part, "nvidia"))
        };
        assert_eq!(holds("SLURM_JOB_GPUS=0 CUDA_VISIBLE_DEVICES=MIG-1"), [true, false]);
        assert_eq!(holds("SLURM_JOB_GPUS=1 CUDA_VISIBLE_DEVICES=MIG-2"), [false, true]);
        // Which of them the number means is unknown.
        assert_eq!(holds("SLURM_JOB_GPUS=0 CUDA_VISIBLE_DEVICES=0"), [false, false]);
        assert_eq!(holds("SLURM_JOB_GPUS=0"), [false, false]);
    }

    #[test]
    fn each_maker_has_variables_of_its_own_unless_a_scheduler_wrote_them_all() {
        let sources = |environ: &str| all_of(environ).iter().map(|held| held.source).collect::<Vec<_>>();
        assert_eq!(
            sources("ZE_AFFINITY_MASK=1 CUDA_VISIBLE_DEVICES=0 HIP_VISIBLE_DEVICES=1 ROCR_VISIBLE_DEVICES=0"),
            ["CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"]
        );
        assert_eq!(sources("CUDA_VISIBLE_DEVICES= ROCR_VISIBLE_DEVICES=0"), ["ROCR_VISIBLE_DEVICES"]);
        let amd = Named { index: "0", uuid: "GPU-a", vendor: "amd", ..GPU };
        let held = all_of("CUDA_VISIBLE_DEVICES=1 ROCR_VISIBLE_DEVICES=0");
        for gpu in [amd, GPU] {
            assert_eq!(held.iter().filter(|held| held.includes(gpu, "nvidia")).count(), 1, "{gpu:?}");
        }
        let written = "SLURM_JOB_GPUS=1 CUDA_VISIBLE_DEVICES=0 ROCR_VISIBLE_DEVICES=0";
        assert_eq!(sources(written), ["SLURM_JOB_GPUS"]);
    }

    #[test]
    fn the_holder_of_a_tile_has_the_intel_gpu() {
        let held = of("ZE_AFFINITY_MASK=0.0,0.1,1").unwrap();
        assert_eq!(held.gpus, [GpuRef::Index(0, None), GpuRef::Index(1, None)]);
        let gpu = Named { index: "0", uuid: "PCI-0", vendor: "intel", ..GPU };
        assert!(held.includes(gpu, "intel"));
    }

    #[test]
    fn lists_have_numbers_uuids_parts_and_an_end() {
        let held = of("CUDA_VISIBLE_DEVICES=1,GPU-8f2c,MIG-aa,-1,3").unwrap();
        assert_eq!(
            held.gpus,
            [GpuRef::Index(1, None), GpuRef::Uuid("GPU-8f2c".into()), GpuRef::Uuid("MIG-aa".into())]
        );
        assert_eq!(of("NVIDIA_VISIBLE_DEVICES=0:1").unwrap().gpus, [GpuRef::Index(0, Some(1))]);
        for nothing in [
            "CUDA_VISIBLE_DEVICES=",
            "CUDA_VISIBLE_DEVICES=NoDevFiles",
            "NVIDIA_VISIBLE_DEVICES=void",
            "PATH=0",
        ] {
            assert_eq!(of(nothing), None, "{nothing}");
        }
    }

    #[test]
    fn a_gpu_is_held_by_number_uuid_or_device_of_its_maker() {
        let holds = |environ: &str| of(environ).is_some_and(|held| held.includes(GPU, "nvidia"));
        assert!(holds("CUDA_VISIBLE_DEVICES=0,1") && holds("CUDA_VISIBLE_DEVICES=GPU-8f2c"));
        assert!(holds("NVIDIA_VISIBLE_DEVICES=all") && holds("SLURM_JOB_GPUS=1"));
        assert!(!of("SLURM_JOB_GPUS=1").unwrap().includes(GPU, "amd"), "the number of another maker's");
        assert!(!holds("CUDA_VISIBLE_DEVICES=0") && !holds("ROCR_VISIBLE_DEVICES=1"));
        let part = Named { index: "1.0", uuid: "MIG-1", parent: "GPU-8f2c-77", ..GPU };
        assert!(of("CUDA_VISIBLE_DEVICES=MIG-1").unwrap().includes(part, "nvidia"));
        assert!(of("CUDA_VISIBLE_DEVICES=1").unwrap().includes(part, "nvidia"));
        assert!(!of("CUDA_VISIBLE_DEVICES=MIG-2").unwrap().includes(part, "nvidia"));
    }

    #[test]
    fn cudas_numbers_are_doubtful_unless_it_counts_as_the_driver_does() {
        assert!(of("CUDA_VISIBLE_DEVICES=0").unwrap().is_doubtful());
        assert!(of("CUDA_DEVICE_ORDER=FASTEST_FIRST CUDA_VISIBLE_DEVICES=GPU-8f2c,1").unwrap().is_doubtful());
        for exact in [
            "CUDA_VISIBLE_DEVICES=0,1 CUDA_DEVICE_ORDER=PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES=GPU-8f2c,MIG-aa",
            "SLURM_JOB_GPUS=1",
            "NVIDIA_VISIBLE_DEVICES=1",
        ] {
            assert!(!of(exact).unwrap().is_doubtful(), "{exact}");
        }
    }

    #[test]
    fn no_gpus_for_cuda_is_not_all_gpus_of_the_container() {
        assert_eq!(of("NVIDIA_VISIBLE_DEVICES=all CUDA_VISIBLE_DEVICES="), None);
        assert_eq!(of("SLURM_JOB_GPUS= CUDA_VISIBLE_DEVICES=2").unwrap().gpus, [GpuRef::Index(2, None)]);
    }

    #[test]
    fn a_part_is_named_by_its_uuid_of_either_form() {
        let part = |uuid| Named { index: "1.0", uuid, parent: "GPU-8f2c-77", ..GPU };
        let held = of("CUDA_VISIBLE_DEVICES=MIG-GPU-8f2c-77/1/0").unwrap();
        assert!(
            held.includes(part("MIG-GPU-8f2c-77/1/0"), "nvidia")
                && !held.includes(part("MIG-GPU-8f2c-77/1/01"), "nvidia")
        );
        assert!(!held.includes(part("MIG-GPU-8f2c-77/2/0"), "nvidia") && !held.includes(GPU, "nvidia"));
        assert!(of("CUDA_VISIBLE_DEVICES=MIG-77aa").unwrap().includes(part("MIG-77aa-b"), "nvidia"));
        // A newer driver accepts the older form, and reports a part's uuid and instances.
        let renamed = |mig| Named { mig, ..part("MIG-77aa-b") };
        assert!(held.includes(renamed("1/0"), "nvidia") && !held.includes(renamed("1/01"), "nvidia"));
        let other_gpu = Named { parent: "GPU-other", ..renamed("1/0") };
        assert!(!held.includes(other_gpu, "nvidia"));
    }

    #[test]
    fn a_devices_cgroup_names_gpus_unless_it_allows_all() {
        let held = of_devices(b"c 1:3 rwm\nc 195:1 rw\nc 195:255 rw\nb 8:* m\n").unwrap();
        assert_eq!(held.gpus, [GpuRef::Device(195, 1)]);
        assert!(held.includes(GPU, "nvidia"));
        assert_eq!(of_devices(b"a *:* rwm\n"), None);
        assert_eq!(of_devices(b""), None);
    }

    proptest! {
        #[test]
        fn no_environment_breaks_it(environ: Vec<u8>, list in "[0-9,.:=G-]{0,60}") {
            let _ = of_environ(&environ);
            let _ = of_devices(&environ);
            let _ = of(&format!("CUDA_VISIBLE_DEVICES={list}"));
        }
    }
}
