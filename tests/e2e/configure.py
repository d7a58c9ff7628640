"""A running daemon is configured live: period and events, for good or for one job, and its file is read again."""

import json
import os
import re
import signal
import socket
import struct
import time

from harness import check, equal, eventually, need_root, Skip, test

FOREVER = ("sleep", "1000")


def shown(user, *options):
    """What holds, by key."""
    lines = user.met("configure", *options).ok().out.splitlines()
    return {line.split()[0]: re.sub("  +", "  ", line.split(None, 1)[1]) for line in reversed(lines)}


def sample_times(user, job):
    """When a job was sampled so far, in milliseconds, by the daemon itself."""
    link = socket.socket(socket.AF_UNIX)
    link.connect(user.socket())
    ask(link, {"hello": {"protocol": 3}})
    (record,) = ask(link, {"find": {"id": {"manager": None, "id": job}}})["jobs"]
    course = ask(link, {"course": {"key": record["key"], "after_ms": -(1 << 63)}})["course"]
    link.close()
    return course["times_ms"]


def samples(user, job):
    return len(sample_times(user, job))


def is_quiet(user, job):
    """Whether a job that has been sampled is not sampled for half a second, in which a period of 50 ms would be ten."""
    before = samples(user, job)
    time.sleep(0.5)
    return 0 < before == samples(user, job)


def heard_of(user, job):
    """Waits until the daemon follows a job that was just started."""
    eventually(lambda: user.met("configure", "--reset", "--job", job).code == 0, f"the daemon knows job {job}")


def ask(link, request):
    body = json.dumps(request).encode()
    link.sendall(struct.pack("<I", len(body)) + body)
    stream = link.makefile("rb")
    (length,) = struct.unpack("<I", stream.read(4))
    return json.loads(stream.read(length))


def daemon_log(world):
    return "\n".join(open(path, errors="replace").read() for path in logs(world))


def logs(world):
    for folder, _, names in os.walk(world.root):
        yield from (os.path.join(folder, name) for name in names if name.endswith(".log"))


@test
def a_changed_period_changes_how_often_a_job_is_sampled(world):
    world.configure("sampling:\n  interval: 1h\n")
    job = world.run(*FOREVER)
    world.daemon_pid()
    eventually(lambda: is_quiet(world, job), "no more samples than those of a young job")
    before = samples(world, job)
    world.met("configure", "--period", "50ms").ok()
    eventually(lambda: samples(world, job) >= before + 10, "ten more samples")
    equal(shown(world)["sampling.interval"], "50ms  temporary until the daemon ends", "what holds")
    world.met("configure", "--reset").ok()
    equal(shown(world)["sampling.interval"], f"3600s  {world.config}", "what holds")
    eventually(lambda: is_quiet(world, job), "no more samples by the live period")
    world.met("cancel", job).ok()


@test
def a_change_for_a_job_ends_with_it(world):
    job, other = world.run(*FOREVER), world.run(*FOREVER)
    world.daemon_pid()
    heard_of(world, job)
    world.met("configure", "--period", "30s").ok()
    world.met("configure", "--job", f"local:{job}", "--period", "20ms", "--perf", "page_faults").ok()
    held = world.met("configure").ok().out
    check(re.search(f"20ms +temporary until job local:{job} ends, then 30s .temporary", held), held)
    check(re.search(f"page_faults +in job local:{job}, until it ends", held), held)
    world.met("cancel", job).ok()
    eventually(lambda: shown(world)["sampling.interval"] == "30s  temporary until the daemon ends", "it is as before")
    equal(shown(world)["perf.events"], "none  default", "events")
    world.met("configure", "--job", f"local:{job}", "--period", "20ms").refused("--job", "no such job runs here")
    world.met("cancel", other).ok()


@test
def events_can_be_asked_for_while_jobs_run(world):
    need_root()
    job = world.run("sh", "-c", "while :; do /bin/true; done")
    world.daemon_pid()
    heard_of(world, job)
    result = world.met("configure", "--perf", "page_faults,context_switches", "--job", job).ok()
    if "not allowed" in result.err or "not counted" in result.err or "no event" in result.err:
        raise Skip(result.err.strip())

    def counts():
        return world.show(job).get("events", {}).get("counts", {})

    found = eventually(lambda: counts().get("page_faults", {}).get("count", 0) > 100 and counts(), "faults are counted")
    equal(sorted(found), ["context_switches", "page_faults"], "events")
    equal(found["page_faults"]["kind"], "lower_bound", f"it began later than the job: {found}")
    before = counts()["page_faults"]["count"]
    # What is taken back and asked for again goes on from where it was.
    world.met("configure", "--perf", "", "--job", job).ok()
    world.met("configure", "--perf", "page_faults", "--job", job).ok()
    eventually(lambda: counts()["page_faults"]["count"] > before, "it goes on")
    world.met("cancel", job).ok()
    check(world.show(job)["events"]["counts"]["page_faults"]["count"] > before, "the record has it")


