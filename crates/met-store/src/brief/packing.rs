//! A record as one run of bytes, field by field in a fixed order. What is read is what was written by the same format;
//! a test fails when bytes change and the format does not.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use met_core::JOB;
use met_core::annotation::Annotation;
use met_core::job::{
    CgroupPaths, EarlierRequest, Emission, EnergySource, EventCount, FileId, GpuUse, HeldBy, JobKey,
    LeftOver, LimitKind, Local, MemoryLimit, Origin, Part, ProcessId, QualityKind, Record, Resources,
    Scheduling, State, Totals, UncountedEvent,
};

/// Bytes not read yet. Those of a row fit its checksum, so what does not fit here was written by another program.
pub(super) struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    pub fn number(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    /// How many follow: no more than there are bytes.
    pub fn count(&mut self) -> Option<usize> {
        usize::try_from(self.number()?).ok().filter(|&count| count <= self.0.len())
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let count = self.count()?;
        self.take(count)
    }
}

pub(super) fn put_number(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_number(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

pub(super) trait Packed: Sized {
    fn pack(&self, out: &mut Vec<u8>);
    fn unpack(from: &mut Input<'_>) -> Option<Self>;
}

impl Packed for u64 {
    fn pack(&self, out: &mut Vec<u8>) {
        put_number(out, *self);
    }

    fn unpack(from: &mut Input<'_>) -> Option<u64> {
        from.number()
    }
}

/// The sign in the lowest bit: small numbers are short.
impl Packed for i64 {
    fn pack(&self, out: &mut Vec<u8>) {
        put_number(out, ((self << 1) ^ (self >> 63)) as u64);
    }

    fn unpack(from: &mut Input<'_>) -> Option<i64> {
        let folded = from.number()?;
        Some((folded >> 1) as i64 ^ -((folded & 1) as i64))
    }
}

impl Packed for u32 {
    fn pack(&self, out: &mut Vec<u8>) {
        put_number(out, u64::from(*self));
    }

    fn unpack(from: &mut Input<'_>) -> Option<u32> {
        u32::try_from(from.number()?).ok()
    }
}

impl Packed for i32 {
    fn pack(&self, out: &mut Vec<u8>) {
        i64::from(*self).pack(out);
    }

    fn unpack(from: &mut Input<'_>) -> Option<i32> {
        i32::try_from(i64::unpack(from)?).ok()
    }
}

impl Packed for f64 {
    fn pack(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_le_bytes());
    }

    fn unpack(from: &mut Input<'_>) -> Option<f64> {
        let eight = from.take(8)?.try_into().ok()?;
        Some(f64::from_le_bytes(eight))
    }
}

impl Packed for bool {
    fn pack(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }

    fn unpack(from: &mut Input<'_>) -> Option<bool> {
        match from.byte()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
}

impl Packed for String {
    fn pack(&self, out: &mut Vec<u8>) {
        put_bytes(out, self.as_bytes());
    }

    fn unpack(from: &mut Input<'_>) -> Option<String> {
        std::str::from_utf8(from.bytes()?).ok().map(str::to_owned)
    }
}

/// What is one text elsewhere, too.
macro_rules! packed_as_text {
    ($($kind:ty),*) => {
        $(impl Packed for $kind {
            fn pack(&self, out: &mut Vec<u8>) {
                put_bytes(out, self.text().as_bytes());
            }

            fn unpack(from: &mut Input<'_>) -> Option<$kind> {
                String::unpack(from).map(<$kind>::from)
            }
        })*
    };
}

packed_as_text!(EnergySource, HeldBy);

impl Packed for PathBuf {
    fn pack(&self, out: &mut Vec<u8>) {
        put_bytes(out, self.as_os_str().as_bytes());
    }

    fn unpack(from: &mut Input<'_>) -> Option<PathBuf> {
        Some(OsString::from_vec(from.bytes()?.to_vec()).into())
    }
}

impl<T: Packed> Packed for Option<T> {
    fn pack(&self, out: &mut Vec<u8>) {
        self.is_some().pack(out);
        if let Some(value) = self {
            value.pack(out);
        }
    }

    fn unpack(from: &mut Input<'_>) -> Option<Option<T>> {
        match bool::unpack(from)? {
            true => T::unpack(from).map(Some),
            false => Some(None),
        }
    }
}

impl<T: Packed> Packed for Vec<T> {
    fn pack(&self, out: &mut Vec<u8>) {
        put_number(out, self.len() as u64);
        self.iter().for_each(|one| one.pack(out));
    }

    fn unpack(from: &mut Input<'_>) -> Option<Vec<T>> {
        let count = from.count()?;
        let mut all = Vec::with_capacity(count.min(64));
        for _ in 0..count {
            all.push(T::unpack(from)?);
        }
        Some(all)
    }
}

impl Packed for BTreeSet<String> {
    fn pack(&self, out: &mut Vec<u8>) {
        put_number(out, self.len() as u64);
        self.iter().for_each(|one| one.pack(out));
    }

    fn unpack(from: &mut Input<'_>) -> Option<BTreeSet<String>> {
        let count = from.count()?;
        (0..count).map(|_| String::unpack(from)).collect()
    }
}

impl Packed for BTreeMap<String, String> {
    fn pack(&self, out: &mut Vec<u8>) {
        put_number(out, self.len() as u64);
        for (name, value) in self {
            name.pack(out);
            value.pack(out);
        }
    }

    fn unpack(from: &mut Input<'_>) -> Option<BTreeMap<String, String>> {
        let count = from.count()?;
        (0..count).map(|_| Some((String::unpack(from)?, String::unpack(from)?))).collect()
    }
}

/// Of a part, by the names of columns. Those of the record itself are packed by the terms of the catalogue.
impl Packed for Totals {
    fn pack(&self, out: &mut Vec<u8>) {
        put_number(out, self.iter().count() as u64);
        for (column, figure) in self.iter() {
            put_bytes(out, JOB.columns[column].name.as_bytes());
            figure.value.pack(out);
            figure.kind.pack(out);
            put_bytes(out, figure.source.text().as_bytes());
        }
    }

    fn unpack(from: &mut Input<'_>) -> Option<Totals> {
        let mut totals = Totals::default();
        for _ in 0..from.count()? {
            let name = std::str::from_utf8(from.bytes()?).ok()?;
            let (value, kind) = (i64::unpack(from)?, QualityKind::unpack(from)?);
            let source = String::unpack(from)?;
            // A name that this version does not know came from a newer one.
            if let Some(column) = JOB.column(name) {
                totals.set(column, value, kind, source);
            }
        }
        Some(totals)
    }
}

/// Enums by their place in a list.
macro_rules! listed {
    ($($kind:ty: $all:expr,)*) => {
        $(impl Packed for $kind {
            fn pack(&self, out: &mut Vec<u8>) {
                out.push($all.iter().position(|one| one == self).unwrap_or_default() as u8);
            }

            fn unpack(from: &mut Input<'_>) -> Option<$kind> {
                $all.get(usize::from(from.byte()?)).copied()
            }
        })*
    };
}

listed! {
    State: State::ALL,
    QualityKind: QualityKind::ALL,
    Origin: [Origin::Run, Origin::Time, Origin::Attach, Origin::Found],
    LimitKind: [LimitKind::Cgroup, LimitKind::Process],
}

/// Structs by all their fields; those left out are as in a new one.
macro_rules! packed {
    ($($kind:ident { $($field:ident),* } $([without $($left_out:ident),*])?)*) => {
        $(impl Packed for $kind {
            fn pack(&self, out: &mut Vec<u8>) {
                let $kind { $($field,)* $($($left_out: _,)*)? } = self;
                $($field.pack(out);)*
            }

            fn unpack(from: &mut Input<'_>) -> Option<$kind> {
                $(let $field = Packed::unpack(from)?;)*
                Some($kind { $($field,)* $($($left_out: Default::default(),)*)? })
            }
        })*
    };
}

packed! {
    Record {
        key, name, user, uid, account, command, state, manager_state, exit_code, signal, start_ns, end_ns, nodes,
        node_memory_bytes, gpus, events, uncounted_events, requested, allocated, scheduling, inside, parts, emission,
        as_of_ns, annotation, unproven, local
    } [without totals, summaries, work, processes]
    JobKey { cluster, manager, id, incarnation }
    EventCount { name, count, counted, kind, source }
    UncountedEvent { name, reason }
    Resources { nodes, cpus, tasks, memory_bytes, gpus, time_limit_ns, other }
    Scheduling {
        alias, cluster, array_id, array_index, het_id, het_offset, restarts, partition, qos, folder, lineage, exclusive, reason,
        submit_ns, eligible_ns, cpu_ns, memory_peak_bytes, asked_ns, waited, earlier
    }
    EarlierRequest { until_ns, requested, allocated }
    Part { node, step, task, name, start_ns, end_ns, exit_code, folded, totals }
    Emission { factor_mg_per_kwh, factor_source, factor_time_ns, pue_millionths }
    Annotation { tags, note, written_ns }
    Local {
        boot_id, origin, supervisor, main, main_end_ns, cgroup, more_cgroups, folded, cwd, stdout, stderr,
        stdout_file, stderr_file, left_over, memory_limit, cpus_usable, entered_late
    }
    ProcessId { pid, start_ticks }
    CgroupPaths { unified, memory, cpuacct }
    FileId { inode, birth_ns }
    LeftOver { pid, name }
    MemoryLimit { bytes, kind }
    GpuUse {
        uuid, node, index, name, vendor, parent, held_by, held_since_ns, idle_since_ns, lost_since_ns, held_ns, used_ns,
        known_ns, paid_ns, utilization, gpu_utilization, encoder, decoder, copy, memory_mean_bytes,
        memory_peak_bytes, memory_total_bytes, energy_active_uj, energy_idle_uj, energy_kind, energy_source,
        idle_power_mw, idle_power_source, gpu_power_mw, temperature_max_mc, clock_mean_mhz, clock_max_mhz,
        throttled, throttled_ns, ecc_corrected, ecc_uncorrected, faults, fault_last, pcie_received_rate,
        pcie_sent_rate, sm_activity, tensor_activity, memory_bandwidth, processes
    }
}
