//! Admin commands as sent by a host, each in one call. A whole [`Request`] expresses the variants that have
//! no function here.

use super::{
    Command, CreateCq, CreateSq, FormatNvm, GetLogPage, Identify, Request, Sanitize, Select,
    SelfTest, SetFeatures,
};
use crate::nvme::collect::Collect;
use crate::nvme::entry::{DataPointer, Sqe};
use crate::nvme::identify::csi;
use crate::{BusAddr, CommandId, Nsid, QueueId};

/// A command to the controller without data.
fn plain(cid: CommandId, command: Command) -> Sqe {
    Request { cid, nsid: Nsid::NONE, data: DataPointer::NONE, command }.to_sqe()
}

/// A command that creates a queue at `base`.
fn queue(cid: CommandId, base: BusAddr, command: Command) -> Sqe {
    let data = DataPointer::Prp { prp1: base, prp2: BusAddr(0) };
    Request { cid, nsid: Nsid::NONE, data, command }.to_sqe()
}

/// Create the completion queue `create` at `base`, which is page aligned.
///
/// # Panics
/// If it is the admin queue, or has fewer than 2 or more than 65536 entries.
pub fn create_cq(cid: CommandId, base: BusAddr, create: CreateCq) -> Sqe {
    queue(cid, base, Command::CreateCq(create))
}

/// Create the submission queue `create` at `base`, which is page aligned.
///
/// # Panics
/// If either queue is an admin queue, or it has fewer than 2 or more than 65536 entries.
pub fn create_sq(cid: CommandId, base: BusAddr, create: CreateSq) -> Sqe {
    queue(cid, base, Command::CreateSq(create))
}

/// Delete a completion queue, after its submission queues.
pub fn delete_cq(cid: CommandId, qid: QueueId) -> Sqe {
    plain(cid, Command::DeleteCq { qid })
}

/// Delete a submission queue.
pub fn delete_sq(cid: CommandId, qid: QueueId) -> Sqe {
    plain(cid, Command::DeleteSq { qid })
}

/// Format a namespace, or all with [`Nsid::BROADCAST`].
pub fn format_nvm(cid: CommandId, nsid: Nsid, format: FormatNvm) -> Sqe {
    let command = Command::FormatNvm(format);
    Request { cid, nsid, data: DataPointer::NONE, command }.to_sqe()
}

/// Begin a self-test of the controller, and of a namespace, of none with [`Nsid::NONE`] or of all with
/// [`Nsid::BROADCAST`]; or end the one that runs.
pub fn self_test(cid: CommandId, nsid: Nsid, test: SelfTest) -> Sqe {
    let command = Command::SelfTest(test);
    Request { cid, nsid, data: DataPointer::NONE, command }.to_sqe()
}

/// Sends a keep alive.
pub fn keep_alive(cid: CommandId) -> Sqe {
    plain(cid, Command::KeepAlive)
}

/// Sanitizes the whole NVM subsystem.
pub fn sanitize(cid: CommandId, sanitize: Sanitize) -> Sqe {
    plain(cid, Command::Sanitize(sanitize))
}

/// Configures doorbell buffers: the addresses of the shadow doorbells and of the event indexes, a page
/// each.
pub fn doorbell_buffers(cid: CommandId, shadows: BusAddr, asked: BusAddr) -> Sqe {
    let data = DataPointer::Prp { prp1: shadows, prp2: asked };
    Request { cid, nsid: Nsid::NONE, data, command: Command::DoorbellBuffers }.to_sqe()
}

/// Creates a namespace of the NVM command set from the 4096 bytes at `data`; the completion carries its
/// identifier.
pub fn create_namespace(cid: CommandId, data: DataPointer) -> Sqe {
    let command = Command::CreateNamespace { csi: csi::NVM };
    Request { cid, nsid: Nsid::NONE, data, command }.to_sqe()
}

/// Delete a namespace, or all with [`Nsid::BROADCAST`].
pub fn delete_namespace(cid: CommandId, nsid: Nsid) -> Sqe {
    let command = Command::DeleteNamespace;
    Request { cid, nsid, data: DataPointer::NONE, command }.to_sqe()
}

