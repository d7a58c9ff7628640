"""Several users and one root daemon: everybody has his own jobs, root and the operators have all."""

import json
import os
import re
import signal
import socket
import struct
import subprocess
import time

from accounting import CPU_SHARE, truth
from harness import alive, check, close_to, each, equal, eventually, need_root, test

FOREVER = ("sh", "-c", "echo secret; echo $$ > pid.part; mv pid.part pid; sleep 1000")


def two_users(world):
    need_root()
    return world.named_user("daemon"), world.named_user("games")


def ids(user, *options):
    return sorted(job["job"]["id"] for job in user.jobs(*options))


@each(with_a_root_daemon=True, with_their_own_daemons=False)
def users_do_not_see_each_others_jobs(world, system):
    alice, bob = two_users(world)
    if system:
        world.start_system_daemon()
    job = alice.run(*FOREVER, options=("-n", "private"))
    pid = int(alice.appears("pid"))
    equal(ids(alice), [job], "jobs that alice sees")
    equal(bob.jobs(), [], "jobs that bob sees")
    check("private" not in bob.met("list").out + bob.met("list", "--csv").out + bob.met().out, "bob's lists name it")
    equal(bob.jobs("--user", alice.name), [], "jobs of alice that bob sees")
    for name in (job, f"local:{job}", "private", "@last"):
        for command in (["show"], ["show", "--json"], ["ps"], ["logs"], ["logs", "--err"], ["wait"], ["cancel"], ["rm"]):
            result = bob.met(command[0], name, *command[1:])
            result.refused("no job")
            check("secret" not in result.out, f"{result}: {result.out}")
    check(alive(pid), "bob ended alice's job")
    equal(alice.state_of(job), "running", "state")
    # The same, once it has ended.
    alice.met("cancel", job).ok()
    for command in ("show", "rm", "logs"):
        bob.met(command, job).refused("no job")
    equal(ids(alice), [job], "jobs of alice in the end")
    equal(bob.jobs(), [], "jobs of bob in the end")


@test
def root_names_a_job_by_its_user_and_name(world):
    alice, bob = two_users(world)
    world.start_system_daemon()
    jobs = [user.run(*FOREVER, options=("-n", "train")) for user in (alice, bob)]
    for user, job in zip((alice, bob), jobs):
        equal(world.show(f"{user.name}/train")["job"]["id"], job, f"the job of {user.name}")
    bob.met("show", f"{alice.name}/train").refused("no job named")
    bob.met("cancel", f"{alice.name}/train").refused("no job named")
    world.met("cancel", f"{alice.name}/train").ok()
    equal((alice.state_of(jobs[0]), bob.state_of(jobs[1])), ("cancelled", "running"), "states")
    bob.met("cancel", "train").ok()


@test
def the_output_of_an_attached_process_is_not_said_to_be_lost(world):
    process = world.me.start("sleep", "1000")
    job = world.met("attach", "--print-id", str(process.pid)).ok().out.strip()
    world.met("logs", job).refused("attached", "does not know where it writes")
    world.met("cancel", job).ok()
    process.wait()


@test
def cancelling_a_job_spares_a_job_of_the_same_number_and_second(world):
    # Two homes of root on a machine without cgroups, as two users have: both begin with job 1.
    one, other = world.without_cgroups(), world.user(os.getuid())
    other.cgroups = False
    same_second = False
    while not same_second:
        jobs = [user.run(*FOREVER) for user in (one, other)]
        pids = [int(user.appears("pid")) for user in (one, other)]
        same_second = len({user.show()["job"]["start"][:19] for user in (one, other)}) == 1
        # Without its supervisor a job's processes are found by nothing but the mark they carry.
        os.kill(one.supervisor_of(pids[0]), signal.SIGKILL)
        one.wait_for_state(jobs[0], "lost")
        one.met("cancel", jobs[0]).ok()
        check(not alive(pids[0]), "it was not cancelled")
        check(alive(pids[1]), "another job was cancelled, too")
        other.met("cancel", jobs[1]).ok()
        for user in (one, other):
            os.unlink(user.path("pid"))


@test
def files_of_users_are_private(world):
    alice, bob = two_users(world)
    world.start_system_daemon()
    job = alice.run(*FOREVER)
    alice.appears("pid")
    for folder in (alice.store_folder(), os.path.join(alice.store_folder(), "jobs"), world.system_state):
        equal(os.stat(folder).st_mode & 0o077, 0, f"permissions of {folder} for others")
    alice.met("cancel", job).ok()


