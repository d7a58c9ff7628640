//! The bytes of one file. What is added goes behind what is used, and may be referred to once the end is published.
//!
//! A reader asks for the length of the file, then reads the end from the superblock, and from then on follows no address behind
//! that end. So the published end is ahead of what is used, and the length is ahead of the next published end: a reader follows
//! addresses of what was added since. What is ahead is a hole; it is cut off when the file is closed.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use anyhow::{Context, Result, bail};
use met_wire::hdf5::{END_AT, SUPERBLOCK_BYTES, read_superblock};
use rustix::fs::OFlags;

/// How far the published end is ahead: as far as the file is long, within these bounds.
const AHEAD_BYTES_MIN: u64 = 1 << 20;
const AHEAD_BYTES_MAX: u64 = 16 << 20;
/// The next published end is twice as far, and behind what is added then.
const LENGTHS_AHEAD: u64 = 3;
/// Written past the page cache. For 5 KB of rows, a copy into new pages of it took 1.5 µs of CPU time or more, this 0.4 (1 MiB at once)
/// to 0.9 (256 KiB); less at once gains nothing.
const DIRECT_BYTES_MIN: usize = 256 << 10;
/// What memory and addresses must be multiples of for that, on any file system that is known.
const PAGE: usize = 4096;

/// Of another program, of an earlier version, or cut off.
pub(super) const CANNOT_CONTINUE: &str =
    "not an HDF5 file that this version can continue; move it away, or choose another path";

pub(super) struct Disk {
    file: File,
    /// The same file for writes past the page cache, where the file system has them.
    direct: Option<File>,
    /// What is added next begins here.
    end: u64,
    /// The end that the superblock has.
    published: u64,
    /// What the system says of its length.
    length: u64,
    /// The file after each write, while a test asks for it.
    #[cfg(test)]
    recorded: Option<Vec<Recorded>>,
    #[cfg(test)]
    refused: Option<(std::path::PathBuf, usize)>,
    #[cfg(test)]
    past_cache_bytes: usize,
}

/// What is used of a file, and its length.
#[cfg(test)]
pub(super) struct Recorded {
    pub bytes: Vec<u8>,
    pub length: u64,
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

    /// From then on.
    pub fn refuse_writes_after(&mut self, path: &std::path::Path, writes: usize) {
        self.refused = Some((path.to_owned(), writes));
    }

    /// How many bytes went past the page cache; nothing where that cannot be done.
    pub fn past_cache_bytes(&self) -> Option<usize> {
        self.direct.as_ref().map(|_| self.past_cache_bytes)
    }

    pub fn recorded(&mut self) -> Vec<Recorded> {
        self.recorded.take().unwrap_or_default()
    }
}

impl Disk {
    /// A file of nothing yet.
    pub fn begin(file: File) -> Disk {
        let end = SUPERBLOCK_BYTES as u64;
        Disk {
            file,
            direct: None,
            end,
            published: end,
            length: 0,
            #[cfg(test)]
            recorded: None,
            #[cfg(test)]
            refused: None,
            #[cfg(test)]
            past_cache_bytes: 0,
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

    /// Rows go past the page cache from now on. Nothing changes where that cannot be done.
    pub fn write_past_cache(&mut self) {
        // Its path may lead elsewhere by now.
        let own = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let flags = OFlags::DIRECT.bits() as i32;
        self.direct = OpenOptions::new().write(true).custom_flags(flags).open(own).ok();
    }

    /// Room at the end.
    pub fn allocate(&mut self, bytes: usize) -> u64 {
        let at = self.end;
        self.end = (at + bytes as u64).next_multiple_of(8);
        at
    }

    /// Room at the end for bytes that are at the same distance from a page in memory, if they are many.
    pub fn allocate_for(&mut self, rows: &[u8], bytes: usize) -> u64 {
        if self.direct.is_some() && rows.len() >= DIRECT_BYTES_MIN {
            // Rows may begin at any address, unlike headers.
            self.end += ((rows.as_ptr() as usize).wrapping_sub(self.end as usize) % PAGE) as u64;
        }
        self.allocate(bytes)
    }

    pub fn write_at(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        #[cfg(test)]
        if let Some((path, left)) = &mut self.refused {
            match left.checked_sub(1) {
                Some(fewer) => *left = fewer,
                None => self.file = File::open(path).unwrap(),
            }
        }
        self.file.write_all_at(bytes, at).context("cannot write")?;
        self.length = self.length.max(at + bytes.len() as u64);
        #[cfg(test)]
        if let Some(recorded) = &mut self.recorded {
            let mut now = vec![0; self.length.min(self.end) as usize];
            self.file.read_exact_at(&mut now, 0)?;
            recorded.push(Recorded { bytes: now, length: self.length });
        }
        Ok(())
    }

    /// Writes rows: the whole pages of many go past the page cache.
    pub fn write_rows_at(&mut self, at: u64, rows: &[u8]) -> Result<()> {
        let before = (PAGE - at as usize % PAGE) % PAGE;
        let is_aligned = (rows.as_ptr() as usize).wrapping_add(before).is_multiple_of(PAGE);
        let Some(direct) = self.direct.as_ref().filter(|_| is_aligned && rows.len() >= DIRECT_BYTES_MIN)
        else {
            return self.write_at(at, rows);
        };
        let (first, rest) = rows.split_at(before);
        let (pages, last) = rest.split_at(rest.len() - rest.len() % PAGE);
        let pages_at = at + before as u64;
        if let Err(error) = direct.write_all_at(pages, pages_at) {
            // A full disk is one for both; a file system that refuses such writes takes others.
            tracing::debug!("sink hdf5: no writes past the page cache: {error}");
            self.direct = None;
            return self.write_at(at, rows);
        }
        #[cfg(test)]
        {
            self.past_cache_bytes += pages.len();
        }
        self.write_at(at, first)?;
        self.write_at(pages_at + pages.len() as u64, last)
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

    /// From now on addresses may lead to what was added.
    pub fn publish(&mut self) -> Result<()> {
        let ahead = self.end.clamp(AHEAD_BYTES_MIN, AHEAD_BYTES_MAX);
        // Before all of it is used: a reader that opens the file now has room, too.
        if self.end + ahead / 2 <= self.published {
            return Ok(());
        }
        let (published, length) = (self.end + ahead, self.end + ahead + LENGTHS_AHEAD * ahead);
        if self.length < length {
            self.file.set_len(length).context("cannot write")?;
            self.length = length;
        }
        self.write_at(END_AT, &published.to_le_bytes())?;
        self.published = published;
        Ok(())
    }

    pub fn sync(&self) -> Result<()> {
        self.file.sync_data().context("cannot write")
    }

    /// The file ends where what is used ends.
    pub fn cut_off(&mut self) -> Result<()> {
        self.write_at(END_AT, &self.end.to_le_bytes())?;
        self.published = self.end;
        // The length must not be on disk before the end that it has room for.
        self.sync()?;
        self.file.set_len(self.end).context("cannot write")?;
        self.length = self.end;
        Ok(())
    }

    /// Nothing is written from now on. What is ahead is cut off; without this, as after a kill, it stays a hole.
    pub fn close(&mut self) {
        if self.published > self.end {
            let _ = self.cut_off();
            self.published = self.end;
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.close();
    }
}
