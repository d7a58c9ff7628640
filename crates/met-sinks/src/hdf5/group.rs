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
const HEAP_BYTES_MAX: u64 = 1 << 30;
const HEADER_BYTES_MAX: usize = 1 << 20;
const LEVELS_MAX: u8 = 16;
/// Of a node that is to be written.
const CHANGED: u64 = 0;

struct Entry {
    name: Box<str>,
    /// Where it is among the names.
    name_at: u64,
    header: u64,
}

enum Node {
    Leaf { at: u64, entries: Vec<Entry> },
    Inner { at: u64, level: u8, children: Vec<Node> },
}

impl Node {
    fn last(&self) -> Option<&Entry> {
        match self {
            Node::Leaf { entries, .. } => entries.last(),
            Node::Inner { children, .. } => children.last()?.last(),
        }
    }

    fn find(&self, name: &str) -> Option<u64> {
        match self {
            Node::Leaf { entries, .. } => {
                let found = entries.binary_search_by(|entry| (*entry.name).cmp(name)).ok()?;
                Some(entries[found].header)
            }
            Node::Inner { children, .. } => children[position(children, name)?].find(name),
        }
    }

    /// Adds a name; returns what no longer fits, which comes behind this node.
    fn insert(&mut self, entry: Entry) -> Option<Node> {
        match self {
            Node::Leaf { at, entries } => {
                *at = CHANGED;
                let index = entries.partition_point(|other| other.name < entry.name);
                entries.insert(index, entry);
                let is_full = entries.len() > NAMES_MAX;
                is_full.then(|| Node::Leaf { at: CHANGED, entries: entries.split_off(NAMES_MAX / 2) })
            }
            Node::Inner { at, level, children } => {
                *at = CHANGED;
                match position(children, &entry.name).or(children.len().checked_sub(1)) {
                    None => children.push(Node::Leaf { at: CHANGED, entries: vec![entry] }),
                    Some(index) => {
                        let split = children[index].insert(entry);
                        split.into_iter().for_each(|behind| children.insert(index + 1, behind));
                    }
                }
                (children.len() > GROUP_CHILDREN_MAX).then(|| {
                    let behind = children.split_off(GROUP_CHILDREN_MAX / 2);
                    Node::Inner { at: CHANGED, level: *level, children: behind }
                })
            }
        }
    }

    /// Writes what has changed; returns where the node is. Its names come behind the one at `before`.
    fn write(&mut self, disk: &mut Disk, before: u64) -> Result<u64> {
        match self {
            Node::Leaf { at, entries } if *at == CHANGED => {
                let names: Vec<Name> =
                    entries.iter().map(|entry| Name { name: entry.name_at, header: entry.header }).collect();
                *at = disk.put(&group_leaf(&names))?;
                Ok(*at)
            }
            Node::Inner { at, level, children } if *at == CHANGED => {
                let (mut parts, mut last_name) = (Vec::with_capacity(children.len()), before);
                for child in children {
                    let at = child.write(disk, last_name)?;
                    last_name = child.last().map_or(last_name, |entry| entry.name_at);
                    parts.push(ChildOfGroup { at, last_name });
                }
                *at = disk.put(&group_node(*level, before, &parts))?;
                Ok(*at)
            }
            Node::Leaf { at, .. } | Node::Inner { at, .. } => Ok(*at),
        }
    }

    /// Reads a node and what is below it: `left` nodes at most, as a damaged one may lead to the same ones again and again.
    fn read(disk: &Disk, at: u64, names: &[u8], parent: Option<u8>, left: &mut u64) -> Result<Node> {
        let damaged = || "the file is damaged: a group cannot be read";
        *left = left.checked_sub(1).with_context(damaged)?;
        if parent == Some(0) {
            let found = read_group_leaf(&disk.read(at, LEAF_BYTES)?).with_context(damaged)?;
            let entry = |one: Name| {
                let name = name_in(names, one.name)?.into();
                Some(Entry { name, name_at: one.name, header: one.header })
            };
            let entries = found.into_iter().map(entry).collect::<Option<_>>().with_context(damaged)?;
            return Ok(Node::Leaf { at, entries });
        }
        let (level, found) = read_group_node(&disk.read(at, GROUP_NODE_BYTES)?).with_context(damaged)?;
        if level > LEVELS_MAX || parent.is_some_and(|parent| level + 1 != parent) {
            bail!(damaged());
        }
        let children = found.into_iter().map(|child| Node::read(disk, child, names, Some(level), left));
        Ok(Node::Inner { at, level, children: children.collect::<Result<_>>()? })
    }

