//! A hostile client: messages drawn from a seed, most of them almost valid, with descriptors of every
//! kind, while a half-initialized controller executes random queue entries. The server must continue,
//! answer every command or close the connection, and write no page that was not mapped for it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;

use runtime::Rng;
use wire::nvme::admin::{self, CreateCq, CreateSq, Priority};
use wire::nvme::entry::{DataPointer, Sqe};
use wire::nvme::identify::cns;
use wire::nvme::io;
use wire::nvme::registers::{ACQ, AQA, ASQ, CC, CSTS, Cc};
use wire::vfio_user::{DmaAccess, DmaMap, DmaUnmap, Header, IrqSet, RegionAccess, command};
use wire::{BusAddr, CommandId, Lba, Nsid, QueueId};
use zerocopy::{FromBytes, IntoBytes};

use crate::common::Folder;
use crate::common::Server;
use crate::vfio_user::env_or;
use crate::vfio_user::raw::{Answer, Raw, eventfd, file, send_with};
use crate::vfio_user::serving::serve;

const PAGE: u64 = 4096;
/// Pages of each file of the client; then the number of files.
const PAGES: u64 = 16;
const FILES: usize = 4;
/// Bus pages at which things are mapped: few, so that mappings overlap.
const PLACES: u64 = 64;
/// Maximum number of messages of one connection.
const MESSAGES: u64 = 600;
/// Errors that such a client must provoke: not found, already mapped, invalid, not supported.
const MET: [u32; 4] = [2, 17, 22, 95];
/// Content of a page that the server may not write.
const GUARD: u8 = 0xa5;

struct Client {
    raw: Raw,
    rng: Rng,
    files: Vec<File>,
    /// Pages that the server may have been allowed to write, by file.
    open: BTreeSet<(usize, u64)>,
    /// Pages that the client itself has filled.
    filled: BTreeSet<(usize, u64)>,
    /// The same file, read-only; a file that is not memory; one end of a pipe; a counter.
    others: Vec<OwnedFd>,
    /// Commands without an answer so far.
    owed: u64,
    /// Messages to be sent together.
    batch: Vec<u8>,
    sent: u64,
    /// Accesses of the server by messages: counted, not checked.
    accesses: u64,
    errors: BTreeMap<u32, u64>,
}

/// Whether the connection is still open.
type Connection = Result<(), ()>;

impl Client {
    fn new(server: &Server, rng: Rng) -> Client {
        let files: Vec<File> = (0..FILES).map(|_| file(PAGES * PAGE)).collect();
        for file in &files {
            file.write_all_at(&vec![GUARD; (PAGES * PAGE) as usize], 0).expect("our own file");
        }
        let null = File::options().read(true).write(true).open("/dev/null").expect("a device");
        let others = vec![
            null.into(),
            UnixStream::pair().expect("sockets").0.into(),
            eventfd(0),
            File::open("/proc/self/exe").expect("this program").into(),
        ];
        Client {
            raw: Raw::connect(&server.socket),
            rng,
            files,
            open: BTreeSet::new(),
            filled: BTreeSet::new(),
            others,
            owed: 0,
            batch: Vec::new(),
            sent: 0,
            accesses: 0,
            errors: BTreeMap::new(),
        }
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.rng.below(n) == 0
    }

    /// A number near a boundary in most cases.
    fn number(&mut self) -> u64 {
        let bit = 1_u64 << self.rng.below(64);
        match self.rng.below(6) {
            0 => self.rng.below(9),
            1 => bit,
            2 => bit.wrapping_sub(1),
            3 => u64::MAX - self.rng.below(9),
            4 => self.rng.below(0x1_0000),
            _ => self.rng.next_u64(),
        }
    }

