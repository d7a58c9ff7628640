//! NUMA nodes: the memory of each, and how often it came from another.

use std::time::Duration;

use met_core::node::NodeRow;
use met_core::node_block::{NodeBlock, NodeLine};
use met_core::table::ONE;
use met_core::{Batch, Column, MISSING, Subject, Table, Unit, columns, labels, units};
use met_host::{Dir, Host, KeptFile, Share, Targets, parse};

use crate::{Opened, Options, Pace, ReadError, Source, SourceSpec, TickInfo, Unavailable, is_gone, sysfs};

columns! { COLUMNS:
    MEMORY_TOTAL = Column::gauge("memory_total", Unit::Bytes, ONE, "memory of the NUMA node"),
    MEMORY_FREE = Column::gauge("memory_free", Unit::Bytes, ONE, "free memory"),
    MEMORY_ANONYMOUS = Column::gauge("memory_anonymous", Unit::Bytes, ONE, "anonymous memory"),
    MEMORY_CACHED = Column::gauge("memory_cached", Unit::Bytes, ONE, "cache of files, shared memory included"),
    HITS = Column::counter("hits", Unit::Count, ONE, "pages intended for this node and allocated on it"),
    MISSES = Column::counter("misses", Unit::Count, ONE, "pages intended for another node and allocated on this one"),
    FOREIGN = Column::counter("foreign", Unit::Count, ONE, "pages intended for this node and allocated on another"),
    LOCAL = Column::counter("local", Unit::Count, ONE, "pages allocated for threads running on this node"),
    REMOTE = Column::counter("remote", Unit::Count, ONE, "pages allocated for threads running on another node"),
}

labels! { LABELS: NUMA_NODE = "numa_node" }

pub static TABLE: Table = Table { name: "numa", subject: "a NUMA node", labels: LABELS, columns: COLUMNS };

pub(crate) static SPEC: SourceSpec = SourceSpec {
    name: "numa",
    help: "memory of each NUMA node, and allocations on other nodes",
    pace: Pace::Every(Duration::from_secs(5)),
    tables: &[&TABLE],
    charts: &[],
    options: &[],
    open,
};

/// One NUMA node is the machine.
pub(crate) static BLOCK: NodeBlock = NodeBlock { rows_min: 2, ..NodeBlock::new("NUMA", &TABLE, now) };

fn now(row: &NodeRow, _: u32) -> Vec<NodeLine> {
    let total = row.level(MEMORY_TOTAL);
    let used = total.zip(row.level(MEMORY_FREE)).map(|(total, free)| total - free);
    let values = [
        ("in use ", used.map(units::bytes)),
        ("of ", total.map(units::bytes)),
        ("remote pages/s ", row.rate(FOREIGN).map(units::count)),
    ];
    vec![NodeLine::named(format!("node {}", row.label(label::NUMA_NODE)), &values)]
}

const FOLDER: &str = "/sys/devices/system/node";

struct Numa {
    nodes: Vec<(Dir, Vec<(KeptFile, &'static Format)>)>,
    labels: Vec<Vec<String>>,
    buffer: Vec<u8>,
}

struct Format {
    name: &'static str,
    fill: fn(&[u8], &mut [i64]) -> bool,
}

static FORMATS: &[Format] =
    &[Format { name: "meminfo", fill: fill_memory }, Format { name: "numastat", fill: fill_pages }];

fn open(host: &Host, _: &Options) -> Opened {
    let (mut nodes, mut labels) = (Vec::new(), Vec::new());
    for name in sysfs::names(host, FOLDER) {
        let Some(number) = name.strip_prefix("node").and_then(|number| number.parse::<u32>().ok()) else {
            continue;
        };
        let Ok(dir) = host.open_dir(format!("{FOLDER}/{name}")) else { continue };
        let open_one = |format: &'static Format| {
            let file = dir.open_kept(format.name.as_bytes(), host.budget(), Share::Second).ok()?;
            Some((file, format))
        };
        let files: Vec<_> = FORMATS.iter().filter_map(open_one).collect();
        nodes.push((dir, files));
        labels.push(vec![number.to_string()]);
    }
    if nodes.is_empty() {
        return Err(Unavailable::Absent("the kernel reports no NUMA nodes".to_owned()));
    }
    Ok(Box::new(Numa { nodes, labels, buffer: Vec::new() }))
}

impl Source for Numa {
    fn read(&mut self, _: &Targets, _: &TickInfo, out: &mut [Batch]) -> Result<(), ReadError> {
        let [batch] = out else { return Ok(()) };
        let mut first_error = None;
        let mut unparsed = std::mem::take(&mut batch.unparsed);
        for (part, (dir, files)) in (0..).zip(&self.nodes) {
            let cells = batch.push_part(Subject::Node, part);
            for (file, format) in files {
                let path = || format!("{FOLDER}/node{}/{}", self.labels[part as usize][0], format.name);
                match file.read_list(dir, format.name.as_bytes(), &mut self.buffer) {
                    Ok(()) => unparsed.expect((format.fill)(&self.buffer, cells), path),
                    // Memory can be taken out of a running machine.
                    Err(error) if is_gone(&error) => {}
                    Err(error) => {
                        first_error.get_or_insert_with(|| ReadError::Retry { path: path(), error });
                    }
                }
            }
        }
        batch.unparsed = unparsed;
        first_error.map_or(Ok(()), Err)
    }

