use std::io::Read;

use flate2::read::GzDecoder;
use proptest::prelude::*;

use super::*;

fn check(page: &[u8]) -> usize {
    let packed = gzip(page);
    let mut read = Vec::new();
    GzDecoder::new(packed.as_slice()).read_to_end(&mut read).unwrap();
    assert!(read == page, "{} bytes became {}", page.len(), read.len());
    packed.len()
}

fn page(jobs: u64, families: u64) -> String {
    let mut text = String::new();
    for family in 0..families {
        let name = format!("met_job_figure_{family}_total");
        text += &format!("# HELP {name} something\n# TYPE {name} counter\n");
        for job in 0..jobs {
            let value = (family * 7_919 + job * 104_729) * 1_000_003 % 90_000_000_000;
            text += &format!("{name}{{manager=\"slurm\",id=\"{}\"}} {value}\n", 4_000_000 + job);
        }
    }
    text
}

/// Bytes that repeat nothing.
fn noise(seed: u64) -> impl Iterator<Item = u8> {
    let step = |state: &mut u64| {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        Some((*state >> 32) as u8)
    };
    std::iter::repeat(()).scan(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1, move |state, ()| step(state))
}

#[test]
fn a_page_of_many_blocks_comes_back_and_is_short() {
    let page = page(500, 60);
    let packed = check(page.as_bytes());
    assert!(packed * 6 < page.len(), "{packed} of {}", page.len());
}

#[test]
fn any_length_and_distance_comes_back() {
    for length in 0..600 {
        check(&vec![b'x'; length]);
    }
    for distance in [1, 2, 3, 4, 5, 511, 512, 513, 4096, 4097, 24_577, 32_767, 32_768, 32_769, 70_000] {
        let before: Vec<u8> = noise(distance as u64).take(distance).collect();
        for length in [3, 4, 5, 6, 257, 258, 259, 300] {
            check(&[&before[..], &before[..distance.min(length)], b"end"].concat());
        }
    }
    check(&noise(5).take(200_000).collect::<Vec<_>>());
    check(&[&(0..=255).collect::<Vec<u8>>()[..], &[0; 70_000]].concat());
}

#[test]
fn every_step_begins_where_the_last_one_ended() {
    for length in 3..=REPEAT_MAX {
        let Step { from, extra_bits } = LENGTH_STEPS[usize::from(STEP_OF_LENGTH[length])];
        assert!((from as usize..from as usize + (1 << extra_bits)).contains(&length), "{length}");
    }
    for distance in 1..=WINDOW {
        let Step { from, extra_bits } = DISTANCE_STEPS[distance_step(distance)];
        assert!((from as usize..from as usize + (1 << extra_bits)).contains(&distance), "{distance}");
    }
}

#[test]
fn words_of_very_unequal_counts_are_not_too_long() {
    let mut counts = [1_u32; DISTANCES];
    for index in 2..DISTANCES {
        counts[index] = counts[index - 1] + counts[index - 2];
    }
    let lengths = lengths(&counts, CODE_BITS_MAX);
    assert!(lengths.iter().all(|length| (1..=CODE_BITS_MAX).contains(length)), "{lengths:?}");
    let filled: u32 = lengths.iter().map(|&length| 1 << (CODE_BITS_MAX - length)).sum();
    assert_eq!(filled, 1 << CODE_BITS_MAX, "no word is left over");
}

proptest! {
    #[test]
    fn any_bytes_come_back(pieces in prop::collection::vec((0_usize..40, any::<u8>(), 0_usize..400), 0..300)) {
        // Bytes of a few kinds, and repetitions of what came before.
        let mut bytes: Vec<u8> = Vec::new();
        for (count, byte, back) in pieces {
            bytes.extend((0..count).map(|at| byte.wrapping_mul(at as u8)));
            let from = bytes.len().saturating_sub(back);
            bytes.extend_from_within(from..(from + count).min(bytes.len()));
        }
        check(&bytes);
    }
}
