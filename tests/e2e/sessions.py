"""Jobs where there is no batch system: what a user does at a terminal is one job, short commands and all."""

import os
import pty
import signal

from discovery import managed
from harness import alive, check, close_to, equal, eventually, need_root, test

#: A uid without an account, in the range of people's uids.
SOMEBODY = 54321
SHORT = "import time\nend = time.process_time() + 0.1\nwhile time.process_time() < end: pass"


def login(python, script):
    """A user's shell at a terminal of its own."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.setgid(SOMEBODY)
        os.setuid(SOMEBODY)
        os.chdir("/")
        os.execv("/bin/sh", ["sh", "-c", script, "shell", python, SHORT])
    return pid, terminal


def session_of(world, pid):
    jobs = [job for job in world.jobs("--manager", "session") if job["job"]["raw_id"].startswith(f"{pid}-")]
    return jobs[0] if jobs else None


def waited_for_s(pid):
    """The CPU time of the children that a process has waited for."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


@test
def a_session_is_a_job_and_its_short_commands_count(world):
    need_root()
    world.configure("jobs:\n  discover: false\n  plain: session\n")
    world.start_system_daemon()
    pid, terminal = login(world.python, 'for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do '
                          '"$1" -S -E -c "$2"; done; sleep 1000 & wait')
    try:
        job = eventually(lambda: session_of(world, pid), "the session is seen")
        label = f"session:{job['job']['raw_id']}"
        equal(job["job"]["state"], "running", "state")
        equal(job["job"]["name"], "sh", "name")
        eventually(lambda: world.met("ps", label).ok().out.rstrip().endswith(" sleep 1000"),
                   "all commands have been run")
        # What is used between the last look and the end may be lost; all of this was used before.
        eventually(lambda: session_of(world, pid)["totals"]["cpu_seconds"] >= waited_for_s(pid), "all of it is counted")
        world.met("cancel", label).refused("was not started by met", code=1)
        check(alive(pid), "the session was ended")
    finally:
        os.killpg(pid, signal.SIGKILL)
        used = os.wait4(pid, 0)[2]
        os.close(terminal)
    ended = eventually(lambda: session_of(world, pid)["job"]["state"] == "finished" and session_of(world, pid),
                       "its end is seen")
    close_to(ended["totals"]["cpu_seconds"], used.ru_utime + used.ru_stime, 0.05, "CPU of twenty short commands")
    check(ended["quality"]["cpu_seconds"]["kind"] in ("lower_bound", "attributed"), "its quality")


@test
def a_resource_manager_that_comes_later_lets_sessions_end_and_none_begin(world):
    need_root()
    manager = managed(world, "  plain: auto\n  plain_after: 1s\n")
    started = []

    def session(script):
        pid, terminal = login(world.python, script)
        started.append((pid, terminal))
        return pid

    def state_of(pid):
        job = session_of(world, pid)
        return job and job["job"]["state"]

    try:
        world.start_system_daemon()
        before = session("sleep 1000")
        eventually(lambda: state_of(before) == "running", "a session is a job where there is no resource manager")
        manager.make(manager.home)
        later = session("sleep 1000")
        os.killpg(before, signal.SIGKILL)
        os.waitpid(before, 0)
        eventually(lambda: state_of(before) == "finished", "the end of the first one is seen")
        check(session_of(world, later) is None, "a session became a job beside a resource manager")
        # His directory is all there was of him.
        for point in manager.points:
            os.rmdir(point + manager.home)
        eventually(lambda: state_of(later) == "running", "it is a job when he is gone")
    finally:
        for pid, terminal in started:
            try:
                os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except OSError:
                pass
            os.close(terminal)
        manager.close()
