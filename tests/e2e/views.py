"""What met shows: lists, reports, trees, logs, JSON and the references it prints about itself."""

import csv
import datetime
import io
import os
import re
import shutil
import subprocess
import time
import unicodedata

from harness import DEADLINE_S, Skip, Terminal, check, close_to, each, equal, eventually, marked, need_root, test

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
JOB_KEYS = [
    "id", "raw_id", "manager", "cluster", "name", "user", "account", "command", "state", "manager_state", "exit_code", "signal",
    "start", "end", "nodes", "as_of", "inside",
]
STATES = {"pending", "running", "suspended", "finished", "failed", "cancelled", "timeout", "out_of_memory", "lost"}
KINDS = {"measured", "sampled", "attributed", "estimated", "lower_bound"}
RFC3339_UTC = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")


def run_to_end(world, *command, options=()):
    return world.met("run", "--wait", *options, "--", *command)


def check_shape(object_, over):
    """The shape that is promised to its readers."""
    equal(list(object_)[:6], ["version", "job", "requested", "totals", "average", "quality"], "sections")
    equal(object_["version"], 1, "version")
    job = object_["job"]
    equal(list(job), JOB_KEYS, "keys of job")
    check(isinstance(job["id"], str) and job["manager"] == "local", job)
    check(job["state"] in STATES, job["state"])
    check(isinstance(job["command"], list) and isinstance(job["nodes"], list) and len(job["nodes"]) == 1, job)
    check(RFC3339_UTC.fullmatch(job["start"]), job["start"])
    check(RFC3339_UTC.fullmatch(job["end"]) if over else job["end"] is None, job["end"])
    check(job["signal"] is None or job["exit_code"] is None, "both a signal and an exit code")
    totals, quality = object_["totals"], object_["quality"]
    equal(sorted(quality), sorted(totals), "totals and their quality")
    for name, one in quality.items():
        check(set(one) == {"kind", "source"} and one["kind"] in KINDS and one["source"], f"quality of {name}: {one}")
    for section in (totals, object_["average"]):
        for name, value in section.items():
            check(isinstance(value, (int, float)) and not isinstance(value, bool), f"{name}: {value!r}")
    for name, value in totals.items():
        check(not name.endswith("_bytes") or isinstance(value, int), f"{name} is no whole number: {value!r}")
    if over:
        promised = {"wall_seconds", "cpu_user_seconds", "cpu_system_seconds", "memory_peak_bytes", "read_bytes"}
        check(promised | {"written_bytes", "processes"} <= set(totals), f"missing: {promised - set(totals)}")


@test
def figures_of_a_running_job_are_of_the_time_of_their_sample(world):
    world.configure("sampling:\n  interval: 30s\n")
    job = world.run("sh", "-c", "while :; do :; done")
    seconds = lambda text: datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()

    def old_figures():
        shown = world.show(job)
        until = shown["job"]["as_of"]
        age = until and time.time() - seconds(until)
        is_known = shown["totals"].get("cpu_seconds", 0) > 0 and "power_watts" in shown["average"]
        return shown if age and age > 4 and is_known else None

    shown = eventually(old_figures, "figures are of a sample")
    counted = seconds(shown["job"]["as_of"]) - seconds(shown["job"]["start"])
    check(counted < shown["totals"]["wall_seconds"], str(shown["totals"]))
    close_to(shown["average"]["cores"], shown["totals"]["cpu_seconds"] / counted, 0.001, "cores")
    close_to(shown["average"]["power_watts"], shown["totals"]["energy_joules"] / counted, 0.001, "power")
    said = world.met("show", job).ok().out
    check("as of the last sample" in said, said)
    world.met("cancel", job).ok()
    equal(world.show(job)["job"]["as_of"], None, "of a job that has ended")


