"""Commands that read write nothing: on a read-only mount, on a full disk, beside writers, from a daemon."""

import contextlib
import ctypes
import glob
import os
import signal
import threading
import time

from harness import Skip, alive, check, each, equal, eventually, homes, need_root, test
from robustness import fill, on_a_small_disk

#: Every command that reads, for jobs 1 to 3; the GPUs and the machine as they are now need no store.
READING = [("list",), ("list", "all"), ("list", "cpu"), ("list", "io"), ("list", "mem"), ("list", "energy"),
           ("list", "gpu"), ("list", "--json"), ("list", "all", "--csv"), ("list", "--since", "1h"),
           ("show", "1", "--json"), ("show", "2"), ("show", "@last"), ("logs", "1"), ("wait", "1"), ("gpus", "--json"),
           ("node", "--json"), ("node", "--since", "1h", "--json"), ("node", "--since", "1h", "--csv"),
           ("emissions",), ("doctor", "--json"), (), ("list", "--sort", "cpu:desc"), ("usage", "--json"), ("who", "--json"),
           ("check", "--json"), ("explain", "1", "--json"), ("compare", "1", "2", "--json"), ("scale", "1", "--json"),
           ("export", "1", "--format", "csv", "-o", "-"), ("ps", "1"), ("mute",), ("show", "1", "--html", "-"),
           ("config", "--current")]
FAST = "sampling:\n  interval: 50ms\nstorage:\n  interval: 100ms\n  node_series: yes\n"
#: Nothing is written but at the end of a job.
NEVER = "sampling:\n  interval: 50ms\nstorage:\n  interval: 1h\n  node_series: yes\n"


BIND, REMOUNT_READ_ONLY, PRIVATE = 0x1000, 0x1000 | 0x20 | 0x1, 0x4000 | 0x40000


def own_mounts(read_only=None, hidden=None):
    """From now on this process and what it starts see one folder read-only and another one empty; whether that works."""
    need_root()
    libc = ctypes.CDLL(None, use_errno=True)

    def enter():
        made = libc.unshare(0x20000) == 0 and libc.mount(b"none", b"/", None, PRIVATE, None) == 0
        if made and read_only:
            path = read_only.encode()
            made = libc.mount(path, path, None, BIND, None) == 0 and libc.mount(None, path, None, REMOUNT_READ_ONLY, None) == 0
        return made and (not hidden or libc.mount(b"none", hidden.encode(), b"tmpfs", 0, None) == 0)

    return enter


@contextlib.contextmanager
def read_only(folder, hidden=None):
    """Seen by this test and what it starts from now on; processes that run already can still write there."""
    if not own_mounts(folder, hidden)():
        raise Skip("nothing can be mounted read-only")
    try:
        yield
    finally:
        libc = ctypes.CDLL(None, use_errno=True)
        for path in filter(None, (hidden, folder)):
            libc.umount2(path.encode(), 2)


def reader_of_files(world, read_only):
    """Options of a command that finds no daemon, though one runs: it reads the files, which it may be unable to write."""
    enter = own_mounts(world.state if read_only else None, world.me.env["XDG_RUNTIME_DIR"])
    world.met("daemon", "--user", "--status", preexec=enter).refused("no daemon is running")
    return {"preexec": enter}


def listing(folder):
    """The files with their sizes and times of change."""
    paths = glob.glob(os.path.join(folder, "**"), recursive=True, include_hidden=True) \
        if "include_hidden" in glob.glob.__code__.co_varnames else glob.glob(os.path.join(folder, "**"), recursive=True)
    return {path: (os.stat(path).st_size, os.stat(path).st_mtime_ns) for path in paths if os.path.isfile(path)}


def ids(result):
    return sorted(job["job"]["id"] for job in result.ok().json())


def three_jobs(world):
    """Two jobs that a daemon sampled, and one in the inbox. The daemon is left running."""
    for _ in range(2):
        world.met("run", "--wait", "--", "sh", "-c", "echo hello; sleep 0.3").ok()
    world.met("time", "--quiet", "--", "true").ok()
    return world.daemon_pid()


def answers(world, jobs=("1", "2", "3"), reading=READING):
    """Every reading command succeeds and says what is so."""
    for command in reading:
        result = world.met(*command).ok()
        check("rror" not in result.err and "damaged" not in result.err, f"{command}: {result.err}")
    equal(ids(world.met("list", "--json")), sorted(jobs), "jobs")
    equal(world.met("logs", "1").ok().out, "hello\n", "output of a job")
    shown = world.met("show", "1", "--json").ok().json()
    equal((shown["job"]["state"], shown["totals"]["wall_seconds"] > 0.3), ("finished", True), "a job")


