//! What a device keeps beside its blocks: a few bytes that are replaced whole, and durable when they are.
//!
//! For a raw image they lie in a file of their own, whose name is the image's with `.label` behind it:
//! the image stays, byte for byte, what a host sees. A label without its image means nothing, and an
//! image without a label has an empty one.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use super::{Error, LABEL_BYTES_MAX};

pub(super) struct Label {
    bytes: Vec<u8>,
    /// Where it is kept; none: in memory alone.
    path: Option<PathBuf>,
}

impl Label {
    pub(super) fn in_memory() -> Label {
        Label { bytes: Vec::new(), path: None }
    }

    /// The label of an image, which is locked: nobody else reaches it. A new image has none yet.
    pub(super) fn of_image(image: &Path, new: bool) -> Result<Label, Error> {
        let path = beside(image, ".label");
        let failed = |attempt| {
            let path = path.clone();
            move |source| Error::Prepare { path, attempt, source }
        };
        let bytes = match File::open(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            Ok(_) if new => {
                fs::remove_file(&path).map_err(failed("remove the label of an earlier image"))?;
                Vec::new()
            }
            opened => opened.and_then(read).map_err(failed("read the image's label"))?,
        };
        Ok(Label { bytes, path: Some(path) })
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Replaces it. If that fails it is as it was.
    ///
    /// # Panics
    /// If it is longer than [`LABEL_BYTES_MAX`].
    pub(super) fn set(&mut self, bytes: &[u8]) -> Result<(), Error> {
        assert!(bytes.len() <= LABEL_BYTES_MAX, "a label of {} bytes", bytes.len());
        if let Some(path) = &self.path {
            replace(path, bytes).map_err(|source| Error::Prepare {
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

fn read(file: File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(LABEL_BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > LABEL_BYTES_MAX {
        let text = format!("it has more than {LABEL_BYTES_MAX} bytes");
        return Err(io::Error::new(ErrorKind::InvalidData, text));
    }
    Ok(bytes)
}

/// The old or the new, whatever happens in between.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let fresh = beside(path, ".new");
    let mut file = File::create(&fresh)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&fresh, path)?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}
