//! The bytes of one file. What is added goes to its end, and is part of the file once the end is published.

use std::fs::File;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result, bail};
use met_wire::hdf5::{END_AT, SUPERBLOCK_BYTES, read_superblock};

/// Of another program, of an earlier version, or cut off.
pub(super) const CANNOT_CONTINUE: &str =
    "this version cannot continue this file; move it away, or choose another path";

pub(super) struct Disk {
    file: File,
    /// What is added next begins here.
    end: u64,
    /// The end that the superblock has.
    published: u64,
    /// What the system says of its length.
    length: u64,
    /// The file after each write, while a test asks for it.
    #[cfg(test)]
    recorded: Option<Vec<Vec<u8>>>,
}

#[cfg(test)]
impl Disk {
    pub fn record(&mut self) {
        self.recorded = Some(Vec::new());
    }

    /// From now on no write succeeds.
    pub fn refuse_writes(&mut self, path: &std::path::Path) {
        self.file = File::open(path).unwrap();
    }

    pub fn recorded(&mut self) -> Vec<Vec<u8>> {
        self.recorded.take().unwrap_or_default()
    }
}

impl Disk {
    /// A file of nothing yet.
    pub fn begin(file: File) -> Disk {
        let end = SUPERBLOCK_BYTES as u64;
        Disk {
            file,
            end,
            published: end,
            length: 0,
            #[cfg(test)]
            recorded: None,
        }
    }

    /// A file, and the header of its root group.
    pub fn open(file: File) -> Result<(Disk, u64)> {
        let length = file.metadata()?.len();
        let mut superblock = [0; SUPERBLOCK_BYTES];
        let read = file.read_exact_at(&mut superblock, 0).ok().and_then(|()| read_superblock(&superblock));
        let Some((root, end)) = read.filter(|&(_, end)| end <= length) else {
            bail!(CANNOT_CONTINUE);
        };
        let mut disk = Disk::begin(file);
        (disk.end, disk.published, disk.length) = (end, end, length);
        Ok((disk, root))
    }

    pub fn end(&self) -> u64 {
        self.end
    }

    /// Room at the end.
    pub fn allocate(&mut self, bytes: usize) -> u64 {
        let at = self.end;
        self.end = (at + bytes as u64).next_multiple_of(8);
        at
    }

    pub fn write_at(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        self.file.write_all_at(bytes, at).context("cannot write")?;
        self.length = self.length.max(at + bytes.len() as u64);
        #[cfg(test)]
        if let Some(recorded) = &mut self.recorded {
            let mut now = vec![0; self.length as usize];
            self.file.read_exact_at(&mut now, 0)?;
            recorded.push(now);
        }
        Ok(())
    }

    /// Adds bytes; returns where they are.
    pub fn put(&mut self, bytes: &[u8]) -> Result<u64> {
        let at = self.allocate(bytes.len());
        self.write_at(at, bytes)?;
        Ok(at)
    }

    pub fn read(&self, at: u64, bytes: usize) -> Result<Vec<u8>> {
        let is_inside = at.checked_add(bytes as u64).is_some_and(|end| end <= self.end);
        if !is_inside {
            bail!("the file is damaged: an address is behind its end");
        }
        let mut found = vec![0; bytes];
        self.file.read_exact_at(&mut found, at).context("cannot read")?;
        Ok(found)
    }

    /// All that was added becomes part of the file: from now on addresses may lead there.
    pub fn publish(&mut self) -> Result<()> {
        if self.published == self.end {
            return Ok(());
        }
        // Room that has no rows yet is a hole.
        if self.length < self.end {
            self.file.set_len(self.end).context("cannot write")?;
            self.length = self.end;
        }
        self.write_at(END_AT, &self.end.to_le_bytes())?;
        self.published = self.end;
        Ok(())
    }

    pub fn sync(&self) -> Result<()> {
        self.file.sync_data().context("cannot write")
    }
}
