//! A client's memory in every form: one mapping, a mapping for each page, access by messages; unmapped,
//! truncated, read-only.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use wire::nvme::admin::identify;
use wire::nvme::identify::cns;
use wire::nvme::io;
use wire::nvme::registers::{CC, CSTS, Csts};
use wire::nvme::status::Status;
use wire::vfio_user::{DmaUnmap, command, errno};
use wire::{CommandId, Lba, Nsid};
use zerocopy::IntoBytes;

use crate::common::Folder;
use crate::common::system::{self, HUGE};
use crate::vfio_user::nvme::{
    Pages, completion, create_pair, data, disable, enable, perform, submit,
};
use crate::vfio_user::raw::{Raw, file};
use crate::vfio_user::serving::serve;

const PAGE: u64 = 4096;
/// Bus address of the host's memory.
const BASE: u64 = 0x1_0000_0000;
/// Admin queues, I/O queues, then data.
const PAGES: u64 = 12;

/// Access of the server to a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reached {
    Mapped,
    ByMessage,
}

/// Maps each page on its own, from a file that holds them in another order.
fn page_by_page(raw: &mut Raw, how: impl Fn(u64) -> Reached) -> Pages {
    let (mut pages, file) = (Vec::new(), file(PAGES * PAGE));
    for page in 0..PAGES {
        let (at, offset) = (BASE + page * PAGE, page * 5 % PAGES * PAGE);
        let own = || file.try_clone().expect("a descriptor");
        match how(page) {
            Reached::Mapped => raw.map(at, PAGE, 3, Some((&file, offset))).expect("a mapping"),
            Reached::ByMessage => {
                raw.map(at, PAGE, 3, None).expect("a mapping");
                raw.by_message.push((at, PAGE, own(), offset));
            }
        }
        pages.push((at, own(), offset));
    }
    Pages(pages)
}

fn whole(raw: &mut Raw, file: &File, flags: u32) -> Pages {
    raw.map(BASE, PAGES * PAGE, flags, Some((file, 0))).expect("a mapping");
    let page = |n: u64| (BASE + n * PAGE, file.try_clone().expect("a descriptor"), n * PAGE);
    Pages((0..PAGES).map(page).collect())
}

/// Identifies the controller, then writes and reads back blocks, with data that cross a page border.
fn check_io(raw: &mut Raw, pages: &Pages) {
    raw.bus_master(true);
    let (mut admin, ready) = enable(raw, pages, BASE, BASE + PAGE);
    assert!(ready);
    let half = BASE + 4 * PAGE + 2048;
    let sqe = identify(CommandId(9), Nsid(0), cns::CONTROLLER, data(half, BASE + 5 * PAGE));
    assert!(perform(raw, pages, &mut admin, &sqe).is_ok());
    let mut page = [0; 4096];
    pages.read(half, &mut page);
    assert_eq!(&page[4..12], b"DOORBELL");
    let queues = (BASE + 2 * PAGE, BASE + 3 * PAGE);
    let mut io = create_pair(raw, pages, &mut admin, queues, None);
    for round in 0..40_u64 {
        let bytes: Vec<u8> = (0..4096).map(|n| (n as u64 * 7 + round) as u8).collect();
        let (from, to) = (BASE + (6 + round % 2) * PAGE + 512, BASE + 9 * PAGE + 1024);
        pages.write(from, &bytes);
        let lba = Lba(round * 8 % 1000);
        let next = |at: u64| at / PAGE * PAGE + PAGE;
        let sqe = io::write(CommandId(1), Nsid(1), lba, 8, false, data(from, next(from)));
        assert!(perform(raw, pages, &mut io, &sqe).is_ok(), "round {round}");
        pages.write(to, &[0; 4096]);
        let sqe = io::read(CommandId(2), Nsid(1), lba, 8, false, data(to, next(to)));
        assert!(perform(raw, pages, &mut io, &sqe).is_ok(), "round {round}");
        pages.read(to, &mut page);
        assert!(page[..] == bytes, "round {round}");
    }
    disable(raw);
}

#[test]
fn dma_by_whole_mapping_page_mappings_and_messages() {
    let folder = Folder::new("vfu-memory");
    let mut server = serve(&folder, None);
    let mut raw = Raw::greeted(&server.socket);
    let file = file(PAGES * PAGE);
    let pages = whole(&mut raw, &file, 3);
    check_io(&mut raw, &pages);
    raw.unmap(Some((BASE, PAGES * PAGE))).expect("it was mapped so");
    let shapes: [fn(u64) -> Reached; 4] = [
        |_| Reached::Mapped,
        |_| Reached::ByMessage,
        |page| if page < 4 { Reached::ByMessage } else { Reached::Mapped },
        |page| if page % 2 == 0 { Reached::ByMessage } else { Reached::Mapped },
    ];
    for (number, how) in shapes.into_iter().enumerate() {
        let before = raw.answered;
        let pages = page_by_page(&mut raw, how);
        check_io(&mut raw, &pages);
        assert_eq!(raw.answered > before, number > 0, "messages where they are needed");
        raw.unmap(None).expect("everything");
        raw.by_message.clear();
        raw.reset();
    }
    assert!(server.lives());
}

