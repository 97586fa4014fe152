//! Label of a device: a few bytes next to its blocks, replaced as a whole and durably.
//!
//! For a raw image it is in a file of its own, with the image's name and the suffix `.label`: the image
//! stays, byte for byte, the host's view. A label without its image is ignored, and an image without a label
//! has an empty one.
//!
//! The controller keeps state there that must outlast it: the LBA format of its namespaces, and the progress
//! of a Sanitize, which continues after a power cut with the same pass. A medium without a label has
//! namespaces of its own block size.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::{Error, LABEL_BYTES_MAX};
use crate::files::Files;

pub(super) struct Label {
    bytes: Vec<u8>,
    /// File of the label; `None` if it is in memory only.
    file: Option<(PathBuf, Files)>,
}

impl Label {
    pub(super) fn in_memory() -> Label {
        Label { bytes: Vec::new(), file: None }
    }

    /// Opens the label of an image. The image is locked, so no other process uses the label.
    pub(super) fn of_image(files: &Files, image: &Path) -> Result<Label, Error> {
        let path = beside(image, ".label");
        let bytes = files.read(&path).and_then(|bytes| {
            let bytes = bytes.unwrap_or_default();
            if bytes.len() > LABEL_BYTES_MAX {
                let text = format!("it has more than {LABEL_BYTES_MAX} bytes");
                return Err(io::Error::new(ErrorKind::InvalidData, text));
            }
            Ok(bytes)
        });
        let failed = |source| Error::Prepare {
            path: path.clone(),
            attempt: "read the image's label",
            source,
        };
        let bytes = bytes.map_err(failed)?;
        Ok(Label { bytes, file: Some((path, files.clone())) })
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Replaces the label. On failure it is unchanged, and the file holds the old one or the new one.
    ///
    /// # Panics
    /// If it is longer than [`LABEL_BYTES_MAX`].
    pub(super) fn set(&mut self, bytes: &[u8]) -> Result<(), Error> {
        assert!(bytes.len() <= LABEL_BYTES_MAX, "a label of {} bytes", bytes.len());
        if let Some((path, files)) = &self.file {
            files.replace(path, bytes).map_err(|source| Error::Prepare {
                path: path.clone(),
                attempt: "replace the image's label",
                source,
            })?;
        }
        self.bytes = bytes.to_vec();
        Ok(())
    }
}

fn beside(image: &Path, ending: &str) -> PathBuf {
    let mut name = image.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}

/// Removes the label of a new image: an existing one belonged to an earlier image.
pub(super) fn forget(files: &Files, image: &Path) -> Result<(), Error> {
    let path = beside(image, ".label");
    let forgotten = match files.exists(&path) {
        Ok(false) => Ok(()),
        Ok(true) => files.remove(&path).and_then(|()| files.sync_folder_of(&path)),
        Err(error) => Err(error),
    };
    let attempt = "remove the label of an earlier image";
    forgotten.map_err(|source| Error::Prepare { path, attempt, source })
}
