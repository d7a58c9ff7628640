//! Who may ask a daemon for what: one table, in which every request has a row. What it does not grant is refused.
//!
//! For the system daemon the owner is the user whose job a request is about. For a daemon of a user it is that user,
//! and everything in it is his.

use std::cell::OnceCell;

use super::socket::Peer;
use met_query::protocol::Request;
use met_query::viewer::Viewer;

/// Who asks, as far as it matters to a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Of a user's daemon only: the system daemon has no owner but root.
    Owner,
    User,
    /// In the group of `daemon.operators`.
    Operator,
    Root,
}

/// Who sent a request. The role is found out once: looking up a group may ask a directory service.
pub struct Caller {
    pub peer: Peer,
    role: OnceCell<Role>,
}

impl Caller {
    pub fn new(peer: Peer) -> Caller {
        Caller { peer, role: OnceCell::new() }
    }

    pub fn role(&self, find: impl FnOnce(Peer) -> Role) -> Role {
        *self.role.get_or_init(|| find(self.peer))
    }
}

/// What is granted: about one's own jobs, and about those of others. A request that is about no job is granted if
/// either is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    pub own: bool,
    pub others: bool,
}

impl Access {
    const NONE: Access = Access { own: false, others: false };

    pub fn is_any(self) -> bool {
        self.own || self.others
    }

    /// The same for what is read.
    pub fn viewer(self, peer: Peer) -> Viewer {
        if self.others { Viewer::Everything } else { Viewer::Uid(peer.uid) }
    }

    /// Whether it covers what belongs to this user.
    pub fn covers(self, peer: Peer, uid: Option<u32>) -> bool {
        self.others || self.own && uid == Some(peer.uid)
    }
}

/// The cells of a row, for one kind of daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cells {
    owner: bool,
    other: bool,
    operator: bool,
    root: bool,
}

const fn cells(text: &[u8; 4]) -> Cells {
    Cells { owner: text[0] == b'x', other: text[1] == b'x', operator: text[2] == b'x', root: text[3] == b'x' }
}

/// The rights to one request.
pub struct Row {
    pub request: &'static str,
    system: Cells,
    user: Cells,
}

/// A variant of `Request` without a row does not compile: the match has no wildcard.
macro_rules! table {
    ($($request:ident $system:literal $user:literal,)*) => {
        #[cfg(test)]
        const ROWS: &[Row] = &[$(
            Row { request: stringify!($request), system: cells($system), user: cells($user) },
        )*];

        pub fn row(request: &Request) -> &'static Row {
            match request {
                $(Request::$request { .. } => {
                    const ROW: &Row =
                        &Row { request: stringify!($request), system: cells($system), user: cells($user) };
                    ROW
                })*
            }
        }
    };
}

// Owner, other user, operator, root: of the system daemon, and of a user's.
#[rustfmt::skip]
table! {
    Hello       b"xxxx" b"x--x",
    // A job is begun by its supervisor, for its user. A user's own ids need no daemon.
    Reserve     b"xxxx" b"----",
    Enclose     b"x---" b"----",
    Started     b"x--x" b"x--x",
    Counters    b"x--x" b"x--x",
    Ended       b"x--x" b"x--x",
    // A user's own daemon finds it in the user's files.
    Timed       b"x--x" b"----",
    // Operators see the jobs of all users, and change nothing.
    Jobs        b"x-xx" b"x--x",
    Find        b"x-xx" b"x--x",
    FindAfter   b"x-xx" b"x--x",
    FindOf      b"x-xx" b"x--x",
    Series      b"x-xx" b"x--x",
    JobSeries   b"x-xx" b"x--x",
    GpuSeries   b"x-xx" b"x--x",
    Remove      b"x--x" b"x--x",
    Memberships b"x-xx" b"x--x",
    Sums        b"x-xx" b"x--x",
    Usage       b"x-xx" b"x--x",
    // What operators say of a job changes no figure of it.
    Annotate    b"x-xx" b"x--x",
    Reactions   b"x-xx" b"x--x",
    Queues      b"x-xx" b"x--x",
    // More samples of a job are as good as a look at it.
    Watch       b"x-xx" b"x--x",
    // The machine as a whole is no secret.
    NodeParts   b"xxxx" b"x--x",
    NodePartSeries  b"xxxx" b"x--x",
    Nodes       b"xxxx" b"x--x",
    Factors     b"xxxx" b"x--x",
    Energy      b"xxxx" b"x--x",
    Status      b"xxxx" b"x--x",
    // With the names of jobs for those who may see all.
    InForce     b"x-xx" b"x--x",
    Correct     b"---x" b"x--x",
    Configure   b"---x" b"x--x",
    Stop        b"---x" b"x--x",
    // Asked of the server of a cluster, which is not a daemon.
    NodeSeries  b"----" b"----",
}

