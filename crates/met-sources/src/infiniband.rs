//! InfiniBand and Omni-Path: what each port sent and received, by the counters in /sys.

use std::io;
use std::time::Duration;

use met_core::chart::{MachineChart, Unit as ChartUnit};
use met_core::node::NodeRow;
use met_core::node_block::{NodeBlock, NodeLine};
use met_core::table::ONE;
use met_core::{Batch, Column, MISSING, Subject, Table, Unit, Unparsed, columns, labels, units};
use met_host::{Host, Targets, parse};

use crate::{Opened, Options, Pace, ReadError, Source, SourceSpec, TickInfo, Unavailable, sysfs};

columns! { COLUMNS:
    RECEIVED = Column::counter("received", Unit::Bytes, ONE, "bytes received").usual(),
    SENT = Column::counter("sent", Unit::Bytes, ONE, "bytes sent").usual(),
    PACKETS_RECEIVED = Column::counter("packets_received", Unit::Count, ONE, "packets received"),
    PACKETS_SENT = Column::counter("packets_sent", Unit::Count, ONE, "packets sent"),
    ERRORS_RECEIVED = Column::counter("errors_received", Unit::Count, ONE, "packets received with errors"),
    DISCARDS_SENT = Column::counter("discards_sent", Unit::Count, ONE, "packets dropped because the port was down or congested"),
    WAIT_SENT = Column::counter("wait_sent", Unit::Count, ONE, "ticks of the port in which data waited and nothing could be sent"),
    SYMBOL_ERRORS = Column::counter("symbol_errors", Unit::Count, ONE, "errors on the wire"),
    LINK_RECOVERIES = Column::counter("link_recoveries", Unit::Count, ONE, "times the link recovered from errors"),
    LINK_DOWNS = Column::counter("link_downs", Unit::Count, ONE, "times the link went down").usual(),
    LINK_RATE = Column::gauge("link_rate", Unit::Bytes, ONE, "bytes per second that the link can carry each way"),
}

labels! { LABELS: DEVICE = "device", PORT = "port", LINK = "link" }

pub static TABLE: Table = Table {
    name: "infiniband",
    subject: "a port of a host adapter: InfiniBand, Omni-Path or RoCE",
    labels: LABELS,
    columns: COLUMNS,
};

pub(crate) static SPEC: SourceSpec = SourceSpec {
    name: "infiniband",
    help: "traffic and errors of InfiniBand and Omni-Path ports",
    // Each counter is a question to the adapter.
    pace: Pace::Apart(Duration::from_secs(5)),
    tables: &[&TABLE],
    charts: &[MachineChart::new(
        "fabric",
        ["Fabric", "fabric"],
        ChartUnit::BytesPerSecond,
        &TABLE,
        &[RECEIVED, SENT],
    )],
    options: &[],
    open,
};

pub(crate) static BLOCK: NodeBlock = NodeBlock::new("Fabric", &TABLE, now);

fn now(row: &NodeRow, _: u32) -> Vec<NodeLine> {
    let errors = row.rate(SYMBOL_ERRORS).filter(|rate| *rate > 0.0);
    let values = [
        ("received ", row.rate(RECEIVED).map(units::bytes_per_second)),
        ("sent ", row.rate(SENT).map(units::bytes_per_second)),
        ("of ", row.level(LINK_RATE).map(units::bytes_per_second)),
        ("symbol errors/s ", errors.map(units::count)),
    ];
    let [device, port, link] = [label::DEVICE, label::PORT, label::LINK].map(|index| row.label(index));
    vec![NodeLine::named(format!("{device}/{port} {link}"), &values)]
}

const FOLDER: &str = "/sys/class/infiniband";
const PORTS_MAX: usize = 256;

/// The files of the counters, the better one first, and the factor to the unit of the column.
const COUNTERS: [(usize, &[&str]); 10] = [
    (RECEIVED, &["counters_ext/port_rcv_data_64", "counters/port_rcv_data"]),
    (SENT, &["counters_ext/port_xmit_data_64", "counters/port_xmit_data"]),
    (PACKETS_RECEIVED, &["counters_ext/port_rcv_packets_64", "counters/port_rcv_packets"]),
    (PACKETS_SENT, &["counters_ext/port_xmit_packets_64", "counters/port_xmit_packets"]),
    (ERRORS_RECEIVED, &["counters/port_rcv_errors"]),
    (DISCARDS_SENT, &["counters/port_xmit_discards"]),
    (WAIT_SENT, &["counters/port_xmit_wait"]),
    (SYMBOL_ERRORS, &["counters/symbol_error"]),
    (LINK_RECOVERIES, &["counters/link_error_recovery"]),
    (LINK_DOWNS, &["counters/link_downed"]),
];

struct Infiniband {
    host: Host,
    ports: Vec<Port>,
    labels: Vec<Vec<String>>,
    buffer: Vec<u8>,
}

struct Port {
    folder: String,
    word_bytes: i64,
}

fn open(host: &Host, _: &Options) -> Opened {
    let (mut ports, mut labels, mut buffer) = (Vec::new(), Vec::new(), Vec::new());
    for device in sysfs::names(host, FOLDER) {
        let word_bytes = word_bytes(host, &device, &mut buffer);
        for port in sysfs::names(host, &format!("{FOLDER}/{device}/ports")) {
            let folder = format!("{FOLDER}/{device}/ports/{port}");
            let link = sysfs::text(host, &format!("{folder}/link_layer"), &mut buffer).unwrap_or_default();
            let link = if word_bytes == FLIT_BYTES { "Omni-Path".to_owned() } else { link };
            labels.push(vec![device.clone(), port, link]);
            ports.push(Port { folder, word_bytes });
            if ports.len() == PORTS_MAX {
                break;
            }
        }
    }
    match ports.is_empty() {
        true => Err(Unavailable::Absent("no InfiniBand or Omni-Path adapter".to_owned())),
        false => Ok(Box::new(Infiniband { host: host.clone(), ports, labels, buffer })),
    }
}

