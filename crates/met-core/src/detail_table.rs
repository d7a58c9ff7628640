//! Details of a job: one row per job, of what is needed now and then.
//!
//! They are shown and sent as they are read; samples of them are stored only where that is configured.

use crate::table::{MICRO, MILLI, NANO, ONE};
use crate::{Across, Column, JOB, Table, Unit, columns};

columns! { COLUMNS:
    QUOTA_PERIODS = Column::counter("cpu_quota_periods", Unit::Count, ONE, "periods of the CPU quota in which the job was runnable"),
    MEMORY_ANONYMOUS = Column::gauge("memory_anonymous", Unit::Bytes, ONE, "anonymous memory of its cgroup"),
    MEMORY_HUGE = Column::gauge("memory_huge", Unit::Bytes, ONE, "its part in transparent huge pages"),
    MEMORY_MAPPED = Column::gauge("memory_mapped", Unit::Bytes, ONE, "mapped files and shared memory"),
    MEMORY_DIRTY = Column::gauge("memory_dirty", Unit::Bytes, ONE, "page cache waiting to be written to disk"),
    MEMORY_WRITEBACK = Column::gauge("memory_writeback", Unit::Bytes, ONE, "page cache being written to disk"),
    MEMORY_INACTIVE_ANONYMOUS = Column::gauge("memory_inactive_anonymous", Unit::Bytes, ONE, "anonymous and shared memory that would be swapped out first"),
    MEMORY_ACTIVE_ANONYMOUS = Column::gauge("memory_active_anonymous", Unit::Bytes, ONE, "recently used anonymous and shared memory"),
    MEMORY_INACTIVE_FILE = Column::gauge("memory_inactive_file", Unit::Bytes, ONE, "page cache that would be reclaimed first"),
    MEMORY_ACTIVE_FILE = Column::gauge("memory_active_file", Unit::Bytes, ONE, "recently used page cache"),
    MEMORY_UNEVICTABLE = Column::gauge("memory_unevictable", Unit::Bytes, ONE, "memory that cannot be reclaimed"),
    MEMORY_LIMIT = Column::gauge("memory_limit", Unit::Bytes, ONE, "lowest memory limit of its cgroup and those around it; cgroup v1 only").across(Across::Max),
    PAGES_CHARGED = Column::counter("pages_charged", Unit::Count, ONE, "pages charged to its cgroup; cgroup v1 only"),
    PAGES_UNCHARGED = Column::counter("pages_uncharged", Unit::Count, ONE, "pages released by its cgroup; cgroup v1 only"),
    PAGE_FAULTS = Column::counter("page_faults", Unit::Count, ONE, "page faults in its cgroup"),
    PAGE_FAULTS_MAJOR = Column::counter("page_faults_major", Unit::Count, ONE, "page faults in its cgroup that waited for storage"),
    MEMORY_RESIDENT = Column::gauge("memory_resident", Unit::Bytes, ONE, "memory in RAM, summed over processes: shared pages count in each"),
    MEMORY_VIRTUAL = Column::gauge("memory_virtual", Unit::Bytes, ONE, "address space, summed over processes"),
    MEMORY_SHMEM = Column::gauge("memory_shmem", Unit::Bytes, ONE, "mapped shared memory, summed over processes"),
    CPU_RUNS = Column::counter("cpu_runs", Unit::Count, ONE, "times a thread was given a CPU"),
    CPU_REAL = Column::counter("cpu_real", Unit::Seconds, NANO, "CPU time by the kernel's clock ticks"),
    CPU_VIRTUAL = Column::counter("cpu_virtual", Unit::Seconds, NANO, "CPU time as the scheduler counts it"),
    CPU_SCALED = Column::counter("cpu_scaled", Unit::Seconds, NANO, "CPU time scaled by frequency; equals CPU time where the processor does not say"),
    CPU_USER_SCALED = Column::counter("cpu_user_scaled", Unit::Seconds, MICRO, "the same in user code"),
    CPU_SYSTEM_SCALED = Column::counter("cpu_system_scaled", Unit::Seconds, MICRO, "the same in the kernel"),
    IO_WAITS = Column::counter("io_waits", Unit::Count, ONE, "times a thread waited for storage"),
    SWAP_WAITS = Column::counter("swap_waits", Unit::Count, ONE, "times a thread waited for pages to be swapped in"),
    DELAY_SWAP = Column::counter("delay_swap", Unit::Seconds, NANO, "time threads waited for pages to be swapped in"),
    RECLAIM_WAITS = Column::counter("reclaim_waits", Unit::Count, ONE, "times a thread waited for memory reclaim"),
    DELAY_RECLAIM = Column::counter("delay_reclaim", Unit::Seconds, NANO, "time threads waited for memory reclaim"),
    MEMORY_TIME = Column::counter("memory_time", Unit::Count, ONE, "resident memory times CPU time, in megabytes times microseconds"),
    VIRTUAL_TIME = Column::counter("virtual_time", Unit::Count, ONE, "address space times CPU time, in megabytes times microseconds"),
    GPU_MEMORY_TOTAL = Column::gauge("gpu_memory_total", Unit::Bytes, ONE, "memory of its GPUs, used by any process or free"),
    GPU_MEMORY_FREE = Column::gauge("gpu_memory_free", Unit::Bytes, ONE, "free memory of its GPUs"),
    GPU_UTILIZATION_MEMORY = Column::gauge("gpu_utilization_memory", Unit::Ratio, MILLI, "share of time in which memory of its GPUs was read or written by any process, summed over GPUs"),
}

pub static DETAIL: Table = Table {
    name: "job_detail",
    subject: "details of a job on this node, read every 10 s",
    labels: JOB.labels,
    columns: COLUMNS,
};
