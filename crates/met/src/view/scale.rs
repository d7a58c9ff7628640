//! How a job scales, in words and for programs.

use met_core::job::Record;
use met_insight::scale::{Bounds, Fit, Interval, Model, Plan, Prediction, Scaling, UNSIZED};

use super::{Paint, Style, text};
use met_core::units;

pub fn render(record: &Record, plan: &Plan, left_out: &[String], style: &Style) -> String {
    let head = format!("Job {}  {}", text::escape(&record.label()), text::escape(&record.name));
    let mut lines = vec![painted(Paint::Bold, &head, style)];
    if let Some(bounds) = &plan.bounds {
        lines.extend(of_bounds(bounds));
    }
    if !left_out.is_empty() {
        lines.extend([String::new(), "Left out:".to_owned()]);
        let (unsized_runs, others): (Vec<&String>, Vec<&String>) =
            left_out.iter().partition(|words| words.ends_with(UNSIZED));
        lines.extend(others.iter().map(|words| format!("  {}", text::escape(words))));
        lines.extend(match unsized_runs[..] {
            [] => None,
            [one] => Some(format!("  {}", text::escape(one))),
            _ => Some(format!("  {} jobs whose size is not known", unsized_runs.len())),
        });
    }
    match &plan.scaling {
        Err(cannot) => {
            let sizes: Vec<String> = cannot.run_next.iter().map(|size| units::cores(*size)).collect();
            lines.push(String::new());
            lines.push(format!("cannot say: {}", cannot.why));
            if !sizes.is_empty() {
                let by_hand = "; give the sizes of runs without an allocation by --sizes";
                let by_hand =
                    if left_out.iter().any(|words| words.ends_with(UNSIZED)) { by_hand } else { "" };
                lines.push(format!("run it next with N = {} workers{by_hand}", sizes.join(" and ")));
            }
        }
        Ok(model) => lines.extend(of_model(model, plan, style)),
    }
    lines.extend(of_systems(&plan.systems, style));
    let wrapped = |line: &String| match line.contains('\x1b') {
        true => format!("{line}\n"),
        false => text::hanging(line, 4, style),
    };
    let drawn: String = lines.iter().map(wrapped).collect();
    if style.ascii { text::to_ascii(&drawn) } else { drawn }
}

/// Codes of colours have no width: such a line is wrapped before.
fn painted(paint: Paint, line: &str, style: &Style) -> String {
    style.paint(paint, text::hanging(line, 4, style).trim_end())
}

fn of_bounds(bounds: &Bounds) -> Vec<String> {
    let mut lines = vec![String::new(), "From this run alone:".to_owned()];
    lines.extend(bounds.words().iter().map(|words| format!("  {words}")));
    // A bound of all its work says nothing.
    match (bounds.serial_high.filter(|serial| *serial < 0.995), bounds.speedup_limit_min) {
        (Some(serial), Some(speedup)) => lines.push(format!(
            "  at most {} of its work is serial: with enough cores at least {:.1} times as fast as with one",
            units::percent(serial),
            speedup
        )),
        (Some(serial), None) => {
            lines.push(format!("  at most {} of its work is serial", units::percent(serial)));
        }
        (None, _) => {}
    }
    lines
}

fn workers(size: f64) -> String {
    format!("{} worker{}", units::cores(size), if size == 1.0 { "" } else { "s" })
}

fn percent_range(interval: &Interval) -> String {
    let [value, low, high] = [interval.value, interval.low, interval.high].map(units::percent);
    format!("{value} ({low} to {high})")
}

fn of_model(model: &Scaling, plan: &Plan, style: &Style) -> Vec<String> {
    let law = match model.model {
        Model::KarpFlatt => "Karp-Flatt, two sizes",
        Model::Amdahl => "Amdahl's law",
        Model::Usl => "universal scalability law",
    };
    let runs: usize = model.sizes.iter().map(|(.., runs)| runs).sum();
    let mut lines = vec![String::new(), format!("{law}, from {runs} runs of {} sizes:", model.sizes.len())];
    lines.push(format!("  serial share    {}", percent_range(&model.serial)));
    if model.model == Model::Usl {
        lines.push(format!("  coherency       {:.2e}", model.coherency.value));
        lines.push(format!("  fastest with    {}", workers(model.best_size())));
    }
    lines.push(format!(
        "  efficient up to {} (each does at least half of what it does with {})",
        workers(model.efficient_size()),
        units::cores(model.size_base())
    ));
    lines.push(String::new());
    let head =
        format!("{:>8}  {:>10}  {:<21}{:>8}  {:>9}", "workers", "time", "95 % interval", "speedup", "energy");
    lines.push(painted(Paint::Dim, head.trim_end(), style));
    lines.extend(plan.predictions.iter().map(|prediction| row(prediction, model)));
    if let Some((seconds, size)) = plan.target {
        let time = units::duration(seconds);
        lines.push(match size {
            Some(size) => format!("{time} is reached with {}", workers(size)),
            None => format!("{time} is not reached with up to {}", workers(model.size_max)),
        });
    }
    lines
}

fn row(prediction: &Prediction, model: &Scaling) -> String {
    let size = units::cores(prediction.size);
    let (Some(seconds), Some(speedup)) = (prediction.seconds, prediction.speedup) else {
        let [least, most] = [model.size_min, model.size_max].map(units::cores);
        return format!("{size:>8}  cannot say: these runs are about {least} to {most} workers");
    };
    let range = format!("{} to {}", units::duration(seconds.low), units::duration(seconds.high));
    let energy =
        prediction.joules.map(|joules| format!("~{}", units::watt_hours(joules))).unwrap_or_default();
    let line = format!(
        "{size:>8}  {:>10}  {range:<21}{:>8}  {energy:>9}",
        units::duration(seconds.value),
        format!("{:.2}", speedup.value)
    );
    line.trim_end().to_owned()
}

fn of_systems(systems: &[Fit], style: &Style) -> Vec<String> {
    let mut lines = Vec::new();
    for (index, fit) in systems.iter().enumerate() {
        if index == 0 {
            lines.extend([
                String::new(),
                painted(Paint::Dim, "systems, if a core there is as fast as here", style),
            ]);
        }
        let mut words = vec![if fit.fits { "fits" } else { "does not fit" }.to_owned()];
        words.extend(fit.size.zip(fit.seconds).map(|(size, seconds)| {
            format!("{} on {} cores", units::duration(seconds.value), units::cores(size))
        }));
        words.extend(fit.price.map(|price| format!("costs {}", units::money(price))));
        words.extend(fit.notes.iter().cloned());
        lines.push(format!(
            "  {}  {}",
            text::pad(&text::escape(&fit.name), 12),
            text::escape(&words.join("; "))
        ));
    }
    lines
}
