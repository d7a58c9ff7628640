"""What is called measured was measured: random trees of processes that do everything that hides CPU time."""

import json
import os
import random
import shutil
import stat

from harness import DEADLINE_S, Skip, check, close_to, each, equal, eventually, homes, need_root, test

#: How exact a measured total must be, and the slack of small trees: the end of a process is in no report of its own.
SHARE, SLACK_S, SLACK_OF_PROCESS_S = 0.03, 0.03, 0.003
#: An interpreter that is executed again uses about this before it begins.
START_S = 0.03
MIB = 1 << 20

#: More trees by MET_E2E_TREES, others by MET_E2E_SEED.
TREES = int(os.environ.get("MET_E2E_TREES", "5"))
SEED = int(os.environ.get("MET_E2E_SEED", "11"))

ROOT, ROOT_WITHOUT_CGROUPS, USER, USER_OF_A_DAEMON = "root", "root without cgroups", "user", "user of a daemon"


class Grower:
    """Makes trees, and knows what each account of one will miss."""

    def __init__(self, seed, where, program, away):
        self.random, self.where, self.program, self.away = random.Random(seed), where, program, away

    def tree(self, hides):
        """A tree in which processes may hide, but not so that the two best accounts could not tell."""
        while True:
            root = self.node(0, hides, privileged=self.where in (ROOT, ROOT_WITHOUT_CGROUPS))
            root["how"] = "fork"
            if not self.is_undecidable(root):
                return root

    def node(self, depth, hides, privileged):
        chance = lambda share: hides and self.random.random() < share
        how = self.random.choice(["fork", "fork", "exec", "posix_spawn", "orphan"])
        setuid = self.program if depth and chance(0.15) else None
        becomes = 65534 if depth and privileged and not setuid and chance(0.1) else 0
        node = {
            "how": self.random.choice(["exec", "posix_spawn"]) if setuid else how,
            "program": setuid,
            "becomes": becomes,
            "ignores": chance(0.25),
            "setsid": self.random.random() < 0.2,
            "leaves_to": self.away if depth and privileged and not setuid and chance(0.15) else [],
            "burn_s": round(self.random.uniform(0.02, 0.25), 3),
        }
        # Who has lost its privileges reaches neither the interpreter in a private folder nor a cgroup.
        stays = privileged and not setuid and not becomes
        count = self.random.choice([0, 1, 1, 2]) if depth < 3 else 0
        node["children"] = [self.node(depth + 1, hides, stays) for _ in range(count if depth else max(1, count))]
        if setuid or becomes:
            for child in walk(node):
                if child is not node:
                    child["how"] = "orphan" if child["how"] == "orphan" else "fork"
                    child["program"] = None
        return node

    def accounts(self, root):
        """What each account sees of a tree, all of it first."""
        whole = sum(cost(node) for node in walk(root))
        seen = {"rusage": whole - unreaped(root), "clock": whole - below(root, lambda node: node["program"])}
        if self.where in (ROOT, USER_OF_A_DAEMON):
            seen["cgroup"] = whole - below(root, lambda node: node["leaves_to"])
        return whole, seen

    def is_undecidable(self, root):
        """Whether two accounts are blind to different processes that used the same: nothing shows that."""
        whole, seen = self.accounts(root)
        best, second = sorted(seen.values(), reverse=True)[:2]
        return whole - best > SHARE * whole / 2 and best - second < SHARE * whole + 0.05

    def is_plain(self, root):
        whole, seen = self.accounts(root)
        return all(whole == of_one for of_one in seen.values())


def walk(node):
    yield node
    for child in node["children"]:
        yield from walk(child)


def cost(node):
    return node["burn_s"] + (START_S if node["how"] in ("exec", "posix_spawn") else 0)


def below(node, hides):
    """The CPU time of processes from one that hides on."""
    if hides(node):
        return sum(cost(each) for each in walk(node))
    return sum(below(child, hides) for child in node["children"])


def unreaped(node):
    """The CPU time that is added to nobody. An orphan has another parent, who waits."""
    lost = 0
    for child in node["children"]:
        lost += unreaped(child)
        if node["ignores"] and child["how"] != "orphan":
            lost += waited_for(child)
    return lost


