"""The API of daemon and server: the same answers as the commands give, and nothing for those who may not see them."""

import base64
import csv
import gzip
import http.client
import io
import json
import os
import re
import subprocess
import urllib.error
import urllib.parse
import urllib.request

from cluster import all_the_same, cluster
from harness import Failed, Skip, check, each, equal, eventually, need_root, test
from prometheus import HASH, free_port
from web_site import SACCT, Browser, JOBS, Site, script

HERE = os.path.dirname(os.path.abspath(__file__))

OPERATOR = ("ann", "secret")
#: What is asked where the OpenAPI document cannot be read; where it can, it says which endpoints there are.
EVERY_PATH = ("/api/v1/jobs", "/api/v1/jobs/1", "/api/v1/jobs/1/series", "/api/v1/jobs/1/series?card=x", "/api/v1/jobs/1/series?event=x",
              "/api/v1/jobs/1/processes", "/api/v1/nodes", "/api/v1/nodes/n1", "/api/v1/nodes/n1/series", "/api/v1/users", "/api/v1/accounts",
              "/api/v1/energy", "/api/v1/emissions", "/api/v1/usage", "/api/v1/catalogue", "/api/v1/health", "/api/v1/openapi.json", "/api/v1/stream")


class Asked:
    """One answer: its status, and what it says."""

    def __init__(self, url, login=None, token=None, headers=None):
        request = urllib.request.Request(url, headers=headers or {})
        if login:
            request.add_header("Authorization", "Basic " + base64.b64encode(":".join(login).encode()).decode())
        if token:
            request.add_header("Authorization", f"Bearer {token}")
        try:
            answer = urllib.request.urlopen(request, timeout=60)
        except urllib.error.HTTPError as error:
            answer = error
        with answer:
            self.status, self.headers, self.bytes = answer.status, answer.headers, answer.read()
        packed = self.headers.get("Content-Encoding") == "gzip"
        self.text = (gzip.decompress(self.bytes) if packed else self.bytes).decode()

    def json(self):
        equal(self.status, 200, f"status, of {self.text}")
        return json.loads(self.text)

    def refused(self, status):
        equal(self.status, status, f"status, of {self.text}")
        check('"job"' not in self.text and '"jobs"' not in self.text, "nothing is said of jobs:", self.text)
        return self.text


def all_jobs(ask, limit):
    """Every job, page by page."""
    jobs, path = [], f"/api/v1/jobs?limit={limit}"
    while True:
        answer = ask(path).json()
        jobs += answer["jobs"]
        if answer["next"] is None:
            return jobs
        path = f"/api/v1/jobs?limit={limit}&after={urllib.parse.quote(answer['next'])}"


def is_same(from_api, listed):
    try:
        same_jobs(from_api, listed)
    except Failed:
        return False
    return True


def same_jobs(from_api, listed):
    identity = lambda job: (job["job"]["manager"], job["job"]["id"], job["job"]["start"], job["job"]["user"], job["job"]["state"])
    equal([identity(job) for job in from_api], [identity(job) for job in listed], "jobs")
    equal([job["totals"] for job in from_api], [job["totals"] for job in listed], "totals")


@test
def a_system_daemon_answers_operators_and_nobody_else(world):
    need_root()
    web, port = os.path.join(world.root, "web.yml"), free_port()
    with open(web, "w") as file:
        file.write(f"basic_auth_users: {{ann: {HASH}, scraper: {HASH}}}\n")
    world.configure(f"sampling:\n  interval: 100ms\nhttp:\n  listen: 127.0.0.1:{port}\n  web_config: {web}\n  operators: ann, zoe\n")
    world.start_system_daemon()
    ada = world.someone()
    for _ in range(3):
        ada.run_to_end("true", options=("--name", "train"))
    world.me.run_to_end("sh", "-c", "sleep 0.5")
    at = lambda path: f"http://127.0.0.1:{port}{path}"
    ask = lambda path: Asked(at(path), login=OPERATOR)
    for path in EVERY_PATH:
        Asked(at(path)).refused(401)
        Asked(at(path), login=("ann", "wrong")).refused(401)
        check("http.operators" in Asked(at(path), login=("scraper", "secret")).refused(403), "what is needed is named")
        Asked(at(path), token="0" * 64).refused(401)
    jobs = lambda: world.me.met("list", "--json").ok().json()
    one = lambda: ask(f"/api/v1/jobs/{jobs()[0]['job']['id']}").json()
    equal(len(jobs()), 4, "jobs, for root")
    # Energy may be shared out a moment after the end.
    eventually(lambda: is_same(all_jobs(ask, 2), jobs()), lambda: f"jobs: {all_jobs(ask, 2)}, met list: {jobs()}")
    eventually(lambda: is_same([one()], jobs()[:1]), lambda: f"the newest: {one()}, met list: {jobs()[0]}")
    newest = jobs()[0]
    series = ask(f"/api/v1/jobs/{newest['job']['id']}/series").json()
    check(len(series["times"]) >= 2, "samples of half a second:", series["times"])
    equal({len(cells) for cells in series["columns"].values()}, {len(series["times"])}, "samples in each column")
    equal((series["table"], series["next"]), ("job", None), "table and next")
    after = ask(f"/api/v1/jobs/{newest['job']['id']}/series?after={series['times'][0]}").json()
    equal(after["times"], series["times"][1:], "times after the first")
    (node,) = ask("/api/v1/nodes").json()["nodes"]
    equal(node["name"], os.uname().nodename, "the node")
    ask("/api/v1/jobs/4711").refused(404)
    ask("/api/v1/jobs?limit=0").refused(400)
    ask("/api/v1/jobs?order=x").refused(400)
    equal(ask("/api/v1/").status, 404, "what is not there")


