//! Network devices, and the traffic of jobs that have a network of their own.
//!
//! The kernel counts traffic by device and not by process. Only a job in its own network namespace, such as a
//! container, has devices of its own.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::time::Duration;

use met_core::chart::{MachineChart, Unit as ChartUnit};
use met_core::node::NodeRow;
use met_core::node_block::{NodeBlock, NodeLine};
use met_core::table::ONE;
use met_core::{Batch, Column, MISSING, Subject, Table, Unit, job_table, units};
use met_host::{Host, KeptFile, PidPath, Share, Targets, TaskRole, parse};

use crate::row_parts::{Parts, label};
use crate::{Opened, Options, Pace, ReadError, Source, SourceSpec, TickInfo, Unavailable};

pub mod device {
    use super::*;

    met_core::columns! { COLUMNS:
        RECEIVED = Column::counter("received", Unit::Bytes, ONE, "bytes received").usual(),
        SENT = Column::counter("sent", Unit::Bytes, ONE, "bytes sent").usual(),
        PACKETS_RECEIVED = Column::counter("packets_received", Unit::Count, ONE, "packets received"),
        PACKETS_SENT = Column::counter("packets_sent", Unit::Count, ONE, "packets sent"),
        ERRORS_RECEIVED = Column::counter("errors_received", Unit::Count, ONE, "packets received with errors"),
        ERRORS_SENT = Column::counter("errors_sent", Unit::Count, ONE, "packets that could not be sent"),
        DROPPED_RECEIVED = Column::counter("dropped_received", Unit::Count, ONE, "received packets dropped"),
        DROPPED_SENT = Column::counter("dropped_sent", Unit::Count, ONE, "outgoing packets dropped"),
    }

    met_core::labels! { LABELS: DEVICE = "device" }

    pub static TABLE: Table =
        Table { name: "network", subject: "a network device", labels: LABELS, columns: COLUMNS };
}

mod namespace {
    use super::*;

    met_core::columns! { COLUMNS:
        RECEIVED = Column::counter("received", Unit::Bytes, ONE, "bytes received by devices of the namespace").feeds(job_table::NETWORK_RECEIVED),
        SENT = Column::counter("sent", Unit::Bytes, ONE, "bytes sent by devices of the namespace").feeds(job_table::NETWORK_SENT),
    }

    pub static TABLE: Table = Table {
        name: "network_namespace",
        subject: "a network namespace of a job, loopback excluded, named by one of the processes in it",
        labels: &["pid"],
        columns: COLUMNS,
    };
}

pub(crate) static SPEC: SourceSpec = SourceSpec {
    name: "network",
    help: "traffic of each network device, and of jobs with a network namespace of their own",
    pace: Pace::Every(Duration::from_secs(1)),
    tables: &[&device::TABLE, &namespace::TABLE],
    charts: &[MachineChart::new(
        "network",
        ["Network", "network"],
        ChartUnit::BytesPerSecond,
        &device::TABLE,
        &[device::RECEIVED, device::SENT],
    )
    .main()],
    options: &[],
    open,
};

pub(crate) static BLOCK: NodeBlock = NodeBlock::new("Network", &device::TABLE, now);

fn now(row: &NodeRow, _: u32) -> Vec<NodeLine> {
    use device::{DROPPED_RECEIVED, DROPPED_SENT, ERRORS_RECEIVED, ERRORS_SENT, RECEIVED, SENT};
    // A device that never carried anything is not worth a line.
    if row.level(RECEIVED) == Some(0.0) && row.level(SENT) == Some(0.0) {
        return Vec::new();
    }
    let lost = [ERRORS_RECEIVED, ERRORS_SENT, DROPPED_RECEIVED, DROPPED_SENT];
    let lost: f64 = lost.into_iter().filter_map(|column| row.rate(column)).sum();
    let values = [
        ("received ", row.rate(RECEIVED).map(units::bytes_per_second)),
        ("sent ", row.rate(SENT).map(units::bytes_per_second)),
        ("packets lost/s ", (lost > 0.0).then(|| units::count(lost))),
    ];
    vec![NodeLine::named(row.label(device::label::DEVICE), &values)]
}

