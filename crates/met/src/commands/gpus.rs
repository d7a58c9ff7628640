//! `met gpus`: the GPUs now, the jobs that use them, and those that hold them idle.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io::{self, Write};
use std::time::Duration;

use anyhow::Result;
use met_core::gpu::{self, device, device::label};
use met_core::gpus::GpuNow;
use met_core::job::{GpuUse, HeldBy, JobKey, Record, State};
use met_core::{MISSING, Subject};
use met_host::{Host, parse};
use serde_json::json;

use crate::cli::GpusArgs;
use crate::output;
use crate::view::gpus::{self, GpuLine, UserLine};
use met_agent::sampler::Sampler;
use met_host::users;
use met_query::jobs::{self, AllJobs, JobsFilter};
use met_query::setting::Setting;
use met_sources::Unread;

/// A driver without its daemon takes seconds to wake a GPU up.
const TIMEOUT: Duration = Duration::from_secs(20);
/// In this time the expensive readings (use by process) are taken twice.
const LOOK_FOR: Duration = Duration::from_millis(1200);
const LOOKS: u32 = 6;
/// Between two looks, which take a second themselves where there are GPUs.
const WATCH_EVERY: Duration = Duration::from_secs(1);
/// Descriptors of one process that are looked through for GPUs.
const DESCRIPTORS_MAX: usize = 4096;
/// By these programs compute; what draws has others.
const RENDER_FILES: &[u8] = b"/dev/dri/renderD";
const RENDER_MAJOR: u32 = 226;
/// The number of processes that have none here.
const UNSEEN: u32 = 0;

pub fn gpus(setting: &Setting, args: &GpusArgs) -> Result<i32> {
    let mut stdout = output::stdout();
    if args.watch {
        return stdout.keep_on_screen(WATCH_EVERY, |style| {
            let (lines, troubles) = look(setting)?;
            let is_shown = lines.iter().any(|line| line.error.is_some());
            let troubles = troubles
                .iter()
                .filter(|_| !is_shown)
                .map(|trouble| format!("{trouble}\n"))
                .collect::<String>();
            Ok(gpus::gpus(&lines, jobs::now_ns(), style) + &troubles)
        });
    }
    let (lines, troubles) = look(setting)?;
    let is_shown = |line: &GpuLine| line.error.is_some();
    // What is in the table is not said twice.
    if args.json || args.free.is_some() || !lines.iter().any(is_shown) {
        for trouble in &troubles {
            writeln!(io::stderr(), "met: {trouble}")?;
        }
    }
    if let Some(count) = args.free {
        return match free(&lines, count as usize, args.uuid) {
            Ok(found) => writeln!(stdout, "{found}").map(|()| 0).map_err(Into::into),
            Err(why) => writeln!(io::stderr(), "met: {why}").map(|()| 1).map_err(Into::into),
        };
    }
    // That there are no GPUs is not known then.
    if lines.is_empty() && !troubles.is_empty() {
        return Ok(1);
    }
    if args.json {
        let all: Vec<_> = lines.iter().map(object).collect();
        writeln!(stdout, "{}", serde_json::Value::Array(all))?;
        return Ok(0);
    }
    let style = stdout.style();
    stdout.write_all(gpus::gpus(&lines, jobs::now_ns(), &style).as_bytes())?;
    Ok(0)
}