/// Attach a namespace to the controllers that the 4096 bytes at `data` list, or detach it from them.
pub fn attach_namespace(cid: CommandId, nsid: Nsid, attach: bool, data: DataPointer) -> Sqe {
    let command = if attach { Command::AttachNamespace } else { Command::DetachNamespace };
    Request { cid, nsid, data, command }.to_sqe()
}

/// Identify into the 4096 bytes at `data` the structure `cns` of `nsid`.
pub fn identify(cid: CommandId, nsid: Nsid, cns: u8, data: DataPointer) -> Sqe {
    let command = Command::Identify(Identify { cns, ..Identify::default() });
    Request { cid, nsid, data, command }.to_sqe()
}

/// Get the first `bytes` of the log page `lid` of the whole controller, and clear its event.
///
/// # Panics
/// If `bytes` is not a multiple of 4 from 4 to 2^34.
pub fn get_log_page(cid: CommandId, lid: u8, bytes: u64, data: DataPointer) -> Sqe {
    let get = GetLogPage { lid, lsp: 0, lsi: 0, retain_event: false, bytes, offset: 0, csi: 0 };
    Request { cid, nsid: Nsid::BROADCAST, data, command: Command::GetLogPage(get) }.to_sqe()
}

/// Get `bytes` from `offset` on of the log page `lid` of the whole controller; `retain` leaves its event
/// as it is.
///
/// # Panics
/// If either is not a multiple of 4, or `bytes` not from 4 to 2^34.
pub fn get_log_part(
    cid: CommandId,
    lid: u8,
    (offset, bytes): (u64, u64),
    retain: bool,
    data: DataPointer,
) -> Sqe {
    let get = GetLogPage { lid, lsp: 0, lsi: 0, retain_event: retain, bytes, offset, csi: 0 };
    Request { cid, nsid: Nsid::BROADCAST, data, command: Command::GetLogPage(get) }.to_sqe()
}

/// Collects a superblock of flash; the completion carries its number of valid mapping units.
pub fn collect(cid: CommandId, what: Collect) -> Sqe {
    plain(cid, Command::Collect(what))
}

/// Abort the command `victim` of the queue `sqid`.
pub fn abort(cid: CommandId, sqid: QueueId, victim: CommandId) -> Sqe {
    plain(cid, Command::Abort { sqid, cid: victim })
}

/// Set the feature `fid` of the controller to `cdw11`, until the next reset.
pub fn set_feature(cid: CommandId, fid: u8, cdw11: u32) -> Sqe {
    plain(cid, Command::SetFeatures(SetFeatures { fid, cdw11, ..SetFeatures::default() }))
}

/// Get the current value of the feature `fid` of the controller; the completion carries it.
pub fn get_feature(cid: CommandId, fid: u8) -> Sqe {
    plain(cid, Command::GetFeatures { fid, select: Select::Current, cdw11: 0 })
}

/// Submits an asynchronous event request.
pub fn async_event_request(cid: CommandId) -> Sqe {
    plain(cid, Command::AsyncEventRequest)
}

#[cfg(test)]
mod tests {
    use super::super::{Priority, parse};
    use super::*;
    use crate::nvme::{features::fid, identify::cns, log::lid};
    use zerocopy::{FromBytes, IntoBytes};

    const PAGE: DataPointer = DataPointer::Prp { prp1: BusAddr(0x1_2345_6000), prp2: BusAddr(0) };

    /// Bytes of dwords 0 to 1, of PRP1, and of dwords 10 to 12.
    fn parts(sqe: &Sqe) -> (&[u8], &[u8], &[u8]) {
        let bytes = sqe.as_bytes();
        (&bytes[..8], &bytes[24..32], &bytes[40..52])
    }