    /// Where behind all names there is room.
    fn names_end(&self) -> u64 {
        match self {
            Node::Leaf { entries, .. } => {
                let end = |entry: &Entry| (entry.name_at + entry.name.len() as u64 + 1).next_multiple_of(8);
                entries.iter().map(end).max().unwrap_or(0)
            }
            Node::Inner { children, .. } => children.iter().map(Node::names_end).max().unwrap_or(0),
        }
    }
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
    root: Node,
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
        let mut root = Node::Inner { at: CHANGED, level: 0, children: Vec::new() };
        let tree = root.write(disk, 0)?;
        let bytes = group_header(tree, heap_at, attributes);
        let header = disk.put(&bytes)?;
        let tree_at = read_group(&bytes).context("a group cannot be written")?.tree_at;
        let tree_at = header + tree_at as u64;
        Ok(Group { header, tree_at, root, heap_at, names_at, names_bytes: HEAP_BYTES_MIN, names_end: 8 })
    }

    pub fn open(disk: &Disk, header: u64) -> Result<Group> {
        let damaged = || "the file is damaged: a group cannot be read";
        let found = read_group(&read_header(disk, header)?).with_context(damaged)?;
        let (names_bytes, names_at) = read_heap(&disk.read(found.heap, HEAP_BYTES)?).with_context(damaged)?;
        if found.tree == UNDEFINED || names_bytes > HEAP_BYTES_MAX {
            bail!(damaged());
        }
        let names = disk.read(names_at, names_bytes as usize)?;
        let mut nodes_max = disk.end() / LEAF_BYTES as u64;
        let root = Node::read(disk, found.tree, &names, None, &mut nodes_max)?;
        let names_end = root.names_end().max(8);
        let tree_at = header + found.tree_at as u64;
        Ok(Group { header, tree_at, root, heap_at: found.heap, names_at, names_bytes, names_end })
    }

    /// The header that a name leads to.
    pub fn find(&self, name: &str) -> Option<u64> {
        self.root.find(name)
    }

    /// Adds a name that the group does not have.
    pub fn insert(&mut self, disk: &mut Disk, name: &str, header: u64) -> Result<()> {
        let name_at = self.put_name(disk, name)?;
        let split = self.root.insert(Entry { name: name.into(), name_at, header });
        if let Some(behind) = split {
            let level = match &behind {
                Node::Inner { level, .. } => level + 1,
                Node::Leaf { .. } => 0,
            };
            let before = std::mem::replace(&mut self.root, Node::Leaf { at: CHANGED, entries: Vec::new() });
            self.root = Node::Inner { at: CHANGED, level, children: vec![before, behind] };
        }
        let tree = self.root.write(disk, 0)?;
        disk.publish()?;
        disk.write_at(self.tree_at, &tree.to_le_bytes())
    }

    fn put_name(&mut self, disk: &mut Disk, name: &str) -> Result<u64> {
        let (at, bytes) = (self.names_end, [name.as_bytes(), b"\0"].concat());
        self.names_end = (at + bytes.len() as u64).next_multiple_of(8);
        if self.names_end <= self.names_bytes {
            disk.write_at(self.names_at + at, &bytes)?;
            return Ok(at);
        }
        let mut names = disk.read(self.names_at, at as usize)?;
        names.extend(bytes);
        self.names_bytes = (2 * self.names_end).next_multiple_of(HEAP_BYTES_MIN);
        names.resize(self.names_bytes as usize, 0);
        self.names_at = disk.put(&names)?;
        disk.publish()?;
        disk.write_at(self.heap_at, &heap(self.names_bytes, self.names_at))?;
        Ok(at)
    }
}
