//! Which GPU a thread is querying. A GPU that does not answer blocks only the thread that queries it: another
//! thread goes on with the other GPUs, and the blocked one exits when its call returns.

use std::sync::Arc;

/// At most this many threads may be blocked at a time; then none is replaced.
const KEPT_MAX: usize = 16;

#[derive(Default)]
pub(super) struct Duty {
    /// Distinguishes the thread that is on duty from those that are blocked by a GPU.
    pub crew: u64,
    /// Where it is, and since when.
    at: Option<(Arc<str>, i64)>,
    /// The GPUs that keep a thread, by their uuid.
    kept: Vec<Arc<str>>,
}

impl Duty {
    /// Whether a GPU may be queried: not while it blocks a thread.
    pub fn enter(&mut self, gpu: &Arc<str>, now_ns: i64) -> bool {
        let is_free = !self.kept.contains(gpu);
        if is_free {
            self.at = Some((Arc::clone(gpu), now_ns));
        }
        is_free
    }

    /// A GPU has answered. False: that took too long, and another thread is on duty now.
    pub fn leave(&mut self, gpu: &Arc<str>, crew: u64) -> bool {
        if crew == self.crew {
            self.at = None;
            return true;
        }
        self.kept.retain(|kept| kept != gpu);
        false
    }

    /// If the thread on duty has been at a GPU for too long: the number of its replacement.
    pub fn relief(&mut self, now_ns: i64, most_ns: i64) -> Option<u64> {
        let (gpu, since_ns) = self.at.as_ref()?;
        if now_ns - since_ns <= most_ns || self.kept.len() >= KEPT_MAX {
            return None;
        }
        self.kept.push(Arc::clone(gpu));
        self.at = None;
        self.crew += 1;
        Some(self.crew)
    }

    /// No replacement could be started: the blocked thread stays on duty, and its timeout restarts.
    pub fn no_relief(&mut self, now_ns: i64) {
        self.crew -= 1;
        self.at = self.kept.pop().map(|gpu| (gpu, now_ns));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blocked_thread_is_replaced_and_its_gpu_skipped_until_it_answers() {
        let (hung, other): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
        let mut duty = Duty::default();
        assert!(duty.enter(&hung, 100));
        assert_eq!((duty.relief(150, 100), duty.relief(300, 100)), (None, Some(1)));
        assert!(!duty.enter(&hung, 400) && duty.enter(&other, 400) && duty.leave(&other, 1));
        assert_eq!(duty.relief(9999, 100), None, "a thread that has left is not blocked");
        assert!(!duty.leave(&hung, 0), "the first one goes home");
        assert!(duty.enter(&hung, 500));
    }

    #[test]
    fn a_thread_that_could_not_be_replaced_is_replaced_later() {
        let hung: Arc<str> = "a".into();
        let mut duty = Duty::default();
        assert!(duty.enter(&hung, 100));
        assert_eq!(duty.relief(300, 100), Some(1));
        duty.no_relief(300);
        assert_eq!((duty.relief(350, 100), duty.relief(500, 100)), (None, Some(1)));
        assert!(!duty.leave(&hung, 0), "it was kept for too long");
    }
}
