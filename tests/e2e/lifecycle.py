"""The life of a job: how it starts, how it ends, what its exit code becomes; and the life of the daemon."""

import fcntl
import json
import os
import signal
import struct
import subprocess
import termios
import threading
import time

from harness import DEADLINE_S, alive, check, children_of, each, equal, eventually, marked, test


# Not in every Python's fcntl.
F_SETPIPE_SZ = 1031


def by_time(world, *command):
    return world.met("time", "--quiet", "--", *command)


def by_run(world, *command):
    return world.met("run", "--wait", "--", *command)


def by_wait(world, *command):
    started = world.met("run", "--print-id", "--", *command)
    # What cannot be started is refused at once.
    return world.met("wait", started.out.strip()) if started.code == 0 else started


WAYS = {"by_time": by_time, "by_run": by_run, "by_wait": by_wait}


@each(**WAYS)
def exit_codes_are_passed_on(world, way):
    for code in (0, 3, 255):
        equal(way(world, "sh", "-c", f"exit {code}").code, code, "exit code")
        job = world.show()["job"]
        equal((job["exit_code"], job["signal"]), (code, None), "recorded exit code and signal")
        equal(job["state"], "failed" if code else "finished", "state")


@each(**WAYS)
def a_job_killed_by_a_signal_is_known_as_such(world, way):
    equal(way(world, "sh", "-c", "kill -9 $$").code, 137, "exit code")
    job = world.show()["job"]
    equal((job["exit_code"], job["signal"], job["state"]), (None, 9, "failed"), "exit code, signal and state")


@each(**WAYS)
def a_command_that_does_not_exist_gives_127_and_no_job(world, way):
    way(world, "no-such-command-at-all").refused("no-such-command-at-all", "not found", code=127)
    way(world, "./nothing/here").refused("./nothing/here", code=127)
    equal(world.jobs(), [], "jobs")
    equal(os.listdir(world.work), [], "files")


@each(**WAYS)
def a_command_that_is_not_executable_gives_126_and_no_job(world, way):
    with open(world.path("plain"), "w") as file:
        file.write("echo hello\n")
    way(world, "./plain").refused("./plain", "not executable", code=126)
    way(world, "/etc").refused("is a directory", code=126)
    equal(world.jobs(), [], "jobs")


@each(**WAYS)
def a_script_with_a_broken_interpreter_gives_127_with_a_message(world, way):
    with open(world.path("broken"), "w") as file:
        file.write("#!/no/such/interpreter\n")
    os.chmod(world.path("broken"), 0o755)
    result = way(world, "./broken")
    equal(result.code, 127, "exit code")
    equal(world.show()["job"]["exit_code"], 127, "recorded exit code")
    said = result.err if way is not by_wait else world.read("broken.err").decode()
    check("met: cannot run ./broken" in said, "no message:", repr(said))


@test
def a_script_without_an_interpreter_line_is_run_by_the_shell(world):
    with open(world.path("script"), "w") as file:
        file.write('echo "$1"; exit 7\n')
    os.chmod(world.path("script"), 0o755)
    result = by_time(world, "./script", "a b")
    equal((result.code, result.out), (7, "a b\n"), "exit code and output")


@test
def met_run_twice_gives_two_jobs(world):
    first, second = world.run("true"), world.run("true")
    equal((first, second), ("1", "2"), "ids")
    world.met("wait", first, second).ok()
    equal([job["job"]["id"] for job in world.jobs()], ["2", "1"], "jobs, newest first")
    equal({job["job"]["state"] for job in world.jobs()}, {"finished"}, "states")


def run_many(world, count, *command):
    """Starts jobs at the same moment; their ids."""
    processes = [world.spawn("run", "--print-id", "--", *command) for _ in range(count)]
    results = [world.finish(process, ("run",)).ok() for process in processes]
    return sorted(int(result.out) for result in results)


