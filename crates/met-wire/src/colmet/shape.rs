//! What the tables of each kind of record look like in HDF5 files, and their rows.

use super::{Backend, JOBS_BYTES, Layout, NAME_BYTES, Record, Type, UNKNOWN};
use crate::hdf5::{Attribute, Column, Kind, datatype, table_header};

/// Rows of a job are few, rows of all nodes (job 0) are many. What is not compressed has room for a whole chunk, though the
/// part without rows is a hole. What is compressed is compressed again at a flush, until its chunk is full.
const CHUNK_BYTES_OF_JOB: usize = 16 << 10;
const CHUNK_BYTES_OF_JOB_COMPRESSED: usize = 64 << 10;
/// Rows of some kinds are nearly all padding.
const CHUNK_ROWS_COMPRESSED_MIN: usize = 16;
/// The most that h5py caches by default.
const CHUNK_BYTES_OF_NODES: usize = 1 << 20;

/// What a column holds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Field {
    Counter(usize),
    Hostname,
    JobId,
    Backend,
    Timestamp,
    InvolvedJobs,
    /// Columns of Colmet's tables that no record fills: -1, and an empty text.
    Unmeasured,
    EmptyJobs,
}

/// The columns of a table in the order of their names, as PyTables sorts them.
fn fields(layout: &'static Layout) -> Vec<(&'static str, Field)> {
    let counters = layout.counters.iter().enumerate().map(|(index, one)| (one.name, Field::Counter(index)));
    let mut fields: Vec<(&'static str, Field)> = counters.collect();
    fields.extend([
        ("hostname", Field::Hostname),
        ("job_id", Field::JobId),
        ("metric_backend", Field::Backend),
        ("timestamp", Field::Timestamp),
    ]);
    if layout.has_involved_jobs {
        fields.push(("involved_jobs", Field::InvolvedJobs));
    }
    match layout.backend {
        Backend::Procstats => fields.push(("meminfo_hardwarecorrupted", Field::Unmeasured)),
        Backend::Jobproc => fields.push(("involved_jobs", Field::EmptyJobs)),
        _ => {}
    }
    fields.sort_unstable_by_key(|(name, _)| *name);
    fields
}

fn kind(layout: &Layout, field: Field) -> Kind {
    match field {
        Field::Hostname | Field::Backend => Kind::Text(NAME_BYTES),
        Field::InvolvedJobs | Field::EmptyJobs => Kind::Text(JOBS_BYTES),
        Field::Counter(index) if layout.counters[index].kind == Type::F32 => Kind::Float,
        Field::Counter(_) | Field::JobId | Field::Timestamp | Field::Unmeasured => Kind::Int,
    }
}

pub struct Shape {
    columns: Vec<Column>,
    /// Where in a row each counter is; those that are no integers are among the others, and nowhere here.
    counters: Vec<usize>,
    /// Where the other columns are that records fill.
    others: Vec<(usize, Field)>,
    /// A row without values: the name of the kind, and -1 in columns that no record fills.
    blank: Vec<u8>,
    pub row_bytes: usize,
}

impl Shape {
    pub fn of(layout: &'static Layout) -> Shape {
        let named = fields(layout);
        let columns: Vec<Column> =
            named.iter().map(|&(name, field)| Column { name, kind: kind(layout, field) }).collect();
        let (mut blank, mut counters, mut others) =
            (Vec::new(), vec![usize::MAX; layout.counters.len()], Vec::new());
        for (&(_, field), column) in named.iter().zip(&columns) {
            let start = blank.len();
            blank.resize(start + column.kind.bytes(), 0);
            match field {
                Field::Counter(index) if column.kind == Kind::Int => counters[index] = start,
                Field::Backend => put_text(&mut blank[start..], layout.name),
                Field::Unmeasured => blank[start..].fill(0xff),
                Field::EmptyJobs => {}
                _ => others.push((start, field)),
            }
        }
        Shape { columns, counters, others, row_bytes: blank.len(), blank }
    }

    /// Whether a table has these columns.
    pub fn is(&self, found: &[u8]) -> bool {
        found.starts_with(&datatype(&self.columns))
    }

    /// The header of a table of a job, with the attributes that PyTables expects.
    pub fn header(&self, job: u64, level: u32) -> Vec<u8> {
        let (chunk_bytes, least) = match (job, level) {
            (0, _) => (CHUNK_BYTES_OF_NODES, 1),
            (_, 0) => (CHUNK_BYTES_OF_JOB, 1),
            _ => (CHUNK_BYTES_OF_JOB_COMPRESSED, CHUNK_ROWS_COMPRESSED_MIN),
        };
        let chunk_rows = (chunk_bytes / self.row_bytes).max(least) as u32;
        let title = format!("Metrics for the Job {job}");
        let texts = [("CLASS", "TABLE"), ("VERSION", "2.7"), ("TITLE", title.as_str())];
        let mut attributes: Vec<(String, Attribute<'_>)> =
            texts.map(|(name, text)| (name.to_owned(), Attribute::Text(text))).into();
        for (index, column) in self.columns.iter().enumerate() {
            attributes.push((format!("FIELD_{index}_NAME"), Attribute::Text(column.name)));
            let fill = match column.kind {
                Kind::Text(_) => Attribute::Text(""),
                Kind::Float => Attribute::Float(-1.0),
                Kind::Int => Attribute::Int(-1),
            };
            attributes.push((format!("FIELD_{index}_FILL"), fill));
        }
        // Readers take the number of rows from the table itself.
        attributes.push(("NROWS".to_owned(), Attribute::Int(0)));
        attributes.push(("backend_version".to_owned(), Attribute::Int(2)));
        table_header(&self.columns, chunk_rows, level, &attributes)
    }

    /// Writes a row: over zeros, or over another row of this shape.
    pub fn put_row(&self, record: &Record, row: &mut [u8], is_used: bool) {
        if !is_used {
            row.copy_from_slice(&self.blank);
        }
        for (&word, &start) in record.words.iter().zip(&self.counters) {
            if let Some(cell) = row.get_mut(start..).and_then(<[u8]>::first_chunk_mut) {
                *cell = if word == UNKNOWN { -1 } else { word }.to_le_bytes();
            }
        }
        for &(start, field) in &self.others {
            match field {
                Field::Counter(index) => {
                    let word = record.words[index];
                    let bits = if word == UNKNOWN { (-1_f32).to_bits() } else { word as u32 };
                    row[start..start + 4].copy_from_slice(&bits.to_le_bytes());
                }
                Field::JobId => row[start..start + 8].copy_from_slice(&record.job_id.to_le_bytes()),
                Field::Timestamp => row[start..start + 8].copy_from_slice(&record.timestamp.to_le_bytes()),
                Field::Hostname => put_text(&mut row[start..start + NAME_BYTES], &record.hostname),
                Field::InvolvedJobs => {
                    let cell = &mut row[start..start + JOBS_BYTES];
                    let bytes = record.put_involved_jobs(cell);
                    clear_rest(&mut cell[bytes..]);
                }
                Field::Backend | Field::Unmeasured | Field::EmptyJobs => {}
            }
        }
    }
}

/// The rest of the cell is padding; it may have a longer text.
fn put_text(cell: &mut [u8], text: &str) {
    let bytes = text.len().min(cell.len());
    let (own, behind) = cell.split_at_mut(bytes);
    own.copy_from_slice(&text.as_bytes()[..bytes]);
    clear_rest(behind);
}

/// Up to the padding.
fn clear_rest(behind: &mut [u8]) {
    behind.iter_mut().take_while(|byte| **byte != 0).for_each(|byte| *byte = 0);
}

#[cfg(test)]
mod tests {
    use super::super::Value;
    use super::*;

    #[test]
    fn a_row_over_another_one_is_the_same_as_over_zeros() {
        for layout in super::super::LAYOUTS {
            let shape = Shape::of(layout);
            let mut long = Record::new(layout.backend, "a-host-with-a-long-name.site.example", 123, 456);
            long.set_all(|_, _| Some(Value::Int(-7)));
            long.involved_jobs = (0..3000).collect();
            let mut short = Record::new(layout.backend, "n", 1, 2);
            short.involved_jobs = vec![7];
            let none = Record { involved_jobs: Vec::new(), ..short.clone() };
            for (before, after) in [(&long, &short), (&short, &long), (&long, &none)] {
                let (mut used, mut fresh) = (vec![0; shape.row_bytes], vec![0; shape.row_bytes]);
                shape.put_row(before, &mut used, false);
                assert_ne!(used, fresh);
                shape.put_row(after, &mut used, true);
                shape.put_row(after, &mut fresh, false);
                assert!(used == fresh, "{}", layout.name);
            }
        }
    }
}
