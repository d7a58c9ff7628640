//! The events that can be asked for by name, and what the kernel calls them.

use perf_event_open_sys::bindings as sys;

/// Something to count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// As it was asked for.
    pub name: String,
    pub kind: u32,
    pub config: u64,
    pub mode: Mode,
}

impl Event {
    /// One that another process counts: only what reading it takes is known.
    pub fn passed(name: String, software: bool) -> Event {
        let kind = if software { SOFTWARE } else { HARDWARE };
        let mode = if name.ends_with(":u") { Mode::User } else { Mode::Everywhere };
        Event { name, kind, config: 0, mode }
    }
}

/// Where it is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Everywhere,
    /// `:u`
    User,
    /// `:k`
    Kernel,
}

/// An event with a name of its own.
#[derive(Clone, Copy, Debug)]
pub struct Named {
    pub name: &'static str,
    pub kind: u32,
    pub config: u64,
    /// Which processors have it; empty for all.
    pub vendor: &'static str,
    pub help: &'static str,
}

const HARDWARE: u32 = sys::PERF_TYPE_HARDWARE;
const SOFTWARE: u32 = sys::PERF_TYPE_SOFTWARE;
const CACHE: u32 = sys::PERF_TYPE_HW_CACHE;
const RAW: u32 = sys::PERF_TYPE_RAW;
/// In the configuration of a cache event: the access missed.
const MISS: u64 = 1 << 16;

const INTEL: &str = "GenuineIntel";
const AMD: &str = "AuthenticAMD";

/// Asking for this asks for all arithmetic that the processor counts.
pub const FLOPS: &str = "flops";

const fn named(name: &'static str, kind: u32, config: u64, help: &'static str) -> Named {
    Named { name, kind, config, vendor: "", help }
}

const fn raw(name: &'static str, vendor: &'static str, config: u64, help: &'static str) -> Named {
    Named { name, kind: RAW, config, vendor, help }
}

pub static EVENTS: &[Named] = &[
    named("cpu_cycles", HARDWARE, 0, "cycles in which a CPU was not halted"),
    named("instructions", HARDWARE, 1, "instructions executed"),
    named(
        "cache_references",
        HARDWARE,
        2,
        "accesses to the last-level cache, as the processor's vendor \
        defines it",
    ),
    named("cache_misses", HARDWARE, 3, "of these, the misses"),
    named("branch_instructions", HARDWARE, 4, "branches"),
    named("branch_misses", HARDWARE, 5, "mispredicted branches"),
    named("bus_cycles", HARDWARE, 6, "bus cycles"),
    named("stalled_cycles_frontend", HARDWARE, 7, "stalled cycles in the front end: no instruction to issue"),
    named(
        "stalled_cycles_backend",
        HARDWARE,
        8,
        "stalled cycles in the back end: waiting for a unit or for data",
    ),
    named("ref_cpu_cycles", HARDWARE, 9, "cycles at the nominal clock"),
    named("cache_l1d", CACHE, 0, "reads of the L1 data cache"),
    named("cache_l1d_misses", CACHE, MISS, "of these, the misses"),
    named("cache_l1i_misses", CACHE, 1 | MISS, "L1 instruction cache read misses"),
    named("cache_ll", CACHE, 2, "reads of the last-level cache"),
    named("cache_ll_misses", CACHE, 2 | MISS, "of these, the misses"),
    named("cache_dtlb", CACHE, 3, "reads of the data TLB"),
    named("cache_dtlb_misses", CACHE, 3 | MISS, "of these, the misses"),
    named("cache_itlb", CACHE, 4, "reads of the instruction TLB"),
    named("cache_itlb_misses", CACHE, 4 | MISS, "of these, the misses"),
    named("cache_bpu", CACHE, 5, "reads of the branch prediction unit"),
    named("cache_node", CACHE, 6, "reads from memory of the same NUMA node"),
    named("cache_node_misses", CACHE, 6 | MISS, "reads from memory of another NUMA node"),
    named(
        "cache_op_read",
        CACHE,
        0,
        "the same as `cache_l1d`: the older name denotes an operation, and counts reads of cache 0",
    ),
    named("cache_op_prefetch", CACHE, 2, "the same as `cache_ll`: prefetches are not what it counts"),
    named("cache_result_access", CACHE, 0, "the same as `cache_l1d`"),
    named("cpu_clock", SOFTWARE, 0, "nanoseconds on a CPU, by the CPU's clock"),
    named("task_clock", SOFTWARE, 1, "nanoseconds on a CPU"),
    named("page_faults", SOFTWARE, 2, "page faults"),
    named("context_switches", SOFTWARE, 3, "times a thread left a CPU"),
    named("cpu_migrations", SOFTWARE, 4, "times a thread moved to another CPU"),
    named("page_faults_min", SOFTWARE, 5, "page faults served without storage"),
    named("page_faults_maj", SOFTWARE, 6, "page faults that waited for storage"),
    named("alignment_faults", SOFTWARE, 7, "unaligned accesses fixed by the kernel; 0 on x86"),
    named("emulation_faults", SOFTWARE, 8, "instructions emulated by the kernel"),
    named("dummy", SOFTWARE, 9, "nothing; always 0"),
    named("bpf_output", SOFTWARE, 10, "records written by BPF programs to this counter: always 0 here"),
    raw("fp_scalar_double", INTEL, 0x01c7, "floating-point instructions on one double"),
    raw("fp_scalar_single", INTEL, 0x02c7, "on one single"),
    raw("fp_128_double", INTEL, 0x04c7, "on two doubles"),
    raw("fp_128_single", INTEL, 0x08c7, "on four singles"),
    raw("fp_256_double", INTEL, 0x10c7, "on four doubles"),
    raw("fp_256_single", INTEL, 0x20c7, "on eight singles"),
    raw("fp_512_double", INTEL, 0x40c7, "on eight doubles"),
    raw("fp_512_single", INTEL, 0x80c7, "on sixteen singles"),
    raw("fp_operations", AMD, 0xff03, "floating-point operations"),
];

