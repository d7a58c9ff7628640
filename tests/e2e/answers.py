"""Answers about jobs: verdicts, findings, comparisons and predictions, by the real binary."""

import os

from harness import check, equal, test

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


@test
def only_runs_that_finished_and_have_a_size_are_scaled(world):
    world.met("run", "--wait", "--out", "/dev/null", "--err", "/dev/null", "--", "sh", "-c", "exit 3").expect(3)
    runs(world, "sleep", "1")
    failed = world.met("scale", "1", "--sizes", "1", "--json").ok().json()
    equal(failed["left_out"], ["job 1: failed"], "a run that failed")
    unsized = world.met("scale", "2").ok().out
    check("its size is not known" in unsized and "--sizes" in unsized, unsized)


@test
def reading_answers_writes_nothing(world):
    runs(world, "true")
    before = world.met("list", "--json").ok().out
    for words in (("check",), ("explain", "1"), ("scale", "1"), ("show", "1")):
        world.met(*words).ok()
    equal(world.met("list", "--json").ok().out, before, "jobs")
