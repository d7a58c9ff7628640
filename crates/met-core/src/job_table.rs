//! The job table: one row per job, whatever its figures were read from.

use crate::table::{MICRO, MILLI, NANO, ONE};
use crate::{Across, Column, Table, Unit, columns};

columns! { COLUMNS:
    WALL = Column::counter("wall", Unit::Seconds, NANO, "time from the start of the job to its end").across(Across::Max),
    CPU = Column::counter("cpu", Unit::Seconds, NANO, "CPU time, user and system, of every process of the job"),
    CPU_USER = Column::counter("cpu_user", Unit::Seconds, NANO, "CPU time spent in the job's own code"),
    CPU_SYSTEM = Column::counter("cpu_system", Unit::Seconds, NANO, "CPU time spent in the kernel on behalf of the job"),
    CORES_PEAK = Column::gauge("cores_peak", Unit::Count, MILLI, "most cores busy at once, over at least half a second"),
    MEMORY_NEEDED = Column::gauge("memory_needed", Unit::Bytes, ONE, "memory that cannot be dropped: anonymous and shared"),
    MEMORY_CACHE = Column::gauge("memory_cache", Unit::Bytes, ONE, "page cache charged to the job; the kernel may reclaim it"),
    MEMORY_NEEDED_PEAK = Column::gauge("memory_needed_peak", Unit::Bytes, ONE, "largest memory_needed seen"),
    MEMORY_PEAK = Column::gauge("memory_peak", Unit::Bytes, ONE, "largest memory held, page cache included"),
    READ = Column::counter("read", Unit::Bytes, ONE, "bytes fetched from storage"),
    WRITTEN = Column::counter("written", Unit::Bytes, ONE, "bytes sent towards storage, buffered writes included"),
    READ_CALL = Column::counter("read_call", Unit::Bytes, ONE, "bytes returned by read calls: files, pipes, cache, sockets"),
    WRITE_CALL = Column::counter("write_call", Unit::Bytes, ONE, "bytes given to write calls"),
    READ_CALLS = Column::counter("read_calls", Unit::Count, ONE, "read calls"),
    WRITE_CALLS = Column::counter("write_calls", Unit::Count, ONE, "write calls"),
    PAGE_FAULTS_MINOR = Column::counter("page_faults_minor", Unit::Count, ONE, "page faults served without storage"),
    PAGE_FAULTS_MAJOR = Column::counter("page_faults_major", Unit::Count, ONE, "page faults that waited for storage"),
    SWITCHES_VOLUNTARY = Column::counter("context_switches_voluntary", Unit::Count, ONE, "times a thread of the job gave up the CPU to wait"),
    SWITCHES_INVOLUNTARY = Column::counter("context_switches_involuntary", Unit::Count, ONE, "times a thread of the job was preempted"),
    RUN_QUEUE_WAIT = Column::counter("run_queue_wait", Unit::Seconds, NANO, "time threads were ready to run and waited for a CPU"),
    PROCESSES = Column::counter("processes", Unit::Count, ONE, "processes of the job seen since its start"),
    PROCESSES_RUNNING = Column::gauge("processes_running", Unit::Count, ONE, "processes alive"),
    THREADS_RUNNING = Column::gauge("threads_running", Unit::Count, ONE, "threads alive"),
    PROCESSES_PEAK = Column::gauge("processes_peak", Unit::Count, ONE, "most processes alive at once"),
    THREADS_PEAK = Column::gauge("threads_peak", Unit::Count, ONE, "most threads alive at once"),
    PRESSURE_CPU = Column::counter("pressure_cpu", Unit::Seconds, NANO, "time in which some task of the job waited for a CPU"),
    PRESSURE_MEMORY = Column::counter("pressure_memory", Unit::Seconds, NANO, "time in which some task of the job waited for memory"),
    PRESSURE_IO = Column::counter("pressure_io", Unit::Seconds, NANO, "time in which some task of the job waited for I/O"),
    PRESSURE_MEMORY_FULL = Column::counter("pressure_memory_full", Unit::Seconds, NANO, "time in which every task of the job waited for memory"),
    PRESSURE_IO_FULL = Column::counter("pressure_io_full", Unit::Seconds, NANO, "time in which every task of the job waited for I/O"),
    OOM_KILLS = Column::counter("oom_kills", Unit::Count, ONE, "processes the kernel killed because the job was out of memory"),
    GPUS = Column::gauge("gpus", Unit::Count, ONE, "cards that the job holds or uses"),
    GPUS_IDLE = Column::gauge("gpus_idle", Unit::Count, ONE, "cards that the job holds and does not use"),
    GPU_UTILIZATION = Column::gauge("gpu_utilization", Unit::Ratio, MILLI, "computing of the job on all its cards together: 1 is one card fully used"),
    GPU_MEMORY = Column::gauge("gpu_memory", Unit::Bytes, ONE, "memory of cards that the job holds"),
    GPU_MEMORY_PEAK = Column::gauge("gpu_memory_peak", Unit::Bytes, ONE, "largest gpu_memory seen"),
    GPU_POWER = Column::gauge("gpu_power", Unit::Watts, MILLI, "the job's part of the power of its cards, idle part included"),
    GPU_ENERGY = Column::counter("gpu_energy", Unit::Joules, MICRO, "energy of cards charged to the job, idle part included"),
    GPU_ENERGY_IDLE = Column::counter("gpu_energy_idle", Unit::Joules, MICRO, "the idle part: what cards use that are held and do not compute"),
    GPU_TEMPERATURE = Column::gauge("gpu_temperature", Unit::Celsius, MILLI, "temperature of the hottest card of the job").across(Across::Max),
}

pub static JOB: Table = Table {
    name: "job",
    subject: "a job on this node, its children included",
    labels: &["cluster", "manager", "id"],
    columns: COLUMNS,
};
