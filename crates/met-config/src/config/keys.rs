//! Every key there is: one list makes the reader, its complaints and the reference.

use met_core::managers::Scheduler;
use met_core::{Selection, cadence};
use met_store::{Engine, PostgresServer, Secret};

use super::form::Form;
use super::{Provider, Weight};

pub struct Section {
    pub name: &'static str,
    pub help: &'static str,
    pub keys: &'static [Key],
}

#[derive(Clone, Copy)]
pub struct Key {
    pub name: &'static str,
    pub form: Form,
    /// As it would be written; empty where there is none.
    pub default: &'static str,
    /// In words, what holds where a key without a default is not set.
    pub unset: &'static str,
    pub help: &'static str,
}

impl Key {
    /// What holds where it is not set.
    pub fn usual(&self) -> &'static str {
        if self.default.is_empty() { self.unset } else { self.default }
    }
}

/// A key: its name, its form, where its value goes (`?`: into an option), its default, if any, and its help. After
/// `unset`, in words, what holds without a value.
macro_rules! key {
    ($name:literal: $form:ident($($to:tt)*), $help:literal) => { key!($name: $form($($to)*) unset "", $help) };
    ($name:literal: $form:ident($($to:tt)*) unset $unset:literal, $help:literal) => {
        Key { name: $name, form: form!($form, $($to)*), default: "", unset: $unset, help: $help }
    };
    ($name:literal: $form:ident($($to:tt)*) = $default:expr, $help:literal) => {
        Key { name: $name, form: form!($form, $($to)*), default: $default, unset: "", help: $help }
    };
}

macro_rules! form {
    (Flag, $section:ident.$field:ident) => {
        Form::Word(&["yes", "no", "true", "false"], |config, word| {
            config.$section.$field = matches!(word, "yes" | "true");
        })
    };
    (Endpoint, $section:ident.$field:ident?) => {
        Form::Address(
            |text| met_sinks::zeromq::Endpoint::parse_own(text).map(drop),
            |config, endpoint| config.$section.$field = Some(endpoint),
        )
    };
    (Engine, $section:ident.$field:ident?) => {
        Form::Address(Engine::check, |config, url| config.$section.$field = Some(url))
    };
    ($form:ident, $section:ident.$field:ident) => {
        Form::$form(|config, value| config.$section.$field = value)
    };
    ($form:ident, $section:ident.$field:ident?) => {
        Form::$form(|config, value| config.$section.$field = Some(value))
    };
}

/// The sections with readers of their own.
pub const SOURCES: &str = "sources";
pub const SINKS: &str = "sinks";
pub const SYSTEMS: &str = "systems";

/// Two names of one setting; in one file they must agree.
pub const SAMPLING_INTERVAL: [(&str, &str); 2] = [("sampling", "interval"), ("cpuCollector", "interval")];

/// How schedulers are queried, whichever they are.
const QUERY_KEYS: &[Key] = &[
    key!("interval": Interval(schedulers.interval?) unset "60s on a server; 10m on a daemon that sends to no server", "how often each is queried; less often where queries are slow"),
    key!("lookback": Duration(schedulers.lookback) = "1d", "how far back the first query reaches"),
    key!("timeout": Duration(schedulers.timeout) = "30s", "a command that takes longer is killed and retried later"),
    key!("scope": Scope(schedulers.scope?), "`cluster`: all jobs, pending ones included (default of `met server`); `node`: jobs that this daemon measured (default of `met daemon`)"),
    key!("path": Text(schedulers.path?), "folders searched first for the commands, separated by colons"),
];

const SCHEDULER_KEYS_COUNT: usize = Scheduler::COUNT + QUERY_KEYS.len() + metrics_keys();

/// Of schedulers that count their queue.
const fn metrics_keys() -> usize {
    let (mut count, mut index) = (0, 0);
    while index < Scheduler::COUNT {
        count += Scheduler::ALL[index].row().1.metrics.is_some() as usize;
        index += 1;
    }
    count
}