@test
def the_root_daemon_counts_events_of_anothers_running_job(world):
    need_root()
    user = world.someone()
    world.start_system_daemon()
    job = user.run("sh", "-c", "while :; do /bin/true; done")
    heard_of(world, job)
    result = world.met("configure", "--perf", "page_faults,context_switches", "--job", job).ok()
    if "no event" in result.err:
        raise Skip(result.err.strip())
    if "no cgroup" in result.err:
        raise Skip(f"this machine gives the job no cgroup: {result.err.strip()}")
    equal(result.err, "", "complaints")

    def counts():
        return user.show(job).get("events", {}).get("counts", {})

    def grown():
        found = counts()
        return len(found) == 2 and all(one["count"] > 50 for one in found.values()) and found

    found = eventually(grown, lambda: f"both are counted: {counts()}")
    for name, one in found.items():
        equal((one["source"], one["kind"], one["counted_ratio"]), ("perf, cgroup", "lower_bound", 1.0), name)
    user.met("cancel", job).ok()
    record = user.show(job)
    # A shell that forks faults and waits all the time: what was counted later is less than all of it.
    check(found["page_faults"]["count"] <= record["events"]["counts"]["page_faults"]["count"], record["events"])
    check(record["events"]["counts"]["page_faults"]["count"] <= record["totals"]["page_faults_minor"] * 1.01, record)


@test
def events_that_are_added_to_the_file_are_counted_in_running_jobs(world):
    need_root()
    user = world.someone()
    world.start_system_daemon()
    jobs = [(one, one.run("sh", "-c", "while :; do /bin/true; done")) for one in (user, world)]
    for _, job in jobs:
        heard_of(world, job)
    probe = world.met("configure", "--perf", "page_faults").ok()
    world.met("configure", "--reset").ok()
    if "no event" in probe.err or "not counted" in probe.err:
        raise Skip(probe.err.strip())
    began = {job: one.show(job).get("events", {}).get("counts", {}) for one, job in jobs}
    world.configure("perf:\n  events: [page_faults, task_clock]\n")
    os.kill(world.system.pid, signal.SIGHUP)
    for one, job in jobs:
        def counts():
            return one.show(job).get("events", {}).get("counts", {})

        def grown():
            found = counts()
            return all(found.get(name, {}).get("count", 0) > 50 for name in ("page_faults", "task_clock")) and found

        found = eventually(grown, lambda: f"both are counted: {counts()}, before: {began[job]}")
        equal(found["task_clock"]["kind"], "lower_bound", f"it began later than the job: {found}")
        one.met("cancel", job).ok()


@test
def a_job_without_a_cgroup_says_why_its_events_are_not_counted(world):
    need_root()
    user = world.without_cgroups()
    job = user.run(*FOREVER)
    user.daemon_pid()
    heard_of(user, job)
    result = user.met("configure", "--perf", "page_faults", "--job", job).ok()
    check(f"local:{job}" in result.err and "no cgroup" in result.err, result.err)
    check(f"requested in job local:{job}" in result.out, "it is not shown as counted", result.out)
    check("events" not in user.show(job), "nothing is counted, and nothing is shown")
    user.met("cancel", job).ok()


@test
def a_job_that_starts_later_counts_the_live_events_from_its_beginning(world):
    job = world.run(*FOREVER)
    world.daemon_pid()
    result = world.met("configure", "--perf", "page_faults").ok()
    counts = world.run_to_end(*world.workload("fault_and_switch", 2_000, 10)).get("events", {}).get("counts", {})
    if "page_faults" not in counts:
        raise Skip(f"perf events are not allowed: {result.err.strip()}")
    check(counts["page_faults"]["count"] >= 2_000, counts)
    check("tree" in counts["page_faults"]["source"] or counts["page_faults"]["kind"] != "lower_bound", counts)
    world.met("cancel", job).ok()


