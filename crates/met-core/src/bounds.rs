//! What a record may hold. Records come from users and nodes, and a record without bounds lets one of them fill the
//! store of all. Applied wherever a record enters: the daemon's socket, the inbox, the server, schedulers.

use std::path::{Path, PathBuf};

use crate::annotation::Annotation;
use crate::belief::requests::EARLIER_MAX;
use crate::job::{
    CgroupPaths, EarlierRequest, EventCount, GpuUse, JobKey, Local, Part, Record, Resources, Scheduling,
    Totals, UncountedEvent,
};
use crate::job::{EnergySource, HeldBy};
use crate::job_processes::{self, JobProcess, LARGEST_MAX};
use crate::work;

/// The whole command line.
pub const COMMAND_BYTES_MAX: usize = 4 << 10;
/// Names, accounts, reasons and the like.
pub const NAME_BYTES_MAX: usize = 1 << 10;
/// Texts that occur many times in a record: names of nodes, GPUs, events, sources.
const WORD_BYTES_MAX: usize = 200;
/// Names of nodes together.
const NODES_BYTES_MAX: usize = 128 << 10;
const PATH_BYTES_MAX: usize = 4 << 10;
/// A list of entries, each: 64 GPUs with long names, or several hundred events.
const LIST_BYTES_MAX: usize = 96 << 10;
const OTHER_MAX: usize = 64;
const LEFT_OVER_MAX: usize = 64;
const CGROUPS_BYTES_MAX: usize = 32 << 10;
const REASONS_MAX: usize = 16;
const REASON_BYTES_MAX: usize = 64;
/// Parts get what the rest leaves of this.
pub const RECORD_BYTES_MAX: usize = 512 << 10;
/// What a record needs besides its texts, and each entry of a list in it.
const RECORD_BYTES: usize = 4 << 10;
const ENTRY_BYTES: usize = 400;
const FIGURE_BYTES: usize = 100;

/// Cuts everything in `record` that is too long. A cut is marked: a text ends with `…(+N bytes)`, a list with
/// `…(+N)`, parts are folded into one. A record that was cut once is not cut again.
pub fn bound(record: &mut Record) {
    bound_key(&mut record.key);
    cut(&mut record.name, NAME_BYTES_MAX);
    let Record { user, account, manager_state, inside, .. } = record;
    for text in [user, account, manager_state, inside].into_iter().flatten() {
        cut(text, NAME_BYTES_MAX);
    }
    cut_list(&mut record.command, COMMAND_BYTES_MAX, COMMAND_BYTES_MAX, " arguments");
    cut_list(&mut record.nodes, NODES_BYTES_MAX, WORD_BYTES_MAX, "");
    if let Some(emission) = &mut record.emission {
        cut(&mut emission.factor_source, WORD_BYTES_MAX);
    }
    bound_totals(&mut record.totals);
    record.gpus.iter_mut().for_each(bound_gpu);
    keep_within(&mut record.gpus, LIST_BYTES_MAX, gpu_bytes);
    for EventCount { name, source, .. } in &mut record.events {
        cut(name, WORD_BYTES_MAX);
        cut(source, WORD_BYTES_MAX);
    }
    keep_within(&mut record.events, LIST_BYTES_MAX, event_bytes);
    for UncountedEvent { name, reason } in &mut record.uncounted_events {
        cut(name, WORD_BYTES_MAX);
        cut(reason, WORD_BYTES_MAX);
    }
    keep_within(&mut record.uncounted_events, LIST_BYTES_MAX, uncounted_bytes);
    work::bound(&mut record.work);
    record.processes.truncate(LARGEST_MAX);
    for process in &mut record.processes {
        let words = std::mem::take(&mut process.command_line);
        job_processes::set_command_line(process, words);
        let JobProcess { user, command, node, .. } = process;
        [user, node].into_iter().flatten().for_each(|text| cut(text, WORD_BYTES_MAX));
        cut(command, WORD_BYTES_MAX);
    }
    bound_resources(&mut record.requested);
    bound_resources(&mut record.allocated);
    bound_scheduling(&mut record.scheduling);
    record.annotation.bound();
    if let Some(local) = &mut record.local {
        bound_local(local);
    }
    record.parts.iter_mut().for_each(bound_part);
    let rest = bytes(record).saturating_sub(parts_bytes(&record.parts));
    fold_parts(&mut record.parts, RECORD_BYTES_MAX.saturating_sub(rest));
}

