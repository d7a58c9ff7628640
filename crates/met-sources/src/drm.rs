//! AMD and Intel GPUs without a vendor's library: sysfs for the GPU, `/proc/PID/fdinfo` for its users.
//!
//! A process says in its fdinfo how long each engine worked for it; forked and duplicated descriptors say it
//! again, so each client is counted once. What computes through KFD alone is found in its own directory.

mod gpu_metrics;
mod pcie_bw;

use std::collections::{HashMap, HashSet};

use met_core::gpu::{device, process, vendor};
use met_core::rate;
use met_core::{Batch, MISSING, Subject, Unparsed};
use met_host::{Dir, Host, Targets, TaskRole, TaskTarget, clock, parse};

use self::gpu_metrics::Counters;
use self::pcie_bw::PcieReader;
use crate::{Opened, Options, Pace, ReadError, Source, SourceSpec, TickInfo, Unavailable};

pub(crate) static SPEC: SourceSpec = SourceSpec {
    name: "drm",
    help: "AMD and Intel GPUs: use, memory, power and energy, also per process",
    pace: Pace::Tick,
    tables: &[&device::TABLE, &process::TABLE],
    charts: device::CHARTS,
    options: &[],
    open,
};

const DRM: &str = "/sys/class/drm";
const KFD: &str = "/sys/class/kfd/kfd";
/// Descriptors of one process that are searched for GPUs.
const DESCRIPTORS_MAX: usize = 4096;
/// One part in this many of a core may be spent on searching the descriptors of one process.
const SCAN_COST_INVERSE: i64 = 1000;
const SCAN_EVERY_MIN_NS: i64 = 900_000_000;
/// Of a process that has no GPU for long.
const SCAN_EVERY_MAX_NS: i64 = 8_000_000_000;
const GPU_FILES: &[u8] = b"/dev/dri/";
/// A reloaded driver makes new directories.
const REOPEN_EVERY_NS: i64 = 5_000_000_000;

struct Drm {
    host: Host,
    gpus: Vec<Gpu>,
    labels: Vec<Vec<String>>,
    /// What is known of each process.
    known: HashMap<(u32, u64), Known>,
    /// What each client's engines had done, and when that was read.
    clients: HashMap<(usize, u64), (i64, Engines)>,
    /// When unresponsive GPUs are searched for again.
    reopen_due_ns: i64,
    buffer: Vec<u8>,
}

/// The process that a client was met with in this reading, and whether what it did was counted there.
type Met = HashMap<(usize, u64), (u32, bool)>;

/// How a process has to do with GPUs, as of when it was last looked through.
#[derive(Clone, Debug, Default)]
struct Known {
    descriptors: Vec<u32>,
    by_kfd: bool,
    due_ns: i64,
    every_ns: i64,
}

impl Known {
    fn has_gpu(&self) -> bool {
        self.by_kfd || !self.descriptors.is_empty()
    }
}

struct Gpu {
    device: Dir,
    hwmon: Option<Dir>,
    /// Where the driver says its clock, seen from the GPU's own directory.
    gt: Option<Dir>,
    pci: String,
    /// The GPU's number in KFD.
    kfd_id: Option<Vec<u8>>,
    /// What its firmware had counted, and when that was read.
    counted: Option<(i64, Counters)>,
    pcie: Option<PcieReader>,
    /// It was there, and is not any more.
    is_gone: bool,
}

/// What engines of one kind did. Several that work side by side count as one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Work {
    /// Nanoseconds, or cycles.
    busy: Option<i64>,
    /// All cycles that have passed, where cycles are counted.
    cycles: Option<i64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Engines {
    compute: Work,
    copy: Work,
    encode: Work,
    decode: Work,
}

/// What one descriptor says about a client of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Client {
    pci: String,
    id: u64,
    memory_bytes: Option<i64>,
    engines: Engines,
}

fn open(host: &Host, _: &Options) -> Opened {
    let mut source = Drm::new(host);
    source.find_gpus();
    let absent = Unavailable::Absent("no AMD or Intel GPU".to_owned());
    if source.gpus.is_empty() { Err(absent) } else { Ok(Box::new(source)) }
}