@test
def a_bad_value_is_refused_and_changes_nothing(world):
    world.met("configure").refused("no daemon is running")
    job = world.run(*FOREVER)
    world.daemon_pid()
    world.met("configure", "--period", "2s", "--perf", "page_faults").ok()
    before = world.met("configure").ok().out
    world.met("configure", "--period", "1ms").refused("--period", "the shortest is 10ms")
    world.met("configure", "--period", "2h").refused("--period", "the longest is 1h")
    world.met("configure", "--period", "5").refused("--period", "has no unit")
    world.met("configure", "--period", "5s", "--perf", "page_fault").refused("--perf", "page_fault", "met metrics")
    world.met("configure", "--period", "5s", "--job", "local:999").refused("--job")
    world.met("configure", "--job", job).refused("--job")
    equal(world.met("configure").ok().out, before, "what holds")
    world.met("cancel", job).ok()


@test
def only_root_may_configure_the_root_daemon(world):
    need_root()
    user = world.someone()
    world.start_system_daemon()
    user.met("configure", "--period", "2s").refused("only root may configure")
    user.met("configure", "--reset").refused("only root may configure")
    equal(shown(user)["sampling.interval"], "1s, 10s after 5m, 30s after 1h, 1m after 1d  default", "what holds")
    world.met("configure", "--period", "2s").ok()
    equal(shown(user)["sampling.interval"], "2s  temporary until the daemon ends", "what holds")


@test
def a_hangup_reads_the_file_again_and_a_bad_one_changes_nothing(world):
    job = world.run(*FOREVER)
    daemon = world.daemon_pid()
    world.configure("sampling:\n  interval: 3s\nperf:\n  events: page_faults\nstorage:\n  name: memory\n")
    os.kill(daemon, signal.SIGHUP)
    eventually(lambda: shown(world)["sampling.interval"] == f"3s  {world.config}", "the new period holds")
    equal(shown(world)["perf.events"], f"page_faults  {world.config}", "events")
    eventually(lambda: "storage.name" in daemon_log(world), "what only a new daemon takes up is named")
    world.met("configure", "--period", "7s").ok()
    with open(world.config) as file:
        good = file.read()
    with open(world.config, "w") as file:
        file.write(good.replace("interval: 3s", "interval: 3"))
    os.kill(daemon, signal.SIGHUP)
    line = good.splitlines().index("  interval: 3s") + 1
    eventually(lambda: f"{world.config}:{line}: sampling.interval" in daemon_log(world), "the line is named")
    with open(world.config, "w") as file:
        file.write(good.replace("interval: 3s", "interval: 4s"))
    equal(shown(world)["sampling.interval"], "7s  temporary until the daemon ends", "what holds")
    os.kill(daemon, signal.SIGHUP)
    # A live change is above the file until it is taken back.
    equal(shown(world, "--reset")["sampling.interval"].split()[0], "4s", "what holds")
    equal((world.daemon_pid(), world.state_of(job)), (daemon, "running"), "the daemon and the job")
    world.met("cancel", job).ok()


def current(user):
    """Every key of the configuration with its value and where that comes from."""
    lines = user.met("config", "--current").ok().out.splitlines()
    return {line.split()[0]: line.split(None, 1)[1] for line in lines if not line.startswith("#")}


@test
def a_changed_file_is_followed_without_a_signal(world):
    before = current(world)
    equal(before["sampling.interval"].split(), ["-", "default"], "without a daemon")
    check(before["sampling.ladder"].startswith("1s, 10s after 5m, 30s after 1h, 60s after 1d"), before["sampling.ladder"])
    check("no daemon is running" in world.met("config", "--current").out, "who follows it")
    job = world.run(*FOREVER)
    daemon = world.daemon_pid()
    world.configure("sampling:\n  interval: 3s\nhttp:\n  listen: 127.0.0.1:0\n")
    with open(world.config) as file:
        line = file.read().splitlines().index("  interval: 3s") + 1
    eventually(lambda: current(world)["sampling.interval"].split() == ["3s", f"{world.config}:{line}"], "the new period")
    check(current(world)["http.listen"].endswith("after a restart of the daemon"), "what a new daemon takes up")
    check("need a restart: http" in world.met("doctor").ok().out, "the doctor says what to do")
    world.met("configure", "--period", "7s").ok()
    check("temporary" in current(world)["sampling.interval"], "a live change")
    with open(world.config, "a") as file:
        file.write("nonsense: 1\n")
    eventually(lambda: "nonsense" in daemon_log(world), "a bad file is named in the log")
    world.configure("")
    equal((world.daemon_pid(), world.state_of(job)), (daemon, "running"), "the daemon and the job")
    world.met("cancel", job).ok()


