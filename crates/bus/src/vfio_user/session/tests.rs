//! Sessions with several device threads, and our own client.

use core::sync::atomic::{AtomicU32, Ordering};
use std::boxed::Box;
use std::format;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::{JoinHandle, spawn, yield_now};
use std::time::Duration;
use std::vec;

use runtime::{Either, Log, Rt, race};
use wire::pci::{FunctionKind, offset};
use wire::vfio_user::{DmaMap, DmaUnmap, IrqInfo, IrqSet, RegionAccess, irq, region};
use zerocopy::FromBytes;

use super::*;
use crate::live::until;
use crate::vfio_user::function::tests::function;
use crate::vfio_user::{Connection, Sharing, VfioUserDevice, Why, connect};
use crate::{Carry, DevicePort, DmaError, Posting, Segment};

const BASE: u64 = 0x10_0000;
const BYTES: u64 = 0x1_0000;
const PAGE: u64 = 4096;
/// A register that the client can read only.
const REGISTER: u32 = 0x1c;
/// Flags of an [`IrqSet`]: action "trigger", data type "none" or "eventfd".
const TRIGGER: u32 = 1 << 5 | 1;
const SIGNAL: u32 = 1 << 5 | 1 << 2;
/// Timeout of everything that must happen.
const LATE: Duration = Duration::from_secs(10);
/// Time in which a thing that must not happen would happen.
const SOON: Span = Span::ms(100);

/// Executor and port of a device thread.
struct Device {
    rt: Rt,
    port: VfioUserDevice,
}

type Job = Box<dyn FnOnce(&mut Device) + Send>;

impl Device {
    /// Body of a device thread: attends, and runs jobs, until the client or the sender of jobs is gone.
    fn run(end: DeviceEnd, jobs: &Receiver<Job>, resets: &AtomicU32) {
        let rt = Rt::live(&STD_CLOCK, None, Log::Off);
        let mut device = Device { port: end.port(&rt), rt };
        loop {
            let job = until(&device.rt, || match jobs.try_recv() {
                Ok(job) => Some(Some(job)),
                Err(TryRecvError::Disconnected) => Some(None),
                Err(TryRecvError::Empty) => None,
            });
            match device.rt.block_on(race(device.port.attend(), job)) {
                Either::First(Why::Reset) => {
                    resets.fetch_add(1, Ordering::Relaxed);
                    device.restart();
                }
                Either::First(Why::Left) | Either::Second(None) => return,
                Either::Second(Some(job)) => job(&mut device),
            }
        }
    }

    fn restart(&mut self) {
        self.rt = Rt::live(&STD_CLOCK, None, Log::Off);
        self.port = self.port.clone().restart(&self.rt);
    }

    /// Completes an operation of the port, and attends meanwhile.
    fn complete<T>(&self, operation: impl Future<Output = T>) -> T {
        let stopped = race(self.port.attend(), self.rt.sleep(Span::s(5)));
        match self.rt.block_on(race(operation, stopped)) {
            Either::First(result) => result,
            Either::Second(why) => panic!("not completed: {why:?}"),
        }
    }

    fn read(&self, at: u64) -> Result<Vec<u8>, DmaError> {
        let (from, mut to) = ([page(at)], vec![0; PAGE as usize]);
        self.complete(self.port.read(&from, &mut to, Carry::All)).map(|()| to)
    }

    fn write(&self, at: u64, byte: u8) -> Result<(), DmaError> {
        let data = filled(byte);
        self.complete(self.port.write(&[page(at)], &data[..], Posting::STRICT, Time::ZERO))
    }
}

fn page(at: u64) -> Segment {
    Segment { at: BusAddr(at), bytes: PAGE as u32 }
}

fn filled(byte: u8) -> Vec<u8> {
    vec![byte; PAGE as usize]
}

/// The first result within [`LATE`].
fn awaited<T>(mut check: impl FnMut() -> Option<T>) -> T {
    let begun = STD_CLOCK.now();
    loop {
        if let Some(found) = check() {
            return found;
        }
        assert!(STD_CLOCK.now().since(begun) < Span::s(10), "it does not happen");
        yield_now();
    }
}

