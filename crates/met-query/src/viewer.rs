//! The client of a request, and which jobs it may see: the one rule for daemon, server and web.

use met_core::job::Record;
use met_core::member::Member;
use met_core::usage::GroupRef;

use crate::jobs::JobsFilter;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Viewer {
    /// Root, an operator, or the owner of the files.
    Everything,
    /// A user of this machine, and the jobs of this uid.
    Uid(u32),
    /// A user of a cluster, whose uid may differ from node to node: own jobs, and all jobs of these accounts.
    User { name: String, accounts: Vec<String> },
}

impl Viewer {
    /// A user of a cluster who sees only their own jobs.
    pub fn user(name: impl Into<String>) -> Viewer {
        Viewer::User { name: name.into(), accounts: Vec::new() }
    }

    pub fn sees_all(&self) -> bool {
        *self == Viewer::Everything
    }

    pub fn sees(&self, record: &Record) -> bool {
        match self {
            Viewer::Everything => true,
            Viewer::Uid(uid) => record.uid == Some(*uid),
            Viewer::User { .. } => self.member().is_some_and(|member| member.sees(record)),
        }
    }

    /// Whether the viewer sees the sums of a group: those of own jobs, and of accounts as a member.
    pub fn sees_group<'g>(&self, group: impl Into<GroupRef<'g>>) -> bool {
        let group: GroupRef<'_> = group.into();
        match self {
            Viewer::Everything => true,
            Viewer::Uid(uid) => group.uid == Some(*uid),
            Viewer::User { .. } => {
                self.member().is_some_and(|member| member.sees_owner(group.user, group.account))
            }
        }
    }

    /// Whether the viewer sees what a user of this machine runs outside jobs. Accounts are of jobs.
    pub fn sees_owner(&self, uid: Option<u32>, user: Option<&str>) -> bool {
        match self {
            Viewer::Everything => true,
            Viewer::Uid(own) => uid == Some(*own),
            Viewer::User { name, .. } => user == Some(name),
        }
    }

    /// Whether the job is the viewer's own: only its owner may change it.
    pub fn owns(&self, record: &Record) -> bool {
        match self {
            Viewer::Everything => false,
            Viewer::Uid(_) => self.sees(record),
            Viewer::User { name, .. } => Viewer::user(name.clone()).sees(record),
        }
    }

    /// Whether the viewer may write tags and a note: the owner and operators may, other members of the account only
    /// read them.
    pub fn may_annotate(&self, record: &Record) -> bool {
        self.sees_all() || self.owns(record)
    }

    /// The requested filter, restricted to the jobs that the viewer sees; `None` if it requests another user's
    /// jobs.
    pub fn restrict(&self, filter: &JobsFilter) -> Option<JobsFilter> {
        let mut filter = filter.clone();
        let is_own = match self {
            Viewer::Everything => true,
            Viewer::Uid(uid) => *filter.owner.uid.get_or_insert(*uid) == *uid,
            Viewer::User { name, accounts } => {
                let is_own =
                    accounts.is_empty() && filter.owner.user.get_or_insert_with(|| name.clone()) == name;
                filter.owner.member = self.member();
                is_own || !accounts.is_empty()
            }
        };
        is_own.then_some(filter)
    }

    fn member(&self) -> Option<Member> {
        match self {
            Viewer::User { name, accounts } => {
                Some(Member { user: name.clone(), accounts: accounts.clone() })
            }
            Viewer::Everything | Viewer::Uid(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use met_core::usage::Group;

    use super::*;
    use crate::jobs::JobOwner;

    #[test]
    fn a_viewer_gets_the_requested_jobs_that_are_visible() {
        let mut record = met_core::sample::full(1, "train");
        (record.uid, record.user) = (Some(7), Some("ada".to_owned()));
        let (ada, eve) = (Viewer::user("ada"), Viewer::user("eve"));
        assert!(Viewer::Everything.sees(&record) && ada.sees(&record) && Viewer::Uid(7).sees(&record));
        assert!(!eve.sees(&record) && !Viewer::Uid(8).sees(&record));
        let asked = JobsFilter {
            owner: JobOwner { user: Some("ada".to_owned()), uid: Some(7), ..JobOwner::default() },
            ..JobsFilter::default()
        };
        assert!(eve.restrict(&asked).is_none() && Viewer::Uid(8).restrict(&asked).is_none());
        for viewer in [&ada, &Viewer::Uid(7), &Viewer::Everything] {
            let filter = viewer.restrict(&asked).unwrap();
            assert_eq!((filter.owner.user.as_deref(), filter.owner.uid), (Some("ada"), Some(7)));
        }
        let restricted = |viewer: &Viewer| {
            let filter = viewer.restrict(&JobsFilter::default()).unwrap();
            (filter.owner.user, filter.owner.uid)
        };
        assert_eq!(restricted(&eve), (Some("eve".to_owned()), None));
        assert_eq!(restricted(&Viewer::Uid(8)), (None, Some(8)));
        // The name of a uid is not known here: the store looks for both.
        let by_name = JobsFilter { owner: JobOwner::of_user("ada"), ..JobsFilter::default() };
        let filter = Viewer::Uid(8).restrict(&by_name).unwrap();
        assert_eq!((filter.owner.user.as_deref(), filter.owner.uid), (Some("ada"), Some(8)));
    }

    #[test]
    fn sums_are_seen_by_the_same_rule_as_jobs() {
        let group = |user: Option<&str>, uid: Option<u32>, account: Option<&str>| Group {
            user: user.map(str::to_owned),
            uid,
            account: account.map(str::to_owned),
            ..Group::default()
        };
        let ada = group(Some("ada"), Some(7), Some("physics"));
        let member = Viewer::User { name: "bob".to_owned(), accounts: vec!["physics".to_owned()] };
        for viewer in [&Viewer::Everything, &Viewer::Uid(7), &Viewer::user("ada"), &member] {
            assert!(viewer.sees_group(&ada), "{viewer:?}");
        }
        let nobody = group(None, None, None);
        for viewer in [&Viewer::Uid(8), &Viewer::user("eve"), &Viewer::user(""), &Viewer::Uid(0)] {
            assert!(!viewer.sees_group(&ada) && !viewer.sees_group(&nobody), "{viewer:?}");
        }
        assert!(Viewer::Everything.sees_group(&nobody));
    }

    #[test]
    fn a_job_of_an_unknown_user_is_visible_only_to_operators() {
        let mut record = met_core::sample::full(1, "train");
        (record.uid, record.user) = (None, None);
        assert!(!Viewer::Uid(0).sees(&record) && !Viewer::user("").sees(&record));
    }

    #[test]
    fn a_member_of_an_account_sees_its_jobs_and_owns_none_of_them() {
        let mut record = met_core::sample::full(1, "train");
        (record.user, record.account) = (Some("ada".to_owned()), Some("physics".to_owned()));
        let bob = Viewer::User { name: "bob".to_owned(), accounts: vec!["physics".to_owned()] };
        assert!(bob.sees(&record) && !bob.owns(&record));
        assert!(Viewer::user("ada").owns(&record) && !Viewer::Everything.owns(&record));
        assert!(Viewer::user("ada").may_annotate(&record) && Viewer::Everything.may_annotate(&record));
        assert!(!bob.may_annotate(&record));
        let asked = JobsFilter { owner: JobOwner::of_user("ada"), ..JobsFilter::default() };
        let filter = bob.restrict(&asked).unwrap();
        assert_eq!(filter.owner.user.as_deref(), Some("ada"));
        let member = Member { user: "bob".to_owned(), accounts: vec!["physics".to_owned()] };
        assert_eq!(filter.owner.member.as_ref(), Some(&member));
        // What a client writes there replaces nothing.
        let forged = JobsFilter {
            owner: JobOwner {
                member: Some(Member { user: "ada".to_owned(), ..member.clone() }),
                ..asked.owner
            },
            ..asked
        };
        assert_eq!(bob.restrict(&forged).unwrap().owner.member, Some(member));
        let eve = Viewer::user("eve")
            .restrict(&JobsFilter {
                owner: JobOwner { user: None, ..forged.owner.clone() },
                ..forged.clone()
            })
            .unwrap();
        assert_eq!(eve.owner.member.unwrap().user, "eve");
        assert_eq!(Viewer::Uid(8).restrict(&forged).unwrap().owner.uid, Some(8));
    }
}
