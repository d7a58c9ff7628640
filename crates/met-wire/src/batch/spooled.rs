//! What a node does with batches of its own that it has on disk.

use super::{
    BadBatch, Frames, HEADER, Header, NodeBatch, Packed, UNPACKED_BYTES_MAX, begin, gzip_within_ratio,
    put_json, unpacked_within,
};

/// Earlier versions made batches that no server takes. Their node reads them all the same, up to this size.
const OWN_BYTES_MAX: usize = 4 * UNPACKED_BYTES_MAX;

/// The same batch with another header, as when a node was renamed since. Everything behind the header stays as it is.
pub fn with_header(
    packed: &[u8],
    records_end: usize,
    change: impl FnOnce(&mut Header),
) -> Result<Packed, BadBatch> {
    let (records, series) = packed.split_at_checked(records_end).unwrap_or((packed, &[]));
    let plain = unpacked_within(records, OWN_BYTES_MAX)?;
    let mut frames = Frames::of(&plain)?;
    let mut header = frames.header()?;
    change(&mut header);
    let mut changed = begin().to_vec();
    put_json(&mut changed, HEADER, &header).map_err(BadBatch::Packing)?;
    changed.extend_from_slice(frames.rest);
    let mut bytes = Vec::with_capacity(packed.len());
    gzip_within_ratio(&mut changed, &mut bytes).map_err(BadBatch::Packing)?;
    let records_end = bytes.len();
    bytes.extend_from_slice(series);
    Ok(Packed { bytes, records_end })
}

/// Smaller batches with the same content: each half of the records, and the series. `None` if it is one record or
/// nothing but series.
pub fn split(packed: &[u8]) -> Result<Option<Vec<NodeBatch>>, BadBatch> {
    let NodeBatch { header, mut records, interims, pieces } =
        NodeBatch::read_within(&unpacked_within(packed, OWN_BYTES_MAX)?, OWN_BYTES_MAX)?;
    let has_series = !interims.is_empty() || !pieces.is_empty();
    if records.is_empty() || records.len() == 1 && !has_series {
        return Ok(None);
    }
    let later = records.split_off(records.len().div_ceil(2));
    let of_records = [records, later].into_iter().filter(|records| !records.is_empty());
    let mut parts: Vec<NodeBatch> = of_records
        .map(|records| NodeBatch { header: header.clone(), records, ..NodeBatch::default() })
        .collect();
    if has_series {
        parts.push(NodeBatch { header, records: Vec::new(), interims, pieces });
    }
    Ok(Some(parts))
}
