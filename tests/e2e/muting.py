"""Findings that a person dealt with: acknowledged, muted, sent. By the real binary, in a user's files and under a root daemon."""

import json
import os

from answers import RULES, runs
from harness import check, equal, need_root, test
from users import FOREVER, ask, two_users


def with_rules(world, user=None):
    """The path of rules of which one speaks of every job."""
    path = os.path.join((user or world.me).home, "rules.yaml")
    with open(path, "w") as file:
        file.write(RULES)
    os.chmod(path, 0o644)
    return path


def checked(user, path, *options):
    found = user.met("check", "--json", "--rules", path, *options).ok().json()
    return [finding["subject"] for finding in found["findings"]], found


@test
def a_muted_finding_is_left_out_said_in_one_line_and_listed(world):
    path = with_rules(world)
    runs(world, "true")
    runs(world, "sleep", "0.1")
    equal(sorted(checked(world, path)[0]), ["1", "2"], "findings")
    done = world.met("mute", "1", "every_job", "--rules", path).ok().out
    check(done.startswith("Muted: every_job, true of "), done)
    subjects, found = checked(world, path)
    equal((subjects, found["hidden"]), (["2"], 1), "findings beside the muted one")
    runs(world, "true")
    equal(checked(world, path)[0], ["2"], "the next run of a muted lineage")
    check("2 findings are muted or acknowledged" in world.met("check", "--rules", path).ok().out, "one line")
    shown = world.met("check", "--rules", path, "--all").ok().out
    check("every_job  1: muted by " in shown, shown)
    (first, second) = checked(world, path, "--all")[1]["muted"]
    equal(first["muted"]["kind"], "muted", "why it is left out")
    check("true of " in second["lineage"], second)
    check("it ran for" in world.met("explain", "1", "every_job", "--rules", path).ok().out, "still explained")
    check("every_job  true of " in world.met("mute").ok().out, "the list")
    equal([one["rule"] for one in world.met("mute", "--json").ok().json()["muted"]], ["every_job"], "the list as JSON")
    world.met("unmute", "3").ok()
    equal(sorted(checked(world, path)[0]), ["1", "2", "3"], "findings, after it was taken back")
    equal(world.met("mute").ok().out, "no findings are muted or acknowledged\n", "the empty list")


@test
def an_acknowledged_finding_comes_back_with_the_next_run(world):
    path = with_rules(world)
    runs(world, "true")
    world.met("ack", "1", "--rules", path).ok()
    equal(checked(world, path)[0], [], "findings after all of them were acknowledged")
    runs(world, "true")
    equal(checked(world, path)[0], ["2"], "findings of the next run")


@test
def what_is_wrong_with_a_mute_is_said(world):
    path = with_rules(world)
    runs(world, "true")
    for words, said in (
        (("mute", "1"), "name a rule"),
        (("mute", "1", "no_such"), 'no rule named "no_such"'),
        (("mute", "1", "\x1b[2J"), "no rule named"),
        (("mute", "7", "cpu_low"), "no job"),
        (("mute", "1", "cpu_low", "--for", "soon"), "--for"),
        (("mute", "1", "cpu_low", "--for", "0s"), "has passed"),
        (("ack", "1"), "nothing to acknowledge"),
        (("unmute", "1"), "none of these findings is muted"),
        (("unmute", "1", "cpu_low"), "none of these findings is muted"),
        (("ack",), "name a job"),
        (("check", "--send", "--rules", path), "nothing to send by"),
    ):
        refused = world.met(*words).expect(2)
        check(said in refused.err and "\x1b" not in refused.err, f"{words}: {refused.err}")
    world.met("mute", "1", "cpu_low", "--for", "30d").ok()
    (muted,) = world.met("mute", "--json").ok().json()["muted"]
    check(muted["until"] > muted["at"], muted)