class DaemonCount(threading.Thread):
    """Watches how many daemons hold the store at once: the most ever seen."""

    def __init__(self, user):
        super().__init__(daemon=True)
        self.user, self.most, self.pids, self.over = user, 0, set(), threading.Event()

    def run(self):
        while not self.over.is_set():
            holders = self.holders()
            self.pids |= holders
            self.most = max(self.most, len(holders))

    def holders(self):
        """Processes that have the store's database open for good, that is, daemons that serve."""
        found = set()
        for pid in self.user.daemon_pids():
            try:
                names = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
            except OSError:
                continue
            if any(name.endswith("store.db") for name in names):
                found.add(pid)
        return found

    def stop(self):
        self.over.set()
        self.join()


@test
def twenty_jobs_at_once_start_one_daemon(world):
    count = DaemonCount(world.me)
    count.start()
    ids = run_many(world, 20, "sh", "-c", "sleep 0.2; exit 6")
    equal(ids, list(range(1, 21)), "ids")
    world.met("wait", *map(str, ids)).expect(6)
    eventually(lambda: len(world.daemon_pids()) == 1, "one daemon is left")
    count.stop()
    equal((count.most, len(count.pids)), (1, 1), "daemons at once and in all")
    jobs = world.jobs()
    equal(len(jobs), 20, "jobs")
    equal({job["job"]["exit_code"] for job in jobs}, {6}, "exit codes")


@test
def twenty_jobs_at_the_moment_of_the_idle_exit_are_all_recorded(world):
    world.configure("daemon:\n  idle_exit: 1s\n")
    count = DaemonCount(world.me)
    count.start()
    expected = 0
    # Aimed at the moment of the exit, a little later each time.
    for attempt in range(5):
        world.met("run", "--wait", "--", "true").ok()
        time.sleep(0.94 + attempt * 0.03)
        ids = run_many(world, 20, "sh", "-c", "exit 5")
        expected += 21
        world.met("wait", *map(str, ids)).expect(5)
    eventually(lambda: not world.daemon_pids(), "the daemon leaves")
    count.stop()
    equal(count.most, 1, "daemons at once")
    jobs = world.jobs()
    equal(len(jobs), expected, "jobs")
    equal({job["job"]["state"] for job in jobs}, {"finished", "failed"}, "states")


@test
def an_idle_daemon_leaves_by_itself(world):
    world.configure("daemon:\n  idle_exit: 1s\n")
    job = world.run("sh", "-c", "while [ ! -e go ]; do sleep 0.05; done")
    daemon = world.daemon_pid()
    open(world.path("go"), "w").close()
    world.met("wait", job).ok()
    eventually(lambda: not alive(daemon), "the daemon leaves")
    check(not os.path.exists(world.socket()), "its socket is still there")
    equal(world.state_of("1"), "finished", "state")


@test
def a_daemon_with_a_job_does_not_leave(world):
    world.configure("daemon:\n  idle_exit: 1s\n")
    job = world.run("sleep", "2")
    daemon = world.daemon_pid()
    world.met("wait", job).ok()
    equal(world.show(job)["job"]["exit_code"], 0, "exit code")
    eventually(lambda: not alive(daemon), "it leaves afterwards")


@test
def a_stopped_daemon_leaves_its_jobs_running(world):
    job = world.run("sh", "-c", "while [ ! -e go ]; do sleep 0.05; done; exit 9")
    world.daemon_pid()
    said = world.met("daemon", "--user", "--stop").ok()
    equal(said.out, f"Stopped your own daemon, which served at {world.socket()}; jobs keep running\n", "output")
    eventually(lambda: not world.daemon_pids(), "the daemon is gone")
    equal(world.state_of(job), "running", "state")
    open(world.path("go"), "w").close()
    world.met("wait", job).expect(9)
    check(not world.daemon_pids(), "another daemon came though this one was asked to stop")
    record = world.show(job)
    equal((record["job"]["state"], record["job"]["exit_code"]), ("failed", 9), "state and exit code")
    check(record["totals"]["cpu_seconds"] > 0, "no CPU")


