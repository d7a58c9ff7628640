//! `struct taskstats` as bytes. It grows at its end, and its version says how far.

use met_core::MISSING;
use met_host::netlink::{u16_at, u32_at, u64_at};

/// Everything read here has had its offset since this version.
const VERSION_MIN: u16 = 8;
/// Fields were put into the middle, and taken out again with the next version.
const VERSION_SHUFFLED: u16 = 15;
/// Since this version a record says whether its thread was the last of its process.
const VERSION_LAST_OF_GROUP: u16 = 12;
const FLAG_LAST_OF_GROUP: u8 = 0x20;

/// A thread or a process. What a kernel's record is too short for is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    pub exit_code: u32,
    /// `None` where the kernel is too old to say.
    pub last_of_group: Option<bool>,
    pub cpu_runs: i64,
    /// As the scheduler counts it.
    pub cpu_run_ns: i64,
    /// By the kernel's ticks.
    pub cpu_real_ns: i64,
    pub cpu_scaled_ns: i64,
    pub cpu_wait_ns: i64,
    pub io_waits: i64,
    pub io_wait_ns: i64,
    pub swap_waits: i64,
    pub swap_wait_ns: i64,
    pub reclaim_waits: i64,
    pub reclaim_wait_ns: i64,
    pub thrash_wait_ns: i64,
    pub compact_wait_ns: i64,
    pub name: [u8; 16],
    pub uid: u32,
    pub tid: u32,
    pub parent_pid: u32,
    /// The process of a thread.
    pub pid: Option<u32>,
    pub begin_s: i64,
    pub elapsed_us: i64,
    pub user_us: i64,
    pub system_us: i64,
    pub user_scaled_us: i64,
    pub system_scaled_us: i64,
    /// Megabytes times microseconds of CPU time.
    pub memory_time: i64,
    pub virtual_time: i64,
    pub faults_minor: i64,
    pub faults_major: i64,
    pub resident_peak_kb: i64,
    pub virtual_peak_kb: i64,
    /// Bytes are multiples of 1024 here, rounded down.
    pub read_call: i64,
    pub write_call: i64,
    pub read: i64,
    pub written: i64,
    pub write_cancelled: i64,
    pub voluntary: i64,
    pub involuntary: i64,
}

/// Whether records of this kernel can be read; why not, in words.
pub fn check(bytes: &[u8]) -> Result<(), String> {
    match u16_at(bytes, 0) {
        Some(version) if version < VERSION_MIN => Err(format!("taskstats version {version} is too old")),
        Some(VERSION_SHUFFLED) => {
            Err(format!("taskstats version {VERSION_SHUFFLED} has its fields in another order"))
        }
        Some(_) if Record::parse(bytes).is_some() => Ok(()),
        _ => Err("cannot parse the taskstats reply".to_owned()),
    }
}

impl Record {
    pub fn parse(bytes: &[u8]) -> Option<Record> {
        let version =
            u16_at(bytes, 0).filter(|&version| version >= VERSION_MIN && version != VERSION_SHUFFLED)?;
        // Words of eight bytes, in the order of linux/taskstats.h.
        let word = |index: usize| {
            u64_at(bytes, index * 8).map_or(MISSING, |value| i64::try_from(value).unwrap_or(i64::MAX))
        };
        // What every version has must be there.
        u64_at(bytes, 40 * 8)?;
        let flags = bytes.get(8).copied()?;
        let has_group = version >= VERSION_LAST_OF_GROUP;
        let elapsed_us = word(18);
        // The longest of the waits of each kind is at the end of newer records.
        let wait = |total: usize, longest: usize| believed(word(total), word(longest), elapsed_us);
        Some(Record {
            exit_code: u32_at(bytes, 4)?,
            last_of_group: has_group.then_some(flags & FLAG_LAST_OF_GROUP != 0),
            cpu_runs: word(2),
            cpu_wait_ns: word(3),
            io_waits: word(4),
            io_wait_ns: wait(5, 56),
            swap_waits: word(6),
            swap_wait_ns: wait(7, 58),
            cpu_real_ns: word(8),
            cpu_run_ns: word(9),
            name: bytes.get(80..96)?.try_into().ok()?,
            uid: u32_at(bytes, 120)?,
            tid: u32_at(bytes, 128)?,
            parent_pid: u32_at(bytes, 132)?,
            begin_s: i64::from(u32_at(bytes, 136)?),
            elapsed_us,
            user_us: word(19),
            system_us: word(20),
            faults_minor: word(21),
            faults_major: word(22),
            memory_time: word(23),
            virtual_time: word(24),
            resident_peak_kb: word(25),
            virtual_peak_kb: word(26),
            read_call: word(27),
            write_call: word(28),
            read: word(31),
            written: word(32),
            write_cancelled: word(33),
            voluntary: word(34),
            involuntary: word(35),
            user_scaled_us: word(36),
            system_scaled_us: word(37),
            cpu_scaled_ns: word(38),
            reclaim_waits: word(39),
            reclaim_wait_ns: wait(40, 60),
            thrash_wait_ns: wait(42, 62),
            compact_wait_ns: wait(45, 64),
            pid: u32_at(bytes, 46 * 8).filter(|_| has_group),
        })
    }
}

/// A wait, unless it is longer than it can be: a kernel that missed the begin of one counts it from boot.
fn believed(total_ns: i64, longest_ns: i64, elapsed_us: i64) -> i64 {
    /// More threads that wait all the time than any process has.
    const THREADS_MAX: i64 = 4096;
    let elapsed_ns = elapsed_us.max(0).saturating_mul(1000);
    let possible = longest_ns <= elapsed_ns && total_ns <= elapsed_ns.saturating_mul(THREADS_MAX);
    if possible { total_ns } else { MISSING }
}

#[cfg(test)]
#[path = "record_tests.rs"]
pub mod tests;
