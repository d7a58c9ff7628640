//! The GPUs of this machine as they are now, and whose they are.

use super::{Paint, Style, text};
use met_core::units;

/// One GPU. What could not be read is `None`, not 0.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GpuLine {
    pub index: String,
    pub uuid: String,
    pub name: String,
    /// Each maker's GPUs are numbered by themselves.
    pub vendor: String,
    pub utilization: Option<f64>,
    pub memory_used_bytes: Option<f64>,
    pub memory_total_bytes: Option<f64>,
    pub power_watts: Option<f64>,
    pub temperature_celsius: Option<f64>,
    pub clock_hertz: Option<f64>,
    pub throttled: Vec<&'static str>,
    /// Since when it cannot be read, in unix nanoseconds: then there are no figures.
    pub lost_since_ns: Option<i64>,
    /// Why it cannot be read now.
    pub error: Option<String>,
    pub users: Vec<UserLine>,
    /// Known to be held by no job, and idle.
    pub is_free: bool,
}

/// Who uses or holds a GPU: a job, or a process of no job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UserLine {
    /// The job's id and name; of a process of no job nothing and its name.
    pub job: Option<String>,
    pub name: String,
    pub user: Option<String>,
    pub pids: Vec<u32>,
    pub utilization: Option<f64>,
    pub memory_bytes: Option<f64>,
    /// Held and not used: since when, in unix nanoseconds, if a daemon has watched it.
    pub idle: bool,
    pub idle_since_ns: Option<i64>,
}

const NUMBER_COLUMNS: usize = 5;
const NAME_COLUMNS: usize = 28;
const NAME_COLUMNS_MIN: usize = 12;

/// What fits the terminal: names are cut first, then figures go, those least asked for before the others.
struct Layout {
    number: usize,
    name: usize,
    /// Room for the memory in use, and for the whole beside it or not.
    memory: usize,
    temperature: bool,
    clock: bool,
    width: Option<usize>,
}

const MEMORY_OF_WHOLE: usize = 21;
const MEMORY_ALONE: usize = 8;

impl Layout {
    fn of(number: usize, width: Option<usize>) -> Layout {
        let mut layout = Layout {
            number,
            name: NAME_COLUMNS,
            memory: MEMORY_OF_WHOLE,
            temperature: true,
            clock: true,
            width,
        };
        for (memory, temperature, clock) in [
            (MEMORY_OF_WHOLE, true, true),
            (MEMORY_OF_WHOLE, true, false),
            (MEMORY_ALONE, true, false),
            (MEMORY_ALONE, false, false),
        ] {
            (layout.memory, layout.temperature, layout.clock) = (memory, temperature, clock);
            let others = layout.columns() - layout.name;
            let room = width.map_or(NAME_COLUMNS, |width| width.saturating_sub(others));
            layout.name = room.clamp(NAME_COLUMNS_MIN, NAME_COLUMNS);
            if room >= NAME_COLUMNS_MIN {
                break;
            }
        }
        layout
    }

    fn columns(&self) -> usize {
        let temperature = if self.temperature { 8 } else { 0 };
        let clock = if self.clock { 10 } else { 0 };
        self.number + 1 + self.name + 1 + 5 + 2 + self.memory + 2 + 7 + temperature + clock
    }

    /// The figures of a line, each in its column.
    fn figures(&self, [used, memory, power, temperature, clock]: [&str; 5]) -> String {
        let mut line = format!("{}  {}", text::pad_left(used, 5), text::pad_left(memory, self.memory));
        line.push_str(&format!("  {}", text::pad_left(power, 7)));
        if self.temperature {
            line.push_str(&format!("  {}", text::pad_left(temperature, 6)));
        }
        if self.clock {
            line.push_str(&format!("  {}", text::pad_left(clock, 8)));
        }
        line
    }

    /// What is said behind a line, or below it where it does not fit.
    fn behind(&self, line: &str, words: &str) -> String {
        match self.width.filter(|width| text::width(line) + 2 + text::width(words) > *width) {
            Some(width) if !words.is_empty() => {
                let lines = text::wrap(words, width.saturating_sub(4).max(20));
                lines.iter().map(|line| format!("\n    {line}")).collect()
            }
            _ => format!("  {words}"),
        }
    }
}

