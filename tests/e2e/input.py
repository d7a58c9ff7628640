"""What goes into a job goes in exactly; what is wrong is refused in one line, and nothing happens."""

import json
import os
import resource

from harness import check, each, equal, eventually, need_root, test

NASTY = [b"a b", b"", b"it's", b'say "hi"', b"line\nbreak", b"\xff\xfe not utf-8 \x80", b"$HOME `x` \\", b"--name", b"-x", "ü".encode()]


def circumstances(world, how, *options, arguments=(), **more):
    """What a job started with these options inherits."""
    command = [*world.workload("circumstances", world.path("seen")), *arguments]
    wait = ["--wait"] if how == "run" else ["--quiet"]
    world.met(how, *wait, *options, "--", *command, **more).ok()
    with open(world.path("seen")) as file:
        return json.load(file)


@each(by_run="run", by_time="time")
def arguments_arrive_exactly(world, how):
    seen = circumstances(world, how, arguments=NASTY)
    equal([bytes.fromhex(argument) for argument in seen["arguments"]], NASTY, "arguments")
    shown = world.show()["job"]["command"][-len(NASTY):]
    equal(shown, [argument.decode(errors="replace") for argument in NASTY], "arguments in the record")
    # Whatever a command line contains, a terminal gets no control characters of it.
    text = world.met("show").ok().out + world.met("list").ok().out
    check(not [letter for letter in text if ord(letter) < 32 and letter != "\n"], "control characters:", repr(text))


@each(by_run="run", by_time="time")
def the_environment_is_inherited(world, how):
    odd = {b"MET_TEST_ODD": b"\xff\n=x", b"MET_TEST_EMPTY": b""}
    seen = circumstances(world, how, env={os.fsdecode(key): os.fsdecode(value) for key, value in odd.items()})
    environment = {bytes.fromhex(key): bytes.fromhex(value) for key, value in seen["environment"].items()}
    for key, value in {**odd, b"HOME": world.home.encode(), b"LANG": b"C.UTF-8"}.items():
        equal(environment.get(key), value, f"variable {key}")
    equal(environment[b"MET_JOB_ID"], b"1", "MET_JOB_ID")


@test
def variables_are_set_by_env(world):
    seen = circumstances(world, "run", "--env", "ONE=1=2", "--env", "HOME=/else", "--env", "EMPTY=")
    environment = {bytes.fromhex(key): bytes.fromhex(value) for key, value in seen["environment"].items()}
    found = {key: environment.get(key) for key in (b"ONE", b"HOME", b"EMPTY")}
    equal(found, {b"ONE": b"1=2", b"HOME": b"/else", b"EMPTY": b""}, "variables")


@each(by_run="run", by_time="time")
def umask_limits_and_signals_are_inherited(world, how):
    def prepare():
        os.umask(0o027)
        resource.setrlimit(resource.RLIMIT_NOFILE, (345, 678))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    plain = world.start(*world.workload("circumstances", world.path("plain")), preexec=prepare)
    plain.communicate()
    with open(world.path("plain")) as file:
        expected = json.load(file)
    seen = circumstances(world, how, preexec=prepare)
    for key in ("umask", "limits", "blocked", "ignored", "descriptors"):
        equal(seen[key], expected[key], key)
    equal((seen["umask"], seen["limits"]["RLIMIT_NOFILE"]), (0o027, [345, 678]), "umask and limit")
    equal(seen["stdin"], "/dev/null", "stdin")
    # The job's files follow the umask, met's own are private whatever it is.
    if how == "run":
        (out,) = [name for name in os.listdir(world.work) if name.endswith(".out")]
        equal(os.stat(world.path(out)).st_mode & 0o777, 0o640, "mode of the output file")


@test
def a_job_runs_where_it_is_told_to(world):
    os.mkdir(world.path("there"))
    equal(circumstances(world, "run")["folder"], world.work, "folder")
    equal(circumstances(world, "time")["folder"], world.work, "folder")
    equal(circumstances(world, "run", "--cwd", "there")["folder"], world.path("there"), "folder")
    equal(circumstances(world, "run", "--cwd", world.path("there"))["folder"], world.path("there"), "folder")


