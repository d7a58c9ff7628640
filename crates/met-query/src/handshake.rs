//! Which version of the socket's protocol two programs speak with each other: the highest that both know.
//!
//! Both ends send what they know as a range, so that a job which began before an upgrade can report its end to the
//! daemon that runs after it. A daemon of a user is replaced by a newer one of the same user; a system daemon is not
//! replaced by anything that a client sends.

use serde::{Deserialize, Serialize};

use crate::protocol::Request;

/// Raised when an older peer would misunderstand a message.
pub const PROTOCOL: u32 = 10;
/// The version from which on supervisors pass their counters to a daemon.
pub const COUNTERS: u32 = 5;
/// The version from which on jobs are listed by [`met_core::conditions::Conditions`] and sorted by columns.
pub const CONDITIONS: u32 = 6;
/// The version from which on use over time is asked for.
pub const USAGE: u32 = 7;
/// The version from which on findings are acknowledged and muted.
pub const REACTIONS: u32 = 8;
/// The version from which on rules have jobs sampled more often.
pub const WATCH: u32 = 9;
/// The version from which on the queues of schedulers are asked for.
pub const QUEUES: u32 = 10;
/// The oldest version that is still spoken.
pub const PROTOCOL_OLDEST: u32 = 1;
/// The version that introduced `Reply::Unlinked`.
pub const UNLINKED_SINCE: u32 = 4;
/// Supervisors live as long as their jobs, which may outlast two upgrades.
const _: () = assert!(PROTOCOL_OLDEST + 2 <= PROTOCOL);

/// What a client says first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The oldest version that the client speaks. Clients that speak only one version send only this.
    pub protocol: u32,
    /// The newest one.
    #[serde(default)]
    pub newest: Option<u32>,
    /// The client is about to start a job, and would start a daemon of its own version if there was none.
    #[serde(default)]
    pub replace: bool,
}

/// What a daemon does about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// The version in common; without one, the newest of the daemon.
    pub protocol: u32,
    /// The daemon makes room for a newer one.
    pub leaving: bool,
}

impl Hello {
    pub fn ours(replace: bool) -> Hello {
        Hello { protocol: PROTOCOL_OLDEST, newest: Some(PROTOCOL), replace }
    }

    fn newest(&self) -> u32 {
        self.newest.unwrap_or(self.protocol)
    }

    fn common(&self) -> Option<u32> {
        let common = self.newest().min(PROTOCOL);
        (common >= self.protocol.max(PROTOCOL_OLDEST)).then_some(common)
    }

    /// `is_own`: the daemon is a user's, and the client runs as this user.
    pub fn greet(&self, is_own: bool) -> Greeting {
        let common = self.common();
        let leaving = is_own && self.newest() > PROTOCOL && (self.replace || common.is_none());
        Greeting { protocol: common.unwrap_or(PROTOCOL), leaving }
    }
}

/// Whether a client can speak the version that a daemon chose.
pub fn is_supported(protocol: u32) -> bool {
    (PROTOCOL_OLDEST..=PROTOCOL).contains(&protocol)
}

/// The version that introduced a request; an older daemon would hang up.
pub fn introduced(request: &Request) -> u32 {
    match request {
        Request::Hello(_)
        | Request::Reserve { .. }
        | Request::Enclose { .. }
        | Request::Started(_)
        | Request::Ended(_)
        | Request::Jobs(_)
        | Request::Find(_)
        | Request::Series { .. }
        | Request::Remove(_)
        | Request::Status
        | Request::Stop => 1,
        Request::GpuSeries { .. } => 2,
        Request::NodeParts { .. }
        | Request::NodePartSeries { .. }
        | Request::NodeSeries { .. }
        | Request::Factors
        | Request::Correct(_)
        | Request::Energy
        | Request::Nodes
        | Request::InForce
        | Request::Configure(_) => 3,
        Request::FindAfter { .. } => 4,
        Request::Timed { .. } => 5,
        Request::JobSeries { .. } | Request::Counters { .. } => COUNTERS,
        Request::Annotate { .. } | Request::Memberships { .. } | Request::Sums { .. } => CONDITIONS,
        Request::FindOf { .. } | Request::Usage(_) => USAGE,
        Request::Reactions { .. } => REACTIONS,
        Request::Watch { .. } => WATCH,
        Request::Queues => QUEUES,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(oldest: u32, newest: u32) -> Hello {
        Hello { protocol: oldest, newest: Some(newest), replace: false }
    }

    #[test]
    fn the_highest_common_version_is_spoken() {
        assert_eq!(Hello::ours(false).greet(true), Greeting { protocol: PROTOCOL, leaving: false });
        for older in PROTOCOL - 2..=PROTOCOL {
            assert_eq!(hello(1, older).greet(true).protocol, older, "an older client");
            let alone = Hello { protocol: older, newest: None, replace: false };
            assert_eq!(alone.greet(true), Greeting { protocol: older, leaving: false }, "of one version");
        }
        assert_eq!(hello(PROTOCOL, PROTOCOL + 2).greet(false).protocol, PROTOCOL, "a newer client");
        assert_eq!(hello(PROTOCOL + 1, PROTOCOL + 3).greet(false).protocol, PROTOCOL, "none in common");
        assert!(!is_supported(0) && !is_supported(PROTOCOL + 1) && is_supported(PROTOCOL - 2));
    }

    #[test]
    fn a_malformed_range_has_nothing_in_common() {
        for hello in [hello(9, 2), hello(u32::MAX, u32::MAX), hello(u32::MAX, 0)] {
            assert_eq!(hello.common(), None);
            assert!(!hello.greet(false).leaving);
        }
    }

    #[test]
    fn only_a_daemon_of_the_asking_user_makes_room_and_only_for_a_newer_version() {
        let foreign = hello(PROTOCOL + 1, PROTOCOL + 1);
        let alone = Hello { protocol: 99, newest: None, replace: false };
        for hello in [foreign, alone] {
            assert!(hello.greet(true).leaving);
            assert!(!hello.greet(false).leaving, "a system daemon stays");
        }
        let newer = hello(PROTOCOL, PROTOCOL + 1);
        assert!(!newer.greet(true).leaving, "a request is answered");
        assert!(Hello { replace: true, ..newer }.greet(true).leaving, "a job brings its own daemon");
        assert!(!Hello { replace: true, ..newer }.greet(false).leaving);
        assert!(!Hello::ours(true).greet(true).leaving, "the same version");
        assert!(!hello(0, 0).greet(true).leaving, "an older client");
    }

    #[test]
    fn programs_of_earlier_versions_can_parse_it() {
        let said = serde_json::to_string(&Request::Hello(Hello::ours(false))).unwrap();
        // A daemon that knows only `protocol` leaves when that is above its own.
        assert!(said.starts_with(r#"{"hello":{"protocol":1,"#), "{said}");
        let received: Request = serde_json::from_str(r#"{"hello":{"protocol":2}}"#).unwrap();
        assert!(matches!(received, Request::Hello(Hello { protocol: 2, newest: None, replace: false })));
    }
}
