//! What `met show` and `met time` tell of a job: labelled amounts, without a word on how they are drawn.
//!
//! An amount that is not known is left out; it is never shown as 0.

use std::borrow::Cow;

use met_core::job::{Figure, GpuUse, Origin, Part, QualityKind, Record, State};
use met_core::job_table as column;
use met_core::{JOB, Unit};

use crate::allocation::{self, Resource, Share};
use crate::{average, events};

#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    pub id: String,
    pub name: String,
    pub state: State,
    /// The end of the job, or its state, in words.
    pub outcome: String,
    pub facts: Vec<Fact>,
    pub meters: Vec<Meter>,
    /// What a manager's job asked for, was given and used.
    pub shares: Vec<ShareLine>,
    pub sections: Vec<Section>,
    /// Its steps and tasks, each task after its step.
    pub parts: Vec<PartLine>,
    pub notes: Vec<String>,
}

/// A line about the job itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Fact {
    pub label: &'static str,
    pub value: FactValue,
}

#[derive(Clone, Debug, PartialEq)]
pub enum FactValue {
    Text(String),
    /// As given; how words are quoted is up to the view.
    Command(Vec<String>),
    /// Start and, where the job is over, end.
    Times(i64, Option<i64>),
    Amount(Amount),
}

/// How much of a whole was used.
#[derive(Clone, Debug, PartialEq)]
pub struct Meter {
    pub label: &'static str,
    pub share: f64,
    pub used: Amount,
    pub whole: Amount,
    /// What `used` is: an average, a peak.
    pub of: &'static str,
}

/// One resource of a manager's job.
#[derive(Clone, Debug, PartialEq)]
pub struct ShareLine {
    pub label: &'static str,
    pub requested: Option<Amount>,
    pub allocated: Option<Amount>,
    pub used: Option<Amount>,
    pub efficiency: Option<f64>,
}

/// A step of a job, or a task of one.
#[derive(Clone, Debug, PartialEq)]
pub struct PartLine {
    pub node: String,
    pub step: String,
    pub task: Option<String>,
    pub name: Option<String>,
    pub cpu: Option<Amount>,
    pub memory: Option<Amount>,
    pub duration: Option<Amount>,
    pub exit_code: Option<i32>,
    /// How many have this line together.
    pub folded: Option<u64>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Section {
    pub title: &'static str,
    /// Of one thing among several, such as a card: its label and what there is to say before its lines.
    pub heading: Option<(String, String)>,
    pub lines: Vec<Line>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Tells the line from every other one, also without the section's title.
    pub label: &'static str,
    pub amount: Amount,
    pub details: Vec<Detail>,
}

/// What explains an amount: words around another amount, or words alone.
#[derive(Clone, Debug, PartialEq)]
pub struct Detail {
    pub before: &'static str,
    pub amount: Option<Amount>,
    pub after: Cow<'static, str>,
}

/// A number in its unit, and how it came to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Amount {
    pub value: f64,
    pub measure: Measure,
    pub quality: QualityKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    Seconds,
    Bytes,
    BytesPerSecond,
    Count,
    Cores,
    /// 0.5 is half.
    Share,
    /// Shown as watt hours.
    Joules,
    /// Of CO2 equivalent.
    Grams,
    /// In the currency that a detail names.
    Money,
    Watts,
    Celsius,
    Hertz,
    Cards,
}

/// What of the machine the report may say besides the record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    pub cpus: Option<u32>,
}

pub fn report(record: &Record, machine: Machine, now_ns: i64) -> Report {
    let source = Reader { record, machine, now_ns };
    let sections = [source.cpu(), source.memory()].into_iter().chain(record.gpus.iter().map(gpu)).chain([
        source.input_output(),
        source.processes(),
        source.pressure(),
        events::section(record, now_ns),
        source.energy(),
    ]);
    Report {
        id: record.label(),
        name: record.name.clone(),
        state: record.state,
        outcome: outcome(record),
        facts: source.facts(),
        meters: source.meters(),
        shares: source.shares(),
        parts: source.parts(),
        sections: sections.filter(|section| !section.lines.is_empty()).collect(),
        notes: source.notes(),
    }
}

