//! Which figures have a name in OpenTelemetry's semantic conventions, and how the others are named.
//!
//! Columns are named by text, because this crate does not know the sources; a test compares them with the catalogue.

use met_core::{Column, Kind, Table, Unit};
use met_wire::otlp::Form;

/// The version of the conventions that these names are of.
pub const SCHEMA_URL: &str = "https://opentelemetry.io/schemas/1.44.0";

/// A metric of the conventions, made of columns of one table.
pub struct Convention {
    pub table: &'static str,
    /// The value: the first one, less the others.
    pub columns: &'static [&'static str],
    pub metric: &'static str,
    pub unit: &'static str,
    pub form: Form,
    pub attributes: &'static [(&'static str, &'static str)],
    pub help: &'static str,
}

macro_rules! conventions {
    ($($table:literal { $($metric:literal $unit:literal $form:ident $help:literal {
        $([$($column:literal),+] $($key:literal = $value:literal),*;)+
    })+ })+) => {
        pub static CONVENTIONS: &[Convention] = &[$($($(Convention {
            table: $table, columns: &[$($column),+], metric: $metric, unit: $unit, form: Form::$form,
            attributes: &[$(($key, $value)),*], help: $help,
        },)+)+)+];
    };
}

conventions! {
    "node" {
        "system.cpu.time" "s" Counter "seconds all CPUs spent in each mode" {
            ["cpu_user"] "cpu.mode" = "user";
            ["cpu_nice"] "cpu.mode" = "nice";
            ["cpu_system"] "cpu.mode" = "system";
            ["cpu_idle"] "cpu.mode" = "idle";
            ["cpu_io_wait"] "cpu.mode" = "iowait";
            ["cpu_interrupt"] "cpu.mode" = "interrupt";
            ["cpu_soft_interrupt"] "cpu.mode" = "softirq";
            ["cpu_steal"] "cpu.mode" = "steal";
        }
        "system.memory.limit" "By" UpDownCounter "total memory" { ["memory_total"]; }
        "system.memory.usage" "By" UpDownCounter "memory by state; the states add up to system.memory.limit" {
            ["memory_total", "memory_free", "memory_buffers", "memory_cached"] "system.memory.state" = "used";
            ["memory_free"] "system.memory.state" = "free";
            ["memory_buffers"] "system.memory.state" = "buffers";
            ["memory_cached"] "system.memory.state" = "cached";
        }
        "system.memory.linux.available" "By" UpDownCounter "memory that a new program could have without swapping" {
            ["memory_available"];
        }
        "system.memory.linux.slab.usage" "By" UpDownCounter "memory of the kernel's own objects" {
            ["memory_slab_reclaimable"] "system.memory.linux.slab.state" = "reclaimable";
            ["memory_slab_unreclaimable"] "system.memory.linux.slab.state" = "unreclaimable";
        }
        "system.paging.usage" "By" UpDownCounter "swap by state" {
            ["swap_total", "swap_free"] "system.paging.state" = "used";
            ["swap_free"] "system.paging.state" = "free";
        }
        "system.paging.faults" "{fault}" Counter "page faults" {
            ["page_faults", "page_faults_major"] "system.paging.fault.type" = "minor";
            ["page_faults_major"] "system.paging.fault.type" = "major";
        }
        "system.uptime" "s" Gauge "time since the machine was started" { ["uptime"]; }
    }
    "block" {
        "system.disk.io" "By" Counter "bytes read and written" {
            ["read"] "disk.io.direction" = "read";
            ["written"] "disk.io.direction" = "write";
        }
        "system.disk.operations" "{operation}" Counter "requests" {
            ["reads"] "disk.io.direction" = "read";
            ["writes"] "disk.io.direction" = "write";
        }
        "system.disk.operation_time" "s" Counter "time that requests took, summed over all of them" {
            ["read_wait"] "disk.io.direction" = "read";
            ["write_wait"] "disk.io.direction" = "write";
        }
        "system.disk.io_time" "s" Counter "time in which at least one request was in flight" { ["busy"]; }
    }
    "network" {
        "system.network.io" "By" Counter "bytes received and sent" {
            ["received"] "network.io.direction" = "receive";
            ["sent"] "network.io.direction" = "transmit";
        }
        "system.network.packet.count" "{packet}" Counter "packets received and sent" {
            ["packets_received"] "network.io.direction" = "receive";
            ["packets_sent"] "network.io.direction" = "transmit";
        }
        "system.network.errors" "{error}" Counter "packets with errors" {
            ["errors_received"] "network.io.direction" = "receive";
            ["errors_sent"] "network.io.direction" = "transmit";
        }
        "system.network.packet.dropped" "{packet}" Counter "packets dropped" {
            ["dropped_received"] "network.io.direction" = "receive";
            ["dropped_sent"] "network.io.direction" = "transmit";
        }
    }
    "process" {
        "process.cpu.time" "s" Counter "CPU time of the process" {
            ["cpu_user"] "cpu.mode" = "user";
            ["cpu_system"] "cpu.mode" = "system";
        }
        "process.memory.usage" "By" UpDownCounter "memory in RAM" { ["memory_resident"]; }
        "process.memory.virtual" "By" UpDownCounter "address space" { ["memory_virtual"]; }
        "process.thread.count" "{thread}" UpDownCounter "threads" { ["threads"]; }
        "process.disk.io" "By" Counter "bytes read from and written to storage, ended children included" {
            ["read"] "disk.io.direction" = "read";
            ["written"] "disk.io.direction" = "write";
        }
        "process.paging.faults" "{fault}" Counter "page faults" {
            ["page_faults_minor"] "system.paging.fault.type" = "minor";
            ["page_faults_major"] "system.paging.fault.type" = "major";
        }
    }
    "taskstats" {
        "process.context_switches" "{context_switch}" Counter "times a living thread left the CPU" {
            ["context_switches_voluntary"] "process.context_switch.type" = "voluntary";
            ["context_switches_involuntary"] "process.context_switch.type" = "involuntary";
        }
    }
    "gpu" {
        "hw.gpu.utilization" "1" Gauge "share of time in which the GPU was busy" {
            ["utilization"] "hw.gpu.task" = "general";
            ["utilization_encoder"] "hw.gpu.task" = "encoder";
            ["utilization_decoder"] "hw.gpu.task" = "decoder";
        }
        "hw.gpu.memory.usage" "By" UpDownCounter "GPU memory in use, the driver's own included" { ["memory_used"]; }
        "hw.gpu.memory.limit" "By" UpDownCounter "GPU memory" { ["memory_total"]; }
        "hw.power" "W" Gauge "power drawn" { ["power"] "hw.type" = "gpu"; }
        "hw.energy" "J" Counter "energy used since the driver was loaded" { ["energy"] "hw.type" = "gpu"; }
        "hw.temperature" "Cel" Gauge "temperature of the chip" { ["temperature"] "hw.type" = "gpu"; }
    }
}

