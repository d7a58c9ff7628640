"""How often jobs are sampled: by their age and the interest in them, without a loss of what is exact."""

import contextlib
import csv
import datetime
import io
import os
import time

from accounting import series
from api import Stream, bearer
from cluster import cluster
from harness import check, equal, eventually, test
from prometheus import Page, of_job

#: Jobs that end at about the same time, each with processes that live for a moment.
JOBS = int(os.environ.get("MET_E2E_BURST", "60"))
#: Bursts of each kind that are compared: on a busy machine an end may be lost at any cadence.
BURSTS = 3
SHORT = "i=0; while [ $i -lt 15 ]; do /bin/true; i=$((i + 1)); done; sleep 1.5; /bin/true; /bin/true"
#: Every tenth of a second at first, and hardly ever after half a second.
STEEP = "sampling:\n  ladder: [100ms, 60s after 500ms]\n"
FOREVER = "import time\nwhile True:\n    end = time.process_time() + 0.1\n    while time.process_time() < end: pass\n"


def burst(user):
    """Runs many short jobs to their ends."""
    ids = [user.run("sh", "-c", SHORT) for _ in range(JOBS)]
    for job in ids:
        user.wait_for_state(job, "finished", "failed")
    return ids


def inexact(jobs):
    """Totals that are not measured, by name and quality. A peak is no total: only samples know it."""
    found = {}
    for job in jobs:
        for name, figure in job["quality"].items():
            if "_peak" not in name and figure["kind"] in ("attributed", "lower_bound", "estimated"):
                found[name, figure["kind"]] = found.get((name, figure["kind"]), 0) + 1
    return found