@test
def root_sees_and_ends_everybodys_jobs(world):
    alice, bob = two_users(world)
    world.start_system_daemon()
    first = alice.run(*FOREVER, options=("-n", "first"))
    second = bob.run(*FOREVER, options=("-n", "second"))
    check(first != second, "two jobs of one daemon have the same id")
    pid = int(alice.appears("pid"))
    bob.appears("pid")
    equal(ids(world), sorted([first, second]), "jobs that root sees")
    owners = {job["job"]["name"]: job["job"]["user"] for job in world.jobs()}
    equal(owners, {"first": alice.name, "second": bob.name}, "owners")
    equal(ids(world, "--user", bob.name), [second], "jobs of bob")
    check("sleep 1000" in world.met("ps", first).ok().out, "no processes")
    world.met("cancel", first).ok()
    check(not alive(pid), "root cannot end it")
    equal(alice.state_of(first), "cancelled", "state, as alice sees it")
    world.met("cancel", second).ok()
    world.met("rm", second).ok()
    equal(ids(world), [first], "jobs that are left")
    equal(bob.jobs(), [], "jobs that bob has left")


@test
def operators_see_everybodys_jobs(world):
    alice, bob = two_users(world)
    operator = world.named_user("bin")
    world.configure("daemon:\n  operators: bin\n")
    world.start_system_daemon()
    first, second = alice.run(*FOREVER), bob.run(*FOREVER)
    alice.appears("pid")
    bob.appears("pid")
    equal(ids(operator), sorted([first, second]), "jobs that the operator sees")
    equal(operator.show(first)["job"]["user"], alice.name, "owner")
    equal(bob.jobs() and ids(bob), [second], "jobs that bob sees")
    alice.met("cancel", first).ok()
    bob.met("cancel", second).ok()


@test
def a_job_by_name_and_node_is_ones_own(world):
    alice, bob = two_users(world)
    world.start_system_daemon()
    first = alice.run("true", options=("-n", "same"))
    alice.met("wait", first).ok()
    second = bob.run("true", options=("-n", "same"))
    bob.met("wait", second).ok()
    named = f"same@{os.uname().nodename}"
    equal(alice.show(named)["job"]["id"], first, "whose it is, though bob's is newer")
    equal(bob.show(named)["job"]["id"], second, "bob's")
    alice.met("show", "same@elsewhere").refused('no job named "same@elsewhere"')


@each(reaped="reaped", ignored="ignored")
def totals_under_a_root_daemon_are_exact_and_from_a_cgroup(world, children):
    alice, _ = two_users(world)
    world.configure("sampling:\n  interval: 10s\n")
    world.start_system_daemon()
    job = alice.run_to_end(*world.workload("in_turn", "cpu", 5, 0.4, children))
    equal(job["job"]["exit_code"], 0, f"exit code and signal {job['job']['signal']}")
    equal(job["quality"]["cpu_seconds"], {"kind": "measured", "source": "cgroup"}, "quality")
    close_to(job["totals"]["cpu_seconds"], truth(alice), CPU_SHARE, "CPU")
    equal(job["job"]["user"], alice.name, "user")
    equal(world.show(job["job"]["id"])["totals"], job["totals"], "totals that root sees")


@test
def a_root_daemon_samples_the_jobs_of_users(world):
    alice, _ = two_users(world)
    world.configure("sampling:\n  interval: 100ms\n")
    world.start_system_daemon()
    job = alice.run(*world.workload("steady", "cpu", "stop"))
    eventually(lambda: alice.show(job)["totals"].get("cpu_seconds", 0) > 0.3, "it is being sampled")
    check(not alice.daemon_pids(), "alice has a daemon of her own")
    open(alice.path("stop"), "w").close()
    os.chown(alice.path("stop"), alice.uid, alice.gid)
    alice.met("wait", job).ok()
    close_to(alice.show(job)["totals"]["cpu_seconds"], truth(alice), CPU_SHARE, "CPU")
    check("CPU cores" in alice.met("show", job).ok().out, "no plot")


