//! What every tick shows of a GPU: its power and its use. Read by a thread for others, or by the ticking
//! thread.

use std::sync::Arc;

use met_core::MISSING;
use met_core::gpu::device;
use met_host::clock;
use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError;

use super::library::Loaded;
use super::{NO_ANSWER, is_lost, is_unsupported, needs_reload};

/// Reading more often gives nothing new: a GPU's power is its mean of a second, its use that of 0.2 to 1 s.
pub(super) const ASK_EVERY_NS: i64 = if cfg!(test) { 0 } else { 450_000_000 };
/// An unsupported reading is tried again: during a reset a GPU reports everything as unsupported.
const ASK_AGAIN_NS: i64 = if cfg!(test) { 100_000_000 } else { 60_000_000_000 };

/// What a GPU showed when it was last asked.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    pub at_ns: i64,
    power: i64,
    utilization: i64,
    utilization_memory: i64,
    pub trouble: Option<Trouble>,
}

#[derive(Clone, Debug)]
pub(super) struct Trouble {
    pub text: String,
    /// The whole GPU is out of reach.
    pub lost: bool,
    /// The library must be reloaded.
    pub reload: bool,
}

impl Trouble {
    pub fn of_silent() -> Trouble {
        Trouble { text: NO_ANSWER.to_owned(), lost: false, reload: false }
    }
}

impl Reading {
    const NOTHING: Reading = Reading {
        at_ns: 0,
        power: MISSING,
        utilization: MISSING,
        utilization_memory: MISSING,
        trouble: None,
    };

    /// Of a GPU that blocks its callers.
    fn of_silent(at_ns: i64) -> Reading {
        Reading { at_ns, trouble: Some(Trouble::of_silent()), ..Reading::NOTHING }
    }

    pub fn computes(&self) -> bool {
        self.utilization != MISSING && self.utilization > 0
    }

    pub fn fill(&self, cells: &mut [i64]) {
        cells[device::POWER] = self.power;
        cells[device::UTILIZATION] = self.utilization;
        cells[device::UTILIZATION_MEMORY] = self.utilization_memory;
    }
}

/// A reading of each GPU.
#[derive(Clone, Debug, Default)]
pub(super) struct Answer {
    /// Of which loading of the library the GPUs are.
    pub loading: u64,
    pub at_ns: i64,
    pub gpus: Vec<Reading>,
}

/// Guards queries of GPUs, one after the other.
pub(super) trait GpuGuard {
    /// Whether the GPU of this number and uuid may be queried: not while it blocks a thread.
    fn enter(&mut self, gpu: usize, id: &Arc<str>, now_ns: i64) -> bool;

    /// A GPU has answered. False: that took so long that another thread has taken over.
    fn leave(&mut self, id: &Arc<str>) -> bool;
}

/// Until when power and use of each GPU are not asked for, because it does not know them.
pub(super) type Unknown = Vec<[i64; 2]>;

/// Reads every GPU. False: one of them took so long that another thread has taken over.
pub(super) fn read_all(
    loaded: Option<&Loaded>,
    guard: &mut impl GpuGuard,
    unknown: &mut Unknown,
    answer: &mut Answer,
) -> bool {
    let loading = loaded.map_or(0, |loaded| loaded.number);
    if std::mem::replace(&mut answer.loading, loading) != loading {
        unknown.clear();
    }
    answer.gpus.clear();
    let Some(loaded) = loaded else { return true };
    unknown.resize(loaded.gpus.len(), [0; 2]);
    for (index, (facts, unknown)) in loaded.gpus.iter().zip(unknown).enumerate() {
        let now_ns = clock::boottime_ns();
        if !guard.enter(index, &facts.id, now_ns) {
            answer.gpus.push(Reading::of_silent(now_ns));
            continue;
        }
        let reading = read(&facts.device(&loaded.nvml), now_ns, unknown);
        if !guard.leave(&facts.id) {
            return false;
        }
        answer.gpus.push(reading);
    }
    true
}

fn read(device: &Device<'_>, now_ns: i64, unknown: &mut [i64; 2]) -> Reading {
    let mut reading = Reading { at_ns: now_ns, ..Reading::NOTHING };
    let trouble = |error: &NvmlError| Trouble {
        text: error.to_string(),
        lost: is_lost(error),
        reload: needs_reload(error),
    };
    if unknown[0] <= now_ns {
        match device.power_usage() {
            Ok(mw) => reading.power = i64::from(mw),
            Err(error) if is_unsupported(&error) => unknown[0] = now_ns + ASK_AGAIN_NS,
            Err(error) => reading.trouble = Some(trouble(&error)),
        }
    }
    // A GPU that is lost keeps every caller waiting: one call is enough to know.
    if unknown[1] <= now_ns && !reading.trouble.as_ref().is_some_and(|trouble| trouble.lost) {
        match device.utilization_rates() {
            Ok(rates) => {
                reading.utilization = i64::from(rates.gpu) * 10;
                reading.utilization_memory = i64::from(rates.memory) * 10;
            }
            Err(error) if is_unsupported(&error) => unknown[1] = now_ns + ASK_AGAIN_NS,
            Err(error) => reading.trouble = Some(trouble(&error)),
        }
    }
    reading
}
