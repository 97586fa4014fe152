//! Memory of a queue: commands, reports, notice.

use core::cell::Cell;

use bus::{Arena, Buffer, OutOfMemory};
use wire::dcx::command::{self, Entry};
use wire::dcx::notice;
use wire::dcx::report::{self, Report};
use zerocopy::{FromZeros, IntoBytes};

/// Command ring: the driver writes, the device polls it.
pub(super) struct Commands {
    memory: Buffer,
    entries: u32,
    /// Number of the last command.
    last: Cell<u32>,
}

impl Commands {
    /// Allocates an empty ring.
    pub fn new(arena: &Arena, entries: u32) -> Result<Commands, OutOfMemory> {
        let memory = arena.buffer(entries as usize * command::BYTES)?;
        memory.zero();
        Ok(Commands { memory, entries, last: Cell::new(0) })
    }

    /// Empties the ring. The device must not be using it.
    pub fn clear(&self) {
        self.memory.zero();
        self.last.set(0);
    }

    /// Number of the next command.
    #[inline]
    pub fn next(&self) -> u32 {
        self.last.get().wrapping_add(1)
    }

    /// Stores the next command, its number last, with release.
    #[inline]
    pub fn push(&self, entry: &Entry) {
        let number = entry.number();
        assert_eq!(number, self.next(), "commands are numbered in order");
        self.last.set(number);
        let place = (self.last.get().wrapping_sub(1) & (self.entries - 1)) as usize;
        let (at, bytes) = (place * command::BYTES, entry.as_bytes());
        self.memory.copy_in(at, &bytes[..command::BYTES - 4]);
        self.memory.store_u32(at + command::BYTES - 4, number);
        // Prefetches the next entry's cache line while this command is in flight.
        let next = (place as u32 + 1) & (self.entries - 1);
        let next = wire::BusAddr(self.memory.at().0 + u64::from(next) * command::BYTES as u64);
        self.memory.memory().prefetch(next, command::BYTES);
    }

    pub fn memory(&self) -> &Buffer {
        &self.memory
    }
}

/// Report ring: the device writes, the driver reads. It has as many entries as the command ring, and each
/// command has at most one report, so it never overflows.
pub(super) struct Reports {
    memory: Buffer,
    entries: u32,
    last: Cell<u32>,
}

impl Reports {
    /// Allocates an empty ring.
    pub fn new(arena: &Arena, entries: u32) -> Result<Reports, OutOfMemory> {
        let memory = arena.buffer(entries as usize * report::BYTES)?;
        memory.zero();
        Ok(Reports { memory, entries, last: Cell::new(0) })
    }

    /// Empties the ring. The device must not be using it.
    pub fn clear(&self) {
        self.memory.zero();
        self.last.set(0);
    }

    fn next_at(&self) -> usize {
        (self.last.get() & (self.entries - 1)) as usize * report::BYTES
    }

    /// Returns true if the next report has arrived.
    #[inline]
    pub fn has_next(&self) -> bool {
        self.memory.load_u32(self.next_at() + Report::NUMBER_AT) == self.last.get().wrapping_add(1)
    }

    /// Copies the next report out once, if it has arrived.
    pub fn take(&self) -> Option<Report> {
        if !self.has_next() {
            return None;
        }
        let mut report = Report::new_zeroed();
        self.memory.copy_out(self.next_at(), report.as_mut_bytes());
        self.last.set(self.last.get().wrapping_add(1));
        Some(report)
    }

    /// Number of entries.
    pub fn entries(&self) -> u32 {
        self.entries
    }

    pub fn memory(&self) -> &Buffer {
        &self.memory
    }
}

pub(super) fn notice(arena: &Arena) -> Result<Buffer, OutOfMemory> {
    let memory = arena.buffer(notice::BYTES)?;
    memory.zero();
    Ok(memory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bus::Memory;
    use wire::BusAddr;
    use wire::dcx::command::{Command, Request};
    use wire::dcx::report::Code;

    /// Numbers wrap at 2^32 and indices at the ring's end.
    #[test]
    fn command_and_report_numbers_wrap() {
        let arena = Arena::new(Memory::private(1 << 16, BusAddr(0x1000)));
        let commands = Commands::new(&arena, 8).expect("memory");
        let reports = Reports::new(&arena, 8).expect("memory");
        commands.last.set(u32::MAX - 10);
        reports.last.set(u32::MAX - 10);
        for turn in 0..30u32 {
            let number = (u32::MAX - 9).wrapping_add(turn);
            assert_eq!(commands.next(), number);
            commands.push(&Entry::new(&Request { number, slot: 0, command: Command::Fence }));
            let place = (number.wrapping_sub(1) % 8) as usize;
            assert_eq!(commands.memory().load_u32(place * command::BYTES + 60), number);
            assert!(!reports.has_next() && reports.take().is_none());
            let report = Report::new(number, number, 3, Code::DONE);
            reports.memory().copy_in(place * report::BYTES, report.as_bytes());
            assert_eq!(reports.take().map(|report| report.command()), Some(number));
        }
    }
}
