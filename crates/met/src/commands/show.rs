//! `met show`: the report of one job.

use std::io::Write;

use anyhow::Result;
use met_core::event;
use met_core::series::Course;

use crate::cli::ShowArgs;
use crate::managers;
use crate::output;
use crate::view::{self, text};
use met_agent::sampler;
use met_jobs::processes;
use met_query::jobs::{self, AllJobs, Meant};
use met_query::setting::Setting;

/// More plots than this are for a program.
const CARDS_PLOTTED: usize = 4;
const EVENTS_PLOTTED: usize = 8;

pub fn show(setting: &Setting, args: &ShowArgs) -> Result<i32> {
    let mut all = AllJobs::open(setting)?;
    let (record, whole) = match all.find_or_step(&args.job)? {
        Meant::Job(record) => (record, true),
        Meant::Step(record) => (record, false),
    };
    let now_ns = jobs::now_ns();
    let mut stdout = output::stdout();
    if args.json {
        writeln!(stdout, "{}", met_insight::json::object(&record, now_ns))?;
        return Ok(0);
    }
    let style = stdout.style();
    let machine = super::machine(setting, &record);
    stdout.write_all(
        view::report::render(&met_insight::report::report(&record, machine, now_ns), &style).as_bytes(),
    )?;
    // The course and the processes are the whole job's.
    if !whole {
        return Ok(0);
    }
    let course = all.course(&record.key)?;
    let gap_ms = sampler::gap_ms_of(&course, setting.config.sampling.interval);
    let plot = view::plot::course(&course, gap_ms, &view::plot::Known::of(&record, now_ns), &style);
    if !plot.is_empty() {
        write!(stdout, "\n{plot}")?;
    }
    for gpu in record.gpus.iter().take(CARDS_PLOTTED) {
        let course = all.card_course(&record.key, &gpu.uuid)?;
        let gap_ms = sampler::gap_ms_of(&course, setting.config.sampling.interval);
        let plot = view::plot::card(&course, &gpu.index, gap_ms, &style);
        if !plot.is_empty() {
            write!(stdout, "\n{plot}")?;
        }
    }
    for counted in record.events.iter().take(EVENTS_PLOTTED) {
        // An older daemon has no such series.
        let course = all.job_series(&record.key, &event::TABLE, &counted.name);
        let course = course.unwrap_or_else(|_| Course::new(&event::TABLE));
        let gap_ms = sampler::gap_ms_of(&course, setting.config.sampling.interval);
        let plot = view::plot::event(&course, &counted.name, gap_ms, &style);
        if !plot.is_empty() {
            write!(stdout, "\n{plot}")?;
        }
    }
    if !record.state.is_live() && !managers::is_foreign(&record) {
        let alive = processes::of_job(&setting.host, &record);
        if !alive.is_empty() {
            let named =
                alive.iter().map(|process| format!("{} ({})", process.id.pid, text::escape(&process.name)));
            let list = named.collect::<Vec<_>>().join(", ");
            writeln!(stdout, "\nStill alive: {list}\nEnd them with: met cancel {}", record.key.id)?;
        }
    }
    Ok(0)
}
