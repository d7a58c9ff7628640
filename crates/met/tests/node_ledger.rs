//! A controller that measures the whole node measures its GPUs, too: nothing is counted twice.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod fake_gpu;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

use fake_gpu::{GPU, Machine, wait_for};
use serde_json::Value;

/// A controller that says 500 W, of which the GPU has 300.
const CONTROLLER: &str = "sources:\n  rapl: off\n  hwmon: off\n  ipmi: {command: echo 500, every: 1s}\n\
                          energy: {idle_power: 150}\n";

fn joules(energy: &Value, name: &str) -> f64 {
    energy[format!("{name}_joules")].as_f64().unwrap()
}

fn seconds(energy: &Value) -> f64 {
    let time = |name: &str| energy[name].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    (time("end") - time("begin")).total(jiff::Unit::Second).unwrap()
}

/// A controller that reports what is in a file, queried by a daemon with a page.
fn played(watts: &Path, port: u16) -> String {
    format!(
        "sources:\n  rapl: off\n  hwmon: off\n  ipmi: {{command: 'cat {}', every: 1s}}\n\
         energy: {{idle_power: 150}}\nhttp: {{listen: '127.0.0.1:{port}', metrics: all}}\n",
        watts.display()
    )
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// The machine's energy by share, in microjoules, as the page has it.
fn shares_uj(port: u16) -> BTreeMap<String, i64> {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return BTreeMap::new() };
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut page = Vec::new();
    stream.read_to_end(&mut page).unwrap();
    let page = String::from_utf8_lossy(&page);
    let rows = page.lines().filter_map(|line| line.strip_prefix("met_energy_used_joules_total{"));
    let row = |row: &str| {
        let share = row.split("share=\"").nth(1)?.split('"').next()?.to_owned();
        Some((share, (row.split_whitespace().last()?.parse::<f64>().ok()? * 1e6).round() as i64))
    };
    rows.filter_map(row).collect()
}

/// Not a wait for something: the controller is late by this long on purpose.
fn lag() {
    std::thread::sleep(std::time::Duration::from_secs(8));
}

#[test]
fn a_controller_that_lags_its_gpus_pays_for_them_once() {
    let (port, controller) = (free_port(), tempfile::tempdir().unwrap());
    let watts = controller.path().join("watts");
    let say = |text: &str| std::fs::write(&watts, text).unwrap();
    say("200\n");
    let machine = Machine::with(&played(&watts, port));
    let idle = GPU.replace("power=300000 util=90", "power=50000 util=0");
    machine.script(&idle);
    let job = machine.run("echo $$ > pid; exec sleep 600");
    let pid = wait_for("the job's process", || {
        let text = std::fs::read_to_string(machine.folder.path().join("pid")).ok()?;
        Some(text.trim().to_owned()).filter(|pid| !pid.is_empty())
    });
    wait_for("the controller is read", || {
        let node: Value = serde_json::from_str(&machine.met(&["node", "--json"])).unwrap();
        (node["energy"]["meter"] == "IPMI").then_some(())
    });
    machine.script(&format!("{GPU}process 0 pid={pid} memory=7 sm=90\n"));
    lag();
    say("450\n");
    lag();
    machine.script(&idle);
    machine.met(&["cancel", &job]);
    lag();
    say("200\n");
    let uj = |record: &Value, name: &str| {
        record["totals"][name].as_f64().map(|joules| (joules * 1e6).round() as i64)
    };
    // All that the page says of jobs is what the only job says of itself.
    let (found, record) = wait_for("the job is settled", || {
        let (record, found) = (machine.job(&job), shares_uj(port));
        let own_uj = uj(&record, "energy_joules")?;
        let is_over = record["job"]["state"] != "running";
        (is_over && own_uj > 0 && found.get("jobs") == Some(&own_uj)).then_some((found, record))
    });
    let (own_uj, gpu_uj) = (uj(&record, "energy_joules"), uj(&record, "gpu_energy_joules"));
    assert!(own_uj >= gpu_uj && gpu_uj > Some(0), "{record:#}");
    assert_eq!(found["unassigned"], 0, "{found:?}");
    let status: Value = serde_json::from_str(&machine.met(&["daemon", "--status", "--json"])).unwrap();
    let ledger = &status["ledger"];
    assert_eq!(ledger["counted_uj"], ledger["booked_uj"], "{ledger}");
    assert!(found.values().sum::<i64>() <= ledger["counted_uj"].as_i64().unwrap(), "{found:?} {ledger}");
    machine.met(&["daemon", "--stop"]);
}

#[test]
fn a_meter_of_the_node_includes_its_gpus() {
    let machine = Machine::with(CONTROLLER);
    machine.script(GPU);
    let job = machine.run("echo $$ > pid; exec sleep 600");
    let pid = wait_for("the job's process", || {
        let text = std::fs::read_to_string(machine.folder.path().join("pid")).ok()?;
        Some(text.trim().to_owned()).filter(|pid| !pid.is_empty())
    });
    machine.script(&format!("{GPU}process 0 pid={pid} memory=7 sm=90\n"));
    let energy = wait_for("a window in which the card was the job's", || {
        let node: Value = serde_json::from_str(&machine.met(&["node", "--json"])).unwrap();
        let energy = node["energy"].clone();
        let is_it = energy["meter"] == "IPMI" && joules(&energy, "jobs") > 100.0 * seconds(&energy);
        is_it.then_some(energy)
    });
    // 500 W in all, and not 800: of these 150 are idle, at least 300 the GPU's, and the rest the system's.
    let watts = |name: &str| joules(&energy, name) / seconds(&energy);
    assert!((watts("whole") - 500.0).abs() < 1.0, "{energy}");
    let micro = |name: &str| (joules(&energy, name) * 1e6).round() as i64;
    assert_eq!(micro("jobs") + micro("system") + micro("idle"), micro("whole"), "{energy}");
    let record = wait_for("its energy is known", || {
        let record = machine.job(&job);
        (record["totals"]["gpu_energy_joules"].as_f64() > Some(0.0)).then_some(record)
    });
    let total = |name: &str| record["totals"][name].as_f64().unwrap_or(0.0);
    // Energy of GPUs is a part of the energy of the job.
    assert!(record["quality"]["energy_joules"]["source"].as_str().unwrap().contains("IPMI"), "{record:#}");
    let inner = total("energy_cpu_joules") + total("energy_memory_joules") + total("energy_rest_joules");
    assert!(inner <= total("energy_joules"), "{record:#}");
    assert!(total("energy_joules") >= total("gpu_energy_joules"), "{record:#}");
    let shown = machine.met(&["node"]);
    let gpu = shown.lines().find(|line| line.contains("GPU 0 Fake")).unwrap_or_default();
    assert!(gpu.contains("300 W   by nvidia"), "{shown}");
    machine.met(&["cancel", &job]);
    machine.met(&["daemon", "--stop"]);
}