@test
def a_user_without_any_daemon_has_everything_for_his_own(world):
    alice, _ = two_users(world)
    result = alice.met("time", "--json", "--", *world.workload("burning", "cpu", 0.3, 3))
    equal(result.code, 3, "exit code")
    check(not alice.daemon_pids(), "a daemon runs")
    (job,) = alice.jobs()
    close_to(job["totals"]["cpu_seconds"], truth(alice), CPU_SHARE, "CPU")
    equal((job["job"]["user"], job["job"]["exit_code"]), (alice.name, 3), "user and exit code")
    check("exit code 3" in alice.met("show").ok().out, "no report")
    alice.met("rm", "@last").ok()
    equal(alice.jobs(), [], "jobs")


@test
def a_user_without_a_name_or_home_can_measure(world):
    need_root()
    user = world.user(54321)
    result = user.met("time", "--json", "--", "true").ok()
    equal(json.loads(result.err)["job"]["user"], None, "user")
    equal(len(user.jobs()), 1, "jobs")
    user.met("list").ok()
    user.met("show").ok()


@test
def ids_never_collide_whoever_gives_them(world):
    alice, bob = two_users(world)
    given = [alice.run("true"), alice.run("true")]
    alice.met("wait", *given).ok()
    world.start_system_daemon()
    for _ in range(2):
        given.append(alice.run("true"))
        bob.met("run", "--wait", "--", "true").ok()
        result = alice.met("time", "--quiet", "--", "true").ok()
        given.append(alice.show()["job"]["id"])
    alice.met("wait", *given).ok()
    world.stop_system_daemon()
    given.append(alice.run("true"))
    alice.met("wait", given[-1]).ok()
    world.start_system_daemon()
    given.append(alice.run("true"))
    alice.met("wait", given[-1]).ok()
    equal(len(set(given)), len(given), f"different ids among {given}")
    found = [job["job"]["id"] for job in alice.jobs()]
    equal(sorted(found, key=int), sorted(given, key=int), "jobs that alice sees")


@test
def what_met_time_measured_is_in_the_store_of_the_root_daemon(world):
    alice, _ = two_users(world)
    world.start_system_daemon()
    result = alice.met("time", "--json", "--interval", "50ms", "--", *world.workload("burning", "cpu", 0.6))
    measured = json.loads(result.err)
    world.me.met("time", "--quiet", "--", "true").ok()
    ran = alice.run("true")
    alice.met("wait", ran).ok()
    timed = measured["job"]["id"]
    numbers = {job["job"]["id"]: job["job"]["user"] for job in world.jobs()}
    equal(len(numbers), 3, f"a number for each of {numbers}")
    equal(numbers[timed], alice.name, "whose it is")
    # Nothing of it is in the files of alice: the daemon alone answers.
    left = {name for _, _, names in os.walk(alice.store_folder()) for name in names}
    check(left <= {"done"}, f"files of alice: {left}")
    shown = alice.show(timed)
    equal(shown["totals"]["cpu_seconds"], measured["totals"]["cpu_seconds"], "CPU")
    equal(shown["quality"]["cpu_seconds"], measured["quality"]["cpu_seconds"], "its quality")
    check("CPU cores" in alice.met("show", timed).ok().out, "its samples came with it")


@test
def a_number_that_two_users_have_is_refused_with_the_choices(world):
    alice, _ = two_users(world)
    world.me.met("time", "--quiet", "--", "true").ok()
    # Without a system daemon a job is known by its number and the second of its start.
    time.sleep(1.1)
    world.start_system_daemon()
    job = alice.run(*FOREVER)
    pid = int(alice.appears("pid"))
    equal(job, world.me.jobs()[-1]["job"]["id"], "both were given the same number")
    theirs, own = f"{alice.name}/{job}", f"root/{job}"
    for command in ("show", "cancel", "rm", "ps", "logs"):
        world.me.met(command, job).refused("ambiguous", f"{theirs} (running)", f"{own} (finished)")
    check(alive(pid), "it was ended by a guess")
    equal(world.me.show(theirs)["job"]["user"], alice.name, "whose job is shown")
    equal(world.me.show(own)["job"]["user"], "root", "whose job is shown")
    world.me.met("rm", own).ok()
    world.me.met("cancel", job).ok()
    check(not alive(pid), "it has not ended")


