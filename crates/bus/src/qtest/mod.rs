//! A machine of QEMU's without a processor: its qtest socket takes accesses to ports and memory, and tells
//! of interrupt lines. Hardware that nobody here wrote, for drivers that are ours.
//!
//! QEMU's memory is a file that is mapped here too (`memory-backend-file,share=on`), so that rings and
//! buffers are reached as on any live bus; registers and configuration space go over the socket, an access a
//! line of text. Writes are posted: nobody waits for their answers, which a thread takes in, and a read has
//! the answer to all that went before it. MSI-X messages go to words of that memory. QEMU's virtual clock
//! stands still unless it is [stepped](Machine::step).

mod socket;

use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::cell::Cell;
use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::sync::atomic::{Ordering, fence};
use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

use runtime::{Rt, Span};
use wire::BusAddr;

use crate::live::{Function, LiveHost, until};
use crate::pci::{MemoryAccess, PortAccess};
use crate::{Arena, Buffer, Memory, OutOfMemory};
pub use socket::LINES;
use socket::Socket;

/// No access takes longer, or the machine is gone.
const ANSWER: Span = Span::s(20);
/// Vectors of a function that are listened to.
pub const VECTORS: u16 = 64;
/// What a message writes, whatever its vector: the word that it goes to says which that is.
const MESSAGE: u32 = 1;

/// Why a machine cannot be used.
#[derive(Debug)]
pub struct QtestError(String);

impl fmt::Display for QtestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl core::error::Error for QtestError {}

/// A machine. Cheap to clone; bound to the thread of its executor.
#[derive(Clone)]
pub struct Machine(Rc<Inner>);

struct Inner {
    rt: Rt,
    socket: Socket,
    memory: Memory,
    arena: Arena,
}

impl Machine {
    /// Connects to the socket of QEMU's option `-qtest`, and maps the file of the machine's memory from
    /// `reserved` bytes on, which is what drivers may use.
    ///
    /// # Errors
    /// The file or the socket is not there, or the file holds no more than what is reserved.
    pub fn open(
        rt: &Rt,
        socket: &Path,
        memory: &Path,
        reserved: u64,
    ) -> Result<Machine, QtestError> {
        let because = |path: &Path, error: &dyn fmt::Display| {
            QtestError(std::format!("{}: {error}", path.display()))
        };
        let file = File::options().read(true).write(true).open(memory);
        let file = file.map_err(|error| because(memory, &std::format!("opening: {error}")))?;
        let bytes = file.metadata().map_err(|error| because(memory, &error))?.len();
        let Some(usable @ 1..) = bytes.checked_sub(reserved) else {
            let text = std::format!("{bytes} bytes, expected more than {reserved}");
            return Err(because(memory, &text));
        };
        let base = BusAddr(reserved);
        let mapped = Memory::map_guarded(file.as_fd(), reserved, usable as usize, base, true);
        let mapped = mapped.map_err(|error| because(memory, &error))?;
        let connected = Socket::connect(socket);
        let because_socket = |error| because(socket, &std::format!("connecting: {error}"));
        let socket = connected.map_err(because_socket)?;
        let arena = Arena::new(mapped.clone());
        Ok(Machine(Rc::new(Inner { rt: rt.clone(), socket, memory: mapped, arena })))
    }

    /// Sends a command and waits for its answer: a number, or 0 where there is none.
    async fn ask(&self, command: &str) -> Result<u64, QtestError> {
        let Inner { rt, socket, .. } = &*self.0;
        let number = socket.send(command);
        let deadline = rt.now() + ANSWER;
        let waited = until(rt, || match socket.answer(number) {
            Some(answer) => Some(answer.map_err(QtestError)),
            None if socket.is_gone() => Some(Err(QtestError(socket.why()))),
            None if rt.now() >= deadline => {
                socket.close(&std::format!("no answer to {command:?} within {ANSWER}"));
                None
            }
            None => None,
        });
        waited.await
    }

    /// Tells of the lines of this interrupt controller from now on, by its name in QEMU. They do not reach
    /// it any more.
    ///
    /// # Errors
    /// There is no such controller, or no machine.
    pub async fn intercept(&self, controller: &str) -> Result<(), QtestError> {
        self.ask(&std::format!("irq_intercept_in {controller}")).await.map(drop)
    }

    /// Lets the machine's virtual time go on.
    ///
    /// # Errors
    /// There is no machine any more.
    pub async fn step(&self, by: Span) -> Result<(), QtestError> {
        self.ask(&std::format!("clock_step {}", by.0 / 1000)).await.map(drop)
    }

    /// How often each line has been raised since the machine was opened.
    pub fn raised(&self) -> [u32; LINES] {
        core::array::from_fn(|line| self.0.socket.raised(line))
    }

