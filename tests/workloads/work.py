"""Small programs whose bottleneck is known: `work.py NAME [SECONDS]`.

Each does one thing for most of its time. `scripts/workloads` records them with the real binary; those that begin with
`gpu_` need an NVIDIA GPU and PyTorch, and are recorded when they are named."""

import os
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
    enter_quota(0.5)
    both_cores(seconds)


def enter_quota(cores):
    """Gives the job's own cgroup a quota."""
    with open("/proc/self/cgroup") as file:
        own = next(line.rstrip("\n").split("::")[1] for line in file if line.startswith("0::"))
    above = "/sys/fs/cgroup"
    for name in own.strip("/").split("/"):
        with open(f"{above}/cgroup.subtree_control", "w") as file:
            file.write("+cpu")
        above += f"/{name}"
    with open(f"{above}/cpu.max", "w") as file:
        file.write(f"{int(cores * 100_000)} 100000")


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


WORKLOADS = {name: work for name, work in list(globals().items())
             if callable(work) and getattr(work, "__module__", None) == __name__
             and name not in ("until", "burn", "forked", "enter_quota", "matrix", "multiply")}

if __name__ == "__main__":
    if sys.argv[1:] == ["--list"]:
        print("\n".join(name for name in WORKLOADS if not name.startswith("gpu_")))
    else:
        WORKLOADS[sys.argv[1]](float((sys.argv[2:] + ["20"])[0]))
