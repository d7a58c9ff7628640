"""Dashboards: every query of every board is executed, against a real Prometheus that scrapes a real daemon and server,
and against the real API; what comes back has the labels that the board shows."""

import contextlib
import datetime
import fcntl
import functools
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import urllib.parse

from api import Asked
from gpus import played
from cluster import cluster
from harness import Skip, check, equal, eventually, need_root, test
from otlp import python
from prometheus import HASH, HERE, ROOT, Page, Prometheus

FOLDER = os.path.join(ROOT, "dashboards")
#: What panels may be, of those that Grafana has.
KINDS = {"timeseries", "stat", "table"}
#: What Grafana puts in place of its own variables, for a scrape every second.
BUILT_IN = {"__rate_interval": "10s", "__interval": "5s", "__range": "5m"}

#: From npm: the types of a dashboard, and a compiler that checks them.
GRAFANA_TYPES = ("@grafana/schema@11.6.16", "typescript@5.9.3")

#: Answers JSONPath queries: a list of [document, paths] on standard input, the values of each path on standard output.
JSONPATH = """
import json, sys
from jsonpath_ng import parse
asked = json.load(sys.stdin)
print(json.dumps([[[match.value for match in parse(path).find(document)] for path in paths] for document, paths in asked]))
"""


@functools.cache
def boards():
    found = {}
    for name in sorted(os.listdir(FOLDER)):
        if name.endswith(".json"):
            with open(os.path.join(FOLDER, name)) as file:
                found[name[:-5]] = json.load(file)
    return found


def variables(board):
    return {one["name"]: one for one in board["templating"]["list"]}


def interpolated(text, values):
    """As Grafana does: $name, ${name} and ${name:format}; of several values a regular expression is made."""
    def value(match):
        name = match.group(1) or match.group(2)
        check(name in values, f"{text}: there is no variable {name}")
        one = values[name]
        if isinstance(one, list):
            return "(" + "|".join(re.escape(each).replace("\\-", "-") for each in one) + ")"
        return one[match.group(3)] if isinstance(one, dict) else one

    return re.sub(r"\$(?:(\w+)|\{(\w+)(?::([\w:]+))?\})", value, text)


def queries(board, kind):
    """Panel and target of each query of a data source."""
    for panel in board["panels"]:
        for target in panel["targets"]:
            if target["datasource"]["type"] == kind:
                yield panel, target


@test
def the_boards_are_what_their_script_writes(world):
    said = subprocess.run([sys.executable, os.path.join(FOLDER, "make.py"), "--check"], capture_output=True, text=True, check=False)
    equal((said.returncode, said.stderr), (0, ""), "make.py --check")


@test
def the_boards_have_the_shape_that_grafana_loads(world):
    uids = [board["uid"] for board in boards().values()]
    check(len(uids) >= 7 and len(set(uids)) == len(uids), uids)
    for name, board in boards().items():
        check(board["schemaVersion"] >= 36 and board["title"].startswith("met: ") and "id" not in board, name)
        known = variables(board)
        check(any(one["type"] == "datasource" for one in known.values()), f"{name}: no data source can be chosen")
        panels = board["panels"]
        equal(len({panel["id"] for panel in panels}), len(panels), f"{name}: ids of panels")
        taken = set()
        for panel in panels:
            what = f"{name}, {panel['title']}"
            check(panel["type"] in KINDS and panel["targets"] and panel["title"], what)
            for target in panel["targets"]:
                source = re.fullmatch(r"\$\{(\w+)\}", target["datasource"]["uid"])
                equal(known[source.group(1)]["query"], target["datasource"]["type"], f"{what}: data source")
            place = panel["gridPos"]
            cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
            check(place["x"] + place["w"] <= 24 and not cells & taken, f"{what}: it lies on another panel")
            taken |= cells
            fields = {one["name"] for target in panel["targets"] for one in target.get("fields", [])}
            for override in panel["fieldConfig"]["overrides"]:
                if fields:
                    check(override["matcher"]["options"] in fields, f"{what}: {override['matcher']}")
        # Links lead to boards that exist, with variables that these have.
        for url in re.findall(r'"url": "(/d/[^"]+)"', json.dumps(board)):
            address, _, search = url.partition("?")
            by_uid = {other["uid"]: other for other in boards().values()}
            there = by_uid.get(address.split("/")[2])
            check(there, f"{name}: {url} leads nowhere")
            for variable in re.findall(r"var-(\w+)=", search):
                check(variable in variables(there), f"{name}: {url}: no variable {variable}")


