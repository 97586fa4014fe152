//! Versions, regions, interrupts, several clients: messages and their replies.

use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::time::Duration;

use wire::nvme::admin::identify;
use wire::nvme::identify::cns;
use wire::nvme::io;
use wire::nvme::registers::{INTMC, INTMS};
use wire::vfio_user::{
    DeviceInfo, IrqInfo, RegionInfo, SparseArea, SparseMmap, Version, command, errno, irq, region,
};
use wire::{CommandId, Nsid};
use zerocopy::{FromBytes, IntoBytes};

use crate::common::{Folder, doorbell, output_of};
use crate::vfio_user::nvme::{Pages, completion, create_pair, data, enable, perform, submit};
use crate::vfio_user::raw::{Raw, count, eventfd, file, set_blocking};
use crate::vfio_user::serving::{SETS, serve, ticks_of};

const PAGE: u64 = 4096;
const BASE: u64 = 0x10_0000;
const SIGNAL: u32 = 4 | 32;

fn with_memory(raw: &mut Raw) -> Pages {
    let memory = file(16 * PAGE);
    raw.map(BASE, 16 * PAGE, 3, Some((&memory, 0))).expect("a mapping");
    raw.bus_master(true);
    let page = |n: u64| (BASE + n * PAGE, memory.try_clone().expect("a descriptor"), n * PAGE);
    Pages((0..16).map(page).collect())
}

#[test]
fn version_is_negotiated_or_connection_closed() {
    let folder = Folder::new("vfu-version");
    let mut server = serve(&folder, None);
    let mut raw = Raw::connect(&server.socket);
    let answer = raw.greet("{\"capabilities\":{}}\0").expect("a version");
    let (version, text) = Version::read_from_prefix(&answer).expect("a version");
    assert_eq!((version.major.get(), version.minor.get()), (0, 1));
    let text = std::str::from_utf8(text.strip_suffix(&[0]).expect("a zero")).expect("text");
    let value: serde_json::Value = serde_json::from_str(text).expect("JSON");
    assert_eq!(value["capabilities"]["max_msg_fds"], 8);
    assert_eq!(value["capabilities"]["max_data_xfer_size"], 1 << 20);
    drop(raw);
    server.log_has_within("waiting for a client");
    // Without capabilities; then another version, no version, no JSON, nothing.
    let mut raw = Raw::connect(&server.socket);
    assert!(raw.greet("").is_ok());
    drop(raw);
    server.log_has_within("waiting for a client");
    for number in 0..4 {
        let mut raw = Raw::connect(&server.socket);
        let version = Version { major: u16::from(number == 0).into(), minor: 0.into() };
        match number {
            0 => raw.send(command::VERSION, &[version.as_bytes()], &[]),
            1 => raw.send(command::DEVICE_INFO, &[&[0; 16]], &[]),
            2 => raw.send(command::VERSION, &[version.as_bytes(), b"{"], &[]),
            _ => 0,
        };
        if number < 3 {
            let answer = raw.receive().expect("why not");
            assert_eq!(answer.header.failed(), Some(errno::EINVAL));
            assert!(raw.receive().is_none());
        }
        drop(raw);
        server.log_mentions("a client's greeting");
        server.expect_event("waiting for a client");
    }
    assert!(Raw::greeted(&server.socket).read(7, 0, 4).is_ok());
}