@test
def the_daemon_tells_its_status_and_is_alone(world):
    world.met("daemon", "--user", "--status").refused("no daemon is running")
    world.met("daemon", "--user", "--stop").refused("no daemon is running")
    process = world.spawn("daemon", "--user")
    pid = world.daemon_pid()
    equal(pid, process.pid, "pid in the status")
    job = world.run("sleep", "100")
    eventually(lambda: "1 running job" in world.met("daemon", "--user", "--status").ok().out, "it knows the job")
    world.met("daemon", "--user").refused("a daemon is already running")
    world.met("cancel", job).ok()
    world.met("daemon", "--user", "--stop").ok()
    equal(process.wait(DEADLINE_S), 0, "exit code of the daemon")
    process.communicate()


def other_runtime(world):
    """The environment of a login of the same user with another runtime directory, as cron has beside ssh."""
    folder = os.path.join(world.home, "other-run")
    os.mkdir(folder, 0o700)
    return {"XDG_RUNTIME_DIR": folder}


@test
def a_login_with_another_runtime_directory_uses_the_daemon_that_holds_the_state(world):
    other = other_runtime(world)
    daemon = world.spawn("daemon", "--user")
    equal(world.daemon_pid(), daemon.pid, "pid in the status")
    job = world.run("sleep", "100", env=other)
    eventually(lambda: "1 running job" in world.met("daemon", "--user", "--status").ok().out, "it samples the job")
    check(f"(pid {daemon.pid})" in world.met("daemon", "--user", "--status", env=other).ok().out, "status")
    sampled = lambda: world.met("show", job, "--json", env=other).ok().json()["totals"].get("memory_needed_peak_bytes")
    listed = world.met("list", "--json", env=other).ok()
    equal([(job["job"]["id"], job["job"]["state"]) for job in listed.json()], [(job, "running")], "jobs")
    equal(listed.err, "", "stderr of list")
    eventually(sampled, "samples")
    world.met("daemon", "--user", env=other).refused("a daemon is already running")
    world.met("cancel", job, env=other).ok()
    world.met("daemon", "--user", "--stop", env=other).ok()
    equal(daemon.wait(DEADLINE_S), 0, "exit code of the daemon")
    daemon.communicate()
    left = [name for name in os.listdir(world.store_folder()) if "address" in name]
    equal(left, [], "what says where a daemon serves")


@test
def the_address_of_a_killed_daemon_leads_nobody_astray(world):
    other = other_runtime(world)
    daemon = world.spawn("daemon", "--user")
    world.daemon_pid()
    daemon.kill()
    daemon.communicate()
    address = os.path.join(world.store_folder(), "daemon.address")
    with open(address) as file:
        equal(file.read(), world.socket(), "the address")
    equal(os.stat(address).st_mode & 0o777, 0o600, "its mode")
    world.met("daemon", "--user", "--status", env=other).refused("no daemon is running")
    job = world.run("sleep", "100", env=other)
    status = lambda: world.met("daemon", "--user", "--status")
    eventually(lambda: "1 running job" in status().out, "the next daemon is found by the first login")
    world.met("cancel", job).ok()
    eventually(lambda: world.met("daemon", "--user", "--stop").code == 2, "no daemon is left")


@each(sigterm=signal.SIGTERM, sigint=signal.SIGINT)
def a_daemon_ends_in_order_by(world, how):
    process = world.spawn("daemon", "--user")
    world.daemon_pid()
    process.send_signal(how)
    equal(process.wait(DEADLINE_S), 0, "exit code of the daemon")
    process.communicate()
    check(not os.path.exists(world.socket()), "its socket is still there")


@test
def a_signal_to_met_time_reaches_the_job(world):
    for name in ("SIGTERM", "SIGUSR1", "SIGHUP", "SIGINT", "SIGQUIT"):
        process = world.spawn("time", "--quiet", "--", *world.workload("on_signal", "got", "ready", name))
        world.appears("ready")
        process.send_signal(getattr(signal, name))
        result = world.finish(process, ("time",))
        equal(result.code, 40 + getattr(signal, name), "exit code")
        equal(world.read("got").decode(), f"{name}\n", "what the job got")
        os.unlink(world.path("got"))
        os.unlink(world.path("ready"))


