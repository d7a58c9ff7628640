use super::*;
use proptest::prelude::*;

const SECOND_NS: i64 = 1_000_000_000;

fn claim(slot: u32, active: u64) -> Claim {
    Claim { who: Some(slot), active, held: 1, activity: Activity::Active }
}

fn without_idle_power() -> GpuLedger {
    let mut ledger = GpuLedger::default();
    ledger.idle.configured_mw = Some(0);
    ledger
}

fn look(at_s: i64, power_mw: i64, claims: &[Claim]) -> Look<'_> {
    let utilization = if claims.iter().any(|claim| claim.active > 0) { 1000 } else { 0 };
    Look {
        at_ns: at_s * SECOND_NS,
        power_mw,
        power_limit_mw: MISSING,
        utilization,
        pass_ns: None,
        counter_uj: MISSING,
        use_ns: None,
        claims,
        unseen: false,
        slices: 0,
        joined: &[],
        gap_ns: 60 * SECOND_NS,
    }
}

#[test]
fn two_jobs_on_a_300_watt_gpu_add_up_to_300_watts() {
    let mut ledger = without_idle_power();
    for at_s in 0..=10 {
        ledger.look(&look(at_s, 300_000, &[claim(1, 600), claim(2, 300)]));
    }
    let (one, two) = (ledger.line(Some(1)), ledger.line(Some(2)));
    assert_eq!((one.active_uj, two.active_uj), (2_000_000_000, 1_000_000_000));
    assert_eq!(one.total_uj() + two.total_uj(), 3_000_000_000);
    assert!(one.shared && one.counted_uj == 0);
}

#[test]
fn the_holder_of_an_idle_gpu_is_charged_all_of_it_as_idle() {
    let mut ledger = GpuLedger::default();
    for at_s in 0..=10 {
        ledger.look(&look(at_s, 110_000, &[claim(7, 0)]));
    }
    let line = ledger.line(Some(7));
    assert_eq!((line.active_uj, line.idle_uj), (0, 1_100_000_000));
    assert!(!line.shared);
}

#[test]
fn a_gpu_without_holders_is_charged_to_no_job() {
    let mut ledger = GpuLedger::default();
    for at_s in 0..=10 {
        ledger.look(&look(at_s, 70_000, &[]));
    }
    assert_eq!(ledger.line(None).idle_uj, 700_000_000);
    assert_eq!(ledger.idle_mw(), Some(70_000));
}

#[test]
fn the_idle_part_of_a_busy_gpu_goes_to_the_holders() {
    let mut ledger = GpuLedger::default();
    ledger.look(&look(0, 100_000, &[]));
    ledger.look(&look(1, 100_000, &[]));
    for at_s in 1..=11 {
        ledger.look(&look(at_s, 400_000, &[claim(1, 500), claim(2, 0)]));
    }
    let (busy, holder) = (ledger.line(Some(1)), ledger.line(Some(2)));
    // The first second of the ten leads from 100 to 100 W: a look at the same moment adds nothing.
    assert_eq!(holder.active_uj, 0);
    assert_eq!(holder.idle_uj, busy.idle_uj);
    assert_eq!(busy.idle_uj + holder.idle_uj, 1_000_000_000);
    assert_eq!(busy.total_uj() + holder.total_uj() + ledger.line(None).total_uj(), ledger.closed_uj());
}

#[test]
fn the_counter_corrects_the_integral_and_a_pass_decides_whose_it_was() {
    let mut ledger = without_idle_power();
    let at = |at_s: i64, pass_s: i64, counter_uj: i64, claims: &'static [Claim]| Look {
        pass_ns: Some(pass_s * SECOND_NS),
        use_ns: Some(pass_s * SECOND_NS),
        counter_uj,
        ..look(at_s, 300_000, claims)
    };
    static BEFORE: [Claim; 2] = [
        Claim { who: Some(1), active: 500, held: 1, activity: Activity::Active },
        Claim { who: Some(2), active: 500, held: 1, activity: Activity::Active },
    ];
    static AFTER: [Claim; 2] = [
        Claim { who: Some(1), active: 900, held: 1, activity: Activity::Active },
        Claim { who: Some(2), active: 300, held: 1, activity: Activity::Active },
    ];
    ledger.look(&at(1, 1, 0, &BEFORE));
    for at_s in 2..=5 {
        ledger.look(&at(at_s, 1, 0, &BEFORE));
    }
    assert_eq!(ledger.line(Some(1)).total_uj(), 600_000_000, "until the pass, half of 300 W for 4 s");
    ledger.look(&at(6, 6, 1_600_000_000, &AFTER));
    assert_eq!(ledger.line(Some(1)).total_uj(), 1_200_000_000);
    assert_eq!(ledger.line(Some(2)).total_uj(), 400_000_000);
    assert_eq!(ledger.line(Some(1)).counted_uj, 1_200_000_000);
    // A reloaded driver begins at 0: the window is known by its power alone.
    ledger.look(&at(7, 7, 10, &AFTER));
    assert_eq!(ledger.line(Some(1)).total_uj(), 1_200_000_000 + 225_000_000);
}

