//! How busy the units of a GPU are, by NVML's GPM: counters of the hardware, of which two samples give the mean in
//! between. Hopper and later.

use met_core::MISSING;
use met_core::gpu::device;
use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::gpm::gpm_metrics_get;
use nvml_wrapper::{GpmSample, Nvml};

use super::library::GpuFacts;

const MIB: f64 = 1_048_576.0;

/// What is read, its column, and what one of the metric's units is in the column's: percent in thousandths, MiB/s in
/// bytes/s.
const METRICS: [(GpmMetricId, usize, f64); 8] = [
    (GpmMetricId::SmUtil, device::SM_ACTIVITY, 10.0),
    (GpmMetricId::SmOccupancy, device::SM_OCCUPANCY, 10.0),
    (GpmMetricId::AnyTensorUtil, device::TENSOR_ACTIVITY, 10.0),
    (GpmMetricId::DramBwUtil, device::MEMORY_BANDWIDTH, 10.0),
    (GpmMetricId::PcieRxPerSec, device::PCIE_RECEIVED, MIB),
    (GpmMetricId::PcieTxPerSec, device::PCIE_SENT, MIB),
    (GpmMetricId::NvlinkTotalRxPerSec, device::NVLINK_RECEIVED, MIB),
    (GpmMetricId::NvlinkTotalTxPerSec, device::NVLINK_SENT, MIB),
];

/// The mean between two samples, by metric.
#[derive(Clone, Copy)]
pub(super) struct Activity([i64; METRICS.len()]);

impl Activity {
    pub fn fill(&self, cells: &mut [i64]) {
        for ((_, column, _), value) in METRICS.into_iter().zip(self.0).filter(|(_, value)| *value != MISSING)
        {
            cells[column] = value;
        }
    }
}

/// The last samples of a GPU and of its MIG instances.
#[derive(Default)]
pub(super) struct Monitor<'a> {
    is_supported: Option<bool>,
    whole: Option<GpmSample<'a>>,
    parts: Vec<Option<GpmSample<'a>>>,
}

impl<'a> Monitor<'a> {
    /// Of the GPU, and of its parts in their order. Nothing at the first time.
    pub fn read(
        &mut self,
        facts: &GpuFacts,
        nvml: &'a Nvml,
        activity: &mut Option<Activity>,
        parts: &mut Vec<Option<Activity>>,
    ) {
        let device = facts.device(nvml);
        if !*self.is_supported.get_or_insert_with(|| device.gpm_support().unwrap_or(false)) {
            return;
        }
        *activity = since(nvml, &mut self.whole, device.gpm_sample());
        self.parts.resize_with(facts.parts.len(), || None);
        parts.clear();
        for (part, before) in facts.parts.iter().zip(&mut self.parts) {
            parts.push(since(nvml, before, device.gpm_mig_sample(part.gpu_instance)));
        }
    }
}

/// The mean since the sample before, which the new one replaces.
fn since<'a>(
    nvml: &'a Nvml,
    before: &mut Option<GpmSample<'a>>,
    now: Result<GpmSample<'a>, NvmlError>,
) -> Option<Activity> {
    let earlier = std::mem::replace(before, now.ok())?;
    let found = gpm_metrics_get(nvml, &earlier, before.as_ref()?, &METRICS.map(|(id, ..)| id)).ok()?;
    let mut cells = [MISSING; METRICS.len()];
    for ((cell, result), (_, _, scale)) in cells.iter_mut().zip(found).zip(METRICS) {
        let value = result.map_or(f64::NAN, |result| result.value * scale);
        if (0.0..1e15).contains(&value) {
            *cell = value.round() as i64;
        }
    }
    Some(Activity(cells))
}