@test
def a_job_that_dies_of_a_signal_to_met_time_is_reported(world):
    process = world.spawn("time", "--", "sh", "-c", "echo > ready; while :; do sleep 0.05; done")
    world.appears("ready")
    process.send_signal(signal.SIGTERM)
    result = world.finish(process, ("time",))
    equal(result.code, 143, "exit code")
    check("signal 15" in result.err or "SIGTERM" in result.err, result.err)
    equal(world.show()["job"]["signal"], 15, "recorded signal")


@test
def ctrl_c_at_a_terminal_reaches_the_job_and_met_reports(world):
    terminal = world.terminal("time", "--", *world.workload("on_signal", "got", "ready", "SIGINT"))
    world.appears("ready")
    terminal.send(b"\x03")
    equal(terminal.end(), 42, "exit code")
    equal(world.read("got").decode(), "SIGINT\n", "what the job got, once")
    check("exit code 42" in terminal.text(), "no report:", terminal.text())


@test
def ctrl_c_ends_a_job_that_does_not_care(world):
    terminal = world.terminal("time", "--", "sleep", "1000")
    eventually(lambda: "sleep 1000" in marked(world.token).values(), "it runs")
    terminal.send(b"\x03")
    equal(terminal.end(), 130, "exit code")
    equal(world.show()["job"]["signal"], 2, "recorded signal")


@test
def a_job_of_met_time_has_the_terminal(world):
    terminal = world.terminal("time", "--quiet", "--", "sh", "-c", "test -t 0 && read line && echo got:$line && tty")
    terminal.send(b"hello\n")
    text = terminal.read_until("/dev/pts/")
    check("got:hello" in text, text)
    equal(terminal.end(), 0, "exit code")


@test
def a_job_of_met_run_has_no_terminal(world):
    terminal = world.terminal("run", "--wait", "--", "sh", "-c", "(: < /dev/tty) 2>/dev/null && exit 1; test ! -t 1")
    equal(terminal.end(), 0, "exit code")


@test
def a_hung_up_terminal_does_not_end_a_job_of_met_run(world):
    terminal = world.terminal("run", "--print-id", "--", "sh", "-c", "while [ ! -e go ]; do sleep 0.05; done; exit 8")
    equal(terminal.end(), 0, "exit code")
    open(world.path("go"), "w").close()
    world.met("wait", "@last").expect(8)


@test
def streams_pass_through_met_time(world):
    result = world.met("time", "--quiet", "--", *world.workload("echo", 3), input=b"in\0\xff\n" * 50_000)
    equal(result.code, 3, "exit code")
    equal(len(result.out_bytes), 250_000, "bytes that came through")
    equal(result.err, "said on stderr\n", "stderr")


@test
def a_closed_stdout_does_not_change_the_exit_code(world):
    script = f"{world.met_path} time --quiet -- sh -c 'yes | head -c 300000; exit 0' | head -c 10; echo ${{PIPESTATUS[0]}}"
    process = world.start("bash", "-c", script)
    out, _ = process.communicate(timeout=DEADLINE_S)
    check(out.endswith(b"\n"), out)
    eventually(lambda: world.jobs() and world.jobs()[0]["job"]["state"] in ("finished", "failed"), "the job ends")


@test
def whoever_stops_reading_sentences_has_had_enough_of_them(world):
    sleeper = world.start("sleep", "1000")
    for command in (("run", "--", "true"), ("attach", str(sleeper.pid))):
        equal(told_to_nobody(world, *command), (0, b""), f"{command}: exit code and stderr")
    world.met("detach", "@last").ok()
    # An id was asked for.
    for command in (("run", "--print-id", "--", "true"), ("attach", "--print-id", str(sleeper.pid))):
        code, said = told_to_nobody(world, *command)
        check(code == 1 and b"met show" in said, f"{command}: {code} {said!r}")
    sleeper.kill()


def told_to_nobody(world, *arguments):
    """The exit code of a command whose standard output is a pipe without a reader, and what it says beside it."""
    reader, writer = os.pipe()
    os.close(reader)
    process = world.spawn(*arguments, stdout=writer)
    os.close(writer)
    _, said = process.communicate(timeout=DEADLINE_S)
    return process.returncode, said