const WORD_BYTES: i64 = 4;
const FLIT_BYTES: i64 = 8;

/// Data are counted in words of four bytes. Omni-Path counts flits of eight, and its driver passes them on
/// as they are.
fn word_bytes(host: &Host, device: &str, buffer: &mut Vec<u8>) -> i64 {
    let uevent = sysfs::text(host, &format!("{FOLDER}/{device}/device/uevent"), buffer).unwrap_or_default();
    let is_opa = uevent.lines().any(|line| line == "DRIVER=hfi1") || device.starts_with("hfi1");
    if is_opa { FLIT_BYTES } else { WORD_BYTES }
}

impl Source for Infiniband {
    fn read(&mut self, _: &Targets, _: &TickInfo, out: &mut [Batch]) -> Result<(), ReadError> {
        let [batch] = out else { return Ok(()) };
        let mut first_error = None;
        let mut unparsed = std::mem::take(&mut batch.unparsed);
        for (part, port) in (0..).zip(&self.ports) {
            let cells = batch.push_part(Subject::Node, part);
            for (column, names) in COUNTERS {
                match first_of(&self.host, &port.folder, names, &mut self.buffer, &mut unparsed) {
                    Ok(cell) => cells[column] = cell,
                    // A port that is reset answers no question; the other ports do.
                    Err(error) => {
                        let path = format!("{}/{}", port.folder, names[0]);
                        first_error.get_or_insert(ReadError::Retry { path, error });
                    }
                }
            }
            for column in [RECEIVED, SENT] {
                cells[column] = parse::scaled(saturated(cells[column]), port.word_bytes);
            }
            if self.host.read_small(format!("{}/rate", port.folder), &mut self.buffer).is_ok() {
                cells[LINK_RATE] = link_rate(&self.buffer);
                unparsed.expect(cells[LINK_RATE] != MISSING, || format!("{}/rate", port.folder));
            }
        }
        batch.unparsed = unparsed;
        first_error.map_or(Ok(()), Err)
    }

    fn labels(&self) -> &[Vec<String>] {
        &self.labels
    }
}

fn first_of(
    host: &Host,
    folder: &str,
    names: &[&str],
    buffer: &mut Vec<u8>,
    unparsed: &mut Unparsed,
) -> io::Result<i64> {
    for name in names {
        let cell = sysfs::reading(host, &format!("{folder}/{name}"), buffer, unparsed)?;
        if cell != MISSING {
            return Ok(cell);
        }
    }
    Ok(MISSING)
}

/// The 32-bit counters of old adapters stop at their end and say nothing from there on.
fn saturated(cell: i64) -> i64 {
    if cell == i64::from(u32::MAX) { MISSING } else { cell }
}

/// `100 Gb/sec (4X EDR)` in bytes per second.
fn link_rate(text: &[u8]) -> i64 {
    let mut fields = parse::fields(text);
    let tenths = fields.next().map_or(MISSING, |field| crate::node::decimal(field, 1));
    match fields.next() {
        Some(b"Gb/sec") => parse::scaled(tenths, 100_000_000 / 8),
        _ => MISSING,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{Machine, SLOW};
    use expect_test::expect;
    use proptest::prelude::*;

    #[test]
    fn an_adapter_with_two_ports_is_two_rows() {
        let machine = Machine::new(include_str!("../../../fixtures/hosts/infiniband.txt"));
        expect![[r#"
            Node mlx4_0 1 
              received 34359738368
              sent 17179869188
            Node mlx5_0 1 InfiniBand
              received 493827156049380
              sent 395061728439504
              packets_received 5000000001
              packets_sent 4000000002
              errors_received 3
              discards_sent 4
              wait_sent 555
              symbol_errors 6
              link_recoveries 7
              link_downs 8
              link_rate 12500000000
            Node mlx5_0 2 Ethernet
              received 40
              sent 80
              packets_received 1
              packets_sent 2
              link_rate 312500000
            Node mthca0 1 InfiniBand
              sent 4000
            1 reading could not be parsed (first: /sys/class/infiniband/mthca0/ports/1/rate)
        "#]]
        .assert_eq(&machine.read(&SPEC, SLOW));
    }

    #[test]
    fn omni_path_counts_in_eight_bytes() {
        let machine = Machine::new(include_str!("../../../fixtures/hosts/omni-path.txt"));
        expect![[r#"
            Node hfi1_0 1 Omni-Path
              received 8000000
              sent 16000000
              packets_received 10
              packets_sent 20
              link_downs 1
              link_rate 12500000000
            Node opap1s0 1 Omni-Path
              received 24
              sent 32
              link_rate 12500000000
        "#]]
        .assert_eq(&machine.read(&SPEC, SLOW));
    }

    #[test]
    fn an_old_counter_at_its_limit_is_unknown() {
        assert_eq!((saturated(4_294_967_295), saturated(4_294_967_296)), (MISSING, 4_294_967_296));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_rate_or_none(text in prop::collection::vec(any::<u8>(), 0..40)) {
            let rate = link_rate(&text);
            prop_assert!(rate == MISSING || text.windows(6).any(|word| word == b"Gb/sec"));
        }
    }
}