@each(stopped=signal.SIGTERM, killed=signal.SIGKILL)
def a_job_that_ends_while_the_root_daemon_is_down_is_not_lost(world, how):
    alice, bob = two_users(world)
    world.start_system_daemon()
    job = alice.run("sh", "-c", "while [ ! -e go ]; do sleep 0.02; done; exit 3")
    eventually(lambda: alice.state_of(job) == "running", "it runs")
    world.stop_system_daemon(how)
    equal(alice.state_of(job), "running", "state without a daemon")
    open(alice.path("go"), "w").close()
    alice.met("wait", job).expect(3)
    equal(alice.state_of(job), "failed", "state without a daemon, afterwards")
    world.start_system_daemon()
    equal(alice.show(job)["job"]["exit_code"], 3, "exit code")
    equal([(job["job"]["state"], job["job"]["exit_code"]) for job in alice.jobs()], [("failed", 3)], "jobs of alice")
    # Root knows it when its supervisor has reported it.
    known = lambda: [(job["job"]["state"], job["job"]["exit_code"]) for job in world.jobs()]
    eventually(lambda: known() == [("failed", 3)], lambda: f"the end for root: {known()}")


@each(stopped=signal.SIGTERM, killed=signal.SIGKILL)
def the_next_root_daemon_is_told_of_an_end_that_none_heard_of(world, how):
    # Alice runs no command after her job has ended: only its supervisor can report the end.
    alice, _ = two_users(world)
    world.start_system_daemon()
    job = alice.run("sh", "-c", "echo $$ > pid.part; mv pid.part pid; while [ ! -e go ]; do sleep 0.02; done; exit 3")
    pid = int(alice.appears("pid"))
    eventually(world.jobs, "the daemon knows of its start")
    world.stop_system_daemon(how)
    waiting = alice.spawn("wait", job)
    open(alice.path("go"), "w").close()
    # A caller that waits for the job does not wait for the report of its end.
    equal(waiting.wait(60), 3, "exit code of the waiting")
    check(not alive(pid), "it has not ended")
    world.start_system_daemon()
    seen = set()

    def ended():
        [found] = world.jobs()
        seen.add(found["job"]["state"])
        return found["job"]["exit_code"] == 3 and found

    found = eventually(ended, lambda: f"root sees the end: {seen}")
    check("lost" not in seen, f"it was called lost: {seen}")
    equal(found["quality"]["cpu_seconds"]["kind"], "measured", "quality")


@test
def whoever_tells_of_an_end_keeps_nothing_of_its_job(world):
    alice, _ = two_users(world)
    world.start_system_daemon()
    os.mkfifo(alice.path("out"))
    os.chown(alice.path("out"), alice.uid, -1)
    reader = alice.start("cat", "out", stdin=subprocess.DEVNULL)
    job = alice.run("sh", "-c", "echo $$ > pid.part; mv pid.part pid; while [ ! -e go ]; do sleep 0.02; done",
                    options=("--out", "out", "--err", "out"))
    supervisor = alice.supervisor_of(int(alice.appears("pid")))
    eventually(world.jobs, "the daemon knows of its start")
    world.stop_system_daemon()
    open(alice.path("go"), "w").close()
    equal(reader.wait(60), 0, "a reader of its output sees its end")
    check(alive(supervisor), "no process is left that could report the end")
    equal(os.readlink(f"/proc/{supervisor}/cwd"), "/", "where it stays")
    os.kill(supervisor, signal.SIGTERM)
    eventually(lambda: not alive(supervisor), "it exits on request")
    # Then it is for her next job.
    world.start_system_daemon()
    equal(alice.show(job)["job"]["state"], "finished", "state")
    alice.run_to_end("true")
    equal([job["job"]["state"] for job in world.jobs()], ["finished", "finished"], "states for root")


@each(stopped=signal.SIGTERM, killed=signal.SIGKILL)
def a_job_that_outlives_the_root_daemon_is_taken_up_by_the_next(world, how):
    alice, _ = two_users(world)
    world.configure("sampling:\n  interval: 100ms\n")
    world.start_system_daemon()
    job = alice.run(*world.workload("steady", "cpu", "stop"))
    eventually(lambda: alice.show(job)["totals"].get("cpu_seconds", 0) > 0.2, "it is being sampled")
    world.stop_system_daemon(how)
    world.start_system_daemon()
    eventually(lambda: "1 running job" in world.met("daemon", "--status").ok().out, "the new daemon knows the job")
    open(alice.path("stop"), "w").close()
    alice.met("wait", job).ok()
    record = alice.show(job)
    equal(record["quality"]["cpu_seconds"], {"kind": "measured", "source": "cgroup"}, "quality")
    close_to(record["totals"]["cpu_seconds"], truth(alice), CPU_SHARE, "CPU")
    equal(world.show(job)["job"]["state"], "finished", "state for root")