/// The GPUs, and what is wrong with those that cannot be read.
fn look(setting: &Setting) -> Result<(Vec<GpuLine>, Vec<String>)> {
    let interval = LOOK_FOR / LOOKS;
    let mut sampler = Sampler::waiting(setting.host.clone(), interval, &setting.config, TIMEOUT);
    let filter = JobsFilter { states: vec![State::Running, State::Suspended], ..JobsFilter::default() };
    let running = AllJobs::open(setting)?.jobs(&filter)?;
    let known: HashMap<JobKey, Record> = running
        .into_iter()
        .filter(|record| sampler.add(record).is_some())
        .map(|record| (record.key.clone(), record))
        .collect();
    sampler.look();
    if sampler.has_gpus() {
        for _ in 0..LOOKS {
            std::thread::sleep(interval);
            sampler.look();
        }
    }
    let gpus = sampler.gpus();
    let tells_all = |gpu: &GpuNow<'_>| gpu.labels[label::VENDOR] == gpu::vendor::NVIDIA;
    let openers = match gpus.iter().all(|(gpu, _)| tells_all(gpu)) {
        true => Openers::new(),
        false => openers(&setting.host),
    };
    let mut lines: Vec<GpuLine> =
        gpus.iter().map(|(gpu, keys)| line(&setting.host, gpu, keys, &known, &openers)).collect();
    lines.extend(lost(&lines, &known));
    mark_unread(&mut lines, sampler.unread_gpus());
    lines.sort_by_cached_key(|line| {
        let numbers = line.index.split('.').map(|part| part.parse::<u32>().ok());
        (line.vendor.clone(), numbers.collect::<Vec<_>>())
    });
    Ok((lines, sampler.gpu_troubles()))
}

/// A GPU that does not answer is shown with that, and without figures of an earlier time.
fn mark_unread(lines: &mut Vec<GpuLine>, unread: Vec<Unread>) {
    for Unread { labels, why } in unread {
        let is_it = |line: &&mut GpuLine| {
            line.vendor == labels[label::VENDOR]
                && (line.index == labels[label::INDEX]
                    || !line.uuid.is_empty() && line.uuid == labels[label::UUID])
        };
        match lines.iter_mut().find(is_it) {
            Some(line) if line.lost_since_ns.is_some() => {}
            Some(line) => (line.error, line.is_free) = (Some(why), false),
            None => lines.push(GpuLine {
                index: labels[label::INDEX].clone(),
                uuid: labels[label::UUID].clone(),
                name: labels[label::NAME].clone(),
                vendor: labels[label::VENDOR].clone(),
                error: Some(why),
                ..GpuLine::default()
            }),
        }
    }
}

/// So many free GPUs of one maker, whose numbers mean something together.
fn free(lines: &[GpuLine], count: usize, by_uuid: bool) -> Result<String, String> {
    let mut by_vendor: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for line in lines.iter().filter(|line| line.is_free) {
        // A MIG instance has no index that CUDA knows.
        let name = if by_uuid || line.index.contains('.') { &line.uuid } else { &line.index };
        by_vendor.entry(&line.vendor).or_default().push(name);
    }
    let most = by_vendor.into_values().max_by_key(Vec::len).unwrap_or_default();
    if lines.is_empty() {
        return Err("no GPU can be read; `met doctor` says why".to_owned());
    }
    if most.len() < count {
        let all = lines.len();
        return Err(format!(
            "{} of {all} GPUs are free, {count} requested; `met gpus` shows who has them",
            most.len()
        ));
    }
    Ok(most[..count].join(","))
}

fn line(
    host: &Host,
    gpu: &GpuNow<'_>,
    keys: &HashMap<u32, JobKey>,
    known: &HashMap<JobKey, Record>,
    openers: &Openers,
) -> GpuLine {
    let cell =
        |column: usize, scale: f64| (gpu.cells[column] != MISSING).then(|| gpu.cells[column] as f64 * scale);
    let mut users: Vec<UserLine> = Vec::new();
    for &(slot, since) in &gpu.holders {
        let Some(record) = keys.get(&slot).and_then(|key| known.get(key)) else { continue };
        let watched = record.gpus.iter().find(|held: &&GpuUse| held.uuid == gpu.labels[label::UUID]);
        let sums = sums(gpu, Some(slot));
        let works = sums.utilization.is_some_and(|utilization| utilization > 0.0);
        // A second without work is a pause to who samples the job all the time.
        let idle = watched.map_or(since.idle_ns, |held| held.idle_since_ns).is_some();
        users.push(UserLine {
            job: Some(record.label()),
            name: record.name.clone(),
            user: record.user.clone(),
            idle: idle && !works,
            idle_since_ns: watched.and_then(|held| held.idle_since_ns).filter(|_| !works),
            ..sums
        });
    }
    users.extend(held_elsewhere(gpu, keys, known));
    users.extend(strangers(host, gpu));
    users.extend(unreported(host, gpu, openers));
    GpuLine {
        is_free: users.is_empty() && is_unused(gpu),
        index: gpu.labels[label::INDEX].clone(),
        uuid: gpu.labels[label::UUID].clone(),
        name: gpu.labels[label::NAME].clone(),
        vendor: gpu.labels[label::VENDOR].clone(),
        utilization: cell(device::UTILIZATION, 1e-3),
        memory_used_bytes: cell(device::MEMORY_USED, 1.0),
        memory_total_bytes: cell(device::MEMORY_TOTAL, 1.0),
        power_watts: cell(device::POWER, 1e-3),
        temperature_celsius: cell(device::TEMPERATURE, 1e-3),
        clock_hertz: cell(device::CLOCK, 1e6),
        throttled: gpu::throttle_words(gpu.cells[device::THROTTLE]),
        lost_since_ns: None,
        error: None,
        users,
    }
}

