//! RAPL: the energy counters of processors, by powercap or by the kernel's `power` events.
//!
//! A counter of powercap begins again when it reaches its range, after minutes on a busy machine. It is put
//! together into one that only grows here, in the one place that knows the range and sees every reading.
//! Behind this file a counter that falls has restarted, whatever it counts.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use met_core::chart::{MachineChart, Unit as ChartUnit};
use met_core::energy::Scope;
use met_core::node_block::Sensor;
use met_core::table::MICRO;
use met_core::{Across, Batch, Column, MISSING, Subject, Table, Unit, Unparsed, columns, labels};
use met_host::{Budget, Dir, Host, KeptFile, Share, Targets, clock, parse};
use perf_event_open_sys as perf;

use crate::meter::Meter;
use crate::perf::cpu_list;
use crate::{Opened, Options, Pace, ReadError, Shortfall, Source, SourceSpec, TickInfo, Unavailable, sysfs};

columns! { COLUMNS:
    ENERGY = Column::counter("energy", Unit::Joules, MICRO, "energy used by the zone since the counter started; wraparounds are handled").usual(),
    RANGE = Column::gauge("energy_range", Unit::Joules, MICRO, "where the counter of the zone starts again").across(Across::Max),
}

labels! { LABELS: ZONE = "zone", PACKAGE = "package", PATH = "path" }

pub static TABLE: Table = Table {
    name: "rapl",
    subject: "an energy zone of a processor; `core`, `uncore` and `dram` are inside or beside their \
        package, `psys` is the whole board",
    labels: LABELS,
    columns: COLUMNS,
};

pub static SPEC: SourceSpec = SourceSpec {
    name: "rapl",
    help: "energy of processors and memory, Intel and AMD",
    pace: Pace::Every(Duration::from_secs(1)),
    tables: &[&TABLE],
    charts: &[
        MachineChart::new("rapl", ["Processor power", "power"], ChartUnit::Watts, &TABLE, &[ENERGY]).main()
    ],
    options: &[],
    open,
};

pub(crate) static SENSOR: Sensor = Sensor {
    table: &TABLE,
    name: |row| match (row.label(label::PACKAGE), row.label(label::ZONE)) {
        (package, zone) if package == zone => zone.to_owned(),
        (package, zone) => format!("{package} {zone}"),
    },
    critical: None,
};

pub(crate) static METER: Meter = Meter {
    source: &SPEC,
    name: "RAPL psys",
    // Cores and the uncore lie within their package.
    scope: |_, labels| match labels.first()?.as_str() {
        zone if zone.starts_with("package") => Some(Scope::Package),
        "dram" => Some(Scope::Memory),
        "psys" => Some(Scope::Board),
        _ => None,
    },
    is_slow: false,
    is_coarse: false,
};

const POWERCAP: &str = "/sys/class/powercap";
const PMU: &str = "/sys/bus/event_source/devices/power";
const FILE: &[u8] = b"energy_uj";
const NEED: &str = "root, or: chmod a+r /sys/class/powercap/*/energy_uj";
const REMEDY: &str = "sudo chmod a+r /sys/class/powercap/*/energy_uj";
/// No zone uses more, even for a moment: what would need more was not a wrap.
const WATTS_MAX: i64 = 10_000;
/// No zone uses more for long: after this much the counter may have wrapped twice.
const WATTS_LASTING_MAX: i64 = 1_000;

struct Powercap {
    zones: Vec<Zone>,
    labels: Vec<Vec<String>>,
    buffer: Vec<u8>,
    budget: Arc<Budget>,
    /// Ranges that could not be parsed.
    unparsed: Unparsed,
}

struct Zone {
    dir: Dir,
    /// One that cannot be opened is a zone all the same: without it the others are not the whole machine.
    file: Option<KeptFile>,
    path: String,
    wrap: Wrap,
}

