//! Who sends under the name of a node: one state folder, of one machine, with one daemon.
//!
//! Two that are alive at once would write into each other's jobs, so the later one is refused and its batches wait
//! where they are. One that has sent nothing for a while is considered gone, and the other takes its place.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use met_store::cluster::Bound;
use met_wire::batch::Header;

use crate::colmet::IDENTITY as UNPROVEN;

/// A node sends something every minute.
const REBOOTED_AFTER: Duration = Duration::from_secs(90);
/// The same for another state folder: with `met server enroll --replace` it need not wait.
const GONE_AFTER: Duration = Duration::from_secs(300);
/// Starts of its daemon that are remembered of a node.
const RUNS_MAX: usize = 8;

/// Why a sender may not use the name of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Denied {
    /// Another machine sends under this name.
    Conflict(String),
    /// It is probably the same machine after a reboot, which has not been silent for long enough to be sure.
    Wait(String),
}

impl Denied {
    pub fn reason(&self) -> &str {
        match self {
            Denied::Conflict(reason) | Denied::Wait(reason) => reason,
        }
    }
}

/// What was received since this server started.
pub(super) struct Senders {
    started_ns: i64,
    nodes: HashMap<String, Sender>,
}

#[derive(Default)]
struct Sender {
    /// Of the daemon that sends, and of those before it.
    run: String,
    former_runs: VecDeque<String>,
    /// Another boot that wants to send, and whether this one has sent since: then both are alive.
    other_boot: Option<(String, bool)>,
}

impl Senders {
    pub fn new(started_ns: i64) -> Senders {
        Senders { started_ns, nodes: HashMap::new() }
    }

    /// Whether the sender of this batch may send under its name, given who did so last.
    pub fn admit(&mut self, header: &Header, bound: &Bound, now_ns: i64) -> Result<(), Denied> {
        let sender = self.nodes.entry(header.node.clone()).or_default();
        // While the server was away, no node could send.
        let last_ns = bound.seen_ns.unwrap_or(i64::MIN).max(self.started_ns);
        let silent = Duration::from_nanos(u64::try_from(now_ns.saturating_sub(last_ns)).unwrap_or(0));
        let Some(bound_id) = &bound.id else {
            // Also a node that was upgraded and sends its first id.
            *sender = Sender { run: header.run.clone(), ..Sender::default() };
            return Ok(());
        };
        if *bound_id != header.id {
            // A sender with the node's token need not wait for one without, as where a daemon takes the place of Colmet.
            if silent < GONE_AFTER && bound_id != UNPROVEN {
                return Err(Denied::Conflict(two_nodes(header, bound_id)));
            }
            tracing::warn!(
                "node {}: identity {} takes the place of {}, which was silent for {} s",
                header.node,
                named(&header.id),
                named(bound_id),
                silent.as_secs()
            );
            *sender = Sender { run: header.run.clone(), ..Sender::default() };
            return Ok(());
        }
        if let Some(boot) = bound.boot_id.as_deref().filter(|boot| is_other_boot(boot, &header.boot_id)) {
            return sender.admit_boot(header, boot, silent);
        }
        sender.admit_run(header, silent)
    }
}

impl Sender {
    /// The same state folder and another boot: the machine was rebooted, or the folder copied to another one.
    fn admit_boot(&mut self, header: &Header, bound: &str, silent: Duration) -> Result<(), Denied> {
        if silent >= REBOOTED_AFTER {
            *self = Sender { run: header.run.clone(), ..Sender::default() };
            return Ok(());
        }
        let is_proven = matches!(&self.other_boot, Some((boot, true)) if *boot == header.boot_id);
        if is_proven {
            return Err(Denied::Conflict(copied(header, Known::Boot(bound))));
        }
        self.other_boot = Some((header.boot_id.clone(), false));
        let wait = REBOOTED_AFTER.saturating_sub(silent).as_secs();
        Err(Denied::Wait(format!(
            "node {} last sent {} s ago from its previous boot; batches of this boot are accepted after {wait} s \
             without another one from there",
            header.node,
            silent.as_secs()
        )))
    }