@test
def folders_and_files_may_have_any_name(world):
    folder = os.fsencode(world.path("d")) + b"\xff"
    os.mkdir(folder)
    world.met("time", "--quiet", "--", "sh", "-c", "touch here; exit 3", cwd=folder).expect(3)
    check(os.path.exists(folder + b"/here"), "it ran there")
    world.met("run", "--wait", "-n", "job", "--out", b"out\xff", "--", "echo", "hi", cwd=folder).ok()
    with open(folder + b"/out\xff") as file:
        equal(file.read(), "hi\n", "output")
    equal(world.met("logs", "job").ok().out, "hi\n", "logs")
    equal([job["job"]["state"] for job in world.jobs()], ["finished", "failed"], "states")


@test
def output_files_of_an_earlier_job_are_kept(world):
    for number in (1, 2, 3):
        world.met("run", "--wait", "-n", "job", "--", "sh", "-c", f"echo out {number}; echo err {number} >&2").ok()
    found = {name: world.read(name).decode().strip() for name in os.listdir(world.work)}
    expected = {"job.1.out": "out 1", "job.2.out": "out 2", "job.out": "out 3"}
    expected.update({name.replace("out", "err"): text.replace("out", "err") for name, text in expected.items()})
    equal(found, expected, "files")
    equal(world.met("logs", "2").ok().out, "out 2\n", "log of the second job")
    equal(world.met("logs", "2", "--err").ok().out, "err 2\n", "errors of the second job")
    equal(world.met("logs", "3").ok().out, "out 3\n", "log of the newest job")


@each(own=False, of_a_system_daemon=True)
def output_of_a_running_job_gives_way_to_the_next_of_its_name(world, system):
    user = world.someone() if system else world.me
    if system:
        world.start_system_daemon()
    first = user.run("sh", "-c", "echo begin; while ! test -e go; do sleep 0.05; done; echo end", options=("-n", "job"))
    eventually(lambda: user.met("logs", first).ok().out == "begin\n", "the first job has begun")
    second = user.run("echo", "second", options=("-n", "job"))
    user.met("wait", second)
    equal(user.read("job.out"), b"second\n", "the newest output")
    with open(user.path("go"), "w"):
        pass
    user.met("wait", first)
    equal(user.met("logs", first).ok().out, "begin\nend\n", "all of the first job")
    equal(user.read(f"job.{first}.out"), b"begin\nend\n", "under its new name")
    equal(user.met("logs", second).ok().out, "second\n", "and of the second")


@test
def a_file_that_no_job_wrote_is_never_moved(world):
    world.run_to_end("echo", "first", options=("-n", "job"))
    os.unlink(world.path("job.err"))
    with open(world.path("job.err"), "w") as file:
        file.write("mine")
    world.run_to_end("echo", "second", options=("-n", "job"))
    equal(world.read("job.err"), b"mine", "a file of somebody else's")
    equal(world.read("job.out"), b"first\n", "what is beside it stays, too")
    equal(world.read("job.2.out"), b"second\n", "output of the second job")
    # A job that does not start gives the name back.
    world.run_to_end("true", options=("-n", "other"))
    world.met("run", "-n", "other", "--", "no-such-command").expect(127)
    check(os.path.exists(world.path("other.out")), os.listdir(world.work))


@test
def output_goes_where_it_is_told_to(world):
    said = world.met("run", "--wait", "--out", "o", "--err", "e", "--", "sh", "-c", "echo 1; echo 2 >&2").ok().out
    check("output in o and e" in said, said)
    equal((world.read("o"), world.read("e")), (b"1\n", b"2\n"), "files")
    world.met("run", "--wait", "--out", "both", "--err", "both", "--", "sh", "-c", "echo 1; echo 2 >&2").ok()
    equal(world.read("both"), b"1\n2\n", "both streams in one file")
    equal(sorted(os.listdir(world.work)), ["both", "e", "o"], "files")


@test
def met_run_says_what_it_started(world):
    said = world.met("run", "-n", "some_job", "--", "sh", "-c", "exit 0").ok().out
    main = said.partition("(pid ")[2].partition(")")[0]
    equal(said, f'Started job 1 "some_job" (pid {main}), output in some_job.out and some_job.err\n', "output")
    check(main.isdigit(), said)
    world.met("wait", "1").ok()


