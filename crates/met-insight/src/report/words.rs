//! Amounts in words, with the sign of how well each is known.

use met_core::job::QualityKind;
use met_core::units;

use super::{Amount, Detail, Measure, Meter, Report};

/// The sign in front of an amount that was not measured as such.
pub fn mark(quality: QualityKind) -> Option<(&'static str, &'static str)> {
    match quality {
        QualityKind::Measured | QualityKind::Sampled => None,
        QualityKind::Attributed => Some(("*", "attributed")),
        QualityKind::Estimated => Some(("~", "estimated")),
        QualityKind::LowerBound => Some(("≥", "at least this much")),
    }
}

pub fn amount(amount: &Amount) -> String {
    match amount.measure {
        Measure::Seconds => units::duration_long(amount.value),
        Measure::Bytes => units::bytes(amount.value),
        Measure::BytesPerSecond => units::bytes_per_second(amount.value),
        Measure::Count => units::count(amount.value),
        Measure::Number => units::number(amount.value),
        Measure::Cores => units::cores(amount.value),
        Measure::Share => units::percent(amount.value),
        Measure::Joules => units::watt_hours(amount.value),
        Measure::Grams => units::grams(amount.value),
        Measure::Money => units::money(amount.value),
        Measure::Watts => units::watts(amount.value),
        Measure::Celsius => units::celsius(amount.value),
        Measure::Hertz => units::hertz(amount.value),
        Measure::Gpus => units::cores(amount.value),
    }
}

/// With the sign in front of it.
pub fn marked(value: &Amount) -> String {
    units::marked(mark(value.quality).map_or("", |(sign, _)| sign), &amount(value))
}

/// What a meter shows: `3.76 of 8 cores, average`.
pub fn meter(meter: &Meter) -> String {
    let unit = match meter.used.measure {
        Measure::Cores if meter.whole.value == 1.0 => " core",
        Measure::Cores => " cores",
        Measure::Gpus if meter.whole.value == 1.0 => " GPU",
        Measure::Gpus => " GPUs",
        _ => "",
    };
    format!("{} of {}{unit}, {}", marked(&meter.used), amount(&meter.whole), meter.of)
}

/// As one phrase.
pub fn detail(detail: &Detail) -> String {
    let value = detail.amount.as_ref().map(marked).unwrap_or_default();
    let words = [detail.before, value.as_str(), &detail.after];
    words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

/// The signs that the report uses, in words; most reports use none.
pub fn legend(report: &Report) -> Vec<String> {
    let lines = report.sections.iter().flat_map(|section| &section.lines);
    let amounts = lines.flat_map(|line| {
        line.details.iter().filter_map(|detail| detail.amount.as_ref()).chain([&line.amount])
    });
    let shares = report.shares.iter().filter_map(|share| share.used.as_ref());
    let parts = report.parts.iter().flat_map(|part| [part.cpu.as_ref(), part.memory.as_ref()]).flatten();
    let used: Vec<QualityKind> = amounts.chain(shares).chain(parts).map(|amount| amount.quality).collect();
    let kinds = QualityKind::ALL.into_iter().filter(|kind| used.contains(kind));
    let words = |kind: QualityKind| match (mark(kind)?, kind) {
        ((sign, _), QualityKind::Attributed) if !report.attributed.is_empty() => {
            Some(format!("{sign} {}", report.attributed.join("; ")))
        }
        ((sign, words), _) => Some(format!("{sign} {words}")),
    };
    kinds.filter_map(words).collect()
}
