"""Jobs of a real Slurm: found as soon as they start, exact to the end, and joined with what Slurm records."""

import contextlib
import csv
import datetime
import io
import os
import pwd
import re
import socket

import gpus
from accounting import CPU_SHARE, truth
from harness import DEADLINE_S, Failed, Ground, Skip, alive, check, close_to, equal, eventually, test
from pages import BROWSER_S, Browser
from prometheus import HASH, free_port

GROUND = Ground("slurm")

#: Between two samples; the manager's own figure may lag behind by so much.
PERIOD_S = 1
MIB = 1 << 20


def node():
    with open(GROUND.path("node")) as file:
        return file.read().strip()


def watched(world, more="", scope="cluster"):
    """A root daemon that looks for jobs and asks this Slurm; the user whose jobs they are."""
    world.configure(
        f"{more}sampling:\n  interval: {PERIOD_S}s\n"
        "jobs:\n  discover: true\n  plain: off\n"
        f"schedulers:\n  slurm: true\n  oar: false\n  interval: {PERIOD_S}s\n  scope: {scope}\n  path: {GROUND.path('bin')}\n")
    world.start_system_daemon()
    return world.user(pwd.getpwnam(GROUND.user).pw_uid)


def submit(user, *command, options=(), setup=""):
    """Submits a job that becomes this command; its id."""
    words = " ".join(f"'{word}'" for word in command)
    with open(user.path("script"), "w") as file:
        file.write(f"#!/bin/sh\n{setup}\nexec {words}\n")
    options = ("-c", "1", "--mem", "100M", "-t", "7", "-o", "out", *options)
    return GROUND.command("sbatch", "--parsable", *options, "script", user=user)


def incarnations(world, job):
    """Every record of a job, the oldest first."""
    found = [one for one in world.jobs() if one["job"]["manager"] == "slurm" and one["job"]["id"] == job]
    return sorted(found, key=lambda one: one["job"]["start"] or "")


def shown(world, job):
    result = world.met("show", f"slurm:{job}", "--json")
    return result.json() if result.code == 0 else None


def state_of(world, job):
    record = shown(world, job)
    return record and record["job"]["state"]


def recorded(world, job, *states):
    """Waits until a job is over and Slurm was asked about its end."""
    def over():
        record = shown(world, job)
        return record if record and (record["job"]["manager_state"] or "").split(" ")[0] in states else None

    return eventually(over, lambda: f"job {job} is {' or '.join(states)}: {shown(world, job)}")


def running(world, job):
    return eventually(lambda: state_of(world, job) == "running", lambda: f"job {job} is seen: {shown(world, job)}")


def check_account(record, used, *, user=None, cpus=1, memory=100 * MIB, state="finished", lag_s=PERIOD_S):
    """Everything that must be right of any job."""
    job, totals, scheduling = record["job"], record["totals"], record["scheduling"]
    equal(job["user"], user or GROUND.user, "user")
    equal(job["account"], "project", "account")
    equal(job["state"], state, "state")
    close_to(totals["cpu_seconds"], used, CPU_SHARE, f"CPU of {job['id']} ({record['quality']['cpu_seconds']})")
    lag = abs(totals["cpu_seconds"] - scheduling["cpu_seconds"])
    check(lag <= lag_s, f"Slurm's CPU is {scheduling['cpu_seconds']}, ours {totals['cpu_seconds']}")
    # Slurm counts in whole seconds.
    check(job["start"] and job["end"] and job["start"] <= job["end"], f"start {job['start']}, end {job['end']}")
    equal((record["requested"].get("cpus"), record["requested"].get("memory_bytes")), (cpus, memory), "requested")
    equal((record["allocated"].get("cpus"), record["allocated"].get("memory_bytes")), (cpus, memory), "allocated")
    equal(record["requested"].get("time_limit_seconds"), 420, "time limit")
    submitted, started = (datetime.datetime.fromisoformat(time.replace("Z", "+00:00")).timestamp()
                          for time in (scheduling["submit"], job["start"]))
    # The start that is shown may be the node's, which is not in whole seconds.
    check(abs(scheduling["queue_wait_seconds"] - max(started - submitted, 0)) <= 1.1,
          f"waited {scheduling['queue_wait_seconds']} s from {scheduling['submit']} to {job['start']}")