#[test]
fn a_job_that_leaves_after_its_process_ended_has_paid_for_it() {
    let mut ledger = GpuLedger::default();
    let busy = [
        Claim { who: Some(1), active: 90, held: 1, activity: Activity::Active },
        Claim { who: Some(2), active: 0, held: 1, activity: Activity::Active },
    ];
    let over = [
        Claim { who: Some(1), active: 0, held: 1, activity: Activity::Active },
        Claim { who: Some(2), active: 0, held: 1, activity: Activity::Active },
    ];
    // One pass at the first second, and none since.
    let (pass_ns, use_ns) = (Some(SECOND_NS), Some(SECOND_NS));
    for at_s in 1..=10 {
        ledger.look(&Look { pass_ns, use_ns, ..look(at_s, 300_000, &busy) });
    }
    ledger.look(&Look { pass_ns, use_ns, ..look(11, 100_000, &over) });
    let line = ledger.leave(1);
    // Nine seconds of 300 W and one that falls to 100 W, of which 100 W are idle all the time.
    assert!(line.active_uj > 1_850_000_000, "{} of 1,900 J", line.active_uj / 1_000_000);
}

#[test]
fn a_gap_is_not_bridged() {
    let mut ledger = GpuLedger::default();
    ledger.look(&look(0, 100_000, &[claim(1, 0)]));
    ledger.look(&look(3600, 100_000, &[claim(1, 0)]));
    ledger.look(&look(3601, MISSING, &[claim(1, 0)]));
    ledger.look(&look(3602, 100_000, &[claim(1, 0)]));
    ledger.look(&look(3603, 100_000, &[claim(1, 0)]));
    assert_eq!(ledger.line(Some(1)).idle_uj, 100_000_000);
}

#[test]
fn parts_of_a_gpu_pay_by_their_slices() {
    let mut ledger = GpuLedger::default();
    let claims = [
        Claim { who: Some(1), active: 3, held: 3, activity: Activity::Active },
        Claim { who: Some(2), active: 0, held: 1, activity: Activity::Active },
    ];
    for at_s in 0..=7 {
        ledger.look(&Look { slices: 7, utilization: 0, ..look(at_s, 70_000, &[]) });
    }
    for at_s in 7..=17 {
        ledger.look(&Look { slices: 7, ..look(at_s, 70_000, &claims) });
    }
    let (one, two) = (ledger.line(Some(1)), ledger.line(Some(2)));
    // A window's last microjoule is assigned.
    assert!(one.idle_uj.abs_diff(300_000_000) < 20 && two.idle_uj.abs_diff(100_000_000) < 20);
    let unassigned = ledger.line(None).total_uj();
    assert_eq!(one.total_uj() + two.total_uj() + unassigned, ledger.closed_uj());
}

#[derive(Clone, Debug)]
enum Event {
    Look {
        after_ms: i64,
        power_mw: i64,
        pass: Option<Pass>,
        use_read: bool,
        unseen: bool,
        active: Vec<u64>,
        held: Vec<bool>,
        reported: Vec<Activity>,
    },
    Leave(u32),
    Pause,
}

/// An expensive reading.
#[derive(Clone, Copy, Debug)]
struct Pass {
    /// The counter does not agree with the samples of power: how much of what they say it grew by, and what besides.
    percent: i64,
    besides_uj: i64,
    reading: Reading,
    /// It was there at the look before, and is taken over only now.
    is_late: bool,
}

