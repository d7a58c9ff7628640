//! Who uses a machine now.

use std::collections::BTreeSet;

use super::{Paint, Style, text};
use met_core::units;
use met_query::who::{InUse, ProcessUse};

/// Less is not worth showing.
const IDLE_CORES: f64 = 0.005;
const JOBS_MAX: usize = 4;

pub fn text(InUse { users, processes }: &InUse, cpus: u32, style: &Style) -> String {
    let cores: f64 = users.iter().map(|user| user.cores).sum();
    let mut drawn = format!("{} of {cpus} cores busy\n\n", units::cores(cores));
    let name = |name: &Option<String>| text::escape(name.as_deref().unwrap_or("(unknown)"));
    let mut rows = vec![["USER", "PROCS", "CORES", "MEMORY", "OUTSIDE", "JOBS"].map(str::to_owned)];
    rows.extend(users.iter().map(|user| {
        [
            name(&user.name),
            user.processes.to_string(),
            units::cores(user.cores),
            units::bytes(user.memory_bytes as f64),
            units::cores(user.outside.cores),
            jobs(&user.jobs),
        ]
    }));
    drawn += &table(&rows, &[false, true, true, true, true, false], style);
    let busy: Vec<&ProcessUse> = processes.iter().filter(|process| process.cores >= IDLE_CORES).collect();
    if !busy.is_empty() {
        let mut rows = vec![["PID", "USER", "CORES", "MEMORY", "JOB", "COMMAND"].map(str::to_owned)];
        rows.extend(busy.iter().map(|process| {
            [
                process.pid.to_string(),
                name(&process.user),
                units::cores(process.cores),
                process.memory_bytes.map_or("-".to_owned(), |bytes| units::bytes(bytes as f64)),
                process.job.as_deref().map_or("-".to_owned(), text::escape),
                text::command_line(&process.command),
            ]
        }));
        drawn.push('\n');
        drawn += &table(&rows, &[true, false, true, true, false, false], style);
    }
    if style.ascii { text::to_ascii(&drawn) } else { drawn }
}

fn jobs(jobs: &BTreeSet<String>) -> String {
    let mut words: Vec<String> = jobs.iter().take(JOBS_MAX).map(|job| text::escape(job)).collect();
    match jobs.len() {
        0 => return "-".to_owned(),
        count if count > JOBS_MAX => words.push(format!("and {} more", count - JOBS_MAX)),
        _ => {}
    }
    words.join(", ")
}

const MEMORY: usize = 3;
/// Columns of the last one that say something.
const LAST_MIN: usize = 8;

/// The last column is cut where the terminal ends; memory leaves one that is too narrow for both.
fn table(rows: &[[String; 6]], right: &[bool; 6], style: &Style) -> String {
    let width = |at: usize| rows.iter().map(|row| text::width(&row[at])).max().unwrap_or(0);
    let widths: [usize; 6] = std::array::from_fn(width);
    let used = |shown: &[usize]| shown.iter().map(|&at| widths[at] + 2).sum::<usize>();
    let mut shown = vec![0, 1, 2, MEMORY, 4];
    if style.width.is_some_and(|columns| columns < used(&shown) + LAST_MIN) {
        shown.retain(|&at| at != MEMORY);
    }
    let room =
        style.width.map_or(usize::MAX, |columns| columns.saturating_sub(used(&shown)).max(LAST_MIN / 2));
    let mut drawn = String::new();
    for (number, row) in rows.iter().enumerate() {
        let cell = |at: usize| match right[at] {
            true => text::pad_left(&row[at], widths[at]),
            false => text::pad(&row[at], widths[at]),
        };
        let mut cells: Vec<String> = shown.iter().map(|&at| cell(at)).collect();
        cells.push(text::cut(&row[5], room, style.ascii));
        let line = cells.join("  ").trim_end().to_owned();
        drawn += &if number == 0 { style.paint(Paint::Bold, &line) } else { line };
        drawn.push('\n');
    }
    drawn
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use met_query::who::{Outside, UserUse};

    use super::*;

    #[test]
    fn jobs_and_what_is_outside_of_them_are_kept_apart() {
        let users = vec![
            UserUse {
                name: Some("ada".to_owned()),
                processes: 3,
                cores: 1.5,
                memory_bytes: 3 << 30,
                jobs: ["12", "13", "14", "15", "16"].map(str::to_owned).into(),
                outside: Outside { cores: 0.25, memory_bytes: 1 << 20 },
            },
            UserUse { name: None, processes: 1, ..UserUse::default() },
        ];
        let process = |pid, cores, job: Option<&str>| {
            let mut process = ProcessUse::default();
            (process.pid, process.cores, process.user) = (pid, cores, Some("ada".to_owned()));
            (process.job, process.memory_bytes) = (job.map(str::to_owned), Some(1 << 30));
            process.command =
                vec!["python".to_owned(), "a very long name of a script that is cut off.py".to_owned()];
            process
        };
        let processes = vec![process(4711, 1.25, Some("12")), process(5, 0.25, None), process(6, 0.0, None)];
        let in_use = InUse { users, processes };
        let of_width = |width| text(&in_use, 8, &Style { width: Some(width), ..Style::plain() });
        let narrow = of_width(40);
        assert!(narrow.lines().all(|line| text::width(line) <= 40) && !narrow.contains("MEMORY"), "{narrow}");
        let drawn = of_width(60);
        expect![[r#"
            1.50 of 8 cores busy

            USER       PROCS  CORES    MEMORY  OUTSIDE  JOBS
            ada            3   1.50  3.00 GiB     0.25  12, 13, 14, 15,…
            (unknown)      1      0       0 B        0  -

             PID  USER  CORES    MEMORY  JOB  COMMAND
            4711  ada    1.25  1.00 GiB  12   python 'a very long name …
               5  ada    0.25  1.00 GiB  -    python 'a very long name …
        "#]]
        .assert_eq(&drawn);
        assert!(drawn.lines().all(|line| text::width(line) <= 60));
    }
}