@test
def the_boards_are_of_the_type_that_grafana_publishes(world):
    if not shutil.which("npm"):
        raise Skip("there is no npm")
    folder = os.path.join(os.environ.get("MET_E2E_DIR", "/var/tmp"), "met-e2e-grafana-schema")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not all(os.path.exists(os.path.join(folder, "node_modules", *name.rsplit("@", 1)[0].split("/"))) for name in GRAFANA_TYPES):
            install = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", folder, *GRAFANA_TYPES]
            said = subprocess.run(install, capture_output=True, text=True, check=False)
            if said.returncode != 0:
                raise Skip(f"npm cannot install {' '.join(GRAFANA_TYPES)}: {said.stderr[-300:]}")
        # Literals, so that a misspelt key is found, and not only a wrong type.
        lines = ["import type { Dashboard } from '@grafana/schema';"]
        lines += [f"export const board{number}: Dashboard = {json.dumps(board)};" for number, board in enumerate(boards().values())]
        with open(os.path.join(folder, "boards.ts"), "w") as file:
            file.write("\n".join(lines))
        compiler = os.path.join(folder, "node_modules", ".bin", "tsc")
        said = subprocess.run([compiler, "--noEmit", "--strict", "--skipLibCheck", "--moduleResolution", "node", "--target", "es2020", "boards.ts"],
                              cwd=folder, capture_output=True, text=True, check=False)
    equal((said.returncode, said.stdout), (0, ""), "tsc")


#: The page of DCGM exporter 4 on a machine with a whole GPU and one that is cut into two instances.
with open(os.path.join(HERE, "dcgm-two-a100-one-with-mig.prom")) as fixture:
    DCGM = fixture.read()
WHOLE, CUT = re.findall(r'DCGM_FI_DEV_SM_CLOCK{gpu="\d",UUID="([^"]+)"', DCGM)
#: The same GPUs for the library that plays NVIDIA's.
GPUS = "".join(f"card {number} uuid={uuid} name=Fake power=70000 util=0 memory=0 total=8000 temperature=40\n" for number, uuid in enumerate((WHOLE, CUT)))
GPUS += "".join(f"part 1 uuid=MIG-{instance} slices=3 memory=20000 used=9 gi={instance} ci=0\n" for instance in (1, 2))


def by_dcgm(name, uuid, instance=None):
    """What DCGM exporter says of a GPU or an instance of one."""
    for labels, value in re.findall(rf"^{name}{{(.*)}} (\S+)$", DCGM, re.MULTILINE):
        found = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        if (found["UUID"], found.get("GPU_I_ID")) == (uuid, instance):
            return float(value)
    raise AssertionError(f"no {name} of {uuid}, {instance}")


class Hardware:
    """A page of what this machine lacks: DCGM exporter, a thermal zone, and a resource manager's allocation."""

    def __init__(self, page, job):
        lines = DCGM.splitlines()
        instance = f'instance="localhost:{page.port}"'
        lines += [f'met_job_allocated_{what}{{{instance},manager="local",id="{job}"}} {value}' for what, value in (("cpus", 2), ("memory_bytes", 1e9))]
        lines += [f'met_thermal_temperature_celsius{{{instance},zone="thermal_zone0",type="x86_pkg_temp"}} 50']
        text = ("\n".join(lines) + "\n").encode()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


def choose(prometheus, board, chosen):
    """The values of a board's variables, as Grafana would fill its lists; `chosen` are those that somebody picked."""
    values = {**BUILT_IN}
    for name, variable in variables(board).items():
        if variable["type"] != "query":
            continue
        asked = interpolated(variable["query"]["query"], values)
        series, label = re.fullmatch(r"label_values\((.+), (\w+)\)", asked).groups()
        options = eventually(lambda: sorted({one[label] for one, _ in prometheus.query(series)}), f"{asked} has values", pause_s=0.2)
        if name in chosen:
            eventually(lambda: chosen[name] in {one[label] for one, _ in prometheus.query(series)}, f"{chosen[name]} is in {asked}", pause_s=0.2)
        pick = chosen.get(name, options[0])
        # "All" is its own value; of several chosen ones a regular expression is made.
        values[name] = [pick] if variable["multi"] else pick
    return values


def answers(prometheus, board, chosen):
    values = choose(prometheus, board, chosen)
    for panel, target in queries(board, "prometheus"):
        expression = interpolated(target["expr"], values)
        labels = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))

        def answered():
            found = prometheus.query(expression)
            return found and all(labels <= set(metric) for metric, _ in found) and found

        found = eventually(answered, lambda: f"{board['title']}, {panel['title']}: {expression} with {labels}: "
                           f"{prometheus.query(expression)} {prometheus.said()}", pause_s=0.3)
        check(all(value == value for _, value in found), f"{expression}: {found}")
        if "All" not in chosen and any(variable.get("includeAll") for variable in variables(board).values()):
            everything = {**values, **{name: one["allValue"] for name, one in variables(board).items() if one.get("includeAll")}}
            check(len(prometheus.query(interpolated(target["expr"], everything))) >= len(found), f"{expression} of all")
        yield panel["title"], found


