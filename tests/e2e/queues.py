"""How many jobs wait, from the pages on which Slurm counts them. Debian's Slurm is older than these pages, so a small program serves
them in the form of Slurm's source; the files are in fixtures/queue-pages."""

import contextlib
import http.server
import os
import threading
import time

from harness import check, each, equal, eventually, test
from web_site import JOBS, SACCT, Site, script

TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
PAGES = os.path.join(TOP, "fixtures", "queue-pages", "slurm-25.11")

#: Jobs that have not begun: id, user, why. One of them is held, two of bob wait for others.
PENDING = ((101, "bob", "Resources"), (102, "bob", "Priority"), (103, "eve", "JobHeldUser"), (104, "ada", "Resources"))

SQUEUE = """#!/usr/bin/env python3
import re, sys, time
format = next(a for a in sys.argv if a.startswith("--Format="))[9:]
now = int(time.time())
for id, user, reason in PENDING:
    known = dict(Cluster="c", JobID=id, JobArrayID=id, UserID=5000 + id, UserName=user, Account="physics", Partition="p", State="PENDING",
                 SubmitTime=now - 300, EligibleTime=now - 300, Reason=reason, NumNodes=1, NumCPUs=1, Name="later")
    print("".join(str(known.get(name, "")).ljust(int(length))[:int(length)] + mark
                  for name, length, mark in re.findall(r"(\\w[\\w-]*):(\\d+)(~[0-9a-f]+~)", format)))
"""

RULES = """rules:
  - name: crowded
    about: user
    severity: low
    when: others_queued >= 1
    what: "{others_queued} jobs of others wait"
    how: "run less at once"
"""


class Controller:
    """Answers as a slurmctld with metrics/openmetrics does, or in another way."""

    def __init__(self):
        controller, self.mode, self.asked = self, "good", []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                controller.asked.append((self.path, dict(self.headers)))
                with contextlib.suppress(OSError):
                    getattr(controller, controller.mode)(self)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.released = threading.Event()

    def __enter__(self):
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.released.set()
        self.server.shutdown()
        self.server.server_close()

    @staticmethod
    def say(request, body, status=200, kind="text/plain", **headers):
        request.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **headers}.items():
            request.send_header(name, value)
        request.end_headers()
        request.wfile.write(body)

    def good(self, request):
        name = request.path.rsplit("/", 1)[1]
        with open(os.path.join(PAGES, f"{name}.txt"), "rb") as file:
            self.say(request, file.read().replace(b'"main"', b'"p"'))

    def missing(self, request):
        self.say(request, b"Failed: no such path\n", 404)

    def garbage(self, request):
        self.say(request, bytes(range(256)) * 20)

    def html(self, request):
        self.say(request, b"<html>a portal</html>", kind="text/html")

    def empty(self, request):
        self.say(request, b"")

    def elsewhere(self, request):
        self.say(request, b"", 303, Location=f"{self.url}/followed")

    def locked(self, request):
        self.say(request, b"Failed: no\n", 403)

    def huge(self, request):
        request.send_response(200)
        request.send_header("Content-Type", "text/plain")
        request.end_headers()
        while not self.released.is_set():
            request.wfile.write(b'slurm_partition_jobs_pending{partition="p"} 1\n' * 10_000)

    def hang(self, _):
        self.released.wait()


