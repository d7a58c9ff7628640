use expect_test::{Expect, expect, expect_file};

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);

fn check_error(yaml: &str, expected: Expect) {
    let error = Config::parse(yaml, Path::new("met.yaml")).unwrap_err();
    expected.assert_eq(&error.to_string());
}

fn parse(yaml: &str) -> Config {
    Config::parse(yaml, Path::new("met.yaml")).unwrap()
}

#[test]
fn an_empty_file_changes_nothing() {
    for yaml in ["", "# nothing\n", "---\n", "sampling:\nstorage: {}\n", "null\n"] {
        assert_eq!(parse(yaml), Config::default(), "{yaml:?}");
    }
}

#[test]
fn the_file_of_the_older_tool_is_read_as_it_stands() {
    let config = parse(
        "storage:\n  name: \"memory\"\n  size: 100\n  interval: \"4s\"\n\
             cpuCollector:\n  interval: \"1s\"\n  size: 10\n\
             nvidiaCollector:\n  interval: \"0.5s\"\n  size: 10\n\
             state:\n  interval: \"2s\"\n",
    );
    assert_eq!(config.storage.name, StorageName::Memory);
    assert_eq!(config.storage.jobs_max, Some(100));
    assert_eq!(config.storage.flush_interval, Duration::from_secs(4));
    assert_eq!(config.sampling.interval, Some(Duration::from_secs(1)));
    assert_eq!(config.sampling.buffer_samples, Some(10));
    assert_eq!(config.sampling.membership_interval, Some(Duration::from_secs(2)));
    let nvidia = Collector { interval: Some(Duration::from_millis(500)), size: Some(10) };
    assert_eq!(config.nvidia, nvidia);
}