def ask(user, path, *requests):
    """Says things on a daemon's socket that met would not say; the replies."""
    script = """
import json, socket, struct, sys
link = socket.socket(socket.AF_UNIX)
link.settimeout(30)
link.connect(sys.argv[1])
def take(size):
    data = b""
    while len(data) < size:
        chunk = link.recv(size - len(data))
        if not chunk: break
        data += chunk
    return data
replies = []
for request in json.loads(sys.argv[2]):
    data = json.dumps(request).encode()
    try:
        link.sendall(struct.pack("<I", len(data)) + data)
        head = take(4)
        replies.append(json.loads(take(struct.unpack("<I", head)[0])) if len(head) == 4 else None)
    except OSError:
        replies.append(None)
print(json.dumps(replies))
"""
    process = user.start(user.world.python, "-c", script, path, json.dumps(requests))
    out, err = process.communicate(timeout=60)
    check(process.returncode == 0, err.decode())
    return json.loads(out)


@test
def a_user_cannot_speak_for_another_on_the_socket(world):
    alice, bob = two_users(world)
    world.start_system_daemon()
    path = os.path.join(world.system_runtime, "daemon.sock")
    job = alice.run(*FOREVER)
    pid = int(alice.appears("pid"))
    hello = {"hello": {"protocol": 1}}
    (_, reply) = ask(world.me, path, hello, {"find": {"id": {"manager": None, "id": job}}})
    (record,) = reply["jobs"]
    ended = {**record, "state": "finished", "exit_code": 0, "end_ns": record["start_ns"] + 1}
    for request in ({"ended": ended}, {"started": record}, {"remove": record["key"]}, {"course": {"key": record["key"], "after_ms": 0}}, "stop"):
        reply = ask(bob, path, hello, request)[-1]
        if isinstance(request, dict) and "course" in request:
            equal(reply, {"course": {"times_ms": [], "columns": []}}, "the course that bob gets")
            continue
        check(reply is None or "error" in reply or reply == "done", f"{request}: {reply}")
        if not (isinstance(request, dict) and "remove" in request):
            check(reply != "done", f"granted: {str(request)[:60]}")
    equal(ask(bob, path, hello, {"find": {"id": {"manager": None, "id": job}}})[-1], {"jobs": []}, "what bob finds")
    reply = ask(bob, path, hello, {"enclose": {"name": "met-1-1-1", "pid": pid}})[-1]
    check("error" in reply, f"moved alice's process: {reply}")
    equal(alice.state_of(job), "running", "state")
    check(alive(pid), "alice's job was ended")
    alice.met("cancel", job).ok()
    equal(alice.state_of(job), "cancelled", "state")


@test
def an_end_that_was_never_announced_makes_no_claims_on_processes(world):
    alice, bob = two_users(world)
    world.start_system_daemon()
    path = os.path.join(world.system_runtime, "daemon.sock")
    victim = world.run(*FOREVER)
    pid = int(world.appears("pid"))
    hello = {"hello": {"protocol": 1}}
    (_, reply) = ask(world.me, path, hello, {"find": {"id": {"manager": None, "id": victim}}})
    (record,) = reply["jobs"]
    (_, reply) = ask(bob, path, hello, {"reserve": {"at_least": 1}})
    given = str(reply["reserved"]["id"])
    forged = {**record, "key": {**record["key"], "id": given}, "state": "lost"}
    equal(ask(alice, path, hello, {"ended": forged})[-1].get("error", {}).get("message"), "no such job", "alice's try")
    (_, _, reply) = ask(bob, path, hello, {"reserve": {"at_least": 1}}, {"ended": forged})
    check(reply == "done" or "error" in reply, str(reply))
    world.met("cancel", given)
    check(alive(pid), "root's own process was ended on bob's word")
    world.met("cancel", victim).ok()


@test
def a_user_cannot_use_up_the_job_ids(world):
    _, bob = two_users(world)
    world.start_system_daemon()
    path = os.path.join(world.system_runtime, "daemon.sock")
    for much in (1 << 63, (1 << 64) - 1):
        reply = ask(bob, path, {"hello": {"protocol": 1}}, {"reserve": {"at_least": much}})[-1]
        check("error" in reply, f"granted: {reply}")
    reply = ask(bob, path, {"hello": {"protocol": 1}}, {"reserve": {"at_least": 1}})[-1]
    check(reply["reserved"]["id"] < 1000, f"ids ran away: {reply}")