class Cluster:
    """A server that asks Slurm and reads its pages."""

    def __init__(self, world, controller, timeout="30s", pending=PENDING):
        self.world, self.controller = world, controller
        self.site = Site(world)
        self.site.listed += len(pending)
        begun = SACCT.replace('State="COMPLETED"', 'State="RUNNING"').replace('End="%d" % (BEGIN + 30)', 'End="Unknown"')
        check(begun != SACCT, "jobs that run")
        script(os.path.join(self.site.programs, "sacct"), begun.replace("JOBS", repr(JOBS), 1).replace("BEGIN", str(int(time.time()) - 60)))
        script(os.path.join(self.site.programs, "squeue"), SQUEUE.replace("PENDING", repr(pending), 1))
        self.site.text = self.site.text.replace("interval: 5s", f'interval: 1s, timeout: {timeout}, slurm_metrics: "{controller.url}"')
        self.rules = self.site.path("rules.yaml", RULES)

    def __enter__(self):
        self.site.__enter__()
        own = os.path.join(self.world.me.home, ".config", "met", "token")
        os.makedirs(os.path.dirname(own), exist_ok=True)
        with open(own, "w") as file:
            file.write(self.site.operator)
        os.chmod(own, 0o600)
        return self

    def __exit__(self, *error):
        self.site.__exit__(*error)

    def met(self, *words):
        return self.world.me.met("--server", f"http://127.0.0.1:{self.site.port}", *words)

    def others_queued(self, user):
        """How many jobs of others wait, and the quality of that."""
        explained = self.met("explain", "--user", user, "crowded", "--rules", self.rules, "--json").ok().json()
        (why,) = [one for one in explained["weeks"][0]["rules"][0]["why"] if one["name"] == "others_queued"]
        return why["value"], why["quality"]

    def comes_to(self, user, expected):
        eventually(lambda: self.others_queued(user) == expected, lambda: f"{user}: {self.others_queued(user)}, not {expected}")

    def log(self):
        return self.world.log("server.log")


@test
def jobs_that_wait_are_counted_by_slurms_own_page(world):
    with Controller() as controller, Cluster(world, controller) as cluster:
        # Why they wait is in squeue: of others two of bob's and one of ada's wait for resources or their turn.
        cluster.comes_to("ada", (2, "measured"))
        cluster.comes_to("bob", (1, "measured"))
        equal(cluster.others_queued("eve"), (3, "measured"), "eve's is held")
        found = cluster.met("check", "--rules", cluster.rules, "--json").ok().json()["findings"]
        equal(sorted(one["subject"] for one in found), ["ada", "bob", "eve"], "who is notified")
        paths = {path for path, _ in controller.asked}
        equal(paths, {"/metrics/partitions", "/metrics/jobs-users-accts"}, "what is read")
        check(all("Authorization" not in headers for _, headers in controller.asked), "no secret is sent")
        words = world.me.met("doctor").out
        check(f"slurm: queue of 4 partitions read from {controller.url}" in words, words)


@each(
    missing=("missing", "404 Not Found"),
    garbage=("garbage", "could not be read"),
    html=("html", "text/html"),
    empty=("empty", "is empty"),
    elsewhere=("elsewhere", "redirects are not followed"),
    locked=("locked", "require authentication"),
)
def a_page_that_is_wrong_is_not_believed_and_squeue_is(world, mode, why):
    with Controller() as controller, Cluster(world, controller, pending=()) as cluster:
        # Of the 27 that are pending 20 are held, and 3 of the others may be ada's own. Why they wait is not known.
        cluster.comes_to("ada", (4, "estimated"))
        controller.mode = mode
        cluster.comes_to("ada", (0, "measured"))
        words = world.me.met("doctor").out
        check(f"cannot read the queue from {controller.url}" in words and why in words, words)
        check(not any(path == "/followed" for path, _ in controller.asked), "a redirect was followed")
        equal(cluster.log().count("cannot read the queue"), 1, "lines in the log while it fails")
        controller.mode = "good"
        cluster.comes_to("ada", (4, "estimated"))
        equal(cluster.log().count("the queue is read from"), 1, "lines in the log when it is back")


@test
def a_page_without_end_and_one_that_never_comes_delay_nothing(world):
    with Controller() as controller, Cluster(world, controller, timeout="5s") as cluster:
        controller.mode = "huge"
        cluster.comes_to("ada", (2, "measured"))
        # On a slow machine its time is over first.
        limits = ("longer than 32 MiB", "no answer in time")
        eventually(lambda: any(limit in world.me.met("doctor").out for limit in limits), lambda: world.me.met("doctor").out)
    with Controller() as controller:
        controller.mode = "hang"
        with Cluster(world, controller, timeout="5s") as cluster:
            eventually(lambda: "no answer in time" in world.me.met("doctor").out, lambda: world.me.met("doctor").out)
            equal(cluster.others_queued("ada"), (2, "measured"), "others that wait")
