//! Rows of things that come and go, such as disks and mounts: each keeps its part for as long as we run.

use std::collections::HashMap;

/// More than any machine has; a name that changes all the time does not fill the memory.
const PARTS_MAX: usize = 1024;

#[derive(Debug, Default)]
pub(crate) struct Parts {
    labels: Vec<Vec<String>>,
    known: HashMap<Vec<u8>, u32>,
}

impl Parts {
    /// The part of the thing with this name; `labels` are made when it is met for the first time.
    pub(crate) fn of(&mut self, name: &[u8], labels: impl FnOnce() -> Vec<String>) -> Option<u32> {
        if let Some(&part) = self.known.get(name) {
            return Some(part);
        }
        let part = u32::try_from(self.labels.len()).ok().filter(|_| self.labels.len() < PARTS_MAX)?;
        self.labels.push(labels());
        self.known.insert(name.to_vec(), part);
        Some(part)
    }

    pub(crate) fn knows(&self, name: &[u8]) -> bool {
        self.known.contains_key(name)
    }

    pub(crate) fn labels(&self) -> &[Vec<String>] {
        &self.labels
    }
}

/// Foreign bytes as a label.
pub(crate) fn label(text: &[u8]) -> String {
    String::from_utf8_lossy(text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_stays_and_there_are_not_endlessly_many() {
        let mut parts = Parts::default();
        assert_eq!(parts.of(b"sda", || vec!["sda".into()]), Some(0));
        assert_eq!(parts.of(b"sdb", || vec!["sdb".into()]), Some(1));
        assert_eq!(parts.of(b"sda", || panic!("it is known")), Some(0));
        for number in 2..3000u32 {
            let part = parts.of(&number.to_le_bytes(), || vec![number.to_string()]);
            assert_eq!(part, (number < 1024).then_some(number));
        }
        assert_eq!(parts.labels().len(), 1024);
    }
}
