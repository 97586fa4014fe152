//! Temporary files of this process.

use std::path::PathBuf;
use std::sync::LazyLock;

static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = std::env::temp_dir().join(format!("doorbell-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for temporary files");
    folder
});

pub fn path(name: &str) -> PathBuf {
    FOLDER.join(name)
}

/// Applies the fuzzer's bytes as edits: a replacement of everything, or cuts, values and insertions.
pub fn edited(valid: &[u8], data: &[u8]) -> Vec<u8> {
    let Some((first, edits)) = data.split_first() else { return valid.to_vec() };
    if first.is_multiple_of(8) {
        return edits.to_vec();
    }
    let mut bytes = valid.to_vec();
    for edit in edits.chunks_exact(5) {
        let at = u32::from_le_bytes([edit[0], edit[1], edit[2], 0]) as usize % (bytes.len() + 1);
        match edit[3] % 4 {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, edit[4]),
            _ => match bytes.get_mut(at) {
                Some(byte) => *byte ^= edit[4],
                None => bytes.push(edit[4]),
            },
        }
    }
    bytes
}
