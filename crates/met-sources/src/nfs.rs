//! NFS: what this machine read and wrote on each mount, and how long the server took.

use std::time::Duration;

use met_core::chart::{MachineChart, Unit as ChartUnit};
use met_core::node::NodeRow;
use met_core::node_block::{NodeBlock, NodeLine};
use met_core::table::{NANO, ONE};
use met_core::{Batch, Column, MISSING, Subject, Table, Unit, columns, labels, units};
use met_host::{Host, Targets, parse};

use crate::row_parts::{Parts, label};
use crate::{Opened, Options, Pace, ReadError, Source, SourceSpec, TickInfo, Unavailable};

columns! { COLUMNS:
    READ = Column::counter("read", Unit::Bytes, ONE, "bytes that programs read, cached data included").usual(),
    WRITTEN = Column::counter("written", Unit::Bytes, ONE, "bytes that programs wrote").usual(),
    RECEIVED = Column::counter("received", Unit::Bytes, ONE, "bytes read from the server"),
    SENT = Column::counter("sent", Unit::Bytes, ONE, "bytes written to the server"),
    OPERATIONS = Column::counter("operations", Unit::Count, ONE, "requests to the server"),
    RETRANSMISSIONS = Column::counter("retransmissions", Unit::Count, ONE, "requests that were retransmitted"),
    TIMEOUTS = Column::counter("timeouts", Unit::Count, ONE, "requests that timed out"),
    WAIT = Column::counter("wait", Unit::Seconds, NANO, "time from a request to its reply, summed over all requests"),
}

labels! { LABELS: MOUNT = "mount", SERVER = "server" }

pub static TABLE: Table = Table { name: "nfs", subject: "an NFS mount", labels: LABELS, columns: COLUMNS };

pub(crate) static SPEC: SourceSpec = SourceSpec {
    name: "nfs",
    help: "bytes, requests and latency of each NFS mount",
    // The kernel adds up the counts of all CPUs for each line.
    pace: Pace::Apart(Duration::from_secs(5)),
    tables: &[&TABLE],
    charts: &[MachineChart::new("nfs", ["NFS"; 2], ChartUnit::BytesPerSecond, &TABLE, &[RECEIVED, SENT])],
    options: &[],
    open,
};

pub(crate) static BLOCK: NodeBlock = NodeBlock::new("NFS", &TABLE, now);

fn now(row: &NodeRow, _: u32) -> Vec<NodeLine> {
    let wait = row.rate(WAIT).zip(row.rate(OPERATIONS)).filter(|(_, operations)| *operations > 0.0);
    let values = [
        ("received ", row.rate(RECEIVED).map(units::bytes_per_second)),
        ("sent ", row.rate(SENT).map(units::bytes_per_second)),
        ("requests/s ", row.rate(OPERATIONS).map(units::count)),
        ("each ", wait.map(|(wait, operations)| units::duration(wait / operations))),
    ];
    vec![NodeLine::named(row.label(label::MOUNT), &values)]
}

const FILE: &str = "/proc/self/mountstats";
const NS_PER_MS: i64 = 1_000_000;

struct Nfs {
    host: Host,
    parts: Parts,
    buffer: Vec<u8>,
}

fn open(host: &Host, _: &Options) -> Opened {
    let mut buffer = Vec::new();
    let known = host.read_small("/proc/filesystems", &mut buffer);
    // Homes are often mounted on login: kernel support is enough.
    let has_nfs = known.is_ok()
        && parse::lines(&buffer).any(|line| matches!(parse::fields(line).last(), Some(b"nfs" | b"nfs4")));
    match has_nfs {
        false => Err(Unavailable::Absent("the kernel has not loaded NFS".to_owned())),
        true => Ok(Box::new(Nfs { host: host.clone(), parts: Parts::default(), buffer })),
    }
}

impl Source for Nfs {
    fn read(&mut self, _: &Targets, _: &TickInfo, out: &mut [Batch]) -> Result<(), ReadError> {
        let [batch] = out else { return Ok(()) };
        self.host
            .read_small(FILE, &mut self.buffer)
            .map_err(|error| ReadError::Retry { path: FILE.to_owned(), error })?;
        for mount in mounts(&self.buffer) {
            let labels = || vec![label(mount.point), label(mount.server)];
            if let Some(part) = self.parts.of(mount.point, labels) {
                let is_parsed = fill(mount.text, batch.push_part(Subject::Node, part));
                batch.unparsed.expect(is_parsed, || FILE.to_owned());
            }
        }
        Ok(())
    }

    fn labels(&self) -> &[Vec<String>] {
        self.parts.labels()
    }
}

struct Mount<'a> {
    server: &'a [u8],
    point: &'a [u8],
    /// The lines about it.
    text: &'a [u8],
}