@test
def a_user_mutes_only_own_findings_and_an_operator_any(world):
    need_root()
    alice, bob = two_users(world)
    operator = world.named_user("bin")
    world.configure("daemon:\n  operators: bin\n")
    world.start_system_daemon()
    job = alice.run(*FOREVER)
    alice.appears("pid")
    refused = bob.met("mute", f"{job}", "cpu_low").expect(2)
    check("no job" in refused.err, refused.err)
    path = os.path.join(world.system_runtime, "daemon.sock")
    hello = {"hello": {"protocol": 1, "newest": 8}}
    (_, reply) = ask(world.me, path, hello, {"find": {"id": {"manager": None, "id": job}}})
    key = reply["jobs"][0]["key"]
    mute = {"target": {"job": key}, "rules": ["cpu_low"], "step": {"mute": {"until_ns": None}}}
    for target, rules in (
        ({"job": key}, ["cpu_low"]),
        ({"user": alice.name}, ["cores_unused"]),
        ({"user": bob.name}, ["\x1b[2J"]),
        ({"user": bob.name}, ["x" * 100_000]),
        ({"user": bob.name}, []),
        ({"user": bob.name}, ["a"] * 10_000),
    ):
        reply = ask(bob, path, hello, {"reactions": {"change": {**mute, "target": target, "rules": rules}}})[-1]
        check("error" in reply, f"{target}: {str(reply)[:200]}")
    alice.met("mute", job, "cpu_low").ok()
    operator.met("mute", job, "memory_excess").ok()
    everything = ask(alice, path, hello, {"reactions": {"change": None}})[-1]["reactions"]
    equal(
        sorted((one["rule"], one["by"], one["user"]) for one in everything),
        [("cpu_low", alice.name, alice.name), ("memory_excess", "bin", alice.name)],
        "what alice sees, with who did it",
    )
    equal(ask(bob, path, hello, {"reactions": {"change": None}})[-1], {"reactions": []}, "what bob sees")
    equal(len(operator.met("mute", "--json").ok().json()["muted"]), 2, "what an operator sees")
    world.stop_system_daemon()
    world.start_system_daemon()
    equal(len(alice.met("mute", "--json").ok().json()["muted"]), 2, "after a restart")
    alice.met("cancel", job).ok()


HOOK = """#!/bin/sh
cat >> {log}
echo >> {log}
"""


@test
def each_user_gets_a_message_once_a_week(world):
    path, log = with_rules(world), os.path.join(world.me.home, "sent.jsonl")
    hook = os.path.join(world.me.home, "hook")
    with open(hook, "w") as file:
        file.write(HOOK.format(log=log))
    os.chmod(hook, 0o755)
    world.configure(f"notify:\n  command: {hook}\n")
    runs(world, "true", count=2)
    shown = world.met("check", "--rules", path, "--send", "--dry-run").ok().out
    check("Subject: 1 finding about your jobs" in shown and "nothing was sent" in shown, shown)
    check(not os.path.exists(log), "a dry run sent something")
    equal(world.met("check", "--rules", path, "--send").ok().out, "1 message sent\n", "the first time")
    with open(log) as file:
        (message,) = [json.loads(line) for line in file]
    equal((message["event"], len(message["findings"])), ("findings", 2), "the message")
    check("it ran for" in message["text"] and "met mute JOB RULE" in message["text"], message["text"])
    runs(world, "true")
    equal(world.met("check", "--rules", path, "--send").ok().out, "0 messages sent\n", "the same lineage and rule again")
    equal(len(checked(world, path)[0]), 3, "what was sent is still reported")
    runs(world, "sleep", "0.1")
    equal(world.met("check", "--rules", path, "--send").ok().out, "1 message sent\n", "another lineage")
    world.met("mute", "4", "every_job", "--rules", path).ok()
    with open(hook, "w") as file:
        file.write("#!/bin/sh\nexit 3\n")
    runs(world, "env", "true")
    failed = world.met("check", "--rules", path, "--send").expect(1)
    check("command failed" in failed.err, failed.err)
    with open(hook, "w") as file:
        file.write(HOOK.format(log=log))
    equal(world.met("check", "--rules", path, "--send").ok().out, "1 message sent\n", "what failed is sent later")
