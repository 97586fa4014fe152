//! The Error Information log: the last failed commands (NVMe base 2.0, 5.16.1.2).

use std::collections::VecDeque;

use bus::DevicePort;
use media::Media;
use wire::Nsid;
use wire::nvme::entry::Sqe;
use wire::nvme::log::ErrorInformation;
use wire::nvme::opcode;
use wire::nvme::status::Status;
use zerocopy::FromZeros;

use super::slot::{Job, QueueKind};
use super::{Controller, ERROR_LOG_ENTRIES};

/// Most recent first. Entries survive resets, but not the end of the device's process; their count does.
pub(super) struct ErrorLog {
    entries: VecDeque<ErrorInformation>,
    /// Errors over the controller's life.
    pub count: u64,
}

impl Default for ErrorLog {
    fn default() -> ErrorLog {
        // Allocated once: a host may make every command fail.
        ErrorLog { entries: VecDeque::with_capacity(ERROR_LOG_ENTRIES), count: 0 }
    }
}

impl ErrorLog {
    fn note(&mut self, entry: ErrorInformation) {
        self.count += 1;
        self.entries.truncate(ERROR_LOG_ENTRIES - 1);
        self.entries.push_front(ErrorInformation { error_count: self.count.into(), ..entry });
    }

    /// The log page; unused entries are zero.
    pub fn page(&self) -> [ErrorInformation; ERROR_LOG_ENTRIES] {
        let mut page = [ErrorInformation::new_zeroed(); ERROR_LOG_ENTRIES];
        page.iter_mut().zip(&self.entries).for_each(|(place, entry)| *place = *entry);
        page
    }
}

impl<P: DevicePort, M: Media> Controller<P, M> {
    /// Accesses the error log: of the controller, whatever the number of its threads.
    pub(super) fn with_errors<T>(&self, access: impl FnOnce(&mut ErrorLog) -> T) -> T {
        match &self.shared.place {
            Some(place) => access(&mut place.errors()),
            None => access(&mut self.health.errors.borrow_mut()),
        }
    }

    /// Logs a failed command, with its Command Specific Information. Returns its status with the More bit
    /// set.
    pub(super) fn note_error(&self, job: &Job, status: Status, specific: u64) -> Status {
        let status = status.with_more();
        if status.kind() == Status::LBA_OUT_OF_RANGE && QueueKind::of(job.qid) == QueueKind::Io {
            self.tell_out_of_range(&job.sqe);
        }
        let entry = ErrorInformation {
            sqid: job.qid.0.into(),
            cid: job.sqe.cid,
            // The completion's phase tag is optional here, and not known yet.
            status_and_phase: (status.bits() << 1).into(),
            // The byte of the invalid parameter is not reported.
            parameter_error_location: 0xffff.into(),
            lba: self.first_block_at_fault(job, status).into(),
            nsid: job.sqe.nsid,
            command_specific: specific.into(),
            ..ErrorInformation::new_zeroed()
        };
        self.health.counters.errors.add(1);
        self.with_errors(|errors| errors.note(entry));
        self.rt.log("device", "error", u64::from(job.sqe.cid.get()), u64::from(status.bits()));
        status
    }

    /// Logs an error that is not specific to a command.
    pub(super) fn note_error_of_none(&self, status: Status) {
        let entry = ErrorInformation {
            sqid: 0xffff.into(),
            cid: 0xffff.into(),
            status_and_phase: (status.bits() << 1).into(),
            parameter_error_location: 0xffff.into(),
            ..ErrorInformation::new_zeroed()
        };
        self.health.counters.errors.add(1);
        self.with_errors(|errors| errors.note(entry));
        self.rt.log("device", "error", 0xffff, u64::from(status.bits()));
    }

    /// Tells the medium of a command past its end. Ranges in a list are not in the entry, which has no blocks
    /// then.
    fn tell_out_of_range(&self, sqe: &Sqe) {
        let Some(refusals) = self.media.capabilities().refusals else { return };
        let (first, blocks) = match opcode::io::names_blocks(sqe.opcode) {
            true => {
                let first = u64::from(sqe.cdw11.get()) << 32 | u64::from(sqe.cdw10.get());
                (first, u64::from(sqe.cdw12.get() & 0xffff) + 1)
            }
            false => (0, 0),
        };
        refusals.out_of_range(first, blocks);
    }

    /// LBA of a logged command: the first one that is out of range, or else the first of the command.
    fn first_block_at_fault(&self, job: &Job, status: Status) -> u64 {
        if QueueKind::of(job.qid) == QueueKind::Admin || !opcode::io::names_blocks(job.sqe.opcode) {
            return 0;
        }
        let first = u64::from(job.sqe.cdw11.get()) << 32 | u64::from(job.sqe.cdw10.get());
        match status.kind() {
            Status::LBA_OUT_OF_RANGE => {
                let namespace = self.active_at(Nsid(job.sqe.nsid.get()));
                first.max(namespace.map_or(0, |(_, namespace)| namespace.lbas()))
            }
            _ => first,
        }
    }
}