impl Event {
    /// The events that a word asks for; `vendor` is that of the processor.
    pub fn parse(text: &str, vendor: &str) -> Result<Vec<Event>, String> {
        let name = text.trim();
        let (base, mode) = match name.rsplit_once(':') {
            None => (name, Mode::Everywhere),
            Some((base, "u")) => (base, Mode::User),
            Some((base, "k")) => (base, Mode::Kernel),
            Some((_, mode)) => return Err(format!("{name:?}: {mode:?} is neither u (user) nor k (kernel)")),
        };
        let same = base.replace('-', "_");
        let suffix = &name[base.len()..];
        let event = |known: &Named| Event {
            name: format!("{}{suffix}", known.name),
            kind: known.kind,
            config: known.config,
            mode,
        };
        let on_this = |known: &&Named| known.vendor.is_empty() || known.vendor == vendor;
        if same == FLOPS {
            let arithmetic = EVENTS.iter().filter(|known| known.name.starts_with("fp_")).filter(on_this);
            return Ok(arithmetic.map(event).collect());
        }
        if let Some(known) = EVENTS.iter().find(|known| known.name == same || is_usual_name(known, &same)) {
            return Ok(vec![event(known)]);
        }
        let hex = same.strip_prefix('r').filter(|hex| !hex.is_empty() && hex.len() <= 16);
        match hex.and_then(|hex| u64::from_str_radix(hex, 16).ok()) {
            Some(config) => Ok(vec![Event { name: format!("{same}{suffix}"), kind: RAW, config, mode }]),
            None => Err(format!("{name:?} is not an event; `met metrics` lists them")),
        }
    }

    /// The kernel counts it by itself, on every machine.
    pub fn is_software(&self) -> bool {
        self.kind == SOFTWARE
    }

    /// Happens in the kernel alone: who may not count there would count nothing.
    pub fn is_of_the_kernel(&self) -> bool {
        self.is_software() && matches!(self.config, 3 | 4)
    }
}

/// The names of the perf tool, where they differ.
fn is_usual_name(known: &Named, name: &str) -> bool {
    let usual = match known.name {
        "cpu_cycles" => "cycles",
        "branch_instructions" => "branches",
        "ref_cpu_cycles" => "ref_cycles",
        "page_faults_min" => "minor_faults",
        "page_faults_maj" => "major_faults",
        _ => return false,
    };
    usual == name
}

/// Processors with events of their own, and all others.
pub const VENDORS: [&str; 3] = ["", INTEL, AMD];

