"""Whatever is killed, filled or damaged: no job is lost and no total is wrong."""

import contextlib
import ctypes
import fcntl
import os
import random
import re
import signal
import threading
import time

from accounting import CPU_SHARE, state_of, truth
from harness import DEADLINE_S, Skip, alive, check, close_to, each, equal, eventually, marked, need_root, test


@contextlib.contextmanager
def no_daemon(world, job):
    """Kills the daemon and holds its lock, so that no other takes over."""
    main = int(re.search(r"^(\d+)", world.met("ps", job).ok().out, re.MULTILINE).group(1))
    supervisor, daemon = world.supervisor_of(main), world.daemon_pid()
    # It would start another daemon at once.
    os.kill(supervisor, signal.SIGSTOP)
    os.kill(daemon, signal.SIGKILL)
    with open(os.path.join(world.runtime, "met", "daemon.lock"), "r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.kill(supervisor, signal.SIGCONT)
        yield


@test
def a_killed_daemon_costs_nothing_but_samples(world):
    world.configure("sampling:\n  interval: 100ms\nstorage:\n  interval: 100ms\n")
    job = world.run(*world.workload("steady", "cpu", "stop"))
    first = world.daemon_pid()
    eventually(lambda: world.show(job)["totals"].get("cpu_seconds", 0) > 0.3, "it is being sampled")
    with no_daemon(world, job):
        equal(world.state_of(job), "running", "state without a daemon")
        time.sleep(2)
    second = world.daemon_pid()
    check(second != first, "the same daemon")
    seen = world.show(job)["totals"]["cpu_seconds"]
    eventually(lambda: world.show(job)["totals"]["cpu_seconds"] > seen + 0.3, "it is being sampled again")
    open(world.path("stop"), "w").close()
    world.met("wait", job).ok()
    record = world.show(job)
    equal(record["job"]["state"], "finished", "state")
    close_to(record["totals"]["cpu_seconds"], truth(world), CPU_SHARE, "CPU")
    # Zeros in the gap would pull the mean below what there always was: one process.
    close_to(record["average"]["processes_running"], 1, 0.001, "mean number of processes")
    equal(len(world.jobs()), 1, "jobs")


@test
def a_job_that_ends_while_its_daemon_is_dead_is_recorded(world):
    job = world.run("sh", "-c", "while [ ! -e go ]; do sleep 0.02; done; exit 4")
    world.daemon_pid()
    with no_daemon(world, job):
        open(world.path("go"), "w").close()
        world.met("wait", job).expect(4)
    record = world.show(job)
    equal((record["job"]["state"], record["job"]["exit_code"]), ("failed", 4), "state and exit code")


def lose_supervisor(world, user, with_daemon):
    """A job with a child whose supervisor is killed; its id and its pids."""
    script = "sleep 1000 & echo $$ $! > pids.part; mv pids.part pids; wait"
    job = user.run("sh", "-c", script)
    pids = [int(pid) for pid in user.appears("pids").split()]
    daemon = user.daemon_pid()
    supervisor = user.supervisor_of(pids[0])
    if not with_daemon:
        user.met("daemon", "--user", "--stop").ok()
        eventually(lambda: not alive(daemon), "the daemon is gone")
    os.kill(supervisor, signal.SIGKILL)
    user.wait_for_state(job, "lost")
    check(all(map(alive, pids)), "its processes were killed")
    return job, pids


@each(
    with_a_cgroup=("me", True),
    with_a_cgroup_and_no_daemon=("me", False),
    without_a_cgroup=("someone", True),
    without_a_cgroup_and_no_daemon=("someone", False),
)
def a_job_whose_supervisor_was_killed_is_lost_and_cancellable(world, who, with_daemon):
    user = world.me if who == "me" else world.someone()
    job, pids = lose_supervisor(world, user, with_daemon)
    shown = user.met("show", job).ok().out
    check("lost" in shown and all(str(pid) in shown for pid in pids), "met show does not name them:", shown)
    check("running" not in user.met("list").ok().out, "listed as running")
    result = user.met("wait", job)
    check(result.code != 0 and "lost" in result.err, f"met wait: {result.code} {result.err!r}")
    user.met("cancel", job).ok()
    check(not any(map(alive, pids)), "met cancel leaves processes alive")
    ended = user.show(job)
    equal(ended["job"]["state"], "cancelled", "state")
    check(ended["totals"]["wall_seconds"] > 0 and ended["job"]["end"], "its end is not known")
    check("memory_needed_bytes" not in ended["average"], f"a mean of a part of its life: {ended['average']}")
    user.stop_daemon()
    equal(user.state_of(job), "cancelled", "state in the store")
    check("has already ended (cancelled)" in user.met("cancel", job).ok().out, "ended twice")
    check("Still alive" not in user.met("show", job).ok().out, "met show names dead processes")


@each(by_its_user="user", by_root="root")
def a_lost_job_of_the_machines_daemon_is_cancelled(world, by):
    world.start_system_daemon()
    user = world.someone()
    job = user.run("sh", "-c", "echo $$ > pid.part; mv pid.part pid; sleep 1000 & wait")
    main = int(user.appears("pid"))
    os.kill(user.supervisor_of(main), signal.SIGKILL)
    user.wait_for_state(job, "lost")
    (user if by == "user" else world.me).met("cancel", job).ok()
    check(not alive(main), "it is still alive")
    for who in (user, world.me):
        shown = who.show(job)
        equal((shown["job"]["state"], shown["job"]["user"]), ("cancelled", user.name), "state and user")
        check(shown["totals"]["wall_seconds"] > 0 and shown["totals"].get("cpu_seconds") is not None, shown["totals"])


@test
def the_cgroup_of_a_lost_job_goes_with_its_last_process(world):
    _, pids = lose_supervisor(world, world.me, True)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: not any(map(alive, pids)), "they are dead")


