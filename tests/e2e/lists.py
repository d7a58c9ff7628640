"""Lists by any condition and column, tags and notes, from files, a daemon and a server."""

import os

from harness import check, equal, eventually, need_root, test

SLEEP = "while :; do sleep 0.05; done"


def ids(world, *options):
    """The jobs of a list, in its order."""
    return [one["job"]["id"] for one in world.met("list", "--json", *options).expect(0).json()]


def finish(world, name, *command):
    world.met("run", "--wait", "--name", name, "--", *command)
    return ids(world, "--limit", "1")[0]


@test
def jobs_are_filtered_and_sorted_from_files_and_by_a_daemon(world):
    short = finish(world, "b", "true")
    long = finish(world, "c", "sh", "-c", "sleep 5 # needle")
    busy = finish(world, "a", "sh", "-c", "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done")
    running = world.run("sh", "-c", SLEEP)
    everything = {short, long, busy, running}

    def answers():
        equal(ids(world, "--sort", "name", "--state", "finished"), [busy, short, long], "by name")
        equal(ids(world, "--sort", "name:desc", "--state", "finished"), [long, short, busy], "by name, reversed")
        equal(ids(world, "--command", "needle"), [long], "a part of the command line")
        equal(ids(world, "--command", "sleep 0.05"), [running], "of a running job, too")
        equal(set(ids(world, "--min-duration", "4s", "--state", "finished")) - {busy}, {long}, "long ones")
        equal(ids(world, "--min-duration", "100d"), [], "nothing ran so long")
        equal(set(ids(world, "--sort", "cpu")), everything, "a sort loses no job")
        equal(ids(world, "--sort", "cpu:desc", "--state", "finished")[0], busy, "who computed most")
        equal(ids(world, "--sort", "duration:desc", "--state", "finished", "--limit", "1")[0] in (long, busy), True, "longest")
        node = world.show(short)["job"]["nodes"][0]
        equal(set(ids(world, "--node", node)), everything, "all ran here")
        equal(ids(world, "--node", "nowhere"), [], "none ran there")
        equal(ids(world, "--partition", "gpu"), [], "no partition")

    answers()
    world.met("daemon", "--stop")
    answers()
    world.met("cancel", running).expect(0)


@test
def what_cannot_be_sorted_or_compared_is_refused(world):
    world.met("list", "--sort", "cpu;x").refused("cannot sort by")
    world.met("list", "--sort", "cpu:down").refused("write cpu:asc or cpu:desc")
    world.met("list", "--min-duration", "soon").refused("--min-duration")
    world.met("list", "--min-energy", "3 horses").refused("not an energy")
    world.met("list", "--min-energy", "5").refused("not an energy", "500Wh")
    world.met("list", "--max-efficiency", "much").refused("not a ratio")
    world.met("list", "--tag", "Not A Tag").refused("not a tag")


@test
def tags_and_a_note_stay_with_a_job(world):
    running = world.run("sh", "-c", SLEEP)
    world.met("tag", running, "+good", "+draft").expect(0)
    world.met("note", running, "first try\nwith new data").expect(0)
    equal(world.show(running)["tags"], ["draft", "good"], "tags of a running job")
    world.met("cancel", running).expect(0)
    eventually(lambda: world.show(running)["job"]["state"] != "running", "it ended")
    world.met("tag", running, "-draft").expect(0)
    world.met("daemon", "--stop")
    shown = world.show(running)
    equal((shown["tags"], shown["note"]), (["good"], "first try\nwith new data"), "after its end and the daemon's")
    equal(ids(world, "--tag", "good"), [running], "found by its tag")
    equal(ids(world, "--tag", "goo"), [], "a tag is a whole word")
    world.met("tag", running, "+without-daemon").expect(0)
    equal(world.show(running)["tags"], ["good", "without-daemon"], "written by the command itself")
    check("first try" in world.met("note", running).expect(0).out, "the note is printed")
    world.met("note", running, "").expect(0)
    check("note" not in world.show(running), "an empty note removes it")
    file = os.path.join(world.home, "job.jsonl")
    world.met("export", running, "-o", file).expect(0)
    equal(world.met("show", file, "--json").expect(0).json()["tags"], ["good", "without-daemon"], "tags travel with the record")


@test
def tags_and_notes_are_bounded_printable_text(world):
    job = finish(world, "a", "true")
    world.met("tag", job, "good").refused("write +TAG to add a tag")
    world.met("tag", job, "+" + "x" * 33).refused("not a tag")
    world.met("tag", job, "+<script>").refused("not a tag")
    world.met("tag", job, *(f"+t{number}" for number in range(17))).refused("at most 16 tags")
    world.met("note", job, "\x1b[2J").refused("printable")
    world.met("note", job, "n" * 4097).refused("at most 4096 bytes")
    world.met("tag", "nosuch", "+x").refused("nosuch")
    check("tags" not in world.show(job), "nothing was written")
