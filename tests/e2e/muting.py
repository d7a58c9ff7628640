"""Findings that a person dealt with: acknowledged, muted, sent. By the real binary, in a user's files and under a root daemon."""

import json
import os

from answers import RULES, runs
from cluster import cluster
from harness import check, equal, eventually, need_root, test
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
    check("2 findings muted or acknowledged" in world.met("check", "--rules", path).ok().out, "one line")
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
        (("mute", "--for", "3d"), "JOB RULE"),
        (("mute", "--rules", path), "JOB RULE"),
        (("mute", "1", "cpu_low", "--json"), "--json"),
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
    refused = bob.met("mute", "--user", alice.name, "cores_unused").expect(2)
    check("only an operator" in refused.err, refused.err)
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
    check("would hit 1 user and 2 of 2 jobs" in shown, shown)
    check(not os.path.exists(log), "a dry run sent something")
    tried = world.met("check", "--since", "30d", "--rules", path, "--dry-run").ok().out
    check(tried.startswith("every_job") and "would hit 1 user and 2 of 2 jobs" in tried, tried)
    tried = world.met("check", "--since", "30d", "--rules", path, "--dry-run", "--json").ok().json()
    equal((tried["dry_run"]["users"], tried["dry_run"]["jobs"]), (1, 2), "whom it would hit")
    equal(world.met("check", "--dry-run").ok().out, "would hit no user: no findings in 2 jobs\n", "built-in rules")
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
    with open(os.path.join(world.me.store_folder(), "notify.log")) as file:
        (*_, failed, last) = file.read().splitlines()
    check("findings for" in failed and "command failed" in failed and last.endswith("command ok"), (failed, last))


@test
def of_two_commands_that_send_at_once_one_does(world):
    path, log = with_rules(world), os.path.join(world.me.home, "sent.jsonl")
    hook = os.path.join(world.me.home, "hook")
    with open(hook, "w") as file:
        file.write("#!/bin/sh\nsleep 1\n" + HOOK.format(log=log).split("\n", 1)[1])
    os.chmod(hook, 0o755)
    world.configure(f"notify:\n  command: {hook}\n")
    runs(world, "true")
    words = ("check", "--rules", path, "--send")
    both = [world.me.spawn(*words) for _ in range(2)]
    said = sorted(world.me.finish(process, words).ok().out for process in both)
    equal(said, ["0 messages sent\n", "1 message sent\n"], "what they say")
    with open(log) as file:
        equal(len(file.readlines()), 1, "messages")


@test
def a_server_keeps_its_own_mutes_and_a_node_says_so(world):
    with cluster(world, 1) as made:
        (node,), path = made.nodes, os.path.join(made.server.folder, "rules.yaml")
        with open(path, "w") as file:
            file.write(RULES)
        for _ in range(2):
            node.met("run", "--wait", "--name", "train", "--", "true").ok()
        eventually(lambda: len(made.ask("list", "--json").ok().json()) == 2, "both are on the server")
        found = lambda met: sorted(one["subject"] for one in met("check", "--json", "--rules", path).ok().json()["findings"])
        equal((found(node.met), found(made.ask)), (["1", "2"], ["1@n1", "2@n1"]), "findings")
        said = node.met("mute", "1", "every_job", "--rules", path).ok().out
        check("on this node only; on the server run: met --server http" in said, said)
        equal((found(node.met), found(made.ask)), ([], ["1@n1", "2@n1"]), "findings, muted on the node")
        said = made.ask("mute", "1@n1", "every_job", "--rules", path).ok().out
        check("on this node only" not in said, said)
        equal(found(made.ask), [], "findings, muted on the server")
        (muted,) = made.ask("mute", "--json").ok().json()["muted"]
        equal((muted["rule"], muted["kind"]), ("every_job", "muted"), "what is muted there")
        made.ask("mute", "1@n1", "every_job", "--rules", path, "--for", "0s").expect(2)
        made.ask("unmute", "2@n1").ok()
        equal(found(made.ask), ["1@n1", "2@n1"], "findings, taken back")


def with_hook(world):
    """The path of a hook that writes what it gets beside itself."""
    folder = os.path.join(world.me.home, "hooks")
    hook = os.path.join(folder, "hook")
    os.makedirs(folder, 0o755)
    with open(hook, "w") as file:
        file.write(HOOK.format(log=hook + ".log"))
    os.chmod(hook, 0o755)
    return hook


@test
def a_message_that_one_of_two_ways_took_is_sent_and_the_other_way_is_named(world):
    path, hook = with_rules(world), with_hook(world)
    # Nobody listens at the first port.
    world.configure(f"notify:\n  command: {hook}\n  webhook: http://127.0.0.1:1/\n")
    runs(world, "true")
    sent = world.met("check", "--rules", path, "--send").expect(1)
    equal(sent.out, "1 message sent\n", "by the program")
    check("webhook failed: " in sent.err and "command failed" not in sent.err, sent.err)
    with open(hook + ".log") as file:
        (message,) = [json.loads(line) for line in file]
    equal(message["event"], "findings", "what the program got")
    again = world.met("check", "--rules", path, "--send").ok()
    equal((again.out, again.err), ("0 messages sent\n", ""), "it is not sent again")


@test
def root_sends_by_no_program_and_configuration_that_another_user_could_replace(world):
    need_root()
    path, hook = with_rules(world), with_hook(world)
    world.configure(f"notify:\n  command: {hook}\n")
    runs(world, "true")

    def refused(replaceable):
        said = world.met("check", "--rules", path, "--send").expect(2)
        check(replaceable in said.err and "another user could change it" in said.err, said.err)
        check(not os.path.exists(hook + ".log"), "it ran")

    def refused_at_the_end(replaceable):
        log = os.path.join(world.me.store_folder(), "notify.log")
        before = len(open(log).readlines()) if os.path.exists(log) else 0
        world.met("run", "--wait", "--notify=end", "--out", "/dev/null", "--err", "/dev/null", "--", "true").ok()
        last = lambda: os.path.exists(log) and open(log).readlines()[before:]
        (line,) = eventually(last, "the outcome is noted")
        check("command failed: " in line and replaceable in line and "another user could change it" in line, line)
        check(not os.path.exists(hook + ".log"), "it ran")

    for changed in (hook, world.config):
        mode = os.stat(changed).st_mode & 0o777
        os.chmod(changed, mode | 0o002)
        refused(changed)
        refused_at_the_end(changed)
        os.chmod(changed, mode)
        os.chown(changed, 65534, -1)
        refused(changed)
        os.chown(changed, 0, -1)
    os.chmod(os.path.dirname(hook), 0o777)
    refused(hook)
    os.chmod(os.path.dirname(hook), 0o755)
    equal(world.met("check", "--rules", path, "--send").ok().out, "1 message sent\n", "when nobody else can")
