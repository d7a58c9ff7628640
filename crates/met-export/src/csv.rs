//! Comma-separated values: RFC 4180 with a header, one table in a file.

use std::io::Write;

use anyhow::Result;
use met_core::text;
use met_insight::json;

use crate::frame::{self, Cells, Frame};
use crate::{ExportedJob, JobWriter, Rows};

pub struct Csv<W: Write> {
    rows: Rows,
    to: W,
    has_header: bool,
}

impl<W: Write> Csv<W> {
    pub fn new(rows: Rows, to: W) -> Csv<W> {
        Csv { rows, to, has_header: false }
    }

    fn header(&mut self, frame: &Frame) -> Result<()> {
        if !self.has_header {
            let names: Vec<String> = frame.columns.iter().map(|column| column.name.clone()).collect();
            self.to.write_all(line(&names).as_bytes())?;
            self.has_header = true;
        }
        Ok(())
    }
}

impl<W: Write> JobWriter for Csv<W> {
    fn job(&mut self, job: &ExportedJob) -> Result<()> {
        let frame = frame::of(&[job], self.rows);
        self.header(&frame)?;
        for row in 0..frame.len() {
            let fields: Vec<String> = frame.columns.iter().map(|column| field(&column.cells, row)).collect();
            self.to.write_all(line(&fields).as_bytes())?;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        self.header(&frame::of(&[], self.rows))?;
        Ok(self.to.flush()?)
    }
}

/// Empty where nothing is known. Foreign text is escaped: a row stays one line, whatever a name holds.
fn field(cells: &Cells, row: usize) -> String {
    let known = match cells {
        Cells::Text(cells) => cells[row].as_deref().map(text::escape),
        Cells::Whole(cells) => cells[row].map(|value| value.to_string()),
        Cells::Real(cells) => cells[row].map(|value| value.to_string()),
        Cells::Time(cells) => cells[row].and_then(json::time),
    };
    known.unwrap_or_default()
}

/// One line of RFC 4180.
pub fn line(fields: &[String]) -> String {
    let quoted: Vec<String> = (fields.iter())
        .map(|field| match field.contains([',', '"', '\n', '\r']) {
            true => format!("\"{}\"", field.replace('"', "\"\"")),
            false => field.clone(),
        })
        .collect();
    quoted.join(",") + "\r\n"
}
