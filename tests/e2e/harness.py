"""What the end-to-end tests stand on: a world of its own for every test, and nothing left of it afterwards."""

import contextlib
import ctypes
import fcntl
import json
import os
import pty
import pwd
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time

#: Every test, in the order of definition.
TESTS = []

#: Generous: a deadline ends a test that hangs, it never judges a slow machine.
DEADLINE_S = 60

#: Marks every process that a test starts.
TOKEN = "MET_E2E"


class Skip(Exception):
    """The machine lacks what a test needs."""


class Failed(Exception):
    """A claim does not hold."""


def test(function):
    """Registers a claim."""
    TESTS.append((function.__name__, function, ()))
    return function


#: Claims about a machine that does nothing else: they are run one by one, after all others.
ALONE = set()


def each(**cases):
    """Registers a claim once per case; the case's name is the end of the claim's."""

    def register(function):
        for name, arguments in cases.items():
            arguments = arguments if isinstance(arguments, tuple) else (arguments,)
            TESTS.append((f"{function.__name__}_{name}", function, arguments))
        return function

    return register


def check(holds, *said):
    if not holds:
        raise Failed(" ".join(str(part) for part in said) or "does not hold")


def equal(found, expected, what="value"):
    check(found == expected, f"{what}: {found!r} instead of {expected!r}")


def close_to(found, truth, share, what="value"):
    check(found is not None, f"{what} is missing")
    off = f"{what}: {found:.6g} but the truth is {truth:.6g} ({(found / truth - 1) * 100:+.2f} %)"
    check(abs(found - truth) <= share * truth, off)


def eventually(condition, what, deadline_s=DEADLINE_S, pause_s=0.02):
    """Waits until the condition is true, and returns what made it so. `what` may say in the end how it is instead."""
    end = time.monotonic() + deadline_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise Failed(f"still not so after {deadline_s} s: {what() if callable(what) else what}")
        time.sleep(pause_s)


def need_root():
    if os.geteuid() != 0:
        raise Skip("needs root")


def alive(pid):
    """Whether a process exists and is no zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def children_of(pid):
    """The pids of the living children of a process."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] not in (b"Z", b"X"):
            found.append(int(entry))
    return found


def is_supervisor(pid):
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8") as file:
            return file.read().strip() == "met-supervise"
    except OSError:
        return False


def marked(token, *more):
    """The living processes of a test, or of one of its users: pid and command line."""
    variables = {variable.encode() for variable in (f"{TOKEN}={token}", *more)}
    found = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/environ", "rb") as file:
                if not variables <= set(file.read().split(b"\0")):
                    continue
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                command = file.read().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            continue
        if alive(entry):
            found[int(entry)] = command
    return found


def hide_cgroups():
    """In a child before exec: a machine on which no cgroup file system is mounted."""
    libc = ctypes.CDLL(None, use_errno=True)
    clone_newns, ms_rec, ms_private, mnt_detach = 0x20000, 0x4000, 0x40000, 2
    if libc.unshare(clone_newns) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    libc.mount(b"none", b"/", None, ms_rec | ms_private, None)
    while libc.umount2(b"/sys/fs/cgroup", mnt_detach) == 0:
        pass


class Ground:
    """What all tests of a file stand on and what takes seconds to come up, such as a resource manager: there from
    before the first of them until after the last. The scripts `<name>-up` and `<name>-down` in `schedulers` make it."""

    def __init__(self, name):
        self.name, self.folder, self.user, self.process = name, None, None, None
        self.log = None

    def start(self, base):
        """Begins to bring it up."""
        self.folder = os.path.join(base, f"met-e2e-{self.name}-{os.getpid()}")
        self.user = f"e2e_{self.name}_{os.getpid()}"
        self.log = tempfile.TemporaryFile()
        # A session of its own: who interrupts the tests does not interrupt this halfway.
        self.process = subprocess.Popen(
            [self._script("up"), self.folder, self.user],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, start_new_session=True)

    def _script(self, which):
        return os.path.join(os.path.dirname(os.path.abspath(__file__)), "schedulers", f"{self.name}-{which}")

    def is_settled(self):
        return self.process.poll() is not None

    def stand(self):
        """In a test: returns if it is there."""
        if self.process.returncode == 0:
            return
        self.log.seek(0)
        said = " ".join(self.log.read().decode(errors="replace").split())
        raise Skip(said) if self.process.returncode == 3 else Failed(f"{self.name}-up: {said}")

    def end(self):
        """Takes it down, also when it is only half up; what could not be taken away, or nothing."""
        if not self.is_settled():
            os.killpg(self.process.pid, signal.SIGTERM)
            self.process.wait()
        down = subprocess.Popen(
            [self._script("down"), self.folder],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
        said = down.communicate()[1].decode(errors="replace").strip()
        return f"{self.name}-down: {said}" if down.returncode else ""

    def path(self, name):
        return os.path.join(self.folder, name)

    def command(self, *command, user=None, check_code=True):
        """Runs a command of the manager's, as root or as a user of the test; what it says."""
        command = [self.path(os.path.join("bin", command[0])), *command[1:]] if user is None else \
            [self.path("as"), self.user, *command]
        options = {} if user is None else {"env": user.env, "cwd": user.work}
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=DEADLINE_S, text=True, **options)
        check(not check_code or done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip()} {done.stdout.strip()}")
        return done.stdout.strip()


