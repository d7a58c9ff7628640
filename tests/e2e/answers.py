"""Answers about jobs: verdicts, findings, comparisons and predictions, by the real binary."""

import os
import resource
import subprocess
import time

from belief import memory_cgroup, try_rmdir
from harness import check, equal, eventually, need_root, test
from web_site import Site, script

#: Silent rules are many; a condition that every job fulfils makes one speak.
RULES = """rules:
  - name: every_job
    severity: low
    when: wall >= 0s
    gates: {coverage: 0%, length: 0s, samples: 0}
    what: "it ran for {wall}"
    how: "nothing to do"
"""


def runs(world, *arguments, count=1):
    for _ in range(count):
        world.met("run", "--wait", "--out", "/dev/null", "--err", "/dev/null", "--", *arguments)


@test
def a_report_begins_with_a_verdict(world):
    runs(world, "sleep", "2")
    lines = world.met("show").ok().out.splitlines()
    check("verdict" in lines[2] and "finished in" in lines[2], lines[:4])
    answers = world.met("show", "--json").ok().json()["answers"]
    check(answers["verdict"].startswith("finished in 2"), answers)
    equal(answers["bottleneck"]["limit"], "waiting", "what limited a job that slept")
    equal(answers["findings"], [], "findings of a job of two seconds")


@test
def a_job_that_failed_says_so_first(world):
    world.met("run", "--wait", "--out", "/dev/null", "--err", "/dev/null", "--", "sh", "-c", "exit 3").expect(3)
    check(world.met("show", "--json").ok().json()["answers"]["verdict"].startswith("failed after"), "verdict")


@test
def rules_of_a_file_are_tried_and_explained(world):
    path = os.path.join(world.me.home, "rules.yaml")
    with open(path, "w") as file:
        file.write(RULES)
    runs(world, "true", count=2)
    found = world.met("check", "--json", "--rules", path).ok().json()
    equal(found["jobs"], 2, "jobs")
    explained = world.met("explain", "@last", "every_job", "--rules", path, "--json").ok().json()
    equal(explained["rules"][0]["finding"]["rule"], "every_job", "the rule that spoke")
    check(explained["lineage"].startswith("true"), explained["lineage"])
    check("unknown" in world.met("explain", "@last").ok().out, "rules that miss a number say which")
    with open(path, "w") as file:
        file.write(RULES.replace("wall >= 0s", "wall >= 0"))
    refused = world.met("check", "--rules", path).expect(2)
    check("line 4: when: cannot compare seconds with a plain number" in refused.err, refused.err)


TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")

#: Programs of tests/workloads, what may limit them, and the rules that must speak of them. A machine that others use
#: as well changes neither what they wait for nor what they call.
LIVE = {
    "sleeping": (["waiting"], []),
    "pipe": (["waiting"], []),
    "polling": (["waiting"], []),
    "small_calls": (["one_core", "cpu"], ["small_io"]),
    "tiny_children": (["one_core", "cpu"], ["many_children"]),
    "many_files": (["one_core", "cpu", "io"], ["kernel_calls"]),
    "cached_reads": (["one_core", "cpu"], []),
}


def short_rules(world):
    """The built-in rules, for jobs of seconds on a machine that may be busy."""
    with open(os.path.join(TOP, "crates", "met-insight", "src", "rules", "built_in.yaml")) as file:
        rules = file.read()
    changes = {
        "coverage: 95%": "coverage: 50%", "length: 10min": "length: 3s", "samples: 20": "samples: 3",
        "total(cpu_seconds) >= 0.5 * wall": "total(cpu_seconds) >= 0.02 * wall",
        # The faults of a start are not those of huge pages.
        "total(page_faults_minor) * 0.0002s": "total(page_faults_minor) * 0.00001s",
        "> 5000 / 1s": "> 200 / 1s", "rate(processes) > 50 / 1s": "rate(processes) > 5 / 1s",
    }
    for before, after in changes.items():
        check(before in rules, before)
        rules = rules.replace(before, after, 1)
    path = os.path.join(world.me.home, "short.yaml")
    with open(path, "w") as file:
        file.write(rules)
    return path


