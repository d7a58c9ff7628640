"""GPUs of jobs that others start, on a machine whose NVIDIA library plays a script."""

import contextlib
import glob
import os
import shutil

from discovery import managed, slurm
from harness import DEADLINE_S, Skip, check, equal, eventually, test

CARDS = "".join(
    f"card {number} uuid=GPU-{number} name=Fake power=70000 util=0 memory=0 total=8000 temperature=40\n"
    for number in range(2))

#: Root's process that becomes a user's, as one that a manager starts.
BECOME = "import os, time\nos.setgid(1)\nos.setuid(1)\ntime.sleep(1000)"


def played(world):
    """The library that the unit tests are built with, and its script; the path of the library."""
    built = os.path.join(os.path.dirname(os.path.dirname(os.environ["MET"])), "*", "deps", "libnvml_fake.so")
    found = glob.glob(built)
    if not found:
        raise Skip("libnvml_fake.so was not built: cargo test -p met --no-run")
    library = os.path.join(world.root, "libnvidia-ml.so.1")
    shutil.copy(found[0], library)
    with open(os.path.join(world.root, "script"), "w") as file:
        file.write(CARDS)
    return library


@contextlib.contextmanager
def manager_with_cards(world):
    manager = managed(world, f"gpu:\n  nvml: {played(world)}\nsampling:\n  interval: 200ms\n")
    try:
        manager.make(manager.home)
        yield manager
    finally:
        manager.close()


@test
def a_found_job_holds_its_card_at_once_and_not_by_who_waits_in_it(world):
    with manager_with_cards(world) as manager:
        world.start_system_daemon()
        waits = manager.start(manager.job(7, uid=1, task="step_extern/task_0"), "sleep", "100000000")
        eventually(lambda: "7" in slurm(world), "the job is seen")
        environ = {**os.environ, "SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "held", "SLURM_JOB_GPUS": "1",
                   "CUDA_VISIBLE_DEVICES": "0"}
        path = manager.job(7, uid=1, task="step_batch/task_0")
        script = manager.start(path, world.python, "-c", BECOME, env=environ)
        gpu, = eventually(lambda: slurm(world)["7"]["gpus"], "it holds a card")
        equal((gpu["index"], gpu["held_by"]), ("1", "SLURM_JOB_GPUS"), "card")
        job = eventually(lambda: slurm(world)["7"]["gpus"][0]["idle_since"] and slurm(world)["7"], "it idles")["job"]
        equal((job["name"], job["command"]), ("held", [world.python, "-c", BECOME]), "name and command")
        cards = {card["index"]: card["users"] for card in world.met("gpus", "--json").ok().json()}
        equal([(user["job"], user["idle"]) for user in cards["1"]], [("slurm:7", True)], "users of card 1")
        equal(cards["0"], [], "users of card 0")
        for process in (script, waits):
            process.kill()
            process.wait()


def write_script(world, more):
    with open(os.path.join(world.root, "script"), "w") as file:
        file.write(CARDS + more)


@test
def a_card_that_hangs_is_in_the_table(world):
    world.configure(f"gpu:\n  nvml: {played(world)}\n")
    write_script(world, "delay nvmlDeviceGetUUID 0 3600000\n")
    result = world.met("gpus").ok()
    lines = {line.split()[0]: line for line in result.out.splitlines()}
    check("does not answer" in lines["0"] and "70.0 W" not in lines["0"], result.out)
    check("70.0 W" in lines["1"], result.out)
    errors = {card["index"]: card["error"] for card in world.met("gpus", "--json").ok().json()}
    check("does not answer" in errors["0"] and errors["1"] is None, errors)
    equal(world.met("gpus", "--free").ok().out.strip(), "1", "a card that can be used")
    machine = world.met("node", "--json").ok().json()
    equal([row["index"] for row in machine["tables"]["gpu"]], ["1"], "cards that were read")
    (error,) = machine["gpu_errors"]
    check(error["index"] == "0" and "does not answer" in error["error"], error)


@test
def watched_cards_are_refreshed(world):
    world.configure(f"gpu:\n  nvml: {played(world)}\n")
    terminal = world.terminal("gpus", "--watch")
    terminal.read_until("70.0 W")
    with open(os.path.join(world.root, "script"), "w") as file:
        file.write(CARDS.replace("power=70000", "power=123000"))
    text = terminal.read_until("123 W")
    check(text.count("\x1b[H") >= 2, "drawn once only")
    terminal.send(b"\x03")
    terminal.end()


@test
def a_driver_that_hangs_keeps_nothing_else_of_the_machine(world):
    world.configure(f"gpu:\n  nvml: {played(world)}\n")
    write_script(world, "delay nvmlInit 0 3600000\n")
    process = world.me.spawn("node")
    shown = b""
    while b"Memory" not in shown:
        line = process.stdout.readline()
        check(line, f"no memory in {shown!r}")
        shown += line
    check(process.poll() is None, "it does not wait for the cards")
    # They are shown when they answer, or that they do not.
    out, _ = process.communicate(timeout=DEADLINE_S)
    check(b"GPUs" in out and b"does not answer" in out, out)
    (error,) = world.met("node", "--json").ok().json()["gpu_errors"]
    check(error["index"] is None and "does not answer" in error["error"], error)
    write_script(world, "")
    check("gpu_errors" not in world.met("node", "--json").ok().json(), "a driver that answers")
    check("GPU 0 Fake" in world.met("node").ok().out, "the cards of a driver that answers")


@test
def how_many_gpus_there_were_is_in_the_sums_of_the_machine(world):
    world.configure(f"gpu:\n  nvml: {played(world)}\nstorage:\n  node_series: true\nnode:\n  interval: 500ms\nsampling:\n  interval: 500ms\n")
    world.met("run", "--wait", "--out", "/dev/null", "--err", "/dev/null", "--", "sleep", "5").ok()
    # A daemon adds up what is there when it starts.
    world.met("daemon", "--stop").ok()
    world.met("run", "--out", "/dev/null", "--err", "/dev/null", "--", "sleep", "1000").ok()
    machines = lambda: world.met("usage", "--by", "node", "--since", "1h", "--json").ok().json()["machines"]
    summed = lambda: [one for one in machines() if one["hours_measured"] > 0]
    (machine,) = eventually(summed, "the machine is summed")
    check(machine["gpu_hours"] is not None, machine)
    share = machine["gpu_hours"] / machine["hours_measured"]
    check(1.9 <= share <= 2.001, f"two GPUs, as long as the machine was measured: {machine}")
    equal(machine["gpu_hours_free"], None, "what is free, where no scheduler gives anything")
    world.met("cancel", "2").ok()
