//! NVIDIA's library: found and loaded, and the GPUs and parts of GPUs that it shows.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::time::Duration;

use met_core::MISSING;
use met_core::gpu::{device, vendor};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::nvmlDevice_t;

use super::{NO_ANSWER, memory_bytes, outcome};

const LIBRARIES: [&str; 3] =
    ["libnvidia-ml.so.1", "libnvidia-ml.so", "/usr/local/nvidia/lib64/libnvidia-ml.so.1"];

pub(super) const NO_GPU: &str = "the NVIDIA driver reports no GPU";

/// Some GPUs take a second to wake up; one that takes longer is left out until it answers.
const GPU_TIMEOUT: Duration = Duration::from_millis(if cfg!(test) { 500 } else { 5000 });

/// The library and the GPUs it shows; cheap to clone. Dropping the last clone shuts it down, which takes as
/// long as the driver likes: only the source's own threads keep it, and readers for a moment.
#[derive(Clone)]
pub(super) struct Loaded {
    /// Distinguishes one loading from the next.
    pub number: u64,
    pub nvml: Arc<Nvml>,
    pub gpus: Arc<[GpuFacts]>,
    /// GPUs that are there and cannot be read: their numbers and why.
    pub lost: Arc<[(u32, String)]>,
    /// One of them has answered since.
    has_answered: Arc<AtomicBool>,
}

/// Where the thread that loads the library lends it to the readers of power and use.
#[derive(Clone, Default)]
pub(super) struct Lender(Arc<Mutex<Option<Loaded>>>);

impl Lender {
    /// Lends the library, or takes it back. Another thread may still use it.
    pub fn lend(&self, loaded: Option<Loaded>) {
        let before = std::mem::replace(&mut *lock(&self.0), loaded);
        // Not under the lock: the last one to let go shuts the library down.
        drop(before);
    }

    /// What is lent now.
    pub fn lent(&self) -> Option<Loaded> {
        lock(&self.0).clone()
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|broken| broken.into_inner())
}

/// The same without the library, for ticks.
#[derive(Clone)]
pub(super) struct Shown {
    pub number: u64,
    pub gpus: Arc<[GpuFacts]>,
    pub lost: Arc<[(u32, String)]>,
}

pub(super) struct GpuFacts {
    pub index: u32,
    /// Its uuid.
    pub id: Arc<str>,
    handle: Handle,
    pub labels: Vec<String>,
    /// How many slices it has, if it can be cut into parts and is.
    pub slices: Option<u32>,
    pub parts: Vec<PartFacts>,
}

/// The library's own name of a GPU; worth something as long as the library stays loaded.
struct Handle(nvmlDevice_t);

// SAFETY: the library may be called from any thread, and never gives its handles up while it is loaded.
unsafe impl Send for Handle {}
unsafe impl Sync for Handle {}

impl GpuFacts {
    /// Looking a GPU up by its number would cost as much as reading it.
    pub fn device<'a>(&self, nvml: &'a Nvml) -> Device<'a> {
        // SAFETY: the handle comes from this very library, which `Loaded` keeps together with it.
        unsafe { Device::new(self.handle.0, nvml) }
    }
}

pub(super) struct PartFacts {
    handle: Handle,
    pub labels: Vec<String>,
    pub gpu_instance: u32,
    pub compute_instance: u32,
    pub slices: u32,
    pub memory_bytes: i64,
}

impl PartFacts {
    pub fn device<'a>(&self, nvml: &'a Nvml) -> Device<'a> {
        // SAFETY: as for the whole GPU.
        unsafe { Device::new(self.handle.0, nvml) }
    }
}

pub(super) fn load(library: Option<&Path>, number: u64) -> Result<Loaded, String> {
    let nvml = match library {
        Some(path) => init(path.as_os_str()),
        None => {
            let mut tried = LIBRARIES.iter().map(|name| init(OsStr::new(name)));
            let first = tried.next().unwrap_or(Err(NvmlError::LibraryNotFound));
            let missing = |error: &NvmlError| matches!(error, NvmlError::LibloadingError(_));
            match first {
                Err(error) if missing(&error) => tried.find_map(Result::ok).ok_or(error),
                other => other,
            }
        }
    };
    let nvml = nvml.map_err(|error| match error {
        NvmlError::LibloadingError(why) if library.is_some() => {
            format!("{}: {why}", library.unwrap_or(Path::new("")).display())
        }
        NvmlError::LibloadingError(_) => {
            "an NVIDIA driver is loaded but its library libnvidia-ml.so.1 is not installed".to_owned()
        }
        NvmlError::LibRmVersionMismatch => {
            "libnvidia-ml.so.1 and the loaded NVIDIA driver are of different versions: reboot, or reload the driver".to_owned()
        }
        error => format!("NVML: {error}"),
    })?;
    let count = nvml.device_count().map_err(|error| format!("NVML: {error}"))?;
    if count == 0 {
        return Err(NO_GPU.to_owned());
    }
    let (nvml, has_answered) = (Arc::new(nvml), Arc::default());
    let (mut gpus, mut lost) = (Vec::new(), Vec::new());
    for index in 0..count {
        // A GPU that is lost or not ours does not take the others with it.
        match facts_in_time(&nvml, index, &has_answered) {
            Ok(Some(facts)) => gpus.push(facts),
            Ok(None) => {}
            Err(why) => lost.push((index, why)),
        }
    }
    if gpus.is_empty() {
        return Err(format!("no permission to read any of the {count} NVIDIA GPUs"));
    }
    Ok(Loaded { number, nvml, gpus: gpus.into(), lost: lost.into(), has_answered })
}