@test
def the_json_object_has_the_promised_shape(world):
    world.configure("sampling:\n  interval: 100ms\n")
    running = world.run("sleep", "1000")
    run_to_end(world, "sh", "-c", "sleep 0.3; exit 3").expect(3)
    run_to_end(world, "sh", "-c", "kill -9 $$").expect(137)
    world.met("time", "--quiet", "--", "true").ok()
    eventually(lambda: "memory_needed_peak_bytes" in world.show(running)["totals"], "a first sample")
    objects = world.jobs()
    equal([one["job"]["id"] for one in objects], ["4", "3", "2", "1"], "order")
    for one in objects:
        check_shape(one, one["job"]["state"] != "running")
    # While it runs figures grow; otherwise it is the same object everywhere, and one job alone has its answers. Energy
    # may be shared out a moment after the end.
    for job in ("4", "3", "2"):
        check("verdict" in world.show(job)["answers"], "no verdict")
        shown = lambda: {key: value for key, value in world.show(job).items() if key != "answers"}
        listed = lambda: next(one for one in world.jobs() if one["job"]["id"] == job)
        eventually(lambda: shown() == listed(), lambda: f"met show {shown()} and met list {listed()}")
    by_id = {one["job"]["id"]: one for one in objects}
    equal((by_id["2"]["job"]["exit_code"], by_id["2"]["job"]["signal"]), (3, None), "exit code and signal")
    equal((by_id["3"]["job"]["exit_code"], by_id["3"]["job"]["signal"]), (None, 9), "exit code and signal")
    world.met("cancel", running).ok()


@test
def met_alone_lists_the_jobs(world):
    equal(world.met().ok().out, world.met("list").ok().out, "an empty list")
    run_to_end(world, "true", options=("-n", "first")).ok()
    equal(world.met().ok().out, world.met("list").ok().out, "a list")
    check("first" in world.met().ok().out, "the job is not listed")


@test
def list_cpu_has_the_columns_of_old(world):
    run_to_end(world, "sh", "-c", "exit 0").ok()
    text = world.met("list", "cpu").ok().out
    cells = [cell.strip() for cell in re.split("[│|]", text.splitlines()[1]) if cell.strip()]
    expected = ["JOB", "PPID", "PROCESS NAME", "CPU % (AVG)", "MEM % (AVG)", "STATUS", "DURATION"]
    equal(cells, expected, "columns")
    check("sh" in text and "Finished" in text, text)


@each(cpu="cpu", io="io", mem="mem", all="all")
def every_view_lists_running_and_finished_jobs(world, view):
    world.configure("sampling:\n  interval: 100ms\n")
    running = world.run("sleep", "1000", options=("-n", "still"))
    run_to_end(world, "true", options=("-n", "ended")).ok()
    for options in ([], ["--csv"]):
        text = world.met("list", view, *options).ok().out
        check("still" in text and "ended" in text, text)
        check("\x1b" not in text, "escape codes:", repr(text))
    world.met("cancel", running).ok()


@test
def csv_can_be_read_back(world):
    run_to_end(world, "true", options=("-n", 'a,"b"')).ok()
    run_to_end(world, "sh", "-c", "exit 3").expect(3)
    for view in ([], ["cpu"], ["io"], ["mem"], ["all"]):
        rows = list(csv.DictReader(io.StringIO(world.met("list", *view, "--csv").ok().out)))
        equal(len(rows), 2, f"rows of {view}")
        equal([row["name"] for row in rows], ["sh", 'a,"b"'], f"names in {view}")


