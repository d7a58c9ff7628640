"""Elasticsearch and OpenSearch: a real engine holds what the daemon measured, each document once, whatever is killed."""

import base64
import collections
import contextlib
import glob
import http.client
import http.server
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import threading

import colmet
from cluster import cluster
from harness import Skip, alive, check, equal, eventually, need_root, test
from otlp import socket_in
from prometheus import HERE, ROOT, TLS, free_port

#: A JVM takes its time where others run, too.
ENGINE_WITHIN_S = 600
#: Who runs the engine: it refuses to be root.
NOBODY = 65534


def java_home():
    return os.path.dirname(os.path.dirname(os.path.realpath(shutil.which("java"))))


class Engine:
    """A real engine of the test's own, on a free port."""

    def __init__(self, world, kind="opensearch", settings=""):
        need_root()
        installed = subprocess.run([os.path.join(HERE, "search_engines", "install"), kind], capture_output=True, text=True, check=False)
        if installed.returncode == 3:
            raise Skip(installed.stdout.strip())
        check(installed.returncode == 0, installed.stderr)
        self.home, self.kind, self.world = installed.stdout.strip(), kind, world
        self.port, self.folder, self.headers, self.process, self.tls = free_port(), os.path.join(world.root, kind), {}, None, None
        self.conf = os.path.join(self.folder, "conf")
        shutil.copytree(os.path.join(self.home, "config"), self.conf)
        for name in ("data", "logs", "tmp"):
            os.mkdir(os.path.join(self.folder, name))
        # Logs of the JVM would go below the installation, which the user who runs it may not write to.
        options = os.path.join(self.conf, "jvm.options")
        kept = [line for line in open(options) if "logs/" not in line]
        with open(options, "w") as file:
            file.writelines(kept)
        with open(os.path.join(self.conf, f"{kind}.yml"), "w") as file:
            file.write(f"http.port: {self.port}\ntransport.port: {free_port()}\nnetwork.host: 127.0.0.1\ndiscovery.type: single-node\n"
                       f"path.data: {self.folder}/data\npath.logs: {self.folder}/logs\n"
                       f"cluster.routing.allocation.disk.threshold_enabled: false\n{settings}")
        subprocess.run(["chown", "-R", f"{NOBODY}:{NOBODY}", self.folder], check=True)

    def start(self):
        prefix, pid_file = "ES" if self.kind == "elasticsearch" else "OPENSEARCH", os.path.join(self.folder, "pid")
        with contextlib.suppress(FileNotFoundError):
            os.remove(pid_file)
        env = {f"{prefix}_JAVA_OPTS": "-Xms512m -Xmx512m", f"{prefix}_PATH_CONF": self.conf, f"{prefix}_JAVA_HOME": java_home(),
               f"{prefix}_TMPDIR": os.path.join(self.folder, "tmp")}
        with open(os.path.join(self.folder, "log"), "ab") as log:
            self.process = self.world.user(NOBODY).start(os.path.join(self.home, "bin", self.kind), "-p", pid_file,
                                                         env=env, stdout=log, stderr=log)
        eventually(lambda: os.path.exists(pid_file) and open(pid_file).read().strip() or self.process.poll(), self.said, ENGINE_WITHIN_S)
        check(self.process.poll() is None, self.said())
        self.pid = int(open(pid_file).read())
        eventually(lambda: self.is_up(), self.said, ENGINE_WITHIN_S)

    def said(self):
        return self.world.log(os.path.join(self.kind, "log"))[-2000:]

    def is_up(self):
        with contextlib.suppress(OSError, http.client.HTTPException):
            status, health = self.ask("GET", "/_cluster/health")
            return status == 200 and health["status"] in ("green", "yellow")
        check(self.process.poll() is None, self.said())
        return False

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)
        eventually(lambda: not alive(self.pid), "the engine is gone")
        self.process.kill()
        self.process.wait()
        self.process = None

    def ask(self, method, path, body=None):
        connection = http.client.HTTPSConnection("localhost", self.port, timeout=60, context=self.tls) if self.tls else \
            http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": "application/json", **self.headers})
            answer = connection.getresponse()
            text = answer.read()
            return answer.status, json.loads(text) if text else None

    def documents(self, pattern):
        """All documents, by index and id."""
        self.ask("POST", f"/{pattern}/_refresh")
        search = lambda: self.ask("POST", f"/{pattern}/_search?size=10000", {"query": {"match_all": {}}, "track_total_hits": True})
        # A shard that has just been made is not searched yet.
        status, found = eventually(lambda: (one := search())[0] != 503 and one, "shards", pause_s=0.2)
        if status == 404:
            return {}
        check(status == 200, found)
        hits = found["hits"]["hits"]
        equal(found["hits"]["total"]["value"], len(hits), "all of them")
        return {(hit["_index"], hit["_id"]): hit["_source"] for hit in hits}

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        if self.process:
            self.kill()


