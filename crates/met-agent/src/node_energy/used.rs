//! What the machine has used since the daemon began, and whose that was.

use met_core::energy::emission::{Factor, UJ_PER_KWH};
use met_core::table::{MICRO, MILLI};
use met_core::{Column, Table, Unit};
use met_sinks::snapshot::Rows;

use met_core::energy::{Closed, Who};

/// Counters of closed windows.
pub static ENERGY: Table = Table {
    name: "energy",
    subject: "a share of the machine's energy: of jobs, of processes outside jobs (system), idle and held \
        by no job (idle), or during gaps in which the consumers are unknown (unassigned)",
    labels: &["share"],
    columns: &[
        Column::counter("used", Unit::Joules, MICRO, "energy used since the daemon started, GPUs included")
            .minimal(),
        Column::counter("emissions", Unit::Grams, MICRO, "CO2 equivalent of it, PUE included").usual(),
    ],
};

pub static EMISSION: Table = Table {
    name: "emission",
    subject: "the current emission factor and its source",
    labels: &["provider"],
    columns: &[Column::gauge(
        "factor",
        Unit::GramsPerKilowattHour,
        MILLI,
        "CO2 equivalent of a kilowatt hour, as currently applied",
    )
    .usual()],
};

const SHARES: [&str; 4] = ["jobs", "system", "idle", "unassigned"];

/// The index of a consumer in `SHARES`.
fn share_of(who: &Who) -> usize {
    match who {
        Who::Job(_) => 0,
        Who::System => 1,
        Who::Idle => 2,
        Who::Unassigned => 3,
    }
}

/// Of a window, by share: jobs, system, idle, unassigned.
pub(super) fn shares_uj(closed: &Closed) -> [i64; SHARES.len()] {
    let mut shares_uj = [0; SHARES.len()];
    for (who, line) in &closed.lines {
        shares_uj[share_of(who)] += line.total_uj();
    }
    shares_uj
}

/// What one share has used so far.
#[derive(Clone, Copy, Default)]
struct Sum {
    energy_uj: i64,
    /// Microjoules times milligrams per kilowatt hour in a building as it was then: a counter does not fall because
    /// another PUE is configured.
    emitted: f64,
}

/// By `SHARES`: what the ledger says, and what is shown of it.
#[derive(Default)]
pub(super) struct Used {
    sums: [Sum; SHARES.len()],
    shown_uj: [i64; SHARES.len()],
    shown_ug: [i64; SHARES.len()],
}

/// Brings what is shown up to the ledger's figures. A counter does not fall because a GPU's energy turned out to be
/// another's; as long as one is above its figure, others show as much less of their growth, so that all together are
/// never more than the ledger has.
fn show(shown: &mut [i64; SHARES.len()], ledger: [i64; SHARES.len()]) {
    let total =
        |values: &[i64; SHARES.len()]| values.iter().fold(0i64, |sum, &value| sum.saturating_add(value));
    let mut room = total(&ledger).saturating_sub(total(shown)).max(0);
    for (shown, figure) in shown.iter_mut().zip(ledger) {
        let growth = figure.saturating_sub(*shown).clamp(0, room);
        *shown += growth;
        room -= growth;
    }
}

impl Used {
    pub(super) fn add(&mut self, shares_uj: [i64; SHARES.len()], factor: &Factor, pue: f64) {
        for (sum, share_uj) in self.sums.iter_mut().zip(shares_uj) {
            sum.energy_uj += share_uj;
            sum.emitted += share_uj as f64 * factor.mg_per_kwh.max(0) as f64 * pue;
        }
        show(&mut self.shown_uj, self.sums.map(|sum| sum.energy_uj));
        let emitted_ug = |sum: Sum| (sum.emitted * 1000.0 / UJ_PER_KWH as f64).round() as i64;
        show(&mut self.shown_ug, self.sums.map(emitted_ug));
    }

    pub(super) fn rows(&self) -> Rows {
        let mut rows = Rows::new(&ENERGY);
        for (share, shown) in SHARES.iter().zip(self.shown_uj.iter().zip(&self.shown_ug)) {
            rows.push(&[(*share).to_owned()], &[*shown.0, *shown.1]);
        }
        rows
    }
}

pub(super) fn factor_rows(factor: &Factor) -> Rows {
    let mut rows = Rows::new(&EMISSION);
    rows.push(&[factor.source.to_string()], &[factor.mg_per_kwh]);
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_add_up_by_share_and_by_the_factor_that_held() {
        let window = [3_600_000, 400_000, 1_500_000, 500_000];
        let factor = |mg_per_kwh| Factor { mg_per_kwh, source: "configured".into(), since_ns: 0 };
        let mut used = Used::default();
        used.add(window, &factor(100_000), 1.5);
        // 3.6 J at 100 g/kWh are 100 µg, and the building has half of it again.
        assert_eq!(used.rows().iter().next().unwrap().1, &[3_600_000, 150][..]);
        used.add(window, &factor(200_000), 1.1);
        let rows = used.rows();
        let jobs = rows.iter().next().unwrap();
        // Twice as much of a better building, and what was before stays.
        assert_eq!((jobs.0[0].as_str(), jobs.1), ("jobs", &[7_200_000, 370][..]));
        let sum: i64 = rows.iter().map(|(_, cells)| cells[0]).sum();
        assert_eq!(sum, 2 * 6_000_000);
        // What turns out to be idle takes nothing off a counter, which goes on when it is reached again.
        used.add([-1_000_000, 0, 1_000_000, 0], &factor(200_000), 1.1);
        assert_eq!(used.rows().iter().next().unwrap().1, &[7_200_000, 370][..]);
        let all_uj = |used: &Used| used.rows().iter().map(|(_, cells)| cells[0]).sum::<i64>();
        assert_eq!(all_uj(&used), 2 * 6_000_000, "no more than the ledger has");
        used.add([1_000_001, 0, 0, 0], &factor(200_000), 1.1);
        assert_eq!(used.rows().iter().next().unwrap().1[0], 7_200_001);
        assert_eq!(all_uj(&used), 2 * 6_000_000 + 1_000_001, "the others have caught up");
    }
}
