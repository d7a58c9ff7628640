//! A machine whose energy is known to the microjoule, seen through meters that lag, wrap, jump and fall silent.
//!
//! The truth is made in steps of a tenth of a second. The ledger sees what a sampler would: readings when a meter
//! answers, weights at ticks, nothing while the sampler is stopped. What it books is held against what the trusted
//! meter counted, which is worked out here from its readings alone, and against what each job really used.

use std::collections::BTreeMap;
use std::ops::Range;

use proptest::prelude::*;

use super::*;
use crate::energy::{MeteredBy, Scope};
use crate::job::QualityKind;

const SECOND: i64 = 1_000_000_000;
/// Steps of truth in a second.
const STEPS: usize = 10;
const SECONDS: usize = 460;
/// After the last job: a meter that lags is waited for.
const TAIL_S: usize = 90;
const CPU_IDLE_MW: i64 = 40_000;
const REST_IDLE_MW: i64 = 60_000;
const GPU_IDLE_MW: i64 = 50_000;
const GPU_BUSY_MW: i64 = 250_000;
/// Of a CPU in use.
const CPU_BUSY_MW: i64 = 30_000;
const CPUS: u64 = 8;
/// Of all CPU time, in thousandths of a CPU.
const SYSTEM_PERMILLE: i64 = 1;
/// Far above anything that a machine uses in the time of a test.
const COUNTER_START_UJ: i64 = 5_000_000_000_000;

#[derive(Clone, Debug)]
struct Job {
    life: Range<usize>,
    /// Thousandths of a CPU.
    cpu_permille: i64,
    has_gpu: bool,
}

#[derive(Clone, Debug)]
struct Plan {
    jobs: Vec<Job>,
    /// The meter of the node: a counter or power, how often it is read, and how late it is.
    counts: bool,
    period_s: usize,
    lag_s: usize,
    has_package: bool,
    /// Known, or to be learned in the first seconds, in which nothing runs.
    idle_known: bool,
    /// Seconds in which the meter of the node does not answer, those in which that of the processors does not, and
    /// those without any reading.
    gaps: Vec<Range<usize>>,
    package_gaps: Vec<Range<usize>>,
    pauses: Vec<Range<usize>>,
    /// The reading at or after this second is wrong.
    glitches: Vec<(usize, i64)>,
    /// The counter begins again at 0.
    restarts: Vec<usize>,
}

/// What was really used up to each step, in microjoules.
struct Truth {
    node_uj: Vec<i64>,
    package_uj: Vec<i64>,
    power_mw: Vec<i64>,
    gpu_idle_uj: Vec<i64>,
    jobs_cpu_uj: Vec<Vec<i64>>,
    jobs_gpu_uj: Vec<Vec<i64>>,
    jobs_cpu_ns: Vec<Vec<i64>>,
    busy_ns: Vec<i64>,
}

impl Truth {
    fn of(plan: &Plan) -> Truth {
        let step_ns = SECOND / STEPS as i64;
        let uj = |mw: i64| mw * step_ns / 1_000_000;
        let none = || vec![0];
        let many = || vec![vec![0]; plan.jobs.len()];
        let mut truth = Truth {
            node_uj: none(),
            package_uj: none(),
            power_mw: none(),
            gpu_idle_uj: none(),
            jobs_cpu_uj: many(),
            jobs_gpu_uj: many(),
            jobs_cpu_ns: many(),
            busy_ns: none(),
        };
        for step in 0..SECONDS * STEPS {
            let (mut permille, mut gpu_mw) = (SYSTEM_PERMILLE, 0);
            for (index, job) in plan.jobs.iter().enumerate() {
                let lives = job.life.contains(&(step / STEPS));
                let (cpu, gpu) = if lives { (job.cpu_permille, i64::from(job.has_gpu)) } else { (0, 0) };
                permille += cpu;
                gpu_mw += gpu * GPU_BUSY_MW;
                grow(&mut truth.jobs_cpu_uj[index], uj(cpu * CPU_BUSY_MW / 1000));
                grow(&mut truth.jobs_gpu_uj[index], uj(gpu * GPU_BUSY_MW));
                grow(&mut truth.jobs_cpu_ns[index], step_ns * cpu / 1000);
            }
            let cpu_mw = CPU_IDLE_MW + permille * CPU_BUSY_MW / 1000;
            let node_mw = cpu_mw + REST_IDLE_MW + GPU_IDLE_MW + gpu_mw;
            grow(&mut truth.package_uj, uj(cpu_mw));
            grow(&mut truth.node_uj, uj(node_mw));
            grow(&mut truth.gpu_idle_uj, uj(GPU_IDLE_MW));
            grow(&mut truth.busy_ns, step_ns * permille / 1000);
            truth.power_mw.push(node_mw);
        }
        truth.power_mw[0] = truth.power_mw[1];
        truth
    }