@test
def an_output_that_does_not_wait_gets_everything(world):
    expected = world.met("metrics", "--markdown").ok().out_bytes
    reader, writer = os.pipe()
    room = fcntl.fcntl(writer, F_SETPIPE_SZ, 4096)
    check(len(expected) > 2 * room, f"{len(expected)} bytes are too few for a pipe of {room}")
    os.set_blocking(writer, False)
    process = world.spawn("metrics", "--markdown", stdout=writer)
    os.close(writer)

    def waiting():
        return struct.unpack("i", fcntl.ioctl(reader, termios.FIONREAD, bytes(4)))[0]

    eventually(lambda: waiting() == room, "the pipe is full")
    with open(reader, "rb") as file:
        got = file.read()
    _, said = process.communicate(timeout=DEADLINE_S)
    equal((process.returncode, said), (0, b""), "exit code and stderr")
    check(got == expected, f"{len(got)} of {len(expected)} bytes came through")


@test
def a_job_lasts_until_its_last_process_ends(world):
    job = world.run("sh", "-c", "(while [ ! -e go ]; do sleep 0.05; done; echo late) & exit 3")
    eventually(lambda: "sh" in world.met("ps", job).out, "the child is there")
    equal(world.state_of(job), "running", "state while a child lives")
    open(world.path("go"), "w").close()
    world.met("wait", job).expect(3)
    equal(world.read("sh.out"), b"late\n", "output")


@test
def met_time_names_the_processes_it_leaves_and_returns(world):
    result = world.met("time", "--", "sh", "-c", "sleep 1000 </dev/null >/dev/null 2>&1 & echo $! > pid; exit 2")
    equal(result.code, 2, "exit code")
    pid = int(world.read("pid"))
    check(alive(pid), "it was killed")
    check(str(pid) in result.err and "sleep" in result.err, "the report does not name it:", result.err)
    equal(world.show()["job"]["state"], "failed", "state")
    shown = world.met("show").ok().out
    check(str(pid) in shown, "met show does not name it:", shown)
    world.met("cancel", "@last").ok()
    check(not alive(pid), "met cancel leaves it alive")


@test
def a_name_of_several_jobs_ends_and_removes_none_of_them(world):
    first, second = (world.run("sleep", "1000", options=["-n", "dup"]) for _ in range(2))
    for command in ("cancel", "rm"):
        refused = world.met(command, "dup").expect(2)
        if command == "cancel":
            check(f"2 jobs are named \"dup\": {second} (running), {first} (running)" in refused.err, refused.err)
            world.met(command, f"dup@{os.uname().nodename}").expect(2)
    equal([world.state_of(job) for job in (first, second)], ["running", "running"], "after a name that means both")
    world.met("cancel", second).ok()
    world.wait_for_state(second, "cancelled")
    # Of that name one is left that can be ended, although it is not the newest.
    world.met("cancel", "dup").ok()
    world.wait_for_state(first, "cancelled")
    refused = world.met("rm", "dup").expect(2)
    check(f"{second} (cancelled), {first} (cancelled)" in refused.err, refused.err)
    world.met("rm", first).ok()
    third = world.run("sleep", "1000", options=["-n", "dup"])
    refused = world.met("rm", "dup").expect(2)
    check(f"{third} (running), {second} (cancelled)" in refused.err, refused.err)
    world.met("cancel", third).ok()
    world.wait_for_state(third, "cancelled")
    world.met("rm", third).ok()
    world.met("rm", "dup").ok()
    equal(world.met("list", "--json").ok().out.count('"name":"dup"'), 0, "jobs of that name")


@test
def a_process_left_by_met_time_may_end_by_itself(world):
    script = "(while [ ! -e go ]; do sleep 0.05; done) >/dev/null 2>&1 & echo $! > left"
    world.met("time", "--quiet", "--", "sh", "-c", script).ok()
    left = int(world.read("left"))
    check(alive(left), "met time waited for it, or ended it")
    open(world.path("go"), "w").close()
    eventually(lambda: not alive(left), "it ends by itself")