@test
def a_running_job_is_in_the_answers_of_a_daemon(world):
    web, port = os.path.join(world.root, "web.yml"), free_port()
    with open(web, "w") as file:
        file.write(f"basic_auth_users: {{ann: {HASH}}}\n")
    world.configure(f"sampling:\n  interval: 100ms\nhttp:\n  listen: 127.0.0.1:{port}\n  web_config: {web}\n  operators: ann\n")
    job = world.me.run(*world.workload("burn_until_terminated", world.me.path("used"), world.me.path("ready")), options=("--name", "train"))
    ask = lambda path: Asked(f"http://127.0.0.1:{port}{path}", login=OPERATOR)
    running = lambda: ask("/api/v1/jobs?state=running").json()["jobs"]
    world.me.daemon_pid()
    eventually(lambda: running() and running()[0]["totals"].get("cpu_seconds", 0) > 0.2, "CPU time of a running job")
    eventually(lambda: len(ask(f"/api/v1/jobs/{job}/series").json()["times"]) >= 3, "its samples")
    equal(ask("/api/v1/jobs?state=finished").json(), {"jobs": [], "next": None}, "finished jobs")
    # What is not on disk yet is in the answer.
    equal(ask("/api/v1/jobs/train").json()["job"]["state"], "running", "state")
    world.me.met("cancel", str(job)).ok()


@test
def a_running_job_of_met_time_counts_on_its_node(world):
    port, web = free_port(), os.path.join(world.root, "web-timed.yaml")
    with open(web, "w") as file:
        file.write(f"basic_auth_users:\n  ann: {HASH}\n")
    world.configure(f"http:\n  listen: 127.0.0.1:{port}\n  web_config: {web}\n  operators: ann\n")
    running = world.run("sleep", "600")
    world.daemon_pid()
    timed = world.spawn("time", "--", "sleep", "600")
    ask = lambda path: Asked(f"http://127.0.0.1:{port}{path}", login=OPERATOR).json()
    eventually(lambda: len(ask("/api/v1/jobs?state=running")["jobs"]) == 2, "both are listed")
    (node,) = ask("/api/v1/nodes")["nodes"]
    timed.terminate()
    timed.communicate()
    world.met("cancel", running).ok()
    equal(node["jobs"], 2, "jobs of the node")


@test
def without_passwords_a_daemon_answers_nobody(world):
    port = free_port()
    world.configure(f"http:\n  listen: 127.0.0.1:{port}\n")
    world.me.start_daemon()
    world.me.run_to_end("true", options=("--name", "train"))
    for path in EVERY_PATH:
        check("web_config" in Asked(f"http://127.0.0.1:{port}{path}").refused(401), "what is needed is named")
    equal(Asked(f"http://127.0.0.1:{port}/metrics").status, 200, "the page for Prometheus")


@test
def a_server_shows_a_user_his_own_jobs_and_a_node_none(world):
    with cluster(world, 2) as made:
        for node in made.nodes:
            for _ in range(3):
                node.met("run", "--wait", "--name", "train", "--", "true").ok()
        all_the_same(made)
        at = lambda path: f"http://127.0.0.1:{made.forwarded}{path}"
        root, ada = made.server.enroll("root", "--user"), made.server.enroll("ada", "--user")
        operator, node = made.server.enroll("op", "--operator"), made.server.enroll("n9")
        listed = made.ask("list", "--json").ok().json()
        for token in (root, operator):
            same_jobs(all_jobs(lambda path: Asked(at(path), token=token), 2), listed)
        equal(Asked(at("/api/v1/jobs"), token=ada).json(), {"jobs": [], "next": None}, "jobs, for ada")
        equal(Asked(at("/api/v1/jobs?user=root"), token=ada).json()["jobs"], [], "jobs of root, for ada")
        for path in ("/api/v1/jobs/1@n1", "/api/v1/jobs/1@n1/series", "/api/v1/jobs/train", "/api/v1/jobs/@last"):
            Asked(at(path), token=ada).refused(404)
            equal(Asked(at(path), token=root).status, 200, f"status of {path}")
        Asked(at("/api/v1/jobs/1"), token=root).refused(400)
        check("ambiguous" in Asked(at("/api/v1/jobs/1"), token=root).text, "which of two is asked")
        for path in EVERY_PATH:
            Asked(at(path), token=node).refused(403)
            Asked(at(path), token="0" * 64).refused(401)
            Asked(at(path)).refused(401)
        nodes = Asked(at("/api/v1/nodes"), token=ada).json()["nodes"]
        equal({one["name"] for one in nodes}, {one["name"] for one in made.ask("nodes", "--json").ok().json()}, "nodes")


