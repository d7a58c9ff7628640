"""What clients and daemons say to each other: versions of the protocol, who may ask for what, daemons that hang."""

import contextlib
import errno
import json
import os
import signal
import socket
import struct
import threading

from harness import alive, check, each, equal, eventually, test
from users import FOREVER, ask, ids, two_users

#: What the daemon under test speaks.
OLDEST, NEWEST = 1, 10
#: Below this daemons give out ids; above it every user has his own.
SHARED_IDS_END = 10**9

UNTIL_GO = ("sh", "-c", "echo $$ > pid.part; mv pid.part pid; while [ ! -e go ]; do sleep 0.02; done; exit 3")


def hello(oldest, newest=None, replace=False):
    said = {"protocol": oldest}
    if newest is not None:
        said.update(newest=newest, replace=replace)
    return {"hello": said}


def go(user):
    """Ends a job that waits for it."""
    open(user.path("go"), "w").close()


def system_socket(world):
    return os.path.join(world.system_runtime, "daemon.sock")


def outcomes(user, *options):
    return {job["job"]["id"]: (job["job"]["state"], job["job"]["exit_code"]) for job in user.jobs(*options)}


class OtherDaemon:
    """A system daemon of another version: it greets in its own, and understands nothing else."""

    def __init__(self, world, protocol):
        os.makedirs(world.system_runtime, mode=0o755)
        self.path, self.protocol, self.requests = system_socket(world), protocol, []
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        os.chmod(self.path, 0o666)
        self.listener.listen(64)
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        with contextlib.suppress(OSError):
            while True:
                link, _ = self.listener.accept()
                threading.Thread(target=self.answer, args=(link,), daemon=True).start()

    def answer(self, link):
        with contextlib.suppress(OSError, struct.error, ValueError), link, link.makefile("rb") as stream:
            while True:
                (length,) = struct.unpack("<I", stream.read(4))
                self.requests.append(json.loads(stream.read(length)))
                reply = json.dumps({"hello": {"protocol": self.protocol, "pid": os.getpid()}}).encode()
                link.sendall(struct.pack("<I", len(reply)) + reply)

    def close(self):
        os.unlink(self.path)
        self.listener.close()


@test
def no_greeting_stops_the_root_daemon(world):
    alice, bob = two_users(world)
    world.start_system_daemon()
    job = alice.run(*UNTIL_GO)
    alice.appears("pid")
    for user in (bob, alice, world.me):
        for said in (hello(99), hello(98, 99), hello(98, 99, True), hello(NEWEST, 99, True), hello(0), hello(9, 2)):
            reply = ask(user, system_socket(world), said, "status")
            equal(reply[0]["hello"]["protocol"], NEWEST, f"what {said} is answered")
            equal(reply[0]["hello"].get("leaving", False), False, f"whether it leaves upon {said}")
            equal(reply[1]["status"]["pid"], world.system.pid, "who answers the next question")
    check(world.system.poll() is None, "the daemon left")
    equal(outcomes(world), {job: ("running", None)}, "jobs for root")
    go(alice)
    alice.met("wait", job).expect(3)
    equal(outcomes(world), {job: ("failed", 3)}, "jobs for root")


@each(**{f"version_{version}": version for version in range(OLDEST, NEWEST + 1)})
def the_end_of_a_running_job_is_taken_from_a_supervisor_of(world, version):
    alice, _ = two_users(world)
    world.start_system_daemon()
    job = alice.run(*FOREVER)
    alice.appears("pid")
    eventually(lambda: outcomes(world), "the daemon knows of its start")
    # As programs speak that know one version only, and as those that know a range.
    for said in (hello(version), hello(0, version)):
        (greeting, reply) = ask(alice, system_socket(world), said, {"find": {"id": {"manager": None, "id": job}}})
        equal(greeting["hello"]["protocol"], version, f"version in common with {said}")
        (record,) = reply["jobs"]
    ended = {**record, "state": "failed", "exit_code": 7, "end_ns": record["start_ns"] + 1}
    (_, reply) = ask(alice, system_socket(world), hello(version), {"ended": ended})
    equal(reply, "done", "the end")
    equal(outcomes(world), {job: ("failed", 7)}, "jobs for root")
    alice.met("cancel", job).ok()
    # The daemon made its cgroup, and removes it when it sees that it is empty.
    world.jobs()