@test
def met_time_all_waits_for_every_process(world):
    script = "(sleep 0.7; echo late > done) & exit 2"
    result = world.met("time", "--all", "--quiet", "--", "sh", "-c", script)
    equal(result.code, 2, "exit code")
    equal(world.read("done"), b"late\n", "what the last process wrote")
    check(world.show()["totals"]["wall_seconds"] >= 0.7, "wall time ends too early")


@test
def met_time_json_is_one_line_on_stderr(world):
    result = world.met("time", "--json", "--", "sh", "-c", "echo out")
    equal(result.out, "out\n", "stdout")
    equal(len(result.err.splitlines()), 1, "lines on stderr")
    equal(world.show()["job"], json.loads(result.err)["job"], "what is recorded")


@test
def met_time_writes_its_report_to_a_file(world):
    result = world.met("time", "-o", "report", "--", "sh", "-c", "exit 4")
    equal((result.code, result.out, result.err), (4, "", ""), "exit code, stdout and stderr")
    text = world.read("report").decode()
    check("exit code 4" in text and "\x1b" not in text, text)
    equal(world.met("time", "--json", "-o", "report", "--", "true").err, "", "stderr")
    check(world.read("report").startswith(b'{"version":1,'), "no JSON in the file")


@test
def met_time_quiet_says_nothing(world):
    result = world.met("time", "--quiet", "--", "true").ok()
    equal((result.out, result.err), ("", ""), "stdout and stderr")


@test
def met_time_no_record_leaves_no_trace(world):
    result = world.met("time", "--no-record", "--json", "--", "sh", "-c", "exit 3")
    equal(result.code, 3, "exit code")
    check('"exit_code":3' in result.err, result.err)
    equal(world.jobs(), [], "jobs")
    equal(os.listdir(world.state), [], "files in the state directory")


@test
def met_time_needs_no_daemon(world):
    world.met("time", "--quiet", "--", "true").ok()
    check(not world.daemon_pids(), "a daemon was started")


@test
def cancel_sends_the_signal_and_kills_after_the_grace(world):
    job = world.run(*world.workload("on_signal", "got", "ready", "SIGUSR2"))
    world.appears("ready")
    world.met("cancel", job, "--signal", "usr2").ok()
    record = world.show(job)["job"]
    equal((record["state"], record["exit_code"]), ("cancelled", 40 + signal.SIGUSR2), "state and exit code")
    equal(world.read("got"), b"SIGUSR2\n", "what the job got")
    job = world.run(*world.workload("stubborn", "stubborn.ready"))
    pid = int(world.appears("stubborn.ready"))
    world.met("cancel", job, "--grace", "300ms").ok()
    check(not alive(pid), "it is still alive")
    record = world.show(job)["job"]
    equal((record["state"], record["signal"]), ("cancelled", 9), "state and signal")


@test
def cancel_ends_several_jobs_and_a_stopped_one(world):
    jobs = [world.run("sleep", "1000"), world.run("sh", "-c", "kill -STOP $$; sleep 1000")]
    eventually(lambda: " T " in world.met("ps", jobs[1]).out, "it has stopped")
    world.met("cancel", *jobs).ok()
    equal([world.state_of(job) for job in jobs], ["cancelled", "cancelled"], "states")
    said = world.met("cancel", jobs[0]).ok().out
    check("has already ended" in said, said)


@test
def wait_gives_the_worst_of_several(world):
    jobs = [world.run("sh", "-c", f"sleep 0.2; exit {code}") for code in (0, 5, 2)]
    equal(world.met("wait", *jobs).code, 5, "exit code")
    equal(world.met("wait", jobs[0], jobs[2]).code, 2, "exit code of finished jobs")


@test
def a_job_in_a_folder_that_is_removed_still_ends_well(world):
    os.mkdir(world.path("gone"))
    job = world.run("sh", "-c", "while [ ! -e ../go ] && [ ! -e ../work/go ]; do sleep 0.05; done; exit 6", cwd=world.path("gone"))
    for name in os.listdir(world.path("gone")):
        os.unlink(os.path.join(world.path("gone"), name))
    os.rmdir(world.path("gone"))
    world.met("cancel", job).ok()
    equal(world.state_of(job), "cancelled", "state")
    equal(subprocess.run(["ls", world.work], capture_output=True).stdout, b"", "files")


