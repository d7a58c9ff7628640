"""What one user does must not harm another, nor root: the socket, job ids, links, descriptors."""

import collections
import json
import os
import re
import resource
import signal
import socket
import struct
import subprocess
import threading

from harness import Skip, cgroups_left, check, each, equal, eventually, need_root, test
from users import ask, two_users

HELLO = {"hello": {"protocol": 3}}


def system_socket(world):
    return os.path.join(world.system_runtime, "daemon.sock")


def frame(request):
    data = json.dumps(request).encode()
    return struct.pack("<I", len(data)) + data


def peak_bytes(pid):
    """The most memory that a process ever had."""
    with open(f"/proc/{pid}/status") as file:
        return int(re.search(r"VmHWM:\s+(\d+) kB", file.read()).group(1)) << 10


@test
def a_client_that_asks_and_never_reads_costs_the_daemon_nothing(world):
    alice, bob = two_users(world)
    world.start_system_daemon()
    for _ in range(8):
        bob.met("run", "--wait", "--", "true", *["x" * 1000] * 40).ok()
    before = peak_bytes(world.system.pid)
    script = """
import json, socket, struct, sys
def frame(request):
    data = json.dumps(request).encode()
    return struct.pack("<I", len(data)) + data
links = []
for _ in range(20):
    link = socket.socket(socket.AF_UNIX)
    link.connect(sys.argv[1])
    link.setblocking(False)
    data = frame(json.loads(sys.argv[2])) + frame({"jobs": {"states": []}}) * 20000
    try:
        while data:
            data = data[link.send(data):]
    except BlockingIOError:
        pass
    links.append(link)
print("said", flush=True)
sys.stdin.read()
"""
    greedy = bob.start(world.python, "-c", script, system_socket(world), json.dumps(HELLO), stdin=subprocess.PIPE)
    equal(greedy.stdout.readline(), b"said\n", "what it says")
    # Others are answered meanwhile, several times over.
    for _ in range(5):
        alice.met("run", "--wait", "--", "true").ok()
    equal(len(alice.jobs()), 5, "alice's jobs")
    held = peak_bytes(world.system.pid) - before
    check(held < 96 << 20, f"the daemon held {held >> 20} MiB more")
    greedy.stdin.close()
    greedy.wait()


@test
def every_request_that_was_sent_at_once_is_answered_in_order(world):
    need_root()
    world.start_system_daemon()
    link = socket.socket(socket.AF_UNIX)
    link.settimeout(60)
    link.connect(system_socket(world))
    said = frame(HELLO) + b"".join(frame({"find": {"id": {"manager": None, "id": str(n)}}}) for n in range(300)) + frame("status")
    sender = threading.Thread(target=link.sendall, args=(said,))
    sender.start()
    replies = link.makefile("rb")
    kinds = []
    for _ in range(302):
        (size,) = struct.unpack("<I", replies.read(4))
        reply = json.loads(replies.read(size))
        kinds.append(next(iter(reply)))
    sender.join()
    equal(kinds, ["hello"] + ["jobs"] * 300 + ["status"], "kinds of replies")
    link.close()


@test
def reserving_without_end_moves_no_ids_and_leaves_nothing(world):
    alice, bob = two_users(world)
    world.start_system_daemon()
    first = int(alice.run_to_end("true")["job"]["id"])
    path = system_socket(world)
    far = ask(bob, path, HELLO, {"reserve": {"at_least": first + 900_000}})[-1]
    equal(far, {"reserved": {"id": first + 900_000}}, "an id from far ahead")
    # In pieces: they are handed over as arguments.
    replies = [reply for _ in range(9) for reply in ask(bob, path, HELLO, *[{"reserve": {"at_least": 1}}] * 500)[1:]]
    given = [reply["reserved"]["id"] for reply in replies if "reserved" in reply]
    equal(len(given), len(set(given)), "ids that were given once")
    check(len(given) < 4200 and "not used yet" in str(replies[-1]), f"{len(given)} given, then {replies[-1]}")
    folders = os.path.join(world.system_state, "jobs")
    check(len(os.listdir(folders) if os.path.isdir(folders) else []) <= 1, "folders are left")
    later = int(alice.run_to_end("true")["job"]["id"])
    check(first < later < first + 4500, f"alice's id leapt from {first} to {later}")
    world.stop_system_daemon()
    world.start_system_daemon()
    again = int(alice.run_to_end("true")["job"]["id"])
    check(later < again < first + 5000, f"alice's id leapt from {later} to {again}")