impl Source for Drm {
    fn read(&mut self, targets: &Targets, tick: &TickInfo, out: &mut [Batch]) -> Result<(), ReadError> {
        let [gpus, processes] = out else { return Ok(()) };
        let now_ns = clock::boottime_ns();
        self.read_gpus(now_ns, gpus);
        let mut met = Met::new();
        // Only processes of jobs are searched: the number of processes on a GPU is not known.
        let living: HashSet<_> = targets.tasks.iter().map(|task| (task.pid, task.start_ticks)).collect();
        self.known.retain(|key, _| living.contains(key));
        for task in targets.tasks.iter().filter(|task| task.role == TaskRole::Member) {
            let known = self.known.get(&(task.pid, task.start_ticks));
            let is_due = known.is_none_or(|known| tick.slow && now_ns >= known.due_ns);
            // Where processes are left out, those known to have a GPU are still read.
            if (is_due || task.young) && !tick.cgroups_only {
                self.look_through(task, now_ns);
            }
            self.read_process(task, &mut met, processes);
        }
        self.clients.retain(|key, _| met.contains_key(key));
        Ok(())
    }

    fn labels(&self) -> &[Vec<String>] {
        &self.labels
    }
}

impl Drm {
    fn new(host: &Host) -> Drm {
        Drm {
            host: host.clone(),
            gpus: Vec::new(),
            labels: Vec::new(),
            known: HashMap::new(),
            clients: HashMap::new(),
            reopen_due_ns: 0,
            buffer: Vec::new(),
        }
    }

    /// Fills a row for each GPU that is there. One that is gone, or whose driver was reloaded, is searched
    /// for.
    fn read_gpus(&mut self, now_ns: i64, out: &mut Batch) {
        let mut is_whole = true;
        for (part, gpu) in (0..).zip(&mut self.gpus) {
            let mut cells = [MISSING; device::TABLE.columns.len()];
            is_whole &= !gpu.is_gone && gpu.fill(now_ns, &mut self.buffer, &mut cells, &mut out.unparsed);
            if !gpu.is_gone {
                out.push_part(Subject::Node, part).copy_from_slice(&cells);
            }
        }
        if !is_whole && now_ns >= self.reopen_due_ns {
            self.reopen_due_ns = now_ns + REOPEN_EVERY_NS;
            self.find_gpus();
        }
    }

    /// Takes up the GPUs that there are. One that is known keeps its row.
    fn find_gpus(&mut self) {
        let mut names = Vec::new();
        if let Ok(folder) = self.host.open_dir(DRM) {
            let _ = folder.list(&mut Vec::new(), |name, _, _| {
                // `card0-HDMI-A-1` is a plug of it.
                names.extend(name.strip_prefix(b"card").and_then(parse::u32));
            });
        }
        names.sort_unstable();
        self.gpus.iter_mut().for_each(|gpu| gpu.is_gone = true);
        let mut counts = HashMap::new();
        for number in names {
            let Some((gpu, mut labels)) = self.meet(number) else { continue };
            // Each maker's own variables count its own GPUs.
            let count: &mut usize = counts.entry(labels[device::label::VENDOR].clone()).or_default();
            labels[device::label::INDEX] = count.to_string();
            *count += 1;
            let uuid = |labels: &Vec<String>| labels[device::label::UUID].clone();
            match self.labels.iter().position(|known| uuid(known) == uuid(&labels)) {
                Some(known) => (self.gpus[known], self.labels[known]) = (gpu, labels),
                None => {
                    self.gpus.push(gpu);
                    self.labels.push(labels);
                }
            }
        }
    }

    /// A GPU and its labels, if its maker is one of ours.
    fn meet(&mut self, number: u32) -> Option<(Gpu, Vec<String>)> {
        let device = self.host.open_dir(format!("{DRM}/card{number}/device")).ok()?;
        let mut text = |name: &str| {
            device.read(name, &mut self.buffer).ok()?;
            let text = String::from_utf8_lossy(self.buffer.trim_ascii()).into_owned();
            (!text.is_empty()).then_some(text)
        };
        let vendor = match text("vendor").as_deref() {
            Some("0x1002") => vendor::AMD,
            Some("0x8086") => vendor::INTEL,
            _ => return None,
        };
        let uevent = text("uevent").unwrap_or_default();
        let pci =
            uevent.lines().find_map(|line| line.strip_prefix("PCI_SLOT_NAME=")).unwrap_or("").to_owned();
        let uuid = text("unique_id").map_or_else(|| format!("PCI-{pci}"), |id| format!("GPU-{id}"));
        let name = text("product_name").unwrap_or_else(|| {
            let maker = if vendor == vendor::AMD { "AMD" } else { "Intel" };
            format!("{maker} {}", text("device").unwrap_or_default())
        });
        let numbers = render_device(&device).unwrap_or_else(|| format!("226:{number}"));
        let labels = vec![String::new(), uuid, name, vendor.to_owned(), String::new(), numbers];
        let hwmon = first_below(&device, "hwmon");
        let gt = self.host.open_dir(format!("{DRM}/card{number}/gt/gt0")).ok();
        let kfd_id = kfd_id(&self.host, &pci);
        // Not read to find out: that takes a second.
        let for_thread = device.inode_of(pcie_bw::FILE).and_then(|_| device.open_dir("."));
        let pcie = for_thread.ok().and_then(PcieReader::start);
        Some((Gpu { device, hwmon, gt, pci, kfd_id, counted: None, pcie, is_gone: false }, labels))
    }