def waited_for(node):
    """A process and all that it waited for."""
    mine = 0 if node["ignores"] else sum(waited_for(child) for child in node["children"] if child["how"] != "orphan")
    return cost(node) + mine


def gaining(world, user):
    """An interpreter that gives whoever executes it another user's privileges: those of nobody in particular. Only its
    owner reaches it."""
    program = os.path.join(user.home, "gaining")
    shutil.copyfile(world.python, program)
    os.chown(program, 1, 1)
    os.chmod(program, 0o755 | stat.S_ISUID)
    if os.statvfs(program).f_flag & os.ST_NOSUID:
        raise Skip(f"{user.home} is mounted nosuid; set MET_E2E_DIR")
    return program


def outside():
    """Cgroups beside the one of this test, one for each hierarchy."""
    folders = []
    for _, home in homes():
        folder = os.path.join(os.path.dirname(home), "away")
        os.makedirs(folder, exist_ok=True)
        folders.append(folder)
    return folders


def planted(world, where):
    """Who runs the trees of an environment."""
    need_root()
    if where == USER_OF_A_DAEMON:
        world.start_system_daemon()
    return {ROOT: lambda: world.me, ROOT_WITHOUT_CGROUPS: world.without_cgroups}.get(where, world.someone)()


def grown(world, user, where, root):
    """Runs a tree; the job and the truth."""
    out = user.path("truth")
    file = os.open(out, os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_WRONLY, 0o600)
    if user.switches:
        os.chown(out, user.uid, user.gid)
    try:
        script = f'exec "$@" {file}'
        command = ["sh", "-c", script, "sh", *world.workload("tree", json.dumps(root))]
        if where == USER_OF_A_DAEMON:
            # A job in the background has no descriptors but its own: it opens the file by itself.
            command[2] = f'exec {file}>>"{out}"; {script}' if file < 10 else f'exec 9>>"{out}"; exec "$@" 9'
            job = user.run_to_end(*command)
        else:
            job = one_at_a_time(user, file, command)
    finally:
        os.close(file)
    return job, [float(line) for line in user.read("truth").split()]


def one_at_a_time(user, file, command):
    """`met time` with a descriptor that the whole tree inherits."""
    arguments = ("time", "--all", "--json", "--interval", "10s", "--", *command)
    result = user.finish(user.spawn(*arguments, pass_fds=[file]), arguments, deadline_s=DEADLINE_S)
    lines = result.err.splitlines()
    check(lines and lines[-1].startswith("{"), f"{result}: no report: {result.err!r}")
    return json.loads(lines[-1])


@each(of_root=ROOT, of_root_without_cgroups=ROOT_WITHOUT_CGROUPS, of_a_user=USER, of_a_user_of_a_daemon=USER_OF_A_DAEMON)
def cpu_time_of_random_trees_is_right_or_a_lower_bound(world, where):
    world.configure("sampling:\n  interval: 10s\n")
    user = planted(world, where)
    has_clock = "ok   task clock" in user.met("doctor").ok().out
    grower = Grower(f"{SEED} {where}", where, gaining(world, user), outside() if where == ROOT else [])
    for number in range(TREES):
        root = grower.tree(hides=number % 3 != 0)
        said = f"tree {number} of seed {SEED}: {json.dumps(root)}"
        is_proven = grower.is_plain(root) and (has_clock or where in (ROOT, USER_OF_A_DAEMON))
        # Time that a hypervisor took and does not report may raise a doubt, but not every time.
        for attempt in range(4 if is_proven else 1):
            job, truths = grown(world, user, where, root)
            reports = len(list(walk(root))) + sum(node["how"] == "orphan" for node in walk(root))
            equal((job["job"]["exit_code"], len(truths)), (0, reports), f"exit code and reports; {said}")
            judge(job, sum(truths), len(truths), said)
            if job["quality"]["cpu_seconds"]["kind"] == "measured":
                break
        else:
            check(not is_proven, f"nothing hides, and it is never measured: {job['quality']['cpu_seconds']}: {said}")


