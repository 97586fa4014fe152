//! Driver of QEMU's device models over qtest: a machine without a processor, whose socket takes accesses to
//! ports and memory and reports interrupt lines. The hardware models are independent of this project; the
//! drivers are ours.
//!
//! QEMU's memory is a file that is mapped here too (`memory-backend-file,share=on`), so rings and buffers
//! are accessed as on any live bus. Registers and configuration space go over the socket, one access per
//! line of text. Writes are posted: a thread receives their answers, and a read returns after the answers
//! to all earlier commands. MSI-X messages go to words of that memory. QEMU's virtual clock stands still
//! unless it is [stepped](Machine::step).
//!
//! An interrupt pin is a level, of which the driver is notified as long as it stays asserted. Configuration
//! accesses implement the traits of [`pci`](crate::pci), so the same code enumerates the model, QEMU by
//! ports, and QEMU by mapped memory.

mod error;
mod socket;

use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::Cell;
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
pub use error::{Gone, QtestError};
pub use socket::LINES;
use socket::Socket;

/// Time limit of an answer; then the machine counts as gone.
const ANSWER: Span = Span::s(20);
/// Maximum number of vectors of a function.
pub const VECTORS: u16 = 64;
/// Data of every MSI-X message: the word at its address identifies the vector.
const MESSAGE: u32 = 1;

/// A QEMU machine. Cheap to clone; bound to the thread of its executor.
#[derive(Clone)]
pub struct Machine(Rc<Inner>);

struct Inner {
    rt: Rt,
    socket: Socket,
    memory: Memory,
    arena: Arena,
}

impl Machine {
    /// Connects to the socket of QEMU's option `-qtest`, and maps the machine's memory file from offset
    /// `reserved` on, bytes: the part for drivers.
    ///
    /// # Errors
    /// The file or the socket cannot be opened, or the file is not longer than `reserved`.
    pub fn open(
        rt: &Rt,
        socket: &Path,
        memory: &Path,
        reserved: u64,
    ) -> Result<Machine, QtestError> {
        let file = File::options().read(true).write(true).open(memory);
        let file = file.map_err(|error| QtestError::Open { file: memory.into(), error })?;
        let in_file = |error| QtestError::Map { file: memory.into(), error };
        let bytes = file.metadata().map_err(in_file)?.len();
        let Some(usable @ 1..) = bytes.checked_sub(reserved) else {
            return Err(QtestError::TooShort { file: memory.into(), bytes, reserved });
        };
        let base = BusAddr(reserved);
        let mapped = Memory::map_guarded(file.as_fd(), reserved, usable as usize, base, true);
        let mapped = mapped.map_err(in_file)?;
        let connected = Socket::connect(socket);
        let socket =
            connected.map_err(|error| QtestError::Connect { socket: socket.into(), error })?;
        let arena = Arena::new(mapped.clone());
        Ok(Machine(Rc::new(Inner { rt: rt.clone(), socket, memory: mapped, arena })))
    }

    /// Sends a command and waits for its answer: a number, or 0 if it has none.
    async fn ask(&self, command: &str) -> Result<u64, QtestError> {
        let Inner { rt, socket, .. } = &*self.0;
        let number = socket.send(command);
        let deadline = rt.now() + ANSWER;
        let waited = until(rt, || match socket.answer(number) {
            Some(answer) => Some(answer),
            None if rt.now() >= deadline => {
                socket.close(Gone::NoAnswer { command: command.into() });
                socket.gone().map(|gone| Err(gone.into()))
            }
            None => socket.gone().map(|gone| Err(gone.into())),
        });
        waited.await
    }

    /// Starts reporting the input lines of an interrupt controller, given by its name in QEMU. They are
    /// disconnected from the controller.
    ///
    /// # Errors
    /// QEMU rejects the name, or the machine is gone.
    pub async fn intercept(&self, controller: &str) -> Result<(), QtestError> {
        self.ask(&std::format!("irq_intercept_in {controller}")).await.map(drop)
    }

    /// Advances the machine's virtual clock.
    ///
    /// # Errors
    /// The machine is gone.
    pub async fn step(&self, by: Span) -> Result<(), QtestError> {
        self.ask(&std::format!("clock_step {}", by.0 / 1000)).await.map(drop)
    }

