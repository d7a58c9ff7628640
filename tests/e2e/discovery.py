"""Jobs of other managers: found by their cgroups, and closed exactly when these are gone."""

import collections
import contextlib
import json
import os
import signal
import time

from harness import ALONE, check, close_to, equal, eventually, need_root, Skip, test

#: Spins until it has used about this much CPU time.
SPIN = "import time\nend = time.process_time() + %s\nwhile time.process_time() < end: pass"


class Manager:
    """Makes and removes the directories of jobs as Slurm does on cgroup v1, below a cgroup of this test."""

    def __init__(self, world, node="n1"):
        need_root()
        self.world = world
        self.below = "/mettest-" + os.path.basename(world.root)
        self.points = mounts("cpuacct", "memory", "freezer")
        self.home = f"{self.below}/slurm_{node}"

    def make(self, path):
        for point in self.points:
            while not os.path.isdir(point + path):
                try:
                    os.makedirs(point + path, exist_ok=True)
                except FileNotFoundError:
                    pass  # The directory of its user was removed meanwhile, with another job.

    def job(self, job, uid=1000, task="step_0/task_0"):
        path = f"{self.home}/uid_{uid}/job_{job}/{task}"
        self.make(path)
        return path

    def start(self, path, *command, **options):
        def enter():
            for point in self.points:
                with open(f"{point}{path}/cgroup.procs", "w") as file:
                    file.write("0")

        return self.world.me.start(*command, preexec=enter, **options)

    def remove(self, path):
        """From the inside out, up to the home."""
        for point in self.points:
            at = path
            while at != self.home:
                try:
                    os.rmdir(point + at)
                except FileNotFoundError:
                    pass
                except OSError:
                    break
                at = os.path.dirname(at)

    def remove_when_empty(self, path):
        def gone():
            self.remove(path)
            return not os.path.exists(self.points[0] + path)

        eventually(gone, f"{path} is removed", pause_s=0.002)

    def cpu_s(self, path):
        with open(f"{self.points[0]}{path}/cpuacct.usage") as file:
            return int(file.read()) / 1e9

    def close(self):
        """Leaves no process and no directory behind, even if the test failed half-way."""
        for point in self.points:
            for path, _, _ in os.walk(point + self.below, topdown=False):
                eventually(lambda: self.is_taken_away(path), f"{path} is removed")

    @staticmethod
    def is_taken_away(path):
        with contextlib.suppress(FileNotFoundError), open(f"{path}/cgroup.procs") as file:
            for pid in filter(None, map(int, file.read().split())):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        try:
            os.rmdir(path)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True


def mounts(*controllers):
    points = {}
    with open("/proc/self/mountinfo") as file:
        for line in file:
            front, _, back = line.partition(" - ")
            kind, _, options = back.split(maxsplit=2)
            for controller in controllers:
                if kind == "cgroup" and controller in options.strip().split(","):
                    points.setdefault(controller, front.split()[4])
    if len(points) < len(controllers):
        raise Skip("no cgroup v1 with " + ", ".join(controllers))
    return [points[controller] for controller in controllers]


def managed(world, more=""):
    manager = Manager(world)
    world.configure(f"jobs:\n  discover: true\n  below: {manager.below}\n{more}")
    return manager


def with_manager(function):
    """Registers a claim about the jobs of a manager; his directories go with the test."""

    def run(world):
        manager = managed(world)
        try:
            manager.make(manager.home)
            function(world, manager)
        finally:
            manager.close()

    run.__name__ = function.__name__
    return test(run)


def slurm(world, *options):
    return {job["job"]["id"]: job for job in world.jobs(*options) if job["job"]["manager"] == "slurm"}


def named(world):
    """Every job, by its manager and id: one that is there twice is named twice."""
    return [(job["job"]["manager"], job["job"]["id"]) for job in world.jobs()]


def cpu_of(job):
    return job["totals"]["cpu_seconds"]


def finished(world, *ids):
    """The jobs with these ids, once all of them are over."""

    def over():
        jobs = slurm(world)
        return all(job in jobs and jobs[job]["job"]["state"] != "running" for job in ids) and jobs

    return eventually(over, f"jobs {ids} are over")


def descriptors(pid):
    """Open files of a daemon, but for those of its store, which are opened when there is something to write."""
    targets = []
    for descriptor in os.listdir(f"/proc/{pid}/fd"):
        try:
            targets.append(os.readlink(f"/proc/{pid}/fd/{descriptor}"))
        except OSError:
            pass
    return len([target for target in targets if ".db" not in target])


