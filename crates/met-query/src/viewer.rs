//! Who asks, and which jobs this person may see: the one rule for daemon, server and web.

use met_core::job::Record;

use crate::jobs::JobsFilter;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Viewer {
    /// Root, an operator, or the owner of the files.
    Everything,
    /// A user of this machine, and the jobs of this uid.
    Uid(u32),
    /// A user of a cluster, whose uid may differ from node to node.
    User(String),
}

impl Viewer {
    pub fn sees_all(&self) -> bool {
        *self == Viewer::Everything
    }

    pub fn sees(&self, record: &Record) -> bool {
        match self {
            Viewer::Everything => true,
            Viewer::Uid(uid) => record.uid == Some(*uid),
            Viewer::User(name) => record.user.as_ref() == Some(name),
        }
    }

    /// The same as a filter. Whatever user was asked for, the viewer's own jobs are all there is.
    pub fn restrict(&self, filter: &JobsFilter) -> JobsFilter {
        let mut filter = filter.clone();
        match self {
            Viewer::Everything => {}
            Viewer::Uid(uid) => filter.uid = Some(*uid),
            Viewer::User(name) => filter.user = Some(name.clone()),
        }
        filter
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_sees_the_own_jobs_whatever_is_asked_for() {
        let mut record = met_core::sample::full(1, "train");
        (record.uid, record.user) = (Some(7), Some("ada".to_owned()));
        let (ada, eve) = (Viewer::User("ada".to_owned()), Viewer::User("eve".to_owned()));
        assert!(Viewer::Everything.sees(&record) && ada.sees(&record) && Viewer::Uid(7).sees(&record));
        assert!(!eve.sees(&record) && !Viewer::Uid(8).sees(&record));
        let asked = JobsFilter { user: Some("ada".to_owned()), uid: Some(7), ..JobsFilter::default() };
        assert_eq!(eve.restrict(&asked).user.as_deref(), Some("eve"));
        assert_eq!(Viewer::Uid(8).restrict(&asked).uid, Some(8));
        assert_eq!(Viewer::Everything.restrict(&asked).user.as_deref(), Some("ada"));
    }

    #[test]
    fn a_job_of_an_unknown_user_is_for_those_alone_who_see_everything() {
        let mut record = met_core::sample::full(1, "train");
        (record.uid, record.user) = (None, None);
        assert!(!Viewer::Uid(0).sees(&record) && !Viewer::User(String::new()).sees(&record));
    }
}