pub fn gpus(gpus: &[GpuLine], now_ns: i64, style: &Style) -> String {
    let Some(first) = gpus.first() else {
        return "no GPUs found; see `met doctor`\n".to_owned();
    };
    let several_makers = gpus.iter().any(|gpu| gpu.vendor != first.vendor);
    let number = |gpu: &GpuLine| match several_makers {
        true => format!("{} {}", gpu.vendor, gpu.index),
        false => gpu.index.clone(),
    };
    let room = gpus.iter().map(|gpu| number(gpu).len()).max().unwrap_or(0).max(NUMBER_COLUMNS);
    let layout = Layout::of(room, style.width);
    let head = format!(
        "{:<room$} {:<name$} {}",
        "GPU",
        "NAME",
        layout.figures(["USE", "MEMORY", "POWER", "TEMP", "CLOCK"]),
        name = layout.name
    );
    let mut drawn = style.paint(Paint::Bold, head.trim_end()) + "\n";
    for gpu in gpus {
        let number = text::pad(&text::escape(&number(gpu)), room);
        drawn.push_str(&line(gpu, &number, &layout, now_ns, style));
        for user in &gpu.users {
            drawn.push_str(&user_line(user, &layout, now_ns, style));
        }
    }
    if style.ascii { text::to_ascii(&drawn) } else { drawn }
}

fn or_dash<T>(value: Option<T>, format: impl Fn(T) -> String) -> String {
    value.map(format).unwrap_or_else(|| "-".to_owned())
}

fn line(gpu: &GpuLine, number: &str, layout: &Layout, now_ns: i64, style: &Style) -> String {
    let used = or_dash(gpu.memory_used_bytes, units::bytes);
    let memory = match gpu.memory_total_bytes.filter(|_| layout.memory == MEMORY_OF_WHOLE) {
        Some(total) => format!("{used} of {}", units::bytes(total)),
        None => used,
    };
    let name = text::pad(&text::cut(&text::escape(&gpu.name), layout.name, style.ascii), layout.name);
    if let Some(since_ns) = gpu.lost_since_ns {
        let words = format!("lost since {}", units::time_short(since_ns, now_ns, &style.zone));
        return format!("{number} {name}  {}\n", style.paint(Paint::Red, &words));
    }
    if let Some(error) = &gpu.error {
        let line = format!("{number} {name}").trim_end().to_owned();
        return format!("{line}{}\n", style.paint(Paint::Red, &layout.behind(&line, &text::escape(error))));
    }
    let figures = layout.figures([
        &or_dash(gpu.utilization, units::percent),
        &memory,
        &or_dash(gpu.power_watts, units::watts),
        &or_dash(gpu.temperature_celsius, units::celsius),
        &or_dash(gpu.clock_hertz, units::hertz),
    ]);
    let line = format!("{number} {name} {figures}");
    if gpu.throttled.is_empty() {
        return line + "\n";
    }
    let words = layout.behind(&line, &format!("throttled: {}", gpu.throttled.join(", ")));
    format!("{line}{}\n", style.paint(Paint::Yellow, &words))
}