@each(newer=99, older=0)
def a_root_daemon_of_another_version_is_named_once_and_gets_the_job_later(world, protocol):
    alice, _ = two_users(world)
    other = OtherDaemon(world, protocol)
    started = alice.met("run", "--print-id", "--", *UNTIL_GO).ok()
    job = started.out.strip()
    check(int(job) > SHARED_IDS_END, f"id {job} may be one that a daemon gives")
    words = f"uses protocol {protocol}, this met supports {OLDEST} to {NEWEST}; continuing without it"
    equal(started.err.count(words), 1, f"how often it is said: {started.err!r}")
    equal(len(started.err.splitlines()), 1, "lines")
    asked = len(other.requests)
    check(asked <= 2, f"asked {asked} times for one job")
    # Its own daemon measures it, and the other one is not queried again.
    eventually(lambda: alice.met("daemon", "--user", "--status").out.count("1 running job"), "her daemon has it")
    equal(alice.state_of(job), "running", "state")
    check("hello" in other.requests[-1] and len(other.requests) <= asked + 60, f"asked {len(other.requests)} times")
    asked = [request for request in other.requests if "hello" not in request]
    equal(asked, [], "questions beside greetings")
    go(alice)
    alice.met("wait", job).expect(3)
    alice.met("daemon", "--user", "--stop").ok()
    equal(outcomes(alice), {job: ("failed", 3)}, "jobs of alice")
    other.close()
    # One that speaks with her gets it with her next job; to list jobs changes nothing.
    world.start_system_daemon()
    equal(outcomes(alice), {job: ("failed", 3)}, "jobs of alice, then")
    equal(outcomes(world), {}, "jobs for root before")
    later = alice.run_to_end("true")["job"]["id"]
    check(int(later) != int(job), "the same id twice")
    equal(outcomes(world), {job: ("failed", 3), later: ("finished", 0)}, "jobs for root")


@each(unlike=(98, True, False), beside=(OLDEST, False, False), with_a_job=(OLDEST, True, True))
def a_daemon_makes_room_for_a_newer_met_of_its_owner(world, oldest, leaves, replace):
    job = world.run(*UNTIL_GO)
    first = world.daemon_pid()
    (greeting,) = ask(world.me, world.socket(), hello(oldest, 99, replace))
    equal(greeting["hello"]["leaving"], leaves, "whether it makes room")
    if leaves:
        eventually(lambda: not alive(first), "the older daemon is gone")
        equal(world.state_of(job), "running", "state without a daemon")
        # The daemon of the newer version is started by its next job, and takes up the older job.
        world.run_to_end("true")
        check(world.daemon_pid() != first, "the same daemon")
        eventually(lambda: "1 running job" in world.met("daemon", "--user", "--status").ok().out, "it has the job")
    else:
        equal(world.daemon_pid(), first, "the daemon")
    go(world)
    world.met("wait", job).expect(3)
    equal(world.show(job)["job"]["exit_code"], 3, "exit code")


@test
def a_users_daemon_makes_room_for_nobody_else(world):
    alice, bob = two_users(world)
    job = alice.run(*FOREVER)
    daemon = alice.daemon_pid()
    # Her folders keep others out; the daemon does not rely on it.
    for path in (alice.home, alice.runtime, os.path.dirname(alice.socket()), alice.socket()):
        os.chmod(path, 0o777)
    asked = [hello(98, 99, True), hello(99), *refusable(record_of(alice, job))]
    for said, reply in zip(asked, ask(bob, alice.socket(), *asked)):
        check(reply and "error" in reply, f"bob's {str(said)[:60]} is answered {str(reply)[:200]}")
    (greeting,) = ask(world.me, alice.socket(), hello(98, 99, True))
    equal(greeting["hello"]["leaving"], False, "whether root's greeting makes it leave")
    for path in (alice.home, alice.runtime, os.path.dirname(alice.socket()), alice.socket()):
        os.chmod(path, 0o700)
    equal(alice.daemon_pid(), daemon, "the daemon")
    alice.met("cancel", job).ok()


