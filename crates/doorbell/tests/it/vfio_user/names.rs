//! Names and counts of served drives. A host rejects a drive with the names of another.

use std::collections::BTreeSet;
use std::path::Path;

use wire::nvme::admin::{get_log_page, identify};
use wire::nvme::entry::Sqe;
use wire::nvme::identify::{IdentifyController, IdentifyNamespace, ascii_text, cns};
use wire::nvme::log::{SmartHealth, lid};
use wire::vfio_user::region;
use wire::{CommandId, Nsid};
use zerocopy::FromBytes;

use crate::common::{Folder, Server, doorbell};
use crate::vfio_user::nvme::{Pages, data, enable, perform};
use crate::vfio_user::raw::{Raw, file};
use crate::vfio_user::serving::SETS;

const PAGE: u64 = 4096;
const BASE: u64 = 0x10_0000;
/// Data of a command, behind the two admin queues.
const AT: u64 = BASE + 2 * PAGE;
/// Offset of the Device Serial Number capability: the first of the extended configuration space.
const EXTENDED: u64 = 0x100;

/// The names of a drive: serial number, NQN, EUI-64 and NGUID of the namespace, and the function's Device
/// Serial Number.
type Names = [String; 5];

fn serve(folder: &Folder, sockets: &[&str], sets: &[&str]) -> Server {
    let mut command = doorbell(folder, &["serve", "live"]);
    let addresses = sockets.iter().flat_map(|socket| ["--vfio-user", socket]);
    let sets = sets.iter().flat_map(|set| ["--set", set]);
    let mut server = Server::begin(folder, command.args(SETS).args(addresses).args(sets));
    for _ in sockets {
        server.log_mentions("waiting for a client\n");
    }
    server
}

/// Names, model, and the log page of health, by commands of a host that leaves without a shutdown.
fn seen(socket: &Path) -> (Names, String, SmartHealth) {
    let mut raw = Raw::greeted(socket);
    let file = file(3 * PAGE);
    raw.map(BASE, 3 * PAGE, 3, Some((&file, 0))).expect("a mapping");
    let page = |n: u64| (BASE + n * PAGE, file.try_clone().expect("a descriptor"), n * PAGE);
    let pages = Pages((0..3).map(page).collect());
    raw.bus_master(true);
    let (mut admin, ready) = enable(&mut raw, &pages, BASE, BASE + PAGE);
    assert!(ready);
    let mut page = |sqe: Sqe| {
        assert!(perform(&mut raw, &pages, &mut admin, &sqe).is_ok());
        let mut page = [0; PAGE as usize];
        pages.read(AT, &mut page);
        page
    };
    let ask = |nsid, cns| identify(CommandId(1), Nsid(nsid), cns, data(AT, 0));
    let controller = page(ask(0, cns::CONTROLLER));
    let controller = IdentifyController::read_from_bytes(&controller).expect("a page");
    let namespace = page(ask(1, cns::NAMESPACE));
    let namespace = IdentifyNamespace::read_from_bytes(&namespace).expect("a page");
    let health = page(get_log_page(CommandId(1), lid::SMART_HEALTH, 512, data(AT, 0)));
    let (health, _) = SmartHealth::read_from_prefix(&health).expect("a page");
    let model = ascii_text(&controller.mn).expect("ASCII").to_owned();
    let serial = ascii_text(&controller.sn).expect("ASCII").to_owned();
    let nqn = controller.subnqn.split(|byte| *byte == 0).next().expect("a part");
    let nqn = String::from_utf8(nqn.to_vec()).expect("text");
    let config = raw.read(region::CONFIG, EXTENDED + 4, 8).expect("configuration space");
    assert_ne!(namespace.nguid, [0; 16]);
    let [eui64, nguid] =
        [&namespace.eui64[..], &namespace.nguid].map(|name| format!("{name:02x?}"));
    ([serial, nqn, eui64, nguid, format!("{config:02x?}")], model, health)
}

fn names(socket: &Path) -> Names {
    seen(socket).0
}