@test
def a_slurm_job_is_seen_while_it_runs_and_exact_when_it_has_ended(world):
    user = watched(world)
    job = submit(user, *world.workload("burning", "cpu", 3), options=("-J", "demo", "-p", "main"),
                 setup="while [ ! -e go ]; do sleep 0.5; done")
    running(world, job)
    eventually(lambda: (seen := shown(world, job)["job"]) and (seen["user"], seen["name"]) == (user.name, "demo"),
               lambda: f"owner and name are known while it runs: {shown(world, job)['job']}")
    command = eventually(lambda: shown(world, job)["job"]["command"], "its command is known while it runs")
    check(command[-1].endswith("/slurm_script"), f"not what was submitted: {command}")
    open(user.path("go"), "w").close()
    record = recorded(world, job, "COMPLETED")
    check_account(record, truth(user))
    equal((record["job"]["exit_code"], record["job"]["name"]), (0, "demo"), "exit code and name")
    equal((record["scheduling"]["partition"], record["job"]["cluster"]), ("main", node()), "partition and cluster")
    check(record["totals"]["memory_peak_bytes"] > MIB, "no peak of memory")
    check(any(part["step"] == "batch" for part in record["parts"]), f"no part is the batch step: {record['parts']}")
    listed = world.met("list").ok().out
    check(re.search(rf"\bslurm:{job}\b.*\bdemo\b", listed), f"not in the list:\n{listed}")


@test
def a_time_limit_that_is_changed_while_a_slurm_job_runs_is_kept_with_its_time(world):
    user = watched(world)
    job = submit(user, "sleep", 1000)
    limit_of = lambda: (shown(world, job) or {}).get("requested", {}).get("time_limit_seconds")
    # Its environment has the limit before Slurm is asked.
    eventually(lambda: shown(world, job) and shown(world, job)["job"]["manager_state"] == "RUNNING" and limit_of() == 420,
               lambda: f"the limit is known while it runs: {shown(world, job)}")
    check("earlier" not in shown(world, job)["scheduling"], "nothing has changed yet")
    for minutes in (11, 9):
        GROUND.command("scontrol", "update", f"JobId={job}", f"TimeLimit={minutes}")
        eventually(lambda: limit_of() == minutes * 60, lambda: f"the new limit is known: {shown(world, job)}")
    page = world.met("show", f"slurm:{job}").ok().out
    check(re.search(r"time limit 7m0s, raised to 11m0s by \d{4}-", page), f"the page names it:\n{page}")
    GROUND.command("scancel", job, user=user)
    record = recorded(world, job, "CANCELLED")
    equal(record["requested"]["time_limit_seconds"], 540, "what held at the end")
    earlier = record["scheduling"]["earlier"]
    equal([one["requested"]["time_limit_seconds"] for one in earlier], [420, 660], "what held before")
    times = [record["job"]["start"], *(one["until"] for one in earlier), record["job"]["end"]]
    equal(times, sorted(times), "in the order of time")


@test
def a_slurm_job_holds_the_card_that_it_was_given_and_does_not_use(world):
    if not os.path.exists(GROUND.path("dev/nvidia1")):
        raise Skip("no device file can be made")
    user = watched(world, f"gpu:\n  nvml: {gpus.played(world)}\n")
    held = dict.fromkeys(submit(user, "sleep", 1000, options=("--gres=gpu:1",)) for _ in range(2))
    for job in held:
        gpu, = eventually(lambda: (seen := shown(world, job)) and seen["gpus"], f"job {job} holds a card")
        equal(gpu["held_by"], "SLURM_JOB_GPUS", "what says so")
        eventually(lambda: shown(world, job)["gpus"][0]["idle_since"], "it does nothing with it")
        held[job] = gpu["index"]
    equal(sorted(held.values()), ["0", "1"], "cards")
    for job in held:
        GROUND.command("scancel", job, user=user)
        recorded(world, job, "CANCELLED")