class Front:
    """Before an engine, or instead of one: TLS, and a header that it demands. `space` is the network namespace that it
    listens in."""

    def __init__(self, engine, authorization=None, tls=False, space=None, port=0):
        self.requests, self.taken, front = [], {}, self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def relay(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                front.requests.append((self.command, self.path, self.headers.get("Authorization")))
                if authorization and self.headers.get("Authorization") != authorization:
                    status, text = 401, json.dumps({"error": {"type": "security_exception", "reason": "who are you"}, "status": 401}).encode()
                elif engine is None:
                    status, text = front.acknowledge(self.path, body)
                else:
                    status, text = front.pass_on(engine, self.command, self.path, body, self.headers.get("Content-Type"))
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(text)

            do_GET = do_HEAD = do_PUT = do_POST = relay

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler, bind_and_activate=False)
        self.server.socket.close()
        self.server.socket = socket_in(space)
        self.server.server_bind()
        self.server.server_activate()
        self.port = self.server.server_address[1]
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(os.path.join(TLS, "server.pem"), os.path.join(TLS, "server-key.pem"))
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def acknowledge(self, path, body):
        """As an engine does that takes everything."""
        if not path.startswith("/_bulk"):
            return 200, b"{}"
        lines = [json.loads(line) for line in body.splitlines()]
        for action, document in zip(lines[::2], lines[1::2]):
            self.taken[action["create"]["_index"], action["create"]["_id"]] = document
        return 200, b'{"errors":false,"items":[]}'

    @staticmethod
    def pass_on(engine, method, path, body, kind):
        connection = http.client.HTTPConnection("127.0.0.1", engine.port, timeout=60)
        with contextlib.closing(connection):
            connection.request(method, path, body or None, {"Content-Type": kind} if kind else {})
            answer = connection.getresponse()
            return answer.status, answer.read()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


def configure(world, url, more="", tables="job, node"):
    """The sink `stdout` writes the same rows to the log of the daemon: what there must be."""
    world.configure(f"sampling:\n  interval: 200ms\nsinks:\n  - stdout: {{events: started, tables: [{tables}]}}\n  - elasticsearch:\n"
                    f"      url: {url}\n      format: jobmet\n      interval: 300ms\n      tables: [{tables}]\n{more}")


def status(world):
    found = world.met("daemon", "--status", "--json").ok().json()["sinks"]
    return {sink["name"]: sink for sink in found}["elasticsearch"]


def spool(world):
    return os.path.join(world.system_state, "sinks", "elasticsearch")


def waiting(world):
    """Documents in the spool."""
    return sum(int(re.search(r"-(\d+)\.batch$", path).group(1)) for path in glob.glob(os.path.join(spool(world), "*.batch")))


def rows(world):
    """Each row that the daemon has published: table, time and job."""
    found = []
    for line in world.log("system.log").splitlines():
        # A line that was cut by a kill goes on with the log of the next daemon.
        if line.startswith('{"event":"tick"') and line.endswith("}"):
            row = json.loads(line)
            found.append((row["table"], row["time"], (row["job"] or {}).get("raw_id"), json.dumps(row["values"], sort_keys=True)))
    return found


def stored(engine, pattern="met_*"):
    return [(one["table"], one["time"], (one["job"] or {}).get("raw_id"), json.dumps(one["values"], sort_keys=True))
            for one in engine.documents(pattern).values()]


