//! A controller that measures the whole node measures its cards, too: nothing is counted twice.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod fake_card;

use fake_card::{CARD, Machine, wait_for};
use serde_json::Value;

/// A controller that says 500 W, of which the card has 300.
const CONTROLLER: &str = "sources:\n  rapl: off\n  hwmon: off\n  ipmi: {command: echo 500, every: 1s}\n\
                          energy: {idle_power: 150}\n";

fn joules(energy: &Value, name: &str) -> f64 {
    energy[format!("{name}_joules")].as_f64().unwrap()
}

fn seconds(energy: &Value) -> f64 {
    let time = |name: &str| energy[name].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    (time("end") - time("begin")).total(jiff::Unit::Second).unwrap()
}

#[test]
fn a_meter_of_the_node_includes_its_cards() {
    let machine = Machine::with(CONTROLLER);
    machine.script(CARD);
    let job = machine.run("echo $$ > pid; exec sleep 600");
    let pid = wait_for("the job's process", || {
        let text = std::fs::read_to_string(machine.folder.path().join("pid")).ok()?;
        Some(text.trim().to_owned()).filter(|pid| !pid.is_empty())
    });
    machine.script(&format!("{CARD}process 0 pid={pid} memory=7 sm=90\n"));
    let energy = wait_for("a window in which the card was the job's", || {
        let node: Value = serde_json::from_str(&machine.met(&["node", "--json"])).unwrap();
        let energy = node["energy"].clone();
        let is_it = energy["meter"] == "IPMI" && joules(&energy, "jobs") > 100.0 * seconds(&energy);
        is_it.then_some(energy)
    });
    // 500 W in all, and not 800: of these 150 are idle, at least 300 the card's, and the rest the system's.
    let watts = |name: &str| joules(&energy, name) / seconds(&energy);
    assert!((watts("whole") - 500.0).abs() < 1.0, "{energy}");
    let micro = |name: &str| (joules(&energy, name) * 1e6).round() as i64;
    assert_eq!(micro("jobs") + micro("system") + micro("idle"), micro("whole"), "{energy}");
    let record = wait_for("its energy is known", || {
        let record = machine.job(&job);
        (record["totals"]["gpu_energy_joules"].as_f64() > Some(0.0)).then_some(record)
    });
    let total = |name: &str| record["totals"][name].as_f64().unwrap_or(0.0);
    // Energy of cards is a part of the energy of the job.
    assert!(record["quality"]["energy_joules"]["source"].as_str().unwrap().contains("IPMI"), "{record:#}");
    let inner = total("energy_cpu_joules") + total("energy_memory_joules") + total("energy_rest_joules");
    assert!(inner <= total("energy_joules"), "{record:#}");
    assert!(total("energy_joules") >= total("gpu_energy_joules"), "{record:#}");
    let shown = machine.met(&["node"]);
    let card = shown.lines().find(|line| line.contains("GPU 0 Fake")).unwrap_or_default();
    assert!(card.contains("300 W   by nvidia"), "{shown}");
    machine.met(&["cancel", &job]);
    machine.met(&["daemon", "--stop"]);
}