    /// Adds a command to the batch.
    fn add_command(&mut self, command: u16, parts: &[&[u8]], fds: &[usize]) -> Connection {
        let bytes = parts.iter().map(|part| part.len()).sum();
        let mut header = Header::command(self.rng.next_u64() as u16, command, bytes);
        let silent = self.one_in(40);
        if silent {
            header.flags = (1 << 4).into();
        }
        self.owed += u64::from(!silent);
        self.sent += 1;
        let begin = self.batch.len();
        self.batch.extend_from_slice(header.as_bytes());
        parts.iter().for_each(|part| self.batch.extend_from_slice(part));
        if !fds.is_empty() {
            // Descriptors have to arrive with the message that they belong to.
            let message = self.batch.split_off(begin);
            self.flush()?;
            let all: Vec<BorrowedFd<'_>> = self
                .files
                .iter()
                .map(File::as_fd)
                .chain(self.others.iter().map(AsFd::as_fd))
                .collect();
            let fds: Vec<_> = fds.iter().map(|n| all[*n]).collect();
            send_with(&self.raw.socket, &message, &fds).map_err(|_| ())?;
        }
        if self.batch.len() > 8 << 10 || self.owed > 60 {
            self.receive_all()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Connection {
        let batch = std::mem::take(&mut self.batch);
        (&self.raw.socket).write_all(&batch).map_err(|_| ())
    }

    /// Receives answers until none is owed.
    fn receive_all(&mut self) -> Connection {
        self.flush()?;
        while self.owed > 0 {
            let answer = self.raw.receive().ok_or(())?;
            if answer.header.is_command() {
                self.access(&answer)?;
                continue;
            }
            self.owed -= 1;
            if let Some(error) = answer.header.failed() {
                *self.errors.entry(error).or_default() += 1;
            }
        }
        Ok(())
    }

    /// Answers a memory access of the server, correctly or not.
    fn access(&mut self, asked: &Answer) -> Connection {
        self.accesses += 1;
        let access = DmaAccess::read_from_prefix(&asked.payload).expect("an access").0;
        let count = access.count.get();
        assert!(count <= 1 << 20, "no more than a message carries");
        let reads = asked.header.command.get() == command::DMA_READ;
        let mut back = vec![0; if reads { count as usize } else { 0 }];
        self.entries(&mut back);
        let mut header = asked.header.reply(16 + back.len());
        match self.rng.below(30) {
            0 => header = asked.header.failure(14),
            1 => {
                back.truncate(back.len() / 2);
                header = asked.header.reply(16 + back.len());
            }
            _ => {}
        }
        let mut message = header.as_bytes().to_vec();
        if header.failed().is_none() {
            message.extend_from_slice(access.as_bytes());
            message.extend_from_slice(&back);
        }
        (&self.raw.socket).write_all(&message).map_err(|_| ())
    }

    /// A bus address in the range of mappings, aligned to a page in most cases.
    fn place(&mut self) -> u64 {
        let page = self.rng.below(PLACES) * PAGE;
        if self.one_in(30) { self.number() } else { page }
    }

    fn map(&mut self) -> Connection {
        let (at, pages) = (self.place(), 1 + self.rng.below(PAGES));
        let (number, first) = (self.rng.below(8) as usize, self.rng.below(PAGES));
        let flags =
            if self.one_in(20) { self.number() as u32 } else { 1 + self.rng.below(3) as u32 };
        let odd = self.one_in(20);
        let map = DmaMap {
            argsz: 32.into(),
            flags: flags.into(),
            offset: if odd { self.number() } else { first * PAGE }.into(),
            address: at.into(),
            size: if self.one_in(20) { self.number() } else { pages * PAGE }.into(),
        };
        let fds: &[usize] = match self.rng.below(8) {
            0 | 1 => &[],
            2 => &[number, 7 - number],
            _ => &[number],
        };
        if let [number] = fds
            && *number < FILES
            && flags & 2 != 0
        {
            let (begin, size) = (map.offset.get() / PAGE, map.size.get() / PAGE);
            let end = begin.saturating_add(size).min(PAGES);
            self.open.extend((begin..end).map(|page| (*number, page)));
        }
        let fds = fds.to_vec();
        self.add_command(command::DMA_MAP, &[map.as_bytes()], &fds)
    }

    /// A whole file, at a free place; half of its pages read-only.
    fn map_all(&mut self) -> Connection {
        let unmap = DmaUnmap { argsz: 24.into(), flags: 2.into(), ..DmaUnmap::default() };
        self.add_command(command::DMA_UNMAP, &[unmap.as_bytes()], &[])?;
        let (number, half) = (self.rng.below(FILES as u64) as usize, PAGES / 2);
        for (first, flags) in [(0, 3), (half, 1)] {
            let map = DmaMap {
                argsz: 32.into(),
                flags: flags.into(),
                offset: (first * PAGE).into(),
                address: (first * PAGE).into(),
                size: (half * PAGE).into(),
            };
            self.add_command(command::DMA_MAP, &[map.as_bytes()], &[number])?;
        }
        self.open.extend((0..half).map(|page| (number, page)));
        Ok(())
    }

    fn unmap(&mut self) -> Connection {
        let all = self.one_in(6);
        let (at, pages) = (self.place(), 1 + self.rng.below(PAGES));
        let unmap = DmaUnmap {
            argsz: 24.into(),
            flags: if all { 2 } else { 0 }.into(),
            address: if all { 0 } else { at }.into(),
            size: if all { 0 } else { pages * PAGE }.into(),
        };
        self.add_command(command::DMA_UNMAP, &[unmap.as_bytes()], &[])
    }

    fn irqs(&mut self) -> Connection {
        let set = IrqSet {
            argsz: 20.into(),
            flags: (1 << self.rng.below(3) | 8 << self.rng.below(3)).into(),
            index: (self.rng.below(5) as u32).into(),
            start: if self.one_in(10) { self.number() as u32 } else { self.rng.below(8) as u32 }
                .into(),
            count: if self.one_in(10) { self.number() as u32 } else { self.rng.below(4) as u32 }
                .into(),
        };
        let count = set.count.get().min(20) as usize;
        let fds = match self.rng.below(3) {
            0 => Vec::new(),
            // The counter, the only valid descriptor here.
            1 => vec![FILES + 2; count],
            _ => (0..count).map(|_| self.rng.below(8) as usize).collect(),
        };
        let data = vec![1; self.rng.below(9) as usize];
        self.add_command(command::SET_IRQS, &[set.as_bytes(), &data], &fds)
    }

    fn region(&mut self) -> Connection {
        let register = [CC, AQA, ASQ, ACQ, 0x1c, 0x1000, 0x1004, 0x1008, 0x100c, 4, 0x52, 0x68];
        let place = register[self.rng.below(register.len() as u64) as usize];
        let region = if self.one_in(4) { self.rng.below(10) as u32 } else { 0 };
        let at = if self.one_in(6) { self.number() } else { u64::from(place) };
        let bytes = [1, 2, 4, 8, 4, 4, 0, 64][self.rng.below(8) as usize];
        let odd = self.one_in(30);
        let access = RegionAccess {
            offset: at.into(),
            region: region.into(),
            count: if odd { self.number() as u32 } else { bytes }.into(),
        };
        let value = if self.one_in(3) { self.number() } else { self.rng.below(17) };
        let data = [value.to_le_bytes(); 8].concat();
        match self.rng.below(3) {
            0 => self.add_command(command::REGION_READ, &[access.as_bytes()], &[]),
            _ => {
                let data = &data[..bytes as usize];
                self.add_command(command::REGION_WRITE, &[access.as_bytes(), data], &[])
            }
        }
    }

    fn write(&mut self, register: u32, value: &[u8]) -> Connection {
        let access = crate::vfio_user::raw::access(0, register.into(), value.len() as u32);
        self.add_command(command::REGION_WRITE, &[access.as_bytes(), value], &[])
    }

    /// Maps memory, enables a controller, and fills its queues.
    fn set_up(&mut self) -> Connection {
        self.add_command(
            command::REGION_WRITE,
            &[crate::vfio_user::raw::access(7, 4, 2).as_bytes(), &[6, 0]],
            &[],
        )?;
        let sensible = self.one_in(2);
        if sensible {
            self.map_all()?;
        }
        for _ in 0..1 + self.rng.below(6) {
            self.map()?;
        }
        self.write(AQA, &(15_u32 << 16 | 15).to_le_bytes())?;
        for register in [ASQ, ACQ] {
            let at = self.rng.below(if sensible { PAGES } else { PLACES }) * PAGE;
            self.write(register, &at.to_le_bytes())?;
        }
        self.write(CC, &0_u32.to_le_bytes())?;
        self.await_ready(false)?;
        let cc = Cc::new().with_en(true).with_iosqes(6).with_iocqes(4);
        self.write(CC, &cc.into_bits().to_le_bytes())?;
        self.fill();
        if !self.one_in(4) {
            self.await_ready(true)?;
        }
        for doorbell in [0x1000, 0x1004, 0x1008, 0x100c] {
            let value = self.rng.below(17) as u32;
            self.write(doorbell, &value.to_le_bytes())?;
        }
        Ok(())
    }

    /// Polls for a while until the controller is ready, or not.
    fn await_ready(&mut self, wanted: bool) -> Connection {
        for _ in 0..50 {
            self.receive_all()?;
            let access = crate::vfio_user::raw::access(0, CSTS.into(), 4);
            self.add_command(command::REGION_READ, &[access.as_bytes()], &[])?;
            self.flush()?;
            while self.owed > 0 {
                let answer = self.raw.receive().ok_or(())?;
                if answer.header.is_command() {
                    self.access(&answer)?;
                    continue;
                }
                self.owed -= 1;
                if answer.payload.len() == 20 && (answer.payload[16] & 1 != 0) == wanted {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Queue entries, almost valid, over pages that the server may write.
    fn fill(&mut self) {
        let Some(&(number, page)) = self.open.iter().nth(self.rng.below(8) as usize) else {
            return;
        };
        let mut bytes = [0; PAGE as usize];
        self.entries(&mut bytes);
        let _ = self.files[number].write_all_at(&bytes, page * PAGE);
        self.filled.insert((number, page));
    }

    fn entries(&mut self, to: &mut [u8]) {
        for entry in to.chunks_exact_mut(64) {
            let (cid, qid) = (CommandId(self.rng.below(9) as u16), QueueId(1));
            let (prp1, prp2) = (self.place(), self.place());
            let data = DataPointer::Prp { prp1: BusAddr(prp1), prp2: BusAddr(prp2) };
            let blocks = 1 + self.rng.below(64) as u32;
            let (size, contiguous, lba) =
                (2 + self.rng.below(30) as u32, true, Lba(self.rng.below(99)));
            let queue = BusAddr(prp1 / PAGE * PAGE);
            let sqe = match self.rng.below(8) {
                0 => admin::identify(cid, Nsid(1), cns::CONTROLLER, data),
                1 => {
                    let create = CreateCq { qid, size, vector: 3, irq_enabled: true, contiguous };
                    admin::create_cq(cid, queue, create)
                }
                2 => {
                    let priority = Priority::Urgent;
                    let create = CreateSq { qid, size, cqid: qid, priority, contiguous };
                    admin::create_sq(cid, queue, create)
                }
                3 => admin::set_feature(cid, 7, 0x0001_0001),
                4 | 5 => io::write(cid, Nsid(1), lba, blocks, false, data),
                6 => io::read(cid, Nsid(1), lba, blocks, false, data),
                _ => {
                    let mut bytes = [0; 64];
                    bytes.iter_mut().for_each(|byte| *byte = self.rng.next_u64() as u8);
                    Sqe::read_from_bytes(&bytes).expect("an entry's length")
                }
            };
            entry.copy_from_slice(sqe.as_bytes());
        }
    }

    fn noise(&mut self) -> Connection {
        let bytes: Vec<u8> = (0..self.rng.below(80)).map(|_| self.rng.next_u64() as u8).collect();
        let command = if self.one_in(2) { self.rng.below(20) } else { self.number() } as u16;
        self.add_command(command, &[&bytes], &[])
    }

    /// Sends one message, or a few.
    fn step(&mut self) -> Connection {
        match self.rng.below(100) {
            0..20 => self.map(),
            20..32 => self.unmap(),
            32..42 => self.irqs(),
            42..72 => self.region(),
            72..84 => self.noise(),
            84..92 => self.set_up(),
            92..96 => {
                self.fill();
                Ok(())
            }
            96 | 97 => self.add_command(command::RESET, &[], &[]),
            98 if self.one_in(8) => {
                let number = self.rng.below(FILES as u64) as usize;
                let length = self.rng.below(PAGES) * PAGE;
                let _ = self.files[number].set_len(length);
                // When the file is extended again, the new pages are zero, and not checked.
                self.open.extend((length / PAGE..PAGES).map(|page| (number, page)));
                let _ = self.files[number].set_len(PAGES * PAGE);
                Ok(())
            }
            99 if self.one_in(20) => {
                // A message that is neither command nor reply, or a reply to no command.
                let mut header = Header::command(1, 9, 0);
                header.flags = (1 + self.rng.below(9) as u32).into();
                self.batch.extend_from_slice(header.as_bytes());
                self.sent += 1;
                self.flush()
            }
            _ => Ok(()),
        }
    }

    fn attack(&mut self) -> Connection {
        if self.one_in(20) {
            self.noise()?;
            return self.receive_all();
        }
        let version = [0, 0, 1, 0];
        self.add_command(
            command::VERSION,
            &[&version, b"{\"capabilities\":{\"max_msg_fds\":8}}\0"],
            &[],
        )?;
        let messages = self.rng.below(MESSAGES);
        while self.sent < messages {
            self.step()?;
        }
        if self.one_in(20) {
            // Disconnects in the middle of a message.
            let header = Header::command(1, command::REGION_WRITE, 100);
            self.batch.extend_from_slice(header.as_bytes());
            return self.flush();
        }
        self.receive_all()
    }

    /// Asserts that every page not mapped for the server is unchanged. Returns the number of the other
    /// pages that the server has written.
    fn validate(&self, seed: u64) -> usize {
        let mut bytes = [0; PAGE as usize];
        for (number, file) in self.files.iter().enumerate() {
            for page in (0..PAGES).filter(|page| !self.open.contains(&(number, *page))) {
                file.read_exact_at(&mut bytes, page * PAGE).expect("our own file");
                assert!(
                    bytes == [GUARD; PAGE as usize],
                    "page {page} of file {number} was touched: DOORBELL_SEED={seed}"
                );
            }
        }
        let written = |(number, page): &&(usize, u64)| {
            let mut bytes = [0; PAGE as usize];
            let file = &self.files[*number];
            file.read_exact_at(&mut bytes, page * PAGE).expect("our own file");
            bytes != [GUARD; PAGE as usize] && bytes != [0; PAGE as usize]
        };
        self.open.difference(&self.filled).filter(written).count()
    }
}

#[test]
fn server_survives_hostile_messages_and_writes_no_foreign_page() {
    let folder = Folder::new("vfu-hostile");
    let mut server = serve(&folder, None);
    let wanted = env_or("DOORBELL_MESSAGES", 20_000);
    let (mut seed, mut sent, mut accesses) = (env_or("DOORBELL_SEED", 1), 0, 0);
    let (mut connections, mut written, mut errors) = (0, 0, BTreeMap::new());
    // Runs for the given number of messages, and until every case has occurred: DMA in both directions,
    // each error.
    let all_met = |errors: &BTreeMap<u32, u64>| MET.iter().all(|error| errors.contains_key(error));
    while sent < wanted
        || ((accesses == 0 || written == 0 || !all_met(&errors)) && sent < 100 * wanted)
    {
        let mut client = Client::new(&server, Rng::for_part(seed, "hostile client"));
        let _ = client.attack();
        sent += client.sent;
        accesses += client.accesses;
        for (error, count) in std::mem::take(&mut client.errors) {
            *errors.entry(error).or_insert(0) += count;
        }
        let _ = client.raw.socket.shutdown(std::net::Shutdown::Both);
        assert!(server.lives(), "the server has ended: DOORBELL_SEED={seed}");
        server.log_has_within("waiting for a client");
        written += client.validate(seed);
        seed += 1;
        connections += 1;
    }
    println!("{sent} messages in {connections} connections, {accesses} accesses by messages");
    println!("{written} pages that the server has written");
    println!("errors by number: {errors:?}");
    assert!(all_met(&errors), "one of {MET:?} was never met: {errors:?}");
    assert!(accesses > 0, "no memory was reached by messages");
    assert!(written > 0, "the server never wrote to memory");
    // A well-behaved client is still served.
    let mut honest = Raw::greeted(&server.socket);
    assert!(honest.read(7, 0, 4).is_ok());
}
