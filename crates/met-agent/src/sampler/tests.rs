//! The sampler on a machine whose NVIDIA library plays a script.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Instant;

use met_core::gpu::device::label;
use met_core::job::{GpuUse, QualityKind};
use met_core::job_table::*;
use met_core::{MISSING, Subject};
use met_sources::self_cost;

use super::*;
use met_core::sample;

const SCRIPT: &str = "driver 1\n\
    card 0 uuid=GPU-a name=Fake_H200 power=300000 util=90 memory=3000 total=8000 temperature=61\n";

/// A job of one process that sleeps and was given GPU 0.
struct Sleeper {
    child: Child,
    folder: tempfile::TempDir,
}

impl Sleeper {
    fn new() -> Sleeper {
        let folder = tempfile::tempdir().unwrap();
        // Cargo puts a dependency's library beside the test program.
        let program = std::env::current_exe().unwrap();
        let library = program.parent().unwrap().join("libnvml_fake.so");
        std::fs::copy(library, folder.path().join("libnvidia-ml.so.1")).unwrap();
        let child =
            Command::new("sleep").arg("600").env("CUDA_VISIBLE_DEVICES", "0").process_group(0).spawn();
        Sleeper { child: child.unwrap(), folder }
    }

    fn script(&self, sm: u32, memory: u64) {
        let process = format!("process 0 pid={} memory={memory} sm={sm}\n", self.child.id());
        let fresh = self.folder.path().join("script.new");
        // No other job is on the GPU.
        let script = SCRIPT.replace("util=90", &format!("util={sm}"));
        std::fs::write(&fresh, format!("{script}{process}")).unwrap();
        std::fs::rename(fresh, self.folder.path().join("script")).unwrap();
    }

    fn record(&self, host: &Host) -> Record {
        let mut record = sample::bare(1, "sleeper");
        let local = record.local.as_mut().unwrap();
        local.boot_id.clone_from(&host.facts().boot_id);
        local.main = host.process(self.child.id()).ok();
        record.start_ns = Some(clock::realtime_ns());
        record
    }

    fn sampler(&self, host: &Host) -> Sampler {
        Sleeper::sampler_with(host, self.library())
    }

    fn sampler_with(host: &Host, library: PathBuf) -> Sampler {
        let mut config = Config::default();
        config.gpu.nvml = Some(library);
        Sampler::waiting(host.clone(), Duration::from_millis(20), &config, Duration::from_secs(20))
    }

