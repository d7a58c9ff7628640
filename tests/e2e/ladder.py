"""How often jobs are sampled: by their age and the interest in them, without a loss of what is exact."""

import os
import time

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
        least = lambda bursts: min(sum(found.values()) for found in bursts)
        # Whether the last process of a job is read in time is chance at any cadence. A figure that the ladder made worse
        # would be worse of every job.
        if least(steep) <= least(fixed) + JOBS // 6:
            return
    check(False, f"fixed: {fixed}; on the ladder: {steep}")


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