    /// Number of rising edges of each line since the machine was opened.
    pub fn raised(&self) -> [u32; LINES] {
        core::array::from_fn(|line| self.0.socket.raised(line))
    }

    /// Returns true if the line is asserted.
    pub fn is_held(&self, line: u8) -> bool {
        self.0.socket.is_held(line.into())
    }

    /// Allocator of the memory for drivers.
    pub fn arena(&self) -> &Arena {
        &self.0.arena
    }

    /// Number of commands sent.
    pub fn accesses(&self) -> u64 {
        self.0.socket.sent()
    }

    /// The reason why the machine does not answer any more. `None` if it does.
    pub fn gone(&self) -> Option<Arc<Gone>> {
        if self.0.memory.is_lost() {
            return Some(Arc::new(Gone::MemoryLost));
        }
        self.0.socket.gone()
    }

    /// Creates the function whose registers begin at this address. It listens to no interrupts yet.
    ///
    /// # Errors
    /// If no memory is left for the words to which its messages go.
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

/// Interrupt state of a function.
struct Interrupts {
    /// One word per vector, the target of its messages.
    words: Buffer,
    counts: Vec<Cell<u32>>,
    /// Line of its pin, and the number of rising edges counted so far.
    line: Cell<Option<(u8, u32)>>,
}

/// A function of the machine, as reached by its driver. Cheap to clone.
#[derive(Clone)]
pub struct Endpoint {
    machine: Machine,
    registers: u64,
    interrupts: Rc<Interrupts>,
}

impl Endpoint {
    /// Host port of the function.
    pub fn host(&self) -> LiveHost {
        LiveHost::before(&self.machine.0.rt, self.machine.arena().clone(), self.clone())
    }

    /// Address and data of this vector's message.
    ///
    /// # Panics
    /// If `vector >= VECTORS`.
    pub fn message(&self, vector: u16) -> (BusAddr, u32) {
        assert!(vector < VECTORS);
        (BusAddr(self.interrupts.words.at().0 + 4 * u64::from(vector)), MESSAGE)
    }

    /// Sets the line that is the function's pin; it counts as vector 0. `None` stops listening.
    pub fn listen(&self, line: Option<u8>) {
        let raised = |line: u8| self.machine.0.socket.raised(line.into());
        self.interrupts.line.set(line.map(|line| (line, raised(line))));
    }

    /// Number of interrupts of this vector so far. A message sets the vector's word to nonzero; two
    /// messages may be counted as one, and the driver's search for completions finds the work of both.
    fn count(&self, vector: u16) -> u32 {
        let own = &self.interrupts;
        let count = &own.counts[usize::from(vector)];
        let at = 4 * usize::from(vector);
        if own.words.load_u32(at) != 0 {
            own.words.store_u32(at, 0);
            // Clear before the driver looks for completions: a message after that look sets the word again.
            fence(Ordering::SeqCst);
            count.set(count.get().wrapping_add(1));
        }
        if let (0, Some((line, seen))) = (vector, own.line.get()) {
            let raised = self.machine.0.socket.raised(line.into());
            // A line that stays asserted is a pending interrupt.
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
    use std::string::{String, ToString};
    use wire::pci::Bdf;

    const RESERVED: u64 = 8192;

    /// A folder with a machine's memory and socket, and a thread that sends `answer(line)` until that is
    /// empty or the connection ends.
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
    fn qtest_accesses_are_text_lines_with_values() {
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
            let refused = machine.intercept("none").await.unwrap_err();
            assert_eq!(refused.to_string(), "ERR irq_intercept_in none\n");
            assert!(machine.arena().buffer(4096).unwrap().at().0 >= RESERVED);
        });
    }

    #[test]
    fn asserted_line_interrupts_again_and_msix_message_once() {
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
            assert_eq!(endpoint.count(0), count, "the pin is not listened to");
            let (at, data) = endpoint.message(3);
            machine.0.memory.store_u32(at, data).unwrap();
            assert_eq!(host.on_interrupt(3, 0).await, 1);
            assert_eq!((endpoint.count(3), endpoint.count(2)), (1, 0));
        });
    }

    #[test]
    fn reads_return_all_ones_after_machine_exit() {
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