def record_of(user, job, path=None):
    found = ask(user, path or user.socket(), hello(NEWEST), {"find": {"id": {"manager": None, "id": job}}})[-1]
    (record,) = found["jobs"]
    return record


def refusable(record):
    """Every request but the greeting."""
    key = record["key"]
    ended = {**record, "state": "finished", "exit_code": 0, "end_ns": record["start_ns"] + 1}
    return [
        {"reserve": {"at_least": 1}}, {"enclose": {"name": "met-1-1-1", "pid": 1}}, {"started": record}, {"ended": ended},
        {"jobs": {"states": []}}, {"find": "last"},
        {"find_after": {"job": "last", "after": {"start_ns": (1 << 63) - 1, "key": key}}}, {"course": {"key": key, "after_ms": 0}},
        {"card_course": {"key": key, "uuid": "x", "after_ms": 0}}, {"remove": key}, {"node_parts": {"since_ms": 0}},
        {"node_course": {"table": "node", "part": "", "after_ms": 0}}, {"node_courses": {"node": "n", "after_ms": 0}},
        "factors", {"correct": {"recompute": {"since_ns": None}}}, "energy", "nodes", "in_force",
        {"configure": {"period": None, "perf": None, "job": None, "reset": False}}, "status", "stop",
    ]


def name_of(request):
    return request if isinstance(request, str) else next(iter(request))


#: Of the root daemon: what a user gets of a job of another user, what an operator gets, what root gets.
#: `no`: refused; `none`: as if there was no such job; `yes`.
GRANTS = {
    "reserve": ("yes", "yes", "yes"), "enclose": ("no", "no", "no"), "started": ("no", "no", "yes"),
    "ended": ("no", "no", "skip"), "jobs": ("none", "yes", "yes"), "find": ("none", "yes", "yes"),
    "find_after": ("none", "yes", "yes"),
    "course": ("none", "yes", "yes"), "card_course": ("none", "none", "none"), "remove": ("none", "no", "no"),
    "node_parts": ("yes", "yes", "yes"), "node_course": ("yes", "yes", "yes"), "node_courses": ("no", "no", "no"),
    "factors": ("yes", "yes", "yes"), "correct": ("no", "no", "yes"), "energy": ("yes", "yes", "yes"),
    "nodes": ("yes", "yes", "yes"), "in_force": ("yes", "yes", "yes"), "configure": ("no", "no", "yes"),
    "status": ("yes", "yes", "yes"), "stop": ("no", "no", "skip"),
}


@test
def every_request_is_granted_to_whom_it_is_meant_for(world):
    alice, bob = two_users(world)
    operator = world.named_user("bin")
    world.configure("daemon:\n  operators: bin\nsampling:\n  interval: 50ms\n")
    world.start_system_daemon()
    job = alice.run(*FOREVER)
    alice.appears("pid")
    path = system_socket(world)
    record = eventually(lambda: record_of(world.me, job, path), "the daemon knows of its start")
    course = {"course": {"key": record["key"], "after_ms": 0}}
    eventually(lambda: ask(alice, path, hello(NEWEST), course)[-1]["course"]["times_ms"], "it is sampled")
    asked = refusable(record)
    equal(sorted(map(name_of, asked)), sorted(GRANTS), "requests with a row")
    for index, user in enumerate((bob, operator, world.me)):
        for request in asked:
            expected = GRANTS[name_of(request)][index]
            if expected == "skip":
                continue
            reply = ask(user, path, hello(NEWEST), request)[-1]
            got = "no" if reply is None or "error" in reply else "none" if is_nothing(reply) else "yes"
            if name_of(request) in ("node_parts", "node_course", "nodes", "factors", "energy", "started", "correct"):
                got = "no" if got == "no" else "yes"
            equal(got, expected, f"{name_of(request)} for {user.name}: {str(reply)[:200]}")
        equal(outcomes(alice), {job: ("running", None)}, f"what is left after {user.name}")
    # Who owns the job, and root, may do what the others may not.
    for request in asked:
        if name_of(request) in ("find", "jobs", "course", "started"):
            reply = ask(alice, path, hello(NEWEST), request)[-1]
            check(reply == "done" or not is_nothing(reply), f"{name_of(request)} for its owner: {reply}")
    for request in ("stop", {"configure": {"period": None, "perf": None, "job": None, "reset": True}}):
        check("only root" in ask(alice, path, hello(NEWEST), request)[-1]["error"]["message"], "granted to alice")
    alice.met("cancel", job).ok()
    equal(ask(operator, path, hello(NEWEST), {"remove": record["key"]})[-1],
          {"error": {"message": "only its owner or root may remove this job"}}, "removed by an operator")
    ask(bob, path, hello(NEWEST), {"remove": record["key"]})
    equal(ids(alice), [job], "jobs")
    equal(ask(alice, path, hello(NEWEST), {"remove": record["key"]})[-1], "done", "removed by its owner")
    equal(ids(alice), [], "jobs")
    equal(ask(world.me, path, hello(NEWEST), "stop")[-1], "done", "stopped by root")
    equal(world.system.wait(60), 0, "exit code")
    world.system = None


