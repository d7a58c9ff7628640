//! Integers in a sub-unit as decimal numbers of the unit: exact, and without a float in between.

use met_core::Column;
use met_core::table::{MICRO, MILLI, NANO};

/// Writes a cell in its column's unit.
pub fn write(column: &Column, cell: i64, out: &mut Vec<u8>) {
    if cell < 0 {
        out.push(b'-');
    }
    let cell = cell.unsigned_abs();
    match places(column.scale) {
        Some(0) => write_integer(cell, out),
        Some(places) => write_fraction(cell, places, out),
        // Of a scale above one: no unit is so large that this says less than was read.
        None => write_integer(cell.saturating_mul(column.scale as u64), out),
    }
}

/// The same, cut to thousandths of the unit: milliseconds, millijoules. A counter that only grows still does.
pub fn write_thousandths(column: &Column, cell: i64, out: &mut Vec<u8>) {
    let beyond = places(column.scale).unwrap_or(0).saturating_sub(3) as u32;
    write(column, cell - cell % 10i64.pow(beyond), out);
}

/// Digits behind the point. `None`: the unit is smaller than what is counted in.
fn places(scale: f64) -> Option<usize> {
    // Most are one of these, and a logarithm takes longer than all else.
    match scale {
        1.0 => Some(0),
        NANO => Some(9),
        MICRO => Some(6),
        MILLI => Some(3),
        above if above > 1.0 => None,
        other => Some((-other.log10()).round() as usize),
    }
}

fn write_integer(mut rest: u64, out: &mut Vec<u8>) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// The cell with its point `places` digits from the right, and no zeros behind that say nothing.
fn write_fraction(cell: u64, places: usize, out: &mut Vec<u8>) {
    let unit = 10u64.pow(places as u32);
    let mut rest = cell % unit;
    write_integer(cell / unit, out);
    if rest == 0 {
        return;
    }
    let mut digits = [b'0'; 20];
    for digit in digits[..places].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    let used = digits[..places].iter().rposition(|&digit| digit != b'0').map_or(0, |last| last + 1);
    out.push(b'.');
    out.extend_from_slice(&digits[..used]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use met_core::Unit;
    use met_core::table::{MEGA, ONE};
    use proptest::prelude::*;

    fn text(scale: f64, cell: i64) -> String {
        let mut out = Vec::new();
        write(&Column::gauge("x", Unit::Count, scale, ""), cell, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn cells_are_written_exactly() {
        assert_eq!(text(NANO, 1_500_000_000), "1.5");
        assert_eq!(text(NANO, 9_223_372_036_854_775_807), "9223372036.854775807");
        assert_eq!(text(MICRO, -1), "-0.000001");
        assert_eq!(text(MILLI, 40_000), "40");
        assert_eq!(text(ONE, 0), "0");
        assert_eq!(text(MEGA, 2_400), "2400000000");
        assert_eq!(text(MEGA, -3), "-3000000");
        assert_eq!(text(0.01, 250), "2.5");
    }

    #[test]
    fn what_is_cut_off_are_digits_beyond_the_third() {
        for (scale, cell, expected) in [
            (NANO, 1_234_567_899, "1.234"),
            (NANO, 999_999, "0"),
            (MICRO, -1_500, "-0.001"),
            (MILLI, 1_234, "1.234"),
            (ONE, 12_345_678, "12345678"),
            (MEGA, 2_400, "2400000000"),
        ] {
            let mut out = Vec::new();
            write_thousandths(&Column::gauge("x", Unit::Count, scale, ""), cell, &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_what_it_was(cell in -1i64 << 52..1i64 << 52, scale in prop::sample::select(vec![NANO, MICRO, MILLI, ONE])) {
            let read: f64 = text(scale, cell).parse().unwrap();
            let exact = Column::gauge("x", Unit::Count, scale, "").scaled(cell);
            prop_assert!((read - exact).abs() <= exact.abs() * 1e-15);
        }
    }
}