@test
def programs_of_known_bottleneck_get_the_right_answers_live(world):
    path, work = short_rules(world), os.path.join(TOP, "tests", "workloads", "work.py")
    quiet = [name for name, (limits, _) in LIVE.items() if limits == ["waiting"]]
    started = ("run", "--out", "/dev/null", "--err", "/dev/null")
    for name in quiet:
        world.met(*started, "-n", name, "--", "python3", work, name, "6").ok()
    for name in LIVE:
        if name not in quiet:
            world.met(*started, "--wait", "-n", name, "--", "python3", work, name, "6").ok()
    for name, (limits, expected) in LIVE.items():
        world.met("wait", name).ok()
        limit = world.met("show", name, "--json").ok().json()["answers"]["bottleneck"]["limit"]
        check(limit in limits, f"{name} is limited by {limit}")
        explained = world.met("explain", name, "--rules", path, "--json").ok().json()["rules"]
        found = [one["rule"] for one in explained if one["finding"]]
        # A machine that is in use may have more threads than it has cores for.
        equal([rule for rule in found if rule != "oversubscribed"], expected, f"notes of {name}")


@test
def the_next_run_says_whether_a_finding_is_gone(world):
    need_root()
    folder = memory_cgroup(f"{world.token}-advice", 64 << 20)
    hog = os.path.join(world.me.home, "hog.py")
    with open(hog, "w") as file:
        file.write("import sys; bytearray(int(sys.argv[1]))")
    inside = f'echo $$ > {folder}/cgroup.procs && exec "$@"'
    try:
        for size in (256 << 20, 256 << 20, 1):
            world.me.finish(world.me.start("sh", "-c", inside, "sh", world.met_path, "time", "--", world.python, hog, str(size)))
        followed = [world.met("show", job, "--json").ok().json()["answers"]["followed_findings"] for job in "123"]
        equal(followed[0], [], "the first run")
        for again, taken in ((followed[1], False), (followed[2], True)):
            equal([(one["rule"], one["taken"]) for one in again], [("out_of_memory", taken)], "the kills of the run before")
        check("taken: out_of_memory of job 2 is gone" in " ".join(world.met("show", "3").ok().out.split()), "the report")
    finally:
        eventually(lambda: try_rmdir(folder), "the cgroup is empty")


@test
def runs_of_one_command_are_compared_and_scaled(world):
    runs(world, "sleep", "1", count=3)
    compared = world.met("compare", "@last").ok().out
    check("duration" in compared and "×" in compared, compared)
    objects = world.met("compare", "1", "2", "--json").ok().json()
    equal([one["job"]["id"] for one in objects["jobs"]], ["1", "2"], "jobs in their order")
    scaled = world.met("scale", "1", "2", "--sizes", "1,2", "--json").ok().json()
    equal(scaled["cannot_tell"]["run_next"], [1.0, 2.0], "what to run next")
    scaled = world.met("scale", "1", "2", "3", "--sizes", "1,1,2", "--json").ok().json()
    check("cannot_tell" in scaled and scaled["scaling"] is None, scaled)
    check("cannot say" in world.met("scale", "1").ok().out, "one size")
    world.met("compare", "1", "1").refused("job 1 is given twice", "different jobs")
    equal(world.met("rm", "1", "1").ok().out, "Removed job 1\n", "a job that is named twice is removed once")


@test
def a_given_lineage_makes_runs_of_two_commands_alike(world):
    run = ("run", "--wait", "--out", "/dev/null", "--err", "/dev/null", "--lineage", "night")
    world.met(*run, "--", "sleep", "0.2").ok()
    world.met(*run, "-n", "other", "--", "true").ok()
    explained = world.met("explain", "2", "--json").ok().json()
    check(explained["lineage"].startswith("night of"), explained["lineage"])
    objects = world.met("compare", "2", "--json").ok().json()
    equal([one["job"]["id"] for one in objects["jobs"]], ["2", "1"], "the earlier run has another command")
    refused = world.met("run", "--lineage", "Not a tag", "--", "true").expect(2)
    check("--lineage" in refused.err, refused.err)


