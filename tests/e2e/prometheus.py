"""The page for Prometheus: a real one scrapes it, promtool has nothing to say against it, and no private data is shown."""

import base64
import concurrent.futures
import contextlib
import gzip
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import urllib.error
import urllib.parse
import urllib.request

from harness import Skip, check, close_to, equal, eventually, need_root, test

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
TLS = os.path.join(ROOT, "fixtures", "tls")
#: Of "secret", by few rounds: a debug build takes long for more.
HASH = "$2b$04$OeOFNLNMNAnOpkYzx1z61OITJ8QAZlXVZWaOkgpUcpFc6HW81U..."
#: Keeps a CPU busy for a while, holding some memory.
BUSY = "import time\nheld = bytearray(60_000_000)\nend = time.process_time() + {}\nwhile time.process_time() < end: pass\n"


def need(command):
    """The path of a command that a package brings."""
    found = shutil.which(command)
    if not found:
        raise Skip(f"there is no {command}; the package prometheus has it")
    return found


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Page:
    """The daemon of a user who configured a listener, and how it is asked."""

    def __init__(self, world, http="", more="", web=None, start=True):
        self.world, self.port, self.tls = world, free_port(), None
        if web is not None:
            self.web = os.path.join(world.root, "web.yml")
            self.write_web(web)
            http += f"  web_config: {self.web}\n"
            if "tls_server_config" in web:
                self.tls = ssl.create_default_context(cafile=os.path.join(TLS, "ca.pem"))
        world.configure(f"http:\n  listen: 127.0.0.1:{self.port}\n{http}{more}")
        self.log = os.path.join(world.root, "daemon.log")
        self.process = None
        if start:
            self.start()

    def write_web(self, text):
        with open(self.web + ".new", "w") as file:
            file.write(text)
        os.rename(self.web + ".new", self.web)

    def start(self):
        with open(self.log, "ab") as log:
            self.process = self.world.me.spawn("daemon", "--user", stdout=log, stderr=log)
        self.world.me.daemon_pid()
        # The first tick has been made.
        eventually(lambda: b"met_daemon_jobs" in self.anything(), "a page")

    def anything(self):
        try:
            return self.ask("/metrics", login=("ann", "secret"))[1]
        except urllib.error.HTTPError as error:
            return error.read()

    def url(self, path):
        return f"{'https' if self.tls else 'http'}://localhost:{self.port}{path}"

    def ask(self, path="/metrics", login=None, **headers):
        """Headers and body of an answer."""
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        if login:
            headers["Authorization"] = "Basic " + base64.b64encode(":".join(login).encode()).decode()
        request = urllib.request.Request(self.url(path), headers=headers)
        with urllib.request.urlopen(request, context=self.tls, timeout=60) as answer:
            return answer.headers, answer.read()

    def code(self, path="/metrics", **options):
        try:
            self.ask(path, **options)
            return 200
        except urllib.error.HTTPError as error:
            return error.code

    def text(self, **options):
        return self.ask(**options)[1].decode()

    def value(self, series, **options):
        """The value of a series as it is written, or nothing."""
        for line in self.text(**options).splitlines():
            name, _, value = line.rpartition(" ")
            if name == series:
                return float(value)
        return None


def of_job(metric, job):
    return f'met_job_{metric}{{manager="local",id="{job}"}}'


class Prometheus:
    """A real one, which scrapes the page every second."""

    def __init__(self, page, extra=""):
        program, world = need("prometheus"), page.world
        self.port = free_port()
        self.folder = os.path.join(world.root, "prometheus")
        os.mkdir(self.folder)
        config = os.path.join(self.folder, "prometheus.yml")
        with open(config, "w") as file:
            file.write(
                "global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}\n"
                f"rule_files: [{ROOT}/rules/met.recording.yaml, {ROOT}/rules/met.alerts.yaml]\n"
                "scrape_configs:\n"
                f"- job_name: met\n  static_configs: [{{targets: ['localhost:{page.port}']}}]\n{extra}"
            )
        with open(os.path.join(self.folder, "log"), "wb") as log:
            self.process = world.me.start(
                program, f"--config.file={config}", f"--storage.tsdb.path={self.folder}/data",
                f"--web.listen-address=127.0.0.1:{self.port}", "--log.level=warn", stdout=log, stderr=log)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)

    def query(self, promql):
        """The values by their labels; nothing while it is not up."""
        url = f"http://127.0.0.1:{self.port}/api/v1/query?" + urllib.parse.urlencode({"query": promql})
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                result = json.load(answer)["data"]["result"]
        except (urllib.error.URLError, ConnectionError):
            return []
        return [(one["metric"], float(one["value"][1])) for one in result]

    def number(self, promql):
        found = self.query(promql)
        return found[0][1] if found else None

    def appears(self, promql):
        eventually(lambda: self.query(promql), lambda: f"{promql} is answered; {self.said()}", pause_s=0.2)
        return self.number(promql)

    def said(self):
        with open(os.path.join(self.folder, "log"), errors="replace") as file:
            return file.read()[-500:]


