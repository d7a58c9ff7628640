"""A server with jobs of several users and accounts, and browsers that visit it. Not a test: `logins` and `hostile_web` use it."""

import base64
import contextlib
import http.client
import html
import json
import os
import re
import signal
import socket
import time
import urllib.parse

from harness import check, equal, eventually
from prometheus import free_port

#: Jobs as Slurm would print them: id, user, account, name.
JOBS = ((1, "ada", "physics", "collide"), (2, "bob", "physics", "detect"), (3, "eve", "chemistry", "titrate"), (4, "ada", "private", "thesis"))

SACCT = """#!/usr/bin/env python3
import sys, time
fields = next(a for a in sys.argv if a.startswith("--format="))[9:].split(",")
mark = next(a for a in sys.argv if a.startswith("--delimiter="))[12:]
print(mark.join(fields))
now = int(time.time())
for id, user, account, name in JOBS:
    known = dict(Cluster="c", JobIDRaw=str(id), JobID=str(id), UID=str(5000 + id), User=user, Account=account, Partition="p", State="COMPLETED",
                 ExitCode="0:0", Submit="%d" % (now - 120), Eligible="%d" % (now - 120), Start="%d" % BEGIN, End="%d" % (BEGIN + 30), NNodes="1",
                 NodeList="n1", JobName=name, ReqCPUS="1", AllocTRES="cpu=1,mem=1M,node=1")
    print(mark.join(known.get(field, "") for field in fields))
"""


def script(path, text):
    with open(path, "w") as file:
        file.write(text)
    os.chmod(path, 0o755)


class Site:
    """A server that asks a scheduler, which has JOBS."""

    def __init__(self, world, http="", login="", server="", members="", jobs=JOBS):
        self.world, self.port, self.process = world, free_port(), None
        self.listed = len(JOBS)
        self.programs = os.path.join(world.root, "programs")
        os.makedirs(self.programs, exist_ok=True)
        script(os.path.join(self.programs, "sacct"), SACCT.replace("JOBS", repr(jobs), 1).replace("BEGIN", str(int(time.time()) - 60)))
        script(os.path.join(self.programs, "squeue"), "#!/bin/sh\n")
        script(os.path.join(self.programs, "sacctmgr"), f"#!/bin/sh\nprintf '{members}'\n")
        self.text = (f"schedulers: {{slurm: true, oar: false, pbs: false, lsf: false, path: {self.programs}, interval: 5s}}\n"
                     f"http:\n  listen: 127.0.0.1:{self.port}\n{http}"
                     + (f"login:\n{login}" if login else "") + (f"server:\n{server}" if server else ""))

    def path(self, name, text, mode=0o600):
        path = os.path.join(self.world.root, name)
        with open(path, "w") as file:
            file.write(text)
        os.chmod(path, mode)
        return path

    def __enter__(self):
        self.start()
        return self

    def start(self):
        self.world.configure(self.text)
        log = open(os.path.join(self.world.root, "server.log"), "ab")
        self.process = self.world.me.spawn("server", stdout=log, stderr=log)
        log.close()

        def answers():
            check(self.process.poll() is None, "the server ended:", self.world.log("server.log"))
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port), 2).close()
                return True

        eventually(answers, "the server listens")
        self.operator = self.enroll("chief", "--operator")
        # Every round of the scheduler may bring some.
        eventually(lambda: len(Browser(self).names(self.operator)) == self.listed, "the jobs are there")
        return self

    def refuses(self, *words):
        self.world.configure(self.text)
        self.world.me.met("server").refused(*words)

    def enroll(self, name, kind="--user"):
        return self.world.me.met("server", "enroll", kind, name).ok().out.strip()

    def __exit__(self, *_):
        if self.process:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(60)


class Answer:
    def __init__(self, response, text):
        self.status, self.headers, self.text = response.status, response.headers, text

    def json(self):
        equal(self.status, 200, f"status, of {self.text}")
        return json.loads(self.text)

    @property
    def location(self):
        return self.headers.get("Location")

    def field(self, name):
        """The value of a hidden field."""
        found = re.search(f'name="{name}" value="([^"]*)"', self.text)
        check(found, f"a field {name} in", self.text)
        return html.unescape(found.group(1))


class Browser:
    """Keeps cookies, follows nothing by itself."""

    def __init__(self, site):
        self.site, self.cookies = site, {}

    def send(self, method, path, headers=None, body=None, cookies=True):
        connection, headers = http.client.HTTPConnection("127.0.0.1", self.site.port, timeout=60), dict(headers or {})
        if cookies and self.cookies:
            headers.setdefault("Cookie", "; ".join(f"{name}={value}" for name, value in self.cookies.items()))
        connection.request(method, path, body=body, headers=headers)
        with connection.getresponse() as response:
            answer = Answer(response, response.read().decode(errors="replace"))
        connection.close()
        for cookie in answer.headers.get_all("Set-Cookie") or []:
            name, value = cookie.split(";")[0].split("=", 1)
            self.cookies[name] = value
            if not value:
                del self.cookies[name]
        return answer

    def get(self, path, token=None, login=None, **headers):
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        if login:
            headers["Authorization"] = "Basic " + base64.b64encode(":".join(login).encode()).decode()
        return self.send("GET", path, headers)

    def post(self, path, fields=None, **headers):
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        headers.setdefault("Content-Type", "application/x-www-form-urlencoded")
        return self.send("POST", path, headers, urllib.parse.urlencode(fields or {}))

    def log_in(self, next="/jobs", **fields):
        answer = self.post("/login", {**fields, "next": next})
        equal((answer.status, answer.location), (303, next), f"status and place, of {answer.text}")
        return self

    def names(self, token=None, path="/api/v1/jobs", **more):
        """Names of the jobs that are seen."""
        return sorted(job["job"]["name"] for job in self.get(path, token=token, **more).json()["jobs"])