class Result:
    """How a command ended and what it said."""

    def __init__(self, command, code, out, err):
        self.command, self.code, self.out_bytes, self.err_bytes = command, code, out, err
        self.out, self.err = out.decode(errors="replace"), err.decode(errors="replace")

    def ok(self):
        return self.expect(0)

    def expect(self, code):
        check(self.code == code, f"{self}: exit code {self.code} instead of {code}; stderr: {self.err.strip()!r}")
        return self

    def refused(self, *words, code=2):
        """The one clear line that bad input deserves."""
        self.expect(code)
        lines = self.err.splitlines()
        check(len(lines) == 1 and lines[0].startswith("met: "), f"{self}: not one clear line: {self.err!r}")
        for word in words:
            check(word in self.err, f"{self}: no {word!r} in {self.err!r}")
        return self

    def json(self):
        return json.loads(self.out)

    def __str__(self):
        return "met " + " ".join(str(part) for part in self.command)


#: Ids from here on are given without a system daemon.
OWN_IDS_FROM = 10**9


class User:
    """A user with a home, who runs met."""

    def __init__(self, world, uid, cgroups=True):
        self.world, self.uid, self.cgroups = world, uid, cgroups
        self.switches = uid != os.getuid()
        self.gid = pwd.getpwuid(uid).pw_gid if self.switches and self.name else uid
        self.home = os.path.join(world.root, f"u{uid}" if cgroups else f"n{uid}")
        self.work = os.path.join(self.home, "work")
        self.state = os.path.join(self.home, "state")
        self.runtime = os.path.join(self.home, "run")
        for folder in (self.home, self.work, self.state, self.runtime):
            os.mkdir(folder, 0o700)
            os.chmod(folder, 0o700)
            if self.switches:
                os.chown(folder, uid, self.gid)
        kept = {key: value for key, value in os.environ.items() if key in ("PATH", "LD_LIBRARY_PATH", "TZ")}
        self.env = {
            **kept,
            TOKEN: world.token,
            "HOME": self.home,
            "LANG": "C.UTF-8",
            "MET_CONFIG": world.config,
            "XDG_RUNTIME_DIR": self.runtime,
            "XDG_STATE_HOME": self.state,
        }

    @property
    def name(self):
        try:
            return pwd.getpwuid(self.uid).pw_name
        except KeyError:
            return None

    def start(self, *command, env=None, cwd=None, preexec=None, **options):
        """Starts any command as this user."""
        identity = {"user": self.uid, "group": self.gid, "extra_groups": []} if self.switches else {}

        def prepare():
            if not self.cgroups:
                hide_cgroups()
            if preexec:
                preexec()

        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(
            command,
            env={**self.env, **(env or {})},
            cwd=cwd or self.work,
            preexec_fn=prepare if preexec or not self.cgroups else None,
            **{**streams, **options},
            **identity,
        )

    def spawn(self, *arguments, **options):
        """Starts met and does not wait for it."""
        return self.start(self.world.met_path, *arguments, **options)

    def met(self, *arguments, input=None, deadline_s=DEADLINE_S, **options):
        if input is not None:
            options["stdin"] = subprocess.PIPE
        process = self.spawn(*arguments, **options)
        return self.finish(process, arguments, input, deadline_s)

    def finish(self, process, arguments=(), input=None, deadline_s=DEADLINE_S):
        try:
            out, err = process.communicate(input, timeout=deadline_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise Failed(f"met {' '.join(map(str, arguments))}: does not end") from None
        return Result(arguments, process.returncode, out or b"", err or b"")

    def run(self, *command, options=(), **more):
        """Starts a job with `met run`; its id."""
        result = self.met("run", "--print-id", *options, "--", *command, **more).ok()
        return result.out.strip()

    def run_to_end(self, *command, options=()):
        """Runs a job with `met run --wait`; the object that describes it."""
        result = self.met("run", "--wait", "--print-id", *options, "--", *command)
        check(result.out.strip().isdigit(), f"{result}: no id: {result.err.strip()!r}")
        return self.show(result.out.strip())

    def time_to_end(self, *command, options=()):
        """Runs a job with `met time --json`; the object that describes it."""
        result = self.met("time", "--json", *options, "--", *command)
        lines = result.err.splitlines()
        check(lines and lines[-1].startswith("{"), f"{result}: no report: {result.err!r}")
        return json.loads(lines[-1])

    def show(self, job="@last"):
        return self.met("show", job, "--json").ok().json()

    def jobs(self, *options):
        return self.met("list", "--json", *options).ok().json()

    def state_of(self, job):
        return self.show(job)["job"]["state"]

    def wait_for_state(self, job, *states):
        return eventually(lambda: self.state_of(job) in states, f"job {job} is {' or '.join(states)}")

    def path(self, name):
        return os.path.join(self.work, name)

    def read(self, name):
        with open(self.path(name), "rb") as file:
            return file.read()

    def appears(self, name):
        """Waits for a file that a workload writes when it is ready; its text."""
        path = self.path(name)
        eventually(lambda: os.path.exists(path), f"{name} appears")
        return self.read(name).decode()

    def socket(self):
        return os.path.join(self.runtime, "met", "daemon.sock")

    def daemon_pids(self):
        """Daemons of this user that are alive."""
        found = marked(self.world.token, f"HOME={self.home}")
        return [pid for pid, command in found.items() if command.partition(" ")[2].startswith("daemon")]

    def daemon_pid(self):
        """The daemon that serves, once there is one."""

        def ask():
            said = self.met("daemon", "--user", "--status")
            return re.search(r"\(pid (\d+)\)", said.out) if said.code == 0 else None

        return int(eventually(ask, "a daemon answers").group(1))

    def start_daemon(self):
        """A job that lasts starts a daemon; one that ends at once may not."""
        job = self.run("sleep", "600")
        pid = self.daemon_pid()
        self.met("cancel", str(job)).ok()
        return pid

    def stop_daemon(self):
        """Ends the daemon if there is one, also one that is just starting."""

        def stopped():
            result = self.met("daemon", "--user", "--stop")
            check(result.code in (0, 2), f"{result}: {result.err}")
            return not self.daemon_pids()

        eventually(stopped, "no daemon is left")

    def supervisor_of(self, main):
        """The pid of the supervisor, found as the parent of the job's main process."""
        with open(f"/proc/{main}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])

    def terminal(self, *arguments, env=None, columns=120):
        return Terminal(self, arguments, env, columns)

    def waiting(self):
        """The files of jobs that are not imported."""
        jobs, left = os.path.join(self.store_folder(), "jobs"), {}
        for job in os.listdir(jobs) if os.path.isdir(jobs) else []:
            # One that is imported meanwhile is gone.
            with contextlib.suppress(FileNotFoundError):
                left[job] = sorted(set(os.listdir(os.path.join(jobs, job))) - {"done"})
        return {job: names for job, names in left.items() if names}

    def import_jobs(self):
        """What waits in the inbox is imported by a daemon: commands that only read do not do it."""
        with open(self.path("import.log"), "wb") as log:
            daemon = self.spawn("daemon", "--user", stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            self.daemon_pid()
            # `unreported` is for a system daemon.
            left = lambda: [names for names in self.waiting().values() if names != ["unreported"]]
            eventually(lambda: not left(), lambda: f"{self.waiting()} is imported")
        finally:
            daemon.terminate()
            daemon.wait()

    def store_folder(self):
        """The state directory of this machine."""
        machines = os.listdir(os.path.join(self.state, "met"))
        equal(len(machines), 1, "folders in the state directory")
        return os.path.join(self.state, "met", machines[0])


class Terminal:
    """met, or another command, at a terminal of its own."""

    def __init__(self, user, arguments, env=None, columns=120, start=None):
        self.user, self.arguments, self.seen = user, arguments, b""
        self.main, child = pty.openpty()
        fcntl.ioctl(self.main, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))

        def control():
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        env = {"TERM": "xterm", **(env or {})}
        self.process = (start or user.spawn)(*arguments, stdin=child, stdout=child, stderr=child, env=env, preexec=control)
        os.close(child)

    def read_until(self, pattern):
        """Everything shown so far, once the pattern is in it."""
        end = time.monotonic() + DEADLINE_S
        while not re.search(pattern, self.text()):
            check(time.monotonic() < end, f"{pattern!r} is never shown: {self.text()!r}")
            if not self._read(0.2) and self.process.poll() is not None and not self._read(0.2):
                check(re.search(pattern, self.text()), f"ended without showing {pattern!r}: {self.text()!r}")
        return self.text()

    def _read(self, patience_s):
        ready, _, _ = select.select([self.main], [], [], patience_s)
        if not ready:
            return False
        try:
            chunk = os.read(self.main, 65536)
        except OSError:
            return False
        self.seen += chunk
        return bool(chunk)

    def text(self):
        return self.seen.decode(errors="replace")

    def send(self, data):
        os.write(self.main, data)

    def end(self):
        """Waits for the end; the exit code."""
        end = time.monotonic() + DEADLINE_S
        while self.process.poll() is None:
            check(time.monotonic() < end, f"does not end: {self.text()!r}")
            self._read(0.1)
        while self._read(0.1):
            pass
        os.close(self.main)
        return self.process.returncode

    def kill(self):
        self.process.kill()
        return self.end()


class World:
    """One test's own machine, as far as met can see."""

    def __init__(self, token, root, shared):
        self.token, self.root, self.stolen_before = token, root, stolen()
        self.met_path = os.path.join(shared, "met")
        self.work_path = os.path.join(shared, "work.py")
        self.python = public_python()
        self.config = os.path.join(root, "met.yaml")
        self.system_runtime = os.path.join(root, "sys", "run")
        self.system_state = os.path.join(root, "sys", "state")
        self.system = None
        os.chmod(root, 0o755)
        self.configure("")
        self.users = {}
        self.me = self.user(os.getuid())

    def configure(self, text):
        """Writes the configuration; the system daemon of this world is never the machine's, nor are its jobs."""
        if "jobs:" not in text:
            text += "jobs:\n  discover: false\n"
        if "schedulers:" not in text:
            text += "schedulers:\n  slurm: false\n  oar: false\n  pbs: false\n  lsf: false\n"
        with open(self.config, "w") as file:
            file.write(f"system:\n  runtime: {self.system_runtime}\n  state: {self.system_state}\n{text}")

    def user(self, uid, cgroups=True):
        key = (uid, cgroups)
        if key not in self.users:
            self.users[key] = User(self, uid, cgroups)
        return self.users[key]

    def named_user(self, name):
        try:
            return self.user(pwd.getpwnam(name).pw_uid)
        except KeyError:
            raise Skip(f"there is no user {name}") from None

    def someone(self):
        """An unprivileged user, who may make no cgroup."""
        need_root()
        return self.user(65534)

    def without_cgroups(self):
        """The caller on a machine without cgroups."""
        need_root()
        return self.user(os.getuid(), cgroups=False)

    def workload(self, *arguments):
        """The command line of one of the workloads of work.py."""
        return [self.python, "-S", "-E", self.work_path, *map(str, arguments)]

    def start_system_daemon(self):
        need_root()
        os.makedirs(os.path.dirname(self.system_runtime), exist_ok=True)
        log = open(os.path.join(self.root, "system.log"), "ab")
        self.system = self.me.spawn("daemon", stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        log.close()
        path = os.path.join(self.system_runtime, "daemon.sock")
        before = self.system

        def up():
            check(before.poll() is None, "the system daemon ended:", self.log("system.log"))
            return os.path.exists(path) and self.me.met("daemon", "--status").code == 0

        eventually(up, "the system daemon answers")

    def stop_system_daemon(self, how=signal.SIGTERM):
        if self.system:
            self.system.send_signal(how)
            self.system.wait(DEADLINE_S)
            self.system = None

    def stolen(self):
        """What a hypervisor took away since the test began."""
        return stolen() - self.stolen_before

    def log(self, name):
        with open(os.path.join(self.root, name)) as file:
            return file.read()

    # Everything in a user's name is delegated to the caller.
    def __getattr__(self, name):
        return getattr(self.me, name)

    def close(self):
        """Ends the daemons and checks that nothing is left."""
        self.stop_system_daemon()
        self._end_everything()
        for user in self.users.values():
            if os.path.isdir(os.path.join(user.state, "met")):
                user.met("list").ok()
                self._check_files(user)

    def _end_everything(self):
        """A supervisor may still be starting a daemon: asked once, it would be missed."""
        def ended():
            for user in self.users.values():
                user.stop_daemon()
            left = marked(self.token)
            # A supervisor that waits for a system daemon to report an end to it exits on SIGTERM.
            for pid in [pid for pid, command in left.items() if is_supervisor(pid) and not children_of(pid)]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
            return not left

        eventually(ended, lambda: f"no process is left of {marked(self.token)}", 20)

    def _check_files(self, user):
        left = [name for name in os.listdir(os.path.join(user.runtime, "met")) if name != "daemon.lock"] \
            if os.path.isdir(os.path.join(user.runtime, "met")) else []
        check(not left, f"left in the runtime directory: {left}")
        if user.waiting():
            user.import_jobs()
        # A system daemon that was stopped has not received the ends of its own jobs, which have its low ids.
        left = {job: names for job, names in user.waiting().items()
                if names != ["unreported"] or int(job) > OWN_IDS_FROM}
        check(not left, f"left of jobs: {left}")


class Confinement:
    """A cgroup around one test, where cgroups can be made: shows exactly which ones it left behind."""

    def __init__(self, token):
        self.folders = []
        if os.geteuid() != 0:
            return
        for kind, home in homes():
            folder = os.path.join(home, f"e2e-{token}")
            try:
                os.makedirs(os.path.join(folder, "self"))
            except OSError:
                continue
            self.folders.append(folder)
            if kind == "unified":
                try:
                    with open(os.path.join(folder, "cgroup.subtree_control"), "w") as file:
                        file.write("+memory +pids")
                except OSError:
                    pass

    def enter(self):
        for folder in self.folders:
            with open(os.path.join(folder, "self", "cgroup.procs"), "w") as file:
                file.write("0")

    def left_behind(self):
        """The directories of jobs that are still there."""
        found = []
        for folder in self.folders:
            for path, folders, _ in os.walk(folder):
                found += [os.path.join(path, name) for name in folders if name.startswith("met-")]
        return found

    def remove(self):
        """Kills what is in there and removes the directories."""
        end = time.monotonic() + 20
        for folder in self.folders:
            for path, _, _ in os.walk(folder, topdown=False):
                while True:
                    try:
                        os.rmdir(path)
                        break
                    except OSError:
                        if time.monotonic() > end:
                            break
                        self._kill(path)
                        time.sleep(0.02)

    @staticmethod
    def _kill(path):
        try:
            with open(os.path.join(path, "cgroup.procs")) as file:
                for pid in file.read().split():
                    os.kill(int(pid), signal.SIGKILL)
        except OSError:
            pass


def homes():
    """The directories of this process's cgroups: unified, memory and cpuacct."""
    paths = {}
    with open("/proc/self/cgroup") as file:
        for line in file:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            for controller in controllers.split(","):
                paths[controller] = path
    with open("/proc/self/mountinfo") as file:
        for line in file:
            front, _, back = line.partition(" - ")
            fields, (kind, _, options) = front.split(), back.split(maxsplit=2)
            inside, point = fields[3], fields[4]
            for name, controller in (("unified", ""), ("memory", "memory"), ("cpuacct", "cpuacct")):
                fits = kind == "cgroup2" if name == "unified" else \
                    kind == "cgroup" and controller in options.strip().split(",")
                if fits and controller in paths:
                    path = os.path.relpath(paths[controller], inside)
                    if not path.startswith(".."):
                        yield name, os.path.normpath(os.path.join(point, path))


def cgroups_left():
    """Directories of jobs beside this process."""
    return [name for _, home in homes() for name in os.listdir(home) if name.startswith("met-")]


def stolen():
    """Seconds that a hypervisor took from this machine since boot."""
    with open("/proc/stat") as file:
        return int(file.readline().split()[8]) / os.sysconf("SC_CLK_TCK")


def public_python():
    """An interpreter that every user may run; ours may lie in a private home."""
    for candidate in (os.path.realpath(sys.executable), "/usr/bin/python3", "/usr/local/bin/python3"):
        path = os.path.realpath(candidate)
        folders = [path[:end] or "/" for end in range(len(path)) if path[end] == "/"]
        if os.access(path, os.X_OK) and all(os.stat(folder).st_mode & 0o001 for folder in folders):
            return path
    return sys.executable


def remove_tree(path):
    shutil.rmtree(path, ignore_errors=True)
