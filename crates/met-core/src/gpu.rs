//! Graphics GPUs: the tables that every source of them fills, whatever the maker.

/// The makers, as labels name them.
pub mod vendor {
    pub const NVIDIA: &str = "nvidia";
    pub const AMD: &str = "amd";
    pub const INTEL: &str = "intel";
}

/// The GPU in whole, or a part of it that the driver hands out as a GPU of its own.
pub mod device {
    use crate::chart::{MachineChart, Unit as ChartUnit};
    use crate::table::{MEGA, MICRO, MILLI, NANO, ONE};
    use crate::{Across, Column, Table, Unit, columns, labels};

    columns! { COLUMNS:
        UTILIZATION = Column::gauge("utilization", Unit::Ratio, MILLI, "share of time in which the GPU computed").across(Across::Mean).minimal(),
        UTILIZATION_MEMORY = Column::gauge("utilization_memory", Unit::Ratio, MILLI, "share of time in which GPU memory was read or written").across(Across::Mean),
        UTILIZATION_ENCODER = Column::gauge("utilization_encoder", Unit::Ratio, MILLI, "share of time in which the video encoder was busy").across(Across::Mean),
        UTILIZATION_DECODER = Column::gauge("utilization_decoder", Unit::Ratio, MILLI, "share of time in which the video decoder was busy").across(Across::Mean),
        MEMORY_USED = Column::gauge("memory_used", Unit::Bytes, ONE, "GPU memory in use, the driver's own included").minimal(),
        MEMORY_TOTAL = Column::gauge("memory_total", Unit::Bytes, ONE, "GPU memory").usual(),
        POWER = Column::gauge("power", Unit::Watts, MILLI, "power drawn by the GPU").minimal(),
        POWER_LIMIT = Column::gauge("power_limit", Unit::Watts, MILLI, "power limit, above which the GPU lowers its clocks"),
        ENERGY = Column::counter("energy", Unit::Joules, MICRO, "energy used since the driver was loaded, by the GPU's own counter").usual(),
        PASS_AGE = Column::gauge("pass_age", Unit::Seconds, NANO, "how long ago the energy counter and the other expensive readings were taken").across(Across::Max),
        TEMPERATURE = Column::gauge("temperature", Unit::Celsius, MILLI, "temperature of the chip").across(Across::Max).usual(),
        CLOCK = Column::gauge("clock", Unit::Hertz, MEGA, "clock of the compute units").across(Across::Mean),
        CLOCK_MEMORY = Column::gauge("clock_memory", Unit::Hertz, MEGA, "clock of the memory").across(Across::Mean),
        THROTTLE = Column::gauge("throttle", Unit::Count, ONE, "why the clocks are throttled, a sum of powers of two: 4 power cap, 8 hardware slowdown, 16 sync boost, 32 temperature, 64 temperature (hardware), 128 power brake").across(Across::Max).usual(),
        ECC_CORRECTED = Column::counter("ecc_corrected", Unit::Count, ONE, "corrected memory errors since the driver was loaded"),
        ECC_UNCORRECTED = Column::counter("ecc_uncorrected", Unit::Count, ONE, "uncorrected memory errors since the driver was loaded").usual(),
        FAULTS = Column::counter("faults", Unit::Count, ONE, "critical errors reported by the driver (Xid) since monitoring began").usual(),
        FAULT_LAST = Column::gauge("fault_last", Unit::Count, ONE, "number of the last critical error (Xid)").across(Across::Max),
        PCIE_RECEIVED = Column::gauge("pcie_received_rate", Unit::Bytes, ONE, "bytes per second from the host to the GPU"),
        PCIE_SENT = Column::gauge("pcie_sent_rate", Unit::Bytes, ONE, "bytes per second from the GPU to the host"),
        PROCESSES = Column::gauge("processes", Unit::Count, ONE, "processes on the GPU, as far as the driver shows them"),
        SLICES = Column::gauge("slices", Unit::Count, ONE, "compute slices of a MIG instance; for a partitioned GPU, all its slices"),
        USE_AGE = Column::gauge("use_age", Unit::Seconds, NANO, "how long ago use by process was read; each reading covers the time since the previous one").across(Across::Max),
        LIST_AGE = Column::gauge("list_age", Unit::Seconds, NANO, "how long ago the list of processes on the GPU was read").across(Across::Max),
        SM_ACTIVITY = Column::gauge("sm_activity", Unit::Ratio, MILLI, "share of the compute units (SMs) that had work, mean since the previous reading").across(Across::Mean).usual(),
        SM_OCCUPANCY = Column::gauge("sm_occupancy", Unit::Ratio, MILLI, "share of the threads that the compute units could hold, mean since the previous reading").across(Across::Mean),
        TENSOR_ACTIVITY = Column::gauge("tensor_activity", Unit::Ratio, MILLI, "share of time in which the tensor cores computed, mean since the previous reading").across(Across::Mean).usual(),
        MEMORY_BANDWIDTH = Column::gauge("memory_bandwidth", Unit::Ratio, MILLI, "share of the bandwidth of GPU memory that was used, mean since the previous reading").across(Across::Mean).usual(),
        NVLINK_RECEIVED = Column::gauge("nvlink_received_rate", Unit::Bytes, ONE, "bytes per second from other GPUs over NVLink"),
        NVLINK_SENT = Column::gauge("nvlink_sent_rate", Unit::Bytes, ONE, "bytes per second to other GPUs over NVLink"),
        XGMI_RECEIVED = Column::gauge("xgmi_received_rate", Unit::Bytes, ONE, "bytes per second from other GPUs over XGMI"),
        XGMI_SENT = Column::gauge("xgmi_sent_rate", Unit::Bytes, ONE, "bytes per second to other GPUs over XGMI"),
    }

