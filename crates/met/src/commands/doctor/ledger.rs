//! Whether the daemon's energy ledger adds up.

use jiff::tz::TimeZone;
use met_core::energy::Balance;

use super::{Finding, Health};
use crate::view;
use met_core::units;
use met_query::protocol::Status;

/// Of a running daemon that has closed a window.
pub(super) fn ledger(status: Option<&Status>) -> Option<Finding> {
    Some(finding(status?.ledger.as_ref()?, &view::local_zone()))
}

fn finding(balance: &Balance, zone: &TimeZone) -> Finding {
    let finding = |health| Finding::new("ledger", health, words(balance, zone));
    match balance.off_uj() {
        0 => finding(Health::Good),
        _ => finding(Health::Broken).remedied_by("met daemon --stop    (a new daemon begins a new ledger)"),
    }
}

/// What was counted, and whether all of it is booked.
pub fn words(balance: &Balance, zone: &TimeZone) -> String {
    let joules = |uj: i64| units::watt_hours(uj as f64 / 1e6);
    let unassigned = match balance.unassigned_uj {
        0 => String::new(),
        unassigned_uj => format!(", {} of it unassigned", joules(unassigned_uj)),
    };
    let counted = format!("{} counted{unassigned}", joules(balance.counted_uj));
    match balance.off_since_ns {
        None => format!("balanced to the µJ since {}; {counted}", units::time(balance.since_ns, zone)),
        Some(off_ns) => {
            let (off_uj, since) = (balance.off_uj(), units::time(off_ns, zone));
            let side = if off_uj > 0 { "more" } else { "less" };
            format!("{} µJ {side} booked than counted since {since}; {counted}", off_uj.unsigned_abs())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ledger_that_is_off_is_broken_and_says_by_how_much() {
        let mut balance = Balance { since_ns: 0, until_ns: 1, ..Balance::default() };
        (balance.counted_uj, balance.booked_uj) = (7_000_000, 7_000_000);
        let found = finding(&balance, &TimeZone::UTC);
        assert!(found.health == Health::Good && found.remedy.is_none());
        assert_eq!(found.detail, "balanced to the µJ since 1970-01-01 00:00:00; 1.94 mWh counted");
        (balance.booked_uj, balance.unassigned_uj) = (6_999_998, 2_000_000);
        balance.off_since_ns = Some(61_000_000_000);
        let found = finding(&balance, &TimeZone::UTC);
        assert!(found.health == Health::Broken);
        let expected = "2 µJ less booked than counted since 1970-01-01 00:01:01; 1.94 mWh counted, 556 µWh of it unassigned";
        assert_eq!(found.detail, expected);
    }
}