def each_document_once(world, engine, url, more=""):
    """Engine and daemon are killed in mid-stream; in the end there is what was measured."""
    configure(world, url, more)
    world.start_system_daemon()
    job = world.run("sleep", "1000")
    eventually(lambda: len(stored(engine)) >= 10, lambda: f"documents: {status(world)}", pause_s=0.3)
    engine.kill()
    eventually(lambda: waiting(world) >= 10 and status(world)["state"] == "retrying", lambda: f"a spool: {status(world)}", pause_s=0.2)
    bodies = set(os.listdir(spool(world)))
    engine.start()
    # More are made meanwhile.
    eventually(lambda: not bodies & {name for name in os.listdir(spool(world)) if name.endswith(".batch")}, lambda: f"{status(world)}",
               ENGINE_WITHIN_S, pause_s=0.2)
    # The daemon, too: what is in its spool is sent by the next one.
    engine.kill()
    eventually(lambda: waiting(world) >= 10, "a spool")
    world.stop_system_daemon(signal.SIGKILL)
    left = waiting(world)
    cut = len(rows(world))
    engine.start()
    before = len(stored(engine))
    world.start_system_daemon()
    eventually(lambda: len(stored(engine)) >= before + left + 5, lambda: f"{before} and {left}: {status(world)}", ENGINE_WITHIN_S, pause_s=0.3)
    world.met("cancel", job).ok()
    world.stop_system_daemon()
    # What was not sent in time is on disk. The last daemon measures nothing more for it.
    colmet_config(world, engine, more + "      backends: nvidia\n", url)
    world.start_system_daemon()
    eventually(lambda: waiting(world) == 0, "everything is sent", ENGINE_WITHIN_S)
    world.stop_system_daemon()
    expected, found = rows(world), collections.Counter(stored(engine))
    equal([row for row, count in found.items() if count > 1], [], "twice")
    # A process that is killed loses the end of what it measured: here the last rows, or of `stdout` the last lines.
    of_killed = expected[:cut]
    lost = [row not in found for row in of_killed]
    check(lost == sorted(lost) and sum(lost) < len(lost) / 2, f"lost: {lost}")
    check(all(row in found for row in expected[cut:]), f"lost: {[row[:3] for row in expected[cut:] if row not in found]}")
    more_than_said = set(found) - set(expected)
    check(all(row[1] > of_killed[-1][1] for row in more_than_said), f"not measured: {more_than_said}")
    check({index for index, _ in engine.documents("met_*")} == {"met_job", "met_node"}, "indices")
    _, mapping = engine.ask("GET", "/met_job/_mapping")
    equal(mapping["met_job"]["mappings"]["properties"]["time"]["type"], "date", "mapping")
    status_code, template = engine.ask("GET", "/_index_template/met-met")
    check(status_code == 200 and "met_job-*" in template["index_templates"][0]["index_template"]["index_patterns"], template)


@test
def an_engine_that_is_killed_has_each_document_once_when_it_is_back(world):
    with Engine(world) as engine:
        each_document_once(world, engine, f"http://127.0.0.1:{engine.port}")


class Elasticsearch(Engine):
    """With its own TLS and users."""

    def __init__(self, world, password):
        super().__init__(world, "elasticsearch", (
            "xpack.security.enabled: true\nxpack.security.autoconfiguration.enabled: false\nxpack.security.http.ssl.enabled: true\n"
            "xpack.security.http.ssl.key: server-key.pem\nxpack.security.http.ssl.certificate: server.pem\n"))
        for name in ("server.pem", "server-key.pem"):
            shutil.copy(os.path.join(TLS, name), self.conf)
        users = world.start(os.path.join(self.home, "bin", "elasticsearch-users"), "useradd", "met", "-p", password, "-r", "superuser",
                            env={"ES_PATH_CONF": self.conf, "ES_JAVA_HOME": java_home()})
        said = users.communicate(timeout=ENGINE_WITHIN_S)
        check(users.returncode == 0, said)
        subprocess.run(["chown", "-R", f"{NOBODY}:{NOBODY}", self.conf], check=True)
        self.headers = {"Authorization": "Basic " + base64.b64encode(f"met:{password}".encode()).decode()}
        self.tls = ssl.create_default_context(cafile=os.path.join(TLS, "ca.pem"))