@test
def the_name_is_the_base_name_of_the_command(world):
    world.met("run", "--wait", "--", "/bin/sh", "-c", "exit 0").ok()
    equal(world.show()["job"]["name"], "sh", "name")
    equal(sorted(os.listdir(world.work)), ["sh.err", "sh.out"], "files")
    world.met("run", "--wait", "-n", "a/b\nc", "--", "true").ok()
    equal(world.show()["job"]["name"], "a/b\nc", "name")
    check("a_b_c.out" in os.listdir(world.work), os.listdir(world.work))


REFUSED = {
    "no_command_to_run": (["run"], ["no command"]),
    "no_command_to_time": (["time", "--"], ["no command"]),
    "unknown_command": (["fly"], ["fly"]),
    "unknown_option": (["list", "--no-such-option"], ["--no-such-option"]),
    "unknown_job_by_number": (["show", "77"], ["no job 77; run"]),
    "unknown_job_by_name": (["show", "nobody"], ['no job named "nobody"']),
    "unknown_job_of_a_manager": (["show", "slurm:77"], ["no job slurm:77; run"]),
    "no_job_at_all": (["show", "@first"], ["@first"]),
    "unknown_job_to_wait_for": (["wait", "77"], ["no job 77; run"]),
    "unknown_job_to_cancel": (["cancel", "77"], ["no job 77; run"]),
    "unknown_job_to_remove": (["rm", "77"], ["no job 77; run"]),
    "unknown_job_to_log": (["logs", "77"], ["no job 77; run"]),
    "unknown_job_to_ps": (["ps", "77"], ["no job 77; run"]),
    "no_job_to_wait_for": (["wait"], ["JOB"]),
    "a_job_below_one": (["show", "-1"], ["-1 is neither an option nor a job"]),
    "a_negative_time_to_mute": (["mute", "1", "idle", "--for", "-1d"], ["--for", "is not a duration"]),
    "an_empty_lineage": (["run", "--lineage", "", "--", "true"], ["--lineage is empty"]),
    "a_name_too_long_for_a_file": (["run", "--name", "n" * 300, "--", "true"], ["the name is too long; at most 240 bytes"]),
    "sizes_for_other_jobs": (["scale", "1", "--sizes", "1,2"], ["2 numbers for 1 job;"]),
    "a_duration_without_a_unit": (["time", "--interval", "10", "--", "true"], ["--interval", "10s"]),
    "a_bad_duration": (["time", "--interval", "soon", "--", "true"], ["--interval", "soon"]),
    "output_to_a_terminal_that_is_not_there": (["run", "--out", "-", "--", "true"], ["--out -", "name a file"]),
    "a_duration_too_short": (["time", "--interval", "1us", "--", "true"], ["--interval", "10ms"]),
    "a_bad_grace": (["cancel", "1", "--grace", "x"], ["--grace"]),
    "a_bad_signal": (["cancel", "1", "--signal", "TERMINATE"], ["TERMINATE"]),
    "a_bad_state": (["list", "--state", "asleep"], ["asleep", "running"]),
    "a_bad_time": (["list", "--since", "whenever"], ["--since", "whenever"]),
    "a_bad_limit": (["list", "--limit", "many"], ["many"]),
    "a_negative_limit": (["list", "--limit", "-1"], ["'-1' for '--limit", "whole number"]),
    "a_negative_grace": (["cancel", "1", "--grace", "-5s"], ["--grace", "-5s", "write 1s"]),
    "a_negative_interval": (["time", "--interval", "-1s", "--", "true"], ["--interval", "-1s", "write 1s"]),
    "a_negative_time": (["list", "--since", "-2h"], ["--since", "-2h", "write 2h"]),
    "a_negative_period": (["configure", "--period", "-1s"], ["--period", "-1s"]),
    "a_negative_factor": (["emissions", "set", "-5", "--since", "2h"], ["-5", "from 0 to 5000, such as 34.5", "met emissions set --help"]),
    "a_factor_that_is_no_number": (["emissions", "set", "abc", "--since", "2h"], ["abc", "grams per kWh"]),
    "an_endless_factor": (["emissions", "set", "1e300", "--since", "2h"], ["1e300", "from 0 to 5000"]),
    "an_unknown_manager": (["list", "--manager", "foo"], ["--manager foo", "slurm"]),
    "an_unknown_manager_for_a_program": (["list", "--manager", "foo", "--json"], ["--manager foo"]),
    "an_unknown_user": (["list", "--user", "no-such-user"], ["--user no-such-user: no such user"]),
    "a_limit_of_nothing": (["list", "--limit", "0"], ["'0' for '--limit", "≥ 1"]),
    "a_time_out_of_range": (["list", "--since", "3000-01-01"], ["--since", "3000-01-01", "too far away"]),
    "an_interval_of_nothing": (["time", "--interval", "0", "--", "true"], ["--interval", "shortest is 10ms"]),
    "no_gpus": (["gpus", "--free", "0"], ["from 1 to 1024", "met gpus --help"]),
    "a_job_of_a_node": (["show", "12@n1"], ["12@n1", "--server URL"]),
    "a_process_without_a_number": (["show", "pid:abc"], ["pid:abc", "pid:4711"]),
    "a_job_of_nobody": (["show", "no-such-user/1"], ["no user", "no-such-user"]),
    "a_mistyped_manager": (["show", "slrum:12"], ["slrum", "slurm"]),
    "a_node_without_a_server": (["node", "n1"], ["no server given", "--server URL"]),
    "watching_without_a_terminal": (["list", "--watch"], ["--watch needs a terminal"]),
    "gpus_watched_without_a_terminal": (["gpus", "--watch"], ["--watch needs a terminal"]),
    "a_negative_signal": (["cancel", "1", "--signal", "-9"], ["--signal -9", "KILL"]),
    "a_negative_process": (["attach", "-5"], ["'-5' for '<PID>'", "ps -e"]),
    "a_bad_view": (["list", "tpu"], ["tpu"]),
    "json_and_csv_at_once": (["list", "--json", "--csv"], ["--csv"]),
    "a_bad_variable": (["run", "--env", "NOTHING", "--", "true"], ["NOTHING", "KEY=VALUE"]),
    "a_folder_that_is_not_there": (["run", "--cwd", "nowhere", "--", "true"], ["nowhere"]),
    "an_output_folder_that_is_not_there": (["run", "--out", "nowhere/o", "--", "true"], ["nowhere/o"]),
    "a_report_folder_that_is_not_there": (["time", "-o", "nowhere/r", "--", "true"], ["nowhere/r"]),
    "an_empty_name": (["run", "--name", "", "--", "true"], ["--name"]),
    "an_empty_name_to_time": (["time", "--name", "", "--", "true"], ["--name"]),
    "a_process_that_is_not_there": (["attach", "4000000"], ["4000000"]),
    "a_process_that_is_no_number": (["attach", "init"], ["init"]),
    "a_server_that_is_not_there": (["--server", "http://127.0.0.1:1", "list"], ["http://127.0.0.1:1", "met server"]),
    "a_server_without_nodes": (["--server", "http://127.0.0.1:1", "nodes"], ["http://127.0.0.1:1", "met server"]),
    "a_configuration_that_is_not_there": (["--config", "nowhere.yaml", "list"], ["nowhere.yaml"]),
}