    /// The same machine. A restarted daemon sends from then on, and the previous one no more.
    fn admit_run(&mut self, header: &Header, silent: Duration) -> Result<(), Denied> {
        if let Some((_, is_alive_too)) = &mut self.other_boot {
            *is_alive_too = true;
        }
        if header.run.is_empty() || header.run == self.run {
            return Ok(());
        }
        if self.former_runs.contains(&header.run) && silent < GONE_AFTER {
            return Err(Denied::Conflict(copied(header, Known::Run(&self.run))));
        }
        self.former_runs.retain(|run| *run != header.run);
        let former = std::mem::replace(&mut self.run, header.run.clone());
        if !former.is_empty() {
            self.former_runs.push_back(former);
        }
        if self.former_runs.len() > RUNS_MAX {
            self.former_runs.pop_front();
        }
        Ok(())
    }
}

fn two_nodes(header: &Header, bound: &str) -> String {
    let (node, other) = (&header.node, named(&header.id));
    format!(
        "two machines send as node {node}: identity {} and identity {other}, which is refused and keeps its batches; \
         give one of them another name (forward.node), or, if {other} replaces the other, run on the server: \
         met server enroll --replace {node}",
        named(bound)
    )
}

/// By what the sender that is known differs from the one that is refused.
enum Known<'a> {
    Boot(&'a str),
    Run(&'a str),
}

fn copied(header: &Header, known: Known<'_>) -> String {
    let (node, id) = (&header.node, named(&header.id));
    let (what, other, this) = match known {
        Known::Boot(boot_id) => ("boot", boot_id, &header.boot_id),
        Known::Run(run) => ("run", run, &header.run),
    };
    let other = short(other);
    format!(
        "two daemons send as node {node} with the same identity {id}: {what} {other} and {}, which is refused and keeps its \
         batches; a state folder was copied: on the machine that is not {node}, remove identity.json in it and join \
         that machine under its own name",
        short(this)
    )
}

pub(super) fn is_other_boot(one: &str, other: &str) -> bool {
    let is_known = |boot: &str| !boot.is_empty() && boot != "unknown";
    is_known(one) && is_known(other) && one != other
}

fn named(id: &str) -> &str {
    if id.is_empty() { "none (an older version)" } else { short(id) }
}

/// Enough of a random id to distinguish it.
fn short(id: &str) -> &str {
    id.get(..8).unwrap_or(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: i64 = 1_000_000_000;

    /// A server that remembers the senders it accepted, as its file does.
    struct Server {
        senders: Senders,
        bound: Bound,
        now_s: i64,
    }

    impl Server {
        fn new() -> Server {
            Server { senders: Senders::new(0), bound: Bound::default(), now_s: 0 }
        }

        /// The result of a batch of this sender, `after_s` seconds after the last.
        fn sends(&mut self, after_s: i64, (id, boot_id, run): (&str, &str, &str)) -> Result<(), Denied> {
            self.now_s += after_s;
            let header = Header {
                node: "n1".to_owned(),
                id: id.to_owned(),
                boot_id: boot_id.to_owned(),
                run: run.to_owned(),
                ..Header::default()
            };
            let verdict = self.senders.admit(&header, &self.bound, self.now_s * SECOND_NS);
            if verdict.is_ok() {
                let id = Some(id.to_owned()).filter(|id| !id.is_empty());
                let seen_ns = Some(self.now_s * SECOND_NS);
                self.bound = Bound { id, boot_id: Some(boot_id.to_owned()), seen_ns };
            }
            verdict
        }

        fn restart(&mut self) {
            self.senders = Senders::new(self.now_s * SECOND_NS);
        }
    }

    const ONE: (&str, &str, &str) = ("one-identity", "boot-1", "run-1");
    const TWO: (&str, &str, &str) = ("two-identity", "boot-2", "run-2");

    #[test]
    fn of_two_with_one_name_the_later_is_refused_until_the_first_is_gone() {
        let mut server = Server::new();
        server.sends(0, ONE).unwrap();
        for _ in 0..10 {
            let Err(Denied::Conflict(reason)) = server.sends(30, TWO) else { panic!("it is let in") };
            assert!(reason.contains("one-iden") && reason.contains("two-iden"), "{reason}");
            assert!(reason.contains("met server enroll --replace n1"), "{reason}");
            server.sends(30, ONE).unwrap();
        }
        server.sends(GONE_AFTER.as_secs() as i64, TWO).unwrap();
        assert!(matches!(server.sends(1, ONE), Err(Denied::Conflict(_))), "the other one is there now");
    }

    #[test]
    fn a_server_that_was_away_does_not_take_its_nodes_for_gone() {
        let mut server = Server::new();
        server.sends(0, ONE).unwrap();
        server.now_s += 10_000;
        server.restart();
        assert!(matches!(server.sends(1, TWO), Err(Denied::Conflict(_))));
        server.sends(1, ONE).unwrap();
    }

    #[test]
    fn a_daemon_takes_the_place_of_colmet_at_once_and_keeps_it() {
        let mut server = Server::new();
        let colmet = (UNPROVEN, "", "");
        server.sends(0, colmet).unwrap();
        server.sends(1, ONE).unwrap();
        assert!(matches!(server.sends(1, colmet), Err(Denied::Conflict(_))));
        server.sends(1, ONE).unwrap();
    }

    #[test]
    fn one_that_is_replaced_is_let_in_at_once() {
        let mut server = Server::new();
        server.sends(0, ONE).unwrap();
        server.bound = Bound { id: None, boot_id: None, ..server.bound };
        server.sends(1, TWO).unwrap();
        assert!(matches!(server.sends(1, ONE), Err(Denied::Conflict(_))));
    }

    #[test]
    fn a_node_that_sends_no_identity_works_and_is_upgraded_at_once() {
        let mut server = Server::new();
        let old = ("", "boot-1", "");
        server.sends(0, old).unwrap();
        server.sends(1, old).unwrap();
        server.sends(1, ("", "boot-9", "")).unwrap();
        server.sends(1, ONE).unwrap();
        assert!(matches!(server.sends(1, old), Err(Denied::Conflict(_))));
        server.sends(GONE_AFTER.as_secs() as i64, old).expect("downgraded");
    }

    #[test]
    fn a_reboot_is_waited_for_and_a_copy_that_is_alive_too_is_refused() {
        let mut server = Server::new();
        let rebooted = (ONE.0, "boot-2", "run-2");
        server.sends(0, ONE).unwrap();
        assert!(matches!(server.sends(20, rebooted), Err(Denied::Wait(_))));
        server.sends(REBOOTED_AFTER.as_secs() as i64, rebooted).unwrap();
        // The first one was only cut off, and is here again.
        assert!(matches!(server.sends(20, ONE), Err(Denied::Wait(_))));
        server.sends(20, rebooted).unwrap();
        let Err(Denied::Conflict(reason)) = server.sends(20, ONE) else { panic!("both are alive") };
        assert!(reason.contains("copied"), "{reason}");
    }

    #[test]
    fn a_restarted_daemon_sends_at_once_and_the_one_before_no_more() {
        let mut server = Server::new();
        let again = |run: &'static str| (ONE.0, ONE.1, run);
        for run in ["run-1", "run-2", "run-3", "run-3"] {
            server.sends(1, again(run)).unwrap();
        }
        assert!(matches!(server.sends(1, again("run-1")), Err(Denied::Conflict(_))));
        server.sends(1, again("run-3")).unwrap();
        server.sends(GONE_AFTER.as_secs() as i64, again("run-1")).unwrap();
        server.sends(1, again("run-4")).unwrap();
    }
}
