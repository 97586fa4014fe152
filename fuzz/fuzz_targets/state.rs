//! A flash state file, valid and then changed by the fuzzer: it is rejected with an error that names it,
//! when it is loaded or when the changed part is needed, or it can be saved and loaded again.

use std::fs;
use std::sync::LazyLock;

use media::nand::Nand;

use super::{journal, scratch};

static VALID: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let path = scratch::path("valid.nand");
    journal::used().save(&path, b"beside").expect("a state that is saved");
    fs::read(path).expect("the state")
});

pub fn run(data: &[u8]) {
    let bytes = scratch::edited(&VALID, data);
    let path = scratch::path("state.nand");
    fs::write(&path, &bytes).expect("a temporary file");
    let saved = Nand::load_from(&path).and_then(|(mut nand, beside)| {
        nand.save(&path, &beside)?;
        Ok(beside)
    });
    match saved {
        Ok(beside) => assert_eq!(Nand::load_from(&path).expect("just saved").1, beside),
        Err(error) => assert!(error.to_string().contains("state.nand"), "{error}"),
    }
}