impl Zone {
    fn read(&mut self, budget: &Arc<Budget>, buffer: &mut Vec<u8>) -> io::Result<()> {
        if self.file.is_none() {
            self.file = Some(self.dir.open_kept(FILE, budget, Share::First)?);
        }
        self.file.as_ref().map_or(Ok(()), |file| file.read(&self.dir, FILE, buffer))
    }
}

/// Makes a counter that begins again at `range_uj` into one that grows. The step from the last value to 0 is
/// one count of the register, at most 61 µJ, which the range does not include and which is lost at each wrap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Wrap {
    range_uj: i64,
    /// When it was read and what it was, and what to add to it.
    last: Option<(i64, i64)>,
    offset_uj: i64,
}

impl Wrap {
    /// The energy so far, or missing where it is unknown how often the counter began again.
    fn push(&mut self, now_ns: i64, raw_uj: i64) -> i64 {
        // A zone that the processor does not have counts 0 for ever.
        if raw_uj < 0 || raw_uj == 0 && self.last.is_none() {
            return MISSING;
        }
        let before = self.last.replace((now_ns, raw_uj));
        // Without a range a counter that falls has restarted for all that is known.
        let Some((before_ns, before_uj)) = before.filter(|_| self.range_uj > 0) else { return raw_uj };
        let wrapped = raw_uj < before_uj;
        let grown_uj = raw_uj.saturating_sub(before_uj).saturating_add(self.range_uj);
        let most_uj = |watts: i64| i128::from(now_ns - before_ns) * i128::from(watts) / 1000;
        let unwatched = most_uj(WATTS_LASTING_MAX) > i128::from(self.range_uj);
        // Over a very short time a joule is always believed: clocks are coarse, and so are counters.
        let set_back = wrapped && !(1..=most_uj(WATTS_MAX).max(1_000_000)).contains(&i128::from(grown_uj));
        // One reading is missing, which makes a gap, and it goes on from there.
        if unwatched || set_back {
            self.offset_uj = 0;
            return MISSING;
        }
        if wrapped {
            self.offset_uj = self.offset_uj.saturating_add(self.range_uj);
        }
        self.offset_uj.saturating_add(raw_uj)
    }
}

/// For fuzz/: the first line is the range, the others are readings some milliseconds apart.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz(bytes: &[u8]) -> impl Iterator<Item = Option<i64>> {
    let mut lines = parse::lines(bytes);
    let range_uj = lines.next().map_or(0, |line| parse::cell(line.trim_ascii())).max(1);
    let (mut wrap, mut now_ns) = (Wrap { range_uj, ..Wrap::default() }, 0i64);
    lines.map(move |line| {
        now_ns += 1_000_000 << (line.len() % 16);
        let energy_uj = wrap.push(now_ns, parse::cell(line.trim_ascii()));
        (energy_uj != MISSING).then_some(energy_uj)
    })
}

fn open(host: &Host, _: &Options) -> Opened {
    let found = powercap_zones(host);
    let (mut zones, mut labels, mut denied) = (Vec::new(), Vec::new(), None);
    let mut unparsed = Unparsed::default();
    for (path, zone, package) in found {
        let Ok(dir) = host.open_dir(format!("{POWERCAP}/{path}")) else { continue };
        let range = format!("{POWERCAP}/{path}/max_energy_range_uj");
        let range_uj = sysfs::reading(host, &range, &mut Vec::new(), &mut unparsed).unwrap_or(MISSING);
        let opened = dir.open_kept(FILE, host.budget(), Share::First);
        match &opened {
            // A zone that only limits power has no counter.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                denied = Some(format!("{POWERCAP}/{path}/energy_uj"));
            }
            _ => {}
        }
        let wrap = Wrap { range_uj: range_uj.max(0), ..Wrap::default() };
        labels.push(vec![zone, package, path.clone()]);
        zones.push(Zone { dir, file: opened.ok(), path, wrap });
    }
    if zones.iter().any(|zone| zone.file.is_some()) {
        let budget = Arc::clone(host.budget());
        return Ok(Box::new(Powercap { zones, labels, buffer: Vec::new(), budget, unparsed }));
    }
    match (Events::open(host), denied) {
        (Some(events), _) if !events.counters.is_empty() => Ok(Box::new(events)),
        (Some(events), None) if !events.still.is_empty() => {
            Err(Unavailable::Absent(format!("{STANDS_STILL}: {}", events.still.join(", "))))
        }
        (_, Some(path)) => Err(Unavailable::Denied { path, need: NEED }),
        (_, None) => Err(Unavailable::Absent("no RAPL zone".to_owned())),
    }
}

