"""A cluster: nodes push, a server keeps, and nothing is lost whatever happens in between.

Hosts are network namespaces on one bridge; a cut link is a cut link."""

import contextlib
import datetime
import gzip
import http.client
import json
import os
import random
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request

from discovery import Manager
from harness import ALONE, Failed, Skip, check, close_to, equal, eventually, marked, need_root, test

PORT = 9317
#: How long processes are killed and links cut; the soak test does it for longer.
CHAOS_S = float(os.environ.get("MET_CHAOS_S", "60"))


class Machine:
    """One host: a network namespace, directories of its own, and what runs on it."""

    def __init__(self, cluster, name, number):
        self.cluster, self.name, self.address = cluster, name, f"10.77.0.{number}"
        self.space = f"{cluster.tag}{number}"
        self.folder = os.path.join(cluster.world.root, name)
        self.state, self.whose = os.path.join(self.folder, "state"), ()
        self.config = os.path.join(self.folder, "met.yaml")
        self.process, self.started = None, []
        for folder in (self.folder, self.home, self.work):
            os.makedirs(folder, 0o700, exist_ok=True)
        ip("netns", "add", self.space)
        link = f"{cluster.tag}v{number}"
        ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", self.space)
        ip("link", "set", link, "master", cluster.bridge, "up")
        ip("-n", self.space, "addr", "add", f"{self.address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            ip("-n", self.space, "link", "set", device, "up")

    @property
    def home(self):
        return os.path.join(self.folder, "home")

    @property
    def work(self):
        return os.path.join(self.folder, "work")

    @property
    def env(self):
        return {"MET_CONFIG": self.config, "HOME": self.home, "XDG_RUNTIME_DIR": "", "XDG_STATE_HOME": self.home,
                "MET_E2E_HOST": self.space}

    def configure(self, text):
        with open(self.config, "w") as file:
            file.write(f"system:\n  runtime: {self.folder}/run\n  state: {self.state}\n"
                       f"schedulers:\n  slurm: false\n  oar: false\n  pbs: false\n  lsf: false\n{text}")

    def belong_to_a_user(self):
        """From now on its daemon is a user's own, which the first job after its end starts again."""
        with open("/etc/machine-id") as file:
            self.state, self.whose = os.path.join(self.home, "met", file.read().strip()), ("--user",)

    def spawn(self, *arguments, **options):
        # `ip netns exec` would hide the cgroups: it mounts /sys again.
        command = ["nsenter", f"--net=/run/netns/{self.space}", self.cluster.world.met_path, *arguments]
        return self.cluster.world.me.start(*command, env=self.env, cwd=self.work, **options)

    def met(self, *arguments, input=None):
        options = {"stdin": subprocess.PIPE} if input is not None else {}
        return self.cluster.world.me.finish(self.spawn(*arguments, **options), arguments, input)

    def serve(self, *arguments, input=None):
        """Starts the server or daemon of this host."""
        with open(os.path.join(self.folder, "log"), "ab") as log:
            options = {"stdin": subprocess.PIPE} if input is not None else {}
            self.process = self.spawn(*arguments, stdout=log, stderr=log, **options)
        if input is not None:
            self.process.stdin.write(input)
            self.process.stdin.close()

    def log(self):
        with open(os.path.join(self.folder, "log"), errors="replace") as file:
            return file.read()

    def cut(self):
        ip("-n", self.space, "link", "set", "eth0", "down")

    def repair(self):
        ip("-n", self.space, "link", "set", "eth0", "up")

    def processes(self):
        """The daemon or server, and supervisors, of this host: pid and command line."""
        found = marked(self.cluster.world.token, f"MET_E2E_HOST={self.space}")
        return {pid: command for pid, command in found.items()
                if " daemon" in command or command.endswith(" server") or "supervise" in command}

    def start(self, *command):
        """Starts any program on this host."""
        command = ["nsenter", f"--net=/run/netns/{self.space}", *command]
        with open(os.path.join(self.folder, "programs.log"), "ab") as log:
            self.started.append((command, self.cluster.world.me.start(*command, env=self.env, cwd="/", stdout=log, stderr=log)))

    def listens(self, port):
        def answers():
            probe = f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)"
            return self.run_here(sys.executable, "-c", probe).returncode == 0

        eventually(answers, f"something listens on {port}", pause_s=0.2)

    def run_here(self, *command):
        return subprocess.run(["nsenter", f"--net=/run/netns/{self.space}", *command], capture_output=True, text=True)

    def fetch(self, url):
        return self.run_here(sys.executable, "-c", f"import urllib.request; print(urllib.request.urlopen({url!r}).read().decode())").stdout

    def stop(self, name):
        """Ends the programs of this host whose command line has this in it, and waits for that."""
        def there():
            return [pid for pid, command in marked(self.cluster.world.token, f"MET_E2E_HOST={self.space}").items() if name in command]

        for pid in there():
            with contextlib.suppress(ProcessLookupError):
                # Upon SIGTERM PostgreSQL waits for its clients.
                os.kill(pid, signal.SIGINT)
        eventually(lambda: not there(), f"{name} ends")

    def restart(self):
        """Starts what `start` started once more."""
        again, self.started = self.started, []
        for command, process in again:
            process.wait()
            self.start(*command[2:])

    def close(self):
        for pid in marked(self.cluster.world.token, f"MET_E2E_HOST={self.space}"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        subprocess.run(["ip", "netns", "del", self.space], check=False)


class Server(Machine):
    def up(self):
        self.serve("server")
        eventually(lambda: self.answers() or self.died(), "the server answers")

    def died(self):
        check(self.process.poll() is None, "the server ended:", self.log())

    def answers(self):
        with contextlib.suppress(OSError):
            return self.post("/api/v1/whoami", b"", self.cluster.token).status == 200
        return False

    def post(self, path, body, token=None, headers=None):
        """Asks from outside, as any program would; the answer, also a refusal."""
        url = f"http://127.0.0.1:{self.cluster.forwarded}{path}"
        request = urllib.request.Request(url, data=body, headers=headers or {}, method="POST")
        if token:
            request.add_header("Authorization", f"Bearer {token}")
        try:
            return urllib.request.urlopen(request, timeout=30)
        except urllib.error.HTTPError as error:
            return error

    def enroll(self, name, *options):
        return self.met("server", "enroll", name, *options).ok().out.strip()


class Cluster:
    """A server and some nodes; with nothing left of them afterwards."""

    def __init__(self, world, nodes=3, server_config="", node_config="", users=False, prepare=None):
        need_root()
        if shutil.which("ip") is None or shutil.which("nsenter") is None:
            raise Skip("needs ip and nsenter")
        self.world, self.tag = world, f"m{os.getpid() % 100000}x"
        self.bridge, self.machines, self.node_config = f"{self.tag}br", [], node_config
        try:
            ip("link", "add", self.bridge, "type", "bridge")
        except Failed as error:
            raise Skip(f"no network can be made: {error}") from None
        ip("link", "set", self.bridge, "up")
        try:
            self.server = self.add(Server, "server", 1)
            # A test from outside connects by the loopback of this machine.
            self.forwarded = free_port()
            self.door = forward(self.server.space, self.forwarded)
            self.server.configure(f"http:\n  listen: 0.0.0.0:{PORT}\n  plain: yes\n{server_config}")
            if prepare:
                prepare(self.server)
            self.token = self.server.enroll("op", "--operator")
            self.server.up()
            self.nodes = [self.add(Machine, f"n{number}", number + 1) for number in range(1, nodes + 1)]
            for node in self.nodes:
                if users:
                    node.belong_to_a_user()
                self.join(node)
        except BaseException:
            self.close()
            raise

    def add(self, kind, name, number):
        machine = kind(self, name, number)
        self.machines.append(machine)
        return machine

    @property
    def url(self):
        return f"http://{self.server.address}:{PORT}"

    def join(self, node, more=""):
        node.configure(f"sampling:\n  interval: 200ms\nforward:\n  interval: 1s\njobs:\n  discover: false\n"
                       f"{self.node_config}{more}")
        token = self.server.enroll(node.name)
        node.serve("daemon", *node.whose, "--join", self.url, "--node", node.name, "--plain", input=token.encode() + b"\n")
        eventually(lambda: node.met("daemon", "--status").code == 0, lambda: f"{node.name} serves: {node.log()}")

    def ask(self, *arguments):
        """met --server, as the operator."""
        path = os.path.join(self.server.folder, "token")
        if not os.path.exists(path):
            with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
                file.write(self.token)
        config = os.path.join(self.server.folder, "client.yaml")
        with open(config, "w") as file:
            file.write(f"client:\n  token_file: {path}\n")
        return self.server.met("-c", config, "--server", f"http://127.0.0.1:{PORT}", *arguments)

    def jobs(self):
        """What the server knows, by node and id."""
        jobs = self.ask("list", "--json").ok().json()
        found = {}
        for job in jobs:
            key = (tuple(job["job"]["nodes"]), job["job"]["manager"], job["job"]["id"])
            check(key not in found, f"{key} is there twice")
            found[key] = job
        return found

    def settled(self):
        """Whether no node has anything left to send."""
        for node in self.nodes:
            spool = os.path.join(node.state, "forward", "spool")
            if any(name.endswith(".batch") for name in os.listdir(spool)):
                return False
        return True

    def close(self):
        for machine in self.machines:
            machine.close()
        if getattr(self, "door", None):
            self.door.kill()
            self.door.wait()
        subprocess.run(["ip", "link", "del", self.bridge], check=False)


def ip(*arguments):
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    check(done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr.strip()}")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def forward(space, port):
    """Brings connections of this machine's loopback to the server's host."""
    script = (
        "import socket, sys, threading, os, ctypes\n"
        "listener = socket.create_server(('127.0.0.1', int(sys.argv[2])))\n"
        "ctypes.CDLL(None).setns(os.open('/run/netns/' + sys.argv[1], os.O_RDONLY), 0)\n"
        "def pump(one, other):\n"
        "    try:\n"
        "        while data := one.recv(65536): other.sendall(data)\n"
        "    except OSError: pass\n"
        "    try: other.shutdown(socket.SHUT_WR)\n"
        "    except OSError: pass\n"
        "def serve(near):\n"
        f"    try: far = socket.create_connection(('127.0.0.1', {PORT}), 5)\n"
        "    except OSError: return near.close()\n"
        "    far.settimeout(None)\n"
        "    threading.Thread(target=pump, args=(near, far), daemon=True).start()\n"
        "    pump(far, near)\n"
        "while True:\n"
        "    near, _ = listener.accept()\n"
        "    threading.Thread(target=serve, args=(near,), daemon=True).start()\n")
    return subprocess.Popen([sys.executable, "-c", script, space, str(port)])


@contextlib.contextmanager
def cluster(world, *arguments, **options):
    made = Cluster(world, *arguments, **options)
    try:
        yield made
    finally:
        made.close()


@test
def what_is_said_of_a_job_on_a_server_stays_there(world):
    with cluster(world, nodes=1) as made:
        node = made.nodes[0]
        node.met("run", "--wait", "--name", "b", "--", "true").ok()
        running = node.met("run", "--print-id", "--name", "a", "--", "sh", "-c", "while :; do sleep 0.1; done").ok().out.strip()
        eventually(lambda: len(made.ask("list", "--json").ok().json()) == 2, "both are on the server")
        node.met("tag", running, "+from-node").ok()
        eventually(lambda: made.ask("show", f"{running}@n1", "--json").ok().json().get("tags") == ["from-node"], "the node's tag arrives")
        made.ask("tag", f"{running}@n1", "+good").ok()
        made.ask("note", f"{running}@n1", "seen by an operator").ok()
        node.met("cancel", running).ok()
        over = lambda: made.ask("show", f"{running}@n1", "--json").ok().json()["job"]["state"] != "running"
        eventually(over, "the end arrives")
        shown = made.ask("show", f"{running}@n1", "--json").ok().json()
        equal((shown["tags"], shown["note"]), (["from-node", "good"], "seen by an operator"), "after its end")
        listed = lambda *options: [one["job"]["name"] for one in made.ask("list", "--json", *options).ok().json()]
        equal(listed("--sort", "name"), ["a", "b"], "sorted by the server")
        equal(listed("--sort", "name:desc", "--limit", "1"), ["b"], "reversed")
        equal((listed("--tag", "good"), listed("--command", "sleep 0.1"), listed("--node", "n1", "--sort", "cpu")[0] in "ab"), (["a"], ["a"], True), "filtered by it")
        made.ask("tag", f"{running}@n1", "+Not-A-Tag").refused("not a tag")


#: What a node says of a job and its server must say as well.
COMPARED = ("state", "exit_code", "signal", "name", "user", "start", "end")


def differs(on_node, on_server):
    """In what the two accounts of a job are not the same; nothing if they are."""
    for field in COMPARED:
        if on_node["job"].get(field) != on_server["job"].get(field):
            return f"{field}: {on_node['job'].get(field)!r} on the node, {on_server['job'].get(field)!r} on the server"
    if on_node["totals"] != on_server["totals"]:
        names = sorted(set(on_node["totals"]) | set(on_server["totals"]))
        return ", ".join(f"{name}: {on_node['totals'].get(name)} and {on_server['totals'].get(name)}" for name in names
                         if on_node["totals"].get(name) != on_server["totals"].get(name))
    return ""


def all_the_same(made):
    """Every job of every node is on the server, once and with the same totals."""
    def compare():
        known, seen = made.jobs(), set()
        for node in made.nodes:
            for job in node.met("list", "--json").ok().json():
                key = ((node.name,), job["job"]["manager"], job["job"]["id"])
                if key not in known:
                    return f"{key} is not on the server"
                if difference := differs(job, known[key]):
                    return f"{key}: {difference}"
                seen.add(key)
        return f"only on the server: {set(known) - seen}" if set(known) - seen else ""

    problem = ["nothing was compared"]

    def same():
        problem[0] = compare()
        return not problem[0]

    eventually(same, lambda: problem[0] + f"; {[node.met('daemon', '--status').out for node in made.nodes]}", 90, 0.5)
    return made.jobs()


@test
def jobs_of_all_nodes_are_on_the_server_with_the_same_totals(world):
    with cluster(world, 2) as made:
        for node in made.nodes:
            node.met("run", "--wait", "-n", "work", "--", *world.workload("burning", "cpu", "0.3")).ok()
            node.met("run", "--wait", "-n", "bad", "--", "sh", "-c", "exit 3").expect(3)
            # No later command takes it out of the user's files.
            node.met("time", "--quiet", "--", "true").ok()
        known = all_the_same(made)
        equal(len(known), 6, "jobs")
        made.ask("show", "1").refused("ambiguous", "1@n1", "1@n2")
        shown = made.ask("show", "1@n2", "--json").ok().json()
        equal(shown["job"]["nodes"], ["n2"], "nodes")
        near = made.nodes[1].met("show", "1", "--json").ok().json()
        check(near["processes"] and shown["processes"] == near["processes"], "its processes", near, shown)
        equal(made.ask("show", f"pid:{near['processes'][0]['pid']}@n2", "--json").ok().json()["job"], shown["job"], "by its process")
        check("CPU" in made.ask("show", "1@n1").ok().out, "a report")
        listed = made.ask("nodes", "--json").ok().json()
        equal([(node["name"], node["late"]) for node in listed], [("n1", False), ("n2", False)], "nodes")
        check(abs(listed[0]["clock_offset_ns"]) < 1e9, "one clock", listed)
        told = lambda: made.ask("nodes", "--json").ok().json()
        eventually(lambda: all(node["spool_batches"] == node["spool_bytes"] == 0 for node in told()), lambda: f"all is delivered: {told()}")
        made.ask("run", "--", "true").refused("works on this machine only")
        made.ask("cancel", "1@n1").refused("works on this machine only")
        for command in ("logs", "ps"):
            made.ask(command, "1@n1").refused("job 1@n1 ran on n1", f"run there: met {command} 1")
        # The same where the environment names the server, also for what else is done on the node of a job.
        client = os.path.join(made.server.folder, "client.yaml")
        environment = {**made.server.env, "MET_CONFIG": client, "MET_SERVER": f"http://127.0.0.1:{PORT}"}
        for command in ("logs", "ps", "cancel"):
            asked = ["nsenter", f"--net=/run/netns/{made.server.space}", world.met_path, command, "1@n1"]
            done = world.me.finish(world.me.start(*asked, env=environment, cwd=made.server.work), asked, None)
            done.refused("job 1@n1 ran on n1", f"run there: met {command} 1")


@test
def the_course_of_a_running_job_is_seen_from_afar(world):
    with cluster(world, 1) as made:
        node = made.nodes[0]
        node.met("run", "-n", "steady", "--", *world.workload("steady", "cpu", "stop")).ok()
        far = lambda: made.ask("show", "1@n1", "--json")
        eventually(lambda: far().code == 0 and far().json()["totals"].get("cpu_seconds", 0) > 0.5, "it is seen to work")
        equal(far().json()["job"]["state"], "running", "state")
        check("cores" in made.ask("show", "1@n1").ok().out, "a plot")
        # Averages are over the time that the totals are of, and figures are as well known as on the node.
        eventually(lambda: "energy_joules" in far().json()["totals"] and "memory_needed_bytes" in far().json()["average"],
                   lambda: f"its figures come: {far().out}")
        shown, near = far().json(), node.met("show", "1", "--json").ok().json()
        seconds = lambda text: datetime.datetime.fromisoformat(text).timestamp()
        counted = seconds(shown["job"]["as_of"]) - seconds(shown["job"]["start"])
        close_to(shown["average"]["cores"], shown["totals"]["cpu_seconds"] / counted, 0.001, "cores")
        for name in ("energy_joules", "cpu_seconds", "memory_needed_peak_bytes"):
            equal(shown["quality"][name], near["quality"][name], f"how well {name} is known")
        equal(shown["emission"], near["emission"], "emission")
        check("memory_ratio" in shown["average"], shown["average"])
        check(f" of {os.cpu_count()} cores, average" in made.ask("show", "1@n1").ok().out, "a bar of the CPUs", made.ask("show", "1@n1").out)
        open(os.path.join(node.work, "stop"), "w").close()
        all_the_same(made)


@test
def a_user_sees_his_own_jobs_on_the_server(world):
    with cluster(world, 1) as made:
        made.nodes[0].met("run", "--wait", "--", "true").ok()
        all_the_same(made)
        ask = json.dumps({"jobs": {"states": []}}).encode()
        answer = lambda token: json.load(made.server.post("/api/v1/ask", ask, token))["jobs"]
        equal(len(answer(made.server.enroll("root", "--user"))), 1, "jobs of root, for root")
        equal(len(answer(made.server.enroll("ada", "--user"))), 0, "jobs of root, for ada")
        for job in ("true", "true@n1", "true@n2"):
            asked = json.dumps({"find": {"name": job}}).encode()
            found = json.load(made.server.post("/api/v1/ask", asked, made.server.enroll("root", "--user")))["jobs"]
            equal(len(found), int(job != "true@n2"), f"jobs called {job}")
        equal(made.server.post("/api/v1/ask", ask).status, 401, "without a token")
        (node,) = [node for node in made.ask("nodes", "--json").ok().json() if node["name"] == "n1"]
        documented = {"name", "jobs", "late", "seen_ns", "version", "cpus", "memory_bytes", "clock_offset_ns", "dropped_samples",
                      "spool_batches", "spool_bytes"}
        equal(set(node), documented, "fields of a node, as docs/json.md has them")
        equal(made.server.post("/api/v1/ask", ask, "0" * 64).status, 401, "with another token")
        equal(made.server.post("/api/v1/ask", ask, made.server.enroll("n9")).status, 403, "with a node's token")
        with open(os.path.join(made.server.folder, "token"), "w") as file:
            file.write("0" * 64)
        for command in (["list"], ["show", "1@n1"], ["nodes"], ["node", "n1", "--since", "1h"]):
            made.ask(*command).refused("does not know the token", os.path.join(made.server.folder, "token"))


@test
def a_server_that_was_away_gets_everything_when_it_is_back(world):
    with cluster(world, 1) as made:
        node = made.nodes[0]
        node.met("run", "--wait", "--", "true").ok()
        all_the_same(made)
        os.kill(made.server.process.pid, signal.SIGKILL)
        made.server.process.wait()
        for _ in range(3):
            node.met("run", "--wait", "--", *world.workload("burning", "cpu", "0.1")).ok()
        # The node itself is restarted meanwhile.
        node.met("daemon", "--stop").ok()
        node.process.wait()
        node.serve("daemon")
        eventually(lambda: node.met("daemon", "--status").code == 0, "the node serves")
        check("batches queued" in node.met("daemon", "--status").ok().out, "batches wait")
        made.server.up()
        equal(len(all_the_same(made)), 4, "jobs")
        eventually(made.settled, "nothing waits")
        eventually(lambda: "spool drained" in node.log(), "its log says that it is over")


@test
def a_full_spool_loses_no_job(world):
    with cluster(world, 1) as made:
        node = made.nodes[0]
        node.met("daemon", "--stop").ok()
        node.process.wait()
        spool = os.path.join(node.state, "forward", "spool")
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", spool], check=True)
        try:
            ballast = os.open(os.path.join(spool, "ballast"), os.O_CREAT | os.O_WRONLY)
            with contextlib.suppress(OSError):
                while True:
                    os.write(ballast, bytes(4096))
            os.close(ballast)
            node.serve("daemon")
            eventually(lambda: node.met("daemon", "--status").code == 0, "the node serves")
            for _ in range(3):
                node.met("run", "--wait", "--", "true").ok()
            eventually(lambda: "No space" in node.met("daemon", "--status").out, "the status reports it")
            check("No space" in node.met("doctor").out, "by the doctor, too")
            equal(len(made.jobs()), 0, "jobs that could be sent")
            os.remove(os.path.join(spool, "ballast"))
            equal(len(all_the_same(made)), 3, "jobs")
        finally:
            node.met("daemon", "--stop")
            subprocess.run(["umount", "-l", spool], check=False)


@contextlib.contextmanager
def small_disk(folder, size):
    """A file system of its own, of this size, at a folder."""
    os.makedirs(folder, 0o700, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "none", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=False)


def fill(path):
    """Takes all the room that is left where this file is."""
    with open(path, "ab", buffering=0) as ballast, contextlib.suppress(OSError):
        while True:
            ballast.write(bytes(4096))


@test
def a_server_without_room_loses_nothing(world):
    with contextlib.ExitStack() as stack:
        made = stack.enter_context(cluster(
            world, 2, prepare=lambda server: stack.enter_context(small_disk(server.state, "12m"))))
        for node in made.nodes:
            node.met("run", "--wait", "--", "true").ok()
        all_the_same(made)
        ballast = os.path.join(made.server.state, "ballast")
        fill(ballast)
        for _ in range(3):
            for node in made.nodes:
                node.met("run", "--wait", "--", *world.workload("burning", "cpu", "0.1")).ok()
            fill(ballast)
        for node in made.nodes:
            eventually(lambda: "503" in node.met("daemon", "--status").out,
                       lambda: f"the status reports it: {node.met('daemon', '--status').out}")
            check("503" in node.met("doctor").out, "by the doctor, too")
        node = made.nodes[0]
        spool = os.path.join(node.state, "forward", "spool")
        waiting = min(name for name in os.listdir(spool) if name.endswith(".batch"))
        with open(os.path.join(spool, waiting), "rb") as file, open(os.path.join(node.state, "forward", "token")) as token:
            answer = made.server.post("/api/v1/batches", file.read(), token.read())
        equal(answer.status, 503, "what the server answers")
        check(int(answer.headers["Retry-After"]) > 0 and "could not be written" in answer.read().decode(), "and when to come again")
        check(made.server.process.poll() is None, "the server ended:", made.server.log())
        os.remove(ballast)
        equal(len(all_the_same(made)), 8, "jobs")
        eventually(made.settled, "nothing waits", 90)
        check(made.server.process.poll() is None, "the server ended:", made.server.log())
        asked = lambda question: json.load(made.server.post("/api/v1/ask", json.dumps(question).encode(), made.token))
        for record in asked({"jobs": {"states": []}})["jobs"]:
            times = asked({"course": {"key": record["key"], "after_ms": 0}})["course"]["times_ms"]
            check(len(times) == len(set(times)), f"samples of {record['key']}: {times}")


@test
def jobs_of_a_node_that_is_gone_are_lost_until_it_returns(world):
    with cluster(world, 2, server_config="server: {lost_after: 4s, move_after: 1s}\n") as made:
        gone, here = made.nodes
        for node in made.nodes:
            node.met("run", "-n", "steady", "--", *world.workload("steady", "cpu", "stop")).ok()
        state = lambda node: (job := made.jobs().get(((node.name,), "local", "1"))) and job["job"]["state"]
        used = lambda name: made.ask("show", f"1@{name}", "--json").json()["totals"].get("cpu_seconds", 0)
        for node in made.nodes:
            eventually(lambda: state(node) == "running" and used(node.name) > 0.2, "it is seen")
        gone.cut()
        eventually(lambda: state(gone) == "lost", "it is given up", 90, 0.5)
        lost = made.ask("show", "1@n1", "--json").ok().json()
        check(lost["job"]["end"] and lost["totals"]["cpu_seconds"] > 0, f"what is known of it: {lost}")
        equal(lost["quality"]["cpu_seconds"]["kind"], "lower_bound", "how well")
        equal(state(here), "running", "the other one")
        gone.repair()
        eventually(lambda: state(gone) == "running", "it is back", 90, 0.5)
        made.server.met("server", "expel", "n2").ok()
        eventually(lambda: state(here) == "lost", "it is expelled", 90, 0.5)
        for node in made.nodes:
            open(os.path.join(node.work, "stop"), "w").close()
        eventually(lambda: state(gone) == "finished", "it is over", 90, 0.5)
        # Enrolled again, it reports the real end.
        here.met("daemon", "--stop").ok()
        here.process.wait()
        made.join(here)
        all_the_same(made)


@test
def a_node_is_seen_over_time_from_afar(world):
    with cluster(world, 2) as made:
        near = {}
        for node in made.nodes:
            # A sample every ten seconds, and two make a plot.
            node.met("run", "--wait", "--", "sleep", "11" if node.name == "n1" else "1").ok()
            near[node.name] = node.met("node", "--since", "1h", "--json").ok().json()["series"]
            # What is held for a minute is spooled at the latest when it leaves, and sent by the next one.
            node.met("daemon", "--stop").ok()
            node.process.wait()
            node.serve("daemon")
        for name, series in near.items():
            check(any(one["table"] == "node" for one in series), f"the machine as a whole: {series}")
            far = lambda: made.ask("node", name, "--since", "1h", "--json").ok().json()
            eventually(lambda: all(holds(far()["series"], one) for one in series),
                       lambda: f"{series} is on the server: {far()}")
            equal(far()["node"], name, "node")
        # All of it, though nearly all of that time has nothing.
        decade = made.ask("node", "n1", "--since", "3650d", "--json").ok().json()["series"]
        check(all(holds(decade, one) for one in near["n1"]), f"ten years: {decade}")
        check("load" in made.ask("node", "n1", "--since", "1h").ok().out, "a plot")
        made.ask("node", "n9", "--since", "1h").refused("n9", "met nodes")
        made.ask("node").refused("works on this machine only")
        check("load" in made.ask("node", "n1").ok().out, "the last hour")


def holds(series, one):
    """Whether all samples of a part are among these."""
    same = [other for other in series if (other["table"], other["part"]) == (one["table"], one["part"])]
    if not same:
        return False
    there = same[0]
    return all(
        (time_, values[index]) in zip(there["times"], there["columns"][name])
        for name, values in one["columns"].items() for index, time_ in enumerate(one["times"]))


@test
def a_job_on_two_nodes_is_one(world):
    manager = Manager(world)
    with cluster(world, 2) as made:
        homes = []
        try:
            for node in made.nodes:
                below = f"{manager.below}/{node.name}"
                home = f"{below}/slurm_{node.name}"
                homes.append(home)
                manager.make(home)
                node.met("daemon", "--stop").ok()
                node.process.wait()
                node.configure(f"sampling:\n  interval: 200ms\nforward:\n  interval: 1s\n"
                               f"jobs:\n  discover: true\n  below: {below}\n")
                node.serve("daemon")
                eventually(lambda: node.met("daemon", "--status").code == 0, "the node serves")
            running = []
            for home in homes:
                path = f"{home}/uid_1000/job_77/step_0/task_0"
                manager.make(path)
                running.append((home, path, manager.start(path, *world.workload("burning", "cpu", "1.5"))))
            eventually(lambda: any(len(key[0]) == 2 for key in made.jobs()), "it is seen on both")
            for home, path, process in running:
                process.wait()
                manager.home = home
                manager.remove_when_empty(path)
            ended = eventually(
                lambda: [job for job in made.jobs().values() if job["job"]["state"] != "running"], "it is over", 60, 0.5)
            equal(len(made.jobs()), 1, "jobs")
            equal(ended[0]["job"]["nodes"], ["n1", "n2"], "nodes")
            apart = [node.met("show", "slurm:77", "--json").ok().json()["totals"]["cpu_seconds"] for node in made.nodes]
            close_to(ended[0]["totals"]["cpu_seconds"], sum(apart), 0.001, "CPU of both")
            close_to(ended[0]["totals"]["cpu_seconds"], 3, 0.1, "CPU")
            equal({process["node"] for process in ended[0]["processes"]}, {"n1", "n2"}, "nodes of its processes")
        finally:
            manager.close()


@test
def hostile_batches_are_refused_with_a_reason(world):
    with cluster(world, 1) as made:
        node = made.nodes[0]
        node.met("run", "--wait", "--", "true").ok()
        all_the_same(made)
        spool = os.path.join(node.state, "forward", "spool")
        sent = [name for name in os.listdir(spool) if name.endswith(".sent")]
        equal(len(sent), 1, "the newest batch")
        with open(os.path.join(spool, sent[0]), "rb") as file:
            good = file.read()
        with open(os.path.join(node.state, "forward", "token")) as file:
            token = file.read()
        other = made.server.enroll("n8")

        def post(body, shown=token):
            answer = made.server.post("/api/v1/batches", body, shown)
            return answer.status, answer.read().decode()

        before = made.jobs()
        equal(post(good)[0], 200, "a replay is acknowledged")
        for body, shown, code, words in [
            (good, None, 401, "unknown token"),
            (good, "f" * 64, 401, "unknown token"),
            (good, other, 403, "node n8"),
            (good, made.token, 403, "only nodes"),
            (good[:-1], token, 400, "cut off"),
            (good[:20], token, 400, "cut off"),
            (b"", token, 400, "gzip"),
            (b"garbage" * 100, token, 400, "gzip"),
            (gzip.compress(b"garbage"), token, 400, "it is not a batch"),
            (gzip.compress(bytes(80 << 20)), token, 400, "larger than"),
            (gzip.compress(b"MET\x01H\x7f{}"), token, 400, "cut off"),
        ]:
            status, said = post(body, shown)
            check(status == code and words in said, f"{body[:12]!r}: {status} {said!r}, not {code} {words!r}")
        # Refused before the bytes come, as it should be.
        announced = http.client.HTTPConnection("127.0.0.1", made.forwarded, timeout=30)
        announced.putrequest("POST", "/api/v1/batches")
        announced.putheader("Authorization", f"Bearer {token}")
        announced.putheader("Content-Length", str(9 << 20))
        announced.endheaders()
        equal(announced.getresponse().status, 413, "too large")
        dice = random.Random(7)
        for _ in range(300):
            broken = bytearray(good)
            for _ in range(dice.randint(1, 8)):
                broken[dice.randrange(len(broken))] = dice.randrange(256)
            check(post(bytes(broken))[0] in (200, 400, 403), "answered")
        equal(set(made.jobs()), set(before), "jobs")
        node.met("run", "--wait", "--", "true").ok()
        equal(len(all_the_same(made)), 2, "it works on")


@test
def what_waits_on_a_node_is_in_the_list_of_nodes(world):
    with cluster(world, 1) as made:
        node = made.nodes[0]
        node.met("run", "--wait", "--", "true").ok()
        all_the_same(made)
        request = urllib.request.Request(f"http://127.0.0.1:{made.forwarded}/api/v1/nodes",
                                         headers={"Authorization": f"Bearer {made.token}"})

        def waiting():
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.load(answer)["nodes"][0].get("spool_batches")

        eventually(lambda: waiting() == 0, "all is delivered")

        def caught():
            """Whether the list has what waits before all of it is delivered: then the link is cut again."""
            node.cut()
            for _ in range(12):
                node.met("run", "--wait", "--", "true").ok()
                time.sleep(1)
            node.repair()
            eventually(lambda: waiting() != 0 or made.settled(), "it sends again", 90, 0.001)
            return (waiting() or 0) > 0

        eventually(caught, "batches wait besides one that arrived", 300, 0)
        node.cut()
        check((waiting() or 0) > 0, "while the link is cut")
        node.repair()
        eventually(lambda: waiting() == 0, lambda: f"all is delivered: {waiting()}", 120)
        all_the_same(made)


def with_header(batch, change, version=2):
    """A batch with something else in its header."""
    plain = gzip.decompress(batch)
    equal(plain[:5], b"MET\x02H", "how a batch begins")
    length, at, shift = 0, 5, 0
    while True:
        byte = plain[at]
        length, at, shift = length | (byte & 0x7F) << shift, at + 1, shift + 7
        if byte < 0x80:
            break
    header = json.loads(plain[at:at + length])
    change(header)
    text, size = json.dumps(header).encode(), b""
    rest = len(text)
    while rest >= 0x80:
        size, rest = size + bytes([rest & 0x7F | 0x80]), rest >> 7
    return gzip.compress(b"MET" + bytes([version]) + b"H" + size + bytes([rest]) + text + plain[at + length:])


@test
def batches_of_a_version_that_would_be_misread_wait(world):
    with cluster(world, 1) as made:
        node = made.nodes[0]
        node.met("run", "--wait", "--", *world.workload("burning", "cpu", "0.3")).ok()
        all_the_same(made)
        eventually(made.settled, "nothing waits")
        node.met("daemon", "--stop").ok()
        node.process.wait()
        spool = os.path.join(node.state, "forward", "spool")
        sent = max(name for name in os.listdir(spool) if name.endswith((".sent", ".batch")))
        with open(os.path.join(spool, sent), "rb") as file, open(os.path.join(node.state, "forward", "token")) as token:
            good, token = file.read(), token.read()

        def post(change, version=2):
            answer = made.server.post("/api/v1/batches", with_header(good, change, version), token)
            return answer.status, answer.headers["Retry-After"], answer.read().decode()

        def other_units(header):
            header["version"] = "9.9.9"
            table, described = next(iter(header["columns"].items()))
            # Of the first columns the same names, and another scale.
            header["columns"][table] = described.replace("*1e", "*7e", 1)

        status, again, said = post(other_units)
        check(status == 409 and int(again) > 0 and "9.9.9" in said and "refused" not in said, f"{status} {again} {said}")
        check("9.9.9" in made.ask("nodes").ok().out, "the list says which side to update")
        equal(made.ask("nodes", "--json").ok().json()[0]["problem"], json.loads(said)["error"], "also to programs")
        # Additional tables are ignored, and reported.
        equal(post(lambda header: header["columns"].update(fan="g_hertz*1e0 speed"))[0], 200, "a table that is not known here")
        check("table fan" in made.ask("nodes").ok().out, "the list says what is ignored")
        # The first version said it in letters.
        letters = lambda header: header.update(tables={"job": "0123456789abcdef"}, columns={})
        equal(post(letters, version=1)[0], 200, "a batch that lay in a spool")
        check("2 columns of job" in made.ask("nodes").ok().out, "the list says what is ignored")
        status, again, said = post(lambda header: None, version=9)
        check(status == 409 and int(again) > 0 and "version 9" in said and "refused" not in said, f"{status} {again} {said}")
        check("version 9" in made.ask("nodes").ok().out, "the list says that the server needs an update")
        equal(post(lambda header: header.pop("columns"))[0], 200, "of a version that says nothing of it")
        check("problem" not in made.ask("nodes", "--json").ok().json()[0], "all is well again")


def victoria_metrics(server):
    program = shutil.which("victoria-metrics") or "/usr/bin/victoria-metrics"
    if not os.path.exists(program):
        raise Skip("victoria-metrics is not installed")
    server.start(program, f"-storageDataPath={server.folder}/vm", "-httpListenAddr=127.0.0.1:8428",
                 "-retentionPeriod=100y", "-memory.allowedPercent=20")
    server.listens(8428)


def postgresql(server):
    versions = "/usr/lib/postgresql"
    if not os.path.isdir(versions):
        raise Skip("postgresql is not installed")
    programs = os.path.join(versions, max(os.listdir(versions)), "bin")
    home = os.path.join(server.cluster.world.root, "pg")
    os.mkdir(home)
    shutil.chown(home, "postgres")
    secret = os.path.join(server.folder, "db.password")
    with open(os.open(secret, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
        file.write("secret")
    with open(os.path.join(home, "password"), "w") as file:
        file.write("secret")
    shutil.chown(os.path.join(home, "password"), "postgres")
    as_postgres = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
    made = subprocess.run(
        [*as_postgres, f"{programs}/initdb", "-D", f"{home}/data", "-U", "met", "-E", "UTF8", "--locale=C",
         "-A", "scram-sha-256", "-N", "--pwfile", f"{home}/password"], cwd=home, capture_output=True, text=True)
    check(made.returncode == 0, "initdb:", made.stderr)
    server.start(*as_postgres, f"{programs}/postgres", "-D", f"{home}/data", "-cport=5432",
                 "-clisten_addresses=127.0.0.1", f"-cunix_socket_directories={home}", "-cfsync=off")
    server.listens(5432)


LARGE = """store:
  series: "http://127.0.0.1:8428"
  catalogue: "postgres://met@127.0.0.1:5432/postgres"
  password_file: {folder}/db.password
server: {{move_after: 1s}}
"""


@test
def a_server_keeps_series_in_victoria_metrics_and_jobs_in_postgresql(world):
    def prepare(server):
        victoria_metrics(server)
        postgresql(server)
        with open(server.config, "a") as file:
            file.write(LARGE.format(folder=server.folder))

    with cluster(world, 1, prepare=prepare) as made:
        node = made.nodes[0]
        node.met("run", "--wait", "-n", "work", "--", *world.workload("burning", "cpu", "2")).ok()
        all_the_same(made)
        log = os.path.join(made.server.state, "server", "cluster.db")
        waiting = lambda: sqlite3.connect(f"file:{log}?mode=ro", uri=True).execute("SELECT count(*) FROM batch").fetchone()[0]
        eventually(lambda: waiting() == 0, "the series are moved", 90)
        check(not os.path.exists(os.path.join(made.server.state, "server", "store.db")), "a catalogue in files")
        far = lambda: made.ask("show", "1@n1").ok().out
        eventually(lambda: "CPU cores, peak" in far(), lambda: f"the course comes back from the engine: {far()}", 90, 1)
        question = "http://127.0.0.1:8428/api/v1/query?query=count(last_over_time(met_job_cpu_seconds_total[1d]))"
        # It answers of what is half a minute old, and nothing when it is busy.
        eventually(lambda: (said := made.server.fetch(question).strip()) and json.loads(said)["data"]["result"],
                   "series in the engine", 90, 1)
        # So does that of the node, which is sent when its daemon leaves.
        near = node.met("node", "--since", "1h", "--json").ok().json()["series"]
        node.met("daemon", "--stop").ok()
        node.process.wait()
        node.serve("daemon")
        of_node = lambda: made.ask("node", "n1", "--since", "1h", "--json").ok().json()["series"]
        eventually(lambda: near and all(holds(of_node(), one) for one in near), lambda: f"{near} and {of_node()}", 90, 1)
        # Both are away for a while, and nothing is lost.
        for name in ("victoria-metrics", "postgres"):
            made.server.stop(name)
        node.met("run", "--wait", "-n", "late", "--", *world.workload("burning", "cpu", "0.3")).ok()
        eventually(made.settled, "the server has it", 60)
        made.server.restart()
        eventually(lambda: made.ask("list").code == 0 and len(made.jobs()) == 2, "it answers when they are back", 90, 1)
        all_the_same(made)


#: What version 8 of a catalogue in PostgreSQL added, taken back: rows of lists stay, as version 7 had them.
BACK_TO_7 = """DROP TABLE brief;
ALTER TABLE listed DROP COLUMN submit_ns, DROP COLUMN exit_status;
DELETE FROM meta WHERE name IN ('brief', 'brief_to');
UPDATE store_version SET version = 7;"""


@test
def a_catalogue_of_version_7_in_postgresql_is_upgraded_with_its_jobs(world):
    def prepare(server):
        postgresql(server)
        with open(server.config, "a") as file:
            file.write(LARGE.format(folder=server.folder).replace('  series: "http://127.0.0.1:8428"\n', ""))

    def sql(server, statements):
        psql = ["psql", "-h", "127.0.0.1", "-U", "met", "-d", "postgres", "-v", "ON_ERROR_STOP=1", "-At", "-c", statements]
        done = server.run_here("env", "PGPASSWORD=secret", *psql)
        check(done.returncode == 0, "psql:", done.stderr)
        return done.stdout.strip()

    if shutil.which("psql") is None:
        raise Skip("psql is not installed")
    with cluster(world, 1, prepare=prepare) as made:
        node, server = made.nodes[0], made.server
        for number in range(25):
            node.met("run", "--wait", "-n", f"job{number % 3}", "--", "sh", "-c", f"exit {number % 2}")
        node.met("run", "-n", "lasting", "--", "sleep", "600").ok()
        eventually(lambda: len(made.jobs()) == 26, "all jobs are there", 60)
        eventually(made.settled, "nothing waits")
        listed = lambda *options: [one["job"]["id"] for one in made.ask("list", "--json", *options).ok().json()]
        # Energy is charged after the end, and may still change.
        of = lambda job: {**job["job"], **{name: value for name, value in job["totals"].items() if name[:6] not in ("energy", "emissi")}}
        finished = lambda: {one["id"]: one for one in map(of, made.ask("list", "--json").ok().json()) if one["state"] != "running"}
        sorts = ["name", "exit", "queued", "cpu"]
        before, orders = finished(), {sort: sorted(listed("--sort", sort)) for sort in sorts}
        checked = lambda: made.ask("check", "--json").ok().json()["findings"]
        found = checked()
        server.stop(" server")
        equal(sql(server, "SELECT version FROM store_version"), "8", "version")
        sql(server, BACK_TO_7)
        check(int(sql(server, "SELECT count(*) FROM listed")) == 26, "rows of lists of version 7")
        server.up()
        equal(sql(server, "SELECT version FROM store_version"), "8", "version")
        now = finished()
        equal([id for id in before if now.get(id) != before[id]], [], "jobs that are not as they were")
        for sort in sorts:
            equal(sorted(listed("--sort", sort)), orders[sort], f"all jobs by {sort}")
        by_exit = [one["job"]["exit_code"] for one in made.ask("list", "--json", "--sort", "exit:desc").ok().json() if one["job"]["state"] != "running"]
        equal(by_exit, sorted(by_exit, reverse=True), "by a column that version 7 did not have")
        equal(checked(), found, "findings")
        # The rows that version 8 has are written while it serves.
        rows = lambda: (sql(server, "SELECT count(*) FROM brief"), sql(server, "SELECT count(*) FROM listed"))
        eventually(lambda: rows() == ("25", "26"), lambda: f"packed and listed: {rows()}", 120, 1)
        check(finished() == before and checked() == found, "and all is the same")
        node.met("cancel", "lasting").ok()
        eventually(lambda: rows()[0] == "26", "jobs end as before", 60, 1)


@test
def nodes_with_certificates_need_no_token(world):
    if shutil.which("openssl") is None:
        raise Skip("openssl is not installed")
    folder = os.path.join(world.root, "tls")
    os.mkdir(folder)

    def openssl(*arguments):
        done = subprocess.run(["openssl", *arguments], cwd=folder, capture_output=True, text=True)
        check(done.returncode == 0, "openssl:", done.stderr)

    def certificate(name, names):
        openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        with open(os.path.join(folder, f"{name}.ext"), "w") as file:
            file.write(f"subjectAltName={names}\n")
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
                "-extfile", f"{name}.ext", "-out", f"{name}.pem")
        os.chmod(os.path.join(folder, f"{name}.key"), 0o600)

    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=test", "-days", "2")
    certificate("server", "IP:10.77.0.1,IP:127.0.0.1")
    certificate("n1", "DNS:n1")
    certificate("n2", "DNS:n2")
    with open(os.path.join(folder, "web.yml"), "w") as file:
        file.write("tls_server_config:\n  cert_file: server.pem\n  key_file: server.key\n"
                   "  client_auth_type: VerifyClientCertIfGiven\n  client_ca_file: ca.pem\n")
    with cluster(world, 1) as made:
        server, node = made.server, made.nodes[0]
        server.stop(" server")
        server.configure(f"http:\n  listen: 0.0.0.0:{PORT}\n  web_config: {folder}/web.yml\n")
        server.serve("server")
        eventually(lambda: "serving" in server.log().splitlines()[-1], lambda: server.log())
        node.met("daemon", "--stop").ok()
        node.process.wait()
        shutil.rmtree(os.path.join(node.state, "forward"))

        def with_certificate(name):
            node.configure(
                f"sampling:\n  interval: 200ms\njobs:\n  discover: false\nforward:\n  interval: 1s\n"
                f"  url: https://{server.address}:{PORT}\n  ca_file: {folder}/ca.pem\n  node: n1\n"
                f"  cert_file: {folder}/{name}.pem\n  key_file: {folder}/{name}.key\n")
            node.serve("daemon")
            eventually(lambda: node.met("daemon", "--status").code == 0, lambda: node.log())

        with_certificate("n2")
        node.met("run", "--wait", "--", "true").ok()
        eventually(lambda: "401" in node.met("daemon", "--status").out, lambda: node.met("daemon", "--status").out)
        node.met("daemon", "--stop").ok()
        node.process.wait()
        with_certificate("n1")
        eventually(lambda: "has everything" in node.met("daemon", "--status").out and made.settled(),
                   lambda: node.met("daemon", "--status").out)

        def join_signed_by_itself(name, *more):
            """The error for a server with a self-signed certificate."""
            openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.pem", "-days", "2",
                    "-subj", "/CN=server", "-addext", f"subjectAltName=IP:{server.address}", *more)
            with open(os.path.join(folder, "web.yml"), "w") as file:
                file.write(f"tls_server_config:\n  cert_file: {name}.pem\n  key_file: {name}.key\n")
            return lambda: node.met("daemon", "--join", f"https://{server.address}:{PORT}", "--node", "n1",
                                    "--ca-file", os.path.join(folder, f"{name}.pem"), input=b"0" * 64).refused().err

        said = join_signed_by_itself("authority")
        eventually(lambda: "CA:FALSE" in said(), said)
        said = join_signed_by_itself("usable", "-addext", "basicConstraints=critical,CA:FALSE")
        # It is believed, and the token is not.
        eventually(lambda: "401" in said(), said)
        node.met("daemon", "--join", f"https://{server.address}:{PORT}", "--node", "n1", input=b"0" * 64).refused("--ca-file")
        node.met("daemon", "--join", f"http://{server.address}:{PORT}", "--plain", input=b"0" * 64).refused("write https://")


@test
def the_page_of_a_server_tells_of_all_nodes(world):
    promtool = shutil.which("promtool")
    if promtool is None:
        raise Skip("promtool is not installed")
    with cluster(world, 2) as made:
        for node in made.nodes:
            node.met("run", "-n", "very-secret", "--", "sleep", "1000").ok()
        get = lambda path, **headers: urllib.request.urlopen(
            urllib.request.Request(f"http://127.0.0.1:{made.forwarded}{path}", headers=headers), timeout=30).read().decode()
        eventually(lambda: get("/metrics").count("met_job_cpu_seconds_total{") == 2, "both jobs are on the page", 60, 1)
        page = get("/metrics")
        checked = subprocess.run([promtool, "check", "metrics"], input=page, capture_output=True, text=True)
        equal((checked.returncode, checked.stdout + checked.stderr), (0, ""), "promtool check metrics")
        check('met_member_heard_time_seconds{node="n1"}' in page and 'met_member_jobs{node="n2"} 1' in page, page)
        check('met_job_cpu_seconds_total{cluster="n1",manager="local",id="1"}' in page, page)
        check("very-secret" not in page and "root" not in page, "names require authentication")
        try:
            get("/api/v1/targets")
            raise Failed("unauthenticated clients see the names of nodes")
        except urllib.error.HTTPError as error:
            equal(error.code, 401, "targets without a token")
        targets = lambda: json.loads(get("/api/v1/targets", Authorization=f"Bearer {made.token}"))
        equal(targets(), [], "no node has a page of its own")
        last = made.nodes[1]
        last.met("daemon", "--stop").ok()
        last.process.wait()
        with open(last.config, "a") as file:
            file.write("http:\n  listen: 0.0.0.0:9400\n  plain: yes\n")
        last.serve("daemon")
        eventually(lambda: [target["targets"] for target in targets()] == [["n2:9400"]], lambda: f"targets: {targets()}")
        for node in made.nodes:
            node.met("cancel", "1").ok()


@test
def a_node_that_was_expelled_may_not_send(world):
    with cluster(world, 1) as made:
        node = made.nodes[0]
        # One without jobs says that it is there when it joins.
        eventually(lambda: made.ask("nodes", "--json").ok().json()[0]["seen_ns"], "it is listed at once", 20)
        made.server.met("server", "expel", "n1").ok()
        node.met("run", "--wait", "--", "true").ok()
        eventually(lambda: "401" in node.met("daemon", "--status").out, "the status reports it")
        equal(len(made.jobs()), 0, "jobs")
        check("never" not in made.ask("node", "n1", "--since", "10m").ok().out, "what it sent stays")
        made.ask("node", "n7", "--since", "10m").refused("no node named")
        made.server.met("server", "expel", "n1").refused("not enrolled here")
        made.server.met("server", "enroll", "../n1").refused("not a valid name")
        check(any(name.endswith(".batch") for name in os.listdir(os.path.join(node.state, "forward", "spool"))), "kept")


@test
def joining_beside_a_running_daemon_says_to_restart_it(world):
    with cluster(world, 1) as made:
        node, token = made.nodes[0], made.server.enroll("n7")
        joined = node.met("daemon", "--join", made.url, "--node", "n7", "--plain", input=token.encode()).ok()
        equal(joined.out.splitlines(), [
            f"Joined {made.url} as n7",
            "A daemon is running; restart it to start sending: met daemon --stop",
        ], "what it says")
        node.met("daemon", "--status").ok()


@test
def joining_with_a_bad_address_or_token_says_what_is_wrong(world):
    with cluster(world, 1) as made:
        node, token = made.nodes[0], made.server.enroll("n7")
        join = lambda url, said, *more: node.met("daemon", "--join", url, "--node", "n7", *more, input=said.encode())
        join(made.url, token).refused("plain HTTP")
        join(made.url, token[:-1] + "x", "--plain").refused("401")
        join(made.url, "", "--plain").refused("no token")
        join(made.url, "bad", "--plain").refused("is not a token")
        join("https://", token).refused("is not a server address")
        join(f"http://{made.server.address}:1", token, "--plain").refused("refused")
        node.met("daemon", "--join", made.url, "--node", "n6", "--plain", input=token.encode()).refused("--node n7")
        path = os.path.join(node.folder, "open-token")
        with open(path, "w") as file:
            file.write(token)
        os.chmod(path, 0o644)
        join(made.url, "", "--plain", "--token-file", path).refused("chmod 600")


ALONE.add("whatever_is_killed_or_cut_every_job_arrives_once")


@test
def whatever_is_killed_or_cut_every_job_arrives_once(world):
    seed = int(os.environ.get("MET_CHAOS_SEED", str(int(time.time()))))
    dice = random.Random(seed)
    print(f"seed {seed}", flush=True)
    with cluster(world, 3, users=True) as made:
        end, started, kills, cuts = time.monotonic() + CHAOS_S, 0, 0, 0
        while time.monotonic() < end:
            for node in made.nodes:
                length = dice.choice(["0", "0.02", "0.2"])
                done = node.met("run", "--print-id", "--", *world.workload("burning", "cpu", length))
                started += done.code == 0
            victim = dice.choice(made.machines)
            what = dice.random()
            if what < 0.5:
                kills += kill_one(dice, victim)
            elif what < 0.75:
                cuts += 1
                victim.cut()
                time.sleep(dice.uniform(0.1, 2))
                victim.repair()
            time.sleep(dice.uniform(0, 0.5))
            if made.server.process.poll() is not None:
                time.sleep(dice.uniform(0, 1.5))
                made.server.up()
        check(started > CHAOS_S / 4, f"only {started} jobs were started")
        for node in made.nodes:
            eventually(lambda: all(job["job"]["state"] != "running" for job in node.met("list", "--json").ok().json()),
                       "all jobs are over")
            if node.met("daemon", "--status").code != 0:
                node.serve("daemon", *node.whose)
                eventually(lambda: node.met("daemon", "--status").code == 0, "the node serves again")
        known = all_the_same(made)
        check(len(known) >= started, f"{len(known)} jobs are known, {started} were started")
        eventually(made.settled, "nothing waits", 90)
        print(f"{len(known)} jobs, {kills} processes killed, {cuts} links cut", flush=True)


def kill_one(dice, machine):
    """Kills a process of a machine; whether there was one."""
    candidates = sorted(machine.processes())
    if candidates:
        with contextlib.suppress(ProcessLookupError):
            os.kill(dice.choice(candidates), signal.SIGKILL)
            return True
    return False