    /// Searches for descriptors of GPUs by their links, which cost a third of reading their fdinfo files.
    fn look_through(&mut self, task: &TaskTarget, now_ns: i64) {
        let begin_ns = clock::thread_cpu_ns();
        let mut found = Known::default();
        let mut numbers = Vec::new();
        if let Ok(folder) = self.host.open_dir(format!("/proc/{}/fd", task.pid)) {
            let _ = folder.list(&mut self.buffer, |name, _, _| numbers.extend(parse::u32(name)));
            for number in numbers.into_iter().take(DESCRIPTORS_MAX) {
                if folder.read_link(number.to_string(), &mut self.buffer).is_ok()
                    && self.buffer.starts_with(GPU_FILES)
                {
                    found.descriptors.push(number);
                }
            }
        }
        let ids: Vec<String> = self.kfd_ids().map(|(_, id)| id).collect();
        found.by_kfd = ids.iter().any(|id| {
            self.host.read_small(format!("{KFD}/proc/{}/vram_{id}", task.pid), &mut self.buffer).is_ok()
        });
        let cost_ns = clock::thread_cpu_ns() - begin_ns;
        let before = self.known.get(&(task.pid, task.start_ticks));
        let every_ns = match before.filter(|before| !before.has_gpu() && !found.has_gpu()) {
            Some(before) => (before.every_ns * 2).min(SCAN_EVERY_MAX_NS),
            None => SCAN_EVERY_MIN_NS,
        };
        found.every_ns = every_ns.max(SCAN_EVERY_MIN_NS);
        found.due_ns = now_ns + found.every_ns.max(cost_ns * SCAN_COST_INVERSE);
        self.known.insert((task.pid, task.start_ticks), found);
    }

    /// The GPUs that KFD numbers, and how.
    fn kfd_ids(&self) -> impl Iterator<Item = (usize, String)> {
        let id = |gpu: &Gpu| Some(String::from_utf8_lossy(gpu.kfd_id.as_ref()?).into_owned());
        self.gpus.iter().enumerate().filter_map(move |(index, gpu)| Some((index, id(gpu)?)))
    }

    fn read_process(&mut self, task: &TaskTarget, met: &mut Met, out: &mut Batch) {
        let now_ns = clock::boottime_ns();
        let known = self.known.get(&(task.pid, task.start_ticks)).filter(|known| known.has_gpu());
        let Some(Known { descriptors, by_kfd, .. }) = known.cloned() else { return };
        let mut uses: Vec<Option<Vec<i64>>> = vec![None; self.gpus.len()];
        for number in descriptors {
            let path = format!("/proc/{}/fdinfo/{number}", task.pid);
            if self.host.read_small(path, &mut self.buffer).is_err() {
                continue;
            }
            let mut is_parsed = true;
            let client = client_of(&self.buffer, &mut is_parsed);
            out.unparsed.expect(is_parsed, || format!("/proc/{}/fdinfo/{number}", task.pid));
            let Some(client) = client else { continue };
            let is_its = |gpu: &Gpu| gpu.pci == client.pci && !gpu.is_gone;
            let Some(index) = self.gpus.iter().position(is_its) else { continue };
            let cells = uses[index].get_or_insert_with(|| vec![MISSING; process::TABLE.columns.len()]);
            cells[process::OPEN] = 1;
            match met.get(&(index, client.id)) {
                // A duplicated descriptor.
                Some((pid, _)) if *pid == task.pid => {}
                // Counted with another process: this one adds nothing to it.
                Some((_, true)) => add_nothing(cells, &client.engines),
                Some((_, false)) => {}
                None => {
                    let before = self.clients.insert((index, client.id), (now_ns, client.engines));
                    met.insert((index, client.id), (task.pid, before.is_some()));
                    add_client(cells, &client, before, now_ns);
                }
            }
        }
        let by_kfd: Vec<(usize, String)> = self.kfd_ids().filter(|_| by_kfd).collect();
        for (index, id) in by_kfd {
            let path = format!("{KFD}/proc/{}/vram_{id}", task.pid);
            if self.host.read_small(path, &mut self.buffer).is_ok() {
                let cells = uses[index].get_or_insert_with(|| vec![MISSING; process::TABLE.columns.len()]);
                cells[process::OPEN] = 1;
                let memory = parse::cell(self.buffer.trim_ascii());
                out.unparsed.expect(memory != MISSING, || format!("{KFD}/proc/{}/vram_{id}", task.pid));
                // A descriptor may report the same memory, too: the larger is the whole.
                cells[process::MEMORY] = cells[process::MEMORY].max(memory);
            }
        }
        let owner = Subject::Task { pid: task.pid, start_ticks: task.start_ticks };
        for (part, cells) in (0..).zip(uses) {
            if let Some(cells) = cells {
                out.push_part(owner, part).copy_from_slice(&cells);
            }
        }
    }
}

