"""OTLP: what a collector receives is what `met show` says, and a collector that fails or is away affects only itself."""

import base64
import collections
import contextlib
import ctypes
import functools
import gzip
import http.server
import json
import os
import socket
import ssl
import subprocess
import threading

from cluster import cluster
from harness import Skip, check, equal, eventually, need_root, test
from prometheus import HERE, TLS, free_port

#: Reads requests with the classes that OpenTelemetry publishes, one JSON line for each data point.
DECODE = """
import base64, json, sys
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_CUMULATIVE

def attributes(pairs):
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}

for line in sys.stdin:
    request = ExportMetricsServiceRequest()
    request.ParseFromString(base64.b64decode(line))
    for resource in request.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                form = metric.WhichOneof("data")
                data = getattr(metric, form)
                if form == "sum":
                    assert data.aggregation_temporality == AGGREGATION_TEMPORALITY_CUMULATIVE
                for point in data.data_points:
                    print(json.dumps({
                        "resource": attributes(resource.resource.attributes), "schema": resource.schema_url,
                        "scope": [scope.scope.name, scope.scope.version], "name": metric.name, "unit": metric.unit,
                        "form": ("counter" if data.is_monotonic else "updown") if form == "sum" else form,
                        "attributes": attributes(point.attributes), "start_ns": point.start_time_unix_nano,
                        "time_ns": point.time_unix_nano, "value": getattr(point, point.WhichOneof("value"))}))
"""

SEMANTIC = """
import json
from opentelemetry.semconv._incubating.metrics import hw_metrics, process_metrics, system_metrics
from opentelemetry.semconv.schemas import Schemas
names = [value for module in (hw_metrics, process_metrics, system_metrics) for name, value in vars(module).items()
         if name.isupper() and isinstance(value, str)]
print(json.dumps([names, [schema.value for schema in Schemas]]))
"""


@functools.cache
def python():
    """One that has the packages of OpenTelemetry."""
    installed = subprocess.run([os.path.join(HERE, "python-packages"), "telemetry"], capture_output=True, text=True, check=False)
    if installed.returncode != 0:
        raise Skip(installed.stdout.strip() or installed.stderr.strip())
    return installed.stdout.strip()


def socket_in(space):
    """A socket of a network namespace, by a thread that moves there and ends; of this one without any."""
    made = []

    def make():
        if space:
            check(ctypes.CDLL(None, use_errno=True).setns(os.open(f"/run/netns/{space}", os.O_RDONLY), 0) == 0, f"setns {space}")
        made.append(socket.socket())

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    return made[0]