/// How the job ended, in words, or its state while it has not.
pub fn outcome(record: &Record) -> String {
    let ending = match (record.signal, record.exit_code) {
        (Some(signal), _) => Some(format!("killed by signal {signal}{}", signal_name(signal))),
        (None, Some(code)) => Some(format!("exit code {code}")),
        (None, None) => None,
    };
    let state = match record.state {
        State::OutOfMemory => "out of memory",
        state => state.name(),
    };
    match ending {
        Some(ending) if !record.state.is_live() => format!("{state}, {ending}"),
        _ => state.to_owned(),
    }
}

fn signal_name(signal: i32) -> String {
    let name = match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        5 => "SIGTRAP",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        10 => "SIGUSR1",
        11 => "SIGSEGV",
        12 => "SIGUSR2",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        16 => "SIGSTKFLT",
        24 => "SIGXCPU",
        25 => "SIGXFSZ",
        31 => "SIGSYS",
        _ => return String::new(),
    };
    format!(" ({name})")
}

/// The reading side of one record: every method leaves out what is not known.
struct Reader<'a> {
    record: &'a Record,
    machine: Machine,
    now_ns: i64,
}

impl Reader<'_> {
    fn figure(&self, index: usize) -> Option<&Figure> {
        self.record.totals.figure(index)
    }

    /// A total in its unit.
    fn total(&self, index: usize) -> Option<Amount> {
        let figure = self.figure(index)?;
        let column = &JOB.columns[index];
        let measure = match column.unit {
            Unit::Bytes => Measure::Bytes,
            Unit::Seconds => Measure::Seconds,
            Unit::Joules => Measure::Joules,
            Unit::Grams => Measure::Grams,
            Unit::Money => Measure::Money,
            _ if index == column::CORES_PEAK => Measure::Cores,
            _ => Measure::Count,
        };
        Some(Amount { value: column.scaled(figure.value), measure, quality: figure.kind })
    }

    /// A total over the wall time; as good as the total.
    fn rate(&self, index: usize, measure: Measure) -> Option<Amount> {
        let value = average::per_second(self.record, index, self.now_ns)?;
        Some(Amount { value, measure, quality: self.figure(index)?.kind })
    }

    fn level(&self, index: usize, measure: Measure) -> Option<Amount> {
        let value = average::level(self.record, index)?;
        Some(Amount { value, measure, quality: QualityKind::Sampled })
    }

    fn wall(&self) -> Option<Amount> {
        let seconds = average::wall_ns(self.record, self.now_ns)? as f64 / 1e9;
        Some(Amount { value: seconds, measure: Measure::Seconds, quality: QualityKind::Measured })
    }

    fn cpus(&self) -> Option<Amount> {
        let cpus = self.machine.cpus.filter(|&cpus| cpus > 0 && self.record.allocated.cpus.is_none())?;
        Some(Amount { value: cpus.into(), measure: Measure::Cores, quality: QualityKind::Measured })
    }

    /// A job that was given a part of the machine is compared with that part, among the shares.
    fn node_memory(&self) -> Option<Amount> {
        let given = self.record.allocated.memory_bytes.is_some();
        let bytes = self.record.node_memory_bytes.filter(|&bytes| bytes > 0 && !given)?;
        Some(Amount { value: bytes as f64, measure: Measure::Bytes, quality: QualityKind::Measured })
    }

    fn facts(&self) -> Vec<Fact> {
        let record = self.record;
        let mut facts = Vec::new();
        let mut put = |label, value| facts.push(Fact { label, value });
        if !record.command.is_empty() {
            put("command", FactValue::Command(record.command.clone()));
        }
        if record.key.manager != met_core::job::LOCAL {
            let cluster = record.cluster().map(|cluster| format!(" on {cluster}"));
            put("manager", FactValue::Text(record.key.manager.clone() + &cluster.unwrap_or_default()));
        }
        match (&record.user, &record.account) {
            (Some(user), Some(account)) => put("user", FactValue::Text(format!("{user}, account {account}"))),
            (Some(user), None) => put("user", FactValue::Text(user.clone())),
            (None, Some(account)) => put("account", FactValue::Text(account.clone())),
            (None, None) => {}
        }
        if let Some(outer) = &record.inside {
            put("inside", FactValue::Text(outer.clone()));
        }
        for (label, words) in scheduling_facts(record) {
            put(label, FactValue::Text(words));
        }
        if !record.nodes.is_empty() {
            put(if record.nodes.len() == 1 { "node" } else { "nodes" }, nodes(&record.nodes));
        }
        if let Some(state) = &record.manager_state {
            put("manager state", FactValue::Text(state.clone()));
        }
        if let Some(wait_ns) = allocation::queue_wait_ns(record, self.now_ns) {
            put("queued for", FactValue::Amount(measured(wait_ns as f64 / 1e9, Measure::Seconds)));
        }
        if let Some(start_ns) = record.start_ns {
            put("started", FactValue::Times(start_ns, record.end_ns));
        }
        if let Some(wall) = self.wall() {
            put(if record.state.is_live() { "running for" } else { "duration" }, FactValue::Amount(wall));
        }
        facts
    }

    fn meters(&self) -> Vec<Meter> {
        let cpu = || meter("CPU", self.rate(column::CPU, Measure::Cores)?, self.cpus()?, "average");
        let memory = || meter("memory", self.total(column::MEMORY_NEEDED_PEAK)?, self.node_memory()?, "peak");
        [cpu(), memory(), self.gpu_meter()].into_iter().flatten().collect()
    }

    fn shares(&self) -> Vec<ShareLine> {
        let line = |share: Share| {
            let (label, measure) = match share.resource {
                Resource::Nodes => ("nodes", Measure::Count),
                Resource::Cpus => ("CPUs", Measure::Cores),
                Resource::Memory => ("memory", Measure::Bytes),
                Resource::Gpus => ("GPUs", Measure::Cards),
                Resource::Time => ("time", Measure::Seconds),
            };
            let amount = |value: f64| measured(value, measure);
            ShareLine {
                label,
                requested: share.requested.map(amount),
                allocated: share.allocated.map(amount),
                used: share.used.map(|value| Amount { value, measure, quality: share.quality }),
                efficiency: share.efficiency(),
            }
        };
        allocation::shares(self.record, self.now_ns).into_iter().map(line).collect()
    }

    fn parts(&self) -> Vec<PartLine> {
        let line = |part: &Part| {
            let figure = |index: usize, measure| {
                let figure = part.totals.figure(index)?;
                Some(Amount { value: JOB.columns[index].scaled(figure.value), measure, quality: figure.kind })
            };
            let peak = [column::MEMORY_NEEDED_PEAK, column::MEMORY_PEAK];
            let running = part.end_ns.is_none() && self.record.state.is_live();
            let end_ns = part.end_ns.or(running.then_some(self.now_ns));
            let seconds = || Some((end_ns? - part.start_ns?).max(0) as f64 / 1e9);
            PartLine {
                node: part.node.clone(),
                step: part.step.clone(),
                task: part.task.clone(),
                name: part.name.clone(),
                cpu: figure(column::CPU, Measure::Seconds),
                memory: peak.into_iter().find_map(|index| figure(index, Measure::Bytes)),
                duration: seconds().map(|seconds| measured(seconds, Measure::Seconds)),
                exit_code: part.exit_code,
                folded: part.folded,
            }
        };
        // All of a job on its only node is the job.
        let several = self.record.parts.iter().any(|part| !part.step.is_empty() || part.node != self.node());
        let shown = self.record.parts.iter().filter(|_| several);
        let mut lines: Vec<PartLine> = shown.map(line).collect();
        lines.sort_by(|left, right| part_order(left).cmp(&part_order(right)));
        lines
    }

    fn node(&self) -> &str {
        self.record.nodes.first().map_or("", String::as_str)
    }

    fn gpu_meter(&self) -> Option<Meter> {
        let known = self.record.gpus.iter().filter_map(|gpu| gpu.utilization);
        let used = known.reduce(|sum, used| sum + used)?;
        let amount = |value, quality| Amount { value, measure: Measure::Cards, quality };
        let whole = amount(self.record.gpus.len() as f64, QualityKind::Measured);
        meter("GPU", amount(used, QualityKind::Sampled), whole, "average")
    }

    fn cpu(&self) -> Section {
        let mut section = Section::new("CPU");
        let used = self.total(column::CPU);
        // Where it was not measured to its end, the manager's own account says more, or as much.
        let is_doubtful = used.is_some_and(|used| used.quality != QualityKind::Measured);
        let account = self.record.scheduling.cpu_ns.map(|cpu_ns| Amount {
            value: cpu_ns as f64 / 1e9,
            measure: Measure::Seconds,
            quality: QualityKind::Sampled,
        });
        let parts = [
            Detail::before("user", self.total(column::CPU_USER)),
            Detail::before("system", self.total(column::CPU_SYSTEM)),
            Detail::before("by its scheduler", account.filter(|_| is_doubtful)),
        ];
        section.put("CPU time", used, parts);
        if used.is_none() {
            section.put("CPU time", account, [Detail::words("by its scheduler")]);
        }
        let cores = self.rate(column::CPU, Measure::Cores);
        let peak = Detail::before("peak", self.total(column::CORES_PEAK));
        section.put("cores", cores, [Detail::words("average"), peak]);
        let waited = self.total(column::RUN_QUEUE_WAIT);
        section.put("waited", waited, [Detail::words("ready to run, no CPU free")]);
        let (gave_up, preempted) =
            (self.total(column::SWITCHES_VOLUNTARY), self.total(column::SWITCHES_INVOLUNTARY));
        let kinds = [Detail::after(gave_up, "voluntary"), Detail::after(preempted, "preempted")];
        section.put("switches", sum(gave_up, preempted), kinds);
        section
    }

    fn memory(&self) -> Section {
        let mut section = Section::new("Memory");
        let mean = self.level(column::MEMORY_NEEDED, Measure::Bytes);
        match self.total(column::MEMORY_NEEDED_PEAK) {
            Some(peak) => {
                let details = [Detail::words("peak"), Detail::before("average", mean)];
                section.put("memory needed", Some(peak), details);
            }
            None => section.put("memory needed", mean, [Detail::words("average")]),
        }
        let cache = self.level(column::MEMORY_CACHE, Measure::Bytes);
        section.put("cache", cache, [Detail::words("average"), Detail::words("reclaimable")]);
        section.put("peak with cache", self.total(column::MEMORY_PEAK), []);
        let (minor, major) = (self.total(column::PAGE_FAULTS_MINOR), self.total(column::PAGE_FAULTS_MAJOR));
        let kinds = [Detail::after(minor, "minor"), Detail::after(major, "major")];
        section.put("page faults", sum(minor, major), kinds);
        let kills = self.total(column::OOM_KILLS).filter(|kills| kills.value > 0.0);
        section.put("OOM kills", kills, [Detail::words("by the kernel, out of memory")]);
        section
    }

    fn input_output(&self) -> Section {
        let mut section = Section::new("I/O");
        let kinds = [("read", column::READ, "from storage"), ("written", column::WRITTEN, "towards storage")];
        for (label, index, storage) in kinds {
            let rate = Detail::after(self.rate(index, Measure::BytesPerSecond), "");
            section.put(label, self.total(index), [Detail::words(storage), rate]);
        }
        let calls = [
            ("read calls", column::READ_CALL, column::READ_CALLS),
            ("write calls", column::WRITE_CALL, column::WRITE_CALLS),
        ];
        for (label, bytes, count) in calls {
            let rate = Detail::after(self.rate(bytes, Measure::BytesPerSecond), "");
            let count = Detail::after(self.total(count), "calls");
            section.put(label, self.total(bytes), [rate, count]);
        }
        for (label, index) in [("received", column::NETWORK_RECEIVED), ("sent", column::NETWORK_SENT)] {
            let rate = Detail::after(self.rate(index, Measure::BytesPerSecond), "");
            section.put(label, self.total(index), [Detail::words("by the job's own network"), rate]);
        }
        section
    }

    fn processes(&self) -> Section {
        let mut section = Section::new("Processes");
        let peak = Detail::after(self.total(column::PROCESSES_PEAK), "at once");
        section.put("processes", self.total(column::PROCESSES), [Detail::words("seen"), peak]);
        section.put("threads", self.total(column::THREADS_PEAK), [Detail::words("at once")]);
        section
    }

    fn pressure(&self) -> Section {
        let mut section = Section::new("Pressure");
        let kinds = [
            ("CPU pressure", column::PRESSURE_CPU, None),
            ("memory pressure", column::PRESSURE_MEMORY, Some(column::PRESSURE_MEMORY_FULL)),
            ("I/O pressure", column::PRESSURE_IO, Some(column::PRESSURE_IO_FULL)),
        ];
        for (label, some, full) in kinds {
            let share = Detail::after(self.rate(some, Measure::Share), "of the time");
            // That every task waited says something only where some did.
            let full = full.and_then(|index| self.rate(index, Measure::Share));
            let full = full.filter(|full| full.value > 0.0);
            section.put(label, self.total(some), [share, Detail::before("all tasks", full)]);
        }
        for (label, index) in [("storage wait", column::DELAY_IO), ("memory wait", column::DELAY_MEMORY)] {
            section.put(label, self.total(index), [Detail::words("of all threads together")]);
        }
        section
    }

    fn energy(&self) -> Section {
        let mut section = Section::new("Energy");
        // Cards alone have told of theirs already.
        if self.figure(column::ENERGY).is_none() {
            return section;
        }
        let some = |index: usize| self.total(index).filter(|amount| amount.value > 0.0);
        let power = self.rate(column::ENERGY, Measure::Watts);
        let source = self.figure(column::ENERGY).map(|figure| figure.source.to_string());
        let details = [Detail::after(power, "average"), Detail::text(source)];
        section.put("energy", self.total(column::ENERGY), details);
        section.put("CPU energy", some(column::ENERGY_CPU), []);
        section.put("memory energy", some(column::ENERGY_MEMORY), []);
        section.put("cards' energy", some(column::GPU_ENERGY), []);
        section.put("other energy", some(column::ENERGY_REST), [Detail::words("board, fans, disks, losses")]);
        let idle = some(column::ENERGY_IDLE);
        section.put("of it idle", idle, [Detail::words("for what the job holds")]);
        let factor = self.record.emission.as_ref().map(|emission| {
            let grams = emission.factor_mg_per_kwh as f64 / 1e3;
            let building = emission.pue().filter(|pue| *pue != 1.0);
            let building = building.map_or(String::new(), |pue| format!(", PUE {pue}"));
            format!("CO2e at {grams} g/kWh, {}{building}", emission.factor_source)
        });
        section.put("emissions", self.total(column::EMISSIONS), [Detail::text(factor)]);
        let price = self.figure(column::COST).map(|figure| figure.source.to_string());
        section.put("cost", self.total(column::COST), [Detail::text(price)]);
        section
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.figure(column::ENERGY).is_some_and(|figure| figure.kind == QualityKind::Estimated) {
            let how = "no meter of energy was read; `met doctor` says what would make one readable";
            notes.push(how.to_owned());
        }
        let found = self.record.local.as_ref().is_some_and(|local| local.origin == Origin::Found);
        let is_bound = self.figure(column::CPU).is_some_and(|figure| figure.kind == QualityKind::LowerBound);
        if found && is_bound && !self.record.state.is_live() {
            let how =
                "nobody here saw it end: what is marked ≥ was read before that, and it used at least as much";
            notes.push(how.to_owned());
        }
        let left_over = self.record.local.as_ref().map(|local| local.left_over.as_slice()).unwrap_or(&[]);
        if !left_over.is_empty() {
            let named: Vec<String> =
                left_over.iter().map(|process| format!("{} ({})", process.name, process.pid)).collect();
            notes.push(format!("still running: {}", named.join(", ")));
        }
        notes
    }
}

