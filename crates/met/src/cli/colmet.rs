//! The command lines of Colmet's own programs, so that a unit file needs one word changed.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

#[derive(Debug, Args)]
#[command(disable_version_flag = true)]
pub struct ColmetCollectorArgs {
    /// Rows are in the HDF5 file within this time, and -v logs as often; records are taken as they come
    #[arg(short = 's', long, value_name = "SECONDS", default_value = "5", allow_negative_numbers = true, value_parser = period)]
    pub sample_period: Duration,
    /// Records that wait in memory; ignored: queues are bounded by bytes
    #[arg(long, value_name = "COUNT")]
    pub buffer_size: Option<u64>,
    /// Print the records
    #[arg(long)]
    pub enable_stdout_backend: bool,
    /// Where nodes connect
    #[arg(long, value_name = "URI", default_value = "tcp://0.0.0.0:5556")]
    pub zeromq_bind_uri: String,
    /// Messages that wait in ZeroMQ; ignored: memory is bounded for each peer
    #[arg(long, value_name = "COUNT")]
    pub zeromq_hwm: Option<u64>,
    /// Ignored: nothing is sent to nodes
    #[arg(long, value_name = "MILLISECONDS", allow_negative_numbers = true)]
    pub zeromq_linger: Option<i64>,
    /// File for HDF5; a name that does not end in .hdf5 gets the time and is begun again at every SIGHUP
    #[arg(long, value_name = "PATH")]
    pub hdf5_filepath: Option<PathBuf>,
    /// Compression of HDF5
    #[arg(long, value_name = "LEVEL", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=9))]
    pub hdf5_complevel: u8,
    /// Library of that compression; others than zlib are not used
    #[arg(long, value_name = "NAME", default_value = "zlib")]
    pub hdf5_complib: String,
    /// Elasticsearch, such as localhost:9200 or a URL
    #[arg(long, value_name = "HOST")]
    pub elastic_host: Option<String>,
    /// How names of its indices begin
    #[arg(long, value_name = "PREFIX", default_value = "colmet_")]
    pub elastic_index_prefix: String,
    /// File with USER:PASSWORD for it
    #[arg(short = 'P', long, value_name = "FILE")]
    pub http_credentials: Option<PathBuf>,
    /// Accept any certificate of it
    #[arg(long)]
    pub no_check_certificates: bool,
}

#[derive(Debug, Args)]
pub struct ColmetNodeArgs {
    /// Time between two messages
    #[arg(short = 's', long, value_name = "SECONDS", default_value = "5", allow_negative_numbers = true, value_parser = period)]
    pub sample_period: Duration,
    #[command(flatten)]
    pub backends: ColmetBackends,
    /// Ignored: Omni-Path is recognised
    #[arg(long)]
    pub omnipath: bool,
    /// Ignored: every Lustre file system is read
    #[arg(long, value_name = "PREFIX")]
    pub lustre_prefix: Option<String>,
    /// Events to count, five at most
    #[arg(long, value_name = "EVENT", num_args = 1.., default_values_t = ["instructions", "cache_misses", "page_faults", "cpu_cycles", "cache_references"].map(str::to_owned))]
    pub perfhw_list: Vec<String>,
    /// A program that prints the power of the machine, run without a shell; without it the management controller is read
    #[arg(long, value_name = "COMMAND", num_args = 1..)]
    pub ipmipower_cmd: Vec<String>,
    /// Where the cgroups of jobs are, below a hierarchy of cpusets
    #[arg(long = "cpuset_rootpath", value_name = "PATH")]
    pub cpuset_rootpath: Option<PathBuf>,
    /// A regular expression that is searched in their names; its first group is the id of the job [default: _(\d+)$]
    #[arg(long = "regex_job_id", value_name = "REGEX")]
    pub regex_job_id: Option<String>,
    /// Where the collector listens
    #[arg(long, value_name = "URI", default_value = "tcp://127.0.0.1:5556")]
    pub zeromq_uri: String,
    /// Take period and events of Colmet's variant in Rust here: ipc://PATH, or tcp://HOST:PORT for any client that reaches it
    #[arg(long, value_name = "URI")]
    pub configure_uri: Option<String>,
    /// Messages that wait while there is no collector
    #[arg(long, value_name = "COUNT", default_value_t = 1000)]
    pub zeromq_hwm: u32,
    /// Ignored: what waits at the end is tried once
    #[arg(long, value_name = "MILLISECONDS", allow_negative_numbers = true)]
    pub zeromq_linger: Option<i64>,
}

/// Which kinds of records are sent.
#[derive(Debug, Args)]
pub struct ColmetBackends {
    /// Send no figures of the machine
    #[arg(long)]
    pub disable_procstats: bool,
    /// Send InfiniBand and Omni-Path
    #[arg(long)]
    pub enable_infiniband: bool,
    /// Send Lustre
    #[arg(long)]
    pub enable_lustre: bool,
    /// Send hardware events of jobs
    #[arg(long)]
    pub enable_perfhw: bool,
    /// Send I/O and memory of the processes of jobs
    #[arg(long)]
    pub enable_jobproc: bool,
    /// Send energy of processors
    #[arg(long = "enable-RAPL")]
    pub enable_rapl: bool,
    /// Send temperatures
    #[arg(long)]
    pub enable_temperature: bool,
    /// Send power of the machine
    #[arg(long)]
    pub enable_ipmipower: bool,
    /// Send GPUs of jobs; a colmet-collector that writes HDF5 does not survive them
    #[arg(long)]
    pub enable_nvidia: bool,
}

fn period(text: &str) -> Result<Duration, String> {
    let period = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let is_allowed =
        |period: &Duration| (Duration::from_millis(100)..=Duration::from_secs(3600)).contains(period);
    period.filter(is_allowed).ok_or_else(|| "write a number of seconds from 0.1 to 3600".to_owned())
}
