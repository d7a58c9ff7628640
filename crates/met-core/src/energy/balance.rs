//! Whether the ledger adds up: what meters counted against what was booked, to the microjoule.

use serde::{Deserialize, Serialize};

/// Sums over all windows since the ledger began. They are equal unless something was charged twice or not at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Balance {
    /// The beginning of the first window and the end of the last.
    pub since_ns: i64,
    pub until_ns: i64,
    pub counted_uj: i64,
    pub booked_uj: i64,
    /// Of what is booked, the part without a known user.
    pub unassigned_uj: i64,
    /// Since when they differ.
    pub off_since_ns: Option<i64>,
}

impl Balance {
    /// Takes in a window: what its meter counted, and what was really booked in total.
    pub fn add(
        &mut self,
        (begin_ns, end_ns): (i64, i64),
        counted_uj: u64,
        booked_uj: i64,
        unassigned_uj: i64,
    ) {
        if self.until_ns == 0 {
            self.since_ns = begin_ns;
        }
        self.until_ns = end_ns;
        self.counted_uj = self.counted_uj.saturating_add_unsigned(counted_uj);
        self.booked_uj = self.booked_uj.saturating_add(booked_uj);
        self.unassigned_uj = self.unassigned_uj.saturating_add(unassigned_uj);
        self.off_since_ns = match self.off_uj() {
            0 => None,
            _ => self.off_since_ns.or(Some(end_ns)),
        };
    }

    /// How much more was booked than counted.
    pub fn off_uj(&self) -> i64 {
        self.booked_uj.saturating_sub(self.counted_uj)
    }

    /// With other times.
    pub fn shifted(self, offset_ns: i64) -> Balance {
        Balance {
            since_ns: self.since_ns.saturating_add(offset_ns),
            until_ns: self.until_ns.saturating_add(offset_ns),
            off_since_ns: self.off_since_ns.map(|off_ns| off_ns.saturating_add(offset_ns)),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mismatch_is_reported_with_its_size_and_start() {
        let mut balance = Balance::default();
        balance.add((5, 6), 100, 100, 0);
        assert_eq!((balance.off_uj(), balance.off_since_ns, balance.since_ns), (0, None, 5));
        balance.add((6, 7), 100, 99, 0);
        balance.add((7, 8), 100, 100, 30);
        assert_eq!((balance.off_uj(), balance.off_since_ns, balance.unassigned_uj), (-1, Some(7), 30));
        balance.add((8, 9), 100, 101, 0);
        assert_eq!((balance.off_uj(), balance.off_since_ns), (0, None));
    }
}
