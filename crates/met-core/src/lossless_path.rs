//! Paths as they are: people name their folders, and others their cgroups, as they like. A path is text where it
//! can be, else its bytes.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

struct Written<'a>(&'a Path);

impl Serialize for Written<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self.0.to_str() {
            Some(text) => text.serialize(to),
            None => self.0.as_os_str().as_bytes().serialize(to),
        }
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Read {
    Text(PathBuf),
    Bytes(Vec<u8>),
}

impl Read {
    fn path(self) -> PathBuf {
        match self {
            Read::Text(path) => path,
            Read::Bytes(bytes) => PathBuf::from(OsString::from_vec(bytes)),
        }
    }
}

pub fn serialize<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    Written(path).serialize(to)
}

pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PathBuf, D::Error> {
    Ok(Read::deserialize(from)?.path())
}

/// A path that may not be there.
pub mod option {
    use super::{Deserialize, Deserializer, PathBuf, Read, Serialize, Serializer, Written};

    pub fn serialize<S: Serializer>(path: &Option<PathBuf>, to: S) -> Result<S::Ok, S::Error> {
        path.as_deref().map(Written).serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<PathBuf>, D::Error> {
        Ok(Option::<Read>::deserialize(from)?.map(Read::path))
    }
}

pub mod list {
    use super::{Deserialize, Deserializer, PathBuf, Read, Serializer, Written};

    pub fn serialize<S: Serializer>(paths: &[PathBuf], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(paths.iter().map(|path| Written(path)))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<PathBuf>, D::Error> {
        Ok(Vec::<Read>::deserialize(from)?.into_iter().map(Read::path).collect())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Paths {
        #[serde(with = "super")]
        one: PathBuf,
        #[serde(default, with = "option")]
        maybe: Option<PathBuf>,
        #[serde(default, with = "list")]
        many: Vec<PathBuf>,
    }

    proptest! {
        #[test]
        fn whatever_a_path_is_made_of_comes_back(bytes in proptest::collection::vec(1..=255u8, 0..40)) {
            let path = PathBuf::from(OsString::from_vec(bytes));
            let paths = Paths { one: path.clone(), maybe: Some(path.clone()), many: vec![path.clone(), path] };
            let json = serde_json::to_string(&paths).unwrap();
            prop_assert_eq!(serde_json::from_str::<Paths>(&json).unwrap(), paths);
        }
    }

    #[test]
    fn a_path_of_text_is_text() {
        let paths: Paths = serde_json::from_str(r#"{"one":"/a"}"#).unwrap();
        assert_eq!(paths, Paths { one: "/a".into(), maybe: None, many: Vec::new() });
        assert_eq!(serde_json::to_string(&paths).unwrap(), r#"{"one":"/a","maybe":null,"many":[]}"#);
    }
}
