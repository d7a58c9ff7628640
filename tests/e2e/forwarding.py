"""What comes between a node and its server: slow senders, large batches, wrong names, two nodes of one name, full disks."""

import contextlib
import datetime
import gzip
import http.client
import json
import os
import re
import select
import shutil
import signal
import socket
import time

from api import Asked
from gpus import played
from cluster import Machine, all_the_same, cluster, fill, small_disk
from harness import check, equal, eventually, test
from kernel import replace_file


def token_of(node):
    with open(os.path.join(node.state, "forward", "token")) as file:
        return file.read().strip()


def spool_of(node, ending):
    folder = os.path.join(node.state, "forward", "spool")
    return sorted(os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(ending))


def restart(node, *arguments, input=None):
    node.met("daemon", "--stop").ok()
    node.process.wait()
    node.serve("daemon", *arguments, input=input)
    eventually(lambda: node.met("daemon", "--status").code == 0, lambda: f"{node.name} serves: {node.log()}")


def status(node):
    return node.met("daemon", "--status").out


def problem_of(made, name):
    found = {node["name"]: node.get("problem") for node in made.ask("nodes", "--json").ok().json()}
    return found[name]


def varint(number):
    coded = b""
    while number >= 0x80:
        coded, number = coded + bytes([number & 0x7F | 0x80]), number >> 7
    return coded + bytes([number])


@test
def a_node_that_sends_slowly_holds_up_no_other(world):
    with cluster(world, 2) as made, contextlib.ExitStack() as open_ones:
        slow, other = made.nodes
        slow.met("daemon", "--stop").ok()
        slow.process.wait()

        def begin():
            connection = socket.create_connection(("127.0.0.1", made.forwarded), 30)
            open_ones.callback(connection.close)
            connection.sendall(b"POST /api/v1/batches HTTP/1.1\r\nHost: met\r\nContent-Length: 600000\r\n"
                               b"Authorization: Bearer " + token_of(slow).encode() + b"\r\n\r\n" + b"\x1f")
            return connection

        # Whichever come first are read on, and what is too many of one node is answered at once.
        begun = [begin() for _ in range(8)]
        answered = eventually(lambda: (found := select.select(begun, [], [], 1)[0]) and len(found) >= 4 and found, "4 are too many")
        said = [connection.recv(4096) for connection in answered]
        equal(len([one for one in said if b" 429 " in one and b"too many batches at once" in one]), 4, f"refused: {said}")
        slow_ones = [connection for connection in begun if connection not in answered]
        for _ in range(5):
            other.met("run", "--wait", "--", "true").ok()
            for connection in slow_ones:
                # The server gives up on it after a while.
                with contextlib.suppress(OSError):
                    connection.sendall(b"\x8b")
        eventually(lambda: len([job for job in made.jobs().values() if job["job"]["nodes"] == [other.name]]) == 5,
                   lambda: f"the other one's jobs arrive: {status(other)}")
        check("429" not in other.log(), "the other one is sent away:", other.log())


@test
def a_server_with_nothing_to_do_takes_a_batch_of_any_size(world):
    with cluster(world, 1) as made:
        node = made.nodes[0]
        node.met("run", "--wait", "--", "true").ok()
        all_the_same(made)
        eventually(made.settled, "nothing waits")
        with open(spool_of(node, ".sent")[0], "rb") as file:
            plain = gzip.decompress(file.read())
        for size in (600 << 10, 700 << 10, 2 << 20, 7 << 20):
            frame = b"?" + varint(size) + os.urandom(size)
            answer = made.server.post("/api/v1/batches", gzip.compress(plain + frame, 1), token_of(node))
            equal(answer.status, 200, f"a batch with {size} bytes more: {answer.read()}")
        # What can never be taken is refused for good, in words that no proxy has.
        announced = http.client.HTTPConnection("127.0.0.1", made.forwarded, timeout=30)
        announced.putrequest("POST", "/api/v1/batches")
        announced.putheader("Authorization", f"Bearer {token_of(node)}")
        announced.putheader("Content-Length", str(9 << 20))
        announced.endheaders()
        answer = announced.getresponse()
        equal(answer.status, 413, "more than 8 MiB")
        check(json.load(answer)["refused"], "for good")


@test
def a_node_whose_name_was_wrong_sends_everything_under_the_right_one(world):
    with cluster(world, 1) as made:
        node = made.nodes[0]
        node.met("run", "--wait", "--", "true").ok()
        all_the_same(made)
        token = os.path.join(node.folder, "token")
        shutil.copyfile(os.path.join(node.state, "forward", "token"), token)
        os.chmod(token, 0o600)

        def named(name):
            node.configure("sampling:\n  interval: 200ms\njobs:\n  discover: false\nforward:\n  interval: 1s\n  plain: yes\n"
                           f"  url: {made.url}\n  token_file: {token}\n  node: {name}\n")
            restart(node)

        named("nn1")
        for _ in range(2):
            node.met("run", "--wait", "--", "true").ok()
        eventually(lambda: "403" in status(node) and "node nn1" in status(node), lambda: f"the status reports it: {status(node)}")
        check("node nn1" in node.met("doctor").out, "by the doctor, too")
        named("n1")
        node.met("run", "--wait", "--", "true").ok()
        equal(len(all_the_same(made)), 4, "jobs")
        eventually(made.settled, "nothing waits", 90)
        equal(spool_of(node, ".refused"), [], "quarantined batches")