@test
def lists_are_filtered(world):
    one = world.run("true", options=("-n", "one"))
    world.met("wait", one).ok()
    time.sleep(1.1)
    middle = time.time()
    time.sleep(1.1)
    world.met("run", "--wait", "-n", "two", "--", "false").expect(1)
    running = world.run("sleep", "1000", options=("-n", "three"))

    def names(*options):
        return [job["job"]["name"] for job in world.jobs(*options)]

    equal(names(), ["three", "two", "one"], "all")
    equal(names("--state", "failed"), ["two"], "failed")
    equal(names("--state", "running"), ["three"], "running")
    equal(names("--state", "failed,finished"), ["two", "one"], "failed or finished")
    equal(names("--state", "failed", "--state", "running"), ["three", "two"], "failed or running")
    equal(names("--name", "one"), ["one"], "of a name")
    equal(names("--limit", "2"), ["three", "two"], "the newest two")
    equal(names("--since", "1h"), ["three", "two", "one"], "of the last hour")
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(middle))
    equal(names("--since", since), ["three", "two"], "of the last moments")
    equal(names("--user", world.name or "nobody-at-all"), ["three", "two", "one"] if world.name else [], "mine")
    equal(names("--user", "nobody"), [], "somebody else's")
    world.met("cancel", running).ok()


@test
def a_long_list_is_cut_on_a_screen_and_whole_in_files(world):
    script = f'for x in $(seq 60); do "{world.met_path}" time --quiet -n "job-$x" -- true; done'
    process = world.start("sh", "-c", script)
    out, err = process.communicate(timeout=DEADLINE_S)
    equal((process.returncode, err), (0, b""), "exit code and stderr")
    count = len(re.findall(r"job-\d+", world.met("list").ok().out))
    equal(count, 50, "jobs in the list")
    equal(len(world.jobs()), 60, "jobs in JSON")
    equal(len(world.met("list", "--csv").ok().out.splitlines()), 61, "lines of CSV")


@test
def jobs_are_named_in_four_ways(world):
    run_to_end(world, "sh", "-c", "exit 0", options=("-n", "train")).ok()
    run_to_end(world, "sh", "-c", "exit 0", options=("-n", "train")).ok()
    run_to_end(world, "sh", "-c", "exit 0", options=("-n", "other")).ok()
    for name, id_ in (("1", "1"), ("local:1", "1"), ("train", "2"), ("@last", "3"), ("other", "3")):
        equal(world.show(name)["job"]["id"], id_, f"the job called {name}")


@test
def a_watched_list_is_refreshed(world):
    running = world.run("sleep", "1000", options=("-n", "first"))
    terminal = world.terminal("list", "--watch")
    terminal.read_until("first")
    run_to_end(world, "true", options=("-n", "second")).ok()
    text = terminal.read_until("second")
    check(text.count("\x1b[H") >= 2, "drawn once only")
    terminal.send(b"\x03")
    terminal.end()
    world.met("cancel", running).ok()


@test
def show_plots_the_course_of_a_running_and_a_finished_job(world):
    world.configure("sampling:\n  interval: 100ms\n")
    job = world.run(*world.workload("steady", "cpu", "stop"), options=("-n", "busy"))
    text = eventually(lambda: "CPU cores" in (text := world.met("show", job).ok().out) and text, "there is a plot")
    check("running" in text and "memory needed" in text and "busy" in text, text)
    eventually(lambda: "█" in world.met("show", job).ok().out.partition("CPU cores")[2], "the plot shows something")
    open(world.path("stop"), "w").close()
    world.met("wait", job).ok()
    text = world.met("show", job).ok().out
    check("finished, exit code 0" in text and "CPU cores" in text.partition("finished")[2], text)
    for word in ("CPU time", "cores", "memory needed", "read", "written", "page faults", "processes", "threads"):
        check(word in text, f"no {word} in:", text)


@test
def show_is_of_the_newest_job_unless_told(world):
    run_to_end(world, "true", options=("-n", "newest")).ok()
    check("newest" in world.met("show").ok().out, "not the newest")


