//! How many directories are followed in each place, so that a flood of them in one costs no other.
//!
//! A user can make any number in a delegated slice, and so can a job inside its own.

use std::collections::HashMap;

/// Of all that are followed in one hierarchy: more than the jobs and steps of any machine.
pub(super) const IN_HIERARCHY: usize = 1 << 17;
/// Of one directory in which a manager keeps its jobs.
pub(super) const IN_HOME: usize = 1 << 15;
/// Where the directory that keeps the jobs is a user's own.
pub(super) const IN_HOME_OF_USER: usize = 1 << 10;
/// New directories in one such directory per minute. Beyond that its notices are ignored until the next minute:
/// they would delay or displace those of others.
pub(super) const MADE_IN_HOME_OF_USER: usize = 1 << 12;
/// Of one job.
pub(super) const IN_JOB: usize = 1 << 10;

/// Places are keyed by the numbers of their directories.
#[derive(Default)]
pub(super) struct Places {
    places: HashMap<u32, Place>,
}

struct Place {
    outer: Option<u32>,
    room: usize,
    /// Followed in it, those in the places inside included.
    directories: usize,
    /// Made since they were last counted from the beginning, and how many may be.
    made: usize,
    made_max: usize,
    /// Not followed for want of room, since the last look at everything.
    left_out: u64,
    /// Its directory is gone, and some in it are not forgotten yet.
    closed: bool,
}

impl Places {
    pub(super) fn open(&mut self, id: u32, outer: Option<u32>, room: usize, made_max: usize) {
        let place = Place { outer, room, directories: 0, made: 0, made_max, left_out: 0, closed: false };
        self.places.insert(id, place);
    }

    /// Whether more was made in it than is listened to.
    pub(super) fn is_flooded(&self, id: u32) -> bool {
        self.places.get(&id).is_some_and(|place| place.made >= place.made_max)
    }

    pub(super) fn is_place(&self, id: u32) -> bool {
        self.places.contains_key(&id)
    }

    /// Makes room for one more directory, in all places around it. Without room it is counted, and nothing else.
    pub(super) fn take(&mut self, id: u32) -> bool {
        let is_full = |place: &Place| place.directories >= place.room || place.made >= place.made_max;
        let full = self.around(id).find(|id| self.places.get(id).is_some_and(is_full));
        if let Some(place) = full.and_then(|full| self.places.get_mut(&full)) {
            place.left_out += 1;
            return false;
        }
        for id in self.around(id).collect::<Vec<_>>() {
            if let Some(place) = self.places.get_mut(&id) {
                place.directories += 1;
                place.made += 1;
            }
        }
        true
    }

    /// A directory in it is forgotten.
    pub(super) fn leave(&mut self, id: u32) {
        for id in self.around(id).collect::<Vec<_>>() {
            let Some(place) = self.places.get_mut(&id) else { continue };
            place.directories = place.directories.saturating_sub(1);
            if place.closed && place.directories == 0 {
                self.places.remove(&id);
            }
        }
    }

    /// The place itself is gone; says whether there was one.
    pub(super) fn close(&mut self, id: u32) -> bool {
        let Some(place) = self.places.get_mut(&id) else { return false };
        place.closed = true;
        if place.directories == 0 {
            self.places.remove(&id);
        }
        true
    }

    /// Everything is about to be read: what is left out will be counted again.
    pub(super) fn begin_look(&mut self) {
        for place in self.places.values_mut() {
            place.left_out = 0;
        }
    }

    /// Counts from the beginning what is made; the places that were flooded.
    pub(super) fn begin_count(&mut self) -> Vec<u32> {
        let flooded = self.ids().filter(|id| self.is_flooded(*id)).collect();
        for place in self.places.values_mut() {
            place.made = 0;
        }
        flooded
    }

    pub(super) fn is_any_flooded(&self) -> bool {
        self.places.values().any(|place| !place.closed && place.made >= place.made_max)
    }

    /// Those that are there.
    pub(super) fn ids(&self) -> impl Iterator<Item = u32> {
        self.places.iter().filter(|(_, place)| !place.closed).map(|(id, _)| *id)
    }

    /// Where some were left out, and how many.
    pub(super) fn left_out(&self) -> impl Iterator<Item = (u32, u64)> {
        self.places.iter().filter(|(_, place)| place.left_out > 0).map(|(id, place)| (*id, place.left_out))
    }

    pub(super) fn is_any_crowded(&self) -> bool {
        self.left_out().next().is_some()
    }

    /// A place, the one around it, and so on.
    fn around(&self, id: u32) -> impl Iterator<Item = u32> {
        std::iter::successors(Some(id), |id| self.places.get(id)?.outer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_is_full_leaves_room_in_the_others() {
        let mut places = Places::default();
        places.open(0, None, 5, usize::MAX);
        places.open(1, Some(0), 2, usize::MAX);
        places.open(2, Some(0), 4, usize::MAX);
        assert_eq!([1, 1, 1, 1].map(|id| places.take(id)), [true, true, false, false]);
        assert_eq!([2, 2, 2, 2].map(|id| places.take(id)), [true, true, true, false], "all are five");
        let mut left_out: Vec<_> = places.left_out().collect();
        left_out.sort_unstable();
        assert_eq!(left_out, [(0, 1), (1, 2)]);
        places.leave(1);
        assert_eq!([1, 1].map(|id| places.take(id)), [true, false]);
    }

    #[test]
    fn a_place_that_is_gone_before_what_is_in_it_gives_all_back() {
        let mut places = Places::default();
        places.open(0, None, 2, usize::MAX);
        places.open(1, Some(0), 2, usize::MAX);
        assert!(places.take(1) && places.take(1));
        assert!(places.close(1) && places.ids().eq([0]));
        places.leave(1);
        places.leave(1);
        assert!(!places.is_place(1), "nothing is kept of it");
        assert!(places.take(0) && places.take(0));
    }
}
