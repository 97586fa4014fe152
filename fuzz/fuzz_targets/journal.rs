//! The journal of a flash state file, valid and then changed by the fuzzer: replay gives a drive that can
//! be saved, or an error that names the journal.

use std::fs;
use std::sync::LazyLock;

use media::contents::Keep;
use media::nand::{Data, Nand, PageAt, Profile, Spec};

use super::scratch;

/// Flash with a few blocks programmed, one erased and one bad.
pub fn used() -> Nand {
    let Profile { geometry, errors, .. } = Profile::test();
    let spec = Spec { geometry, keep: Keep::Stamps, block_bytes: 4096, errors, seed: 7 };
    let mut nand = Nand::new(spec).expect("a profile of ours");
    use_some(&mut nand);
    nand
}

fn use_some(nand: &mut Nand) {
    for block in 0..3 {
        for _ in 0..4 {
            let Some(page) = nand.next_page(block) else { break };
            let data = [block as u8 + 1; 8192];
            nand.program(PageAt { block, page }, Data::Bytes(&data), &[7; 20]).expect("a page");
        }
        nand.programs_ended(block);
        nand.commit().expect("a journal");
    }
    nand.erase_begins(1);
    nand.erase(1).expect("a block");
    nand.mark_bad(4);
    nand.commit().expect("a journal");
}

/// A state and its journal.
static VALID: LazyLock<(Vec<u8>, Vec<u8>)> = LazyLock::new(|| {
    let path = scratch::path("whole.nand");
    let mut nand = used();
    nand.keep_journal(&path, b"beside", u64::MAX).expect("a state that is saved");
    use_some(&mut nand);
    let journal = fs::read(scratch::path("whole.nand.journal")).expect("the journal");
    (fs::read(path).expect("the state"), journal)
});

pub fn run(data: &[u8]) {
    let (path, journal) = (scratch::path("replay.nand"), scratch::path("replay.nand.journal"));
    fs::write(&path, &VALID.0).expect("a temporary file");
    fs::write(&journal, scratch::edited(&VALID.1, data)).expect("a temporary file");
    let (mut nand, beside) = Nand::load_from(&path).expect("a state of ours");
    let held_up = data.len().is_multiple_of(2);
    match nand.replay(&path, held_up) {
        Ok(_) => {
            nand.save(&path, &beside).expect("a state that is saved");
            Nand::load_from(&path).expect("just saved");
        }
        Err(error) => assert!(error.to_string().contains("replay.nand.journal"), "{error}"),
    }
}
