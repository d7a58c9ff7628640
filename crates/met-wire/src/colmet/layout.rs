//! The ten kinds of records: which counters each has, and which column of the catalogue each counter is.
//!
//! Columns are named by text, because this crate does not know the sources; a test in `met-sinks` compares them with
//! the catalogue.

/// A kind of record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Backend {
    Taskstats,
    Procstats,
    Infiniband,
    Lustre,
    Perfhw,
    Rapl,
    Temperature,
    Jobproc,
    Ipmi,
    Nvidia,
}

/// How a counter is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    U32,
    U64,
    I64,
    F32,
}

impl Type {
    pub const fn bytes(self) -> usize {
        match self {
            Type::U32 | Type::F32 => 4,
            Type::U64 | Type::I64 => 8,
        }
    }
}

/// A column by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct At {
    pub table: &'static str,
    pub column: &'static str,
}

/// Where the value of a counter comes from, and where it goes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Meaning {
    /// A cell is the counter times `factor`. Rows of several devices add up.
    Cell { from: At, into: &'static [At], factor: i64 },
    /// When the job began, in unix seconds.
    Start,
    /// How often the n-th chosen event occurred since the last record.
    Event(usize),
    /// Microjoules of a zone since the last record.
    ZoneEnergy(Zone),
    /// Where the register of that zone starts again, in microjoules.
    ZoneRange(Zone),
    /// Nothing that the catalogue has.
    None,
    /// Degrees Celsius of this thermal zone.
    Thermal(usize),
}

/// A zone of RAPL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Zone {
    pub package: usize,
    /// An index into [`ZONES`].
    pub zone: usize,
}

/// The zones that each package has a place for, as the catalogue names them.
pub const ZONES: [&str; 3] = ["package", "core", "dram"];
pub const PACKAGES: usize = 4;
pub const EVENTS: usize = 5;
pub const THERMAL_ZONES: usize = 6;

/// Columns of the catalogue that are no cell of a counter: of a zone, of a thermal zone, and of the management
/// controllers, of which one measures the whole machine.
pub const ZONE_ENERGY: At = At { table: "rapl", column: "energy" };
pub const ZONE_RANGE: At = At { table: "rapl", column: "energy_range" };
pub const THERMAL: At = At { table: "thermal", column: "temperature" };
pub const CONTROLLER_POWER: At = At { table: "ipmi", column: "power" };
/// Read once in each period of a node.
pub const UPTIME: At = At { table: "node", column: "uptime" };

#[derive(Debug)]
pub struct Counter {
    pub name: &'static str,
    pub kind: Type,
    pub meaning: Meaning,
}

#[derive(Debug)]
pub struct Layout {
    pub backend: Backend,
    /// `metric_backend`.
    pub name: &'static str,
    pub counters: &'static [Counter],
    /// Whether the running jobs follow, as JSON.
    pub has_involved_jobs: bool,
    /// Whether it is about a job; else about the node, which is job 0.
    pub is_of_job: bool,
}

const SAME: i64 = 1;
const KIB: i64 = 1024;
const MIB: i64 = 1 << 20;
const PAGES: i64 = 4096;
/// Ticks of USER_HZ, which is 100 on every architecture with Colmet, in nanoseconds.
const TICKS: i64 = 10_000_000;
/// Microseconds, in nanoseconds.
const MICROS: i64 = 1000;
const SECONDS: i64 = 1_000_000_000;
/// Whole units, in thousandths.
const WHOLE: i64 = 1000;
const PERCENT: i64 = 10;

macro_rules! counter {
    ($name:literal $kind:ident $table:literal . $column:literal $factor:ident) => {
        counter!($name $kind $table . $column $factor [$table . $column])
    };
    ($name:literal $kind:ident $table:literal . $column:literal $factor:ident [$($into:literal . $cell:literal),+]) => {
        Counter {
            name: $name,
            kind: Type::$kind,
            meaning: Meaning::Cell {
                from: At { table: $table, column: $column },
                into: &[$(At { table: $into, column: $cell }),+],
                factor: $factor,
            },
        }
    };
    ($name:literal $kind:ident $meaning:expr) => {
        Counter { name: $name, kind: Type::$kind, meaning: $meaning }
    };
}

macro_rules! counters {
    ($list:ident: $($name:literal $kind:ident { $($meaning:tt)+ })+) => {
        static $list: &[Counter] = &[$(counter!($name $kind $($meaning)+)),+];
    };
}