@test
def a_real_elasticsearch_with_tls_and_passwords_has_each_document_once(world):
    if os.environ.get("MET_E2E_ELASTICSEARCH") != "yes":
        raise Skip("107 MB to fetch: set MET_E2E_ELASTICSEARCH=yes, as scripts/test --all does")
    with Elasticsearch(world, "geheim-7") as engine:
        secret = os.path.join(world.root, "credentials")
        with open(secret, "w") as file:
            file.write("met:geheim-7\n")
        os.chmod(secret, 0o600)
        each_document_once(world, engine, f"https://localhost:{engine.port}", f"      ca_file: {TLS}/ca.pem\n      credentials_file: {secret}\n")


@test
def a_document_that_an_engine_refuses_is_quarantined_alone(world):
    with Engine(world) as engine:
        # No name of a node is an address, so every document of this index is poison.
        engine.ask("PUT", "/met_node", {"mappings": {"properties": {"node": {"type": "ip"}}}})
        configure(world, f"http://127.0.0.1:{engine.port}")
        world.start_system_daemon()
        job = world.run("sleep", "1000")
        # Those of the node come every ten seconds.
        eventually(lambda: len(stored(engine, "met_job")) >= 5 and status(world)["dropped"] > 0, lambda: f"{status(world)}", pause_s=0.3)
        found = status(world)
        equal(found["state"], "running", "state")
        check("quarantine.ndjson" in found["last_error"] and "400" in found["last_error"], found)
        with open(os.path.join(spool(world), "quarantine.ndjson")) as file:
            refused = [json.loads(line) for line in file]
        check(all(one["document"]["table"] == "node" and one["reason"].startswith("400 ") for one in refused), refused[:2])
        equal(len(refused), len({one["action"]["create"]["_id"] for one in refused}), "each is refused once")
        equal(engine.documents("met_node"), {}, "nothing of it is taken")
        doctor = [one for one in world.met("doctor", "--json").ok().json() if one["what"] == "sink" and "elasticsearch" in one["detail"]]
        check("quarantine.ndjson" in doctor[0]["detail"], doctor)
        world.met("cancel", job).ok()


@test
def an_engine_behind_tls_and_a_password_is_written_to_with_both(world):
    secret = os.path.join(world.root, "credentials")

    def write(text):
        with open(secret, "w") as file:
            file.write(text)
        os.chmod(secret, 0o600)

    authorization = "Basic " + base64.b64encode(b"met:geheim-7").decode()
    with Engine(world) as engine, Front(engine, authorization, tls=True) as front:
        write("met:wrong-9\n")
        trusting = f"      ca_file: {TLS}/ca.pem\n"
        configure(world, f"https://localhost:{front.port}", f"{trusting}      credentials_file: {secret}\n")
        world.start_system_daemon()
        eventually(lambda: "401" in (status(world)["last_error"] or ""), lambda: f"{status(world)}")
        equal(status(world)["state"], "retrying", "a password may be corrected")
        eventually(lambda: waiting(world) > 0, "documents wait")
        world.stop_system_daemon()
        write("met:geheim-7\n")
        world.start_system_daemon()
        eventually(lambda: len(engine.documents("met_*")) >= 5, lambda: f"{status(world)}", pause_s=0.3)
        eventually(lambda: status(world)["state"] == "running", "it works")
        shown = world.met("daemon", "--status", "--json").ok().out + world.met("doctor").out + world.met("config").out + world.log("system.log")
        check("geheim" not in shown and "wrong-9" not in shown and authorization[6:] not in shown, "no secret is shown")
        check(all(one[2] for one in front.requests), "each request says who it is")
        world.stop_system_daemon()
        # A certificate that nobody trusts, and one that nobody asks for.
        configure(world, f"https://localhost:{front.port}", f"      credentials_file: {secret}\n")
        world.start_system_daemon()
        eventually(lambda: re.search("certificate|issuer", status(world)["last_error"] or "", re.I), lambda: f"{status(world)}")
        world.stop_system_daemon()
        before = len(engine.documents("met_*"))
        configure(world, f"https://localhost:{front.port}", f"      credentials_file: {secret}\n      check_certificates: no\n")
        world.start_system_daemon()
        eventually(lambda: len(engine.documents("met_*")) > before + 5, lambda: f"{status(world)}", pause_s=0.3)
        world.stop_system_daemon()