@test
def ps_shows_the_tree(world):
    job = world.run("sh", "-c", "sh -c 'sleep 1000 & echo $! > pid.part; mv pid.part pid; wait' & wait")
    pid = world.appears("pid").strip()
    lines = eventually(
        lambda: len(found := world.met("ps", job).ok().out.splitlines()) == 4 and found, "three processes are shown"
    )
    depth = [line.index(word) for line, word in zip(lines[1:], ("sh -c", "sh -c", "sleep 1000"))]
    check(depth[0] < depth[1] < depth[2], "no tree:", "\n".join(lines))
    equal(lines[3].split()[0], pid, "pid")
    world.met("cancel", job).ok()
    said = world.met("ps", job).ok().out
    check("no running processes" in said or "largest processes" in said, "processes of a job that has ended", said)


@test
def logs_are_printed_and_followed(world):
    job = world.run("sh", "-c", "echo first; echo bad >&2; while [ ! -e go ]; do sleep 0.05; done; printf last")
    eventually(lambda: world.met("logs", job).ok().out == "first\n", "the first line is there")
    equal(world.met("logs", "--err", job).ok().out, "bad\n", "stderr")
    follower = world.spawn("logs", "-f", job)
    equal(follower.stdout.readline(), b"first\n", "what is followed")
    check(follower.poll() is None, "it does not follow")
    open(world.path("go"), "w").close()
    rest, _ = follower.communicate(timeout=DEADLINE_S)
    equal((rest, follower.returncode), (b"last", 0), "the rest, and the exit code")


@test
def colour_is_for_terminals_only(world):
    run_to_end(world, "false").expect(1)
    for command in (["list"], ["list", "cpu"], ["show"], ["doctor"], ["list", "--json"]):
        check("\x1b" not in world.met(*command).ok().out, f"escape codes of {command} in a pipe")
    shown = {}
    for name, env in (("plain", {"NO_COLOR": "1"}), ("coloured", {})):
        terminal = world.terminal("show", env=env)
        equal(terminal.end(), 0, "exit code")
        shown[name] = terminal.text()
    check("\x1b" not in shown["plain"], "escape codes in spite of NO_COLOR")
    check("\x1b[" in shown["coloured"], "no colour at a terminal")
    terminal = world.terminal("list", env={"NO_COLOR": "1"})
    terminal.end()
    check("\x1b" not in terminal.text(), "escape codes in spite of NO_COLOR")


@test
def tables_fit_the_terminal(world):
    world.met("time", "--quiet", "-n", "a-very-long-name-" * 20, "--", "true").ok()
    for view in ("cpu", "io", "mem", "all"):
        terminal = world.terminal("list", view, env={"NO_COLOR": "1"})
        equal(terminal.end(), 0, "exit code")
        widest = max(len(line) for line in terminal.text().replace("\r", "").splitlines())
        check(widest <= 120, f"met list {view} is {widest} columns wide")


@test
def a_reader_that_leaves_early_is_no_failure(world):
    for number in range(3):
        world.met("time", "--quiet", "--", "true").ok()
    script = f'"{world.met_path}" metrics | head -n 1; "{world.met_path}" list --json | head -c 1; echo "${{PIPESTATUS[0]}}"'
    process = world.start("bash", "-c", script)
    out, err = process.communicate(timeout=DEADLINE_S)
    equal((err, out.splitlines()[-1][-1:]), (b"", b"0"), "stderr and exit code")


@test
def doctor_names_every_source(world):
    text = world.met("doctor", "--all").ok().out
    with open(os.path.join(REPOSITORY, "crates/met-sources/src/lib.rs")) as file:
        sources = re.findall(r"^    &(\w+)::SPEC,$", file.read(), re.MULTILINE)
    check(len(sources) >= 20, "the list of sources is not where it was", sources)
    for what in (*sources, "cgroups", "job cgroup", "task clock", "pressure", "daemon", "store"):
        check(re.search(rf"^(ok|part|no) +{what} ", text, re.MULTILINE), f"no {what} in:", text)
    findings = world.met("doctor", "--json").ok().json()
    check(all(finding["health"] in ("ok", "less", "no") and finding["detail"] for finding in findings), findings)
    user = world.someone() if os.geteuid() == 0 else world.me
    text = user.met("doctor").ok().out
    check("job cgroup" in text, text)
    left = [command for command in marked(world.token).values()]
    equal(left, [], "processes that doctor left")


