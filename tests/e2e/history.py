"""The history of the machine, with jobs and without, and what becomes of old samples."""

import datetime
import glob
import os
import sqlite3

from harness import check, equal, eventually, need_root, test


def samples_of(parts, table):
    """The times of a table's first part."""
    found = [part["times"] for part in parts if part["table"] == table]
    return found[0] if found else []


@test
def a_system_daemon_keeps_the_machine_without_jobs(world):
    need_root()
    world.configure("node:\n  interval: 1s\n")
    world.start_system_daemon()
    history = lambda: samples_of(world.met("node", "--since", "1h", "--json").ok().json()["series"], "node")
    eventually(lambda: len(history()) >= 4, "four samples of a machine without jobs")
    equal(world.jobs(), [], "jobs")
    check("memory in use" in world.met("node", "--since", "1h").ok().out, "a plot")
    # What was sampled is written when the daemon ends, and the next one goes on.
    before = history()
    world.stop_system_daemon()
    world.start_system_daemon()
    eventually(lambda: len(history()) > len(before), "more samples after a restart")
    equal(history()[:len(before)], before, "the earlier samples")


@test
def a_user_s_daemon_keeps_no_history_of_the_machine(world):
    world.configure("node:\n  interval: 1s\n")
    world.me.run_to_end("sleep", "3")
    equal(world.me.met("node", "--since", "1h", "--json").ok().json()["series"], [], "series")


def counted(path):
    """The samples in the file of a day."""
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as day:
        return day.execute("SELECT coalesce(sum(samples), 0) FROM block").fetchone()[0]


@test
def old_samples_are_thinned_by_the_daemon_and_by_no_reader(world):
    world.configure("sampling:\n  interval: 50ms\n")
    job = world.me.run_to_end(world.python, "-c", "import time; time.sleep(4)")["job"]["id"]
    world.me.stop_daemon()
    folder = os.path.join(world.me.store_folder(), "series")
    # As if it had been ten days ago. Times in the file are of no matter to the daemon.
    days = sorted(glob.glob(os.path.join(folder, "*.db")))
    old = datetime.datetime.now(datetime.timezone.utc).date() - datetime.timedelta(days=10)
    moved = os.path.join(folder, f"{old}.db")
    os.rename(days[0], moved)
    before = counted(moved)
    check(before >= 30, f"{before} samples")
    world.me.met("show", job, "--json").ok()
    world.me.met("list", "--json").ok()
    equal(counted(moved), before, "samples after reading")
    world.me.run_to_end("true")
    eventually(lambda: counted(moved) < before / 3, lambda: f"{counted(moved)} of {before} samples are left")
    check(counted(moved) >= 2, "the first and the last stay")
