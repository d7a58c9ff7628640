"""Containers of a real Podman are jobs."""

from harness import Ground, check, equal, eventually, test

GROUND = Ground("podman")


def found(world, container):
    result = world.met("show", f"podman:{container}", "--json")
    return result.json() if result.code == 0 else None


@test
def a_container_is_a_job_with_its_name(world):
    world.configure("sampling:\n  interval: 1s\njobs:\n  discover: true\n  plain: off\n")
    world.start_system_daemon()
    burn = "i=0; while [ $i -lt 2000000 ]; do i=$((i+1)); done; exec /bin/busybox sleep 1000"
    container = GROUND.command(
        "podman", "run", "--detach", "--name", "e2e-train", "--network=none", "--memory=64m",
        "busybox", "/bin/sh", "-c", burn)
    try:
        record = eventually(lambda: found(world, container), "the container is found")
        equal((record["job"]["manager"], record["job"]["state"]), ("podman", "running"), "manager and state")
        eventually(lambda: found(world, container)["totals"].get("cpu_seconds", 0) > 0.5, "its CPU time is counted")
        eventually(lambda: found(world, container)["job"]["name"] == "e2e-train", "its name is known")
        # Its directory is there a moment before its limits are.
        eventually(lambda: found(world, container)["allocated"].get("memory_bytes") == 64 << 20,
                   lambda: f"memory that it may use: {found(world, container)['allocated']}")
        world.met("cancel", f"podman:{container}").refused("podman stop", code=1)
    finally:
        GROUND.command("podman", "rm", "--force", "--time", "0", container)
    record = eventually(lambda: ended(found(world, container)), "its end is seen")
    check(record["totals"]["cpu_seconds"] > 0.5, f"CPU: {record['totals']}")


def ended(record):
    return record if record["job"]["end"] else None


@test
def a_container_that_a_job_starts_is_in_its_figures(world):
    world.configure("sampling:\n  interval: 200ms\n")
    # Its processes are in a cgroup of their own; the loop takes seconds.
    burn = "i=0; while [ $i -lt 1500000 ]; do i=$((i+1)); done; read line </proc/1/stat; echo $line"
    command = [GROUND.path("bin/podman"), "run", "--rm", "--network=none", "busybox", "/bin/sh", "-c", burn]
    result = world.met("time", "--all", "--json", "--", *command).ok()
    fields = result.out.rpartition(")")[2].split()
    truth = (int(fields[11]) + int(fields[12])) / 100
    job = world.show()
    cpu, quality = job["totals"]["cpu_seconds"], job["quality"]["cpu_seconds"]
    check(cpu >= 0.97 * truth, f"{cpu} s of {truth} s in the container alone ({quality})")
    # The engine itself is part of the job and uses less than its container did.
    check(cpu < 2 * truth + 1.5, f"{cpu} s, of which {truth} s in the container ({quality})")
    equal(job["quality"]["memory_peak_bytes"]["kind"], "lower_bound", "kind of the peak, which lacks the container")