@test
def doctor_begins_with_a_summary_and_folds_what_the_machine_lacks(world):
    findings = world.met("doctor", "--json").ok().json()
    # Each command measures how long entering a cgroup takes, and says so if it takes long.
    present = [finding for finding in findings if finding["cause"] != "absent" and finding["what"] != "cgroup entry"]
    good = [finding for finding in present if finding["health"] == "ok"]
    absent = [finding for finding in findings if finding["cause"] == "absent" and not finding["remedy"]]
    text = world.met("doctor").ok().out
    entry = re.findall(r"^(ok|part|no) +cgroup entry ", text, re.MULTILINE)
    check(text.startswith(f"{len(good) + entry.count('ok')} of {len(present) + len(entry)} ok"), text)
    folded = [line for line in text.splitlines() if line.startswith("no   not here")]
    equal(len(folded), 1 if absent else 0, "lines for all that is absent")
    for finding in absent:
        check(finding["what"] in folded[0] and finding["detail"] not in text, finding["what"], text)
        check(finding["detail"] in world.met("doctor", "--all").ok().out, finding)


@test
def a_list_says_why_a_job_failed_however_narrow_the_terminal_is(world):
    world.run_to_end("sh", "-c", "exit 3", options=("-n", "broken"))
    world.run_to_end("sh", "-c", "kill -9 $$", options=("-n", "killed"))
    for view in ("jobs", "cpu", "io", "mem", "energy", "all"):
        for columns in (60, 80, 200):
            terminal = world.terminal("list", view, env={"NO_COLOR": "1"}, columns=columns)
            equal(terminal.end(), 0, "exit code")
            check("ailed (3)" in terminal.text() and "ailed (KILL)" in terminal.text(), view, terminal.text())
            widest = max(len(line) for line in terminal.text().replace("\r", "").splitlines())
            check(widest <= columns, f"met list {view} is {widest} columns wide")


@test
def doctor_names_the_store_of_whoever_keeps_the_jobs(world):
    def store(user):
        return next(one["detail"] for one in user.met("doctor", "--json").ok().json() if one["what"] == "store")

    check(store(world.me).startswith(world.state), store(world.me))
    world.start_system_daemon()
    for user in (world.me, world.someone()):
        equal(store(user), f"{world.system_state}, of the system daemon", "store")


@test
def doctor_says_what_each_source_costs(world):
    costs = {line["source"]: line for line in world.met("doctor", "--cost", "--json").ok().json()}
    check({"cgroup", "process", "node", "block", "network"} <= costs.keys(), costs)
    for line in costs.values():
        each, ratio = line["reading_seconds"], line["core_ratio"]
        check(each is None or each >= 0 and abs(each - ratio * line["every_seconds"]) < 1e-9, line)


@test
def node_shows_the_machine_and_a_configured_meter(world):
    world.configure("sources:\n  ipmi: {command: 'echo Current Power : 221.5 Watts'}\n  network: off\n")
    found = world.met("node", "--json").ok().json()["tables"]
    with open("/proc/meminfo") as file:
        total = int(file.readline().split()[1]) * 1024
    machine = found["node"][0]
    equal((machine["memory_total_bytes"], machine["stale"]), (total, False), "memory of the machine")
    check(machine["cpu_idle_seconds_per_second"] >= 0 and machine["context_switches_per_second"] > 0, machine)
    equal([(row["sensor"], row["power_watts"]) for row in found["ipmi"]], [("node", 221.5)], "the meter")
    check("network" not in found, "network was switched off")
    text = world.met("node").ok().out
    for what in ("CPU ", "Memory ", "load ", r"Power +", r"node +222 W +by ipmi"):
        check(re.search(what, text), f"no {what} in:", text)
    world.configure("sources:\n  ipmi: {command: /no/such/program}\n")
    check("ipmi" not in world.met("node", "--json").ok().json()["tables"], "an error is no reading")


