"""Perf events where the controller is a v1 hierarchy, as on older systems: in the job's own directory, or in one of ours.

Run by name only: meanwhile nobody else on the machine can count in cgroups of v2."""

import glob
import pwd

import oar
from discovery import Manager, slurm
from harness import Ground, check, equal, eventually, test

GROUND = Ground("oar_perf")
ON_REQUEST = True

EVENTS, BUSY = oar.EVENTS, oar.BUSY
PERF = f"perf:\n  events: [{', '.join(EVENTS)}]\n"


def ours():
    """Directories of ours in the hierarchy of events."""
    return glob.glob("/sys/fs/cgroup/perf_event/**/met-events-*", recursive=True)


def counted(show):
    """Waits until all events have been counted."""
    def all_of_them():
        counts = (show() or {}).get("events", {}).get("counts", {})
        return counts if len(counts) == len(EVENTS) and all(one["count"] > 0 for one in counts.values()) else None

    counts = eventually(all_of_them, lambda: f"all events are counted: {(show() or {}).get('events')}")
    equal(list(counts), EVENTS, "events, in the order in which they were asked for")
    equal({one["source"] for one in counts.values()}, {"perf, cgroup"}, "source")
    return counts


@test
def events_of_an_oar_job_are_counted_in_its_own_perf_event_cgroup(world):
    oar.GROUND = GROUND
    world.configure(
        f"sampling:\n  interval: 1s\njobs:\n  discover: true\n  plain: off\n{PERF}"
        f"schedulers:\n  oar: true\n  slurm: false\n  interval: 1s\n  scope: cluster\n  path: {GROUND.path('bin')}\n")
    world.start_system_daemon()
    user = world.user(pwd.getpwnam(GROUND.user).pw_uid)
    job = oar.submit(user, "sh", "-c", f"'{BUSY}'")
    oar.in_state(world, job, "running")
    check(glob.glob(f"/sys/fs/cgroup/perf_event/oar/{GROUND.user}_{job}"), "OAR has made a cgroup for it")
    counts = counted(lambda: oar.shown(world, job))
    equal(ours(), [], "directories of ours")
    eventually(lambda: "page_faults, peak" in world.met("show", f"oar:{job}").ok().out, "a plot of them")
    GROUND.command("oardel", job, user=user)
    record = oar.recorded(world, job, "Error")
    ended = record["events"]["counts"]
    equal(list(ended), EVENTS, "events of the ended job")
    check(all(counts[name]["count"] <= ended[name]["count"] for name in EVENTS), counts, ended)


@test
def five_events_of_an_oar_job_are_counters_of_a_servers_file_in_their_order(world):
    oar.GROUND = GROUND
    oar.check_numbered_events(world)
    equal(ours(), [], "directories of ours")


@test
def a_job_without_a_perf_event_cgroup_is_counted_in_one_of_ours(world):
    manager = Manager(world)
    world.configure(f"sampling:\n  interval: 200ms\njobs:\n  discover: true\n  below: {manager.below}\n{PERF}")
    try:
        manager.make(manager.home)
        world.start_system_daemon()
        path = manager.job(5)
        process = manager.start(path, "sh", "-c", BUSY)
        counted(lambda: slurm(world).get("5"))
        equal(len(ours()), 1, "directories of ours")
        with open(f"{ours()[0]}/cgroup.procs") as file:
            check(str(process.pid) in file.read().split(), "the job is in it")
        process.kill()
        process.wait()
        manager.remove_when_empty(path)
        eventually(lambda: not ours(), "it is removed with the job")
    finally:
        manager.close()