def with_details(world, more):
    """A system daemon that samples often, and how an operator asks it."""
    web, port = os.path.join(world.root, "web.yml"), free_port()
    with open(web, "w") as file:
        file.write(f"basic_auth_users: {{ann: {HASH}}}\n")
    world.configure(f"sampling:\n  interval: 200ms\n{more}"
                    f"http:\n  listen: 127.0.0.1:{port}\n  web_config: {web}\n  operators: ann\n  metrics: all\n")
    world.start_system_daemon()
    return lambda path: Asked(f"http://127.0.0.1:{port}{path}", login=OPERATOR)


def on_page(ask, name, job, *labels):
    """The value of a job's metric, if it is there."""
    wanted = [f'id="{job}"', *labels]
    for line in ask("/metrics").text.splitlines():
        if line.startswith(name + "{") and all(label in line for label in wanted):
            return float(line.split()[-1])
    return None


@each(stored=True, shown_only=False)
def details_of_a_job_are_shown_and_stored_where_that_is_configured(world, stored):
    need_root()
    ask = with_details(world, "storage:\n  job_details: yes\n" if stored else "")
    user = world.someone()
    # Eight megabytes that never reach the disk, then a process that ends, and one that stays.
    job = user.run("sh", "-c", "head -c 8000000 /dev/zero >out; : >out; exec sleep 600")
    virtual = eventually(lambda: on_page(ask, "met_job_detail_memory_virtual_bytes", job), "its address space")
    check(virtual > 100_000, virtual)
    eventually(lambda: (on_page(ask, "met_job_write_cancelled_bytes_total", job) or 0) >= 7_000_000, "what was cancelled")
    runs = eventually(lambda: on_page(ask, "met_job_detail_cpu_runs_total", job), "times it was given a CPU")
    check(runs >= 2, "of the process that ended, too:", runs)
    series = lambda: ask(f"/api/v1/jobs/{job}/series?details=1").json()
    if stored:
        found = eventually(lambda: (found := series())["times"] and found, "a sample of details")
        equal(found["table"], "job_detail", "table")
        check(found["columns"]["memory_virtual_bytes"][0] > 100_000, found["columns"])
    user.met("cancel", job).ok()
    user.wait_for_state(job, "cancelled", "failed", "finished")
    equal(bool(series()["times"]), stored, "samples of details after the end")
    check(user.show(job)["totals"]["write_cancelled_bytes"] >= 7_000_000, user.show(job)["totals"])
    ask(f"/api/v1/jobs/{job}/series?details=1&event=x").refused(400)


@test
def events_of_a_running_job_are_series_that_follow_live_changes(world):
    need_root()
    ask = with_details(world, "")
    user = world.someone()
    job = user.run("sh", "-c", "while :; do /bin/true; done")
    eventually(lambda: on_page(ask, "met_job_processes_total", job), "the job is sampled")
    configured = world.met("configure", "--perf", "page_faults,context_switches", "--job", job).ok()
    if configured.err:
        raise Skip(configured.err.strip())
    series = lambda name: ask(f"/api/v1/jobs/{job}/series?event={name}").json()
    # Of a sampler that is busy, an answer has only what is stored.
    found = eventually(lambda: len((found := series("page_faults"))["times"]) >= 2 and found,
                       "two samples, ten seconds apart")
    equal((found["table"], found["part"]), ("event", "page_faults"), "table and event")
    counts = found["columns"]["count"]
    check(0 <= counts[0] < counts[1], counts)
    check(on_page(ask, "met_event_count_total", job, 'event="page_faults"') >= counts[1], "the page has it")
    eventually(lambda: "page_faults, peak" in user.met("show", job).ok().out, "it is plotted")
    world.met("configure", "--perf", "context_switches,task_clock", "--job", job).ok()
    eventually(lambda: series("task_clock")["times"], "a sample of what is counted now")
    stopped = eventually(lambda: len(series("page_faults")["times"]), "its samples")
    switches = len(series("context_switches")["times"])
    eventually(lambda: len(series("context_switches")["times"]) > switches, "what goes on goes on")
    check(len(series("page_faults")["times"]) <= stopped + 1, "samples of what is not counted any more")
    user.met("cancel", job).ok()
    user.wait_for_state(job, "cancelled", "failed", "finished")
    ended = series("context_switches")
    check(ended["columns"]["count"] == sorted(ended["columns"]["count"]), ended)
    equal(ended["columns"]["count"][-1], user.show(job)["events"]["counts"]["context_switches"]["count"], "the last sample")
    user.met("rm", job).ok()
    ask(f"/api/v1/jobs/{job}/series?event=page_faults").refused(404)