/// Labels of tables that the conventions name otherwise.
static LABELS: &[(&str, &str, &str)] = &[
    ("block", "device", "system.device"),
    ("network", "device", "network.interface.name"),
    ("process", "pid", "process.pid"),
    ("taskstats", "pid", "process.pid"),
    ("gpu", "uuid", "hw.id"),
    ("gpu", "name", "hw.name"),
    ("gpu", "parent", "hw.parent"),
    ("gpu", "vendor", "hw.vendor"),
];

/// The attribute for a label, beside a metric of the conventions.
pub fn attribute(table: &str, label: &'static str) -> &'static str {
    LABELS.iter().find(|(of, name, _)| *of == table && *name == label).map_or(label, |(.., name)| name)
}

/// Whether a metric of the conventions has exactly the value of this column.
pub fn replaces(table: &str, column: &str) -> bool {
    CONVENTIONS.iter().any(|one| one.table == table && one.columns == [column])
}

/// The name of a column that has none in the conventions: that of the catalogue, with dots and without its unit, which
/// is beside it. Prometheus makes of both the name that the metrics page has.
pub fn catalogue_name(table: &Table, column: &Column) -> String {
    let unit = if column.unit == Unit::Money { column.unit.suffix() } else { "" };
    format!("met.{}.{}{unit}", table.name, column.name)
}

pub fn form(column: &Column) -> Form {
    match column.kind {
        Kind::Counter => Form::Counter,
        Kind::Gauge => Form::Gauge,
    }
}

/// A unit in UCUM. What is counted has none.
pub fn unit(unit: Unit) -> &'static str {
    match unit {
        Unit::Bytes => "By",
        Unit::Celsius => "Cel",
        Unit::Count => "{count}",
        Unit::Grams => "g",
        Unit::GramsPerKilowattHour => "g/kW.h",
        Unit::Hertz => "Hz",
        Unit::Joules => "J",
        Unit::Money => "{money}",
        Unit::Ratio => "1",
        Unit::Seconds => "s",
        Unit::Watts => "W",
    }
}
