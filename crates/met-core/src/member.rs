//! A user of a cluster with the accounts that this user belongs to.

use serde::{Deserialize, Serialize};

use crate::job::Record;

/// Accounts of one user. A query has a variable for each.
pub const ACCOUNTS_MAX: usize = 256;

/// Narrows a list to the jobs of a user and of the accounts that the user is a member of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    pub user: String,
    pub accounts: Vec<String>,
}

impl Member {
    /// A user or account without a name matches no job: an unknown owner is not an owner without a name.
    pub fn sees(&self, record: &Record) -> bool {
        self.sees_owner(record.user.as_deref(), record.account.as_deref())
    }

    /// The same for what is of a user in an account.
    pub fn sees_owner(&self, user: Option<&str>, account: Option<&str>) -> bool {
        let is_own = user.is_some_and(|user| user == self.user && !user.is_empty());
        let is_shared = |account: &str| !account.is_empty() && self.accounts.iter().any(|own| own == account);
        is_own || account.is_some_and(is_shared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_sees_own_jobs_and_those_of_the_account() {
        let mut record = crate::sample::full(1, "train");
        (record.user, record.account) = (Some("ada".to_owned()), Some("physics".to_owned()));
        let member = |user: &str, accounts: &[&str]| Member {
            user: user.to_owned(),
            accounts: accounts.iter().map(|&account| account.to_owned()).collect(),
        };
        assert!(member("ada", &[]).sees(&record) && member("bob", &["physics"]).sees(&record));
        assert!(!member("bob", &["chemistry", "physic", "Physics"]).sees(&record));
        (record.user, record.account) = (Some(String::new()), Some(String::new()));
        assert!(!member("", &[""]).sees(&record));
        (record.user, record.account) = (None, None);
        assert!(!member("", &[""]).sees(&record));
    }
}
