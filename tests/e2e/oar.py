"""Jobs of a real OAR: found as soon as they start, owned by who submitted them, and joined with what OAR records."""

import glob
import os
import pwd
import re

import colmet
from accounting import CPU_SHARE, truth
from harness import Ground, check, equal, eventually, test

GROUND = Ground("oar")

LONG_S = 4
#: What OAR's own processes may use that are in a job's cgroup, and so are part of it.
OWN_S = 0.3
#: In an order that is not that of any table.
EVENTS = ["task_clock", "page_faults", "context_switches", "cpu_clock", "page_faults_min"]
#: Forks and faults all the time.
BUSY = "while :; do /bin/true; done"


def watched(world, more=""):
    """A root daemon that looks for jobs and asks this OAR; the user whose jobs they are."""
    world.configure(
        "sampling:\n  interval: 1s\n"
        "jobs:\n  discover: true\n  plain: off\n"
        f"schedulers:\n  oar: true\n  slurm: false\n  interval: 1s\n  scope: cluster\n  path: {GROUND.path('bin')}\n{more}")
    world.start_system_daemon()
    return world.user(pwd.getpwnam(GROUND.user).pw_uid)


def submit(user, *command, walltime="0:5:0", options=()):
    """Submits a job; its id, or those of an array."""
    wanted = ("-l", f"/core=1,walltime={walltime}", *options)
    said = GROUND.command("oarsub", *wanted, " ".join(map(str, command)), user=user)
    ids = [line.partition("=")[2] for line in said.splitlines() if line.startswith("OAR_JOB_ID=")]
    check(ids, f"no id: {said}")
    return ids if "--array" in options else ids[0]


#: Before a command: the job lasts until it has been seen.
UNTIL_GO = "while [ ! -e go ]; do sleep 0.5; done;"


def let_go(user):
    open(user.path("go"), "w").close()


def shown(world, job):
    result = world.met("show", f"oar:{job}", "--json")
    return result.json() if result.code == 0 else None


def state_of(world, job):
    record = shown(world, job)
    return record and record["job"]["state"]


def recorded(world, job, *states):
    """Waits until a job is over and OAR was asked about its end."""
    def over():
        record = shown(world, job)
        return record if record and (record["job"]["manager_state"] or "").split(" ")[0] in states else None

    return eventually(over, lambda: f"job {job} is {' or '.join(states)}: {shown(world, job)}", 120)


def in_state(world, job, state):
    return eventually(lambda: state_of(world, job) == state, lambda: f"job {job} is {state}: {shown(world, job)}")


def check_account(record, used, state="finished", limit_s=300):
    """Everything that must be right of any job."""
    job = record["job"]
    equal(job["user"], GROUND.user, "owner")
    equal(job["state"], state, "state")
    cpu, quality = record["totals"]["cpu_seconds"], record["quality"]["cpu_seconds"]
    exact = used * (1 - CPU_SHARE) <= cpu <= used * (1 + CPU_SHARE) + OWN_S
    check(exact, f"CPU of {job['id']}: {cpu} ({quality}), but the truth is {used}")
    check(job["start"] and job["end"] and job["start"] < job["end"], f"start {job['start']}, end {job['end']}")
    equal(record["requested"].get("time_limit_seconds"), limit_s, "time limit")
    equal(record["allocated"].get("cpus"), 1, "CPUs")
    equal(record["scheduling"]["partition"], "default", "queue")


@test
def an_oar_job_belongs_to_its_user_and_is_exact(world):
    user = watched(world)
    job = submit(user, UNTIL_GO, *world.workload("burning", "cpu", LONG_S), options=("-n", "demo", "--project", "p1"))
    in_state(world, job, "running")
    let_go(user)
    equal(shown(world, job)["job"]["user"], user.name, "owner while it runs")
    record = recorded(world, job, "Terminated")
    check_account(record, truth(user))
    job = record["job"]
    equal((job["name"], job["account"], job["exit_code"]), ("demo", "p1", 0), "name, project and exit code")
    user.met("cancel", f"oar:{job['id']}").refused("has already ended", code=1)


@test
def all_elements_of_an_oar_array_are_found(world):
    user = watched(world)
    jobs = submit(user, "sh", "-c", f"'exec {' '.join(world.workload('burning', 'cpu.$OAR_JOB_ID', LONG_S))}'", options=("--array", "3"))
    equal(len(jobs), 3, "elements")
    for index, job in enumerate(jobs, 1):
        record = recorded(world, job, "Terminated")
        check_account(record, truth(user, f"cpu.{job}"))
        equal((record["scheduling"]["array_id"], record["scheduling"]["array_index"]), (jobs[0], index), "array and index")


@test
def an_oar_job_beyond_its_walltime_has_timed_out(world):
    user = watched(world)
    job = submit(user, *world.workload("burn_and_tell", "cpu"), walltime="0:0:3")
    check_account(recorded(world, job, "Error"), truth(user), "timeout", 3)


@test
def a_deleted_oar_job_is_cancelled(world):
    user = watched(world)
    job = submit(user, *world.workload("burn_and_tell", "cpu"))
    in_state(world, job, "running")
    eventually(lambda: glob.glob(user.path("cpu")) and truth(user) > LONG_S, "it has used some time")
    user.met("cancel", f"oar:{job}").refused(f"oardel {job}", code=1)
    GROUND.command("oardel", job, user=user)
    check_account(recorded(world, job, "Error"), truth(user), "cancelled")


