"""What the kernel counts by itself: ends of processes, delays, context switches, perf events."""

import ctypes
import datetime
import json
import os
import re
import shutil
import signal

from harness import DEADLINE_S, Skip, check, close_to, each, equal, eventually, need_root, test

MIB = 1 << 20


def finding(user, what):
    """What `met doctor` says about one thing."""
    return next(one for one in user.met("doctor", "--json").ok().json() if one["what"] == what)


def need_taskstats(user):
    if finding(user, "taskstats")["health"] == "no":
        raise Skip(finding(user, "taskstats")["detail"])


def until_told(user, command):
    """Starts something that waits until it is released."""
    process = user.start(*command)
    user.appears("ready")
    return process


def go(user):
    open(user.path("go"), "w").close()


@test
def an_attached_process_takes_along_children_that_came_and_went(world):
    need_taskstats(world)
    # Sampled every ten seconds, that is, never while the children live.
    world.configure("sampling:\n  interval: 10s\n")
    count, size = 50, MIB
    process = until_told(world, world.workload("write_in_turn", "out", count, size, "ready", "go"))
    job = world.met("attach", str(process.pid), "--print-id").ok().out.strip()
    # Once it is sampled there is something to subtract from.
    eventually(lambda: has_read_processes(world), "the job is sampled")
    go(world)
    equal(process.wait(DEADLINE_S), 0, "exit code")
    world.met("wait", job)
    totals = world.show(job)["totals"]
    close_to(totals["written_bytes"], count * size, 0.01, "bytes written")
    close_to(totals["write_call_bytes"], count * size, 0.01, "bytes given to write calls")
    check(totals["processes"] >= count, f"{totals['processes']} processes of {count}")
    check(totals["page_faults_minor"] > count, "page faults")
    check(totals["context_switches_voluntary"] >= count, "the parent waited for each of them")


def has_read_processes(world):
    """Whether the daemon has looked at processes; `met show` also looks by itself."""
    status = world.met("daemon", "--status", "--json")
    sources = json.loads(status.out)["sources"] if status.code == 0 else []
    return any(source["name"] == "process" and source["rows"] > 0 for source in sources)


def thread_names(pid):
    names = set()
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{task}/comm") as file:
                names.add(file.read().strip())
        except FileNotFoundError:
            pass
    return names


@test
def taskstats_off_stops_the_listener_of_exits(world):
    need_taskstats(world.me)
    world.configure("sources:\n  taskstats: off\n")
    job = world.me.run("sleep", "1000")
    daemon = world.me.daemon_pid()
    eventually(lambda: world.me.show(job)["totals"].get("memory_needed_peak_bytes"), "it is sampled")
    check("exits" not in thread_names(daemon), "a thread listens")
    # The file is read again: the same daemon begins to listen, and stops.
    for setting, listens in (("auto", True), ("off", False)):
        world.configure(f"sources:\n  taskstats: {setting}\n")
        os.kill(daemon, signal.SIGHUP)
        eventually(lambda: ("exits" in thread_names(daemon)) == listens, f"taskstats: {setting}")
    equal(world.me.daemon_pid(), daemon, "the daemon")
    world.me.met("cancel", job).ok()


@test
def what_children_do_whom_nobody_waits_for_is_the_jobs(world):
    need_taskstats(world)
    count, size = 40, MIB
    job = world.run(*world.workload("write_in_turn", "out", count, size, "ready", "go", "ignored"))
    world.appears("ready")
    eventually(lambda: "processes" in world.show(job)["totals"], "the job is sampled")
    go(world)
    world.met("wait", job).ok()
    record = world.show(job)
    close_to(record["totals"]["written_bytes"], count * size, 0.01, "bytes written")
    check("taskstats" in record["quality"]["written_bytes"]["source"], record["quality"]["written_bytes"])


@test
def delays_that_are_not_accounted_are_missing_and_not_0(world):
    need_taskstats(world)
    with open("/proc/sys/kernel/task_delayacct") as file:
        accounted = file.read().strip() == "1"
    record = world.run_to_end(*world.workload("fault_and_switch", 2000, 200))
    equal("delay_io_seconds" in record["totals"], accounted, "delays are known")
    found = finding(world, "taskstats")
    equal(found["health"], "ok" if accounted else "less", "health")
    check(accounted or "sysctl kernel.task_delayacct=1" in found["remedy"], found)


@test
def waiting_for_a_cpu_is_counted(world):
    need_taskstats(world)
    # Two that compute and may use one CPU only: each waits while the other runs.
    record = world.run_to_end(*world.workload("on_one_cpu", 2, 0.5))
    waited, used = record["totals"]["run_queue_wait_seconds"], record["totals"]["cpu_seconds"]
    check(waited > 0.5 * used, f"waited {waited} s, computed {used} s")