@test
def the_own_ids_of_a_user_are_for_that_user_alone(world):
    alice, bob = two_users(world)
    world.start_system_daemon()
    path = system_socket(world)
    record = record_of(alice, alice.run_to_end("true")["job"]["id"], path)

    def claimed(user, number):
        key = {**record["key"], "id": str(number)}
        return ask(user, path, hello(NEWEST), {"ended": {**record, "key": key}})[-1]

    own = (alice.uid + 1) * SHARED_IDS_END + 7
    for user, number in ((bob, own), (world.me, own), (alice, SHARED_IDS_END - 1), (alice, f"0{own}")):
        equal(claimed(user, number), {"error": {"message": "no such job"}}, f"{user.name} as {number}")
    equal(claimed(alice, own), "done", "alice's own")
    reply = ask(bob, path, hello(NEWEST), {"reserve": {"at_least": 1}})[-1]
    check(reply["reserved"]["id"] < 1000, f"the daemon follows the ids of users: {reply}")
    equal(len(alice.jobs()), 2, "jobs of alice")
    equal(bob.jobs(), [], "jobs of bob")


@test
def a_job_that_was_removed_is_not_reported_later(world):
    alice, _ = two_users(world)
    other = OtherDaemon(world, 99)
    job = alice.run("true")
    alice.met("wait", job).ok()
    # Its supervisor may still be trying to report it.
    eventually(lambda: alice.met("rm", job).code == 0, "it is removed")
    other.close()
    world.start_system_daemon()
    equal(alice.jobs(), [], "jobs of alice")
    equal(outcomes(world), {}, "jobs for root")


def is_nothing(reply):
    """An answer without a job."""
    return reply in ("done", {"jobs": []}, {"course": {"times_ms": [], "columns": []}})


@contextlib.contextmanager
def stopped(pid):
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def full_queue(path):
    """No client can even connect to a daemon that accepts no more."""
    links = []
    while True:
        link = socket.socket(socket.AF_UNIX)
        link.setblocking(False)
        try:
            link.connect(path)
        except OSError as error:
            equal(error.errno, errno.EAGAIN, "error")
            break
        links.append(link)
    try:
        yield
    finally:
        for link in links:
            link.close()


def commands_go_on(user, daemon, cancelled):
    """What everybody types, beside a daemon that hangs."""
    words = f"the daemon (pid {daemon}) does not answer"
    listed = user.met("list", "--json").ok()
    equal(listed.err.count(words), 1, f"what the list says: {listed.err!r}")
    check(cancelled in [job["job"]["id"] for job in listed.json()], "the running job is not listed")
    for option in ("--status", "--stop"):
        user.met("daemon", option).refused(words, f"kill -KILL {daemon}", code=1)
    doctor = user.met("doctor", "--json").ok().json()
    (found,) = [finding for finding in doctor if finding["what"] == "daemon"]
    equal((found["health"], found["detail"]), ("no", words), "what the doctor finds")
    user.met("configure").refused(words, code=1)
    check(words in user.met("show", cancelled).ok().err, "show does not say so")
    check(words in user.met("cancel", cancelled).ok().err, "cancel does not say so")
    equal(user.state_of(cancelled), "cancelled", "state")


