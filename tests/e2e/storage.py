"""Many jobs, large records, shares of the store, damage: a list is complete, or it says what is missing."""

import glob
import json
import os
import subprocess
import time

from cluster import cluster
from harness import Skip, check, each, equal, eventually, test

try:
    import sqlite3
except ImportError:
    sqlite3 = None

#: More than the jobs of one page.
MANY = 5000


def one_job(world):
    """A store with one job that no process has open."""
    if sqlite3 is None:
        raise Skip("this python has no sqlite3")
    world.met("run", "--wait", "--", "true").ok()
    world.stop_daemon()
    world.me.import_jobs()
    equal(len(world.jobs()), 1, "jobs")
    return os.path.join(world.store_folder(), "store.db")


def add_jobs(store, numbers, user=None, start_s=None, change=lambda record: None):
    """Puts copies of a job into a store, as an earlier version wrote them: without checksums."""
    database = sqlite3.connect(store, timeout=30)
    with database:
        database.row_factory = sqlite3.Row
        row = dict(database.execute("SELECT * FROM job ORDER BY key LIMIT 1").fetchone())
        (last,) = database.execute("SELECT last FROM change").fetchone()
        for count, number in enumerate(numbers, 1):
            record = json.loads(row["detail"])
            record["key"]["id"] = str(number)
            if user is not None:
                record["user"], record["uid"] = user
            if start_s is not None:
                record["start_ns"], record["end_ns"] = start_s(number) * 10**9, (start_s(number) + 1) * 10**9
            change(record)
            new = dict(row, key=None, id=str(number), id_number=number, changed=last + count,
                       detail=json.dumps(record), user=record["user"], uid=record["uid"], start_ns=record["start_ns"],
                       end_ns=record["end_ns"], sort_ns=record["start_ns"])
            new.update({name: None for name in new if name.endswith("sum")})
            columns = ", ".join(f'"{name}"' for name in new)
            marks = ", ".join("?" * len(new))
            database.execute(f"INSERT INTO job ({columns}) VALUES ({marks})", list(new.values()))
        database.execute("UPDATE change SET last = ?", (last + len(numbers),))
    database.close()


def listed(result):
    jobs = result.ok().json()
    ids = [job["job"]["id"] for job in jobs]
    equal(len(set(ids)), len(ids), "jobs that are listed once")
    return ids


def with_daemon(world):
    """From now on a daemon answers; the job that it has."""
    job = world.run("sleep", "600")
    world.daemon_pid()
    return job


@each(from_files=(False,), from_a_daemon=(True,))
def all_jobs_that_share_a_start_are_listed(world, daemon):
    store = one_job(world)
    add_jobs(store, range(1000, 1000 + MANY))
    if daemon:
        job = with_daemon(world)
    try:
        ids = listed(world.met("list", "--json"))
        equal(len([id for id in ids if int(id) >= 1000]), MANY, "jobs of one instant")
        equal(len(listed(world.met("list", "--json", "--limit", "1700"))), 1700, "as many as asked for")
        equal(len(listed(world.met("list", "--json", "--state", "finished"))), MANY + 1, "finished jobs")
    finally:
        if daemon:
            world.met("cancel", job).ok()


@test
def all_jobs_that_share_a_start_are_listed_by_a_server(world):
    if sqlite3 is None:
        raise Skip("this python has no sqlite3")
    with cluster(world, 1) as made:
        made.nodes[0].met("run", "--wait", "--", "true").ok()
        eventually(lambda: len(made.ask("list", "--json").ok().json()) == 1, "the job is on the server")
        add_jobs(os.path.join(made.server.state, "server", "store.db"), range(1000, 1000 + MANY))
        equal(len(listed(made.ask("list", "--json"))), MANY + 1, "jobs on the server")


@test
def three_hundred_large_records_are_listed(world):
    store = one_job(world)
    add_jobs(store, range(1000, 1300), change=lambda record: record.update(command=["x" * 250_000]))
    job = with_daemon(world)
    try:
        equal(len(listed(world.met("list", "--json"))), 302, "jobs")
    finally:
        world.met("cancel", job).ok()


@test
def a_record_without_bounds_is_cut_and_says_so(world):
    store = one_job(world)
    folder = os.path.dirname(store)
    record = json.loads(sqlite3.connect(store).execute("SELECT detail FROM job").fetchone()[0])
    record["key"]["id"], record["name"] = "500", "n" * 100_000
    record["command"] = ["python"] + ["file" * 100] * 2000
    place = os.path.join(folder, "jobs", "500")
    os.mkdir(place, 0o700)
    with open(os.path.join(place, "end"), "w") as file:
        json.dump(record, file)
    job = world.show("500")["job"]
    check(len(job["name"]) <= 1024 and "…(+" in job["name"], job["name"][-100:])
    check(sum(map(len, job["command"])) <= 4096, "the command line is bounded")
    check(job["command"][0] == "python" and "…(+" in job["command"][-1], job["command"][-1])
    check(os.path.getsize(store) < 500_000, "the store does not hold what was cut")