    /// What the node had used, and its power, some steps before a step; before the run the machine idled.
    fn node_at(&self, step: usize, lag: usize) -> (i64, i64) {
        match step.checked_sub(lag) {
            Some(shown) => (self.node_uj[shown], self.power_mw[shown]),
            None => (-(self.node_uj[1] * (lag - step) as i64), self.power_mw[1]),
        }
    }
}

fn grow(sums: &mut Vec<i64>, by: i64) {
    sums.push(sums.last().copied().unwrap_or(0) + by);
}

/// What the meter of the node has counted by the readings that it gave, glitches aside.
#[derive(Default)]
struct Trusted {
    last: Option<(i64, i64)>,
    counted_uj: i64,
    /// Of power, in picojoules since the last gap.
    drawn_pj: i128,
}

impl Trusted {
    fn count(&mut self, at_ns: i64, counter_uj: i64) {
        let before = self.last.replace((at_ns, counter_uj));
        self.counted_uj += before.map_or(0, |(_, before_uj)| (counter_uj - before_uj).max(0));
    }

    fn draw(&mut self, at_ns: i64, power_mw: i64) {
        let before = self.last.replace((at_ns, power_mw));
        match before.filter(|(before_ns, _)| at_ns - before_ns <= 60 * SECOND) {
            Some((before_ns, before_mw)) => {
                self.drawn_pj += i128::from(before_mw + power_mw) * i128::from(at_ns - before_ns) / 2;
            }
            None => {
                self.counted_uj += (self.drawn_pj / 1_000_000) as i64;
                self.drawn_pj = 0;
            }
        }
    }

    fn total_uj(&self) -> i64 {
        self.counted_uj + (self.drawn_pj / 1_000_000) as i64
    }
}

/// What the ledger made of it.
#[derive(Default)]
struct Booked {
    windows: Vec<Closed>,
    lines_uj: BTreeMap<Who, i64>,
    short: BTreeMap<Who, u64>,
    unsettled: Vec<u32>,
}

impl Booked {
    fn take(&mut self, closed: Option<Closed>) {
        let Some(closed) = closed else { return };
        let sum: i64 = closed.lines.values().map(Line::total_uj).sum();
        assert_eq!(sum, closed.whole_uj as i64, "{closed:?}");
        assert_eq!(closed.counted_uj, closed.whole_uj, "against the counter alone: {closed:?}");
        for (who, line) in &closed.lines {
            *self.lines_uj.entry(*who).or_default() += line.total_uj();
        }
        for (who, uj) in &closed.short_uj {
            *self.short.entry(*who).or_default() += uj;
        }
        self.windows.push(closed);
    }
}

fn is_in(spans: &[Range<usize>], second: usize) -> bool {
    spans.iter().any(|span| span.contains(&second))
}

struct Machine<'a> {
    plan: &'a Plan,
    truth: Truth,
    ledger: EnergyLedger,
    trusted: Trusted,
    booked: Booked,
    glitches: Vec<(usize, i64)>,
    restarts: Vec<usize>,
    epoch_uj: i64,
    looked: usize,
    read: Option<usize>,
    /// Readings in a row that were right.
    right: usize,
}