#[test]
fn dma_memory_in_disk_file_uses_messages() {
    let folder = Folder::new("vfu-file");
    let server = serve(&folder, None);
    let mut raw = Raw::greeted(&server.socket);
    // It is mapped if the file system of the test keeps files in memory, and reached by messages if not.
    let path = folder.path("memory");
    let file = File::options().create_new(true).read(true).write(true).open(path).expect("a file");
    file.set_len(PAGES * PAGE).expect("room");
    let pages = whole(&mut raw, &file, 3);
    raw.by_message.push((BASE, PAGES * PAGE, file.try_clone().expect("a descriptor"), 0));
    check_io(&mut raw, &pages);
}

#[test]
fn invalid_dma_map_is_rejected_and_connection_continues() {
    let folder = Folder::new("vfu-refused");
    let server = serve(&folder, None);
    let mut raw = Raw::greeted(&server.socket);
    let memory = file(PAGES * PAGE);
    let pages = whole(&mut raw, &memory, 3);
    let some = Some((&memory, 0));
    assert_eq!(raw.map(BASE + PAGE, PAGE, 3, some), Err(errno::EEXIST));
    assert_eq!(raw.map(BASE - PAGE, 2 * PAGE, 3, None), Err(errno::EEXIST));
    assert_eq!(raw.map(BASE - 2 * PAGE, PAGE + 1, 3, None), Err(errno::EINVAL));
    assert_eq!(raw.map(0, PAGE, 0, None), Err(errno::EINVAL));
    assert_eq!(raw.map(0, PAGE, 3, Some((&memory, PAGES * PAGE))), Err(errno::EINVAL));
    assert_eq!(raw.unmap(Some((BASE, PAGE))), Err(errno::ENOENT));
    assert_eq!(raw.unmap(Some((0, PAGES * PAGE))), Err(errno::ENOENT));
    check_io(&mut raw, &pages);
}

#[test]
fn read_only_mapping_is_not_written() {
    let folder = Folder::new("vfu-readonly");
    let server = serve(&folder, None);
    let mut raw = Raw::greeted(&server.socket);
    let memory = file(PAGES * PAGE);
    let mut pages = whole(&mut raw, &memory, 3);
    let guarded = file(PAGE);
    raw.map(0x5000, PAGE, 1, Some((&guarded, 0))).expect("a mapping");
    pages.0.push((0x5000, guarded, 0));
    raw.bus_master(true);
    let (mut admin, _) = enable(&mut raw, &pages, BASE, BASE + PAGE);
    let sqe = identify(CommandId(1), Nsid(0), cns::CONTROLLER, data(0x5000, 0));
    let status = perform(&mut raw, &pages, &mut admin, &sqe);
    assert_eq!(status.kind(), Status::DATA_TRANSFER_ERROR);
    let mut page = [1; 4096];
    pages.read(0x5000, &mut page);
    assert_eq!(page, [0; 4096]);
}

#[test]
fn no_dma_without_bus_master_enable() {
    let folder = Folder::new("vfu-master");
    let server = serve(&folder, None);
    let mut raw = Raw::greeted(&server.socket);
    let memory = file(PAGES * PAGE);
    let pages = whole(&mut raw, &memory, 3);
    let (mut admin, ready) = enable(&mut raw, &pages, BASE, BASE + PAGE);
    assert!(ready, "enabling touches no memory");
    let sqe = identify(CommandId(1), Nsid(0), cns::CONTROLLER, data(BASE + 4 * PAGE, 0));
    submit(&mut raw, &pages, &mut admin, &sqe);
    while !Csts::from_bits(raw.read32(CSTS)).cfs() {}
    assert!(completion(&pages, &mut admin).is_none());
    disable(&mut raw);
    check_io(&mut raw, &pages);
}