@test
def a_suspended_oar_job_is_suspended_until_it_is_resumed(world):
    user = watched(world)
    job = submit(user, UNTIL_GO, *world.workload("burning", "cpu", LONG_S))
    in_state(world, job, "running")
    # Its processes are there before OAR calls it running, and only then it can be held.
    eventually(lambda: GROUND.command("oarstat", "-s", "-j", job).endswith("Running"), "OAR says that it runs")
    GROUND.command("oarhold", "-r", job)
    in_state(world, job, "suspended")
    # Its processes are frozen before OAR calls it suspended, and only then it can be resumed.
    eventually(lambda: GROUND.command("oarstat", "-s", "-j", job).endswith("Suspended"), "OAR says that it is suspended")
    GROUND.command("oarresume", job)
    in_state(world, job, "running")
    let_go(user)
    check_account(recorded(world, job, "Terminated"), truth(user))


def pushing(server, *options):
    """The configuration of a sink that pushes records to a server."""
    return "sinks:\n  - colmet:\n" + "".join(f"      {line}\n" for line in (f"endpoint: tcp://127.0.0.1:{server.port}", "period: 1s", *options))


@test
def five_short_processes_of_an_oar_job_are_in_the_taskstats_of_a_servers_file(world):
    colmet.python()
    with colmet.Server(world, os.uname().nodename, apart=True) as server:
        user = watched(world, pushing(server, "backends: [taskstats, procstats, jobproc]"))
        burning = " ".join(world.workload("burning", "cpu.$i", 0.4))
        job = submit(user, "sh", "-c", f"'for i in 1 2 3 4 5; do {burning}; done; sleep 2'")
        record = recorded(world, job, "Terminated")
        used = sum(truth(user, f"cpu.{number}") for number in range(1, 6))
        check(used >= 2.0, f"five processes of 0.4 s: {used}")
        name, exact_ns = f"job_{job}/taskstats_default", round(record["totals"]["cpu_seconds"] * 1e9)

        def last():
            return colmet.tables(server.file).get(name, [{}])[-1]

        # A look that meets a flush finds nothing: what one look has found is kept.
        has_total = lambda row: row.get("cpu_run_real_total") == exact_ns  # noqa: E731
        row = eventually(lambda: next(filter(has_total, [last()]), None), lambda: f"the total of the job, {exact_ns}: {last()} {server.log()}")
        cpu_s = row["cpu_run_real_total"] / 1e9
        check(used * (1 - CPU_SHARE) <= cpu_s <= used * (1 + CPU_SHARE) + OWN_S, f"CPU time: {cpu_s}, but the truth is {used}")
        equal((row["hostname"], row["job_id"]), (os.uname().nodename, int(job)), "host and job")
        wanted = {f"job_{job}/jobprocstats_default", "job_0/procstats_default"}
        found = eventually(lambda: next(filter(wanted.issubset, [colmet.tables(server.file)]), None), f"tables {wanted}")
        # Jobs of other tests may be beside it.
        involved = {row["involved_jobs"] for row in found["job_0/procstats_default"]}
        check(any(job in re.findall(r"\d+", jobs) for jobs in involved), f"job {job} was involved: {involved}")
        (listed,) = eventually(lambda: [one for one in server.ask("list", "--json").ok().json() if one["job"]["id"] == job], "the job is known to the server")
        equal((listed["job"]["manager"], listed["job"]["nodes"]), ("oar", [os.uname().nodename]), "manager and nodes")


def check_numbered_events(world):
    """Five chosen events of a job are counter_1 to counter_5 of a server's file, in the order given, with their mapping."""
    colmet.python()
    folder = world.me.path("mapping")
    os.makedirs(folder)
    with colmet.Server(world, os.uname().nodename, apart=True) as server:
        chosen = f"events: [{', '.join(EVENTS)}]"
        user = watched(world, pushing(server, "backends: [taskstats, perfhw]", chosen, f"mapping: {folder}") + f"perf:\n  {chosen}\n")
        job = submit(user, "sh", "-c", f"'{BUSY}'")
        name = f"job_{job}/perfhwstats_default"

        def sums():
            """What was counted, by event; the first record has no difference yet."""
            rows = colmet.tables(server.file).get(name, [])
            return [sum(row[f"counter_{number}"] for row in rows if row[f"counter_{number}"] >= 0) for number in range(1, 6)]

        eventually(lambda: len(colmet.tables(server.file).get(name, [])) > 3 and all(sums()), lambda: f"counters: {sums()} {server.log()}")
        GROUND.command("oardel", job, user=user)
        ended = recorded(world, job, "Error")["events"]["counts"]
        counted = dict(zip(EVENTS, sums()))
        check(all(0 < counted[event] <= ended[event]["count"] for event in EVENTS), counted, ended)
        # Clocks are nanoseconds, the others are some thousands.
        check(min(counted["task_clock"], counted["cpu_clock"]) > 1e8 > max(counted["page_faults"], counted["context_switches"]), counted)
        check(counted["page_faults"] >= counted["page_faults_min"] > counted["context_switches"], counted)
        (path,) = glob.glob(f"{folder}/perfhw_mapping.*.csv")
        with open(path) as file:
            equal(file.read().splitlines(), [f"counter{number},{event}" for number, event in enumerate(EVENTS, 1)], "mapping")
        rows = colmet.tables(server.file)[f"job_{job}/taskstats_default"]
        check(rows[-1]["cpu_run_real_total"] > 1e8 and rows[-1]["job_id"] == int(job), rows[-1])


@test
def five_events_of_an_oar_job_are_counters_of_a_servers_file(world):
    check_numbered_events(world)