#: What ended processes waited is in exit records alone. These are all of a job's only if no process of which the daemon
#: knows no job ended between the start of the job and its announcement. On a busy machine one did for more than half of
#: the jobs, such as the command that started the job before: chance, and not the cadence, decides how many.
CHANCE = {"run_queue_wait_seconds": JOBS // 6}


def worse(steep, fixed):
    """Figures that are inexact in more jobs on the ladder, in the best burst of each: a few jobs by chance."""
    least = lambda bursts, figure: min(found.get(figure, 0) for found in bursts)
    figures = {figure for found in steep for figure in found}
    return {figure for figure in figures if least(steep, figure) > least(fixed, figure) + CHANCE.get(figure[0], JOBS // 30)}


@test
def jobs_that_end_in_bursts_have_totals_as_good_as_at_a_fixed_interval(world):
    fixed, steep = [], []
    for _ in range(BURSTS):
        world.configure("sampling:\n  interval: 100ms\n")
        if steep:
            eventually(lambda: "60s after 500ms" not in world.met("configure").ok().out.replace("1m after", "60s after"), "no ladder")
        fixed.append(inexact([world.show(job) for job in burst(world)]))
        world.configure(STEEP)
        eventually(lambda: "60s after 500ms" in world.met("configure").ok().out.replace("1m after", "60s after"), "the ladder")
        jobs = [world.show(job) for job in burst(world)]
        steep.append(inexact(jobs))
        equal(sum("cpu_seconds" in job["totals"] for job in jobs), JOBS, "jobs with CPU time")
        processes = [job["totals"]["processes"] for job in jobs]
        check(min(processes) >= 1, processes)
        if not worse(steep, fixed):
            return
    check(False, f"worse: {worse(steep, fixed)}; fixed: {fixed}; on the ladder: {steep}")


@test
def a_scrape_has_old_figures_read_again_and_no_series_has_them(world):
    # Nothing is due for a minute; CPU time of all jobs is read every ten seconds.
    page = Page(world, http="  max_age: 1s\n", more="sampling:\n  ladder: [500ms, 60s after 1s]\n")
    job = world.run("python3", "-c", FOREVER)
    eventually(lambda: page.value(of_job("cpu_seconds_total", job)), "its CPU time")
    time.sleep(2)
    names = ("met_daemon_ticks_total", of_job("cpu_seconds_total", job), "met_daemon_sample_time_seconds")

    def figures():
        lines = dict(line.rpartition(" ")[::2] for line in page.text().splitlines())
        return [float(lines[name]) for name in names]

    last, grown = figures(), 0

    def grew():
        nonlocal last, grown
        before, last = last, figures()
        # Between two ticks nothing but a scrape reads.
        if last[0] == before[0]:
            grown += last[1] > before[1] and last[2] > before[2]
        return grown >= 5

    eventually(grew, lambda: f"CPU time and its time grow with scrapes between ticks: {last}", pause_s=1.5)

    def is_quiet():
        ticks = page.value("met_daemon_ticks_total")
        for _ in range(3):
            time.sleep(1.2)
            page.text()
        return page.value("met_daemon_ticks_total") <= ticks + 1

    # A job whose CPU use changes because others use the machine is sampled more often for half a minute.
    eventually(is_quiet, "a scrape is no tick")
    world.met("cancel", job).ok()


#: Waits for a file, then writes this much in a moment, and sleeps on.
BURST_BYTES = 6 << 20
SLEEPER = """
import os, sys, time
while not os.path.exists(sys.argv[1]):
    time.sleep(0.5)
with open(sys.argv[2], "wb", buffering=0) as file:
    file.write(bytes(int(sys.argv[3])))
time.sleep(600)
"""


@test
def a_burst_of_io_of_a_sleeping_job_is_in_its_samples(world):
    world.configure("sampling:\n  ladder: [200ms, 2s after 1s]\n")
    begin, written = (os.path.join(world.me.home, name) for name in ("begin", "written"))
    job = world.run("python3", "-c", SLEEPER, begin, written, str(BURST_BYTES))
    # It has slept for so long that only its CPU time is read.
    time.sleep(15)
    open(begin, "w").close()
    eventually(lambda: os.path.exists(written) and os.path.getsize(written) == BURST_BYTES, "the burst")
    # Looks that are further apart than those of who watches a job, which would have it read more often.
    most = lambda: max(series(world.me, job)["write_call"], default=0)
    eventually(lambda: most() >= BURST_BYTES, lambda: f"{most()} bytes are in its samples while it sleeps on", 240, 20)
    world.met("cancel", job).ok()
    world.wait_for_state(job, "cancelled")
    check(world.show(job)["totals"]["write_call_bytes"] >= BURST_BYTES, "its total")


@test
def a_job_that_is_watched_is_sampled_more_often(world):
    page = Page(world, more="sampling:\n  ladder: [200ms, 60s after 1s]\n")
    job = world.run("sleep", "600")
    eventually(lambda: page.value(of_job("cpu_seconds_total", job)) is not None, "the job")
    time.sleep(2)

    def ticks():
        return page.value("met_daemon_ticks_total")

    def grown():
        before = ticks()
        time.sleep(2)
        return ticks() - before

    eventually(lambda: grown() <= 1, "nothing is due")

    def while_asked(*words):
        before, end = ticks(), time.monotonic() + 2
        while time.monotonic() < end:
            world.met(*words).ok()
        return ticks() - before

    # Programs read long lists, nodes and sums; they watch no job.
    for words in (["list", "--json", "--limit", "1000"], ["usage", "--json"]):
        eventually(lambda: while_asked(*words) <= 1, f"met {' '.join(words)} watches no job")
    for words in (["show", job], ["list"]):
        eventually(lambda: while_asked(*words) > 3, f"more ticks while somebody looks at met {' '.join(words)}")
    world.met("cancel", job).ok()


#: Once a second is not often, and every five seconds hardly ever.
QUIET = 5
#: A job is near what this rule is about as soon as it runs; it never speaks.
NEAR = """gates: {length: 0s, samples: 0, coverage: 0%}
rules:
  - name: near
    severity: low
    when: wall > 1000h
    watch: {when: wall > 1s, for: 20s}
    what: "never"
    how: "nothing"
"""


def sampled(exported, begin, end):
    """How often an exported job was sampled between two times."""
    times = [datetime.datetime.fromisoformat(row["time"]).timestamp() for row in csv.DictReader(io.StringIO(exported))]
    return sum(begin <= at < end for at in times)


@test
def a_rule_has_jobs_sampled_more_often_that_are_near_what_it_is_about(world):
    page = Page(world, more=f"sampling:\n  ladder: [200ms, {QUIET}s after 1s]\n")
    rules = os.path.join(world.root, "near.yaml")
    with open(rules, "w") as file:
        file.write(NEAR)
    job = world.run("sleep", "600")
    eventually(lambda: page.value(of_job("cpu_seconds_total", job)) is not None, "the job")

    def grown():
        before = page.value("met_daemon_ticks_total")
        time.sleep(2)
        return page.value("met_daemon_ticks_total") - before

    eventually(lambda: grown() <= 1, "nothing is due")
    dry = world.met("check", "--rules", rules, "--dry-run", "--json").ok().json()
    check("watched" not in dry, dry)
    explained = world.met("explain", job, "near", "--rules", rules, "--json").ok().json()["rules"][0]
    equal((explained["watch"]["passed"], explained["finding"]), (True, None), "what the rule wants")
    eventually(lambda: grown() <= 1, "neither a dry run nor an explanation has a job sampled")
    checked = world.met("check", "--rules", rules, "--json").ok().json()
    equal((checked["findings"], checked["watched"]), ([], [{"job": job, "rule": "near", "seconds": 20}]), "what was found")
    # Nobody asks again.
    eventually(lambda: grown() >= 4, "it is sampled more often", deadline_s=15)
    eventually(lambda: grown() <= 1, "and goes back", deadline_s=90)
    check("sampled more often: 1 job" in world.met("check", "--rules", rules).ok().out, "a line")
    world.met("cancel", job).ok()


@test
def a_job_that_is_watched_at_a_server_is_sampled_and_sent_more_often(world):
    with cluster(world, 1, node_config="http:\n  listen: 127.0.0.1:9318\n") as made:
        node = made.nodes[0]
        text = "forward:\n  interval: 1s\njobs:\n  discover: false\nhttp:\n  listen: 127.0.0.1:9318\n"
        node.configure(f"sampling:\n  ladder: [200ms, {QUIET}s after 1s]\n{text}")
        eventually(lambda: f"{QUIET}s after 1s" in node.met("configure").ok().out, "the ladder")
        node.met("run", "-n", "still", "--", "sleep", "600").ok()

        def ticks():
            lines = node.fetch("http://127.0.0.1:9318/metrics").splitlines()
            return next((float(line.split()[1]) for line in lines if line.startswith("met_daemon_ticks_total ")), 0)

        def grown(seconds=2):
            before = ticks()
            time.sleep(seconds)
            return ticks() - before

        eventually(lambda: ("1", "running") in [(job["job"]["id"], job["job"]["state"]) for job in made.jobs().values()], "the job", pause_s=1)
        eventually(lambda: grown() <= 1, "nothing is due", deadline_s=120)
        quiet = time.time()
        time.sleep(2 * QUIET)
        begin = time.time()
        with contextlib.closing(Stream(made.forwarded, bearer(made.token), "/api/v1/stream?job=1@n1")) as stream:
            equal(stream.answer.status, 200, "the stream")
            eventually(lambda: grown() >= 4, "it is sampled more often while a stream is open", deadline_s=90)
            time.sleep(2 * QUIET)
            end = time.time()
        eventually(lambda: grown() <= 1, "and goes back", deadline_s=120)
        back = time.time()
        time.sleep(2 * QUIET)
        # One look is not watching.
        for where, command in (("node", node.met), ("server", made.ask)):
            exported = command("export", "1@n1" if where == "server" else "1", "-o", "-", "--format", "csv", "--table", "job").ok().out
            found = [sampled(exported, *span) for span in ((quiet, begin), (end - 2 * QUIET, end), (back, back + 2 * QUIET))]
            check(found[0] <= 4 and found[2] <= 4 and found[1] >= 10, f"samples before, while and after it is watched, on the {where}: {found}")
        # A rule asks by the same way.
        rules = os.path.join(made.server.folder, "near.yaml")
        with open(rules, "w") as file:
            file.write(NEAR)
        eventually(lambda: grown() <= 1, "nobody watches", deadline_s=120)
        watched = made.ask("check", "--rules", rules, "--json").ok().json()["watched"]
        equal([one["rule"] for one in watched], ["near"], "what rules want")
        eventually(lambda: grown() >= 4, "it is sampled more often because a rule wants it", deadline_s=20)
        node.met("cancel", "1").ok()
        eventually(lambda: node.met("show", "1", "--json").ok().json()["job"]["state"] != "running", "it ends")
