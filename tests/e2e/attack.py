"""A hostile user at the socket of a root daemon: everybody else's jobs are recorded as if the user were not there.

MET_HOSTILE_S sets how long the attack lasts (default 10 s; `scripts/soak` makes it minutes)."""

import json
import os
import random

from harness import check, equal, eventually, test
from users import ask, two_users

ATTACK_S = float(os.environ.get("MET_HOSTILE_S", "10"))
#: Far below what unread answers or unbounded buffers come to within seconds.
MEMORY_MAX_KB = 400 << 10

ATTACK = r"""
import json, os, random, socket, struct, sys, time
path, seconds, seed, record = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
end, luck, counts = time.monotonic() + seconds, random.Random(seed), {}

def frame(request):
    data = request if isinstance(request, bytes) else json.dumps(request).encode()
    return struct.pack("<I", len(data)) + data

def connect():
    link = socket.socket(socket.AF_UNIX)
    link.settimeout(2)
    link.connect(path)
    return link

def take(link, size):
    data = b""
    while len(data) < size:
        chunk = link.recv(size - len(data))
        if not chunk:
            raise ConnectionResetError
        data += chunk
    return data

def ask(link, *requests):
    # The last reply.
    for request in requests:
        link.sendall(frame(request))
        reply = take(link, struct.unpack("<I", take(link, 4))[0])
    return json.loads(reply)

HELLO = {"hello": {"protocol": 1, "newest": 4}}

def huge_end():
    link = connect()
    for _ in range(20):
        reply = ask(link, HELLO, {"reserve": {"at_least": 1}})
        given = reply["reserved"]["id"] if "reserved" in reply else luck.randrange(1, 1000)
        forged = {**record, "command": ["x" * 900_000], "state": "finished", "uid": os.getuid()}
        forged["key"] = {**record["key"], "id": str(given)}
        ask(link, {"ended": forged})

def reserve_without_end():
    link = connect()
    ask(link, HELLO)
    for _ in range(300):
        ask(link, {"reserve": {"at_least": luck.choice([1, 500, 10**6, 2**63])}})

def never_reads():
    links.append(connect())
    links[-1].sendall(frame(HELLO))
    for _ in range(2000):
        links[-1].sendall(frame({"jobs": {}}) + frame("status"))

def many_connections():
    for _ in range(500):
        links.append(connect())

def half_a_frame():
    link = connect()
    link.sendall(struct.pack("<I", 1 << 20) + b"{" * luck.randrange(1 << 19))
    links.append(link)

def garbage():
    link = connect()
    link.sendall(luck.randbytes(luck.randrange(1, 5000)))

def later_version():
    ask(connect(), {"hello": {"protocol": 98, "newest": 99, "replace": True}})
    ask(connect(), {"hello": {"protocol": 99}})

def stop():
    ask(connect(), HELLO, "stop")

def others_processes():
    ask(connect(), HELLO, {"enclose": {"name": "met-1-1-1", "pid": luck.choice([1, os.getppid(), 2**31])}})

def others_jobs():
    key = record["key"]
    for request in ({"remove": key}, {"ended": {**record, "state": "cancelled"}}, {"started": record}):
        ask(connect(), HELLO, request)

attacks = [huge_end, reserve_without_end, never_reads, many_connections, half_a_frame, garbage, later_version, stop,
           others_processes, others_jobs]
links = []
while time.monotonic() < end:
    attack = luck.choice(attacks)
    try:
        attack()
        result = "done"
    except OSError as error:
        result = type(error).__name__
    counts[f"{attack.__name__}: {result}"] = counts.get(f"{attack.__name__}: {result}", 0) + 1
    if len(links) > 600 and luck.random() < 0.2:
        for link in links: link.close()
        links.clear()
print(json.dumps(counts))
"""


@test
def a_hostile_user_harms_nobody_else(world):
    alice, mallory = two_users(world)
    world.configure("storage:\n  max_size: 64MB\n")
    world.start_system_daemon()
    path = os.path.join(world.system_runtime, "daemon.sock")
    seed = random.randrange(1 << 30)
    # The oldest jobs of the store are the ones that a careless limit would remove first.
    expected = {alice.run_to_end("sh", "-c", f"exit {code}")["job"]["id"]: code for code in range(3)}
    running = alice.run("sh", "-c", "while [ ! -e go ]; do sleep 0.05; done; exit 7")
    eventually(lambda: alice.state_of(running) == "running", "it runs")
    hello = {"hello": {"protocol": 1, "newest": 4}}
    (_, reply) = ask(world.me, path, hello, {"find": {"id": {"manager": None, "id": running}}})
    (record,) = reply["jobs"]
    attack = mallory.start(world.python, "-c", ATTACK, path, str(ATTACK_S), str(seed), json.dumps(record))
    code = 0
    while attack.poll() is None:
        code = (code + 1) % 100
        result = alice.met("run", "--wait", "--print-id", "--", "sh", "-c", f"exit {code}", deadline_s=120)
        equal(result.code, code, f"exit code during the attack (seed {seed}; {result.err})")
        expected[result.out.strip()] = code
        equal(alice.state_of(running), "running", "state during the attack")
    out, err = attack.communicate()
    check(attack.returncode == 0, err.decode())
    counts = json.loads(out)
    check(sum(counts.values()) > 0, f"the attack did not take place: {counts}")
    check(world.system.poll() is None, f"the daemon was stopped (seed {seed}): {world.log('system.log')[-2000:]}")
    open(alice.path("go"), "w").close()
    alice.met("wait", running).expect(7)
    expected[running] = 7
    found = {job["job"]["id"]: job["job"]["exit_code"] for job in alice.jobs()}
    equal(found, expected, f"jobs of alice (seed {seed}, {counts})")
    with open(f"/proc/{world.system.pid}/status") as file:
        peak_kb = next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))
    check(peak_kb < MEMORY_MAX_KB, f"the daemon held {peak_kb} kB (seed {seed}, {counts})")
