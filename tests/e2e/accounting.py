"""Totals are exact: whatever a job's processes do, whichever process reaps them, with and without a cgroup."""

import json
import os
import shutil
import socket
import struct

from harness import Skip, alive, check, children_of, close_to, each, equal, eventually, need_root, test

MIB = 1 << 20

#: How exact a total of CPU time must be.
CPU_SHARE = 0.03

#: A process is charged for its own end, after it has reported what it used: on a busy machine up to 30 ms, so what
#: is compared takes longer.
INNER_S = 1.5


def truth(user, name="cpu"):
    """The CPU time that the processes of a workload say they used."""
    return sum(float(line) for line in user.read(name).split())


def has_memory_cgroup(job):
    return job["quality"]["memory_peak_bytes"]["source"] == "cgroup"


def run_job(user, how, *command):
    """A job that is sampled every ten seconds, that is, never."""
    if how == "run":
        return user.run_to_end(*command)
    return user.time_to_end(*command, options=("--interval", "10s"))


def five_in_turn(world, user, how, children):
    world.configure("sampling:\n  interval: 10s\n")
    job = run_job(user, how, *world.workload("in_turn", "cpu", 5, 0.4, children))
    equal(job["job"]["exit_code"], 0, "exit code")
    return job


def exact_or_said(user, job, proven=True):
    """Within 3 %, or said to be a lower bound where nothing can know: without perf, or in a disturbed machine. What only
    a perf clock saw is not proven: it is exact and a lower bound all the same."""
    quality, cpu = job["quality"]["cpu_seconds"], job["totals"]["cpu_seconds"]
    if quality["kind"] == "lower_bound" and (proven or "perf" not in quality["source"]):
        allowed = "ok   task clock" in user.met("doctor").ok().out
        taken = user.world.stolen()
        check(not allowed or taken > 0.005 * truth(user), "a lower bound, though perf is allowed")
        check(cpu <= truth(user) * (1 + CPU_SHARE), "more than there was")
        raise Skip(f"the total is said to be a lower bound: perf allowed: {allowed}, stolen: {taken:.2f} s")
    if not proven:
        equal(quality["kind"], "lower_bound", "kind")
    close_to(cpu, truth(user), CPU_SHARE, f"CPU ({quality['source']})")


def series(user, job):
    """The samples of a job by column, as its daemon has them."""
    link = socket.socket(socket.AF_UNIX)
    link.connect(user.socket())

    def ask(request):
        body = json.dumps(request).encode()
        link.sendall(struct.pack("<I", len(body)) + body)
        stream = link.makefile("rb")
        (length,) = struct.unpack("<I", stream.read(4))
        return json.loads(stream.read(length))

    ask({"hello": {"protocol": 3}})
    (record,) = ask({"find": {"id": {"manager": None, "id": job}}})["jobs"]
    course = ask({"course": {"key": record["key"], "after_ms": -(1 << 63)}})["course"]
    link.close()
    return {name: [cell for cell in cells if cell is not None] for name, cells in course["columns"]}


@each(by_run="run", by_time="time")
def short_lived_children_are_counted(world, how):
    job = five_in_turn(world, world.me, how, "reaped")
    close_to(job["totals"]["cpu_seconds"], truth(world), CPU_SHARE, "CPU")
    parts = job["totals"]["cpu_user_seconds"] + job["totals"]["cpu_system_seconds"]
    close_to(parts, job["totals"]["cpu_seconds"], 0.001, "user + system")
    # A cgroup counts whatever is in it. Without one, only what was waited for is known to be all.
    quality = job["quality"]["cpu_seconds"]
    in_cgroup = "ok   job cgroup" in world.met("doctor").ok().out
    check(in_cgroup == ("cgroup" in quality["source"]), quality)
    equal(quality["kind"], "measured" if in_cgroup else "lower_bound", quality)


