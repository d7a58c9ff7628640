"""Use over time: sums of jobs by user and hour, what the machine did, who may see what, by the real binary."""

import csv
import http.server
import io
import json
import os
import sqlite3
import threading

from harness import check, equal, eventually, test


def runs(world, *arguments, count=1):
    for _ in range(count):
        world.met("run", "--wait", "--out", "/dev/null", "--err", "/dev/null", "--", *arguments)


def usage(world, *arguments):
    return world.met("usage", "--since", "1d", "--json", *arguments).ok().json()


@test
def sums_equal_the_totals_of_the_jobs_with_and_without_a_daemon(world):
    runs(world, "sh", "-c", "i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done", count=3)
    expected = sum(world.show(str(number))["totals"]["cpu_seconds"] for number in (1, 2, 3))
    for moment in ("with a daemon", "without one"):
        for by in ("system", "user", "node", "command"):
            answer = usage(world, "--by", by)
            lines = answer["usage"]
            equal(sum(line["jobs"] for line in lines), 3, f"{moment}: jobs by {by}")
            total = sum(line["core_hours"] for line in lines) * 3600
            check(abs(total - expected) < 1e-6, (moment, by, total, expected))
        if moment == "with a daemon":
            world.met("daemon", "--stop")
    lines = usage(world, "--by", "command")["usage"]
    equal([line["name"] for line in lines], ["sh"], "commands")


@test
def sums_outlive_the_jobs(world):
    runs(world, "sleep", "0.1", count=2)

    def is_summed():
        # The daemon adds jobs in its own rhythm; a removed job is in the sums only if it was added before.
        database = os.path.join(world.store_folder(), "store.db")
        connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
        try:
            return connection.execute("SELECT count(*) FROM usage_job").fetchone()[0] == 2
        finally:
            connection.close()

    eventually(is_summed, "both jobs are summed")
    before = usage(world)["usage"]
    world.met("rm", "1", "2").ok()
    after = usage(world)["usage"]
    equal([line["jobs"] for line in after], [line["jobs"] for line in before], "jobs in the sums")
    equal(after[0]["core_hours"], before[0]["core_hours"], "core-hours")


@test
def a_running_job_is_in_the_sums(world):
    world.met("run", "--out", "/dev/null", "--err", "/dev/null", "--", "sleep", "1000").ok()
    equal(sum(line["jobs"] for line in usage(world)["usage"]), 1, "jobs")
    world.met("cancel", "1").ok()


def counted(user):
    """Jobs and seconds of CPU time in the sums."""
    lines = usage(user)["usage"]
    return sum(line["jobs"] for line in lines), sum(line["core_hours"] for line in lines) * 3600


@test
def a_running_job_of_a_user_is_counted_once_beside_a_system_daemon(world):
    alice = world.named_user("daemon")
    world.start_system_daemon()
    script = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; echo done > done; sleep 1000"
    job = alice.run("sh", "-c", script, options=("--out", "/dev/null", "--err", "/dev/null"))
    alice.appears("done")

    def is_equal():
        (jobs, seconds), known = counted(alice), alice.show(job)["totals"].get("cpu_seconds", 0)
        return jobs == 1 and seconds > 0.01 and abs(seconds - known) < 0.02

    eventually(is_equal, lambda: f"{counted(alice)} and not {alice.show(job)['totals']}")
    alice.met("cancel", job).ok()


@test
def a_job_that_was_handed_over_to_the_system_daemon_is_counted_once(world):
    alice = world.named_user("daemon")
    world.start_system_daemon()
    job = alice.run("sh", "-c", "echo $$ > pid; while [ ! -e go ]; do sleep 0.02; done")
    alice.appears("pid")
    eventually(world.jobs, "the daemon knows of its start")
    world.stop_system_daemon()
    open(alice.path("go"), "w").close()
    alice.met("wait", job).ok()
    # Her next job has a daemon of her own, which takes in both ends.
    alice.met("run", "--wait", "--", "sleep", "0.2").ok()
    database = os.path.join(alice.store_folder(), "store.db")

    def is_stored():
        connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
        try:
            return connection.execute("SELECT count(*) FROM job WHERE id = ?", (job,)).fetchone()[0] == 1
        finally:
            connection.close()

    eventually(lambda: os.path.exists(database) and is_stored(), "she has the end")
    world.start_system_daemon()
    states = lambda: [one["job"]["state"] for one in world.jobs() if one["job"]["id"] == job]
    eventually(lambda: states() == ["finished"], lambda: f"the end for root: {states()}")
    eventually(lambda: len(alice.jobs()) == 2, "both jobs")
    total = sum(job["totals"]["cpu_seconds"] for job in alice.jobs())
    jobs, seconds = counted(alice)
    equal(jobs, 2, "jobs")
    check(abs(seconds - total) < 1e-6, (seconds, total))