PLANTED = (".local", ".local/state", ".local/state/met", ".local/state/met/{machine}")


@each(**{f"level_{number}": path for number, path in enumerate(PLANTED)})
def root_follows_no_link_in_the_home_of_a_user(world, path):
    alice, _ = two_users(world)
    secret = os.path.join(world.root, "secret")
    os.mkdir(secret, 0o700)
    with open("/etc/machine-id") as file:
        machine = file.read().strip()
    link = os.path.join(alice.home, path.format(machine=machine))
    parent = os.path.dirname(link)
    os.makedirs(parent, exist_ok=True)
    for folder in (os.path.join(alice.home, part) for part in (".local", ".local/state", ".local/state/met")):
        if os.path.isdir(folder):
            os.chown(folder, alice.uid, alice.gid)
    os.symlink(secret, link)
    os.lchown(link, alice.uid, alice.gid)
    env = {"HOME": alice.home, "XDG_STATE_HOME": "", "XDG_RUNTIME_DIR": ""}
    world.met("run", "--", "true", env=env).refused("XDG_STATE_HOME", "root")
    world.met("list", env=env).refused("XDG_STATE_HOME", "root")
    world.met("daemon", "--user", "--auto", env=env).refused("root")
    # A command in a terminal matters more than its record.
    equal(world.met("time", "--quiet", "--", "sh", "-c", "exit 3", env=env).code, 3, "exit code of met time")
    equal(os.listdir(secret), [], "what root wrote behind the link")
    left = [name for base, folders, files in os.walk(alice.home) for name in folders + files
            if os.lstat(os.path.join(base, name)).st_uid == 0]
    equal(left, [], "what root left in her home")
    # Where a system daemon answers it is asked alone, and why is said.
    world.start_system_daemon()
    job = alice.run_to_end("true")["job"]["id"]
    shown = world.met("list", "--json", env=env).ok()
    equal([found["job"]["id"] for found in shown.json()], [job], "jobs that root sees")
    check("root does not use" in shown.err, f"nothing is said: {shown.err!r}")


@test
def root_reads_no_configuration_of_a_user(world):
    alice, _ = two_users(world)
    folder = os.path.join(alice.home, ".config", "met")
    env = {"HOME": alice.home, "MET_CONFIG": "", "XDG_CONFIG_HOME": ""}
    # As with sudo: her home decides nothing, and what she does not have is not missed.
    equal(world.met("list", env=env).ok().err, "", "what is said of no file")
    os.makedirs(folder)
    with open(os.path.join(folder, "met.yaml"), "w") as file:
        file.write("sampling:\n  interval: 17s\n")
    for path in (os.path.dirname(folder), folder, os.path.join(folder, "met.yaml")):
        os.chown(path, alice.uid, alice.gid)
    listed = world.met("list", env=env).ok()
    check("met.yaml is ignored" in listed.err and alice.name in listed.err, f"nothing is said: {listed.err!r}")
    current = world.met("config", "--current", env=env).ok().out
    check("17s" not in current, f"her file is in force: {current}")
    equal(alice.met("list", env={"MET_CONFIG": "", "XDG_CONFIG_HOME": ""}).code, 0, "exit code for alice herself")


@test
def roots_output_goes_through_no_link_of_a_user(world):
    alice, _ = two_users(world)
    secret = os.path.join(world.root, "secret")
    with open(secret, "w") as file:
        file.write("of root")
    for name in ("out", "true.out", "report"):
        os.symlink(secret, alice.path(name))
        os.lchown(alice.path(name), alice.uid, alice.gid)
    world.met("run", "--out", alice.path("out"), "--", "true").refused("is a link", "--out")
    world.met("time", "--output", alice.path("report"), "--", "true").refused("is a link")
    # A default name is a new file in any case.
    job = world.run("true", cwd=alice.work)
    world.met("wait", job).ok()
    check(os.path.isfile(alice.path("true.2.out")), f"no output of its own: {os.listdir(alice.work)}")
    # What was a file of the job's is a link by the time it is read.
    os.unlink(alice.path("true.2.out"))
    os.symlink(secret, alice.path("true.2.out"))
    os.lchown(alice.path("true.2.out"), alice.uid, alice.gid)
    world.met("logs", job).refused("is a link")
    with open(secret) as file:
        equal(file.read(), "of root", "root's file")