/// The zones of a machine: their directory, their name and the package they are in.
fn powercap_zones(host: &Host) -> Vec<(String, String, String)> {
    let mut buffer = Vec::new();
    let names = sysfs::names(host, POWERCAP);
    // The same counters may be reachable a second way.
    let has_registers = names.iter().any(|name| name.starts_with("intel-rapl:"));
    let mut zone_of = |path: &str| sysfs::text(host, &format!("{POWERCAP}/{path}/name"), &mut buffer);
    let mut zones = Vec::new();
    for path in names {
        let Some((kind, numbers)) = path.split_once(':') else { continue };
        if kind != "intel-rapl" && (has_registers || kind != "intel-rapl-mmio") {
            continue;
        }
        let Some(zone) = zone_of(&path) else { continue };
        let parent = numbers.split_once(':').map(|(parent, _)| format!("{kind}:{parent}"));
        let package = parent.and_then(|parent| zone_of(&parent)).unwrap_or_else(|| zone.clone());
        zones.push((path, zone, package));
    }
    zones
}

impl Source for Powercap {
    fn read(&mut self, _: &Targets, _: &TickInfo, out: &mut [Batch]) -> Result<(), ReadError> {
        let [batch] = out else { return Ok(()) };
        batch.unparsed.take_from(&mut self.unparsed);
        let mut first_error = None;
        for (part, zone) in (0..).zip(&mut self.zones) {
            match zone.read(&self.budget, &mut self.buffer) {
                Ok(()) => {
                    let raw_uj = parse::cell(self.buffer.trim_ascii());
                    let path = || format!("{POWERCAP}/{}/energy_uj", zone.path);
                    batch.unparsed.expect(raw_uj != MISSING, path);
                    let energy_uj = zone.wrap.push(clock::boottime_ns(), raw_uj);
                    let cells = batch.push_part(Subject::Node, part);
                    cells[ENERGY] = energy_uj;
                    // A zone that counts nothing has no range either.
                    if energy_uj != MISSING && zone.wrap.range_uj > 0 {
                        cells[RANGE] = zone.wrap.range_uj;
                    }
                }
                Err(error) => {
                    let path = format!("{POWERCAP}/{}/energy_uj", zone.path);
                    first_error.get_or_insert(ReadError::Retry { path, error });
                }
            }
        }
        first_error.map_or(Ok(()), Err)
    }

    fn labels(&self) -> &[Vec<String>] {
        &self.labels
    }

    fn shortfall(&self) -> Option<Shortfall> {
        let closed: Vec<&str> =
            self.zones.iter().filter(|zone| zone.file.is_none()).map(|zone| zone.path.as_str()).collect();
        let detail = format!("not all zones can be read, so energy is a lower bound: {}", closed.join(", "));
        (!closed.is_empty()).then(|| Shortfall { detail, remedy: Some(REMEDY.to_owned()) })
    }
}

/// The second way: events of the kernel, which counts in 64 bits and does not wrap.
struct Events {
    counters: Vec<Counter>,
    labels: Vec<Vec<String>>,
    /// Zones that a virtual machine offers and nothing is behind. As meters they would be waited for, for ever.
    still: Vec<String>,
}