@test
def every_query_of_the_prometheus_boards_returns_data(world):
    need_root()
    with contextlib.ExitStack() as stack:
        made = stack.enter_context(cluster(world, 1))
        library = played(world)
        with open(os.path.join(os.path.dirname(library), "script"), "w") as file:
            file.write(GPUS)
        page = Page(world, web=f"basic_auth_users: {{ann: {HASH}}}\n",
                    more=f"gpu:\n  nvml: {library}\nperf:\n  events: [page_faults]\nsampling:\n  interval: 500ms\n")
        burning = world.workload("burning", "cpu", "1000")
        job = world.me.run(*burning, env={"CUDA_VISIBLE_DEVICES": "0"})
        of_instance = world.me.run("sleep", "1000", env={"CUDA_VISIBLE_DEVICES": "MIG-1"})
        hardware = stack.enter_context(Hardware(page, job))
        extra = ("  basic_auth: {username: ann, password: secret}\n"
                 f"- job_name: server\n  authorization: {{credentials: {made.token}}}\n  static_configs: [{{targets: ['127.0.0.1:{made.forwarded}']}}]\n"
                 f"- job_name: hardware\n  honor_labels: true\n  static_configs: [{{targets: ['127.0.0.1:{hardware.port}']}}]\n")
        prometheus = stack.enter_context(Prometheus(page, extra))
        chosen = {"instance": f"localhost:{page.port}", "manager": "local", "id": job}
        found, count = {}, 0
        for name, board in boards().items():
            for title, answer in answers(prometheus, board, chosen):
                found[name, title] = answer
                count += 1
        check(count >= 70, f"only {count} queries were executed")
        # What is shown is true.
        equal(found["cluster", "Jobs running"][0][1], 2.0, "jobs running")
        equal(found["job", "State"][0][0]["state"], "running", "state")
        cores = [value for metric, value in found["job", "Cores used"] if "instance" in metric]
        check(not cores or 0.05 < cores[0] < 4, f"cores: {cores}")
        (metric, value), = found["job-gpus", "GPU use"]
        equal((metric["id"], metric["UUID"], metric["index"]), (job, WHOLE, "0"), "the job's GPU by DCGM exporter")
        equal(value, by_dcgm("DCGM_FI_DEV_GPU_UTIL", WHOLE), "its use")
        equal(found["job-gpus", "Clock"][0][1], by_dcgm("DCGM_FI_DEV_SM_CLOCK", WHOLE) * 1e6, "its clock")
        # A job with an instance of a GPU sees what is measured of that, and nothing of the GPU's other instance.
        board = boards()["job-gpus"]
        values = choose(prometheus, board, {**chosen, "id": of_instance})
        panels = {panel["title"]: interpolated(target["expr"], values) for panel, target in queries(board, "prometheus")}
        for title, name in (("SM activity", "DCGM_FI_PROF_SM_ACTIVE"), ("Memory in use", "DCGM_FI_DEV_FB_USED"), ("Last Xid error", "DCGM_FI_DEV_XID_ERRORS")):
            (metric, value), = eventually(lambda: prometheus.query(panels[title]), f"{title} of an instance", pause_s=0.3)
            equal((metric["id"], metric["UUID"], metric["GPU_I_ID"]), (of_instance, CUT, "1"), title)
            equal(value, by_dcgm(name, CUT, "1"), title)
        equal(prometheus.query(panels["Power"]), [], "power, which is not measured of instances")
        (metric, value), = found["energy", "Power by user"]
        check(metric == {"user": world.me.name} and value > 0, f"{metric} {value}")
        world.me.met("cancel", job, of_instance).ok()


def values_of(documents):
    """The values of JSONPath queries, by a library of its own."""
    said = subprocess.run([python(), "-c", JSONPATH], input=json.dumps(documents), capture_output=True, text=True, check=False)
    check(said.returncode == 0, said.stderr)
    return json.loads(said.stdout)