@test
def a_page_is_in_order_in_both_formats(world):
    page = Page(world)
    job = world.me.run("sleep", "1000")
    eventually(lambda: page.value(of_job("cpu_seconds_total", job)) is not None, "the job is on the page")
    said = subprocess.run([need("promtool"), "check", "metrics"], input=page.text().encode(), capture_output=True)
    equal((said.returncode, said.stdout + said.stderr), (0, b""), "promtool check metrics")
    headers, text = page.ask(Accept="application/openmetrics-text; version=1.0.0")
    check(headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0"), headers)
    check(text.endswith(b"\n# EOF\n") and text.count(b"# EOF") == 1, text[-100:])
    check(b"# TYPE met_job_cpu_seconds counter\n# UNIT met_job_cpu_seconds seconds\n" in text, "OpenMetrics heads")
    headers, packed = page.ask(Accept_Encoding="gzip")
    equal(headers["Content-Encoding"], "gzip", "encoding")
    check(b"met_job_cpu_seconds_total" in gzip.decompress(packed), "the page is in it")
    check(page.ask()[0]["Content-Encoding"] is None, "packed only on request")
    for name in ("met_build_info", "met_node_memory_total_bytes", "met_source_success", "met_daemon_cpu_seconds_total",
                 "met_energy_used_joules_total", "met_emission_factor_grams_per_kilowatt_hour{provider="):
        check(f"\n{name}" in "\n" + page.text(), f"{name} is missing")
    equal(page.code("/nothing"), 404, "another path")
    world.me.met("cancel", job).ok()


@test
def a_prometheus_says_what_show_says(world):
    # Only `all` has every digit.
    page = Page(world, http="  metrics: all\n")
    with Prometheus(page) as prometheus:
        prometheus.appears("up == 1")
        job = world.me.run(world.python, "-c", BUSY.format(4))
        series = f'{{manager="local",id="{job}"}}'
        seen = prometheus.appears(f"met_job_memory_needed_bytes{series} > 6e7")
        close_to(seen, world.me.show(job)["totals"]["memory_needed_peak_bytes"], 0.1, "memory while it runs")
        equal(prometheus.number(f"met_job_info{series}"), 1.0, "info")
        world.me.wait_for_state(job, "finished")
        # The last share of energy comes when the last window is closed.
        names = ["cpu_seconds", "wall_seconds", "energy_joules", "memory_needed_peak_bytes", "memory_peak_bytes"]

        def agree():
            totals = world.me.show(job)["totals"]
            shown = {}
            for name in names:
                total = "" if name.endswith("bytes") else "_total"
                shown[name] = prometheus.number(f"met_job_{name}{total}{series}")
            pairs = [(shown[name], totals.get(name)) for name in names if name in totals]
            return shown if len(pairs) >= 4 and all(one == other for one, other in pairs) else None

        shown = eventually(agree, "the last figures are the same", pause_s=0.5)
        check(shown["cpu_seconds"] >= 4 and shown["energy_joules"] > 0, shown)
        equal(prometheus.query(f"met_job_info{series}")[0][0]["state"], "finished", "state")
        check(prometheus.number("max_over_time(met:job_cpu_cores:rate5m[1m])") > 0, "a recording rule")
        equal(prometheus.query("ALERTS"), [], "alerts")
        equal(prometheus.number("up"), 1.0, "up")


@test
def the_rules_are_in_order(world):
    promtool = need("promtool")
    rules = os.path.join(ROOT, "rules")
    for arguments in (["check", "rules", f"{rules}/met.recording.yaml", f"{rules}/met.alerts.yaml"],
                      ["test", "rules", f"{rules}/test.yaml"]):
        said = subprocess.run([promtool, *arguments], capture_output=True, text=True)
        check(said.returncode == 0 and "FAILED" not in said.stdout, said.stdout + said.stderr)
    page = Page(world)
    known = {line.split()[2] for line in page.text().splitlines() if line.startswith("# TYPE")}
    with open(os.path.join(ROOT, "docs", "metrics.md")) as file:
        known |= {word for word in file.read().replace("`", " ").split() if word.startswith("met_")}
    for name in ("met.recording.yaml", "met.alerts.yaml"):
        with open(os.path.join(rules, name)) as file:
            text = "\n".join(line for line in file if "expr:" in line or line.startswith(" " * 10))
        used = {word for word in re.findall(r"\bmet_\w+", text)}
        unknown = {word for word in used - known if not word.endswith("_")}
        check(used and not unknown, f"{name}: {unknown}")


@test
def who_logs_in_is_told_whose_a_job_is_and_nobody_else_is_told_anything(world):
    page = Page(world, web=f"basic_auth_users:\n  ann: {HASH}\n")
    job = world.me.run("sleep", "1000", options=["--name", "very-secret"])
    eventually(lambda: page.value(of_job("cpu_seconds_total", job), login=("ann", "secret")) is not None, "it is there")
    for login in (None, ("ann", "wrong"), ("bob", "secret"), ("", "")):
        equal(page.code(login=login), 401, f"as {login}")
    info = [line for line in page.text(login=("ann", "secret")).splitlines() if line.startswith("met_job_info")]
    check('name="very-secret"' in info[0] and f'user="{world.me.name}"' in info[0], info)
    with Prometheus(page, "  basic_auth: {username: ann, password: secret}\n") as prometheus:
        prometheus.appears(f'met_job_info{{name="very-secret",id="{job}"}}')
    # Without passwords every user of the machine can read it, without users' names.
    page.write_web("")
    world.me.stop_daemon()
    page.start()
    eventually(lambda: page.value(of_job("cpu_seconds_total", job)) is not None, "it is there again")
    text = page.text()
    for word in ("very-secret", 'user="', 'account="', 'name="very', "sleep"):
        check(word not in text, f"{word} is shown to everybody")
    world.me.met("cancel", job).ok()


@test
def the_page_is_spoken_over_tls_and_a_new_file_holds_without_a_new_daemon(world):
    tls = f"tls_server_config:\n  cert_file: {TLS}/server.pem\n  key_file: {TLS}/server-key.pem\n  min_version: TLS13\n"
    page = Page(world, web=tls)
    check("met_build_info" in page.text(), "a page")
    with Prometheus(page, f"  scheme: https\n  tls_config: {{ca_file: {TLS}/ca.pem}}\n") as prometheus:
        prometheus.appears("met_daemon_jobs")
    pid = world.me.daemon_pid()
    page.write_web(tls + f"basic_auth_users: {{ann: {HASH}}}\n")
    eventually(lambda: page.code() == 401, "the passwords hold")
    page.write_web("nonsense: yes\n")
    os.kill(pid, signal.SIGHUP)
    eventually(lambda: "nonsense" in open(page.log).read(), "the complaint about the bad file")
    equal((page.code(), page.code(login=("ann", "secret"))), (401, 200), "a bad file changes nothing")
    equal(world.me.daemon_pid(), pid, "the daemon")


@test
def a_listener_that_cannot_be_is_refused_in_one_line(world):
    def refused(http, *words):
        world.configure(http)
        world.me.met("daemon", "--user").refused(*words)

    web = os.path.join(world.root, "web.yml")
    with open(web, "w") as file:
        file.write("basic_auth_users: {ann: secret}\n")
    refused(f"http: {{listen: '127.0.0.1:0', web_config: {web}}}\n", "web.yml", "bcrypt")
    refused("http: {listen: '127.0.0.1:0', web_config: /nowhere/web.yml}\n", "/nowhere/web.yml", "No such file")
    refused("http: {listen: '0.0.0.0:0'}\n", "0.0.0.0:0", "plain")
    refused("http: {listen: nonsense}\n", "http.listen", "127.0.0.1:9317")
    refused("http: {listen: '127.0.0.1:0', jobs_max: many}\n", "http.jobs_max")
    refused("http: {listen: '127.0.0.1:0', metrics: everything}\n", "http.metrics", "usual")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused(f"http: {{listen: '127.0.0.1:{port}'}}\n", str(port), "in use")
        # A job is measured all the same: its daemon was not asked for by name.
        equal(world.me.run_to_end("true")["job"]["state"], "finished", "state")
    world.me.stop_daemon()
    world.configure("http: {listen: '0.0.0.0:0', plain: yes}\n")
    world.me.run_to_end("true")


def listening_sockets(pid):
    inodes = set()
    for name in ("tcp", "tcp6"):
        with open(f"/proc/{pid}/net/{name}") as file:
            fields = [line.split() for line in file.readlines()[1:]]
            inodes |= {f"socket:[{line[9]}]" for line in fields if line[3] == "0A"}
    held = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        # One that was closed meanwhile does not listen.
        with contextlib.suppress(FileNotFoundError):
            held.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return held & inodes


@test
def nothing_listens_unless_it_is_asked_for(world):
    job = world.me.run("sleep", "1000")
    equal(listening_sockets(world.me.daemon_pid()), set(), "a user's daemon")
    world.me.met("cancel", job).ok()
    if os.geteuid() == 0:
        world.start_system_daemon()
        equal(listening_sockets(world.system.pid), set(), "the system daemon")


@test
def the_thread_that_strangers_speak_to_has_given_up_what_root_may(world):
    need_root()
    port = free_port()
    world.configure(f"http: {{listen: '127.0.0.1:{port}'}}\n")
    world.start_system_daemon()
    rights = {}
    for task in os.listdir(f"/proc/{world.system.pid}/task"):
        with open(f"/proc/{world.system.pid}/task/{task}/status") as file:
            status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
        rights[status["Name"]] = int(status["CapEff"], 16)
    dac_read_search = 1 << 2
    equal(rights["http"] & ~dac_read_search, 0, "rights of the thread")
    check(rights["sampler"] != 0, rights)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        check(b"met_build_info" in answer.read(), "a page")


@test
def a_thousand_pieces_of_garbage_disturb_nobody(world):
    page = Page(world, more="sampling:\n  interval: 200ms\n")
    job = world.me.run("sleep", "1000")
    eventually(lambda: page.value(of_job("cpu_seconds_total", job)) is not None, "it is there")
    before = page.value("met_daemon_ticks_total")
    pieces = [
        b"\x16\x03\x01\x02\x00" + os.urandom(200), os.urandom(300), b"GET /metrics HTTP/9.9\r\n\r\n",
        b"GET " + b"/" * 20_000 + b" HTTP/1.1\r\n\r\n", b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Basic ////\r\nAccept: ;;q=,;\r\nConnection: close\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\n" + b"".join(b"X-%d: y\r\n" % number for number in range(500)) + b"\r\n",
        b"GET /../../etc/passwd HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b"",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\n",
    ]

    def send(number):
        with socket.create_connection(("127.0.0.1", page.port), timeout=60) as stream:
            try:
                stream.sendall(pieces[number % len(pieces)])
                stream.shutdown(socket.SHUT_WR)
                return stream.recv(200)
            except ConnectionError:
                return b""

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(send, range(1000)))
    check(any(answer.startswith(b"HTTP/1.1 400") for answer in answers), set(answers))
    check(not any(b"root:" in answer for answer in answers), "no file is shown")
    eventually(lambda: page.value("met_daemon_ticks_total") > before, "it samples on")
    check(page.value(of_job("cpu_seconds_total", job)) is not None, "the job")
    with open(f"/proc/{world.me.daemon_pid()}/status") as file:
        resident = next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))
    check(resident < 100_000, f"{resident} kB")
    world.me.met("cancel", job).ok()