@each(**REFUSED)
def refused_in_one_line(world, command, words):
    before = sorted(os.listdir(world.work))
    world.met(*command).refused(*words)
    equal(world.jobs(), [], "jobs")
    equal(sorted(os.listdir(world.work)), before, "files")
    check(not world.daemon_pids(), "a daemon was started")


@test
def a_configuration_that_a_variable_names_and_that_is_not_there_is_refused(world):
    for command in (["list"], ["run", "--", "true"], ["daemon", "--user"]):
        world.met(*command, env={"MET_CONFIG": "nowhere.yaml"}).refused("nowhere.yaml", "MET_CONFIG")


CONFIGURATIONS = {
    "an_unknown_key": ("sampling:\n  intervall: 1s\n", ["sampling.intervall", "sampling.interval", ":2"]),
    "an_unknown_section": ("\nsmapling:\n  interval: 1s\n", ["smapling", "sampling", ":2"]),
    "an_ill_typed_key": ("sampling:\n  interval: [1]\n", ["sampling.interval", ":2"]),
    "a_duration_without_a_unit": ("sampling:\n  interval: 10\n", ["sampling.interval", "10", ":2"]),
    "a_duplicate_key": ("sampling:\n  interval: 1s\n  interval: 2s\n", ["interval", ":3"]),
    "a_value_that_is_not_allowed": ("storage:\n  name: mysql\n", ["storage.name", "sqlite", ":2"]),
    "no_yaml": ("sampling: {interval: 1s\n", [":"]),
}