@each(by_run="run", by_time="time")
def children_of_a_parent_that_ignores_sigchld_are_counted(world, how):
    job = five_in_turn(world, world.me, how, "ignored")
    exact_or_said(world.me, job)


@each(by_run="run", by_time="time")
def short_lived_children_of_a_user_without_cgroups_are_counted(world, how):
    user = world.someone()
    job = five_in_turn(world, user, how, "reaped")
    check(job["quality"]["cpu_seconds"]["source"] != "cgroup", "there is a cgroup after all")
    close_to(job["totals"]["cpu_seconds"], truth(user), CPU_SHARE, "CPU")


@each(by_run="run", by_time="time")
def short_lived_children_on_a_machine_without_cgroups_are_counted(world, how):
    user = world.without_cgroups()
    job = five_in_turn(world, user, how, "reaped")
    check(job["quality"]["cpu_seconds"]["source"] != "cgroup", "there is a cgroup after all")
    close_to(job["totals"]["cpu_seconds"], truth(user), CPU_SHARE, "CPU")


@each(by_run="run", by_time="time")
def ignored_children_of_a_user_without_cgroups_are_counted(world, how):
    user = world.someone()
    job = five_in_turn(world, user, how, "ignored")
    check(job["quality"]["cpu_seconds"]["source"] != "cgroup", "there is a cgroup after all")
    exact_or_said(user, job, proven=False)


@test
def ignored_children_on_a_machine_without_cgroups_are_counted(world):
    user = world.without_cgroups()
    job = five_in_turn(world, user, "run", "ignored")
    check(job["quality"]["cpu_seconds"]["source"] != "cgroup", "there is a cgroup after all")
    exact_or_said(user, job, proven=False)


@test
def ignored_children_of_a_job_that_cannot_gain_privileges_are_measured(world):
    user = world.someone()
    if not shutil.which("setpriv"):
        raise Skip("setpriv is not installed")
    world.configure("sampling:\n  interval: 10s\n")
    # Nothing can take the clock from a process then, so the clock alone is proof.
    arguments = ("time", "--json", "--interval", "10s", "--", *world.workload("in_turn", "cpu", 5, 0.2, "ignored"))
    process = user.start("setpriv", "--no-new-privs", world.met_path, *arguments)
    job = json.loads(user.finish(process, arguments).err.splitlines()[-1])
    exact_or_said(user, job)


@each(by_run="run", by_time="time")
def a_job_of_50_ms_is_listed_with_cpu_wall_and_exit_code(world, how):
    run_job(world.me, how, *world.workload("burning", "cpu", 0.03, 4))
    (job,) = world.jobs()
    equal(job["job"]["exit_code"], 4, "exit code")
    equal(job["job"]["state"], "failed", "state")
    close_to(job["totals"]["cpu_seconds"], truth(world), 0.25, "CPU")
    check(job["totals"]["wall_seconds"] >= 0.03, "wall", job["totals"]["wall_seconds"])


def daemonized_grandchild(world, user):
    job = user.run(*world.workload("daemonized", "cpu", 0.4, "ready"))
    pid = int(user.appears("ready"))
    equal(user.state_of(job), "running", "state while the grandchild lives")
    said = user.met("cancel", job).ok()
    check("Cancelled job" in said.out, said.out)
    check(not alive(pid), "the grandchild lives on")
    record = user.show(job)
    equal(record["job"]["state"], "cancelled", "state")
    close_to(record["totals"]["cpu_seconds"], truth(user), CPU_SHARE, "CPU")


@test
def a_daemonized_grandchild_is_counted_and_cancelled(world):
    daemonized_grandchild(world, world.me)


@test
def a_daemonized_grandchild_without_a_cgroup_is_counted_and_cancelled(world):
    daemonized_grandchild(world, world.someone())