@with_manager
def a_job_of_a_manager_is_found_and_closed_exactly(world, manager):
    world.start_system_daemon()
    sibling = manager.start(manager.job(4), world.python, "-c", "while True: pass")
    path = manager.job(5, uid=1)
    job = eventually(lambda: slurm(world).get("5"), "an empty job is seen")
    equal(job["job"]["state"], "running", "state")
    process = manager.start(path, world.python, "-c", SPIN % 0.5)
    process.wait()
    truth = manager.cpu_s(path)
    manager.remove_when_empty(path)
    job = finished(world, "5")["5"]
    equal(job["job"]["user"], "daemon", "user")
    equal(job["job"]["state"], "finished", "state")
    equal(job["job"]["nodes"], ["n1"], "nodes")
    equal(job["quality"]["cpu_seconds"], {"kind": "measured", "source": "cgroup ancestor"}, "quality of cpu")
    close_to(cpu_of(job), truth, 0.03, "cpu")
    check(job["totals"]["memory_peak_bytes"] > 1 << 20, "peak of memory", job["totals"])
    equal(slurm(world)["4"]["job"]["state"], "running", "state of another job")
    sibling.kill()
    sibling.wait()
    manager.remove_when_empty(manager.job(4))
    finished(world, "4")


@with_manager
def the_directories_of_a_manager_are_left_to_him(world, manager):
    world.start_system_daemon()
    path = manager.job(5)
    eventually(lambda: "5" in slurm(world), "the job is seen")
    world.met("cancel", "slurm:5").expect(1)
    world.met("list").ok()
    world.stop_system_daemon()
    world.start_system_daemon()
    eventually(lambda: "5" in slurm(world), "the job is seen again")
    check(all(os.path.isdir(point + path) for point in manager.points), "a directory is gone")
    manager.remove(path)
    finished(world, "5")
    os.makedirs(manager.points[0] + manager.home, exist_ok=True)
    world.met("rm", "slurm:5").ok()
    equal(slurm(world), {}, "jobs")


@with_manager
def a_daemon_that_starts_anew_goes_on_with_the_same_jobs(world, manager):
    world.start_system_daemon()
    stays = manager.start(manager.job(5), world.python, "-c", SPIN % 0.2 + "\ntime.sleep(1000)")
    goes = manager.start(manager.job(6), world.python, "-c", SPIN % 0.2 + "\ntime.sleep(1000)")
    eventually(lambda: len(slurm(world)) == 2 and all(
        job["totals"].get("cpu_seconds", 0) > 0.15 for job in slurm(world).values()), "both are sampled")
    before = slurm(world)["5"]["job"]["start"]
    world.stop_system_daemon()
    goes.kill()
    goes.wait()
    manager.remove_when_empty(manager.job(6))
    world.start_system_daemon()
    gone = finished(world, "6")["6"]
    equal(gone["quality"]["cpu_seconds"]["kind"], "lower_bound", "quality of a job whose end was not observed")
    check(cpu_of(gone) > 0.15, "cpu of a job that ended while no daemon ran", gone["totals"])
    stays.kill()
    stays.wait()
    truth = manager.cpu_s(manager.home + "/uid_1000/job_5")
    manager.remove_when_empty(manager.job(5))
    job = finished(world, "5")["5"]
    equal(job["job"]["start"], before, "start")
    equal(len(slurm(world)), 2, "jobs")
    close_to(cpu_of(job), truth, 0.03, "cpu")


@with_manager
def a_job_that_runs_when_the_daemon_starts_is_found_and_known(world, manager):
    path = manager.job(5, uid=0)
    environ = {**os.environ, "SLURM_JOB_ID": "5", "SLURM_JOB_NAME": "demo", "SLURM_JOB_ACCOUNT": "project"}
    process = manager.start(path, world.python, "-c", SPIN % 0.3 + "\ntime.sleep(1000)", env=environ)
    eventually(lambda: manager.cpu_s(path) > 0.3, "it has worked before anybody looked")
    world.start_system_daemon()
    eventually(lambda: slurm(world).get("5", {}).get("job", {}).get("name") == "demo", "it is found and has its name")
    job = slurm(world)["5"]["job"]
    equal((job["state"], job["user"], job["account"]), ("running", "root", "project"), "state, user and account")
    process.kill()
    process.wait()
    truth = manager.cpu_s(path)
    manager.remove_when_empty(path)
    job = finished(world, "5")["5"]
    close_to(cpu_of(job), truth, 0.03, "cpu, with what it used before the daemon ran")


