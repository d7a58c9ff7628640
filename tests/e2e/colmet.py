"""Colmet: its real collector stores what a daemon pushes, its real node is taken by a server, and its files are written.

MET_COLMET_S sets how long both go on at once (default 60 s; `scripts/soak` makes it minutes)."""

import contextlib
import functools
import glob
import itertools
import json
import os
import re
import signal
import struct
import subprocess
import time
import urllib.request

from gpus import played
from discovery import Manager
from harness import Skip, check, equal, eventually, need_root, test
from prometheus import HERE, free_port

#: How long a daemon feeds a collector and a node feeds a server.
PAIRS_S = float(os.environ.get("MET_COLMET_S", "60"))

#: All tables of an HDF5 file as JSON: rows by table.
READ = """
import h5py, json, sys
tables = {}
def add(name, item):
    if isinstance(item, h5py.Dataset):
        text = lambda value: value.decode() if isinstance(value, bytes) else value.item()
        tables[name] = [{column: text(row[column]) for column in item.dtype.names} for row in item[:]]
with h5py.File(sys.argv[1], "r") as file:
    file.visititems(add)
print(json.dumps(tables))
"""


@functools.cache
def python():
    """One that has Colmet."""
    installed = subprocess.run([os.path.join(HERE, "python-packages"), "colmet"], capture_output=True, text=True, check=False)
    if installed.returncode != 0:
        raise Skip(installed.stdout.strip() or installed.stderr.strip())
    return installed.stdout.strip()


def program(name):
    return os.path.join(os.path.dirname(python()), name)


def tables(path):
    """What a file holds; nothing while it cannot be read."""
    # Another process writes it: locks of the library would only make it fail more often.
    env = {**os.environ, "HDF5_USE_FILE_LOCKING": "FALSE"}
    done = subprocess.run([python(), "-c", READ, path], capture_output=True, text=True, check=False, env=env)
    return json.loads(done.stdout) if done.returncode == 0 else {}


@contextlib.contextmanager
def collector(world, port, path, *options):
    """A real colmet-collector that writes a file; it must still run at the end."""
    with open(world.me.path("collector.log"), "wb") as log:
        command = [program("colmet-collector"), "-s", "1", "--zeromq-bind-uri", f"tcp://127.0.0.1:{port}",
                   "--hdf5-filepath", path, *options]
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=world.me.path(""))
    try:
        yield process
        equal(process.poll(), None, "the collector runs: " + world.me.read("collector.log").decode())
        process.send_signal(signal.SIGINT)
        equal(process.wait(60), 0, "the collector ends well: " + world.me.read("collector.log").decode())
    finally:
        process.kill()
        process.wait()


SINK = "sampling:\n  interval: 200ms\nsinks:\n  - colmet: {{endpoint: 'tcp://127.0.0.1:{port}', period: 200ms, managers: local, backends: '{backends}'}}\n"
#: All that a collector with HDF5 survives.
BACKENDS = "taskstats, procstats, infiniband, lustre, perfhw, rapl, temperature, jobproc, ipmi"


@test
def a_real_collector_stores_what_a_daemon_pushes(world):
    need_root()
    python()
    # Colmet creates folders that are missing, and so do we.
    port, path = free_port(), world.me.path("not/yet/out.hdf5")
    world.configure(SINK.format(port=port, backends=BACKENDS) + "perf:\n  events: [page_faults, context_switches]\n")
    with collector(world, port, path):
        world.start_system_daemon()
        # Five processes of 0.4 s each, none of which lives at two samples of Colmet.
        burn = "import time\nwhile time.process_time() < 0.4: pass"
        job = world.run("sh", "-c", f"for i in 1 2 3 4 5; do python3 -c '{burn}'; done; sleep 1")
        world.met("wait", job).ok()

        def last():
            return tables(path).get(f"job_{job}/taskstats_default", [{}])[-1]

        total = world.show(job)["totals"]
        eventually(lambda: last().get("cpu_run_real_total") == round(total["cpu_seconds"] * 1e9),
                   lambda: f"the total of the job: {last()} and {total}")
    found = tables(path)
    check(last()["cpu_run_real_total"] > 2_000_000_000, f"all five processes: {last()}")
    equal(last()["hostname"], os.uname().nodename, "the host")
    equal(last()["job_id"], int(job), "the job")
    check(found[f"job_{job}/jobprocstats_default"], "jobproc")
    node = found["job_0/procstats_default"]
    with open("/proc/meminfo", encoding="ascii") as file:
        kib = {line.split(":")[0]: int(line.split()[1]) for line in file}
    equal({row["meminfo_memtotal"] for row in node}, {kib["MemTotal"]}, "memory of the machine")
    times = [row["timestamp"] for row in node]
    check(times == sorted(times) and len(times) > 5, f"rounds: {times}")


@test
def a_collector_that_comes_late_gets_what_waited_and_sampling_goes_on(world):
    need_root()
    python()
    port, path = free_port(), world.me.path("out.hdf5")
    world.configure(SINK.format(port=port, backends="procstats"))
    world.start_system_daemon()

    def sink():
        return {one["name"]: one for one in world.met("daemon", "--status", "--json").ok().json()["sinks"]}["colmet"]

    eventually(lambda: sink()["state"] == "retrying" and sink()["delivered"] > 20, "no collector, and ticks go on")
    equal(sink()["dropped"], 0, "dropped")
    with collector(world, port, path):
        eventually(lambda: len(tables(path).get("job_0/procstats_default", [])) > 20, "what waited is stored")
        eventually(lambda: sink()["state"] == "running", "the sink is well")