const FILE: &str = "net/dev";
/// The far ends of containers: a device that comes and goes with each of them and is counted inside.
const PASSED_OVER: &[u8] = b"veth";

struct Network {
    host: Host,
    file: KeptFile,
    parts: Parts,
    own_namespace: Option<u64>,
    /// The namespace of each process of a job. Hardly any changes it once its job is not new any more.
    namespaces: HashMap<(u32, u64), Option<u64>>,
    reported: HashSet<u64>,
    buffer: Vec<u8>,
}

fn open(host: &Host, _: &Options) -> Opened {
    let file = host.proc_dir().open_kept(FILE.as_bytes(), host.budget(), Share::First);
    let file = file.map_err(|_| Unavailable::Absent("no /proc/net/dev".to_owned()))?;
    Ok(Box::new(Network {
        file,
        parts: Parts::default(),
        own_namespace: host.proc_dir().inode_of("self/ns/net").ok(),
        namespaces: HashMap::new(),
        reported: HashSet::new(),
        buffer: Vec::new(),
        host: host.clone(),
    }))
}

impl Source for Network {
    fn read(&mut self, targets: &Targets, _: &TickInfo, out: &mut [Batch]) -> Result<(), ReadError> {
        let [devices, namespaces] = out else { return Ok(()) };
        self.read_namespaces(targets, namespaces);
        self.file
            .read_list(self.host.proc_dir(), FILE.as_bytes(), &mut self.buffer)
            .map_err(|error| ReadError::Retry { path: format!("/proc/{FILE}"), error })?;
        for (name, counts) in devices_of(&self.buffer).filter(|(name, _)| !name.starts_with(PASSED_OVER)) {
            if let Some(part) = self.parts.of(name, || vec![label(name)]) {
                devices.push_part(Subject::Node, part).copy_from_slice(&counts);
                devices.unparsed.expect(!counts.contains(&MISSING), || format!("/proc/{FILE}"));
            }
        }
        Ok(())
    }

    fn labels(&self) -> &[Vec<String>] {
        self.parts.labels()
    }
}

impl Network {
    /// One row for each namespace that is not ours: its processes all see the same devices.
    fn read_namespaces(&mut self, targets: &Targets, out: &mut Batch) {
        let Some(own) = self.own_namespace else { return };
        let proc_dir = self.host.proc_dir();
        let members = || targets.tasks.iter().filter(|task| task.role == TaskRole::Member);
        if self.namespaces.len() > 2 * targets.tasks.len() {
            let living: HashSet<_> = members().map(|task| (task.pid, task.start_ticks)).collect();
            self.namespaces.retain(|key, _| living.contains(key));
        }
        self.reported.clear();
        for task in members() {
            let look = || proc_dir.inode_of(PidPath::new(task.pid, "ns/net").as_path()).ok();
            let known = self.namespaces.entry((task.pid, task.start_ticks));
            let found = match known {
                Entry::Occupied(known) if !task.young => *known.get(),
                known => *known.insert_entry(look()).get(),
            };
            let Some(other) = found.filter(|&found| found != own && !self.reported.contains(&found)) else {
                continue;
            };
            // A process that ended since the listing: another one in the namespace is read instead.
            if proc_dir.read(PidPath::new(task.pid, FILE).as_path(), &mut self.buffer).is_err() {
                continue;
            }
            self.reported.insert(other);
            let cells = out.push(Subject::Task { pid: task.pid, start_ticks: task.start_ticks });
            for (_, counts) in devices_of(&self.buffer).filter(|(name, _)| *name != b"lo") {
                for (cell, count) in cells.iter_mut().zip([counts[device::RECEIVED], counts[device::SENT]]) {
                    *cell = if *cell == MISSING { count } else { parse::sum(*cell, count) };
                }
            }
        }
    }
}