#: With a connection and a descriptor of its supervisor for each job these would not suffice.
FEW_DESCRIPTORS, MANY_JOBS = 400, 300


@each(of_a_user=False, of_the_machine=True)
def more_jobs_than_descriptors_lose_no_job(world, system):
    need_root()
    user = world.named_user("daemon") if system else world.me
    # A file that is opened for each reading changes no figure.
    world.configure("sampling:\n  interval: 1s\n")
    few = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (FEW_DESCRIPTORS, FEW_DESCRIPTORS))
    if system:
        spawn = world.me.spawn
        world.me.spawn = lambda *arguments, **options: spawn(*arguments, **{"preexec": few, **options})
        world.start_system_daemon()
        del world.me.spawn
    gate = user.path("gate")
    os.mkfifo(gate)
    os.chown(gate, user.uid, user.gid)
    ids = []
    while len(ids) < MANY_JOBS:
        batch = [user.spawn("run", "--print-id", "--", "sh", "-c", "read x < gate; exit 3",
                            preexec=None if system else few) for _ in range(10)]
        ids += [user.finish(process, ("run",)).ok().out.strip() for process in batch]
    equal(len(set(ids)), MANY_JOBS, "jobs with an id of their own")
    seen = set()

    def states():
        # A daemon that receives hundreds of ends at once may keep a command waiting for too long.
        listed = eventually(lambda: (shown := user.met("list", "--json")).code == 0 and shown, "jobs are listed")
        found = {job["job"]["id"]: job["job"]["state"] for job in listed.json()}
        seen.update(found.values())
        return [found.get(job) for job in ids]

    eventually(lambda: set(states()) == {"running"}, lambda: f"all run: {seen}", deadline_s=120)
    # The daemon samples and is asked for a while.
    for _ in range(5):
        equal(set(states()), {"running"}, "states")
    log = world.log("system.log") if system else open(os.path.join(user.store_folder(), "daemon.log")).read()
    check("supervisor was killed" not in log, f"the daemon says: {log[-500:]}")
    opener = user.start("sh", "-c", "exec 3> gate; sleep 2")
    eventually(lambda: set(states()) == {"failed"}, lambda: f"all have ended: {seen}", deadline_s=120)
    opener.wait()
    check("lost" not in seen, f"states that were shown: {seen}")
    exits = lambda: collections.Counter(job["job"]["exit_code"] for job in user.met("list", "--json").ok().json())
    # Of a daemon that is too busy to answer, only what the user's own files know is listed, with a warning.
    eventually(lambda: exits() == {3: MANY_JOBS}, lambda: f"jobs by exit code: {exits()}")
    # A supervisor that found no free connection reports the end a little later.
    eventually(lambda: not cgroups_left(), "the daemon removes their cgroups without any request")
    if not system:
        # The end that a supervisor left is there until the daemon has found that it is gone.
        log = open(os.path.join(user.store_folder(), "daemon.log")).read()
        check("supervisor was killed" not in log, f"the daemon says: {log[-500:]}")


@test
def a_forged_end_takes_no_name_of_others_and_is_no_found_job(world):
    alice, bob = two_users(world)
    world.start_system_daemon()
    job = alice.run_to_end("true")["job"]["id"]
    path = system_socket(world)
    (record,) = ask(world.me, path, HELLO, {"find": {"id": {"manager": None, "id": job}}})[-1]["jobs"]
    own = str((bob.uid + 1) * 1_000_000_000 + 7)
    forged = {**record, "key": {**record["key"], "id": own}, "scheduling": {"alias": job}}
    equal(ask(bob, path, HELLO, {"ended": forged})[-1], "done", "an end of bob's own range")
    equal(world.show(job)["job"]["user"], alice.name, "whose job root means by its id")
    equal(world.show(own)["job"]["user"], bob.name, "whose the forged one is")
    for forged in ({**forged, "local": {**record["local"], "origin": "found"}},
                   {**forged, "key": {**forged["key"], "cluster": "evil"}}):
        for request in ("started", "ended"):
            reply = ask(bob, path, HELLO, {request: {**forged, "state": "running" if request == "started" else "finished"}})[-1]
            check("error" in reply, f"accepted: {reply}")