#[test]
fn device_info_regions_and_config_space() {
    let folder = Folder::new("vfu-function");
    let server = serve(&folder, None);
    let mut raw = Raw::greeted(&server.socket);
    let info = DeviceInfo { argsz: 16.into(), ..DeviceInfo::default() };
    let info = raw.call(command::DEVICE_INFO, &[info.as_bytes()], &[]).expect("an answer");
    let info = DeviceInfo::read_from_bytes(&info).expect("its length");
    assert_eq!((info.flags.get(), info.regions.get(), info.irqs.get()), (3, 9, 5));
    let sizes: Vec<u64> = (0..9)
        .map(|index: u32| {
            let info =
                RegionInfo { argsz: 32.into(), index: index.into(), ..RegionInfo::default() };
            let info = raw.call(command::REGION_INFO, &[info.as_bytes()], &[]).expect("an answer");
            RegionInfo::read_from_bytes(&info).expect("its length").size.get()
        })
        .collect();
    assert_eq!(sizes, [0x4000, 0, 0, 0, 0x1000, 0, 0, 0x1000, 0]);
    // With room in the reply: the area that may be mapped, and its file.
    let info = RegionInfo { argsz: 4096.into(), ..RegionInfo::default() };
    let id = raw.send(command::REGION_INFO, &[info.as_bytes()], &[]);
    let answer = raw.reply(id).expect("an answer");
    let (info, rest) = RegionInfo::read_from_prefix(&answer.payload).expect("its length");
    let (sparse, rest) = SparseMmap::read_from_prefix(rest).expect("its length");
    let area = SparseArea::read_from_bytes(rest).expect("its length");
    assert_eq!((info.argsz.get(), info.capabilities.get(), sparse.areas.get()), (64, 32, 1));
    assert_eq!((area.offset.get(), area.size.get()), (0x1000, 0x1000));
    // A word written there is a doorbell; the page before it is not part of the area.
    let window = std::fs::File::from(answer.fd.expect("a file"));
    window.write_all_at(&7_u32.to_le_bytes(), 0x1008).expect("the window");
    window.write_all_at(&7_u32.to_le_bytes(), 0x14).expect("the window");
    assert_eq!((raw.read32(0x1008), raw.read32(0x14)), (7, 0));
    assert!(window.set_len(0).is_err(), "the window is sealed");
    let irqs: Vec<_> = (0..5)
        .map(|index: u32| {
            let info = IrqInfo { argsz: 16.into(), index: index.into(), ..IrqInfo::default() };
            let info = raw.call(command::IRQ_INFO, &[info.as_bytes()], &[]).expect("an answer");
            let info = IrqInfo::read_from_bytes(&info).expect("its length");
            (info.flags.get(), info.count.get())
        })
        .collect();
    assert_eq!(irqs, [(7, 1), (0, 0), (1, 64), (0, 0), (0, 0)]);
    let id = raw.read(region::CONFIG, 0, 12).expect("the configuration space");
    assert_eq!(id[9..12], [2, 8, 1], "NVM Express, non-volatile memory, mass storage");
}

#[test]
fn invalid_requests_are_rejected() {
    let folder = Folder::new("vfu-refusals");
    let server = serve(&folder, None);
    let mut raw = Raw::greeted(&server.socket);
    for (region, at, bytes) in
        [(0, 0x4000, 1), (0, u64::MAX, 4), (1, 0, 1), (9, 0, 0), (7, 4095, 2)]
    {
        assert_eq!(raw.read(region, at, bytes), Err(errno::EINVAL), "{region} {at:#x} {bytes}");
        let data = vec![0; bytes as usize];
        assert_eq!(raw.write(region, at, &data), Err(errno::EINVAL), "{region} {at:#x} {bytes}");
    }
    // Far longer than a message may be: rejected before memory is allocated.
    let access = crate::vfio_user::raw::access(0, 0, u32::MAX);
    let refused = raw.call(command::REGION_READ, &[access.as_bytes()], &[]);
    assert_eq!(refused, Err(errno::EINVAL));
    for command in [0, command::REGION_IO_FDS, command::DMA_READ, 15, 16, 99, u16::MAX] {
        assert_eq!(raw.call(command, &[&[0; 32]], &[]), Err(errno::ENOTSUP), "command {command}");
    }
    let (counter, pipe) = (eventfd(0), UnixStream::pair().expect("sockets").0);
    assert_eq!(raw.irqs(irq::MSIX, SIGNAL, 0, 1, &[pipe.as_fd()]), Err(errno::EINVAL));
    assert_eq!(raw.irqs(irq::MSIX, SIGNAL, 0, 2, &[counter.as_fd()]), Err(errno::EINVAL));
    assert_eq!(raw.irqs(irq::MSIX, SIGNAL, 64, 1, &[counter.as_fd()]), Err(errno::EINVAL));
    assert_eq!(raw.irqs(irq::MSIX, 1 | 8, 0, 1, &[]), Err(errno::ENOTSUP));
    assert_eq!(raw.irqs(9, SIGNAL, 0, 1, &[counter.as_fd()]), Err(errno::EINVAL));
    assert_eq!(raw.irqs(irq::MSI, 1 | 32, 0, 0, &[]), Ok(()), "all of none are off");
    assert_eq!(raw.irqs(irq::MSIX, SIGNAL, 3, 1, &[counter.as_fd()]), Ok(()));
}