/// Whether a GPU without visible processes is known to be idle: one that is divided is given away in parts, and not
/// every driver says who is on it.
fn is_unused(gpu: &GpuNow<'_>) -> bool {
    let cell = |column: usize| Some(gpu.cells[column]).filter(|&cell| cell != MISSING);
    let is_part = !gpu.labels[label::PARENT].is_empty();
    if is_part {
        return cell(device::LIST_AGE).is_some();
    }
    let is_empty = match cell(device::PROCESSES) {
        Some(processes) => processes == 0,
        None => cell(device::MEMORY_USED)
            .zip(cell(device::MEMORY_TOTAL))
            .is_some_and(|(used, all)| used <= all / 50),
    };
    is_empty && cell(device::UTILIZATION) == Some(0) && cell(device::SLICES).is_none()
}

/// The processes on a GPU that are no job's. Those of which only the driver knows, because they are outside of
/// this container, have no number here and are one line.
fn strangers(host: &Host, gpu: &GpuNow<'_>) -> Vec<UserLine> {
    let mut met = HashSet::new();
    let mut lines = Vec::new();
    for &(subject, slot, _, _) in gpu.processes.iter().filter(|(_, slot, _, _)| slot.is_none()) {
        let Subject::Task { pid, .. } = subject else { continue };
        if !met.insert(subject) {
            continue;
        }
        let of_it = |other: &(Subject, Option<u32>, i64, i64)| other.0 == subject;
        let only = GpuNow { processes: gpu.processes.iter().copied().filter(of_it).collect(), ..gpu.clone() };
        let (name, user) = if pid == UNSEEN { (None, None) } else { name_and_user(host, pid) };
        lines.push(UserLine {
            name: name.unwrap_or_else(|| match only.processes.len() {
                1 => "a process that is not shown here".to_owned(),
                count => format!("{count} processes not shown here"),
            }),
            user,
            ..sums(&only, slot)
        });
    }
    lines
}

fn name_and_user(host: &Host, pid: u32) -> (Option<String>, Option<String>) {
    let Ok(process) = host.process(pid) else { return (None, None) };
    (host.process_name(process), host.owner(process).and_then(users::name_of))
}

/// Who has a GPU open, by the numbers of its device file.
type Openers = HashMap<String, BTreeSet<u32>>;

/// Who has which GPU of the kernel's own drivers open. Of others' processes only root is shown that.
fn openers(host: &Host) -> Openers {
    let (mut buffer, mut pids) = (Vec::new(), Vec::new());
    let mut found = Openers::new();
    let _ = host.proc_dir().list(&mut buffer, |name, _, _| pids.extend(parse::u32(name)));
    for pid in pids {
        let Ok(folder) = host.open_dir(format!("/proc/{pid}/fd")) else { continue };
        let mut numbers = Vec::new();
        let _ = folder.list(&mut buffer, |name, _, _| numbers.extend(parse::u32(name)));
        for number in numbers.into_iter().take(DESCRIPTORS_MAX) {
            let is_read = folder.read_link(number.to_string(), &mut buffer).is_ok();
            let minor = buffer.strip_prefix(RENDER_FILES).and_then(parse::u32);
            if let Some(minor) = minor.filter(|_| is_read) {
                found.entry(format!("{RENDER_MAJOR}:{minor}")).or_default().insert(pid);
            }
        }
    }
    found
}