def crash(world, daemon):
    """What a crash of the machine leaves: logs, and no shared memory that says what is in them."""
    os.kill(daemon, signal.SIGKILL)
    eventually(lambda: not alive(daemon), "the daemon is gone")
    for name in glob.glob(os.path.join(world.store_folder(), "**", "*-shm"), recursive=True):
        os.unlink(name)
    check(os.path.getsize(os.path.join(world.store_folder(), "store.db-wal")) > 0, "nothing is in the log")


@each(a_stopped_daemon=True, nobody=False)
def a_store_on_a_read_only_mount_is_read_and_stays_as_it_is(world, is_held):
    world.configure(FAST)
    daemon = three_jobs(world)
    if is_held:
        os.kill(daemon, signal.SIGSTOP)
    else:
        crash(world, daemon)
    # The factors are requested from a running daemon only.
    reading = [command for command in READING if not is_held or command != ("emissions",)]
    try:
        with read_only(world.state):
            check(not os.access(world.store_folder(), os.W_OK), "it can be written")
            before = listing(world.store_folder())
            answers(world, reading=reading)
            equal(listing(world.store_folder()), before, "files")
    finally:
        if is_held:
            os.kill(daemon, signal.SIGCONT)


@test
def a_store_on_a_read_only_mount_is_read_beside_a_live_writer(world):
    world.configure(FAST)
    three_jobs(world)
    sampled = world.run("sh", "-c", "while [ ! -e go ]; do sleep 0.02; done")
    store = os.path.join(world.store_folder(), "series")
    with read_only(world.state, world.me.env["XDG_RUNTIME_DIR"]):
        world.met("daemon", "--user", "--status").refused("no daemon is running")
        check(not os.access(world.store_folder(), os.W_OK), "it can be written")
        before = listing(store)
        answers(world, ("1", "2", "3", sampled))
        eventually(lambda: listing(store) != before, "the daemon writes behind the other mount")
        answers(world, ("1", "2", "3", sampled))
    open(world.path("go"), "w").close()
    world.met("wait", sampled).ok()