@each(by_time=by_time, by_run=by_run)
def who_ignores_sigchld_can_start_jobs(world, how):
    def ignore():
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)

    arguments = ("time", "--quiet") if how is by_time else ("run", "--wait")
    result = world.met(*arguments, "--", "sh", "-c", "sleep 0.2; exit 3", preexec=ignore)
    equal(result.code, 3, "exit code")
    equal(world.show()["job"]["exit_code"], 3, "recorded exit code")


@test
def a_daemon_started_inside_a_job_is_not_part_of_it(world):
    script = f"{world.met_path} run --print-id --out /dev/null --err /dev/null -- true"
    world.met("time", "--all", "--quiet", "--", "sh", "-c", script).ok()
    outer = next(job for job in world.jobs() if job["job"]["name"] == "sh")
    equal(outer["job"]["state"], "finished", "state")


@test
def variables_of_a_job_are_not_those_of_the_daemon(world):
    elsewhere = world.path("elsewhere")
    env = ("--env", f"XDG_STATE_HOME={elsewhere}", "--env", f"XDG_RUNTIME_DIR={elsewhere}", "--env", "ANSWER=42")
    # A job that ends at once needs no daemon: this one lasts until there is one.
    script = 'echo "$ANSWER $XDG_STATE_HOME"; while [ ! -e go ]; do sleep 0.05; done'
    job = world.met("run", "--print-id", *env, "--", "sh", "-c", script).ok().out.strip()
    world.daemon_pid()
    open(os.path.join(world.work, "go"), "w").close()
    world.met("wait", job).ok()
    equal(world.met("logs", job).ok().out, f"42 {elsewhere}\n", "what the job saw")
    check(not os.path.exists(elsewhere), "another process took them for its own")


@test
def a_daemon_holds_nothing_of_who_started_it(world):
    lock = os.open(world.path("lock"), os.O_CREAT | os.O_RDWR)
    os.set_inheritable(lock, True)
    world.met("run", "--wait", "--", "sleep", "0.3", close_fds=False).ok()
    daemon = world.daemon_pid()
    held = [os.readlink(f"/proc/{daemon}/fd/{fd}") for fd in os.listdir(f"/proc/{daemon}/fd")]
    check(world.path("lock") not in held, str(held))
    equal(os.readlink(f"/proc/{daemon}/cwd"), "/", "the daemon's folder")
    os.close(lock)


@test
def an_attached_process_can_be_let_go(world):
    process = world.start("sleep", "1000")
    job = world.met("attach", "--print-id", str(process.pid)).ok().out.strip()
    world.met("rm", job).refused("met detach")
    world.met("detach", job).ok()
    equal(world.state_of(job), "finished", "state")
    check(process.poll() is None, "it was ended")
    world.met("detach", job).refused("not attached")
    shown = world.met("show", job).ok().out
    check("detached" in shown and "Still alive" not in shown and "met cancel" not in shown, shown)
    check("already ended" in world.met("cancel", job).ok().out, "what is the job's no more was cancelled")
    check(alive(process.pid), "a detached process was ended")
    check("(finished)" in world.met("ps", job).ok().out, "its process is listed as running")
    world.met("rm", job).ok()
    check(alive(process.pid), "a detached process was ended")
    process.kill()
    process.communicate()
    world.met("attach", "1").refused("belongs to the system")


@test
def what_is_measured_already_is_not_attached_to(world):
    process = world.start("sh", "-c", "sleep 1000 & wait")
    (child,) = eventually(lambda: children_of(process.pid), "its child runs")
    first = world.met("attach", "--print-id", "-n", "first", str(process.pid)).ok().out.strip()
    world.met("attach", str(process.pid)).refused("already measured", f'job {first} "first"', f"met show {first}")
    world.met("attach", str(child)).refused("part of", f'job {first} "first"', f"met ps {first}")
    world.met("detach", first).ok()
    second = world.met("attach", "--print-id", str(process.pid)).ok().out.strip()
    job = world.run("sh", "-c", "echo $$ > main; sleep 1000 & echo $! > child; wait")
    world.appears("child")
    main, child = (eventually(lambda name=name: world.read(name).decode().strip(), name) for name in ("main", "child"))
    world.met("attach", main).refused("already measured", f"job {job}")
    world.met("attach", child).refused("part of", f"job {job}")
    equal(len(world.jobs()), 3, "number of jobs")
    world.met("cancel", second, job).ok()
    process.communicate()


