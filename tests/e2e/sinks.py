"""Sinks: jobs, samples and rows of ticks on standard output, of a daemon and of a server; one that blocks holds up nothing."""

import csv
import fcntl
import io
import json
import os
import re
import signal
import subprocess
import urllib.request

from cluster import cluster
from harness import check, equal, eventually, need_root, test
from prometheus import free_port

F_SETPIPE_SZ = 1031


def configure(world, options, interval="200ms"):
    world.configure(f"sampling:\n  interval: {interval}\nsinks:\n  - stdout: {options}\n")


def events(text):
    """The lines of the sink, among those of the log."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def of_job(found, event, job):
    return [one for one in found if one["event"] == event and (one.get("job") or {}).get("raw_id") == job]


def status(met):
    found = met("daemon", "--status", "--json").ok().json()["sinks"]
    return {sink["name"]: sink for sink in found}["stdout"]


def small_pipe(process):
    fcntl.fcntl(process.stdout, F_SETPIPE_SZ, 4096)


@test
def a_job_is_a_start_samples_and_an_end_in_json_lines(world):
    need_root()
    configure(world, "{format: json}")
    world.start_system_daemon()
    job = world.run("sleep", "1")
    world.met("wait", job).ok()
    # Shorter than a tick.
    short = world.run("sleep", "0.05")
    world.met("wait", short).ok()

    def written():
        return events(world.log("system.log"))

    for one in (job, short):
        eventually(lambda: of_job(written(), "ended", one), f"the end of {one}")
        # What is charged after the end comes with another event.
        eventually(lambda: of_job(written(), "ended", one)[-1]["totals"] == world.show(one)["totals"],
                   lambda: f"{of_job(written(), 'ended', one)[-1]['totals']} and {world.show(one)['totals']}")
        equal(of_job(written(), "ended", one)[-1]["job"], world.show(one)["job"], "the job")
        equal(len(of_job(written(), "started", one)), 1, "starts")
    samples = of_job(written(), "sample", job)
    check(len(samples) >= 3, f"samples: {samples}")
    check(all(sample["table"] == "job" and sample["values"] for sample in samples), f"{samples}")
    order = [one["event"] for one in written() if (one.get("job") or {}).get("raw_id") == job]
    equal((order[0], order[-1]), ("started", "ended"), f"order: {order}")
    said = world.met("daemon", "--status").ok().out
    check("sink stdout: " in said and " 0 dropped" in said, said)
    check("stdout: " in world.met("doctor").ok().out, "doctor")


@test
def csv_has_a_head_and_a_value_in_each_line(world):
    need_root()
    configure(world, "{format: csv, events: [ended], tables: [job]}")
    world.start_system_daemon()
    job = world.run("sleep", "1", options=("--name", 'a, "b"'))
    world.met("wait", job).ok()

    def rows():
        lines = [line for line in world.log("system.log").splitlines(True) if line.count(",") >= 8]
        return list(csv.DictReader(io.StringIO("".join(lines))))

    def ended():
        return {row["name"]: row["value"] for row in rows() if row["event"] == "ended" and row["job"] == job}

    eventually(lambda: ended().get("state") == "finished", lambda: f"the end: {rows()}")
    eventually(lambda: float(ended()["cpu_seconds"]) == world.show(job)["totals"]["cpu_seconds"], "the same CPU time")
    equal({row["event"] for row in rows()}, {"ended", "tick"}, "events")
    check(any(row["table"] == "job" and row["manager"] == "local" for row in rows() if row["event"] == "tick"), rows())


@test
def rows_of_any_table_come_at_the_pace_of_ticks_also_without_jobs(world):
    need_root()
    configure(world, "{events: [], tables: [node, process, source]}")
    world.start_system_daemon()

    def ticks(table):
        return [one for one in events(world.log("system.log")) if one["event"] == "tick" and one["table"] == table]

    eventually(lambda: len(ticks("source")) > 40, "every tick reports its sources")
    eventually(lambda: ticks("node"), "the machine")
    check(ticks("node")[0]["values"]["memory_total_bytes"] > 0, ticks("node")[0])
    job = world.run("sleep", "60")
    processes = eventually(lambda: [one for one in ticks("process") if (one["job"] or {}).get("raw_id") == job], "a process of the job")
    check(processes[0]["labels"]["pid"].isdigit(), processes[0])
    world.met("cancel", job).ok()
    eventually(lambda: world.state_of(job) != "running", "it ends")
    equal({one["event"] for one in events(world.log("system.log"))}, {"tick"}, "events")


@test
def a_reader_that_does_not_read_holds_up_neither_jobs_nor_ticks(world):
    need_root()
    configure(world, "{tables: [source, node, process]}", interval="10ms")
    os.makedirs(os.path.dirname(world.system_runtime), exist_ok=True)
    with open(os.path.join(world.root, "system.log"), "ab") as log:
        world.system = world.spawn("daemon", stdout=subprocess.PIPE, stderr=log)
    small_pipe(world.system)
    eventually(lambda: world.met("daemon", "--status").code == 0, lambda: f"the daemon answers: {world.log('system.log')}")
    eventually(lambda: status(world.met)["dropped"] > 0, lambda: f"the queue is full: {status(world.met)}")
    # The sink is stuck: it delivers nothing more while the sampler goes on.
    delivered = status(world.met)["delivered"]

    def read_ns():
        return sum(source["read_ns"] for source in world.met("daemon", "--status", "--json").ok().json()["sources"])

    for _ in range(3):
        before = read_ns()
        job = world.run_to_end("sleep", "0.2")
        equal(job["job"]["state"], "finished", "state")
        eventually(lambda: read_ns() > before, "ticks go on")
    found = status(world.met)
    equal((found["delivered"], found["dropped_ends"]), (delivered, 0), "there is room for ends of jobs")
    check(found["queued"] > 0, f"{found}")
    check(f"{found['dropped']}" and "dropped" in world.met("daemon", "--status").out, "the status reports it")
    doctor = [one for one in world.met("doctor", "--json").ok().json() if one["what"] == "sink"]
    equal([(one["health"], "dropped" in one["detail"]) for one in doctor], [("less", True)], "doctor")
    # A reader comes at last: what waited comes, in whole lines, the ends of all jobs among it.
    ended, stream = set(), world.system.stdout
    while len(ended) < 3:
        line = json.loads(stream.readline())
        if line["event"] == "ended":
            ended.add(line["job"]["raw_id"])
    eventually(lambda: stream.readline() and status(world.met)["delivered"] > delivered, "it delivers again")
    # And no reader again: the daemon ends all the same.
    world.stop_system_daemon()
    stream.close()


@test
def a_closed_pipe_ends_the_sink_alone(world):
    need_root()
    configure(world, "{format: json}")
    os.makedirs(os.path.dirname(world.system_runtime), exist_ok=True)
    with open(os.path.join(world.root, "system.log"), "ab") as log:
        world.system = world.spawn("daemon", stdout=subprocess.PIPE, stderr=log)
    world.system.stdout.close()
    eventually(lambda: world.met("daemon", "--status").code == 0, "the daemon answers")
    for _ in range(2):
        equal(world.run_to_end("true")["job"]["state"], "finished", "state")
    found = eventually(lambda: (one := status(world.met))["dropped_ends"] >= 2 and one, "both ends are counted")
    equal((found["state"], found["last_error"]), ("failed", "standard output is closed"), "state")
    check("local:" in world.met("daemon", "--status").ok().out, "the jobs are named")
    equal(world.log("system.log").count("disabled until restart"), 1, "lines in the log")


@test
def an_end_that_a_killed_daemon_missed_is_published_by_the_next(world):
    need_root()
    configure(world, "{format: json}")
    world.start_system_daemon()
    job = world.run("sh", "-c", "until [ -e go ]; do sleep 0.05; done")
    eventually(lambda: of_job(events(world.log("system.log")), "started", job), "its start")
    world.stop_system_daemon(signal.SIGKILL)
    with open(world.path("go"), "w"):
        pass
    world.start_system_daemon()
    ended = eventually(lambda: of_job(events(world.log("system.log")), "ended", job), "its end")
    equal(ended[-1]["job"]["state"], "finished", "state")
    eventually(lambda: of_job(events(world.log("system.log")), "ended", job)[-1]["totals"] == world.show(job)["totals"], "totals")
    equal(len(of_job(events(world.log("system.log")), "started", job)), 1, "a daemon that starts publishes no old start")


@test
def what_is_no_sink_or_no_option_is_refused_with_its_line(world):
    for options, words in (
        ("- stdot: {}", ("met.yaml:5:", 'did you mean "sinks.stdout"')),
        ("- stdout: {format: xml}", ("met.yaml:5:", "json, csv")),
        ("- stdout: {colour: red}", ("met.yaml:5:", "format, events, tables")),
        ("- stdout: {tables: [nodes]}", ("met.yaml:5:", "nodes", "cpufreq")),
        ("- forward", ("met.yaml:5:", 'the section "forward"')),
    ):
        world.configure(f"sinks:\n  {options}\n")
        world.met("daemon", "--user").refused(*words)
        world.met("server").refused(*words)
    world.configure("")


@test
def a_server_publishes_what_its_nodes_sent_and_a_full_pipe_holds_up_no_node(world):
    with cluster(world, 1, server_config="sinks:\n  - stdout: {format: json}\n") as made:
        node = made.nodes[0]
        job = node.met("run", "--print-id", "--wait", "--", "sleep", "1").ok().out.strip()

        def on_server(one):
            return next((found for (_, _, id), found in made.jobs().items() if id == one), None)

        def published(event, one):
            return of_job(events(made.server.log()), event, one)

        eventually(lambda: published("ended", job), lambda: f"its end: {made.server.log()}")
        eventually(lambda: published("ended", job)[-1]["totals"] == on_server(job)["totals"], "totals")
        samples = published("sample", job)
        check(samples and {sample["node"] for sample in samples} == {node.name}, f"{samples}")
        doctor = eventually(lambda: [one for one in made.server.met("doctor", "--json").ok().json() if one["what"] == "server sink"], "doctor")
        check(doctor[0]["detail"].startswith("stdout: "), doctor)

        made.server.process.send_signal(signal.SIGTERM)
        made.server.process.wait()
        with open(os.path.join(made.server.folder, "log"), "ab") as log:
            made.server.process = made.server.spawn("server", stdout=subprocess.PIPE, stderr=log)
        small_pipe(made.server.process)
        eventually(made.server.answers, "the server answers")
        jobs = [node.met("run", "--print-id", "--wait", "--", "sleep", "1").ok().out.strip() for _ in range(4)]
        eventually(lambda: all((found := on_server(one)) and found["job"]["state"] == "finished" for one in jobs), "all arrive")

        def queued():
            found = [one for one in made.server.met("doctor", "--json").ok().json() if one["what"] == "server sink"]
            return found and " 0 queued" not in found[0]["detail"]

        eventually(queued, "the sink is behind", 90)
        ended, stream = set(), made.server.process.stdout
        while not set(jobs) <= ended:
            line = json.loads(stream.readline())
            if line["event"] == "ended":
                ended.add(line["job"]["raw_id"])
        # A node whose batch was acknowledged sends no more, and no end is published twice as it was.
        made.server.process.send_signal(signal.SIGTERM)
        made.server.process.wait()
        stream.close()


def counted(port):
    """What a page says of the sink, by name."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        return {name: float(value) for name, value in re.findall(r'^met_sink_(\w+){sink="stdout"} (\S+)$', answer.read().decode(), re.M)}