/// Steps by number, those with a name before them, and tasks after their step.
fn part_order(line: &PartLine) -> (&str, Option<u64>, &str, Option<u64>, Option<&str>) {
    let task = line.task.as_deref();
    (&line.node, line.step.parse().ok(), &line.step, task.and_then(|task| task.parse().ok()), task)
}

fn measured(value: f64, measure: Measure) -> Amount {
    Amount { value, measure, quality: QualityKind::Measured }
}

/// What a manager says of a job, in words.
fn scheduling_facts(record: &Record) -> Vec<(&'static str, String)> {
    let scheduling = &record.scheduling;
    let mut facts = Vec::new();
    match (&scheduling.partition, &scheduling.qos) {
        (Some(partition), Some(qos)) => facts.push(("partition", format!("{partition}, QOS {qos}"))),
        (Some(partition), None) => facts.push(("partition", partition.clone())),
        (None, Some(qos)) => facts.push(("QOS", qos.clone())),
        (None, None) => {}
    }
    if let (Some(array), Some(index)) = (&scheduling.array_id, scheduling.array_index) {
        facts.push(("array", format!("element {index} of {array}, id {}", record.key.id)));
    }
    if let (Some(whole), Some(offset)) = (&scheduling.het_id, scheduling.het_offset) {
        facts.push(("component", format!("{offset} of {whole}, id {}", record.key.id)));
    }
    if let Some(restarts) = scheduling.restarts.filter(|&restarts| restarts > 0) {
        facts.push(("restarts", restarts.to_string()));
    }
    // Slurm's word for no reason.
    if let Some(reason) = scheduling.reason.as_ref().filter(|reason| *reason != "None") {
        facts.push(("reason", reason.clone()));
    }
    facts
}