@test
def a_supervisor_passes_its_counters_to_whichever_daemon_samples_the_job(world):
    need_root()
    ask = with_details(world, "perf:\n  events: [page_faults, task_clock]\n")
    user = world.someone()
    job = user.run("sh", "-c", "while :; do /bin/true; done")
    series = lambda name: ask(f"/api/v1/jobs/{job}/series?event={name}").json()
    eventually(lambda: on_page(ask, "met_job_processes_total", job), "the job is sampled")
    try:
        eventually(lambda: series("page_faults")["times"], "a sample of the supervisor's counter")
    except AssertionError:
        if "events" not in user.show(job):
            raise Skip("perf events are not allowed") from None
        raise
    shown = user.show(job)["events"]["counts"]["page_faults"]
    # By the supervisor, from the first instruction on: not what a daemon began to count later.
    check(shown["kind"] != "lower_bound" or "user code only" in shown["source"], shown)
    check(on_page(ask, "met_event_count_total", job, 'event="task_clock"') > 0, "the page has it")
    # Another daemon gets them from the same supervisor, and goes on where the first one was.
    before = eventually(lambda: series("page_faults")["columns"].get("count"), "its samples")
    world.stop_system_daemon()
    world.start_system_daemon()
    eventually(lambda: on_page(ask, "met_event_count_total", job, 'event="page_faults"'), "it is counted again")
    eventually(lambda: len(series("page_faults")["times"]) > len(before), "a sample of the second daemon")
    user.met("cancel", job).ok()
    user.wait_for_state(job, "cancelled", "failed", "finished")
    counts = series("page_faults")["columns"]["count"]
    equal(counts, sorted(counts), "counts, which only grow")
    total = user.show(job)["events"]["counts"]["page_faults"]["count"]
    check(before[-1] < counts[-1] <= total, before, counts, total)


@test
def a_server_has_the_series_of_events_and_details_of_its_nodes(world):
    more = "perf:\n  events: [page_faults, task_clock]\nstorage:\n  job_details: yes\n"
    with cluster(world, 1, node_config=more) as made:
        (node,) = made.nodes
        node.met("run", "--wait", "--", "sh", "-c", "i=0; while [ $i -lt 300 ]; do /bin/true; i=$((i+1)); done").ok()
        all_the_same(made)
        token = made.server.enroll("op2", "--operator")
        ask = lambda path: Asked(f"http://127.0.0.1:{made.forwarded}/api/v1/jobs/1@n1{path}", token=token).json()
        counts = ask("").get("events", {}).get("counts", {})
        if "page_faults" not in counts:
            raise Skip("perf events are not allowed")
        eventually(lambda: ask("/series?event=page_faults")["times"], "a sample of an event")
        found = ask("/series?event=page_faults")
        equal((found["table"], found["part"]), ("event", "page_faults"), "table and event")
        check(0 < found["columns"]["count"][-1] <= counts["page_faults"]["count"], found, counts)
        eventually(lambda: ask("/series?details=1")["times"], "a sample of details")
        check(ask("/series?details=1")["columns"]["memory_virtual_bytes"][0] > 0, ask("/series?details=1"))
        equal(Asked(f"http://127.0.0.1:{made.forwarded}/api/v1/jobs/1@n1/series?event=nothing", token=token).status, 400, "status for an event that was not counted")


@test
def answers_are_cached_compressed_and_csv_where_that_is_wanted(world):
    web, port = os.path.join(world.root, "web.yml"), free_port()
    with open(web, "w") as file:
        file.write(f"basic_auth_users: {{ann: {HASH}}}\n")
    world.configure(f"sampling:\n  interval: 100ms\nhttp:\n  listen: 127.0.0.1:{port}\n  web_config: {web}\n  operators: ann\n")
    for name in ("=1+1", "two\nlines", 'a,"b"'):
        world.me.run_to_end("sh", "-c", "sleep 0.3", options=("--name", name))
    world.me.daemon_pid()
    ask = lambda path, **headers: Asked(f"http://127.0.0.1:{port}{path}", login=OPERATOR, headers={name.replace("_", "-"): value for name, value in headers.items()})
    def settled():
        # Energy may arrive after the end of a job, which makes another answer.
        plain, packed = ask("/api/v1/jobs"), ask("/api/v1/jobs", Accept_Encoding="gzip")
        again = ask("/api/v1/jobs", If_None_Match=plain.headers["ETag"])
        return packed.text == plain.text and again.status == 304 and (plain, packed, again)

    plain, packed, again = eventually(settled, "an answer that does not change")
    equal((plain.headers["Cache-Control"], "Accept-Encoding" in plain.headers["Vary"]), ("private, no-cache", True), "caching")
    check(len(packed.bytes) < len(plain.bytes) / 2, "compressed:", len(packed.bytes), len(plain.bytes))
    equal((again.status, again.bytes), (304, b""), "an answer that has not changed")
    rows = list(csv.DictReader(io.StringIO(ask("/api/v1/jobs?format=csv").text, newline="")))
    objects = plain.json()["jobs"]
    equal([row["id"] for row in rows], [job["job"]["id"] for job in objects], "ids")
    # What a spreadsheet would run, and what would be another row, is text in one cell.
    equal([row["name"] for row in rows], ['a,"b"', "two\\nlines", "'=1+1"], "names")
    equal([row["wall_seconds"] for row in rows], [str(job["totals"]["wall_seconds"]) for job in objects], "wall time")
    equal(ask("/api/v1/jobs?columns=id,state", Accept="text/csv").text.splitlines()[0], "id,state", "chosen columns")
    few = ask("/api/v1/jobs?format=csv&limit=2")
    rest = ask("/api/v1/jobs" + re.search("<([^>]*)>", few.headers["Link"]).group(1))
    equal(len(few.text.splitlines()) + len(rest.text.splitlines()), 2 + 3, "lines of two pages, each with a header")
    job = objects[0]["job"]["id"]
    start_ms = objects[0]["row"]["from_ms"]
    check(0 < objects[0]["row"]["to_ms"] - start_ms < 600_000, objects[0]["row"])
    equal(ask(f"/api/v1/jobs?since={start_ms}").json()["jobs"][0]["job"]["id"], job, "a time in milliseconds")
    reduced = ask(f"/api/v1/jobs/{job}/series?points=3&columns=cpu_seconds,memory_needed_bytes").json()
    equal(len(reduced["times"]), 3, "points")
    check(set(reduced["columns"]) <= {"cpu_seconds", "memory_needed_bytes"} and reduced["columns"], reduced)
    for column in reduced["columns"].values():
        for low, mean, high in zip(column["min"], column["mean"], column["max"]):
            check(mean is None or low <= mean * 1.000001 and mean <= high * 1.000001, column)
    names = ask(f"/api/v1/jobs/{job}/series?points=3&format=csv").text.splitlines()[0].split(",")
    check(names[0] == "time" and "cpu_seconds_mean" in names, names)
    kinds = {row["name"]: row["kind"] for row in csv.DictReader(io.StringIO(ask("/api/v1/catalogue?format=csv&table=job").text))}
    equal((kinds["cpu_seconds"], kinds["memory_needed_bytes"]), ("counter", "gauge"), "kinds")
    problem = ask("/api/v1/jobs?limit=0")
    equal((problem.status, problem.headers["Content-Type"], json.loads(problem.text)["field"]), (400, "application/problem+json", "limit"), "what is wrong")