@test
def an_api_key_is_sent_as_the_documentation_of_elasticsearch_says(world):
    secret = os.path.join(world.root, "key")
    with open(secret, "w") as file:
        file.write("VuaCfGcBCdbkQm-e5aOx:ui2lp2axTNmsyakw9tvNnw\n")
    os.chmod(secret, 0o600)
    # The example of the documentation. No engine that is installed here has API keys.
    key = "ApiKey VnVhQ2ZHY0JDZGJrUW0tZTVhT3g6dWkybHAyYXhUTm1zeWFrdzl0dk5udw=="
    with Front(None, key) as front:
        configure(world, f"http://localhost:{front.port}", f"      api_key_file: {secret}\n      rotate: daily\n      index_prefix: site_\n")
        world.start_system_daemon()
        found = eventually(lambda: dict(front.taken), lambda: f"{status(world)}")
        dated = {(index, one["time"][:10].replace("-", ".")) for (index, _), one in found.items()}
        check(all(index == f"site_node-{date}" for index, date in dated), dated)
        equal({one[2] for one in front.requests}, {key}, "every request")
        world.stop_system_daemon()


def series(engine, target, interval="1s", **values):
    """Asks as Grafana does for a query of its Elasticsearch data source; values by host, oldest first."""
    text = re.sub(r"\$\{(\w+)\}", lambda match: values[match.group(1)], target["query"])
    by_host, over_time = target["bucketAggs"]
    shown = [metric for metric in target["metrics"] if not metric["hide"]][0]
    metrics = {metric["id"]: {"derivative": {"buckets_path": metric["field"], **metric["settings"]}} if metric["type"] == "derivative"
               else {metric["type"]: {"field": metric["field"]}} for metric in target["metrics"]}
    histogram = {"field": over_time["field"], "fixed_interval": interval, "min_doc_count": int(over_time["settings"]["min_doc_count"])}
    status_code, found = engine.ask("POST", f"/{values['prefix']}*/_search?size=0", {
        "query": {"bool": {"filter": [{"range": {target["timeField"]: {"gte": 0, "lte": 4102444800000, "format": "epoch_millis"}}},
                                      {"query_string": {"analyze_wildcard": True, "query": text}}]}},
        "aggs": {"2": {"terms": {"field": by_host["field"], "size": 50, "order": {"_key": "desc"}, "min_doc_count": 1},
                       "aggs": {"3": {"date_histogram": histogram, "aggs": metrics}}}}})
    check(status_code == 200, found)
    value = lambda point: (one := point.get(shown["id"], {})).get("normalized_value", one.get("value"))
    return {host["key"]: [value(point) for point in host["3"]["buckets"] if value(point) is not None]
            for host in found["aggregations"]["2"]["buckets"]}


def board():
    """The queries of the board: by what they show, and by field."""
    with open(os.path.join(ROOT, "dashboards", "colmet.json")) as file:
        panels = json.load(file)["panels"]
    return {(panel["title"], target["metrics"][0]["field"]): target for panel in panels for target in panel["targets"]}


def colmet_config(world, engine, more="", url=None):
    world.configure("sampling:\n  interval: 500ms\nperf:\n  events: [page_faults, context_switches]\nsinks:\n  - elasticsearch:\n"
                    f"      url: {url or f'http://127.0.0.1:{engine.port}'}\n      interval: 300ms\n{more}")


#: A document of each kind on the dashboard that Colmet ships, for one job on two hosts at two times.
KINDS = {
    "taskstats": (42, ("coremem", "cpu_run_real_total", "read_bytes", "write_bytes")),
    "perfhwstats": (42, tuple(f"counter_{number}" for number in range(1, 6))),
    "ipmipowerstats": (0, ("average_power_consumption",)),
    "infinibandstats": (0, ("portRcvData", "portXmitData")),
    "raplstats": (0, ("counter_1",)),
    "procstats": (0, ("loadavg_1min",)),
}