    fn library(&self) -> PathBuf {
        Path::join(self.folder.path(), "libnvidia-ml.so.1")
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        // Each is the first of a group of its own.
        if let Some(group) = rustix::process::Pid::from_raw(self.child.id().cast_signed()) {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        let _ = self.child.wait();
    }
}

/// Looks until what is known of the one job is enough.
fn look_until(sampler: &mut Sampler, enough: impl Fn(&Live) -> bool) -> Live {
    let begin = Instant::now();
    loop {
        sampler.look();
        let live = sampler.live().remove(0).1;
        if enough(&live) {
            return live;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "{live:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn energy_uj(live: &Live) -> i64 {
    live.totals.get(GPU_ENERGY).unwrap_or(0)
}

#[test]
fn what_a_job_did_with_a_gpu_goes_on_after_a_restart() {
    let host = Host::real().unwrap();
    let job = Sleeper::new();
    job.script(60, 5000);
    let mut first = job.sampler(&host);
    let mut record = job.record(&host);
    first.add(&record).unwrap();
    let before = look_until(&mut first, |live| {
        live.gpus.first().is_some_and(|gpu| gpu.used_ns > 0 && gpu.memory_peak_bytes == Some(5000))
    });
    let series = first.drain().remove(0).1.unpack();
    let devices = first.gpus.devices();
    drop(first);

    job.script(0, 10);
    record.gpus = before.gpus.clone();
    let mut second = job.sampler(&host);
    second.gpus.recall(devices);
    let slot = second.add(&record).unwrap();
    second.recall(slot, &series);
    let used_ns = before.gpus[0].used_ns;
    let after = look_until(&mut second, |live| {
        live.gpus[0].held_ns > 2 * before.gpus[0].held_ns && energy_uj(live) > energy_uj(&before)
    });
    let (before, now) = (&before.gpus[0], &after.gpus[0]);
    assert_eq!((now.held_since_ns, now.memory_peak_bytes), (before.held_since_ns, Some(5000)));
    assert!(now.used_ns >= used_ns && now.energy_uj() > before.energy_uj());
    assert!(now.utilization < before.utilization, "a mean over both: {:?}", now.utilization);
    assert_eq!(now.held_by.text(), "CUDA_VISIBLE_DEVICES");
    let reported: i64 = after.gpus.iter().map(GpuUse::energy_uj).sum();
    assert!(reported <= energy_uj(&after), "the cards add up to no more than the total");
    assert!(energy_uj(&after) - reported < 30_000_000, "{reported} of {}", energy_uj(&after));
}

#[test]
fn energy_that_was_charged_stays_when_the_library_is_gone() {
    let host = Host::real().unwrap();
    let job = Sleeper::new();
    job.script(60, 5000);
    let mut first = job.sampler(&host);
    let record = job.record(&host);
    first.add(&record).unwrap();
    let before = look_until(&mut first, |live| energy_uj(live) > 1_000_000);
    let series = first.drain().remove(0).1.unpack();
    drop(first);
    let mut second = Sleeper::sampler_with(&host, job.folder.path().join("away.so"));
    let slot = second.add(&record).unwrap();
    second.recall(slot, &series);
    second.look();
    let sampled = second.remove(slot, Known::default()).unwrap();
    let figure = sampled.live.totals.figure(GPU_ENERGY).unwrap();
    assert_eq!((figure.value, figure.kind), (energy_uj(&before), QualityKind::LowerBound));
}

#[test]
fn the_series_of_a_gpu_is_sampled_once_while_a_job_has_it() {
    let host = Host::real().unwrap();
    let job = Sleeper::new();
    job.script(60, 5000);
    let mut sampler = job.sampler(&host);
    sampler.add(&job.record(&host)).unwrap();
    look_until(&mut sampler, |live| live.gpus.first().is_some_and(|gpu| gpu.held_ns > 0));
    let gpus = sampler.gpus.drain();
    assert_eq!(gpus.iter().map(|(uuid, _)| uuid.as_str()).collect::<Vec<_>>(), ["GPU-a"]);
    let series = &gpus[0].1;
    assert_eq!((series.columns[device::POWER][0], series.columns[device::UTILIZATION][0]), (300_000, 600));
    assert!(
        series.columns[device::PASS_AGE].iter().all(|&cell| cell == MISSING),
        "only what is shown is kept"
    );
    assert!(sampler.gpus.drain().is_empty());
}

/// A sampler whose GPUs have a period of their own.
fn sampler_of_gpus(job: &Sleeper, host: &Host, tick: Duration, of_gpus: Duration) -> Sampler {
    let mut config = Config::default();
    config.gpu.nvml = Some(job.library());
    config.nvidia.interval = Some(of_gpus);
    let mut sampler = Sampler::waiting(host.clone(), tick, &config, Duration::from_secs(20));
    sampler.add(&job.record(host)).unwrap();
    sampler
}

#[test]
fn gpus_are_read_by_their_own_period_between_two_ticks() {
    const HOUR: Duration = Duration::from_secs(3600);
    let host = Host::real().unwrap();
    let job = Sleeper::new();
    job.script(60, 5000);
    let mut sampler = sampler_of_gpus(&job, &host, HOUR, Duration::from_millis(20));
    sampler.look();
    let begin = Instant::now();
    // More than a young job has ticks.
    while sampler.gpus.undrained("GPU-a").is_none_or(|series| series.len() < 20) {
        assert!(begin.elapsed() < Duration::from_secs(120), "{:?}", sampler.gpus.undrained("GPU-a"));
        std::thread::sleep(sampler.until_next_tick().min(Duration::from_millis(50)));
        sampler.tick_if_due();
    }
}

#[test]
fn gpus_with_a_longer_period_are_not_read_at_every_tick() {
    const HOUR: Duration = Duration::from_secs(3600);
    let host = Host::real().unwrap();
    let job = Sleeper::new();
    job.script(60, 5000);
    let mut sampler = sampler_of_gpus(&job, &host, Duration::from_millis(20), HOUR);
    sampler.look();
    let ticks = sampler.schedule.ticks;
    while sampler.schedule.ticks < ticks + 10 {
        std::thread::sleep(sampler.until_next_tick());
        sampler.tick_if_due();
    }
    // Between two looks time passes in which the job holds the GPU.
    let gpus = sampler.live().remove(0).1.gpus;
    assert_eq!(gpus.first().map(|gpu| gpu.held_ns), Some(0), "{gpus:?}");
}

/// The script with the process of a job on the GPU, which a driver may name when it has ended.
fn write_script(folder: &Path, pid: u32, more: &str) {
    let fresh = folder.join("script.new");
    std::fs::write(&fresh, format!("{SCRIPT}process 0 pid={pid} memory=5 sm=60 {more}\n")).unwrap();
    std::fs::rename(fresh, folder.join("script")).unwrap();
}

#[test]
fn a_process_that_ended_between_two_looks_is_still_its_jobs() {
    use std::io::BufRead;
    let host = Host::real().unwrap();
    let mut job = Sleeper::new();
    let _ = job.child.kill();
    let _ = job.child.wait();
    let mut shell = Command::new("sh");
    shell.arg("-c").arg("sleep 600 & echo $!; wait; sleep 600");
    job.child = shell.stdout(std::process::Stdio::piped()).process_group(0).spawn().unwrap();
    let mut line = String::new();
    std::io::BufReader::new(job.child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let pid: u32 = line.trim().parse().unwrap();
    write_script(job.folder.path(), pid, "");
    let mut sampler = job.sampler(&host);
    sampler.add(&job.record(&host)).unwrap();
    let active = |live: &Live| live.gpus.first().map_or(0, |gpu| gpu.energy_active_uj);
    look_until(&mut sampler, |live| active(live) > 1_000_000);
    write_script(job.folder.path(), pid, "ended=1");
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(pid.cast_signed()).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    // The shell has waited for it when its number is free.
    look_until(&mut sampler, |_| host.process(pid).is_err());
    let before = active(&sampler.live().remove(0).1);
    // Half a second of the GPU, in windows that only the ended process's samples explain.
    look_until(&mut sampler, |live| active(live) > before + 150_000_000);
}

#[test]
fn a_process_that_appears_on_a_gpu_is_its_jobs_though_nobody_has_listed_it_yet() {
    let host = Host::real().unwrap();
    let job = Sleeper::new();
    job.script(60, 5000);
    let mut sampler = job.sampler(&host);
    let slot = sampler.add(&job.record(&host)).unwrap();
    look_until(&mut sampler, |live| live.gpus.first().is_some_and(|gpu| gpu.processes == 1));
    // As if its processes had not been listed since before it was there.
    sampler.membership.map.clear();
    sampler.membership.map.add_job(slot, None);
    sampler.membership.targets.clear();
    sampler.gpus.strangers.clear();
    sampler.membership.every_ns = i64::MAX / 2;
    look_until(&mut sampler, |_| true);
    let me = sampler.host.process(job.child.id()).unwrap();
    let subject = Subject::Task { pid: me.pid, start_ticks: me.start_ticks };
    let begin = Instant::now();
    while sampler.membership.map.owner(subject) != Some(slot) {
        assert!(begin.elapsed() < Duration::from_secs(30), "it stays nobody's");
        sampler.look();
    }
    sampler.look();
    assert!(sampler.gpus.strangers.is_empty());
}

#[test]
fn another_period_ticks_at_its_own_multiples() {
    let config = Config::default();
    let mut sampler =
        Sampler::waiting(Host::real().unwrap(), Duration::from_secs(3600), &config, Duration::ZERO);
    let gap_before_ms = sampler.gap_ms();
    for interval_ms in [1500, 250, 60_000] {
        sampler.set_interval(Duration::from_millis(interval_ms));
        assert_eq!(sampler.schedule.next_ns % (interval_ms as i64 * 1_000_000), 0);
        assert!(sampler.until_next_tick() <= Duration::from_millis(interval_ms));
    }
    assert!(sampler.gap_ms() < gap_before_ms);
}

#[test]
fn events_asked_for_live_reach_jobs_whose_supervisors_do_not_know_of_them() {
    let key =
        |id: &str| JobKey { cluster: None, manager: "local".to_owned(), id: id.to_owned(), incarnation: 0 };
    let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
    let of = |asked: &EventsAsked, id: &str, born_ns: i64, supervised: bool| {
        asked.of_job(&key(id), born_ns, supervised).map(|events| events.join(","))
    };
    let file = EventsAsked::of_file(&names(&["page_faults"]));
    assert_eq!(of(&file, "1", 5, true), None, "its supervisor counts");
    assert_eq!(of(&file, "1", 5, false).as_deref(), Some("page_faults"));
    let mut live = EventsAsked::live(&names(&["task_clock"]), 10);
    assert_eq!(of(&live, "1", 5, true).as_deref(), Some("task_clock"));
    assert_eq!(of(&live, "2", 15, true), None, "it was started with them");
    live.instead(key("2"), &names(&["page_faults"]));
    assert_eq!(of(&live, "2", 15, true).as_deref(), Some("page_faults"));
}

#[test]
fn a_series_of_a_longer_period_has_no_gaps_and_a_pause_is_still_one() {
    let mut series = Series::new(&JOB);
    let cells = vec![MISSING; JOB.columns.len()];
    for time_ms in (0..40).map(|index| index * 60_000).chain([4_000_000]) {
        series.push(time_ms, &cells);
    }
    let second = Duration::from_secs(1);
    assert_eq!(gap_ms_of(&series, second), 180_000);
    series.truncate(5);
    assert_eq!(gap_ms_of(&series, second), gap_ms(second), "too few to say");
}

#[test]
fn what_is_copied_for_others_is_what_is_known() {
    let host = Host::real().unwrap();
    let job = Sleeper::new();
    job.script(60, 5000);
    let mut sampler = job.sampler(&host);
    let record = job.record(&host);
    sampler.add(&record).unwrap();
    let live = look_until(&mut sampler, |live| live.gpus.first().is_some_and(|gpu| gpu.used_ns > 0));
    let now = sampler.now(true);
    let cells = &now.jobs[&record.key].cells;
    for (column, figure) in live.totals.iter() {
        assert_eq!(cells[column], figure.value, "{}", JOB.columns[column].name);
    }
    assert_eq!((cells[PROCESSES_RUNNING], cells[GPUS]), (1, 1));
    let (holder, gpu) = &now.gpus[0];
    assert_eq!((holder, gpu.uuid.as_str(), gpu.index.as_str()), (&record.key, "GPU-a", "0"));
    let table = |name: &str| now.tables.iter().find(|rows| rows.table.name == name).unwrap();
    let shown = table("gpu").iter().next().unwrap();
    assert_eq!((shown.0[label::UUID].as_str(), shown.1[device::POWER]), ("GPU-a", 300_000));
    assert!(
        table("source")
            .iter()
            .any(|(labels, cells)| labels[0] == "process" && cells[self_cost::SUCCESS] == 1)
    );
    assert_eq!(table("emission").iter().count(), 1);
}

#[test]
fn without_jobs_only_who_watches_the_machine_ticks() {
    let host = Host::real().unwrap();
    let mut sampler = Sampler::waiting(host, Duration::from_secs(1), &Config::default(), Duration::ZERO);
    assert!(!sampler.is_at_work());
    sampler.watch_node();
    assert!(sampler.is_at_work());
}

/// All energy of a job, and that of its GPUs; its emissions by a factor that never changed.
fn assert_gpus_are_a_part(totals: &met_core::job::Totals, factor_mg: Option<i64>) {
    let Some(energy_uj) = totals.get(ENERGY) else { return };
    let part = |column: usize| totals.get(column).unwrap_or(0);
    let inner_uj = part(ENERGY_CPU) + part(ENERGY_MEMORY) + part(ENERGY_REST) + part(GPU_ENERGY);
    assert_eq!(energy_uj, inner_uj, "{totals:?}");
    assert!(part(ENERGY_IDLE) >= part(GPU_ENERGY_IDLE), "{totals:?}");
    if let Some(factor_mg) = factor_mg {
        let least_ug = part(GPU_ENERGY) as f64 * factor_mg as f64 * 1000.0 / 3.6e12;
        assert!(part(EMISSIONS) as f64 >= least_ug.floor() - 1.0, "{totals:?}");
    }
}

fn sampler_of_energy(job: &Sleeper, host: &Host) -> Sampler {
    let mut config = Config::default();
    config.gpu.nvml = Some(job.library());
    let options =
        Options { node: true, only: Some(&WITH_ENERGY), ..options(&config, Duration::from_secs(20)) };
    Sampler::with(host.clone(), Duration::from_millis(20), &config, &options)
}

#[test]
fn all_energy_of_a_job_is_that_of_its_gpus_and_of_the_rest_at_every_moment() {
    let host = Host::real().unwrap();
    let job = Sleeper::new();
    job.script(60, 5000);
    let mut first = sampler_of_energy(&job, &host);
    let record = job.record(&host);
    first.add(&record).unwrap();
    let factor_mg = |live: &Live| live.emission.as_ref().map(|emission| emission.factor_mg_per_kwh);
    let is_charged = |live: &Live| {
        assert_gpus_are_a_part(&live.totals, factor_mg(live));
        live.totals.get(ENERGY).is_some() && energy_uj(live) > 100_000_000
    };
    let before = look_until(&mut first, is_charged);
    let figure = before.totals.figure(ENERGY).unwrap();
    assert!(figure.source.text().contains("of GPUs"), "{figure:?}");
    // What the GPUs draw now is in the power of the machine, and not what they drew in a minute.
    let now = first.energy().now().unwrap();
    assert!((200.0..400.0).contains(&now.watts(now.gpus_uj)), "{now:?}");
    assert!(now.gpus_uj <= now.whole_uj && now.jobs_uj + now.system_uj + now.idle_uj == now.whole_uj);
    let series = first.drain().remove(0).1.unpack();
    let last = series.len() - 1;
    assert!(series.columns[ENERGY][last] >= series.columns[GPU_ENERGY][last]);
    drop(first);

    // What it did with its GPUs was not written: what was sampled of it is known.
    let mut second = sampler_of_energy(&job, &host);
    let slot = second.add(&record).unwrap();
    second.recall(slot, &series);
    look_until(&mut second, |live| is_charged(live) && energy_uj(live) > energy_uj(&before) + 20_000_000);
    let sampled = second.remove(slot, Known::default()).unwrap();
    assert_gpus_are_a_part(&sampled.live.totals, None);
    let settled = second.settle_now();
    // Who keeps the end may know nothing of GPUs yet.
    let mut totals = met_core::job::Totals::default();
    settled[0].1.put(&mut totals);
    assert!(totals.get(ENERGY) >= sampled.live.totals.get(GPU_ENERGY), "{totals:?}");
}

#[test]
fn energy_is_a_lower_bound_after_a_time_in_which_nobody_looked() {
    let host = Host::real().unwrap();
    let job = Sleeper::new();
    job.script(60, 5000);
    let mut first = sampler_of_energy(&job, &host);
    let mut record = job.record(&host);
    first.add(&record).unwrap();
    let before = look_until(&mut first, |live| energy_uj(live) > 1_000_000 && live.gpus[0].used_ns > 0);
    let series = first.drain().remove(0).1.unpack();
    drop(first);
    // Quiet for the last samples, and not for long enough to be called idle.
    job.script(0, 10);
    record.gpus = before.gpus.clone();
    let mut quiet = series.clone();
    let (&last_ms, mut cells) = (quiet.times_ms.last().unwrap(), vec![MISSING; JOB.columns.len()]);
    cells[GPU_UTILIZATION] = 0;
    quiet.push(last_ms + 1, &cells);
    let kinds = |away_ms: i64| {
        let mut series = quiet.clone();
        series.times_ms.iter_mut().for_each(|time_ms| *time_ms -= away_ms);
        let mut second = sampler_of_energy(&job, &host);
        let slot = second.add(&record).unwrap();
        second.recall(slot, &series);
        let live = look_until(&mut second, |live| {
            energy_uj(live) > energy_uj(&before) && live.gpus[0].idle_since_ns.is_some()
        });
        assert_eq!(live.gpus[0].idle_since_ns, Some((last_ms + 1 - away_ms) * 1_000_000));
        let kind = |column: usize| live.totals.figure(column).unwrap().kind;
        (kind(GPU_ENERGY), kind(ENERGY), live.gpus[0].energy_kind.unwrap())
    };
    let bound = QualityKind::LowerBound;
    assert_eq!(kinds(60_000), (bound, bound, bound));
    let (gpus, all, gpu) = kinds(0);
    assert!(gpus < bound && all < bound && gpu < bound, "{gpus:?} {all:?} {gpu:?}");
}