class Stream:
    """The live stream of one viewer."""

    def __init__(self, port, headers, path="/api/v1/stream"):
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=100)
        self.connection.request("GET", path, headers=headers)
        self.answer, self.text = self.connection.getresponse(), ""

    def until(self, ends):
        """All that came until this holds of one event."""
        while True:
            line = self.answer.fp.readline() if not self.answer.chunked else self.answer.readline()
            if not line:
                return self.text
            self.text += line.decode()
            if line.startswith(b"data: ") and ends(json.loads(line[6:])):
                return self.text

    def rest(self):
        return self.until(lambda event: False)

    def close(self):
        self.connection.close()


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


@test
def a_daemon_streams_starts_figures_and_ends(world):
    web, port = os.path.join(world.root, "web.yml"), free_port()
    with open(web, "w") as file:
        file.write(f"basic_auth_users: {{ann: {HASH}}}\n")
    world.configure(f"sampling:\n  interval: 100ms\nhttp:\n  listen: 127.0.0.1:{port}\n  web_config: {web}\n  operators: ann\n")
    world.me.start_daemon()
    login = {"Authorization": "Basic " + base64.b64encode(b"ann:secret").decode()}
    stream = Stream(port, login)
    equal((stream.answer.status, stream.answer.headers["Content-Type"]), (200, "text/event-stream"), "answer")
    job = world.me.run(*world.workload("burn_until_terminated", world.me.path("used"), world.me.path("ready")), options=("--name", "live"))
    stream.until(lambda event: event["job"].get("name") == "live" and event["job"]["state"] == "running")
    check("event: started" in stream.text, stream.text)
    stream.until(lambda event: "name" not in event["job"] and event["job"]["id"] == job and event["totals"].get("cpu_seconds", 0) > 0.2)
    check("event: figures" in stream.text, stream.text)
    world.me.met("cancel", job).ok()
    stream.until(lambda event: event["job"]["id"] == job and event["job"]["state"] != "running")
    check("event: ended" in stream.text, stream.text)
    # Four streams are enough for one login.
    more = [Stream(port, login) for _ in range(4)]
    equal([one.answer.status for one in more], [200, 200, 200, 429], "status of further streams")
    for one in [stream, *more]:
        one.close()
    eventually(lambda: opened(port, login), "a place that was left is free")


def opened(port, headers):
    stream = Stream(port, headers)
    stream.close()
    return stream.answer.status == 200


