"""What other programs read stays as it is: JSON, tables, the names of metrics, the frames of the socket.

The expected answers are in the folder `frozen`. A change of one of them is a change of a promise: it belongs into the
changelog. `MET_E2E_FREEZE=1 tests/e2e/run frozen` writes them again."""

import json
import os
import re

from harness import check, each, equal, eventually, test
from prometheus import Page, of_job
from users import ask

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "frozen")
WRITES = os.environ.get("MET_E2E_FREEZE") == "1"
#: Two jobs that ended, as supervisors leave them. Older than retention would keep them, one day.
CONFIG = "storage:\n  keep: 36500d\nsources:\n  rapl: off\n"


def is_as_before(name, text):
    path = os.path.join(HERE, name)
    if WRITES:
        with open(path, "w", newline="") as file:
            file.write(text)
    with open(path, newline="") as file:
        expected = file.read()
    check(text == expected, f"{name} has changed; before:\n{expected}\nnow:\n{text}")


def inbox(world):
    """The two jobs as if they had ended on this machine, for any user that runs the test."""
    world.configure(CONFIG)
    store = next(one["detail"] for one in world.met("doctor", "--json").ok().json() if one["what"] == "store")
    jobs = os.path.join(re.match(r"[^,]+", store)[0], "jobs")
    for number in ("1", "2"):
        os.makedirs(os.path.join(jobs, number), mode=0o700)
        for name in ("start", "end"):
            with open(os.path.join(HERE, "jobs", number, name)) as file:
                record = json.load(file)
            record["uid"] = os.geteuid()
            with open(os.path.join(jobs, number, name), "w") as file:
                json.dump(record, file)


def pretty(value):
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


@test
def json_and_tables_of_ended_jobs_are_frozen(world):
    inbox(world)
    # At first from the inbox, then from the store.
    for of_store in (False, True):
        if of_store:
            world.me.import_jobs()
        equal(bool(world.me.waiting()), not of_store, "in the inbox")
        is_as_before("list.json", pretty(world.met("list", "--json").ok().json()))
        for job in ("1", "2"):
            is_as_before(f"show-{job}.json", pretty(world.met("show", job, "--json").ok().json()))
        for view in ("jobs", "cpu", "mem", "io", "energy", "all"):
            is_as_before(f"list-{view}.txt", without_dates(world.met("list", view).ok().out))
        is_as_before("list.csv", world.met("list", "--csv").ok().out)


def without_dates(table):
    """A start is written in another way when it is long ago."""
    return re.sub(r"  +", "  ", re.sub(r"Nov 15( 2026| \d\d:\d\d)", "DATE", table))


KEY = {"cluster": None, "manager": "local", "id": "1", "incarnation": 1794700800}
#: As clients of each version have said it, and say it.
REQUESTS = [
    {"hello": {"protocol": 1}},
    {"hello": {"protocol": 1, "newest": 4, "replace": False}},
    {"jobs": {"since_ns": None, "states": [], "uid": None, "user": None, "name": None, "manager": None, "account": None,
              "limit": 50, "until_ns": None, "with_cards": False, "skip": 0, "paged": True}},
    {"find": {"id": {"manager": None, "id": "1", "node": None}}},
    {"find": "last"},
    {"course": {"key": KEY, "after_ms": 0}},
    {"card_course": {"key": KEY, "uuid": "GPU-a", "after_ms": 0}},
    {"node_parts": {"since_ms": 1}},
    "factors",
    "in_force",
    {"nonsense": 1},
]


@test
def frames_of_the_socket_are_frozen(world):
    inbox(world)
    # Jobs of the inbox are the daemon's when it has started.
    with world.me.spawn("daemon", "--user") as daemon:
        world.me.daemon_pid()
        eventually(lambda: len(world.jobs()) == 2, "the daemon knows both")
        said = [[request, masked(reply)] for request, reply in zip(REQUESTS, ask(world.me, world.me.socket(), *REQUESTS))]
        world.me.stop_daemon()
        daemon.wait(60)
    is_as_before("socket.json", "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in said))


def masked(value, name=None):
    """What differs from run to run is left out: who answers, whose files they are."""
    if name in ("pid", "uid", "file") and value is not None:
        return f"a {name}"
    if isinstance(value, dict):
        return {key: masked(inner, key) for key, inner in value.items()}
    if isinstance(value, list):
        return [masked(inner, name) for inner in value]
    return value


#: What every machine has; the rest depends on its devices and its kernel.
EVERYWHERE = re.compile(
    r"met_(build|daemon|source|energy|emission)_"
    r"|met_job_(cpu|memory_peak|read|write|written|process|thread|wall|page_faults|context_switches|energy_joules|info)"
    r"|met_node_(cpu|memory_(total|available|free)|load|boot|process)")


@each(all=("all", "metrics.txt"), usual=("usual", "metrics-usual.txt"))
def names_types_and_labels_of_metrics_are_frozen(world, selection, file_name):
    page = Page(world, http=f"  metrics: {selection}\n")
    job = world.me.run("sleep", "1000")
    eventually(lambda: of_job("cpu_seconds_total", job) in page.text(), "the job's figures")
    eventually(lambda: of_job("energy_joules_total", job) in page.text(), "its energy")
    families = families_of(page.text())
    world.me.met("cancel", job).ok()
    world.me.stop_daemon()
    path = os.path.join(HERE, file_name)
    if WRITES:
        with open(path, "w") as file:
            file.writelines(f"{name} {shape}\n" for name, shape in sorted(families.items()))
    with open(path) as file:
        frozen = dict(line.rstrip("\n").split(" ", 1) for line in file)
    for name, shape in families.items():
        check(name not in frozen or frozen[name] == shape, f"{name}: {shape}, before: {frozen.get(name)}")
    gone = {name for name in frozen if EVERYWHERE.match(name)} - families.keys()
    check(not gone, f"gone: {gone}")
    new = {name for name in families if EVERYWHERE.match(name)} - frozen.keys()
    check(not new, f"new, to be frozen as well: {new}")


def families_of(page):
    """Type and label names of each family."""
    shapes = {}
    for line in page.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            shapes[name] = kind
        elif not line.startswith("#"):
            name, _, rest = line.partition("{")
            family = name.split(" ")[0]
            labels = ",".join(re.findall(r'(\w+)="', rest))
            if family in shapes and " " not in shapes[family]:
                shapes[family] += f" {labels or '-'}"
    return shapes