@test
def killing_the_daemon_while_it_writes_loses_no_job(world):
    world.configure("sampling:\n  interval: 20ms\nstorage:\n  interval: 100ms\n")
    started, over = [], threading.Event()

    def start_jobs():
        while not over.is_set():
            started.append(world.run("sh", "-c", "exit 3"))

    starters = [threading.Thread(target=start_jobs) for _ in range(2)]
    for starter in starters:
        starter.start()
    chance, kills, end = random.Random(1), 0, time.monotonic() + 60
    while kills < 40 and time.monotonic() < end:
        for pid in world.daemon_pids():
            time.sleep(chance.random() * 0.08)
            try:
                os.kill(pid, signal.SIGKILL)
                kills += 1
            except ProcessLookupError:
                pass
    over.set()
    for starter in starters:
        starter.join()
    check(kills >= 20, f"only {kills} daemons could be killed")
    result = world.met("wait", *started)
    check(result.code == 3, f"{result.code}: {result.err}; {os.listdir(world.store_folder())}")
    jobs = world.jobs()
    equal(sorted(int(job["job"]["id"]) for job in jobs), sorted(map(int, started)), "jobs")
    equal({(job["job"]["state"], job["job"]["exit_code"]) for job in jobs}, {("failed", 3)}, "states and exit codes")
    check(all(job["totals"].get("wall_seconds") for job in jobs), "a job without totals")
    left = [name for name in os.listdir(world.store_folder()) if "damaged" in name or "corrupt" in name]
    equal(left, [], "databases moved aside")


