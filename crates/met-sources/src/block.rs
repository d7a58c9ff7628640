//! Block devices: bytes, requests, and how long each was busy.

use std::time::Duration;

use met_core::chart::{MachineChart, Unit as ChartUnit};
use met_core::node::NodeRow;
use met_core::node_block::{NodeBlock, NodeLine};
use met_core::table::{NANO, ONE};
use met_core::{Batch, Column, MISSING, Subject, Table, Unit, columns, labels, units};
use met_host::{Host, KeptFile, Share, Targets, parse};

use crate::row_parts::{Parts, label};
use crate::{Opened, Options, Pace, ReadError, Source, SourceSpec, TickInfo, Unavailable};

columns! { COLUMNS:
    READ = Column::counter("read", Unit::Bytes, ONE, "bytes read").usual(),
    WRITTEN = Column::counter("written", Unit::Bytes, ONE, "bytes written").usual(),
    DISCARDED = Column::counter("discarded", Unit::Bytes, ONE, "bytes discarded (trim)"),
    READS = Column::counter("reads", Unit::Count, ONE, "read requests"),
    WRITES = Column::counter("writes", Unit::Count, ONE, "write requests"),
    DISCARDS = Column::counter("discards", Unit::Count, ONE, "discard requests"),
    FLUSHES = Column::counter("flushes", Unit::Count, ONE, "flush requests"),
    READ_WAIT = Column::counter("read_wait", Unit::Seconds, NANO, "time that reads took, summed over all of them"),
    WRITE_WAIT = Column::counter("write_wait", Unit::Seconds, NANO, "time that writes took, summed over all of them"),
    BUSY = Column::counter("busy", Unit::Seconds, NANO, "time in which at least one request was in flight").usual(),
    QUEUED = Column::counter("queued", Unit::Seconds, NANO, "time that all requests took together; per second it is the mean length of the queue"),
    REQUESTS = Column::gauge("requests", Unit::Count, ONE, "requests in flight"),
}

labels! { LABELS: DEVICE = "device", KIND = "kind" }

pub static TABLE: Table = Table {
    name: "block",
    subject: "a block device; one of kind `virtual` (dm, md, loop) is backed by others, which count the \
        same bytes again",
    labels: LABELS,
    columns: COLUMNS,
};

pub(crate) static SPEC: SourceSpec = SourceSpec {
    name: "block",
    help: "bytes, requests and busy time of each block device",
    pace: Pace::Every(Duration::from_secs(1)),
    tables: &[&TABLE],
    charts: &[MachineChart::new(
        "disk",
        ["Disks", "disk"],
        ChartUnit::BytesPerSecond,
        &TABLE,
        &[READ, WRITTEN],
    )],
    options: &[],
    open,
};

pub(crate) static BLOCK: NodeBlock = NodeBlock::new("Disks", &TABLE, now);

fn now(row: &NodeRow, _: u32) -> Vec<NodeLine> {
    let requests = row.rate(READS).zip(row.rate(WRITES));
    let values = [
        ("read ", row.rate(READ).map(units::bytes_per_second)),
        ("written ", row.rate(WRITTEN).map(units::bytes_per_second)),
        ("requests/s ", requests.map(|(reads, writes)| units::count(reads + writes))),
        ("busy ", row.rate(BUSY).map(|share| units::percent(share.min(1.0)))),
    ];
    vec![NodeLine::named(row.label(label::DEVICE), &values)]
}

/// The kernel counts in sectors of this size, whatever those of the device are.
const SECTOR_BYTES: i64 = 512;
const NS_PER_MS: i64 = 1_000_000;
const FILE: &str = "diskstats";

struct Block {
    host: Host,
    file: KeptFile,
    parts: Parts,
    /// Partitions, and devices that never did anything.
    passed_over: Parts,
    buffer: Vec<u8>,
}

fn open(host: &Host, _: &Options) -> Opened {
    let file = host.proc_dir().open_kept(FILE.as_bytes(), host.budget(), Share::First);
    let file = file.map_err(|_| Unavailable::Absent("no /proc/diskstats".to_owned()))?;
    Ok(Box::new(Block {
        host: host.clone(),
        file,
        parts: Parts::default(),
        passed_over: Parts::default(),
        buffer: Vec::new(),
    }))
}