@test
def eight_readers_beside_a_writer_see_every_job_that_had_ended(world):
    world.configure(FAST)
    three_jobs(world)
    ended, rounds, problems, is_over = [3], [0] * 8, [], threading.Event()
    of_files = reader_of_files(world, read_only=True)

    def reading(number):
        # Half of them read the files and could not write, half ask the daemon; each half runs every command.
        options = of_files if number % 2 else {}
        while not is_over.is_set():
            for command in READING[number // 2::4]:
                result = world.met(*command, **options)
                if result.code != 0 or "rror" in result.err or "damaged" in result.err:
                    problems.append(f"{command}: {result}: {result.err}")
                before = ended[0]
                result = world.met("list", "--json", **options)
                if result.code != 0 or result.err:
                    problems.append(f"{result}: {result.err}")
                elif not before <= len(result.json()) <= ended[0] + 1:
                    problems.append(f"{len(result.json())} jobs, of {before} that had ended before")
            rounds[number] += 1

    def writing():
        while not is_over.is_set():
            result = world.met("run", "--wait", "--", "true")
            if result.code != 0:
                problems.append(f"{result}: {result.err}")
            ended[0] += 1

    threads = [threading.Thread(target=reading, args=(number,)) for number in range(8)]
    threads.append(threading.Thread(target=writing))
    for thread in threads:
        thread.start()
    try:
        eventually(lambda: min(rounds) > 0 or problems, lambda: f"all of them read: {rounds}", 150)
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    equal(problems, [], "problems of readers and the writer")
    check(ended[0] > 8, f"the writer wrote beside them: {ended[0]} jobs")


@test
def a_reader_that_is_stopped_at_any_moment_keeps_nobody_from_writing(world):
    world.configure(FAST)
    # One that lasts until there is a daemon.
    first = world.run("sleep", "1000")
    world.daemon_pid()
    world.met("cancel", first).ok()
    of_files = reader_of_files(world, read_only=False)
    for number in range(20):
        reader = world.spawn("list", "--json", **of_files)
        time.sleep(0.003 * number)
        reader.send_signal(signal.SIGSTOP)
        try:
            job = world.run("true")
            world.met("wait", job).ok()
            # It is in the store, and not only in the inbox.
            eventually(lambda: job not in world.waiting(), lambda: f"the daemon keeps its end: {world.waiting()}")
        finally:
            reader.send_signal(signal.SIGCONT)
        equal(len(world.me.finish(reader, ("list",)).ok().json()) in (number + 1, number + 2), True, "jobs")


@each(beside_a_daemon=True, alone=False)
def a_store_that_could_be_written_stays_as_it_is_when_it_is_read(world, has_daemon):
    world.configure(NEVER)
    three_jobs(world)
    if not has_daemon:
        world.stop_daemon()
        # One is left in the inbox.
        world.met("time", "--quiet", "--", "true").ok()
        check(world.waiting(), "nothing is in the inbox")
    jobs = ("1", "2", "3") if has_daemon else ("1", "2", "3", "4")
    # What the daemon does by itself after the last job, such as charging its energy, it does once.
    for last in [False] * 4 * has_daemon + [True]:
        before = listing(world.state)
        answers(world, jobs=jobs)
        after = listing(world.state)
        if after == before:
            break
        check(not last, f"changed: {sorted(set(after.items()) ^ set(before.items()))}")


@each(beside_a_daemon=True, alone=False)
def a_full_disk_is_read_and_stays_as_it_is(world, has_daemon):
    on_a_small_disk(world.me)
    world.configure(NEVER)
    three_jobs(world)
    if not has_daemon:
        world.stop_daemon()
    fill(world.state)
    # What the daemon does by itself after the last job, such as charging its energy, it does once.
    for last in [False] * 4 * has_daemon + [True]:
        before = listing(world.state)
        for command in READING:
            result = world.met(*command)
            # The doctor says that the disk is full.
            check(result.code == 0 or command[:1] == ("doctor",), f"{result}: {result.err}")
        equal(ids(world.met("list", "--json")), ["1", "2", "3"], "jobs")
        equal(world.show("1")["job"]["state"], "finished", "a job")
        equal(world.met("logs", "1").ok().out, "hello\n", "output of a job")
        after = listing(world.state)
        if after == before:
            break
        check(not last, f"changed: {sorted(set(after.items()) ^ set(before.items()))}")
    os.unlink(os.path.join(world.state, "filler"))


@test
def series_of_a_running_job_are_shown_before_they_are_written(world):
    world.configure(NEVER)
    job = world.run("sh", "-c", "while [ ! -e go ]; do :; done")
    world.daemon_pid()
    store = world.store_folder()
    # The first write of the job itself is over when a second list finds the same files.
    before = listing(store)
    machine = lambda: world.met("node", "--since", "1h", "--json").ok().json()["series"]
    eventually(machine, "series of the machine")
    eventually(lambda: world.met("show", job).ok().out.count("▁") + world.met("show", job).ok().out.count("█") > 0,
               lambda: f"a chart: {world.met('show', job).out}")
    samples = [name for name in listing(store) if "series" in os.path.relpath(name, store)]
    equal(samples, [name for name in before if "series" in os.path.relpath(name, store)], "files of samples")
    open(world.path("go"), "w").close()
    world.met("wait", job).ok()
    eventually(lambda: glob.glob(os.path.join(store, "series", "*")), "they are written at its end")


@each(fifo=lambda path: os.mkfifo(path), directory=lambda path: os.mkdir(path),
      device=lambda path: os.mknod(path, 0o20600, os.makedev(1, 5)))
def a_store_that_is_not_a_file_is_refused(world, make):
    need_root()
    world.met("time", "--quiet", "--", "true").ok()
    world.met("rm", "1").ok()
    store = os.path.join(world.store_folder(), "store.db")
    for name in glob.glob(store + "*"):
        os.unlink(name)
    make(store)
    for command in (("list",), ("list", "--json"), ("show", "@last"), ("show", "1")):
        result = world.met(*command).refused("not a regular file", code=1)
        check(store in result.err and result.out == "", f"{result}: {result.err}")
    check("not a regular file" in world.met("doctor").out, "the doctor says it, too")
    (os.rmdir if os.path.isdir(store) else os.unlink)(store)
    check("no jobs yet" in world.met("list").ok().out, "an empty store")


@test
def a_fifo_in_the_place_of_the_lock_holds_nobody_up(world):
    world.met("run", "--wait", "--", "true").ok()
    world.stop_daemon()
    world.me.import_jobs()
    lock = os.path.join(world.store_folder(), "store.lock")
    os.unlink(lock)
    os.mkfifo(lock)
    equal(ids(world.met("list", "--json")), ["1"], "jobs")
    os.unlink(lock)


@test
def of_a_store_of_which_nothing_can_be_read_it_is_not_said_that_it_is_empty(world):
    world.met("run", "--wait", "--", "true").ok()
    world.stop_daemon()
    world.me.import_jobs()
    store = os.path.join(world.store_folder(), "store.db")
    for name in glob.glob(store + "-*"):
        os.unlink(name)
    with open(store, "r+b") as file:
        size = os.path.getsize(store)
        file.write(b"this is not a database " * (size // 23 + 1))
    for command in (("list",), ("list", "--json"), ("show", "@last"), ("show", "1")):
        result = world.met(*command).expect(1)
        check(result.out == "" and "met daemon --user" in result.err, f"{result}: {result.out!r} {result.err!r}")
    # What it names does repair it.
    daemon = world.spawn("daemon", "--user")
    try:
        eventually(lambda: glob.glob(store + ".damaged-*"), "the damaged file was moved aside")
    finally:
        daemon.terminate()
        daemon.communicate()
    check("damaged" in world.met("list").ok().err, "what was lost is said")


def cgroups_of_jobs():
    """The cgroups that met made below this test's own."""
    found = [glob.glob(os.path.join(os.path.dirname(home), "**", "met-*"), recursive=True) for _, home in homes()]
    return sorted({path for paths in found for path in paths if os.path.isdir(path)})


#: Leaves a process behind that ends when the file `go` is there.
LEAVES = ("sh", "-c", "setsid sh -c 'echo $$ > left; while [ ! -e go ]; do sleep 0.02; done' >/dev/null 2>&1 & "
          "while [ ! -e left ]; do sleep 0.02; done")


@each(time_without_record="no-record", removed_without_daemon="rm", removed_from_a_daemon="daemon")
def the_cgroup_of_a_job_without_a_record_is_removed_when_it_is_empty(world, how):
    before = cgroups_of_jobs()
    world.met("time", "--quiet", *(("--no-record",) if how == "no-record" else ()), "--", *LEAVES).ok()
    if cgroups_of_jobs() == before:
        open(world.path("go"), "w").close()
        raise Skip("no cgroup can be made here")
    left = int(world.appears("left"))
    if how == "daemon":
        # A job that ends at once may start no daemon.
        first = world.run("sleep", "1000")
        world.daemon_pid()
        world.met("cancel", first).ok()
    if how != "no-record":
        world.met("rm", "1").ok()
    check(cgroups_of_jobs() != before, "its process is still there")
    open(world.path("go"), "w").close()
    eventually(lambda: not alive(left), "the process is gone")
    if how != "daemon":
        world.met("list").ok()
        check(cgroups_of_jobs() != before, "a list removes nothing")
        world.met("time", "--quiet", "--", "true").ok()
    eventually(lambda: cgroups_of_jobs() == before, lambda: f"{cgroups_of_jobs()} instead of {before}", 150)


@each(by_a_daemon=True, without_one=False)
def the_cgroup_of_a_job_is_removed_however_many_jobs_came_after_it(world, has_daemon):
    """A job left a process behind, before more others than housekeeping looks at in one go."""
    before = cgroups_of_jobs()
    world.met("time", "--quiet", "--", *LEAVES).ok()
    if cgroups_of_jobs() == before:
        open(world.path("go"), "w").close()
        raise Skip("no cgroup can be made here")
    left = int(world.appears("left"))
    for _ in range(70):
        world.met("time", "--quiet", "--", "true").ok()
    if has_daemon:
        world.me.import_jobs()
    check(cgroups_of_jobs() != before, "its process is still there")
    open(world.path("go"), "w").close()
    eventually(lambda: not alive(left), "the process is gone")
    if not has_daemon:
        for _ in range(20):
            world.met("time", "--quiet", "--", "true").ok()
        equal(cgroups_of_jobs(), before, "cgroups")
        return
    job = world.run("sleep", "1000")
    others = lambda: [path for path in cgroups_of_jobs() if f"/met-{job}-" not in path and path not in before]
    eventually(lambda: not others(), lambda: f"{others()} are gone")
    world.met("cancel", job).ok()