/// About as many bytes as the record has as JSON.
pub fn bytes(record: &Record) -> usize {
    let options = [&record.user, &record.account, &record.manager_state, &record.inside];
    let texts = options.into_iter().flatten().map(|text| escaped(text)).sum::<usize>();
    let lists = record.command.iter().chain(&record.nodes).map(|text| escaped(text) + 3).sum::<usize>();
    let gpus = record.gpus.iter().map(gpu_bytes).sum::<usize>();
    let events = record.events.iter().map(event_bytes).sum::<usize>()
        + record.uncounted_events.iter().map(uncounted_bytes).sum::<usize>();
    let work = record.work.iter().map(|one| ENTRY_BYTES + one.points.len() * 60).sum::<usize>();
    let words = record.processes.iter().flat_map(|process| &process.command_line);
    let processes = record.processes.len() * ENTRY_BYTES + words.map(|text| escaped(text) + 3).sum::<usize>();
    let other = |resources: &Resources| {
        resources.other.iter().map(|(name, value)| escaped(name) + escaped(value) + 6).sum::<usize>()
    };
    let local = record.local.as_ref().map_or(0, local_bytes);
    RECORD_BYTES
        + work
        + escaped(&record.name)
        + texts
        + lists
        + gpus
        + events
        + processes
        + record.scheduling.earlier.len() * ENTRY_BYTES
        + other(&record.requested)
        + other(&record.allocated)
        + totals_bytes(&record.totals)
        + annotation_bytes(&record.annotation)
        + record.summaries.iter().count() * FIGURE_BYTES
        + parts_bytes(&record.parts)
        + local
}

fn annotation_bytes(annotation: &Annotation) -> usize {
    let note = annotation.note.as_deref().map_or(0, escaped);
    note + annotation.tags.iter().map(|tag| tag.len() + 3).sum::<usize>()
}

/// How long a text is as JSON.
fn escaped(text: &str) -> usize {
    text.bytes().map(escaped_byte).sum()
}

fn escaped_byte(byte: u8) -> usize {
    match byte {
        0..0x20 => 6,
        b'"' | b'\\' => 2,
        _ => 1,
    }
}

/// Cuts a text to `max` bytes of JSON, its mark included.
fn cut(text: &mut String, max: usize) {
    if text.len() * 6 <= max || escaped(text) <= max {
        return;
    }
    let room = max.saturating_sub("…(+18446744073709551615 bytes)".len());
    let mut used = 0;
    let end = text.char_indices().find_map(|(at, letter)| {
        used += letter.encode_utf8(&mut [0; 4]).bytes().map(escaped_byte).sum::<usize>();
        (used > room).then_some(at)
    });
    let end = end.unwrap_or(text.len());
    let gone = text.len() - end;
    text.truncate(end);
    text.push_str(&format!("…(+{gone} bytes)"));
}

/// Cuts texts to `each` and all of them to `max`, with a last one that says how many are missing.
fn cut_list(texts: &mut Vec<String>, max: usize, each: usize, what: &str) {
    let long = |text: &String| escaped(text);
    if texts.iter().map(|text| long(text) + 3).sum::<usize>() <= max
        && texts.iter().map(long).all(|bytes| bytes <= each)
    {
        return;
    }
    let room = max.saturating_sub("…(+18446744073709551615 arguments)".len() + 2 * 3);
    let (mut used, mut kept) = (0, 0);
    for text in texts.iter_mut() {
        let left = room.saturating_sub(used);
        // Of the first that does not fit a part is kept, if that is worth it.
        if left < 64 && escaped(text) > left {
            break;
        }
        cut(text, each.min(left));
        used += escaped(text) + 3;
        kept += 1;
    }
    let gone = texts.len() - kept;
    if gone > 0 {
        texts.truncate(kept);
        texts.push(format!("…(+{gone}{what})"));
    }
}