impl Source for Block {
    fn read(&mut self, _: &Targets, _: &TickInfo, out: &mut [Batch]) -> Result<(), ReadError> {
        let [batch] = out else { return Ok(()) };
        self.file
            .read_list(self.host.proc_dir(), FILE.as_bytes(), &mut self.buffer)
            .map_err(|error| ReadError::Retry { path: format!("/proc/{FILE}"), error })?;
        for line in parse::lines(&self.buffer) {
            let mut fields = parse::fields(line).skip(2);
            let Some(name) = fields.next() else { continue };
            // Most machines have loop devices by the dozen, and never use them.
            let unused = || parse::fields(line).skip(3).all(|field| field == b"0");
            if self.passed_over.knows(name) || !self.parts.knows(name) && unused() {
                continue;
            }
            let kind = match self.parts.knows(name) {
                true => Some(""),
                false => kind_of(&self.host, name),
            };
            let Some(kind) = kind else {
                self.passed_over.of(name, Vec::new);
                continue;
            };
            if let Some(part) = self.parts.of(name, || vec![label(name), kind.to_owned()]) {
                let is_parsed = fill(fields, batch.push_part(Subject::Node, part));
                batch.unparsed.expect(is_parsed, || format!("/proc/{FILE}"));
            }
        }
        Ok(())
    }

    fn labels(&self) -> &[Vec<String>] {
        self.parts.labels()
    }
}

/// Nothing for a partition, whose disk counts it already.
fn kind_of(host: &Host, name: &[u8]) -> Option<&'static str> {
    // In /sys a slash in a name is an exclamation mark.
    let name = String::from_utf8_lossy(name).replace('/', "!");
    host.open_dir(format!("/sys/block/{name}")).ok()?;
    let has_hardware = host.open_dir(format!("/sys/block/{name}/device")).is_ok();
    Some(if has_hardware { "disk" } else { "virtual" })
}

fn fill<'a>(mut fields: impl Iterator<Item = &'a [u8]>, cells: &mut [i64]) -> bool {
    let mut next = |skip: usize, factor: i64| {
        fields.nth(skip).map_or(MISSING, |field| parse::scaled(parse::cell(field), factor))
    };
    cells[READS] = next(0, 1);
    cells[READ] = next(1, SECTOR_BYTES);
    cells[READ_WAIT] = next(0, NS_PER_MS);
    cells[WRITES] = next(0, 1);
    cells[WRITTEN] = next(1, SECTOR_BYTES);
    cells[WRITE_WAIT] = next(0, NS_PER_MS);
    cells[REQUESTS] = next(0, 1);
    cells[BUSY] = next(0, NS_PER_MS);
    cells[QUEUED] = next(0, NS_PER_MS);
    cells[DISCARDS] = next(0, 1);
    cells[DISCARDED] = next(1, SECTOR_BYTES);
    cells[FLUSHES] = next(1, 1);
    // Older kernels print no discards and flushes.
    let always = [READS, READ, READ_WAIT, WRITES, WRITTEN, WRITE_WAIT, REQUESTS, BUSY, QUEUED];
    always.iter().all(|&column| cells[column] != MISSING)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{Machine, SLOW};
    use expect_test::expect;
    use proptest::prelude::*;

    #[test]
    fn disks_are_rows_and_partitions_are_not() {
        let machine = Machine::new(include_str!("../../../fixtures/hosts/node.txt"));
        expect![[r#"
            Node sda disk
              read 8192000
              written 32768000
              discarded 2097152
              reads 1000
              writes 2000
              discards 10
              flushes 33
              read_wait 250000000
              write_wait 900000000
              busy 700000000
              queued 1150000000
              requests 1
            Node dm-0 virtual
              read 8192000
              written 32768000
              discarded 0
              reads 1005
              writes 2006
              discards 0
              flushes 0
              read_wait 260000000
              write_wait 950000000
              busy 710000000
              queued 1210000000
              requests 0
            Node nvme0n1 disk
              read 28672
              written 32768
              reads 7
              writes 8
              read_wait 1000000
              write_wait 2000000
              busy 3000000
              queued 3000000
              requests 0
        "#]]
        .assert_eq(&machine.read(&SPEC, SLOW));
    }

    proptest! {
        #[test]
        fn any_line_fills_cells_without_a_panic(text in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut cells = vec![MISSING; COLUMNS.len()];
            fill(parse::fields(&text), &mut cells);
        }
    }
}
