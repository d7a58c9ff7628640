"""The API of daemon and server: the same answers as the commands give, and nothing for those who may not see them."""

import base64
import json
import os
import urllib.error
import urllib.parse
import urllib.request

from cluster import all_the_same, cluster
from harness import Skip, check, each, equal, eventually, need_root, test
from prometheus import HASH, free_port

OPERATOR = ("ann", "secret")
EVERY_PATH = ("/api/v1/jobs", "/api/v1/jobs/1", "/api/v1/jobs/1/series", "/api/v1/jobs/1/series?card=x", "/api/v1/jobs/1/series?event=x", "/api/v1/nodes")


class Asked:
    """One answer: its status, and what it says."""

    def __init__(self, url, login=None, token=None):
        request = urllib.request.Request(url)
        if login:
            request.add_header("Authorization", "Basic " + base64.b64encode(":".join(login).encode()).decode())
        if token:
            request.add_header("Authorization", f"Bearer {token}")
        try:
            answer = urllib.request.urlopen(request, timeout=60)
        except urllib.error.HTTPError as error:
            answer = error
        with answer:
            self.status, self.text = answer.status, answer.read().decode()

    def json(self):
        equal(self.status, 200, f"status, of {self.text}")
        return json.loads(self.text)

    def refused(self, status):
        equal(self.status, status, f"status, of {self.text}")
        check('"job"' not in self.text and "jobs" not in self.text, "nothing is said of jobs:", self.text)
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
    listed = world.me.met("list", "--json").ok().json()
    equal(len(listed), 4, "jobs, for root")
    same_jobs(all_jobs(ask, 2), listed)
    newest = listed[0]
    one = ask(f"/api/v1/jobs/{newest['job']['id']}").json()
    same_jobs([one], [newest])
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
def without_passwords_a_daemon_answers_nobody(world):
    port = free_port()
    world.configure(f"http:\n  listen: 127.0.0.1:{port}\n")
    world.me.run_to_end("true", options=("--name", "train"))
    world.me.daemon_pid()
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
    told = world.met("configure", "--perf", "page_faults,context_switches", "--job", job).ok()
    if told.err:
        raise Skip(told.err.strip())
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
        equal(ask("/series?event=nothing")["times"], [], "samples of an event that was not counted")
