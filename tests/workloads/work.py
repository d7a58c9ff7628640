"""Small programs whose bottleneck is known: `work.py NAME [SECONDS]`.

Each does one thing for most of its time. `scripts/workloads` records them with the real binary."""

import os
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


def come_first():
    """The recording should show the work and not its neighbours: a higher priority, where it is allowed."""
    try:
        with open("/proc/self/autogroup", "w") as file:
            file.write("-20")
        os.nice(-20)
    except OSError:
        pass


WORKLOADS = {name: work for name, work in list(globals().items())
             if callable(work) and getattr(work, "__module__", None) == __name__
             and name not in ("until", "burn", "forked", "come_first")}

if __name__ == "__main__":
    if sys.argv[1:] == ["--list"]:
        print("\n".join(WORKLOADS))
    else:
        come_first()
        WORKLOADS[sys.argv[1]](float((sys.argv[2:] + ["20"])[0]))
