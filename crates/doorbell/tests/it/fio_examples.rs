//! Every example job of fio 3.33 runs in virtual time, or is refused by key and reason:
//! `fio-3.33-examples.txt` says which, and which keys have a note. The examples are those of Debian's package
//! fio-examples, or of the folder that `DOORBELL_FIO_EXAMPLES` names; `DOORBELL_BLESS=1` rewrites the table.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use plan::Plan;
use workload::job::{Outside, parse_with};
use workload::trace::Mapping;
use world::interfaces::NVME;
use world::work::Work;
use world::{self, Options};

use crate::common::{plan, root};

const PACKAGE: &str = "/usr/share/doc/fio/examples";
const TABLE: &str = "crates/doorbell/tests/fio-3.33-examples.txt";

/// At least this number of the 86 complete. 19 others have an engine that moves no data to or from a device.
const COMPLETE_MIN: usize = 53;

/// Bounds of each job, however large: they come last, and so replace its own.
const BOUNDS: [(&str, &str); 2] = [("number_ios", "2"), ("loops", "1")];

/// Variables that the examples use.
fn variable(name: &str) -> Option<String> {
    let value = match name {
        "FIO_RW" => "randread",
        "FIO_IODEPTH" => "4",
        "FIO_BS" => "4k",
        _ => "x",
    };
    Some(value.to_owned())
}

/// One row of the table: whether the example completes, with the keys that have notes, or why not.
fn row(plan: &Plan, path: &Path) -> Result<String, String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    let bounds = BOUNDS.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let outside = Outside { settings: &bounds, variable: &variable, ..Outside::none() };
    let file = parse_with("", &text, &outside).map_err(|errors| {
        let each: BTreeSet<String> = errors.0.iter().map(|error| error.wrong.to_string()).collect();
        let short = each.iter().map(|wrong| wrong.split("; expected").next().unwrap_or(wrong));
        short.collect::<Vec<_>>().join("; ")
    })?;
    let noted: BTreeSet<&str> = file.notes.iter().map(|note| note.key.as_str()).collect();
    let work = Work::parse(path, &file.text, Mapping::Concatenate);
    let work = work.map_err(|error| error.to_string())?;
    let result = world::simulate(NVME, plan, &work, Options::default());
    let result = result.map_err(|error| error.to_string())?;
    let messages = result.jobs.iter().flat_map(|(_, job)| job.messages.iter()).next();
    match messages {
        // Another job wrote the blocks: files of their own in fio are one device here.
        Some(message) => Err(message.split(": expected").next().unwrap_or(message).to_owned()),
        None => Ok(noted.into_iter().collect::<Vec<_>>().join(" ")),
    }
}

#[test]
fn example_of_fio_completes_or_is_refused_by_key_and_reason() {
    let given = std::env::var_os("DOORBELL_FIO_EXAMPLES").map(PathBuf::from);
    let folder = given.unwrap_or_else(|| PathBuf::from(PACKAGE));
    let Ok(entries) = std::fs::read_dir(&folder) else {
        return println!("not run: no {}: install fio-examples", folder.display());
    };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|ending| ending == "fio"));
    paths.sort();
    let sets = [("medium.block", "\"512 B\""), ("host.memory", "\"4 GiB\"")];
    let (plan, mut table, mut complete) = (plan("gen4", &sets), String::new(), 0);
    for path in &paths {
        let name = path.file_name().expect("a file").to_string_lossy();
        let place = format!("{}: ", path.display());
        match row(&plan, path) {
            Ok(noted) => {
                complete += 1;
                writeln!(table, "{name}: completes; notes: {noted}").expect("a string");
            }
            Err(why) => {
                let why = why.replace(&place, "");
                writeln!(table, "{name}: refused: {why}").expect("a string");
            }
        }
    }
    let at = root().join(TABLE);
    if std::env::var_os("DOORBELL_BLESS").is_some() {
        std::fs::write(&at, &table).expect("the table is written");
    }
    assert!(complete >= COMPLETE_MIN, "{complete} of {} complete:\n{table}", paths.len());
    let golden = std::fs::read_to_string(&at).expect("the table");
    assert_eq!(table, golden, "DOORBELL_BLESS=1 writes {TABLE} anew");
}
