//! What the closed windows of the ledger amount to.

use std::collections::VecDeque;

use met_core::energy::emission::Factor;
use met_core::energy::{Balance, Closed, EnergyWindow};

use super::used::{Used, shares_uj};

/// The longest time between readings of a GPU's counter: its difference from the integral of power belongs to
/// all that time.
const GPUS_SPAN_NS: i64 = 20_000_000_000;

#[derive(Default)]
pub(super) struct Windows {
    /// The last ones, the newest last.
    pub(super) recent: VecDeque<EnergyWindow>,
    pub(super) used: Used,
    pub(super) balance: Balance,
}

impl Windows {
    /// A window that `meter` has measured, and how much of it was booked. `rate` is the emission factor and the
    /// PUE.
    pub(super) fn add(&mut self, closed: &Closed, meter: &str, booked_uj: i64, rate: (&Factor, f64)) {
        let shares_uj = shares_uj(closed);
        self.used.add(shares_uj, rate.0, rate.1);
        let [.., unassigned_uj] = shares_uj;
        let was_off = self.balance.off_since_ns.is_some();
        self.balance.add((closed.begin_ns, closed.end_ns), closed.counted_uj, booked_uj, unassigned_uj);
        if self.balance.off_since_ns.is_some() && !was_off {
            let off_uj = self.balance.off_uj();
            tracing::warn!("the energy ledger does not add up: booked {off_uj:+} µJ against the meter");
        }
        self.keep(EnergyWindow::of(closed, meter, shares_uj));
    }

    pub(super) fn keep(&mut self, window: EnergyWindow) {
        let since_ns = window.end_ns - GPUS_SPAN_NS;
        self.recent.retain(|before| before.end_ns > since_ns);
        self.recent.push_back(window);
    }

    /// The last time in which every part of the machine is known: that of the last window, or with GPUs one as
    /// long as it takes until their counters are read.
    pub(super) fn now(&self) -> Option<EnergyWindow> {
        let mut newest_first = self.recent.iter().rev();
        let mut now = newest_first.next()?.clone();
        if self.recent.iter().all(|window| window.gpus_uj == 0) && !now.corrects() {
            return Some(now);
        }
        for before in newest_first {
            let continues = before.end_ns == now.begin_ns && before.meter == now.meter;
            if !continues || now.end_ns - now.begin_ns >= GPUS_SPAN_NS && !now.corrects() {
                break;
            }
            now = now.after(before);
        }
        Some(now)
    }
}