@test
def what_a_server_never_takes_is_quarantined_and_what_follows_goes_on(world):
    with cluster(world, 1) as made:
        node = made.nodes[0]
        node.met("run", "--wait", "--", "true").ok()
        all_the_same(made)
        eventually(made.settled, "nothing waits")
        node.met("daemon", "--stop").ok()
        node.process.wait()
        with open(os.path.join(node.state, "forward", "spool", "0000000000000000-5-0.batch"), "wb") as file:
            file.write(b"garbage")
        node.serve("daemon")
        eventually(lambda: node.met("daemon", "--status").code == 0, "the node serves")
        node.met("run", "--wait", "--", "true").ok()
        equal(len(all_the_same(made)), 2, "jobs")
        equal(len(spool_of(node, ".refused")), 1, "quarantined batches")
        check("quarantined as" in node.log(), "the log says so:", node.log())
        check("1 batch is quarantined" in node.met("doctor").out, "the doctor says so")
        restart(node)
        check("1 batch is quarantined" in status(node), "also after a restart")


@test
def of_two_nodes_with_one_name_the_second_is_refused_until_it_replaces_the_first(world):
    with cluster(world, 1) as made:
        first = made.nodes[0]
        second = made.add(Machine, "n2", 3)
        for _ in range(3):
            first.met("run", "--wait", "--", "true").ok()
        all_the_same(made)
        second.configure("sampling:\n  interval: 200ms\nforward:\n  interval: 1s\njobs:\n  discover: false\n")
        joining = ("daemon", "--join", made.url, "--node", "n1", "--plain")
        second.serve(*joining, input=made.server.enroll("n1").encode() + b"\n")
        eventually(lambda: second.met("daemon", "--status").code == 0, lambda: f"it serves: {second.log()}")
        # Jobs of one node are identified by their number and the second of their start.
        started = int(time.time())
        eventually(lambda: int(time.time()) > started, "another second")
        for _ in range(3):
            second.met("run", "--wait", "--", "true").ok()
        first.met("run", "--wait", "--", "true").ok()
        eventually(lambda: "two machines send as node n1" in status(second), lambda: f"the status reports it: {status(second)}")
        check("enroll --replace n1" in second.met("doctor").out, "by the doctor, with what to do")
        eventually(lambda: "two machines send as node n1" in second.log(), "by its log")
        check("two machines send as node n1" in (problem_of(made, "n1") or ""), "by met nodes:", problem_of(made, "n1"))
        check("two machines send as node n1" in made.server.log(), "by the server's log")
        equal(len(all_the_same(made)), 4, "jobs, all of the first")
        check(spool_of(second, ".batch"), "batches of the second wait")
        # The first one is gone, and the second was reinstalled in its place.
        first.met("daemon", "--stop").ok()
        first.process.wait()
        made.server.met("server", "enroll", "n9", "--replace").refused("no node named")
        token = made.server.enroll("n1", "--replace")
        answer = made.server.post("/api/v1/whoami", b"", token_of(first))
        equal(answer.status, 401, "the first one's token")
        restart(second, *joining[1:], input=token.encode() + b"\n")
        made.nodes = [second]
        # Its numbers restarted.
        eventually(lambda: len(made.ask("list", "--json").ok().json()) == 7, lambda: f"its jobs are there, too: {status(second)}", 90)
        eventually(made.settled, "nothing waits", 90)


@test
def a_state_folder_that_was_copied_is_noticed(world):
    with cluster(world, 1) as made:
        first = made.nodes[0]
        first.met("run", "--wait", "--", "true").ok()
        all_the_same(made)
        eventually(made.settled, "nothing waits")
        first.met("daemon", "--stop").ok()
        first.process.wait()
        copy = made.add(Machine, "n2", 3)
        shutil.copytree(first.state, copy.state)
        copy.configure("sampling:\n  interval: 200ms\nforward:\n  interval: 1s\njobs:\n  discover: false\n")
        for node in (first, copy):
            node.serve("daemon")
            eventually(lambda: node.met("daemon", "--status").code == 0, lambda: f"it serves: {node.log()}")
            eventually(lambda: "has everything" in status(node) or "409" in status(node), lambda: f"it was answered: {status(node)}")
        # Both go on.
        for node in (first, copy):
            node.met("run", "--wait", "--", "true").ok()
        noticed = "a state folder was copied"
        eventually(lambda: noticed in first.log() + copy.log(), lambda: f"the status reports it: {status(first)} {status(copy)}", 90)
        check(noticed in (problem_of(made, "n1") or ""), "by met nodes:", problem_of(made, "n1"))
        check(spool_of(first, ".batch") or spool_of(copy, ".batch"), "batches of one of them wait")