@each(by_run="run", by_time="time")
def threads_that_write_together_are_counted_once(world, how):
    job = run_job(world.me, how, *world.workload("threads_write", "data", 8, MIB))
    written = job["totals"]["write_call_bytes"]
    check(MIB <= written <= MIB + 600, f"write_call_bytes: {written}, that is 1 MiB and {written - MIB}")


def calls_of(program):
    """The calls that read and write, and their bytes, of a program that nothing but a shell's way of starting it
    surrounds."""
    pid = os.posix_spawn(program, [program], os.environ)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    with open(f"/proc/{pid}/io") as file:
        counted = dict(line.split(": ") for line in file.read().splitlines())
    os.waitpid(pid, 0)
    return [int(counted[name]) for name in ("rchar", "wchar", "syscr", "syscw")]


@each(by_run="run", by_time="time")
def no_call_before_the_command_begins_is_the_jobs(world, how):
    # Entering cgroups and waiting for the start are calls of the process that becomes the command.
    program = shutil.which("true")
    totals = run_job(world.me, how, program)["totals"]
    counted = [totals[name] for name in ("read_call_bytes", "write_call_bytes", "read_calls", "write_calls")]
    equal(counted, calls_of(program), "bytes and calls")


@each(by_run="run", by_time="time")
def a_buffered_write_is_counted_when_it_is_made(world, how):
    if os.stat(world.work).st_dev == os.stat("/dev/shm").st_dev or "tmpfs" in filesystem(world.work):
        raise Skip(f"{world.work} is not on a disk; set MET_E2E_DIR")
    job = run_job(world.me, how, *world.workload("write", "data", 50 * MIB))
    written = job["totals"]["written_bytes"]
    check(50 * MIB <= written <= 50 * MIB + 256 * 1024, f"written_bytes: {written / MIB:.3f} MiB")
    equal(job["quality"]["written_bytes"]["kind"], "measured", "kind")


def filesystem(path):
    """The type of the file system that a path is on."""
    device = os.stat(path).st_dev
    name = f"{os.major(device)}:{os.minor(device)}"
    with open("/proc/self/mountinfo") as file:
        return [line.partition(" - ")[2].split()[0] for line in file if line.split()[2] == name]


@each(by_run="run", by_time="time")
def memory_shared_by_200_forks_is_counted_once(world, how):
    world.configure("sampling:\n  interval: 100ms\n")
    command = world.workload("forks", 200, 100 * 1000 * 1000, "ready")
    job = world.run_to_end(*command) if how == "run" else world.time_to_end(*command)
    if not has_memory_cgroup(job):
        raise Skip("no memory cgroup can be made here")
    needed = job["totals"]["memory_needed_peak_bytes"]
    check(95e6 < needed < 300e6, f"memory needed: {needed / 1e6:.0f} MB")
    check(job["totals"]["processes_peak"] >= 201, f"processes at once: {job['totals']['processes_peak']}")


@test
def both_ranks_of_an_mpi_job_are_in_it(world):
    if not shutil.which("mpirun"):
        raise Skip("mpirun is not installed (Debian: openmpi-bin)")
    as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    # It looks for a remote shell even if every rank is local.
    local = ["--mca", "plm_rsh_agent", "sh"]
    command = ["mpirun", *as_root, *local, "--oversubscribe", "-np", "2", *world.workload("rank", world.work)]
    job = world.run_to_end(*command)
    equal(job["job"]["exit_code"], 0, "exit code; " + world.read("mpirun.err").decode())
    ranks = sorted(line.split() for line in world.read("ranks").decode().splitlines())
    equal(ranks, [["0", job["job"]["id"]], ["1", job["job"]["id"]]], "ranks and their job")
    check(job["totals"]["cpu_seconds"] >= truth(world), "less CPU than the ranks alone used")
    check(job["totals"]["processes"] >= 3, f"processes: {job['totals']['processes']}")
    equal(len(world.jobs()), 1, "jobs")


