//! Documents that the server will never take, for a person to look at: a bounded file.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use met_insight::json::time;

use crate::clock::now_ns;

const NAME: &str = "quarantine.ndjson";
/// The one before it, when it was full.
const NAME_BEFORE: &str = "quarantine.1.ndjson";
/// Of each of the two.
const BYTES_MAX: u64 = 8 << 20;

pub struct Quarantine {
    path: PathBuf,
    before: PathBuf,
}

impl Quarantine {
    pub fn new(folder: &Path) -> Quarantine {
        Quarantine { path: folder.join(NAME), before: folder.join(NAME_BEFORE) }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds a line with a document and why it was refused. `lines` are the two of a bulk body.
    pub fn add(&self, lines: &[u8], why: &str) -> io::Result<()> {
        let (action, document) = match lines.iter().position(|&byte| byte == b'\n') {
            Some(end) => lines.split_at(end + 1),
            None => (lines, &[][..]),
        };
        let head = serde_json::json!({"time": time(now_ns()), "reason": why}).to_string();
        let mut line = head.as_bytes()[..head.len() - 1].to_vec();
        for (name, part) in [("action", action), ("document", document)] {
            line.extend_from_slice(format!(",\"{name}\":").as_bytes());
            line.extend_from_slice(part.trim_ascii());
        }
        line.extend_from_slice(b"}\n");
        let length = fs::metadata(&self.path).map_or(0, |metadata| metadata.len());
        if length + line.len() as u64 > BYTES_MAX {
            let _ = fs::rename(&self.path, &self.before);
        }
        let mut file = OpenOptions::new().append(true).create(true).mode(0o600).open(&self.path)?;
        file.write_all(&line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_refused_is_a_line_with_its_reason_and_the_file_is_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let quarantine = Quarantine::new(folder.path());
        quarantine.add(b"{\"create\":{}}\n{\"a\":1}\n", "400 {bad}").unwrap();
        let line: serde_json::Value = serde_json::from_slice(&fs::read(quarantine.path()).unwrap()).unwrap();
        assert_eq!((&line["reason"], &line["document"]["a"]), (&"400 {bad}".into(), &1.into()));
        let large = [b"{\"create\":{}}\n\"".to_vec(), vec![b'x'; 3 << 20], b"\"\n".to_vec()].concat();
        (0..9).for_each(|_| quarantine.add(&large, "large").unwrap());
        let sizes = fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().metadata().unwrap().len());
        let sizes: Vec<u64> = sizes.collect();
        assert!(sizes.len() == 2 && sizes.iter().all(|&size| size <= BYTES_MAX), "{sizes:?}");
    }
}
