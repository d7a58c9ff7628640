//! A monitor that allocates at each tick is never as cheap as it says: the steady state allocates nothing.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use met_core::job::CgroupPaths;
use met_host::cgroup::{CgroupDirs, Hierarchies};
use met_host::{CgroupTarget, Host, Targets, TaskRole, TaskTarget};
use met_sources::{Options, Runner, TickInfo};

/// Counts what this thread allocates: the test harness has threads of its own.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is handed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // At the end of a thread its counter is gone, and nobody asks for it any more.
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn reading_the_same_targets_again_allocates_nothing() {
    let host = Host::real().unwrap();
    let mut runner = Runner::open(&host, &Options::default());
    let mut targets = Targets::default();
    let me = host.process(std::process::id()).unwrap();
    let keeper = host.process(std::os::unix::process::parent_id()).unwrap();
    for (process, role) in [(me, TaskRole::Member), (keeper, TaskRole::Keeper)] {
        let (pid, start_ticks) = (process.pid, process.start_ticks);
        targets.tasks.push(TaskTarget { pid, start_ticks, role, young: false });
    }
    let hierarchies = Hierarchies::read(&host).unwrap();
    let paths: CgroupPaths = hierarchies.of_process(&host, me.pid).unwrap();
    if let Ok(dirs) = CgroupDirs::open(&host, &paths) {
        targets.cgroups.push(CgroupTarget { dirs: Arc::new(dirs), counted: true, young: false });
    }
    let mut ticks = [false, true].into_iter().cycle().map(|slow| TickInfo { slow, cgroups_only: false });
    for tick in ticks.by_ref().take(4) {
        runner.read(&targets, &tick);
    }
    let before = ALLOCATIONS.get();
    for tick in ticks.take(20) {
        runner.read(&targets, &tick);
    }
    assert_eq!(ALLOCATIONS.get() - before, 0);
    let of_cgroups_and_processes = &runner.batches()[..2];
    let rows = of_cgroups_and_processes.iter().map(|batch| batch.len()).sum::<usize>();
    assert_eq!(rows, 2 + targets.cgroups.len());
}