@each(run_in_run=("run", "run"), run_in_time=("time", "run"), time_in_run=("run", "time"), time_in_time=("time", "time"))
def a_job_inside_a_job_is_counted_once_in_the_outer(world, outer, inner):
    arguments = ["--wait"] if inner == "run" else ["--quiet"]
    command = [world.met_path, inner, "-n", "inner", *arguments, "--", *world.workload("burning", "inner", INNER_S)]
    # The shell of the outer job burns too, before and after.
    script = '"$@"; exec ' + " ".join(world.workload("burning", "outer", 0.4))
    run_job(world.me, outer, "sh", "-c", script, "sh", *command)
    found = {job["job"]["name"]: job for job in world.jobs()}
    equal(sorted(found), ["inner", "sh"], "jobs")
    inside, whole = truth(world, "inner"), truth(world, "inner") + truth(world, "outer")
    close_to(found["inner"]["totals"]["cpu_seconds"], inside, CPU_SHARE, "CPU of the inner job")
    # met itself is part of the outer job: its own start is the slack.
    counted = found["sh"]["totals"]["cpu_seconds"]
    check(whole * (1 - CPU_SHARE) <= counted <= whole * (1 + CPU_SHARE) + 0.15, f"outer: {counted}, truth {whole}")


@test
def the_supervisor_of_a_job_that_ends_with_the_outer_one_is_not_left_over(world):
    for _ in range(20):
        inner = [world.met_path, "time", "--quiet", "--", "true"]
        outer = world.met("time", "--json", "--", *inner).ok()
        report = json.loads(outer.err.strip().splitlines()[-1])
        kinds = {name: quality["kind"] for name, quality in report["quality"].items()}
        # What is left over makes it a lower bound: its switches are not added yet.
        check(kinds["context_switches_voluntary"] == "measured", kinds)


@test
def a_job_inside_a_job_without_cgroups_is_counted_once_in_the_outer(world):
    user = world.someone()
    command = [world.met_path, "time", "-n", "inner", "--quiet", "--", *world.workload("burning", "inner", INNER_S)]
    script = '"$@"; exec ' + " ".join(world.workload("burning", "outer", 0.4))
    user.time_to_end("sh", "-c", script, "sh", *command)
    found = {job["job"]["name"]: job for job in user.jobs()}
    equal(sorted(found), ["inner", "sh"], "jobs")
    whole = truth(user, "inner") + truth(user, "outer")
    counted = found["sh"]["totals"]["cpu_seconds"]
    close_to(found["inner"]["totals"]["cpu_seconds"], truth(user, "inner"), CPU_SHARE, "CPU of the inner job")
    check(whole * (1 - CPU_SHARE) <= counted <= whole * (1 + CPU_SHARE) + 0.15, f"outer: {counted}, truth {whole}")


@each(with_cgroups=True, without_cgroups=False)
def an_attached_process_is_measured_from_then_on(world, cgroups):
    # It is looked at often enough that samples know how its time was split.
    world.configure("sampling:\n  interval: 100ms\n")
    user = world.me if cgroups else world.someone()
    process = user.start(*world.workload("burn_when_told", "cpu", "ready", "go", 2, 5))
    user.appears("ready")
    # Nothing happens while it waits: what it used until now does not count.
    eventually(lambda: state_of(process.pid) == b"S", "the workload waits")
    job = user.met("attach", str(process.pid), "-n", "attached", "--print-id").ok().out.strip()
    begin = user.show(job)
    equal(begin["job"]["state"], "running", "state")
    equal(begin["job"]["name"], "attached", "name")
    open(user.path("go"), "w").close()
    equal(process.wait(120), 5, "exit code of the process itself")
    equal(user.met("wait", job).code, 5 if kernel() >= (6, 15) else 0, "exit code by met wait")
    record = user.show(job)
    quality = record["quality"].get("cpu_seconds", {})
    if quality.get("kind") != "measured":
        raise Skip(f"perf events are not allowed here: {quality}")
    cpu, expected = record["totals"]["cpu_seconds"], truth(user)
    # The only source is perf, which counts what a hypervisor took away from a running process.
    most = expected * (1 + CPU_SHARE) + user.world.stolen()
    check(expected * (1 - CPU_SHARE) <= cpu <= most, f"CPU since the attachment: {cpu}, truth {expected}")
    totals = record["totals"]
    # To the nanosecond: a sum of two floats may be off by a bit.
    parts = round(totals["cpu_user_seconds"] + totals["cpu_system_seconds"], 9)
    check(0 < parts <= cpu, f"user and system: {parts}, together: {cpu}")
    check(totals["processes"] >= 1, "no process was seen")
    if kernel() >= (6, 15):
        equal((record["job"]["exit_code"], record["job"]["state"]), (5, "failed"), "exit code and state")