@test
def a_walk_by_a_growing_figure_ends_and_shows_each_job_once(world):
    web, port = os.path.join(world.root, "web.yml"), free_port()
    with open(web, "w") as file:
        file.write(f"basic_auth_users: {{ann: {HASH}}}\n")
    world.configure(f"sampling:\n  interval: 100ms\nhttp:\n  listen: 127.0.0.1:{port}\n  web_config: {web}\n  operators: ann\n")
    for number in range(3):
        world.me.run_to_end("true", options=("--name", f"ended-{number}"))
    running = [world.me.run("sh", "-c", "while :; do :; done", options=("--name", f"runs-{number}")) for number in range(4)]
    world.me.daemon_pid()
    ask = lambda path: Asked(f"http://127.0.0.1:{port}{path}", OPERATOR).json()
    for sort in ("cpu", "cpu:desc", "duration", "cores:desc", "energy"):
        seen, path, busy = [], f"/api/v1/jobs?limit=1&sort={sort}", None
        while path:
            page = ask(path)
            seen += [job["job"]["name"] for job in page["jobs"]]
            check(len(seen) <= 7, f"a walk by {sort} ends", seen)
            # All of them use CPU time between two pages.
            used = lambda: ask("/api/v1/jobs?name=runs-0")["jobs"][0]["totals"].get("cpu_seconds", 0)
            busy = used()
            eventually(lambda: used() > busy, "CPU time is used")
            path = page["next"] and f"/api/v1/jobs?limit=1&sort={sort}&after={page['next']}"
        equal(sorted(seen), [f"ended-{number}" for number in range(3)] + [f"runs-{number}" for number in range(4)], f"jobs of a walk by {sort}")
    for job in running:
        world.met("cancel", str(job)).ok()


#: Words of the jobs that somebody may not see.
SECRETS = {"zoe": "ada bob eve physics chemistry private collide detect titrate thesis", "bob": "eve chemistry titrate private thesis"}
#: How a job, and how nothing is asked for; and the same for what filters name.
JOB_FILTERS = (("user", "eve", "nix"), ("account", "chemistry", "nothing"), ("name", "titrate", "nowhere"), ("uid", "5003", "6003"),
               ("command", "titrate", "nowhere"), ("tag", "secret", "nonsuch"))


def endpoints(document, job, node):
    """Every endpoint of the document, with a job and a node."""
    paths = {path: path.replace("{job}", job).replace("{node}", node) for path, one in document["paths"].items() if "get" in one and path != "/api/v1/stream"}
    for path, operation in ((path, one["get"]) for path, one in document["paths"].items() if path in paths):
        has_csv = "text/csv" in operation["responses"]["200"]["content"]
        yield paths[path], "{" in path
        if has_csv:
            yield paths[path] + "?format=csv", "{" in path
        if path.endswith("/series"):
            yield paths[path] + "?points=10", "{" in path
    check(len(paths) >= 14, "endpoints of the document", list(paths))


def writes(document, job):
    """Every change that the document has, of a job."""
    for path, one in document["paths"].items():
        for method in sorted(set(one) & {"put", "post", "delete", "patch"}):
            body = json.dumps({"note": "seen"}) if "requestBody" in one[method] else None
            yield method.upper(), path.replace("{job}", job).replace("{tag}", "seen"), body


def knows(text, words):
    return sorted(word for word in words.split() if re.search(rf"\b{word}\b", text))


@test
def no_endpoint_shows_what_is_not_the_viewers(world):
    site = Site(world)
    site.text += f"server:\n  accounts_file: {site.path('accounts', 'physics: ada, bob')}\n"
    with site:
        browser = Browser(site)
        zoe, bob, node = site.enroll("zoe"), site.enroll("bob"), world.me.met("server", "enroll", "n1").ok().out.strip()
        former = site.enroll("former", "--operator")
        world.me.met("server", "expel", "--operator", "former").ok()
        left = Browser(site).log_in(token=bob)
        equal(left.get("/api/v1/jobs").status, 200, "with a session")
        cookie = dict(left.cookies)
        left.post("/logout", {"csrf": left.get("/logout").field("csrf")})
        expired = {"Cookie": "; ".join(f"{name}={value}" for name, value in cookie.items())}
        document = browser.get("/api/v1/openapi.json", token=site.operator).json()
        everywhere = list(endpoints(document, "slurm:3", "n1"))
        nowhere = [path for path, _ in endpoints(document, "slurm:77", "n1")]
        shown = 0
        for (path, is_one), missing in zip(everywhere, nowhere):
            whole = browser.get(path, token=site.operator)
            # Processes are those of a machine, which a server is not for them.
            there = 404 if path.startswith("/api/v1/who") else 200
            equal(whole.status, there, f"status of {path} for an operator, of {whole.text}")
            shown += bool(knows(whole.text, SECRETS["bob"]))
            for who, headers, status in (("a stranger", {}, 401), ("a revoked operator", bearer(former), 401), ("a node", bearer(node), 403),
                                         ("a wrong token", bearer("0" * 64), 401), ("an expired session", expired, 401)):
                answer = browser.send("GET", path, headers, cookies=False)
                equal(answer.status, status, f"status of {path} for {who}")
                equal(knows(answer.text, SECRETS["zoe"]), [], f"what {who} learns from {path}")
            for who, token in (("zoe", zoe), ("bob", bob)):
                answer = browser.get(path, token=token)
                if is_one and "/jobs/" in path:
                    other = browser.get(missing, token=token)
                    equal((answer.status, other.status), (404, 404), f"status of {path} for {who}")
                    equal(answer.text.replace("slurm:3", "?"), other.text.replace("slurm:77", "?"), f"what is hidden, and what does not exist: {path}")
                else:
                    equal(answer.status, there, f"status of {path} for {who}, of {answer.text}")
                    if knows(whole.text, SECRETS[who]) and not path.endswith("openapi.json"):
                        equal(knows(answer.text, SECRETS[who]), [], f"what {who} learns from {path}")
        check(shown >= 8, "endpoints that show an operator something of these jobs:", shown)
        # Bob sees what is his account's, and only that.
        equal(browser.names(bob), ["collide", "detect"], "bob's jobs")
        equal([one["name"] for one in browser.get("/api/v1/users", token=bob).json()["users"]], ["ada", "bob"], "users whom bob sees")
        equal({one["name"]: one["jobs"] for one in browser.get("/api/v1/accounts", token=bob).json()["accounts"]}, {"physics": 2}, "accounts and jobs")
        filters_tell_nothing(browser, (zoe, bob))
        strangers = (("a stranger", {}, 401), ("a revoked operator", bearer(former), 401), ("a node", bearer(node), 403),
                     ("a wrong token", bearer("0" * 64), 401), ("an expired session", expired, 401))
        nobody_writes(browser, document, strangers, {"zoe": zoe, "bob": bob}, site.operator)