fn user_line(user: &UserLine, layout: &Layout, now_ns: i64, style: &Style) -> String {
    let who = match &user.job {
        Some(job) => format!("job {} {}", text::escape(job), text::escape(&user.name)),
        None => text::escape(&user.name),
    };
    let who = match &user.user {
        Some(name) => format!("{who} ({})", text::escape(name)),
        None => who,
    };
    let room = layout.number + 1 + layout.name - 2;
    let pids = user.pids.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
    let state = match (user.idle, user.idle_since_ns) {
        (true, Some(since_ns)) => {
            format!("held, idle since {}", units::time_short(since_ns, now_ns, &style.zone))
        }
        (true, None) => "held, idle".to_owned(),
        (false, _) => String::new(),
    };
    let rest = [if pids.is_empty() { String::new() } else { format!("pid {pids}") }, state];
    let rest = rest.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ");
    let line = format!(
        "  {} {}  {}",
        text::pad(&text::cut(&who, room, style.ascii), room),
        text::pad_left(&or_dash(user.utilization, units::percent), 5),
        text::pad_left(&or_dash(user.memory_bytes, units::bytes), layout.memory),
    );
    let paint = if user.idle { Paint::Yellow } else { Paint::Dim };
    let line = format!("{line}{}", layout.behind(&line, &rest));
    style.paint(paint, line.trim_end()) + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    /// A shared GPU, a part of one, and one that is lost.
    fn some_gpus() -> [GpuLine; 3] {
        let user = |job: &str, name: &str| UserLine {
            job: Some(job.to_owned()),
            name: name.to_owned(),
            ..UserLine::default()
        };
        [
            GpuLine {
                index: "0".to_owned(),
                name: "NVIDIA H200".to_owned(),
                utilization: Some(0.9),
                memory_used_bytes: Some(3.0 * (1u64 << 30) as f64),
                memory_total_bytes: Some(150_754_820_096.0),
                power_watts: Some(312.0),
                temperature_celsius: Some(61.0),
                clock_hertz: Some(1.98e9),
                throttled: vec!["power cap"],
                users: vec![
                    UserLine {
                        utilization: Some(0.6),
                        memory_bytes: Some(1e9),
                        pids: vec![100, 101],
                        ..user("12", "train")
                    },
                    UserLine {
                        idle: true,
                        idle_since_ns: Some(1_768_408_844_500_000_000),
                        ..user("13", "notebook")
                    },
                    UserLine { name: "Xorg".to_owned(), pids: vec![7], ..UserLine::default() },
                ],
                ..GpuLine::default()
            },
            GpuLine {
                index: "1.0".to_owned(),
                name: "NVIDIA H200 MIG 3g".to_owned(),
                memory_total_bytes: Some(40.0 * (1u64 << 30) as f64),
                ..GpuLine::default()
            },
            GpuLine {
                index: "2".to_owned(),
                name: "NVIDIA H200".to_owned(),
                lost_since_ns: Some(1_768_408_844_500_000_000),
                users: vec![user("14", "train")],
                ..GpuLine::default()
            },
        ]
    }

    const NOW_NS: i64 = 1_768_408_900_000_000_000;

    #[test]
    fn a_shared_gpu_one_held_and_a_stranger() {
        let all = some_gpus();
        expect![[r#"
            GPU   NAME                           USE                 MEMORY    POWER    TEMP     CLOCK
            0     NVIDIA H200                    90%    3.00 GiB of 140 GiB    312 W   61 °C  1.98 GHz  throttled: power cap
              job 12 train                       60%                954 MiB  pid 100 101
              job 13 notebook                      -                      -  held, idle since 16:40:44
              Xorg                                 -                      -  pid 7
            1.0   NVIDIA H200 MIG 3g               -          - of 40.0 GiB        -       -         -
            2     NVIDIA H200                   lost since 16:40:44
              job 14 train                         -                      -
        "#]]
        .assert_eq(&gpus(&all, NOW_NS, &Style::plain()));
        assert_eq!(gpus(&[], 0, &Style::plain()), "no GPUs found; see `met doctor`\n");
    }

    #[test]
    fn gpus_fit_a_narrow_terminal() {
        let mut all = some_gpus();
        all[2].users[0].pids = (1000..1040).collect();
        for width in 44..100 {
            let drawn = gpus(&all, NOW_NS, &Style { width: Some(width), ..Style::plain() });
            let longest = drawn.lines().map(text::width).max();
            assert!(longest.is_some_and(|longest| longest <= width), "{width} columns:\n{drawn}");
        }
        let narrow = Style { width: Some(60), ..Style::plain() };
        expect![[r#"
            GPU   NAME                    USE    MEMORY    POWER    TEMP
            0     NVIDIA H200             90%  3.00 GiB    312 W   61 °C
                throttled: power cap
              job 12 train                60%   954 MiB  pid 100 101
              job 13 notebook               -         -
                held, idle since 16:40:44
              Xorg                          -         -  pid 7
        "#]]
        .assert_eq(&gpus(&all[..1], NOW_NS, &narrow));
    }

    #[test]
    fn gpus_of_two_makers_are_distinguished() {
        let gpu = |vendor: &str, name: &str| GpuLine {
            index: "0".to_owned(),
            vendor: vendor.to_owned(),
            name: name.to_owned(),
            users: vec![UserLine { name: "Xorg".to_owned(), pids: vec![7], ..UserLine::default() }],
            ..GpuLine::default()
        };
        expect![[r#"
            GPU      NAME                           USE                 MEMORY    POWER    TEMP     CLOCK
            amd 0    MI300                            -                      -        -       -         -
              Xorg                                    -                      -  pid 7
            nvidia 0 H200                             -                      -        -       -         -
              Xorg                                    -                      -  pid 7
        "#]]
        .assert_eq(&gpus(&[gpu("amd", "MI300"), gpu("nvidia", "H200")], 0, &Style::plain()));
    }
}