/// What the counter shows when it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    Right,
    /// It could not be read.
    Failed,
    /// The driver was reloaded: it begins at 0.
    NewDriver,
    /// What no GPU can do, this time alone: it shows nothing, or a lot.
    Zero,
    Jump,
    /// It is not updated yet: it shows what it showed when it was last right.
    Behind,
}

fn activity() -> impl Strategy<Value = Activity> {
    prop_oneof![4 => Just(Activity::Active), 1 => Just(Activity::Idle), 1 => Just(Activity::IdleButEnded)]
}

fn event() -> impl Strategy<Value = Event> {
    let reading = prop_oneof![
        14 => Just(Reading::Right),
        4 => Just(Reading::Failed),
        1 => Just(Reading::NewDriver),
        1 => Just(Reading::Zero),
        1 => Just(Reading::Jump),
        2 => Just(Reading::Behind),
    ];
    let pass = (80i64..130, 0i64..500_000_000, reading, prop::bool::weighted(0.2))
        .prop_map(|(percent, besides_uj, reading, is_late)| Pass { percent, besides_uj, reading, is_late });
    let look =
        (
            20i64..70_000,
            prop_oneof![9 => 0i64..700_000, 1 => Just(MISSING)],
            prop::option::of(pass),
            any::<bool>(),
            prop::bool::weighted(0.1),
            prop::collection::vec(0u64..1000, 4),
            prop::collection::vec(any::<bool>(), 4),
            prop::collection::vec(activity(), 4),
        )
            .prop_map(|(after_ms, power_mw, pass, use_read, unseen, active, held, reported)| {
                Event::Look { after_ms, power_mw, pass, use_read, unseen, active, held, reported }
            });
    prop_oneof![12 => look, 1 => (0u32..4).prop_map(Event::Leave), 1 => Just(Event::Pause)]
}

/// What the GPU used while it was read: by its counter between two right readings of it, else by its power.
/// Knows nothing of who used it, and which readings are right.
struct Truth {
    /// All that is over: up to the last right reading of the counter, or the last pause.
    settled_uj: i64,
    /// The counter itself, and what it showed when it was last right.
    counter_uj: i64,
    right_uj: Option<i64>,
    /// Readings since then that were not, and whether it was the first one of a driver.
    wrong: u32,
    is_new_driver: bool,
    /// By power since then: in windows that are over, and in the open one.
    closed_uj: i64,
    open_uj: i64,
    last: Option<(i64, i64)>,
}

impl Default for Truth {
    fn default() -> Truth {
        Truth {
            settled_uj: 0,
            counter_uj: 5_000_000_000_000_000,
            right_uj: None,
            wrong: 0,
            is_new_driver: false,
            closed_uj: 0,
            open_uj: 0,
            last: None,
        }
    }
}

impl Truth {
    /// A look; what the counter shows if it was read in between.
    fn power(&mut self, at_ns: i64, power_mw: i64, pass: Option<(i64, Pass)>) -> Option<i64> {
        let mut after_pass_uj = 0;
        if let Some((last_ns, last_mw)) = self.last.filter(|&(_, mw)| mw != MISSING && power_mw != MISSING) {
            let energy = |from_ns: i64, to_ns: i64| {
                let at = |ns: i64| {
                    let part = (ns - last_ns).max(0) as f64 / (at_ns - last_ns) as f64;
                    last_mw as f64 + (power_mw - last_mw) as f64 * part
                };
                ((at(from_ns) + at(to_ns)) / 2.0 * (to_ns - from_ns) as f64 / 1e6) as i64
            };
            let cut_ns = pass.map_or(at_ns, |(pass_ns, _)| pass_ns);
            self.open_uj += energy(last_ns, cut_ns.max(last_ns));
            after_pass_uj = energy(cut_ns, at_ns);
        }
        let is_first = self.last.is_none();
        self.last = Some((at_ns, power_mw));
        // A reading from before the first look does not cover the observed time.
        let (_, pass) = pass.filter(|(pass_ns, _)| !is_first || at_ns - pass_ns < SAME_PASS_NS)?;
        let shown_uj = self.read(pass);
        self.open_uj = after_pass_uj;
        shown_uj
    }