#[test]
fn unmapped_memory_is_not_accessed() {
    let folder = Folder::new("vfu-unmapped");
    let mut server = serve(&folder, None);
    let mut raw = Raw::greeted(&server.socket);
    let memory = file(PAGES * PAGE);
    for round in 0..50 {
        let pages = whole(&mut raw, &memory, 3);
        raw.bus_master(true);
        let (mut admin, _) = enable(&mut raw, &pages, BASE, BASE + PAGE);
        for cid in 0..8 {
            let to = BASE + (4 + u64::from(cid % 8)) * PAGE;
            let sqe = identify(CommandId(cid), Nsid(0), cns::CONTROLLER, data(to, 0));
            submit(&mut raw, &pages, &mut admin, &sqe);
        }
        // At some time after the doorbells, while the command is being executed.
        for _ in 0..round % 4 {
            raw.read32(CSTS);
        }
        raw.unmap(if round % 2 == 0 { None } else { Some((BASE, PAGES * PAGE)) }).expect("ours");
        let ones = vec![0x11; (PAGES * PAGE) as usize];
        memory.write_all_at(&ones, 0).expect("our own file");
        for _ in 0..20 {
            raw.read32(CSTS);
        }
        let mut now = ones.clone();
        memory.read_exact_at(&mut now, 0).expect("our own file");
        assert!(now == ones, "round {round}");
        raw.reset();
    }
    assert!(server.lives());
}

#[test]
fn truncated_dma_memory_disconnects_only_that_client() {
    let folder = Folder::new("vfu-cut");
    let mut server = serve(&folder, None);
    for round in 0..6 {
        let mut raw = Raw::greeted(&server.socket);
        server.expect_event("client connected");
        let memory = file(PAGES * PAGE);
        let pages = whole(&mut raw, &memory, 3);
        raw.bus_master(true);
        let (mut admin, _) = enable(&mut raw, &pages, BASE, BASE + PAGE);
        // The queues, their completions, or the data.
        let page = [0, 1, 4][round % 3];
        let sqe = identify(CommandId(1), Nsid(0), cns::CONTROLLER, data(BASE + 4 * PAGE, 0));
        pages.write(BASE, sqe.as_bytes());
        memory.set_len(page * PAGE).expect("nothing keeps it from being cut");
        let rung = wire::nvme::registers::sq_tail_doorbell(wire::QueueId::ADMIN, 0);
        raw.send(
            10,
            &[crate::vfio_user::raw::access(0, rung.into(), 4).as_bytes(), &[1, 0, 0, 0]],
            &[],
        );
        while raw.receive().is_some() {}
        server.log_mentions("was cut short");
        server.expect_event("waiting for a client");
        let _ = &mut admin;
    }
    let mut raw = Raw::greeted(&server.socket);
    let memory = file(PAGES * PAGE);
    let pages = whole(&mut raw, &memory, 3);
    check_io(&mut raw, &pages);
    assert!(server.lives());
}

/// Data in a part of a huge page, the queues elsewhere.
fn identify_to_huge_pages(raw: &mut Raw, memory: &File, offset: u64) -> Status {
    let queues = file(PAGES * PAGE);
    let pages = whole(raw, &queues, 3);
    raw.map(2 * BASE, PAGE, 3, Some((memory, offset))).expect("a mapping");
    raw.bus_master(true);
    let (mut admin, _) = enable(raw, &pages, BASE, BASE + PAGE);
    let sqe = identify(CommandId(1), Nsid(0), cns::CONTROLLER, data(2 * BASE, 0));
    perform(raw, &pages, &mut admin, &sqe)
}

#[test]
fn partial_huge_page_mappings_are_unmapped_completely() {
    let Some((memory, _turn)) = system::huge_or_skip(1, "huge pages in parts") else { return };
    let folder = Folder::new("vfu-huge");
    let mut server = serve(&folder, None);
    let mut before = None;
    for round in 0..40 {
        let mut raw = Raw::greeted(&server.socket);
        assert_eq!(identify_to_huge_pages(&mut raw, &memory, 3 * PAGE), Status::SUCCESS);
        let mut page = [0; PAGE as usize];
        memory.read_exact_at(&mut page, 3 * PAGE).expect("our own file");
        assert_eq!(&page[4..12], b"DOORBELL");
        drop(raw);
        server.log_has_within("waiting for a client");
        let (_, bytes) = system::mappings(&server.child);
        // Caches of the allocator have settled by then.
        before = before.or((round == 9).then_some(bytes));
        assert!(before.is_none_or(|before| bytes < before + 10 * HUGE), "round {round}: {bytes}");
    }
}

#[test]
fn punched_huge_page_memory_disconnects_client() {
    let Some((memory, _turn)) = system::huge_or_skip(2, "huge pages cut short") else { return };
    let folder = Folder::new("vfu-huge-cut");
    let mut server = serve(&folder, None);
    let mut raw = Raw::greeted(&server.socket);
    server.expect_event("client connected");
    assert_eq!(identify_to_huge_pages(&mut raw, &memory, 0), Status::SUCCESS);
    raw.reset();
    raw.unmap(Some((BASE, PAGES * PAGE))).expect("it was mapped so");
    let queues = file(PAGES * PAGE);
    let pages = whole(&mut raw, &queues, 3);
    raw.bus_master(true);
    let _ = enable(&mut raw, &pages, BASE, BASE + PAGE);
    let sqe = identify(CommandId(1), Nsid(0), cns::CONTROLLER, data(2 * BASE, 0));
    pages.write(BASE, sqe.as_bytes());
    memory.set_len(0).expect("nothing keeps it from being cut");
    let rung = wire::nvme::registers::sq_tail_doorbell(wire::QueueId::ADMIN, 0);
    raw.send(
        10,
        &[crate::vfio_user::raw::access(0, rung.into(), 4).as_bytes(), &[1, 0, 0, 0]],
        &[],
    );
    while raw.receive().is_some() {}
    server.log_mentions("was cut short");
    server.expect_event("waiting for a client");
    assert!(server.lives());
}