/// A key for each scheduler, then the others.
static SCHEDULER_KEYS: [Key; SCHEDULER_KEYS_COUNT] = {
    let mut keys = [QUERY_KEYS[0]; SCHEDULER_KEYS_COUNT];
    let mut at = 0;
    while at < Scheduler::COUNT {
        let (manager, query) = Scheduler::ALL[at].row();
        let form = Form::Scheduler(Scheduler::ALL[at]);
        keys[at] = Key { name: manager.name, form, default: "auto", unset: "", help: query.help };
        at += 1;
    }
    let mut index = 0;
    while index < QUERY_KEYS.len() {
        keys[at] = QUERY_KEYS[index];
        (at, index) = (at + 1, index + 1);
    }
    let mut index = 0;
    while index < Scheduler::COUNT {
        let scheduler = Scheduler::ALL[index];
        if let Some((name, help)) = scheduler.row().1.metrics {
            keys[at] = Key { name, form: Form::Metrics(scheduler), default: "", unset: "", help };
            at += 1;
        }
        index += 1;
    }
    keys
};

pub static SECTIONS: &[Section] = &[
    Section {
        name: "sampling",
        help: "How often jobs are sampled. Totals do not depend on it: they are exact at any interval.",
        keys: &[
            key!("ladder": Ladder(sampling.ladder) = cadence::DEFAULT, "time between two samples of a job, by its age: at first, and after each of some ages; at most `60s`. The first interval holds again for a while if a job's CPU use changes sharply, a user watches it (here, or at the server that this node sends to), or a rule asks for it (`met check`). CPU time and needed memory of all jobs are read at least every 10 s at any age; so is I/O, but only at every tenth sample where a job ran for a moment only and disks moved little"),
            key!("interval": Interval(sampling.interval?), "the time between two samples of all jobs, instead of `ladder`"),
            Key {
                name: "managers",
                form: Form::Managers(|config, name, interval| {
                    config.sampling.managers.push((name, interval))
                }),
                default: "",
                unset: "",
                help: "the same for the jobs of some resource managers, such as `{slurm: 1s}`",
            },
        ],
    },
    Section {
        name: "daemon",
        help: "The process that samples in the background.",
        keys: &[
            key!("idle_exit": Duration(daemon.idle_exit) = "10m", "a user's daemon exits after this long without a job"),
            key!("operators": Text(daemon.operators?), "a group whose members may see all users' jobs"),
        ],
    },
    Section {
        name: "storage",
        help: "Where jobs are stored, and for how long.",
        keys: &[
            key!("name": Storage(storage.name) = "sqlite", "`sqlite`: a database in the state directory; `memory`: the runtime directory only, gone after a reboot"),
            key!("size": Count(storage.jobs_max?), "with `memory`: at most this many jobs are kept; users over their fair share lose their oldest"),
            key!("interval": Interval(storage.flush_interval) = "60s", "how often samples are written to the store; the end of a job is written at once"),
            key!("keep": Duration(storage.keep) = "730d", "jobs and samples older than this are removed"),
            key!("thin_after": Duration(storage.thin_after) = "7d", "samples older than this are thinned: one per `thin_to` stays, with the minimum, mean and maximum of those removed; not where an engine keeps them (`store.series`)"),
            key!("thin_to": Interval(storage.thin_to) = "1m", "the time between two samples that stay"),
            key!("thin_more_after": Duration(storage.thin_more_after) = "90d", "samples older than this are thinned again"),
            key!("thin_more_to": Interval(storage.thin_more_to) = "10m", "the time between two samples that stay then"),
            key!("max_size": Size(storage.max_bytes) = "2GiB", "maximum size of the store; above it, users over their fair share lose their oldest samples, then their oldest jobs"),
            key!("node_series": Presence(storage.node_series) = "auto", "whether series of the machine itself are stored, for `met node --since`; `auto`: by a system daemon only"),
            key!("job_details": Flag(storage.job_details) = "no", "`yes`: store the details of jobs, too (table `job_detail` in docs/metrics.md), a sample every 10 s; else they are only shown and sent while jobs run"),
        ],
    },
    Section {
        name: "node",
        help: "Series of the machine itself (`storage.node_series`).",
        keys: &[
            key!("interval": Interval(node.interval?) unset "10s while jobs run, 60s without", "time between two samples of the machine, but not shorter than `sampling.interval` while jobs run"),
        ],
    },
    Section {
        name: "store",
        help: "Databases for `met server` at sites where its own files are not enough; read at start. Without this section everything is stored in the state directory. A secret is a file with one line that only its owner may read.",
        keys: &[
            key!("series": Engine(store.series?), "an engine that accepts Prometheus remote write and answers PromQL; `/api/v1/query` is appended"),
            key!("series_write": Engine(store.series_write?), "where it accepts samples, if not at `/api/v1/write` below `store.series`"),
            key!("series_tenant": Text(store.series_tenant?), "sent as `X-Scope-OrgID`, to engines with several tenants"),
            key!("series_password_file": Path(store.series_password_file?), "`user:password` for the engine"),
            key!("series_token_file": Path(store.series_token_file?), "a bearer token for the engine"),
            Key {
                name: "catalogue",
                form: Form::Address(PostgresServer::check, |config, url| {
                    config.store.catalogue = Some(Secret::new(url));
                }),
                default: "",
                unset: "",
                help: "`postgres://user@host/database`, for jobs and totals; connections to other machines always use TLS",
            },
            key!("password_file": Path(store.password_file?), "the password for the catalogue, if it is not in the address"),
            key!("ca_file": Path(store.ca_file?) unset "system CAs", "CA bundle (PEM) for both connections"),
        ],
    },
    Section {
        name: "jobs",
        help: "Jobs started by a resource manager or by other means, discovered by their cgroups. A layout describes how a manager names them: `path` are the directories from the top of a hierarchy (those in parentheses at its beginning may be missing), `parts` those of the steps and tasks below a job. In a name `*` matches any characters, `#` digits, `{id}` a property of the job: `id`, `uid`, `user`, `node`, `cluster`, `index`, and in parts `step` and `task`; `{id:#}` matches digits only.",
        keys: &[
            key!("discover": Presence(jobs.discover) = "auto", "whether they are discovered; `auto`: by a system daemon only"),
            key!("layouts": Layouts(jobs.layouts), "further layouts, tried before those built in: `- {manager: mysched, path: \"mysched/job-{id}\"}`"),
            key!("below": Path(jobs.below?), "search only below this cgroup, given from the root of each hierarchy: `/machine.slice`"),
            key!("plain": Plain(jobs.plain) = "auto", "what makes processes a job where there is no batch system: `session`, a login; `unit`, a systemd unit created by a user; `group`, a line typed into a shell; `auto`: sessions, by a system daemon, where no resource manager is found"),
            key!("plain_after": Duration(jobs.plain_after) = "10s", "such processes become a job after this time, or after `plain_cpu`"),
            key!("plain_cpu": Duration(jobs.plain_cpu) = "1s", "such processes become a job after this much CPU time, or after `plain_after`; those that end earlier are summed in one job per user and day"),
            key!("start_before_cgroup": Flag(jobs.start_before_cgroup) = "no", "`yes`: where `met run` and `met time` create a cgroup v1 directory, the command starts before its processes are moved there, which saves the time that `met doctor` shows as `cgroup entry`. Memory that they allocated before the move is not counted: memory figures are lower bounds"),
        ],
    },
    Section {
        name: "gpu",
        help: "GPUs. They are detected automatically.",
        keys: &[
            key!("nvml": Path(gpu.nvml?), "the NVIDIA driver's library libnvidia-ml.so.1, where it is not on the search path"),
            Key {
                name: "idle_power",
                form: Form::Power(|config, gpu, power_mw| match gpu {
                    Some(gpu) => config.gpu.idle_power.by_gpu.push((gpu.to_owned(), power_mw)),
                    None => config.gpu.idle_power.all_mw = Some(power_mw),
                }),
                default: "",
                unset: "learned for each GPU",
                help: "idle power of a GPU, charged to the jobs that hold it: `75W` for all, or by uuid or model: `{NVIDIA H200: 75W, default: 30W}`",
            },
        ],
    },
    Section {
        name: "schedulers",
        help: "Resource managers, which are queried for their records of jobs.",
        keys: &SCHEDULER_KEYS,
    },
    Section {
        name: "perf",
        help: "Events that the kernel and the processor count. Only events named here are counted.",
        keys: &[
            key!("events": Events(perf.events), "what to count in every job: names from `met metrics`, as a list or separated by commas,  `[instructions, cpu_cycles]`"),
        ],
    },
    Section {
        name: "energy",
        help: "How the energy of the machine is divided among jobs.",
        keys: &[
            Key {
                name: "idle_to",
                form: Form::Word(&["holders", "nobody"], |config, word| {
                    config.energy.idle_to_holders = word == "holders";
                }),
                default: "holders",
                unset: "",
                help: "who is charged for the idle power of the machine: jobs by the CPUs they hold, jobs as a separate line, or no job",
            },
            Key {
                name: "weight",
                form: Form::Word(&["cpu-time", "instructions", "cycles"], |config, word| {
                    config.energy.weight = match word {
                        "instructions" => Weight::Instructions,
                        "cycles" => Weight::Cycles,
                        _ => Weight::CpuTime,
                    };
                }),
                default: "cpu-time",
                unset: "",
                help: "how the processors' energy is divided: by CPU time, or, among jobs in whose cgroups the processor counts them, instructions or cycles; jobs and the rest of the system are always separated by CPU time",
            },
            key!("idle_power": Number(energy.idle_watts?) unset "learned while the machine is idle", "idle power of the machine without its GPUs, in watts"),
            key!("pue": Ratio(energy.pue) = "1", "power usage effectiveness of the building: energy of the building per energy of its machines; applied to CO2e and cost, not to energy"),
            key!("price": Number(energy.price_per_kwh?), "price of a kilowatt hour"),
            key!("currency": Text(energy.currency) = "EUR", "currency of the price"),
        ],
    },
    Section {
        name: "notify",
        help: "Where `met run --notify` reports the end of a job, as its user.",
        keys: &[
            key!("desktop": Flag(notify.desktop) = "yes", "a message of `notify-send` where there is a desktop"),
            key!("command": Path(notify.command?), "a program that gets a JSON object on its standard input, for example to send a mail; it is run without a shell and has 20 s"),
            key!("webhook": Text(notify.webhook?), "an address that the same object is sent to (POST)"),
        ],
    },
    Section {
        name: "emissions",
        help: "Emissions per kilowatt hour.",
        keys: &[
            Key {
                name: "provider",
                form: Form::Word(&["country", "constant", "rte", "electricity-maps"], |config, word| {
                    config.emissions.provider = match word {
                        "constant" => Provider::Constant,
                        "rte" => Provider::Rte,
                        "electricity-maps" => Provider::ElectricityMaps,
                        _ => Provider::Country,
                    };
                }),
                default: "country",
                unset: "",
                help: "`country`: its yearly average; `constant`: `factor`; `rte`: France in real time; `electricity-maps`: a zone in real time, with a token",
            },
            key!("country": Text(emissions.country?), "name or three-letter code, for the yearly average; without it the world average is used"),
            key!("factor": Number(emissions.grams_per_kwh?), "grams of CO2 equivalent per kilowatt hour, for `constant`"),
            key!("zone": Text(emissions.zone?), "for `electricity-maps`, such as FR or DE"),
            key!("token_file": Path(emissions.token_file?), "a file that only its owner can read, with the token of `electricity-maps`"),
            key!("refresh": Duration(emissions.refresh) = "15m", "how often a real-time provider is queried"),
            key!("max_age": Duration(emissions.max_age) = "6h", "how long the last value is used when the provider does not answer; then the country's average"),
            key!("url": Text(emissions.url?), "alternative address of a real-time provider, such as a mirror"),
        ],
    },
    Section {
        name: "http",
        help: "The HTTP listener: `/metrics` for Prometheus and the API. Off unless an address is given. Without passwords or client certificates in `web_config` the page omits users, accounts and job names, because every user of the machine can read it. A user's own daemon ignores this section in `/etc/met/met.yaml`.",
        keys: &[
            key!("listen": Addresses(http.listen), "address and port, such as `127.0.0.1:9317`, `[::1]:9317` or `:9317` (all addresses); several as a list or separated by commas"),
            key!("socket": Path(http.socket?), "a Unix socket beside or instead of `listen`, for a reverse proxy on this machine (see `login.proxy_user`); every local user can connect to it"),
            key!("web_config": Path(http.web_config?), "TLS and passwords, in the web configuration format of Prometheus exporters; reread when it changes"),
            Key {
                name: "operators",
                form: Form::Text(|config, names| {
                    let names = names.split(',').map(str::trim).filter(|name| !name.is_empty());
                    config.http.operators = names.map(str::to_owned).collect();
                }),
                default: "",
                unset: "",
                help: "users who may read all users' jobs, separated by commas: names in `web_config`, of a reverse proxy or of an OpenID provider",
            },
            key!("plain": Flag(http.plain) = "no", "`yes`: serve without TLS on addresses that other machines can reach"),
            Key {
                name: "metrics",
                form: Form::Word(Selection::NAMES, |config, word| {
                    config.http.metrics = Selection::from_name(word).unwrap_or_default();
                }),
                default: "usual",
                unset: "",
                help: "which metrics are on the page: `usual` (what is plotted and what the rules in `rules/` need, about 10 series per job, 15 with GPUs), `minimal` (4) or `all`; `met metrics` says which is in which. Values are cut to thousandths of their unit, unless `all`",
            },
            key!("jobs_max": Count(http.jobs_max) = "2000", "maximum number of jobs with their own series; the others are summed in `met_jobs_not_shown_*`"),
            Key {
                name: "jobs_managers",
                form: Form::Text(|config, names| {
                    let names = names.split(',').map(str::trim).filter(|name| !name.is_empty());
                    config.http.jobs_managers = names.map(str::to_owned).collect();
                }),
                default: "",
                unset: "all",
                help: "managers whose jobs have their own series, separated by commas, such as `slurm,local`; other jobs are summed in `met_jobs_not_shown_*`",
            },
            key!("jobs_after": Duration(http.jobs_after?) unset "at once", "a job has its own series once it has run for this long; younger jobs are summed in `met_jobs_not_shown_*`"),
            key!("keep_ended": Duration(http.keep_ended) = "5m", "how long the last figures of a finished job stay on the page, so that they are scraped"),
            key!("max_age": Duration(http.max_age) = "5s", "a scrape of older figures has CPU time, memory and I/O of all jobs read for this page, and waits at most 250 ms for that; such readings are in no series"),
        ],
    },
    Section {
        name: "login",
        help: "How people log in with a browser, at the listener of `http`. A server's tokens and the passwords of `http.web_config` always work. See operator.md for examples.",
        keys: &[
            key!("session": Duration(login.session) = "12h", "how long a login lasts"),
            key!("public_url": Text(login.public_url?), "address under which browsers reach the listener, such as `https://met.example`; needed for OpenID Connect, and behind a reverse proxy"),
            key!("local_users": Flag(login.local_users) = "no", "`yes`: on a daemon, a user of `http.web_config` with the name of a user of this machine sees that user's jobs"),
            key!("proxy_header": Text(login.proxy_header) = "X-Grafana-User", "header in which a reverse proxy names the user; ignored unless `proxy_user` or `proxy_secret_file` is set"),
            key!("proxy_user": Text(login.proxy_user?), "user as which the reverse proxy runs; its connections to `http.socket` are trusted"),
            key!("proxy_secret_file": Path(login.proxy_secret_file?), "file with a secret of at least 16 characters that the reverse proxy sends as `X-Met-Proxy-Secret`; only its owner may read it"),
            key!("oidc_issuer": Text(login.oidc_issuer?), "OpenID provider, such as `https://sso.example/realms/hpc`, exactly as it names itself"),
            key!("oidc_client_id": Text(login.oidc_client_id?), "client id that the provider knows; its redirect address is `PUBLIC_URL/login/oidc/callback`"),
            key!("oidc_client_secret_file": Path(login.oidc_client_secret_file?), "file with the client secret, unless the client is public; only its owner may read it"),
            key!("oidc_user_claim": Text(login.oidc_user_claim) = "preferred_username", "claim of the id token that is the user's name, compared exactly. Choose one that users cannot change themselves"),
            key!("oidc_scopes": Text(login.oidc_scopes) = "openid profile", "requested scopes"),
            key!("oidc_ca_file": Path(login.oidc_ca_file?) unset "system CAs", "CA bundle (PEM) for the provider"),
            key!("audit_file": Path(login.audit_file?) unset "the log", "file for logins, refusals, writes and operators' reads of jobs, one JSON object per line; at 16 MiB it is renamed to `.1`"),
        ],
    },
    Section {
        name: "forward",
        help: "The server of a cluster to which a daemon sends job records and series. They are spooled on disk until the server has them. `met daemon --join URL` sets address and token without this section.",
        keys: &[
            key!("url": Text(forward.url?), "address of the server, such as `https://met.example:9317`"),
            key!("token_file": Path(forward.token_file?), "file with the token that `met server enroll NODE` printed; only its owner may read it"),
            key!("ca_file": Path(forward.ca_file?) unset "system CAs", "CA bundle (PEM)"),
            key!("cert_file": Path(forward.cert_file?), "certificate of this node (PEM), instead of a token; its common name is the node's name"),
            key!("key_file": Path(forward.key_file?), "its key; only its owner may read it"),
            key!("plain": Flag(forward.plain) = "no", "`yes`: allow http:// to other machines; the traffic can be read in transit"),
            key!("node": Text(forward.node?) unset "host name", "name of this node, as it was enrolled"),
            key!("interval": Duration(forward.interval) = "10s", "time between two batches, up to `60s`; starts and ends of jobs are sent immediately"),
            key!("spool_size": Size(forward.spool_bytes) = "1GiB", "maximum size of the spool; above it the oldest samples are dropped, job records never"),
            key!("spool_age": Duration(forward.spool_age) = "14d", "how long samples stay in the spool"),
        ],
    },
    Section {
        name: "server",
        help: "Settings of `met server` only. The listener is in `http`, storage in `store` and `storage`.",
        keys: &[
            key!("accounts": Accounts(server.accounts) = "file", "members of an account see its jobs. `file`: those in `accounts_file`; the name of a scheduler: those that it lists, queried hourly (`slurm`: the associations that `sacctmgr` prints). Users of no known account see their own jobs"),
            key!("accounts_file": Path(server.accounts_file?), "lines such as `physics: ada, bob`; reread when it changes"),
            key!("move_after": Duration(server.move_after?) unset "1h with files, which compress better that way; 30s with an engine (store.series)", "how long series stay as received before they are moved to the store"),
            key!("lost_after": Duration(server.lost_after) = "7d", "running jobs of a node that sent nothing for this long are recorded as lost until it sends again; those of an expelled node at once"),
        ],
    },
    Section {
        name: "colmet",
        help: "Where `met server` takes records of colmet-node (a PULL socket of ZeroMQ); read at start. The protocol has no authentication: a program at an address of `allow` can speak for each of `hosts` that has no token here.",
        keys: &[
            key!("listen": Addresses(colmet.listen), "addresses with ports, such as `0.0.0.0:5556`; without one nothing is taken"),
            key!("allow": Texts(colmet.allow), "addresses and networks that may connect, such as `10.0.0.0/16`; required with `listen`"),
            key!("hosts": Texts(colmet.hosts), "names of hosts whose records are taken, such as `node-[1-64]` or `*.site.example`; required with `listen`. A host with a token is refused here"),
            key!("manager": Text(colmet.manager) = Scheduler::Oar.name(), "resource manager whose jobs these are"),
            key!("configure": Endpoint(colmet.configure?), "where `met daemon` takes live configuration as Colmet's variant in Rust does (a PULL socket): `ipc://PATH`, for the user of the daemon only, or `tcp://HOST:PORT`, for anyone who can reach it. A message changes the interval (0.1 s or more) and the perf events until a job ends; without an endpoint none is taken"),
        ],
    },
    Section {
        name: "client",
        help: "How `met --server URL` authenticates.",
        keys: &[
            key!("token_file": Path(client.token_file?) unset "$XDG_CONFIG_HOME/met/token or ~/.config/met/token", "file with the token that `met server enroll --user NAME` printed; only its owner may read it"),
            key!("ca_file": Path(client.ca_file?) unset "system CAs", "CA bundle (PEM)"),
            key!("plain": Flag(client.plain) = "no", "`yes`: allow http:// to other machines; the traffic can be read in transit"),
        ],
    },
    Section {
        name: "system",
        help: "Directories of the system daemon. Those of a user's own daemon follow the XDG rules.",
        keys: &[
            key!("runtime": Path(system.runtime) = "/run/met", "socket and lock"),
            key!("state": Path(system.state) = "/var/lib/met", "the store"),
        ],
    },
    Section {
        name: "cpuCollector",
        help: "Older names of the sampling settings; existing files with these names still work.",
        keys: &[
            key!("interval": Interval(sampling.interval?), "the same as `sampling.interval`"),
            key!("size": Count(sampling.buffer_samples?), "samples are written to the store when this many are buffered, even before `storage.interval`"),
        ],
    },
    Section {
        name: "nvidiaCollector",
        help: "GPUs of all makers; the names are those of an older tool, whose files still work.",
        keys: &[
            key!("interval": Interval(nvidia.interval?) unset "with everything else", "time between two samples of the GPUs"),
            key!("size": Count(nvidia.size?), "samples are written to the store when this many of a GPU are buffered, even before `storage.interval`"),
        ],
    },
    Section {
        name: "state",
        help: "How processes are discovered.",
        keys: &[
            key!("interval": Interval(sampling.membership_interval?) unset "with every sample", "how often new processes of a job are searched for"),
        ],
    },
];