fn sleep(span: Span) {
    let end = STD_CLOCK.now() + span;
    while STD_CLOCK.now() < end {
        STD_CLOCK.sleep_for(end);
    }
}

/// A session between a client, in most tests ours, and a device of several threads.
struct Served<C = Connection> {
    connection: C,
    jobs: Vec<Sender<Job>>,
    /// Resets of each thread. The client resets the device when it connects.
    resets: Arc<[AtomicU32; 2]>,
    session: JoinHandle<Ended>,
}

impl<C: Send + 'static> Served<C> {
    fn by(
        name: &str,
        threads: usize,
        connect: impl FnOnce(&Path) -> C + Send + 'static,
    ) -> Served<C> {
        let name = format!("doorbell-threads-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let server = Server::bind(&path).unwrap();
        let connecting = spawn(move || connect(&path));
        let mut session = server.accept_for(&function(), threads).unwrap();
        let (mut jobs, resets) = (Vec::new(), Arc::<[AtomicU32; 2]>::default());
        for (number, end) in session.device_ends().into_iter().enumerate() {
            let ((give, take), resets) = (channel(), resets.clone());
            spawn(move || Device::run(end, &take, &resets[number]));
            jobs.push(give);
        }
        let session = spawn(move || session.run(&server));
        Served { connection: connecting.join().unwrap(), jobs, resets, session }
    }

    /// Begins a job on a device thread.
    fn begin<T: Send + 'static>(
        &self,
        device: usize,
        job: impl FnOnce(&mut Device) -> T + Send + 'static,
    ) -> Receiver<T> {
        let (give, take) = channel();
        self.jobs[device].send(Box::new(move |device| drop(give.send(job(device))))).unwrap();
        take
    }

    /// Result of a job on a device thread.
    fn on<T: Send + 'static>(
        &self,
        device: usize,
        job: impl FnOnce(&mut Device) -> T + Send + 'static,
    ) -> T {
        self.begin(device, job).recv_timeout(LATE).unwrap()
    }

    /// Keeps a device thread from attending until the sender is dropped. Then it runs the job.
    fn hold<T: Send + 'static>(
        &self,
        device: usize,
        job: impl FnOnce(&mut Device) -> T + Send + 'static,
    ) -> (Sender<()>, Receiver<T>) {
        let ((begin, begun), (release, released)) = (channel(), channel::<()>());
        let result = self.begin(device, move |device| {
            begin.send(()).unwrap();
            let _ = released.recv();
            job(device)
        });
        begun.recv_timeout(LATE).unwrap();
        (release, result)
    }

    /// The client disconnects. The second device thread ends after the first.
    fn disconnect(self) -> Ended {
        let Served { connection, mut jobs, session, .. } = self;
        drop(connection);
        // The first thread ends by itself.
        awaited(|| jobs[0].send(Box::new(|_| ())).is_err().then_some(()));
        jobs.clear();
        awaited(|| session.is_finished().then_some(()));
        session.join().unwrap()
    }
}

impl Served {
    fn new(name: &str, threads: usize, sharing: Sharing) -> Served {
        Served::by(name, threads, move |path| {
            connect(path, FunctionKind::NVME, BYTES as usize, BusAddr(BASE), sharing).unwrap()
        })
    }

    fn call(&self, command: u16, parts: &[&[u8]]) -> Result<Vec<u8>, SessionError> {
        self.connection.link.call(command, parts, &[]).map(|(payload, _)| payload)
    }

    /// Sends a command, of which there must be no reply while a device thread is held.
    fn is_held(
        &self,
        device: usize,
        command: u16,
        parts: &[&[u8]],
        first_is_done: impl Fn() -> bool,
    ) {
        let (release, read) = self.hold(device, |device| {
            let mut bytes = filled(0);
            device.rt.block_on(device.port.read(&[page(BASE)], &mut bytes, Carry::All))
        });
        let id = self.connection.link.send(command, parts, &[], false).unwrap();
        awaited(|| first_is_done().then_some(()));
        sleep(SOON);
        assert!(self.connection.link.reply(id).is_none(), "before the answer of thread {device}");
        drop(release);
        assert_eq!(read.recv_timeout(LATE).unwrap(), Ok(()), "it has not attended yet");
        let reply = awaited(|| self.connection.link.reply(id));
        assert_eq!(reply.header.failed(), None);
    }