#[test]
fn reset_keeps_dma_mappings_and_clears_registers() {
    let folder = Folder::new("vfu-reset");
    let server = serve(&folder, None);
    let mut raw = Raw::greeted(&server.socket);
    let memory = file(PAGES * PAGE);
    let pages = whole(&mut raw, &memory, 3);
    for how in 0..4 {
        raw.bus_master(true);
        let (mut admin, _) = enable(&mut raw, &pages, BASE, BASE + PAGE);
        let sqe = identify(CommandId(1), Nsid(0), cns::CONTROLLER, data(BASE + 4 * PAGE, 0));
        submit(&mut raw, &pages, &mut admin, &sqe);
        match how % 2 {
            0 => raw.reset(),
            // By the configuration space: device control, the bit that starts a reset.
            _ => raw.write(7, 0x68, &[0, 0x80]).expect("the configuration space"),
        }
        let zero: Vec<u32> =
            [CC, CSTS, 0x24, 0x28, 0x30, 0x1000, 0x1004].map(|r| raw.read32(r)).into();
        assert_eq!(zero, [0; 7]);
        assert_ne!(raw.read32(0), 0, "capabilities are readable at once");
    }
    check_io(&mut raw, &pages);
}

/// A controller whose admin queues are reached by messages, and that fetches an entry: returns the
/// server's read request.
fn pending_entry_read(raw: &mut Raw) -> crate::vfio_user::raw::Answer {
    let pages = page_by_page(raw, |_| Reached::ByMessage);
    raw.bus_master(true);
    let (mut admin, ready) = enable(raw, &pages, BASE, BASE + PAGE);
    assert!(ready);
    let sqe = identify(CommandId(1), Nsid(0), cns::CONTROLLER, data(BASE + 4 * PAGE, 0));
    pages.write(BASE, sqe.as_bytes());
    let _ = &mut admin;
    let rung = wire::nvme::registers::sq_tail_doorbell(wire::QueueId::ADMIN, 0);
    let access = crate::vfio_user::raw::access(0, rung.into(), 4);
    raw.send(10, &[access.as_bytes(), &[1, 0, 0, 0]], &[]);
    loop {
        let answer = raw.receive().expect("the server is there");
        if answer.header.is_command() {
            return answer;
        }
    }
}

#[test]
fn unmap_reply_waits_for_pending_dma() {
    let folder = Folder::new("vfu-under-way");
    let server = serve(&folder, None);
    let mut raw = Raw::greeted(&server.socket);
    let asked = pending_entry_read(&mut raw);
    assert_eq!(asked.header.command.get(), command::DMA_READ);
    let unmap = DmaUnmap { argsz: 24.into(), flags: 2.into(), ..DmaUnmap::default() };
    let id = raw.send(command::DMA_UNMAP, &[unmap.as_bytes()], &[]);
    // No reply while the access is pending.
    raw.socket.set_read_timeout(Some(Duration::from_millis(300))).expect("a socket");
    let early = std::io::Read::read(&mut &raw.socket, &mut [0]);
    assert_eq!(early.map_err(|e| e.kind()), Err(std::io::ErrorKind::WouldBlock));
    raw.socket.set_read_timeout(Some(Duration::from_secs(30))).expect("a socket");
    raw.serve(&asked);
    let answer = raw.receive().expect("the server is there");
    assert_eq!((answer.header.id.get(), answer.header.failed()), (id, None));
    while !Csts::from_bits(raw.read32(CSTS)).cfs() {}
}

#[test]
fn client_not_answering_dma_is_disconnected() {
    let folder = Folder::new("vfu-silent");
    let mut server = serve(&folder, None);
    let mut raw = Raw::greeted(&server.socket);
    server.expect_event("client connected");
    pending_entry_read(&mut raw);
    // A message sent after it waits too.
    let unmap = DmaUnmap { argsz: 24.into(), flags: 2.into(), ..DmaUnmap::default() };
    raw.send(command::DMA_UNMAP, &[unmap.as_bytes()], &[]);
    server.log_mentions("it does not answer: 64 bytes of its memory at 0x100000000");
    server.expect_event("waiting for a client");
    assert!(Raw::greeted(&server.socket).read(7, 0, 4).is_ok());
}