    #[test]
    fn create_cq_and_sq_match_golden_bytes() {
        let cq = CreateCq {
            qid: QueueId(1),
            size: 1024,
            vector: 2,
            irq_enabled: true,
            contiguous: true,
        };
        let sqe = create_cq(CommandId(0x0a), BusAddr(0x0040_3000), cq);
        let (head, prp1, dwords) = parts(&sqe);
        assert_eq!(head, [5, 0, 0x0a, 0, 0, 0, 0, 0]);
        assert_eq!(prp1, [0x00, 0x30, 0x40, 0, 0, 0, 0, 0]);
        assert_eq!(dwords, [1, 0, 0xff, 3, 3, 0, 2, 0, 0, 0, 0, 0]);

        let sq = CreateSq {
            qid: QueueId(1),
            size: 65536,
            cqid: QueueId(1),
            priority: Priority::Medium,
            contiguous: true,
        };
        let sqe = create_sq(CommandId(0x0b), BusAddr(0x0050_0000), sq);
        let (head, _, dwords) = parts(&sqe);
        assert_eq!(head, [1, 0, 0x0b, 0, 0, 0, 0, 0]);
        assert_eq!(dwords, [1, 0, 0xff, 0xff, 5, 0, 1, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn identify_controller_matches_golden_bytes() {
        let sqe = identify(CommandId(1), Nsid::NONE, cns::CONTROLLER, PAGE);
        let (head, prp1, dwords) = parts(&sqe);
        assert_eq!(head, [6, 0, 1, 0, 0, 0, 0, 0]);
        assert_eq!(prp1, [0x00, 0x60, 0x45, 0x23, 1, 0, 0, 0]);
        assert_eq!(dwords, [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn smart_log_numd_is_0_based() {
        let sqe = get_log_page(CommandId(2), lid::SMART_HEALTH, 512, PAGE);
        let (head, _, dwords) = parts(&sqe);
        assert_eq!(head, [2, 0, 2, 0, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(dwords, [2, 0, 127, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn set_number_of_queues_matches_golden_bytes() {
        let sqe = set_feature(CommandId(3), fid::NUMBER_OF_QUEUES, 0x0007_0007);
        let (head, _, dwords) = parts(&sqe);
        assert_eq!(head, [9, 0, 3, 0, 0, 0, 0, 0]);
        assert_eq!(dwords, [7, 0, 0, 0, 7, 0, 7, 0, 0, 0, 0, 0]);
        assert_eq!(parts(&get_feature(CommandId(3), 6)).2[..4], [6, 0, 0, 0]);
    }

    #[test]
    fn other_admin_commands_match_golden_bytes() {
        assert_eq!(parts(&delete_sq(CommandId(1), QueueId(0x102))).2[..4], [2, 1, 0, 0]);
        assert_eq!(parts(&delete_cq(CommandId(1), QueueId(2))).0[..4], [4, 0, 1, 0]);
        let sqe = abort(CommandId(1), QueueId(2), CommandId(0x304));
        assert_eq!(parts(&sqe).2[..4], [2, 0, 4, 3]);
        assert_eq!(async_event_request(CommandId(8)).as_bytes()[..4], [0x0c, 0, 8, 0]);
    }

    /// The other direction: example bytes from a host, field by field.
    #[test]
    fn create_sq_parses_golden_bytes() {
        let mut bytes = [0; 64];
        bytes[..4].copy_from_slice(&[1, 0, 0x34, 0x12]);
        bytes[24..32].copy_from_slice(&[0, 0x10, 0, 0, 2, 0, 0, 0]);
        bytes[40..48].copy_from_slice(&[3, 0, 0x3f, 0, 0b111, 0, 4, 0]);
        let request = parse(&Sqe::read_from_bytes(&bytes).unwrap()).unwrap();
        assert_eq!(request.cid, CommandId(0x1234));
        let prp1 = BusAddr(0x2_0000_1000);
        assert_eq!(request.data, DataPointer::Prp { prp1, prp2: BusAddr(0) });
        let create = CreateSq {
            qid: QueueId(3),
            size: 64,
            cqid: QueueId(4),
            priority: Priority::Low,
            contiguous: true,
        };
        assert_eq!(request.command, Command::CreateSq(create));
    }
}