@test
def an_end_whose_reservation_died_with_the_daemon_is_accepted(world):
    alice, _ = two_users(world)
    world.start_system_daemon()
    path = system_socket(world)
    job = alice.run_to_end("true")["job"]["id"]
    (record,) = ask(world.me, path, HELLO, {"find": {"id": {"manager": None, "id": job}}})[-1]["jobs"]
    given = ask(alice, path, HELLO, {"reserve": {"at_least": 1}})[-1]["reserved"]["id"]
    world.stop_system_daemon(signal.SIGKILL)
    world.start_system_daemon()
    ended = {**record, "key": {**record["key"], "id": str(given)}}
    equal(ask(alice, path, HELLO, {"ended": ended})[-1], "done", "the end of a job that began before")
    equal(world.show(str(given))["job"]["user"], alice.name, "its user")


#: Announces its own job on many connections and sends descriptors with each: with a whole request or with half of one.
PASSING = r"""
import json, os, socket, struct, sys
path, count, record = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])

def frame(request):
    data = json.dumps(request).encode()
    return struct.pack("<I", len(data)) + data

links = []
pipes = [end for _ in range(30) for end in os.pipe()]
counters = {"counters": {"key": record["key"], "in_cgroup": False, "events": []}}
for number in range(count):
    link = socket.socket(socket.AF_UNIX)
    link.settimeout(60)
    link.connect(path)
    replies = link.makefile("rb")
    link.sendall(frame({"hello": {"protocol": 1, "newest": 1000}}) + frame({"started": record}))
    for _ in range(2):
        (size,) = struct.unpack("<I", replies.read(4))
        reply = json.loads(replies.read(size))
    assert reply == "done", reply
    whole = number % 2 == 0
    said = frame("status" if number % 4 == 0 else counters) if whole else frame(counters)[:9]
    socket.send_fds(link, [said], pipes)
    if whole:
        (size,) = struct.unpack("<I", replies.read(4))
        replies.read(size)
    links.append((link, replies))
print("sent", flush=True)
sys.stdin.read()
"""