@test
def a_user_sees_his_slurm_jobs_and_nobody_elses(world):
    user = watched(world)
    other = world.named_user("games")
    job = submit(user, *world.workload("burning", "cpu", 1))
    recorded(world, job, "COMPLETED")
    check(any(one["job"]["id"] == job for one in user.jobs()), "not in its user's list")
    equal(other.jobs(), [], "jobs of another user")
    other.met("show", f"slurm:{job}").refused("no job")


@test
def all_elements_of_an_array_are_found(world):
    user = watched(world)
    job = submit(user, *world.workload("burning", "cpu", 0.6), options=("--array=1-20", "-o", "out.%a"),
                 setup='mkdir $SLURM_ARRAY_TASK_ID; cd $SLURM_ARRAY_TASK_ID')
    records = [recorded(world, f"{job}_{index}", "COMPLETED") for index in range(1, 21)]
    raw = {record["job"]["raw_id"] for record in records}
    equal(len(raw), 20, "different jobs")
    for index, record in enumerate(records, 1):
        equal((record["scheduling"]["array_id"], record["scheduling"]["array_index"]), (job, index), "array and index")
        check_account(record, truth(user, f"{index}/cpu"))


@test
def a_step_of_two_tasks_is_a_part_with_tasks(world):
    user = watched(world)
    task = world.workload("burning", "cpu", 1.5)
    command = world.workload("and_commands", "cpu", "srun", "-n", "2", *task)
    job = submit(user, *command, options=("-n", "2", "--mem", "200M"))
    record = recorded(world, job, "COMPLETED")
    check_account(record, truth(user), cpus=2, memory=200 * MIB)
    step = [part for part in record["parts"] if part["step"] == "0"]
    equal(sorted(part["task"] for part in step if part["task"] is not None), ["0", "1"], "tasks of the step")
    lines = sorted(float(line) for line in user.read("cpu").split())
    of_step = [part["totals"]["cpu_seconds"] for part in step if part["task"] is None]
    equal(len(of_step), 1, "parts that are the whole step")
    # The shortest line but two is that of the batch script with srun.
    check(abs(of_step[0] - sum(lines[1:])) <= PERIOD_S, f"{of_step[0]} s of the step, its tasks said {lines}")


@test
def a_cancelled_slurm_job_is_cancelled(world):
    user = watched(world)
    job = submit(user, *world.workload("burn_until_terminated", "cpu", "ready"))
    user.appears("ready")
    running(world, job)
    GROUND.command("scancel", job, user=user)
    user.appears("cpu")
    check_account(recorded(world, job, "CANCELLED"), truth(user), state="cancelled")


@test
def met_does_not_end_a_slurm_job_but_says_who_does(world):
    user = watched(world)
    job = submit(user, *world.workload("burn_until_terminated", "cpu", "ready"))
    pid = int(user.appears("ready"))
    running(world, job)
    user.met("cancel", f"slurm:{job}").refused(f"scancel {job}", code=1)
    check(alive(pid), "it was ended all the same")
    equal(shown(world, job)["job"]["state"], "running", "state")
    GROUND.command("scancel", job, user=user)
    recorded(world, job, "CANCELLED")


@test
def a_slurm_job_over_its_memory_is_out_of_memory(world):
    user = watched(world)
    job = submit(user, *world.workload("eat", "cpu", 1.5, 400 * MIB))
    record = recorded(world, job, "OUT_OF_MEMORY")
    check_account(record, truth(user), state="out_of_memory")
    check(record["totals"]["oom_kills"] >= 1, f"oom_kills: {record['totals']['oom_kills']}")


@test
def a_slurm_job_of_one_second_is_exact(world):
    user = watched(world)
    jobs = []
    for number in range(3):
        jobs.append(submit(user, *world.workload("burning", f"cpu.{number}", 0.9)))
    for number, job in enumerate(jobs):
        check_account(recorded(world, job, "COMPLETED"), truth(user, f"cpu.{number}"))