impl Loaded {
    /// Whether a GPU that did not answer when the library was loaded has answered since.
    pub fn has_answered(&self) -> bool {
        self.has_answered.load(Ordering::Relaxed)
    }

    /// The GPUs that could not be read when the library was loaded, except those that block their callers.
    pub fn unread(&self, count: u32) -> impl Iterator<Item = u32> {
        let is_silent = |index: u32| self.lost.iter().any(|(lost, why)| *lost == index && why == NO_ANSWER);
        let is_known = |index: u32| self.gpus.iter().any(|facts| facts.index == index);
        (0..count).filter(move |&index| !is_known(index) && !is_silent(index))
    }

    /// Whether one of them can be read now.
    pub fn may_be_read(&self, index: u32) -> bool {
        self.nvml.device_by_index(index).is_ok_and(|device| device.uuid().is_ok())
    }
}

/// What a GPU is; nothing if it is not ours to read. One that does not answer keeps a thread of its own.
fn facts_in_time(
    nvml: &Arc<Nvml>,
    index: u32,
    has_answered: &Arc<AtomicBool>,
) -> Result<Option<GpuFacts>, String> {
    let (sender, receiver) = mpsc::sync_channel(1);
    let (nvml, has_answered) = (Arc::clone(nvml), Arc::clone(has_answered));
    let ask = move || {
        let facts = match nvml.device_by_index(index).and_then(|device| facts_of(&device, index)) {
            Ok(facts) => Ok(Some(facts)),
            Err(NvmlError::NoPermission) => Ok(None),
            Err(error) => Err(error.to_string()),
        };
        // Before the caller goes on: it may want to be the last owner of the library.
        drop(nvml);
        if sender.send(facts).is_err() {
            has_answered.store(true, Ordering::Relaxed);
        }
    };
    let started = std::thread::Builder::new().name("nvml-card".to_owned()).spawn(ask);
    started.map_err(|error| format!("cannot start a thread for it: {error}"))?;
    receiver.recv_timeout(GPU_TIMEOUT).unwrap_or_else(|_| Err(NO_ANSWER.to_owned()))
}

/// Whether it is another GPU by now, or has other parts. One that is lost is no change: its handle may work
/// again, and the others need not suffer for it.
pub(super) fn is_changed(loaded: &Loaded, known: &GpuFacts) -> bool {
    let uuids = |facts: &GpuFacts| -> Vec<String> {
        let parts = facts.parts.iter().map(|part| &part.labels);
        [&facts.labels].into_iter().chain(parts).map(|labels| labels[device::label::UUID].clone()).collect()
    };
    let now = loaded.nvml.device_by_index(known.index).and_then(|device| facts_of(&device, known.index));
    now.is_ok_and(|now| uuids(&now) != uuids(known))
}

fn init(path: &OsStr) -> Result<Nvml, NvmlError> {
    Nvml::builder().lib_path(path).init()
}

fn facts_of(device: &Device<'_>, index: u32) -> Result<GpuFacts, NvmlError> {
    let uuid = device.uuid()?;
    let name = device.name().unwrap_or_else(|_| "NVIDIA".to_owned());
    let minor = device.minor_number().map(|minor| format!("195:{minor}")).unwrap_or_default();
    let mut facts = GpuFacts {
        index,
        id: uuid.as_str().into(),
        // SAFETY: kept with the library it comes from.
        handle: Handle(unsafe { device.handle() }),
        labels: vec![
            index.to_string(),
            uuid.clone(),
            name.clone(),
            vendor::NVIDIA.to_owned(),
            String::new(),
            minor,
        ],
        slices: None,
        parts: Vec::new(),
    };
    if device.mig_mode().is_ok_and(|mode| mode.current != 0) {
        let most = device.mig_device_count().unwrap_or(0);
        facts.slices = Some(most);
        for position in 0..most {
            if let Ok(piece) = device.mig_device_by_index(position)
                && let Some(piece) = part_facts(&piece, index, position, &name, &uuid)
            {
                facts.parts.push(piece);
            }
        }
    }
    Ok(facts)
}

fn part_facts(device: &Device<'_>, gpu: u32, position: u32, name: &str, parent: &str) -> Option<PartFacts> {
    let library = device.nvml().lib();
    let id = |symbol: &Result<unsafe extern "C" fn(_, *mut u32) -> _, _>| {
        let symbol = symbol.as_ref().ok()?;
        let mut id = 0;
        // SAFETY: the handle is that of a living part, and the library writes one number.
        outcome(unsafe { symbol(device.handle(), &mut id) }).ok()?;
        Some(id)
    };
    let attributes = device.attributes().ok();
    let slices = attributes.as_ref().map_or(1, |found| {
        // Several computing instances may divide the slices of one instance.
        let own = found.compute_instance_slice_count;
        if own > 0 { own } else { found.gpu_instance_slice_count.max(1) }
    });
    let memory =
        attributes.map_or(MISSING, |found| memory_bytes(found.memory_size_mb.saturating_mul(1 << 20)));
    let gpu_instance = id(&library.nvmlDeviceGetGpuInstanceId)?;
    let compute_instance = id(&library.nvmlDeviceGetComputeInstanceId)?;
    let labels = vec![
        format!("{gpu}.{position}"),
        device.uuid().ok()?,
        format!("{name} MIG {slices}g"),
        vendor::NVIDIA.to_owned(),
        parent.to_owned(),
        String::new(),
        format!("{gpu_instance}/{compute_instance}"),
    ];
    // SAFETY: kept with the library it comes from.
    let handle = Handle(unsafe { device.handle() });
    Some(PartFacts { handle, labels, gpu_instance, compute_instance, slices, memory_bytes: memory })
}