def left_by_another(world):
    """A spool with documents of all kinds, as a daemon leaves it that could not send them; values by kind, field, host and time."""
    lines, known = [], {}
    for number, (kind, (job, fields)) in enumerate(KINDS.items()):
        for host in ("n1", "n2"):
            for time_s in (1700000000, 1700000001):
                document = {"hostname": host, "job_id": job, "timestamp": time_s}
                for place, field in enumerate(fields):
                    value = 1000 * number + 10 * place + (host == "n2") + 100 * (time_s - 1700000000)
                    document[field] = known[kind, field, host, time_s] = value + 0.5 if kind == "procstats" else value
                if job == 0:
                    document["involved_jobs"] = [42, 43]
                lines += [{"create": {"_index": f"colmet_{kind}_default", "_id": f"{host}-{time_s}"}}, document]
    # Others' documents are not found by the queries of job 42.
    lines += [{"create": {"_index": "colmet_taskstats_default", "_id": "other"}}, {"hostname": "n1", "job_id": 43, "timestamp": 1700000000, "coremem": 7}]
    os.makedirs(spool(world), 0o700)
    with open(os.path.join(spool(world), f"{1:016}-0-{len(lines) // 2}.batch"), "w") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    return known


@test
def every_query_of_the_colmet_board_returns_the_values_of_its_job(world):
    with Engine(world) as engine:
        colmet_config(world, engine, "      backends: nvidia\n")
        known = left_by_another(world)
        world.start_system_daemon()
        eventually(lambda: waiting(world) == 0, lambda: f"{status(world)}")
        equal(len(engine.documents("colmet_*")), 25, "documents")
        asked = board()
        equal({field for _, field in asked}, {field for _, fields in KINDS.values() for field in fields}, "fields of the board")
        for (title, field), target in asked.items():
            kind = re.search(r"\}(\w+)_default", target["query"]).group(1)
            of_host = lambda host: [known[kind, field, host, time_s] for time_s in (1700000000, 1700000001)]
            wanted = {host: of_host(host) for host in ("n1", "n2")}
            if "per second" in title:
                wanted = {host: [late - early] for host, (early, late) in wanted.items()}
            equal(series(engine, target, job="42", prefix="colmet_"), wanted, f"{title}: {field}")
        equal(series(engine, asked["Memory", "coremem"], job="*", prefix="colmet_")["n1"][0], max(7, known["taskstats", "coremem", "n1", 1700000000]), "all jobs")
        world.stop_system_daemon()