def api_answers(base, token, board, values):
    """Panel, and the columns of its table by name, for each query of a board over the API."""
    asked, kept = [], []
    for panel, target in queries(board, "marcusolsson-json-datasource"):
        path = interpolated(target["urlPath"], values)
        search = urllib.parse.urlencode([(name, interpolated(value, values)) for name, value in target["params"]])
        answer = Asked(f"{base}{path}" + (f"?{search}" if search else ""), token=token)
        equal(answer.status, 200, f"{panel['title']}: {path}?{search}: {answer.text}")
        asked.append([json.loads(answer.text), [field["jsonPath"] for field in target["fields"]]])
        kept.append((panel, target))
    for (panel, target), columns in zip(kept, values_of(asked)):
        named = {field["name"]: column for field, column in zip(target["fields"], columns)}
        # A column with fewer values would be put beside the wrong rows.
        equal(len({len(column) for column in columns}), 1, f"{board['title']}, {panel['title']}: lengths of {({name: len(column) for name, column in named.items()})}")
        yield panel, named


def stamp(seconds):
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(seconds))


@test
def every_query_of_the_api_boards_returns_rows_in_line_and_each_row_links_to_the_window_of_its_job(world):
    need_root()
    with cluster(world, 1) as made:
        node, base = made.nodes[0], f"http://127.0.0.1:{made.forwarded}"
        short = node.met("run", "--print-id", "--wait", "--", "true").ok().out.strip()
        long = node.met("run", "--print-id", "--", "sleep", "1000").ok().out.strip()
        node.met("run", "--wait", "--", "/nowhere/nothing")
        on_server = lambda: {one["row"]["raw_id"]: one for one in Asked(f"{base}/api/v1/jobs", token=made.token).json()["jobs"]}
        eventually(lambda: {short, long} <= set(on_server()) and on_server()[short]["job"]["state"] == "finished", lambda: f"{on_server()}")
        jobs = on_server()
        reference = jobs[long]["row"]["reference"]
        series = lambda: Asked(f"{base}/api/v1/jobs/{reference}/series", token=made.token).json()
        # What was not read in any sample has no column yet.
        wanted = {"cpu_seconds", "memory_needed_bytes", "processes_running", "threads_running", "energy_joules"}
        eventually(lambda: len(series()["times"]) > 1 and wanted <= series()["columns"].keys(), "samples", 120)
        now = time.time()
        around = {"__from": {"date:iso": stamp(now - 3600)}, "__to": {"date:iso": stamp(now + 60)}}
        nothing = {"user": "", "account": "", "state": ""}
        tables = {panel["title"]: (panel, rows) for panel, rows in api_answers(base, made.token, boards()["user"], {**around, **nothing})}
        panel, rows = tables["Jobs"]
        equal(sorted(rows["raw_id"]), sorted(on_server()), "jobs")
        equal(tables["Running now"][1]["raw_id"], [long], "running jobs")
        at = rows["raw_id"].index(short)
        shown = jobs[short]
        for name, key in (("CPU time", "cpu_seconds"), ("Time", "wall_seconds"), ("Memory", "memory_needed_peak_bytes")):
            equal(rows[name][at], shown["totals"].get(key), name)
        # The link, with the row's own values: the window begins and ends with the job.
        (links,) = [one["properties"][0]["value"] for one in panel["fieldConfig"]["overrides"] if one["properties"][0]["id"] == "links"]
        for link in links:
            row = {name: str(column[at]) for name, column in rows.items()}
            url = re.sub(r"\$\{__data\.fields\.(\w+)\}", lambda match: row[match.group(1)], link["url"])
            search = urllib.parse.parse_qs(urllib.parse.urlparse(url).query)
            begin, end = int(search["from"][0]) / 1e3, int(search["to"][0]) / 1e3
            check(0 <= unix_seconds(shown["job"]["start"]) - begin < 0.01 and 0 <= end - unix_seconds(shown["job"]["end"]) < 0.01, f"{url}: {shown['job']}")
            equal(search.get("var-job", search.get("var-id"))[0], shown["row"]["reference"] if "var-job" in search else short, "the job of the link")
        for _, rows in api_answers(base, made.token, boards()["user-job"], {"job": reference}):
            check(all(column for column in rows.values()), f"{rows}")
        # A user sees their own jobs through the same board, and nothing of others.
        stranger = made.server.enroll("somebody-else", "--user")
        for panel, rows in api_answers(base, stranger, boards()["user"], {**around, **nothing}):
            check(not any(rows.values()), f"{panel['title']}: {rows}")
        for state, user in (("failed", ""), ("", "nobody-at-all")):
            (_, rows), = [one for one in api_answers(base, made.token, boards()["user"], {**around, **nothing, "state": state, "user": user}) if one[0]["title"] == "Jobs"]
            check(set(rows["State"]) <= {state}, f"{state} {user}: {rows['State']}")
        node.met("cancel", long).ok()


def unix_seconds(text):
    """Of a time in RFC 3339."""
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
