//! What the machine has used since the daemon began, and whose that was.

use met_core::energy::emission::{Factor, UJ_PER_KWH};
use met_core::table::{MICRO, MILLI};
use met_core::{Column, Table, Unit};
use met_sinks::snapshot::Rows;

use super::EnergyWindow;

/// Counters of closed windows.
pub static ENERGY: Table = Table {
    name: "energy",
    subject: "a share of the machine's energy: that of jobs, of processes of no job (system), of doing nothing and held by nobody (idle)",
    labels: &["share"],
    columns: &[
        Column::counter("used", Unit::Joules, MICRO, "energy used since the daemon began, cards included"),
        Column::counter(
            "emissions",
            Unit::Grams,
            MICRO,
            "CO2 equivalent of that, that of the building included",
        ),
    ],
};

pub static EMISSION: Table = Table {
    name: "emission",
    subject: "what a kilowatt hour emits now, and who says so",
    labels: &["provider"],
    columns: &[Column::gauge(
        "factor",
        Unit::GramsPerKilowattHour,
        MILLI,
        "CO2 equivalent of a kilowatt hour by which energy is counted now",
    )],
};

const SHARES: [&str; 3] = ["jobs", "system", "idle"];

/// By `SHARES`: microjoules, and these times milligrams per kilowatt hour in a building as it was then: a counter
/// does not fall because another PUE is configured.
#[derive(Default)]
pub(super) struct Used([(u64, f64); SHARES.len()]);

impl Used {
    pub(super) fn add(&mut self, window: &EnergyWindow, factor: &Factor, pue: f64) {
        let shares_uj = [window.jobs_uj, window.system_uj, window.idle_uj];
        for ((sum_uj, emitted), share_uj) in self.0.iter_mut().zip(shares_uj) {
            *sum_uj += share_uj;
            *emitted += share_uj as f64 * factor.mg_per_kwh.max(0) as f64 * pue;
        }
    }

    pub(super) fn rows(&self) -> Rows {
        let mut rows = Rows::new(&ENERGY);
        for (share, &(energy_uj, emitted)) in SHARES.iter().zip(&self.0) {
            let emitted_ug = (emitted * 1000.0 / UJ_PER_KWH as f64).round() as i64;
            rows.push(&[(*share).to_owned()], &[i64::try_from(energy_uj).unwrap_or(i64::MAX), emitted_ug]);
        }
        rows
    }
}

pub(super) fn factor_rows(factor: &Factor) -> Rows {
    let mut rows = Rows::new(&EMISSION);
    rows.push(std::slice::from_ref(&factor.source), &[factor.mg_per_kwh]);
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use met_core::job::QualityKind;

    #[test]
    fn windows_add_up_by_share_and_by_the_factor_that_held() {
        let window = EnergyWindow {
            begin_ns: 0,
            end_ns: 1,
            meter: "RAPL".to_owned(),
            kind: QualityKind::Measured,
            whole_uj: 6_000_000,
            jobs_uj: 3_600_000,
            system_uj: 400_000,
            idle_uj: 2_000_000,
            cards_uj: 0,
            idle_estimated: false,
        };
        let factor = |mg_per_kwh| Factor { mg_per_kwh, source: "configured".to_owned(), since_ns: 0 };
        let mut used = Used::default();
        used.add(&window, &factor(100_000), 1.5);
        // 3.6 J at 100 g/kWh are 100 µg, and the building has half of it again.
        assert_eq!(used.rows().iter().next().unwrap().1, &[3_600_000, 150][..]);
        used.add(&window, &factor(200_000), 1.1);
        let rows = used.rows();
        let jobs = rows.iter().next().unwrap();
        // Twice as much of a better building, and what was before stays.
        assert_eq!((jobs.0[0].as_str(), jobs.1), ("jobs", &[7_200_000, 370][..]));
        let sum: i64 = rows.iter().map(|(_, cells)| cells[0]).sum();
        assert_eq!(sum as u64, 2 * window.whole_uj);
    }
}