def nobody_writes(browser, document, strangers, others, operator):
    """Who may not see a job changes nothing of it and learns nothing; a member of its account sees it and changes nothing."""
    kind = {"Content-Type": "application/json"}
    hidden, absent = list(writes(document, "slurm:3")), list(writes(document, "slurm:77"))
    check(len(hidden) >= 4, "changes of the document", hidden)
    said = lambda job: {name: browser.get(f"/api/v1/jobs/{job}", token=operator).json().get(name) for name in ("tags", "note")}
    before = said("slurm:1"), said("slurm:3")
    for (method, path, body), (_, missing, _) in zip(hidden, absent):
        for who, headers, status in strangers:
            answer = browser.send(method, path, {**headers, **kind}, body, cookies=False)
            equal(answer.status, status, f"status of {method} {path} for {who}")
            equal(knows(answer.text, SECRETS["zoe"]), [], f"what {who} learns from {method} {path}")
        for who, token in others.items():
            found = [browser.send(method, one, {**bearer(token), **kind}, body) for one in (path, missing)]
            equal([one.status for one in found], [404, 404], f"status of {method} {path} for {who}")
            equal(found[0].text.replace("slurm:3", "?"), found[1].text.replace("slurm:77", "?"), f"what is hidden, and what does not exist: {method} {path}")
    for method, path, body in writes(document, "slurm:1"):
        equal(browser.send(method, path, {**bearer(others["bob"]), **kind}, body).status, 403, f"status of {method} {path} for a member of the account")
    equal((said("slurm:1"), said("slurm:3")), before, "tags and notes of the jobs")


@test
def tags_and_a_note_are_written_by_api_and_form(world):
    site = Site(world)
    lines = os.path.join(world.root, "audit")
    site.text += f"login:\n  audit_file: {lines}\n"
    with site:
        ada, kind = site.enroll("ada"), {"Content-Type": "application/json"}
        browser = Browser(site)
        send = lambda method, path, body=None, **more: browser.send(method, f"/api/v1/jobs/slurm:1/{path}", {**bearer(ada), **kind, **more}, body)
        equal(send("PUT", "tags/best").json(), {"tags": ["best"], "note": None}, "the answer")
        equal(send("PUT", "note", json.dumps({"note": "first try\nsecond line"})).json()["note"], "first try\nsecond line", "the note")
        for note in (" \n", "a\u00adb", "a\U000e0041", "\u202e", "x" * 5000):
            equal(send("PUT", "note", json.dumps({"note": note})).status, 400, f"status for {note[:9]!r}")
        equal(send("PUT", "note", "note=x", **{"Content-Type": "application/x-www-form-urlencoded"}).status, 415, "status of a form")
        equal(browser.names(ada, "/api/v1/jobs?tag=best"), ["collide"], "jobs with the tag")
        # The form of the page, without a script.
        session = Browser(site).log_in(token=ada)
        page = session.get("/jobs/slurm:1")
        check("first try" in page.text and 'value="best"' in page.text, "the form has what is there", page.text[:3000])
        fields = {"csrf": page.field("csrf"), "tags_before": "best", "note_before": "first try\nsecond line", "tags": "best good", "note": "third\r\ntry"}
        place = "/jobs/slurm%3A1/annotation"
        for wrong in ({**fields, "csrf": "x"}, {name: value for name, value in fields.items() if name != "csrf"}):
            equal(session.post(place, wrong).status, 403, "status without the token")
        equal(session.post(place, fields, Sec_Fetch_Site="cross-site").status, 403, "status from another site")
        equal(session.post(place, fields, Content_Type="text/plain").status, 403, "status of a text")
        equal(session.send("PUT", "/api/v1/jobs/slurm:1/tags/x", kind).status, 403, "status of a script without the token")
        answer = session.post(place, fields)
        equal((answer.status, answer.location), (303, "/jobs/slurm%3A1#annotation"), "status and place")
        job = browser.get("/api/v1/jobs/slurm:1", token=ada).json()
        equal((job["tags"], job["note"]), (["best", "good"], "third\ntry"), "tags and note")
        equal(session.post(place, {**fields, "tags": "Not-a-tag"}).status, 400, "status of a wrong tag")
        equal(session.send("DELETE", "/api/v1/jobs/slurm:1/tags/best", {"X-Met-Csrf": fields["csrf"]}).json(), {"tags": ["good"], "note": "third\ntry"}, "with the token")
        equal(send("DELETE", "note").json(), {"tags": ["good"], "note": None}, "without the note")
        eventually(lambda: open(lines).read().count('"write"') >= 6, "writes in the audit log")
        noted = [json.loads(line) for line in open(lines)]
        check(any(one["event"] == "write" and one.get("name") == "ada" and one["request"] == place for one in noted), "the form in the audit log", noted)
        check("third" not in open(lines).read(), "the note itself is not in it")


