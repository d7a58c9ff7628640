"""Exported files: other programs open them and find what `met show --json` says; a job as a file is shown as the original is."""

import csv
import io
import json
import os
import shutil
import subprocess

from cluster import all_the_same, cluster
from harness import Skip, check, each, equal, eventually, need_root, test

HERE = os.path.dirname(os.path.abspath(__file__))


def sampled_job(world, name="work"):
    """A finished job with samples of itself and of an event; its id."""
    world.configure("sampling:\n  interval: 100ms\nperf:\n  events: [page_faults]\n")
    world.me.run_to_end("sh", "-c", "x=0; while [ $x -lt 200000 ]; do x=$((x+1)); done; sleep 0.5", options=("-n", name))
    (job,) = [one["job"]["id"] for one in world.jobs() if one["job"]["name"] == name]
    eventually(lambda: samples(world, job), "samples of the job")
    # Energy comes after the end; without a daemon nothing changes any more.
    world.me.stop_daemon()
    return job


def samples(world, job):
    lines = world.met("export", job, "-o", "-", "--format", "csv", "--table", "job").ok().out
    return list(csv.DictReader(io.StringIO(lines)))


@each(h5=("h5",), jsonl=("jsonl",))
def a_job_as_a_file_is_shown_as_the_original(world, ending):
    job, file = sampled_job(world, "tr,\"ain"), f"job.{ending}"
    world.met("export", job, "-o", file).ok()
    as_json, report = world.met("show", job, "--json").ok(), world.met("show", job).ok()
    check("memory" in report.out and "page_faults" in report.out, "a report with plots", report.out)

    def same(user, name, where):
        equal(user.met("show", name, "--json").ok().out_bytes, as_json.out_bytes, f"JSON {where}")
        equal(user.met("show", name).ok().out_bytes, report.out_bytes, f"report {where}")

    same(world.me, file, "of the file")
    imported = world.met("import", file).ok().out
    check(imported.endswith(" as imported:1\n"), imported)
    same(world.me, "imported:1", "of the imported job")
    # A second export has nothing that the first had not.
    world.met("export", "imported:1", "-o", f"again.{ending}").ok()
    check(world.read(f"again.{ending}") == world.read(file), "a file made of the imported job differs")
    equal([one["job"]["id"] for one in world.jobs()], [job], "jobs in the list")
    world.met("rm", "imported:1").ok()
    world.met("show", "imported:1").refused("no job imported:1")
    # It needs neither the store nor the machine.
    if os.getuid() == 0:
        other = world.someone()
        shutil.copyfile(world.me.path(file), other.path(file))
        os.chmod(other.path(file), 0o644)
        same(other, file, "for somebody else")


@each(h5=("h5",), jsonl=("jsonl",))
def a_job_with_earlier_runs_is_compared_with_them_in_its_file(world, ending):
    for seconds in ("0.1", "0.1", "0.1", "0.1", "1.6"):
        job = world.me.run_to_end("sleep", seconds)["job"]["id"]
    world.me.stop_daemon()
    as_json, report = world.met("show", job, "--json").ok(), world.met("show", job).ok()

    def rules_of(name):
        # The first line has the folder, which a file does not.
        return world.met("explain", name).ok().out.splitlines()[1:]

    explained = rules_of(job)
    differences = as_json.json()["answers"]["differences"]
    check([one["runs"] for one in differences if one["metric"] == "wall_seconds"] == [4], "compared with four runs", differences)
    world.met("export", job, "-o", f"job.{ending}").ok()
    world.met("import", f"job.{ending}").ok()
    for name in (f"job.{ending}", "imported:1"):
        equal(world.met("show", name, "--json").ok().out_bytes, as_json.out_bytes, f"JSON of {name}")
        equal(world.met("show", name).ok().out_bytes, report.out_bytes, f"report of {name}")
        equal(rules_of(name), explained, f"explanation of {name}")
        check(world.met("export", "--js1", name).ok().out.startswith("JS1:"), f"summary of {name}")
    world.met("export", "imported:1", "-o", f"again.{ending}").ok()
    check(world.read(f"again.{ending}") == world.read(f"job.{ending}"), "a file made of the imported job differs")