@test
def a_job_that_waits_to_be_reported_is_not_removed(world):
    alice, _ = two_users(world)
    world.start_system_daemon()
    daemon = world.system.pid
    with stopped(daemon):
        job = alice.met("run", "--print-id", "--wait", "--", "true").ok().out.strip()
        refused = alice.met("rm", job).expect(1)
        check("not yet reported to the system daemon" in refused.err, f"said: {refused.err!r}")
        check("its jobs are not shown" in refused.err, f"said: {refused.err!r}")
        world.met("daemon").refused(f"the daemon (pid {daemon}) does not answer", f"kill -KILL {daemon}")
    eventually(lambda: outcomes(world) == {job: ("finished", 0)}, "it is reported")
    alice.met("rm", job).ok()
    equal((outcomes(world), outcomes(alice)), ({}, {}), "jobs for root and of alice")


@each(queued=False, refused=True)
def a_hung_root_daemon_blocks_no_command_and_gets_every_end_later(world, full):
    alice, _ = two_users(world)
    world.start_system_daemon()
    before = alice.run(*FOREVER)
    eventually(lambda: outcomes(world), "the daemon knows of its start")
    daemon = world.system.pid
    with stopped(daemon), full_queue(system_socket(world)) if full else contextlib.nullcontext():
        started = alice.met("run", "--print-id", "--wait", "--", "sh", "-c", "exit 3").expect(3)
        meanwhile = started.out.strip()
        equal(started.err.count(f"the daemon (pid {daemon}) does not answer"), 1, f"said: {started.err!r}")
        check(int(meanwhile) > SHARED_IDS_END, f"id {meanwhile} may be one that the daemon gives")
        equal(alice.show(meanwhile)["job"]["exit_code"], 3, "exit code")
        running = alice.run(*UNTIL_GO)
        alice.appears("pid")
        check(running != meanwhile, "the same id twice")
        check(not alice.daemon_pids(), "a daemon of her own, which was not requested")
        commands_go_on(alice, daemon, before)
    # It takes up what runs, and learns of what has ended.
    expected = {before: ("cancelled", None), meanwhile: ("failed", 3), running: ("running", None)}

    def ended():
        found = outcomes(world)
        return {job: state for job, (state, _) in found.items()} == {job: state for job, (state, _) in expected.items()}

    eventually(ended, lambda: f"root sees {outcomes(world)} instead of {expected}")
    eventually(lambda: "1 running job" in world.met("daemon", "--status").ok().out, "the daemon has the job")
    go(alice)
    alice.met("wait", running).expect(3)
    after = alice.run("true")
    alice.met("wait", after).ok()
    equal(len({before, meanwhile, running, after}), 4, "ids")
    # Her own command may know of an end a moment earlier than the daemon, to which the supervisor reports it.
    ends = {running: ("failed", 3), after: ("finished", 0)}
    eventually(lambda: ends.items() <= outcomes(world).items(), lambda: f"root sees {outcomes(world)} instead of {ends}")


@each(queued=False, refused=True)
def a_hung_daemon_of_a_user_blocks_no_command(world, full):
    before = world.run(*FOREVER)
    daemon = world.daemon_pid()
    with stopped(daemon), full_queue(world.socket()) if full else contextlib.nullcontext():
        ended = world.met("run", "--print-id", "--wait", "--", "sh", "-c", "exit 3").expect(3)
        meanwhile = ended.out.strip()
        equal(ended.err.count(f"the daemon (pid {daemon}) does not answer"), 1, f"said: {ended.err!r}")
        equal(world.show(meanwhile)["job"]["exit_code"], 3, "exit code")
        running = world.run(*UNTIL_GO)
        world.appears("pid")
        commands_go_on(world.me, daemon, before)
    equal(world.daemon_pid(), daemon, "the daemon")
    eventually(lambda: "1 running job" in world.met("daemon", "--user", "--status").ok().out, "the daemon has the job")
    go(world)
    world.met("wait", running).expect(3)
    found = {job: state for job, (state, _) in outcomes(world).items()}
    equal(found, {before: "cancelled", meanwhile: "failed", running: "failed"}, "states")
