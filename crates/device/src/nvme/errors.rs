//! The error log: the last commands that failed (NVMe base 2.0, 5.16.1.2).

use std::collections::VecDeque;

use bus::DevicePort;
use media::Media;
use wire::Nsid;
use wire::nvme::entry::Sqe;
use wire::nvme::log::ErrorInformation;
use wire::nvme::opcode;
use wire::nvme::status::Status;
use zerocopy::FromZeros;

use super::slot::Job;
use super::{Controller, ERROR_LOG_ENTRIES, QueueKind};

/// The newest first. Kept across resets, and gone with the device's process.
pub(super) struct ErrorLog {
    entries: VecDeque<ErrorInformation>,
    /// Errors over the controller's life.
    pub count: u64,
}

impl Default for ErrorLog {
    fn default() -> ErrorLog {
        // Its room is made once: a host may let every command fail.
        ErrorLog { entries: VecDeque::with_capacity(ERROR_LOG_ENTRIES), count: 0 }
    }
}

impl ErrorLog {
    fn note(&mut self, entry: ErrorInformation) {
        self.count += 1;
        self.entries.truncate(ERROR_LOG_ENTRIES - 1);
        self.entries.push_front(ErrorInformation { error_count: self.count.into(), ..entry });
    }

    /// The page: as many entries as there can be, those that are not there all zeros.
    pub fn page(&self) -> [ErrorInformation; ERROR_LOG_ENTRIES] {
        let mut page = [ErrorInformation::new_zeroed(); ERROR_LOG_ENTRIES];
        page.iter_mut().zip(&self.entries).for_each(|(place, entry)| *place = *entry);
        page
    }
}

impl<P: DevicePort, M: Media> Controller<P, M> {
    /// Notes a command that failed. Its completion says that there is more about it.
    pub(super) fn note_error(&self, job: &Job, status: Status) -> Status {
        let status = status.with_more();
        let entry = ErrorInformation {
            sqid: job.qid.0.into(),
            cid: job.sqe.cid,
            // The phase tag of the completion may be given, and is not known yet.
            status_and_phase: (status.bits() << 1).into(),
            // Which byte of a command is at fault is not told.
            parameter_error_location: 0xffff.into(),
            lba: self.first_block_at_fault(job, status).into(),
            nsid: job.sqe.nsid,
            ..ErrorInformation::new_zeroed()
        };
        self.errors.borrow_mut().note(entry);
        self.rt.log("device", "error", u64::from(job.sqe.cid.get()), u64::from(status.bits()));
        status
    }

    /// Notes something that no command is at fault for.
    pub(super) fn note_error_of_none(&self, status: Status) {
        let entry = ErrorInformation {
            sqid: 0xffff.into(),
            cid: 0xffff.into(),
            status_and_phase: (status.bits() << 1).into(),
            parameter_error_location: 0xffff.into(),
            ..ErrorInformation::new_zeroed()
        };
        self.errors.borrow_mut().note(entry);
        self.rt.log("device", "error", 0xffff, u64::from(status.bits()));
    }

    /// Of a command that names blocks: the first that the namespace does not have, or else the first of
    /// the command.
    fn first_block_at_fault(&self, job: &Job, status: Status) -> u64 {
        if QueueKind::of(job.qid) == QueueKind::Admin || !names_blocks(&job.sqe) {
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

fn names_blocks(sqe: &Sqe) -> bool {
    use opcode::io::{COMPARE, READ, WRITE, WRITE_UNCORRECTABLE, WRITE_ZEROES};
    [READ, WRITE, COMPARE, WRITE_ZEROES, WRITE_UNCORRECTABLE].contains(&sqe.opcode)
}