/// Those that belong to no job and that no driver reports: their use of the GPU is unknown.
fn unreported(host: &Host, gpu: &GpuNow<'_>, openers: &Openers) -> Vec<UserLine> {
    let is_reported = |pid: u32| {
        let mut reported = gpu.processes.iter().map(|process| process.0);
        reported.any(|task| matches!(task, Subject::Task { pid: other, .. } if other == pid))
    };
    let pids = openers.get(&gpu.labels[label::DEVICE]).into_iter().flatten();
    let line = |&pid: &u32| {
        let (name, user) = name_and_user(host, pid);
        // One that has ended meanwhile is not there.
        Some(UserLine { name: name?, user, pids: vec![pid], ..UserLine::default() })
    };
    pids.filter(|&&pid| !is_reported(pid)).filter_map(line).collect()
}

/// The use of a GPU by the processes of one job, or of no job.
fn sums(gpu: &GpuNow<'_>, whose: Option<u32>) -> UserLine {
    let mut line = UserLine::default();
    for &(subject, _, memory, utilization) in gpu.processes.iter().filter(|process| process.1 == whose) {
        if let Subject::Task { pid, .. } = subject
            && pid != UNSEEN
        {
            line.pids.push(pid);
        }
        for (sum, cell, scale) in
            [(&mut line.memory_bytes, memory, 1.0), (&mut line.utilization, utilization, 1e-3)]
        {
            if cell != MISSING {
                *sum = Some(sum.unwrap_or(0.0) + cell as f64 * scale);
            }
        }
    }
    line
}

/// Jobs that hold the GPU by what a daemon knows and we may not read: the environment of other users.
fn held_elsewhere(
    gpu: &GpuNow<'_>,
    keys: &HashMap<u32, JobKey>,
    known: &HashMap<JobKey, Record>,
) -> Vec<UserLine> {
    let is_seen = |key: &JobKey| gpu.holders.iter().any(|(slot, _)| keys.get(slot) == Some(key));
    let mut lines: Vec<UserLine> = Vec::new();
    for record in known.values().filter(|record| !is_seen(&record.key)) {
        // What was only open, and is no more, is not held.
        let held = record
            .gpus
            .iter()
            .find(|use_of_it| use_of_it.uuid == gpu.labels[label::UUID] && use_of_it.held_by != HeldBy::Open);
        if let Some(use_of_it) = held {
            lines.push(UserLine {
                job: Some(record.label()),
                name: record.name.clone(),
                user: record.user.clone(),
                idle: use_of_it.idle_since_ns.is_some(),
                idle_since_ns: use_of_it.idle_since_ns,
                ..UserLine::default()
            });
        }
    }
    lines.sort_by(|one, other| one.job.cmp(&other.job));
    lines
}

/// GPUs that jobs hold according to a daemon and that can no longer be read.
fn lost(shown: &[GpuLine], known: &HashMap<JobKey, Record>) -> Vec<GpuLine> {
    let mut lines: Vec<GpuLine> = Vec::new();
    let mut records: Vec<&Record> = known.values().collect();
    records.sort_by(|one, other| one.key.id.cmp(&other.key.id));
    for record in records {
        for gpu in record.gpus.iter().filter(|gpu| gpu.lost_since_ns.is_some()) {
            if shown.iter().any(|line| line.uuid == gpu.uuid) {
                continue;
            }
            let at = lines.iter().position(|line| line.uuid == gpu.uuid).unwrap_or_else(|| {
                lines.push(GpuLine {
                    index: gpu.index.clone(),
                    uuid: gpu.uuid.clone(),
                    name: gpu.name.clone(),
                    vendor: gpu.vendor.clone(),
                    lost_since_ns: gpu.lost_since_ns,
                    ..GpuLine::default()
                });
                lines.len() - 1
            });
            lines[at].users.push(UserLine {
                job: Some(record.label()),
                name: record.name.clone(),
                user: record.user.clone(),
                ..UserLine::default()
            });
        }
    }
    lines
}