    /// Whether a line is held now.
    pub fn is_held(&self, line: u8) -> bool {
        self.0.socket.is_held(line.into())
    }

    /// Memory that drivers may use.
    pub fn arena(&self) -> &Arena {
        &self.0.arena
    }

    /// How many commands it was sent.
    pub fn accesses(&self) -> u64 {
        self.0.socket.sent()
    }

    /// Why nothing answers any more; none, if it does.
    pub fn gone(&self) -> Option<String> {
        if self.0.memory.is_lost() {
            return Some("the file of its memory was cut short".to_string());
        }
        self.0.socket.is_gone().then(|| self.0.socket.why())
    }

    /// The function whose registers begin at this address. It listens to no interrupts yet.
    ///
    /// # Errors
    /// No memory is left for the words that its messages go to.
    pub fn endpoint(&self, registers: u64) -> Result<Endpoint, OutOfMemory> {
        let words = self.arena().buffer(4 * usize::from(VECTORS))?;
        words.zero();
        let interrupts = Interrupts {
            words,
            counts: (0..VECTORS).map(|_| Cell::new(0)).collect(),
            line: Cell::new(None),
        };
        Ok(Endpoint { machine: self.clone(), registers, interrupts: Rc::new(interrupts) })
    }
}

impl PortAccess for &Machine {
    async fn port_read(&self, at: u16) -> u32 {
        self.ask(&std::format!("inl {at:#x}")).await.map_or(u32::MAX, |value| value as u32)
    }

    async fn port_write(&self, at: u16, value: u32) {
        self.0.socket.send(&std::format!("outl {at:#x} {value:#x}"));
    }
}

impl MemoryAccess for &Machine {
    async fn memory_read(&self, at: u64) -> u32 {
        self.ask(&std::format!("readl {at:#x}")).await.map_or(u32::MAX, |value| value as u32)
    }

    fn memory_write(&self, at: u64, value: u32) {
        self.0.socket.send(&std::format!("writel {at:#x} {value:#x}"));
    }
}

impl MemoryAccess for Machine {
    async fn memory_read(&self, at: u64) -> u32 {
        (&self).memory_read(at).await
    }

    fn memory_write(&self, at: u64, value: u32) {
        (&self).memory_write(at, value);
    }
}

/// What a function's interrupts are to its driver.
struct Interrupts {
    /// A word for each vector's messages.
    words: Buffer,
    counts: Vec<Cell<u32>>,
    /// The line of its pin, and how often that had been raised when it was last looked at.
    line: Cell<Option<(u8, u32)>>,
}

/// A function of the machine. Cheap to clone.
#[derive(Clone)]
pub struct Endpoint {
    machine: Machine,
    registers: u64,
    interrupts: Rc<Interrupts>,
}

impl Endpoint {
    /// The driver's end for it.
    pub fn host(&self) -> LiveHost {
        LiveHost::before(&self.machine.0.rt, self.machine.arena().clone(), self.clone())
    }

    /// Address and data of this vector's message.
    ///
    /// # Panics
    /// If there is no such vector.
    pub fn message(&self, vector: u16) -> (BusAddr, u32) {
        assert!(vector < VECTORS);
        (BusAddr(self.interrupts.words.at().0 + 4 * u64::from(vector)), MESSAGE)
    }

    /// This line is the function's pin, and counts as its vector 0; none: it is not listened to.
    pub fn listen(&self, line: Option<u8>) {
        let raised = |line: u8| self.machine.0.socket.raised(line.into());
        self.interrupts.line.set(line.map(|line| (line, raised(line))));
    }

    /// Interrupts of this vector so far. A message leaves a word that is not zero; two may leave one, and
    /// whoever looks for what they told of finds it all.
    fn count(&self, vector: u16) -> u32 {
        let own = &self.interrupts;
        let count = &own.counts[usize::from(vector)];
        let at = 4 * usize::from(vector);
        if own.words.load_u32(at) != 0 {
            own.words.store_u32(at, 0);
            // Before what the message told of is looked for: one that comes after that look stays.
            fence(Ordering::SeqCst);
            count.set(count.get().wrapping_add(1));
        }
        if let (0, Some((line, seen))) = (vector, own.line.get()) {
            let raised = self.machine.0.socket.raised(line.into());
            // A level that stays is an interrupt that goes on.
            if raised != seen || self.machine.is_held(line) {
                own.line.set(Some((line, raised)));
                count.set(count.get().wrapping_add(1));
            }
        }
        count.get()
    }
}

impl Function for Endpoint {
    fn write32(&self, register: u32, value: u32) {
        self.machine.memory_write(self.registers + u64::from(register), value);
    }