/// A card, and what the job did with it.
fn gpu(gpu: &GpuUse) -> Section {
    let some = |value: Option<f64>, measure, quality| Some(Amount { value: value?, measure, quality });
    let sampled = |value: Option<f64>, measure| some(value, measure, QualityKind::Sampled);
    let mut section = Section::new("GPU");
    section.heading = Some((format!("GPU {}", gpu.index), heading(gpu)));
    let busy = Detail::before("the card", sampled(gpu.card_utilization, Measure::Share));
    let works = [("encoder", gpu.encoder), ("decoder", gpu.decoder), ("copy engine", gpu.copy)]
        .map(|(name, used)| Detail::before(name, sampled(used.filter(|&used| used > 0.0), Measure::Share)));
    let [encoder, decoder, copy] = works;
    let used = sampled(gpu.utilization, Measure::Share);
    section.put("GPU use", used, [Detail::words("average"), busy, encoder, decoder, copy]);
    let total = sampled(gpu.memory_total_bytes.map(|bytes| bytes as f64), Measure::Bytes);
    let peak = sampled(gpu.memory_peak_bytes.map(|bytes| bytes as f64), Measure::Bytes);
    let mean = Detail::before("average", sampled(gpu.memory_mean_bytes, Measure::Bytes));
    section.put("GPU memory", peak, [Detail::words("peak"), mean, Detail::before("of", total)]);
    if let Some(kind) = gpu.energy_kind {
        let energy = |uj: i64| some(Some(uj as f64 / 1e6), Measure::Joules, kind);
        // Of a card that was never seen idle, nobody knows what it draws then.
        let guessed = gpu.idle_power_source.as_deref() == Some("bound") && gpu.energy_active_uj > 0;
        let idle_kind = if guessed { QualityKind::Estimated } else { kind };
        let idle_joules = Some(gpu.energy_idle_uj as f64 / 1e6).filter(|&joules| joules > 0.0);
        let idle = some(idle_joules, Measure::Joules, idle_kind);
        let details = [Detail::before("idle part", idle), Detail::text(gpu.energy_source.clone())];
        section.put("GPU energy", energy(gpu.energy_uj()), details);
    }
    let card = Detail::before("the card", sampled(gpu.card_power_mw.map(|mw| mw / 1e3), Measure::Watts));
    let share =
        some(crate::gpu::power_watts(gpu), Measure::Watts, gpu.energy_kind.unwrap_or(QualityKind::Sampled));
    section.put("GPU power", share, [Detail::words("average"), card]);
    let hottest = sampled(gpu.temperature_max_mc.map(|mc| mc as f64 / 1e3), Measure::Celsius);
    let clock = Detail::before("clock", sampled(gpu.clock_mean_mhz.map(|mhz| mhz * 1e6), Measure::Hertz));
    section.put("temperature", hottest, [Detail::words("highest"), clock]);
    let throttled = gpu.throttled_ns.filter(|&ns| ns > 0).map(|ns| ns as f64 / 1e9);
    let held_down = sampled(throttled, Measure::Seconds);
    section.put("clock held down", held_down, [Detail::text(Some(gpu.throttled.join(", ")))]);
    let received = sampled(gpu.pcie_received_rate, Measure::BytesPerSecond);
    let sent = Detail::before("sent", sampled(gpu.pcie_sent_rate, Measure::BytesPerSecond));
    section.put("PCIe received", received, [sent]);
    let count = |count: Option<i64>| {
        sampled(count.filter(|&count| count > 0).map(|count| count as f64), Measure::Count)
    };
    let last = gpu.fault_last.map(|number| format!("the last was Xid {number}"));
    section.put("GPU faults", count(gpu.faults), [Detail::text(last)]);
    let corrected = Detail::after(count(gpu.ecc_corrected), "corrected");
    section.put("memory errors", count(gpu.ecc_uncorrected), [Detail::words("not corrected"), corrected]);
    section
}