#: Steps of which a share is done by one worker and the rest by all. A step waits instead of computing: how long it takes
#: depends little on what else the machine does, and runs do not disturb each other.
WORK_STEPS, WORK_STEP_S = 240, 0.05
SCALED = f"""
import os, sys, time
workers, serial, steps = int(sys.argv[1]), float(sys.argv[2]), {WORK_STEPS}
def work(count):
    end = time.monotonic() + count * {WORK_STEP_S}
    while time.monotonic() < end:
        time.sleep(max(min({WORK_STEP_S}, end - time.monotonic()), 0))
alone = round(steps * serial)
work(alone)
children = []
for _ in range(workers):
    child = os.fork()
    if child == 0:
        work((steps - alone) // workers)
        os._exit(0)
    children.append(child)
for child in children:
    os.waitpid(child, 0)
"""


@test
def a_known_serial_share_is_in_the_interval(world):
    path = os.path.join(world.me.home, "scaled.py")
    with open(path, "w") as file:
        file.write(SCALED)
    work_s, quiet = WORK_STEPS * WORK_STEP_S, ("--out", "/dev/null", "--err", "/dev/null")
    shares = (0, 0.1, 0.5)
    jobs = {
        serial: [world.me.run("python3", path, str(workers), str(serial), options=quiet) for workers in (1, 1, 2, 2)]
        for serial in shares
    }
    for serial in shares:
        walls = [world.met("wait", job).ok() and world.show(job)["totals"]["wall_seconds"] for job in jobs[serial]]
        scaled = world.met("scale", *jobs[serial], "--sizes", "1,1,2,2", "--json").ok().json()
        noise = max(abs(one - other) / min(one, other) for one, other in (walls[:2], walls[2:]))
        if scaled["scaling"] is None:
            # Only runs that differ among themselves leave a reason to say nothing.
            check(noise > 0.05 and scaled["cannot_tell"]["why"], f"{serial}, times {walls}: {scaled}")
            continue
        # Starts and ends take time, too: what they add to runs of two workers looks serial, to those of one parallel.
        over_1, over_2 = max(walls[:2]) / work_s - 1, max(walls[2:]) / work_s - (1 + serial) / 2
        least, most = (1 + serial) / (1 + over_1) - 1, serial + 2 * over_2
        share = scaled["scaling"]["serial_ratio"]
        check(share["low"] <= most and least <= share["high"], f"{serial}, {least} to {most}: {share}, times {walls}")
        equal(scaled["scaling"]["model"], "karp_flatt", "of two sizes")
        equal(scaled["scaling"]["size_max"], 4.0, "twice the largest")


@test
def only_runs_that_finished_and_have_a_size_are_scaled(world):
    world.met("run", "--wait", "--out", "/dev/null", "--err", "/dev/null", "--", "sh", "-c", "exit 3").expect(3)
    threads = "import threading, time; [threading.Thread(target=time.sleep, args=(2,)).start() for _ in range(3)]"
    runs(world, "python3", "-c", threads)
    failed = world.met("scale", "1", "--sizes", "1", "--json").ok().json()
    equal(failed["left_out"], ["job 1: failed"], "a run that failed")
    unsized = world.met("scale", "2").ok().out
    check("its size is not known" in unsized and "--sizes" in unsized, unsized)
    runs(world, "sleep", "2")
    one = world.met("scale", "3", "--json").ok().json()
    equal((one["left_out"], one["cannot_tell"]["run_next"]), ([], [2.0, 1.0]), "one thread is one worker")


@test
def reading_answers_writes_nothing(world):
    runs(world, "true")
    before = world.met("list", "--json").ok().out
    for words in (("check",), ("explain", "1"), ("scale", "1"), ("show", "1")):
        world.met(*words).ok()
    equal(world.met("list", "--json").ok().out, before, "jobs")


STEPS = "for step in 1 2 3; do echo \"step $step loss 0.$step\"; sleep 0.2; done; printf 'epoch 7' >&2; exit 3"


def work_of(world, job="@last"):
    return {one["name"]: one for one in world.met("show", job, "--json").ok().json()["work"]}