    fn read(&mut self, pass: Pass) -> Option<i64> {
        self.counter_uj += self.open_uj * pass.percent / 100 + pass.besides_uj + 1;
        self.closed_uj += self.open_uj;
        self.open_uj = 0;
        // Three wrong values cannot be detected, and a new counter must grow once first. A counter with only a few
        // joules cannot be distinguished from a new one, either.
        let is_high = self.counter_uj > 1_000_000_000_000;
        let can_be_wrong = is_high && self.wrong < 2 && !self.is_new_driver && self.right_uj.is_some();
        match pass.reading {
            Reading::Failed => return None,
            Reading::NewDriver if is_high => {
                (self.counter_uj, self.is_new_driver) = (0, true);
                self.settled_uj += std::mem::take(&mut self.closed_uj);
                (self.right_uj, self.wrong) = (Some(0), 0);
                return Some(0);
            }
            Reading::Zero | Reading::Jump | Reading::Behind if can_be_wrong => {
                self.wrong += 1;
                return match pass.reading {
                    Reading::Zero => Some(0),
                    // Never the same twice: what two readings agree on is believed.
                    Reading::Jump => Some(i64::from(self.wrong + 1) * self.counter_uj + 5_000_000_000_000),
                    _ => self.right_uj,
                };
            }
            _ => {}
        }
        let used_uj = self.right_uj.map_or(self.closed_uj, |right_uj| self.counter_uj - right_uj);
        self.settled_uj += used_uj;
        (self.right_uj, self.wrong, self.is_new_driver, self.closed_uj) =
            (Some(self.counter_uj), 0, false, 0);
        self.right_uj
    }

    fn pause(&mut self) {
        self.settled_uj += self.closed_uj + self.open_uj;
        let (settled_uj, counter_uj) = (self.settled_uj, self.counter_uj);
        *self = Truth { settled_uj, counter_uj, ..Truth::default() };
    }
}

/// The lines against each other, and against what is known of the GPU.
fn check_sums(ledger: &GpuLedger, truth: &Truth, left_uj: u64) -> Result<(), TestCaseError> {
    let lines: u64 = ledger.lines.values().map(Line::total_uj).sum();
    // Those who left in the open window have paid in advance, or more than there was.
    prop_assert_eq!(lines + left_uj, ledger.closed_uj() + ledger.window.paid_uj + ledger.overdraft_uj);
    // Whole milliwatts in the middle of a span: each look may be wrong by one of them for its time.
    let closed_uj = ledger.closed_uj() as i64;
    prop_assert!(
        closed_uj.abs_diff(truth.settled_uj + truth.closed_uj) < 5_000_000,
        "charged {} of {}",
        closed_uj,
        truth.settled_uj + truth.closed_uj
    );
    // At any moment all lines together are the best that is known of the GPU: its counter up to its
    // last reading and its power since then.
    let open: u64 = ledger.open.values().map(Line::total_uj).sum();
    let owed_uj = ledger.window.paid_uj + ledger.overdraft_uj;
    prop_assert_eq!(open, ledger.window.integral_uj.saturating_sub(owed_uj));
    let overpaid_uj = owed_uj.saturating_sub(ledger.window.integral_uj);
    let all_uj = (lines + open + left_uj - overpaid_uj) as i64;
    let known_uj = truth.settled_uj + truth.closed_uj + truth.open_uj;
    prop_assert!(all_uj.abs_diff(known_uj) < 5_000_000, "{} of {}", all_uj, known_uj);
    Ok(())
}