@with_manager
def a_job_on_two_nodes_of_one_machine_is_one_job(world, manager):
    world.start_system_daemon()
    second = Manager(world, node="n2")
    second.make(second.home)
    paths = [(manager, manager.job(5)), (second, second.job(5))]
    processes = [owner.start(path, world.python, "-c", SPIN % 0.3) for owner, path in paths]
    for process in processes:
        process.wait()
    eventually(lambda: len(slurm(world)["5"]["job"]["nodes"]) == 2, "both nodes are seen")
    truth = {path: owner.cpu_s(path) for owner, path in paths}
    eventually(lambda: abs(cpu_of(slurm(world)["5"]) - sum(truth.values())) < 0.01, "it runs on both")
    second.remove_when_empty(paths[1][1])
    equal(slurm(world)["5"]["job"]["state"], "running", "state while one node is left")
    manager.remove_when_empty(paths[0][1])
    job = finished(world, "5")["5"]
    equal(named(world), [("slurm", "5")], "jobs")
    close_to(cpu_of(job), sum(truth.values()), 0.03, "cpu of both nodes")
    whole = {part["node"]: part["totals"]["cpu_seconds"] for part in job["parts"] if not part["step"]}
    equal(sorted(whole), ["n1", "n2"], "nodes with a part")
    check(abs(sum(whole.values()) - cpu_of(job)) < 1e-6, "the parts add up to the job", whole, cpu_of(job))


@with_manager
def a_job_on_two_nodes_of_one_machine_is_sampled_as_a_whole(world, manager):
    world.start_system_daemon()
    second = Manager(world, node="n2")
    second.make(second.home)
    paths = [(manager, manager.job(5)), (second, second.job(5))]
    eventually(lambda: len(slurm(world).get("5", {"job": {"nodes": []}})["job"]["nodes"]) == 2, "both nodes are seen")
    hold = "data = bytearray(40 << 20)\nimport time\nend = time.process_time() + 0.2\n" \
           "while time.process_time() < end: pass\ntime.sleep(1000)"
    processes = [owner.start(path, world.python, "-c", hold) for owner, path in paths]
    eventually(lambda: slurm(world)["5"]["totals"].get("memory_needed_peak_bytes", 0) > 75 << 20, "the memory of both")
    listed = world.met("ps", "slurm:5").ok().out
    check(all(str(process.pid) in listed for process in processes), "processes of both nodes", listed)
    eventually(lambda: cpu_of(slurm(world)["5"]) > 0.38, "the CPU time of both")
    processes[0].kill()
    processes[0].wait()
    manager.remove_when_empty(paths[0][1])
    time.sleep(2.5)
    check(cpu_of(slurm(world)["5"]) > 0.38, "what was used on a node that is gone stays", cpu_of(slurm(world)["5"]))
    processes[1].kill()
    processes[1].wait()
    truth = second.cpu_s(paths[1][1])
    second.remove_when_empty(paths[1][1])
    job = finished(world, "5")["5"]
    check(cpu_of(job) > 0.2 + truth * 0.97, "cpu of both", cpu_of(job), truth)
    equal(named(world), [("slurm", "5")], "jobs")


@with_manager
def a_job_gets_the_number_of_its_manager_when_it_is_known(world, manager):
    # It is there before its jobs and outlives them, as Slurm's does: the CPU time of a removed job is read from it.
    manager.home = f"{manager.below}/system.slice/slurmstepd.scope"
    manager.make(manager.home)
    world.start_system_daemon()
    path = f"{manager.home}/s0123456789ABC"
    manager.make(path)
    eventually(lambda: list(slurm(world)) == ["s0123456789ABC"], "it is seen by the name of its directory")
    environ = {**os.environ, "SLURM_JOB_ID": "77", "SLURM_JOB_NAME": "demo"}
    process = manager.start(path, world.python, "-c", SPIN % 0.2 + "\ntime.sleep(1000)", env=environ)
    eventually(lambda: list(slurm(world)) == ["77"], "it goes by its number, and by that alone")
    eventually(lambda: slurm(world)["77"]["job"]["name"] == "demo", "its environment is read")
    process.kill()
    process.wait()
    truth = manager.cpu_s(path)
    manager.remove_when_empty(path)
    job = finished(world, "77")["77"]
    close_to(cpu_of(job), truth, 0.03, "cpu")
    equal(named(world), [("slurm", "77")], "jobs")