// CPU time goes out as the job's total, which has the processes that ended; what comes in of living tasks is a detail.
counters! { TASKSTATS:
    "cpu_count" U64 { "job_detail"."cpu_runs" SAME }
    "cpu_delay_total" U64 { "job"."run_queue_wait" SAME }
    "blkio_count" U64 { "job_detail"."io_waits" SAME }
    "blkio_delay_total" U64 { "job"."delay_io" SAME }
    "swapin_count" U64 { "job_detail"."swap_waits" SAME }
    "swapin_delay_total" U64 { "job_detail"."delay_swap" SAME }
    "cpu_run_real_total" U64 { "job"."cpu" SAME ["job_detail"."cpu_real"] }
    "cpu_run_virtual_total" U64 { "job"."cpu" SAME ["job"."cpu", "job_detail"."cpu_virtual"] }
    "ac_btime" U32 { Meaning::Start }
    "ac_etime" U64 { "job"."wall" MICROS }
    "ac_utime" U64 { "job"."cpu_user" MICROS }
    "ac_stime" U64 { "job"."cpu_system" MICROS }
    "ac_minflt" U64 { "job"."page_faults_minor" SAME }
    "ac_majflt" U64 { "job"."page_faults_major" SAME }
    "coremem" U64 { "job_detail"."memory_time" SAME }
    "virtmem" U64 { "job_detail"."virtual_time" SAME }
    "read_char" U64 { "job"."read_call" SAME }
    "write_char" U64 { "job"."write_call" SAME }
    "read_syscalls" U64 { "job"."read_calls" SAME }
    "write_syscalls" U64 { "job"."write_calls" SAME }
    "read_bytes" U64 { "job"."read" SAME }
    "write_bytes" U64 { "job"."written" SAME }
    "cancelled_write_bytes" U64 { "job"."write_cancelled" SAME }
    "nvcsw" U64 { "job"."context_switches_voluntary" SAME }
    "nivcsw" U64 { "job"."context_switches_involuntary" SAME }
    "ac_utimescaled" U64 { "job_detail"."cpu_user_scaled" SAME }
    "ac_stimescaled" U64 { "job_detail"."cpu_system_scaled" SAME }
    "cpu_scaled_run_real_total" U64 { "job_detail"."cpu_scaled" SAME }
    "freepages_count" U64 { "job_detail"."reclaim_waits" SAME }
    "freepages_delay_total" U64 { "job_detail"."delay_reclaim" SAME }
}

