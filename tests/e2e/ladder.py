"""How often jobs are sampled: by their age and the interest in them, without a loss of what is exact."""

import time

from harness import check, equal, eventually, test
from prometheus import Page, of_job

#: Jobs that end at about the same time, each with processes that live for a moment.
JOBS = 60
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


@test
def jobs_that_end_in_bursts_have_totals_as_good_as_at_a_fixed_interval(world):
    world.configure("sampling:\n  interval: 100ms\n")
    fixed_ids = burst(world)
    fixed = [world.show(job) for job in fixed_ids]
    world.configure(STEEP)
    eventually(lambda: "60s after 500ms" in world.met("configure").ok().out.replace("1m after", "60s after"), "the ladder")
    steep = [world.show(job) for job in burst(world)]

    def kinds(jobs):
        found = {}
        for job in jobs:
            for name, figure in job["quality"].items():
                found.setdefault((name, figure["kind"]), 0)
                found[name, figure["kind"]] += 1
        return found

    before, after = kinds(fixed), kinds(steep)
    worse = ("attributed", "lower_bound", "estimated")
    count = lambda kinds: sum(number for (_, kind), number in kinds.items() if kind in worse)
    check(count(after) <= count(before) + JOBS // 50, f"fixed: {before}; on the ladder: {after}")
    equal(sum("cpu_seconds" in job["totals"] for job in steep), JOBS, "jobs with CPU time")
    processes = [job["totals"]["processes"] for job in steep]
    check(min(processes) >= 1, processes)


@test
def a_scrape_has_old_figures_read_again_and_no_series_has_them(world):
    # Nothing is due for a minute; CPU time of all jobs is read every ten seconds.
    page = Page(world, http="  max_age: 1s\n", more="sampling:\n  ladder: [500ms, 60s after 1s]\n")
    job = world.run("python3", "-c", FOREVER)
    eventually(lambda: page.value(of_job("cpu_seconds_total", job)), "its CPU time")
    time.sleep(2)
    values, times = [], []
    for _ in range(5):
        time.sleep(1.5)
        values.append(page.value(of_job("cpu_seconds_total", job)))
        times.append(page.value("met_daemon_sample_time_seconds"))
    check(all(later > earlier for earlier, later in zip(values, values[1:])), f"CPU time grows with every scrape: {values}")
    check(all(later > earlier for earlier, later in zip(times, times[1:])), f"and so does its time: {times}")

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

    def watched():
        before, end = ticks(), time.monotonic() + 2
        while time.monotonic() < end:
            world.show(job)
        return ticks() - before

    eventually(lambda: watched() > 3, "more ticks while somebody watches it")
    world.met("cancel", job).ok()