@with_manager
def what_the_processes_of_a_job_wrote_is_measured_if_all_ends_were_heard(world, manager):
    world.start_system_daemon()
    found = next(line for line in json.loads(world.met("doctor", "--json").ok().out) if line["what"] == "taskstats")
    if found["health"] == "no":
        raise Skip(found["detail"])
    # Of a user who does nothing else here: one who ended before he was seen might have been the job's.
    path = manager.job(5, uid=54321)
    eventually(lambda: "5" in slurm(world), "the job is seen")
    # No process may enter it and end before it was ever listed.
    go = os.path.join(world.root, "go")
    script = f"import os, time\nwhile not os.path.exists({go!r}): time.sleep(0.05)\n" \
             "for n in range(5):\n    os.system('head -c 1000000 /dev/zero > out')\ntime.sleep(0.5)"
    process = manager.start(path, world.python, "-c", script, cwd=world.root)
    eventually(lambda: slurm(world)["5"]["totals"].get("processes_peak"), "its process is seen")
    open(go, "w").close()
    process.wait()
    manager.remove_when_empty(path)
    job = finished(world, "5")["5"]
    check(job["totals"]["write_call_bytes"] >= 5_000_000 * 0.98, "bytes by calls", job["totals"])
    kind = job["quality"]["page_faults_minor"]
    equal(kind, {"kind": "measured", "source": "taskstats"}, "quality of figures from exit records")


@test
def events_of_a_job_on_cgroup_v1_are_counted(world):
    others = shadows()
    manager = managed(world, "perf:\n  events: [page_faults]\n")
    try:
        manager.make(manager.home)
        world.start_system_daemon()
        path = manager.job(5)
        script = "import mmap, os\nfor n in range(3):\n    if os.fork() == 0: break\n" \
                 "while True:\n    pages = mmap.mmap(-1, 1 << 20)\n    pages.write(bytes(1 << 20))\n    pages.close()"
        process = manager.start(path, world.python, "-c", script)
        def found():
            lines = json.loads(world.met("doctor", "--json").ok().out)
            return next(line for line in lines if line["what"] == "found jobs")["detail"]
        said = eventually(lambda: next((text for text in [found()] if "events of" in text), None), "doctor reports it")
        if "are not counted" in said:
            raise Skip(said)
        def count():
            return slurm(world)["5"].get("events", {}).get("counts", {}).get("page_faults", {}).get("count", 0)
        before = eventually(count, "they are counted")
        eventually(lambda: count() > before + 1000, "they are counted on")
        made = shadows(others)
        equal(len(made), 1, "directories for events")
        with open(f"{made[0]}/cgroup.procs") as file:
            inside = set(file.read().split())
        with open(f"{manager.points[0]}{path}/cgroup.procs") as file:
            equal(inside, set(file.read().split()), "processes in it")
        # A daemon that is killed leaves it; the next one takes it away, and makes another.
        world.stop_system_daemon(signal.SIGKILL)
        equal(shadows(others), made, "directories after the daemon was killed")
        world.start_system_daemon()
        eventually(lambda: len(shadows(others)) == 1 and shadows(others) != made, "the old one is gone, a new one there")
        eventually(lambda: count() > 1000, "they are counted there")
        for pid in inside:
            os.kill(int(pid), 9)
        process.wait()
        manager.remove_when_empty(path)
        job = finished(world, "5")["5"]
        check(job["events"]["counts"]["page_faults"]["count"] > 1000, "page faults", job.get("events"))
        equal(shadows(others), [], "directories that are left")
    finally:
        manager.close()


def shadows(others=()):
    """The directories for events that there are, wherever they are, but for those of others."""
    points = set()
    with open("/proc/self/mountinfo") as file:
        for line in file:
            front, _, back = line.partition(" - ")
            if back.split()[0] == "cgroup2":
                points.add(front.split()[4])
    found = []
    for point in points:
        for path, names, _ in os.walk(point):
            found += [os.path.join(path, name) for name in names if name.startswith("met-events-")]
    return sorted(set(found) - set(others))