class Collector:
    """A receiver of the test's own. `answers` are given first: status, headers and body; then all is taken."""

    def __init__(self, port=0, answers=(), tls=None, space=None):
        self.bodies, self.refused, self.answers = [], [], collections.deque(answers)
        self.headers = []
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status, headers, answer = collector.answers.popleft() if collector.answers else (200, {}, b"")
                collector.headers.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
                (collector.bodies if status == 200 else collector.refused).append(body)
                self.send_response(status)
                for name, value in {"Content-Length": str(len(answer)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler, bind_and_activate=False)
        self.server.socket.close()
        self.server.socket = socket_in(space)
        self.server.server_bind()
        self.server.server_activate()
        self.port = self.server.server_address[1]
        if tls:
            self.server.socket = tls.wrap_socket(self.server.socket, server_side=True)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def points(self):
        """Every data point so far, oldest first."""
        lines = b"\n".join(base64.b64encode(gzip.decompress(body)) for body in list(self.bodies))
        said = subprocess.run([python(), "-c", DECODE], input=lines, capture_output=True, check=False)
        check(said.returncode == 0, said.stderr.decode())
        return [json.loads(line) for line in said.stdout.splitlines()]

    def of_job(self, job):
        """The points of a job's own metrics, by name."""
        found = collections.defaultdict(list)
        for point in self.points():
            if point["name"].startswith("met.job.") and point["attributes"].get("id") == job:
                found[point["name"]].append(point)
        return found


def configure(world, port, more="", sampling="200ms", scheme="http"):
    world.configure(f"sampling:\n  interval: {sampling}\nsinks:\n  - otlp:\n      endpoint: {scheme}://localhost:{port}\n"
                    f"      interval: 300ms\n{more}")


def status(world):
    found = world.met("daemon", "--status", "--json").ok().json()["sinks"]
    return {sink["name"]: sink for sink in found}["otlp"]


#: A name in JSON, and the metric that has it.
SAME = {"cpu_seconds": "met.job.cpu", "wall_seconds": "met.job.wall", "memory_needed_peak_bytes": "met.job.memory_needed_peak",
        "read_bytes": "met.job.read", "written_bytes": "met.job.written", "energy_joules": "met.job.energy",
        "processes": "met.job.processes", "memory_peak_bytes": "met.job.memory_peak"}


def says_what_show_says(collector, job, show):
    """The last points of a job are its totals."""
    def agree():
        totals, found = (show() or {"totals": {}})["totals"], collector.of_job(job)
        pairs = {name: (totals[name], found[metric][-1]["value"] if found[metric] else None)
                 for name, metric in SAME.items() if name in totals}
        return len(pairs) >= 5 and all(one == other for one, other in pairs.values()) and found

    return eventually(agree, lambda: f"the totals of {job}: {show()}; {dict(collector.of_job(job))}", pause_s=0.5)


@test
def a_collector_receives_what_show_says(world):
    need_root()
    with Collector() as collector:
        configure(world, collector.port, "      metrics: all\n      tables: job, node, block, network, process\n"
                                         "      headers: X-Scope-OrgID=site\n      attributes: deployment.environment.name=test\n")
        world.start_system_daemon()
        before_ns = int(1e9 * os.stat(world.root).st_ctime)
        job = world.run(*world.workload("burning", "cpu", "1.5"))
        world.met("wait", job).ok()
        # Shorter than a tick.
        short = world.run("true")
        world.met("wait", short).ok()
        for one in (job, short):
            says_what_show_says(collector, one, lambda: world.show(one))
        found = collector.of_job(job)
        cpu = found["met.job.cpu"]
        check(len(cpu) >= 3, f"points while it runs: {cpu}")
        check(all(one["value"] <= other["value"] and one["time_ns"] < other["time_ns"] for one, other in zip(cpu, cpu[1:])), cpu)
        check({point["form"] for point in cpu} == {"counter"} and cpu[0]["unit"] == "s", cpu[0])
        equal(len({point["start_ns"] for point in cpu}), 1, "a start that never changes")
        check(before_ns <= cpu[0]["start_ns"] <= cpu[0]["time_ns"], f"{before_ns} {cpu[0]}")
        equal(cpu[0]["attributes"], {"manager": "local", "id": job, "user": world.me.name}, "attributes")
        hostname = os.uname().nodename
        equal(cpu[0]["resource"], {"service.name": "met", "host.name": hostname, "service.instance.id": hostname,
                                   "deployment.environment.name": "test"}, "resource")
        path, headers = collector.headers[0]
        equal((path, headers["content-type"], headers["content-encoding"], headers["x-scope-orgid"]),
              ("/v1/metrics", "application/x-protobuf", "gzip", "site"), "request")
        points = collector.points()
        names = {point["name"] for point in points}
        check({"system.cpu.time", "system.memory.usage", "system.network.io", "process.cpu.time", "process.memory.usage"} <= names, names)
        check(not {"met.node.cpu_user", "met.node.memory_total"} & names, "no figure is sent under two names")
        modes = {point["attributes"]["cpu.mode"] for point in points if point["name"] == "system.cpu.time"}
        check({"user", "system", "idle", "iowait"} <= modes, modes)
        last = [point for point in points if point["name"].startswith("system.memory.")]
        times = sorted({point["time_ns"] for point in last})
        parts = {point["attributes"].get("system.memory.state", point["name"]): point["value"] for point in last if point["time_ns"] == times[-1]}
        equal(sum(parts[state] for state in ("used", "free", "buffers", "cached")), parts["system.memory.limit"], f"memory: {parts}")
        process = [point for point in points if point["name"] == "process.cpu.time" and point["attributes"].get("id") == job]
        check(process and isinstance(process[0]["attributes"]["process.pid"], int) and process[0]["start_ns"] > 0, process[:1])
        said = subprocess.run([python(), "-c", SEMANTIC], capture_output=True, text=True, check=True).stdout
        known, schemas = json.loads(said)
        check(all(name in known for name in names if not name.startswith("met.")), sorted(names - set(known)))
        check(points[0]["schema"] in schemas, points[0]["schema"])
        found = status(world)
        equal((found["state"], found["dropped"], found["failed"]), ("running", 0, 0), "status")


@test
def what_a_collector_refuses_is_counted_and_what_it_asks_to_repeat_is_repeated(world):
    need_root()
    #: ExportMetricsServiceResponse with 2 rejected points and a message.
    partial = b"\x0a\x0b\x08\x02\x12\x07too old"
    answers = [(429, {"Retry-After": "1"}, b""), (503, {}, b"busy"), (200, {"Content-Type": "application/x-protobuf"}, partial),
               (400, {}, b"\x08\x03\x12\x08bad data")]
    with Collector(answers=answers) as collector:
        configure(world, collector.port)
        world.start_system_daemon()
        eventually(lambda: len(collector.refused) >= 3 and len(collector.bodies) >= 2, "five answers")
        equal(collector.refused[0], collector.refused[1], "the same request again")
        equal(collector.bodies[0], collector.refused[0], "until it is taken")
        check(collector.refused[2] not in collector.bodies, "a refused request is not repeated")
        lost = eventually(lambda: (one := status(world))["state"] == "running" and one["dropped"] > 2 and one, lambda: f"{status(world)}")
        # Failures of one round are one.
        check(lost["failed"] >= 3 and lost["last_error"] == "400 bad data", lost)
        doctor = [one for one in world.met("doctor", "--json").ok().json() if one["what"] == "sink"]
        check("otlp" in doctor[0]["detail"] and "dropped" in doctor[0]["detail"], doctor)


@test
def a_collector_that_is_away_affects_only_itself_and_gets_ends_when_it_is_back(world):
    need_root()
    port = free_port()
    configure(world, port, "      metrics: all\n")
    world.start_system_daemon()
    eventually(lambda: status(world)["state"] == "retrying", lambda: f"{status(world)}")
    job = world.run_to_end("sleep", "0.3")["job"]["id"]
    equal(world.show(job)["job"]["state"], "finished", "a job all the same")
    check("Connection refused" in status(world)["last_error"], status(world))
    with Collector(port=port) as collector:
        says_what_show_says(collector, job, lambda: world.show(job))
        eventually(lambda: status(world)["state"] == "running", "it works again")
        equal(status(world)["dropped"], 0, "nothing is lost")
    # Away again: the daemon ends in time.
    world.run_to_end("true")
    world.stop_system_daemon()


@test
def a_collector_behind_tls_is_trusted_by_its_ca_alone(world):
    need_root()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(os.path.join(TLS, "server.pem"), os.path.join(TLS, "server-key.pem"))
    with Collector(tls=context) as collector:
        secret = os.path.join(world.root, "headers")
        with open(secret, "w") as file:
            file.write("# for the collector\nAuthorization: Bearer secret\n")
        os.chmod(secret, 0o644)
        configure(world, collector.port, f"      ca_file: {TLS}/ca.pem\n      headers_file: {secret}\n", scheme="https")
        world.start_system_daemon()
        eventually(lambda: "chmod 600" in (status(world)["last_error"] or ""), lambda: f"{status(world)}")
        equal(status(world)["state"], "failed", "state")
        world.stop_system_daemon()
        os.chmod(secret, 0o600)
        world.start_system_daemon()
        eventually(lambda: collector.bodies, lambda: f"{status(world)}")
        equal(collector.headers[0][1]["authorization"], "Bearer secret", "header")
        world.stop_system_daemon()
        configure(world, collector.port, scheme="https")
        world.start_system_daemon()
        eventually(lambda: status(world)["failed"] > 0, lambda: f"{status(world)}")
        check("certificate" in status(world)["last_error"].lower() or "issuer" in status(world)["last_error"].lower(), status(world))


@test
def what_is_no_endpoint_or_option_is_refused_with_its_line(world):
    for options, words in (
        ("{endpoint: localhost}", ("met.yaml:5:", "sinks.otlp.endpoint", "begins with http:// or https://")),
        ("{headers: secret}", ("met.yaml:5:", "NAME=VALUE")),
        ("{interval: 1ms}", ("met.yaml:5:", "100ms")),
        ("{metrics: some}", ("met.yaml:5:", "minimal, usual, all")),
        ("{tables: jobs}", ("met.yaml:5:", "jobs")),
    ):
        world.configure(f"sinks:\n  - otlp: {options}\n")
        world.met("daemon", "--user").refused(*words)
    world.configure("")


@test
def a_server_sends_the_jobs_of_its_nodes(world):
    with contextlib.ExitStack() as stack:
        # On the server's own host, where a collector is expected without configuration.
        listens = lambda server: collectors.append(stack.enter_context(Collector(port=4318, space=server.space)))
        collectors = []
        config = "sinks:\n  - otlp: {interval: 300ms, metrics: all}\n"
        made = stack.enter_context(cluster(world, 1, server_config=config, prepare=listens))
        node, (collector,) = made.nodes[0], collectors
        job = node.met("run", "--print-id", "--wait", "--", "sleep", "1").ok().out.strip()
        on_server = lambda: next((found for (_, _, id), found in made.jobs().items() if id == job), None)
        found = says_what_show_says(collector, job, on_server)
        points = [point for metric in found.values() for point in metric]
        equal({point["resource"].get("host.name") for point in points}, {node.name}, "nodes")
        equal({(point["attributes"]["manager"], point["attributes"]["cluster"]) for point in points}, {("local", node.name)}, "jobs")
        check(len(found["met.job.cpu"]) >= 2, f"samples and totals: {found['met.job.cpu']}")
