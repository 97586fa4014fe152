//! Locks of states: one process that writes, or several that only read.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use media::contents::Keep;
use media::nand::{Error, Lock, Nand};

use super::{at, nand, page_bytes, program, read};
use crate::common::Scratch;

fn is_in_use(lock: Result<Lock, Error>) -> bool {
    match lock {
        Ok(_) => false,
        Err(Error::InUse { .. }) => true,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn nand_state_lock_is_exclusive_or_shared() {
    let folder = Scratch::new("nand-lock");
    let (path, other) = (folder.join("state"), folder.join("other"));
    let writer = Lock::exclusive(&path).expect("nobody has it");
    assert!(is_in_use(Lock::exclusive(&path)) && is_in_use(Lock::shared(&path)));
    assert!(!is_in_use(Lock::exclusive(&other)), "another state");
    drop(writer);
    let readers = [Lock::shared(&path), Lock::shared(&path)].map(|one| one.expect("readers"));
    assert!(is_in_use(Lock::exclusive(&path)));
    drop(readers);
    assert!(!is_in_use(Lock::exclusive(&path)));
    let mode = fs::metadata(folder.join("state.lock")).expect("it stays").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let said = Lock::exclusive(&folder.join("no folder/state")).unwrap_err().to_string();
    assert!(said.contains("no folder/state.lock: could not open the lock"), "{said}");
}

/// Lock and journal belong to the file, by whatever name it is opened.
#[test]
fn symlinked_nand_state_shares_lock_and_journal() {
    let folder = Scratch::new("nand-link");
    let (path, link) = (folder.join("state"), folder.join("link"));
    let mut flash = nand(Keep::Everything);
    flash.save(&path, b"").expect("room");
    symlink("state", &link).expect("room");
    let writer = Lock::exclusive(&path).expect("nobody has it");
    assert!(is_in_use(Lock::exclusive(&link)) && is_in_use(Lock::shared(&link)));
    drop(writer);

    let (mut flash, _) = Nand::load_from(&link).expect("a state");
    flash.replay(&link, false).expect("no journal");
    flash.keep_journal(&link, b"", 1 << 20).expect("room");
    program(&mut flash, at(1, 0), 3).expect("an erased block");
    flash.programs_ended(1);
    flash.sync().expect("room");
    drop(flash);
    assert!(fs::symlink_metadata(&link).expect("it is there").is_symlink());
    for name in [&path, &link] {
        let (mut found, _) = Nand::load_from(name).expect("a state");
        found.replay(name, false).expect("a journal");
        assert_eq!(read(&mut found, at(1, 0)).1, page_bytes(at(1, 0), 3));
    }
    fs::remove_file(&path).expect("it is there");
    let said = Lock::exclusive(&link).unwrap_err().to_string();
    assert!(said.contains("link: could not follow the link to the state"), "{said}");
}

/// A state is replaced by rename, so a lock on the file itself would be on the replaced one.
#[test]
fn nand_state_lock_held_across_save_but_not_by_forks() {
    let folder = Scratch::new("nand-held");
    let path = folder.join("state");
    let mut flash = nand(Keep::Stamps);
    flash.hold(Lock::exclusive(&path).expect("nobody has it"));
    flash.save(&path, b"").expect("room");
    flash.keep_journal(&path, b"", 1 << 20).expect("room");
    let fork = flash.fork();
    let said = Lock::exclusive(&path).unwrap_err().to_string();
    let name = path.display();
    let expected = "found in use by another process, expected this one alone";
    assert_eq!(said, format!("{name}: {expected}"));
    drop(flash);
    assert!(!is_in_use(Lock::exclusive(&path)));
    drop(fork);
}