@with_manager
def a_requeued_job_is_another_one(world, manager):
    world.start_system_daemon()
    for run in range(2):
        path = manager.job(5)
        eventually(lambda: "5" in slurm(world, "--state", "running"), "the job is seen")
        manager.remove(path)
        eventually(lambda: not slurm(world, "--state", "running"), "its end is seen")
        equal(len(world.jobs()), run + 1, "jobs")


@with_manager
def a_frozen_job_is_suspended(world, manager):
    world.start_system_daemon()
    process = manager.start(manager.job(5), "sleep", "1000")
    state = manager.points[2] + manager.home + "/uid_1000/job_5/freezer.state"
    eventually(lambda: "5" in slurm(world, "--state", "running"), "the job is seen")
    for word, shown in (("FROZEN", "suspended"), ("THAWED", "running")):
        with open(state, "w") as file:
            file.write(word)
        eventually(lambda: "5" in slurm(world, "--state", shown), f"it is {shown}")
    process.kill()
    process.wait()
    manager.remove_when_empty(manager.job(5))
    finished(world, "5")


@with_manager
def a_local_job_inside_a_job_is_part_of_it(world, manager):
    world.start_system_daemon()
    path = manager.job(5)
    process = manager.start(path, world.met_path, "run", "--wait", "--", *world.workload("burning", world.path("truth"), "0.3"))
    process.communicate()
    equal(process.returncode, 0, "exit code of met run")
    truth = manager.cpu_s(path)
    manager.remove_when_empty(path)
    outer = finished(world, "5")["5"]
    inner = next(job for job in world.jobs() if job["job"]["manager"] == "local")
    close_to(cpu_of(outer), truth, 0.03, "cpu of the outer job")
    check(0.25 < cpu_of(inner) <= truth, "cpu of the inner job", cpu_of(inner), truth)
    equal(inner["job"]["inside"], "slurm:5", "the job around it")
    part = next(part for part in outer["parts"] if part["step"] == f"met:{inner['job']['id']}")
    equal((part["node"], part["totals"]["cpu_seconds"]), ("n1", cpu_of(inner)), "the part that it is")


@test
def a_layout_of_the_configuration_finds_jobs(world):
    manager = managed(world, "  layouts:\n  - {manager: mine, path: 'mine/job-{id}'}\n")
    try:
        manager.make(manager.below + "/mine")
        world.start_system_daemon()
        manager.make(manager.below + "/mine/job-x7")
        eventually(lambda: [job["job"]["id"] for job in world.jobs()] == ["x7"], "the job is seen")
        check("1 of mine" in world.met("doctor").ok().out, "doctor says nothing of it")
    finally:
        manager.close()


@with_manager
def hostile_names_change_nothing_but_their_own(world, manager):
    world.start_system_daemon()
    jobs = manager.below + "/pbs_jobs.service/jobs"
    names = [b"1.a b", b"\xff\xfe", b"...", b"x" * 255, b"\x1b[31m", b"17[3].server", b"$(reboot)"]
    manager.make(jobs)
    for name in names:
        os.mkdir(os.path.join((manager.points[0] + jobs).encode(), name))
    spoilt = {"SLURM_JOB_ID": "x" * (100 << 10), "SLURM_JOB_NAME": "a\nb\x1b[31m", "HUGE": "y" * (120 << 10)}
    process = manager.start(manager.job(5), "sleep", "1000", env=spoilt)
    eventually(lambda: len(world.jobs()) == len(names) + 1, "all are seen")
    text = world.met("list", "--limit", "100").ok().out + world.met("show", "slurm:5").ok().out
    check(all(letter.isprintable() or letter == "\n" for letter in text), "control characters are shown", repr(text))
    equal(len(world.met("list", "--csv").ok().out.splitlines()), len(names) + 2, "lines of csv")
    process.kill()
    process.wait()
    manager.remove_when_empty(manager.job(5))
    for name in names:
        os.rmdir(os.path.join((manager.points[0] + jobs).encode(), name))
    eventually(lambda: not world.jobs("--state", "running"), "all are over")
    equal(len(world.jobs()), len(names) + 1, "jobs")