@test
def a_folder_that_cannot_be_written_does_not_stop_met_time(world):
    blocked = world.path("blocked")
    open(blocked, "w").close()
    result = world.met("time", "--", "echo", "hello", env={"XDG_STATE_HOME": blocked})
    equal((result.code, result.out), (0, "hello\n"), "exit code and output")
    check("will not be recorded" in result.err, result.err)


@each(time=("time", "--quiet"), run=("run", "--wait"), run_in_the_background=("run", "--print-id"))
def without_a_daemon_an_end_is_imported_by_who_waited_for_the_job(world, *command):
    # A short one waits for others.
    world.met("time", "--quiet", "--", "true").ok()
    equal(list(world.waiting()), ["1"], "jobs that are not imported")
    # A daemon that has no log does not start.
    os.makedirs(os.path.join(world.store_folder(), "daemon.log"))
    world.met(*command, "--", "sleep", "0.3").ok()
    store = os.path.join(world.store_folder(), "store.db")
    eventually(lambda: os.path.exists(store) and not world.waiting(), lambda: f"it is imported: {world.waiting()}")
    equal(world.daemon_pids(), [], "daemons")
    world.met("time", "--quiet", "--", "true").ok()
    for _ in range(2):
        states = [job["job"]["state"] for job in world.met("list", "--json").ok().json()]
        equal((states, list(world.waiting())), (["finished"] * 3, ["3"]), "a list shows all and imports none")


@each(options_behind=(("run",), True), options_before=(("-v", "run"), False))
def a_supervisor_is_forked_or_executed_and_holds_nothing_of_its_command_line(world, start, is_forked):
    reading, writing = os.pipe()
    process = world.spawn(*start, "-n", "x", "--", "sh", "-c", "echo $$ > pid && mv pid running; exec sleep 600", stdout=writing)
    os.close(writing)
    main = int(world.appears("running"))
    supervisor = world.supervisor_of(main)
    world.finish(process)
    with os.fdopen(reading) as output:
        check("Started job 1" in output.read(), "the output ends though the job runs")
    with open(f"/proc/{supervisor}/cmdline", "rb") as file:
        equal(b"__supervise" not in file.read(), is_forked, "forked")
    with open(f"/proc/{supervisor}/comm", encoding="utf-8") as file:
        equal(file.read().strip(), "met-supervise", "name")
    streams = [os.readlink(f"/proc/{supervisor}/fd/{stream}") for stream in range(3)]
    equal(streams, ["/dev/null", world.path("x.out"), world.path("x.err")], "streams")
    with open(f"/proc/{supervisor}/stat", "rb") as file:
        session = int(file.read().rpartition(b")")[2].split()[3])
    equal(session, supervisor, "session")
    world.met("cancel", "1").ok()
    world.wait_for_state("1", "cancelled")


@each(in_front=("echo", "a", "--", "b"), behind=("--", "echo", "a", "--", "b"))
def arguments_with_a_separator_arrive_as_they_were_parsed(world, *command):
    """Whatever the parser makes of `--`, the record and the command have the same arguments."""
    world.met("run", "--wait", *command).ok()
    recorded = world.show()["job"]["command"]
    equal(world.read("echo.out").decode().split(), recorded[1:], "arguments")


@test
def a_command_line_that_is_refused_leaves_no_supervisor(world):
    world.met("run", "--no-such-option", "--", "true").refused()
    world.met("run", "--cwd", "nowhere", "--", "true").refused()
    eventually(lambda: not marked(world.token), lambda: f"no process is left: {marked(world.token)}")