def kernel():
    return tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])


def state_of(pid):
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[0]


@test
def an_attached_process_that_is_cancelled_ends(world):
    process = world.start(*world.workload("burn_when_told", "cpu", "ready", "never", 1))
    world.appears("ready")
    job = world.met("attach", str(process.pid), "--print-id").ok().out.strip()
    world.met("cancel", job).ok()
    equal(process.wait(120), -15, "how the process ended")
    eventually(lambda: world.state_of(job) == "cancelled", "the job is cancelled")


@test
def cpu_of_a_running_job_is_known_while_it_runs(world):
    world.configure("sampling:\n  interval: 100ms\n")
    job = world.run(*world.workload("steady", "cpu", "stop"))
    first = eventually(lambda: world.show(job)["totals"].get("cpu_seconds"), "a first figure")
    eventually(lambda: world.show(job)["totals"].get("cpu_seconds", 0) > first + 0.4, "it grows")
    open(world.path("stop"), "w").close()
    world.met("wait", job).ok()
    close_to(world.show(job)["totals"]["cpu_seconds"], truth(world), CPU_SHARE, "CPU")


def memory_cgroup_of(pid):
    """The v1 memory cgroup of a process; `None` if it has none or is gone."""
    try:
        with open(f"/proc/{pid}/cgroup", encoding="utf-8") as file:
            lines = [line.strip().split(":", 2) for line in file]
    except OSError:
        return None
    return next((path for _, controllers, path in lines if "memory" in controllers.split(",")), None)


def descendants_of(pid):
    found = children_of(pid)
    return found + [inner for child in found for inner in descendants_of(child)]


@each(by_run="run", by_time="time")
def a_command_that_starts_before_its_cgroup_is_moved_into_it_with_all_that_it_forks(world, how):
    need_root()
    if memory_cgroup_of(os.getpid()) is None:
        raise Skip("the memory controller is not in a v1 hierarchy")
    # Forks from the first moment on, while it is moved: each process leaves two others behind.
    forking = "for i in 1 2 3 4 5 6 7 8; do (sleep 600 & sh -c 'sleep 600 & exec sleep 600' & exec sleep 600) & done; " \
        "echo $$ > pid && mv pid forked; wait"
    options = ("--all",) if how == "time" else ()
    world.configure("jobs:\n  start_before_cgroup: yes\nsampling:\n  interval: 100ms\n")
    timed = world.spawn(how, *options, "-n", "late", "--", "sh", "-c", forking)
    supervisor = world.supervisor_of(int(world.appears("forked")))
    (job,) = eventually(lambda: world.jobs("--state", "running"), "the job runs")
    job_id = job["job"]["id"]
    eventually(lambda: len(descendants_of(supervisor)) == 33, "all processes run")
    members = descendants_of(supervisor)
    inside = lambda: {memory_cgroup_of(pid) for pid in members}
    is_inside = lambda: len(inside()) == 1 and f"/met-{job_id}-" in inside().pop()
    eventually(is_inside, lambda: f"all are in the job's cgroup: {inside()}")
    world.met("cancel", job_id).ok()
    world.finish(timed)
    world.wait_for_state(job_id, "cancelled")
    quality = world.show(job_id)["quality"]["memory_peak_bytes"]
    equal(quality["kind"], "lower_bound", "kind")
    check("before the cgroup was entered" in quality["source"], quality)
    check("jobs.start_before_cgroup" in world.met("show", job_id).ok().out, "the report has a note")