@test
def numbers_in_the_output_of_a_job_are_marks(world):
    pattern = r"^step (?P<step>\d+) loss (?P<loss>[\d.]+)|epoch (?P<epoch>\d+)"
    world.met("run", "--wait", "-n", "steps", "--mark-regex", pattern, "--", "sh", "-c", STEPS).expect(3)
    shown = world.met("show", "--json").ok().json()
    equal((shown["job"]["exit_code"], shown["job"]["command"][0]), (3, "sh"), "the command itself")
    with open(world.me.path("steps.out")) as file:
        equal(file.read(), "".join(f"step {step} loss 0.{step}\n" for step in (1, 2, 3)), "its output")
    with open(world.me.path("steps.err")) as file:
        equal(file.read(), "epoch 7", "its errors")
    work = work_of(world)
    equal((work["step"]["marks"], work["step"]["last"], work["step"]["is_count"]), (3, 3.0, True), "steps")
    check(0.1 < work["step"]["seconds_per_unit"] < 60, work["step"])
    points = work["step"]["points"]
    check(points[0]["units_per_second"] is None and 0 < points[1]["units_per_second"] < 10, points)
    check("energy_joules_per_unit" in points[1], points)
    equal((work["loss"]["last"], work["epoch"]["last"]), (0.3, 7.0), "figures of both streams")
    check("per step" in world.met("show").ok().out, "the report")


@test
def a_filter_marks_what_passes_through_it(world):
    pattern = r"step (?P<step>\d+)"
    line = f"printf 'step 1\\rstep 2\\n' | {world.met_path} mark --regex '{pattern}'"
    shown = world.met("time", "--", "sh", "-c", line).ok()
    check("step 1\rstep 2\n" in shown.out_bytes.decode(), shown.out)
    equal(work_of(world)["step"]["marks"], 2, "marks")
    outside = world.met("mark", "--regex", pattern, input=b"step 1\n").ok()
    check(outside.out == "step 1\n" and "MET_MARKS" in outside.err, outside.err)
    equal(world.met("mark", "--regex", pattern, "--", "sh", "-c", "echo step 1; exit 5").expect(5).out, "step 1\n", "a command")


@test
def a_command_runs_without_marks_where_no_process_can_search_its_output(world):
    need_root()
    # A user of no other test: the limit counts all processes of a user.
    uid = 1_700_000_000 + os.getpid()
    for limit, unsearched in ((1, 2), (2, 2), (3, 1)):
        done = subprocess.run(
            [world.met_path, "mark", "--regex", r"step (?P<step>\d+)", "--", "echo", "step 1"],
            user=uid, group=uid, extra_groups=[], cwd="/", env={"PATH": os.environ["PATH"]}, capture_output=True, text=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit)),
        )
        equal((done.returncode, done.stdout), (0, "step 1\n"), f"with {limit} processes: {done.stderr}")
        equal(done.stderr.count("cannot be searched for marks"), unsearched, f"{limit}: {done.stderr}")


@test
def a_wrong_pattern_is_refused_before_anything_runs(world):
    for pattern, said in ((r"step (\d+", "at character 6"), (r"step (\d+)", "no number is named"), ("(?P<n>" + "a" * 2000 + ")", "longer than")):
        for words in (("run", "--mark-regex", pattern, "--", "true"), ("mark", "--regex", pattern)):
            refused = world.met(*words, input=b"").expect(2)
            check(said in refused.err, f"{words}: {refused.err}")
    equal(world.met("list", "--json").ok().json(), [], "jobs")


@test
def a_rule_about_users_is_explained_by_week(world):
    runs(world, "true", count=2)
    user = world.met("show", "1", "--json").ok().json()["job"]["user"]
    shown = world.met("explain", "--user", user, "many_tiny_jobs").ok().out
    check(f"2 jobs of {user}" in shown and "tiny_jobs" in shown and "not reported: " in shown, shown)
    weeks = world.met("explain", "--user", user, "--json").ok().json()["weeks"]
    equal([one["rule"] for one in weeks[0]["rules"]], ["many_tiny_jobs", "cores_unused", "gpus_idle", "hog"], "rules about users")
    for words, said in (
        (("explain", "1", "hog"), "--user"),
        (("explain", "--user", user, "cpu_low"), "single jobs"),
        (("explain", "--user", user, "hog", "1"), "not both"),
        (("explain", "--user", "nobody-here"), "no jobs of"),
        (("explain",), "JOB"),
    ):
        refused = world.met(*words).expect(2)
        check(said in refused.err, f"{words}: {refused.err}")


#: Rules about the machine around a job.
AROUND = """rules:
  - name: beside
    severity: low
    when: neighbours_cores >= 0 and wall >= 0s
    gates: {coverage: 0%, length: 0s, samples: 0}
    what: "others used some of {node_cpus} cores"
    how: "move it to {directive_without_gpus}"
    otherwise: "move it elsewhere"
"""
BUSY = ("timeout", "2", "sh", "-c", "while :; do :; done")