#[test]
fn interrupts_by_any_msix_vector_and_intx() {
    let folder = Folder::new("vfu-interrupts");
    let server = serve(&folder, None);
    let mut raw = Raw::greeted(&server.socket);
    let pages = with_memory(&mut raw);
    let (third, pin) = (eventfd(0), eventfd(0));
    raw.irqs(irq::MSIX, SIGNAL, 3, 1, &[third.as_fd()]).expect("a vector");
    let (mut admin, _) = enable(&mut raw, &pages, BASE, BASE + PAGE);
    let queues = (BASE + 2 * PAGE, BASE + 3 * PAGE);
    let mut io = create_pair(&mut raw, &pages, &mut admin, queues, Some(3));
    let flush = io::flush(CommandId(5), Nsid(1));
    for _ in 0..5 {
        assert!(perform(&mut raw, &pages, &mut io, &flush).is_ok());
        // The interrupt follows the entry: it may arrive a moment later.
        while count(&third) == 0 {}
    }
    // Without MSI-X, INTx; it is held until unmasked, and not signalled when disabled.
    raw.irqs(irq::MSIX, 1 | 32, 0, 0, &[]).expect("vectors off");
    raw.irqs(irq::INTX, SIGNAL, 0, 1, &[pin.as_fd()]).expect("a pin");
    assert!(perform(&mut raw, &pages, &mut io, &flush).is_ok());
    while count(&pin) == 0 {}
    assert!(perform(&mut raw, &pages, &mut io, &flush).is_ok());
    // Two messages later, the device has been enabled and disabled.
    raw.read32(0);
    raw.bus_master(true);
    assert_eq!(count(&pin), 0, "masked");
    raw.irqs(irq::INTX, 1 | 16, 0, 1, &[]).expect("unmasked");
    while count(&pin) == 0 {}
    let disable = 0x0406_u16;
    raw.write(region::CONFIG, 4, &disable.to_le_bytes()).expect("INTx disabled");
    raw.irqs(irq::INTX, 1 | 16, 0, 1, &[]).expect("unmasked");
    assert!(perform(&mut raw, &pages, &mut io, &flush).is_ok());
    raw.irqs(irq::INTX, 1 | 16, 0, 1, &[]).expect("unmasked");
    assert_eq!(count(&pin), 0, "disabled");
    raw.bus_master(true);
    while count(&pin) == 0 {}
    // The controller's own mask (NVMe base 2.0, 3.1.3.3 and 3.1.3.4), which a reset clears.
    raw.irqs(irq::INTX, 1 | 16, 0, 1, &[]).expect("unmasked");
    raw.write32(INTMS, 1);
    assert_eq!((raw.read32(INTMS), raw.read32(INTMC)), (1, 1));
    assert!(perform(&mut raw, &pages, &mut io, &flush).is_ok());
    raw.bus_master(true);
    assert_eq!(count(&pin), 0, "masked by INTMS");
    raw.write32(INTMC, 1);
    while count(&pin) == 0 {}
    assert_eq!((raw.read32(INTMS), raw.read32(INTMC)), (0, 0));
    // A client may trigger its own interrupts.
    raw.irqs(irq::INTX, 1 | 16, 0, 1, &[]).expect("unmasked");
    raw.irqs(irq::INTX, 1 | 32, 0, 1, &[]).expect("triggered");
    while count(&pin) == 0 {}
}

#[test]
fn full_interrupt_eventfd_does_not_block_server() {
    let folder = Folder::new("vfu-counter");
    let mut server = serve(&folder, None);
    let mut raw = Raw::greeted(&server.socket);
    let pages = with_memory(&mut raw);
    let full = eventfd(0);
    raw.irqs(irq::MSIX, SIGNAL, 0, 1, &[full.as_fd()]).expect("a vector");
    let file = std::fs::File::from(full.try_clone().expect("a descriptor"));
    std::io::Write::write_all(&mut &file, &(u64::MAX - 1).to_ne_bytes()).expect("it is empty");
    set_blocking(&full);
    let (mut admin, _) = enable(&mut raw, &pages, BASE, BASE + PAGE);
    let sqe = identify(CommandId(1), Nsid(0), cns::CONTROLLER, data(BASE + 4 * PAGE, 0));
    submit(&mut raw, &pages, &mut admin, &sqe);
    while completion(&pages, &mut admin).is_none() {}
    // The device now waits for room, and is freed by the next command.
    raw.reset();
    drop(raw);
    server.log_has_within("waiting for a client");
    let mut raw = Raw::greeted(&server.socket);
    let pages = with_memory(&mut raw);
    let (mut admin, _) = enable(&mut raw, &pages, BASE, BASE + PAGE);
    assert!(perform(&mut raw, &pages, &mut admin, &sqe).is_ok());
}

#[test]
fn second_client_is_rejected_and_can_reconnect() {
    let folder = Folder::new("vfu-second");
    let mut server = serve(&folder, None);
    let mut first = Raw::greeted(&server.socket);
    first.read32(0);
    let mut second = Raw::connect(&server.socket);
    assert!(second.receive().is_none(), "the connection is closed");
    first.read32(0);
    drop(first);
    server.log_has_within("waiting for a client");
    Raw::greeted(&server.socket).read32(0);
}

