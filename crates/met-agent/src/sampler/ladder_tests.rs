//! The sampler on a machine of files, with an old and a young job on a short ladder.

use std::path::Path;
use std::time::Instant;

use met_core::cadence::{ASKED_ONCE_WITHIN, Ladder};
use met_core::job_table::*;
use met_core::{MISSING, sample};

use super::*;

/// Two jobs in cgroups, a meter, and as much load for each as time has passed.
struct Machine {
    root: tempfile::TempDir,
    begin: Instant,
    idle: std::cell::Cell<bool>,
}

impl Machine {
    fn new() -> Machine {
        let root = tempfile::tempdir().unwrap();
        let machine = Machine { root, begin: Instant::now(), idle: std::cell::Cell::new(false) };
        machine.put("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
        machine.put("proc/meminfo", "MemTotal: 8000000 kB\nMemAvailable: 4000000 kB\n");
        machine.put("sys/class/powercap/intel-rapl:0/name", "package-0\n");
        machine.put("sys/class/powercap/intel-rapl:0/max_energy_range_uj", "65532610987\n");
        for job in ["old", "young"] {
            machine.put(&format!("sys/fs/cgroup/{job}/cgroup.procs"), "");
            machine.put(&format!("sys/fs/cgroup/{job}/memory.stat"), "anon 1000000\nfile 0\nshmem 0\n");
            machine.put(&format!("sys/fs/cgroup/{job}/pids.current"), "4\n");
        }
        machine.load();
        machine
    }

    fn put(&self, name: &str, text: &str) {
        let path = self.root.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// Each job keeps a core busy, and the machine draws 100 W.
    fn load(&self) {
        let us = self.begin.elapsed().as_micros() as u64 + 1_000_000;
        let ticks = us / 10_000;
        self.put("proc/stat", &format!("cpu  {} 0 0 {} 0 0 0 0 0 0\n", 2 * ticks, 2 * ticks));
        self.put("sys/class/powercap/intel-rapl:0/energy_uj", &format!("{}\n", us * 100));
        let us = if self.idle.get() { 1_000_000 } else { us };
        for job in ["old", "young"] {
            let text = format!("usage_usec {us}\nuser_usec {us}\nsystem_usec 0\n");
            self.put(&format!("sys/fs/cgroup/{job}/cpu.stat"), &text);
        }
    }

    fn sampler(&self, ladder: &str) -> Sampler {
        let host = Host::at(self.root.path()).unwrap();
        let config =
            Config::parse("sources: {ipmi: off, hwmon: off, cray: off}", Path::new("met.yaml")).unwrap();
        let period_max = Some(Duration::from_nanos(1));
        let options = Options { node: true, period_max, ..options(&config, Duration::ZERO) };
        let mut sampler = Sampler::with(host, Duration::from_secs(1), &config, &options);
        sampler.set_cadence(Cadence::new(Ladder::parse(ladder.split(',')).unwrap(), std::iter::empty()));
        sampler
    }

    fn add(&self, sampler: &mut Sampler, id: u32, name: &str, age_s: i64) -> u32 {
        let mut record = sample::bare(id, name);
        record.start_ns = Some(clock::realtime_ns() - age_s * 1_000_000_000);
        let local = record.local.as_mut().unwrap();
        local.boot_id.clone_from(&sampler.host.facts().boot_id);
        local.cgroup =
            CgroupPaths { unified: Some(format!("/sys/fs/cgroup/{name}").into()), ..CgroupPaths::default() };
        let slot = sampler.add(&record).unwrap();
        sampler.jobs.get_mut(&slot).unwrap().profile.counts_memory = true;
        slot
    }

    /// Ticks until `enough`.
    fn tick_until(&self, sampler: &mut Sampler, enough: impl Fn(&Sampler) -> bool) {
        let begin = Instant::now();
        while !enough(sampler) {
            assert!(begin.elapsed() < Duration::from_secs(120));
            std::thread::sleep(sampler.until_next_tick());
            self.load();
            sampler.tick_if_due();
        }
    }
}

fn known(sampler: &Sampler, slot: u32, column: usize) -> usize {
    sampler.jobs[&slot].samples.unpack().columns[column].iter().filter(|&&cell| cell != MISSING).count()
}

fn energy_uj(sampler: &Sampler, slot: u32) -> i64 {
    let mut cells = vec![MISSING; JOB.columns.len()];
    sampler.energy.fill(slot, &mut cells);
    cells[ENERGY].max(0)
}

#[test]
fn an_old_job_is_read_less_often_and_gets_the_same_energy_as_a_young_one() {
    let machine = Machine::new();
    let mut sampler = machine.sampler("20ms, 2s after 1h");
    let old = machine.add(&mut sampler, 1, "old", 7200);
    machine.tick_until(&mut sampler, |sampler| energy_uj(sampler, old) > 0);
    let young = machine.add(&mut sampler, 2, "young", 0);
    machine.tick_until(&mut sampler, |sampler| energy_uj(sampler, young) > 0);
    let before = [old, young].map(|slot| energy_uj(&sampler, slot));
    let count = |sampler: &Sampler, slot| known(sampler, slot, CPU);
    let counts = [old, young].map(|slot| count(&sampler, slot));
    let until_uj = before[1] + 300_000_000;
    machine.tick_until(&mut sampler, |sampler| energy_uj(sampler, young) > until_uj);
    let [old_uj, young_uj] = [0, 1].map(|index| energy_uj(&sampler, [old, young][index]) - before[index]);
    assert!((old_uj - young_uj).abs() * 100 <= young_uj * 3, "{old_uj} and {young_uj} µJ");
    let [olds, youngs] = [0, 1].map(|index| count(&sampler, [old, young][index]) - counts[index]);
    assert!(olds * 4 < youngs, "{olds} samples of the old job, {youngs} of the young one");
    assert!(olds >= 2, "it is sampled all the same");
}

#[test]
fn a_job_that_somebody_watches_is_sampled_at_the_shortest_interval() {
    let machine = Machine::new();
    let mut sampler = machine.sampler("20ms, 10s after 1h");
    let old = machine.add(&mut sampler, 1, "old", 7200);
    machine.tick_until(&mut sampler, |sampler| sampler.jobs[&old].age.early_ns().is_none());
    let is_planned_soon = |sampler: &Sampler| sampler.until_next_tick() <= Duration::from_millis(20);
    sampler.note_interest(old);
    // Requests at once are one.
    std::thread::sleep(ASKED_ONCE_WITHIN);
    sampler.note_interest(old);
    assert!(is_planned_soon(&sampler));
    let before = known(&sampler, old, THREADS_RUNNING);
    machine.tick_until(&mut sampler, |sampler| known(sampler, old, CPU) > before + 20);
}

#[test]
fn a_job_that_is_watched_elsewhere_is_sampled_at_the_shortest_interval() {
    let machine = Machine::new();
    let mut sampler = machine.sampler("20ms, 10s after 1h");
    let old = machine.add(&mut sampler, 1, "old", 7200);
    machine.tick_until(&mut sampler, |sampler| sampler.jobs[&old].age.early_ns().is_none());
    sampler.watch(old + 1, 60_000_000_000);
    sampler.watch(old, 60_000_000_000);
    assert!(sampler.until_next_tick() <= Duration::from_millis(20));
    let before = known(&sampler, old, THREADS_RUNNING);
    machine.tick_until(&mut sampler, |sampler| known(sampler, old, CPU) > before + 20);
}

#[test]
fn what_is_read_for_a_page_is_in_no_series_and_changes_no_plan() {
    let machine = Machine::new();
    let mut sampler = machine.sampler("1s, 60s after 1h");
    let old = machine.add(&mut sampler, 1, "old", 7200);
    machine.tick_until(&mut sampler, |sampler| sampler.jobs[&old].age.early_ns().is_none());
    let key = sampler.jobs[&old].key.clone();
    let samples = sampler.jobs[&old].samples.len();
    let (planned_ns, next_ns) = (sampler.jobs[&old].age.pacing.next_ns(), sampler.schedule.next_ns);
    let shown = |now: &NodeNow| (now.jobs[&key].cells[CPU], now.time_ns);
    let before = shown(&sampler.now(false));
    std::thread::sleep(Duration::from_millis(20));
    machine.load();
    let page = sampler.look_for_page(false);
    let after = shown(&page);
    assert!(after.0 >= before.0 + 20_000_000 && after.1 > before.1, "{before:?} {after:?}");
    assert_eq!(page.jobs[&key].cells[MEMORY_NEEDED], 1_000_000);
    let cpu_of_node = |now: &NodeNow| {
        let node = now.tables.iter().find(|rows| rows.table.name == "node").unwrap();
        node.iter().next().unwrap().1[met_sources::node::CPU_USER]
    };
    assert!(cpu_of_node(&page) > 0);
    assert_eq!(sampler.jobs[&old].samples.len(), samples);
    assert_eq!((sampler.jobs[&old].age.pacing.next_ns(), sampler.schedule.next_ns), (planned_ns, next_ns));
}

#[test]
fn a_job_in_which_nothing_runs_keeps_its_levels() {
    let machine = Machine::new();
    machine.idle.set(true);
    let mut sampler = machine.sampler("20ms, 200ms after 1h");
    let old = machine.add(&mut sampler, 1, "old", 7200);
    machine.tick_until(&mut sampler, |sampler| known(sampler, old, CPU) > 3);
    machine.put("sys/fs/cgroup/old/memory.stat", "anon 5\nfile 0\nshmem 0\n");
    let before = known(&sampler, old, CPU);
    machine.tick_until(&mut sampler, |sampler| known(sampler, old, CPU) > before + 3);
    let series = sampler.jobs[&old].samples.unpack();
    let last = series.len() - 1;
    assert_eq!((series.columns[MEMORY_NEEDED][last], series.columns[THREADS_RUNNING][last]), (1_000_000, 4));
}