@test
def every_query_of_the_colmet_board_returns_what_a_collector_took(world):
    fixture, host = os.path.join(ROOT, "fixtures", "colmet", "kinds.bin"), "node-1.site.example"
    unpacked = subprocess.run([colmet.python(), "-c", colmet.UNPACK, fixture], capture_output=True, text=True, check=True)
    packed = {name.lower(): records for name, records in json.loads(unpacked.stdout).items()}
    with open(fixture, "rb") as file:
        captured = file.read()
    rounds, ports = (captured[:len(captured) // 2], captured[len(captured) // 2:]), (free_port(), free_port())
    secret, authorization = os.path.join(world.root, "credentials"), "Basic " + base64.b64encode(b"met:geheim-7").decode()
    with open(os.open(secret, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
        file.write("met:geheim-7\n")
    with Engine(world) as engine, Front(engine, authorization, tls=True) as behind:
        bind = lambda port: ("--zeromq-bind-uri", f"tcp://127.0.0.1:{port}")
        closed = ("--elastic-host", f"https://localhost:{behind.port}", "--elastic-index-prefix", "site_", "-P", secret, "--no-check-certificates")
        # As its own command line has it: a host without a scheme, and nothing else.
        for port, prefix, options in ((ports[0], "colmet_", ("--elastic-host", f"127.0.0.1:{engine.port}")), (ports[1], "site_", closed)):
            with colmet.front(world, "colmet-collector", *bind(port), *options) as taker:
                colmet.send(f"tcp://127.0.0.1:{port}", *rounds)
                eventually(lambda prefix=prefix: len(engine.documents(f"{prefix}*")) == sum(map(len, packed.values())),
                           lambda taker=taker: f"all documents: {taker.log()}", pause_s=0.3)
            check("geheim" not in taker.log(), "no secret is shown")
        check(behind.requests and all(one[2] == authorization for one in behind.requests), "each request says who it is")
        for (title, field), target in board().items():
            kind = re.search(r"\}(\w+_default)", target["query"]).group(1)
            is_of_node = "involved_jobs" in target["query"]
            records = packed[f"job_{0 if is_of_node else 11}/{kind}"]
            # At the second time no job is involved; what is not known is in no document.
            values = [float(record[field]) for record in (records[:1] if is_of_node else records) if record[field] != -1]
            if "per second" in title:
                values = [(late - early) / 5 for early, late in zip(values, values[1:])]
            for prefix in ("colmet_", "site_"):
                equal(series(engine, target, "5s", job="11", prefix=prefix), {host: values}, f"{prefix}: {title}: {field}")


@test
def the_board_of_colmet_shows_what_a_daemon_measured(world):
    with Engine(world) as engine:
        colmet_config(world, engine, "      period: 1s\n      managers: local\n      events: [page_faults, context_switches]\n")
        world.start_system_daemon()
        job = world.run(*world.workload("burning", "cpu", "3"))
        world.met("wait", job).ok()
        totals, asked = world.show(job)["totals"], board()
        host, task = os.uname().nodename, "colmet_taskstats_default"
        plain = lambda target: {**target, "metrics": [{**target["metrics"][0], "hide": False}]}
        of = lambda title, field: series(engine, plain(asked[title, field]), job=job, prefix="colmet_").get(host, [])
        cpu = lambda: of("CPU time per second", "cpu_run_real_total") if engine.documents(task) else []
        # As a double, which aggregations are.
        wanted = float(round(totals["cpu_seconds"] * 1e9))
        eventually(lambda: cpu() and cpu()[-1] == wanted, lambda: f"{cpu()} instead of {wanted}: {status(world)}", pause_s=0.3)
        check(len(cpu()) >= 3 and cpu() == sorted(cpu()), cpu())
        check(max(of("Memory", "coremem")) > 0, of("Memory", "coremem"))
        for field, total in (("read_bytes", "read_bytes"), ("write_bytes", "written_bytes")):
            if total in totals:
                equal(max(of("Read and written per second", field)), totals[total], field)
        rate = series(engine, asked["CPU time per second", "cpu_run_real_total"], job=job, prefix="colmet_")[host]
        check(rate and max(rate) <= 1.5e9 * os.cpu_count(), rate)
        # The machine, by the jobs that it had.
        check(of("Load of the nodes", "loadavg_1min"), "the node of the job")
        found = engine.documents("colmet_procstats_default").values()
        check(any(one["involved_jobs"] == [int(job)] for one in found) and all(one["job_id"] == 0 for one in found), "job 0")
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        equal({one["meminfo_memtotal"] * 1024 for one in found}, {memory}, "memory of the node")
        _, mapping = engine.ask("GET", f"/{task}/_mapping")
        properties = mapping[task]["mappings"]["properties"]
        equal((properties["timestamp"]["format"], properties["hostname"]["fields"]["keyword"]["type"], properties["coremem"]["type"]),
              ("epoch_second", "keyword", "long"), "mapping")
        world.stop_system_daemon()


@test
def a_server_writes_the_samples_of_its_nodes(world):
    with contextlib.ExitStack() as stack:
        # On the server's own host, where an engine is expected without configuration.
        listens = lambda server: fronts.append(stack.enter_context(Front(None, space=server.space, port=9200)))
        fronts = []
        config = "sinks:\n  - elasticsearch: {interval: 300ms, format: jobmet}\n"
        made = stack.enter_context(cluster(world, 1, server_config=config, prepare=listens))
        node, (front,) = made.nodes[0], fronts
        job = node.met("run", "--print-id", "--wait", "--", "sleep", "1").ok().out.strip()
        of_job = lambda: [one for (index, _), one in list(front.taken.items()) if index == "met_job" and one["job"]["raw_id"] == job]
        found = eventually(of_job, "the samples of the job")
        equal({one["node"] for one in found}, {node.name}, "nodes")
        check(all("cpu_seconds" in one["values"] for one in found), found)


@test
def what_is_no_address_or_option_of_an_engine_is_refused_with_its_line(world):
    for options, words in (
        ("{url: localhost}", ("met.yaml:5:", "sinks.elasticsearch.url", "begins with http:// or https://")),
        ("{index_prefix: Colmet_}", ("met.yaml:5:", "lower-case")),
        ("{rotate: weekly}", ("met.yaml:5:", "never, daily, monthly")),
        ("{spool_size: much}", ("met.yaml:5:", "size")),
        ("{check_certificates: maybe}", ("met.yaml:5:", "yes, no")),
    ):
        world.configure(f"sinks:\n  - elasticsearch: {options}\n")
        world.met("daemon", "--user").refused(*words)
    world.configure("")