impl Row {
    /// `role` is asked for only if it makes a difference: who is an operator is looked up in the system's databases.
    pub fn access(&self, system: bool, role: impl FnOnce() -> Role) -> Access {
        let cells = if system { self.system } else { self.user };
        if cells == NOTHING {
            return Access::NONE;
        }
        if cells == EVERYTHING {
            return Access { own: true, others: true };
        }
        match role() {
            Role::Owner => Access { own: cells.owner, others: cells.owner },
            // A user's daemon has no jobs of other users.
            Role::User => Access { own: system && cells.owner, others: cells.other },
            Role::Operator => Access { own: system && cells.owner, others: cells.operator },
            Role::Root => Access { own: system && cells.owner, others: cells.root },
        }
    }

    /// Why it is refused.
    pub fn refusal(&self, system: bool) -> &'static str {
        match (system, self.request) {
            (_, "NodeSeries") => "only the server of a cluster knows this",
            (true, "Stop") => "only root may stop the system daemon",
            (true, "Correct") => "only root may change the factors of the system daemon",
            (true, "Configure") => "only root may configure the system daemon",
            (false, "Reserve" | "Enclose" | "Timed") => "only the system daemon does this",
            (false, _) => "this daemon serves another user",
            (true, _) => "permission denied",
        }
    }
}

