//! Settings that have no effect beside `read_iolog`: the recording says what is done, and when.

use super::ini::Setting;
use super::{Job, Note, find};

/// Keys of a pattern. `number_ios`, `runtime`, `iodepth`, `thinktime`, `startdelay` and `verify` apply to a
/// recording too.
const OF_PATTERN: &[&str] = &[
    "rw",
    "rwmixread",
    "rwmixwrite",
    "bs",
    "bsrange",
    "bssplit",
    "ba",
    "size",
    "io_size",
    "offset",
    "offset_increment",
    "randseed",
    "norandommap",
    "random_distribution",
    "rate_iops",
    "rate",
    "rate_process",
    "time_based",
    "loops",
    "sync",
    "fsync",
    "fdatasync",
    "end_fsync",
];

/// Adds a note for each setting of a job with a recording that has no effect there.
pub fn note(job: &Job, settings: &[Setting], notes: &mut Vec<Note>) {
    let Some(trace) = job.trace.as_ref().filter(|trace| !trace.paths.is_empty()) else { return };
    let mut add = |setting: &Setting, why: String| {
        let (file, key) = (setting.file.to_string(), setting.key.clone());
        notes.push(Note { file, line: setting.line, key, why });
    };
    for setting in settings {
        let Some(key) = find(&setting.key).map(|key| key.name) else { continue };
        if OF_PATTERN.contains(&key) {
            add(setting, "the recording of read_iolog says what is done and when".into());
        }
        let (files, clones) = (trace.paths.len(), job.numjobs as usize);
        if key == "read_iolog" && clones < files {
            let why = format!(
                "each clone plays one file: {clones} of {files} are played; numjobs={files} plays all"
            );
            add(setting, why);
        }
    }
}
