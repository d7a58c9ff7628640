//! Every key there is: one list makes the reader, its complaints and the reference.

use met_core::managers::Scheduler;
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
    pub help: &'static str,
}

/// The sections with readers of their own.
pub const SOURCES: &str = "sources";
pub const SINKS: &str = "sinks";

/// Two names of one setting; in one file they must agree.
pub const SAMPLING_INTERVAL: [(&str, &str); 2] = [("sampling", "interval"), ("cpuCollector", "interval")];

const SAMPLING_INTERVAL_DEFAULT: &str = "1s";

/// How schedulers are queried, whichever they are.
const QUERY_KEYS: &[Key] = &[
    Key {
        name: "interval",
        form: Form::Interval(|config, interval| config.schedulers.interval = interval),
        default: "60s",
        help: "how often each is queried; less often where queries are slow, sooner after a job of this node ended",
    },
    Key {
        name: "lookback",
        form: Form::Duration(|config, span| config.schedulers.lookback = span),
        default: "1d",
        help: "how far back the first query reaches",
    },
    Key {
        name: "timeout",
        form: Form::Duration(|config, limit| config.schedulers.timeout = limit),
        default: "30s",
        help: "a command that takes longer is killed and retried later",
    },
    Key {
        name: "scope",
        form: Form::Scope(|config, scope| config.schedulers.scope = Some(scope)),
        default: "",
        help: "`cluster`: all jobs, pending ones included (default of `met server`); `node`: jobs running on this node (default of `met daemon`)",
    },
    Key {
        name: "path",
        form: Form::Text(|config, folders| config.schedulers.path = Some(folders)),
        default: "",
        help: "folders searched first for the commands, separated by colons",
    },
];

const SCHEDULER_KEYS_COUNT: usize = Scheduler::COUNT + QUERY_KEYS.len();

/// A key for each scheduler, then the others.
static SCHEDULER_KEYS: [Key; SCHEDULER_KEYS_COUNT] = {
    let mut keys = [QUERY_KEYS[0]; SCHEDULER_KEYS_COUNT];
    let mut index = 0;
    while index < SCHEDULER_KEYS_COUNT {
        keys[index] = if index < Scheduler::COUNT {
            let (manager, query) = Scheduler::ALL[index].row();
            let form = Form::Scheduler(Scheduler::ALL[index]);
            Key { name: manager.name, form, default: "auto", help: query.help }
        } else {
            QUERY_KEYS[index - Scheduler::COUNT]
        };
        index += 1;
    }
    keys
};