proptest! {
    #[test]
    fn what_is_charged_is_what_the_gpu_used(events in prop::collection::vec(event(), 1..60)) {
        let mut ledger = GpuLedger::default();
        let mut truth = Truth::default();
        let (mut at_ns, mut pass_ns, mut reported_uj) = (1, 1, MISSING);
        let (mut left_uj, mut gone) = (0u64, Vec::new());
        let (mut use_ns, mut looks) = (1, 0);
        for event in events {
            match event {
                Event::Look { after_ms, power_mw, pass, use_read, unseen, active, held, reported } => {
                    let last_ns = at_ns;
                    at_ns += after_ms * 1_000_000;
                    if after_ms > 60_000 {
                        truth.pause();
                    }
                    looks = if truth.last.is_some() { looks + 1 } else { 0 };
                    let mut passed = None;
                    if let Some(pass) = pass.filter(|_| after_ms * 700_000 > SAME_PASS_NS) {
                        let late_ns = last_ns - 10_000_000;
                        let is_late = pass.is_late && looks > 1 && late_ns > pass_ns + SAME_PASS_NS;
                        pass_ns = if is_late { late_ns } else { at_ns - after_ms * 300_000 };
                        passed = Some((pass_ns, pass));
                    }
                    let shown_uj = truth.power(at_ns, power_mw, passed);
                    if passed.is_some() {
                        reported_uj = shown_uj.unwrap_or(MISSING);
                    }
                    let claims: Vec<Claim> = (0u32..4)
                        .filter(|slot| !gone.contains(slot))
                        .map(|slot| Claim {
                            who: (slot < 3).then_some(slot),
                            active: active[slot as usize],
                            held: u64::from(held[slot as usize]),
                            activity: reported[slot as usize],
                        })
                        .collect();
                    if use_read {
                        use_ns = at_ns - after_ms * 100_000;
                    }
                    ledger.look(&Look {
                        utilization: 5,
                        pass_ns: Some(pass_ns),
                        counter_uj: reported_uj,
                        use_ns: Some(use_ns),
                        unseen,
                        at_ns,
                        ..look(0, power_mw, &claims)
                    });
                }
                Event::Leave(slot) if slot < 3 && !gone.contains(&slot) => {
                    left_uj += ledger.leave(slot).total_uj();
                    gone.push(slot);
                }
                Event::Leave(_) => {}
                Event::Pause => {
                    ledger.pause();
                    truth.pause();
                }
            }
            check_sums(&ledger, &truth, left_uj)?;
        }
    }
}

#[test]
fn what_a_running_job_is_charged_does_not_depend_on_when_it_is_asked() {
    // The counter is read every 16 s, use every 4 s; the list of processes is 3 s late. The GPU computes
    // for the job alone, from the fifth second on.
    let mut ledger = GpuLedger::default();
    for at_s in 1..=60i64 {
        let busy = at_s > 5;
        let listed = at_s > 8;
        let power_mw = if busy { 700_000 } else { 100_000 };
        let used_uj = |at_s: i64| (at_s.min(5) * 100 + (at_s - 5).max(0) * 700) * 1_000_000;
        let (pass_s, use_s) = ((at_s - 1) / 16 * 16 + 1, (at_s - 1) / 4 * 4 + 1);
        // A process that was absent when use was last read is not in it, and counts as one of a thousand.
        let active = if !listed {
            0
        } else if use_s > 6 {
            900
        } else {
            1
        };
        let mut claims = vec![claim(1, active)];
        if busy && !listed {
            claims.insert(0, Claim { who: None, active: 950, held: 0, activity: Activity::Active });
        }
        ledger.look(&Look {
            utilization: if busy { 950 } else { 0 },
            pass_ns: Some(pass_s * SECOND_NS),
            counter_uj: used_uj(pass_s),
            use_ns: Some(use_s * SECOND_NS),
            unseen: busy && !listed,
            ..look(at_s, power_mw, &claims)
        });
        if at_s > 8 {
            let (charged_uj, truth_uj) = (ledger.line(Some(1)).total_uj() as i64, used_uj(at_s) - used_uj(1));
            let error = (charged_uj - truth_uj) as f64 / truth_uj as f64;
            // A second that leads from 100 to 700 W is half of it.
            assert!(error.abs() < 0.16 && (at_s < 17 || error.abs() < 0.005), "{at_s}: {error}");
        }
    }
}

#[test]
fn readings_of_use_count_by_what_the_gpu_drew_in_their_time() {
    let mut ledger = without_idle_power();
    // Job 1 alone for 9 s at 100 W, then both by halves for 1 s at 600 W: one window of the counter.
    let at = |at_s: i64, power_mw: i64, use_s: i64, pass_s: i64, claims: &'static [Claim]| Look {
        pass_ns: Some(pass_s * SECOND_NS),
        counter_uj: pass_s * SECOND_NS,
        use_ns: Some(use_s * SECOND_NS),
        ..look(at_s, power_mw, claims)
    };
    static ALONE: [Claim; 1] = [Claim { who: Some(1), active: 10, held: 1, activity: Activity::Active }];
    static BOTH: [Claim; 2] = [
        Claim { who: Some(1), active: 500, held: 1, activity: Activity::Active },
        Claim { who: Some(2), active: 500, held: 1, activity: Activity::Active },
    ];
    ledger.look(&at(1, 100_000, 1, 1, &ALONE));
    ledger.look(&at(10, 100_000, 10, 1, &ALONE));
    ledger.look(&Look { at_ns: 10 * SECOND_NS + 1, ..at(10, 600_000, 10, 1, &ALONE) });
    ledger.look(&at(11, 600_000, 11, 1, &BOTH));
    assert_eq!(ledger.line(Some(2)).total_uj() / 1_000_000, 300);
    ledger.look(&Look { counter_uj: 4_000_000_000, ..at(12, 600_000, 12, 12, &BOTH) });
    let (one, two) = (ledger.line(Some(1)).total_uj(), ledger.line(Some(2)).total_uj());
    assert_eq!(one + two, 3_000_000_000, "what the counter grew by");
    assert!((two as f64 / 3e9 - 600.0 / 2100.0).abs() < 0.001, "{two}");
}

