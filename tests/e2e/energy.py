"""Energy, CO2e and cost: who is charged what, by a meter and without one."""

import contextlib
import http.server
import json
import os
import signal
import socket
import threading
import time
import urllib.request

from configure import sample_times
from harness import Skip, check, close_to, equal, eventually, test
from robustness import no_daemon

PARTS = ["energy_cpu_joules", "energy_memory_joules", "energy_rest_joules"]
#: Keeps a CPU busy for a while, whatever else the machine does.
BUSY = "import time\nend = time.process_time() + {}\nwhile time.process_time() < end: pass\n"


def bmc(world, text, name="bmc"):
    """A program that answers as a controller does."""
    path = os.path.join(world.root, name)
    with open(path, "w") as file:
        file.write(f"#!/bin/sh\n{text}\n")
    os.chmod(path, 0o755)
    return path


def settled(world, job):
    """The job when its last window has been closed: its figures change no more."""
    seen = []

    def same():
        seen.append(world.me.show(job)["totals"].get("energy_joules"))
        return len(seen) > 6 and seen[-1] is not None and len(set(seen[-6:])) == 1

    eventually(same, "the energy is settled", pause_s=0.5)
    return world.me.show(job)


def check_sum(job):
    totals = job["totals"]
    # A part that no meter measures separately is absent.
    parts = sum(totals.get(part, 0) for part in PARTS) + totals.get("gpu_energy_joules", 0)
    close_to(parts, totals["energy_joules"], 1e-3, "the sum of the parts")
    check(0 <= totals["energy_idle_joules"] <= totals["energy_joules"], "idle is a part of it")


@test
def without_a_meter_energy_is_an_estimate_and_says_how_to_measure(world):
    world.configure("sources:\n  rapl: off\n  ipmi: off\n  hwmon: off\n  cray: off\n")
    job = world.me.time_to_end(world.python, "-c", BUSY.format(1.5))
    quality = job["quality"]["energy_joules"]
    equal(quality["kind"], "estimated", "kind")
    check("by CPU time" in quality["source"], quality)
    check(job["totals"]["energy_joules"] > 0, job["totals"])
    check_sum(job)
    said = world.me.met("show").ok().out
    check("met doctor" in said and "energy ~" in said, said)
    findings = {one["what"]: one for one in world.me.met("doctor", "--json").ok().json()}
    check(findings["energy"]["remedy"], findings["energy"])


@test
def a_meter_of_the_node_is_believed_and_the_job_is_charged_its_share(world):
    command = bmc(world, "echo 'Current Power : 200 Watts'")
    world.configure(
        f"sources:\n  rapl: off\n  ipmi:\n    command: {command}\n    every: 1s\nenergy:\n  idle_power: 80\n"
    )
    job = world.me.run(world.python, "-c", BUSY.format(6))
    world.me.wait_for_state(job, "finished")
    job = settled(world, job)
    totals = job["totals"]
    check("IPMI" in job["quality"]["energy_joules"]["source"], job["quality"]["energy_joules"])
    # It cannot be charged more than the power above idle, for as long as it and the last window lasted.
    check(0 < totals["energy_joules"] <= 120 * (totals["wall_seconds"] + 5), totals)
    equal(totals["energy_idle_joules"], 0.0, "it was given no CPUs")
    check_sum(job)


@test
def a_controller_that_takes_four_seconds_delays_no_sample(world):
    asked = world.me.path("asked")
    command = bmc(world, f"echo $$ >> {asked}; sleep 4; echo 'Current Power : 200 Watts'")
    world.configure(f"sources:\n  ipmi:\n    command: {command}\n    every: 1s\nsampling:\n  interval: 200ms\n")
    job = world.me.run("sleep", "1000")
    world.me.appears("asked")

    def questions():
        with open(asked) as file:
            return len(file.read().split())

    eventually(lambda: questions() >= 4, "three questions that were answered and one more")
    times_ms = sample_times(world.me, job)
    gap_ms = max(later - earlier for earlier, later in zip(times_ms, times_ms[1:]))
    # A busy machine may delay a sample by two seconds; one that waited for the controller would be four seconds late.
    check(len(times_ms) > 10 and gap_ms <= 2 * 200 + 2000, f"{len(times_ms)} samples, the largest gap is {gap_ms} ms")
    eventually(lambda: "energy_joules" in world.me.show(job)["totals"], "energy by estimate meanwhile")
    def metered():
        source = world.me.show(job)["quality"].get("energy_joules", {}).get("source", "")
        return "IPMI" in source

    eventually(metered, "a window that the controller measured")
    world.me.met("cancel", job).ok()