NOT_SHOWN = 'met_jobs_not_shown{{by="{}"}}'


def series_of(page, job):
    """The names of a job's series."""
    return {line.partition("{")[0] for line in page.text().splitlines() if f'{{manager="local",id="{job}"' in line}


@test
def the_page_has_what_is_usual_unless_more_or_less_is_configured(world):
    page = Page(world)
    job = world.me.run(world.python, "-c", BUSY.format(1) + "time.sleep(1000)\n")
    eventually(lambda: (page.value(of_job("cpu_seconds_total", job)) or 0) > 0.5, "the job is on the page")
    shown = {}
    for metrics in ("usual", "minimal", "all"):
        world.me.stop_daemon()
        world.configure(f"http:\n  listen: 127.0.0.1:{page.port}\n  metrics: {metrics}\n")
        page.start()
        eventually(lambda: (page.value(of_job("cpu_seconds_total", job)) or 0) > 0.5, f"it is on the page with {metrics}")
        # Energy comes with the first closed window.
        eventually(lambda: page.value(of_job("energy_joules_total", job)) is not None, f"energy with {metrics}")
        shown[metrics] = series_of(page, job)
    check(shown["minimal"] < shown["usual"] < shown["all"], shown)
    check(4 <= len(shown["minimal"]) <= 5 and 7 <= len(shown["usual"]) <= 12 and len(shown["all"]) > 30, shown)
    check("met_job_info" in shown["minimal"], shown["minimal"])
    world.me.met("cancel", job).ok()


