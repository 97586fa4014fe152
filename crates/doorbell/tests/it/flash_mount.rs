//! States that cannot be mounted, and servers whose flushes fail: both are said at once.

use std::io::Read;
use std::process::{Command, Stdio};

use host::{BlockDevice, Kind};
use media::nand::{Nand, Spec};
use testing::system::{Limit, limit};
use wire::Lba;

use crate::common::{Folder, Server, doorbell, output_of, over_socket, plan};

const WHOLE: (&str, &str) = ("medium.keep", "everything");
const STATE: [&str; 4] =
    ["--set", "medium.keep=everything", "--set", "medium.flash.state=drive.nand"];

/// A state of small-flash without a good block.
fn unusable(folder: &Folder) {
    let plan = plan("small-flash", &[WHOLE]);
    let spec = plan.medium.flash.expect("flash").spec;
    let mut nand = Nand::new(Spec { seed: plan.run.seed, ..spec }).expect("flash");
    (0..nand.geometry().all_blocks()).for_each(|block| nand.mark_bad(block));
    nand.save(&folder.path("drive.nand"), b"").expect("a state");
}

#[test]
fn state_that_cannot_be_mounted_is_refused_at_start_and_by_state_check() {
    let folder = Folder::new("flash-unusable");
    unusable(&folder);
    let expected = "drive.nand: flash software can't mount it: good blocks are left for 0 units only; \
                    see doorbell state check";
    let before = std::fs::read(folder.path("drive.nand")).expect("a state");
    for listen in [
        &["--nbd", "unix:n"][..],
        &["--shm", "s"],
        &["--vfio-user", "v"],
        &["--vfio-user", "v", "--shared"],
        &["--vfio-user", "v", "--client", "one=0+64"],
    ] {
        let words = [&["serve", "small-flash"], listen, &STATE].concat();
        let output = output_of(&mut doorbell(&folder, &words));
        assert_eq!(output.code, Some(1), "{words:?}: {}", output.err);
        assert!(output.err.contains(expected), "{words:?}: {}", output.err);
    }
    for action in ["check", "repair"] {
        let output = output_of(&mut doorbell(&folder, &["state", action, "drive.nand"]));
        assert_eq!(output.code, Some(1), "{action}: {}", output.out);
        assert!(output.out.contains(&format!("damage: {expected}")), "{action}: {}", output.out);
        assert!(!output.out.contains("no damage found"), "{action}: {}", output.out);
    }
    assert_eq!(std::fs::read(folder.path("drive.nand")).expect("a state"), before);
}

/// Damage in the file of names and counts is refused at start, named by `state check`, and mended by `state
/// repair`: the contents stay, and the drive is another one.
#[test]
fn damaged_names_and_counts_are_refused_and_repaired() {
    let folder = Folder::new("flash-damaged-names");
    let start = [&["serve", "small-flash", "--shm", "socket"], &STATE[..]].concat();
    let stop = |mut server: Server| server.kill();
    stop(Server::listening(&folder, &mut doorbell(&folder, &start)));
    let file = folder.path("drive.nand.drive");
    let text = std::fs::read_to_string(&file).expect("names and counts");
    let number = |text: &str| text.lines().nth(1).expect("a second line").to_owned();
    std::fs::write(&file, text.replace("reads 0", "reads 8")).expect("written");
    let run = |words: &[&str]| output_of(&mut doorbell(&folder, words));
    for action in ["check", "upgrade"] {
        let found = run(&["state", action, "drive.nand"]);
        assert_eq!(found.code, Some(1), "{action}: {}", found.out);
        assert!(found.out.contains("damage: drive.nand.drive: checksum"), "{}", found.out);
    }
    // After the check, as a server that starts does not end.
    let refused = run(&start);
    assert_eq!(refused.code, Some(1), "{}", refused.err);
    assert!(refused.err.contains("drive.nand.drive: checksum"), "{}", refused.err);
    let repaired = run(&["state", "repair", "drive.nand"]);
    assert_eq!(repaired.code, Some(0), "{}{}", repaired.out, repaired.err);
    assert!(repaired.out.contains("kept as drive.nand.drive.damaged"), "{}", repaired.out);
    assert!(!repaired.out.contains("no damage found"), "{}", repaired.out);
    let checked = run(&["state", "check", "drive.nand"]);
    assert_eq!((checked.code, checked.out.contains("no damage found")), (Some(0), true));
    stop(Server::listening(&folder, &mut doorbell(&folder, &start)));
    let after = std::fs::read_to_string(&file).expect("names and counts");
    assert_ne!(number(&after), number(&text));
}

