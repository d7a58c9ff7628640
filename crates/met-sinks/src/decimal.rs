//! Integers in a sub-unit as decimal numbers of the unit: exact, and without a float in between.

use met_core::Column;

/// Writes a cell in its column's unit.
pub fn write(column: &Column, cell: i64, out: &mut Vec<u8>) {
    if column.scale >= 1.0 {
        write_integer(i128::from(cell) * column.scale as i128, out);
        return;
    }
    let digits = (-column.scale.log10()).round() as usize;
    write_fraction(cell, digits, out);
}

fn write_integer(value: i128, out: &mut Vec<u8>) {
    if value < 0 {
        out.push(b'-');
    }
    let mut digits = [0u8; 40];
    let mut at = digits.len();
    let mut rest = value.unsigned_abs();
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
fn write_fraction(cell: i64, places: usize, out: &mut Vec<u8>) {
    if cell < 0 {
        out.push(b'-');
    }
    let unit = 10u64.pow(places as u32);
    let (whole, mut rest) = (cell.unsigned_abs() / unit, cell.unsigned_abs() % unit);
    write_integer(i128::from(whole), out);
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
    use met_core::table::{MEGA, MICRO, MILLI, NANO, ONE};
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
