//! A state has one process that writes it, or several that only read it.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use media::contents::Keep;
use media::nand::{Error, Lock};

use super::common::Scratch;
use super::nand;

fn is_in_use(lock: Result<Lock, Error>) -> bool {
    match lock {
        Ok(_) => false,
        Err(Error::InUse { .. }) => true,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_state_has_one_writer_or_several_readers() {
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

/// A state is replaced by rename: a lock on the file itself would be on one that is no longer there.
#[test]
fn flash_holds_its_lock_while_its_state_is_written_anew_and_its_forks_do_not() {
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
