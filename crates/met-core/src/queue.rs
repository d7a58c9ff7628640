//! How many jobs wait in a scheduler's queue at one time, counted by the scheduler itself.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Jobs that wait and are not held: held jobs wait only for the user who holds them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queue {
    pub manager: String,
    pub read_ns: i64,
    /// Later it says nothing of the queue.
    pub valid_until_ns: i64,
    /// Empty if the scheduler does not answer.
    pub partitions: BTreeMap<String, u64>,
    /// The same jobs by their user, in all partitions together. A user who is missing has none.
    pub users: BTreeMap<String, u64>,
}

impl Queue {
    pub fn is_valid(&self, now_ns: i64) -> bool {
        now_ns <= self.valid_until_ns
    }

    /// Whether the others may wait for a job that ran until this time.
    pub fn is_about(&self, until_ns: i64) -> bool {
        until_ns >= self.read_ns - (self.valid_until_ns - self.read_ns)
    }

    /// How many jobs wait in these partitions, and how many of them at least are not the user's: the scheduler does not
    /// say which jobs of a user wait where. `None` if it counts none of the partitions.
    pub fn waiting<'p>(&self, partitions: impl Iterator<Item = &'p str>, user: &str) -> Option<(u64, u64)> {
        let mut waiting = None;
        for count in partitions.filter_map(|name| self.partitions.get(name)) {
            waiting = Some(waiting.unwrap_or(0_u64).saturating_add(*count));
        }
        let own = self.users.get(user).copied().unwrap_or(0);
        waiting.map(|waiting| (waiting, waiting.saturating_sub(own)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue() -> Queue {
        let counts = |counts: &[(&str, u64)]| {
            counts.iter().map(|&(name, count)| (name.to_owned(), count)).collect::<BTreeMap<_, _>>()
        };
        Queue {
            manager: "slurm".to_owned(),
            read_ns: 1_000,
            valid_until_ns: 1_300,
            partitions: counts(&[("gpu", 7), ("main", 2), ("idle", 0)]),
            users: counts(&[("ada", 3), ("bob", 6)]),
        }
    }

    #[test]
    fn what_may_be_the_users_own_is_not_of_others() {
        let queue = queue();
        let of = |partitions: &[&'static str], user| queue.waiting(partitions.iter().copied(), user);
        assert_eq!(of(&["gpu"], "ada"), Some((7, 4)));
        assert_eq!(of(&["gpu"], "eve"), Some((7, 7)));
        assert_eq!(of(&["main"], "bob"), Some((2, 0)), "all of them may be bob's");
        assert_eq!(of(&["gpu", "main", "gone"], "ada"), Some((9, 6)));
        assert_eq!(of(&["idle"], "ada"), Some((0, 0)));
        assert_eq!((of(&["gone"], "ada"), of(&[], "ada")), (None, None), "unknown is not 0");
    }

    #[test]
    fn a_queue_is_of_its_time() {
        let queue = queue();
        assert!(queue.is_valid(1_300) && !queue.is_valid(1_301));
        assert!(queue.is_about(700) && !queue.is_about(699));
    }
}