#[test]
fn an_ended_job_pays_for_seen_computing_that_the_next_reading_does_not_list() {
    let mut ledger = GpuLedger::default();
    ledger.idle.configured_mw = Some(100_000);
    // Use by process is read every five seconds; a job computes from the second to the fourth.
    for at_s in 0..=10 {
        let busy = (2..=4).contains(&at_s);
        let claims = [claim(1, if busy { 900 } else { 0 })];
        let read_ns = at_s / 5 * 5 * SECOND_NS;
        ledger.look(&Look {
            pass_ns: Some(0),
            counter_uj: 0,
            use_ns: Some(read_ns),
            ..look(at_s, if busy { 700_000 } else { 100_000 }, &claims)
        });
    }
    let line = ledger.line(Some(1));
    // Two seconds at 700 W, and up and down on straight lines.
    assert_eq!((line.active_uj, line.idle_uj), (1_800_000_000, 1_000_000_000));
}

#[test]
fn a_counter_that_could_not_be_read_once_is_not_counted_twice() {
    let mut ledger = without_idle_power();
    let claims = [claim(1, 500)];
    let at = |at_s: i64, counter_uj: i64| Look {
        pass_ns: Some(at_s * SECOND_NS),
        counter_uj,
        ..look(at_s, 300_000, &claims)
    };
    for (at_s, counter_uj) in [(1, 0), (2, 310_000_000), (3, MISSING), (4, 930_000_000)] {
        ledger.look(&at(at_s, counter_uj));
    }
    assert_eq!(ledger.line(Some(1)).total_uj(), 930_000_000);
}

/// Some time before a look at a GPU that is as it should be.
#[derive(Clone, Copy, Debug)]
struct Honest {
    after_ms: i64,
    /// What it really draws in that time, and what the sample of its power says: bursts come and go in between.
    drawn_mw: i64,
    sampled_mw: i64,
    /// The counter is read.
    is_pass: bool,
}

fn honest() -> impl Strategy<Value = Honest> {
    let sampled_mw = prop_oneof![20 => 0i64..900_000, 1 => Just(MISSING)];
    (900i64..30_000, 1_000i64..900_000, sampled_mw, any::<bool>()).prop_map(
        |(after_ms, drawn_mw, sampled_mw, is_pass)| Honest { after_ms, drawn_mw, sampled_mw, is_pass },
    )
}

proptest! {
    /// Whatever samples of power say. The counter is updated in steps, and late.
    #[test]
    fn an_honest_counter_is_believed_to_the_microjoule(
        looks in prop::collection::vec(honest(), 2..40),
        step_ms in 1i64..400,
        late_ms in 0i64..400,
        limit_mw in prop_oneof![Just(700_000i64), Just(MISSING)],
    ) {
        // What it has used by each look, in milliseconds and microjoules (mW × ms).
        let mut used = vec![(0i64, 0i64)];
        let counter_uj = |used: &[(i64, i64)], at_ms: i64| {
            let shown_ms = ((at_ms - late_ms) / step_ms * step_ms).max(0);
            let next = used.partition_point(|&(ms, _)| ms <= shown_ms).min(used.len() - 1).max(1);
            let ((from_ms, from_uj), (to_ms, to_uj)) = (used[next - 1], used[next]);
            from_uj + (to_uj - from_uj) * (shown_ms - from_ms) / (to_ms - from_ms)
        };
        let mut ledger = GpuLedger::default();
        let (mut pass, mut first_uj) = ((0, MISSING), None);
        for look_at in looks {
            let (last_ms, last_uj) = used[used.len() - 1];
            let at_ms = last_ms + look_at.after_ms;
            used.push((at_ms, last_uj + look_at.drawn_mw * look_at.after_ms));
            let is_pass = look_at.is_pass && used.len() > 2;
            if is_pass {
                pass = (at_ms, counter_uj(&used, at_ms));
            }
            ledger.look(&Look {
                at_ns: at_ms * 1_000_000,
                pass_ns: Some(pass.0 * 1_000_000),
                counter_uj: pass.1,
                power_limit_mw: limit_mw,
                ..look(0, look_at.sampled_mw, &[claim(1, 500)])
            });
            if is_pass {
                let &mut (begin_uj, before_uj) = first_uj.get_or_insert((pass.1, ledger.closed_uj()));
                prop_assert_eq!(ledger.closed_uj() - before_uj, (pass.1 - begin_uj) as u64);
            }
        }
    }
}