def judge(job, truth, processes, said):
    quality, cpu = job["quality"]["cpu_seconds"], job["totals"]["cpu_seconds"]
    slack = SHARE * truth + SLACK_S + SLACK_OF_PROCESS_S * processes
    found = f"CPU {cpu} of {truth} ({quality}); {said}"
    check(cpu <= truth + slack, f"more than there was: {found}")
    check(cpu >= truth - slack or quality["kind"] == "lower_bound", f"wrong, and called {quality['kind']}: {found}")


@test
def a_program_that_gains_privileges_is_counted(world):
    user = planted(world, USER)
    program = gaining(world, user)
    open(user.path("cpu"), "w").close()
    os.chmod(user.path("cpu"), 0o666)
    os.chmod(user.home, 0o755)
    os.chmod(user.work, 0o755)
    command = [program, "-S", "-E", world.work_path, "burning", user.path("cpu"), "1.0"]
    for job in (user.time_to_end(*command), user.run_to_end(*command)):
        truth = float(user.read("cpu").split()[-1])
        judge(job, truth, 1, "a set-user-ID program")
        check(job["totals"]["cpu_seconds"] > 0.9 * truth, job["totals"]["cpu_seconds"])


@test
def io_of_a_running_program_that_gained_privileges_is_unknown_and_not_0(world):
    user = planted(world, USER)
    os.chmod(user.home, 0o755)
    # It is seen to hold 192 MiB only after it has written 64.
    code = "import time; data = b'x' * (64 << 20); open('/dev/null', 'wb', 0).write(data); more = data + data; time.sleep(1000)"
    job = user.run(gaining(world, user), "-S", "-E", "-c", code, options=("-n", "gaining"))
    has_written = lambda: user.show(job)["totals"].get("memory_needed_peak_bytes", 0) > 150 * MIB
    eventually(has_written, "it is sampled after it has written")
    shown = user.show(job)
    for figure in ("read", "written", "read_call", "write_call"):
        equal(shown["totals"].get(f"{figure}_bytes"), None, figure)
        equal(shown["average"].get(f"{figure}_bytes_per_second"), None, f"{figure} per second")
    equal([job["totals"].get("write_call_bytes") for job in user.jobs()], [None], "in a list")
    user.met("cancel", job).ok()
    written = user.show(job)["totals"]["write_call_bytes"]
    check(written >= 64 * MIB, f"{written} bytes written, of an ended program")


@each(of_root=ROOT, of_a_user=USER)
def small_programs_one_after_another_are_measured(world, where):
    user = planted(world, where)
    has_clock = "ok   task clock" in user.met("doctor").ok().out

    def is_measured():
        job = user.time_to_end(*world.workload("spawn_many", "cpu", 500, shutil.which("true")))
        truth = float(user.read("cpu").split()[-1])
        close_to(job["totals"]["cpu_seconds"], truth, SHARE, f"CPU ({job['quality']['cpu_seconds']})")
        return job["quality"]["cpu_seconds"]["kind"] == "measured" or not (has_clock or where == ROOT)

    eventually(is_measured, "a job of small programs is measured")


@test
def a_child_that_leaves_the_cgroup_is_counted_and_memory_is_a_lower_bound(world):
    folders = outside() if os.geteuid() == 0 else need_root()
    script = "".join(f"echo 0 >{folder}/cgroup.procs; " for folder in folders)
    command = ["sh", "-c", f'({script}exec "$@"); true', "sh", *world.workload("burning", "cpu", 1.0)]
    job = world.time_to_end(*command)
    judge(job, float(world.read("cpu")), 2, "a child that left")
    check(job["totals"]["cpu_seconds"] > 0.9, job["totals"])
    peak = job["quality"]["memory_peak_bytes"]
    check(peak["source"] != "cgroup" or peak["kind"] == "lower_bound", peak)


@test
def bytes_of_a_child_that_nobody_waits_for_are_a_lower_bound(world):
    user = planted(world, USER)
    # The parent works so much that the child hardly shows in its CPU time.
    size = 40 * MIB
    job = user.time_to_end(*world.workload("in_nobodys_name", "data", size, 3))
    quality, written = job["quality"]["write_call_bytes"], job["totals"]["write_call_bytes"]
    check(written >= size or quality["kind"] == "lower_bound", f"{written} bytes, {quality}")
    equal(os.path.getsize(user.path("data")), size, "bytes that were written")


