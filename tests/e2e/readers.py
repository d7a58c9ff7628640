"""Commands that read write nothing: on a read-only mount, on a full disk, beside writers, from a daemon."""

import contextlib
import ctypes
import glob
import os
import signal
import threading

from harness import Skip, alive, check, each, equal, eventually, homes, need_root, test
from robustness import fill, on_a_small_disk

#: Every command that reads, for jobs 1 to 3; the GPUs and the machine as they are now need no store.
READING = [("list",), ("list", "all"), ("list", "cpu"), ("list", "io"), ("list", "mem"), ("list", "energy"),
           ("list", "gpu"), ("list", "--json"), ("list", "all", "--csv"), ("list", "--since", "1h"),
           ("show", "1", "--json"), ("show", "2"), ("show", "@last"), ("logs", "1"), ("wait", "1"), ("gpus", "--json"),
           ("node", "--json"), ("node", "--since", "1h", "--json"), ("node", "--since", "1h", "--csv"),
           ("emissions",), ("doctor", "--json"), ()]
FAST = "sampling:\n  interval: 50ms\nstorage:\n  interval: 100ms\n  node_series: yes\n"
#: Nothing is written but at the end of a job.
NEVER = "sampling:\n  interval: 50ms\nstorage:\n  interval: 1h\n  node_series: yes\n"


@contextlib.contextmanager
def read_only(folder):
    """Seen by this test and what it starts from now on; processes that run already can still write there."""
    need_root()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(0x20000) != 0:
        raise Skip("no mount namespace can be made")
    libc.mount(b"none", b"/", None, 0x4000 | 0x40000, None)
    bind, remount = 0x1000, 0x1000 | 0x20 | 0x1
    path = folder.encode()
    if libc.mount(path, path, None, bind, None) != 0 or libc.mount(None, path, None, remount, None) != 0:
        raise Skip("nothing can be mounted read-only")
    try:
        yield
    finally:
        libc.umount2(path, 2)


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


def answers(world, env=None, jobs=("1", "2", "3"), reading=READING):
    """Every reading command succeeds and says what is so."""
    for command in reading:
        result = world.met(*command, env=env).ok()
        check("rror" not in result.err and "damaged" not in result.err, f"{command}: {result.err}")
    equal(ids(world.met("list", "--json", env=env)), sorted(jobs), "jobs")
    equal(world.met("logs", "1", env=env).ok().out, "hello\n", "output of a job")
    shown = world.met("show", "1", "--json", env=env).ok().json()
    equal((shown["job"]["state"], shown["totals"]["wall_seconds"] > 0.3), ("finished", True), "a job")


def without_daemon(world):
    """An environment in which a daemon that runs is not found: the files are read."""
    other = world.path("elsewhere")
    os.makedirs(other, 0o700, exist_ok=True)
    return {"XDG_RUNTIME_DIR": other}


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
    # The factors are asked of a daemon that runs, or nobody.
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
    env = without_daemon(world)
    store = os.path.join(world.store_folder(), "series")
    with read_only(world.state):
        check(not os.access(world.store_folder(), os.W_OK), "it can be written")
        before = listing(store)
        answers(world, env, ("1", "2", "3", sampled))
        eventually(lambda: listing(store) != before, "the daemon writes behind the other mount")
        answers(world, env, ("1", "2", "3", sampled))
    open(world.path("go"), "w").close()
    world.met("wait", sampled).ok()


@test
def eight_readers_beside_a_writer_see_every_job_that_had_ended(world):
    world.configure(FAST)
    world.met("run", "--wait", "--", "true").ok()
    world.daemon_pid()
    env, ended, problems, is_over = without_daemon(world), [1], [], threading.Event()

    def read(own):
        while not is_over.is_set():
            before = ended[0]
            result = world.met("list", "--json", env=env if own else None)
            if result.code != 0 or result.err:
                problems.append(f"{result}: {result.err}")
            elif not before <= len(result.json()) <= ended[0] + 1:
                problems.append(f"{len(result.json())} jobs, of {before} that had ended before")

    # Half of them read the files, half ask the daemon.
    readers = [threading.Thread(target=read, args=(number % 2 == 0,)) for number in range(8)]
    for reader in readers:
        reader.start()
    try:
        for _ in range(20):
            world.met("run", "--wait", "--", "true").ok()
            ended[0] += 1
    finally:
        is_over.set()
        for reader in readers:
            reader.join()
    equal(problems, [], "problems of readers")


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
        world.met("run", "--wait", "--", "true").ok()
        world.daemon_pid()
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
