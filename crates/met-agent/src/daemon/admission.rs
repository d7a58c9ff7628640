//! What is given to users before their jobs start, and what they may announce.

use super::claims::Made;
use super::reservations::Reservations;
use super::spare::Spare;

pub(super) struct Admission {
    pub(super) made: Made,
    pub(super) reservations: Reservations,
    /// What users announced since the last retention.
    pub(super) announced_bytes: u64,
    /// For reading ends when no descriptors are left.
    pub(super) spare: Spare,
}

impl Admission {
    pub(super) fn begin() -> Admission {
        Admission {
            made: Made::default(),
            reservations: Reservations::begin(met_host::clock::realtime_ns()),
            announced_bytes: 0,
            spare: Spare::hold(),
        }
    }
}