@test
def bytes_of_children_that_are_waited_for_are_measured(world):
    user = planted(world, USER)
    if "ok   task clock" not in user.met("doctor").ok().out:
        raise Skip("perf is not allowed")

    def kind():
        job = user.time_to_end("sh", "-c", '"$@"; true', "sh", *world.workload("write", "data", 20 * MIB))
        return job["quality"]["write_call_bytes"]["kind"]

    # Time that a hypervisor took and does not report raises a doubt now and then.
    eventually(lambda: kind() == "measured", "bytes are measured")


@test
def shared_memory_without_a_cgroup_is_seen_and_marked_as_an_estimate(world):
    user = planted(world, USER)
    job = user.time_to_end(*world.workload("share_memory", 100 * MIB, "ready"), options=("--interval", "100ms"))
    needed = job["totals"]["memory_needed_peak_bytes"]
    check(95 * MIB < needed < 200 * MIB, f"{needed / MIB:.1f} MiB needed of 100")
    check(job["quality"]["memory_needed_peak_bytes"]["kind"] in ("estimated", "lower_bound"), job["quality"])
    line = next(line for line in user.met("show").ok().out.splitlines() if "memory needed" in line)
    check("average ~" in line, f"the average is not marked: {line}")


@each(with_a_cgroup=ROOT, of_a_user=USER)
def huge_pages_are_counted(world, where):
    user = planted(world, where)
    path, size = "/proc/sys/vm/nr_hugepages", 32 * MIB
    with open(path) as file:
        before = file.read()
    try:
        with open(path, "w") as file:
            file.write(str(int(before) + 24))
        job = user.time_to_end(*world.workload("huge_memory", size, "ready"), options=("--interval", "100ms"))
    except OSError as error:
        raise Skip(f"huge pages cannot be reserved: {error}") from None
    finally:
        with open(path, "w") as file:
            file.write(before)
    if job["job"]["exit_code"] == 3:
        raise Skip("no huge pages are free")
    needed = job["totals"]["memory_needed_peak_bytes"]
    check(size <= needed < 3 * size, f"{needed / MIB:.1f} MiB needed of {size / MIB:.0f}")
    check(job["totals"]["memory_peak_bytes"] >= size or where == USER, job["totals"]["memory_peak_bytes"])


def limited():
    """A cgroup with a tenth of a CPU; the files that a process enters it by."""
    with open("/proc/self/mountinfo") as file:
        mounts = [line.partition(" - ") for line in file]
    points = {kind.split()[0] + kind.split()[2]: front.split()[4] for front, _, kind in mounts if kind.startswith("cgroup ")}
    v1 = next((point for key, point in points.items() if "cpu" in key.removeprefix("cgroup").split(",")), None)
    folder = os.path.join(v1 or os.path.dirname(next(homes())[1]), f"e2e-quota-{os.getpid()}")
    try:
        os.mkdir(folder)
        name, text = ("cpu.cfs_quota_us", "20000") if v1 else ("cpu.max", "20000 100000")
        if not v1:
            with open(os.path.join(os.path.dirname(folder), "cgroup.subtree_control"), "w") as file:
                file.write("+cpu")
        with open(os.path.join(folder, name), "w") as file:
            file.write(text)
    except OSError as error:
        if os.path.isdir(folder):
            os.rmdir(folder)
        raise Skip(f"no quota can be set: {error}") from None
    return folder


@test
def a_cpu_quota_is_named_in_the_report(world):
    need_root()
    folder = limited()
    try:
        script = f'echo 0 >{folder}/cgroup.procs; exec "$@"'
        command = ["sh", "-c", script, "sh", world.met_path, "time", "--", *world.workload("burning", "cpu", 0.3)]
        process = world.start(*command)
        said = process.communicate(timeout=DEADLINE_S)[1].decode()
        equal(process.returncode, 0, said)
        line = next((line for line in said.splitlines() if "throttled" in line and "periods" in line), None)
        check(line and "by its CPU quota" in line, said)
        totals = world.show()["totals"]
        check(totals["cpu_throttled_seconds"] > 0.1 and totals["cpu_throttles"] > 0, totals)
        check(f"{totals['cpu_throttles']} periods" in line, said)
    finally:
        eventually(lambda: removed(folder), "nobody is in the cgroup any more")