@test
def a_rule_about_the_jobs_beside_one_is_explained_as_it_is_reported(world):
    path = os.path.join(world.me.home, "around.yaml")
    with open(path, "w") as file:
        file.write(AROUND)
    world.configure("sampling:\n  interval: 100ms\nsystems: [{name: fox, cores: 4096, memory: 64TiB}]\n")
    runs(world, *BUSY)
    alone = world.met("explain", "1", "beside", "--rules", path, "--json").ok().json()["rules"][0]
    equal((alone["finding"], alone["unknown"]), (None, ["neighbours_cores"]), "of the only job of a machine")
    runs(world, *BUSY, count=2)
    has_peaks = lambda job: "memory_needed_peak_bytes" in world.show(job)["totals"]
    eventually(lambda: has_peaks("2") and has_peaks("3"), "what samples know is there")
    found = world.met("check", "--json", "--rules", path).ok().json()["findings"]
    equal(sorted(one["subject"] for one in found), ["2", "3"], "jobs that are not the first of their machine")
    for one in found:
        equal(one["how"], "move it to fox", "the machine of the configuration")
    explained = lambda job: world.met("explain", job, "beside", "--rules", path, "--json").ok().json()["rules"][0]["finding"]
    equal([explained(one["subject"]) for one in found], found, "with a daemon")
    world.met("daemon", "--user", "--stop").ok()
    equal([explained(one["subject"]) for one in found], found, "without one")


#: Jobs as Slurm would print them: id, name and time limit, of ten hours each, one after the other.
LONG_JOBS = ((1, "train", "3-00:00:00"), (2, "train", "3-00:00:00"), (3, "train", "3-00:00:00"), (4, "other", "12:00:00"), (5, "train", "3-00:00:00"))
SACCT = """#!/usr/bin/env python3
import sys
fields = next(a for a in sys.argv if a.startswith("--format="))[9:].split(",")
mark = next(a for a in sys.argv if a.startswith("--delimiter="))[12:]
print(mark.join(fields))
for id, name, limit in LONG_JOBS:
    begin = BEGIN + id * 40000
    known = dict(Cluster="c", JobIDRaw=str(id), JobID=str(id), UID="5001", User="ada", Account="physics", Partition="p", State="COMPLETED", ExitCode="0:0",
                 Submit="%d" % (begin - 60), Eligible="%d" % (begin - 60), Start="%d" % begin, End="%d" % (begin + 36000), NNodes="1", NodeList="n1",
                 JobName=name, ReqCPUS="32", AllocTRES="cpu=32,node=1", Timelimit=limit)
    print(mark.join(known.get(field, "") for field in fields))
"""


def long_jobs(world):
    """A server with jobs of which two are known to need a tenth of their time limit."""
    site = Site(world)
    site.listed = len(LONG_JOBS)
    begin = str(int(time.time()) - 260_000)
    script(os.path.join(site.programs, "sacct"), SACCT.replace("LONG_JOBS", repr(LONG_JOBS), 1).replace("BEGIN", begin))
    return site


@test
def what_is_reported_of_many_jobs_is_explained_and_shown_of_each(world):
    with long_jobs(world) as site:
        token = site.path("token", site.operator)
        client = site.path("client.yaml", f"client:\n  token_file: {token}\n")
        ask = lambda *words: world.me.met("-c", client, "--server", f"http://127.0.0.1:{site.port}", *words)
        found = ask("check", "--json").ok().json()["findings"]
        of_jobs = [one for one in found if one["lineage"]]
        equal(sorted((one["subject"], one["rule"]) for one in of_jobs), [("slurm:3", "time_limit_excess"), ("slurm:5", "time_limit_excess")], "findings")
        for one in of_jobs:
            (explained,) = ask("explain", one["subject"], one["rule"], "--json").ok().json()["rules"]
            equal(explained["finding"], one, f"{one['subject']} explained")
            shown = ask("show", one["subject"], "--json").ok().json()["answers"]["findings"]
            equal([it for it in shown if it["rule"] == one["rule"]], [one], f"{one['subject']} shown")
        quiet = ask("show", "slurm:4", "--json").ok().json()["answers"]["findings"]
        equal(quiet, [], "a job with a limit that fits")