@test
def a_file_that_is_removed_leaves_the_defaults(world):
    world.configure("sampling:\n  interval: 3s\n")
    usual = world.path("config/met/met.yaml")
    os.makedirs(os.path.dirname(usual))
    os.rename(world.config, usual)
    world.env.update({"MET_CONFIG": "", "XDG_CONFIG_HOME": world.path("config")})
    job = world.run(*FOREVER)
    world.daemon_pid()
    equal(current(world)["sampling.interval"].split()[0], "3s", "by the file")
    os.remove(usual)
    eventually(lambda: current(world)["sampling.interval"].split() == ["-", "default"], "the default")
    for command in (("config", "--current"), ("run", "--", "true")):
        equal(world.met(*command).ok().err, "", f"what {command} says of a file that no option named")
    world.met("cancel", job).ok()


@test
def the_file_of_a_daemon_holds_for_all_commands(world):
    own = os.path.join(world.root, "own.yaml")
    with open(world.config) as file:
        plain = file.read()
    with open(own, "w") as file:
        file.write(plain + "perf:\n  events: page_faults\nemissions:\n  provider: constant\n  factor: 56\n")
    os.chmod(own, 0o644)
    log = open(os.path.join(world.root, "own.log"), "ab")
    daemon = world.me.spawn("daemon", "--user", "--config", own, stdout=log, stderr=log)
    eventually(lambda: world.met("daemon", "--status").code == 0, "the daemon answers")
    check("56" in world.met("emissions").ok().out.splitlines()[0], world.met("emissions").out)
    check(current(world)["perf.events"].split()[:2] == ["page_faults", f"{own}:{len(plain.splitlines()) + 2}"], current(world))
    record = world.run_to_end(*world.workload("fault_and_switch", 2_000, 10))
    events = record.get("events", {})
    if "page_faults" not in events.get("counts", {}) and "not allowed" in json.dumps(record):
        raise Skip("perf events are not allowed")
    check(events["counts"]["page_faults"]["count"] >= 2_000, events)
    world.met("daemon", "--stop").ok()
    daemon.wait()


@test
def commands_say_what_is_wrong_with_the_file_of_a_running_daemon(world):
    own = os.path.join(world.root, "own.yaml")
    with open(world.config) as file:
        plain = file.read()

    def write(text):
        with open(own, "w") as file:
            file.write(plain + text)
        os.chmod(own, 0o644)

    write("perf:\n  events: page_faults\n")
    log = open(os.path.join(world.root, "own.log"), "ab")
    daemon = world.me.spawn("daemon", "--user", "--config", own, stdout=log, stderr=log)
    eventually(lambda: world.met("daemon", "--status").code == 0, "the daemon answers")
    write("perf:\n  evnets: page_faults\n")
    said = f"{own}:{len(plain.splitlines()) + 2}"
    eventually(lambda: said in world.met("config", "--current").ok().err, "config --current names the line")
    for command in (("configure",), ("run", "--", "true")):
        check(said in world.met(*command).ok().err, f"{command} says nothing")
    finding = {one["what"]: one for one in world.met("doctor", "--json").ok().json()}["daemon"]
    check(said in finding["detail"] and finding["health"] == "less", finding)
    write("perf:\n  events: page_faults\n")
    eventually(lambda: world.met("config", "--current").ok().err == "", "all is well again")
    world.met("daemon", "--stop").ok()
    daemon.wait()


@test
def a_file_that_the_daemon_does_not_follow_is_not_ignored_silently(world):
    other = os.path.join(world.root, "other.yaml")
    with open(world.config) as file:
        plain = file.read()
    with open(other, "w") as file:
        file.write(plain + "sampling:\n  interval: 7s\nhttp:\n  listen: 127.0.0.1:1\n")
    os.chmod(other, 0o644)
    said = f"{other} is not in force: the running daemon follows {world.config}"
    equal(world.met("-c", other, "config", "--current").ok().err, "", "without a daemon")
    job = world.run(*FOREVER)
    world.daemon_pid()
    commands = [("config", "--current"), ("configure",), ("run", "--", "true")]
    for command in commands:
        check(said in world.met("-c", other, *command).ok().err, f"{command} says nothing")
        equal(world.met("-c", world.config, *command).ok().err, "", f"what {command} says of the same file")
    findings = {one["what"]: one for one in world.met("-c", other, "doctor", "--json").ok().json()}
    check("no process listens on 127.0.0.1:1" in findings["http"]["detail"], findings["http"])
    check(world.config in findings["daemon"]["detail"] and other in findings["daemon"]["detail"], findings["daemon"])
    world.met("cancel", job).ok()