@test
def the_page_of_a_daemon_counts_what_a_sink_took(world):
    need_root()
    port = free_port()
    world.configure(f"http: {{listen: '127.0.0.1:{port}'}}\nsampling:\n  interval: 200ms\nsinks:\n  - stdout: {{}}\n")
    world.start_system_daemon()
    equal(counted(port), {"delivered_total": 0, "dropped_total": 0, "failed_total": 0, "queued": 0}, "before the first job")
    # One that ends at once may be over before it is announced.
    world.run_to_end("sleep", "1")
    eventually(lambda: counted(port)["delivered_total"] >= 2, lambda: f"a start and an end: {counted(port)}")
    equal(counted(port)["dropped_total"], 0, "dropped events")


@test
def what_a_sink_of_a_server_drops_is_counted_on_its_page(world):
    with cluster(world, 1, server_config="sinks:\n  - stdout: {}\n") as made:
        node = made.nodes[0]
        node.met("run", "--wait", "--", "true").ok()
        shown = lambda: counted(made.forwarded)
        eventually(lambda: shown().get("delivered_total", 0) >= 1, lambda: f"an end: {shown()}", 90, 1)
        equal(shown()["dropped_total"], 0, "dropped events")
        made.server.process.send_signal(signal.SIGTERM)
        made.server.process.wait()
        with open(os.path.join(made.server.folder, "log"), "ab") as log:
            made.server.process = made.server.spawn("server", stdout=subprocess.PIPE, stderr=log)
        # It is never read.
        made.server.process.stdout.close()
        eventually(made.server.answers, "the server answers")
        jobs = [node.met("run", "--print-id", "--wait", "--", "true").ok().out.strip() for _ in range(2)]
        eventually(lambda: shown().get("dropped_total", 0) >= 2, lambda: f"both ends: {shown()}", 90, 1)
        check(shown()["failed_total"] >= 1, shown())
        doctor = [one for one in made.server.met("doctor", "--json").ok().json() if one["what"] == "server sink"]
        check("standard output is closed" in doctor[0]["detail"] and jobs[0] in doctor[0]["detail"], doctor)
