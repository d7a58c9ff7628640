"""The pages in a real browser: each of them, in light and dark, wide and narrow, without its script and by keyboard."""

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import urllib.request
from http.cookiejar import CookieJar

from answers import long_jobs
from cluster import cluster
from discovery import Manager
from harness import Skip, check, each, equal, eventually, test

HERE = os.path.dirname(os.path.abspath(__file__))
#: What the names of jobs and the texts in them may be.
HOSTILE = [
    "<script>alert(1)</script>", "\"><img src=x onerror=alert(1)>", "a\x1b[2Jb", "x\u202egpj.exe", "javascript:alert(1)", "</title></script><svg/onload=alert(1)>",
]
#: Two in every run; all of them with MET_E2E_BROWSER=all.
VARIANTS = {
    "light_1440": ("light", 1440, True),
    "dark_390_without_script": ("dark", 390, False),
}
if os.environ.get("MET_E2E_BROWSER") == "all":
    VARIANTS = {
        f"{scheme}_{width}{'' if script else '_without_script'}": (scheme, width, script)
        for scheme in ("light", "dark") for width in (1440, 390) for script in (True, False)
    }
#: A browser that starts on a busy machine.
BROWSER_S = 150


def packages():
    """The python that drives a browser, and axe-core."""
    installed = subprocess.run([os.path.join(HERE, "browser-packages")], capture_output=True, text=True, check=False)
    if installed.returncode != 0:
        raise Skip(installed.stdout.strip() or installed.stderr.strip())
    python, axe = installed.stdout.split("\n")[:2]
    if not axe:
        print("skipped: axe-core, which npm installs")
    return python, axe