class Server:
    """A `met server` on this machine that takes records of Colmet and writes them to a file; `apart`: beside a daemon with
    another configuration."""

    def __init__(self, world, hosts, more="", apart=False, manager="oar"):
        self.world, self.port, self.http = world, free_port(), free_port()
        self.file, self.token = world.me.path("met.hdf5"), world.me.path("token")
        of_daemon = world.config
        world.config = world.me.path("server.yaml") if apart else world.config
        self.config = ("-c", world.config)
        world.configure(f"http:\n  listen: 127.0.0.1:{self.http}\n"
                        f"colmet:\n  listen: 127.0.0.1:{self.port}\n  allow: 127.0.0.1\n  hosts: [{hosts}]\n  manager: {manager}\n"
                        f"sinks:\n  - hdf5: {{path: {self.file}, flush: 200ms, level: 1}}\n{more}")
        world.config = of_daemon
        self.enroll("op", "--operator")
        self.process = None

    def enroll(self, *arguments):
        token = self.world.met(*self.config, "server", "enroll", *arguments).ok().out.strip().splitlines()[-1]
        with open(os.open(self.token, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "w") as file:
            file.write(token)

    def __enter__(self):
        with open(self.world.me.path("server.log"), "ab") as log:
            self.process = self.world.me.spawn(*self.config, "server", stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        eventually(lambda: "taking records of Colmet" in self.log(), lambda: f"the server listens: {self.log()}")
        return self

    def __exit__(self, *_):
        self.end(signal.SIGTERM)

    def end(self, how):
        self.process.send_signal(how)
        self.process.wait(60)

    def log(self):
        return self.world.me.read("server.log").decode()

    def ask(self, *arguments):
        config = self.world.me.path("client.yaml")
        with open(config, "w") as file:
            file.write(f"client:\n  token_file: {self.token}\n")
        return self.world.met("-c", config, "--server", f"http://127.0.0.1:{self.http}", *arguments)


@contextlib.contextmanager
def node(world, port, job, pid):
    """A real colmet-node that follows one process as a job of OAR."""
    need_root()
    folder = world.me.path(f"cpuset/ada_{job}")
    os.makedirs(folder)
    with open(os.path.join(folder, "tasks"), "w") as file:
        file.write(f"{pid}\n")
    with open(world.me.path("node.log"), "wb") as log:
        command = [program("colmet-node"), "-s", "1", "--enable-jobproc", "--enable-temperature", "--enable-lustre", "--cpuset_rootpath",
                   world.me.path("cpuset/"), "--zeromq-uri", f"tcp://127.0.0.1:{port}"]
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=world.me.path(""))
    try:
        yield process
    finally:
        process.kill()
        process.wait()


#: Takes messages and passes each on to several receivers, until there were enough.
RELAY = """
import sys, zmq
context = zmq.Context()
taken = context.socket(zmq.PULL)
taken.bind(f"tcp://127.0.0.1:{sys.argv[1]}")
out = []
for port in sys.argv[3:]:
    out.append(context.socket(zmq.PUSH))
    out[-1].connect(f"tcp://127.0.0.1:{port}")
for number in range(int(sys.argv[2])):
    message = taken.recv()
    for receiver in out:
        receiver.send(message)
context.destroy(10000)
"""


@test
def a_server_stores_the_same_of_a_real_node_as_a_real_collector(world):
    need_root()
    python()
    ports, theirs = [free_port(), free_port()], world.me.path("theirs.hdf5")
    host = os.uname().nodename
    burner = subprocess.Popen(["python3", "-c", "while True: open('/dev/null', 'w').write('x' * 4096)"])
    try:
        with Server(world, host) as server, collector(world, ports[1], theirs), node(world, ports[0], 4711, burner.pid):
            relay = subprocess.run([python(), "-c", RELAY, str(ports[0]), "8", str(server.port), str(ports[1])], check=False, timeout=120)
            equal(relay.returncode, 0, "the relay")
            names = {"job_4711/taskstats_default", "job_0/procstats_default", "job_4711/jobprocstats_default"}

            def complete(path):
                found = tables(path)
                return names <= set(found) and all(len(found[name]) >= 7 for name in names)

            for path in (server.file, theirs):
                eventually(lambda path=path: complete(path), lambda path=path: f"{path}: {tables(path)} {server.log()}")
            eventually(lambda: server.ask("list", "--json").ok().json(), "the job is in the list")
            (job,) = server.ask("list", "--json").ok().json()
            check("4711" in job["job"]["id"] and job["job"]["nodes"] == [host], job)
            check(job["job"].get("user") is None, "no owner is known")
            # A user sees no job without an owner.
            server.enroll("ada", "--user")
            equal(server.ask("list", "--json").ok().json(), [], "jobs of ada")
        ours, theirs = tables(server.file), tables(theirs)
        for name, rows in theirs.items():
            # The last round may be on its way when one of them ends.
            by_time = {row["timestamp"]: row for row in ours[name] if "timestamp" in row}
            last = max((row["timestamp"] for row in rows), default=0) if "temperature" not in name else 0
            for row in rows if "temperature" not in name else []:
                if row["timestamp"] == last and last not in by_time:
                    continue
                mine = by_time[row["timestamp"]]
                for column, value in row.items():
                    equal(mine[column], value, f"{name}.{column}")
        check("job_0/temperaturestats_default" in ours, "temperatures")
        check(all(row["hostname"] == host and row["timestamp"] > 0 for row in ours["job_0/temperaturestats_default"]), "time and host")
    finally:
        burner.kill()
        burner.wait()


#: Records of every kind that Colmet has, packed by its own classes: two rounds of one host with two jobs. The second has numbers
#: at the bounds, the sign of nothing counted, and no job.
PACK = """
import json, sys
from colmet.common.metrics import get_counters_class
BOUNDS = {"Q": [2**63, 2**63 - 1, 0], "q": [-1, 2**63 - 1, 0], "I": [2**32 - 1], "f": [0.1, 12.5, 0.0]}
def record(kind, number, job, second):
    counters = get_counters_class(kind + "_default")()
    counters.hostname, counters.job_id, counters.timestamp = "node-1.site.example", job, 1_700_000_000 + 5 * second
    seen = {}
    for index, name in enumerate(counters._fmt_counter_ordered_keys):
        code = counters._counter_definitions[name][0].struct_code
        place = seen[code] = seen.get(code, -1) + 1
        if code.endswith("s"):
            value = json.dumps([11, 12] if second == 0 else [])
        elif second == 1 and place < len(BOUNDS[code]):
            value = BOUNDS[code][place]
        else:
            value = (number + 1) * 1_000_000 + (index + 1) * 1_000 + job
        counters._set_counter(name, value)
    return counters.get_packed()
KINDS = [("taskstats", True), ("procstats", False), ("infinibandstats", False), ("lustrestats", False), ("perfhwstats", True),
         ("RAPLstats", False), ("temperaturestats", False), ("jobprocstats", True), ("ipmipowerstats", False), ("nvidiastats", True)]
for second in (0, 1):
    for number, (kind, is_of_job) in enumerate(KINDS):
        for job in (11, 12) if is_of_job else (0,):
            sys.stdout.buffer.write(record(kind, number, job, second))
"""
#: All records of a file of messages as JSON, read by Colmet's own classes.
UNPACK = """
import json, sys
from colmet.common.metrics.base import BaseCounters
found = {}
for counters in BaseCounters.unpack_to_list(open(sys.argv[1], "rb").read(), unpack_counters=True):
    name = f"job_{counters.job_id}/{counters.metric_backend}"
    found.setdefault(name, []).append({**counters._header_values, **counters._counter_values})
print(json.dumps(found))
"""
ROUNDS, NVIDIA_BYTES = 2, 2 * 582
#: What the tables of colmet-collector 0.6.10 have no column for, though its nodes send it. Those of nvidia are missing altogether:
#: a collector with HDF5 ends when it gets one.
LACKING = {
    "procstats_default": {"involved_jobs"},
    "RAPLstats_default": {"counter_24"},
    "temperaturestats_default": {"hostname", "job_id", "metric_backend", "timestamp"},
    "jobprocstats_default": {"VmRSS", "RssShmem", "VmSize"},
}
#: Columns of its tables that its nodes never fill.
UNFILLED = {"procstats_default": {"meminfo_hardwarecorrupted": -1}, "jobprocstats_default": {"involved_jobs": ""}}


def as_stored(value):
    """What a column of 64 signed bits has of a number: Colmet leaves it at -1 if it does not fit."""
    return -1 if isinstance(value, int) and value >= 1 << 63 else value


def check_as_packed(found, packed, who):
    """That a file has every counter of every record, in their order."""
    equal(set(found), set(packed), f"tables {who}")
    for name, records in packed.items():
        expected = [{**{column: as_stored(value) for column, value in record.items()}, **UNFILLED.get(name.split("/")[1], {})}
                    for record in records]
        equal(found[name], expected, f"{name} {who}")


@test
def every_kind_of_record_is_stored_cell_by_cell_as_a_real_collector_stores_it(world):
    need_root()
    python()
    fixture = os.path.join(HERE, "../../fixtures/colmet/kinds.bin")
    with open(fixture, "rb") as file:
        captured = file.read()
    own = subprocess.run([python(), "-c", PACK], capture_output=True, check=True)
    equal(own.stdout, captured, "the file is what Colmet packs")
    packed = json.loads(subprocess.run([python(), "-c", UNPACK, fixture], capture_output=True, text=True, check=True).stdout)
    length = len(captured) // ROUNDS
    rounds = [captured[start:start + length] for start in range(0, len(captured), length)]
    ports, theirs, file = [free_port(), free_port()], world.me.path("theirs.hdf5"), world.me.path("front.hdf5")
    options = ("-s", "0.2", "--zeromq-bind-uri", f"tcp://127.0.0.1:{ports[1]}", "--hdf5-filepath", file, "--hdf5-complevel", "3")
    with Server(world, "node-1.site.example") as server, collector(world, ports[0], theirs), front(world, "colmet-collector", *options):
        for port in (server.port, ports[1]):
            send(f"tcp://127.0.0.1:{port}", *rounds)
        send(f"tcp://127.0.0.1:{ports[0]}", *(message[:-NVIDIA_BYTES] for message in rounds))
        rows = sum(map(len, packed.values()))
        for path, most in ((server.file, rows), (file, rows), (theirs, rows - 2 * ROUNDS)):
            count = lambda path=path: sum(map(len, tables(path).values()))
            eventually(lambda count=count, most=most: count() == most, lambda path=path, count=count: f"{path}: {count()} rows: {server.log()}")
    ours, theirs = tables(server.file), tables(theirs)
    check_as_packed(ours, packed, "of the server")
    check_as_packed(tables(file), packed, "of the collector")
    equal(set(ours) - set(theirs), {"job_11/nvidiastats_default", "job_12/nvidiastats_default"}, "tables that Colmet lacks")
    for name, rows in theirs.items():
        lacking = LACKING.get(name.split("/")[1], set())
        equal(set(ours[name][0]) - set(rows[0]), lacking, f"columns of {name} that Colmet lacks")
        equal([{column: row[column] for column in row if column not in lacking} for row in ours[name]], rows, name)


@test
def a_real_collector_with_hdf5_ends_at_a_record_of_nvidia(world):
    # Why the sink sends it only where it is named. A version that takes it makes this fail.
    with open(os.path.join(HERE, "../../fixtures/colmet/kinds.bin"), "rb") as file:
        nvidia = file.read()[-NVIDIA_BYTES:]
    port, path = free_port(), world.me.path("theirs.hdf5")
    command = [program("colmet-collector"), "-s", "1", "--zeromq-bind-uri", f"tcp://127.0.0.1:{port}", "--hdf5-filepath", path]
    with open(world.me.path("collector.log"), "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=world.me.path(""))
    try:
        send(f"tcp://127.0.0.1:{port}", nvidia)
        process.wait(120)
        check("nvidiastats_default" in world.me.read("collector.log").decode(), "why it ended: " + world.me.read("collector.log").decode())
    finally:
        process.kill()
        process.wait()


def taken(server):
    """How many records of colmet-node a server took."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.http}/metrics", timeout=60) as answer:
        return int(re.search(r'met_colmet_taken_total\{peer="colmet-node"\} (\d+)', answer.read().decode())[1])


@test
def a_daemon_feeds_a_collector_and_a_node_a_server_meanwhile(world):
    need_root()
    python()
    port, path, jobs = free_port(), world.me.path("theirs.hdf5"), {}
    world.configure(SINK.format(port=port, backends=BACKENDS))
    burn = "import time\nwhile time.process_time() < 0.2: pass"
    stopped = subprocess.Popen(["sleep", "100000"])
    try:
        with Server(world, os.uname().nodename, apart=True) as server, collector(world, port, path) as theirs:
            world.start_system_daemon()
            with node(world, server.port, 4711, stopped.pid) as sender:
                end = time.monotonic() + PAIRS_S
                while time.monotonic() < end:
                    job = world.run("sh", "-c", f"python3 -c '{burn}'; sleep 1; python3 -c '{burn}'")
                    world.met("wait", job).ok()
                    jobs[job] = round(world.show(job)["totals"]["cpu_seconds"] * 1e9)
                    for process in (theirs, sender, server.process, world.system):
                        equal(process.poll(), None, f"{process.args} runs: {server.log()}")

            def last(found, job):
                return found.get(f"job_{job}/taskstats_default", [{}])[-1].get("cpu_run_real_total")

            eventually(lambda: last(tables(path), job) == jobs[job], "the last job is stored", pause_s=0.5)
            (sink,) = world.met("daemon", "--status", "--json").ok().json()["sinks"]
            equal((sink["state"], sink["dropped"]), ("running", 0), f"the sink: {sink}")
            count = lambda: sum(len(rows) for rows in tables(server.file).values())
            eventually(lambda: count() == taken(server), lambda: f"{taken(server)} records were taken, {count()} are stored", pause_s=0.5)
        found, ours = tables(path), tables(server.file)
        equal({job: last(found, job) for job in jobs}, jobs, "totals of all jobs")
        for name, rows in (("of the daemon", found), ("of the node", ours)):
            times = [row["timestamp"] for row in rows["job_0/procstats_default"]]
            check(times == sorted(times) and len(times) > PAIRS_S / 4, f"rounds {name}: {times}")
        check(len(ours["job_4711/taskstats_default"]) > PAIRS_S / 4, "rows of the node's job")
        check("dropped" not in server.log() and " records taken, 0 skipped" in server.log(), server.log())
        print(f"{len(jobs)} jobs, {sum(map(len, found.values()))} rows of the daemon, {sum(map(len, ours.values()))} of the node", flush=True)
    finally:
        stopped.kill()
        stopped.wait()


@test
def any_bytes_leave_a_server_running_and_a_host_with_a_token_is_refused(world):
    need_root()
    send = """
import os, sys, zmq
context = zmq.Context()
socket = context.socket(zmq.PUSH)
socket.connect(f"tcp://127.0.0.1:{sys.argv[1]}")
good = open(sys.argv[2], "rb").read()
def renamed(host):
    return good.replace(b"vm" + bytes(253), host + bytes(255 - len(host)))
junk = [b"", b"x" * 100, os.urandom(5000), good[:-1], b"nosuch" + bytes(249) + good, renamed(b"bad name"), bytes.fromhex("81cd04d2"), good[:700]]
for message in junk:
    socket.send(message)
socket.send(renamed(b"stranger"))
socket.send(renamed(b"enrolled"))
socket.send_multipart([b"junk", good])
context.destroy(10000)
"""
    captured = os.path.join(HERE, "../../fixtures/colmet/message.bin")
    server = Server(world, "vm, enrolled")
    world.met("server", "enroll", "enrolled").ok()
    with server:
        done = subprocess.run([python(), "-c", send, str(server.port), captured], check=False, timeout=120)
        equal(done.returncode, 0, "sent")
        eventually(lambda: "job_1234/taskstats_default" in tables(server.file), lambda: f"the good one is stored: {server.log()}")
        for complaint in ("unknown metric_backend", "truncated record", "malformed hostname", "colmet.hosts does not name: stranger",
                          "a host with a token is not taken here: enrolled", "malformed MessagePack"):
            eventually(lambda complaint=complaint: complaint in server.log(), lambda complaint=complaint: f"{complaint}: {server.log()}")
            equal(server.log().count(complaint), 1, f"times that the log has: {complaint}")
        found = tables(server.file)
        equal({row["hostname"] for row in found["job_1234/taskstats_default"]}, {"vm"}, "hosts")
        (job,) = eventually(lambda: server.ask("list", "--json").ok().json(), "the job is in the list")
        equal(job["job"]["nodes"], ["vm"], "its node")


def claimed(host, job, cpu_s):
    """A record of taskstats that a host sends of a job since now."""
    with open(os.path.join(HERE, "../../fixtures/colmet/message.bin"), "rb") as file:
        record = bytearray(file.read()[:762])
    struct.pack_into("<255sQQ", record, 255, host.encode(), job, int(time.time()))
    struct.pack_into("<QQI", record, 526 + 6 * 8, cpu_s * 1_000_000_000, cpu_s * 1_000_000_000, int(time.time()))
    return bytes(record)


@test
def what_colmet_says_of_a_job_never_wins_over_a_node_with_a_token(world):
    need_root()
    python()
    host, token, manager = os.uname().nodename, world.me.path("node.token"), Manager(world)
    try:
        with Server(world, f"{host}, stranger", apart=True, manager="slurm") as server:
            def jobs():
                return [one["job"] for one in server.ask("list", "--json").ok().json()]

            def claim(name, cpu_s):
                send(f"tcp://127.0.0.1:{server.port}", claimed(name, 7, cpu_s))

            claim(host, 4000)
            (before,) = eventually(jobs, lambda: f"the job is in the list: {server.log()}")
            equal((before["state"], before.get("user")), ("running", None), "as Colmet says it")
            with open(os.open(token, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
                file.write(world.met(*server.config, "server", "enroll", host).ok().out.strip().splitlines()[-1])
            world.configure(f"sampling:\n  interval: 200ms\njobs:\n  discover: true\n  plain: off\n  below: {manager.below}\n"
                            f"forward:\n  url: http://127.0.0.1:{server.http}\n  token_file: {token}\n  node: {host}\n  interval: 1s\n")
            path = manager.job(7)
            process = manager.start(path, "sh", "-c", "while :; do /bin/true; done")
            world.start_system_daemon()
            owned = lambda: [job for job in jobs() if job.get("user") is not None]
            (known,) = eventually(owned, lambda: f"the node has it: {jobs()} {server.log()} {world.log('system.log')}")
            equal(len(jobs()), 1, "it is one job")
            # A host without a token says that it has the job, and goes on saying so.
            claim("stranger", 5000)
            eventually(lambda: "stranger" in jobs()[0]["nodes"], lambda: f"its part counts: {jobs()}")
            process.kill()
            process.wait()
            manager.remove_when_empty(path)
            eventually(lambda: jobs()[0]["state"] not in ("running", "pending"), lambda: f"the end that the node saw: {jobs()}")
            (ended,) = jobs()
            claim(host, 9000)
            claim("stranger", 9000)
            eventually(lambda: f"a host with a token is not taken here: {host}" in server.log(), lambda: f"refused: {server.log()}")
            eventually(lambda: taken(server) == 3, lambda: f"{taken(server)} were taken: {server.log()}")
        # All that was taken is stored when a server has ended.
        with server:
            eventually(lambda: server.ask("list", "--json").code == 0, lambda: f"the next server answers: {server.log()}")
            (after,) = jobs()
            for key in ("state", "user", "start", "end", "name"):
                equal(after.get(key), ended.get(key), f"{key}: {after}")
            equal(after["user"], known["user"], "its owner")
    finally:
        world.stop_system_daemon()
        manager.close()


@test
def a_file_is_read_while_it_is_written_and_after_kill_9(world):
    need_root()
    python()
    path = world.me.path("node.hdf5")
    world.configure(f"sampling:\n  interval: 100ms\nsinks:\n  - hdf5: {{path: {path}, period: 100ms, flush: 100ms, managers: local}}\n")
    world.start_system_daemon()
    job = world.run("sleep", "1000")
    name, seen = "job_0/procstats_default", 0
    while seen < 40:
        rows = eventually(lambda: tables(path).get(name, []), "a reader opens it")
        times = [row["timestamp"] for row in rows]
        check(len(rows) >= seen and times == sorted(times) and min(times) > 1_700_000_000, f"right rows: {times}")
        seen = len(rows)
    world.stop_system_daemon(signal.SIGKILL)
    rows = tables(path)[name]
    check(len(rows) >= seen, f"after kill -9: {len(rows)} of {seen}")
    # PyTables opens each as a table, with the queries of OAR's reader.
    query = """
import json, sys, tables
with tables.open_file(sys.argv[1], "r") as file:
    found = {}
    for table in file.walk_nodes("/", "Table"):
        columns = [name for name in ("ac_etime", "cpu_run_real_total", "coremem", "read_bytes", "write_bytes", "meminfo_memtotal") if name in table.colnames]
        rows = [[int(row["timestamp"]), row["hostname"].decode()] + [int(row[name]) for name in columns]
                for row in table.where("(timestamp >= 1) & (timestamp <= 9999999999)")]
        found[table._v_pathname[1:]] = [int(table.nrows), rows, str(table.title)]
print(json.dumps(found))
"""
    done = subprocess.run([python(), "-c", query, path], capture_output=True, text=True, check=False)
    equal(done.returncode, 0, done.stderr)
    found = json.loads(done.stdout)
    count, selected, title = found[name]
    equal((count, len(selected), title), (len(rows), len(rows), "Metrics for the Job 0"), "PyTables")
    equal([row[0] for row in selected], [row["timestamp"] for row in rows], "times")
    # The next daemon goes on in the same file.
    world.start_system_daemon()
    eventually(lambda: len(tables(path).get(name, [])) > len(rows) + 5, "the file is continued")
    world.met("cancel", job).ok()


#: Sends each argument, in hexadecimal digits, as a message.
SEND = """
import sys, zmq
context = zmq.Context()
socket = context.socket(zmq.PUSH)
socket.connect(sys.argv[1])
for message in sys.argv[2:]:
    socket.send(bytes.fromhex(message))
context.destroy(10000)
"""


def send(endpoint, *messages):
    done = subprocess.run([python(), "-c", SEND, endpoint, *(message.hex() for message in messages)], check=False, timeout=120)
    equal(done.returncode, 0, "sent")


def packed(**texts):
    """A map of texts, byte by byte as the variant in Rust packs it."""
    text = lambda value: bytes([0xa0 | len(value)] if len(value) < 32 else [0xd9, len(value)]) + value.encode()
    return bytes([0x80 | len(texts)]) + b"".join(text(key) + text(value) for key, value in texts.items())


@contextlib.contextmanager
def front(world, name, *options, **more):
    """`met colmet-node` or `met colmet-collector`, which must end well; where it logs."""
    path = world.me.path(f"{name}.log")
    with open(path, "ab") as log:
        process = world.me.spawn(name, *options, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=world.me.path(""), **more)
    process.log = lambda: world.me.read(f"{name}.log").decode()
    try:
        yield process
        equal(process.poll(), None, f"{name} runs: {process.log()}")
        process.send_signal(signal.SIGTERM)
        equal(process.wait(60), 0, f"{name} ends well: {process.log()}")
    finally:
        process.kill()
        process.wait()


def times(path):
    return [row["timestamp"] for row in tables(path).get("job_0/procstats_default", [])]


def mapping(world, name):
    """The newest file of a mapping."""
    found = sorted(glob.glob(world.me.path(f"{name}.*.csv")), key=os.path.getmtime)
    return world.me.read(os.path.basename(found[-1])).decode() if found else None


def events_mapping(*names):
    """As Colmet writes it: all five, also those without an event."""
    return "".join(f"counter{number + 1},{(names + ('no_counter',) * 5)[number]}\n" for number in range(5))


@test
def live_configuration_governs_period_and_events_until_a_job_ends(world):
    need_root()
    python()
    port, path, socket = free_port(), world.me.path("out.hdf5"), world.me.path("configure.sock")
    events = ("page_faults", "context_switches")
    command = ("-s", "60", "--enable-perfhw", "--perfhw-list", *events, "--zeromq-uri", f"tcp://127.0.0.1:{port}",
               "--configure-uri", f"ipc://{socket}")
    with collector(world, port, path), front(world, "colmet-node", *command) as node:

        def status():
            said = world.met("daemon", "--status", "--json")
            return said.json() if said.code == 0 else {}

        def in_force():
            return world.met("configure").ok().out.split("\n")

        eventually(lambda: status().get("configure"), lambda: f"messages are taken: {node.log()}")
        equal(os.stat(socket).st_mode & 0o777, 0o600, "only its user may send")
        check(mapping(world, "perfhw_mapping") == events_mapping(*events), "mapping of the first events")
        wrong = [b"", b"junk", packed(sample_period="0.05"), packed(sample_period="1s"), packed(sample_period="0.01"),
                 packed(perfhw_metrics="page_faults,nosuch", sample_period="0.2"), packed(other="1"), b"\xff" * 5000]
        send(f"ipc://{socket}", *wrong)
        eventually(lambda: status()["configure"]["skipped"] == len(wrong), lambda: f"they are counted: {status()['configure']}")
        equal(status()["configure"]["taken"], 0, "taken")
        equal(status()["interval_ms"], 60_000, "the period stays")
        for complaint in ("not a MessagePack map", "sample_period is not", "unknown event"):
            equal(node.log().count(complaint), 1, f"times that the log has: {complaint}")
        # Node sensors have the period, too, and no job is there.
        send(f"ipc://{socket}", packed(perfhw_metrics="cpu_clock,page_faults,dummy", sample_period="0.5"))
        eventually(lambda: status()["interval_ms"] == 500, "the period of the message")
        first, second = in_force()[:2]
        check("temporary until a job ends, then 60s" in first, first)
        check(second.split()[1] == "cpu_clock,page_faults,dummy" and "until a job ends" in second, second)
        eventually(lambda: len(times(path)) > 8, lambda: f"records of the node every half second: {times(path)}")
        eventually(lambda: mapping(world, "perfhw_mapping") == events_mapping("cpu_clock", "page_faults", "dummy"), "mapping of the others")
        job = world.run("true")
        world.met("wait", job).ok()
        eventually(lambda: status()["interval_ms"] == 60_000, "the first period after a job has ended")
        check(events[0] in in_force()[1] and "cpu_clock" not in in_force()[1], f"the first events: {in_force()}")
        eventually(lambda: mapping(world, "perfhw_mapping").startswith("counter1,page_faults\n"), "their mapping")
        equal(status()["configure"]["taken"], 1, "taken")
    check(not os.path.exists(socket), "the socket is removed")


#: Takes a file of a table whose rows are known by their time, while it is written, as any program with h5py does. Prints how often it was
#: read, how often that failed, and the most failures in a row, between which it waits a twentieth of a second.
LOOP = """
import h5py, json, sys, time
path, last = sys.argv[1], int(sys.argv[2])
reads = failures = worst = streak = seen = 0
while seen <= last and streak < 1000:
    try:
        with h5py.File(path, "r") as file:
            rows = file["job_7/taskstats_default"][:]
    except (OSError, KeyError, RuntimeError):
        streak += 1
        failures, worst = failures + 1, max(worst, streak)
        time.sleep(0.05)
        continue
    streak = 0
    reads += 1
    assert len(rows) >= seen, f"{len(rows)} rows after {seen}"
    seen = len(rows)
    assert list(rows["timestamp"]) == list(range(1_700_000_000, 1_700_000_000 + seen)), rows["timestamp"]
    for place, name in enumerate(("cpu_count", "cpu_run_real_total", "coremem", "freepages_delay_total")):
        assert list(rows[name]) == [place * 1_000_000 + row for row in range(seen)], (name, rows[name])
    assert set(rows["hostname"]) <= {b"node-1"}, set(rows["hostname"])
print(json.dumps({"reads": reads, "failures": failures, "worst": worst, "rows": seen}))
"""
#: Sends records of that table, a few at a time.
FEED = """
import struct, sys, time, zmq
good = open(sys.argv[2], "rb").read()[:762]
context = zmq.Context()
socket = context.socket(zmq.PUSH)
socket.connect(sys.argv[1])
for row in range(int(sys.argv[3]) + 1):
    record = bytearray(good)
    struct.pack_into("<255sQQ", record, 255, b"node-1", 7, 1_700_000_000 + row)
    # By where the counters are in the record.
    for place, offset in enumerate((526, 526 + 48, 526 + 68 + 40, 762 - 8)):
        struct.pack_into("<Q", record, offset, place * 1_000_000 + row)
    socket.send(bytes(record))
    time.sleep(0.002)
context.destroy(60000)
"""


@test
def plain_h5py_reads_right_rows_all_the_while_a_compressed_file_is_written(world):
    port, path, last = free_port(), world.me.path("out.hdf5"), 2499
    # Nothing is set for the library: it locks as it does by itself.
    env = {name: value for name, value in os.environ.items() if name != "HDF5_USE_FILE_LOCKING"}
    message = os.path.join(HERE, "../../fixtures/colmet/message.bin")
    options = ("-s", "0.2", "--zeromq-bind-uri", f"tcp://127.0.0.1:{port}", "--hdf5-filepath", path, "--hdf5-complevel", "6")
    with front(world, "colmet-collector", *options) as taker:
        eventually(lambda: "taking records" in taker.log(), lambda: f"it listens: {taker.log()}")
        feed = subprocess.Popen([python(), "-c", FEED, f"tcp://127.0.0.1:{port}", message, str(last)])
        try:
            eventually(lambda: os.path.exists(path), lambda: f"the file: {taker.log()}")
            read = subprocess.run([python(), "-c", LOOP, path, str(last)], capture_output=True, text=True, env=env, check=False, timeout=600)
            equal(feed.wait(60), 0, "sent")
        finally:
            feed.kill()
            feed.wait()
        equal(read.returncode, 0, read.stderr)
    found = json.loads(read.stdout)
    equal(found["rows"], last + 1, "rows")
    check(found["reads"] > 5, f"read while it was written: {found}")
    # Twenty pauses of a twentieth of a second. The first rows may be a while in coming.
    check(found["worst"] <= 20 or found["failures"] == found["worst"], f"a read that failed soon succeeds: {found}")


#: OAR's reader of the files, as its REST API asks: for a job, a time and metrics. Written for Python 3.
EXTRACT = """
import glob, json, sys, tables
prefix, job, start, stop = sys.argv[1], *map(int, sys.argv[2:5])
metrics = ["ac_etime", "cpu_run_real_total", "coremem", "read_bytes", "write_bytes"]
found = []
for path in sorted(glob.glob(prefix + "." + "[0-9]" * 10 + ".hdf5")):
    with tables.open_file(path, "r") as file:
        if f"/job_{job}" not in file:
            continue
        table = file.get_node(f"/job_{job}", "taskstats_default")
        for row in table.where(f"(timestamp >= {start}) & (timestamp <= {stop})"):
            found.append({"timestamp": int(row["timestamp"]), "hostname": row["hostname"].decode(), **{name: int(row[name]) for name in metrics}})
print(json.dumps(found))
"""


@test
def the_reader_of_oar_finds_the_values_of_a_job_in_files_that_rotated(world):
    port, prefix = free_port(), world.me.path("counters")
    fixture = os.path.join(HERE, "../../fixtures/colmet/kinds.bin")
    packed = json.loads(subprocess.run([python(), "-c", UNPACK, fixture], capture_output=True, text=True, check=True).stdout)
    with open(fixture, "rb") as file:
        captured = file.read()
    first, second = captured[:len(captured) // ROUNDS], captured[len(captured) // ROUNDS:]
    files = lambda: sorted(glob.glob(prefix + "." + "[0-9]" * 10 + ".hdf5"))
    stored = lambda number: len(files()) > number and "job_12/nvidiastats_default" in tables(files()[number])
    options = ("-s", "0.2", "--zeromq-bind-uri", f"tcp://127.0.0.1:{port}", "--hdf5-filepath", prefix, "--hdf5-complevel", "6")
    with front(world, "colmet-collector", *options) as taker:
        send(f"tcp://127.0.0.1:{port}", first)
        eventually(lambda: stored(0), lambda: f"the first file: {files()} {taker.log()}")
        eventually(lambda: time.time() > int(files()[0].split(".")[-2]) + 1, "the next second")
        taker.send_signal(signal.SIGHUP)
        # A file is begun when there is a row for it.
        filler = lambda: send(f"tcp://127.0.0.1:{port}", claimed("other", 99, 1))
        eventually(lambda: len(files()) == 2 or filler(), lambda: f"another file is begun: {files()} {taker.log()}", pause_s=0.3)
        send(f"tcp://127.0.0.1:{port}", second)
        eventually(lambda: stored(1), lambda: f"the second file: {files()} {taker.log()}")

    def extracted(job, start, stop):
        done = subprocess.run([python(), "-c", EXTRACT, prefix, str(job), str(start), str(stop)], capture_output=True, text=True, check=False)
        equal(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    columns = ("timestamp", "hostname", "ac_etime", "cpu_run_real_total", "coremem", "read_bytes", "write_bytes")
    for job in (11, 12):
        known = [{name: as_stored(record[name]) for name in columns} for record in packed[f"job_{job}/taskstats_default"]]
        equal(len(known), ROUNDS, "rounds")
        equal(extracted(job, 1_700_000_000, 1_700_000_005), known, f"job {job}")
        equal(extracted(job, 1_700_000_001, 1_700_000_005), known[1:], f"job {job}, the end")
        equal(extracted(job, 1_700_000_000, 1_700_000_004), known[:1], f"job {job}, the beginning")
    equal(extracted(13, 0, 1_800_000_000), [], "a job that is not there")


def printed(text):
    """Records as text: their head line, and what is printed of each counter."""
    records = []
    for line in text.splitlines():
        if re.match(r"\d+  Job\(", line):
            records.append((line, {}))
        elif records and line.startswith("\t"):
            name, value = line.split(" : ", 1)
            records[-1][1][name] = value
    return sorted(records, key=lambda record: record[0])


def is_rounded(exact, shown, name):
    """Whether Colmet shows this number so: it rounds, and some in another unit."""
    if "/" in shown:
        return shown == time.strftime("%d/%m/%Y - %H:%M:%S", time.gmtime(int(exact)))
    number, letter, unit = re.fullmatch(r"(-?\d+)([KMGTm]?)(?: \((.*)\))?", shown).groups(default="")
    exact = int(exact) * (1024 if name.startswith("meminfo_") and unit == "bytes" else 1)
    step = 1024 if unit.startswith("bytes") else 1000
    size = {"": 1, "m": 1e-3, "K": step, "M": step**2, "G": step**3, "T": step**4}[letter]
    # What our columns have no room for is unknown there.
    if exact == -1 and int(number) * size > 9.2e18:
        return True
    # Times are nanoseconds, microseconds or seconds; memory over time is in MiB and microseconds.
    parts = {"seconds": (1, 10**6, 10**9), "bytes*seconds": (10**6 / 1024**2,)}.get(unit, (1,))
    return any(abs(exact / part / size - int(number)) <= 1 for part in parts)


@test
def printed_records_have_the_form_and_the_numbers_of_a_real_collector(world):
    with open(os.path.join(HERE, "../../fixtures/colmet/kinds.bin"), "rb") as file:
        captured = file.read()
    ports, theirs = [free_port(), free_port()], world.me.path("theirs.txt")
    with open(theirs, "wb") as out:
        real = subprocess.Popen([program("colmet-collector"), "-s", "1", "--enable-stdout-backend", "--zeromq-bind-uri",
                                 f"tcp://127.0.0.1:{ports[0]}"], stdout=out, stderr=out, env={**os.environ, "TZ": "UTC", "PYTHONUNBUFFERED": "1"})
    try:
        with front(world, "colmet-collector", "--enable-stdout-backend", "--zeromq-bind-uri", f"tcp://127.0.0.1:{ports[1]}") as taker:
            for port in ports:
                send(f"tcp://127.0.0.1:{port}", captured[:len(captured) // ROUNDS], captured[len(captured) // ROUNDS:])
            count = lambda text: len(printed(text))
            eventually(lambda: count(taker.log()) == 28, lambda: f"ours: {taker.log()}")
            read = lambda: world.me.read("theirs.txt").decode()
            eventually(lambda: count(read()) == 28 and read().endswith("}\n"), lambda: f"theirs: {read()}")
            ours = printed(taker.log())
    finally:
        real.kill()
        real.wait()
    for (head, mine), (other, shown) in zip(ours, printed(read())):
        equal(head, other, "head")
        # With their indent.
        equal(set(mine), set(shown), f"names of {head}")
        for name, value in shown.items():
            if value.startswith("["):
                same = json.loads(value) == json.loads(mine[name])
            elif "." in value:
                # Of 32 bits; Colmet prints them with the digits of 64.
                same = struct.pack("f", float(value)) == struct.pack("f", float(mine[name]))
            else:
                same = is_rounded(mine[name], value, name.strip())
            check(same, f"{head} {name}: {mine[name]} instead of {value}")


@test
def wrong_options_of_the_fronts_are_refused_before_anything_starts(world):
    secret = world.me.path("credentials")
    with open(secret, "w") as file:
        file.write("met:geheim-7\n")
    os.chmod(secret, 0o644)
    elastic = ("colmet-collector", "--zeromq-bind-uri", f"tcp://127.0.0.1:{free_port()}", "--elastic-host", "127.0.0.1:1", "-P", secret)
    world.met(*elastic).refused("others may read it", f"chmod 600 {secret}")
    os.chmod(secret, 0o600)
    for content, why in (("", "its first line is empty"), ("nobody\n", "USER:PASSWORD")):
        with open(secret, "w") as file:
            file.write(content)
        world.met(*elastic).refused(why)
    for value, why in ((f"{secret}/out.hdf5", "is not a directory"), (world.me.path(""), "is a directory; name a file")):
        world.met("colmet-collector", "--hdf5-filepath", value).refused("--hdf5-filepath", why)
    junk = world.me.path("junk.hdf5")
    with open(junk, "w") as file:
        file.write("junk")
    world.met("colmet-collector", "--hdf5-filepath", junk).refused("--hdf5-filepath", junk, "not an HDF5 file")
    equal(world.read(junk), b"junk", "the file")
    os.remove(secret)
    world.met(*elastic).refused("--http-credentials", secret, "USER:PASSWORD")
    world.met("colmet-collector", "--elastic-host", "not a url").refused("--elastic-host", "HOST:9200")
    for program_name, period in itertools.product(("colmet-collector", "colmet-node"), ("0", "-1", "NaN")):
        world.met(program_name, "-s", period).refused("--sample-period", "from 0.1 to 3600")
    node = ("colmet-node", "--zeromq-uri", "tcp://127.0.0.1:1", "--enable-perfhw", "--perfhw-list")
    world.met(*node, "instructions", "nosuch").refused("--perfhw-list", '"nosuch" is not an event', "cpu_cycles", "bpf_output")
    world.met("colmet-node", "--zeromq-uri", "127.0.0.1:5556").refused("--zeromq-uri", "127.0.0.1:5556")
    for option, value, why in (("--regex_job_id", r"(?<=_)(\d+)", "look-around"), ("--cpuset_rootpath", "/srv/jobs", "not a cgroup below /cpuset/")):
        world.met("colmet-node", option, value).refused(option, why)


@test
def a_node_sends_what_its_options_leave(world):
    need_root()
    port, path = free_port(), world.me.path("out.hdf5")
    six = ("page_faults", "context_switches", "cpu_clock", "task_clock", "dummy", "cpu_migrations")
    options = ("-s", "0.5", "--disable-procstats", "--enable-ipmipower", "--ipmipower-cmd", "echo Current Power: 321 Watts",
               "--enable-perfhw", "--perfhw-list", *six, "--zeromq-uri", f"tcp://127.0.0.1:{port}")
    with front(world, "colmet-collector", "-s", "0.5", "--zeromq-bind-uri", f"tcp://127.0.0.1:{port}", "--hdf5-filepath", path), \
            front(world, "colmet-node", *options) as node:
        eventually(lambda: tables(path).get("job_0/ipmipowerstats_default"), lambda: f"rounds: {tables(path)} {node.log()}")
        check("job_0/procstats_default" not in tables(path), "procstats of a node that sends none")
        equal(node.log().count("left out, only five events are counted: cpu_migrations"), 1, node.log())
        equal(mapping(world, "perfhw_mapping"), events_mapping(*six[:5]), "events")


#: As a unit file of a site has them, one word changed.
COLLECTOR = ("-v", "-s", "0.5", "--buffer-size", "100", "--enable-stdout-backend", "--zeromq-hwm", "1000", "--zeromq-linger", "0",
             "--hdf5-complevel", "3", "--hdf5-complib", "blosc")
NODE = ("-v", "-s", "0.5", "--enable-infiniband", "--omnipath", "--enable-lustre", "--lustre-prefix", "lustre", "--enable-perfhw",
        "--perfhw-list", "page_faults", "context_switches", "--enable-jobproc", "--enable-RAPL", "--enable-temperature",
        "--enable-ipmipower", "--ipmipower-cmd", "echo Current Power: 321 Watts", "--enable-nvidia",
        "--cpuset_rootpath", "/dev/oar_cgroups_links/cpuset/mine/", "--regex_job_id", r"^job-(\d+)$", "--zeromq-hwm", "1000", "--zeromq-linger", "0")


@test
def both_fronts_take_the_command_lines_of_colmet_and_files_rotate(world):
    need_root()
    python()
    port, prefix = free_port(), world.me.path("counters")
    manager = Manager(world)
    world.configure(f"jobs:\n  discover: true\n  plain: off\n  below: {manager.below}\n")

    def files():
        """As the reader of OAR looks for them."""
        return sorted(glob.glob(prefix + "." + "[0-9]" * 10 + ".hdf5"))

    def job_rows(path):
        return tables(path).get("job_7/taskstats_default", [])

    try:
        manager.make(manager.home)
        with front(world, "colmet-collector", *COLLECTOR, "--zeromq-bind-uri", f"tcp://127.0.0.1:{port}", "--hdf5-filepath", prefix) as taker, \
                front(world, "colmet-node", *NODE, "--zeromq-uri", f"tcp://127.0.0.1:{port}") as node:
            path, own = manager.job(7), f"{manager.below}/mine/job-9"
            manager.make(own)
            process = manager.start(path, "sh", "-c", "while :; do /bin/true; done")
            other = manager.start(own, "sleep", "1000")
            eventually(lambda: files() and job_rows(files()[0]), lambda: f"the job is in the file: {taker.log()} {node.log()}")
            first = files()[0]
            eventually(lambda: time.time() > int(first.split(".")[-2]) + 1, "the next second")
            taker.send_signal(signal.SIGHUP)
            eventually(lambda: len(files()) == 2 and job_rows(files()[1]), lambda: f"another file is begun: {files()} {taker.log()}")
            eventually(lambda: "job_9/taskstats_default" in tables(files()[1]), lambda: f"a job where the options say: {node.log()}")
            power = eventually(lambda: tables(files()[1]).get("job_0/ipmipowerstats_default"), lambda: f"the power that the program printed: {node.log()}")
            equal({row["average_power_consumption"] for row in power}, {321}, "power")
            before = tables(first)
            for job in (process, other):
                job.kill()
                job.wait()
            manager.remove_when_empty(path)
            eventually(lambda: "hosts in this round: 1" in taker.log(), lambda: f"the counters of a round: {taker.log()}")
            for log in (taker.log, node.log):
                eventually(lambda log=log: "Job(7)/ taskstats_default -> Host(" in log(), lambda log=log: f"records are printed: {log()}")
            for option in ("--buffer-size", "--zeromq-hwm", "--zeromq-linger", "--hdf5-complib"):
                equal(taker.log().count(f"{option} is ignored: "), 1, option)
            for option in ("--omnipath", "--lustre-prefix", "--zeromq-linger"):
                equal(node.log().count(f"{option} is ignored: "), 1, option)
            equal(mapping(world, "perfhw_mapping"), events_mapping("page_faults", "context_switches"), "events")
            equal([line.split(",")[0] for line in mapping(world, "RAPL_mapping").splitlines()], [f"counter_{number}" for number in range(1, 25)], "zones")
            equal(len(mapping(world, "temperature_mapping").splitlines()), 6, "temperatures")
        equal(tables(first), before, "the first file is as it was")
        rows = job_rows(files()[1])
        times = [row["timestamp"] for row in job_rows(first) + rows]
        equal(times, sorted(times), "times go on in the next file")
        check(rows[-1]["cpu_run_real_total"] > 0 and rows[-1]["hostname"] == os.uname().nodename, rows[-1])
        check(all(set(json.loads(row["involved_jobs"])) <= {7, 9} for path in files() for row in tables(path)["job_0/procstats_default"]), "involved jobs")
    finally:
        manager.close()


@test
def all_counters_of_nvidia_reach_a_file_whose_folders_are_created(world):
    need_root()
    python()
    port, path = free_port(), world.me.path("not/yet/out.hdf5")
    library = played(world)
    script = os.path.join(os.path.dirname(library), "script")
    with open(script) as file:
        cards = file.read().replace("total=8000", f"total={8000 << 20}")
    with open(script, "w") as file:
        file.write(cards)
    world.configure(SINK.format(port=port, backends="nvidia") + f"gpu:\n  nvml: {library}\n")
    with front(world, "colmet-collector", "-s", "0.5", "--zeromq-bind-uri", f"tcp://127.0.0.1:{port}", "--hdf5-filepath", path) as taker:
        world.start_system_daemon()
        job = world.me.run("sleep", "1000", env={"CUDA_VISIBLE_DEVICES": "0,1"})
        rows = lambda: tables(path).get(f"job_{job}/nvidiastats_default", [])
        eventually(lambda: rows() and rows()[-1]["memory-total"] > 0, lambda: f"the memory of its GPUs: {rows()} {taker.log()}", pause_s=0.3)
        last = rows()[-1]
        # Two GPUs of 8,000 MiB of which nobody uses any.
        equal((last["memory-total"], last["memory-free"], last["temperature"]), (16000, 16000, 40), "of both GPUs")
        check(last["power"] > 0 and last["utilization-memory"] >= 0, last)
        world.met("cancel", job).ok()


def of_variant(host=b"vm"):
    """The example message of the variant in Rust, with the time of now."""
    now = int(time.time() * 1000).to_bytes(8, "big")
    return (b"\x81\xcd\x04\xd2\x93" + bytes([0xa0 | len(host)]) + host + b"\xcf" + now + b"\x93\x93\xa6Memory\x92\x01\x02\x92\xcd\x10\x00"
            b"\xce\x07\x5b\xcd\x15\x93\xa3Cpu\x93\x22\x23\x24\x93\x00\x00\x00\x93\xa6Perfhw\x93\x26\x28\x38\x93\xcf\x00\x00\x00\x01\x2a"
            b"\x05\xf2\x00\xce\x00\x01\x11\x70\xff")


@test
def a_server_takes_the_variant_in_rust_and_shows_what_it_took_and_skipped(world):
    need_root()
    python()
    equal(len(of_variant()), 79, "bytes of the variant's example")
    with Server(world, "vm") as server:
        send(f"tcp://127.0.0.1:{server.port}", of_variant(), of_variant(b"stranger"), b"\x81\xcd\x04")
        (job,) = eventually(lambda: server.ask("list", "--json").ok().json(), lambda: f"the job is in the list: {server.log()}")
        check("1234" in job["job"]["id"] and job["job"]["nodes"] == ["vm"] and job["job"]["manager"] == "oar", job)

        def series():
            shown = world.me.path("shown.jsonl")
            server.ask("export", "oar:1234", "-o", shown, "--force")
            return world.me.read("shown.jsonl").decode() if os.path.exists(shown) else ""

        eventually(lambda: "123456789" in series() and "5000000000" in series(), lambda: f"memory and events: {series()} {server.log()}")

        def page():
            with urllib.request.urlopen(f"http://127.0.0.1:{server.http}/metrics", timeout=60) as answer:
                return answer.read().decode()

        for line in ('met_colmet_taken_total{peer="rust"} 1', 'met_colmet_skipped_total{peer="rust"} 2', 'met_colmet_taken_total{peer="colmet-node"} 0'):
            eventually(lambda line=line: line in page(), lambda line=line: f"{line}: {page()}")
        eventually(lambda: "rust: 1 taken, 2 skipped" in world.met("doctor").out, lambda: f"doctor: {world.met('doctor').out}")


@test
def a_collector_takes_the_variant_in_rust(world):
    python()
    port, path = free_port(), world.me.path("out.hdf5")
    options = ("-s", "0.2", "--zeromq-bind-uri", f"tcp://127.0.0.1:{port}", "--hdf5-filepath", path)
    with front(world, "colmet-collector", *options) as taker:
        send(f"tcp://127.0.0.1:{port}", of_variant(), of_variant(b"other"), b"\x81\xcd\x04")
        rows = eventually(lambda: tables(path).get("job_1234/perfhwstats_default"), lambda: f"the job is in the file: {taker.log()}")
        rows = eventually(lambda: [row for row in tables(path)["job_1234/perfhwstats_default"] if row["hostname"] == "vm"], "the host")
        counts = [rows[0][f"counter_{number}"] for number in range(1, 6)]
        equal(counts, [5_000_000_000, 70_000, -1, -1, -1], "events in the order of the message")
        eventually(lambda: "malformed MessagePack" in taker.log(), lambda: f"a bad message is reported: {taker.log()}")


@test
def a_collector_loses_nothing_of_a_thousand_nodes_that_send_at_once(world):
    port, path = free_port(), world.me.path("out.hdf5")
    burst = """
import sys, zmq
context = zmq.Context()
socket = context.socket(zmq.PUSH)
socket.connect(f"tcp://127.0.0.1:{sys.argv[1]}")
good = open(sys.argv[2], "rb").read()
for number in range(3000):
    socket.send(good.replace(b"vm" + bytes(253), b"node-%04d" % number + bytes(246)))
context.destroy(60000)
"""
    captured = os.path.join(HERE, "../../fixtures/colmet/message.bin")
    with front(world, "colmet-collector", "--zeromq-bind-uri", f"tcp://127.0.0.1:{port}", "--hdf5-filepath", path) as taker:
        eventually(lambda: "taking records" in taker.log(), lambda: f"it listens: {taker.log()}")
        done = subprocess.run([python(), "-c", burst, str(port), captured], check=False, timeout=120)
        equal(done.returncode, 0, "sent")
    # It ended at once: what it had taken is in the file.
    taken = int(re.search(r"(\d+) records taken, 0 skipped", taker.log())[1])
    count = "import h5py, sys; print(sum(len(table) for group in h5py.File(sys.argv[1], 'r').values() for table in group.values()))"
    rows = subprocess.run([python(), "-c", count, path], capture_output=True, text=True, check=True)
    equal(int(rows.stdout), taken, "rows in the file")
    check("dropped" not in taker.log(), taker.log())
    check(taken > 768, f"more than its queue holds: {taken}")