@test
def nonsense_on_the_socket_harms_nobody(world):
    job = world.run("sleep", "1000")
    daemon = world.daemon_pid()
    for nonsense in (b"", b"\xff" * 4096, b"\x05\0\0\0hello", struct.pack("<I", 1 << 25) + b"{", b"\x02\0\0\0{}"):
        link = socket.socket(socket.AF_UNIX)
        link.connect(world.socket())
        link.sendall(nonsense)
        link.close()
    equal(world.state_of(job), "running", "state")
    equal(world.daemon_pid(), daemon, "the daemon")
    world.met("cancel", job).ok()


@test
def a_user_cannot_attach_to_anothers_process(world):
    alice, bob = two_users(world)
    process = alice.start("sleep", "1000")
    bob.met("attach", str(process.pid)).refused("another user")
    equal(bob.jobs(), [], "jobs")
    process.kill()
    process.communicate()


@test
def only_root_may_stop_the_root_daemon(world):
    alice, _ = two_users(world)
    world.start_system_daemon()
    alice.met("daemon", "--stop").refused("only root may stop")
    check(world.system.poll() is None, "it was stopped")
    world.met("daemon", "--stop").ok()
    equal(world.system.wait(60), 0, "exit code")
    world.system = None


@test
def root_is_told_that_jobs_of_a_stopped_system_daemon_are_not_listed(world):
    need_root()
    equal(world.met("list").ok().err, "", "stderr before there was a system daemon")
    world.start_system_daemon()
    job = world.run_to_end("true")["job"]["id"]
    listed = world.met("list", "--json").ok()
    equal(([job["job"]["id"] for job in listed.json()], listed.err), ([job], ""), "jobs and stderr")
    world.met("daemon", "--stop").ok()
    equal(world.system.wait(60), 0, "exit code")
    world.system = None
    warning = world.met("list").ok().err
    equal(warning.count("\n"), 1, f"lines on stderr: {warning}")
    check("no system daemon is running" in warning and world.system_state in warning, warning)


@test
def stopping_a_daemon_says_whose_it_was(world):
    need_root()
    job = world.run("sleep", "1000")
    world.daemon_pid()
    world.start_system_daemon()
    first = world.met("daemon", "--stop").ok().out
    check("the system daemon" in first and world.system_runtime in first, first)
    equal(world.system.wait(60), 0, "exit code")
    world.system = None
    second = world.met("daemon", "--stop").ok().out
    check("your own daemon (no system daemon is running)" in second and world.runtime in second, second)
    world.met("daemon", "--stop").refused("no daemon is running")
    world.met("cancel", job).ok()


@test
def only_root_may_correct_the_emissions_of_everybodys_jobs(world):
    alice, _ = two_users(world)
    alice.met("emissions", "set", "3", "--since", "today").ok()
    world.start_system_daemon()
    alice.met("emissions", "set", "4", "--since", "today").refused("only root", "--user")
    alice.met("emissions", "set", "5", "--since", "today", "--user").ok()
    world.met("emissions", "set", "6", "--since", "today").ok()
    for user, grams in ((alice, "5.00 g"), (world, "6.00 g")):
        check(grams in user.met("emissions").ok().out, f"not {grams}")


@test
def a_second_root_daemon_is_refused(world):
    need_root()
    world.start_system_daemon()
    world.met("daemon").refused("a daemon is already running")
    check(re.search(r"for all users", world.met("daemon", "--status").ok().out), "status")


@test
def who_runs_no_server_cannot_enroll_and_nothing_is_written(world):
    alice, _ = two_users(world)
    world.met("server", "enroll", "n1").ok()
    for command in (("enroll", "n1"), ("enroll", "--replace", "n1"), ("expel", "n1")):
        alice.met("server", *command).refused("this user has no server", "cluster.db", "as root or as the user")
    left = [os.path.join(folder, name) for folder, _, names in os.walk(alice.home) for name in names]
    equal(left, [], "files of alice")


@test
def who_runs_a_server_of_his_own_can_enroll(world):
    alice, _ = two_users(world)
    world.configure("http:\n  listen: 127.0.0.1:0\n")
    server = alice.spawn("server")
    enrolled = eventually(lambda: alice.met("server", "enroll", "n1").out, "a token")
    check(len(enrolled.strip()) > 20, "no token")
    server.terminate()
    server.communicate()