/// The maker of the processor, by /proc/cpuinfo.
pub fn vendor_of(cpuinfo: &[u8]) -> &'static str {
    let line = cpuinfo.split(|&byte| byte == b'\n').find(|line| line.starts_with(b"vendor_id"));
    let vendor = line.and_then(|line| line.split(|&byte| byte == b':').nth(1)).unwrap_or_default();
    [INTEL, AMD].into_iter().find(|known| known.as_bytes() == vendor.trim_ascii()).unwrap_or("")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn one(text: &str) -> (String, u32, u64, Mode) {
        let mut events = Event::parse(text, INTEL).unwrap();
        assert_eq!(events.len(), 1, "{text}");
        let event = events.remove(0);
        (event.name, event.kind, event.config, event.mode)
    }

    /// The list of the older tool, in its order, with what the kernel made of each.
    #[test]
    fn the_28_older_names_mean_what_they_meant() {
        let names = [
            ("cpu_cycles", HARDWARE, 0),
            ("instructions", HARDWARE, 1),
            ("cache_references", HARDWARE, 2),
            ("cache_misses", HARDWARE, 3),
            ("branch_instructions", HARDWARE, 4),
            ("branch_misses", HARDWARE, 5),
            ("bus_cycles", HARDWARE, 6),
            ("ref_cpu_cycles", HARDWARE, 9),
            ("cache_l1d", CACHE, 0),
            ("cache_ll", CACHE, 2),
            ("cache_dtlb", CACHE, 3),
            ("cache_itlb", CACHE, 4),
            ("cache_bpu", CACHE, 5),
            ("cache_node", CACHE, 6),
            ("cache_op_read", CACHE, 0),
            ("cache_op_prefetch", CACHE, 2),
            ("cache_result_access", CACHE, 0),
            ("cpu_clock", SOFTWARE, 0),
            ("task_clock", SOFTWARE, 1),
            ("page_faults", SOFTWARE, 2),
            ("context_switches", SOFTWARE, 3),
            ("cpu_migrations", SOFTWARE, 4),
            ("page_faults_min", SOFTWARE, 5),
            ("page_faults_maj", SOFTWARE, 6),
            ("alignment_faults", SOFTWARE, 7),
            ("emulation_faults", SOFTWARE, 8),
            ("dummy", SOFTWARE, 9),
            ("bpf_output", SOFTWARE, 10),
        ];
        assert_eq!(names.len(), 28);
        for (name, kind, config) in names {
            assert_eq!(one(name), (name.to_owned(), kind, config, Mode::Everywhere));
        }
    }

    #[test]
    fn the_names_of_perf_and_its_suffixes_are_understood() {
        assert_eq!(one("page-faults:u"), ("page_faults:u".to_owned(), SOFTWARE, 2, Mode::User));
        assert_eq!(one("cycles:k"), ("cpu_cycles:k".to_owned(), HARDWARE, 0, Mode::Kernel));
        assert_eq!(one("r01c7"), ("r01c7".to_owned(), RAW, 0x1c7, Mode::Everywhere));
        for bad in ["", ":u", "cycles:x", "r", "rzz", "no_such_event"] {
            assert!(Event::parse(bad, INTEL).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn arithmetic_is_counted_as_the_processor_counts_it() {
        assert_eq!(Event::parse(FLOPS, INTEL).unwrap().len(), 8);
        assert_eq!(Event::parse(FLOPS, AMD).unwrap().len(), 1);
        assert_eq!(Event::parse(FLOPS, "").unwrap().len(), 0);
        assert_eq!(vendor_of(b"processor\t: 0\nvendor_id\t: AuthenticAMD\n"), AMD);
        assert_eq!(vendor_of(b"CPU implementer : 0x41\n"), "");
        for known in EVENTS.iter().filter(|known| known.name.starts_with("fp_")) {
            let weighed = met_core::event::FLOATING.iter().any(|(name, _)| *name == known.name);
            assert!(weighed, "{} is in no sum", known.name);
        }
    }

    proptest! {
        #[test]
        fn any_text_is_an_event_or_none(text in ".{0,40}") {
            let _ = Event::parse(&text, INTEL);
            let _ = vendor_of(text.as_bytes());
        }
    }
}