@test
def without_permission_the_doctor_says_what_is_missing(world):
    need_root()
    user = world.someone()
    found = finding(user, "taskstats")
    equal(found["health"], "no", "health")
    check("CAP_NET_ADMIN" in found["remedy"], found)
    record = user.run_to_end(*world.workload("in_turn", "cpu", 3, 0.05))
    equal(record["job"]["state"], "finished", "state")
    check(record["totals"]["cpu_seconds"] >= 0.1, "a job is measured all the same")
    check("delay_io_seconds" not in record["totals"], "what is not known is absent")


@test
def a_system_daemon_needs_no_second_one_for_what_it_reads(world):
    user = world.someone()
    if finding(world.me, "taskstats")["health"] == "no":
        raise Skip("root cannot read taskstats here")
    world.start_system_daemon()
    found = finding(user, "taskstats")
    equal((found["health"], found["remedy"]), ("ok", None), "what a user reads")
    check("read by the daemon" in found["detail"], found)


SOFTWARE = ("page_faults", "context_switches", "cpu_migrations", "task_clock", "cpu_clock", "alignment_faults",
            "emulation_faults")


@each(by_run="run", by_time="time")
def software_events_are_counted_everywhere(world, how):
    world.configure(f"perf:\n  events: [{', '.join(SOFTWARE)}]\n")
    if finding(world, "perf")["health"] == "no":
        raise Skip(finding(world, "perf")["detail"])
    command = world.workload("fault_and_switch", 20_000, 2_000)
    record = world.run_to_end(*command) if how == "run" else world.time_to_end(*command)
    counts = record["events"]["counts"]
    equal(sorted(counts), sorted(SOFTWARE), "events")
    totals = record["totals"]
    faults = totals["page_faults_minor"] + totals["page_faults_major"]
    switches = totals["context_switches_voluntary"] + totals["context_switches_involuntary"]
    # What resource usage says of the same processes.
    close_to(counts["page_faults"]["count"], faults, 0.01, "page faults")
    if counts["context_switches"]["kind"] == "measured":
        close_to(counts["context_switches"]["count"], switches, 0.01, "context switches")
    check(counts["task_clock"]["count"] > 0 and counts["page_faults"]["counted_ratio"] == 1, counts)


@test
def events_of_a_cgroup_agree_with_perf_stat(world):
    need_root()
    perf = shutil.which("perf")
    if not perf:
        raise Skip("perf is not installed (package linux-perf)")
    world.configure("perf:\n  events: page_faults, context_switches\n")
    # perf itself is part of the job: about a thousand faults and some switches, so there must be many more.
    command = world.workload("fault_and_switch", 400_000, 20_000)
    counting = [perf, "stat", "-x", ",", "-o", "stat", "-e", "page-faults,context-switches", *command]
    record = world.run_to_end(*counting)
    equal(record["job"]["exit_code"], 0, "exit code of perf stat")
    counts = record["events"]["counts"]
    if counts["page_faults"]["source"] != "perf, cgroup":
        raise Skip(f"no cgroup to count in: {counts['page_faults']['source']}")
    lines = [line.split(",") for line in world.read("stat").decode().splitlines()]
    truth = {fields[2].partition(":")[0]: int(fields[0]) for fields in lines if len(fields) > 2 and fields[0].isdigit()}
    close_to(counts["page_faults"]["count"], truth["page-faults"], 0.01, "page faults")
    close_to(counts["context_switches"]["count"], truth["context-switches"], 0.01, "context switches")


@test
def an_ordinary_user_counts_his_own_code(world):
    need_root()
    world.configure("perf:\n  events: [page_faults, context_switches]\n")
    user = world.someone()
    record = user.run_to_end(*world.workload("fault_and_switch", 20_000, 200))
    counts = record.get("events", {}).get("counts", {})
    if "page_faults" not in counts:
        check("not allowed" in record["events"]["not_counted"]["page_faults"]["reason"], record.get("events"))
        raise Skip(f"perf events are not allowed: {finding(user, 'perf')['detail']}")
    if counts["page_faults"]["kind"] == "lower_bound":
        check("user code only" in counts["page_faults"]["source"], counts)
        check("context_switches" not in counts, "what happens in the kernel alone is absent and not 0")
        check("not allowed" in record["events"]["not_counted"]["context_switches"]["reason"], record["events"])
    close_to(counts["page_faults"]["count"], record["totals"]["page_faults_minor"], 0.05, "page faults")


@test
def an_event_that_does_not_exist_is_refused(world):
    world.configure("perf:\n  events: [page_fault]\n")
    world.met("list").refused("page_fault", "met metrics")


@test
def an_event_this_machine_does_not_count_is_named_by_the_doctor(world):
    # A number that no processor has.
    world.configure("perf:\n  events: [page_faults, rffffffffffffffff]\n")
    found = finding(world, "perf")
    check(found["health"] in ("less", "no") and "does not count it" in found["detail"], found)
    events = world.run_to_end("true")["events"]
    check("rffffffffffffffff" not in events["counts"], events)
    check("does not count it" in events["not_counted"]["rffffffffffffffff"]["reason"], events)
    check("page_faults" not in events["not_counted"], events)


