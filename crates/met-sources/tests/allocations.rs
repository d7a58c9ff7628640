//! A monitor that allocates at each tick is never as cheap as it says: the steady state allocates nothing.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use met_core::job::CgroupPaths;
use met_host::cgroup::{CgroupDirs, Hierarchies};
use met_host::{CgroupTarget, Host, Look, Targets, TaskRole, TaskTarget};
use met_sources::{Options, Runner, TickInfo};

/// Counts what this thread allocates: the test harness has threads of its own.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is handed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // At the end of a thread its counter is gone and no longer needed.
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
    // All that a tick does itself, at every tick.
    let options = Options { node: true, period_max: Some(Duration::from_nanos(1)), ..Options::default() };
    let mut runner = Runner::open(&host, &options);
    let mut targets = Targets::default();
    let me = host.process(std::process::id()).unwrap();
    let supervisor = host.process(std::os::unix::process::parent_id()).unwrap();
    for (process, role) in [(me, TaskRole::Member), (supervisor, TaskRole::Supervisor)] {
        let (pid, start_ticks) = (process.pid, process.start_ticks);
        targets.tasks.push(TaskTarget::new(pid, start_ticks, role, false));
    }
    let hierarchies = Hierarchies::read(&host).unwrap();
    let paths: CgroupPaths = hierarchies.of_process(&host, me.pid).unwrap();
    if let Ok(dirs) = CgroupDirs::open(&host, &paths) {
        targets.cgroups.push(CgroupTarget {
            dirs: Arc::new(dirs),
            counted: true,
            counted_in: None,
            events: None,
            young: false,
            look: Look::Usual,
        });
    }
    let mut ticks = [false, true].into_iter().cycle().map(TickInfo::of);
    for tick in ticks.by_ref().take(4) {
        runner.read(&targets, &tick);
    }
    let before = ALLOCATIONS.get();
    for tick in ticks.take(20) {
        runner.read(&targets, &tick);
    }
    assert_eq!(ALLOCATIONS.get() - before, 0);
    let of_jobs = runner.batches().iter().filter(|batch| ["cgroup", "process"].contains(&batch.table.name));
    assert_eq!(of_jobs.map(|batch| batch.len()).sum::<usize>(), 2 + targets.cgroups.len());
    assert!(runner.node().any(|source| source.name == "node" && source.batches[0].len() == 1));
}
