//! `gpu_metrics`: a table that the firmware of an AMD GPU fills. Each revision has its fields elsewhere, so only
//! known ones are read. Its PCIe bandwidth is not: the kernel's own comments disagree about its unit.

/// Where the fields of a revision are, in bytes from the start of the table.
struct Layout {
    content: u8,
    energy: usize,
    xgmi_read: usize,
    xgmi_written: usize,
}

/// Revisions 1.4 to 1.8, of Instinct GPUs from MI300 on.
const LAYOUTS: [Layout; 5] = [
    Layout { content: 4, energy: 24, xgmi_read: 104, xgmi_written: 168 },
    Layout { content: 5, energy: 88, xgmi_read: 176, xgmi_written: 240 },
    Layout { content: 6, energy: 16, xgmi_read: 128, xgmi_written: 192 },
    Layout { content: 7, energy: 24, xgmi_read: 136, xgmi_written: 200 },
    Layout { content: 8, energy: 24, xgmi_read: 136, xgmi_written: 200 },
];
const FORMAT: u8 = 1;
const XGMI_LINKS: usize = 8;

/// Counters since the driver was loaded; absent where the firmware fills none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counters {
    pub energy_uj: Option<i64>,
    pub xgmi_read_bytes: Option<i64>,
    pub xgmi_written_bytes: Option<i64>,
}

/// What a table says, if its revision is known and it is whole.
/// Whether a table, of whatever format, is as long as it says.
pub(super) fn is_whole(table: &[u8]) -> bool {
    matches!(table, &[low, high, ..] if table.len() >= usize::from(u16::from_le_bytes([low, high])))
}

pub(super) fn counters(table: &[u8]) -> Option<Counters> {
    let &[size_low, size_high, FORMAT, content, ..] = table else { return None };
    let size = usize::from(u16::from_le_bytes([size_low, size_high]));
    let layout = LAYOUTS.iter().find(|layout| layout.content == content)?;
    let table = table.get(..size)?;
    Some(Counters {
        // In units of 2^-16 J.
        energy_uj: number(table, layout.energy)
            .and_then(|count| i64::try_from(u128::from(count) * 1_000_000 / (1 << 16)).ok()),
        xgmi_read_bytes: sum_of_links(table, layout.xgmi_read),
        xgmi_written_bytes: sum_of_links(table, layout.xgmi_written),
    })
}

/// A field; the driver fills those that the GPU does not have with ones.
fn number(table: &[u8], at: usize) -> Option<u64> {
    let bytes = table.get(at..at + size_of::<u64>())?;
    bytes.try_into().ok().map(u64::from_le_bytes).filter(|&value| value != u64::MAX)
}

/// The links that there are, in KiB each.
fn sum_of_links(table: &[u8], first: usize) -> Option<i64> {
    let links = (0..XGMI_LINKS).filter_map(|link| number(table, first + link * size_of::<u64>()));
    let kilobytes = links.reduce(u64::saturating_add)?;
    i64::try_from(kilobytes).ok()?.checked_mul(1024)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A table in which only these fields are filled.
    pub(in crate::drm) fn table(content: u8, size: usize, fields: &[(usize, u64)]) -> Vec<u8> {
        let mut table = vec![0xff; size];
        table[..2].copy_from_slice(&u16::try_from(size).unwrap().to_le_bytes());
        table[2..4].copy_from_slice(&[FORMAT, content]);
        for &(at, value) in fields {
            table[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        table
    }

    #[test]
    fn fields_are_where_the_revision_says() {
        // An accelerator with two links in use: 1 J, 3 KiB read, 5 KiB written.
        let sizes = [(4, 288, 24, 104, 168), (5, 360, 88, 176, 240), (6, 1664, 16, 128, 192)];
        for (content, size, energy, read, written) in sizes {
            let fields = [(energy, 1 << 16), (read, 1), (read + 56, 2), (written, 5)];
            let expected = Counters {
                energy_uj: Some(1_000_000),
                xgmi_read_bytes: Some(3072),
                xgmi_written_bytes: Some(5120),
            };
            assert_eq!(counters(&table(content, size, &fields)), Some(expected), "1.{content}");
        }
        assert_eq!(counters(&table(4, 288, &[])), Some(Counters::default()), "nothing is filled");
    }

    #[test]
    fn an_unknown_revision_or_a_short_table_says_nothing() {
        assert_eq!(counters(&table(9, 64, &[])), None);
        assert_eq!(counters(&table(3, 120, &[(24, 1)])), None, "its unit of energy differs between products");
        assert_eq!(counters(&table(4, 288, &[])[..200]), None);
        assert_eq!(counters(b""), None);
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_a_table_or_none(content in 0u8..12, size: u16, rest: Vec<u8>) {
            let mut bytes = size.to_le_bytes().to_vec();
            bytes.extend([FORMAT, content]);
            bytes.extend(rest);
            let _ = counters(&bytes);
        }
    }
}
