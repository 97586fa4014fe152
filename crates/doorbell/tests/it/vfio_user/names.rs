//! Serial number, NQN and EUI-64 of served drives: a host rejects a drive that has another's.

use std::collections::BTreeSet;
use std::path::Path;

use wire::nvme::admin::identify;
use wire::nvme::identify::{IdentifyController, IdentifyNamespace, ascii_text, cns};
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

/// The names of a drive: serial number, NQN, EUI-64 of the namespace, and the function's Device Serial Number.
type Names = [String; 4];

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

fn names(socket: &Path) -> Names {
    let mut raw = Raw::greeted(socket);
    let file = file(3 * PAGE);
    raw.map(BASE, 3 * PAGE, 3, Some((&file, 0))).expect("a mapping");
    let page = |n: u64| (BASE + n * PAGE, file.try_clone().expect("a descriptor"), n * PAGE);
    let pages = Pages((0..3).map(page).collect());
    raw.bus_master(true);
    let (mut admin, ready) = enable(&mut raw, &pages, BASE, BASE + PAGE);
    assert!(ready);
    let mut page = |nsid, cns| {
        let sqe = identify(CommandId(1), Nsid(nsid), cns, data(AT, 0));
        assert!(perform(&mut raw, &pages, &mut admin, &sqe).is_ok());
        let mut page = [0; PAGE as usize];
        pages.read(AT, &mut page);
        page
    };
    let controller =
        IdentifyController::read_from_bytes(&page(0, cns::CONTROLLER)).expect("a page");
    let namespace = IdentifyNamespace::read_from_bytes(&page(1, cns::NAMESPACE)).expect("a page");
    let serial = ascii_text(&controller.sn).expect("ASCII").to_owned();
    let nqn = controller.subnqn.split(|byte| *byte == 0).next().expect("a part");
    let nqn = String::from_utf8(nqn.to_vec()).expect("text");
    let config = raw.read(region::CONFIG, EXTENDED + 4, 8).expect("configuration space");
    [serial, nqn, format!("{:02x?}", namespace.eui64), format!("{config:02x?}")]
}

/// Each of these differs among all drives.
fn assert_all_differ(drives: &[Names]) {
    for name in 0..4 {
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
