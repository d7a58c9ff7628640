//! Lustre: what this machine read, wrote and asked for on each mounted file system.

use std::time::Duration;

use met_core::chart::{MachineChart, Unit as ChartUnit};
use met_core::node::NodeRow;
use met_core::node_block::{NodeBlock, NodeLine};
use met_core::table::ONE;
use met_core::{Batch, Column, MISSING, Subject, Table, Unit, columns, labels, units};
use met_host::{Host, Targets, parse};

use crate::row_parts::{Parts, label};
use crate::{Opened, Options, Pace, ReadError, Source, SourceSpec, TickInfo, Unavailable, is_gone, sysfs};

columns! { COLUMNS:
    READ = Column::counter("read", Unit::Bytes, ONE, "bytes read").usual(),
    WRITTEN = Column::counter("written", Unit::Bytes, ONE, "bytes written").usual(),
    READS = Column::counter("reads", Unit::Count, ONE, "read calls"),
    WRITES = Column::counter("writes", Unit::Count, ONE, "write calls"),
    OPENS = Column::counter("opens", Unit::Count, ONE, "files opened"),
    CLOSES = Column::counter("closes", Unit::Count, ONE, "files closed"),
    SYNCS = Column::counter("syncs", Unit::Count, ONE, "fsync calls"),
    SEEKS = Column::counter("seeks", Unit::Count, ONE, "seeks"),
    ATTRIBUTES = Column::counter("attributes", Unit::Count, ONE, "attributes read or set"),
    NAMES = Column::counter("names", Unit::Count, ONE, "directory operations: create, link, unlink, rename, mkdir, rmdir"),
}

labels! { LABELS: FILE_SYSTEM = "file_system", MOUNT = "mount" }

pub static TABLE: Table =
    Table { name: "lustre", subject: "a mounted Lustre file system", labels: LABELS, columns: COLUMNS };

pub(crate) static SPEC: SourceSpec = SourceSpec {
    name: "lustre",
    help: "bytes and calls on each Lustre file system",
    // The kernel adds up the counts of all CPUs for each line.
    pace: Pace::Apart(Duration::from_secs(5)),
    tables: &[&TABLE],
    charts: &[MachineChart::new(
        "lustre",
        ["Lustre"; 2],
        ChartUnit::BytesPerSecond,
        &TABLE,
        &[READ, WRITTEN],
    )],
    options: &[],
    open,
};

pub(crate) static BLOCK: NodeBlock = NodeBlock::new("Lustre", &TABLE, now);

fn now(row: &NodeRow, _: u32) -> Vec<NodeLine> {
    let values = [
        ("read ", row.rate(READ).map(units::bytes_per_second)),
        ("written ", row.rate(WRITTEN).map(units::bytes_per_second)),
        ("opens/s ", row.rate(OPENS).map(units::count)),
    ];
    vec![NodeLine::named(row.label(label::FILE_SYSTEM), &values)]
}

/// Newer versions are in the second place.
const FOLDERS: [&str; 2] = ["/proc/fs/lustre/llite", "/sys/kernel/debug/lustre/llite"];
const NEED: &str = "root, because of debugfs (or: lctl set_param, where the site allows it)";

struct Lustre {
    host: Host,
    parts: Parts,
    buffer: Vec<u8>,
}

fn open(host: &Host, _: &Options) -> Opened {
    // Without a mounted one the kernel may still know the file system, and it may be mounted later.
    let loaded = host.open_dir("/proc/fs/lustre").is_ok()
        || host.open_dir("/sys/fs/lustre").is_ok()
        || host.open_dir("/sys/kernel/debug/lustre").is_ok();
    if !loaded {
        return Err(Unavailable::Absent("Lustre is not loaded".to_owned()));
    }
    if FOLDERS.iter().all(|folder| host.open_dir(folder).is_err()) {
        return Err(Unavailable::Denied { path: FOLDERS[1].to_owned(), need: NEED });
    }
    Ok(Box::new(Lustre { host: host.clone(), parts: Parts::default(), buffer: Vec::new() }))
}

impl Source for Lustre {
    fn read(&mut self, _: &Targets, _: &TickInfo, out: &mut [Batch]) -> Result<(), ReadError> {
        let [batch] = out else { return Ok(()) };
        let mut first_error = None;
        for folder in FOLDERS {
            for mount in sysfs::names(&self.host, folder) {
                let path = format!("{folder}/{mount}/stats");
                match self.host.read_small(&path, &mut self.buffer) {
                    Ok(()) => {
                        let labels = || vec![label(file_system(&mount).as_bytes()), mount.clone()];
                        if let Some(part) = self.parts.of(mount.as_bytes(), labels) {
                            let is_parsed = fill(&self.buffer, batch.push_part(Subject::Node, part));
                            batch.unparsed.expect(is_parsed, || path);
                        }
                    }
                    // Unmounted since the listing.
                    Err(error) if is_gone(&error) => {}
                    Err(error) => drop(first_error.get_or_insert(ReadError::Retry { path, error })),
                }
            }
            // Where both places exist they have the same content.
            if !batch.is_empty() {
                break;
            }
        }
        first_error.map_or(Ok(()), Err)
    }