def removed(folder):
    try:
        os.rmdir(folder)
    except OSError:
        return False
    return True


@each(the_command_itself=False, inside_a_script=True)
def containers_of_a_service_are_said_to_be_missing(world, scripted):
    client = world.path("docker")
    # A client that waits for its service, as far as anybody can see.
    with open(client, "w") as file:
        file.write("#!/bin/sh\nsleep 1\n")
    os.chmod(client, 0o755)
    command = ["sh", "-c", f"{client}; true"] if scripted else [client]
    said = " ".join(world.met("time", "--", *command).ok().err.split())
    check("work of its containers is not included" in said, said)
    equal(world.show()["quality"]["cpu_seconds"]["kind"], "lower_bound", "kind")


@test
def a_job_that_leaves_processes_behind_used_no_more_than_all_of_the_time(world):
    # The spinning process stays on one CPU: its time is at most that of the job, and what goes before is little.
    cpu = min(os.sched_getaffinity(0))
    spin = "while :; do :; done > /dev/null 2>&1 & echo $! >> pids; exit 0"
    try:
        for _ in range(10):
            totals = world.time_to_end("taskset", "-c", str(cpu), "sh", "-c", spin)["totals"]
            check(totals["cpu_seconds"] <= totals["wall_seconds"] + 0.002, f"more than one CPU: {totals}")
    finally:
        with open(os.path.join(world.me.work, "pids")) as pids:
            for pid in map(int, pids.read().split()):
                os.kill(pid, 9)
        # Whoever starts a job removes cgroups that have become empty.
        world.run_to_end("true")


def memory_cgroup(name, limit_bytes):
    """A cgroup with a limit of memory, in whichever hierarchy limits it; its folder."""
    v1, v2 = "/sys/fs/cgroup/memory", "/sys/fs/cgroup"
    if os.path.exists(f"{v1}/memory.limit_in_bytes"):
        parent, file = v1, "memory.limit_in_bytes"
    elif os.path.exists(f"{v2}/cgroup.subtree_control"):
        parent, file = v2, "memory.max"
        with open(f"{v2}/cgroup.subtree_control") as enabled:
            if "memory" not in enabled.read().split():
                raise Skip("no cgroup limits memory here")
    else:
        raise Skip("no cgroup limits memory here")
    folder = os.path.join(parent, name)
    os.mkdir(folder)
    with open(os.path.join(folder, file), "w") as limit:
        limit.write(str(limit_bytes))
    return folder


@test
def a_job_killed_under_a_limit_around_it_ran_out_of_memory(world):
    user = world.someone()
    folder = memory_cgroup(f"{world.token}-limit", 64 * MIB)
    # The cgroup is not the user's, so the job has none of its own in it.
    inside = f'echo $$ > {folder}/cgroup.procs && exec setpriv --reuid {user.uid} --clear-groups "$@"'
    hog = [world.python, "-c", f"bytearray({256 * MIB})"]
    try:
        started = world.me.start(
            "sh", "-c", inside, "sh", world.met_path, "time", "--", *hog, env=user.env, cwd=user.work
        )
        result = world.me.finish(started, ["time"])
        check("out of memory, killed by signal 9" in result.err, result.err)
        check("OOM kills *1" in " ".join(result.err.split()), result.err)
        check("counted in a cgroup around the job" in result.err, result.err)
        check("memory limit 64.0 MiB of the cgroup around it" in " ".join(result.err.split()), result.err)
        check("of 64.0 MiB, peak" in result.err, result.err)
    finally:
        eventually(lambda: try_rmdir(folder), "the cgroup is empty")


def try_rmdir(folder):
    try:
        os.rmdir(folder)
    except OSError:
        return False
    return True