    fn labels(&self) -> &[Vec<String>] {
        &self.labels
    }
}

/// Lines of `Node 0 MemTotal: 4028 kB`.
fn fill_memory(text: &[u8], cells: &mut [i64]) -> bool {
    for line in parse::lines(text) {
        let mut fields = parse::fields(line).skip(2);
        let column = match fields.next() {
            Some(b"MemTotal:") => MEMORY_TOTAL,
            Some(b"MemFree:") => MEMORY_FREE,
            Some(b"AnonPages:") => MEMORY_ANONYMOUS,
            Some(b"FilePages:") => MEMORY_CACHED,
            _ => continue,
        };
        cells[column] = parse::scaled(fields.next().map_or(MISSING, parse::cell), 1024);
    }
    cells[MEMORY_TOTAL] != MISSING && cells[MEMORY_FREE] != MISSING
}

fn fill_pages(text: &[u8], cells: &mut [i64]) -> bool {
    for (key, value) in parse::key_values(text) {
        let column = match key {
            b"numa_hit" => HITS,
            b"numa_miss" => MISSES,
            b"numa_foreign" => FOREIGN,
            b"local_node" => LOCAL,
            b"other_node" => REMOTE,
            _ => continue,
        };
        cells[column] = parse::cell(value);
    }
    [HITS, MISSES, FOREIGN, LOCAL, REMOTE].iter().all(|&column| cells[column] != MISSING)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{Machine, SLOW};
    use expect_test::expect;
    use proptest::prelude::*;

    #[test]
    fn each_node_has_its_memory_and_its_pages() {
        let machine = Machine::new(include_str!("../../../fixtures/hosts/node.txt"));
        expect![[r#"
            Node 0
              memory_total 8388608000
              memory_free 2097152000
              memory_anonymous 1331200000
              memory_cached 3072000000
              hits 1000001
              misses 1002
              foreign 1003
              local 100005
              remote 106
            Node 1
              memory_total 16777216000
              memory_free 4194304000
              memory_anonymous 2662400000
              memory_cached 6144000000
              hits 2000001
              misses 2002
              foreign 2003
              local 200005
              remote 206
            Node 10
              memory_total 25165824000
              memory_free 6291456000
              memory_anonymous 3993600000
              memory_cached 9216000000
              hits 3000001
              misses 3002
              foreign 3003
              local 300005
              remote 306
        "#]]
        .assert_eq(&machine.read(&SPEC, SLOW));
    }

    #[test]
    fn without_nodes_the_source_is_absent() {
        let machine = Machine::new("-- proc/stat --\ncpu 1\n");
        assert!(matches!(open(&machine.host, &Options::default()), Err(Unavailable::Absent(_))));
    }

    proptest! {
        #[test]
        fn any_bytes_fill_cells_without_a_panic(text in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut cells = vec![MISSING; COLUMNS.len()];
            for format in FORMATS {
                (format.fill)(&text, &mut cells);
            }
        }
    }
}