@test
def metrics_prints_the_catalogue(world):
    text = world.met("metrics").ok().out
    for name in ("met_job_cpu_seconds_total", "met_job_written_bytes_total", "met_source_"):
        check(name in text, f"no {name} in:", text[:400])
    check(world.met("metrics", "--markdown").ok().out.startswith("# Metrics"), "no Markdown")


@each(bash="bash", zsh="zsh", fish="fish")
def completions_are_made_for(world, shell):
    text = world.met("completions", shell).ok().out
    check("attach" in text and "cancel" in text, text[:300])
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=text.encode(), check=True, timeout=DEADLINE_S)


@test
def man_pages_are_written(world):
    world.met("man", "pages").ok()
    names = os.listdir(world.path("pages"))
    for name in ("met.1", "met-run.1", "met-time.1", "met-cancel.1"):
        check(name in names, f"no {name} among {names}")
        check(b".TH" in world.read(f"pages/{name}"), f"{name} is no man page")


@test
def help_has_an_example_for_every_command(world):
    text = world.met("--help").ok().out
    commands = re.findall(r"^  ([a-z]+) ", text.partition("Commands:")[2].partition("Options:")[0], re.MULTILINE)
    check(len(commands) > 10, text)
    for command in set(commands) - {"help"}:
        said = world.met(command, "--help").ok().out
        check("Example" in said and f"met {command}" in said, f"no example in the help of {command}")
    check(re.match(r"met \d+\.\d+", world.met("--version").ok().out), "no version")


@test
def config_prints_every_key(world):
    text = world.met("config").ok().out
    for key in ("sampling", "interval", "daemon", "idle_exit", "storage", "system"):
        check(key in text, f"no {key} in:", text)


@test
def a_system_daemon_keeps_the_course_of_the_machine(world):
    need_root()
    world.configure("storage:\n  interval: 1s\n")
    user = world.someone()
    world.start_system_daemon()
    check("no series of the machine are stored" in user.met("node", "--since", "1h").ok().out, "something was kept before the first job")
    job = user.run("sleep", "1000")

    def series():
        parts = user.met("node", "--since", "1h", "--json").ok().json()["series"]
        return {(part["table"], part["part"]): part for part in parts}

    def twice():
        found = series()
        return len(found.get(("node", ""), {}).get("times", [])) >= 2 and found

    found = eventually(twice, "two samples of the machine")
    node = found["node", ""]
    check(all(len(cells) == len(node["times"]) for cells in node["columns"].values()), node)
    check(node["columns"]["uptime_seconds"][1] > node["columns"]["uptime_seconds"][0] > 0, node["columns"])
    said = user.met("node", "--since", "1h").ok().out
    check("memory in use" in said and "load" in said, said)
    rows = user.met("node", "--since", "1h", "--csv").ok().out.splitlines()
    equal(rows[0], "time,table,part,column,value", "header")
    check(any(",node,,memory_total_bytes," in row for row in rows), rows[:5])
    check(user.met("node", "--since", "1m", "--json").ok().json()["series"], "the last minute")
    user.met("cancel", job).ok()
    # A user's own daemon keeps it if configured.
    world.stop_system_daemon()
    world.configure("storage:\n  interval: 1s\n  node_series: true\n")
    job = world.run("sleep", "1000")
    eventually(lambda: "load" in world.met("node", "--since", "1h").ok().out or None, "his own daemon keeps it")
    world.met("cancel", job).ok()


#: Sources the script and completes the words that follow as the shell itself would.
IN_BASH = """
    PATH="$1:$PATH"; source ./met.bash; shift
    COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
    "$(complete -p met | sed 's/.*-F \\([^ ]*\\).*/\\1/')" met "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
    printf '%s\\n' "${COMPREPLY[@]}"
"""
IN_FISH = """
    set -x PATH $argv[1] $PATH; source ./met.fish
    complete --do-complete (string join " " -- $argv[2..])
"""


