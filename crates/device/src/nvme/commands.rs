//! Supported commands: the source of the effects log, of Identify, and of the check for unknown opcodes.

use bus::DevicePort;
use media::Media;
use wire::nvme::identify::{oacs, oncs};
use wire::nvme::log::{CommandEffects, effect};
use wire::nvme::opcode::{admin, io};

use super::Controller;

/// Condition for a command to be supported.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Needs {
    Nothing,
    /// The medium stores a label.
    Label,
    /// The medium stores a label, and namespaces are not each one controller's.
    Management,
    /// The same, and the medium either keeps no overwritten data or can erase itself as a whole.
    Sanitizes,
    /// The queues are served by one thread.
    OneThread,
    /// The same, and the doorbells fit the words of one page.
    FewDoorbells,
    /// The medium supports host-directed GC.
    Collections,
    /// The host may keep the map of the medium.
    HostMap,
}

struct Row {
    opcode: u8,
    /// Effects, as in the effects log.
    effects: u32,
    /// Bit of OACS or ONCS if the command is optional, else 0.
    bit: u16,
    needs: Needs,
}

const PLAIN: u32 = effect::SUPPORTED;
const WRITES: u32 = PLAIN | effect::CONTENT;
const FORMATS: u32 = WRITES | effect::NAMESPACE | effect::NAMESPACE_ALONE;
const FORMATS_ALL: u32 = WRITES | effect::ALONE;
const MANAGES: u32 = PLAIN | effect::INVENTORY;

const fn row(opcode: u8, effects: u32, bit: u16) -> Row {
    Row { opcode, effects, bit, needs: Needs::Nothing }
}

/// As [`row`], if namespaces may be created and moved.
const fn managed(opcode: u8) -> Row {
    let bit = oacs::NAMESPACE_MANAGEMENT;
    Row { opcode, effects: MANAGES, bit, needs: Needs::Management }
}

/// As [`row`], if the medium stores a label.
const fn with_label(opcode: u8, effects: u32, bit: u16) -> Row {
    Row { opcode, effects, bit, needs: Needs::Label }
}

/// As [`row`], unless the queues are served by several threads.
const fn on_one_thread(opcode: u8, effects: u32, bit: u16) -> Row {
    Row { opcode, effects, bit, needs: Needs::OneThread }
}

const ADMIN: &[Row] = &[
    row(admin::DELETE_SQ, PLAIN, 0),
    row(admin::CREATE_SQ, PLAIN, 0),
    row(admin::GET_LOG_PAGE, PLAIN, 0),
    row(admin::DELETE_CQ, PLAIN, 0),
    row(admin::CREATE_CQ, PLAIN, 0),
    row(admin::IDENTIFY, PLAIN, 0),
    row(admin::ABORT, PLAIN, 0),
    row(admin::SET_FEATURES, PLAIN, 0),
    row(admin::GET_FEATURES, PLAIN, 0),
    row(admin::ASYNC_EVENT_REQUEST, PLAIN, 0),
    managed(admin::NAMESPACE_MANAGEMENT),
    row(admin::SELF_TEST, PLAIN, oacs::SELF_TEST),
    managed(admin::NAMESPACE_ATTACHMENT),
    row(admin::KEEP_ALIVE, PLAIN, 0),
    Row {
        opcode: admin::DOORBELL_BUFFER_CONFIG,
        effects: PLAIN,
        bit: oacs::DOORBELL_BUFFER,
        needs: Needs::FewDoorbells,
    },
    on_one_thread(admin::FORMAT_NVM, FORMATS, oacs::FORMAT),
    Row { opcode: admin::SANITIZE, effects: FORMATS_ALL, bit: 0, needs: Needs::Sanitizes },
    Row { opcode: admin::COLLECT, effects: PLAIN, bit: 0, needs: Needs::Collections },
];

const IO: &[Row] = &[
    row(io::FLUSH, PLAIN, 0),
    row(io::WRITE, WRITES, 0),
    row(io::READ, PLAIN, 0),
    with_label(io::WRITE_UNCORRECTABLE, WRITES, oncs::WRITE_UNCORRECTABLE),
    row(io::COMPARE, PLAIN, oncs::COMPARE),
    row(io::WRITE_ZEROES, WRITES, oncs::WRITE_ZEROES),
    row(io::DATASET_MANAGEMENT, WRITES, oncs::DATASET_MANAGEMENT),
    row(io::VERIFY, PLAIN, oncs::VERIFY),
    row(io::COPY, WRITES, oncs::COPY),
    on_one_thread(io::RESERVATION_REGISTER, PLAIN, oncs::RESERVATIONS),
    on_one_thread(io::RESERVATION_REPORT, PLAIN, oncs::RESERVATIONS),
    on_one_thread(io::RESERVATION_ACQUIRE, PLAIN, oncs::RESERVATIONS),
    on_one_thread(io::RESERVATION_RELEASE, PLAIN, oncs::RESERVATIONS),
    Row { opcode: io::READ_PLACED, effects: PLAIN, bit: 0, needs: Needs::HostMap },
    Row { opcode: io::READ_MAP, effects: PLAIN, bit: 0, needs: Needs::HostMap },
];

impl<P: DevicePort, M: Media> Controller<P, M> {
    /// Returns true if the medium stores a label, which outlives the controller.
    pub(super) fn keeps_a_label(&self) -> bool {
        self.media.capabilities().labels.is_some()
    }

    fn is_met(&self, needs: Needs) -> bool {
        match needs {
            Needs::Nothing => true,
            Needs::Label => self.keeps_a_label(),
            Needs::Management => self.keeps_a_label() && !self.options.own_namespaces,
            Needs::Sanitizes => {
                self.is_met(Needs::Management) && self.sanitizing_capabilities() != 0
            }
            Needs::OneThread => self.shared.place.is_none(),
            Needs::FewDoorbells => self.shared.place.is_none() && self.doorbells_fit_a_page(),
            Needs::Collections => self.offers_collections(),
            Needs::HostMap => self.offers_host_map(),
        }
    }

    fn offered(&self, all: &'static [Row]) -> impl Iterator<Item = &'static Row> {
        all.iter().filter(|row| self.is_met(row.needs))
    }

    /// Returns true if the admin command is supported.
    pub(super) fn has_admin(&self, opcode: u8) -> bool {
        ADMIN.iter().any(|row| row.opcode == opcode && self.is_met(row.needs))
    }

    /// Returns true if the I/O command is supported.
    pub(super) fn has_io(&self, opcode: u8) -> bool {
        IO.iter().any(|row| row.opcode == opcode && self.is_met(row.needs))
    }

    /// OACS and ONCS bits of the supported commands.
    pub(super) fn optional_commands(&self) -> (u16, u16) {
        let bits = |rows| self.offered(rows).fold(0, |bits, row| bits | row.bit);
        (bits(ADMIN), bits(IO))
    }

    /// The Commands Supported and Effects log page.
    pub(super) fn effects(&self) -> CommandEffects {
        let mut effects = CommandEffects::default();
        for row in self.offered(ADMIN) {
            effects.admin[usize::from(row.opcode)] = row.effects.into();
        }
        for row in self.offered(IO) {
            effects.io[usize::from(row.opcode)] = row.effects.into();
        }
        effects
    }
}