    fn set_irqs(
        &self,
        which: (u32, u32),
        start: u32,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), SessionError> {
        let set = irq_set(which, start);
        self.connection.link.call(command::SET_IRQS, &[set.as_bytes()], fds).map(|_| ())
    }

    fn write_config(&self, at: usize, bytes: &[u8]) {
        let access = config_access(at, bytes.len());
        self.call(command::REGION_WRITE, &[access.as_bytes(), bytes]).unwrap();
    }

    fn interrupts(&self, vector: usize) -> u32 {
        self.connection.link.interrupts[vector].load(Ordering::Acquire)
    }

    fn resets(&self) -> [u32; 2] {
        [0, 1].map(|device| self.resets[device].load(Ordering::Relaxed))
    }
}

impl Channel {
    fn received(&self) -> Message {
        self.receive(Span::s(5), limits::MESSAGE).unwrap().unwrap()
    }

    fn call(&self, command: u16, parts: &[&[u8]], fds: &[BorrowedFd<'_>]) {
        let bytes = parts.iter().map(|part| part.len()).sum();
        self.send(&Header::command(1, command, bytes), parts, fds).unwrap();
        assert_eq!(self.received().header.failed(), None);
    }

    fn negotiated(self) -> Channel {
        let version = Version { major: VERSION_MAJOR.into(), minor: VERSION_MINOR.into() };
        self.call(command::VERSION, &[version.as_bytes(), version::ours(1).as_bytes()], &[]);
        self
    }
}

fn irq_set((flags, index): (u32, u32), start: u32) -> IrqSet {
    IrqSet {
        argsz: (size_of::<IrqSet>() as u32).into(),
        flags: flags.into(),
        index: index.into(),
        start: start.into(),
        count: 1.into(),
    }
}

fn map() -> DmaMap {
    DmaMap {
        argsz: (size_of::<DmaMap>() as u32).into(),
        flags: 0b11.into(),
        offset: 0.into(),
        address: BASE.into(),
        size: BYTES.into(),
    }
}

fn config_access(at: usize, bytes: usize) -> RegionAccess {
    RegionAccess {
        offset: (at as u64).into(),
        region: region::CONFIG.into(),
        count: (bytes as u32).into(),
    }
}

fn unmap() -> DmaUnmap {
    DmaUnmap {
        argsz: (size_of::<DmaUnmap>() as u32).into(),
        flags: 0.into(),
        address: BASE.into(),
        size: BYTES.into(),
    }
}

#[test]
fn unmap_is_answered_after_all_device_threads_have_unmapped() {
    let served = Served::new("unmap", 2, Sharing::Mapped);
    for (device, byte) in [(0, 1), (1, 2)] {
        let memory = &served.connection.memory;
        memory.write(BusAddr(BASE), &filled(byte)).unwrap();
        assert_eq!(served.on(device, |device| device.read(BASE)), Ok(filled(byte)));
        assert_eq!(served.on(device, move |device| device.write(BASE + PAGE, byte)), Ok(()));
        let mut bytes = filled(0);
        memory.read(BusAddr(BASE + PAGE), &mut bytes).unwrap();
        assert_eq!(bytes, filled(byte));
    }
    let unmapped = |device| served.on(device, |device| device.read(BASE)).is_err();
    for (at, bytes) in [(BASE, PAGE), (BASE, 2 * BYTES), (0, BASE + BYTES)] {
        let other = DmaUnmap { address: at.into(), size: bytes.into(), ..unmap() };
        let refused = served.call(command::DMA_UNMAP, &[other.as_bytes()]);
        assert!(matches!(refused, Err(SessionError::Refused { errno: errno::ENOENT, .. })));
        assert!(!unmapped(0) && !unmapped(1), "nothing is unmapped by another range");
    }
    served.is_held(1, command::DMA_UNMAP, &[unmap().as_bytes()], || unmapped(0));
    assert!(unmapped(0) && unmapped(1));
    let again = served.call(command::DMA_UNMAP, &[unmap().as_bytes()]);
    assert!(matches!(again, Err(SessionError::Refused { errno: errno::ENOENT, .. })));
    assert!(matches!(served.disconnect(), Ended::Gone));
}

#[test]
fn bus_mastering_is_a_state_of_all_device_threads() {
    let served = Served::new("master", 2, Sharing::Mapped);
    let reads = || [0, 1].map(|device| served.on(device, |device| device.read(BASE)).is_ok());
    assert_eq!(reads(), [true; 2]);
    served.write_config(offset::COMMAND, &[0, 0]);
    assert_eq!(reads(), [false; 2]);
    served.write_config(offset::COMMAND, &[4, 0]);
    assert_eq!(reads(), [true; 2]);
    assert!(matches!(served.disconnect(), Ended::Gone));
}

#[test]
fn every_device_thread_signals_vectors_and_client_triggers_once() {
    let served = Served::new("vectors", 2, Sharing::Mapped);
    for (device, vector) in [(0, 3), (1, 3), (1, 5)] {
        served.on(device, move |device| device.port.interrupt(vector));
    }
    awaited(|| ((served.interrupts(3), served.interrupts(5)) == (2, 1)).then_some(()));
    served.set_irqs((TRIGGER, irq::MSIX), 7, &[]).unwrap();
    awaited(|| (served.interrupts(7) > 0).then_some(()));
    sleep(SOON);
    assert_eq!(served.interrupts(7), 1);
    assert!(matches!(served.disconnect(), Ended::Gone));
}

#[test]
fn interrupt_pin_exists_with_one_device_thread_only() {
    for (threads, pins) in [(1, 1), (2, 0)] {
        let served = Served::new("pin", threads, Sharing::Mapped);
        let access = config_access(offset::INTERRUPT + 1, 1);
        let pin = served.call(command::REGION_READ, &[access.as_bytes()]).unwrap();
        assert_eq!(pin[size_of::<RegionAccess>()..], [pins]);
        let info = IrqInfo { argsz: 16.into(), index: irq::INTX.into(), ..IrqInfo::default() };
        let info = served.call(command::IRQ_INFO, &[info.as_bytes()]).unwrap();
        let (info, _) = IrqInfo::read_from_prefix(&info).unwrap();
        assert_eq!(info.count.get(), u32::from(pins));
        let counter = Eventfd::new().unwrap();
        for (flags, fds) in [(SIGNAL, &[counter.as_fd()][..]), (TRIGGER, &[])] {
            match served.set_irqs((flags, irq::INTX), 0, fds) {
                Ok(()) => assert_eq!(threads, 1),
                Err(SessionError::Refused { errno, .. }) => {
                    assert_eq!((threads, errno), (2, errno::EINVAL));
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert!(matches!(served.disconnect(), Ended::Gone));
    }
}

/// The client fills a counter and reverts it to blocking.
#[test]
fn blocked_second_device_thread_is_unblocked() {
    let served = Served::new("blocked", 2, Sharing::Mapped);
    let counter = Eventfd::new().unwrap();
    served.set_irqs((SIGNAL, irq::MSIX), 9, &[counter.as_fd()]).unwrap();
    let clone = || counter.as_fd().try_clone_to_owned().unwrap();
    File::from(clone()).write_all(&(u64::MAX - 1).to_ne_bytes()).unwrap();
    // The system call behind it (ioctl(2), FIONBIO) is the same for every descriptor.
    let any: OwnedFd = clone();
    UnixStream::from(any).set_nonblocking(false).unwrap();
    let raised = served.begin(1, |device| device.port.interrupt(9));
    sleep(SOON);
    assert!(raised.try_recv().is_err(), "it is blocked");
    assert!(matches!(served.disconnect(), Ended::Gone));
    assert_eq!(raised.try_recv(), Ok(()));
}

#[test]
fn replies_reach_the_device_thread_that_has_sent_the_message() {
    let served = Served::new("messages", 2, Sharing::Messages);
    for device in [0, 1] {
        let own = BusAddr(BASE + device * PAGE);
        served.connection.memory.write(own, &filled(device as u8 + 1)).unwrap();
    }
    let reads = [0, 1].map(|device| {
        served.begin(device, move |thread| {
            (0..200).all(|_| {
                let read = thread.read(BASE + device as u64 * PAGE);
                read == Ok(filled(device as u8 + 1))
            })
        })
    });
    assert!(reads.iter().all(|read| read.recv_timeout(LATE).unwrap()));
    assert!(matches!(served.disconnect(), Ended::Gone));
}

/// A client that replies late.
#[test]
fn interrupt_waits_for_writes_of_its_own_device_thread() {
    let served = Served::by("posted", 2, |path| {
        Channel::new(UnixStream::connect(path).unwrap()).unwrap().negotiated()
    });
    let (client, counter) = (&served.connection, Eventfd::new().unwrap());
    client.call(command::DMA_MAP, &[map().as_bytes()], &[]);
    let set = irq_set((SIGNAL, irq::MSIX), 3);
    client.call(command::SET_IRQS, &[set.as_bytes()], &[counter.as_fd()]);
    let access = config_access(offset::COMMAND, 2);
    client.call(command::REGION_WRITE, &[access.as_bytes(), &[4, 0]], &[]);
    let [_, write] = [0, 1].map(|device| {
        let publish = |thread: &mut Device| thread.port.publish(BusAddr(BASE), &[0; 16], false);
        served.on(device, publish).unwrap();
        client.received()
    });
    served.on(1, |thread| thread.port.interrupt(3));
    sleep(SOON);
    assert_eq!(counter.take(), 0);
    // The first thread's write stays without a reply, and that thread does not attend.
    let (release, _) = served.hold(0, |_| ());
    let parts = &write.payload[..size_of::<DmaAccess>()];
    client.send(&write.header.reply(parts.len()), &[parts], &[]).unwrap();
    awaited(|| (counter.take() == 1).then_some(()));
    drop(release);
    assert!(matches!(served.disconnect(), Ended::Gone));
}

#[test]
fn reset_stops_first_device_thread_and_clears_registers_once() {
    let served = Served::new("reset", 2, Sharing::Mapped);
    assert_eq!(served.resets(), [1, 0]);
    let store = |word| served.on(0, move |device| device.port.store(REGISTER, word));
    let loads = || [0, 1].map(|device| served.on(device, |device| device.port.load(REGISTER)));
    store(7);
    assert_eq!(loads(), [7; 2]);
    served.call(command::RESET, &[]).unwrap();
    assert_eq!((served.resets(), loads()), ([2, 0], [0; 2]));
    store(9);
    served.on(1, Device::restart);
    sleep(SOON);
    assert_eq!(loads(), [9; 2]);
    // A function-level reset is a change of the configuration space too: all threads answer.
    let access = config_access(offset::EXPRESS + 9, 1);
    let is_reset = || served.resets() == [3, 0];
    served.is_held(1, command::REGION_WRITE, &[access.as_bytes(), &[0x80]], is_reset);
    assert_eq!((served.resets(), loads()), ([3, 0], [0; 2]));
    served.call(command::DMA_UNMAP, &[unmap().as_bytes()]).unwrap();
    assert!(matches!(served.disconnect(), Ended::Gone));
}

#[test]
fn session_ends_with_any_device_thread_and_waits_for_all() {
    for ending in [1, 0] {
        let mut served = Served::new("ended", 2, Sharing::Mapped);
        let other = 1 - ending;
        let (release, _) = served.hold(other, |_| ());
        let unused = channel().0;
        // The thread ends with its sender, as it would by a panic.
        drop(core::mem::replace(&mut served.jobs[ending], unused));
        sleep(SOON);
        assert!(!served.session.is_finished(), "before the end of thread {other}");
        drop(release);
        if other == 1 {
            served.jobs.clear();
        }
        awaited(|| served.session.is_finished().then_some(()));
        assert!(matches!(served.session.join().unwrap(), Ended::Device));
        awaited(|| served.connection.is_gone().then_some(()));
    }
}