/// A row that the file of pages has no more is no older copy's business.
#[test]
fn pages_that_changed_are_refused_at_start_with_their_row() {
    let folder = Folder::new("flash-changed-row");
    let sets = [&STATE[..], &["--set", "medium.resident=1 MiB"]].concat();
    let start = [&["serve", "small-flash", "--shm", "socket"], &sets[..]].concat();
    let mut server = Server::listening(&folder, &mut doorbell(&folder, &start));
    let plan = plan("small-flash", &[WHOLE]);
    over_socket(&plan, &folder.path("socket"), async |_, driver| {
        let disk = driver.disk(0);
        for lba in 0..8 {
            let buffer = disk.buffer(64 << 10).expect("memory");
            buffer.copy_in(0, &[lba as u8 + 1; 64 << 10]);
            disk.write(Lba(lba * 128), buffer, false).await.1.expect("a write");
        }
        disk.flush().await.expect("a flush");
    });
    server.kill();
    let file = folder.path("drive.nand.pages");
    let mut bytes = std::fs::read(&file).expect("pages");
    let place = bytes.iter().position(|byte| *byte == 5).expect("what was written");
    bytes[place + 700] ^= 1;
    std::fs::write(&file, bytes).expect("pages");
    let output = output_of(&mut doorbell(&folder, &start));
    assert_eq!(output.code, Some(1), "{}", output.err);
    let expected = ["drive.nand: flash software can't mount it", "drive.nand.pages: pages: row "];
    assert!(expected.iter().all(|words| output.err.contains(words)), "{}", output.err);
    let output = output_of(&mut doorbell(&folder, &["state", "repair", "drive.nand"]));
    assert_eq!(output.code, Some(0), "{}", output.out);
    drop(Server::listening(&folder, &mut doorbell(&folder, &start)));
}

#[test]
fn failed_flush_is_reported_once_on_standard_error() {
    let folder = Folder::new("flash-unflushed");
    let start = [&["serve", "small-flash", "--shm", "socket"], &STATE[..]].concat();
    let plain = doorbell(&folder, &start);
    // The kernel's signal for a file that is too long would end the server.
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""]).arg(plain.get_program());
    command.args(plain.get_args()).current_dir(folder.at()).stderr(Stdio::piped());
    let mut server = Server::listening(&folder, &mut command);
    let plan = plan("small-flash", &[WHOLE]);
    over_socket(&plan, &folder.path("socket"), async |_, driver| {
        let journal = std::fs::metadata(folder.path("drive.nand.journal")).expect("a journal");
        limit(&server.child, Limit::FileLength, journal.len());
        let disk = driver.disk(0);
        for _ in 0..4 {
            let _ = disk.write(Lba(0), disk.buffer(4096).expect("memory"), false).await;
            let failed = disk.flush().await.expect_err("the file may not grow");
            assert_eq!(failed.kind, Kind::Full, "{failed}");
        }
    });
    server.kill();
    let (mut errors, mut pipe) = (String::new(), server.child.stderr.take().expect("a pipe"));
    pipe.read_to_string(&mut errors).expect("text");
    assert!(
        errors
            .starts_with("doorbell: socket: flushes fail, and nothing written since is durable: ")
            && errors.contains("drive.nand.journal: could not write the journal"),
        "{errors}"
    );
    assert_eq!(errors.lines().count(), 1, "{errors}");
}