def filters_tell_nothing(browser, tokens):
    """A filter that names something hidden finds as much as one that names nothing."""
    for name, hidden, nothing in JOB_FILTERS:
        for token in tokens:
            for more in ("", "&format=csv", "&sort=energy:desc", "&limit=1", "&state=finished"):
                found = [browser.get(f"/api/v1/jobs?{name}={word}{more}", token=token) for word in (hidden, nothing)]
                equal([one.status for one in found], [200, 200], f"status for {name}={hidden}{more}")
                equal(found[0].text, found[1].text, f"what {name}={hidden}{more} finds")
                check("Link" not in found[0].headers, found[0].headers)
    for path in ("/api/v1/stream?job=slurm:3", "/api/v1/stream?job=titrate"):
        for token in tokens:
            equal(browser.get(path, token=token).status, 404, f"status of {path}")


@test
def a_stream_of_a_server_has_the_viewers_jobs_and_ends_with_the_token(world):
    site = Site(world)
    with site:
        zoe = site.enroll("zoe")
        for headers, status in (({}, 401), (bearer("0" * 64), 401)):
            equal(Stream(site.port, headers).answer.status, status, "status")
        of_zoe, of_all = Stream(site.port, bearer(zoe)), Stream(site.port, bearer(site.operator))
        equal((of_zoe.answer.status, of_all.answer.status), (200, 200), "status")
        # Two more jobs end: one of somebody else, then one of hers.
        jobs = (*JOBS, (5, "eve", "chemistry", "distil"), (6, "zoe", "physics", "weigh"))
        begin = re.search("BEGIN|Start=\"%d\" % ([0-9]+)", open(os.path.join(site.programs, "sacct")).read()).group(1)
        script(os.path.join(site.programs, "sacct.new"), SACCT.replace("JOBS", repr(jobs), 1).replace("BEGIN", begin))
        os.rename(os.path.join(site.programs, "sacct.new"), os.path.join(site.programs, "sacct"))
        named = lambda name: lambda event: event["job"].get("name") == name
        of_all.until(named("distil"))
        text = of_zoe.until(named("weigh"))
        equal(knows(text, "eve chemistry distil ada bob collide"), [], "what zoe learns of others")
        world.me.met("server", "expel", "--user", "zoe").ok()
        equal(knows(of_zoe.rest(), "eve distil"), [], "until the end, which comes")
        of_all.close()


def schemathesis(world, url, authorization):
    """Lets schemathesis send requests that fit the document, and others that do not."""
    installed = subprocess.run([os.path.join(HERE, "python-packages"), "schemathesis"], capture_output=True, text=True, check=False)
    if installed.returncode:
        raise Skip(installed.stdout.strip() or installed.stderr.strip())
    python = installed.stdout.strip()
    command = [os.path.join(os.path.dirname(python), "schemathesis"), "run", f"{url}/api/v1/openapi.json", "--header", f"Authorization: {authorization}",
               "--phases", "examples,coverage,fuzzing", "--max-examples", "5", "--seed", "1", "--workers", "1",
               "--checks", "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,ignored_auth,unsupported_method",
               "--exclude-path", "/api/v1/stream", "--request-timeout", "60", "--no-shrink", "--suppress-health-check", "all"]
    found = subprocess.run(command, capture_output=True, text=True, check=False, cwd=world.root, env={**os.environ, "NO_COLOR": "1", "COLUMNS": "180"})
    check(found.returncode == 0, "schemathesis:", found.stdout[-6000:], found.stderr[-2000:])
    check(re.search(r"[0-9]+ generated", found.stdout), "cases were generated:", found.stdout[-2000:])


@test
def schemathesis_finds_nothing_in_the_api_of_a_daemon(world):
    web, port = os.path.join(world.root, "web.yml"), free_port()
    with open(web, "w") as file:
        file.write(f"basic_auth_users: {{ann: {HASH}}}\n")
    world.configure(f"sampling:\n  interval: 100ms\nhttp:\n  listen: 127.0.0.1:{port}\n  web_config: {web}\n  operators: ann\n")
    world.me.run_to_end("sh", "-c", "sleep 0.3", options=("--name", "train"))
    world.me.daemon_pid()
    schemathesis(world, f"http://127.0.0.1:{port}", "Basic " + base64.b64encode(b"ann:secret").decode())


@test
def schemathesis_finds_nothing_in_the_api_of_a_server(world):
    with Site(world) as site:
        schemathesis(world, f"http://127.0.0.1:{site.port}", f"Bearer {site.operator}")