/// A GPU that draws 300 W for a minute; what its counter shows by second, which is read every `every_s`.
fn charged_by(every_s: i64, shown_uj: impl Fn(i64) -> i64) -> Line {
    let mut ledger = without_idle_power();
    let claims = [claim(1, 500)];
    for at_s in 0..=59 {
        let pass_s = at_s / every_s * every_s;
        ledger.look(&Look {
            pass_ns: Some(pass_s * SECOND_NS),
            counter_uj: shown_uj(pass_s),
            power_limit_mw: 700_000,
            ..look(at_s, 300_000, &claims)
        });
    }
    ledger.line(Some(1))
}

const BEGIN_UJ: i64 = 5_000_000_000_000;
const MINUTE_UJ: u64 = 59 * 300_000_000;

#[test]
fn one_wrong_reading_of_the_counter_charges_nothing_that_the_gpu_did_not_use() {
    let right = |at_s: i64| BEGIN_UJ + at_s * 300_000_000;
    for every_s in [1, 7, 20] {
        for wrong_uj in [0, 2 * BEGIN_UJ, i64::MAX] {
            let line = charged_by(every_s, |at_s| if at_s / every_s == 1 { wrong_uj } else { right(at_s) });
            assert_eq!(line.total_uj(), MINUTE_UJ, "{wrong_uj} once, read every {every_s} s");
        }
    }
    assert_eq!(charged_by(1, |at_s| if at_s == 30 { 0 } else { right(at_s) }).total_uj(), MINUTE_UJ);
}

#[test]
fn a_counter_that_does_not_move_is_not_believed_and_what_it_lost_is_not_paid_back() {
    let right = |at_s: i64| BEGIN_UJ + at_s * 300_000_000;
    assert_eq!(charged_by(1, |at_s| right(at_s.min(19))).total_uj(), MINUTE_UJ);
    // It goes on from its last value: what it has not counted is known by power.
    let lost = |at_s: i64| right(if at_s < 40 { at_s.min(20) } else { at_s - 20 });
    for every_s in [1, 5, 10] {
        assert_eq!(charged_by(every_s, lost).total_uj(), MINUTE_UJ, "read every {every_s} s");
    }
}

#[test]
fn a_counter_that_is_late_or_coarse_or_disagrees_with_power_is_believed() {
    // Updated now and then only, and read more often than that.
    for (step_s, every_s) in [(2, 1), (5, 2), (10, 1), (25, 4), (30, 7)] {
        let steps = |at_s: i64| BEGIN_UJ + at_s / step_s * step_s * 250_000_000;
        let charged_uj = charged_by(every_s, steps).total_uj() as i64;
        let last_uj = steps(59 / every_s * every_s);
        // By the counter up to the first reading of its last step, and by power since then.
        let first_s = (0..=59).find(|&at_s| at_s % every_s == 0 && steps(at_s) == last_uj).unwrap();
        let right_uj = last_uj - BEGIN_UJ + (59 - first_s) * 300_000_000;
        assert_eq!(charged_uj, right_uj, "steps of {step_s} s, read every {every_s} s");
    }
    // Bursts that samples of power do not meet, and some that all of them meet.
    for watts in [30, 1_300] {
        let line = charged_by(20, |at_s| BEGIN_UJ + at_s * watts * 1_000_000);
        assert_eq!(line.total_uj() as i64, 40 * watts * 1_000_000 + 19 * 300_000_000, "{watts} W");
        assert_eq!(line.counted_uj as i64, 40 * watts * 1_000_000);
    }
}