@each(**CONFIGURATIONS)
def a_configuration_is_refused_with(world, text, words):
    path = world.path("bad.yaml")
    with open(path, "w") as file:
        file.write(text)
    words = [f"{path}{word}" if word.startswith(":") and word != ":" else word for word in words]
    for command in (["list"], ["run", "--", "true"], ["time", "--", "true"], ["daemon", "--user"]):
        world.met("--config", path, *command).refused(*words)
        world.met(*command, env={"MET_CONFIG": path}).refused(*words)
    equal(world.jobs(), [], "jobs")
    equal(os.listdir(world.work), ["bad.yaml"], "files")


@test
def the_older_configuration_file_works_as_it_stands(world):
    with open(world.path("old.yaml"), "w") as file:
        file.write(
            "storage:\n  name: memory\n  size: 2\n  interval: 1s\ncpuCollector:\n  interval: 100ms\n  size: 10\n"
            "nvidiaCollector:\n  interval: 1s\n  size: 10\nstate:\n  interval: 1s\n"
        )
    world.env["MET_CONFIG"] = world.path("old.yaml")
    for _ in range(3):
        world.met("run", "--wait", "--", "sleep", "0.3").ok()
    eventually(lambda: len(world.jobs()) == 2, "two jobs are kept")
    equal(os.listdir(world.state), [], "files in the state directory")


@test
def a_folder_that_may_not_be_written_is_refused(world):
    need_root()
    user = world.someone()
    os.mkdir(world.path("closed"))
    os.chmod(world.home, 0o755)
    os.chmod(world.work, 0o755)
    user.met("run", "--", "true", cwd=world.path("closed")).refused("cannot write", "--out")
    user.met("run", "--cwd", world.path("closed"), "--", "true").refused("cannot write")
    user.met("time", "-o", world.path("closed/report"), "--", "true").refused("cannot write")
    equal(user.jobs(), [], "jobs")
    # Writing elsewhere, a job may well run there.
    out = ("--out", user.path("o"), "--err", user.path("e"))
    user.met("run", "--wait", *out, "--cwd", world.path("closed"), "--", "pwd").ok()
    equal(user.read("o").decode().strip(), world.path("closed"), "folder")


@test
def a_state_folder_that_cannot_be_written_is_refused_with_what_decides_where_it_is(world):
    open(world.path("file"), "w").close()
    closed = {"XDG_STATE_HOME": world.path("file")}
    for command in (["run", "--", "true"], ["attach", str(os.getpid())], ["daemon", "--user"]):
        world.met(*command, env=closed).refused(world.path("file"), "set XDG_STATE_HOME")
    need_root()
    world.system_state = world.path("file/state")
    world.configure("")
    world.met("daemon").refused(world.path("file/state"), "met.yaml: system.state")


@test
def a_running_job_is_not_removed(world):
    finished = world.run("true")
    world.met("wait", finished).ok()
    job = world.run("sleep", "1000")
    world.met("rm", job).refused("is still running", "met cancel")
    world.met("rm", finished, job).refused("is still running")
    world.met("rm", finished, "no-such-job").refused("no job")
    equal(sorted(one["job"]["id"] for one in world.jobs()), [finished, job], "jobs")
    world.met("cancel", job).ok()
    world.met("rm", job, finished).ok()
    equal(world.jobs(), [], "jobs")


@test
def a_removed_job_stays_removed_and_its_id_is_not_given_again(world):
    first = world.run("true")
    world.met("wait", first).ok()
    world.met("rm", first).ok()
    check("true.out" in os.listdir(world.work), "its output was removed")
    world.stop_daemon()
    equal(world.jobs(), [], "jobs")
    second = world.run("true")
    check(int(second) > int(first), f"{second} after {first}")
    world.met("wait", second).ok()


@test
def the_log_of_a_job_at_the_terminal_is_refused(world):
    world.met("time", "--quiet", "--", "true").ok()
    world.met("logs", "@last").refused("terminal")