@test
def a_machine_without_jobs_is_looked_at_now_and_then(world):
    log = os.path.join(world.root, "asked")
    command = bmc(world, f"echo asked >> {log}; echo 'Current Power : 200 Watts'")
    os.close(os.open(log, os.O_CREAT | os.O_WRONLY, 0o666))
    os.chmod(log, 0o666)
    world.configure(f"sources:\n  rapl: off\n  ipmi:\n    command: {command}\n    every: 1s\n")
    job = world.me.run("sleep", "3")
    world.me.wait_for_state(job, "finished")
    settled(world, job)

    def asked():
        with open(log) as file:
            return len(file.readlines())

    before = asked()
    # Its jobs are settled, so only the look at rest queries the controller again.
    eventually(lambda: asked() >= before + 3, "the controller is asked without a job")
    findings = {one["what"]: one for one in world.me.met("doctor", "--json").ok().json()}
    check("idle power" in findings, findings)
    world.me.stop_daemon()


def page(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        return answer.read().decode()


def shares(port):
    """What the page says of the machine's energy, by share, in joules."""
    lines = [line for line in page(port).splitlines() if line.startswith("met_energy_used_joules_total{")]
    return {line.split('share="')[1].split('"')[0]: float(line.split()[-1]) for line in lines}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def balanced(world):
    findings = {one["what"]: one for one in world.me.met("doctor", "--json").ok().json()}
    check("balanced to the µJ since" in findings["ledger"]["detail"], findings["ledger"])
    check("balanced to the µJ since" in world.me.met("daemon", "--status").ok().out, "the status says so, too")


@test
def what_is_counted_while_the_daemon_is_stopped_is_shared_by_what_jobs_did(world):
    command = bmc(world, "echo 'Current Power : 200 Watts'")
    port = free_port()
    world.configure(
        f"sources:\n  rapl: off\n  nvidia: off\n  drm: off\n  ipmi:\n    command: {command}\n    every: 1s\n"
        f"energy:\n  idle_power: 80\nhttp:\n  listen: 127.0.0.1:{port}\n"
    )
    job = world.me.run(world.python, "-c", "while True: pass")
    pid = world.me.daemon_pid()
    eventually(lambda: sum(shares(port).values()) > 1000, "the meter of the node is read")
    before, since = sum(shares(port).values()), time.monotonic()
    os.kill(pid, signal.SIGSTOP)
    time.sleep(25)
    os.kill(pid, signal.SIGCONT)

    def counted():
        # 200 W all the time; the last windows may be some seconds old, and no 25.
        elapsed = time.monotonic() - since
        return sum(shares(port).values()) - before >= 200 * (elapsed - 10)

    eventually(counted, "the time of the stop is counted")
    found = shares(port)
    equal(found["unassigned"], 0.0, "all of it is assigned")
    world.me.met("cancel", job).ok()
    quality = settled(world, job)["quality"]["energy_joules"]
    equal(quality["kind"], "attributed", "kind")
    check("across missing readings" in quality["source"], quality)
    balanced(world)


@test
def one_wrong_reading_of_a_controller_is_no_energy(world):
    count = os.path.join(world.root, "asked")
    with open(count, "w") as file:
        file.write("0")
    os.chmod(count, 0o666)
    command = bmc(
        world,
        f"n=$(cat {count}); echo $((n + 1)) > {count}\n"
        "if [ $n = 6 ]; then echo 'Current Power : 65535 Watts'; else echo 'Current Power : 200 Watts'; fi",
    )
    world.configure(
        f"sources:\n  rapl: off\n  nvidia: off\n  drm: off\n  ipmi:\n    command: {command}\n    every: 1s\n"
        "energy:\n  idle_power: 80\n"
    )

    def asked():
        with open(count) as file:
            return int(file.read().strip() or 0)

    job = world.me.run(world.python, "-c", "while True: pass")
    eventually(lambda: asked() > 12, "the wrong reading is among others")
    world.me.met("cancel", job).ok()
    totals = settled(world, job)["totals"]
    # It cannot be charged more than the power above idle, for as long as it and the last window lasted.
    check(0 < totals["energy_joules"] <= 120 * (totals["wall_seconds"] + 5), totals)
    quality = world.me.show(job)["quality"]["energy_joules"]
    check("across missing readings" in quality["source"], quality)
    balanced(world)


def this_machine():
    """How the file of idle power names the machine that it belongs to."""

    def read(path):
        try:
            with open(path) as file:
                return file.read()
        except OSError:
            return ""

    board = " ".join(read(f"/sys/class/dmi/id/{name}").strip() for name in ("sys_vendor", "product_name", "board_name"))
    cpuinfo = [line.partition(":") for line in read("/proc/cpuinfo").splitlines()]
    models = [value.strip() for key, _, value in cpuinfo if key.strip() == "model name"]
    sockets = {value.strip() for key, _, value in cpuinfo if key.strip() == "physical id"}
    cpus = sum(line[:3] == "cpu" and line[3:4].isdigit() for line in read("/proc/stat").splitlines())
    kibibytes = int(read("/proc/meminfo").split("MemTotal:")[1].split()[0])
    gibibytes = (kibibytes * 1024 + (1 << 29)) >> 30
    model = models[0] if models else ""
    return f"{board}; {max(1, len(sockets))} of {model}, {cpus} CPUs, {gibibytes} GiB"


@test
def what_was_learned_at_rest_holds_for_the_first_job_after_a_restart(world):
    command = bmc(world, "echo 'Current Power : 200 Watts'")
    # A real card's power is no part of what this controller says.
    world.configure(f"sources:\n  rapl: off\n  nvidia: off\n  drm: off\n  ipmi:\n    command: {command}\n    every: 1s\n")
    first = world.me.run("sleep", "1000")
    world.me.daemon_pid()
    world.me.met("cancel", first).ok()
    world.me.stop_daemon()
    learned = {"meters": "IPMI", "idle_mw": [0, 0, 0, 150000], "how": "quiet", "at_ns": time.time_ns()}
    path = os.path.join(world.me.store_folder(), "idle-power.json")
    with open(path, "w") as file:
        json.dump({"machine": this_machine(), "learned": [learned]}, file)
    os.chmod(path, 0o644)
    job = world.me.run(world.python, "-c", BUSY.format(8))
    world.me.wait_for_state(job, "finished")
    totals = settled(world, job)["totals"]
    # Of 200 W no more than 50 W are anybody's doing.
    check(0 < totals["energy_joules"] <= 50 * (totals["wall_seconds"] + 5), totals)
    source = world.me.show(job)["quality"]["energy_joules"]["source"]
    check("IPMI" in source and "idle power estimated" not in source, source)
    findings = {one["what"]: one for one in world.me.met("doctor", "--json").ok().json()}
    check("by IPMI" in findings["idle power"]["detail"], findings["idle power"])


@test
def what_the_daemon_owes_is_settled_when_it_leaves(world):
    world.configure("sources:\n  rapl: off\nsampling:\n  interval: 500ms\n")
    job = world.me.run(world.python, "-c", BUSY.format(1.5))
    world.me.wait_for_state(job, "finished")
    world.me.stop_daemon()
    totals = world.me.show(job)["totals"]
    check(totals.get("energy_joules", 0) > 0, totals)


@test
def a_list_of_energy_has_units_and_marks(world):
    world.configure("sources:\n  rapl: off\nenergy:\n  price: 0.25\n  currency: CHF\n  pue: 1.2\nemissions:\n  country: FRA\n")
    job = world.me.time_to_end(world.python, "-c", BUSY.format(1.5))
    check("average of France" in job["emission"]["factor_source"], job["emission"])
    kilowatt_hours = job["totals"]["energy_joules"] / 3.6e6 * 1.2
    close_to(job["totals"]["cost_money"], kilowatt_hours * 0.25, 0.05, "the cost")
    grams = kilowatt_hours * job["emission"]["factor_grams_per_kilowatt_hour"]
    close_to(job["totals"]["emissions_grams"], grams, 0.05, "the emissions")
    text = world.me.met("list", "energy").ok().out
    for word in ("ENERGY", "CO2E", "COST", "CHF", "estimated", "~"):
        check(word in text, f"no {word!r} in {text!r}")
    rows = world.me.met("list", "energy", "--csv").ok().out.splitlines()
    check(rows[0].startswith("job,"), rows[0])
    check("energy_joules" in rows[0] and "emissions_grams" in rows[0], rows[0])


@test
def corrected_factors_are_applied_to_jobs_that_are_over(world):
    world.configure("sources:\n  rapl: off\nemissions:\n  provider: constant\n  factor: 100\n")
    before = world.me.time_to_end(world.python, "-c", BUSY.format(1.5))["totals"]["emissions_grams"]
    world.me.met("emissions", "set", "400", "--since", "1d").ok()
    said = world.me.met("emissions", "recompute").ok().out
    check(said.startswith("emissions of 1 job updated"), said)
    after = world.me.show()
    close_to(after["totals"]["emissions_grams"], 4 * before, 0.05, "four times as much")
    equal(after["emission"]["factor_source"], "set by hand", "source")
    check("400 g/kWh" in world.me.met("emissions").ok().out, "the factor is shown")
    # The same by a daemon that holds the store.
    job = world.me.run("sleep", "1000")
    world.me.daemon_pid()
    world.me.met("emissions", "set", "200", "--since", "1d").ok()
    world.me.met("emissions", "recompute", "--since", "1h").ok()
    close_to(world.me.show("1")["totals"]["emissions_grams"], 2 * before, 0.05, "twice as much")
    # Setting the same once more changes no figure.
    world.me.met("emissions", "set", "200", "--since", "2d").ok()
    equal(world.me.met("emissions", "recompute").ok().out, "emissions of 0 jobs updated\n", "what changed")
    check("Removed." in world.me.met("emissions", "unset").ok().out, "nothing was taken back")
    check("200 g/kWh" not in world.me.met("emissions").ok().out, "it still holds")
    check("Nothing was set" in world.me.met("emissions", "unset", "--since", "1h").ok().out, "something was left")
    equal(world.me.met("emissions", "recompute").ok().out, "emissions of 1 job updated\n", "what changed")
    close_to(world.me.show("1")["totals"]["emissions_grams"], before, 0.05, "as in the beginning")
    world.me.met("emissions", "unset", "--since", "1h", "--until", "2h").refused("--until")
    world.me.met("cancel", job).ok()


@test
def a_provider_is_asked_in_the_background_and_its_word_is_kept(world):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            record = {"date_heure": "2026-03-01T10:15:00+00:00", "taux_co2": 34}
            body = json.dumps({"results": [record]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/records"
    world.configure(
        f"emissions:\n  provider: rte\n  url: {url}\n  max_age: 36500d\nstorage:\n  interval: 1s\nsources:\n  rapl: off\n"
    )
    job = world.me.run("sleep", "1000")

    def asked():
        emission = world.me.show(job).get("emission") or {}
        return emission.get("factor_source") == "rte eco2mix" and emission

    emission = eventually(asked, "the provider's factor is used")
    equal(emission["factor_grams_per_kilowatt_hour"], 34.0, "factor")
    equal(emission["factor_time"], "2026-03-01T10:15:00.000000Z", "time of the factor")
    check("rte eco2mix" in world.me.met("emissions").ok().out, "it is kept")
    world.me.met("cancel", job).ok()
    server.shutdown()


@test
def what_a_provider_tells_after_an_outage_is_applied_to_jobs_that_are_over(world):
    away = threading.Event()
    away.set()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            if away.is_set():
                self.send_error(503)
                return
            hour = time.strftime("%Y-%m-%dT%H:00:00+00:00", time.gmtime(time.time() - 3600))
            body = json.dumps({"results": [{"date_heure": hour, "taux_co2": 900}]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    world.configure(
        f"emissions:\n  provider: rte\n  url: http://127.0.0.1:{server.server_port}/records\nsources:\n  rapl: off\n"
    )
    before = world.me.time_to_end(world.python, "-c", BUSY.format(1.5))
    check("France" in before["emission"]["factor_source"], before["emission"])
    # While it is away, what is known is all there is.
    said = world.me.met("emissions", "recompute").ok()
    check("has no past values" in said.err and said.out.startswith("emissions of 0 jobs"), said.err, said.out)
    away.clear()
    said = world.me.met("emissions", "recompute", "--since", "1d").ok()
    check(said.out.startswith("emissions of 1 job updated"), said.out)
    after = world.me.show()
    equal(after["emission"]["factor_source"], "rte eco2mix", "source")
    grams = after["totals"]["energy_joules"] / 3.6e6 * 900
    close_to(after["totals"]["emissions_grams"], grams, 0.01, "emissions by the provider's factor")
    server.shutdown()


@test
def settings_that_do_not_fit_are_refused_with_their_line(world):
    world.configure("emissions:\n  country: Atlantis\n")
    world.me.met("list").refused("met.yaml:4", "Atlantis")
    world.configure("emissions:\n  provider: constant\n")
    world.me.met("list").refused("emissions.factor")


@test
def the_parts_of_the_last_window_add_up_to_the_meter(world):
    command = bmc(world, "echo 'Current Power : 150 Watts'")
    world.configure(f"sources:\n  ipmi:\n    command: {command}\n    every: 1s\n")
    job = world.me.run(world.python, "-c", BUSY.format(1000))

    def window():
        energy = world.me.met("node", "--json").ok().json()["energy"]
        return energy if energy and energy["meter"] == "IPMI" and energy["jobs_joules"] > 0 else None

    energy = eventually(window, "a window that the controller measured")
    parts = round(energy["jobs_joules"] * 1e6) + round(energy["system_joules"] * 1e6) + round(energy["idle_joules"] * 1e6)
    equal(parts, round(energy["whole_joules"] * 1e6), "jobs + system + idle")
    world.me.met("cancel", job).ok()


@test
def energy_of_an_attached_job_whose_children_left_its_tree_is_a_lower_bound(world):
    """Orphans are not in the tree that is sampled; the clock that they inherited counts them."""
    world.configure("sources:\n  rapl: off\nsampling:\n  interval: 100ms\n")
    with open(world.path("busy.py"), "w") as file:
        file.write(BUSY.format(0.3))
    orphans = f"for i in 1 2 3 4 5; do ( setsid {world.python} busy.py & ); sleep 0.4; done; sleep 1"
    process = world.start("sh", "-c", f"while [ ! -e go ]; do sleep 0.02; done; {orphans}")
    job = world.met("attach", str(process.pid), "--print-id").ok().out.strip()
    eventually(lambda: "energy_joules" in world.show(job)["totals"], "it is being sampled")
    open(world.path("go"), "w").close()
    process.communicate()
    world.met("wait", job).ok()
    record = world.show(job)
    if record["quality"]["cpu_seconds"]["source"] != "perf task-clock":
        raise Skip("no perf events")
    equal(record["quality"]["energy_joules"]["kind"], "lower_bound", f"quality of {record['totals']}")
    check("energy of processes that left the tree of the attached process" in world.met("show", job).ok().out, "no note")


#: Keeps a CPU busy until a file is there.
BUSY_UNTIL = "import os\nheld = bytearray(40 << 20)\nwhile not os.path.exists('stop'): sum(range(20000))\n"


def bounds(record):
    """Figures of samples that say that they are a lower bound."""
    wanted = ("energy_joules", "memory_needed_peak_bytes", "cpu_peak_cores")
    kinds = {name: record["quality"].get(name, {}).get("kind") for name in wanted}
    return {name for name, kind in kinds.items() if kind == "lower_bound"}, kinds


@test
def energy_and_peaks_before_a_daemon_was_killed_are_missing_and_said_to_be(world):
    world.configure("sources:\n  rapl: off\n  ipmi: off\n  hwmon: off\n  cray: off\n")
    job = world.me.run(world.python, "-c", BUSY_UNTIL)
    first = world.me.daemon_pid()
    eventually(lambda: world.me.show(job)["totals"].get("energy_joules", 0) > 5, "it is charged")
    time.sleep(3)
    os.kill(first, signal.SIGKILL)
    eventually(lambda: world.me.daemon_pid() != first, "another daemon answers")
    eventually(lambda: world.me.show(job)["totals"].get("energy_joules", 0) > 1, "it is charged again")
    eventually(lambda: "memory_needed_peak_bytes" in world.me.show(job)["totals"], "its memory is sampled")
    found, kinds = bounds(world.me.show(job))
    check({"energy_joules", "memory_needed_peak_bytes"} <= found, "while it runs:", kinds)
    check("energy ≥" in world.me.met("show", job).ok().out, world.me.met("show", job).out)
    open(world.me.path("stop"), "w").close()
    world.me.wait_for_state(job, "finished")
    found, kinds = bounds(settled(world, job))
    check({"energy_joules", "memory_needed_peak_bytes"} <= found, "at its end:", kinds)


@test
def a_job_that_outlives_its_daemon_has_what_was_sampled_of_it(world):
    world.configure("sources:\n  rapl: off\n  ipmi: off\n  hwmon: off\n  cray: off\nenergy:\n  price: 0.25\n  currency: CHF\n")
    job = world.me.run(world.python, "-c", BUSY_UNTIL)
    world.me.daemon_pid()
    seen = eventually(lambda: (lambda totals: totals.get("energy_joules", 0) > 5 and "memory_needed_peak_bytes" in totals
                               and totals)(world.me.show(job)["totals"]), "it is charged")
    world.me.stop_daemon()
    time.sleep(3)
    open(world.me.path("stop"), "w").close()
    world.me.wait_for_state(job, "finished")
    for when in ("without a daemon", "with the next one"):
        record = world.me.show(job)
        totals = record["totals"]
        check(totals.get("energy_joules", 0) >= seen["energy_joules"], when, totals)
        check(totals.get("memory_needed_peak_bytes", 0) >= seen["memory_needed_peak_bytes"], when, totals)
        found, kinds = bounds(record)
        check({"energy_joules", "memory_needed_peak_bytes"} <= found, when, kinds)
        check(record["quality"]["cost_money"]["source"].startswith("CHF"), when, record["quality"].get("cost_money"))
        world.me.import_jobs()


@contextlib.contextmanager
def no_daemon_after(user, job, condition):
    """Kills the daemon when that is so and it has stored some, and keeps others from taking over."""
    eventually(condition, "before the daemon is killed")
    time.sleep(2)
    with no_daemon(user, job):
        yield


@test
def a_job_that_outlives_a_killed_daemon_has_its_stored_samples(world):
    world.configure("sources:\n  rapl: off\n  ipmi: off\n  hwmon: off\n  cray: off\nstorage:\n  interval: 1s\n")
    job = world.me.run(world.python, "-c", BUSY_UNTIL)
    with no_daemon_after(world.me, job, lambda: world.me.show(job)["totals"].get("energy_joules", 0) > 5):
        time.sleep(3)
        open(world.me.path("stop"), "w").close()
        world.me.wait_for_state(job, "finished")
    world.me.import_jobs()
    found, kinds = bounds(world.me.show(job))
    check({"energy_joules", "memory_needed_peak_bytes"} <= found, kinds)
