//! Queues: ring addresses, positions, and when to fetch next.

use std::cell::{Cell, RefCell};

use bus::DevicePort;
use media::Media;
use runtime::{Rt, Signal};
use wire::BusAddr;
use wire::dcx::command;
use wire::dcx::notice;
use wire::dcx::registers::{Control, Group, Shape};
use wire::dcx::report::{self, Code, Report};
use zerocopy::IntoBytes;

use super::load::Load;
use super::pace::Pace;
use super::{Front, Options};

/// Register values of a queue at the time that it was enabled.
#[derive(Clone, Copy, Debug)]
pub(super) struct Open {
    pub commands: BusAddr,
    pub reports: BusAddr,
    pub notice: BusAddr,
    pub entries: u32,
    /// Packet size with a host tag at the end of each packet, bytes. `None`: one tag at the end of the
    /// transfer.
    pub packet_bytes: Option<u32>,
    pub vector: u16,
    pub may_sleep: bool,
    pub signals: bool,
}

pub(super) struct Queue {
    pub number: u16,
    pub group: Group,
    pub open: Cell<Option<Open>>,
    /// Notified when `open` changes.
    pub switched: Signal,
    /// Notified when `open` or the time of the next fetch changes.
    pub turned: Signal,
    /// Number of the next command to fetch.
    pub next: Cell<u32>,
    /// Number of the last report.
    pub reported: Cell<u32>,
    /// A fetch is in flight.
    pub fetching: Cell<bool>,
    /// The poller holds slots and waits for the time to fetch.
    pub poised: Cell<bool>,
    pub pace: RefCell<Pace>,
    pub load: Cell<Load>,
    /// The fetch must leave now; the data transfer in progress waits for it.
    pub due: Cell<bool>,
    /// Notified when the fetch that was due has left.
    pub left: Signal,
    /// CONTROL as last read.
    pub seen: Cell<Control>,
    pub doorbell: Cell<u32>,
}

impl Queue {
    pub fn new(number: u16, options: &Options) -> Queue {
        Queue {
            number,
            group: Group::of(options.block, u32::from(number)),
            open: Cell::new(None),
            switched: Signal::default(),
            turned: Signal::default(),
            next: Cell::new(1),
            reported: Cell::new(0),
            fetching: Cell::new(false),
            poised: Cell::new(false),
            pace: RefCell::new(Pace::new(options.anticipate)),
            load: Cell::default(),
            due: Cell::new(false),
            left: Signal::default(),
            seen: Cell::new(Control::new()),
            doorbell: Cell::new(0),
        }
    }

    /// Opens the queue with these register values.
    pub fn open(&self, rt: &Rt, open: Open, options: &Options) {
        self.next.set(1);
        self.reported.set(0);
        self.due.set(false);
        *self.pace.borrow_mut() = Pace::new(options.anticipate);
        self.load.set(Load::default());
        self.switch(rt, Some(open));
    }

    /// Opens or closes the queue and notifies all tasks that use it.
    pub fn switch(&self, rt: &Rt, open: Option<Open>) {
        self.open.set(open);
        self.switched.notify(rt);
        self.turned.notify(rt);
        self.left.notify(rt);
    }

    /// A command ended without data, or before all its data left: the poller must not wait for them.
    pub fn drop_command(&self, rt: &Rt, begun: bool) {
        let mut pace = self.pace.borrow_mut();
        if pace.is_timed() {
            pace.drop_command(rt.now(), begun);
            self.turned.notify(rt);
        }
    }
}

impl Open {
    /// Address of the command ring entry with this number.
    pub fn command_at(&self, number: u32) -> BusAddr {
        let place = number.wrapping_sub(1) & (self.entries - 1);
        BusAddr(self.commands.0 + u64::from(place) * command::BYTES as u64)
    }

    /// Number of entries from that entry to the end of the ring.
    pub fn entries_from(&self, number: u32) -> u32 {
        self.entries - (number.wrapping_sub(1) & (self.entries - 1))
    }

    fn report_at(&self, number: u32) -> BusAddr {
        let place = number.wrapping_sub(1) & (self.entries - 1);
        BusAddr(self.reports.0 + u64::from(place) * report::BYTES as u64)
    }
}

impl<P: DevicePort, M: Media> Front<P, M> {
    /// Reads and validates the registers of a queue. `None` if they are invalid.
    pub(super) fn read_registers(&self, queue: &Queue, control: Control) -> Option<Open> {
        let group = &queue.group;
        let address = |register: u32| {
            let low = u64::from(self.port.load(register));
            u64::from(self.port.load(register + 4)) << 32 | low
        };
        let shape = Shape::from_bits(self.port.load(group.shape));
        let (commands, reports) = (address(group.commands), address(group.reports));
        let notice = address(group.notice);
        let packet = u32::from(shape.packet_log2());
        let sense = (1..=self.options.entries_log2).contains(&shape.entries_log2())
            && (packet == 0 || (7..=12).contains(&packet))
            && commands.is_multiple_of(command::BYTES as u64)
            && reports.is_multiple_of(report::BYTES as u64)
            && notice.is_multiple_of(notice::BYTES as u64)
            && [commands, reports, notice].iter().all(|at| at.checked_add(1 << 26).is_some());
        sense.then(|| Open {
            commands: BusAddr(commands),
            reports: BusAddr(reports),
            notice: BusAddr(notice),
            entries: 1 << shape.entries_log2(),
            packet_bytes: (packet > 0).then(|| 1 << packet),
            vector: shape.vector(),
            may_sleep: control.may_sleep(),
            signals: control.signals(),
        })
    }

    /// Posts the report of a command.
    pub(super) fn report(&self, queue: &Queue, command: u32, slot: u16, code: Code) {
        let Some(open) = queue.open.get() else { return };
        if self.faults.is_on() {
            if self.faults.is_down() {
                return;
            }
            self.faults.posted(&self.rt, queue.number + 1);
        }
        let number = queue.reported.get().wrapping_add(1);
        queue.reported.set(number);
        self.rt.log("device", "reported", u64::from(slot), u64::from(code.bits()));
        let report = Report::new(number, command, slot, code);
        if self.port.publish(open.report_at(number), report.as_bytes(), false).is_err() {
            self.fault(queue);
        }
    }

    /// Writes the newest tag to a queue's notice in host memory.
    pub(super) fn tell_tag(&self, queue: &Queue) {
        let Some(open) = queue.open.get() else { return };
        let newest = self.media.newest();
        let at = BusAddr(open.notice.0 + notice::TAG as u64);
        let mut entry = [0; 12];
        entry[..8].copy_from_slice(&newest.tag.to_le_bytes());
        entry[8..].copy_from_slice(&newest.version.to_le_bytes());
        if self.port.publish(at, &entry, false).is_err() {
            self.fault(queue);
        }
    }

    /// Writes the poller's sleep state to a queue's notice in host memory.
    pub(super) fn tell_asleep(&self, queue: &Queue, asleep: bool) {
        let Some(open) = queue.open.get() else { return };
        let at = BusAddr(open.notice.0 + notice::ASLEEP as u64);
        if self.port.publish(at, &u32::from(asleep).to_le_bytes(), false).is_err() {
            self.fault(queue);
        }
    }
}
