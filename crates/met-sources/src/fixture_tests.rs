//! Machines for tests: text archives of `-- path --` and contents, made real below a temporary root.

use std::collections::HashMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use met_core::job::CgroupPaths;
use met_core::{Batch, MISSING, Subject};
use met_host::cgroup::CgroupDirs;
use met_host::{CgroupTarget, Host, Look, Targets};

use crate::{Options, SourceSpec, TickInfo};

pub(crate) const FAST: TickInfo = TickInfo::of(false);
pub(crate) const SLOW: TickInfo = TickInfo::of(true);

pub(crate) struct Machine {
    root: tempfile::TempDir,
    pub(crate) host: Host,
    pub(crate) targets: Targets,
    names: HashMap<u64, String>,
}

impl Machine {
    pub(crate) fn new(archive: &str) -> Machine {
        let root = tempfile::tempdir().unwrap();
        for (path, contents) in files_of(archive) {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, contents).unwrap();
        }
        let host = Host::at(root.path()).unwrap();
        Machine { root, host, targets: Targets::default(), names: HashMap::new() }
    }

    /// Aims at a cgroup; an empty path is a hierarchy in which the job has none.
    pub(crate) fn aim(&mut self, name: &str, unified: &str, memory: &str, cpuacct: &str) {
        let path = |text: &str| (!text.is_empty()).then(|| PathBuf::from(text));
        let paths = CgroupPaths { unified: path(unified), memory: path(memory), cpuacct: path(cpuacct) };
        let dirs = Arc::new(CgroupDirs::open(&self.host, &paths).unwrap());
        self.names.insert(dirs.id, name.to_owned());
        self.targets.cgroups.push(CgroupTarget {
            dirs,
            counted: false,
            counted_in: None,
            events: None,
            young: false,
            look: Look::Usual,
        });
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path.trim_start_matches('/'))
    }

    /// Opens the source, reads it once and prints every cell that is not missing.
    pub(crate) fn read(&self, spec: &SourceSpec, tick: TickInfo) -> String {
        self.read_with(spec, tick, &Options::default())
    }

    pub(crate) fn read_with(&self, spec: &SourceSpec, tick: TickInfo, options: &Options) -> String {
        let mut source = (spec.open)(&self.host, options).unwrap_or_else(|why| panic!("{why}"));
        let mut batches: Vec<Batch> = spec.tables.iter().copied().map(Batch::new).collect();
        let result = source.read(&self.targets, &tick, &mut batches);
        let mut text = self.print(&batches, source.labels());
        for batch in batches.iter().filter(|batch| batch.unparsed.count > 0) {
            let line = batch.unparsed.to_string();
            // Inode numbers differ from run to run.
            let named = self.names.iter().fold(line, |line, (id, name)| line.replace(&id.to_string(), name));
            writeln!(text, "{named}").unwrap();
        }
        if let Err(error) = result {
            writeln!(text, "error: {error}").unwrap();
        }
        text
    }

    fn print(&self, batches: &[Batch], labels: &[Vec<String>]) -> String {
        let mut text = String::new();
        for batch in batches {
            for (row, cells) in batch.rows() {
                match row.owner {
                    Subject::Cgroup(id) => writeln!(text, "{}", self.names[&id]).unwrap(),
                    Subject::Task { pid, .. } => writeln!(text, "{pid}").unwrap(),
                    owner => {
                        let known = labels.get(row.part as usize).filter(|_| !batch.table.labels.is_empty());
                        let labels = known.map(|labels| format!(" {}", labels.join(" "))).unwrap_or_default();
                        writeln!(text, "{owner:?}{labels}").unwrap();
                    }
                }
                let known = batch.table.columns.iter().zip(cells).filter(|(_, cell)| **cell != MISSING);
                for (column, cell) in known {
                    writeln!(text, "  {} {cell}", column.name).unwrap();
                }
            }
        }
        text
    }
}

fn files_of(archive: &str) -> Vec<(&Path, Vec<u8>)> {
    let mut files: Vec<(&Path, Vec<u8>)> = Vec::new();
    for line in archive.split_inclusive('\n') {
        let header = line.trim_end().strip_prefix("-- ").and_then(|rest| rest.strip_suffix(" --"));
        match (header, files.last_mut()) {
            (Some(path), _) => files.push((Path::new(path), Vec::new())),
            // A byte that is no text is written \xff.
            (None, Some((_, contents))) => {
                for (index, piece) in line.split("\\xff").enumerate() {
                    contents.extend(std::iter::repeat_n(0xff, usize::from(index > 0)));
                    contents.extend_from_slice(piece.as_bytes());
                }
            }
            (None, None) => panic!("an archive begins with a path"),
        }
    }
    files
}

#[test]
fn every_captured_machine_is_used() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/hosts");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    // The folder, and those in it.
    #[allow(clippy::disallowed_methods, reason = "the test looks at the source tree, not at a machine")]
    let list = |folder: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).into_iter().flatten();
        entries.map(|entry| entry.unwrap().path()).collect()
    };
    let files = list(&folder).into_iter().flat_map(|path| [list(&path), vec![path]].concat());
    #[allow(clippy::disallowed_methods, reason = "the test looks at the source tree, not at a machine")]
    let sources: Vec<String> = files.filter_map(|path| std::fs::read_to_string(path).ok()).collect();
    #[allow(clippy::disallowed_methods, reason = "the test looks at the source tree, not at a machine")]
    for entry in std::fs::read_dir(fixtures).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(sources.iter().any(|source| source.contains(&format!("hosts/{name}"))), "{name} is not used");
    }
}
