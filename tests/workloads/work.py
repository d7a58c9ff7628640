"""Small programs whose bottleneck is known: `work.py NAME [SECONDS]`.

Each does one thing for most of its time. `scripts/workloads` records them with the real binary; those that begin with
`gpu_` need an NVIDIA GPU and PyTorch, and are recorded when they are named. Those that begin with `stress_` need
stress-ng. Limits and links need root."""

import ctypes
import mmap
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

BLOCK = b"x" * (1 << 20)


def until(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield end - time.monotonic()


def burn(seconds):
    """One core."""
    for _ in until(seconds):
        sum(range(20_000))


def forked(*tasks):
    """Each in a process of its own."""
    children = []
    for task in tasks:
        child = os.fork()
        if child == 0:
            task()
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


def serial(seconds):
    burn(seconds)


def both_cores(seconds):
    forked(lambda: burn(seconds), lambda: burn(seconds))


def oversubscribed(seconds):
    forked(*[lambda: burn(seconds)] * 12)


def unequal(seconds):
    """Two ranks, one of which has a tenth of the work."""
    forked(lambda: burn(seconds), lambda: burn(seconds / 10))


def sleeping(seconds):
    time.sleep(seconds)


def pipe(seconds):
    """Waits for another process that has nothing to say."""
    with subprocess.Popen(["sleep", str(seconds)], stdout=subprocess.PIPE) as child:
        child.stdout.read()


def lock(seconds):
    """Threads that wait for one another."""
    held = threading.Lock()
    held.acquire()
    threads = [threading.Thread(target=held.acquire, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    time.sleep(seconds)


def synced_writes(seconds):
    with tempfile.NamedTemporaryFile(dir=".") as file:
        for _ in until(seconds):
            file.seek(0)
            file.write(BLOCK)
            file.flush()
            os.fsync(file.fileno())


def uncached_reads(seconds):
    with tempfile.NamedTemporaryFile(dir=".") as file:
        for _ in range(128):
            file.write(BLOCK)
        file.flush()
        os.fsync(file.fileno())
        for _ in until(seconds):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            file.seek(0)
            while file.read(1 << 20):
                pass


def cached_reads(seconds):
    """Many bytes and no storage: the CPU copies them."""
    with tempfile.NamedTemporaryFile(dir=".") as file:
        file.write(BLOCK * 16)
        file.flush()
        for _ in until(seconds):
            os.pread(file.fileno(), 1 << 24, 0)


def leaking(seconds):
    kept = []
    for left in until(seconds):
        kept.append(bytearray(4 << 20))
        kept[-1][::4096] = b"x" * len(kept[-1][::4096])
        time.sleep(0.2)


def table(seconds):
    """Fills its memory at first and then works in it."""
    held = bytearray(256 << 20)
    held[::4096] = b"x" * len(held[::4096])
    burn(seconds)


def bursty(seconds):
    for _ in until(seconds):
        burn(2)
        time.sleep(2)


def start_up(seconds):
    time.sleep(seconds * 0.35)
    both_cores(seconds * 0.65)


def idle_tail(seconds):
    burn(seconds * 0.5)
    time.sleep(seconds * 0.5)


def tiny_children(seconds):
    for _ in until(seconds):
        forked(*[lambda: None] * 8)


def small_calls(seconds):
    reader, writer = os.pipe()
    for _ in until(seconds):
        for _ in range(1000):
            os.write(writer, b"x")
            os.read(reader, 1)


def polling(seconds):
    """Looks ten times a second whether there is something to do."""
    for _ in until(seconds):
        time.sleep(0.1)


def failing(seconds):
    burn(seconds / 2)
    sys.exit(3)


def many_files(seconds):
    """Creates and removes empty files."""
    with tempfile.TemporaryDirectory(dir=".") as folder:
        for _ in until(seconds):
            for number in range(200):
                path = f"{folder}/{number}"
                open(path, "wb").close()
                os.unlink(path)


def spinning(seconds):
    """Looks at the clock and at nothing else: busy, as far as anybody can see from outside."""
    for _ in until(seconds):
        pass


def memory_copies(seconds):
    """Both cores copy large blocks. Without counters of the memory bus that is computing."""
    def copy():
        held = bytearray(128 << 20)
        for _ in until(seconds):
            bytes(held)

    forked(copy, copy)


def buffered_writes(seconds):
    """Writes more than storage needs to see: the file is rewritten in the page cache."""
    with tempfile.NamedTemporaryFile(dir=".") as file:
        for _ in until(seconds):
            os.pwrite(file.fileno(), BLOCK * 8, 0)


def two_phases(seconds):
    """Reads its input on one core, then computes on both."""
    burn(seconds / 3)
    both_cores(seconds * 2 / 3)


def messages(seconds):
    """Two processes that send a byte to and fro and wait a millisecond each time."""
    def answer(link):
        while link.recv(1):
            time.sleep(0.001)
            link.sendall(b"x")

    def ask(link):
        for _ in until(seconds):
            link.sendall(b"x")
            link.recv(1)
        link.close()

    one, other = socket.socketpair()
    thread = threading.Thread(target=answer, args=(other,))
    thread.start()
    ask(one)
    thread.join()


def short(seconds):
    burn(seconds / 7)


def throttled(seconds):
    """Two busy processes with a quota of half a core."""
    limit_job("cpu", "max", "50000 100000")
    both_cores(seconds)


def reclaiming(seconds):
    """Looks up records in a file that does not quite fit into its memory limit: the kernel drops pages that are read
    again soon."""
    look_up(seconds, 136 << 20, 128 << 20)


def larger_than_limit(seconds):
    """The same with a file that is half as large again: most records come from storage, whatever is dropped."""
    look_up(seconds, 192 << 20, 128 << 20)


def look_up(seconds, size, limit):
    with tempfile.NamedTemporaryFile(dir=".") as file:
        for _ in range(size >> 20):
            file.write(BLOCK)
        file.flush()
        os.fsync(file.fileno())
        # Pages stay with the cgroup that read them first.
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        limit_job("memory", "max", str(limit))
        with mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as records:
            records.madvise(mmap.MADV_RANDOM)
            for _ in until(seconds):
                for _ in range(200):
                    records[random.randrange(size)]


def held_at_limit(seconds):
    """Needs more than the size from which on the kernel slows its allocations down."""
    limit_job("memory", "high", str(64 << 20))
    kept = []
    for _ in until(seconds):
        kept.append(bytearray(1 << 20))
        kept[-1][::4096] = b"x" * len(kept[-1][::4096])
        if len(kept) > 80:
            kept.clear()


def killed(seconds):
    """Computes, and at the end one of its processes needs more than the memory limit."""
    limit_job("memory", "max", str(128 << 20))
    burn(seconds)
    child = os.fork()
    if child == 0:
        os._exit(len(b"x" * (512 << 20)) >> 30)
    _, status = os.waitpid(child, 0)
    sys.exit(1 if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL else 0)


def limit_job(controller, name, value):
    """Gives the job's own cgroup a limit."""
    with open("/proc/self/cgroup") as file:
        own = next(line.rstrip("\n").split("::")[1] for line in file if line.startswith("0::"))
    above = "/sys/fs/cgroup"
    for folder in own.strip("/").split("/"):
        with open(f"{above}/cgroup.subtree_control", "w") as file:
            file.write(f"+{controller}")
        above += f"/{folder}"
    with open(f"{above}/{controller}.{name}", "w") as file:
        file.write(value)


def send(address, seconds, bytes_per_second=None):
    """Sends blocks for some time, paced where a rate is given."""
    with socket.create_connection(address) as link:
        begin, sent = time.monotonic(), 0
        for _ in until(seconds):
            link.sendall(BLOCK)
            sent += len(BLOCK)
            ahead = sent / bytes_per_second - (time.monotonic() - begin) if bytes_per_second else 0
            time.sleep(max(ahead, 0))


def receive(listener):
    link, _ = listener.accept()
    into = bytearray(1 << 20)
    while link.recv_into(into):
        pass


def loopback(seconds):
    """Two processes, one of which sends to the other as fast as both can copy."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        forked(lambda: receive(listener), lambda: send(listener.getsockname(), seconds))


def paced_socket(seconds):
    """The same at 32 MiB/s, as from a server that does not send faster. Whose bytes cross a network that jobs share is
    not counted."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        forked(lambda: receive(listener), lambda: send(listener.getsockname(), seconds, 32 << 20))


def slow_link(seconds):
    """Two processes, each in a network namespace of its own, and a link of 200 Mbit/s between them."""
    leave_network()
    ready, go = os.pipe(), os.pipe()

    def far():
        leave_network()
        os.write(ready[1], b"x")
        os.read(go[0], 1)
        link_up("far", "192.0.2.2/30")
        with socket.create_server(("192.0.2.2", 7000)) as listener:
            os.write(ready[1], b"x")
            receive(listener)

    child = os.fork()
    if child == 0:
        far()
        os._exit(0)
    os.read(ready[0], 1)
    pair = ["near", "type", "veth", "peer", "name", "far", "netns", str(child)]
    subprocess.run(["ip", "link", "add", *pair], check=True)
    link_up("near", "192.0.2.1/30")
    limit = ["tbf", "rate", "200mbit", "burst", "256kb", "latency", "50ms"]
    subprocess.run(["tc", "qdisc", "add", "dev", "near", "root", *limit], check=True)
    os.write(go[1], b"x")
    os.read(ready[0], 1)
    send(("192.0.2.2", 7000), seconds)
    os.waitpid(child, 0)


def leave_network():
    """Into a network namespace without any device but loopback."""
    new_network = 0x40000000
    if ctypes.CDLL(None, use_errno=True).unshare(new_network) != 0:
        raise OSError(ctypes.get_errno(), "unshare")


def link_up(device, address):
    subprocess.run(["ip", "address", "add", address, "dev", device], check=True)
    subprocess.run(["ip", "link", "set", device, "up"], check=True)


def stress(seconds, *options):
    os.execvp("stress-ng", ["stress-ng", "--quiet", "--timeout", f"{seconds:g}s", *options])


def stress_matrix(seconds):
    """Products of matrices on both cores."""
    stress(seconds, "--matrix", "2")


def stress_vm(seconds):
    """Both cores write and check 256 MiB of memory."""
    stress(seconds, "--vm", "2", "--vm-bytes", "128M", "--vm-keep")


def stress_switch(seconds):
    """Two processes that wake one another by a pipe, a byte at a time."""
    stress(seconds, "--switch", "1")


def stress_hdd(seconds):
    """Writes that wait for storage."""
    stress(seconds, "--hdd", "1", "--hdd-bytes", "128M", "--hdd-opts", "wr-seq,fsync", "--hdd-write-size", "1M",
           "--temp-path", ".")


def matrix(size):
    import torch
    return torch.randn(size, size, device="cuda", dtype=torch.bfloat16)


def multiply(a, seconds):
    """The whole card."""
    import torch
    for _ in until(seconds):
        for _ in range(8):
            a @ a
        torch.cuda.synchronize()


def gpu_full(seconds):
    multiply(matrix(8192), seconds)


def gpu_small_kernels(seconds):
    """Always a kernel, never a large one: a recorded graph, so that starting them takes no time."""
    import torch
    a, graph = matrix(64), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(2000):
            a.add_(0.001)
    for _ in until(seconds):
        for _ in range(20):
            graph.replay()
        torch.cuda.synchronize()


def gpu_launch_bound(seconds):
    """Small kernels, one by one: the core that starts them is busy, the GPU waits."""
    import torch
    a = matrix(64)
    for _ in until(seconds):
        for _ in range(2000):
            a = a + 0.001
        torch.cuda.synchronize()


def gpu_idle(seconds):
    """Takes a card and forgets it."""
    a = matrix(1024)
    time.sleep(seconds)
    del a


def gpu_holds_model(seconds):
    """Its memory is full, and no request comes for the model."""
    import torch
    free, _ = torch.cuda.mem_get_info()
    held = torch.empty(int(free * 0.85), dtype=torch.uint8, device="cuda")
    time.sleep(seconds)
    del held


def gpu_low(seconds):
    """A sixth of the time on the card, the rest asleep."""
    a = matrix(8192)
    for _ in until(seconds):
        multiply(a, 0.05)
        time.sleep(0.25)


def gpu_waits_for_cpu(seconds):
    """All cores prepare what the card needs a moment for."""
    import torch
    a, host = matrix(4096), torch.randn(2048, 2048)
    for _ in until(seconds):
        for _ in until(0.4):
            host @ host
        multiply(a, 0.06)


def gpu_tail(seconds):
    multiply(matrix(8192), seconds / 2)
    time.sleep(seconds / 2)


#: What workloads are made of.
PARTS = ("until", "burn", "forked", "look_up", "limit_job", "send", "receive", "leave_network", "link_up", "stress",
         "matrix", "multiply")
WORKLOADS = {name: work for name, work in list(globals().items())
             if callable(work) and getattr(work, "__module__", None) == __name__ and name not in PARTS}

if __name__ == "__main__":
    if sys.argv[1:] == ["--list"]:
        print("\n".join(name for name in WORKLOADS if not name.startswith("gpu_")))
    else:
        WORKLOADS[sys.argv[1]](float((sys.argv[2:] + ["20"])[0]))