#[test]
fn a_job_pays_from_when_it_came() {
    let mut ledger = GpuLedger::default();
    ledger.look(&look(1, 100_000, &[claim(1, 0)]));
    let joined = [(2, 3 * SECOND_NS)];
    ledger.look(&Look { joined: &joined, ..look(5, 100_000, &[claim(1, 0), claim(2, 0)]) });
    let (first, second) = (ledger.line(Some(1)).idle_uj, ledger.line(Some(2)).idle_uj);
    assert_eq!((first, second), (300_000_000, 100_000_000), "two seconds alone, two by halves");
    ledger.pause();
    ledger.look(&look(45, 100_000, &[claim(3, 0)]));
    ledger.look(&look(46, 100_000, &[claim(3, 0)]));
    assert_eq!(ledger.line(Some(3)).idle_uj, 100_000_000, "the pause is unassigned");
}

/// A reading of use, and what was to be seen of two jobs in each second before it. The third one, which has the
/// number 0, lives all the time.
#[derive(Clone, Debug)]
struct Shift {
    /// By second: what the other two are taken to compute.
    others: Vec<[u64; 2]>,
    /// What the reading reports of them; they may have ended and be missing from it.
    reported: [u64; 2],
    power_mw: i64,
    /// What the first one is assumed to compute meanwhile, by the reading before or because the GPU is busy.
    guess: u64,
    /// Whether the reading reports that it computed nothing.
    is_idle: bool,
    grown_uj: i64,
}

fn shift() -> impl Strategy<Value = Shift> {
    let few = || prop_oneof![2 => Just(0u64), 3 => 1u64..1000];
    let both = || [few(), few()];
    (
        prop::collection::vec(both(), 1..6),
        both(),
        0i64..700_000,
        few(),
        prop::bool::weighted(0.7),
        1i64..4_000_000_000,
    )
        .prop_map(|(others, reported, power_mw, guess, is_idle, grown_uj)| Shift {
            others,
            reported,
            power_mw,
            guess,
            is_idle,
            grown_uj,
        })
}

proptest! {
    #[test]
    fn a_job_reported_idle_pays_nothing_above_idle_while_others_compute(
        shifts in prop::collection::vec(shift(), 1..12)
    ) {
        let mut ledger = GpuLedger::default();
        ledger.idle.configured_mw = Some(60_000);
        let (mut at_s, mut read_s, mut counter_uj) = (1, 1, 0i64);
        ledger.look(&Look {
            pass_ns: Some(SECOND_NS),
            counter_uj,
            use_ns: Some(SECOND_NS),
            ..look(1, 100_000, &[claim(0, 0)])
        });
        let active_uj = |ledger: &GpuLedger| ledger.lines.get(&Some(0)).map_or(0, |line| line.active_uj);
        for shift in shifts {
            let before_uj = active_uj(&ledger);
            for others in &shift.others {
                at_s += 1;
                let claims = [claim(0, shift.guess), claim(1, others[0]), claim(2, others[1])];
                ledger.look(&Look {
                    pass_ns: Some(read_s * SECOND_NS),
                    counter_uj,
                    use_ns: Some(read_s * SECOND_NS),
                    ..look(at_s, shift.power_mw, &claims)
                });
            }
            at_s += 1;
            read_s = at_s;
            counter_uj += shift.grown_uj;
            let activity = if shift.is_idle { Activity::Idle } else { Activity::Active };
            let own = Claim { activity, ..claim(0, shift.guess) };
            let claims = [own, claim(1, shift.reported[0]), claim(2, shift.reported[1])];
            ledger.look(&Look {
                pass_ns: Some(read_s * SECOND_NS),
                counter_uj,
                use_ns: Some(read_s * SECOND_NS),
                ..look(at_s, shift.power_mw, &claims)
            });
            let lines: u64 = ledger.lines.values().map(Line::total_uj).sum();
            prop_assert_eq!(lines, ledger.closed_uj());
            prop_assert_eq!(lines, counter_uj as u64, "the card's counter, to the microjoule");
            let others_computed = shift.others.iter().flatten().chain(&shift.reported).any(|&active| active > 0);
            if shift.is_idle && others_computed {
                prop_assert_eq!(active_uj(&ledger), before_uj);
            }
        }
    }
}