#[test]
fn idle_power_is_one_for_all_or_one_for_each() {
    let config = parse("gpu:\n  idle_power:\n    NVIDIA H200: 75.5W\n    GPU-8f2c: 80\n    default: 20 W\n");
    let by_gpu = vec![("NVIDIA H200".to_owned(), 75_500), ("GPU-8f2c".to_owned(), 80_000)];
    assert_eq!(config.gpu.idle_power, IdleRules { all_mw: Some(20_000), by_gpu });
    check_error(
        "gpu:\n  idle_power:\n    GPU-8f2c: much\n",
        expect![[r#"met.yaml:3: gpu.idle_power: "much" is not a power; write for example 75W"#]],
    );
    check_error(
        "gpu: {idle_power: -3W}\n",
        expect![[r#"met.yaml:1: gpu.idle_power: "-3W" is not a power; write for example 75W"#]],
    );
    check_error(
        "gpu: {idle_power: [1]}\n",
        expect![[r#"met.yaml:1: gpu.idle_power: one value is needed; write 75W"#]],
    );
}

#[test]
fn energy_is_split_by_what_is_asked_for() {
    assert_eq!(parse("energy: {weight: instructions}\n").energy.weight, Weight::Instructions);
    assert_eq!(parse("energy: {weight: cycles}\n").energy.weight.event(), Some("cpu_cycles"));
    assert_eq!(parse("energy: {weight: cpu-time}\n").energy, Config::default().energy);
    check_error(
        "energy: {weight: joules}\n",
        expect![[r#"met.yaml:1: energy.weight: "joules" is not one of cpu-time, instructions, cycles"#]],
    );
}

#[test]
fn every_key_is_read() {
    let config = parse(
        "sampling: {interval: 250ms}\n\
             daemon: {idle_exit: 1h30m, operators: wheel}\n\
             storage: {name: sqlite, keep: 7d, max_size: 500MB}\n\
             gpu: {nvml: /opt/libnvidia-ml.so.1, idle_power: 60W}\n\
             schedulers: {slurm: true, oar: false, pbs: auto, lsf: no, interval: 5m, lookback: 7d,\n\
             \x20 timeout: 10s, scope: node, path: /opt/lsf/bin, slurm_metrics: \"http://ctl:6817/\"}\n\
             jobs:\n  discover: true\n  below: /slice/a\n  plain: unit\n  plain_after: 1m\n  plain_cpu: 2s\n  start_before_cgroup: yes\n  layouts:\n  - {manager: mine, path: \"m/job-{id}\"}\n\
             \x20 - manager: other\n    path: o/{id}\n    parts: part-{step}\n\
             system: {runtime: /run/other, state: /srv/met}\n",
    );
    assert_eq!(config.gpu.nvml.as_deref(), Some(Path::new("/opt/libnvidia-ml.so.1")));
    assert_eq!(config.gpu.idle_power.all_mw, Some(60_000));
    let mut asked = Schedulers::default().asked;
    for (scheduler, presence) in
        [(Scheduler::Slurm, Presence::Yes), (Scheduler::Oar, Presence::No), (Scheduler::Lsf, Presence::No)]
    {
        asked[scheduler as usize] = presence;
    }
    let expected = Schedulers {
        asked,
        interval: Some(Duration::from_secs(300)),
        lookback: Duration::from_secs(7 * 86_400),
        timeout: Duration::from_secs(10),
        scope: Some(Scope::Node),
        path: Some("/opt/lsf/bin".to_owned()),
        metrics: [Some("http://ctl:6817".to_owned()), None, None, None],
    };
    assert_eq!(config.schedulers, expected);
    let layouts = [("mine", "m/job-{id}", ""), ("other", "o/{id}", "part-{step}")];
    let layouts = layouts.map(|(manager, path, parts)| Layout::parse(manager, path, parts).unwrap());
    let below = Some(PathBuf::from("/slice/a"));
    let expected = Jobs {
        discover: Presence::Yes,
        layouts: layouts.into(),
        below,
        plain: Plain::Unit,
        plain_after: Duration::from_secs(60),
        plain_cpu: Duration::from_secs(2),
        start_before_cgroup: true,
    };
    assert_eq!(config.jobs, expected);
    assert_eq!(config.sampling.interval, Some(Duration::from_millis(250)));
    assert_eq!(config.daemon.idle_exit, Duration::from_secs(5400));
    assert_eq!(config.daemon.operators.as_deref(), Some("wheel"));
    assert_eq!(config.storage.keep, Duration::from_secs(7 * 86_400));
    assert_eq!(config.storage.max_bytes, 500_000_000);
    assert_eq!(config.system.runtime, Path::new("/run/other"));
    assert_eq!(config.system.state, Path::new("/srv/met"));
}

const OF_SLURM: Accounts = Accounts::Scheduler(Scheduler::Slurm);

#[test]
fn every_key_of_a_cluster_is_read() {
    let config = parse(
        "store: {series: \"https://vm.example/select/0/prometheus\", series_tenant: hpc,\n\
             \x20 series_write: \"https://vm.example/insert/0/prometheus/api/v1/write\",\n\
             \x20 series_password_file: /etc/met/vm, catalogue: \"postgres://met@db.example/met\",\n\
             \x20 password_file: /etc/met/db, ca_file: /etc/met/ca.pem}\n\
             http: {listen: ['127.0.0.1:9317', '[::1]:9317'], web_config: /etc/met/web.yml, plain: yes, socket: /run/met/web.sock,\n\
             \x20 metrics: all, jobs_max: 10, jobs_managers: \"slurm, local\", jobs_after: 30s, keep_ended: 1m, max_age: 10s}\n\
             forward: {url: \"https://met.example\", token_file: /etc/met/token, ca_file: /ca, cert_file: /c, key_file: /k,\n\
             \x20 plain: yes, node: n7, interval: 30s, spool_size: 2GB, spool_age: 3d}\n\
             server: {move_after: 5m, lost_after: 2d, accounts: slurm, accounts_file: /a}\n\
             colmet: {listen: '0.0.0.0:5556', allow: [10.0.0.0/16, 127.0.0.1], hosts: 'node-[1,2], gpu*', manager: slurm, configure: 'tcp://*:5557'}\n\
             client: {token_file: /t, ca_file: /ca, plain: true}\n",
    );
    let path = |text: &str| Some(PathBuf::from(text));
    let expected = Forward {
        url: Some("https://met.example".to_owned()),
        token_file: path("/etc/met/token"),
        ca_file: path("/ca"),
        cert_file: path("/c"),
        key_file: path("/k"),
        plain: true,
        node: Some("n7".to_owned()),
        interval: Duration::from_secs(30),
        spool_bytes: 2_000_000_000,
        spool_age: Duration::from_secs(3 * 86_400),
    };
    assert_eq!(config.forward, expected);
    assert_eq!(config.server.move_after, Some(Duration::from_secs(300)));
    assert_eq!(config.server.lost_after, Duration::from_secs(2 * 86_400));
    assert_eq!((config.server.accounts, &config.server.accounts_file), (OF_SLURM, &path("/a")));
    assert_eq!(config.colmet.listen.iter().map(ToString::to_string).collect::<Vec<_>>(), ["0.0.0.0:5556"]);
    assert_eq!(config.colmet.configure.as_deref(), Some("tcp://*:5557"));
    assert_eq!(config.colmet.allow, ["10.0.0.0/16", "127.0.0.1"]);
    assert_eq!(
        (&config.colmet.hosts[..], config.colmet.manager.as_str()),
        (&["node-[1,2]".to_owned(), "gpu*".to_owned()][..], "slurm")
    );
    assert_eq!(config.client, Client { token_file: path("/t"), ca_file: path("/ca"), plain: true });
    let expected = Http {
        operators: Vec::new(),
        socket: Some(PathBuf::from("/run/met/web.sock")),
        listen: ["127.0.0.1:9317", "[::1]:9317"].map(|text| text.parse().unwrap()).into(),
        web_config: Some(PathBuf::from("/etc/met/web.yml")),
        plain: true,
        metrics: Selection::All,
        jobs_max: 10,
        jobs_managers: vec!["slurm".to_owned(), "local".to_owned()],
        jobs_after: Some(Duration::from_secs(30)),
        keep_ended: Duration::from_secs(60),
        max_age: Duration::from_secs(10),
    };
    assert_eq!(config.http, expected);
    let contents = config.http.contents();
    assert_eq!(
        (contents.metrics, contents.jobs_max, contents.after_ns),
        (Selection::All, 10, 30_000_000_000)
    );
    let expected = store::Store {
        series: Some("https://vm.example/select/0/prometheus".to_owned()),
        series_write: Some("https://vm.example/insert/0/prometheus/api/v1/write".to_owned()),
        series_tenant: Some("hpc".to_owned()),
        series_password_file: Some("/etc/met/vm".into()),
        series_token_file: None,
        catalogue: Some(met_store::Secret::new("postgres://met@db.example/met")),
        password_file: Some("/etc/met/db".into()),
        ca_file: Some("/etc/met/ca.pem".into()),
    };
    assert_eq!(config.store, expected);
}

#[test]
fn every_key_of_logins_is_read() {
    let config = parse(
        "login: {session: 1h, public_url: \"https://met.example\", local_users: yes, proxy_header: X-User, proxy_user: www,\n\
             \x20 proxy_secret_file: /s, oidc_issuer: \"https://sso\", oidc_client_id: met, oidc_client_secret_file: /c,\n\
             \x20 oidc_user_claim: sub, oidc_scopes: openid, oidc_ca_file: /ca, audit_file: /var/log/met-audit}\n",
    );
    let path = |text: &str| Some(PathBuf::from(text));
    let text = |text: &str| Some(text.to_owned());
    let expected = Login {
        session: Duration::from_secs(3600),
        public_url: text("https://met.example"),
        local_users: true,
        proxy_header: "X-User".to_owned(),
        proxy_user: text("www"),
        proxy_secret_file: path("/s"),
        oidc_issuer: text("https://sso"),
        oidc_client_id: text("met"),
        oidc_client_secret_file: path("/c"),
        oidc_user_claim: "sub".to_owned(),
        oidc_scopes: "openid".to_owned(),
        oidc_ca_file: path("/ca"),
        audit_file: path("/var/log/met-audit"),
    };
    assert_eq!(config.login, expected);
}

#[test]
fn events_are_a_list_or_a_text_and_must_exist() {
    let listed = parse("perf:\n  events: [page_faults, instructions:u]\n");
    assert_eq!(listed.perf.events, ["page_faults", "instructions:u"]);
    assert_eq!(parse("perf: {events: \"page_faults, instructions:u\"}\n"), listed);
    check_error(
        "perf:\n  events: [page_fault]\n",
        expect![[r#"met.yaml:2: perf.events: "page_fault" is not an event; `met metrics` lists them"#]],
    );
    check_error(
        "perf:\n  events: [{a: 1}]\n",
        expect![[r#"met.yaml:2: perf.events: one value is needed; write page_faults"#]],
    );
}

/// The rows `| `section.key` | what | `default` | meaning |` of the reference that have a default.
fn printed_defaults(reference: &str) -> Vec<(Vec<&str>, &str)> {
    let rows = reference.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.filter_map(|row| {
        let (name, rest) = row.split_once("` | ")?;
        let default = rest.split(" | ").nth(1)?.strip_prefix('`')?.strip_suffix('`')?;
        Some((name.split('.').collect(), default))
    })
    .collect()
}

#[test]
fn the_printed_defaults_as_a_file_are_the_default_configuration() {
    let reference = Config::reference();
    let printed = printed_defaults(&reference);
    let mut yaml = String::new();
    let mut section = "";
    for (name, default) in &printed {
        let (&[first, key], default) = (&name[..], default) else { continue };
        if std::mem::replace(&mut section, first) != first {
            yaml += &format!("{first}:\n");
        }
        // A source with a key of its own is a map.
        let own = printed.iter().find(|(name, _)| name[..] == ["sources", key, "verify"]);
        yaml += &match own {
            Some((_, default)) if first == "sources" => format!("  {key}: {{verify: {default}}}\n"),
            _ => format!("  {key}: {default}\n"),
        };
    }
    assert!(printed.len() > 50 && yaml.contains("  redfish: {verify: yes}\n"), "{yaml}");
    assert_eq!(parse(&yaml), Config::default());
}

#[test]
fn yes_and_true_are_the_same_everywhere() {
    for (one, other) in [("yes", "true"), ("no", "false")] {
        for yaml in [
            "http:\n  plain: WORD\n",
            "jobs:\n  discover: WORD\n",
            "schedulers:\n  slurm: WORD\n",
            "sources:\n  redfish: {verify: WORD}\n",
            "sinks:\n  - otlp: {users: WORD}\n",
        ] {
            let read = |word: &str| parse(&yaml.replace("WORD", word));
            assert_eq!(read(one), read(other), "{yaml}");
            assert_eq!(read(one), read(&format!("\"{one}\"")), "{yaml}");
        }
    }
    for yaml in ["jobs:\n  plain: WORD\n", "sources:\n  perf: WORD\n"] {
        let read = |word: &str| parse(&yaml.replace("WORD", word));
        assert_eq!(read("\"no\""), read("off"), "{yaml}");
    }
}

#[test]
fn every_default_parses_and_every_setting_without_one_is_unset() {
    for key in keys::SECTIONS.iter().flat_map(|section| section.keys) {
        let mut config = Config::blank();
        let applied = key.default.is_empty() || key.form.apply(key.default, &mut config).is_ok();
        assert!(applied, "{}", key.name);
    }
    let config = Config::default();
    assert_eq!((config.sampling.interval, config.sampling.membership_interval), (None, None));
    assert_eq!((config.sampling.ladder, config.sampling.managers), (Ladder::default(), Vec::new()));
    assert_eq!((config.storage.keep, config.storage.max_bytes), (730 * DAY, 2 << 30));
    let Storage { thin_after, thin_to, thin_more_after, thin_more_to, .. } = config.storage;
    assert_eq!((thin_after, thin_to), (7 * DAY, 60 * SECOND));
    assert_eq!((thin_more_after, thin_more_to), (90 * DAY, 600 * SECOND));
    assert_eq!((config.node.busy(), config.node.idle()), (10 * SECOND, 60 * SECOND));
    assert_eq!(config.storage.name, StorageName::Sqlite);
    assert_eq!((config.daemon.idle_exit, config.server.lost_after), (600 * SECOND, 7 * DAY));
    assert_eq!((config.energy.idle_to_holders, config.energy.pue), (true, 1.0));
    assert_eq!((config.energy.weight, config.emissions.provider), (Weight::CpuTime, Provider::Country));
    assert_eq!((config.forward.spool_bytes, config.forward.spool_age), (1 << 30, 14 * DAY));
    assert_eq!((config.http.jobs_max, config.http.keep_ended), (2000, 300 * SECOND));
    assert_eq!((config.http.metrics, config.http.jobs_after), (Selection::Usual, None));
    assert_eq!(config.http.max_age, 5 * SECOND);
    assert_eq!((config.jobs.plain, config.jobs.plain_after), (Plain::Auto, 10 * SECOND));
    assert_eq!(config.system.state, Path::new("/var/lib/met"));
}

#[test]
fn a_misspelt_key_is_reported_with_its_neighbour() {
    check_error(
        "sampling:\n  interval: 1s\ncpuColector:\n  size: 10\n",
        expect![[r#"met.yaml:3: unknown key "cpuColector"; did you mean "cpuCollector"?"#]],
    );
    check_error(
        "sampling:\n  intervall: 1s\n",
        expect![[r#"met.yaml:2: unknown key "sampling.intervall"; did you mean "sampling.interval"?"#]],
    );
    check_error(
        "storage:\n\n  maxSize: 1GiB\n",
        expect![[r#"met.yaml:3: unknown key "storage.maxSize"; did you mean "storage.max_size"?"#]],
    );
    check_error(
        "weather: fine\n",
        expect![[
            r#"met.yaml:1: unknown key "weather"; the keys here are sampling, daemon, storage, node, store, jobs, gpu, schedulers, perf, energy, notify, emissions, http, login, forward, server, colmet, client, system, cpuCollector, nvidiaCollector, state, sources, sinks, systems"#
        ]],
    );
    check_error(
        "daemon:\n  port: 80\n",
        expect![[r#"met.yaml:2: unknown key "daemon.port"; the keys here are idle_exit, operators"#]],
    );
}

#[test]
fn a_value_of_the_wrong_kind_gets_what_to_write() {
    check_error(
        "\n\n\nsampling:\n  interval: 10x\n",
        expect![[r#"met.yaml:5: sampling.interval: "10x" is not a duration; write 1s, 500ms or 2m"#]],
    );
    check_error("storage:\n  keep: 5\n", expect![[r#"met.yaml:2: storage.keep: "5" has no unit; write 5d"#]]);
    check_error(
        "sampling:\n  interval: 10\n",
        expect![[r#"met.yaml:2: sampling.interval: "10" has no unit; write 10s, 10ms or 10m"#]],
    );
    check_error(
        "sampling:\n  interval:\n    1ms\n",
        expect![[r#"met.yaml:3: sampling.interval: "1ms" is too short; the shortest is 10ms"#]],
    );
    check_error(
        "sampling: {interval: 2h}\n",
        expect![[r#"met.yaml:1: sampling.interval: "2h" is too long; the longest is 1h"#]],
    );
    check_error("sampling:\n  interval:\n", expect!["met.yaml:2: sampling.interval: no value; write 1s"]);
    check_error(
        "sampling:\n  interval: [1s]\n",
        expect!["met.yaml:2: sampling.interval: one value is needed; write 1s"],
    );
    check_error(
        "sampling: 1s\n",
        expect!["met.yaml:1: sampling: a section, not a value; its keys are ladder, interval, managers"],
    );
    check_error(
        "storage:\n  size: many\n",
        expect![[r#"met.yaml:2: storage.size: "many" is not a number from 1 to 1000000000"#]],
    );
    check_error("energy: {pue: 0.2}\n", expect![[r#"met.yaml:1: energy.pue: "0.2" is not a number ≥ 1"#]]);
    check_error(
        "storage:\n  size: -1\n",
        expect![[r#"met.yaml:2: storage.size: "-1" is not a number from 1 to 1000000000"#]],
    );
    check_error(
        "storage:\n  name: postgres\n",
        expect![[r#"met.yaml:2: storage.name: "postgres" is not a storage; write sqlite or memory"#]],
    );
    check_error(
        "storage:\n  max_size: 2 apples\n",
        expect![[
            r#"met.yaml:2: storage.max_size: "2 apples" is not a size; write 2GiB, 500MB or a number of bytes"#
        ]],
    );
    check_error(
        "storage:\n  max_size: 10\n",
        expect![[r#"met.yaml:2: storage.max_size: "10" is too small; the smallest is 1MiB"#]],
    );
    check_error(
        "storage:\n  keep: true\n",
        expect![[r#"met.yaml:2: storage.keep: "true" is not a duration; write 1s, 500ms or 2m"#]],
    );
    check_error(
        "system:\n  state: var/met\n",
        expect![[r#"met.yaml:2: system.state: "var/met" is not an absolute path; begin it with /"#]],
    );
    check_error(
        "- sampling\n",
        expect![[r#"met.yaml:1: the file has no sections; write for example "sampling:""#]],
    );
}

#[test]
fn a_store_elsewhere_says_what_is_missing_and_never_its_password() {
    check_error(
        "store:\n  series: victoria:8428\n",
        expect![[
            r#"met.yaml:2: store.series: "victoria:8428" is not an address; write http://host:port or https://host"#
        ]],
    );
    check_error(
        "store:\n  catalogue: postgres://met:hunter2@db.example/met?sslmode=disable\n",
        expect![[
            r#"met.yaml:2: store.catalogue: sslmode=disable: what is sent to another machine must be encrypted"#
        ]],
    );
    check_error(
        "store:\n  catalogue: mysql://met:hunter2@localhost/met\n",
        expect![[
            r#"met.yaml:2: store.catalogue: this is not an address; write postgres://user@host/database"#
        ]],
    );
    check_error(
        "sampling:\nstore:\n  series_token_file: /etc/met/token\n",
        expect![[
            r#"met.yaml:2: store.series_token_file needs store.series, the address that answers queries"#
        ]],
    );
    check_error(
        "store: {series: \"http://localhost:8428\", series_token_file: /a, series_password_file: /b}\n",
        expect![[
            r#"met.yaml:1: store.series_password_file and store.series_token_file: one of them is enough"#
        ]],
    );
    let config = parse("store: {catalogue: \"postgres://met:hunter2@localhost/met\"}\n");
    assert!(!format!("{config:?}").contains("hunter2"));
}

#[test]
fn files_of_secrets_are_read_when_the_store_is_opened() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("secret");
    let yaml =
        format!("store: {{series: \"http://localhost:8428\", series_token_file: {}}}\n", path.display());
    let store = parse(&yaml).store;
    assert!(store.backends().is_err(), "there is none");
    std::fs::write(&path, "token\n").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let backends = store.backends().unwrap();
    assert!(backends.catalogue.is_none());
    assert!(matches!(backends.series.unwrap().credentials, Some(met_store::Credentials::Token(_))));
    assert!(parse("").store.backends().unwrap().series.is_none());
}

#[test]
fn a_layout_that_cannot_be_used_is_reported_with_the_reason() {
    check_error(
        "jobs: {discover: often}\n",
        expect![[r#"met.yaml:1: jobs.discover: "often" is neither auto, yes nor no"#]],
    );
    check_error(
        "jobs: {layouts: mine}\n",
        expect![[
            r#"met.yaml:1: jobs.layouts: "mine" is not a list; write - {manager: mysched, path: "mysched/job-{id}"}"#
        ]],
    );
    check_error(
        "jobs:\n  layouts:\n  - mine\n",
        expect![[r#"met.yaml:3: jobs.layouts: write - {manager: mysched, path: "mysched/job-{id}"}"#]],
    );
    check_error(
        "jobs:\n  layouts:\n  - manager: m\n    path: a/{job}\n",
        expect![[
            r#"met.yaml:3: jobs.layouts: "{job}": {job} is not one of id, sluid, uid, user, node, cluster, index, step, task, qos"#
        ]],
    );
    check_error(
        "jobs:\n  layouts:\n  - manager: m\n    paths: a\n",
        expect![[
            r#"met.yaml:4: jobs.layouts: unknown key "jobs.layouts.paths"; did you mean "jobs.layouts.path"?"#
        ]],
    );
    check_error(
        "jobs:\n  layouts:\n  - manager: m\n",
        expect![[
            r#"met.yaml:3: jobs.layouts: a layout has a manager and a path; write - {manager: mysched, path: "mysched/job-{id}"}"#
        ]],
    );
}

#[test]
fn a_key_may_not_stand_twice() {
    check_error(
        "sampling:\n  interval: 1s\nstorage:\nsampling:\n  interval: 2s\n",
        expect![[r#"met.yaml:4: duplicate key "sampling", first at line 1"#]],
    );
    check_error(
        "sampling:\n  interval: 1s\n  interval: 1s\n",
        expect![[r#"met.yaml:3: duplicate key "sampling.interval", first at line 2"#]],
    );
}

#[test]
fn two_names_of_one_setting_must_agree() {
    check_error(
        "cpuCollector:\n  interval: 2s\nsampling:\n  interval: 1s\n",
        expect![[
            r#"met.yaml:4: sampling.interval and cpuCollector.interval are the same setting, and line 2 has another value; keep one"#
        ]],
    );
    let agreed = parse("cpuCollector:\n  interval: 2s\nsampling:\n  interval: 2000ms\n");
    assert_eq!(agreed.sampling.interval, Some(Duration::from_secs(2)));
}

#[test]
fn broken_yaml_names_its_line() {
    check_error(
        "sampling:\n  interval: \"1s\nstorage: [\n",
        expect!["met.yaml:3: not YAML: invalid indentation in multiline quoted scalar"],
    );
    check_error(
        "sampling:\n\tinterval: 1s\n",
        expect!["met.yaml:2: not YAML: the line is indented with a tab; YAML needs spaces"],
    );
    check_error(
        "sampling:\n  interval: 1s\n\tladder: 1s\n",
        expect!["met.yaml:3: not YAML: the line is indented with a tab; YAML needs spaces"],
    );
    check_error("a: 1\n---\nb: 2\n", expect!["met.yaml:3: a second document; keep one"]);
    check_error("sampling: *nowhere\n", expect!["met.yaml:1: not YAML: alias references unknown anchor"]);
}

#[test]
fn the_reference_is_current() {
    expect_file!["../../../../docs/config.md"].assert_eq(&Config::reference());
}

#[test]
fn the_nearest_file_wins_and_a_named_one_must_exist() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, interval: &str| {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, format!("sampling: {{interval: {interval}}}\n")).unwrap();
        path
    };
    let machine = dir.path().join("etc/met.yaml");
    let load = |explicit: Option<&Path>, variables: &[(&str, &str)]| {
        load_with(explicit, &machine, |name| {
            let value = variables.iter().find(|(known, _)| *known == name);
            value.map(|(_, value)| dir.path().join(value).into_os_string())
        })
    };
    let none: &[(&str, &str)] = &[];
    assert_eq!(
        load(None, none).unwrap(),
        Loaded { config: Config::default(), path: None, text: String::new(), skipped: None, is_named: false }
    );
    write("etc/met.yaml", "1s");
    let home = write("home/.config/met/met.yaml", "2s");
    let xdg = write("xdg/met/met.yaml", "3s");
    let variable = write("variable.yaml", "4s");
    let explicit = write("explicit.yaml", "5s");
    assert_eq!(load(None, none).unwrap().path.as_ref(), Some(&machine));
    let mut variables = vec![("HOME", "home")];
    assert_eq!(load(None, &variables).unwrap().path, Some(home));
    variables.push(("XDG_CONFIG_HOME", "xdg"));
    assert_eq!(load(None, &variables).unwrap().path, Some(xdg));
    variables.push(("MET_CONFIG", "variable.yaml"));
    assert_eq!(load(None, &variables).unwrap().path, Some(variable));
    let loaded = load(Some(&explicit), &variables).unwrap();
    assert_eq!(loaded.config.sampling.interval, Some(Duration::from_secs(5)));

    let missing = load(Some(Path::new("/nowhere/met.yaml")), none).unwrap_err();
    expect!["cannot read the configuration file /nowhere/met.yaml, which --config names: No such file or directory (os error 2)"]
        .assert_eq(&missing.to_string());
    let latin = dir.path().join("latin.yaml");
    std::fs::write(&latin, b"energy: {currency: \xa4}\n").unwrap();
    let error = load(Some(&latin), none).unwrap_err().to_string();
    assert!(error.ends_with("which --config names: it is not text in UTF-8"), "{error}");
    let missing = load(None, &[("MET_CONFIG", "absent.yaml")]).unwrap_err();
    assert!(
        missing.to_string().contains("absent.yaml, which the variable MET_CONFIG names: No such"),
        "{missing}"
    );
}

#[test]
fn root_skips_a_file_in_the_home_of_another_user() {
    if !rustix::process::geteuid().is_root() {
        return met_core::skipped::skipped("only root is protected in this way");
    }
    let dir = tempfile::tempdir().unwrap();
    let (home, machine) = (dir.path().join("alice"), dir.path().join("machine.yaml"));
    std::fs::create_dir_all(home.join(".config/met")).unwrap();
    std::os::unix::fs::chown(&home, Some(12_345), Some(12_345)).unwrap();
    std::fs::write(&machine, "sampling: {interval: 7s}\n").unwrap();
    let load = || load_with(None, &machine, |name| (name == "HOME").then(|| home.clone().into_os_string()));
    let loaded = load().unwrap();
    assert_eq!((loaded.path.as_ref(), &loaded.skipped), (Some(&machine), &None), "there is no such file");
    std::fs::write(home.join(".config/met/met.yaml"), "sampling: {interval: 3s}\n").unwrap();
    let loaded = load().unwrap();
    assert_eq!(loaded.config.sampling.interval, Some(Duration::from_secs(7)));
    let skipped = loaded.skipped.unwrap();
    assert!(skipped.contains("met.yaml is ignored: ") && skipped.contains("`sudo -H`"), "{skipped}");
    // The machine's own file is not one to leave out.
    std::os::unix::fs::chown(&machine, Some(12_345), None).unwrap();
    assert!(load().is_err());
}

#[test]
fn settings_of_emissions_that_do_not_fit_are_refused() {
    let of = |provider| Emissions { provider, ..Config::default().emissions };
    assert!(of(Provider::Constant).check().is_err());
    assert!(of(Provider::ElectricityMaps).check().is_err());
    let of_country = |country: &str| Emissions { country: Some(country.into()), ..of(Provider::Country) };
    assert!(of_country("Atlantis").check().is_err());
    assert!(of_country("fra").check().is_ok());
}

#[test]
fn jobs_are_sampled_by_their_age_unless_an_interval_is_fixed() {
    let shown = |yaml: &str| parse(yaml).sampling.cadence().ladder().to_string();
    assert_eq!(shown(""), "1s, 10s after 5m, 30s after 1h, 1m after 1d");
    assert_eq!(shown("sampling: {ladder: [500ms, 20s after 10m]}"), "500ms, 20s after 10m");
    assert_eq!(shown("sampling: {ladder: \"2s, 20s after 10m\"}"), "2s, 20s after 10m");
    assert_eq!(shown("sampling: {interval: 5s, ladder: [1s, 20s after 10m]}"), "5s");
    let cadence = parse("sampling: {managers: {slurm: 500ms, local: 5s}}").sampling.cadence();
    let of = |manager: &str| cadence.of(manager).to_string();
    assert_eq!((of("slurm").as_str(), of("local").as_str()), ("500ms", "5s"));
    assert_eq!((of("oar"), cadence.shortest()), (Ladder::default().to_string(), Duration::from_millis(500)));
    let own = "sampling: {managers: {mine: 2s}}\njobs: {layouts: [{manager: mine, path: \"m/job-{id}\"}]}";
    assert_eq!(parse(own).sampling.cadence().of("mine").to_string(), "2s");
    check_error(
        "sampling:\n  ladder: [1s, 5m after 1d]\n",
        expect![[r#"met.yaml:2: sampling.ladder: "5m" is too long; the longest is 60s"#]],
    );
    check_error(
        "storage:\n  keep: 5d\nsampling:\n  managers: {slrum: 1s}\n",
        expect![[r#"met.yaml:3: sampling.managers: "slrum" is not a resource manager"#]],
    );
    check_error(
        "sampling:\n  managers: {slurm: 1}\n",
        expect![[r#"met.yaml:2: sampling.managers: "1" has no unit; write 1s, 1ms or 1m"#]],
    );
    check_error(
        "sampling:\n  managers: slurm\n",
        expect![[r#"met.yaml:2: sampling.managers: "slurm" names no manager; write {slurm: 1s}"#]],
    );
}

#[test]
fn an_address_of_metrics_is_a_host_and_a_port() {
    let read = |text: &str| {
        let yaml = format!("schedulers: {{slurm_metrics: \"{text}\"}}\n");
        Config::parse(&yaml, Path::new("met.yaml"))
    };
    for right in ["http://ctl:6817", "https://a-b.c_d:1", "http://10.0.0.1:80/", "http://[::1]:6817"] {
        assert!(read(right).is_ok(), "{right}");
    }
    for wrong in [
        "ctl:6817",
        "ftp://ctl:6817",
        "http://ctl",
        "http://ctl:0",
        "http://ctl:+1",
        "http://ctl:65536",
        "http://ctl:",
        "http://:6817",
        "http://user:secret@ctl:6817",
        "http://ctl:6817/metrics",
        "http://ctl:6817?a",
        "http://[ctl]:6817",
        "http://c tl:6817",
        "",
    ] {
        assert!(read(wrong).is_err(), "{wrong}");
    }
}