@test
def a_command_enters_its_cgroup_before_it_starts(world):
    need_root()
    job = world.run_to_end("sh", "-c", "cat /proc/self/cgroup > cgroup")
    if not has_memory_cgroup(job) or memory_cgroup_of(os.getpid()) is None:
        raise Skip("no v1 memory cgroup can be made here")
    check(f"/met-{job['job']['id']}-" in world.read("cgroup").decode(), "its first program is inside")
    equal(job["quality"]["memory_peak_bytes"]["kind"], "measured", "kind")


@test
def doctor_measures_how_long_a_job_waits_for_its_v1_cgroup(world):
    need_root()
    job = world.run_to_end("true")
    if not has_memory_cgroup(job) or memory_cgroup_of(os.getpid()) is None:
        raise Skip("no v1 memory cgroup can be made here")
    findings = {finding["what"]: finding for finding in world.met("doctor", "--json").ok().json()}
    entry = findings["cgroup entry"]
    check("cgroup v1 directory" in entry["detail"] and " ms" in entry["detail"], entry)
    check((entry["health"] == "ok") == (entry["remedy"] is None), entry)
    someone = {finding["what"] for finding in world.someone().met("doctor", "--json").ok().json()}
    check("cgroup entry" not in someone, "who creates no v1 cgroup does not wait for one")


@each(root=0, user=65534)
def a_total_is_never_below_what_was_sampled(world, uid):
    need_root()
    count, faults = 12, 400
    user = world.user(uid)
    first = user.run("sleep", "1000")
    user.daemon_pid()
    job = user.run(*world.workload("ignored_at_once", count, faults, "ready", "go"))
    user.appears("ready")
    sampled = eventually(
        lambda: (seen := series(user, job).get("page_faults_minor", [])) and seen[-1] >= count * faults and seen[-1],
        "a sample of the children's page faults",
    )
    with open(user.path("go"), "w"):
        user.met("wait", job).ok()
    record = user.show(job)
    total, quality = record["totals"]["page_faults_minor"], record["quality"]["page_faults_minor"]
    check(total >= sampled, f"{total} ({quality}) of {sampled}")
    check(quality["source"] != "rusage", f"{quality}: the reaper was given nothing of the children")
    check(quality["kind"] == "lower_bound" or "taskstats" in quality["source"], quality)
    for name in ("page_faults_minor", "context_switches_voluntary", "context_switches_involuntary", "read_call", "read_calls", "write_call"):
        seen = series(user, job).get(name, [])
        check(seen == sorted(seen), f"{name} falls: {seen}")
    user.met("cancel", first).ok()


@test
def what_a_supervisor_reads_of_itself_is_not_taken_from_the_job(world):
    first = world.run("sleep", "1000")
    world.daemon_pid()
    job = world.run("sh", "-c", "while [ ! -e go ]; do sleep 0.1; done")
    eventually(lambda: len(series(world, job).get("read_calls", [])) >= 2, "samples of the job")
    open(os.path.join(world.work, "go"), "w").close()
    world.met("wait", job).ok()
    record = world.show(job)
    for name in ("read_call", "read_calls"):
        seen = series(world, job)[name]
        check(seen == sorted(seen), f"{name} falls: {seen}")
    total = next(value for name, value in record["totals"].items() if name.startswith("read_calls"))
    quality = next(value for name, value in record["quality"].items() if name.startswith("read_calls"))
    check(total >= 1 and "/proc/PID/io" in quality["source"], f"{total} {quality}")
    world.met("cancel", first).ok()
