//! `met gpus`: the cards now, who uses them, who holds them and idles.

use std::collections::HashMap;
use std::io::{self, Write};
use std::time::Duration;

use anyhow::Result;
use met_core::cards::CardNow;
use met_core::gpu::{self, card, card::label};
use met_core::job::{GpuUse, JobKey, ProcessId, Record, State};
use met_core::{MISSING, Subject};
use serde_json::json;

use crate::cli::GpusArgs;
use crate::jobs::{self, AllJobs, JobsFilter};
use crate::output;
use crate::sampler::Sampler;
use crate::setting::Setting;
use crate::users;
use crate::view::gpus::{self, CardLine, UserLine};

/// A driver without its daemon takes seconds to wake a card up.
const PATIENCE: Duration = Duration::from_secs(20);
/// In this time the dear figures (use by process) are read twice.
const LOOK_FOR: Duration = Duration::from_millis(1200);
const LOOKS: u32 = 6;

pub fn gpus(setting: &Setting, args: &GpusArgs) -> Result<i32> {
    let interval = LOOK_FOR / LOOKS;
    let mut sampler = Sampler::patient(setting.host.clone(), interval, &setting.config, PATIENCE);
    let filter = JobsFilter { states: vec![State::Running, State::Suspended], ..JobsFilter::default() };
    let running = AllJobs::open(setting)?.jobs(&filter)?;
    let known: HashMap<JobKey, Record> = running
        .into_iter()
        .filter(|record| sampler.add(record).is_some())
        .map(|record| (record.key.clone(), record))
        .collect();
    sampler.look();
    if sampler.has_cards() {
        for _ in 0..LOOKS {
            std::thread::sleep(interval);
            sampler.look();
        }
    }
    let mut lines: Vec<CardLine> =
        sampler.cards().iter().map(|(card, keys)| line(setting, card, keys, &known)).collect();
    lines.extend(lost(&lines, &known));
    lines.sort_by_key(|line| line.index.split('.').map(|part| part.parse::<u32>().ok()).collect::<Vec<_>>());
    let troubles = sampler.card_troubles();
    for trouble in &troubles {
        writeln!(io::stderr(), "met: {trouble}")?;
    }
    // That there are no cards is not known then.
    if lines.is_empty() && !troubles.is_empty() {
        return Ok(1);
    }
    let mut stdout = output::stdout();
    if args.json {
        let all: Vec<_> = lines.iter().map(object).collect();
        writeln!(stdout, "{}", serde_json::Value::Array(all))?;
        return Ok(0);
    }
    let style = stdout.style();
    stdout.write_all(gpus::cards(&lines, jobs::now_ns(), &style).as_bytes())?;
    Ok(0)
}

fn line(
    setting: &Setting,
    card: &CardNow<'_>,
    keys: &HashMap<u32, JobKey>,
    known: &HashMap<JobKey, Record>,
) -> CardLine {
    let cell = |column: usize, scale: f64| {
        (card.cells[column] != MISSING).then(|| card.cells[column] as f64 * scale)
    };
    let mut users: Vec<UserLine> = Vec::new();
    for &(slot, since) in &card.holders {
        let Some(record) = keys.get(&slot).and_then(|key| known.get(key)) else { continue };
        // Who samples the job all the time knows better since when it idles.
        let watched = record.gpus.iter().find(|gpu: &&GpuUse| gpu.uuid == card.labels[label::UUID]);
        users.push(UserLine {
            job: Some(record.label()),
            name: record.name.clone(),
            user: record.user.clone(),
            idle: since.idle_ns.is_some(),
            idle_since_ns: watched.and_then(|gpu| gpu.idle_since_ns),
            ..sums(card, Some(slot))
        });
    }
    users.extend(held_elsewhere(card, keys, known));
    for &(subject, slot, _, _) in card.processes.iter().filter(|(_, slot, _, _)| slot.is_none()) {
        let Subject::Task { pid, .. } = subject else { continue };
        let uid = rustix::fs::stat(format!("/proc/{pid}")).ok().map(|found| found.st_uid);
        let name =
            setting.host.process(pid).ok().and_then(|process: ProcessId| setting.host.process_name(process));
        let of_it = |other: &(Subject, Option<u32>, i64, i64)| other.0 == subject;
        let only =
            CardNow { processes: card.processes.iter().copied().filter(of_it).collect(), ..card.clone() };
        users.push(UserLine {
            name: name.unwrap_or_else(|| "a process that is not shown here".to_owned()),
            user: uid.and_then(users::name_of),
            ..sums(&only, slot)
        });
    }
    CardLine {
        index: card.labels[label::INDEX].clone(),
        uuid: card.labels[label::UUID].clone(),
        name: card.labels[label::NAME].clone(),
        utilization: cell(card::UTILIZATION, 1e-3),
        memory_used_bytes: cell(card::MEMORY_USED, 1.0),
        memory_total_bytes: cell(card::MEMORY_TOTAL, 1.0),
        power_watts: cell(card::POWER, 1e-3),
        temperature_celsius: cell(card::TEMPERATURE, 1e-3),
        clock_hertz: cell(card::CLOCK, 1e6),
        throttled: gpu::throttle_words(card.cells[card::THROTTLE]),
        lost_since_ns: None,
        users,
    }
}

