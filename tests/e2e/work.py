"""What the jobs of the tests do. Each workload measures itself: its report is the truth met is held against."""

import contextlib
import json
import mmap
import os
import resource
import signal
import sys
import threading
import time


def used():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def burn(seconds):
    begin = time.process_time()
    while time.process_time() - begin < seconds:
        sum(range(2000))


def report(path, text):
    """One line of a report, whole or not at all."""
    with open(path, "a") as file:
        file.write(f"{text}\n")


def announce(path, text=""):
    """A file that is complete as soon as it is there."""
    with open(path + ".part", "w") as file:
        file.write(str(text))
    os.rename(path + ".part", path)


def in_child(function, *arguments):
    pid = os.fork()
    if pid == 0:
        function(*arguments)
        os._exit(0)
    return pid


def burn_and_report(path, seconds):
    burn(seconds)
    report(path, used())


def burning(path, seconds, code="0"):
    burn_and_report(path, float(seconds))
    os._exit(int(code))


def in_turn(path, count, seconds, children="reaped"):
    """Processes one after another; ignored children are never reaped."""
    if children == "ignored":
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for _ in range(int(count)):
        pid = in_child(burn_and_report, path, float(seconds))
        try:
            os.waitpid(pid, 0)
        except ChildProcessError:
            pass
    report(path, used())


def lives_in_turn(path, count, seconds):
    """Processes one after another; for each its pid, when it surely lived first and last, and when it was over."""
    def live():
        first = time.time()
        burn(float(seconds))
        with open(path + ".life", "w") as file:
            file.write(f"{first} {time.time()}")

    lives = []
    for _ in range(int(count)):
        before = time.time()
        pid = in_child(live)
        os.waitpid(pid, 0)
        with open(path + ".life") as file:
            lives.append([pid, before, *map(float, file.read().split()), time.time()])
    with open(path, "w") as file:
        json.dump(lives, file)


def daemonized(path, seconds, ready):
    """A grandchild in a session of its own, which burns, reports and stays."""
    def grandchild():
        burn(float(seconds))
        report(path, used())
        announce(ready, os.getpid())
        time.sleep(3600)

    def child():
        os.setsid()
        in_child(grandchild)
        report(path, used())

    os.waitpid(in_child(child), 0)
    report(path, used())