/// Each of these differs among all drives.
fn assert_all_differ(drives: &[Names]) {
    for name in 0..5 {
        let different: BTreeSet<_> = drives.iter().map(|names| &names[name]).collect();
        assert_eq!(different.len(), drives.len(), "{drives:#?}");
    }
}

#[test]
fn drives_of_two_servers_have_names_of_their_own_and_keep_them() {
    let (one, other) = (Folder::new("vfu-names-one"), Folder::new("vfu-names-other"));
    let several = serve(&one, &["a", "b"], &[]);
    let single = serve(&other, &["a"], &[]);
    let drives = [one.path("a"), one.path("b"), other.path("a")];
    let before: Vec<_> = drives.iter().map(|socket| names(socket)).collect();
    assert_all_differ(&before);
    drop((several, single));
    let _again = (serve(&one, &["a", "b"], &[]), serve(&other, &["a"], &[]));
    let after: Vec<_> = drives.iter().map(|socket| names(socket)).collect();
    assert_eq!(after, before);
}

#[test]
fn key_numbers_the_drives_of_a_server() {
    let folder = Folder::new("vfu-names-key");
    let _server = serve(&folder, &["a", "b"], &["device.number=7"]);
    let drives = ["a", "b"].map(|socket| names(&folder.path(socket)));
    assert_all_differ(&drives);
    let serials = drives.each_ref().map(|[serial, ..]| serial.as_str());
    assert_eq!(serials, ["DOORBELL0007", "DOORBELL0008"]);
    for ([_, nqn, ..], end) in drives.iter().zip(["000000000007", "000000000008"]) {
        assert!(nqn.ends_with(end), "{nqn}");
    }
}

/// A drive with a file is the same one on any socket, after a kill too; another file is another drive, and so
/// is a copy, unless it was copied with what is kept beside it.
#[test]
fn names_and_counts_are_those_of_the_file() {
    let folder = Folder::new("vfu-names-file");
    // Each server is killed as it is dropped.
    let served = |socket: &str, image: &str| {
        let _server =
            serve(&folder, &[socket], &[&format!("medium.file={}", folder.path(image).display())]);
        let (before, _, _) = seen(&folder.path(socket));
        let (names, _, health) = seen(&folder.path(socket));
        assert_eq!(names, before, "another client of the same server");
        (names, [health.power_cycles.get(), health.unsafe_shutdowns.get()])
    };
    let (one, counts) = served("a", "one");
    assert_eq!(counts, [1, 0]);
    assert_eq!(served("b", "one"), (one.clone(), [2, 1]));
    let (two, counts) = served("a", "two");
    assert_eq!(counts, [1, 0]);
    let copy = |from: &str, to: &str| {
        std::fs::copy(folder.path(from), folder.path(to)).expect("a copy");
    };
    copy("one", "alone");
    let (alone, counts) = served("a", "alone");
    assert_eq!(counts, [1, 0]);
    copy("one", "moved");
    copy("one.drive", "moved.drive");
    assert_eq!(served("c", "moved"), (one.clone(), [3, 2]));
    assert_all_differ(&[one, two, alone]);
}

#[test]
fn keys_name_a_drive() {
    let folder = Folder::new("vfu-names-keys");
    let nguid = "00112233445566778899aabbccddeef0";
    let sets = ["device.serial=SN 7", "device.model=A drive", "device.eui64=0011223344556677"];
    let nguid = format!("device.nguid={nguid}");
    let sets = [&sets[..], &[nguid.as_str()]].concat();
    let _server = serve(&folder, &["a", "b"], &sets);
    let [(first, model, _), (second, ..)] = ["a", "b"].map(|socket| seen(&folder.path(socket)));
    assert_eq!(
        (first[0].as_str(), second[0].as_str(), model.as_str()),
        ("SN 7", "SN 7-1", "A drive")
    );
    assert_eq!(first[2], "[00, 11, 22, 33, 44, 55, 66, 77]");
    assert!(first[3].ends_with("ee, f0]"), "{first:?}");
    assert_all_differ(&[first, second]);
}
