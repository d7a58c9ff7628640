"""One number space for all users of a machine: also on a full disk, and while the system daemon is stopped."""

import ctypes
import os
import signal

from daemons import SHARED_IDS_END
from harness import OWN_IDS_FROM, Skip, check, equal, eventually, need_root, test
from robustness import fill
from users import two_users


def system_state_on_a_small_disk(world):
    """In a mount namespace of the test's own: goes away with it. Without a filler a log of the database fits."""
    need_root()
    os.makedirs(world.system_state, mode=0o700)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(0x20000) != 0:
        raise Skip("no mount namespace can be made")
    libc.mount(b"none", b"/", None, 0x4000 | 0x40000, None)
    if libc.mount(b"tmpfs", world.system_state.encode(), b"tmpfs", 0, b"size=4m,mode=700") != 0:
        raise Skip("no tmpfs can be mounted")


def at_once(users, round_):
    """A job of each user, all at the same time; their ids."""
    start = lambda user: user.spawn("run", "--wait", "--print-id", "-n", f"u{user.uid}_{round_}", "--", "true")
    started = [(user, start(user)) for user in users]
    return [user.finish(process, ("run",)).ok().out.strip() for user, process in started]


def names(world):
    return sorted(job["job"]["name"] for job in world.jobs("--limit", "100"))


@test
def a_full_disk_gives_no_id_twice_and_loses_no_record(world):
    alice, bob = two_users(world)
    carol = world.named_user("mail")
    users = (alice, bob, carol)
    # Their own numbers are ahead of those of a daemon that has given none.
    for user in users:
        for _ in range(3):
            user.met("run", "--wait", "--", "true").ok()
        # A job that ends at once may start no daemon; its end would go to the system's.
        if user.waiting():
            user.import_jobs()
        user.stop_daemon()
    system_state_on_a_small_disk(world)
    world.start_system_daemon()
    given = at_once(users, 0)
    fill(world.system_state)
    given += [job for round_ in range(1, 3) for job in at_once(users, round_)]
    equal(len(set(given)), len(given), f"ids of {given}")
    expected = sorted(f"u{user.uid}_{round_}" for user in users for round_ in range(3))
    equal(names(world), expected, "root's list, while the disk is full")
    for job in given:
        for command in ("show", "wait"):
            check(world.met(command, job).code == 0, f"root's {command} of {job}")
    world.show(f"{alice.name}/{given[0]}")
    # Those that the daemon has in memory alone are gone with it.
    world.stop_system_daemon(signal.SIGKILL)
    os.unlink(os.path.join(world.system_state, "filler"))
    world.start_system_daemon()
    fill(world.system_state)
    more = at_once(users, 3)
    equal(len(set(given + more)), len(given) + 3, f"ids of {given + more}")
    os.unlink(os.path.join(world.system_state, "filler"))
    # A command of a user hands over what the daemon does not have.
    last = at_once(users, 4)
    equal(len(set(given + more + last)), len(given) + 6, "ids afterwards")
    expected = sorted(f"u{user.uid}_{round_}" for user in users for round_ in range(5))
    eventually(lambda: names(world) == expected, lambda: f"{names(world)} instead of {expected}")
    # Who hands over an end with a number of its own removes the copy of it afterwards.
    for user in users:
        eventually(lambda: not any(int(job) > OWN_IDS_FROM for job in user.waiting()), lambda: f"left: {user.waiting()}")


@test
def ids_stay_unique_while_the_system_daemon_is_stopped(world):
    alice, bob = two_users(world)
    users = (alice, bob, world.me)
    world.start_system_daemon()
    before = at_once(users, 0)
    world.me.met("daemon", "--stop").ok()
    eventually(lambda: world.system.poll() is not None, "it is stopped")
    meanwhile = at_once(users, 1)
    check(all(int(job) > SHARED_IDS_END for job in meanwhile), f"ids without a daemon: {meanwhile}")
    world.start_system_daemon()
    after = at_once(users, 2)
    every = before + meanwhile + after
    equal(len(set(every)), len(every), f"ids of {every}")
    check(all(int(job) < SHARED_IDS_END for job in before + after), f"ids of a daemon: {before + after}")
    for job in before + after:
        world.show(job)
    equal([user.show(job)["job"]["name"] for user, job in zip(users, meanwhile)],
          [f"u{user.uid}_1" for user in users], "names")