pub static SECTIONS: &[Section] = &[
    Section {
        name: "sampling",
        help: "How often jobs are sampled. Totals do not depend on it: they are exact at any interval.",
        keys: &[Key {
            name: "interval",
            form: Form::Interval(|config, interval| config.sampling.interval = interval),
            default: SAMPLING_INTERVAL_DEFAULT,
            help: "time between two samples",
        }],
    },
    Section {
        name: "daemon",
        help: "The process that samples in the background.",
        keys: &[
            Key {
                name: "idle_exit",
                form: Form::Duration(|config, wait| config.daemon.idle_exit = wait),
                default: "10m",
                help: "a user's daemon exits after this long without a job",
            },
            Key {
                name: "operators",
                form: Form::Text(|config, group| config.daemon.operators = Some(group)),
                default: "",
                help: "a group whose members may see all users' jobs",
            },
        ],
    },
    Section {
        name: "storage",
        help: "Where jobs are stored, and for how long.",
        keys: &[
            Key {
                name: "name",
                form: Form::Storage(|config, name| config.storage.name = name),
                default: "sqlite",
                help: "`sqlite`: a database in the state directory; `memory`: the runtime directory only, gone after a reboot",
            },
            Key {
                name: "size",
                form: Form::Count(|config, jobs| config.storage.jobs_max = Some(jobs)),
                default: "",
                help: "with `memory`: at most this many jobs are kept; users over their fair share lose their oldest",
            },
            Key {
                name: "interval",
                form: Form::Interval(|config, interval| config.storage.flush_interval = interval),
                default: "60s",
                help: "how often samples are written to the store; the end of a job is written at once",
            },
            Key {
                name: "keep",
                form: Form::Duration(|config, age| config.storage.keep = age),
                default: "90d",
                help: "jobs and samples older than this are removed",
            },
            Key {
                name: "max_size",
                form: Form::Size(|config, bytes| config.storage.max_bytes = bytes),
                default: "2GiB",
                help: "maximum size of the store; above it, users over their fair share lose their oldest samples, then their oldest jobs",
            },
            Key {
                name: "node_series",
                form: Form::Presence(|config, presence| config.storage.node_series = presence),
                default: "auto",
                help: "whether series of the machine itself are stored while jobs run, for `met node --since`; `auto`: by a system daemon only",
            },
        ],
    },
    Section {
        name: "store",
        help: "Databases for `met server` at sites where its own files are not enough; read at start. Without this section everything is stored in the state directory. A secret is a file with one line that only its owner may read.",
        keys: &[
            Key {
                name: "series",
                form: Form::Address(Engine::check, |config, url| config.store.series = Some(url)),
                default: "",
                help: "an engine that accepts Prometheus remote write and answers PromQL; `/api/v1/query` is appended",
            },
            Key {
                name: "series_write",
                form: Form::Address(Engine::check, |config, url| config.store.series_write = Some(url)),
                default: "",
                help: "where it accepts samples, if not at `/api/v1/write` below `store.series`",
            },
            Key {
                name: "series_tenant",
                form: Form::Text(|config, tenant| config.store.series_tenant = Some(tenant)),
                default: "",
                help: "sent as `X-Scope-OrgID`, to engines with several tenants",
            },
            Key {
                name: "series_password_file",
                form: Form::Path(|config, file| config.store.series_password_file = Some(file)),
                default: "",
                help: "`user:password` for the engine",
            },
            Key {
                name: "series_token_file",
                form: Form::Path(|config, file| config.store.series_token_file = Some(file)),
                default: "",
                help: "a bearer token for the engine",
            },
            Key {
                name: "catalogue",
                form: Form::Address(PostgresServer::check, |config, url| {
                    config.store.catalogue = Some(Secret::new(url));
                }),
                default: "",
                help: "`postgres://user@host/database`, for jobs and totals; connections to other machines always use TLS",
            },
            Key {
                name: "password_file",
                form: Form::Path(|config, file| config.store.password_file = Some(file)),
                default: "",
                help: "the password for the catalogue, if it is not in the address",
            },
            Key {
                name: "ca_file",
                form: Form::Path(|config, file| config.store.ca_file = Some(file)),
                default: "",
                help: "CA bundle (PEM) for both connections (default: system CAs)",
            },
        ],
    },
    Section {
        name: "jobs",
        help: "Jobs started by a resource manager or by other means, discovered by their cgroups. A layout describes how a manager names them: `path` are the directories from the top of a hierarchy (those in parentheses at its beginning may be missing), `parts` those of the steps and tasks below a job. In a name `*` matches any characters, `#` digits, `{id}` a property of the job: `id`, `uid`, `user`, `node`, `cluster`, `index`, and in parts `step` and `task`; `{id:#}` matches digits only.",
        keys: &[
            Key {
                name: "discover",
                form: Form::Presence(|config, discover| config.jobs.discover = discover),
                default: "auto",
                help: "whether they are discovered; `auto`: by a system daemon only",
            },
            Key {
                name: "layouts",
                form: Form::Layouts(|config, layouts| config.jobs.layouts = layouts),
                default: "",
                help: "further layouts, tried before those built in: `- {manager: mysched, path: \"mysched/job-{id}\"}`",
            },
            Key {
                name: "below",
                form: Form::Path(|config, path| config.jobs.below = Some(path)),
                default: "",
                help: "search only below this cgroup, given from the root of each hierarchy: `/machine.slice`",
            },
            Key {
                name: "plain",
                form: Form::Plain(|config, plain| config.jobs.plain = plain),
                default: "auto",
                help: "what makes processes a job where there is no batch system: `session`, a login; `unit`, a systemd unit created by a user; `group`, a line typed into a shell; `auto`: sessions, by a system daemon, where no resource manager is found",
            },
            Key {
                name: "plain_after",
                form: Form::Duration(|config, after| config.jobs.plain_after = after),
                default: "10s",
                help: "such processes become a job after this time,",
            },
            Key {
                name: "plain_cpu",
                form: Form::Duration(|config, cpu| config.jobs.plain_cpu = cpu),
                default: "1s",
                help: "or after this much CPU time; those that end earlier are summed in one job per user and day",
            },
        ],
    },
    Section {
        name: "gpu",
        help: "GPUs. They are detected automatically.",
        keys: &[
            Key {
                name: "nvml",
                form: Form::Path(|config, path| config.gpu.nvml = Some(path)),
                default: "",
                help: "the NVIDIA driver's library libnvidia-ml.so.1, where it is not on the search path",
            },
            Key {
                name: "idle_power",
                form: Form::Power(|config, card, power_mw| match card {
                    Some(card) => config.gpu.idle_power.by_card.push((card.to_owned(), power_mw)),
                    None => config.gpu.idle_power.all_mw = Some(power_mw),
                }),
                default: "",
                help: "idle power of a GPU, charged to the jobs that hold it: `75W` for all, or by uuid or model: `{NVIDIA H200: 75W, default: 30W}`; by default learned for each GPU",
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
        keys: &[Key {
            name: "events",
            form: Form::Events(|config, events| config.perf.events = events),
            default: "",
            help: "what to count in every job: names from `met metrics`, as a list or separated by commas,  `[instructions, cpu_cycles]`",
        }],
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
                help: "how the processors' energy is divided: by CPU time, or, among jobs in whose cgroups the processor counts them, instructions or cycles; jobs and the rest of the system are always separated by CPU time",
            },
            Key {
                name: "idle_power",
                form: Form::Number(|config, watts| config.energy.idle_watts = Some(watts)),
                default: "",
                help: "idle power of the machine without its GPUs, in watts; by default learned while the machine is idle",
            },
            Key {
                name: "pue",
                form: Form::Ratio(|config, ratio| config.energy.pue = ratio),
                default: "1",
                help: "power usage effectiveness of the building: energy of the building per energy of its machines; applied to CO2 and cost, not to energy",
            },
            Key {
                name: "price",
                form: Form::Number(|config, price| config.energy.price_per_kwh = Some(price)),
                default: "",
                help: "price of a kilowatt hour",
            },
            Key {
                name: "currency",
                form: Form::Text(|config, name| config.energy.currency = name),
                default: "EUR",
                help: "currency of the price",
            },
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
                help: "`country`: its yearly average; `constant`: `factor`; `rte`: France in real time; `electricity-maps`: a zone in real time, with a token",
            },
            Key {
                name: "country",
                form: Form::Text(|config, name| config.emissions.country = Some(name)),
                default: "",
                help: "name or three-letter code, for the yearly average; without it the world average is used",
            },
            Key {
                name: "factor",
                form: Form::Number(|config, grams| config.emissions.grams_per_kwh = Some(grams)),
                default: "",
                help: "grams of CO2 equivalent per kilowatt hour, for `constant`",
            },
            Key {
                name: "zone",
                form: Form::Text(|config, zone| config.emissions.zone = Some(zone)),
                default: "",
                help: "for `electricity-maps`, such as FR or DE",
            },
            Key {
                name: "token_file",
                form: Form::Path(|config, path| config.emissions.token_file = Some(path)),
                default: "",
                help: "a file that only its owner can read, with the token of `electricity-maps`",
            },
            Key {
                name: "refresh",
                form: Form::Duration(|config, every| config.emissions.refresh = every),
                default: "15m",
                help: "how often a real-time provider is queried",
            },
            Key {
                name: "max_age",
                form: Form::Duration(|config, age| config.emissions.max_age = age),
                default: "6h",
                help: "how long the last value is used when the provider does not answer; then the country's average",
            },
            Key {
                name: "url",
                form: Form::Text(|config, url| config.emissions.url = Some(url)),
                default: "",
                help: "alternative address of a real-time provider, such as a mirror",
            },
        ],
    },
    Section {
        name: "http",
        help: "The HTTP listener: `/metrics` for Prometheus and the API. Off unless an address is given. Without passwords or client certificates in `web_config` the page omits users, accounts and job names, because every user of the machine can read it. A user's own daemon ignores this section in `/etc/met/met.yaml`.",
        keys: &[
            Key {
                name: "listen",
                form: Form::Addresses(|config, addresses| config.http.listen = addresses),
                default: "",
                help: "address and port, such as `127.0.0.1:9317`, `[::1]:9317` or `:9317` (all addresses); several as a list or separated by commas",
            },
            Key {
                name: "web_config",
                form: Form::Path(|config, path| config.http.web_config = Some(path)),
                default: "",
                help: "TLS and passwords, in the web configuration format of Prometheus exporters; reread when it changes",
            },
            Key {
                name: "operators",
                form: Form::Text(|config, names| {
                    config.http.operators = names.split(',').map(|name| name.trim().to_owned()).collect();
                }),
                default: "",
                help: "users of `web_config`, separated by commas, who may read all users' jobs with the API of a daemon",
            },
            Key {
                name: "plain",
                form: Form::Word(&["yes", "no", "true", "false"], |config, word| {
                    config.http.plain = matches!(word, "yes" | "true");
                }),
                default: "no",
                help: "`yes`: serve without TLS on addresses that other machines can reach",
            },
            Key {
                name: "jobs_max",
                form: Form::Count(|config, jobs| config.http.jobs_max = jobs),
                default: "2000",
                help: "maximum number of jobs with their own series; the others are summed in `met_jobs_not_shown_*`",
            },
            Key {
                name: "keep_ended",
                form: Form::Duration(|config, span| config.http.keep_ended = span),
                default: "5m",
                help: "how long the last figures of a finished job stay on the page, so that they are scraped",
            },
        ],
    },
    Section {
        name: "forward",
        help: "The server of a cluster to which a daemon sends job records and series. They are spooled on disk until the server has them. `met daemon --join URL` sets address and token without this section.",
        keys: &[
            Key {
                name: "url",
                form: Form::Text(|config, url| config.forward.url = Some(url)),
                default: "",
                help: "address of the server, such as `https://met.example:9317`",
            },
            Key {
                name: "token_file",
                form: Form::Path(|config, path| config.forward.token_file = Some(path)),
                default: "",
                help: "file with the token that `met server enroll NODE` printed; only its owner may read it",
            },
            Key {
                name: "ca_file",
                form: Form::Path(|config, path| config.forward.ca_file = Some(path)),
                default: "",
                help: "CA bundle (PEM; default: system CAs)",
            },
            Key {
                name: "cert_file",
                form: Form::Path(|config, path| config.forward.cert_file = Some(path)),
                default: "",
                help: "certificate of this node (PEM), instead of a token; its common name is the node's name",
            },
            Key {
                name: "key_file",
                form: Form::Path(|config, path| config.forward.key_file = Some(path)),
                default: "",
                help: "its key; only its owner may read it",
            },
            Key {
                name: "plain",
                form: Form::Word(&["yes", "no", "true", "false"], |config, word| {
                    config.forward.plain = matches!(word, "yes" | "true");
                }),
                default: "no",
                help: "`yes`: allow http:// to other machines; the traffic can be read in transit",
            },
            Key {
                name: "node",
                form: Form::Text(|config, node| config.forward.node = Some(node)),
                default: "",
                help: "name of this node, as it was enrolled (default: host name)",
            },
            Key {
                name: "interval",
                form: Form::Duration(|config, interval| config.forward.interval = interval),
                default: "10s",
                help: "time between two batches, up to `60s`; starts and ends of jobs are sent immediately",
            },
            Key {
                name: "spool_size",
                form: Form::Size(|config, bytes| config.forward.spool_bytes = bytes),
                default: "1GiB",
                help: "maximum size of the spool; above it the oldest samples are dropped, job records never",
            },
            Key {
                name: "spool_age",
                form: Form::Duration(|config, age| config.forward.spool_age = age),
                default: "14d",
                help: "how long samples stay in the spool",
            },
        ],
    },
    Section {
        name: "server",
        help: "Settings of `met server` only. The listener is in `http`, storage in `store` and `storage`.",
        keys: &[
            Key {
                name: "move_after",
                form: Form::Duration(|config, span| config.server.move_after = Some(span)),
                default: "",
                help: "how long series stay as received before they are moved to the store (default: an hour with files, which compress better that way, and 30 s with an engine, `store.series`)",
            },
            Key {
                name: "lost_after",
                form: Form::Duration(|config, span| config.server.lost_after = span),
                default: "7d",
                help: "running jobs of a node that sent nothing for this long are recorded as lost until it sends again; those of an expelled node at once",
            },
        ],
    },
    Section {
        name: "client",
        help: "How `met --server URL` authenticates.",
        keys: &[
            Key {
                name: "token_file",
                form: Form::Path(|config, path| config.client.token_file = Some(path)),
                default: "",
                help: "file with the token that `met server enroll --user NAME` printed; only its owner may read it. default: `$XDG_CONFIG_HOME/met/token` or `~/.config/met/token`",
            },
            Key {
                name: "ca_file",
                form: Form::Path(|config, path| config.client.ca_file = Some(path)),
                default: "",
                help: "CA bundle (PEM; default: system CAs)",
            },
            Key {
                name: "plain",
                form: Form::Word(&["yes", "no", "true", "false"], |config, word| {
                    config.client.plain = matches!(word, "yes" | "true");
                }),
                default: "no",
                help: "`yes`: allow http:// to other machines; the traffic can be read in transit",
            },
        ],
    },
    Section {
        name: "system",
        help: "Directories of the system daemon. Those of a user's own daemon follow the XDG rules.",
        keys: &[
            Key {
                name: "runtime",
                form: Form::Path(|config, path| config.system.runtime = path),
                default: "/run/met",
                help: "socket and lock",
            },
            Key {
                name: "state",
                form: Form::Path(|config, path| config.system.state = path),
                default: "/var/lib/met",
                help: "the store",
            },
        ],
    },
    Section {
        name: "cpuCollector",
        help: "Older names of the sampling settings; existing files with these names still work.",
        keys: &[
            Key {
                name: "interval",
                form: Form::Interval(|config, interval| config.sampling.interval = interval),
                default: SAMPLING_INTERVAL_DEFAULT,
                help: "the same as `sampling.interval`",
            },
            Key {
                name: "size",
                form: Form::Count(|config, samples| config.sampling.buffer_samples = Some(samples)),
                default: "",
                help: "samples are written to the store when this many are buffered, even before `storage.interval`",
            },
        ],
    },
    Section {
        name: "nvidiaCollector",
        help: "Settings of an older tool: parsed and checked, but GPUs are sampled with everything else.",
        keys: &[
            Key {
                name: "interval",
                form: Form::Interval(|config, interval| config.nvidia.interval = Some(interval)),
                default: "",
                help: "time between two samples of the GPUs",
            },
            Key {
                name: "size",
                form: Form::Count(|config, samples| config.nvidia.size = Some(samples)),
                default: "",
                help: "number of GPU samples to buffer",
            },
        ],
    },
    Section {
        name: "state",
        help: "How processes are discovered.",
        keys: &[Key {
            name: "interval",
            form: Form::Interval(|config, interval| config.sampling.membership_interval = Some(interval)),
            default: "",
            help: "how often new processes of a job are searched for (default: with every sample)",
        }],
    },
];