@with_manager
def a_user_who_fills_his_own_slice_hides_nobody_elses_job(world, manager):
    world.start_system_daemon()
    own = f"{manager.below}/user.slice/user-1000.slice/user@1000.service/user.slice"
    manager.make(own)
    # He may make as many as he likes; so many of one user are followed.
    for number in range(1024 + 50):
        os.mkdir(f"{manager.points[0]}{own}/noise-{number}")

    def found_jobs():
        lines = json.loads(world.met("doctor", "--json").ok().out)
        return next(line["detail"] for line in lines if line["what"] == "found jobs")

    eventually(lambda: "cgroups above the limit are not watched in" in found_jobs(), "doctor says that there are too many")
    check(found_jobs().endswith(own), "doctor says where", found_jobs())
    manager.job(5)
    eventually(lambda: "5" in slurm(world), "a job elsewhere is seen")
    manager.make(f"{manager.below}/user.slice/user-1001.slice/user@1001.service/user.slice/libpod-{'a' * 64}.scope")
    eventually(lambda: any(job["job"]["manager"] == "podman" for job in world.jobs()), "another user's, too")


def run_jobs(manager, numbers):
    """In a process of its own: jobs one after the other, each with a process that works for a moment."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        for number in numbers:
            path = manager.job(number, uid=1000 + number % 5)
            child = os.fork()
            if child == 0:
                for point in manager.points[:1]:
                    with open(f"{point}{path}/cgroup.procs", "w") as file:
                        file.write("0")
                end = time.process_time() + 0.002 * (number % 5)
                while time.process_time() < end:
                    pass
                os._exit(0)
            os.waitpid(child, 0)
            # As a real Slurm does it: the task's directory at once, the others later; by 13 to 24 ms on a machine
            # that is not full of other tests.
            for point in manager.points:
                os.rmdir(point + path)
            time.sleep(0.1)
            path = os.path.dirname(path)
            while os.path.exists(manager.points[0] + path):
                manager.remove(path)
        code = 0
    finally:
        os._exit(code)


ALONE.add("a_thousand_jobs_come_and_go_and_none_is_missed")


@with_manager
def a_thousand_jobs_come_and_go_and_none_is_missed(world, manager):
    count, at_once = 1000, 6
    world.start_system_daemon()
    daemon = world.system.pid
    # The first one opens the files of the store, which stay open.
    path = manager.job(count)
    eventually(lambda: slurm(world).get(str(count), {}).get("totals", {}).get("cpu_seconds") is not None, "a sample")
    manager.remove(path)
    finished(world, str(count))
    before = descriptors(daemon)
    begin = time.monotonic()
    used = manager.cpu_s(manager.home)
    workers = [run_jobs(manager, range(first, count, at_once)) for first in range(at_once)]
    for worker in workers:
        equal(os.waitpid(worker, 0)[1], 0, "status of a worker")
    took = time.monotonic() - begin
    used = manager.cpu_s(manager.home) - used

    jobs = {}

    def all_over():
        # Of a daemon that is too busy to answer, nothing is listed, with a warning. The last ones may not be found yet.
        jobs.clear()
        jobs.update(slurm(world))
        return len(jobs) > count and all(job["job"]["state"] != "running" for job in jobs.values())

    missed = lambda: f"all are over; missed: {sorted(set(map(str, range(count))) - set(jobs))}"
    eventually(all_over, missed, deadline_s=120)
    jobs.pop(str(count))
    equal(set(map(str, range(count))), set(jobs), "jobs")
    eventually(lambda: len(world.jobs()) == count + 1, lambda: f"{count + 1} jobs, not {len(world.jobs())}")
    equal({job["job"]["state"] for job in jobs.values()}, {"finished"}, "states")
    print(f"{count} jobs in {took:.0f} s")
    total = sum(cpu_of(job) for job in jobs.values())
    kinds = collections.Counter(job["quality"]["cpu_seconds"]["kind"] for job in jobs.values())
    # Of jobs that went at once it is known what they used together, and what each of them used is a guess: one that
    # was given too little has had its own reading for its least.
    guessed = sum(cpu_of(job) for job in jobs.values() if job["quality"]["cpu_seconds"]["kind"] == "attributed")
    off = abs(total - used)
    check(off <= 0.001 + guessed, f"the jobs used {total} s, their ancestor counted {used} s; {guessed} s attributed")
    # A job whose directory and whose user's were gone before they could be read is known by its early readings: few
    # on a machine at rest, more on a busy one.
    check(kinds["lower_bound"] <= count // 50, "kinds of figures", kinds)
    eventually(lambda: descriptors(daemon) <= before + 2, "descriptors are given back")
    check("none now" in world.met("doctor").ok().out, "doctor knows of a job")