fn object(gpu: &GpuLine) -> serde_json::Value {
    // Whole numbers, as everywhere.
    let whole = |bytes: Option<f64>| bytes.map(|bytes| bytes as i64);
    let user = |user: &UserLine| {
        json!({
            "job": user.job,
            "name": user.name,
            "user": user.user,
            "pids": user.pids,
            "utilization_ratio": user.utilization,
            "memory_bytes": whole(user.memory_bytes),
            "idle": user.idle,
            "idle_since": user.idle_since_ns.and_then(met_insight::json::time),
        })
    };
    json!({
        "index": gpu.index,
        "uuid": gpu.uuid,
        "name": gpu.name,
        "vendor": gpu.vendor,
        "utilization_ratio": gpu.utilization,
        "memory_used_bytes": whole(gpu.memory_used_bytes),
        "memory_total_bytes": whole(gpu.memory_total_bytes),
        "power_watts": gpu.power_watts,
        "temperature_celsius": gpu.temperature_celsius,
        "clock_hertz": gpu.clock_hertz,
        "throttled": gpu.throttled,
        "error": gpu.error,
        "lost_since": gpu.lost_since_ns.and_then(met_insight::json::time),
        "users": gpu.users.iter().map(user).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use met_core::gpus::GpuUseSince;

    use super::*;
    use met_core::sample;

    fn labels() -> Vec<String> {
        ["0", "GPU-a", "Card", "nvidia", "", ""].map(str::to_owned).to_vec()
    }

    /// The one user of a GPU: a job that did not compute, or did, while it was looked at.
    fn user_of(watched: &[GpuUse], utilization: i64) -> UserLine {
        let (labels, cells) = (labels(), vec![MISSING; device::TABLE.columns.len()]);
        let quiet = GpuUseSince { held_ns: 1, idle_ns: (utilization == 0).then_some(1) };
        let mut record = sample::bare(7, "pausing");
        record.gpus = watched.to_vec();
        let task = Subject::Task { pid: 100, start_ticks: 1 };
        let now = GpuNow {
            labels: &labels,
            cells: &cells,
            processes: vec![(task, Some(3), 10, utilization)],
            holders: vec![(3, &quiet)],
        };
        let keys = HashMap::from([(3, record.key.clone())]);
        let known = HashMap::from([(record.key.clone(), record)]);
        let users = line(&Host::real().unwrap(), &now, &keys, &known, &Openers::new()).users;
        let [user] = &users[..] else { panic!("{users:?}") };
        user.clone()
    }

    #[test]
    fn a_gpu_that_does_not_answer_is_in_the_table() {
        let unread = |index: &str, uuid: &str| {
            let mut labels = vec![String::new(); device::TABLE.labels.len()];
            for (at, text) in [(label::INDEX, index), (label::UUID, uuid), (label::VENDOR, "nvidia")] {
                labels[at] = text.to_owned();
            }
            Unread { labels, why: "the driver does not answer".to_owned() }
        };
        let gpu = |index: &str, uuid: &str| GpuLine {
            index: index.to_owned(),
            uuid: uuid.to_owned(),
            vendor: "nvidia".to_owned(),
            power_watts: Some(70.0),
            is_free: true,
            ..GpuLine::default()
        };
        let mut lines = vec![gpu("1", "GPU-b"), gpu("2", "GPU-c")];
        mark_unread(&mut lines, vec![unread("0", ""), unread("2", "GPU-c")]);
        lines.sort_by(|one, other| one.index.cmp(&other.index));
        let errors: Vec<bool> = lines.iter().map(|line| line.error.is_some()).collect();
        assert_eq!((errors, lines[2].is_free), (vec![true, false, true], false));
        let drawn = gpus::gpus(&lines, 0, &crate::view::Style::plain());
        assert_eq!(drawn.matches("the driver does not answer").count(), 2, "{drawn}");
        assert_eq!(drawn.matches("70.0 W").count(), 1, "{drawn}");
        assert_eq!(free(&lines, 1, false).unwrap(), "1");
    }

    #[test]
    fn a_job_that_pauses_for_a_second_does_not_idle_where_somebody_watches_it() {
        let watched =
            |idle_since_ns| [GpuUse { uuid: "GPU-a".to_owned(), idle_since_ns, ..GpuUse::default() }];
        let state = |user: UserLine| (user.idle, user.idle_since_ns);
        assert_eq!(state(user_of(&watched(None), 0)), (false, None));
        assert_eq!(state(user_of(&watched(Some(5)), 0)), (true, Some(5)));
        assert_eq!(state(user_of(&watched(Some(5)), 400)), (false, None), "it has begun again");
        assert_eq!(state(user_of(&[], 0)), (true, None), "nobody watches: by this look alone");
    }

    #[test]
    fn processes_outside_of_a_container_are_counted_once_and_have_no_numbers() {
        let (labels, cells) = (labels(), vec![MISSING; device::TABLE.columns.len()]);
        let unseen = Subject::Task { pid: 0, start_ticks: 0 };
        let own = Subject::Task { pid: std::process::id(), start_ticks: 1 };
        let processes = vec![(unseen, None, 10, MISSING), (own, None, 7, 300), (unseen, None, 10, MISSING)];
        let now = GpuNow { labels: &labels, cells: &cells, processes, holders: Vec::new() };
        let users =
            line(&Host::real().unwrap(), &now, &HashMap::new(), &HashMap::new(), &Openers::new()).users;
        let [outside, here] = &users[..] else { panic!("{users:?}") };
        assert_eq!((outside.name.as_str(), &outside.pids[..]), ("2 processes not shown here", &[][..]));
        assert_eq!((outside.memory_bytes, outside.utilization), (Some(20.0), None));
        assert_eq!((&here.pids[..], here.memory_bytes), (&[std::process::id()][..], Some(7.0)));
    }

    #[test]
    fn a_job_whose_environment_is_not_shown_is_named_as_elsewhere() {
        let (labels, cells) = (labels(), vec![MISSING; device::TABLE.columns.len()]);
        let mut record = sample::bare(7, "theirs");
        record.key.manager = "slurm".to_owned();
        let held = GpuUse {
            uuid: "GPU-a".to_owned(),
            held_by: "SLURM_JOB_GPUS".to_owned().into(),
            ..GpuUse::default()
        };
        record.gpus = vec![held];
        let now = GpuNow { labels: &labels, cells: &cells, processes: Vec::new(), holders: Vec::new() };
        let known = HashMap::from([(record.key.clone(), record)]);
        let gpu = line(&Host::real().unwrap(), &now, &HashMap::new(), &known, &Openers::new());
        assert_eq!(gpu.users[0].job.as_deref(), Some("slurm:7"));
        assert_eq!(object(&gpu)["vendor"], "nvidia");
    }

    #[test]
    fn who_has_a_gpu_open_of_which_only_jobs_are_reported_is_shown_without_figures() {
        let root = tempfile::tempdir().unwrap();
        for (pid, name, file) in
            [(70, "trainer", "renderD129"), (71, "viewer", "renderD128"), (72, "job", "renderD129")]
        {
            let folder = root.path().join(format!("proc/{pid}"));
            std::fs::create_dir_all(folder.join("fd")).unwrap();
            let zeros = "0 ".repeat(17);
            std::fs::write(folder.join("stat"), format!("{pid} ({name}) S 1 {zeros}9 0")).unwrap();
            for (number, target) in [(0, "/dev/null"), (3, &format!("/dev/dri/{file}"))] {
                std::os::unix::fs::symlink(target, folder.join(format!("fd/{number}"))).unwrap();
            }
        }
        let host = Host::at(root.path()).unwrap();
        let labels = ["0", "GPU-a", "Card", "amd", "", "226:129"].map(str::to_owned).to_vec();
        let cells = vec![MISSING; device::TABLE.columns.len()];
        let job = Subject::Task { pid: 72, start_ticks: 9 };
        let processes = vec![(job, Some(3), 10, 400)];
        let now = GpuNow { labels: &labels, cells: &cells, processes, holders: Vec::new() };
        let users = line(&host, &now, &HashMap::new(), &HashMap::new(), &openers(&host)).users;
        let [user] = &users[..] else { panic!("{users:?}") };
        assert_eq!((user.name.as_str(), &user.pids[..]), ("trainer", &[70][..]));
        assert_eq!((user.memory_bytes, user.utilization), (None, None));
    }

    #[test]
    fn the_page_about_the_list_has_every_key_and_bytes_are_whole() {
        let user = UserLine { memory_bytes: Some(6e8), ..UserLine::default() };
        let gpu = GpuLine { memory_used_bytes: Some(6e8), users: vec![user], ..GpuLine::default() };
        let shown = object(&gpu);
        assert_eq!(shown["memory_used_bytes"].to_string(), "600000000");
        assert_eq!(shown["users"][0]["memory_bytes"].to_string(), "600000000");
        let page = include_str!("../../../../docs/json.md");
        let (_, page) = page.split_once("## The list of `met gpus --json`").unwrap();
        let of_users = shown["users"][0].as_object().unwrap().keys();
        for key in shown.as_object().unwrap().keys().chain(of_users) {
            assert!(page.contains(&format!("`{key}`")), "docs/json.md lacks {key} of met gpus");
        }
    }

    #[test]
    fn only_a_gpu_that_is_known_to_do_nothing_is_free() {
        let is_free = |parent: &str, known: &[(usize, i64)], holders: Vec<(u32, &GpuUseSince)>| {
            let (mut labels, mut cells) = (labels(), vec![MISSING; device::TABLE.columns.len()]);
            labels[label::PARENT] = parent.to_owned();
            known.iter().for_each(|&(column, cell)| cells[column] = cell);
            let now = GpuNow { labels: &labels, cells: &cells, processes: Vec::new(), holders };
            let record = sample::bare(7, "holder");
            let keys = HashMap::from([(3, record.key.clone())]);
            let known = HashMap::from([(record.key.clone(), record)]);
            line(&Host::real().unwrap(), &now, &keys, &known, &Openers::new()).is_free
        };
        let quiet = [(device::PROCESSES, 0), (device::UTILIZATION, 0)];
        assert!(is_free("", &quiet, Vec::new()));
        let since = GpuUseSince { held_ns: 1, idle_ns: Some(1) };
        assert!(!is_free("", &quiet, vec![(3, &since)]), "a job holds it");
        for not_free in [
            vec![],
            vec![(device::PROCESSES, 0)],
            vec![(device::PROCESSES, 1), (device::UTILIZATION, 0)],
            vec![(device::PROCESSES, 0), (device::UTILIZATION, 10)],
            vec![(device::PROCESSES, 0), (device::UTILIZATION, 0), (device::SLICES, 7)],
            vec![(device::MEMORY_USED, 500), (device::MEMORY_TOTAL, 1000), (device::UTILIZATION, 0)],
        ] {
            assert!(!is_free("", &not_free, Vec::new()), "{not_free:?}");
        }
        let almost_empty = [(device::MEMORY_USED, 5), (device::MEMORY_TOTAL, 1000), (device::UTILIZATION, 0)];
        assert!(is_free("", &almost_empty, Vec::new()), "a driver that lists no processes");
        assert!(is_free("GPU-b", &[(device::LIST_AGE, 1)], Vec::new()), "a MIG instance");
        assert!(!is_free("GPU-b", &[], Vec::new()), "nobody knows who is on it");
    }

    fn gpus() -> Vec<GpuLine> {
        let gpu = |vendor: &str, index: &str, is_free| GpuLine {
            vendor: vendor.to_owned(),
            index: index.to_owned(),
            uuid: format!("{vendor}-{index}"),
            is_free,
            ..GpuLine::default()
        };
        vec![
            gpu("amd", "0", true),
            gpu("nvidia", "0", false),
            gpu("nvidia", "1", true),
            gpu("nvidia", "2", false),
            gpu("nvidia", "2.1", true),
        ]
    }

    #[test]
    fn free_gpus_are_of_one_maker_and_named_as_programs_want_them() {
        assert_eq!(free(&gpus(), 1, false).unwrap(), "1");
        assert_eq!(free(&gpus(), 2, false).unwrap(), "1,nvidia-2.1");
        assert_eq!(free(&gpus(), 1, true).unwrap(), "nvidia-1");
        let few = free(&gpus(), 3, false).unwrap_err();
        assert_eq!(few, "2 of 5 GPUs are free, 3 requested; `met gpus` shows who has them");
        assert!(free(&[], 1, false).is_err());
    }
}
