use super::*;
use crate::Runner;
use crate::fixture::SLOW;
use expect_test::expect;
use met_core::Window;
use proptest::prelude::*;
use std::collections::VecDeque;

/// Get Power Reading as a controller sent it: 220 W now, 4 to 412 W, 215 W in the mean of a second.
const READING: [u8; 19] = [
    0x00, 0xdc, 0xdc, 0x00, 0x04, 0x00, 0x9c, 0x01, 0xd7, 0x00, 0x57, 0x9a, 0x04, 0x66, 0xe8, 0x03, 0x00,
    0x00, 0x40,
];

/// A record of a temperature sensor, `Inlet Temp`, number 4: the reading is the temperature.
const INLET: &[u8] = b"\x01\x00\x51\x01\x35\x20\x00\x04\x07\x01\x7f\x68\x01\x01\x00\x00\x00\x00\x00\x00\
    \x80\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\
    \x00\x00\x00\x00\x00\x00\x00\xcaInlet Temp";
/// A power sensor, `PSU1 Input`, number 9: four watts for each count, and eight more.
const SUPPLY: &[u8] = b"\x02\x00\x51\x01\x35\x20\x00\x09\x0a\x01\x7f\x68\x0b\x01\x00\x00\x00\x00\x00\x00\
    \x00\x06\x00\x00\x04\x00\x08\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\
    \x00\x00\x00\x00\x00\x00\x00\xcaPSU1 Input";

#[test]
fn a_power_reading_is_read_byte_by_byte() {
    let power = Power { now: 220_000, min: 4_000, max: 412_000, average: 215_000 };
    assert_eq!(power_reading(&READING[1..]).unwrap(), Some(power));
    let longer = [&READING[1..], &[9, 9]].concat();
    assert_eq!(power_reading(&longer).unwrap(), Some(power));
}

#[test]
fn a_reading_that_is_none_is_a_gap_and_not_a_zero() {
    let mut idle = READING;
    idle[18] = 0;
    assert_eq!(power_reading(&idle[1..]).unwrap(), None, "it does not measure");
    let mut zero = READING;
    (zero[2], zero[3]) = (0, 0);
    assert_eq!(power_reading(&zero[1..]).unwrap(), None, "it has no meter");
    assert!(power_reading(&READING[1..18]).is_err(), "cut off: the next one may be whole");
    assert!(power_reading(&[]).is_err());
}

#[test]
fn completion_codes_say_whether_to_ask_again() {
    assert_eq!(bmc::complete(&READING), Completion::Done(&READING[1..]));
    for code in [0xc0, 0xc3, 0xce, 0xd2, 0xd5, 0xff] {
        assert_eq!(bmc::complete(&[code]), Completion::Later(code));
    }
    for code in [0x80, 0xc1, 0xc2, 0xc7, 0xcc, 0xd4, 0xd6] {
        assert_eq!(bmc::complete(&[code]), Completion::Never(code));
    }
    assert!(matches!(bmc::complete(&[]), Completion::Later(_)));
}

#[test]
fn records_of_sensors_say_how_a_reading_becomes_a_value() {
    let inlet = sdr::sensor(INLET).unwrap();
    assert_eq!((inlet.number, inlet.name.as_str(), inlet.quantity), (4, "Inlet Temp", Quantity::Celsius));
    assert_eq!(inlet.value(&[0, 23, 0xc0, 0]), Some(23_000));
    assert_eq!(inlet.value(&[0, 0xfb, 0xc0, 0]), Some(-5_000), "two's complement");
    assert_eq!(inlet.value(&[0, 23, 0xe0, 0]), None, "not ready");
    assert_eq!(inlet.value(&[0, 23, 0x80, 0]), None, "switched off");
    assert_eq!(inlet.value(&[0xcb]), None, "there is no such sensor");
    let supply = sdr::sensor(SUPPLY).unwrap();
    assert_eq!((supply.name.as_str(), supply.quantity), ("PSU1 Input", Quantity::Watts));
    assert_eq!(supply.value(&[0, 53, 0xc0]), Some(220_000));
    let mut tenths = SUPPLY.to_vec();
    tenths[29] = 0xf0;
    assert_eq!(sdr::sensor(&tenths).unwrap().value(&[0, 53, 0xc0]), Some(22_000));
}