@test
def csv_json_and_the_table_say_the_same(world):
    runs(world, "true", count=2)
    text = world.met("usage", "--since", "1d", "--every", "hour-of-day", "--csv").ok().out
    lines = list(csv.DictReader(io.StringIO(text)))
    objects = usage(world, "--every", "hour-of-day")["usage"]
    equal([line["period"] for line in lines], [one["period"] for one in objects], "periods")
    equal(sum(int(line["jobs"]) for line in lines), 2, "jobs")
    check("PERIOD" in world.met("usage", "--since", "1d", "--every", "day").ok().out, "a table")
    heat = world.met("usage", "--heat").ok().out
    check("Mon" in heat and "unknown" in heat, heat)
    check(all(len(line) <= 80 for line in heat.splitlines()), heat)


@test
def time_zones_are_those_of_the_reader(world):
    runs(world, "true")
    hours = {}
    for zone in ("UTC", "Asia/Kathmandu", "America/St_Johns"):
        usage = lambda: world.met("usage", "--since", "1d", "--every", "hour-of-day", "--json", env={"TZ": zone}).ok().json()
        # A daemon may be about to add the job.
        eventually(lambda: any(line["jobs"] for line in usage()["usage"]), lambda: f"the job: {usage()}")
        out = usage()
        equal(out["time_zone"], zone, "zone")
        hours[zone] = int(next(line["period"] for line in out["usage"] if line["jobs"]).split(":")[0])
    moment = world.show("1")["job"]["start"]
    minute = int(moment[11:13]) * 60 + int(moment[14:16]) // 15 * 15
    equal(hours["UTC"], minute // 60, "hour in UTC")
    equal(hours["Asia/Kathmandu"], (minute + 345) // 60 % 24, "hour in Kathmandu")


@test
def what_cannot_be_summed_is_refused(world):
    for words, reason in (
        (("--by", "moon"), "system, user, account"),
        (("--since", "2026-01-02", "--until", "2026-01-01"), "must end after it begins"),
        (("--since", "2130-01-01"), "in the future"),
        (("--user", "no-such-user"), "no such user"),
        (("--since", "1990-01-01"), "at most ten years"),
        (("--by", "command", "--every", "hour"), "by day, week, month"),
        (("--since", "gestern"), "is not a time"),
        (("--account", ""), "--account is empty"),
        (("--by", "command", "--node", "n1"), "cannot be narrowed to a partition or node"),
        (("--by", "node", "--partition", "long"), "cannot be narrowed to a partition"),
    ):
        refused = world.met("usage", *words).expect(2)
        check(reason in refused.err and len(refused.err.splitlines()) == 1, (words, refused.err))


@test
def a_user_is_given_by_name_or_number(world):
    runs(world, "true")
    shown = world.show("1")["job"]["user"]
    for user in (shown, str(os.getuid())):
        equal(sum(line["jobs"] for line in usage(world, "--user", user)["usage"]), 1, f"jobs of {user}")


@test
def time_that_is_still_to_come_is_not_summed(world):
    runs(world, "true")
    answer = usage(world, "--until", "2130-01-01")
    check(answer["until"] < "2130", answer["until"])
    equal(sum(line["jobs"] for line in answer["usage"]), 1, "jobs")


@test
def marks_give_time_and_energy_per_step(world):
    script = """
import os, sys, time
sys.path.insert(0, os.environ["MODULE"])
import jobmet
for step in (10, 20, 30):
    jobmet.mark(step=step, loss=1 / step)
    time.sleep(0.2)
"""
    module = world.me.home
    with open(os.path.join(module, "jobmet.py"), "w") as file:
        file.write(world.met("python").ok().out)
    options = ("--wait", "--out", "/dev/null", "--err", "/dev/null", "--env", f"MODULE={module}")
    world.met("run", *options, "--", "python3", "-c", script).ok()
    work = {one["name"]: one for one in world.show()["work"]}
    equal((work["step"]["marks"], work["step"]["first"], work["step"]["last"]), (3, 10.0, 30.0), "steps")
    check(0.02 <= work["step"]["seconds_per_unit"], work["step"])
    equal((work["loss"]["is_count"], work["loss"]["seconds_per_unit"]), (False, None), "a figure of merit")
    check("per step" in world.met("show").ok().out, "a report has the time per step")
    binary = world.met_path
    shell = f'"{binary}" mark epoch=1 && echo epoch=2 >> "$MET_MARKS" && "{binary}" mark epoch=3'
    world.met("run", "--wait", "--out", "/dev/null", "--err", "/dev/null", "--", "sh", "-c", shell).ok()
    epochs = world.show()["work"]
    equal([(one["name"], one["marks"], one["last"]) for one in epochs], [("epoch", 3, 3.0)], "epochs")


@test
def a_hostile_file_of_marks_harms_nobody(world):
    attack = 'head -c 5000000 /dev/urandom > "$MET_MARKS"; rm "$MET_MARKS"; ln -s /etc/passwd "$MET_MARKS"'
    world.met("run", "--wait", "--out", "/dev/null", "--err", "/dev/null", "--", "sh", "-c", attack).ok()
    check("work" not in world.show(), "nothing is read through a link")
    attack = 'rm "$MET_MARKS"; mkfifo "$MET_MARKS"'
    world.met("run", "--wait", "--out", "/dev/null", "--err", "/dev/null", "--", "sh", "-c", attack).ok()
    check("work" not in world.show(), "nobody waits for a pipe")


@test
def who_uses_the_machine_is_shown_inside_and_outside_of_jobs(world):
    job = world.run("sh", "-c", "while :; do :; done", options=("--out", "/dev/null", "--err", "/dev/null"))

    def is_seen():
        answer = world.met("who", "--json").ok().json()
        return [one for one in answer["processes"] if one["job"] == job and one["cores"] > 0]

    busy = eventually(is_seen, "the process of the job is among the busiest")
    equal(busy[0]["command"][0], "sh", "command")
    users = world.met("who", "--json").ok().json()["users"]
    check(any(job in one["jobs"] for one in users), users)
    check("PROCS" in world.met("who").ok().out, "a table")
    world.met("cancel", job).ok()


@test
def the_end_of_a_job_is_told_to_a_program_without_a_shell(world):
    message_file = os.path.join(world.me.home, "message_file.json")
    program = os.path.join(world.me.home, "tell me; touch hacked")
    with open(program, "w") as file:
        file.write(f"#!/bin/sh\ncat > '{message_file}.new' && mv '{message_file}.new' '{message_file}'\n")
    os.chmod(program, 0o755)
    with open(world.config, "a") as file:
        file.write(f'\nnotify:\n  command: "{program}"\n')
    options = ("--out", "/dev/null", "--err", "/dev/null")
    world.met("run", "--notify=failure", "--wait", *options, "--", "true").ok()
    world.met("run", "--notify=failure", "--wait", *options, "--", "sh", "-c", "exit 3").expect(3)
    eventually(lambda: os.path.exists(message_file), "the failure is reported")
    with open(message_file) as file:
        message = json.load(file)
    equal((message["event"], message["job"]["job"]["id"]), ("job_ended", "2"), "what was reported")
    check("failed" in message["title"], message["title"])

    def outcome():
        found = world.met("doctor", "--json").ok().json()
        return [one for one in found if one["what"] == "notifications" and "command ok" in one["detail"]]

    eventually(outcome, "the doctor knows the outcome")


class Listener:
    """Takes messages over HTTP."""

    def __enter__(self):
        taken = self.taken = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                taken.append((self.path, self.headers["Content-Type"], json.loads(body)))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server.server_port}/hook"

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


def noted(world):
    """The last outcome."""
    path = os.path.join(world.me.store_folder(), "notify.log")
    return open(path).read().splitlines()[-1] if os.path.exists(path) else ""


@test
def the_end_of_a_job_is_posted_to_an_address(world):
    with Listener() as listener:
        world.configure(f"notify:\n  webhook: {listener.url}\n")
        options = ("--out", "/dev/null", "--err", "/dev/null")
        world.met("run", "--notify=end", "--wait", *options, "--", "sh", "-c", "exit 3").expect(3)
        ((path, kind, message),) = eventually(lambda: listener.taken, "the message")
        equal((path, kind), ("/hook", "application/json"), "where and what")
        equal((message["event"], message["job"]["job"]["id"]), ("job_ended", "1"), "the message")
        check("failed" in message["title"], message["title"])
        eventually(lambda: noted(world).endswith("webhook ok"), "the outcome is noted")


@test
def the_end_of_a_job_is_shown_on_the_desktop_where_there_is_one(world):
    folder = os.path.join(world.me.home, "bin")
    said = os.path.join(folder, "said")
    os.mkdir(folder, 0o755)
    with open(os.path.join(folder, "notify-send"), "w") as file:
        file.write(f"#!/bin/sh\nprintf '%s\\n' \"$@\" > '{said}.new' && mv '{said}.new' '{said}'\n")
    os.chmod(os.path.join(folder, "notify-send"), 0o755)
    path = {"PATH": folder + ":" + world.me.env["PATH"]}
    run = ("run", "--notify=end", "--wait", "--name", "train", "--out", "/dev/null", "--err", "/dev/null", "--", "true")
    without = world.met(*run, env=path).ok()
    check("nothing to notify by" in without.err, without.err)
    eventually(lambda: "nothing to notify by" in noted(world), "the outcome is noted")
    check(not os.path.exists(said), "there is no desktop")
    shown = world.met(*run, env={**path, "DISPLAY": ":0"}).ok()
    equal(shown.err, "", "there is one")
    eventually(lambda: os.path.exists(said), "the message")
    app, dashes, title, *body = open(said).read().splitlines()
    equal((app, dashes), ("--app-name=met", "--"), "arguments")
    check("train" in title and "finished" in title and body, (title, body))
    eventually(lambda: noted(world).endswith("desktop ok"), "the outcome is noted")
