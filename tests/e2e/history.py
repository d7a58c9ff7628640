"""What is known later: the history of the machine, old samples, and the processes of jobs that are over."""

import datetime
import glob
import os
import sqlite3
import time

from harness import check, each, equal, eventually, need_root, test


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
    world.configure("sampling:\n  interval: 10ms\nstorage:\n  thin_to: 10m\n")
    # Uneven enough, and sampled often enough, that the thinned series is the smaller one.
    uneven = "import os, random, time\nend = time.time() + 8\nwhile time.time() < end:\n    kept = os.urandom(random.randrange(1 << 22)); time.sleep(random.random() / 50)"
    job = world.me.run_to_end(world.python, "-c", uneven)["job"]["id"]
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
    # A job that ends at once needs no daemon: this one lasts until there is one.
    lasting = world.me.run("sleep", "1000")
    world.me.daemon_pid()
    eventually(lambda: counted(moved) < before / 3, lambda: f"{counted(moved)} of {before} samples are left")
    check(counted(moved) >= 2, "the first and the last stay")
    world.me.met("cancel", lasting).ok()


def seen_to_end(user, *command):
    """A job that ends when there is a file `go`, which is made when its processes have been seen."""
    job = user.run(*command)
    eventually(lambda: user.show(job)["job"]["as_of"], "a daemon samples it")
    open(user.path("go"), "w").close()
    user.met("wait", job).ok()
    os.unlink(user.path("go"))
    return user.show(job)


@test
def the_processes_of_a_job_that_is_over_are_known(world):
    """Its own and short ones; by their ends where the kernel reports these, else by looks at them."""
    job = seen_to_end(world.me, world.python, "-c", "import os, subprocess, time\n"
                      "while not os.path.exists('go'): time.sleep(0.05)\n"
                      "end = time.process_time() + 0.3\n"
                      "while time.process_time() < end: pass\n"
                      "text = 'x = 0\\nfor i in range(3000000): x += i'\n"
                      "subprocess.run([__import__('sys').executable, '-S', '-E', '-c', text])\n"
                      "time.sleep(1.5)")
    kept = job["processes"]
    main = next((process for process in kept if process["start"] == min(one["start"] for one in kept)), None)
    check(main and main["memory_peak_bytes"] > 1 << 20, kept)
    # By ticks where its end is not reported.
    check(0.28 <= main["cpu_seconds"] <= job["totals"]["cpu_seconds"] + 0.02, f"CPU time of the first process: {job}")
    equal({process["uid"] for process in kept}, {os.getuid()}, "users")
    check(all(process["command"] and process["pid"] > 1 for process in kept), kept)
    largest = [process["cpu_seconds"] for process in kept]
    equal(largest, sorted(largest, reverse=True), "by CPU time")
    if os.getuid() == 0:
        check(len(kept) >= 2, f"a child between two looks: {kept}")
        check(all(process["end"] >= process["start"] for process in kept), kept)
    shown = world.me.met("ps", job["job"]["id"]).ok().out
    for process in kept:
        check(str(process["pid"]) in shown, f"{process['pid']} in {shown}")


@test
def a_job_is_found_by_one_of_its_processes(world):
    ran = seen_to_end(world.me, world.python, "-c", "import os, time\nwhile not os.path.exists('go'): time.sleep(0.05)")
    pid = ran["processes"][0]["pid"]
    equal(world.me.show(f"pid:{pid}")["job"]["id"], ran["job"]["id"], "the job of a process that is over")
    job = world.me.run("sh", "-c", "echo $$ > pid; sleep 1000 & echo $! > child; wait")
    for name in ("pid", "child"):
        eventually(lambda: world.me.appears(name).strip(), f"{name} is written")
        pid = world.me.appears(name).strip()
        equal(world.me.show(f"pid:{pid}")["job"]["id"], job, f"the job of {name}")
    world.me.met("show", "pid:1").refused("process 1", "met list")
    # Nothing is ended or removed by a number that may be given again.
    world.me.met("cancel", f"pid:{pid}").refused("met show pid:")
    world.me.met("rm", f"pid:{pid}").refused("met show pid:")
    check(pid in world.me.met("ps", f"pid:{pid}").ok().out, "its processes")
    world.me.met("cancel", job).ok()


@test
def lists_are_narrowed_to_a_user_by_number(world):
    job = world.me.run_to_end("true")["job"]["id"]
    of = lambda user: [one["job"]["id"] for one in world.me.jobs("--user", str(user))]
    equal(of(os.getuid()), [job], "own jobs")
    equal(of(os.getuid() + 1), [], "jobs of somebody else")


@test
def nobody_sees_the_processes_of_others(world):
    need_root()
    world.start_system_daemon()
    other = world.someone()
    job = world.me.run_to_end("sleep", "1.2")
    pid = job["processes"][0]["pid"]
    other.met("show", job["job"]["id"]).refused()
    other.met("ps", job["job"]["id"]).refused()
    other.met("show", f"pid:{pid}").refused(f"process {pid}")


@test
def what_is_not_known_of_the_processes_of_a_finished_job_is_not_shown_as_known(world):
    """Without exit records: one that waits to be reaped has no memory, and the figures of all are those of a look."""
    need_root()
    world.configure("sampling:\n  interval: 100ms\n")
    user = world.someone()
    text = ("import os, time\n"
            "if os.fork() == 0: os._exit(0)\n"
            "end = time.monotonic() + 1.5\n"
            "while time.monotonic() < end: pass\n"
            "os.wait()")
    job = user.run_to_end(world.python, "-c", text, "first argument")
    kept = job["processes"]
    check(all(process.get("memory_peak_bytes") != 0 for process in kept), kept)
    equal({process["quality"] for process in kept}, {"lower_bound"}, "quality")
    main = max(kept, key=lambda process: process["cpu_seconds"])
    check(main["start"] < main["end"] <= job["job"]["end"], f"the end of the main process: {main} {job}")
    equal(main["command_line"][0], world.python, "command line")
    shown = user.met("ps", job["job"]["id"]).ok().out
    check("≥" in shown and "lower bound" in shown and f"{world.python} -c" in shown, shown)
    check(not shown.endswith("\n\n") and " 0 B  " not in shown.split("READ")[0], shown)


@each(directory=os.mkdir, fifo=os.mkfifo)
def a_day_whose_file_cannot_be_read_hides_no_other_day(world, make):
    world.configure("storage:\n  node_series: true\n  interval: 1s\n")
    job = world.run("sleep", "1000")
    world.daemon_pid()
    history = lambda: samples_of(world.met("node", "--since", "7d", "--json").ok().json()["series"], "node")
    eventually(history, "samples of the machine")
    world.met("cancel", job).ok()
    folder = os.path.join(world.me.store_folder(), "series")
    make(os.path.join(folder, time.strftime("%Y-%m-%d.db", time.gmtime(time.time() - 2 * 86_400))))
    world.met("daemon", "--user", "--stop")
    check(history(), "samples of today")
    shown = world.met("node", "--since", "7d").ok()
    check("samples of" in shown.err and "are skipped" in shown.err, f"a note: {shown.err!r}")
    check("nothing in this store" not in shown.err, shown.err)
    world.met("show", job).ok()
    finding = next(one for one in world.met("doctor", "--json").json() if one["what"] == "store")
    check(finding["health"] != "ok" and "cannot be read" in finding["detail"], finding)