fn heading(gpu: &GpuUse) -> String {
    let utc = |since: String| format!("{} UTC", since[..19].replace('T', " "));
    let time = |since_ns: Option<i64>| since_ns.and_then(crate::json::time);
    let state = match (time(gpu.lost_since_ns), time(gpu.idle_since_ns), gpu.used_ns) {
        (Some(since), _, _) => format!("lost since {}", utc(since)),
        (None, Some(_), 0) => "never used".to_owned(),
        (None, Some(since), _) => format!("idle since {}", utc(since)),
        (None, None, _) => String::new(),
    };
    let by = match gpu.held_by.as_str() {
        "" | "open" => String::new(),
        by => format!("given by {by}"),
    };
    let parts = [gpu.name.clone(), by, state];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ")
}

impl Section {
    pub(crate) fn new(title: &'static str) -> Section {
        Section { title, heading: None, lines: Vec::new() }
    }

    /// Adds a line unless its amount is unknown; unknown details are left out one by one.
    pub(crate) fn put<const N: usize>(
        &mut self,
        label: &'static str,
        amount: Option<Amount>,
        details: [Option<Detail>; N],
    ) {
        if let Some(amount) = amount {
            self.lines.push(Line { label, amount, details: details.into_iter().flatten().collect() });
        }
    }
}