impl Gpu {
    /// False: it reports nothing, and its directories may be those of a driver that is gone.
    fn fill(
        &mut self,
        now_ns: i64,
        buffer: &mut Vec<u8>,
        cells: &mut [i64],
        unparsed: &mut Unparsed,
    ) -> bool {
        // To read its files would wake it up.
        let has_status = self.device.read("power/runtime_status", buffer).is_ok();
        if has_status && buffer.starts_with(b"suspend") {
            return true;
        }
        self.fill_counters(now_ns, buffer, cells, unparsed);
        let pci = &self.pci;
        let mut number = |folder: Option<&Dir>, names: &[&str], factor: i64, divisor: i64| {
            let Some(folder) = folder else { return MISSING };
            let read = names.iter().find_map(|name| {
                folder.read(name, buffer).ok()?;
                let cell = parse::cell(buffer.trim_ascii());
                let is_unknown = buffer.trim_ascii().is_empty();
                unparsed.expect(cell != MISSING || is_unknown, || format!("{name} of the GPU {pci}"));
                Some(parse::scaled(cell, factor)).filter(|cell| *cell != MISSING)
            });
            read.map_or(MISSING, |cell| cell / divisor)
        };
        let (device, hwmon) = (Some(&self.device), self.hwmon.as_ref());
        cells[device::UTILIZATION] = number(device, &["gpu_busy_percent"], 10, 1);
        cells[device::UTILIZATION_MEMORY] = number(device, &["mem_busy_percent"], 10, 1);
        cells[device::MEMORY_USED] = number(device, &["mem_info_vram_used"], 1, 1);
        cells[device::MEMORY_TOTAL] = number(device, &["mem_info_vram_total"], 1, 1);
        // µW, µJ, m°C and Hz. On a GPU with two chips, the first reports power and limit of both, and the
        // second reports 0.
        let above_0 = |cell: i64| if cell > 0 { cell } else { MISSING };
        cells[device::POWER] = above_0(number(hwmon, &["power1_average", "power1_input"], 1, 1000));
        cells[device::POWER_LIMIT] = above_0(number(hwmon, &["power1_cap", "power1_max"], 1, 1000));
        if cells[device::ENERGY] == MISSING {
            cells[device::ENERGY] = number(hwmon, &["energy1_input"], 1, 1);
        }
        cells[device::TEMPERATURE] = number(hwmon, &["temp1_input", "temp2_input"], 1, 1);
        cells[device::CLOCK] = number(hwmon, &["freq1_input"], 1, 1_000_000);
        if cells[device::CLOCK] == MISSING {
            cells[device::CLOCK] = number(self.gt.as_ref(), &["rps_act_freq_mhz"], 1, 1);
        }
        cells[device::CLOCK_MEMORY] = number(hwmon, &["freq2_input"], 1, 1_000_000);
        let of_hwmon =
            [device::POWER, device::POWER_LIMIT, device::ENERGY, device::TEMPERATURE, device::CLOCK_MEMORY];
        match hwmon {
            Some(_) => of_hwmon.iter().any(|&column| cells[column] != MISSING),
            None => cells.iter().any(|cell| *cell != MISSING),
        }
    }
}

