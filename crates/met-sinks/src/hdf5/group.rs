//! The names in a group. A change writes copies of the nodes that lead to it and, last, the address of the topmost one: a
//! reader finds either the group as it was or as it is.

use anyhow::{Context, Result, bail};
use met_wire::hdf5::{
    Attribute, ChildOfGroup, GROUP_CHILDREN_MAX, GROUP_NODE_BYTES, HEADER_PREFIX_BYTES, HEAP_BYTES,
    LEAF_BYTES, NAMES_MAX, Name, UNDEFINED, group_header, group_leaf, group_node, header_bytes, heap,
    name_in, read_group, read_group_leaf, read_group_node, read_heap,
};

use super::disk::Disk;

const HEAP_BYTES_MIN: u64 = 256;
/// Names of four million jobs.
const HEAP_BYTES_MAX: u64 = 64 << 20;
const NAME_BYTES_MIN: usize = 8;
const HEADER_BYTES_MAX: usize = 1 << 20;
const LEVELS_MAX: u8 = 16;
const DAMAGED: &str = "the file is damaged: a group cannot be read";
/// Of a node that is to be written.
const CHANGED: u64 = 0;

struct Entry {
    name: Box<str>,
    /// Where it is among the names.
    name_at: u64,
    header: u64,
}

struct Leaf {
    at: u64,
    entries: Vec<Entry>,
}

struct Inner {
    at: u64,
    level: u8,
    children: Vec<Node>,
}

enum Node {
    Leaf(Leaf),
    Inner(Inner),
}

impl Leaf {
    fn find(&self, name: &str) -> Option<u64> {
        let found = self.entries.binary_search_by(|entry| (*entry.name).cmp(name)).ok()?;
        Some(self.entries[found].header)
    }

    fn insert(&mut self, entry: Entry) -> Option<Leaf> {
        self.at = CHANGED;
        let index = self.entries.partition_point(|other| other.name < entry.name);
        self.entries.insert(index, entry);
        let is_full = self.entries.len() > NAMES_MAX;
        is_full.then(|| Leaf { at: CHANGED, entries: self.entries.split_off(NAMES_MAX / 2) })
    }

    fn write(&mut self, disk: &mut Disk) -> Result<u64> {
        if self.at == CHANGED {
            let name = |entry: &Entry| Name { name: entry.name_at, header: entry.header };
            let names: Vec<Name> = self.entries.iter().map(name).collect();
            self.at = disk.put(&group_leaf(&names))?;
        }
        Ok(self.at)
    }

    fn read(disk: &Disk, at: u64, names: &[u8], left: &mut usize) -> Result<Leaf> {
        let found = read_group_leaf(&disk.read(at, LEAF_BYTES)?).context(DAMAGED)?;
        let mut entries = Vec::with_capacity(found.len());
        for one in found {
            let name = name_in(names, one.name).context(DAMAGED)?;
            *left = left.checked_sub(name_bytes(name)).context(DAMAGED)?;
            entries.push(Entry { name: name.into(), name_at: one.name, header: one.header });
        }
        Ok(Leaf { at, entries })
    }
}

impl Inner {
    fn find(&self, name: &str) -> Option<u64> {
        match &self.children[position(&self.children, name)?] {
            Node::Leaf(leaf) => leaf.find(name),
            Node::Inner(inner) => inner.find(name),
        }
    }

    /// Adds a name; returns what no longer fits, which comes behind this node.
    fn insert(&mut self, entry: Entry) -> Option<Inner> {
        self.at = CHANGED;
        let children = &mut self.children;
        match position(children, &entry.name).or(children.len().checked_sub(1)) {
            None => children.push(Node::Leaf(Leaf { at: CHANGED, entries: vec![entry] })),
            Some(index) => {
                let split = match &mut children[index] {
                    Node::Leaf(leaf) => leaf.insert(entry).map(Node::Leaf),
                    Node::Inner(inner) => inner.insert(entry).map(Node::Inner),
                };
                split.into_iter().for_each(|behind| children.insert(index + 1, behind));
            }
        }
        (children.len() > GROUP_CHILDREN_MAX).then(|| {
            let behind = children.split_off(GROUP_CHILDREN_MAX / 2);
            Inner { at: CHANGED, level: self.level, children: behind }
        })
    }

    /// Writes what has changed; returns where the node is. Its names come behind the one at `before`.
    fn write(&mut self, disk: &mut Disk, before: u64) -> Result<u64> {
        if self.at == CHANGED {
            let (mut parts, mut last_name) = (Vec::with_capacity(self.children.len()), before);
            for child in &mut self.children {
                let at = match child {
                    Node::Leaf(leaf) => leaf.write(disk)?,
                    Node::Inner(inner) => inner.write(disk, last_name)?,
                };
                last_name = child.last().map_or(last_name, |entry| entry.name_at);
                parts.push(ChildOfGroup { at, last_name });
            }
            self.at = disk.put(&group_node(self.level, before, &parts))?;
        }
        Ok(self.at)
    }

    /// Reads a node and what is below it. A damaged one may lead to the same nodes and names again and again: `left` says how many
    /// bytes of names there can be, and a node counts as a name.
    fn read(disk: &Disk, at: u64, names: &[u8], parent: Option<u8>, left: &mut usize) -> Result<Inner> {
        let (level, found) = read_group_node(&disk.read(at, GROUP_NODE_BYTES)?).context(DAMAGED)?;
        if level > LEVELS_MAX || parent.is_some_and(|parent| level + 1 != parent) {
            bail!(DAMAGED);
        }
        let mut children = Vec::with_capacity(found.len());
        for child in found {
            *left = left.checked_sub(NAME_BYTES_MIN).context(DAMAGED)?;
            children.push(match level {
                0 => Node::Leaf(Leaf::read(disk, child, names, left)?),
                _ => Node::Inner(Inner::read(disk, child, names, Some(level), left)?),
            });
        }
        Ok(Inner { at, level, children })
    }