def fill(folder):
    """Leaves no byte free."""
    with open(os.path.join(folder, "filler"), "wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                pass


def on_a_small_disk(user):
    """In a mount namespace of the test's own: goes away with it."""
    need_root()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(0x20000) != 0:
        raise Skip("no mount namespace can be made")
    libc.mount(b"none", b"/", None, 0x4000 | 0x40000, None)
    if libc.mount(b"tmpfs", user.state.encode(), b"tmpfs", 0, b"size=8m,mode=700") != 0:
        raise Skip("no tmpfs can be mounted")


@each(by_run="run", by_time="time")
def a_full_disk_does_not_lose_the_end_of_a_job(world, how):
    on_a_small_disk(world.me)
    process = world.spawn(how, "--", "sh", "-c", "echo > ready; while [ ! -e go ]; do sleep 0.02; done; exit 7")
    world.appears("ready")
    if how == "run":
        world.finish(process, ("run",)).ok()
        world.daemon_pid()
    fill(world.state)
    open(world.path("go"), "w").close()
    if how == "run":
        world.met("wait", "@last").expect(7)
    else:
        world.finish(process, ("time",)).expect(7)
    equal(world.show("1")["job"]["exit_code"], 7, "exit code, while the disk is full")
    # Its end may have freed a page.
    fill(world.state)
    refused = world.met("run", "--", "true")
    check(refused.code in (1, 2) and len(refused.err.splitlines()) == 1, f"{refused.code}: {refused.err!r}")
    os.unlink(os.path.join(world.state, "filler"))
    record = world.show("1")
    equal((record["job"]["state"], record["job"]["exit_code"]), ("failed", 7), "state and exit code afterwards")
    check(record["totals"]["wall_seconds"] > 0, "no totals")
    world.met("run", "--wait", "--", "true").ok()


def to_a_full_disk(user, *command):
    """Runs met with a standard output that takes nothing."""
    with open("/dev/full", "wb") as full:
        return user.met(*command, stdout=full)


@test
def what_cannot_be_written_is_told_with_where_and_what_to_do(world):
    to_a_full_disk(world, "list").refused("standard output, /dev/full", "No space left", "write elsewhere", code=1)
    to_a_full_disk(world, "doctor", "--json").refused("standard output", code=1)
    world.met("time", "-o", "/dev/full", "--", "true").refused("report to /dev/full", "met show 1", code=1)
    world.met("time", "-o", "/dev/full", "--", "sh", "-c", "exit 7").refused("report to /dev/full", code=7)
    with open("/dev/full", "wb") as full:
        for options in ((), ("--json",), ("--no-record",)):
            equal(world.met("time", *options, "--", "true", stderr=full).code, 1, f"code without a report, {options}")
            equal(world.met("time", *options, "--", "sh", "-c", "exit 7", stderr=full).code, 7, "that of the job")
        equal(world.met("time", "--quiet", "--", "true", stderr=full).code, 0, "code where none was asked for")


@test
def a_job_that_is_not_kept_has_no_number(world):
    said = world.met("time", "--no-record", "-n", "once", "--", "true").ok().err
    check(said.splitlines()[0].startswith("Job  once "), said)


@test
def of_a_store_that_cannot_be_read_nothing_is_claimed(world):
    world.met("time", "--quiet", "--", "true").ok()
    world.met("rm", "1").ok()
    store = os.path.join(world.store_folder(), "store.db")
    for name in os.listdir(world.store_folder()):
        if name.startswith("store.db"):
            os.unlink(os.path.join(world.store_folder(), name))
    os.mkdir(store)
    for command in (("list",), ("list", "--json"), ("show", "@last")):
        result = world.met(*command).refused("store.", code=1)
        equal(result.out, "", f"output of {command}")
    os.rmdir(store)
    check("no jobs yet" in world.met("list").ok().out, "an empty store")


@test
def a_lost_job_whose_processes_run_is_not_forgotten(world):
    job = world.run("sh", "-c", "echo $$ > pid.part; mv pid.part pid; sleep 1000")
    pid = int(world.appears("pid"))
    os.kill(world.supervisor_of(pid), signal.SIGKILL)
    world.wait_for_state(job, "lost")
    world.met("rm", job).refused("2 processes are still running", f"met cancel {job}")
    check(alive(pid), "it was ended")
    world.met("cancel", job).ok()
    world.met("rm", job).ok()
    equal(world.jobs(), [], "jobs")


@test
def a_job_whose_id_could_not_be_told_is_named_on_stderr(world):
    for options in (["--print-id"], []):
        to_a_full_disk(world, "run", *options, "--", "sleep", "1000").refused("met cancel", "/dev/full", code=1)
        (job,) = [one["job"]["id"] for one in world.jobs("--state", "running")]
        to_a_full_disk(world, "run", *options, "--wait", "--", "sh", "-c", "exit 7").expect(7)
        world.met("cancel", job).ok()
    process = world.start("sleep", "1000")
    to_a_full_disk(world, "attach", "--print-id", str(process.pid)).refused("met detach", code=1)
    (job,) = [one["job"]["id"] for one in world.jobs("--state", "running")]
    world.met("cancel", job).ok()
    process.communicate()


@test
def on_a_full_disk_a_job_is_refused_and_met_time_runs_it_unremembered(world):
    on_a_small_disk(world.me)
    fill(world.state)
    folder = os.path.join(world.state, "met")
    world.met("run", "--", "true").refused(folder, "No space left", "free space", code=1)
    result = world.met("time", "--quiet", "--", "sh", "-c", "echo hello; exit 7").expect(7)
    equal(result.out, "hello\n", "output")
    check("not be recorded" in result.err and folder in result.err, result.err)
    # To read takes no space.
    check("no jobs yet" in world.met("list").ok().out, "it was not remembered")
    os.remove(os.path.join(world.state, "filler"))


@test
def killing_met_time_leaves_the_job_running_and_recorded(world):
    process = world.spawn("time", "--", "sh", "-c", "echo $$ > ready; while [ ! -e go ]; do sleep 0.02; done; exit 5")
    world.appears("ready")
    process.kill()
    process.wait()
    pid = int(eventually(lambda: world.read("ready").strip(), "its pid"))
    check(alive(pid), "the job was killed too")
    equal(world.state_of("@last"), "running", "state")
    open(world.path("go"), "w").close()
    world.met("wait", "@last").expect(5)
    record = world.show()
    equal((record["job"]["state"], record["job"]["exit_code"]), ("failed", 5), "state and exit code")
    check(record["totals"]["cpu_seconds"] > 0, "no CPU")


@test
def killing_a_waiting_met_run_leaves_the_job_running(world):
    process = world.spawn("run", "--wait", "--", "sh", "-c", "while [ ! -e go ]; do sleep 0.02; done; exit 5")
    eventually(lambda: world.jobs(), "the job runs")
    process.kill()
    process.communicate()
    open(world.path("go"), "w").close()
    world.met("wait", "@last").expect(5)


@test
def a_damaged_database_is_moved_aside_and_reported(world):
    world.met("run", "--wait", "--", "true").ok()
    world.stop_daemon()
    world.me.import_jobs()
    equal(len(world.jobs()), 1, "jobs")
    store = os.path.join(world.store_folder(), "store.db")
    for suffix in ("-wal", "-shm"):
        if os.path.exists(store + suffix):
            os.unlink(store + suffix)
    with open(store, "r+b") as file:
        file.write(b"this is no database " * 100)
    damaged = open(store, "rb").read()
    # Whether the job can still be read depends on where it is in the file.
    result = world.met("list")
    check("damaged" in result.err and result.err.startswith("met: "), f"not reported: {result.err!r}")
    equal(open(store, "rb").read(), damaged, "a list leaves it as it is")
    world.met("run", "--wait", "--", "true").ok()
    # A daemon may have been too late for so short a job, and imports such ends only now and then.
    world.stop_daemon()
    world.me.import_jobs()
    others = lambda: [name for name in os.listdir(world.store_folder()) if name.startswith("store.db.damaged")]
    kept = lambda: [name for name in others() if open(os.path.join(world.store_folder(), name), "rb").read() == damaged]
    eventually(lambda: len(kept()) == 1, lambda: f"one copy of the damaged database among {others()}")
    job = world.show()
    equal(job["job"]["state"], "finished", "state of a new job")


@test
def a_database_of_a_newer_version_is_refused_and_left_alone(world):
    try:
        import sqlite3
    except ImportError:
        raise Skip("this python has no sqlite3") from None
    world.met("run", "--wait", "--", "true").ok()
    world.stop_daemon()
    equal(len(world.jobs()), 1, "jobs")
    store = os.path.join(world.store_folder(), "store.db")
    with sqlite3.connect(store) as database:
        (version,) = database.execute("PRAGMA user_version").fetchone()
        database.execute("PRAGMA user_version = 999")
        database.execute("UPDATE meta SET value = '999' WHERE name = 'schema'")
    database.close()
    world.met("list").refused("newer")
    # A job is accounted for all the same: its end waits in the inbox.
    world.met("time", "--quiet", "--", "sh", "-c", "exit 3").expect(3)
    with sqlite3.connect(store) as database:
        database.execute(f"PRAGMA user_version = {version}")
        database.execute("UPDATE meta SET value = ? WHERE name = 'schema'", (str(version),))
    database.close()
    equal([job["job"]["exit_code"] for job in world.jobs()], [3, 0], "jobs afterwards")


@test
def a_database_whose_creation_was_interrupted_is_begun_again(world):
    try:
        import sqlite3
    except ImportError:
        raise Skip("this python has no sqlite3") from None
    world.met("time", "--quiet", "--", "sh", "-c", "exit 3").expect(3)
    store = os.path.join(world.store_folder(), "store.db")
    pid = os.fork()
    if pid == 0:
        # Killed in the middle of its first transaction, which is not in the log yet.
        database = sqlite3.connect(store, isolation_level=None)
        database.execute("PRAGMA cache_size = 1")
        database.execute("BEGIN")
        database.execute("CREATE TABLE half (done BLOB)")
        for _ in range(100):
            database.execute("INSERT INTO half VALUES (zeroblob(10000))")
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    check(os.path.getsize(store + "-journal") > 0 and os.path.getsize(store) > 0, "nothing was half done")
    equal([job["job"]["exit_code"] for job in world.jobs()], [3], "exit codes")
    world.met("run", "--wait", "--", "true").ok()
    equal([job["job"]["exit_code"] for job in world.jobs()], [0, 3], "exit codes")


@test
def the_socket_of_a_killed_daemon_is_replaced(world):
    job = world.run("sleep", "1000")
    first = world.daemon_pid()
    world.met("cancel", job).ok()
    os.kill(first, signal.SIGKILL)
    eventually(lambda: not world.daemon_pids(), "no daemon runs")
    check(os.path.exists(world.socket()), "a killed daemon has no time to remove its socket")
    equal(world.state_of(job), "cancelled", "state")
    job = world.run("sleep", "1000")
    check(world.daemon_pid() != first, "the same daemon")
    world.met("cancel", job).ok()


@test
def a_daemon_that_does_not_answer_does_not_stop_a_job(world):
    job = world.run("sh", "-c", "while [ ! -e go ]; do sleep 0.02; done; exit 3")
    daemon = world.daemon_pid()
    end = os.path.join(world.store_folder(), "jobs", job, "end")
    os.kill(daemon, signal.SIGSTOP)
    try:
        open(world.path("go"), "w").close()
        # While the daemon is stopped: the job goes on to its end, and its end is on disk.
        eventually(lambda: os.path.exists(end), "the end of the job, without the daemon")
        equal(state_of(daemon), b"T", "state of the daemon meanwhile")
    finally:
        os.kill(daemon, signal.SIGCONT)
    world.met("wait", job).expect(3)


def has_pidfd(pid):
    folder = f"/proc/{pid}/fd"
    try:
        return any("pidfd" in os.readlink(os.path.join(folder, name)) for name in os.listdir(folder))
    except OSError:
        return False


@test
def wait_lasts_until_the_end_is_handed_over(world):
    """Between the end on disk and the daemon's reply, `met show` would not have what the daemon adds."""
    job = world.run("sh", "-c", "while [ ! -e go ]; do sleep 0.02; done; exit 3")
    main = int(re.search(r"^(\d+)", world.met("ps", job).ok().out, re.MULTILINE).group(1))
    supervisor, daemon = world.supervisor_of(main), world.daemon_pid()
    end = os.path.join(world.store_folder(), "jobs", job, "end")
    os.kill(daemon, signal.SIGSTOP)
    try:
        open(world.path("go"), "w").close()
        eventually(lambda: os.path.exists(end), "the end is on disk")
        # It waits for the daemon's reply, and does not read it.
        os.kill(supervisor, signal.SIGSTOP)
    finally:
        os.kill(daemon, signal.SIGCONT)
    try:
        eventually(lambda: world.state_of(job) == "failed", "the job has ended for all readers")
        wait = world.spawn("wait", job)

        def waits():
            check(wait.poll() is None, f"met wait has returned {wait.returncode}; the supervisor is still there")
            return has_pidfd(wait.pid)

        eventually(waits, "met wait waits for the supervisor")
    finally:
        os.kill(supervisor, signal.SIGCONT)
    wait.communicate(timeout=DEADLINE_S)
    equal(wait.returncode, 3, "exit code of met wait")


@test
def a_job_after_a_reboot_is_lost(world):
    job = world.run("sleep", "1000")
    world.daemon_pid()
    # Until it is gone: what is left after the job has been cancelled is the job's.
    world.stop_daemon()
    folder = os.path.join(world.store_folder(), "jobs", job)
    with open(os.path.join(folder, "start")) as file:
        record = file.read()
    boot = open("/proc/sys/kernel/random/boot_id").read().strip()
    check(boot in record.replace('"', ""), "no boot id in the record")
    # What a reboot leaves: the record of a start, of another boot.
    later = {pid: command for pid, command in marked(world.token).items()}
    world.met("cancel", job).ok()
    # Its supervisor goes when it has written the end.
    eventually(lambda: not any(map(alive, later)), "no process is left")
    equal(world.state_of(job), "cancelled", "state")
    second = world.run("true")
    world.met("wait", second).ok()
    world.stop_daemon()
    newest = os.path.join(world.store_folder(), "jobs", str(int(second) + 1))
    os.mkdir(newest, 0o700)
    past = re.sub(f'"id":"{job}"', f'"id":"{int(second) + 1}"', record).replace(boot, boot[::-1])
    with open(os.path.join(newest, "start"), "w") as file:
        file.write(past)
    equal(world.state_of(str(int(second) + 1)), "lost", "state of a job of another boot")


@test
def an_end_written_while_jobs_are_listed_is_not_lost(world):
    over = threading.Event()

    def list_jobs():
        while not over.is_set():
            world.met("list").ok()

    listers = [threading.Thread(target=list_jobs) for _ in range(2)]
    for lister in listers:
        lister.start()
    for _ in range(60):
        world.met("time", "--quiet", "--", "sh", "-c", "exit 3").expect(3)
    over.set()
    for lister in listers:
        lister.join()
    found = {(job["job"]["state"], job["job"]["exit_code"]) for job in world.jobs()}
    equal(found, {("failed", 3)}, "states and exit codes")


@test
def a_daemon_that_hangs_does_not_stretch_a_job(world):
    first = world.run("sleep", "1000")
    daemon = world.daemon_pid()
    os.kill(daemon, signal.SIGSTOP)
    try:
        began = time.monotonic()
        job = world.met("run", "--print-id", "--", *world.workload("burning", "cpu", 0.1)).ok().out.strip()
        eventually(lambda: os.path.exists(world.path("cpu")), "the job ran")
        ran_s = time.monotonic() - began
        # Far longer than the job took, on a slow machine too.
        time.sleep(2 + 2 * ran_s)
    finally:
        os.kill(daemon, signal.SIGCONT)
    world.met("wait", job).expect(0)
    wall = world.show(job)["totals"]["wall_seconds"]
    check(wall < 1 + 2 * ran_s, f"wall {wall} s, ran at most {ran_s} s")
    world.met("cancel", first).ok()


@test
def a_job_that_kills_its_supervisor_was_started(world):
    result = world.met("run", "--wait", "--", "sh", "-c", "kill -KILL $PPID")
    result.expect(1)
    check("the supervisor of job 1 died, so its exit code is unknown" in result.err, f"said: {result.err!r}")
    check("before it started" not in result.err, f"said: {result.err!r}")
    world.wait_for_state("1", "lost")
