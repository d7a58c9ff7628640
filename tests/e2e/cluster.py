"""A cluster: nodes push, a server keeps, and nothing is lost whatever happens in between.

Hosts are network namespaces on one bridge; a cut link is a cut link."""

import contextlib
import gzip
import http.client
import json
import os
import random
import shutil
import signal
import subprocess
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
        self.process = None
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
        # `ip netns exec` would hide the cgroups: it mounts /sys anew.
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

    def mend(self):
        ip("-n", self.space, "link", "set", "eth0", "up")

    def processes(self):
        """The daemon or server, and supervisors, of this host: pid and command line."""
        found = marked(self.cluster.world.token, f"MET_E2E_HOST={self.space}")
        return {pid: command for pid, command in found.items()
                if " daemon" in command or command.endswith(" server") or "supervise" in command}

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

    def __init__(self, world, nodes=3, server_config="", node_config="", users=False):
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
            # Whoever tests from outside comes by the loopback of this machine.
            self.forwarded = free_port()
            self.door = forward(self.server.space, self.forwarded)
            self.server.configure(f"http:\n  listen: 0.0.0.0:{PORT}\n  plain: yes\n{server_config}")
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
    import socket
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
    import sys
    return subprocess.Popen([sys.executable, "-c", script, space, str(port)])


@contextlib.contextmanager
def cluster(world, *arguments, **options):
    made = Cluster(world, *arguments, **options)
    try:
        yield made
    finally:
        made.close()


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
        known = all_the_same(made)
        equal(len(known), 4, "jobs")
        made.ask("show", "1").refused("ambiguous", "1@n1", "1@n2")
        shown = made.ask("show", "1@n2", "--json").ok().json()
        equal(shown["job"]["nodes"], ["n2"], "nodes")
        check("CPU" in made.ask("show", "1@n1").ok().out, "a report")
        listed = made.ask("nodes", "--json").ok().json()
        equal([(node["name"], node["late"]) for node in listed], [("n1", False), ("n2", False)], "nodes")
        check(abs(listed[0]["clock_offset_ns"]) < 1e9, "one clock", listed)
        made.ask("run", "--", "true").refused("about this machine")


@test
def the_course_of_a_running_job_is_seen_from_afar(world):
    with cluster(world, 1) as made:
        node = made.nodes[0]
        node.met("run", "-n", "steady", "--", *world.workload("steady", "cpu", "stop")).ok()
        far = lambda: made.ask("show", "1@n1", "--json")
        eventually(lambda: far().code == 0 and far().json()["totals"].get("cpu_seconds", 0) > 0.5, "it is seen to work")
        equal(far().json()["job"]["state"], "running", "state")
        check("cores" in made.ask("show", "1@n1").ok().out, "a plot")
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
        equal(made.server.post("/api/v1/ask", ask).status, 401, "without a token")
        equal(made.server.post("/api/v1/ask", ask, "0" * 64).status, 401, "with another token")
        equal(made.server.post("/api/v1/ask", ask, made.server.enroll("n9")).status, 403, "with a node's token")


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
        check("wait" in node.met("daemon", "--status").ok().out, "batches wait")
        made.server.up()
        equal(len(all_the_same(made)), 4, "jobs")
        eventually(made.settled, "nothing waits")


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
            eventually(lambda: "No space" in node.met("daemon", "--status").out, "it is told")
            check("No space" in node.met("doctor").out, "by the doctor, too")
            equal(len(made.jobs()), 0, "jobs that could be sent")
            os.remove(os.path.join(spool, "ballast"))
            equal(len(all_the_same(made)), 3, "jobs")
        finally:
            node.met("daemon", "--stop")
            subprocess.run(["umount", "-l", spool], check=False)


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
            (good, None, 401, "not known"),
            (good, "f" * 64, 401, "not known"),
            (good, other, 403, "node n8"),
            (good, made.token, 403, "only nodes"),
            (good[:-1], token, 400, "cut off"),
            (good[:20], token, 400, "cut off"),
            (b"", token, 400, "gzip"),
            (b"garbage" * 100, token, 400, "gzip"),
            (gzip.compress(b"garbage"), token, 400, "does not begin"),
            (gzip.compress(bytes(80 << 20)), token, 400, "larger than"),
            (gzip.compress(b"MET\x01H\x7f{}"), token, 400, "cut off"),
        ]:
            status, said = post(body, shown)
            check(status == code and words in said, f"{body[:12]!r}: {status} {said!r}, not {code} {words!r}")
        # Told before the bytes come, as it should be.
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
def a_node_that_was_expelled_may_not_send(world):
    with cluster(world, 1) as made:
        node = made.nodes[0]
        made.server.met("server", "expel", "n1").ok()
        node.met("run", "--wait", "--", "true").ok()
        eventually(lambda: "401" in node.met("daemon", "--status").out, "it is told")
        equal(len(made.jobs()), 0, "jobs")
        made.server.met("server", "expel", "n1").refused("never enrolled")
        made.server.met("server", "enroll", "../n1").refused("no name")
        check(any(name.endswith(".batch") for name in os.listdir(os.path.join(node.state, "forward", "spool"))), "kept")


@test
def joining_with_a_bad_address_or_token_says_what_is_wrong(world):
    with cluster(world, 1) as made:
        node, token = made.nodes[0], made.server.enroll("n7")
        join = lambda url, said, *more: node.met("daemon", "--join", url, "--node", "n7", *more, input=said.encode())
        join(made.url, token).refused("plain HTTP")
        join(made.url, token[:-1] + "x", "--plain").refused("401")
        join(made.url, "", "--plain").refused("no token")
        join("https://", token).refused("no address")
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
    print(f"seed {seed}")
    with cluster(world, 3, users=True) as made:
        end, started = time.monotonic() + CHAOS_S, 0
        while time.monotonic() < end:
            for node in made.nodes:
                length = dice.choice(["0", "0.02", "0.2"])
                done = node.met("run", "--print-id", "--", *world.workload("burning", "cpu", length))
                started += done.code == 0
            victim = dice.choice(made.machines)
            what = dice.random()
            if what < 0.5:
                kill_one(dice, victim)
            elif what < 0.75:
                victim.cut()
                time.sleep(dice.uniform(0.1, 2))
                victim.mend()
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


def kill_one(dice, machine):
    candidates = sorted(machine.processes())
    if candidates:
        with contextlib.suppress(ProcessLookupError):
            os.kill(dice.choice(candidates), signal.SIGKILL)
