//! Comma-separated values with a header, one table in a file.

use std::io::Write;

use anyhow::Result;
use met_insight::csv::{self, CRLF, Cell};
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
            let names = frame.columns.iter().map(|column| column.name.as_str());
            self.to.write_all(csv::header(names).as_bytes())?;
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
            let mut times = vec![None; frame.columns.len()];
            let cells = frame.columns.iter().zip(&mut times);
            let mut line = String::new();
            csv::write_line(&mut line, cells.map(|(column, time)| cell(&column.cells, row, time)), CRLF);
            self.to.write_all(line.as_bytes())?;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        self.header(&frame::of(&[], self.rows))?;
        Ok(self.to.flush()?)
    }
}

fn cell<'a>(cells: &'a Cells, row: usize, time: &'a mut Option<String>) -> Cell<'a> {
    match cells {
        Cells::Text(cells) => cells[row].as_deref().into(),
        Cells::Whole(cells) => cells[row].map_or(Cell::Unknown, Cell::Whole),
        Cells::Real(cells) => cells[row].map_or(Cell::Unknown, Cell::Real),
        Cells::Time(cells) => {
            *time = cells[row].and_then(json::time);
            time.as_deref().map_or(Cell::Unknown, Cell::Plain)
        }
    }
}