@test
def a_user_who_fills_the_store_loses_their_own_jobs(world):
    world.configure("storage:\n  max_size: 3MB\n")
    store = one_job(world)
    # The oldest of all are the other one's.
    day_ago_s = int(time.time()) - 86_400
    add_jobs(store, range(100, 140), user=("ada", 4001), start_s=lambda number: day_ago_s + number)
    large = lambda record: record.update(command=["x" * 20_000])
    add_jobs(store, range(1000, 1400), user=("mallory", 4002), start_s=lambda number: day_ago_s + number,
             change=large)
    with open(world.path("log"), "wb") as log:
        daemon = world.spawn("daemon", "--user", stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        line = "retention: user mallory: removed "
        eventually(lambda: line in world.read("log").decode(), "what was removed is logged")
        ids = [int(id) for id in listed(world.met("list", "--json"))]
        equal(len([id for id in ids if 100 <= id < 140]), 40, "jobs of who has few")
        kept = sorted(id for id in ids if id >= 1000)
        check(0 < len(kept) < 200 and kept == list(range(kept[0], 1400)), f"the oldest went: {kept[:3]}")
        equal(world.read("log").decode().count("retention: "), 1, "lines for one user and run")
    finally:
        daemon.terminate()
        daemon.wait()


#: From which a repair would take a job whose record is damaged.
FORGET_PACKED = "DELETE FROM brief WHERE job IN (SELECT key FROM job WHERE id = ?)"


def damage(store, job):
    """Changes one byte of the record of a job, in whatever is left of it in the file; it has no packed record either."""
    database = sqlite3.connect(store, timeout=30)
    with database:
        database.execute(FORGET_PACKED, (job,))
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database.close()
    with open(store, "rb") as file:
        data = file.read()
    before = f'"id":"{job}","incarnation"'.encode()
    check(before in data, "the record is in the file")
    with open(store, "wb") as file:
        file.write(data.replace(before, before.replace(b"incarnation", b"incarnatioN")))


def five_jobs(world):
    """A store with five jobs, of which the third is damaged, and their ids."""
    store = one_job(world)
    for _ in range(4):
        world.met("time", "--quiet", "--", "true").ok()
    world.me.import_jobs()
    ids = listed(world.met("list", "--json"))
    equal(len(ids), 5, "jobs")
    damage(store, ids[2])
    return store, ids


@test
def one_damaged_record_hides_no_other_in_files(world):
    store, ids = five_jobs(world)
    with open(store, "rb") as file:
        before = file.read()
    result = world.met("list", "--json")
    equal(set(ids) - set(listed(result)), {ids[2]}, "jobs that are missing")
    check("the store is damaged" in result.err and ids[2] in result.err, f"not reported: {result.err!r}")
    check("damaged" in world.met("doctor").out, "the doctor says it, too")
    with open(store, "rb") as file:
        check(file.read() == before, "who only reads has changed the store")
    # It is repaired by who writes.
    world.met("run", "--wait", "--", "true").ok()
    eventually(lambda: glob.glob(store + ".damaged-*"), "the damaged file was moved aside")


@test
def one_damaged_record_is_repaired_by_a_daemon(world):
    store, ids = five_jobs(world)
    job = with_daemon(world)
    try:
        result = world.met("list", "--json")
        equal(set(ids) - set(listed(result)), {ids[2]}, "jobs that are missing")
        check("damaged" in result.err and f"lost: {ids[2]}" in result.err, f"not reported: {result.err!r}")
        (kept,) = [name for name in glob.glob(store + ".damaged-*") if not name.endswith(("-wal", "-shm"))]
        said = world.met("doctor").out
        check("was damaged" in said and kept in said, said)
        world.met("time", "--quiet", "--", "true").ok()
        # Who has taken note removes the old file.
        for name in glob.glob(store + ".damaged-*"):
            os.unlink(name)
        check("damaged" not in world.met("list", "--json").ok().err, "it is said no more")
    finally:
        world.met("cancel", job).ok()


@test
def a_running_job_whose_record_was_damaged_is_not_called_lost(world):
    store = one_job(world)
    job = with_daemon(world)
    try:
        database = sqlite3.connect(store, timeout=30)
        change = "UPDATE job SET detail = replace(detail, 'incarnation', 'incarnatioN') WHERE id = ?"

        def changed():
            # A transaction each time: an open one would keep the daemon from writing the job.
            with database:
                return database.execute(change, (job,)).rowcount

        eventually(changed, "the job is in the store")
        database.close()

        def repaired():
            result = world.met("list", "--json").ok()
            return result if "was damaged" in result.err else None

        result = eventually(repaired, "the daemon has repaired the store")
        states = {found["job"]["id"]: found["job"]["state"] for found in result.json()}
        equal(states.get(job), "running", "the state of the job")
        check("1 job recovered, no job is known to be lost" in result.err, result.err)
        check("no job is known to be lost" in world.met("doctor").out, "by the doctor")
    finally:
        world.met("cancel", job).ok()


@test
def doctor_finds_damage_in_a_store_that_is_in_use(world):
    store = one_job(world)
    job = with_daemon(world)
    try:
        check("is damaged" not in world.met("doctor").out, "nothing is wrong yet")
        database = sqlite3.connect(store, timeout=30)
        with database:
            database.execute(FORGET_PACKED, ("1",))
            database.execute("UPDATE job SET detail = replace(detail, 'true', 'TRUE') WHERE id = '1'")
        database.close()
        said = world.met("doctor").out
        check("store.db is damaged" in said and "record checksum mismatch" in said and "met daemon --user" in said, said)
        result = world.met("list", "--json")
        check("1" not in listed(result) and "damaged" in result.err, f"not reported: {result.err!r}")
    finally:
        world.met("cancel", job).ok()