@test
def a_killed_server_starts_on_a_full_disk_and_recovers_by_itself(world):
    with contextlib.ExitStack() as stack:
        made = stack.enter_context(cluster(
            world, 1, prepare=lambda server: stack.enter_context(small_disk(server.state, "12m"))))
        node = made.nodes[0]
        node.met("run", "--wait", "--", "true").ok()
        all_the_same(made)
        ballast = os.path.join(made.server.state, "ballast")
        for ending in (signal.SIGKILL, signal.SIGTERM):
            made.server.process.send_signal(ending)
            made.server.process.wait()
            fill(ballast)
            known = len(node.met("list", "--json").ok().json())
            made.server.up()
            equal(len(made.jobs()), known, "jobs that are shown without space")
            node.met("run", "--wait", "--", "true").ok()
            eventually(lambda: "503" in status(node) and "read-only" in status(node), lambda: f"the status reports it: {status(node)}")
            check("read-only" in node.met("doctor").out, "by the doctor, too")
            check("read-only" in made.server.log(), "by the server's log")
            equal(len(made.jobs()), known, "jobs")
            os.remove(ballast)
            equal(len(all_the_same(made)), known + 1, "jobs")
            eventually(made.settled, "nothing waits", 90)
            check(made.server.process.poll() is None, "the server ended:", made.server.log())


def node_at(made):
    """The only node, as its server lists it."""
    (found,) = made.ask("nodes", "--json").ok().json()
    return found


@test
def a_source_that_a_node_cannot_read_is_named_by_its_server_while_that_lasts(world):
    changed, fine = world.me.path("changed"), "0.10 0.10 0.10 1/100 1\n"
    replace_file(world.me, "/proc/loadavg", fine)
    with cluster(world, 1) as made:
        (node,), base = made.nodes, f"http://127.0.0.1:{made.forwarded}"
        get = lambda path: Asked(f"{base}{path}", token=made.token)
        job = node.met("run", "--print-id", "--", "sleep", "1000").ok().out.strip()
        eventually(lambda: node_at(made)["jobs"], "the server knows the job")
        check("failing_sources" not in node_at(made), node_at(made))
        equal(get("/api/v1/health").json()["status"], "ok", "health")
        began_ns = time.time_ns()
        with open(changed, "w") as file:
            file.write("low\n")
        (failing,) = eventually(lambda: node_at(made).get("failing_sources"), "the server names it")
        equal((failing["source"], failing["problem"]), ("node", "cannot parse /proc/loadavg"), "what fails")
        check(began_ns <= failing["since_ns"] <= time.time_ns(), failing)
        text = "source node: cannot parse /proc/loadavg (for "
        check(text in made.ask("nodes").ok().out, "met nodes")
        (listed,) = get("/api/v1/nodes").json()["nodes"]
        since = datetime.datetime.fromisoformat(listed["failing_sources"][0]["since"].replace("Z", "+00:00"))
        equal(int(since.timestamp()), failing["since_ns"] // 10**9, "since when, in words")
        health = get("/api/v1/health").json()
        check(health["status"] == "degraded" and any(text in problem for problem in health["problems"]), health)
        for path in ("/", "/nodes", "/nodes/n1"):
            check(text in get(path).text, f"{path}: {get(path).text}")
        with open(changed, "w") as file:
            file.write(fine)
        eventually(lambda: "failing_sources" not in node_at(made), lambda: f"it is named no longer: {node_at(made)}")
        check(all(text not in get(path).text for path in ("/", "/nodes", "/nodes/n1")), "on no page either")
        # The daemon of the node knows how often it happened.
        check("readings could not be parsed" in status(node) or "reading could not be parsed" in status(node), status(node))
        node.met("cancel", job).ok()


@test
def the_gpus_of_nodes_are_counted_and_free_unless_a_job_holds_them(world):
    with cluster(world, 1, node_config=f"gpu:\n  nvml: {played(world)}\nnode:\n  interval: 1s\n") as made:
        (node,), base = made.nodes, f"http://127.0.0.1:{made.forwarded}"

        def tile():
            found = re.search(r"<dt>Free GPUs</dt><dd><strong>(\d+)</strong>.*?<span class=\"dim\">([^<]+)<", Asked(f"{base}/", token=made.token).text)
            return found.groups() if found else None

        # Without jobs, too.
        eventually(lambda: node_at(made).get("gpus") == 2, lambda: f"the server knows them: {node_at(made)}")
        equal(tile(), ("2", "of 2"), "free GPUs")
        job = node.met("run", "--print-id", "--", "env", "CUDA_VISIBLE_DEVICES=1", "sleep", "1000").ok().out.strip()
        eventually(lambda: (tile() or "")[0] == "1", lambda: f"one is held: {tile()}")
        node.met("cancel", job).ok()
        eventually(lambda: tile() == ("2", "of 2"), lambda: f"both are free again: {tile()}")