impl Detail {
    fn before(words: &'static str, amount: Option<Amount>) -> Option<Detail> {
        Some(Detail { before: words, amount: Some(amount?), after: "".into() })
    }

    fn after(amount: Option<Amount>, words: &'static str) -> Option<Detail> {
        Some(Detail { before: "", amount: Some(amount?), after: words.into() })
    }

    fn words(words: &'static str) -> Option<Detail> {
        Some(Detail { before: words, amount: None, after: "".into() })
    }

    pub(crate) fn text(words: Option<String>) -> Option<Detail> {
        let words = words.filter(|words| !words.is_empty())?;
        Some(Detail { before: "", amount: None, after: words.into() })
    }
}

fn meter(label: &'static str, used: Amount, whole: Amount, of: &'static str) -> Option<Meter> {
    Some(Meter { label, share: used.value / whole.value, used, whole, of })
}

fn nodes(nodes: &[String]) -> FactValue {
    FactValue::Text(nodes.join(", "))
}

/// Both parts together, no better known than the worse of them.
fn sum(one: Option<Amount>, other: Option<Amount>) -> Option<Amount> {
    let (one, other) = (one?, other?);
    let rank = |quality| QualityKind::ALL.iter().position(|&kind| kind == quality);
    let quality = if rank(one.quality) >= rank(other.quality) { one.quality } else { other.quality };
    Some(Amount { value: one.value + other.value, quality, ..one })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    fn labels(report: &Report) -> Vec<&'static str> {
        report.sections.iter().flat_map(|section| &section.lines).map(|line| line.label).collect()
    }

    #[test]
    fn what_is_not_known_has_no_line() {
        let report = report(&sample::finished(), Machine::default(), sample::NOW_NS);
        assert_eq!(labels(&report), ["CPU time", "cores", "memory needed", "read", "processes"]);
        let titles: Vec<&str> = report.sections.iter().map(|section| section.title).collect();
        assert_eq!(titles, ["CPU", "Memory", "I/O", "Processes"], "no section is empty");
    }

    #[test]
    fn of_a_job_whose_end_nobody_saw_that_is_said_and_the_scheduler_has_its_word() {
        let mut record = sample::finished();
        record.scheduling.cpu_ns = Some(9_000_000_000);
        let account = |record: &Record| {
            let report = report(record, Machine::default(), sample::NOW_NS);
            let line = &report.sections[0].lines[0];
            let told = line.details.iter().find(|detail| detail.before == "by its scheduler");
            (told.and_then(|detail| detail.amount).map(|amount| amount.value), report.notes)
        };
        record.totals.set(column::CPU, 8_000_000_000, QualityKind::Measured, "cgroup ancestor");
        assert_eq!(account(&record), (None, Vec::new()));
        record.totals.set(column::CPU, 8_000_000_000, QualityKind::LowerBound, "cgroup");
        assert_eq!(account(&record).0, Some(9.0));
        record.local = Some(met_core::job::Local {
            boot_id: String::new(),
            origin: Origin::Found,
            supervisor: None,
            main: None,
            cgroup: Default::default(),
            more_cgroups: Vec::new(),
            cwd: "/".into(),
            stdout: None,
            stderr: None,
            left_over: Vec::new(),
        });
        let notes = account(&record).1;
        assert!(notes.len() == 1 && notes[0].starts_with("nobody here saw it end"), "{notes:?}");
    }

    #[test]
    fn labels_tell_lines_apart_without_their_section() {
        let mut record = sample::finished();
        for index in 0..JOB.columns.len() {
            record.totals.set(index, 5, QualityKind::Measured, "test");
        }
        let labels = labels(&report(&record, Machine::default(), sample::NOW_NS));
        for label in &labels {
            assert_eq!(labels.iter().filter(|other| *other == label).count(), 1, "{label}");
        }
    }

    #[test]
    fn meters_need_a_whole() {
        let meters = |machine| report(&sample::finished(), machine, sample::NOW_NS).meters;
        let labels: Vec<&str> = meters(Machine::default()).iter().map(|meter| meter.label).collect();
        assert_eq!(labels, ["memory"]);
        let with_cpus = meters(Machine { cpus: Some(2) });
        assert_eq!(with_cpus[0].share, 0.625);
    }

    #[test]
    fn a_job_with_an_allocation_is_compared_with_that_and_not_with_the_machine() {
        let report = report(&sample::scheduled(), Machine { cpus: Some(2) }, sample::NOW_NS);
        assert!(report.meters.is_empty());
        let labels: Vec<&str> = report.shares.iter().map(|share| share.label).collect();
        assert_eq!(labels, ["CPUs", "memory", "GPUs", "time"]);
        assert_eq!(report.shares[0].efficiency, Some(0.3125));
        let steps: Vec<(&str, Option<&str>)> =
            report.parts.iter().map(|part| (part.step.as_str(), part.task.as_deref())).collect();
        assert_eq!(steps, [("batch", None), ("0", None), ("0", Some("0")), ("0", Some("1"))]);
    }

    #[test]
    fn the_outcome_is_in_words() {
        let mut record = sample::finished();
        let mut outcome_of = |state, exit_code, signal| {
            (record.state, record.exit_code, record.signal) = (state, exit_code, signal);
            outcome(&record)
        };
        assert_eq!(outcome_of(State::Running, None, None), "running");
        assert_eq!(outcome_of(State::Finished, Some(0), None), "finished, exit code 0");
        assert_eq!(outcome_of(State::Failed, Some(3), None), "failed, exit code 3");
        assert_eq!(outcome_of(State::Failed, None, Some(9)), "failed, killed by signal 9 (SIGKILL)");
        assert_eq!(outcome_of(State::Failed, None, Some(40)), "failed, killed by signal 40");
        assert_eq!(
            outcome_of(State::OutOfMemory, None, Some(9)),
            "out of memory, killed by signal 9 (SIGKILL)"
        );
        assert_eq!(outcome_of(State::Lost, None, None), "lost");
    }

    #[test]
    fn a_sum_is_no_better_known_than_its_parts() {
        let amount = |quality| Some(Amount { value: 2.0, measure: Measure::Count, quality });
        let both = sum(amount(QualityKind::LowerBound), amount(QualityKind::Measured)).unwrap();
        assert_eq!((both.value, both.quality), (4.0, QualityKind::LowerBound));
        assert_eq!(sum(amount(QualityKind::Measured), None), None);
    }
}