@test
def passed_descriptors_of_one_user_leave_others_theirs(world):
    alice, bob = two_users(world)
    limit = 1200
    few = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    spawn = world.me.spawn
    world.me.spawn = lambda *arguments, **options: spawn(*arguments, **{"preexec": few, **options})
    world.start_system_daemon()
    del world.me.spawn
    path = system_socket(world)
    job = bob.run("sleep", "600")
    eventually(lambda: bob.state_of(job) == "running", "it runs")
    find = {"find": {"id": {"manager": None, "id": job}}}
    (record,) = ask(world.me, path, HELLO, find)[-1]["jobs"]
    held = lambda: len(os.listdir(f"/proc/{world.system.pid}/fd"))
    before, links = held(), 40
    passing = bob.start(world.python, "-c", PASSING, path, str(links), json.dumps(record), stdin=subprocess.PIPE)
    equal(passing.stdout.readline(), b"sent\n", "what it says")
    # Half of an eighth of all; each connection has one of its own. The daemon itself may open some meanwhile.
    check(held() - before <= links + limit // 16 + 30, f"{held() - before} more descriptors")
    equal(alice.run_to_end("sh", "-c", "exit 3")["job"]["exit_code"], 3, "exit code of another user's job")
    log = world.log("system.log")
    equal(log.count("event counters open"), 1, f"warnings in {log[-2000:]}")
    passing.stdin.close()
    passing.wait()
    eventually(lambda: held() <= before + 10, lambda: f"{held() - before} descriptors are left")
    bob.met("cancel", job).ok()


#: Announces the job of its own process and passes counters under names of its own choice, as no supervisor would.
NAMING = r"""
import ctypes, json, os, socket, struct, subprocess, sys
path, record, names = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])

def frame(request):
    data = json.dumps(request).encode()
    return struct.pack("<I", len(data)) + data

link = socket.socket(socket.AF_UNIX)
link.settimeout(60)
link.connect(path)
replies = link.makefile("rb")

def ask(request, descriptors=()):
    socket.send_fds(link, [frame(request)], list(descriptors))
    (size,) = struct.unpack("<I", replies.read(4))
    return json.loads(replies.read(size))

def counter():
    # A software event of this process, in user mode: struct perf_event_attr of version 0.
    attributes = struct.pack("<IIQQQQQ", 1, 64, 1, 0, 0, 3, 1 << 5 | 1 << 6).ljust(64, b"\0")
    libc = ctypes.CDLL(None, use_errno=True)
    return libc.syscall(298, attributes, 0, -1, -1, 8)

def ticks(pid):
    return int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[19])

child = subprocess.Popen(["sleep", "1000"])
me = {"pid": os.getpid(), "start_ticks": ticks(os.getpid())}
ask({"hello": {"protocol": 1, "newest": 1000}})
given = ask({"reserve": {"at_least": 1}})["reserved"]["id"]
record["key"]["id"] = str(given)
record["state"], record["end_ns"] = "running", None
record["local"].update(supervisor=me, main={"pid": child.pid, "start_ticks": ticks(child.pid)})
record["local"].update(cgroup={}, origin="run")
reply = ask({"started": record})
assert reply == "done", reply
descriptor = counter()
if descriptor < 0:
    print("none", flush=True)
    child.kill()
    sys.exit(0)
for begin in range(0, len(names), 50):
    part = names[begin:begin + 50]
    events = [{"name": name, "counters": 1, "software": True, "user_only": False} for name in part]
    ask({"counters": {"key": record["key"], "in_cgroup": True, "events": events}}, [descriptor] * len(part))
print(given, flush=True)
sys.stdin.read()
child.kill()
child.wait()
record["state"], record["end_ns"] = "finished", record["start_ns"] + 1
record["events"] = [{"name": name, "count": 1, "counted": 1.0, "kind": "measured", "source": "x"} for name in names]
print(json.dumps(ask({"ended": record})), flush=True)
"""


@test
def a_user_adds_no_events_of_names_that_nobody_asked_for(world):
    alice, bob = two_users(world)
    world.configure("perf:\n  events: [page_faults, task_clock]\n")
    world.start_system_daemon()
    path = system_socket(world)
    job = bob.run_to_end("true")["job"]["id"]
    (record,) = ask(world.me, path, HELLO, {"find": {"id": {"manager": None, "id": job}}})[-1]["jobs"]
    names = ["page_faults", "task_clock", *(f"evil_{number}" for number in range(200))]
    naming = bob.start(world.python, "-c", NAMING, path, json.dumps(record), json.dumps(names), stdin=subprocess.PIPE)
    forged = naming.stdout.readline().decode().strip()
    if forged == "none":
        raise Skip("perf events are not allowed")
    check(forged.isdigit(), f"{forged!r}: {naming.stderr.read().decode() if not forged else ''}")
    counted = lambda: set(world.show(forged).get("events", {}).get("counts", {}))
    eventually(lambda: counted() == {"page_faults", "task_clock"}, lambda: f"counted: {sorted(counted())[:9]}")
    naming.stdin.close()
    equal(naming.stdout.readline(), b'"done"\n', "what the end is answered")
    naming.wait()
    equal(counted(), {"page_faults", "task_clock"}, "events in the end")


@test
def processes_that_a_user_claims_lead_root_not_astray(world):
    alice, bob = two_users(world)
    world.start_system_daemon()
    path = system_socket(world)
    job = bob.time_to_end("true")["job"]["id"]
    (record,) = ask(world.me, path, HELLO, {"find": {"id": {"manager": None, "id": job}}})[-1]["jobs"]
    given = ask(bob, path, HELLO, {"reserve": {"at_least": 1, "timed": True}})[-1]["reserved"]["id"]
    sleeper = alice.start("sleep", "1000")
    claims = [{"pid": pid, "uid": 0, "user": "root", "command": "evil", "start_ns": record["start_ns"],
               "memory_peak_bytes": -5, "cpu_ns": 2**62, "node": "other"} for pid in (1, sleeper.pid)]
    old = {"pid": 2, "command": "evil", "start_ns": 5}
    forged = {**record, "key": {**record["key"], "id": str(given)}, "processes": [*claims, old],
              "nodes": ["a\x1b[2J", "b"], "node_memory_bytes": 1}
    course = {"times_ms": [], "columns": []}
    reply = ask(bob, path, HELLO, {"timed": {"record": forged, "course": course}})[-1]
    equal(reply, "done", "a record of his own")
    for pid in (1, 2, sleeper.pid):
        world.met("show", f"pid:{pid}").refused(f"process {pid}")
    shown = world.show(str(given))
    equal(shown["job"]["nodes"], [os.uname().nodename], "where it ran")
    kept = shown["processes"]
    equal({(one["pid"], one["uid"]) for one in kept}, {(1, bob.uid), (sleeper.pid, bob.uid)}, "processes")
    check(all("cpu_seconds" not in one or one["cpu_seconds"] is None for one in kept), kept)
    sleeper.kill()
    sleeper.communicate()
    world.met("show", f"pid:{sleeper.pid}").refused(f"process {sleeper.pid}")


@each(group=0o770, others=0o777)
def root_keeps_no_state_where_others_may_write(world, mode):
    need_root()
    os.makedirs(world.system_state, mode=0o700)
    os.chmod(world.system_state, mode)
    world.me.met("daemon").refused(world.system_state, "can be written by other users", "chmod go-w")
    os.chmod(world.system_state, 0o755)
    world.start_system_daemon()


@each(pipe="pipe", device="device", endless="endless")
def a_configuration_that_is_no_file_blocks_nobody(world, what):
    daemon = world.me.spawn("daemon", "--user", stdout=subprocess.DEVNULL, stderr=open(world.path("log"), "wb"))
    world.daemon_pid()
    with open(world.config, "rb") as file:
        text = file.read()
    os.unlink(world.config)
    if what == "pipe":
        os.mkfifo(world.config)
    elif what == "device":
        os.symlink("/dev/zero", world.config)
    else:
        with open(world.config, "wb") as file:
            file.truncate(1 << 40)
    why = {"pipe": "a named pipe", "device": "a device", "endless": "larger than 1 MiB"}[what]
    world.me.met("list").refused(world.config, why)
    os.kill(daemon.pid, signal.SIGHUP)
    eventually(lambda: why.encode() in world.read("log"), "the daemon says so")
    os.unlink(world.config)
    with open(world.config, "wb") as file:
        file.write(text)
    equal(world.run_to_end("true")["job"]["state"], "finished", "state")


#: Gets a cgroup for a child, and never announces a job.
ENCLOSING = r"""
import json, os, socket, struct, subprocess, sys
link = socket.socket(socket.AF_UNIX)
link.settimeout(60)
link.connect(sys.argv[1])
replies = link.makefile("rb")

def ask(request):
    data = json.dumps(request).encode()
    link.sendall(struct.pack("<I", len(data)) + data)
    (size,) = struct.unpack("<I", replies.read(4))
    return json.loads(replies.read(size))

child = subprocess.Popen(["sleep", "1000"])
ask({"hello": {"protocol": 1, "newest": 1000}})
print(json.dumps(ask({"enclose": {"name": f"met-1-{os.getpid()}-1", "pid": child.pid}})))
child.kill()
child.wait()
"""


@test
def a_cgroup_without_a_job_goes_with_the_daemon(world):
    bob = two_users(world)[1]
    world.start_system_daemon()
    enclosing = bob.start(world.python, "-c", ENCLOSING, system_socket(world))
    reply = json.loads(bob.finish(enclosing).ok().out)
    if "enclosed" not in reply:
        raise Skip(f"no cgroup is made: {reply}")
    made = [path for path in reply["enclosed"].values() if path]
    check(made and all(map(os.path.exists, made)), f"made: {made}")
    world.stop_system_daemon()
    equal([path for path in made if os.path.exists(path)], [], "cgroups that are left")