/// The devices of a /proc/net/dev, with their counters in the order of the table.
fn devices_of(text: &[u8]) -> impl Iterator<Item = (&[u8], [i64; 8])> {
    parse::lines(text).filter_map(|line| {
        // A name may touch the colon, and the number behind it too.
        let colon = line.iter().position(|&byte| byte == b':')?;
        let name = line[..colon].trim_ascii();
        let mut fields = parse::fields(&line[colon + 1..]).map(parse::cell);
        let [received, packets_received, errors_received, dropped_received] =
            std::array::from_fn(|_| fields.next().unwrap_or(MISSING));
        let mut fields = fields.skip(4);
        let [sent, packets_sent, errors_sent, dropped_sent] =
            std::array::from_fn(|_| fields.next().unwrap_or(MISSING));
        let counts = [
            received,
            sent,
            packets_received,
            packets_sent,
            errors_received,
            errors_sent,
            dropped_received,
            dropped_sent,
        ];
        (!name.is_empty()).then_some((name, counts))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{Machine, SLOW};
    use expect_test::expect;
    use met_host::TaskTarget;
    use proptest::prelude::*;

    fn aim(machine: &mut Machine, pid: u32) {
        let target = TaskTarget::new(pid, 7, TaskRole::Member, false);
        machine.targets.tasks.push(target);
    }

    #[test]
    fn devices_are_rows_and_the_ends_of_containers_are_not() {
        let machine = Machine::new(include_str!("../../../fixtures/hosts/node.txt"));
        expect![[r#"
            Node lo
              received 2981095
              sent 2981095
              packets_received 10367
              packets_sent 10367
              errors_received 0
              errors_sent 0
              dropped_received 0
              dropped_sent 0
            Node eth0
              received 257928709
              sent 779228
              packets_received 11662
              packets_sent 7433
              errors_received 1
              errors_sent 3
              dropped_received 2
              dropped_sent 4
        "#]]
        .assert_eq(&machine.read(&SPEC, SLOW));
    }

    #[test]
    fn a_namespace_of_a_job_is_counted_once_however_many_processes_are_in_it() {
        let mut machine = Machine::new(include_str!("../../../fixtures/hosts/namespaces.txt"));
        // 100 is in our namespace, 200 and 201 share one, 300 has its own and 301 has ended.
        std::fs::hard_link(machine.path("/proc/self/ns/net"), machine.path("/proc/100/ns/net")).unwrap();
        std::fs::hard_link(machine.path("/proc/200/ns/net"), machine.path("/proc/201/ns/net")).unwrap();
        for pid in [100, 200, 201, 300, 301] {
            aim(&mut machine, pid);
        }
        expect![[r#"
            Node lo
              received 999
              sent 999
              packets_received 9
              packets_sent 9
              errors_received 0
              errors_sent 0
              dropped_received 0
              dropped_sent 0
            Node eth0
              received 5
              sent 6
              packets_received 10
              packets_sent 20
              errors_received 0
              errors_sent 0
              dropped_received 0
              dropped_sent 0
            Node eth1
              received 1
              sent 2
              packets_received 1
              packets_sent 1
              errors_received 0
              errors_sent 0
              dropped_received 0
              dropped_sent 0
            200
              received 1001
              sent 2002
            300
              received 31
              sent 42
        "#]]
        .assert_eq(&machine.read(&SPEC, SLOW));
    }

    /// On this machine: bytes that are sent over the loopback device are counted.
    #[test]
    fn this_machine_counts_what_it_sends_to_itself() {
        use std::io::{Read, Write};
        let host = Host::real().unwrap();
        let mut source = open(&host, &Options::default()).unwrap();
        let mut look = || {
            let mut batches = [Batch::new(&device::TABLE), Batch::new(&namespace::TABLE)];
            source.read(&Targets::default(), &SLOW, &mut batches).unwrap();
            let lo = source.labels().iter().position(|labels| labels[0] == "lo")?;
            let mut rows = batches[0].rows();
            rows.find(|(row, _)| row.part as usize == lo).map(|(_, cells)| cells[device::RECEIVED])
        };
        let Some(before) = look() else {
            met_core::skipped::skipped("there is no loopback device");
            return;
        };
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut receiver, _) = listener.accept().unwrap();
        sender.write_all(&[7; 60_000]).unwrap();
        receiver.read_exact(&mut [0; 60_000]).unwrap();
        assert!(look().unwrap() - before >= 60_000);
    }

    proptest! {
        #[test]
        fn any_bytes_are_devices_or_none(text in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(devices_of(&text).all(|(name, _)| !name.is_empty()));
        }
    }
}