    fn read32(&self, register: u32) -> Pin<Box<dyn Future<Output = u32> + '_>> {
        Box::pin(self.machine.memory_read(self.registers + u64::from(register)))
    }

    fn is_gone(&self) -> bool {
        self.machine.0.socket.is_gone() || self.machine.0.memory.is_lost()
    }

    fn interrupts(&self, vector: u16) -> u32 {
        self.count(vector)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HostPort;
    use crate::pci::{ConfigAccess, Ports};
    use runtime::{Log, STD_CLOCK};
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;
    use wire::pci::Bdf;

    const RESERVED: u64 = 8192;

    /// A folder with a machine's memory and socket, and a thread that answers as `answer` does, until that is
    /// nothing, or its other end has gone.
    struct Fake(PathBuf);

    impl Fake {
        fn new(name: &str, answer: impl Fn(&str) -> String + Send + 'static) -> Fake {
            let folder =
                std::env::temp_dir().join(std::format!("qtest-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&folder).unwrap();
            File::create(folder.join("memory")).unwrap().set_len(1 << 20).unwrap();
            let listener = UnixListener::bind(folder.join("socket")).unwrap();
            std::thread::spawn(move || {
                let (mut to, _) = listener.accept().unwrap();
                for line in BufReader::new(to.try_clone().unwrap()).lines() {
                    let Ok(line) = line else { return };
                    let answer = answer(&line);
                    if answer.is_empty() || to.write_all(answer.as_bytes()).is_err() {
                        return;
                    }
                }
            });
            Fake(folder)
        }

        fn open(&self, rt: &Rt) -> Machine {
            Machine::open(rt, &self.0.join("socket"), &self.0.join("memory"), RESERVED).unwrap()
        }
    }

    impl Drop for Fake {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).unwrap();
        }
    }

    fn rt() -> Rt {
        Rt::live(&STD_CLOCK, None, Log::Off)
    }

    #[test]
    fn accesses_are_lines_and_answers_their_values() {
        let fake = Fake::new("accesses", |line| match line {
            "inl 0xcfc" => "OK 0x29c08086\n".into(),
            "readl 0xc0000014" => "OK 0x0000000000460001\n".into(),
            "outl 0xcf8 0x80000800" | "writel 0xc0000014 0x7" => "OK\n".into(),
            other => std::format!("ERR {other}\n"),
        });
        let rt = rt();
        rt.block_on(async {
            let machine = fake.open(&rt);
            assert_eq!(Ports(&machine).config_read(Bdf::new(0, 1, 0), 0).await, 0x29c0_8086);
            let host = machine.endpoint(0xc000_0000).unwrap().host();
            host.write32(0x14, 7);
            assert_eq!(host.read32(0x14).await, 0x0046_0001);
            assert_eq!(machine.accesses(), 4);
            let refused = machine.intercept("nobody").await.unwrap_err();
            assert_eq!(refused.to_string(), "ERR irq_intercept_in nobody\n");
            assert!(machine.arena().buffer(4096).unwrap().at().0 >= RESERVED);
        });
    }

    #[test]
    fn a_level_that_stays_goes_on_and_a_message_comes_once() {
        let fake = Fake::new("levels", |line| match line {
            "outl 0x10 0x1" => "IRQ raise 10\nOK\n".into(),
            "outl 0x10 0x0" => "IRQ lower 10\nOK\n".into(),
            _ => "OK 0x0\n".into(),
        });
        let rt = rt();
        rt.block_on(async {
            let machine = fake.open(&rt);
            let endpoint = machine.endpoint(0).unwrap();
            let host = endpoint.host();
            endpoint.listen(Some(10));
            let line = async |value| {
                (&machine).port_write(0x10, value).await;
                (&machine).port_read(0).await
            };
            line(1).await;
            let first = host.on_interrupt(0, 0).await;
            let second = host.on_interrupt(0, first).await;
            assert_ne!((first, second), (0, first));
            line(0).await;
            let count = endpoint.count(0);
            assert_eq!((endpoint.count(0), machine.is_held(10)), (count, false));
            endpoint.listen(None);
            line(1).await;
            assert_eq!(endpoint.count(0), count, "nobody listens to the pin");
            let (at, data) = endpoint.message(3);
            machine.0.memory.store_u32(at, data).unwrap();
            assert_eq!(host.on_interrupt(3, 0).await, 1);
            assert_eq!((endpoint.count(3), endpoint.count(2)), (1, 0));
        });
    }

    #[test]
    fn a_machine_that_ends_reads_all_ones() {
        let fake = Fake::new("ends", |_| String::new());
        let rt = rt();
        rt.block_on(async {
            let machine = fake.open(&rt);
            let host = machine.endpoint(0).unwrap().host();
            assert_eq!((host.read32(0).await, host.is_gone()), (u32::MAX, true));
            assert!(machine.gone().is_some());
            host.write32(0, 1);
            assert!(machine.step(Span::ms(1)).await.is_err());
        });
    }
}