@each(by_run="run", by_time="time")
def a_job_says_why_no_event_could_be_counted(world, how):
    world.configure("perf:\n  events: [rffffffffffffffff]\n")
    record = world.run_to_end("true") if how == "run" else world.time_to_end("true")
    equal(record["events"]["counts"], {}, "counts")
    reason = record["events"]["not_counted"]["rffffffffffffffff"]["reason"]
    check("does not count it" in reason or "not allowed" in reason, record["events"])
    shown = world.met("show", "@last").ok().out
    check("not counted: rffffffffffffffff" in shown, shown)


@test
def an_attached_process_is_counted_from_then_on(world):
    world.configure("perf:\n  events: [page_faults, task_clock]\n")
    if finding(world, "perf")["health"] == "no":
        raise Skip(finding(world, "perf")["detail"])
    process = until_told(world, world.workload("write_in_turn", "out", 5, MIB, "ready", "go"))
    job = world.met("attach", str(process.pid), "--print-id").ok().out.strip()
    go(world)
    equal(process.wait(DEADLINE_S), 0, "exit code")
    world.met("wait", job)
    counts = world.show(job)["events"]["counts"]
    check(counts["page_faults"]["count"] > 5 and counts["task_clock"]["count"] > 0, counts)
    equal(counts["task_clock"]["source"], "perf, process tree", "source")


@test
def every_event_has_a_name_in_the_catalogue(world):
    listed = world.met("metrics").ok().out
    older = ("cpu_cycles instructions cache_references cache_misses branch_instructions branch_misses bus_cycles "
             "ref_cpu_cycles cache_l1d cache_ll cache_dtlb cache_itlb cache_bpu cache_node cache_op_read "
             "cache_op_prefetch cache_result_access cpu_clock task_clock page_faults context_switches cpu_migrations "
             "page_faults_min page_faults_maj alignment_faults emulation_faults dummy bpf_output").split()
    equal(len(older), 28, "names of the older tool")
    for name in older:
        check(f"\n{name} " in listed, name)
    world.configure(f"perf:\n  events: [{', '.join(older)}]\n")
    world.met("list").ok()


def replace_file(user, path, text):
    """In a mount namespace of the test's own, as if this kernel printed something else."""
    need_root()
    changed = user.path("changed")
    with open(changed, "w") as file:
        file.write(text)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(0x20000) != 0:
        raise Skip("no mount namespace can be made")
    libc.mount(b"none", b"/", None, 0x4000 | 0x40000, None)
    if libc.mount(changed.encode(), path.encode(), None, 0x1000, None) != 0:
        raise Skip(f"nothing can be mounted on {path}")


@test
def a_file_that_the_kernel_prints_otherwise_is_counted_by_doctor_and_daemon(world):
    words = r"(\d+) readings? could not be parsed \(first: /proc/loadavg\)"
    check(not re.search(words, finding(world.me, "node")["detail"]), "nothing is wrong yet")
    replace_file(world.me, "/proc/loadavg", "low\n")
    found = finding(world.me, "node")
    equal(found["health"], "less", found["detail"])
    check(re.search(words, found["detail"]), found["detail"])
    job = world.run("sleep", "600")

    def counted():
        # Until the job has started one there is no daemon.
        said = re.search(words, world.met("daemon", "--status").out)
        return int(said[1]) if said else 0

    eventually(lambda: counted() > 1, "the daemon counts it again and again")
    check(re.search(words, finding(world.me, "node")["detail"]), "doctor shows what the daemon counted")
    world.met("cancel", job).ok()
    world.met("wait", job)


@test
def processes_begin_and_end_when_they_did(world):
    need_taskstats(world)
    # Kernel clocks that are read by different ways differ by less.
    room_s = 0.02
    # Sampled so rarely that most of them are never seen alive.
    world.configure("sampling:\n  interval: 10s\n")
    first = world.run("sleep", "1000")
    world.daemon_pid()
    record = world.run_to_end(*world.workload("lives_in_turn", "lives", 15, 0.12))
    world.met("cancel", first).ok()
    found = {process["pid"]: process for process in record["processes"]}
    lives = json.loads(world.read("lives"))
    at = lambda text: datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    for pid, before, first, last, after in lives:
        start, end = at(found[pid]["start"]), at(found[pid]["end"])
        check(before - room_s <= start <= first + room_s, f"start {start}, born between {before} and {first}")
        check(last - room_s <= end <= after + room_s, f"end {end}, it ended between {last} and {after}")
    parent = found[found[lives[0][0]]["ppid"]]
    check(at(parent["end"]) >= lives[-1][4] - room_s, f"the parent ended after {lives[-1][4]}: {parent}")