impl Gpu {
    /// What the firmware and the bus count.
    fn fill_counters(
        &mut self,
        now_ns: i64,
        buffer: &mut Vec<u8>,
        cells: &mut [i64],
        unparsed: &mut Unparsed,
    ) {
        let is_read = self.device.read("gpu_metrics", buffer).is_ok();
        let is_whole = !is_read || gpu_metrics::is_whole(buffer);
        unparsed.expect(is_whole, || format!("gpu_metrics of the GPU {}", self.pci));
        let read = if is_read { gpu_metrics::counters(buffer) } else { None };
        let before = std::mem::replace(&mut self.counted, read.map(|counters| (now_ns, counters)));
        if let Some(counters) = read {
            cells[device::ENERGY] = counters.energy_uj.unwrap_or(MISSING);
            let (before_ns, before) = before.unwrap_or((now_ns, counters));
            let rate = |before: Option<i64>, now: Option<i64>| {
                let rate = rate::per_second(before?, now?, now_ns - before_ns)?;
                Some(rate as i64)
            };
            let received = rate(before.xgmi_read_bytes, counters.xgmi_read_bytes);
            let sent = rate(before.xgmi_written_bytes, counters.xgmi_written_bytes);
            cells[device::XGMI_RECEIVED] = received.unwrap_or(MISSING);
            cells[device::XGMI_SENT] = sent.unwrap_or(MISSING);
        }
        if let Some(bandwidth) = self.pcie.as_mut().and_then(|pcie| pcie.bandwidth(now_ns)) {
            cells[device::PCIE_RECEIVED] = bandwidth.received;
            cells[device::PCIE_SENT] = bandwidth.sent;
        }
    }
}

fn first_below(folder: &Dir, name: &str) -> Option<Dir> {
    let folder = folder.open_dir(name).ok()?;
    let mut names: Vec<String> = Vec::new();
    folder.list(&mut Vec::new(), |name, _, _| names.push(String::from_utf8_lossy(name).into_owned())).ok()?;
    names.sort_unstable();
    folder.open_dir(names.first()?).ok()
}

/// The device file that programs compute through: `renderD128` has the minor number 128.
fn render_device(device: &Dir) -> Option<String> {
    let mut minor = None;
    let folder = device.open_dir("drm").ok()?;
    let _ = folder.list(&mut Vec::new(), |name, _, _| {
        minor = name.strip_prefix(b"renderD").and_then(parse::u32).or(minor);
    });
    minor.map(|minor| format!("226:{minor}"))
}

/// KFD names a GPU by a number of its own and says where on the bus it is.
fn kfd_id(host: &Host, pci: &str) -> Option<Vec<u8>> {
    let folder = host.open_dir(format!("{KFD}/topology/nodes")).ok()?;
    let mut nodes = Vec::new();
    folder.list(&mut Vec::new(), |name, _, _| nodes.extend(parse::u32(name))).ok()?;
    let mut text = Vec::new();
    nodes.into_iter().find_map(|node| {
        folder.read(format!("{node}/properties"), &mut text).ok()?;
        let value = |key: &str| {
            let line = parse::lines(&text).find(|line| parse::fields(line).next() == Some(key.as_bytes()))?;
            parse::fields(line).nth(1).and_then(parse::u64)
        };
        let (location, domain) = (value("location_id")?, value("domain").unwrap_or(0));
        let (bus, slot, function) = (location >> 8 & 0xff, location >> 3 & 0x1f, location & 7);
        if format!("{domain:04x}:{bus:02x}:{slot:02x}.{function}") != pci {
            return None;
        }
        folder.read(format!("{node}/gpu_id"), &mut text).ok()?;
        Some(text.trim_ascii().to_vec())
    })
}

/// Adds one client to its process: levels as they are, engines by what they did since they were last read.
fn add_client(cells: &mut [i64], client: &Client, before: Option<(i64, Engines)>, now_ns: i64) {
    let add = |cell: &mut i64, more: Option<i64>| {
        if let Some(more) = more {
            *cell = if *cell == MISSING { more } else { cell.saturating_add(more) };
        }
    };
    add(&mut cells[process::MEMORY], client.memory_bytes);
    let Some((before_ns, before)) = before.filter(|(before_ns, _)| now_ns > *before_ns) else { return };
    // A client comes and goes with its descriptor: only its own counter grows steadily, not a process's sum.
    let share = |before: Work, now: Work| {
        let passed = match (before.cycles, now.cycles) {
            (Some(before), Some(now)) => now.saturating_sub(before),
            _ => now_ns - before_ns,
        };
        rate::busy_thousandths(before.busy?, now.busy?, passed)
    };
    let now = client.engines;
    add(&mut cells[process::UTILIZATION], share(before.compute, now.compute));
    add(&mut cells[process::UTILIZATION_COPY], share(before.copy, now.copy));
    add(&mut cells[process::UTILIZATION_ENCODER], share(before.encode, now.encode));
    add(&mut cells[process::UTILIZATION_DECODER], share(before.decode, now.decode));
}