/// A controller that answers from a script, and records its requests.
struct Script {
    records: Vec<&'static [u8]>,
    power: VecDeque<Vec<u8>>,
    /// So many questions for the list are answered with this code first.
    list_fails: (u32, u8),
}

impl Ask for Script {
    fn ask(&mut self, function: u8, command: u8, data: &[u8]) -> io::Result<Vec<u8>> {
        Ok(match (function, command, data) {
            (bmc::GROUP_EXTENSION, bmc::POWER_READING, [bmc::DCMI, 1, 0, 0]) => {
                self.power.pop_front().ok_or(io::ErrorKind::TimedOut)?
            }
            (bmc::STORAGE, _, _) if self.list_fails.0 > 0 => {
                self.list_fails.0 -= 1;
                vec![self.list_fails.1]
            }
            (bmc::STORAGE, bmc::RESERVE_SDR, []) => vec![0, 7, 0],
            (bmc::STORAGE, bmc::GET_SDR, &[7, 0, id, 0, offset, count]) => {
                let index = usize::from(id);
                let record = self.records[index];
                let next: u16 = if index + 1 < self.records.len() { u16::from(id) + 1 } else { 0xffff };
                let piece = &record[usize::from(offset)..][..usize::from(count)];
                [&[0][..], &next.to_le_bytes(), piece].concat()
            }
            (bmc::SENSOR_EVENT, bmc::SENSOR_READING, [4]) => vec![0, 23, 0xc0, 0],
            (bmc::SENSOR_EVENT, bmc::SENSOR_READING, [9]) => vec![0, 53, 0xc0, 0],
            other => panic!("asked for {other:?}"),
        })
    }
}

fn controller(records: Vec<&'static [u8]>, power: &[&[u8]]) -> Controller {
    controller_failing(records, power, (0, 0))
}

fn controller_failing(records: Vec<&'static [u8]>, power: &[&[u8]], list_fails: (u32, u8)) -> Controller {
    let power = power.iter().map(|reply| reply.to_vec()).collect();
    Controller::new(Box::new(Script { records, power, list_fails }))
}

fn look(source: &mut dyn Source) -> String {
    let mut batches = [Batch::new(&TABLE)];
    let result = source.read(&Targets::default(), &SLOW, &mut batches);
    let mut text = String::new();
    for (row, cells) in batches[0].rows() {
        text += &source.labels()[row.part as usize][0];
        for (column, cell) in COLUMNS.iter().zip(cells).filter(|(_, cell)| **cell != MISSING) {
            text += &format!(" {} {cell}", column.name);
        }
        text += "\n";
    }
    if let Err(error) = result {
        text += &format!("error: {error}\n");
    }
    text
}