class Browser:
    """One visit, by a process of its own."""

    def __init__(self, world, task, scheme="light", width=1440, script=True, **more):
        python, axe = packages()
        asked = {"task": task, "scheme": scheme, "width": width, "script": script, "axe": axe, "folder": os.environ.get("MET_E2E_SHOTS"), **more}
        self.process = subprocess.Popen(
            [python, os.path.join(HERE, "browsing", "visit.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env={**os.environ, "HOME": world.root, "TMPDIR": world.root})
        self.process.stdin.write(json.dumps(asked))
        self.process.stdin.close()

    def ready(self):
        equal(self.process.stdout.readline().strip(), "ready", "the first line of the visit")
        return self

    def found(self):
        out, err = self.process.stdout.read(), self.process.stderr.read()
        equal(self.process.wait(timeout=BROWSER_S), 0, f"exit code of the visit: {err[-2000:]}")
        return json.loads(out.strip().split("\n")[-1])


class Web:
    """`met web` of a user, until the end of the test."""

    def __init__(self, world):
        self.world = world
        self.process = world.me.spawn("web", "--no-open", "--listen", "127.0.0.1:0")
        self.link = self.process.stdout.readline()
        self.link = self.link.decode().strip() if isinstance(self.link, bytes) else self.link.strip()
        check(self.link.startswith("http://127.0.0.1:"), "a link", self.link)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()

    def new_link(self, *arguments):
        """Another one of the same listener."""
        return self.world.met("web", "--no-open", *arguments).ok().out.strip()


def jobs(world):
    """Jobs of several kinds, one of them with samples."""
    world.configure("sampling:\n  interval: 100ms\nstorage:\n  node_series: true\n")
    sampled = world.me.run(*world.workload("burn_until_terminated", world.me.path("used"), world.me.path("ready")), options=("--name", "sampled"))
    for name in HOSTILE:
        world.me.run_to_end("true", name, options=("--name", name))
    world.met("run", "--wait", "--name", "fails", "--", "false").expect(1)
    eventually(lambda: world.show(sampled)["totals"].get("cpu_seconds", 0) > 1.0, "a second of CPU time")
    return sampled


def well(found, what):
    equal(found["problems"], [], f"console, policy and dialogs, {what}")
    for path, page in found["pages"].items():
        where = f"of {path or 'now'}, {what}"
        check(page["overflow"] <= 0, f"nothing is wider than the screen {where}", page["overflow"])
        equal((page["main"], page["h1"]), (1, 1), f"main and h1 {where}")
        equal(page["barriers"], [], f"barriers {where}")
        check(page["named"], f"charts have a description {where}")


@each(**VARIANTS)
def every_page_works(world, scheme, width, script):
    sampled = jobs(world)
    node = os.uname().nodename
    paths = ["", "jobs", "jobs?columns=job,name,user,state,command,nodes,exit_code", f"jobs/{sampled}", "jobs?since=never", "nodes", f"nodes/{node}", "jobs/@last",
             "usage", "usage?by=command&every=day", "compare?jobs=fails", f"compare?jobs={sampled},@last",
             "who", "findings", "findings?since=never", f"jobs/{sampled}/scale?at=2,4"]
    world.met("note", "@last", "first try with small batches").ok()
    with Web(world) as web:
        refused = ["jobs?since=never", "findings?since=never"]
        found = Browser(world, "look", scheme, width, script, link=web.link, paths=paths, refused=refused).found()
    well(found, f"{scheme} {width}")
    pages = found["pages"]
    check("cores busy" in pages["who"]["text"] and sampled in pages["who"]["text"], "who uses the machine", pages["who"]["text"])
    check("findings in" in pages["findings"]["text"], "findings", pages["findings"]["text"])
    check("From this run alone" in pages[f"jobs/{sampled}/scale?at=2,4"]["text"], "scaling", pages[f"jobs/{sampled}/scale?at=2,4"]["text"])
    one = pages[f"jobs/{sampled}"]
    check(one["figures"] >= 2, "charts of the job", one["figures"])
    equal(one["canvas" if script else "svg"], one["figures"], "charts that are drawn")
    check("running" in one["text"] and "sampled" in one["text"], "the job", one["text"])
    check("since: " in pages["jobs?since=never"]["text"], "what is wrong with the filter", pages["jobs?since=never"]["text"])
    check("first try with small batches" in pages["jobs/@last"]["text"], "the note of a job", pages["jobs/@last"]["text"])
    check("failed after" in pages["jobs/@last"]["text"], "the verdict of a job", pages["jobs/@last"]["text"])
    for path in ("usage", "usage?by=command&every=day"):
        check("Core-hours used" in pages[path]["text"] and "By hour of the week" in pages[path]["text"], path, pages[path]["text"])
    compared = pages[f"compare?jobs={sampled},@last"]
    check("CPU time" in compared["text"] and "Since their start" in compared["text"], "two jobs", compared["text"])
    check(compared["svg"] >= 2, "charts of two jobs, also with a script", compared)
    check("has no earlier run" in pages["compare?jobs=fails"]["text"], "one job alone", pages["compare?jobs=fails"]["text"])
    own = web.link.split("/enter/")[0]
    foreign = [url for url in found["requests"] if not url.startswith(own)]
    equal(foreign, [], "requests to elsewhere")
    world.met("cancel", str(sampled)).ok()


@each(with_script=(True,), without_script=(False,))
def a_finding_is_on_the_page_of_its_job_and_among_all(world, script):
    packages()
    with long_jobs(world) as site:
        paths = ["findings", "jobs/slurm:5", "jobs/slurm:4", "findings?user=nobody"]
        link = f"http://127.0.0.1:{site.port}/"
        found = Browser(world, "look", script=script, link=link, token=site.operator, paths=paths).found()
    well(found, "with findings")
    what, how = "and the longest of its last runs took 10h00m", "a shorter limit starts sooner"
    for path in ("findings", "jobs/slurm:5"):
        text = found["pages"][path]["text"]
        check(what in text and how in text, f"the finding on {path}", text)
    check("slurm:5" in found["pages"]["findings"]["text"], "the job of a finding", found["pages"]["findings"]["text"])
    check(how not in found["pages"]["jobs/slurm:4"]["text"], "a job with a limit that fits", found["pages"]["jobs/slurm:4"]["text"])
    check("no job of a user named" in found["pages"]["findings?user=nobody"]["text"], "of another user", found["pages"])


@test
def hostile_names_are_shown_as_text(world):
    sampled = jobs(world)
    with Web(world) as web:
        found = Browser(world, "look", link=web.link, paths=["jobs"] + [f"jobs/{int(sampled) + 1 + index}" for index in range(len(HOSTILE))]).found()
    well(found, "hostile names")
    shown = found["pages"]["jobs"]["text"]
    for name in HOSTILE:
        escaped = name.replace("\x1b", "\\x1b").replace("\u202e", "\\u202e")
        check(escaped in shown, f"{escaped} is listed", shown)
    world.met("cancel", str(sampled)).ok()


@test
def a_job_is_opened_by_keyboard(world):
    sampled = jobs(world)
    with Web(world) as web:
        found = Browser(world, "keyboard", link=web.link).found()
    equal(found["problems"], [], "console and policy")
    equal(found["steps"][0]["text"], "Skip to content", "the first step")
    unseen = [step for step in found["steps"] if not step["seen"]]
    equal(unseen, [], "steps whose focus is not seen")
    check("·" in found["title"], "the page of a job", found["title"])
    world.met("cancel", str(sampled)).ok()


@test
def a_new_job_appears_without_loading_the_page_again(world):
    sampled = jobs(world)
    with Web(world) as web:
        visit = Browser(world, "live", link=web.link, text="appears-later", patience_s=BROWSER_S).ready()
        later = world.me.run("sleep", "1000", options=("--name", "appears-later"))
        found = visit.found()
        equal((found["problems"], found["same"]), ([], "yes"), "problems, and the same page")
        world.met("cancel", str(later)).ok()
    world.met("cancel", str(sampled)).ok()


@test
def a_page_that_is_scrolled_does_not_jump_when_jobs_start(world):
    sampled = jobs(world)
    for number in range(30):
        world.me.run_to_end("true", options=("--name", f"before-{number}"))
    with Web(world) as web:
        # Rows are added above the one that is held; the browser keeps what is seen in its place.
        visit = Browser(world, "steady", link=web.link, path="jobs", held="before-3", text="appears-above", patience_s=BROWSER_S).ready()
        later = world.me.run("sleep", "1000", options=("--name", "appears-above"))
        found = visit.found()
        world.met("cancel", str(later)).ok()
    equal(found["problems"], [], "console and policy")
    before, after = found["before"], found["after"]
    equal((after["same"], after["focused"]), ("yes", "before-3"), "the same page, and what has the focus")
    equal(after["top"], before["top"], f"where the row is on the screen, scrolled from {before['scroll']} to {after['scroll']}")
    world.met("cancel", str(sampled)).ok()


@each(with_script=(True,), without_script=(False,))
def the_page_of_a_job_on_two_nodes_shows_the_cpus_of_each(world, script):
    packages()
    manager = Manager(world)
    with cluster(world, 2) as made:
        try:
            for node in made.nodes:
                below = f"{manager.below}/{node.name}"
                manager.make(f"{below}/slurm_{node.name}")
                node.met("daemon", "--stop").ok()
                node.process.wait()
                node.configure(f"sampling:\n  interval: 200ms\nforward:\n  interval: 1s\njobs:\n  discover: true\n  below: {below}\n")
                node.serve("daemon")
                eventually(lambda: node.met("daemon", "--status").code == 0, lambda: f"{node.name} serves: {node.log()}")
                task = f"{below}/slurm_{node.name}/uid_1000/job_7/step_0/task_0"
                manager.make(task)
                manager.start(task, *world.workload("burn_until_terminated", node.work + "/used", node.work + "/ready"))
            cpu_s = lambda: made.ask("show", "slurm:7", "--json")
            eventually(lambda: cpu_s().code == 0 and len(cpu_s().json()["job"]["nodes"]) == 2 and cpu_s().json()["totals"].get("cpu_seconds", 0) > 4.0, "seconds of both")
            found = Browser(world, "by_node", script=script, link=f"http://127.0.0.1:{made.forwarded}/", token=made.token, path="jobs/slurm:7").found()
        finally:
            manager.close()
    well(found, "of two nodes")
    page = found["pages"]["job"]
    check("CPU cores by node" in page["spoken"], "what the chart is", page["spoken"])
    equal(sorted(page["legend"])[:2], ["n1", "n2"], "a line for each node")
    equal(page["drawn"], 1 if script else 2, "what is drawn")


@test
def a_chart_is_zoomed_and_back_leads_to_the_whole(world):
    sampled = jobs(world)
    # A second of it is the least that can be chosen.
    eventually(lambda: world.show(sampled)["totals"].get("cpu_seconds", 0) > 5.0, "seconds of samples")
    world.met("cancel", str(sampled)).ok()
    world.me.wait_for_state(sampled, "cancelled", "failed", "finished")
    with Web(world) as web:
        found = Browser(world, "zoom", link=web.new_link(str(sampled))).found()
    equal(found["problems"], [], "console and policy")
    check("from=" in found["zoomed"] and "to=" in found["zoomed"], "the time in the address", found["zoomed"])
    equal(found["after"], found["before"], "the address after going back")
    check(found["reading"], "values at the cursor")


@test
def the_page_of_a_job_is_one_file(world):
    sampled = jobs(world)
    world.met("show", str(sampled), "--html", "job.html").ok()
    file = os.path.join(world.me.work, "job.html")
    world.met("cancel", str(sampled)).ok()
    found = Browser(world, "alone", link=f"file://{file}").found()
    well(found, "as a file")
    page = found["pages"]["file"]
    check(page["canvas"] >= 2 and page["canvas"] == page["figures"], "charts", page["canvas"], page["figures"])
    equal([url for url in found["requests"] if not url.startswith(("file://", "data:"))], [], "requests")
    world.met("show", str(sampled), "--html", "/nonexistent/job.html").refused("--html", "/nonexistent/job.html")


@test
def a_link_works_once_and_a_second_met_web_gives_another(world):
    world.me.run_to_end("true", options=("--name", "train"))
    with Web(world) as web:
        curl = lambda link: world.me.finish(world.me.start("python3", "-c", FETCH, link))
        equal(curl(web.link).out.strip(), "200", "the first time")
        equal(curl(web.link).out.strip(), "403", "the second time")
        other = web.new_link()
        equal(other.split("/enter/")[0], web.link.split("/enter/")[0], "the same listener")
        equal(curl(other).out.strip(), "200", "another link")
        shown = world.met("show", "train", "--web").ok().out.strip()
        check(shown.startswith(web.link.split("/enter/")[0]) and "next=jobs%2F" in shown, "a link to the job", shown)
        equal(curl(shown).out.strip(), "200", "a link to the job")
    world.met("web", "--listen", "0.0.0.0:0").refused("loopback")
    world.met("web", "nosuch").refused("nosuch")
    world.met("--server", "foo", "web", "--no-open").refused('"foo" is not a server address')


@test
def a_second_listener_does_not_hide_the_first(world):
    world.me.run_to_end("true", options=("--name", "train"))
    of = lambda link: link.split("/enter/")[0]
    with Web(world) as first:
        with Web(world) as second:
            check(of(first.link) != of(second.link), "two listeners", first.link, second.link)
            equal(of(first.new_link()), of(first.link), "the first one is found beside the second")
        equal(of(first.new_link()), of(first.link), "the first one is found after the second")
    with Web(world) as killed:
        killed.process.kill()
        killed.process.wait()
        with Web(world) as last:
            equal(of(last.new_link()), of(last.link), "one that was killed is passed over")


@test
def a_thousand_idle_connections_of_others_leave_the_owners_page(world):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4096)), hard))
    world.me.run_to_end("true", options=("--name", "train"))
    with Web(world) as web, contextlib.ExitStack() as stack:
        host, port = web.link.split("/")[2].split(":")
        own = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        equal(own.open(web.link, timeout=60).status, 200, "status")
        for number in range(1000):
            client = stack.enter_context(socket.create_connection((host, int(port)), 60))
            with contextlib.suppress(OSError):
                # Some say nothing, some begin to, some ask for what is not there.
                client.sendall((b"", b"GET / HTTP/1.1\r\nHo", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")[number % 3])
        base = web.link.split("enter/")[0]
        for _ in range(3):
            with own.open(base + "jobs", timeout=60) as page:
                check("train" in page.read().decode(), "the owner's page")
        check(web.new_link().startswith(base), "a link for the owner's next browser")


@test
def a_link_to_a_job_starts_a_listener_that_holds_no_pipe_of_its_caller(world):
    world.me.run_to_end("true", options=("--name", "train"))
    # Its output is read to the end: one that the listener held would keep this waiting.
    link = world.met("show", "train", "--web").ok().out.strip()
    listeners = in_background(world.me)
    try:
        equal(len(listeners), 1, "listeners")
        equal(world.me.finish(world.me.start("python3", "-c", FETCH, link)).out.strip(), "200", "the link")
    finally:
        for pid in listeners:
            os.kill(pid, signal.SIGTERM)
        eventually(lambda: not in_background(world.me), "the end of the listener")


def in_background(user):
    """The processes of `met web --background` that a user has."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as line, open(f"/proc/{pid}/environ", "rb") as environment:
                is_ours = f"XDG_RUNTIME_DIR={user.runtime}".encode() in environment.read().split(b"\0")
                if b"--background" in line.read().split(b"\0") and is_ours:
                    found.append(int(pid))
        except OSError:
            continue
    return found


#: Follows a link with the cookie that it sets.
FETCH = """
import sys, urllib.error, urllib.request
from http.cookiejar import CookieJar
opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
try:
    print(opener.open(sys.argv[1], timeout=60).status)
except urllib.error.HTTPError as error:
    print(error.code)
"""