impl<'a> Machine<'a> {
    fn new(plan: &'a Plan) -> Machine<'a> {
        let idle_mw = plan.idle_known.then_some((CPU_IDLE_MW + REST_IDLE_MW) as u64);
        Machine {
            plan,
            truth: Truth::of(plan),
            ledger: EnergyLedger::new(Policy { idle_to: IdleTo::Unassigned, idle_mw }),
            trusted: Trusted::default(),
            booked: Booked::default(),
            glitches: plan.glitches.clone(),
            restarts: plan.restarts.clone(),
            epoch_uj: COUNTER_START_UJ,
            looked: 0,
            read: None,
            right: 0,
        }
    }

    fn run(mut self) -> (Booked, Trusted, Truth) {
        for second in 0..=SECONDS {
            let is_end = second == SECONDS;
            if is_in(&self.plan.pauses, second) && !is_end {
                continue;
            }
            self.weigh(second);
            self.read_node(second, is_end);
            // Processors are read at every tick.
            if self.plan.has_package && (!is_in(&self.plan.package_gaps, second) || is_end) {
                let step = second * STEPS;
                let package =
                    self.ledger.meters.meter("package-0", Scope::Package, QualityKind::Measured, 3 * SECOND);
                self.ledger.meters.read_counter(package, at_ns(step), self.truth.package_uj[step]);
            }
            self.looked = second * STEPS;
            let closed = self.ledger.close(second as i64 * SECOND);
            self.booked.take(closed);
        }
        self.booked.unsettled = self.ledger.unsettled().to_vec();
        (self.booked, self.trusted, self.truth)
    }

    fn read_node(&mut self, second: usize, is_end: bool) {
        let plan = self.plan;
        let is_due = self.read.is_none_or(|read| second >= read + plan.period_s) || is_end;
        if !is_due || is_in(&plan.gaps, second) && !is_end {
            return;
        }
        self.read = Some(second);
        let step = second * STEPS;
        let (shown_uj, power_mw) = self.truth.node_at(step, plan.lag_s * STEPS);
        let timeout_ns = 3 * plan.period_s as i64 * SECOND;
        let scope = Scope::Node { rank: 0, with_gpus: true };
        let meter = self.ledger.meters.meter("bmc", scope, QualityKind::Measured, timeout_ns);
        let glitch = self.glitches.first().filter(|(from, _)| second >= *from && !is_end).copied();
        self.glitches.drain(..usize::from(glitch.is_some()));
        // Gaps may bring two of them together, and then it is undecidable which is right.
        let glitch = glitch.filter(|_| self.right >= 4);
        self.right = if glitch.is_some() { 0 } else { self.right + 1 };
        if plan.counts {
            if self.restarts.first().is_some_and(|&from| second >= from) {
                self.restarts.remove(0);
                self.right = 0;
                // From here on; the use since the last reading was not counted.
                self.epoch_uj = -shown_uj;
                self.trusted.last = None;
            }
            let counter_uj = self.epoch_uj + shown_uj;
            let wrong_uj = glitch.map(|(_, kind)| if kind > 1 { counter_uj + 9_000_000_000_000 } else { 0 });
            self.ledger.meters.read_counter(meter, at_ns(step), wrong_uj.unwrap_or(counter_uj));
            if glitch.is_none() {
                self.trusted.count(at_ns(step), counter_uj);
            }
        } else {
            let wrong_mw = glitch.map(|(_, watts)| watts * 1000);
            self.ledger.meters.read_power(meter, at_ns(step), wrong_mw.unwrap_or(power_mw));
            if glitch.is_none() {
                self.trusted.draw(at_ns(step), power_mw);
            }
        }
    }

    fn weigh(&mut self, second: usize) {
        let (now, before) = (second * STEPS, self.looked);
        for (slot, job) in self.plan.jobs.iter().enumerate() {
            let cpu_ns = &self.truth.jobs_cpu_ns[slot];
            let was_over = job.life.end * STEPS <= before && before > 0;
            if job.life.start * STEPS > now || was_over {
                continue;
            }
            let cpu = (cpu_ns[now] - cpu_ns[before]) as u64;
            self.ledger.weigh_job(slot as u32, Weights { cpu, ..Weights::default() });
            if job.has_gpu {
                let used_uj = self.truth.jobs_gpu_uj[slot][now] as u64;
                self.ledger.charge_gpus(Who::Job(slot as u32), used_uj, 0);
            }
            if job.life.end * STEPS <= now {
                self.ledger.leave(slot as u32);
            }
        }
        self.ledger.charge_gpus(Who::Idle, 0, self.truth.gpu_idle_uj[now] as u64);
        let cpu = (self.truth.busy_ns[now] - self.truth.busy_ns[before]) as u64;
        let held = CPUS * ((now - before) as u64) * (SECOND as u64 / STEPS as u64);
        self.ledger.weigh_node(Weights { cpu, memory: 0, held });
    }
}

fn at_ns(step: usize) -> i64 {
    step as i64 * (SECOND / STEPS as i64)
}

/// Spans in seconds, of which one may be long, that leave the ends of the run alone.
fn spans(count: usize, length: Range<usize>) -> impl Strategy<Value = Vec<Range<usize>>> {
    let span = (30..SECONDS - 140, length).prop_map(|(begin, length)| begin..begin + length);
    prop::collection::vec(span, 0..count)
}

fn jobs() -> impl Strategy<Value = Vec<Job>> {
    let job = (25..SECONDS - 2 * TAIL_S, 1..250usize, 400..1500i64);
    prop::collection::vec(job, 1..5).prop_map(|jobs| {
        let one = |(index, (begin, length, cpu_permille)): (usize, (usize, usize, i64))| Job {
            life: begin..(begin + length).min(SECONDS - TAIL_S),
            cpu_permille,
            has_gpu: index == 0,
        };
        jobs.into_iter().enumerate().map(one).collect()
    })
}

fn plan() -> impl Strategy<Value = Plan> {
    let meter = (any::<bool>(), prop::sample::select(vec![1, 2, 5, 10]), 0..10usize, any::<bool>());
    let faults = (
        spans(3, 1..100),
        spans(2, 1..50),
        spans(2, 2..100),
        prop::collection::vec((30..SECONDS - 40, prop::sample::select(vec![1i64, 65_535])), 0..3),
        prop::collection::vec(40..SECONDS - 60, 0..2),
    );
    (jobs(), meter, any::<bool>(), faults).prop_map(
        |(jobs, (counts, period_s, lag_s, has_package), idle_known, faults)| {
            let (gaps, package_gaps, pauses, mut glitches, restarts) = faults;
            // A long window with a short job in it passes for one at rest.
            let idle_known = idle_known || period_s > 2;
            glitches.sort();
            // Two wrong readings one after the other are more than one wrong reading.
            glitches.dedup_by(|one, other| one.0 < other.0 + 50);
            let far = |second: &usize| glitches.iter().all(|(glitch, _)| glitch.abs_diff(*second) > 60);
            // A wrong reading right after a counter began again, or after a gap, is more than one fault, too.
            let silent: Vec<Range<usize>> = gaps.iter().chain(&pauses).cloned().collect();
            let is_read =
                |second: &usize| !silent.iter().any(|gap| gap.start < second + 60 && *second < gap.end + 60);
            // The processors' meter covers what a restarting counter loses: two trusted meters.
            let restarts =
                restarts.into_iter().filter(far).filter(is_read).filter(|_| counts && !has_package).collect();
            // Without meters of parts a lag is undetectable.
            let lag_s = if has_package { lag_s } else { 0 };
            // The processors' meter covers the power in a long gap, and then two meters are trusted.
            let short = |gap: Range<usize>| gap.start..gap.end.min(gap.start + 45);
            let gaps = gaps.into_iter().map(|gap| if counts { gap } else { short(gap) }).collect();
            let pauses = pauses.into_iter().map(|gap| if counts { gap } else { short(gap) }).collect();
            let package_gaps = if has_package { package_gaps } else { Vec::new() };
            Plan {
                jobs,
                counts,
                period_s,
                lag_s,
                has_package,
                idle_known,
                gaps,
                package_gaps,
                pauses,
                glitches,
                restarts,
            }
        },
    )
}

/// When anything was wrong, in seconds, with the readings on both sides.
fn touched(plan: &Plan) -> Vec<Range<usize>> {
    // A meter that lags shows later what happened before.
    let around = 2 * plan.period_s + plan.lag_s + 2;
    let spans = plan.gaps.iter().chain(&plan.package_gaps).chain(&plan.pauses).cloned();
    let moments = plan.glitches.iter().map(|&(at, _)| at).chain(plan.restarts.iter().copied());
    let moments = moments.map(|at| at..at + 1);
    let mut touched: Vec<Range<usize>> =
        spans.chain(moments).map(|span| span.start.saturating_sub(around)..span.end + around).collect();
    // One fault may delay the end of another.
    touched.sort_by_key(|span| span.start);
    touched
}

fn check_marks(plan: &Plan, booked: &Booked) -> Result<(), TestCaseError> {
    let touched = touched(plan);
    for closed in &booked.windows {
        let seconds = closed.begin_ns / SECOND..closed.end_ns / SECOND + 1;
        let is_touched =
            touched.iter().any(|span| (span.start as i64) < seconds.end && seconds.start < span.end as i64);
        let unassigned = closed.lines.contains_key(&Who::Unassigned);
        prop_assert!(is_touched || closed.fault == Fault::None, "{closed:?}");
        prop_assert!(is_touched || !unassigned, "{closed:?}");
        prop_assert!(!unassigned || closed.fault >= Fault::Lost, "unassigned and not marked: {closed:?}");
    }
    Ok(())
}

/// Whether a figure of a job is marked: as a lower bound, or as one across readings of power that are missing. A
/// counter has counted meanwhile, so a figure across its missing readings has to be right.
fn is_marked(plan: &Plan, booked: &Booked, slot: usize) -> bool {
    let life = &plan.jobs[slot].life;
    let (begin_ns, end_ns) = (at_ns(life.start * STEPS), at_ns(life.end * STEPS));
    let overlaps = |closed: &&Closed| closed.begin_ns < end_ns && begin_ns < closed.end_ns;
    let worst = if plan.counts { Fault::Lost } else { Fault::Bridged };
    let is_bad = |closed: &Closed| closed.fault >= worst || closed.kind == QualityKind::LowerBound;
    booked.windows.iter().filter(overlaps).any(is_bad) || booked.short.contains_key(&Who::Job(slot as u32))
}

fn check_jobs(plan: &Plan, booked: &Booked, truth: &Truth) -> Result<(), TestCaseError> {
    let all_mw: i64 = plan.jobs.iter().map(power_of).sum();
    for (slot, job) in plan.jobs.iter().enumerate() {
        prop_assert!(!booked.unsettled.contains(&(slot as u32)), "job {} is not settled", slot);
        if is_marked(plan, booked, slot) {
            continue;
        }
        let end = truth.jobs_cpu_uj[slot].len() - 1;
        let true_uj = truth.jobs_cpu_uj[slot][end] + truth.jobs_gpu_uj[slot][end];
        let found_uj = booked.lines_uj.get(&Who::Job(slot as u32)).copied().unwrap_or(0);
        // Jobs are read every second; power is read now and then, and not counted. A meter that lags is wrong for
        // that time whenever a job comes or goes.
        let power_s = if plan.counts { 0 } else { 2 * plan.period_s + 2 };
        let lag_s = if plan.lag_s > 0 { plan.lag_s + plan.period_s } else { 0 };
        let slack_s = (power_s + lag_s) as i64;
        let slack_uj = true_uj / 50 + power_of(job) * 1000 + all_mw * 1000 * slack_s;
        prop_assert!(
            (found_uj - true_uj).abs() <= slack_uj,
            "job {} used {} and is charged {}, more than {} apart",
            slot,
            true_uj,
            found_uj,
            slack_uj
        );
    }
    Ok(())
}

/// What a job draws while it runs.
fn power_of(job: &Job) -> i64 {
    job.cpu_permille * CPU_BUSY_MW / 1000 + if job.has_gpu { GPU_BUSY_MW } else { 0 }
}

fn check(plan: &Plan) -> Result<(), TestCaseError> {
    let (booked, trusted, truth) = Machine::new(plan).run();
    let sum_uj: i64 = booked.lines_uj.values().sum();
    // Where several faults make one long gap, the processors' meter covers the unread power.
    if plan.counts || booked.windows.iter().all(|closed| closed.source == MeteredBy::Node("bmc".into())) {
        prop_assert_eq!(sum_uj, trusted.total_uj());
    }
    check_marks(plan, &booked)?;
    check_jobs(plan, &booked, &truth)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever meters, jobs and the sampler do: jobs + system + idle + unassigned is what the trusted meter counted,
    /// every figure that a fault touches is marked, and every other one is right.
    #[test]
    fn energy_adds_up_under_faults(plan in plan()) {
        check(&plan)?;
    }
}

/// Power is read every second except in a gap.
fn power_with_gap(jobs: Vec<Job>, gap: Range<usize>) -> Plan {
    Plan {
        jobs,
        counts: false,
        period_s: 1,
        lag_s: 0,
        has_package: false,
        idle_known: false,
        gaps: vec![gap],
        package_gaps: Vec::new(),
        pauses: Vec::new(),
        glitches: Vec::new(),
        restarts: Vec::new(),
    }
}

/// A job that computed on a GPU while power was not read left a claim that no later reading shows, and all that the
/// next job used was taken for it.
#[test]
fn what_was_used_while_power_was_not_read_is_not_taken_from_the_next_job() {
    let before = Job { life: 54..60, cpu_permille: 400, has_gpu: true };
    let after = Job { life: 110..144, cpu_permille: 1234, has_gpu: false };
    let after_uj = power_of(&after) * 1000 * after.life.len() as i64;
    let plan = power_with_gap(vec![before, after], 52..97);
    check(&plan).unwrap();
    let (booked, ..) = Machine::new(&plan).run();
    assert_eq!(booked.lines_uj[&Who::Job(0)], GPU_BUSY_MW * 1000 * 6, "the card's own counter is right");
    let found_uj = booked.lines_uj[&Who::Job(1)];
    assert!((found_uj - after_uj).abs() <= after_uj / 50, "used {after_uj} and is charged {found_uj}");
}

/// The window ended between two readings of the node's meter, where the processors were last read, and the first job
/// was charged for a part of what the second one used after it.
#[test]
fn a_job_is_not_charged_for_the_next_one_where_the_processors_are_read_late() {
    let after = Job { life: 228..229, cpu_permille: 400, has_gpu: true };
    let before = Job { life: 81..227, cpu_permille: 400, has_gpu: false };
    let plan = Plan {
        counts: true,
        period_s: 5,
        has_package: true,
        idle_known: true,
        gaps: Vec::new(),
        package_gaps: std::iter::once(229..232).collect(),
        ..power_with_gap(vec![after, before], 0..0)
    };
    check(&plan).unwrap();
}

/// The processors were away until after the node's meter was last read, and what the first job used after that was
/// shared with the second one.
#[test]
fn a_window_does_not_end_while_the_processors_are_away() {
    let second = Job { life: 136..166, cpu_permille: 1321, has_gpu: true };
    let first = Job { life: 131..146, cpu_permille: 400, has_gpu: false };
    let plan = Plan {
        counts: true,
        has_package: true,
        package_gaps: std::iter::once(97..134).collect(),
        ..power_with_gap(vec![second, first], 133..169)
    };
    check(&plan).unwrap();
}

/// Idle power was learned with the processors' meter, and taken for unknown when only the node's was read.
#[test]
fn idle_power_stays_known_while_the_processors_are_away() {
    let first = Job { life: 25..26, cpu_permille: 400, has_gpu: true };
    let second = Job { life: 171..191, cpu_permille: 400, has_gpu: false };
    let plan = Plan {
        counts: true,
        has_package: true,
        gaps: Vec::new(),
        package_gaps: std::iter::once(212..251).collect(),
        pauses: std::iter::once(155..212).collect(),
        ..power_with_gap(vec![first, second], 0..0)
    };
    check(&plan).unwrap();
}

#[test]
fn a_meter_that_lags_still_shows_after_a_gap_what_it_was_behind_by() {
    let job = Job { life: 60..200, cpu_permille: 1000, has_gpu: true };
    let used_uj = power_of(&job) * 1000 * job.life.len() as i64;
    let plan = Plan { lag_s: 5, has_package: true, ..power_with_gap(vec![job], 90..120) };
    check(&plan).unwrap();
    let (booked, ..) = Machine::new(&plan).run();
    let found_uj = booked.lines_uj[&Who::Job(0)];
    assert_eq!(booked.short, BTreeMap::new());
    assert!((found_uj - used_uj).abs() <= used_uj / 50, "used {used_uj} and is charged {found_uj}");
}

/// What the node's meter was behind by had waited for as long as the gap, and all claims were paid from idle energy.
/// When the first job ended, what the meter showed late was taken for idle power of the rest, which left less idle
/// power for the processors, and the second job paid for that.
#[test]
fn a_meter_that_lags_is_still_behind_after_a_gap_of_the_processors() {
    let first = Job { life: 36..180, cpu_permille: 400, has_gpu: true };
    let second = Job { life: 194..370, cpu_permille: 400, has_gpu: false };
    let plan = Plan {
        counts: true,
        period_s: 5,
        lag_s: 3,
        has_package: true,
        idle_known: true,
        gaps: Vec::new(),
        package_gaps: std::iter::once(41..61).collect(),
        ..power_with_gap(vec![first, second], 0..0)
    };
    check(&plan).unwrap();
}

/// What the meter of the node showed late after the first job was taken for idle power of the rest in the only window
/// between the two jobs, although no meter was ever away.
#[test]
fn what_a_meter_shows_late_is_not_idle_power() {
    let first = Job { life: 25..130, cpu_permille: 400, has_gpu: true };
    let second = Job { life: 139..331, cpu_permille: 400, has_gpu: false };
    let plan = Plan {
        counts: true,
        period_s: 10,
        lag_s: 4,
        has_package: true,
        idle_known: true,
        gaps: Vec::new(),
        ..power_with_gap(vec![first, second], 0..0)
    };
    check(&plan).unwrap();
}

#[test]
fn a_counter_that_lags_is_still_behind_after_a_long_gap() {
    let first = Job { life: 25..130, cpu_permille: 400, has_gpu: true };
    let second = Job { life: 147..333, cpu_permille: 400, has_gpu: false };
    let plan = Plan {
        counts: true,
        period_s: 5,
        lag_s: 6,
        has_package: true,
        idle_known: true,
        ..power_with_gap(vec![first, second], 64..121)
    };
    check(&plan).unwrap();
}

/// The sampler was away for a minute, and the first reading of the node's meter after that was wrong. In the window of
/// the next one the first job used more than the mean of the gap. That passed for a lag of the meter, and what the
/// second job used was paid late, in part never.
#[test]
fn what_a_counter_reports_late_of_a_long_gap_is_not_a_lag() {
    let first = Job { life: 102..165, cpu_permille: 945, has_gpu: true };
    let second = Job { life: 218..315, cpu_permille: 400, has_gpu: false };
    let plan = Plan {
        counts: true,
        period_s: 10,
        has_package: true,
        idle_known: true,
        gaps: Vec::new(),
        pauses: std::iter::once(60..124).collect(),
        glitches: vec![(51, 1)],
        ..power_with_gap(vec![first, second], 0..0)
    };
    check(&plan).unwrap();
}

/// Nothing ran before the gap, so that the meter lags shows only in what it has counted by the end of the gap: less than
/// the parts and the idle power of the rest.
#[test]
fn a_counter_that_is_behind_at_the_end_of_a_long_gap_is_seen_to_lag() {
    let first = Job { life: 46..104, cpu_permille: 400, has_gpu: true };
    let second = Job { life: 121..317, cpu_permille: 400, has_gpu: false };
    let plan = Plan {
        counts: true,
        period_s: 5,
        lag_s: 6,
        has_package: true,
        idle_known: true,
        pauses: std::iter::once(30..59).collect(),
        glitches: vec![(30, 1)],
        ..power_with_gap(vec![first, second], 64..88)
    };
    check(&plan).unwrap();
}