@test
def jobs_are_left_out_of_the_page_by_manager_and_age(world):
    page = Page(world, http="  jobs_managers: slurm, oar\n")
    job = world.me.run("sleep", "1000")
    eventually(lambda: page.value(NOT_SHOWN.format("jobs_managers")) == 1, "it is counted")
    eventually(lambda: page.value("met_jobs_not_shown_cpu_seconds") is not None, "it is added up")
    equal((series_of(page, job), page.value(NOT_SHOWN.format("jobs_max"))), (set(), 0.0), "its series")
    world.me.stop_daemon()
    world.configure(f"http:\n  listen: 127.0.0.1:{page.port}\n  jobs_managers: local\n  jobs_after: 100d\n")
    page.start()
    eventually(lambda: page.value(NOT_SHOWN.format("jobs_after")) == 1, "it is too young")
    equal((series_of(page, job), page.value(NOT_SHOWN.format("jobs_managers"))), (set(), 0.0), "its series")
    world.me.stop_daemon()
    world.configure(f"http:\n  listen: 127.0.0.1:{page.port}\n  jobs_managers: local\n  jobs_after: 1s\n")
    page.start()
    eventually(lambda: "met_job_cpu_seconds_total" in series_of(page, job), "it is old enough")
    world.me.met("cancel", job).ok()