def offered_by(world, shell, folder, words):
    """What a shell offers for the last of these words."""
    if shell == "zsh":
        return offered_by_zsh(world, folder, words)
    command = {"bash": ["bash", "-c", IN_BASH, "bash"], "fish": ["fish", "--no-config", "-c", IN_FISH]}[shell]
    out, err = world.start(*command, folder, "met", *words).communicate(timeout=DEADLINE_S)
    equal(err, b"", f"said by {shell} while completing")
    return [line.split("\t")[0] for line in out.decode().splitlines() if line]


def offered_by_zsh(world, folder, words):
    """Only its line editor completes: Control-D lists what it offers."""
    env = {"PATH": f"{folder}:{os.environ['PATH']}", "PS1": "", "HOME": world.path("")}
    terminal = Terminal(world.me, ["zsh", "-f", "-i"], env=env, columns=200, start=world.me.start)
    options = "unset zle_bracketed_paste; LISTMAX=9999; unsetopt prompt_sp always_last_prompt; autoload -Uz compinit; compinit -u -D"
    terminal.send(f"PS1='ready> '; {options}; source ./met.zsh; print set''up\n".encode())
    terminal.read_until(r"setup\r?\n[^\n]*ready> ")
    before = len(terminal.text())
    terminal.send(" ".join(["met", *words]).encode() + b"\x04")
    # The prompt comes again below what is offered.
    terminal.read_until(rf"(?s)\A.{{{before}}}.*ready> ")
    terminal.send(b"\x15exit\n")
    terminal.end()
    shown = ESCAPES.sub("", terminal.text()[before:])
    # With descriptions, a word is before two dashes.
    return [part.split()[0] for line in shown.splitlines() for part in re.split(r"\s{2,}(?!--)", line) if part.split()]


@each(bash="bash", zsh="zsh", fish="fish")
def a_shell_completes_states_jobs_and_names(world, shell):
    if not shutil.which(shell):
        raise Skip(f"{shell} is not installed")
    job = world.run("true", options=("-n", "train"))
    world.met("wait", job).ok()
    # A name that a shell would expand is not offered.
    world.run_to_end("true", options=("-n", "$(touch pwned)"))
    with open(world.path(f"met.{shell}"), "w") as file:
        file.write(world.met("completions", shell).ok().out)
    folder = os.path.join(world.root, "bin")
    os.mkdir(folder)
    os.symlink(world.met_path, os.path.join(folder, "met"))
    offered = lambda *words: offered_by(world, shell, folder, words)
    check("out_of_memory" in offered("list", "--state", ""), offered("list", "--state", ""))
    for command in ("show", "ack", "mute", "unmute"):
        check({job, "train", "@last"} <= set(offered(command, "")), f"{command}: {offered(command, '')}")
    for words in (("",), ("help", "")):
        found = offered(*words)
        check("show" in found and "notify-ended" not in found, f"{words}: {found}")
    if shell != "zsh":
        equal(offered("logs", "tr"), ["train"], "names that begin so")
    check(not os.path.exists(world.path("pwned")), "a name was executed")


@test
def what_cannot_be_completed_is_not_said(world):
    result = world.met("__complete", "jobs", env={"MET_CONFIG": "/nonexistent"})
    equal((result.code, result.out, result.err), (0, "", ""), "completing with a broken configuration")