@test
def a_failed_slurm_job_has_its_exit_code(world):
    # By a daemon that asks only about the jobs that it measured.
    user = watched(world, scope="node")
    job = submit(user, *world.workload("burning", "cpu", 1, 7))
    recorded(world, job, "FAILED")
    # Slurm may write its record of the end before that of the start, which has the time limit.
    said = lambda: GROUND.command("sacct", "-P", "-X", "-j", job, "-o", "JobID,State,Timelimit,TimelimitRaw,Start,End")
    eventually(lambda: shown(world, job)["requested"].get("time_limit_seconds"), lambda: f"no time limit; Slurm says: {said()}")
    record = shown(world, job)
    check_account(record, truth(user), state="failed")
    equal(record["job"]["exit_code"], 7, "exit code")


@test
def a_requeued_slurm_job_has_two_incarnations(world):
    user = watched(world)
    first = world.workload("burn_until_terminated", "cpu.0", "ready")
    again = " ".join(f"'{word}'" for word in world.workload("burning", "cpu.1", 1.5))
    job = submit(user, *first, options=("--requeue",), setup=f'[ -z "$SLURM_RESTART_COUNT" ] || exec {again}')
    user.appears("ready")
    running(world, job)
    GROUND.command("scontrol", "requeue", job, user=user)
    user.appears("cpu.0")

    # A requeued job waits two minutes before it may start again, unless it is released.
    def released():
        GROUND.command("scontrol", "update", f"JobId={job}", "StartTime=now", check_code=False)
        return os.path.exists(user.path("cpu.1"))

    def why_not():
        waits = GROUND.command("squeue", "--noheader", "--jobs", job, "--format", "%T, %r", user=user, check_code=False)
        nodes = GROUND.command("sinfo", "--noheader", "--nodes", node(), "--format", "%T", user=user, check_code=False)
        return f"it runs again: {waits}; its node is {nodes}"

    eventually(released, why_not, 150, pause_s=15)
    recorded(world, job, "COMPLETED")
    records = eventually(lambda: two(incarnations(world, job)), lambda: f"two incarnations: {incarnations(world, job)}")
    equal([record["job"]["manager_state"] for record in records], ["REQUEUED", "COMPLETED"], "what Slurm says of them")
    for number, record in enumerate(records):
        close_to(record["totals"]["cpu_seconds"], truth(user, f"cpu.{number}"), CPU_SHARE, f"CPU of incarnation {number}")


def two(records):
    return records if len(records) == 2 else None


@test
def met_run_inside_a_slurm_job_is_not_counted_twice(world):
    user = watched(world)
    inner = world.workload("burning", "cpu", 2)
    command = world.workload("and_commands", "cpu.met", world.met_path, "run", "--wait", "--", *inner)
    job = submit(user, *command)
    record = recorded(world, job, "COMPLETED")
    used = truth(user)
    # Of processes that it does not wait for Slurm knows what it saw when it last looked, once a second and then some.
    check_account(record, used + truth(user, "cpu.met"), lag_s=2 * PERIOD_S)
    # A sum leaves out what is inside another job.
    ours = [one for one in world.jobs() if one["job"]["id"] == job or one["job"]["manager"] == "local"]
    equal([one["job"]["inside"] for one in ours if one["job"]["manager"] == "local"], [f"slurm:{job}"], "jobs inside it")
    total = sum(one["totals"].get("cpu_seconds", 0) for one in ours if one["job"]["inside"] is None)
    check(total < 1.5 * used, f"counted twice: {[(one['job'], one['totals'].get('cpu_seconds')) for one in ours]}")
    inner = next(one for one in ours if one["job"]["manager"] == "local")
    parts = [part for part in record["parts"] if part["step"] == f"met:{inner['job']['id']}"]
    equal([part["totals"]["cpu_seconds"] for part in parts], [inner["totals"]["cpu_seconds"]], "parts that are our job")
    check(f"slurm:{job}" in user.met("show", inner["job"]["id"]).ok().out, "met show does not say where it ran")
    check("INSIDE" in user.met("list").ok().out, "met list does not mark it")