@test
def jobs_beyond_the_limit_are_added_up_and_those_that_ended_leave(world):
    page = Page(world, http="  metrics: all\n  jobs_max: 2\n  keep_ended: 1s\n")
    jobs = [world.me.run("sleep", "1000") for _ in range(4)]
    eventually(lambda: page.value(NOT_SHOWN.format("jobs_max")) == 2 and page.value("met_jobs_not_shown_processes_running") == 2,
               "two are shown, two are added up")
    shown = [job for job in jobs if page.value(of_job("wall_seconds_total", job)) is not None]
    equal(shown, jobs[:2], "the oldest keep their series")
    for job in jobs[:2]:
        world.me.met("cancel", job).ok()
    eventually(lambda: page.value(of_job("processes_running", jobs[3])) == 1, "there is room for the others")
    eventually(lambda: page.value(of_job("wall_seconds_total", jobs[0])) is None, "an ended job leaves")
    eventually(lambda: page.value(NOT_SHOWN.format("jobs_max")) == 0, "none is left out")
    for job in jobs[2:]:
        world.me.met("cancel", job).ok()
    findings = {one["what"]: one for one in world.me.met("doctor", "--json").ok().json()}
    check(str(page.port) in findings["http"]["detail"] and findings["http"]["health"] == "ok", findings["http"])


@test
def a_daemon_that_may_not_listen_is_explained_where_people_look(world):
    world.configure("http:\n  listen: 0.0.0.0:0\n")
    words = "can be reached by other machines, and TLS is off: set web_config"
    findings = lambda: {one["what"]: one for one in world.me.met("doctor", "--json").ok().json()}
    check(words in findings()["http"]["detail"], "doctor without a daemon", findings()["http"])
    first = world.met("run", "--", "sleep", "1000").ok()
    check("the daemon will not listen: http: " in first.err and words in first.err, "the first job", first.err)
    world.me.daemon_pid()
    second = world.met("run", "--", "true").ok()
    check("the daemon does not listen: http: " in second.err and words in second.err, "the next job", second.err)
    status = world.met("daemon", "--status").ok().out
    check("http: not listening: " in status and words in status, "the status", status)
    found = findings()["http"]
    check(words in found["detail"] and "met daemon --stop" in found["remedy"], "doctor", found)
    world.configure("http:\n  listen: 127.0.0.1:0\n")
    world.stop_daemon()
    check(not world.met("run", "--", "sleep", "1000").ok().err, "nothing is wrong any more")
    world.me.daemon_pid()
    check("http: listening on 127.0.0.1:" in world.met("daemon", "--status").ok().out, "where it listens")
    for job in world.jobs("--state", "running"):
        world.met("cancel", job["job"]["id"]).ok()