def threads_write(path, threads, size):
    def write(number):
        with open(f"{path}.{number}", "wb", buffering=0) as file:
            file.write(bytes(int(size) // int(threads)))

    workers = [threading.Thread(target=write, args=(number,)) for number in range(int(threads))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def write(path, size):
    block = bytes(1 << 20)
    with open(path, "wb") as file:
        for _ in range(int(size) // len(block)):
            file.write(block)


def write_in_turn(path, count, size, ready, go, children="reaped"):
    """Processes one after another, each of which writes a file and ends; begins when a pipe is opened."""
    if children == "ignored":
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    os.mkfifo(go)
    announce(ready, os.getpid())
    open(go).close()
    for _ in range(int(count)):
        pid = in_child(write, path, size)
        try:
            os.waitpid(pid, 0)
        except ChildProcessError:
            pass


def fault_and_switch(faults, switches):
    """New pages and pauses, in two processes."""
    def work():
        for _ in range(int(faults) // 2000):
            with mmap.mmap(-1, 1000 * mmap.PAGESIZE) as memory:
                # Small pages, one fault each, whatever the machine prefers.
                memory.madvise(mmap.MADV_NOHUGEPAGE)
                for page in range(0, len(memory), mmap.PAGESIZE):
                    memory[page] = 1
        for _ in range(int(switches) // 2):
            time.sleep(0.0001)

    pid = in_child(work)
    work()
    os.waitpid(pid, 0)


def on_one_cpu(count, seconds):
    """Processes that compute at the same time and have to share one CPU."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    for pid in [in_child(burn, float(seconds)) for _ in range(int(count))]:
        os.waitpid(pid, 0)


def forks(count, size, ready):
    """Many processes that share what their parent holds."""
    held = bytearray(int(size))
    held[::4096] = b"x" * len(held[::4096])
    out, go = os.pipe()
    for _ in range(int(count)):
        if os.fork() == 0:
            os.close(go)
            os.read(out, 1)
            os._exit(0)
    announce(ready, count)
    time.sleep(2)
    os.close(go)
    for _ in range(int(count)):
        os.wait()


def circumstances(path, *arguments):
    """Everything a process inherits."""
    mask = os.umask(0)
    limits = {name: resource.getrlimit(getattr(resource, name)) for name in ("RLIMIT_NOFILE", "RLIMIT_CORE")}
    with open("/proc/self/status") as file:
        status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    announce(path, json.dumps({
        "arguments": [os.fsencode(argument).hex() for argument in arguments],
        "environment": {key.hex(): value.hex() for key, value in os.environb.items()},
        "umask": mask,
        "limits": limits,
        "folder": os.getcwd(),
        "blocked": status["SigBlk"],
        "ignored": status["SigIgn"],
        "stdin": os.readlink("/proc/self/fd/0"),
        "descriptors": sorted(os.listdir("/proc/self/fd")),
    }))


def on_signal(path, ready, *names):
    """Reports the first signal and exits with 40 and its number."""
    def handle(number, _):
        report(path, signal.Signals(number).name)
        os._exit(40 + number)

    for name in names:
        signal.signal(getattr(signal, name), handle)
    announce(ready, os.getpid())
    while True:
        time.sleep(60)


def stubborn(ready):
    """Ends by SIGKILL only."""
    for name in ("SIGTERM", "SIGINT", "SIGHUP"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    announce(ready, os.getpid())
    while True:
        time.sleep(60)


def echo(code):
    """Copies stdin to stdout."""
    data = sys.stdin.buffer.read()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
    sys.stderr.write("said on stderr\n")
    os._exit(int(code))


def burn_when_told(path, ready, go, seconds, code="0"):
    """Burns before; then, from the moment a pipe is opened, half itself and half in a child born later."""
    burn(0.3)
    os.mkfifo(go)
    announce(ready, os.getpid())
    # Waiting here costs nothing.
    open(go).close()
    before = used()
    burn(float(seconds) / 2)
    os.waitpid(in_child(burn_and_report, path, float(seconds) / 2), 0)
    report(path, used() - before)
    os._exit(int(code))


def burn_until_terminated(path, ready):
    """Burns until SIGTERM comes, and reports what it used."""
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    burn(0.5)
    announce(ready, os.getpid())
    while not stopped:
        burn(0.01)
    report(path, used())
    os._exit(0)


def burn_and_tell(path):
    """Burns and says all the time what it has used, for a test that kills it in the midst of it."""
    while True:
        burn(0.02)
        announce(path, used())


def of_children():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def and_commands(path, *command):
    """Runs a command and reports what both used, for a command that cannot report itself."""
    status = os.waitpid(os.posix_spawnp(command[0], command, os.environ), 0)[1]
    report(path, used() + of_children())
    os._exit(os.waitstatus_to_exitcode(status))


def eat(path, seconds, size):
    """A child burns and then takes more memory than it may; the parent lives to report what both used."""
    def child():
        burn(float(seconds))
        held = bytearray(int(size))
        held[::4096] = b"x" * len(held[::4096])

    status = os.waitpid(in_child(child), 0)[1]
    report(path, used() + of_children())
    os._exit(9 if os.WIFSIGNALED(status) else 0)


def steady(path, stop):
    """Burns a little all the time, until a file appears."""
    while not os.path.exists(stop):
        burn(0.02)
        time.sleep(0.02)
    report(path, used())


def rank(folder):
    """A rank of an MPI job, as far as it must be known here."""
    burn(0.2)
    number = os.environ["OMPI_COMM_WORLD_RANK"]
    report(os.path.join(folder, "ranks"), f"{number} {os.environ.get('MET_JOB_ID')}")
    report(os.path.join(folder, "cpu"), used())


def tree(text, out):
    """One process of a tree that the text describes. Each reports its own CPU time through the descriptor `out`, which
    all inherit, and that is the last thing it does."""
    grow(json.loads(text), int(out))
    os._exit(0)


def grow(node, out):
    signal.signal(signal.SIGCHLD, signal.SIG_IGN if node["ignores"] else signal.SIG_DFL)
    if node["setsid"]:
        with contextlib.suppress(PermissionError):
            os.setsid()
    for folder in node["leaves_to"]:
        with open(os.path.join(folder, "cgroup.procs"), "w") as file:
            file.write("0")
    if node["becomes"]:
        os.setuid(node["becomes"])
    # Half before and half after: a child may outlive what its parent does.
    burn(node["burn_s"] / 2)
    pids = [sprout(child, out) for child in node["children"]]
    burn(node["burn_s"] / 2)
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
    os.write(out, f"{time.process_time()}\n".encode())


def sprout(node, out):
    """Starts a process of the tree; its pid."""
    again = [node["program"] or sys.executable, "-S", "-E", os.path.abspath(__file__), "tree", json.dumps(node), str(out)]
    if node["how"] == "posix_spawn":
        return os.posix_spawn(again[0], again, os.environ)
    pid = os.fork()
    if pid:
        return pid
    if node["how"] == "orphan":
        # Its parent is gone before it begins; its new parent waits for it.
        if os.fork():
            os.write(out, f"{time.process_time()}\n".encode())
            os._exit(0)
    if node["how"] == "exec":
        os.execv(again[0], again)
    grow(node, out)
    os._exit(0)


def ignored_at_once(count, faults, ready, go):
    """Processes at the same time that make page faults, end together and are never waited for."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    os.mkfifo(go)
    done, tell = os.pipe()

    def child():
        memory = mmap.mmap(-1, int(faults) * mmap.PAGESIZE)
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        for page in range(0, len(memory), mmap.PAGESIZE):
            memory[page] = 1
        os.write(tell, b".")
        open(go).close()

    pids = [in_child(child) for _ in range(int(count))]
    for _ in pids:
        os.read(done, 1)
    announce(ready)
    with contextlib.suppress(ChildProcessError):
        os.wait()


def in_nobodys_name(path, size, seconds):
    """A child writes, and is never waited for; its parent burns."""
    burn(float(seconds))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    pid = in_child(write, path, size)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


def spawn_many(path, count, program):
    """Small programs one after another; the truth is what was waited for and this process itself."""
    for _ in range(int(count)):
        os.waitpid(os.posix_spawn(program, [program], os.environ), 0)
    report(path, used() + of_children())


def share_memory(size, ready):
    """Shared memory, with which statm's private part has nothing to do."""
    with mmap.mmap(-1, int(size), flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS) as memory:
        for page in range(0, len(memory), mmap.PAGESIZE):
            memory[page] = 1
        announce(ready)
        time.sleep(2)


def huge_memory(size, ready):
    """Reserved huge pages; ends with 3 where there are none."""
    try:
        memory = mmap.mmap(-1, int(size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000)
    except OSError:
        os._exit(3)
    for page in range(0, len(memory), 2 << 20):
        memory[page] = 1
    announce(ready)
    time.sleep(2)


def main():
    function = globals()[sys.argv[1]]
    function(*sys.argv[2:])
    sys.stdout.flush()
    # The interpreter's own end would be used time that no report knows of.
    os._exit(0)


if __name__ == "__main__":
    main()