const NOTHING: Cells = cells(b"----");
const EVERYTHING: Cells = cells(b"xxxx");

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use met_core::grouping::{SumBy, SumSpan};
    use met_core::job::{JobKey, LOCAL};
    use met_core::listing::Cursor;
    use met_core::usage::{By, Every, UsageAsk};

    use super::*;
    use met_core::sample;
    use met_query::handshake::Hello;
    use met_query::jobs::{JobRef, JobsFilter};
    use met_query::protocol::Change;
    use met_query::protocol::Correction;

    /// One of each; `every_request_has_a_row_and_a_test` fails where one is missing.
    fn requests() -> Vec<Request> {
        let key = || JobKey { cluster: None, manager: LOCAL.to_owned(), id: "1".to_owned(), incarnation: 0 };
        let record = || Box::new(sample::full(1, "train"));
        vec![
            Request::Hello(Hello::ours(false)),
            Request::Reserve { at_least: 1, timed: false },
            Request::Enclose { name: "met-1-1-1".to_owned(), pid: 1 },
            Request::Started(record()),
            Request::Counters { key: key(), in_cgroup: false, events: Vec::new() },
            Request::Ended(record()),
            Request::Timed { record: record(), series: Default::default() },
            Request::Jobs(JobsFilter::default()),
            Request::Find(JobRef::Last),
            Request::FindAfter { job: JobRef::Last, after: Cursor::at(0, key()) },
            Request::FindOf { job: JobRef::Last, uid: 7, after: None },
            Request::Series { key: key(), after_ms: 0 },
            Request::JobSeries { key: key(), table: String::new(), part: String::new(), after_ms: 0 },
            Request::GpuSeries { key: key(), uuid: String::new(), after_ms: 0 },
            Request::Remove(key()),
            Request::Memberships { filter: JobsFilter::default() },
            Request::Sums {
                filter: JobsFilter::default(),
                span: SumSpan { by: SumBy::User, from_ns: 0, to_ns: 0 },
            },
            Request::Usage(UsageAsk::new(0, 1, By::User, Every::All)),
            Request::Annotate { key: key(), change: Default::default() },
            Request::Reactions { change: None },
            Request::Queues,
            Request::Watch { jobs: Vec::new(), seconds: 1 },
            Request::NodeParts { since_ms: 0 },
            Request::NodePartSeries { table: String::new(), part: String::new(), after_ms: 0 },
            Request::Nodes,
            Request::Factors,
            Request::Energy,
            Request::Status,
            Request::InForce,
            Request::Correct(Correction::Recompute { since_ns: None }),
            Request::Configure(Change::default()),
            Request::Stop,
            Request::NodeSeries { node: String::new(), after_ms: 0 },
        ]
    }

    #[test]
    fn every_request_has_a_row_and_a_test() {
        let tested: Vec<&str> = requests().iter().map(|request| row(request).request).collect();
        let rows: Vec<&str> = ROWS.iter().map(|row| row.request).collect();
        assert_eq!(tested, rows);
    }

    /// What a role may do: `own` jobs only, `all`, or nothing.
    fn granted(request: &Request, system: bool, role: Role) -> &'static str {
        match row(request).access(system, || role) {
            Access { others: true, .. } => "all",
            Access { own: true, others: false } => "own",
            Access::NONE => "-",
        }
    }

    #[test]
    fn the_whole_table() {
        let mut text = String::new();
        for request in requests() {
            let of_system =
                [Role::User, Role::Operator, Role::Root].map(|role| granted(&request, true, role));
            let of_user = [Role::Owner, Role::User, Role::Operator, Role::Root]
                .map(|role| granted(&request, false, role));
            let (of_system, of_user) = (of_system.join(" "), of_user.join(" "));
            text += &format!("{:<11} {of_system:<12} | {of_user}\n", row(&request).request);
        }
        // User, operator, root of the system daemon; owner, other user, operator, root of a user's.
        expect![[r#"
            Hello       all all all  | all - - all
            Reserve     all all all  | - - - -
            Enclose     own own own  | - - - -
            Started     own own all  | all - - all
            Counters    own own all  | all - - all
            Ended       own own all  | all - - all
            Timed       own own all  | - - - -
            Jobs        own all all  | all - - all
            Find        own all all  | all - - all
            FindAfter   own all all  | all - - all
            FindOf      own all all  | all - - all
            Series      own all all  | all - - all
            JobSeries   own all all  | all - - all
            GpuSeries   own all all  | all - - all
            Remove      own own all  | all - - all
            Memberships own all all  | all - - all
            Sums        own all all  | all - - all
            Usage       own all all  | all - - all
            Annotate    own all all  | all - - all
            Reactions   own all all  | all - - all
            Queues      own all all  | all - - all
            Watch       own all all  | all - - all
            NodeParts   all all all  | all - - all
            NodePartSeries all all all  | all - - all
            Nodes       all all all  | all - - all
            Factors     all all all  | all - - all
            Energy      all all all  | all - - all
            Status      all all all  | all - - all
            InForce     own all all  | all - - all
            Correct     - - all      | all - - all
            Configure   - - all      | all - - all
            Stop        - - all      | all - - all
            NodeSeries  - - -        | - - - -
        "#]]
        .assert_eq(&text);
    }

    #[test]
    fn what_no_cell_grants_is_refused_with_a_reason() {
        for request in requests() {
            for system in [true, false] {
                let stranger = row(&request).access(system, || Role::User);
                assert!(system || !stranger.is_any(), "a user's daemon serves its user");
                assert!(!row(&request).refusal(system).is_empty());
            }
        }
        assert_eq!(row(&Request::Stop).refusal(true), "only root may stop the system daemon");
        let of_cluster = Request::NodeSeries { node: String::new(), after_ms: 0 };
        assert_eq!(row(&of_cluster).refusal(true), "only the server of a cluster knows this");
    }

    #[test]
    fn the_role_of_a_caller_is_found_out_once_and_only_if_it_matters() {
        let caller = Caller::new(Peer { uid: 7, pid: 1 });
        let mut lookups = 0;
        let mut access = |request: Request| {
            let role = || {
                caller.role(|_| {
                    lookups += 1;
                    Role::Operator
                })
            };
            let granted = row(&request).access(true, role);
            (granted.is_any(), lookups)
        };
        assert_eq!(access(Request::Status), (true, 0));
        assert_eq!(access(Request::Jobs(JobsFilter::default())), (true, 1));
        assert_eq!(access(Request::Stop), (false, 1));
    }

    #[test]
    fn own_access_covers_no_job_of_others() {
        let peer = Peer { uid: 7, pid: 1 };
        let own = Access { own: true, others: false };
        assert!(own.covers(peer, Some(7)) && !own.covers(peer, Some(8)) && !own.covers(peer, None));
        assert!(Access { own: false, others: true }.covers(peer, None));
        assert!(!Access::NONE.covers(peer, Some(7)));
    }
}