/// Keys that differ still do when they are cut.
fn bound_key(key: &mut JobKey) {
    for text in [&mut key.manager, &mut key.id].into_iter().chain(&mut key.cluster) {
        if escaped(text) > WORD_BYTES_MAX {
            let mark = format!("{:016x}", checksum(text.as_bytes()));
            cut(text, WORD_BYTES_MAX - mark.len());
            text.push_str(&mark);
        }
    }
}

/// FNV-1a: any one byte that differs changes it.
pub fn checksum(bytes: &[u8]) -> u64 {
    let step = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

fn bound_totals(totals: &mut Totals) {
    totals.sources_mut().for_each(|source| {
        if escaped(&source.text()) > WORD_BYTES_MAX {
            let mut text = source.to_string();
            cut(&mut text, WORD_BYTES_MAX);
            *source = text.into();
        }
    });
}

fn totals_bytes(totals: &Totals) -> usize {
    totals.iter().map(|(_, figure)| FIGURE_BYTES + escaped(&figure.source.text())).sum()
}

fn bound_gpu(gpu: &mut GpuUse) {
    gpu.throttled.truncate(REASONS_MAX);
    gpu.throttled.iter_mut().for_each(|reason| cut(reason, REASON_BYTES_MAX));
    let GpuUse { uuid, node, index, name, vendor, parent, held_by, energy_source, idle_power_source, .. } =
        gpu;
    if let HeldBy::Given(by) = held_by {
        cut(by.to_mut(), WORD_BYTES_MAX);
    }
    if let Some(EnergySource::Other(source)) = energy_source {
        cut(source, WORD_BYTES_MAX);
    }
    let options = [node, parent, idle_power_source].into_iter().flatten();
    [uuid, index, name, vendor].into_iter().chain(options).for_each(|text| cut(text, WORD_BYTES_MAX));
}

fn gpu_bytes(gpu: &GpuUse) -> usize {
    let GpuUse {
        uuid,
        node,
        index,
        name,
        vendor,
        parent,
        held_by,
        energy_source,
        idle_power_source,
        throttled,
        ..
    } = gpu;
    let options = [node, parent, idle_power_source].into_iter().flatten();
    let texts = [uuid, index, name, vendor].into_iter().chain(options).chain(throttled);
    let sources =
        escaped(held_by.text()) + energy_source.as_ref().map_or(0, |source| escaped(&source.text()));
    // It has many figures.
    3 * ENTRY_BYTES + sources + texts.map(|text| escaped(text)).sum::<usize>()
}

fn event_bytes(event: &EventCount) -> usize {
    ENTRY_BYTES + escaped(&event.name) + escaped(&event.source)
}

fn uncounted_bytes(event: &UncountedEvent) -> usize {
    ENTRY_BYTES + escaped(&event.name) + escaped(&event.reason)
}

/// Keeps the first entries that fit into `max` bytes.
fn keep_within<T>(list: &mut Vec<T>, max: usize, bytes: impl Fn(&T) -> usize) {
    let mut used = 0;
    let kept = list.iter().take_while(|entry| {
        used += bytes(entry);
        used <= max
    });
    let kept = kept.count();
    list.truncate(kept);
}

fn bound_resources(resources: &mut Resources) {
    let too_long = |text: &str| escaped(text) > WORD_BYTES_MAX;
    if resources.other.len() <= OTHER_MAX && !resources.other.iter().any(|(n, v)| too_long(n) || too_long(v))
    {
        return;
    }
    let bounded =
        std::mem::take(&mut resources.other).into_iter().take(OTHER_MAX).map(|(mut name, mut value)| {
            cut(&mut name, WORD_BYTES_MAX);
            cut(&mut value, WORD_BYTES_MAX);
            (name, value)
        });
    resources.other = bounded.collect();
}

fn bound_scheduling(scheduling: &mut Scheduling) {
    let Scheduling { alias, cluster, array_id, het_id, partition, qos, folder, lineage, reason, .. } =
        scheduling;
    for text in [alias, cluster, array_id, het_id, partition, qos, lineage].into_iter().flatten() {
        cut(text, WORD_BYTES_MAX);
    }
    for text in [folder, reason].into_iter().flatten() {
        cut(text, NAME_BYTES_MAX);
    }
    let surplus = scheduling.earlier.len().saturating_sub(EARLIER_MAX);
    scheduling.earlier.drain(..surplus);
    for EarlierRequest { requested, allocated, .. } in &mut scheduling.earlier {
        requested.other.clear();
        allocated.other.clear();
    }
}

fn bound_part(part: &mut Part) {
    cut(&mut part.node, WORD_BYTES_MAX);
    cut(&mut part.step, WORD_BYTES_MAX);
    for text in [&mut part.task, &mut part.name].into_iter().flatten() {
        cut(text, WORD_BYTES_MAX);
    }
    bound_totals(&mut part.totals);
}

fn parts_bytes(parts: &[Part]) -> usize {
    parts.iter().map(part_bytes).sum()
}

fn part_bytes(part: &Part) -> usize {
    let options = [&part.task, &part.name].into_iter().flatten().map(|text| escaped(text)).sum::<usize>();
    ENTRY_BYTES + escaped(&part.node) + escaped(&part.step) + options + totals_bytes(&part.totals)
}

/// Keeps the first parts that fit into `room`; the others are folded into one.
fn fold_parts(parts: &mut Vec<Part>, room: usize) {
    if parts_bytes(parts) <= room {
        return;
    }
    let largest = parts.iter().map(part_bytes).max().unwrap_or(0);
    // The folded part may have the figures of any of them.
    let mut left = room.saturating_sub(4 * largest);
    let fitting = parts.iter().take_while(|part| {
        let bytes = part_bytes(part);
        let fits = bytes <= left;
        left = left.saturating_sub(bytes);
        fits
    });
    let kept = fitting.count();
    let rest = parts.split_off(kept);
    let node = rest.first().map(|part| part.node.clone()).unwrap_or_default();
    for of_tasks in [false, true] {
        let mut others = Part::others(node.clone(), of_tasks);
        rest.iter().filter(|part| part.task.is_some() == of_tasks).for_each(|part| others.take_in(part));
        if others.folded != Some(0) {
            parts.push(others);
        }
    }
}

fn bound_local(local: &mut Local) {
    cut(&mut local.boot_id, WORD_BYTES_MAX);
    // A path that was cut would name another file.
    if is_too_long(&local.cwd) {
        local.cwd = PathBuf::from("…");
    }
    for path in [&mut local.stdout, &mut local.stderr] {
        path.take_if(|path| is_too_long(path));
    }
    bound_cgroup(&mut local.cgroup);
    local.more_cgroups.iter_mut().for_each(bound_cgroup);
    keep_within(&mut local.more_cgroups, CGROUPS_BYTES_MAX, cgroup_bytes);
    local.left_over.truncate(LEFT_OVER_MAX);
    local.left_over.iter_mut().for_each(|left| cut(&mut left.name, WORD_BYTES_MAX));
    local.folded.iter_mut().for_each(bound_part);
    fold_parts(&mut local.folded, RECORD_BYTES_MAX / 8);
}

fn bound_cgroup(paths: &mut CgroupPaths) {
    for path in [&mut paths.unified, &mut paths.memory, &mut paths.cpuacct] {
        path.take_if(|path| is_too_long(path));
    }
}

fn is_too_long(path: &Path) -> bool {
    path_bytes(path) > PATH_BYTES_MAX
}

/// A path that is not UTF-8 is written as a list of numbers.
fn path_bytes(path: &Path) -> usize {
    path.to_str().map_or_else(|| path.as_os_str().len() * 4, escaped)
}

fn cgroup_bytes(paths: &CgroupPaths) -> usize {
    let known = [&paths.unified, &paths.memory, &paths.cpuacct].into_iter().flatten();
    64 + known.map(|path| path_bytes(path)).sum::<usize>()
}

fn local_bytes(local: &Local) -> usize {
    let paths =
        [&local.stdout, &local.stderr].into_iter().flatten().map(|path| path_bytes(path)).sum::<usize>();
    let left_over = local.left_over.iter().map(|left| escaped(&left.name) + 40).sum::<usize>();
    path_bytes(&local.cwd)
        + paths
        + cgroup_bytes(&local.cgroup)
        + local.more_cgroups.iter().map(cgroup_bytes).sum::<usize>()
        + left_over
        + parts_bytes(&local.folded)
}

#[cfg(test)]
#[path = "bounds_tests.rs"]
mod tests;
