//! Independent pieces of work, done by several threads.

use std::panic;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Calls `work` once for every number below `count`, with a thread for each of the workers. The results are in the order
/// of the numbers, whichever thread worked them out.
pub fn by_threads<W: Send, R: Send>(
    workers: &mut [W],
    count: usize,
    work: impl Fn(&mut W, usize) -> R + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let take_turns = |worker: &mut W| {
        let mut done = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                return done;
            }
            done.push((number, work(worker, number)));
        }
    };
    let mut done = thread::scope(|scope| {
        let Some((first, others)) = workers.split_first_mut() else { return Vec::new() };
        let take_turns = &take_turns;
        // Where no thread can be started, the others do its part.
        let start = |worker| thread::Builder::new().spawn_scoped(scope, move || take_turns(worker)).ok();
        let threads: Vec<_> = others.iter_mut().filter_map(start).collect();
        let mut done = take_turns(first);
        for thread in threads {
            done.extend(thread.join().unwrap_or_else(|panic| panic::resume_unwind(panic)));
        }
        done
    });
    done.sort_unstable_by_key(|(number, _)| *number);
    done.into_iter().map(|(_, result)| result).collect()
}

/// Does two things, the first in a thread of its own if there is to be one.
pub fn both<A: Send, B>(with_thread: bool, one: impl Fn() -> A + Sync, other: impl FnOnce() -> B) -> (A, B) {
    thread::scope(|scope| {
        let start = || thread::Builder::new().spawn_scoped(scope, &one).ok();
        let first = with_thread.then(start).flatten();
        let second = other();
        match first {
            Some(first) => (first.join().unwrap_or_else(|panic| panic::resume_unwind(panic)), second),
            None => (one(), second),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_are_done_with_and_without_a_thread() {
        for with_thread in [true, false] {
            let mut seen = Vec::new();
            let (one, other) = both(with_thread, || 1 + 1, || seen.push(3));
            assert_eq!((one, other, seen), (2, (), vec![3]));
        }
    }

    #[test]
    fn results_are_in_order_however_many_work() {
        for workers in 1..4 {
            let mut taken = vec![0; workers];
            let results = by_threads(&mut taken, 100, |taken, number| {
                *taken += 1;
                number * number
            });
            assert_eq!(results, (0..100).map(|number| number * number).collect::<Vec<_>>());
            assert_eq!(taken.iter().sum::<usize>(), 100);
        }
    }
}