    labels! { LABELS:
        INDEX = "index", UUID = "uuid", NAME = "name", VENDOR = "vendor",
        /// The uuid of the GPU that this is a part of; empty for a whole GPU.
        PARENT = "parent",
        /// Major and minor number of its device file.
        DEVICE = "device",
        /// GPU instance and compute instance of a part; absent for a whole GPU.
        MIG = "mig",
    }

    pub static TABLE: Table =
        Table { name: "gpu", subject: "a GPU, or a MIG instance of one", labels: LABELS, columns: COLUMNS };

    /// The same for GPUs of all makers.
    pub static CHARTS: &[MachineChart] = &[
        MachineChart::new("card-use", ["GPU use"; 2], ChartUnit::Percent, &TABLE, &[UTILIZATION]).main(),
        MachineChart::new("card-memory", ["GPU memory"; 2], ChartUnit::Bytes, &TABLE, &[MEMORY_USED]),
        MachineChart::new("card-power", ["GPU power"; 2], ChartUnit::Watts, &TABLE, &[POWER]),
        MachineChart::new(
            "card-temperature",
            ["GPU temperature"; 2],
            ChartUnit::Celsius,
            &TABLE,
            &[TEMPERATURE],
        ),
    ];

    /// A lost GPU reports only its critical errors.
    pub fn is_lost(cells: &[i64]) -> bool {
        let is_known = |column: usize| cells[column] != crate::MISSING;
        let mut others = (0..cells.len()).filter(|&column| column != FAULTS && column != FAULT_LAST);
        is_known(FAULTS) && !others.any(is_known)
    }
}

/// A process on a GPU. The part of a row is the GPU's.
pub mod process {
    use crate::table::{MILLI, ONE};
    use crate::{Across, Column, Table, Unit, columns};

    columns! { COLUMNS:
        MEMORY = Column::gauge("memory", Unit::Bytes, ONE, "GPU memory that the process holds"),
        UTILIZATION = Column::gauge("utilization", Unit::Ratio, MILLI, "share of the GPU's compute units that the process used").across(Across::Mean),
        UTILIZATION_MEMORY = Column::gauge("utilization_memory", Unit::Ratio, MILLI, "share of time in which the process read or wrote GPU memory").across(Across::Mean),
        UTILIZATION_ENCODER = Column::gauge("utilization_encoder", Unit::Ratio, MILLI, "share of the video encoder that the process used").across(Across::Mean),
        UTILIZATION_DECODER = Column::gauge("utilization_decoder", Unit::Ratio, MILLI, "share of the video decoder that the process used").across(Across::Mean),
        UTILIZATION_COPY = Column::gauge("utilization_copy", Unit::Ratio, MILLI, "share of the copy engine that the process used").across(Across::Mean),
        OPEN = Column::gauge("open", Unit::Count, ONE, "1 while the process has the GPU open, 0 if it ended since the last expensive reading"),
    }

    pub static TABLE: Table = Table {
        name: "gpu_process",
        subject: "a process on a GPU",
        labels: &["pid", "uuid"],
        columns: COLUMNS,
    };
}

/// Bits of `device::THROTTLE` that mean a loss, in words. Idle and the clocks that the user chose are none.
const REASONS: [(i64, &str); 6] = [
    (0x4, "power cap"),
    (0x8, "hardware slowdown"),
    (0x10, "sync boost"),
    (0x20, "temperature"),
    (0x40, "temperature (hardware)"),
    (0x80, "power brake"),
];

/// Why the clocks are held down, in words.
pub fn throttle_words(bits: i64) -> Vec<&'static str> {
    REASONS.iter().filter(|&&(bit, _)| bits > 0 && bits & bit != 0).map(|&(_, words)| words).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_gpu_is_not_throttled() {
        assert!(throttle_words(0x1).is_empty() && throttle_words(crate::MISSING).is_empty());
        assert_eq!(throttle_words(0x24), ["power cap", "temperature"]);
    }
}