@test
def doctor_on_a_server_reports_the_server(world):
    """Also beside a daemon with another configuration."""
    need_root()
    folder = os.path.join(world.root, "bin")
    os.mkdir(folder)
    with open(os.path.join(folder, "sacct"), "w") as file:
        file.write("#!/bin/sh\necho no database >&2\nexit 1\n")
    os.chmod(file.name, 0o755)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    config = os.path.join(world.root, "server.yaml")
    with open(config, "w") as file:
        file.write(f"system:\n  runtime: {world.system_runtime}\n  state: {world.system_state}\n"
                   f"http:\n  listen: {address}\nschedulers:\n  slurm: true\n  oar: false\n  pbs: false\n  lsf: false\n  path: {folder}\n")
    job = world.run(*FOREVER)
    with open(os.path.join(world.root, "server.log"), "ab") as log:
        server = world.me.spawn("-c", config, "server", stdout=log, stderr=log)
    try:
        def findings():
            return {one["what"]: one for one in world.met("-c", config, "doctor", "--json").ok().json()}

        found = eventually(lambda: [all for all in [findings()] if "no database" in all["scheduler"]["detail"]],
                           lambda: f"doctor shows how the queries of the server go: {findings()['scheduler']}")[0]
        check("queried by the server" in found["scheduler"]["detail"], found["scheduler"])
        equal(found["scheduler"]["health"], "no", "health of the scheduler")
        check(address in found["http"]["detail"] and found["http"]["health"] == "ok", found["http"])
        check(f"pid {server.pid}" in found["cluster"]["detail"] and address in found["cluster"]["detail"], found["cluster"])
    finally:
        server.terminate()
        server.wait()
    # One that queries none says what stays unknown.
    with open(config) as file:
        text = file.read()
    with open(config, "w") as file:
        file.write(text.replace("slurm: true", "slurm: false"))
    with open(os.path.join(world.root, "server.log"), "ab") as log:
        server = world.me.spawn("-c", config, "server", stdout=log, stderr=log)
    try:
        found = eventually(lambda: [all for all in [findings()] if f"pid {server.pid}" in all["cluster"]["detail"]],
                           lambda: f"the server is up: {findings()['cluster']}")[0]
        check("can query no scheduler" in found["scheduler"]["detail"] and "unknown" in found["scheduler"]["detail"],
              found["scheduler"])
        equal(found["scheduler"]["health"], "less", "health of a server without a scheduler")
    finally:
        server.terminate()
        server.wait()
    check("no server is running" in findings()["cluster"]["detail"], "after its end")
    world.met("cancel", job).ok()


@test
def what_is_in_force_in_a_system_daemon_is_for_all_who_may_read_its_file(world):
    user = world.someone()
    world.configure("sampling:\n  interval: 3s\n")
    world.start_system_daemon()
    own = {"MET_CONFIG": world.config}
    shown_to_user = lambda: user.met("config", "--current", env=own).ok().out
    check("root" not in shown_to_user().splitlines()[0], shown_to_user())
    equal(current(user)["sampling.interval"].split()[0], "3s", "what a user sees")
    # One that is closed to others stays so; the user's own commands have another.
    other = os.path.join(user.home, "met.yaml")
    with open(world.config) as file, open(other, "w") as copy:
        copy.write(file.read().replace("3s", "4s"))
    os.chown(other, user.uid, user.gid)
    own["MET_CONFIG"] = other
    os.chmod(world.config, 0o600)
    world.stop_system_daemon()
    world.start_system_daemon()
    check("readable by root only" in shown_to_user().splitlines()[0], shown_to_user())
    check("3s" not in shown_to_user(), "nothing of it is shown")


@test
def a_daemon_in_a_terminal_ends_with_it(world):
    terminal = world.terminal("daemon", "--user")
    terminal.read_until("serving")
    os.kill(terminal.process.pid, signal.SIGHUP)
    equal(terminal.end(), 0, "exit code")
