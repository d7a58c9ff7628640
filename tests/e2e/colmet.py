"""Colmet: its real collector stores what a daemon pushes, its real node is taken by a server, and its files are written."""

import contextlib
import functools
import json
import os
import signal
import subprocess

from harness import Skip, check, equal, eventually, need_root, test
from prometheus import HERE, free_port

#: All tables of an HDF5 file as JSON: rows by table.
READ = """
import h5py, json, sys
tables = {}
def add(name, item):
    if isinstance(item, h5py.Dataset):
        text = lambda value: value.decode() if isinstance(value, bytes) else value.item()
        tables[name] = [{column: text(row[column]) for column in item.dtype.names} for row in item[:]]
with h5py.File(sys.argv[1], "r") as file:
    file.visititems(add)
print(json.dumps(tables))
"""


@functools.cache
def python():
    """One that has Colmet."""
    installed = subprocess.run([os.path.join(HERE, "python-packages"), "colmet"], capture_output=True, text=True, check=False)
    if installed.returncode != 0:
        raise Skip(installed.stdout.strip() or installed.stderr.strip())
    return installed.stdout.strip()


def program(name):
    return os.path.join(os.path.dirname(python()), name)


def tables(path):
    """What a file holds; nothing while it cannot be read."""
    # Another process writes it: locks of the library would only make it fail more often.
    env = {**os.environ, "HDF5_USE_FILE_LOCKING": "FALSE"}
    done = subprocess.run([python(), "-c", READ, path], capture_output=True, text=True, check=False, env=env)
    return json.loads(done.stdout) if done.returncode == 0 else {}


@contextlib.contextmanager
def collector(world, port, path, *options):
    """A real colmet-collector that writes a file; it must still run at the end."""
    with open(world.me.path("collector.log"), "wb") as log:
        command = [program("colmet-collector"), "-s", "1", "--buffer-size", "1", "--zeromq-bind-uri", f"tcp://127.0.0.1:{port}",
                   "--hdf5-filepath", path, *options]
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=world.me.path(""))
    try:
        yield process
        equal(process.poll(), None, "the collector runs: " + world.me.read("collector.log").decode())
        process.send_signal(signal.SIGINT)
        equal(process.wait(60), 0, "the collector ends well: " + world.me.read("collector.log").decode())
    finally:
        process.kill()
        process.wait()


SINK = "sampling:\n  interval: 200ms\nsinks:\n  - colmet: {{endpoint: 'tcp://127.0.0.1:{port}', period: 200ms, managers: local, backends: '{backends}'}}\n"
#: All that a collector with HDF5 survives.
BACKENDS = "taskstats, procstats, infiniband, lustre, perfhw, rapl, temperature, jobproc, ipmi"


@test
def a_real_collector_stores_what_a_daemon_pushes(world):
    need_root()
    python()
    port, path = free_port(), world.me.path("out.hdf5")
    world.configure(SINK.format(port=port, backends=BACKENDS) + "perf:\n  events: [page_faults, context_switches]\n")
    with collector(world, port, path):
        world.start_system_daemon()
        # Five processes of 0.4 s each, none of which lives at two samples of Colmet.
        burn = "import time\nwhile time.process_time() < 0.4: pass"
        job = world.run("sh", "-c", f"for i in 1 2 3 4 5; do python3 -c '{burn}'; done; sleep 1")
        world.met("wait", job).ok()

        def last():
            return tables(path).get(f"job_{job}/taskstats_default", [{}])[-1]

        total = world.show(job)["totals"]
        eventually(lambda: last().get("cpu_run_real_total") == round(total["cpu_seconds"] * 1e9),
                   lambda: f"the total of the job: {last()} and {total}")
    found = tables(path)
    check(last()["cpu_run_real_total"] > 2_000_000_000, f"all five processes: {last()}")
    equal(last()["hostname"], os.uname().nodename, "the host")
    equal(last()["job_id"], int(job), "the job")
    check(found[f"job_{job}/jobprocstats_default"], "jobproc")
    node = found["job_0/procstats_default"]
    with open("/proc/meminfo", encoding="ascii") as file:
        kib = {line.split(":")[0]: int(line.split()[1]) for line in file}
    equal({row["meminfo_memtotal"] for row in node}, {kib["MemTotal"]}, "memory of the machine")
    times = [row["timestamp"] for row in node]
    check(times == sorted(times) and len(times) > 5, f"rounds: {times}")


@test
def a_collector_that_comes_late_gets_what_waited_and_sampling_goes_on(world):
    need_root()
    python()
    port, path = free_port(), world.me.path("out.hdf5")
    world.configure(SINK.format(port=port, backends="procstats"))
    world.start_system_daemon()

    def sink():
        return {one["name"]: one for one in world.met("daemon", "--status", "--json").ok().json()["sinks"]}["colmet"]

    eventually(lambda: sink()["state"] == "retrying" and sink()["delivered"] > 20, "no collector, and ticks go on")
    equal(sink()["dropped"], 0, "dropped")
    with collector(world, port, path):
        eventually(lambda: len(tables(path).get("job_0/procstats_default", [])) > 20, "what waited is stored")
        eventually(lambda: sink()["state"] == "running", "the sink is well")