@test
def a_file_of_several_jobs_is_shown_job_by_job(world):
    for name in ("one", "two", "two"):
        world.me.run_to_end("true", options=("-n", name))
    for ending in ("jsonl", "h5"):
        world.met("export", "--since", "1h", "-o", f"all.{ending}").ok()
        world.met("show", f"all.{ending}").refused("has 3 jobs (3, 2, 1)", f"met show all.{ending} JOB")
        equal(world.met("show", f"all.{ending}", "one", "--json").ok().json()["job"]["name"], "one", "a job by name")
        world.met("show", f"all.{ending}", "two").refused("has 2 such jobs")
        # Energy may be shared out a moment after the end.
        export = lambda: world.met("export", "--since", "1h", "-o", f"all.{ending}", "--force").ok()
        shown = lambda *file: world.met("show", *file, "3", "--json").ok().out
        eventually(lambda: export() and shown(f"all.{ending}") == shown(), lambda: f"a job by id: {shown()}")
        world.met("show", f"all.{ending}", "9").refused("no job named \"9\"")
    def sums():
        used = world.met("usage", "--json").ok().json()["usage"]
        return [(one["name"], one["jobs"], one["core_hours"]) for one in used], world.met("check", "--json").ok().json()["jobs"]

    before = sums()
    equal(len(world.met("import", "all.jsonl", "all.h5").ok().out.splitlines()), 6, "imported jobs")
    equal(sums(), before, "usage and findings, of which imported jobs are no part")
    equal(len(world.met("import").ok().out.splitlines()), 6, "imported jobs that are listed")
    equal(len(world.jobs()), 3, "jobs")
    world.met("rm", "imported:2", "imported:9").refused("no job imported:9")
    world.met("show", "imported:2", "--json").ok()


@test
def nothing_is_replaced_and_nothing_left_half_written(world):
    world.me.run_to_end("true")
    with open(world.me.path("x.csv"), "w") as file:
        file.write("mine")
    world.met("export", "1", "-o", "x.csv").refused("x.csv exists", "--force")
    equal(world.read("x.csv"), b"mine", "the file")
    world.met("export", "1", "-o", "x.csv", "--force").ok()
    check(world.read("x.csv").startswith(b"cluster,job,"), "the new file")
    world.met("show", "x.csv").refused("only .jsonl and .h5 files hold whole jobs")
    world.met("show", "1", "2").refused("one job at a time", "met compare 1 2")
    world.met("export", "1", "-o", "x.txt").refused("csv, jsonl, parquet, h5")
    world.met("export", "1", "-o", "-", "--format", "h5").refused("standard output")
    world.met("export", "1", "-o", "y.h5", "--table", "job").refused("--table")
    world.met("export", "1", "-o", "y.csv", "--table", "jbo").refused("jobs, job, job_detail, event, gpu")
    world.met("export", "99", "-o", "y.csv").refused("no job 99")
    world.met("export", "1", "--since", "1h", "-o", "y.csv").refused("not both")
    world.met("export", "--name", "nosuch", "-o", "y.csv").refused("no jobs match", code=1)
    world.met("export", "1", "-o", "/dev/null", "--format", "csv", "--force").refused("not a plain file")
    world.met("export", "1", "-o", "nowhere/y.csv").refused("cannot write nowhere/y.csv")
    with open("/dev/full", "w") as full:
        world.met("export", "1", "-o", "-", stdout=full).refused("cannot write to standard output", code=1)
    left = sorted(name for name in os.listdir(world.me.work) if not name.startswith("true."))
    equal(left, ["x.csv"], "files")
    for name in ("nosuch.h5", "nosuch.jsonl"):
        world.met("show", name).refused(f"{name}: no such file")


@test
def an_export_to_a_full_disk_says_so_once(world):
    need_root()
    world.me.run_to_end("true")
    folder = world.me.path("full")
    os.mkdir(folder)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "none", folder], check=True)
    try:
        for ending in ("jsonl", "parquet", "h5"):
            refused = world.met("export", "1", "-o", f"{folder}/x.{ending}").refused(f"cannot write {folder}/x.{ending}", code=1)
            equal(refused.err.count("No space left"), 1, refused.err)
    finally:
        subprocess.run(["umount", folder], check=True)