counters! { PROCSTATS:
    "uptime_total" U64 { "node"."uptime" SECONDS }
    "uptime_idle" U64 { "node"."uptime_idle" SECONDS }
    "meminfo_memtotal" U64 { "node"."memory_total" KIB }
    "meminfo_memfree" U64 { "node"."memory_free" KIB }
    "meminfo_buffers" U64 { "node"."memory_buffers" KIB }
    "meminfo_cached" U64 { "node"."memory_cached" KIB }
    "meminfo_swapcached" U64 { "node"."memory_swap_cached" KIB }
    "meminfo_active" U64 { "node"."memory_active" KIB }
    "meminfo_inactive" U64 { "node"."memory_inactive" KIB }
    "meminfo_unevictable" U64 { "node"."memory_unevictable" KIB }
    "meminfo_mlocked" U64 { "node"."memory_locked" KIB }
    "meminfo_swaptotal" U64 { "node"."swap_total" KIB }
    "meminfo_swapfree" U64 { "node"."swap_free" KIB }
    "meminfo_dirty" U64 { "node"."memory_dirty" KIB }
    "meminfo_writeback" U64 { "node"."memory_writeback" KIB }
    "meminfo_anonpages" U64 { "node"."memory_anonymous" KIB }
    "meminfo_mapped" U64 { "node"."memory_mapped" KIB }
    "meminfo_shmem" U64 { "node"."memory_shared" KIB }
    "meminfo_slab" U64 { "node"."memory_slab" KIB }
    "meminfo_sreclaimable" U64 { "node"."memory_slab_reclaimable" KIB }
    "meminfo_sunreclaim" U64 { "node"."memory_slab_unreclaimable" KIB }
    "meminfo_kernelstack" U64 { "node"."memory_kernel_stack" KIB }
    "meminfo_pagetables" U64 { "node"."memory_page_tables" KIB }
    "meminfo_nfs_unstable" U64 { "node"."memory_nfs_unstable" KIB }
    "meminfo_bounce" U64 { "node"."memory_bounce" KIB }
    "meminfo_writebacktmp" U64 { "node"."memory_writeback_temporary" KIB }
    "meminfo_commitlimit" U64 { "node"."memory_commit_limit" KIB }
    "meminfo_committed_as" U64 { "node"."memory_committed" KIB }
    "meminfo_vmalloctotal" U64 { "node"."memory_vmalloc_total" KIB }
    "meminfo_vmallocused" U64 { "node"."memory_vmalloc_used" KIB }
    "meminfo_vmallocchunk" U64 { "node"."memory_vmalloc_chunk" KIB }
    "meminfo_anonhugepages" U64 { "node"."memory_huge_anonymous" KIB }
    "meminfo_hugepages_total" U64 { "node"."huge_pages" SAME }
    "meminfo_hugepages_free" U64 { "node"."huge_pages_free" SAME }
    "meminfo_hugepages_rsvd" U64 { "node"."huge_pages_reserved" SAME }
    "meminfo_hugepages_surp" U64 { "node"."huge_pages_surplus" SAME }
    "meminfo_hugepagesize" U64 { "node"."huge_page_size" KIB }
    "meminfo_directmap4k" U64 { "node"."memory_direct_map_4k" KIB }
    "meminfo_directmap2m" U64 { "node"."memory_direct_map_2m" KIB }
    "vmstat_pgpgin" U64 { "node"."paged_in" KIB }
    "vmstat_pgpgout" U64 { "node"."paged_out" KIB }
    "vmstat_pswpin" U64 { "node"."swapped_in" PAGES }
    "vmstat_pswpout" U64 { "node"."swapped_out" PAGES }
    "vmstat_pgfault" U64 { "node"."page_faults" SAME }
    "vmstat_pgmajfault" U64 { "node"."page_faults_major" SAME }
    "stat_cpu_user" U64 { "node"."cpu_user" TICKS }
    "stat_cpu_nice" U64 { "node"."cpu_nice" TICKS }
    "stat_cpu_system" U64 { "node"."cpu_system" TICKS }
    "stat_cpu_idle" U64 { "node"."cpu_idle" TICKS }
    "stat_cpu_iowait" U64 { "node"."cpu_io_wait" TICKS }
    "stat_cpu_irq" U64 { "node"."cpu_interrupt" TICKS }
    "stat_cpu_softirq" U64 { "node"."cpu_soft_interrupt" TICKS }
    // Colmet's names are one column off here.
    "stat_cpu_guest" U64 { "node"."cpu_steal" TICKS }
    "stat_cpu_guest_nice" U64 { "node"."cpu_guest" TICKS }
    "stat_intr" U64 { "node"."interrupts" SAME }
    "stat_ctxt" U64 { "node"."context_switches" SAME }
    "stat_processes" U64 { "node"."forks" SAME }
    "stat_procs_blocked" U64 { "node"."threads_blocked" SAME }
    "loadavg_1min" F32 { "node"."load_1" WHOLE }
    "loadavg_5min" F32 { "node"."load_5" WHOLE }
    "loadavg_15min" F32 { "node"."load_15" WHOLE }
    "loadavg_runnable" F32 { "node"."threads_runnable" SAME }
    "loadavg_total_threads" F32 { "node"."threads" SAME }
}

counters! { INFINIBAND:
    "portXmitData" I64 { "infiniband"."sent" SAME }
    "portRcvData" I64 { "infiniband"."received" SAME }
    "portXmitPkts" I64 { "infiniband"."packets_sent" SAME }
    "portRcvPkts" I64 { "infiniband"."packets_received" SAME }
}

counters! { LUSTRE:
    "lustre_nb_read" U64 { "lustre"."reads" SAME }
    "lustre_bytes_read" U64 { "lustre"."read" SAME }
    "lustre_nb_write" U64 { "lustre"."writes" SAME }
    "lustre_bytes_write" U64 { "lustre"."written" SAME }
}

counters! { PERFHW:
    "counter_1" I64 { Meaning::Event(0) }
    "counter_2" I64 { Meaning::Event(1) }
    "counter_3" I64 { Meaning::Event(2) }
    "counter_4" I64 { Meaning::Event(3) }
    "counter_5" I64 { Meaning::Event(4) }
}

const fn zone(index: usize) -> Zone {
    Zone { package: index / ZONES.len(), zone: index % ZONES.len() }
}