/// What the processes of one job, or of nobody, have of a card.
fn sums(card: &CardNow<'_>, whose: Option<u32>) -> UserLine {
    let mut line = UserLine::default();
    for &(subject, slot, memory, utilization) in card.processes.iter().filter(|process| process.1 == whose) {
        let _ = slot;
        if let Subject::Task { pid, .. } = subject {
            line.pids.push(pid);
        }
        for (sum, cell, scale) in
            [(&mut line.memory_bytes, memory, 1.0), (&mut line.utilization, utilization, 1e-3)]
        {
            if cell != MISSING {
                *sum = Some(sum.unwrap_or(0.0) + cell as f64 * scale);
            }
        }
    }
    line
}

/// Jobs that hold the card by what a daemon knows and we may not read: the environment of other users.
fn held_elsewhere(
    card: &CardNow<'_>,
    keys: &HashMap<u32, JobKey>,
    known: &HashMap<JobKey, Record>,
) -> Vec<UserLine> {
    let is_seen = |key: &JobKey| card.holders.iter().any(|(slot, _)| keys.get(slot) == Some(key));
    let mut lines: Vec<UserLine> = Vec::new();
    for record in known.values().filter(|record| !is_seen(&record.key)) {
        // What was only open, and is no more, is not held.
        let held =
            record.gpus.iter().find(|gpu| gpu.uuid == card.labels[label::UUID] && gpu.held_by != "open");
        if let Some(gpu) = held {
            lines.push(UserLine {
                job: Some(record.key.id.clone()),
                name: record.name.clone(),
                user: record.user.clone(),
                idle: gpu.idle_since_ns.is_some(),
                idle_since_ns: gpu.idle_since_ns,
                ..UserLine::default()
            });
        }
    }
    lines.sort_by(|one, other| one.job.cmp(&other.job));
    lines
}

/// Cards that a daemon knows of jobs and that cannot be read any more.
fn lost(shown: &[CardLine], known: &HashMap<JobKey, Record>) -> Vec<CardLine> {
    let mut lines: Vec<CardLine> = Vec::new();
    let mut records: Vec<&Record> = known.values().collect();
    records.sort_by(|one, other| one.key.id.cmp(&other.key.id));
    for record in records {
        for gpu in record.gpus.iter().filter(|gpu| gpu.lost_since_ns.is_some()) {
            if shown.iter().any(|line| line.uuid == gpu.uuid) {
                continue;
            }
            let at = lines.iter().position(|line| line.uuid == gpu.uuid).unwrap_or_else(|| {
                lines.push(CardLine {
                    index: gpu.index.clone(),
                    uuid: gpu.uuid.clone(),
                    name: gpu.name.clone(),
                    lost_since_ns: gpu.lost_since_ns,
                    ..CardLine::default()
                });
                lines.len() - 1
            });
            lines[at].users.push(UserLine {
                job: Some(record.label()),
                name: record.name.clone(),
                user: record.user.clone(),
                ..UserLine::default()
            });
        }
    }
    lines
}

fn object(card: &CardLine) -> serde_json::Value {
    // Whole numbers, as everywhere.
    let whole = |bytes: Option<f64>| bytes.map(|bytes| bytes as i64);
    let user = |user: &UserLine| {
        json!({
            "job": user.job,
            "name": user.name,
            "user": user.user,
            "pids": user.pids,
            "utilization_ratio": user.utilization,
            "memory_bytes": whole(user.memory_bytes),
            "idle": user.idle,
            "idle_since": user.idle_since_ns.and_then(met_insight::json::time),
        })
    };
    json!({
        "index": card.index,
        "uuid": card.uuid,
        "name": card.name,
        "utilization_ratio": card.utilization,
        "memory_used_bytes": whole(card.memory_used_bytes),
        "memory_total_bytes": whole(card.memory_total_bytes),
        "power_watts": card.power_watts,
        "temperature_celsius": card.temperature_celsius,
        "clock_hertz": card.clock_hertz,
        "throttled": card.throttled,
        "lost_since": card.lost_since_ns.and_then(met_insight::json::time),
        "users": card.users.iter().map(user).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_about_the_list_has_every_key_and_bytes_are_whole() {
        let user = UserLine { memory_bytes: Some(6e8), ..UserLine::default() };
        let card = CardLine { memory_used_bytes: Some(6e8), users: vec![user], ..CardLine::default() };
        let shown = object(&card);
        assert_eq!(shown["memory_used_bytes"].to_string(), "600000000");
        assert_eq!(shown["users"][0]["memory_bytes"].to_string(), "600000000");
        let page = include_str!("../../../../docs/json.md");
        let (_, page) = page.split_once("## The list of `met gpus --json`").unwrap();
        let of_users = shown["users"][0].as_object().unwrap().keys();
        for key in shown.as_object().unwrap().keys().chain(of_users) {
            assert!(page.contains(&format!("`{key}`")), "docs/json.md lacks {key} of met gpus");
        }
    }
}