@test
def a_hostile_file_is_refused_in_one_line(world):
    world.me.run_to_end("sh", "-c", "sleep 0.3")
    for ending in ("jsonl", "h5"):
        world.met("export", "1", "-o", f"good.{ending}").ok()
    good = world.read("good.h5")
    line = world.read("good.jsonl").splitlines()[0]
    record = json.loads(line)
    record["record"]["end_ns"] = 2**63 - 1
    files = {
        "empty.jsonl": b"", "empty.h5": b"", "cut.h5": good[:len(good) // 2], "text.h5": b"hello", "text.jsonl": b"hello\n",
        "deep.jsonl": b"[" * 1_000_000, "long.jsonl": b" " * (5 << 20), "cut.jsonl": line[:-10], "binary.jsonl": bytes(range(256)),
        "overflow.jsonl": json.dumps(record).encode(), "other.h5": b"\x89HDF\r\n\x1a\n" + b"\xff" * 4096,
    }
    for name, content in files.items():
        with open(world.me.path(name), "wb") as file:
            file.write(content)
    os.mkfifo(world.me.path("pipe.jsonl"))
    os.mkdir(world.me.path("folder.h5"))
    for name in [*files, "pipe.jsonl", "folder.h5"]:
        for command in ("show", "import"):
            world.met(command, name).refused(name)
        world.met("export", name, "-o", "out.csv").refused(name)
    # All or none.
    world.met("import", "good.jsonl", "cut.h5").refused("cut.h5")
    equal(world.met("import").ok().out, "no imported jobs; import some with: met import FILE\n", "imported jobs")
    check(not os.path.exists(world.me.path("out.csv")), "a file was written")
    # What it says about processes and files of this machine is not believed.
    record = json.loads(line)
    record["record"]["local"].update(main={"pid": os.getpid(), "start_ticks": 1}, stdout="/etc/shadow", cwd="/")
    record["record"]["state"], record["record"]["name"] = "lost", "evil\x1b[2J"
    with open(world.me.path("evil.jsonl"), "w") as file:
        file.write(json.dumps(record))
    world.met("import", "evil.jsonl").ok()
    shown = world.met("show", "imported:1").ok().out
    check("\x1b" not in shown and "Still alive" not in shown, shown)
    for command in ("logs", "cancel", "ps", "wait"):
        check(world.met(command, "imported:1").code == 2, f"met {command} takes an imported job")


@test
def a_user_exports_what_they_may_see(world):
    need_root()
    world.start_system_daemon()
    other = world.someone()
    for user, name in ((world.me, "private"), (other, "own")):
        user.run_to_end("true", options=("-n", name))
    exported = lambda user, *options: [json.loads(line)["job"]["name"] for line in
                                       user.met("export", *options, "-o", "-").ok().out.splitlines()
                                       if json.loads(line)["type"] == "job"]
    equal(sorted(exported(world.me)), ["own", "private"], "jobs that root exports")
    equal(exported(other), ["own"], "jobs that a user exports")
    other.met("export", "private", "-o", "-").refused("no job named")
    # A file is read with the caller's permissions.
    world.met("export", "private", "-o", "private.jsonl").ok()
    os.chmod(world.me.path("private.jsonl"), 0o600)
    other.met("show", world.me.path("private.jsonl")).refused("private.jsonl", "ermission denied")
    # Nobody else sees what somebody imported, and the daemon does not know it.
    world.met("import", "private.jsonl").ok()
    other.met("show", "imported:1").refused("no job imported:1")
    equal(len(world.jobs()), 2, "jobs")


@test
def jobs_of_a_server_are_exported_like_those_of_a_machine(world):
    with cluster(world, 1) as made:
        made.nodes[0].met("run", "--wait", "-n", "work", "--", *world.workload("burning", "cpu", "1.5")).ok()
        all_the_same(made)
        files = {ending: os.path.join(made.server.folder, f"job.{ending}") for ending in ("jsonl", "h5", "csv")}
        eventually(lambda: len(made.ask("export", "1@n1", "-o", "-", "--format", "csv", "--table", "job").ok().out.splitlines()) > 1,
                   "samples on the server")
        for ending, file in files.items():
            made.ask("export", "1@n1", "-o", file).ok()
            if ending != "csv":
                for how in ((), ("--json",)):
                    equal(made.server.met("show", file, *how).ok().out, made.ask("show", "1@n1", *how).ok().out, f"shown {how}")
        with open(files["csv"], newline="") as file:
            (row,) = csv.DictReader(file)
        shown = made.ask("show", "1@n1", "--json").ok().json()
        equal((row["job"], float(row["cpu_seconds"])), ("1@n1", shown["totals"]["cpu_seconds"]), "a row of the table")
        made.server.met("--server", "http://127.0.0.1:1", "import", files["h5"]).refused("works on this machine only")


#: Reads all files of the folder and prints what each program sees.
READER = """
import datetime, json
import duckdb, h5py, numpy, pandas, polars, pyarrow.parquet

def plain(value):
    if value is None or value != value:
        return None
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, datetime.datetime):
        return value.astimezone(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return value

def pandas_rows(frame):
    return [{name: plain(value.to_pydatetime() if isinstance(value, pandas.Timestamp) and value == value else value)
             for name, value in row.items()} for row in frame.to_dict("records")]

def named(rows):
    return [{name: plain(value) for name, value in row.items()} for row in rows]

def of_duckdb(query):
    found = duckdb.sql(query)
    return [dict(zip(found.columns, map(plain, row))) for row in found.fetchall()]

def times(dataset):
    return [None if numpy.isnat(time) else plain(time.astype("datetime64[us]").item().replace(tzinfo=datetime.timezone.utc))
            for time in dataset[:].view("datetime64[ns]")]

def of_hdf5(group):
    columns = {}
    for name, dataset in group.items():
        if not isinstance(dataset, h5py.Dataset) or name == "part_names":
            continue
        is_time = dataset.attrs.get("units", b"").decode().startswith("nanoseconds since")
        columns[name] = times(dataset) if is_time else \\
            [text or None for text in dataset.asstr()[:]] if dataset.dtype.kind in "OS" else [plain(value) for value in dataset[:]]
    return [dict(zip(columns, row)) for row in zip(*columns.values())]

duckdb.sql("set timezone = 'UTC'")
found = {"jobs": {}, "samples": {}, "units": {}}
for table in ("jobs", "samples"):
    file = f"{table}.parquet"
    found[table] = {
        "pandas": pandas_rows(pandas.read_parquet(file)), "polars": named(polars.read_parquet(file).to_dicts()),
        "duckdb": of_duckdb(f"from '{file}'"),
        "pandas, csv": pandas_rows(pandas.read_csv(f"{table}.csv", dtype={"job": str, "id": str, "raw_id": str})),
        "duckdb, csv": of_duckdb(f"from read_csv('{table}.csv', types={{'job': 'VARCHAR'}})"),
    }
    about = pyarrow.parquet.read_schema(file).metadata
    found["units"][table] = {name.decode()[5:]: unit.decode() for name, unit in about.items() if name.startswith(b"unit:")}
found["samples"]["duckdb, jsonl"] = of_duckdb("from read_json('all.jsonl') where type = 'sample' and \\"table\\" = 'job'")
with h5py.File("all.h5") as file:
    found["jobs"]["h5py"], found["samples"]["h5py"] = of_hdf5(file["jobs"]), of_hdf5(file["samples/job"])
    found["units"]["h5py"] = {name: dataset.attrs["units"].decode() for name, dataset in file["samples/job"].items()
                              if "units" in dataset.attrs}
print(json.dumps(found, default=str))
"""


@test
def other_programs_find_what_the_json_says(world):
    installed = subprocess.run([os.path.join(HERE, "python-packages")], capture_output=True, text=True, check=False)
    if installed.returncode != 0:
        raise Skip(installed.stdout.strip() or installed.stderr.strip())
    job = sampled_job(world)
    for ending in ("csv", "parquet"):
        world.met("export", job, "-o", f"jobs.{ending}").ok()
        world.met("export", job, "--table", "job", "-o", f"samples.{ending}").ok()
    for ending in ("jsonl", "h5"):
        world.met("export", job, "-o", f"all.{ending}").ok()
    read = subprocess.run([installed.stdout.strip(), "-c", READER], cwd=world.me.work, capture_output=True, text=True, check=False)
    equal(read.returncode, 0, f"exit code of the reader: {read.stderr}")
    found, shown = json.loads(read.stdout), world.show(job)
    for program, rows in found["jobs"].items():
        (row,) = rows
        for name, total in shown["totals"].items():
            equal(row[name], total, f"{name} in {program}")
        for name in ("name", "state", "user", "exit_code"):
            equal(row[name], shown["job"][name], f"{name} in {program}")
        if program != "pandas, csv":
            equal((row["start"], row["end"]), (shown["job"]["start"], shown["job"]["end"]), f"times in {program}")
        check("signal" in row and row["signal"] is None, f"what is not known in {program}", row)
    truth = [json.loads(line) for line in world.read("all.jsonl").splitlines()]
    truth = [line for line in truth if line["type"] == "sample" and line["table"] == "job"]
    check(len(truth) > 3, "samples", truth)
    for program, rows in found["samples"].items():
        equal(len(rows), len(truth), f"samples in {program}")
        for row, line in zip(rows, truth):
            for name in ("cpu_seconds", "memory_needed_bytes", "processes_running"):
                equal(row[name], line.get(name), f"{name} in {program}")
            if "csv" not in program and "jsonl" not in program:
                equal(row["time"], line["time"], f"time in {program}")
    for units in (found["units"]["samples"], found["units"]["jobs"], found["units"]["h5py"]):
        equal((units["cpu_seconds"], units["memory_needed_bytes"]), ("seconds", "bytes"), "units")
