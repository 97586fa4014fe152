//! Files that commands write: a folder that is missing is made, by every flag alike.

use std::path::Path;

use crate::common::{CommandOutput, Folder, doorbell, output_of, root};

const JOB: &str = "[a]\nrw=randread\nbs=4k\nsize=1m\nnumber_ios=10\n";
const SWEEP: &str =
    "plan = \"gen4\"\nfile = \"job.fio\"\n[[axis]]\njob = \"iodepth\"\nvalues = [1, 2]\n";

/// Command lines and their flags for files.
const FLAGS: &[(&str, &[&str])] = &[
    (
        "run job.fio --plan gen4 --world sim",
        &["--json", "--csv", "--html", "--log", "--trace", "--series"],
    ),
    ("run job.fio --plan live --world live", &["--record"]),
    ("replay job.fio --plan gen4 --seed 1", &["--json", "--log"]),
    ("compare job.fio --plan gen4 --world sim", &["--json", "--csv", "--html"]),
    ("explain job.fio --plan gen4 --quick", &["--json"]),
    ("sweep sweep.toml", &["--out", "--csv", "--html"]),
    ("check gen4", &["--json"]),
    ("plans", &["--json"]),
];

fn folder(name: &str) -> Folder {
    let folder = Folder::new(name);
    folder.file("job.fio", JOB);
    folder.file("sweep.toml", SWEEP);
    folder
}

#[test]
fn missing_folder_of_an_output_file_is_made() {
    for (command, flags) in FLAGS {
        let folder = folder("outputs");
        let mut words: Vec<_> = command.split(' ').map(str::to_owned).collect();
        let path = |flag: &str| format!("new/{}/file", &flag[2..]);
        words.extend(flags.iter().flat_map(|flag| [(*flag).to_owned(), path(flag)]));
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        let CommandOutput { code, err, .. } = output_of(&mut doorbell(&folder, &words));
        assert_eq!(code, Some(0), "{command}: {err}");
        for flag in *flags {
            let length = std::fs::metadata(folder.path(&path(flag))).map_or(0, |file| file.len());
            assert!(length > 0, "{command} {flag}: no file");
        }
    }
}

/// The folder is a file: the error comes before the first run.
#[test]
fn output_file_that_cannot_be_made_is_named() {
    for (command, flags) in FLAGS {
        let folder = folder("outputs-refused");
        for flag in *flags {
            let mut words: Vec<_> = command.split(' ').collect();
            words.extend([*flag, "job.fio/file"]);
            let CommandOutput { code, err, out } = output_of(&mut doorbell(&folder, &words));
            assert_eq!((code, out.as_str()), (Some(1), ""), "{words:?}");
            assert!(err.contains("job.fio/file: cannot be "), "{words:?}: {err}");
        }
    }
}

/// One function makes all files, so that a new flag behaves as the others.
#[test]
fn commands_make_files_in_one_place() {
    let mut folders = vec![root().join("crates/doorbell/src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("sources") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if !path.ends_with(Path::new("output.rs")) {
                let text = std::fs::read_to_string(&path).expect("text");
                for made in ["File::create(", "fs::write("] {
                    assert!(
                        !text.contains(made),
                        "{}: found {made}, expected output::create",
                        path.display()
                    );
                }
            }
        }
    }
}