@test
def jobs_of_a_slurmd_that_starts_after_the_daemon_are_found(world):
    user = watched(world)
    late = f"{node()}late"
    check(not os.path.exists(f"/sys/fs/cgroup/cpuacct/slurm_{late}"), "that slurmd ran before")
    os.system(f"'{GROUND.path('node-up')}' </dev/null >/dev/null 2>&1")
    try:
        job = submit(user, *world.workload("burning", "cpu", 2), options=("-p", "late", "-w", late))
        check_account(recorded(world, job, "COMPLETED"), truth(user))
        # Both nodes are this machine: one job, in two cgroups.
        command = world.workload("and_commands", "cpu.two", "srun", "-N", "2", *world.workload("burning", "cpu.two", 1))
        job = submit(user, *command, options=("-p", "late", "-N", "2"))
        record = recorded(world, job, "COMPLETED")
        equal(len(incarnations(world, job)), 1, "records of a job on two nodes")
        close_to(record["totals"]["cpu_seconds"], truth(user, "cpu.two"), CPU_SHARE, "CPU of a job on two nodes")
        whole = [part for part in record["parts"] if not part["step"]]
        equal(sorted(part["node"] for part in whole), sorted([node(), late]), "nodes with a part")
        of_nodes = sum(part["totals"]["cpu_seconds"] for part in whole)
        check(abs(of_nodes - record["totals"]["cpu_seconds"]) < 1e-6, f"its parts used {of_nodes} s")
    finally:
        with open(GROUND.path(f"run/slurmd-{late}.pid")) as file:
            os.kill(int(file.read()), 15)