counters! { RAPL:
    "counter_1" I64 { Meaning::ZoneEnergy(zone(0)) }
    "counter_2" I64 { Meaning::ZoneRange(zone(0)) }
    "counter_3" I64 { Meaning::ZoneEnergy(zone(1)) }
    "counter_4" I64 { Meaning::ZoneRange(zone(1)) }
    "counter_5" I64 { Meaning::ZoneEnergy(zone(2)) }
    "counter_6" I64 { Meaning::ZoneRange(zone(2)) }
    "counter_7" I64 { Meaning::ZoneEnergy(zone(3)) }
    "counter_8" I64 { Meaning::ZoneRange(zone(3)) }
    "counter_9" I64 { Meaning::ZoneEnergy(zone(4)) }
    "counter_10" I64 { Meaning::ZoneRange(zone(4)) }
    "counter_11" I64 { Meaning::ZoneEnergy(zone(5)) }
    "counter_12" I64 { Meaning::ZoneRange(zone(5)) }
    "counter_13" I64 { Meaning::ZoneEnergy(zone(6)) }
    "counter_14" I64 { Meaning::ZoneRange(zone(6)) }
    "counter_15" I64 { Meaning::ZoneEnergy(zone(7)) }
    "counter_16" I64 { Meaning::ZoneRange(zone(7)) }
    "counter_17" I64 { Meaning::ZoneEnergy(zone(8)) }
    "counter_18" I64 { Meaning::ZoneRange(zone(8)) }
    "counter_19" I64 { Meaning::ZoneEnergy(zone(9)) }
    "counter_20" I64 { Meaning::ZoneRange(zone(9)) }
    "counter_21" I64 { Meaning::ZoneEnergy(zone(10)) }
    "counter_22" I64 { Meaning::ZoneRange(zone(10)) }
    "counter_23" I64 { Meaning::ZoneEnergy(zone(11)) }
    "counter_24" I64 { Meaning::ZoneRange(zone(11)) }
}

counters! { TEMPERATURE:
    "counter_1" I64 { Meaning::Thermal(0) }
    "counter_2" I64 { Meaning::Thermal(1) }
    "counter_3" I64 { Meaning::Thermal(2) }
    "counter_4" I64 { Meaning::Thermal(3) }
    "counter_5" I64 { Meaning::Thermal(4) }
    "counter_6" I64 { Meaning::Thermal(5) }
}

counters! { JOBPROC:
    "rchar" I64 { "job"."read_call" SAME }
    "wchar" I64 { "job"."write_call" SAME }
    "syscr" I64 { "job"."read_calls" SAME }
    "syscw" I64 { "job"."write_calls" SAME }
    "read_bytes" I64 { "job"."read" SAME }
    "write_bytes" I64 { "job"."written" SAME }
    "cancelled_write_bytes" I64 { "job"."write_cancelled" SAME }
    "VmRSS" I64 { "job_detail"."memory_resident" KIB }
    "RssShmem" I64 { "job_detail"."memory_shmem" KIB }
    "VmSize" I64 { "job_detail"."memory_virtual" KIB }
}

counters! { IPMI:
    "average_power_consumption" I64 { "ipmi"."power" WHOLE }
}

counters! { NVIDIA:
    "power" I64 { "job"."gpu_power" WHOLE }
    "temperature" I64 { "job"."gpu_temperature" WHOLE }
    "utilization-gpu" I64 { "job"."gpu_utilization" PERCENT }
    "utilization-memory" I64 { "job_detail"."gpu_utilization_memory" PERCENT }
    "memory-total" I64 { "job_detail"."gpu_memory_total" MIB }
    "memory-free" I64 { "job_detail"."gpu_memory_free" MIB }
    "memory-used" I64 { "job"."gpu_memory" MIB }
}

macro_rules! layouts {
    ($($backend:ident $name:literal $counters:ident $jobs:literal $of_job:literal)+) => {
        /// In the order of a message.
        pub static LAYOUTS: &[Layout] = &[$(Layout {
            backend: Backend::$backend,
            name: $name,
            counters: $counters,
            has_involved_jobs: $jobs,
            is_of_job: $of_job,
        }),+];
    };
}

layouts! {
    Taskstats "taskstats_default" TASKSTATS false true
    Procstats "procstats_default" PROCSTATS true false
    Infiniband "infinibandstats_default" INFINIBAND true false
    Lustre "lustrestats_default" LUSTRE true false
    Perfhw "perfhwstats_default" PERFHW false true
    Rapl "RAPLstats_default" RAPL true false
    Temperature "temperaturestats_default" TEMPERATURE false false
    Jobproc "jobprocstats_default" JOBPROC false true
    Ipmi "ipmipowerstats_default" IPMI true false
    Nvidia "nvidiastats_default" NVIDIA false true
}

impl Backend {
    pub fn layout(self) -> &'static Layout {
        &LAYOUTS[self as usize]
    }

    pub fn name(self) -> &'static str {
        self.layout().name
    }

    pub fn from_name(name: &str) -> Option<Backend> {
        LAYOUTS.iter().find(|layout| layout.name == name).map(|layout| layout.backend)
    }
}