#[test]
fn client_that_closes_before_a_reply_has_disconnected() {
    let folder = Folder::new("vfu-closed");
    let mut server = serve(&folder, None);
    let mut raw = Raw::greeted(&server.socket);
    server.expect_event("client connected");
    // As a client that exits before it has read a reply, but at a moment of the test's choice.
    raw.socket.shutdown(Shutdown::Read).expect("a socket");
    raw.send(command::DEVICE_INFO, &[DeviceInfo::default().as_bytes()], &[]);
    server.expect_event("client disconnected");
    server.expect_event("waiting for a client");
    assert!(Raw::greeted(&server.socket).read(7, 0, 4).is_ok());
}

#[test]
fn client_stalled_mid_message_is_disconnected() {
    let folder = Folder::new("vfu-half");
    let mut server = serve(&folder, None);
    let raw = Raw::greeted(&server.socket);
    server.expect_event("client connected");
    std::io::Write::write_all(&mut &raw.socket, &[1, 0, 9, 0, 32]).expect("five bytes");
    server.log_mentions("keeps us waiting for a message, or the rest of one");
    server.expect_event("waiting for a client");
    // A header that claims more than the maximum length of a message.
    let raw = Raw::greeted(&server.socket);
    server.expect_event("client connected");
    let header = wire::vfio_user::Header::command(1, 9, 1 << 30);
    std::io::Write::write_all(&mut &raw.socket, header.as_bytes()).expect("a header");
    server.log_mentions("a message of 1073741840 bytes");
    server.expect_event("waiting for a client");
    assert!(Raw::greeted(&server.socket).read(7, 0, 4).is_ok());
}

#[test]
fn each_socket_has_a_separate_ssd() {
    let folder = Folder::new("vfu-several");
    let mut command = doorbell(&folder, &["serve", "live", "--vfio-user", "a", "--vfio-user", "b"]);
    command.args(SETS).args(["--set", "medium.file=image"]).stdout(Stdio::null());
    let mut child = command.spawn().expect("the server starts");
    let job = folder.file(
        "job.fio",
        "[w]\nrw=randwrite\nbs=4k\niodepth=16\nsize=1m\nverify=crc32c\nnumber_ios=512\n",
    );
    let job = job.display().to_string();
    while !(folder.path("a").exists() && folder.path("b").exists()) {
        std::thread::sleep(Duration::from_millis(10));
    }
    let run = |socket: &str| {
        let mut command = doorbell(
            &folder,
            &["run", &job, "--verbose", "--world", "live", "--vfio-user", socket],
        );
        command.args(SETS).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
    };
    let (a, b) = (run("a").expect("a client"), run("b").expect("a client"));
    for client in [a, b] {
        let output = client.wait_with_output().expect("its end");
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), err.as_str()), (Some(0), ""));
    }
    assert!(folder.path("image").exists() && folder.path("image.2").exists());
    child.kill().expect("the server lives");
    child.wait().expect("it has ended");
}

#[test]
fn socket_in_use_rejects_second_server() {
    let folder = Folder::new("vfu-busy");
    let _server = serve(&folder, None);
    let second = output_of(&mut doorbell(&folder, &["serve", "live", "--vfio-user", "socket"]));
    assert_eq!(second.code, Some(1));
    assert_eq!(second.err, "doorbell: socket: binding: another server listens here\n");
    let unreachable = output_of(&mut doorbell(
        &folder,
        &["run", "x.fio", "--world", "live", "--vfio-user", "nowhere"],
    ));
    assert_eq!(unreachable.code, Some(1));
}

/// An idle server uses almost no processor time: it sleeps without a client, and polls its doorbells at
/// intervals with an idle client.
#[test]
fn idle_server_uses_little_cpu() {
    let folder = Folder::new("vfu-idle");
    let server = serve(&folder, None);
    let idles = |ticks: u64| {
        (0..50).any(|_| {
            let before = ticks_of(&server);
            std::thread::sleep(Duration::from_millis(1000));
            ticks_of(&server) - before <= ticks
        })
    };
    assert!(idles(1), "it spins though unreachable is there");
    let mut raw = Raw::greeted(&server.socket);
    let pages = with_memory(&mut raw);
    enable(&mut raw, &pages, BASE, BASE + PAGE);
    // It polls, spins and yields for some tenths of a second, longer on a busy machine.
    assert!(idles(20), "it spins with an idle client");
}
