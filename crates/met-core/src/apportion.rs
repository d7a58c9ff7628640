//! Splitting a whole number into whole parts that add up to it.

/// Splits `whole` in proportion to `weights` into `out`: Σ out == whole, always. The last slot is the unassigned
/// rest and takes all when every weight is 0. No part is further than 1 from its exact share.
pub fn apportion(whole: u64, weights: &[u64], out: &mut Vec<u64>) {
    out.clear();
    let sum: u128 = weights.iter().map(|&weight| u128::from(weight)).sum();
    if sum == 0 {
        out.resize(weights.len(), 0);
        if let Some(last) = out.last_mut() {
            *last = whole;
        }
        return;
    }
    // Each part is the step between two rounded-down running sums; what one loses by rounding the next gets.
    let (mut seen, mut given) = (0u128, 0u64);
    for &weight in weights {
        seen += u128::from(weight);
        let upto = share(whole, seen, sum);
        out.push(upto - given);
        given = upto;
    }
}

// whole × seen / sum without overflow: `seen` ≤ `sum` may need more than 64 bits, their product more than 128.
fn share(whole: u64, seen: u128, sum: u128) -> u64 {
    let shift = (128 - sum.leading_zeros()).saturating_sub(64);
    // Beyond 64 bits of weight the lowest bits of it cannot matter, and all of it is still all of it.
    if seen == sum {
        return whole;
    }
    let (seen, sum) = (seen >> shift, (sum >> shift).max(1));
    u64::try_from(u128::from(whole) * seen / sum).unwrap_or(whole).min(whole)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parts(whole: u64, weights: &[u64]) -> Vec<u64> {
        let mut out = Vec::new();
        apportion(whole, weights, &mut out);
        out
    }

    #[test]
    fn rounding_loses_nothing() {
        assert_eq!(parts(10, &[1, 1, 1]), [3, 3, 4]);
        assert_eq!(parts(1, &[1, 1, 0]), [0, 1, 0]);
    }

    #[test]
    fn without_weights_all_is_unassigned() {
        assert_eq!(parts(7, &[0, 0, 0]), [0, 0, 7]);
        assert_eq!(parts(7, &[]), [0u64; 0]);
    }

    proptest! {
        #[test]
        fn parts_add_up(whole: u64, weights in prop::collection::vec(any::<u64>(), 1..20)) {
            prop_assert_eq!(parts(whole, &weights).iter().map(|&part| u128::from(part)).sum::<u128>(), u128::from(whole));
        }

        #[test]
        fn a_part_is_near_its_share(whole in 0u64..1 << 50, weights in prop::collection::vec(0u64..1 << 40, 1..20)) {
            let sum: u64 = weights.iter().sum();
            prop_assume!(sum > 0);
            for (part, weight) in parts(whole, &weights).iter().zip(&weights) {
                let exact = u128::from(whole) * u128::from(*weight) / u128::from(sum);
                prop_assert!(u128::from(*part).abs_diff(exact) <= 1);
            }
        }
    }
}