fn add_nothing(cells: &mut [i64], engines: &Engines) {
    for (column, engine) in [
        (process::UTILIZATION, engines.compute),
        (process::UTILIZATION_COPY, engines.copy),
        (process::UTILIZATION_ENCODER, engines.encode),
        (process::UTILIZATION_DECODER, engines.decode),
    ] {
        if engine.busy.is_some() && cells[column] == MISSING {
            cells[column] = 0;
        }
    }
}

/// What an fdinfo file says; nothing if it is not a GPU's. `is_parsed` becomes false where a number of it is none.
fn client_of(text: &[u8], is_parsed: &mut bool) -> Option<Client> {
    let mut client = Client::default();
    let (mut total, mut resident) = (None, None);
    let mut has_id = false;
    for line in parse::lines(text) {
        let Some(colon) = line.iter().position(|&byte| byte == b':') else { continue };
        let (key, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        let Some(key) = key.strip_prefix(b"drm-") else { continue };
        let mut fields = parse::fields(value);
        let number = fields.next().and_then(parse::i64);
        match key {
            b"pdev" => client.pci = String::from_utf8_lossy(value).into_owned(),
            b"client-id" => {
                let id = number.and_then(|id| u64::try_from(id).ok());
                *is_parsed &= id.is_some();
                client.id = id?;
                has_id = true;
            }
            _ => {
                let bytes = number.and_then(|number| number.checked_mul(unit(fields.next())));
                let is_number = [&b"engine-"[..], b"cycles-", b"total-cycles-", b"memory-", b"resident-"];
                *is_parsed &= number.is_some() || !is_number.iter().any(|begin| key.starts_with(begin));
                if let Some(engine) = key.strip_prefix(b"engine-").or_else(|| key.strip_prefix(b"cycles-")) {
                    client.engines.add(engine, number.map(|worked| worked / capacity(text, engine)));
                } else if let Some(engine) = key.strip_prefix(b"total-cycles-") {
                    client.engines.pass(engine, number);
                } else if key.starts_with(b"memory-vram") || key.starts_with(b"memory-local") {
                    total = sum(total, bytes);
                } else if key.starts_with(b"resident-vram") || key.starts_with(b"resident-local") {
                    resident = sum(resident, bytes);
                }
            }
        }
    }
    client.memory_bytes = total.or(resident);
    (has_id && !client.pci.is_empty()).then_some(client)
}

/// How many engines of one name there are, which work side by side.
fn capacity(text: &[u8], engine: &[u8]) -> i64 {
    let number = |line: &[u8]| {
        let line = line.strip_prefix(b"drm-engine-capacity-")?.strip_prefix(engine)?.strip_prefix(b":")?;
        parse::fields(line).next().and_then(parse::i64)
    };
    parse::lines(text).find_map(number).unwrap_or(1).max(1)
}

fn unit(word: Option<&[u8]>) -> i64 {
    match word {
        Some(b"KiB") => 1 << 10,
        Some(b"MiB") => 1 << 20,
        _ => 1,
    }
}

fn sum(one: Option<i64>, other: Option<i64>) -> Option<i64> {
    match (one, other) {
        (Some(one), Some(other)) => one.checked_add(other),
        (one, other) => one.or(other),
    }
}

impl Engines {
    /// The kernel's names of engines, by what they do. Video engines of Intel's also encode; what only improves
    /// pictures is neither.
    fn of(&mut self, engine: &[u8]) -> Option<&mut Work> {
        match engine {
            b"gfx" | b"compute" | b"render" | b"rcs" | b"ccs" => Some(&mut self.compute),
            b"dma" | b"copy" | b"bcs" => Some(&mut self.copy),
            b"dec" | b"jpeg" | b"vcn" | b"vcs" | b"video" => Some(&mut self.decode),
            b"enc" | b"enc_1" => Some(&mut self.encode),
            _ => None,
        }
    }

    fn add(&mut self, engine: &[u8], worked: Option<i64>) {
        if let Some(work) = self.of(engine) {
            work.busy = sum(work.busy, worked);
        }
    }

    fn pass(&mut self, engine: &[u8], cycles: Option<i64>) {
        if let Some(work) = self.of(engine) {
            work.cycles = work.cycles.max(cycles);
        }
    }
}

#[cfg(test)]
mod tests;