@contextlib.contextmanager
def served(world, more=""):
    """A server that asks this Slurm, and a root daemon that does not, but finds its jobs and sends them there. Yields
    the owner of the jobs, and what asks the server."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    folder = os.path.join(world.root, "server")
    os.mkdir(folder, 0o700)
    config = os.path.join(folder, "met.yaml")
    with open(config, "w") as file:
        file.write(
            f"system:\n  runtime: {folder}/run\n  state: {folder}/state\nhttp:\n  listen: 127.0.0.1:{port}\n"
            f"schedulers:\n  slurm: true\n  oar: false\n  interval: {PERIOD_S}s\n  path: {GROUND.path('bin')}\n"
            f"client:\n  token_file: {folder}/operator\n{more}")
    for name, options in (("operator", ["--operator"]), (node(), [])):
        token = world.me.met("-c", config, "server", "enroll", name, *options).ok().out
        with open(os.open(os.path.join(folder, name), os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
            file.write(token)
    with open(os.path.join(folder, "log"), "ab") as log:
        server = world.me.spawn("-c", config, "server", stdout=log, stderr=log)
    try:
        world.configure(
            f"sampling:\n  interval: {PERIOD_S}s\njobs:\n  discover: true\n  plain: off\n"
            "schedulers:\n  slurm: false\n  oar: false\n  pbs: false\n  lsf: false\n"
            f"forward:\n  url: http://127.0.0.1:{port}\n  node: {node()}\n  token_file: {folder}/{node()}\n  interval: 1s\n")
        world.start_system_daemon()
        user = world.user(pwd.getpwnam(GROUND.user).pw_uid)
        yield user, lambda *question: world.me.met("-c", config, "--server", f"http://127.0.0.1:{port}", *question)
    except BaseException:
        with open(os.path.join(folder, "log")) as file:
            print(file.read())
        raise
    finally:
        server.terminate()
        server.wait(DEADLINE_S)


def incarnations_on(ask, job):
    return [one for one in ask("list", "--json").ok().json() if one["job"]["id"] == job]


@test
def on_a_server_a_slurm_job_is_one_with_slurms_word_and_the_nodes_totals(world):
    with served(world) as (user, ask):
        good = submit(user, *world.workload("burning", "cpu.good", 2), options=("-J", "demo"))
        bad = submit(user, *world.workload("burning", "cpu.bad", 1, 7))

        def joined(job):
            """What the server says, once Slurm and the node have reported it."""
            near, far = world.met("show", f"slurm:{job}", "--json"), ask("show", f"slurm:{job}", "--json")
            if near.code or far.code:
                return None
            near, far = near.json(), far.json()
            is_over = near["job"]["state"] != "running" and far["scheduling"].get("cpu_seconds") is not None
            same = near["totals"].get("cpu_seconds") == far["totals"].get("cpu_seconds")
            return far if is_over and same and (far["job"]["manager_state"] or "") in ("COMPLETED", "FAILED") else None

        for job, used, state, code in ((good, "cpu.good", "finished", 0), (bad, "cpu.bad", "failed", 7)):
            record = eventually(lambda: joined(job), lambda: f"{job} is reported by both: {[world.met('show', f'slurm:{job}', '--json').out, *incarnations_on(ask, job)]}")
            check_account(record, truth(user, used), state=state)
            equal((record["job"]["exit_code"], record["job"]["nodes"]), (code, [node()]), "exit code and nodes")
            equal(record["quality"]["cpu_seconds"]["kind"], "measured", "how the CPU time is known")
            check(any(part["node"] == node() and not part["step"] for part in record["parts"]), f"parts: {record['parts']}")
            equal(len(incarnations_on(ask, job)), 1, f"records of {job}")


@test
def on_a_server_members_of_a_slurm_account_see_its_jobs(world):
    GROUND.command("sacctmgr", "-n", "-i", "add", "user", "daemon", "Account=project", f"Cluster={node()}", check_code=False)
    with served(world, "server:\n  accounts: slurm\n") as (user, ask):
        job = submit(user, "true", options=("-A", "project", "-J", "shared"))
        eventually(lambda: ask("show", f"slurm:{job}", "--json").code == 0, "the server has the job")
        folder = os.path.join(world.root, "server")
        config = os.path.join(folder, "met.yaml")
        with open(config) as file:
            text = file.read()

        def sees(name):
            """Whether this user sees the job, with a token of their own."""
            token, own = os.path.join(folder, f"{name}.token"), os.path.join(folder, f"{name}.yaml")
            if not os.path.exists(token):
                with open(os.open(token, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
                    file.write(world.me.met("-c", config, "server", "enroll", "--user", name).ok().out)
                with open(own, "w") as file:
                    file.write(text.replace("token_file: " + os.path.join(folder, "operator"), f"token_file: {token}"))
            port = re.search(r"listen: 127.0.0.1:(\d+)", text).group(1)
            return world.me.met("-c", own, "--server", f"http://127.0.0.1:{port}", "show", f"slurm:{job}", "--json").code == 0

        check(sees(user.name), "the owner sees it")
        # Accounts are read once a minute, and one attempt may fail.
        eventually(lambda: sees("daemon"), "a member of the account sees it", deadline_s=150, pause_s=0.5)
        check(not sees("games"), "another user does not")


@test
def a_submitted_job_is_followed_in_a_browser(world):
    """It appears on Now without loading the page again; it is opened, filtered by, and taken as CSV and as a file."""
    web, port = os.path.join(world.root, "web.yml"), free_port()
    with open(web, "w") as file:
        file.write(f"basic_auth_users: {{ann: {HASH}}}\n")
    user = watched(world, f"http:\n  listen: 127.0.0.1:{port}\n  web_config: {web}\n  operators: ann\n")
    visit = Browser(world, "follow", link=f"http://127.0.0.1:{port}/", user="ann", password="secret", text="in-browser", patience_s=BROWSER_S).ready()
    job = submit(user, "sleep", "1000", options=("-J", "in-browser"))
    try:
        found = visit.found()
    finally:
        GROUND.command("scancel", job, user=user)
    equal((found["problems"], found["same"]), ([], "yes"), "problems, and the same page")
    check("in-browser" in found["title"], "the page of the job", found["title"])
    check("in-browser" in found["html"] and "<script" in found["html"], "its file", found["html"][:400])
    equal(found["listed"], 1, "jobs of this name")
    rows = list(csv.DictReader(io.StringIO(found["csv"])))
    equal([row["name"] for row in rows], ["in-browser"], f"rows of the CSV, of {found['csv'][:400]}")