/// A counter that begins at 0 and is read again and again has moved by now: the processor counts every millisecond.
const MOVES_WITHIN: Duration = Duration::from_millis(10);
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Takes what does not move out of `counters`, and says the zones. Real ones move at the first or second look.
fn take_still<T>(counters: &mut Vec<(T, Vec<String>)>, mut has_moved: impl FnMut(&T) -> bool) -> Vec<String> {
    let mut moved = vec![false; counters.len()];
    let begin = Instant::now();
    loop {
        for (moved, (counter, _)) in moved.iter_mut().zip(counters.iter()) {
            *moved = *moved || has_moved(counter);
        }
        if moved.iter().all(|&moved| moved) || begin.elapsed() >= MOVES_WITHIN {
            break;
        }
        std::thread::sleep(LOOK_EVERY);
    }
    let mut moved = moved.into_iter();
    let still = counters.extract_if(.., |_| !moved.next().unwrap_or(true));
    still.map(|(_, labels)| labels[0].clone()).collect()
}

struct Counter {
    fd: OwnedFd,
    joules_per_count: f64,
}

impl Counter {
    fn read(&self) -> io::Result<u64> {
        let mut count = [0; 8];
        match rustix::io::read(&self.fd, &mut count)? {
            8 => Ok(u64::from_ne_bytes(count)),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// An event as /sys describes it.
#[derive(Clone, Debug, PartialEq)]
struct Event {
    zone: &'static str,
    kind: u32,
    config: u64,
    joules_per_count: f64,
    cpus: Vec<u32>,
}

const EVENTS: [(&str, &str); 5] = [
    ("energy-pkg", "package"),
    ("energy-cores", "core"),
    ("energy-gpu", "uncore"),
    ("energy-ram", "dram"),
    ("energy-psys", "psys"),
];

fn events(host: &Host) -> Option<Vec<Event>> {
    let mut buffer = Vec::new();
    let mut text = |name: &str| sysfs::text(host, &format!("{PMU}/{name}"), &mut buffer);
    let kind = text("type")?.parse().ok()?;
    // One CPU for each package: `0,64`, or `0-1` where their numbers follow each other.
    let cpus = cpu_list(text("cpumask")?.as_bytes());
    let mut event = |&(name, zone): &(&str, &'static str)| {
        let config = text(&format!("events/{name}"))?;
        let config = u64::from_str_radix(config.strip_prefix("event=0x")?, 16).ok()?;
        let scale: f64 = text(&format!("events/{name}.scale"))?.parse().ok()?;
        let unit = text(&format!("events/{name}.unit"))?;
        let usable = unit == "Joules" && scale.is_finite() && scale > 0.0;
        let whole_board = zone == "psys";
        let cpus = if whole_board { cpus.iter().take(1).copied().collect() } else { cpus.clone() };
        usable.then_some(Event { zone, kind, config, joules_per_count: scale, cpus })
    };
    Some(EVENTS.iter().filter_map(&mut event).collect())
}

impl Events {
    fn open(host: &Host) -> Option<Events> {
        let mut opened = Vec::new();
        for event in events(host)? {
            for (package, &cpu) in event.cpus.iter().enumerate() {
                let fd = open_event(event.kind, event.config, cpu)?;
                let package = format!("package-{package}");
                let zone = if event.zone == "package" { package.clone() } else { event.zone.to_owned() };
                let labels = vec![zone, package, format!("perf:{:#x}:{cpu}", event.config)];
                opened.push((Counter { fd, joules_per_count: event.joules_per_count }, labels));
            }
        }
        let still = take_still(&mut opened, |counter| counter.read().is_ok_and(|count| count > 0));
        let (counters, labels): (Vec<_>, Vec<_>) = opened.into_iter().unzip();
        Some(Events { counters, labels, still })
    }
}

fn open_event(kind: u32, config: u64, cpu: u32) -> Option<OwnedFd> {
    let mut attributes = perf::bindings::perf_event_attr {
        type_: kind,
        size: u32::try_from(size_of::<perf::bindings::perf_event_attr>()).ok()?,
        config,
        ..Default::default()
    };
    let flags = perf::bindings::PERF_FLAG_FD_CLOEXEC.into();
    // SAFETY: the attributes are a valid structure that outlives the call.
    let fd = unsafe { perf::perf_event_open(&mut attributes, -1, i32::try_from(cpu).ok()?, -1, flags) };
    // SAFETY: a descriptor that was just opened and has no other owner.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

impl Source for Events {
    fn read(&mut self, _: &Targets, _: &TickInfo, out: &mut [Batch]) -> Result<(), ReadError> {
        let [batch] = out else { return Ok(()) };
        let mut first_error = None;
        for (part, counter) in (0..).zip(&self.counters) {
            match counter.read() {
                Ok(count) => {
                    let energy_uj = microjoules(count, counter.joules_per_count);
                    batch.push_part(Subject::Node, part)[ENERGY] = energy_uj;
                }
                Err(error) => {
                    let path = format!("perf event {}", counter.fd.as_raw_fd());
                    first_error.get_or_insert(ReadError::Retry { path, error });
                }
            }
        }
        first_error.map_or(Ok(()), Err)
    }

    fn labels(&self) -> &[Vec<String>] {
        &self.labels
    }

    fn shortfall(&self) -> Option<Shortfall> {
        let detail = format!("{STANDS_STILL}: {}", self.still.join(", "));
        (!self.still.is_empty()).then_some(Shortfall { detail, remedy: None })
    }
}

const STANDS_STILL: &str = "does not move, as in a virtual machine without it";

fn microjoules(count: u64, joules_per_count: f64) -> i64 {
    // Every processor so far counts in 2^-32 J here, and then no bit passes through a float.
    if joules_per_count == (-32f64).exp2() {
        return i64::try_from((u128::from(count) * 1_000_000) >> 32).unwrap_or(MISSING);
    }
    let value = count as f64 * joules_per_count * 1e6;
    if value < i64::MAX as f64 { value as i64 } else { MISSING }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{Machine, SLOW};
    use expect_test::expect;
    use proptest::prelude::*;

    const INTEL: &str = include_str!("../../../fixtures/hosts/rapl-intel.txt");
    const SECOND: i64 = 1_000_000_000;

    #[test]
    fn a_zone_that_nothing_is_behind_is_no_meter() {
        let zone = |name: &str| vec![name.to_owned(), "package-0".to_owned(), String::new()];
        let mut counters =
            vec![("moves", zone("package-0")), ("still", zone("psys")), ("later", zone("dram"))];
        let mut looks = 0;
        let still = take_still(&mut counters, |&counter| {
            looks += 1;
            counter == "moves" || counter == "later" && looks > 4
        });
        assert_eq!(still, ["psys"]);
        assert_eq!(counters.iter().map(|(counter, _)| *counter).collect::<Vec<_>>(), ["moves", "later"]);
        let mut none: Vec<((), Vec<String>)> = Vec::new();
        assert!(take_still(&mut none, |_| false).is_empty());
    }

    #[test]
    fn a_range_that_is_no_number_is_counted() {
        let machine = Machine::new(
            "-- proc/stat --\n-- sys/class/powercap/intel-rapl:0/name --\npackage-0\n\
             -- sys/class/powercap/intel-rapl:0/energy_uj --\n44444\n\
             -- sys/class/powercap/intel-rapl:0/max_energy_range_uj --\n65x\n",
        );
        expect![[r#"
            Node package-0 package-0 intel-rapl:0
              energy 44444
            1 reading could not be parsed (first: /sys/class/powercap/intel-rapl:0/max_energy_range_uj)
        "#]]
        .assert_eq(&machine.read(&SPEC, SLOW));
    }

    #[test]
    fn two_sockets_with_dram_and_the_whole_board() {
        let machine = Machine::new(INTEL);
        expect![[r#"
            Node package-0 package-0 intel-rapl:0
              energy 123456789012
              energy_range 262143328850
            Node package-1 package-1 intel-rapl:1
              energy 98765432109
              energy_range 262143328850
            Node psys psys intel-rapl:2
              energy 222222222222
              energy_range 262143328850
            Node core package-0 intel-rapl:0:0
            Node dram package-0 intel-rapl:0:1
              energy 34567890123
              energy_range 65712999613
            Node dram package-1 intel-rapl:1:0
              energy 23456789012
              energy_range 65712999613
        "#]]
        .assert_eq(&machine.read(&SPEC, SLOW));
    }

    #[test]
    fn a_counter_that_is_no_number_is_missing_and_counted() {
        let machine = Machine::new(INTEL);
        std::fs::write(machine.path("/sys/class/powercap/intel-rapl:0/energy_uj"), "12 J\n").unwrap();
        let text = machine.read(&SPEC, SLOW);
        let line = "1 reading could not be parsed (first: /sys/class/powercap/intel-rapl:0/energy_uj)\n";
        assert!(text.starts_with("Node package-0 package-0 intel-rapl:0\nNode "), "{text}");
        assert!(text.ends_with(line), "{text}");
    }

    #[test]
    fn an_amd_processor_has_packages_and_cores() {
        let machine = Machine::new(include_str!("../../../fixtures/hosts/rapl-amd.txt"));
        expect![[r#"
            Node package-0 package-0 intel-rapl:0
              energy 44444444444
              energy_range 65532610987
            Node package-1 package-1 intel-rapl:1
              energy 55555555555
              energy_range 65532610987
            Node core package-0 intel-rapl:0:0
              energy 11111111111
              energy_range 65532610987
            Node core package-1 intel-rapl:1:0
              energy 22222222222
              energy_range 65532610987
        "#]]
        .assert_eq(&machine.read(&SPEC, SLOW));
    }

    #[test]
    fn a_counter_that_wraps_in_mid_job_goes_on_growing() {
        let machine = Machine::new(INTEL);
        let mut source = open(&machine.host, &Options::default()).unwrap();
        let mut look = |uj: &str| {
            std::fs::write(machine.path("/sys/class/powercap/intel-rapl:0/energy_uj"), uj).unwrap();
            let mut batches = [Batch::new(&TABLE)];
            let result = source.read(&Targets::default(), &SLOW, &mut batches);
            let mut rows = batches[0].rows();
            let cell = rows.find(|(row, _)| row.part == 0).map(|(_, cells)| cells[ENERGY]);
            (cell, result.is_ok())
        };
        assert_eq!(look("262143300000\n"), (Some(262_143_300_000), true));
        // The range is 262143328850: 28850 µJ to its end, 5000 after it.
        assert_eq!(look("5000\n"), (Some(262_143_333_850), true));
        assert_eq!(look("oops\n"), (Some(MISSING), true), "a gap and not a spike");
        assert_eq!(look("6000\n"), (Some(262_143_334_850), true));
    }

    #[test]
    fn a_zone_that_cannot_be_opened_is_missing_and_not_absent() {
        let machine = Machine::new(INTEL);
        let path = machine.path("/sys/class/powercap/intel-rapl:1/energy_uj");
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("energy_uj", &path).unwrap();
        let mut source = open(&machine.host, &Options::default()).unwrap();
        let mut look = || {
            let mut batches = [Batch::new(&TABLE)];
            let result = source.read(&Targets::default(), &SLOW, &mut batches);
            let parts: Vec<u32> = batches[0].rows().map(|(row, _)| row.part).collect();
            (parts, result.is_ok(), source.labels()[1][0].clone(), source.shortfall())
        };
        let (parts, is_ok, name, shortfall) = look();
        assert_eq!((parts, is_ok, name.as_str()), (vec![0, 2, 3, 4, 5], false, "package-1"));
        assert!(shortfall.unwrap().detail.contains("intel-rapl:1"));
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "5\n").unwrap();
        let (parts, is_ok, _, shortfall) = look();
        assert_eq!((parts.len(), is_ok, shortfall), (6, true, None), "it is tried again");
    }

    #[test]
    fn a_counter_that_nobody_watched_or_that_was_set_back_makes_a_gap() {
        let fresh = Wrap { range_uj: 262_143_328_850, ..Wrap::default() };
        let mut wrap = fresh;
        assert_eq!(wrap.push(0, 200_000_000_000), 200_000_000_000);
        // Set back after a second: a wrap would have taken 62 kW.
        assert_eq!(wrap.push(SECOND, 1000), MISSING);
        assert_eq!(wrap.push(2 * SECOND, 2000), 2000);
        let mut wrap = fresh;
        wrap.push(0, 1000);
        assert_eq!(wrap.push(3600 * SECOND, 2000), MISSING, "it may have wrapped more than once in an hour");
        assert_eq!(wrap.push(3601 * SECOND, 3000), 3000);
    }

    #[test]
    fn files_that_may_not_be_read_say_what_is_needed() {
        use std::os::unix::fs::PermissionsExt;
        if rustix::process::getuid().is_root() {
            met_core::skipped::skipped("root may read every file");
            return;
        }
        let machine = Machine::new(
            "-- proc/stat --\n-- sys/class/powercap/intel-rapl:0/name --\npackage-0\n-- sys/class/powercap/intel-rapl:0/energy_uj --\n1\n-- proc/stat --\n",
        );
        let path = machine.path("/sys/class/powercap/intel-rapl:0/energy_uj");
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o000)).unwrap();
        assert!(matches!(open(&machine.host, &Options::default()), Err(Unavailable::Denied { .. })));
    }

    #[test]
    fn events_are_found_with_their_packages() {
        let machine = Machine::new(include_str!("../../../fixtures/hosts/rapl-events.txt"));
        let found = events(&machine.host).unwrap();
        let named: Vec<_> = found.iter().map(|event| (event.zone, event.config, &event.cpus[..])).collect();
        assert_eq!(named, [("package", 2, &[0, 64][..]), ("dram", 3, &[0, 64]), ("psys", 5, &[0])]);
        assert!(found.iter().all(|event| event.kind == 24 && event.joules_per_count == (-32f64).exp2()));
    }

    #[test]
    fn packages_whose_cpus_follow_each_other_are_all_counted() {
        let text = include_str!("../../../fixtures/hosts/rapl-events.txt").replace("0,64", "0-1,64");
        let found = events(&Machine::new(&text).host).unwrap();
        assert_eq!(found[0].cpus, [0, 1, 64]);
    }

    #[test]
    fn counts_of_events_are_microjoules() {
        assert_eq!(microjoules(1 << 32, (-32f64).exp2()), 1_000_000);
        assert_eq!(microjoules(u64::MAX, (-32f64).exp2()), 4_294_967_295_999_999);
        assert_eq!(microjoules(3, 0.5), 1_500_000);
        assert_eq!(microjoules(u64::MAX, 1e9), MISSING);
    }

    proptest! {
        #[test]
        fn any_readings_grow_or_are_missing(
            range in 1..i64::MAX / 4,
            readings in prop::collection::vec((0..10_000 * SECOND, any::<i64>()), 0..40),
        ) {
            let mut wrap = Wrap { range_uj: range, ..Wrap::default() };
            let (mut now_ns, mut last) = (0, MISSING);
            for (elapsed_ns, raw) in readings {
                now_ns += elapsed_ns;
                let energy = wrap.push(now_ns, raw);
                prop_assert!(energy == MISSING || last == MISSING || energy >= last);
                last = energy;
            }
        }

        /// Whatever is drawn, as long as it is looked at before it can wrap twice, not a microjoule is lost.
        #[test]
        fn wraps_lose_nothing(steps in prop::collection::vec(0..2_000_000_000i64, 1..200)) {
            let range = 65_712_999_613;
            let mut wrap = Wrap { range_uj: range, ..Wrap::default() };
            let mut truth = range - 1000;
            let first = wrap.push(0, truth);
            for (second, step) in (1..).zip(&steps) {
                truth += step;
                prop_assert_eq!(wrap.push(second * SECOND, truth % range) - first, truth - (range - 1000));
            }
        }
    }
}