@each(time="time", daemon="daemon")
def the_highest_log_level_prints_the_counters_of_each_round(world, who):
    if who == "time":
        said = world.met("-vv", "time", "--no-record", "--", "sleep", "0.2").ok().err
        check("cpu=" in said and "round " in said and "pid " in said, said)
        said = world.met("time", "--no-record", "--", "sleep", "0.2", env={"MET_LOG": "debug"}).ok().err
        check("round " in said and "cpu=" not in said, said)
        world.met("list", env={"MET_LOG": "loud"}).refused("MET_LOG=loud", "trace")
        return
    log = world.path("log")
    with open(log, "wb") as file, world.me.spawn("daemon", "--user", "-vv", stdout=file, stderr=file) as daemon:
        try:
            eventually(lambda: world.met("daemon", "--status").code == 0, "the daemon is up")
            job = world.run("sleep", "60")
            eventually(lambda: b"cpu=" in world.read("log"), lambda: world.read("log").decode())
            world.met("cancel", job).ok()
        finally:
            daemon.terminate()


@test
def words_that_people_type_point_to_the_command(world):
    for word, command in (("kill", "met cancel"), ("status", "met show"), ("log", "met logs"), ("top", "met list --watch")):
        world.met(word, "1").refused(command)


#: Commands that only read, by what is typed. Words of the second kind have no columns: all of them stay at any width.
READING = [
    "list", "list cpu", "list mem", "list io", "list gpu", "list energy", "list all", "show JOB", "show ENDED", "ps JOB", "ps ENDED",
    "compare JOB ENDED", "check", "who", "usage", "usage --by user", "node", "node --since 1h", "gpus", "logs ENDED",
    "daemon --status", "metrics", "emissions",
]
PROSE = ["config --current", "explain ENDED", "scale ENDED", "scale JOB", "configure", "doctor", "config", "check --fields", "show --help"]
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07")


def shown_at(world, words, columns):
    """The lines of a command at a terminal, without what only changes colours."""
    terminal = world.terminal(*words, columns=columns, env={"LC_ALL": "C.UTF-8", "LANG": "C.UTF-8"})
    code = terminal.end()
    check(code in (0, 1), f"met {' '.join(words)}: exit code {code}: {terminal.text()}")
    return ESCAPES.sub("", terminal.text()).replace("\r", "").splitlines()


def cells(line):
    """How wide a line is. None of these commands shows characters of two columns."""
    return sum(not unicodedata.combining(character) for character in line)


@test
def no_line_is_wider_than_the_terminal_and_no_word_is_broken(world):
    world.configure("sampling:\n  interval: 200ms\nperf:\n  events: [page_faults, task_clock, context_switches]\n")
    long = ["sh", "-c", "for i in 1 2 3; do sleep 0.3; done; echo a line of output", "with", "rather", "many", "arguments"]
    ended = world.run(*long, options=("-n", "a-job-with-a-rather-long-name-of-fifty-characters"))
    world.wait_for_state(ended, "finished")
    job = world.run("sh", "-c", "sleep 1000; true", "that", "waits", "for", "a", "very", "long", "time", "until", "it", "is", "cancelled")
    eventually(lambda: "memory_needed_peak_bytes" in world.show(job)["totals"], "a first sample")
    wide, lost = [], []
    for command in READING + PROSE:
        words = [{"JOB": job, "ENDED": ended}.get(word, word) for word in command.split()]
        lines = {columns: shown_at(world, words, columns) for columns in (60, 80, 200)}
        for columns, found in lines.items():
            # A path that is about as long as a line stays in one piece.
            in_one_piece = lambda line: any(word.startswith("/") and len(word) > columns - 24 for word in line.split())
            too_wide = [line for line in found if cells(line) > columns and not in_one_piece(line)]
            wide += [f"met {command} at {columns}: {line}" for line in too_wide]
            if command in PROSE:
                all_words = {word for line in lines[200] for word in line.split()}
                broken = {word for line in found for word in line.split()} ^ all_words
                lost += [f"met {command} at {columns}: {word}" for word in broken if any(one.isalpha() for one in word)]
    check(not wide, f"{len(wide)} lines are too wide:\n" + "\n".join(wide[:40]))
    check(not lost, f"{len(lost)} words are broken or cut:\n" + "\n".join(lost[:40]))
    world.met("cancel", job).ok()
