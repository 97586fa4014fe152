//! Writes the pages of the samples, and their documents as JSON, into a directory: for `tools/browser`.
//!
//! With `-` for the directory it prints letter plots. With `RESULT.json` and `PAGE.html` it writes the page of
//! a document.

use std::path::Path;
use std::{env, fs, io};

#[path = "../tests/it/exhibits.rs"]
mod exhibits;
#[path = "../tests/it/samples.rs"]
mod samples;

fn main() -> io::Result<()> {
    let to = env::args().nth(1).unwrap_or_else(|| ".".to_owned());
    if to == "-" {
        for figure in
            [exhibits::sizes(), exhibits::policies(), exhibits::stacked(), exhibits::cores()]
        {
            println!("{}", report::letters::figure(&figure));
        }
        return Ok(());
    }
    if let Some(page) = env::args().nth(2) {
        let document = report::from_json(&fs::read_to_string(&to)?).map_err(io::Error::other)?;
        return fs::write(page, report::page::html(&document));
    }
    let documents = [
        ("run", samples::both_worlds()),
        ("compare", samples::comparison()),
        ("flash", samples::flash()),
        ("papers", exhibits::papers()),
    ];
    for (name, document) in documents {
        let path = Path::new(&to).join(name);
        fs::write(path.with_extension("html"), report::page::html(&document))?;
        fs::write(path.with_extension("json"), serde_json::to_string(&document)?)?;
    }
    Ok(())
}
