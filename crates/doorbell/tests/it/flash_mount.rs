//! Servers whose flushes fail: said at once.

use std::io::Read;
use std::process::{Command, Stdio};

use host::{BlockDevice, Kind};
use testing::system::{Limit, limit};
use wire::Lba;

use crate::common::{Folder, Server, doorbell, over_socket, plan};
use world::interfaces::Driver;

const WHOLE: (&str, &str) = ("medium.keep", "everything");
const STATE: [&str; 4] =
    ["--set", "medium.keep=everything", "--set", "medium.flash.state=drive.nand"];

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