#[test]
fn a_controller_reports_the_node_and_its_sensors() {
    let mut source = controller(vec![INLET, SUPPLY], &[&READING, &[0xc0]]);
    expect![[r#"
        node power 220000 power_average 215000 power_min 4000 power_max 412000
        Inlet Temp temperature 23000
        PSU1 Input power 220000
    "#]]
    .assert_eq(&look(&mut source));
    expect![[r#"
        Inlet Temp temperature 23000
        PSU1 Input power 220000
        error: IPMI: the controller is busy (code 0xc0)
    "#]]
    .assert_eq(&look(&mut source));
    expect![[r#"
        error: IPMI: timed out
    "#]]
    .assert_eq(&look(&mut source));
}

#[test]
fn a_controller_without_sensors_is_given_up_with_the_reason() {
    expect![[r#"
        error: given up: the controller does not report the power of the node (DCMI, code 0xc1); sensors of power and temperature: 0
    "#]]
    .assert_eq(&look(&mut controller(vec![&[0, 0, 0x51, 2, 0]], &[&[0xc1]])));
}

#[test]
fn a_controller_that_is_busy_is_asked_again_for_power_and_for_its_list() {
    // Busy for both, then for the list in the middle of it, then for nothing.
    let mut source = controller_failing(vec![INLET], &[&[0xc0], &[0xc3], &READING[..9], &READING], (2, 0xc0));
    expect![[r#"
        error: IPMI: the controller is busy (code 0xc0)
    "#]]
    .assert_eq(&look(&mut source));
    expect![[r#"
        error: IPMI: the controller took too long (code 0xc3)
    "#]]
    .assert_eq(&look(&mut source));
    expect![[r#"
        Inlet Temp temperature 23000
        error: IPMI: malformed reply to the power request
    "#]]
    .assert_eq(&look(&mut source));
    expect![[r#"
        node power 220000 power_average 215000 power_min 4000 power_max 412000
        Inlet Temp temperature 23000
    "#]]
    .assert_eq(&look(&mut source));
    assert_eq!(source.shortfall(), None);
}

#[test]
fn a_controller_without_power_is_reported_and_not_queried_again() {
    let mut source = controller(vec![INLET], &[&[0xc1]]);
    assert_eq!(look(&mut source), "Inlet Temp temperature 23000\n");
    assert_eq!(look(&mut source), "Inlet Temp temperature 23000\n", "a second question would time out");
    let shortfall = source.shortfall().unwrap();
    assert!(shortfall.detail.contains("0xc1") && shortfall.remedy.is_some(), "{shortfall:?}");
}

#[test]
fn a_list_that_never_completes_is_given_up() {
    let power: Vec<&[u8]> = vec![&READING; usize::from(LIST_TRIES) + 2];
    let mut source = controller_failing(vec![INLET], &power, (u32::MAX, 0xff));
    for _ in 0..LIST_TRIES {
        assert!(look(&mut source).contains("error"));
    }
    assert_eq!(look(&mut source).lines().count(), 1, "the node's power alone");
}

#[test]
fn what_programs_print_is_understood() {
    let of = |text: &str| printed_power(text.as_bytes());
    let all = Power { now: 220_000, average: 215_000, min: 4_000, max: 412_000 };
    let free_ipmi = "Current Power                        : 220 Watts\n\
                     Minimum Power over sampling duration : 4 watts\n\
                     Maximum Power over sampling duration : 412 watts\n\
                     Average Power over sampling duration : 215 watts\n\
                     Time Stamp                           : 03/27/2024 - 22:11:03\n\
                     Statistics reporting time period     : 1000 milliseconds\n\
                     Power Measurement                    : Active\n";
    assert_eq!(of(free_ipmi), all);
    let ipmitool = "\n    Instantaneous power reading:                   220 Watts\n    \
                    Minimum during sampling period:                  4 Watts\n    \
                    Maximum during sampling period:                412 Watts\n    \
                    Average power reading over sample period:      215 Watts\n    \
                    IPMI timestamp:                           Wed Mar 27 22:11:03 2024\n    \
                    Sampling period:                          00000001 Seconds.\n    \
                    Power reading state is:                   activated\n\n";
    assert_eq!(of(ipmitool), all);
    let now = |now| Power { now, ..Power::UNKNOWN };
    assert_eq!(of("Instantaneous Power : 126 W\n"), now(126_000));
    assert_eq!(of("Pwr Consumption | 140.5 Watts\n"), now(140_500));
    assert_eq!((of("220\n"), of("220W\n"), of("219.5 W")), (now(220_000), now(220_000), now(219_500)));
    assert_eq!((of("Current Power : 0.25 kW\n"), of("Power: 321\n")), (now(250_000), now(321_000)));
    assert_eq!((of("power = 90500 mW\n"), of("System Watts | 87.5")), (now(90_500), now(87_500)));
    for nothing in [
        "",
        "error: no such device\n",
        "Power : unknown\n",
        "Temperature : 40 degrees C\n",
        "-5 W\n",
        "Power supplies: 2\n",
        "Uptime: 12 weeks\n",
    ] {
        assert_eq!(of(nothing), Power::UNKNOWN, "{nothing}");
    }
}

/// A controller that takes long: it answers when a file is there, so the test needs no clock. It takes the file
/// away, so that a second answer cannot replace the first before a tick has it.
#[test]
fn a_slow_controller_delays_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let (asked, answer) = (folder.path().join("asked"), folder.path().join("answer"));
    let script = format!(
        "touch '{asked}'; while [ -e '{asked}' ] && [ ! -e '{answer}' ]; do sleep 0.05; done; \
         rm -f '{answer}'; echo 220 Watts",
        asked = asked.display(),
        answer = answer.display()
    );
    let program = folder.path().join("program");
    std::fs::write(&program, script).unwrap();
    let mut options = Options {
        only: Some(&["ipmi", "node"]),
        node: true,
        period_max: Some(Duration::from_nanos(1)),
        ..Options::default()
    };
    let choice = options.choices.entry(SPEC.name).or_default();
    choice.set(&COMMAND, &format!("sh {}", program.display())).unwrap();
    let mut runner = Runner::open(&Host::real().unwrap(), &options);
    let mut rows = |wait: Duration| {
        runner.wait(wait);
        runner.read(&Targets::default(), &SLOW);
        let of = |name: &str| {
            let source = runner.node().find(|source| source.name == name).unwrap();
            (source.batches[0].len(), source.batches[0].window)
        };
        (of("node"), of("ipmi"))
    };
    let mut last = Window::default();
    let mut looks = 0;
    // Until the controller has been asked, and some more.
    while looks < 20 {
        looks += usize::from(asked.exists());
        let ((node_rows, node_window), (ipmi_rows, _)) = rows(Duration::ZERO);
        assert_eq!((node_rows, ipmi_rows), (1, 0), "the machine is read while the controller thinks");
        assert!(node_window.begin_ns >= last.end_ns);
        last = node_window;
    }
    std::fs::write(&answer, "").unwrap();
    // The tick that meets the thread just handing over leaves it to the next.
    let mut looks = std::iter::repeat_with(|| rows(Duration::from_secs(60)));
    let (_, (_, ipmi_window)) = looks.find(|(_, (ipmi_rows, _))| *ipmi_rows == 1).unwrap();
    assert!(ipmi_window.begin_ns <= last.begin_ns, "its window says that it began before");
}

proptest! {
    #[test]
    fn any_reply_is_a_reading_or_none(reply in prop::collection::vec(any::<u8>(), 0..40)) {
        if let Completion::Done(answer) = bmc::complete(&reply)
            && let Ok(Some(power)) = power_reading(answer)
        {
            prop_assert!(power.now > 0 && power.now <= 65_535_000);
        }
    }

    #[test]
    fn any_record_and_any_reading_are_harmless(
        record in prop::collection::vec(any::<u8>(), 0..80),
        changes in prop::collection::vec((0..58usize, any::<u8>()), 0..12),
        reply in prop::collection::vec(any::<u8>(), 0..6),
    ) {
        let mut changed = SUPPLY.to_vec();
        for (index, byte) in changes {
            changed[index] = byte;
        }
        for record in [record, changed] {
            if let Some(sensor) = sdr::sensor(&record) {
                let _ = sensor.value(&reply);
            }
        }
    }

    #[test]
    fn any_list_of_sensors_has_an_end(replies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..24), 1..8)) {
        struct Noise(Vec<Vec<u8>>, usize);
        impl Ask for Noise {
            fn ask(&mut self, _: u8, _: u8, _: &[u8]) -> io::Result<Vec<u8>> {
                self.1 += 1;
                Ok(self.0[self.1 % self.0.len()].clone())
            }
        }
        let mut noise = Noise(replies, 0);
        prop_assert!(sdr::sensors(&mut noise).map_or(0, |found| found.len()) <= 1024);
        prop_assert!(noise.1 < 1024 * 20);
    }

    #[test]
    fn any_output_is_understood_or_not(text in prop::collection::vec(any::<u8>(), 0..300)) {
        let power = printed_power(&text);
        prop_assert!([power.now, power.average, power.min, power.max].iter().all(|&cell| cell == MISSING || cell >= 0));
    }
}