/// A mount begins with `device server:/home mounted on /home with fstype nfs4 statvers=1.1`.
fn mounts(text: &[u8]) -> impl Iterator<Item = Mount<'_>> {
    let mut rest = text;
    std::iter::from_fn(move || {
        loop {
            let begin = if rest.starts_with(b"device ") { 0 } else { find(rest, b"\ndevice ")? + 1 };
            let from = &rest[begin..];
            let end = find(from, b"\ndevice ").map_or(from.len(), |end| end + 1);
            rest = &from[end..];
            if let Some(mount) = mount(&from[..end]) {
                return Some(mount);
            }
        }
    })
}

fn mount(text: &[u8]) -> Option<Mount<'_>> {
    let line_end = text.iter().position(|&byte| byte == b'\n').unwrap_or(text.len());
    let line = text[..line_end].strip_prefix(b"device ")?;
    // Spaces in names are written \040.
    let mut fields = parse::fields(line);
    let server = fields.next()?;
    if fields.next()? != b"mounted" || fields.next()? != b"on" {
        return None;
    }
    let point = fields.next()?;
    if fields.next()? != b"with" || fields.next()? != b"fstype" {
        return None;
    }
    let is_nfs = matches!(fields.next()?, b"nfs" | b"nfs4") && fields.next().is_some();
    is_nfs.then_some(Mount { server, point, text: &text[line_end..] })
}

fn find(text: &[u8], word: &[u8]) -> Option<usize> {
    text.windows(word.len()).position(|window| window == word)
}

fn fill(text: &[u8], cells: &mut [i64]) -> bool {
    let mut per_operation = false;
    for line in parse::lines(text) {
        let mut fields = parse::fields(line);
        match fields.next() {
            Some(b"bytes:") => {
                let [read, written, read_direct, written_direct, received, sent] =
                    std::array::from_fn(|_| fields.next().map_or(MISSING, parse::cell));
                cells[READ] = parse::sum(read, read_direct);
                cells[WRITTEN] = parse::sum(written, written_direct);
                (cells[RECEIVED], cells[SENT]) = (received, sent);
            }
            Some(b"per-op") => {
                per_operation = true;
                for column in [OPERATIONS, RETRANSMISSIONS, TIMEOUTS, WAIT] {
                    cells[column] = 0;
                }
            }
            // Operations, transmissions, timeouts, bytes out and in, and times in ms: queue, answer, whole.
            Some(name) if per_operation && name.ends_with(b":") => {
                let numbers: [i64; 7] = std::array::from_fn(|_| fields.next().map_or(MISSING, parse::cell));
                let again = parse::difference(numbers[1], numbers[0]);
                let wait_ns = parse::scaled(numbers[6], NS_PER_MS);
                for (column, more) in [
                    (OPERATIONS, numbers[0]),
                    (RETRANSMISSIONS, again),
                    (TIMEOUTS, numbers[2]),
                    (WAIT, wait_ns),
                ] {
                    cells[column] = parse::sum(cells[column], more);
                }
            }
            _ => {}
        }
    }
    let [bytes, operations] =
        [[READ, WRITTEN, RECEIVED, SENT], [OPERATIONS, RETRANSMISSIONS, TIMEOUTS, WAIT]];
    let is_known = |columns: [usize; 4]| columns.iter().all(|&column| cells[column] != MISSING);
    is_known(bytes) && (!per_operation || is_known(operations))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{Machine, SLOW};
    use expect_test::expect;
    use proptest::prelude::*;

    #[test]
    fn mounts_of_nfs_are_rows_and_other_mounts_are_not() {
        let machine = Machine::new(include_str!("../../../fixtures/hosts/nfs.txt"));
        expect![[r#"
            Node /home nas1:/export/home
              read 1030
              written 2040
              received 5000
              sent 6000
              operations 151
              retransmissions 3
              timeouts 2
              wait 1300000000
            Node /data\040sets nas2:/data\040sets
              read 4
              written 6
              received 5
              sent 6
        "#]]
        .assert_eq(&machine.read(&SPEC, SLOW));
    }

    #[test]
    fn a_kernel_without_nfs_has_no_mounts_to_come() {
        let machine = Machine::new("-- proc/filesystems --\nnodev\tproc\n\text4\n");
        assert!(matches!(open(&machine.host, &Options::default()), Err(Unavailable::Absent(_))));
    }

    proptest! {
        #[test]
        fn any_bytes_are_mounts_or_none(text in prop::collection::vec(any::<u8>(), 0..300)) {
            let with_head = [b"device a:/b mounted on /b with fstype nfs statvers=1.1\n", &text[..]].concat();
            let mut cells = vec![MISSING; COLUMNS.len()];
            for mount in mounts(&with_head).chain(mounts(&text)) {
                fill(mount.text, &mut cells);
            }
            prop_assert_eq!(mounts(&with_head).next().unwrap().point, &b"/b"[..]);
        }
    }
}