    /// Where behind all names there is room.
    fn names_end(&self) -> u64 {
        let end = |child: &Node| match child {
            Node::Leaf(leaf) => {
                let end = |entry: &Entry| entry.name_at + name_bytes(&entry.name) as u64;
                leaf.entries.iter().map(end).max().unwrap_or(0).next_multiple_of(NAME_BYTES_MIN as u64)
            }
            Node::Inner(inner) => inner.names_end(),
        };
        self.children.iter().map(end).max().unwrap_or(0)
    }
}

impl Node {
    fn last(&self) -> Option<&Entry> {
        match self {
            Node::Leaf(leaf) => leaf.entries.last(),
            Node::Inner(inner) => inner.children.last()?.last(),
        }
    }
}

/// What a name takes among the names: with NUL, a multiple of eight.
fn name_bytes(name: &str) -> usize {
    (name.len() + 1).next_multiple_of(NAME_BYTES_MIN)
}

/// The child that has a name, if any has.
fn position(children: &[Node], name: &str) -> Option<usize> {
    let index = children.partition_point(|child| child.last().is_some_and(|last| &*last.name < name));
    (index < children.len()).then_some(index)
}

/// The header at an address.
pub(super) fn read_header(disk: &Disk, at: u64) -> Result<Vec<u8>> {
    let bytes = header_bytes(&disk.read(at, HEADER_PREFIX_BYTES)?).filter(|&bytes| bytes <= HEADER_BYTES_MAX);
    disk.read(at, bytes.context("the file is damaged: a header is too long")?)
}

pub(super) struct Group {
    pub header: u64,
    /// Where in the file the address of the topmost node is.
    tree_at: u64,
    root: Inner,
    heap_at: u64,
    names_at: u64,
    names_bytes: u64,
    names_end: u64,
}

impl Group {
    /// A group that nothing leads to yet.
    pub fn create(disk: &mut Disk, attributes: &[(String, Attribute<'_>)]) -> Result<Group> {
        // The empty name is the first one.
        let names_at = disk.put(&[0; HEAP_BYTES_MIN as usize])?;
        let heap_at = disk.put(&heap(HEAP_BYTES_MIN, names_at))?;
        let mut root = Inner { at: CHANGED, level: 0, children: Vec::new() };
        let tree = root.write(disk, 0)?;
        let bytes = group_header(tree, heap_at, attributes);
        let header = disk.put(&bytes)?;
        let tree_at = read_group(&bytes).context("a group cannot be written")?.tree_at;
        let tree_at = header + tree_at as u64;
        Ok(Group { header, tree_at, root, heap_at, names_at, names_bytes: HEAP_BYTES_MIN, names_end: 8 })
    }

    pub fn open(disk: &Disk, header: u64) -> Result<Group> {
        let found = read_group(&read_header(disk, header)?).context(DAMAGED)?;
        let (names_bytes, names_at) = read_heap(&disk.read(found.heap, HEAP_BYTES)?).context(DAMAGED)?;
        if found.tree == UNDEFINED || names_bytes > HEAP_BYTES_MAX {
            bail!(DAMAGED);
        }
        let names = disk.read(names_at, names_bytes as usize)?;
        // There are fewer nodes than names.
        let mut left = 2 * names.len();
        let root = Inner::read(disk, found.tree, &names, None, &mut left)?;
        let names_end = root.names_end().max(8);
        let tree_at = header + found.tree_at as u64;
        Ok(Group { header, tree_at, root, heap_at: found.heap, names_at, names_bytes, names_end })
    }

    /// The header that a name leads to.
    pub fn find(&self, name: &str) -> Option<u64> {
        self.root.find(name)
    }

    pub fn has_room(&self, name: &str) -> bool {
        self.names_end + name_bytes(name) as u64 <= HEAP_BYTES_MAX
    }

    /// Adds a name that the group does not have.
    pub fn insert(&mut self, disk: &mut Disk, name: &str, header: u64) -> Result<()> {
        let name_at = self.put_name(disk, name)?;
        if let Some(behind) = self.root.insert(Entry { name: name.into(), name_at, header }) {
            let above = Inner { at: CHANGED, level: behind.level + 1, children: Vec::new() };
            let before = std::mem::replace(&mut self.root, above);
            self.root.children.extend([before, behind].map(Node::Inner));
        }
        let tree = self.root.write(disk, 0)?;
        disk.publish()?;
        disk.write_at(self.tree_at, &tree.to_le_bytes())
    }

    fn put_name(&mut self, disk: &mut Disk, name: &str) -> Result<u64> {
        if !self.has_room(name) {
            bail!("a group has too many names");
        }
        let (at, bytes) = (self.names_end, [name.as_bytes(), b"\0"].concat());
        self.names_end = (at + bytes.len() as u64).next_multiple_of(8);
        if self.names_end <= self.names_bytes {
            disk.write_at(self.names_at + at, &bytes)?;
            return Ok(at);
        }
        let mut names = disk.read(self.names_at, at as usize)?;
        names.extend(bytes);
        self.names_bytes = (2 * self.names_end).next_multiple_of(HEAP_BYTES_MIN).min(HEAP_BYTES_MAX);
        names.resize(self.names_bytes as usize, 0);
        self.names_at = disk.put(&names)?;
        disk.publish()?;
        disk.write_at(self.heap_at, &heap(self.names_bytes, self.names_at))?;
        Ok(at)
    }
}
