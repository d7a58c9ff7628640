//! UTC days as numbers since 1970-01-01, and as the names of files.

const DAY_MS: i64 = 86_400_000;

pub(crate) fn of_ms(time_ms: i64) -> i64 {
    time_ms.div_euclid(DAY_MS)
}

pub(crate) fn of_ns(time_ns: i64) -> i64 {
    of_ms(time_ns.div_euclid(1_000_000))
}

pub(crate) fn begin_ms(day: i64) -> i64 {
    day.saturating_mul(DAY_MS)
}

/// `YYYY-MM-DD`.
pub(crate) fn name(day: i64) -> String {
    // Counted from 1 March of year 0, so that a leap day is the last of its year.
    let since = day + 719_468;
    let era = since.div_euclid(146_097);
    let of_era = since.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day_of_month = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day_of_month:02}")
}

/// The day of a name that [`name`] wrote.
pub(crate) fn parse(text: &str) -> Option<i64> {
    let (rest, day_of_month) = text.rsplit_once('-')?;
    let (year, month) = rest.rsplit_once('-')?;
    let year: i64 = year.parse().ok().filter(|year| (-300_000..300_000).contains(year))?;
    let month: i64 = month.parse().ok().filter(|month| (1..=12).contains(month))?;
    let day_of_month: i64 = day_of_month.parse().ok().filter(|day| (1..=31).contains(day))?;
    let shifted_year = year - i64::from(month <= 2);
    let era = shifted_year.div_euclid(400);
    let year_of_era = shifted_year.rem_euclid(400);
    let shifted_month = (month + 9) % 12;
    let of_year = (153 * shifted_month + 2) / 5 + day_of_month - 1;
    let of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + of_year;
    let day = era * 146_097 + of_era - 719_468;
    (name(day) == text).then_some(day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_have_names_and_names_have_days() {
        assert_eq!(name(0), "1970-01-01");
        assert_eq!(name(of_ms(951_782_400_000)), "2000-02-29");
        assert_eq!(name(of_ns(-1)), "1969-12-31");
        for day in (-1_000_000..3_000_000).step_by(997) {
            assert_eq!(parse(&name(day)), Some(day));
        }
        for text in ["", "2026-11-31", "2026-1-01", "x-01-01", "2026-11-15.db", "99999999999999999999-01-01"]
        {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn any_time_has_a_day() {
        for time_ms in [i64::MIN, -1, 0, i64::MAX] {
            let _ = name(of_ms(time_ms));
        }
    }
}
