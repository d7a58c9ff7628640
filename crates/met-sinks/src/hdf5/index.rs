//! Where the chunks of a table are. Chunks are only added behind the last one: entries are written first, their count last.

use anyhow::{Context, Result, bail};
use met_wire::hdf5::{
    CHUNK_NODE_BYTES, CHUNKS_MAX, Chunk, RIGHT_AT, UNDEFINED, USED_AT, chunk_entries, chunk_entry_at,
    chunk_node, read_chunk_node,
};

use super::disk::Disk;

const LEVELS_MAX: u8 = 16;

struct Node {
    at: u64,
    used: usize,
}

pub(super) struct Index {
    /// Where in the file the address of the topmost node is.
    tree_at: u64,
    chunk_rows: u32,
    /// The last node of each level, from the topmost to the leaf.
    path: Vec<Node>,
    pub last: Option<Chunk>,
}

impl Index {
    /// The index of a table with so many rows. Chunks behind them are from a process that was killed.
    pub fn open(disk: &mut Disk, tree: u64, tree_at: u64, chunk_rows: u32, rows: u64) -> Result<Index> {
        let mut index = Index { tree_at, chunk_rows, path: Vec::new(), last: None };
        if rows == 0 {
            if tree != UNDEFINED {
                disk.write_at(tree_at, &UNDEFINED.to_le_bytes())?;
            }
            return Ok(index);
        }
        let damaged = || "the file is damaged: a chunk of a table is missing";
        let (mut at, mut above) = (tree, LEVELS_MAX);
        loop {
            let (level, chunks) = read_chunk_node(&disk.read(at, CHUNK_NODE_BYTES)?).with_context(damaged)?;
            let used = chunks.iter().take_while(|chunk| chunk.row < rows).count();
            let last = used.checked_sub(1).map(|last| chunks[last]).with_context(damaged)?;
            if level >= above {
                bail!(damaged());
            }
            if used < chunks.len() {
                disk.write_at(at + USED_AT, &(used as u16).to_le_bytes())?;
                disk.write_at(at + RIGHT_AT, &UNDEFINED.to_le_bytes())?;
            }
            index.path.push(Node { at, used });
            if level == 0 {
                if last.row != (rows - 1) / u64::from(chunk_rows) * u64::from(chunk_rows) {
                    bail!(damaged());
                }
                index.last = Some(last);
                return Ok(index);
            }
            (at, above) = (last.at, level);
        }
    }

    /// Adds chunks whose bytes were written.
    pub fn append(&mut self, disk: &mut Disk, mut chunks: &[Chunk]) -> Result<()> {
        disk.publish()?;
        while !chunks.is_empty() {
            let room = self.path.last().map_or(0, |leaf| CHUNKS_MAX - leaf.used);
            let most = if room == 0 { CHUNKS_MAX } else { room };
            let (now, rest) = chunks.split_at(chunks.len().min(most));
            match room {
                0 => self.begin(disk, 0, now)?,
                _ => self.extend(disk, 0, now)?,
            }
            (chunks, self.last) = (rest, now.last().copied());
        }
        Ok(())
    }

    /// The last chunk is now elsewhere.
    pub fn replace_last(&mut self, disk: &mut Disk, chunk: Chunk) -> Result<()> {
        disk.publish()?;
        let leaf = self.path.last().context("no chunk to replace")?;
        let at = leaf.at + chunk_entry_at(leaf.used - 1);
        disk.write_at(at, &chunk_entries(&[chunk], self.chunk_rows))?;
        self.last = Some(chunk);
        Ok(())
    }

    /// Which of the path has this height; leaves have none.
    fn depth(&self, height: usize) -> Option<usize> {
        self.path.len().checked_sub(1 + height)
    }

    fn extend(&mut self, disk: &mut Disk, height: usize, chunks: &[Chunk]) -> Result<()> {
        let depth = self.depth(height).context("no node to extend")?;
        let node = &mut self.path[depth];
        disk.write_at(node.at + chunk_entry_at(node.used), &chunk_entries(chunks, self.chunk_rows))?;
        node.used += chunks.len();
        disk.write_at(node.at + USED_AT, &(node.used as u16).to_le_bytes())
    }

    /// Begins a node behind the last one of its height.
    fn begin(&mut self, disk: &mut Disk, height: usize, chunks: &[Chunk]) -> Result<()> {
        let before = self.depth(height).map(|depth| self.path[depth].at);
        let bytes = chunk_node(height as u8, before.unwrap_or(UNDEFINED), chunks, self.chunk_rows);
        let node = Node { at: disk.put(&bytes)?, used: chunks.len() };
        disk.publish()?;
        let Some(before) = before else {
            disk.write_at(self.tree_at, &node.at.to_le_bytes())?;
            self.path.insert(0, node);
            return Ok(());
        };
        disk.write_at(before + RIGHT_AT, &node.at.to_le_bytes())?;
        let own = Chunk { at: node.at, ..chunks[0] };
        match self.depth(height + 1).map(|parent| self.path[parent].used) {
            None => {
                let first = Chunk { stored_bytes: 0, row: 0, at: before };
                self.begin(disk, height + 1, &[first, own])?;
            }
            Some(CHUNKS_MAX) => self.begin(disk, height + 1, &[own])?,
            Some(_) => self.extend(disk, height + 1, &[own])?,
        }
        if let Some(depth) = self.depth(height) {
            self.path[depth] = node;
        }
        Ok(())
    }
}
