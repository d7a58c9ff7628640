//! Which file a path leads to: one that was removed and made again, or replaced, is another.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::{fs, io};

use crate::error::StoreError;

/// Device and inode.
pub(crate) type FileId = (u64, u64);

/// `None` where there is no file.
pub(crate) fn file_at(path: &Path) -> Result<Option<FileId>, StoreError> {
    match fs::metadata(path) {
        Ok(file) => Ok(Some((file.dev(), file.ino()))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(StoreError::io(path)(error)),
    }
}