    fn labels(&self) -> &[Vec<String>] {
        self.parts.labels()
    }
}

/// `scratch-ffff8803f6c5b800`: the name and, behind the last dash, the mount.
fn file_system(mount: &str) -> &str {
    mount.rsplit_once('-').map_or(mount, |(name, _)| name)
}

/// Lines of `read_bytes 5 samples [bytes] 4096 1048576 2101248`. What never happened has no line, and is 0:
/// the kernel counts it all the same.
pub(crate) fn fill(text: &[u8], cells: &mut [i64]) -> bool {
    // An empty or unrelated file has no values.
    if !parse::lines(text).any(|line| line.starts_with(b"snapshot_time")) {
        return text.is_empty();
    }
    cells.fill(0);
    for line in parse::lines(text) {
        let mut fields = parse::fields(line);
        let Some(name) = fields.next() else { continue };
        // Nothing happened less than never.
        let known = |field: Option<&[u8]>| match field.map_or(MISSING, parse::cell) {
            cell if cell < 0 => MISSING,
            cell => cell,
        };
        let (count, bytes) = (known(fields.next()), known(fields.nth(4)));
        match name {
            b"read_bytes" => (cells[READS], cells[READ]) = (count, bytes),
            b"write_bytes" => (cells[WRITES], cells[WRITTEN]) = (count, bytes),
            b"open" => cells[OPENS] = count,
            b"close" => cells[CLOSES] = count,
            b"fsync" => cells[SYNCS] = count,
            b"seek" => cells[SEEKS] = count,
            b"getattr" | b"setattr" | b"getxattr" | b"setxattr" | b"statfs" => {
                cells[ATTRIBUTES] = parse::sum(cells[ATTRIBUTES], count);
            }
            b"create" | b"link" | b"unlink" | b"symlink" | b"mkdir" | b"rmdir" | b"mknod" | b"rename" => {
                cells[NAMES] = parse::sum(cells[NAMES], count);
            }
            _ => {}
        }
    }
    !cells.contains(&MISSING)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{Machine, SLOW};
    use expect_test::expect;
    use proptest::prelude::*;

    #[test]
    fn two_file_systems_of_any_name_are_two_rows() {
        let machine = Machine::new(include_str!("../../../fixtures/hosts/lustre.txt"));
        expect![[r#"
            Node my-home my-home-ffff8803f6c5c000
              read 0
              written 100
              reads 0
              writes 1
              opens 0
              closes 0
              syncs 0
              seeks 0
              attributes 0
              names 0
            Node scratch scratch-ffff8803f6c5b800
              read 2101248000
              written 8400000000
              reads 1005
              writes 2006
              opens 120
              closes 119
              syncs 6
              seeks 5
              attributes 710
              names 73
        "#]]
        .assert_eq(&machine.read(&SPEC, SLOW));
    }

    #[test]
    fn newer_versions_are_read_in_debugfs() {
        let machine = Machine::new(include_str!("../../../fixtures/hosts/lustre-debugfs.txt"));
        expect![[r#"
            Node work work-ffff9d3c4a5b6000
              read 3145728
              written 0
              reads 7
              writes 0
              opens 3
              closes 0
              syncs 0
              seeks 0
              attributes 0
              names 0
        "#]]
        .assert_eq(&machine.read(&SPEC, SLOW));
    }

    #[test]
    fn a_file_that_is_no_statistic_is_missing_and_not_zero() {
        let mut cells = vec![MISSING; COLUMNS.len()];
        fill(b"", &mut cells);
        assert!(cells.iter().all(|&cell| cell == MISSING));
        assert_eq!(file_system("my-scratch-ffff8803f6c5b800"), "my-scratch");
        fill(b"snapshot_time 1\nread_bytes 5 samples [bytes] 1 2 -3\nopen -1 samples [regs]\n", &mut cells);
        assert_eq!((cells[READS], cells[READ], cells[OPENS], cells[CLOSES]), (5, MISSING, MISSING, 0));
    }

    proptest! {
        #[test]
        fn any_bytes_fill_cells_without_a_panic(
            text in prop::collection::vec(any::<u8>(), 0..300),
            line in "(read_bytes|write_bytes|open|create)( [0-9a-z\\[\\]]{0,20}){0,8}",
        ) {
            let mut cells = vec![MISSING; COLUMNS.len()];
            fill(&[b"snapshot_time 1\n", &text[..], b"\n", line.as_bytes()].concat(), &mut cells);
        }
    }
}
