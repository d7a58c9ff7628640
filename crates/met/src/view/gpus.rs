//! The cards of this machine as they are now, and whose they are.

use super::{Paint, Style, text, units};

/// One card. What could not be read is `None`, not 0.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CardLine {
    pub index: String,
    pub uuid: String,
    pub name: String,
    /// Each maker's cards are numbered by themselves.
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
    pub users: Vec<UserLine>,
}

/// Who uses or holds a card: a job, or a process of no job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UserLine {
    /// The job's id and name; of a process of no job nothing and its name.
    pub job: Option<String>,
    pub name: String,
    pub user: Option<String>,
    pub pids: Vec<u32>,
    pub utilization: Option<f64>,
    pub memory_bytes: Option<f64>,
    /// Held and not used: since when, in unix nanoseconds, where somebody has watched.
    pub idle: bool,
    pub idle_since_ns: Option<i64>,
}

const NUMBER_COLUMNS: usize = 5;
const NAME_COLUMNS: usize = 28;

pub fn cards(cards: &[CardLine], now_ns: i64, style: &Style) -> String {
    let Some(first) = cards.first() else {
        return "no cards; `met doctor` says why\n".to_owned();
    };
    let several_makers = cards.iter().any(|card| card.vendor != first.vendor);
    let number = |card: &CardLine| match several_makers {
        true => format!("{} {}", card.vendor, card.index),
        false => card.index.clone(),
    };
    let room = cards.iter().map(|card| number(card).len()).max().unwrap_or(0).max(NUMBER_COLUMNS);
    let head = format!(
        "{:<room$} {:<NAME_COLUMNS$} {:>5}  {:>21}  {:>7}  {:>6}  {:>8}",
        "GPU", "NAME", "USE", "MEMORY", "POWER", "TEMP", "CLOCK"
    );
    let mut drawn = style.paint(Paint::Bold, head.trim_end()) + "\n";
    for card in cards {
        let number = text::pad(&text::escape(&number(card)), room);
        drawn.push_str(&format!("{number} {}", line(card, now_ns, style)));
        for user in &card.users {
            drawn.push_str(&user_line(user, room, now_ns, style));
        }
    }
    if style.ascii { text::to_ascii(&drawn) } else { drawn }
}

fn or_dash<T>(value: Option<T>, format: impl Fn(T) -> String) -> String {
    value.map(format).unwrap_or_else(|| "-".to_owned())
}

fn line(card: &CardLine, now_ns: i64, style: &Style) -> String {
    let used = or_dash(card.memory_used_bytes, units::bytes);
    let memory = match card.memory_total_bytes {
        Some(total) => format!("{used} of {}", units::bytes(total)),
        None => used,
    };
    let name = text::pad(&text::cut(&text::escape(&card.name), NAME_COLUMNS, style.ascii), NAME_COLUMNS);
    if let Some(since_ns) = card.lost_since_ns {
        let words = format!("lost since {}", units::time_short(since_ns, now_ns, &style.zone));
        return format!("{name}  {}\n", style.paint(Paint::Red, &words));
    }
    let mut line = format!(
        "{name} {}  {}  {}  {}  {}",
        text::pad_left(&or_dash(card.utilization, units::percent), 5),
        text::pad_left(&memory, 21),
        text::pad_left(&or_dash(card.power_watts, units::watts), 7),
        text::pad_left(&or_dash(card.temperature_celsius, units::celsius), 6),
        text::pad_left(&or_dash(card.clock_hertz, units::hertz), 8),
    );
    if !card.throttled.is_empty() {
        let words = format!("held down: {}", card.throttled.join(", "));
        line = format!("{line}  {}", style.paint(Paint::Yellow, &words));
    }
    line + "\n"
}

fn user_line(user: &UserLine, number_columns: usize, now_ns: i64, style: &Style) -> String {
    let who = match &user.job {
        Some(job) => format!("job {} {}", text::escape(job), text::escape(&user.name)),
        None => text::escape(&user.name),
    };
    let who = match &user.user {
        Some(name) => format!("{who} ({})", text::escape(name)),
        None => who,
    };
    let room = number_columns + 1 + NAME_COLUMNS - 2;
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
        "  {} {}  {}  {rest}",
        text::pad(&text::cut(&who, room, style.ascii), room),
        text::pad_left(&or_dash(user.utilization, units::percent), 5),
        text::pad_left(&or_dash(user.memory_bytes, units::bytes), 21),
    );
    let paint = if user.idle { Paint::Yellow } else { Paint::Dim };
    style.paint(paint, line.trim_end()) + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn a_shared_card_one_held_and_a_stranger() {
        let user = |job: &str, name: &str| UserLine {
            job: Some(job.to_owned()),
            name: name.to_owned(),
            ..UserLine::default()
        };
        let all = [
            CardLine {
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
                ..CardLine::default()
            },
            CardLine {
                index: "1.0".to_owned(),
                name: "NVIDIA H200 MIG 3g".to_owned(),
                memory_total_bytes: Some(40.0 * (1u64 << 30) as f64),
                ..CardLine::default()
            },
            CardLine {
                index: "2".to_owned(),
                name: "NVIDIA H200".to_owned(),
                lost_since_ns: Some(1_768_408_844_500_000_000),
                users: vec![user("14", "train")],
                ..CardLine::default()
            },
        ];
        expect![[r#"
            GPU   NAME                           USE                 MEMORY    POWER    TEMP     CLOCK
            0     NVIDIA H200                    90%    3.00 GiB of 140 GiB    312 W   61 °C  1.98 GHz  held down: power cap
              job 12 train                       60%                954 MiB  pid 100 101
              job 13 notebook                      -                      -  held, idle since 16:40:44
              Xorg                                 -                      -  pid 7
            1.0   NVIDIA H200 MIG 3g               -          - of 40.0 GiB        -       -         -
            2     NVIDIA H200                   lost since 16:40:44
              job 14 train                         -                      -
        "#]]
        .assert_eq(&cards(&all, 1_768_408_900_000_000_000, &Style::plain()));
        assert_eq!(cards(&[], 0, &Style::plain()), "no cards; `met doctor` says why\n");
    }

    #[test]
    fn cards_of_two_makers_are_told_apart() {
        let card = |vendor: &str, name: &str| CardLine {
            index: "0".to_owned(),
            vendor: vendor.to_owned(),
            name: name.to_owned(),
            users: vec![UserLine { name: "Xorg".to_owned(), pids: vec![7], ..UserLine::default() }],
            ..CardLine::default()
        };
        expect![[r#"
            GPU      NAME                           USE                 MEMORY    POWER    TEMP     CLOCK
            amd 0    MI300                            -                      -        -       -         -
              Xorg                                    -                      -  pid 7
            nvidia 0 H200                             -                      -        -       -         -
              Xorg                                    -                      -  pid 7
        "#]]
        .assert_eq(&cards(&[card("amd", "MI300"), card("nvidia", "H200")], 0, &Style::plain()));
    }
}
