//! Admin commands (NVMe base 2.0, 5).

use super::collect::Collect;
use super::entry::{self, Sqe};
use super::opcode::admin as opcode;
use super::status::Status;
use crate::{CommandId, QueueId};

mod build;
mod dwords;
mod sanitize;

pub use build::{
    abort, async_event_request, attach_namespace, collect, create_cq, create_namespace, create_sq,
    delete_cq, delete_namespace, delete_sq, doorbell_buffers, format_nvm, get_feature,
    get_log_page, get_log_part, identify, keep_alive, sanitize, self_test, set_feature,
};
use dwords::{AbortDword10, GetDword10, io_queue};
pub use sanitize::{Sanitize, SanitizeAction};

/// A valid admin command, and its data pointer.
pub type Request = entry::Request<Command>;

/// An admin command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// 5.7: commands still in it complete as Aborted due to SQ Deletion.
    DeleteSq {
        /// Never the admin queue.
        qid: QueueId,
    },
    /// 5.5. PRP1 of the request is the address of the queue.
    CreateSq(CreateSq),
    /// 5.6: rejected while a submission queue still completes to it.
    DeleteCq {
        /// Never the admin queue.
        qid: QueueId,
    },
    /// 5.4. PRP1 of the request is the address of the queue.
    CreateCq(CreateCq),
    /// 5.16.
    GetLogPage(GetLogPage),
    /// 5.17. Always transfers 4096 bytes.
    Identify(Identify),
    /// 5.1: best effort, for a command that may already have completed.
    Abort {
        /// Submission queue of the command.
        sqid: QueueId,
        /// The command to abort.
        cid: CommandId,
    },
    /// 5.27.
    SetFeatures(SetFeatures),
    /// 5.15.
    GetFeatures {
        /// Feature identifier: [`super::features::fid`].
        fid: u8,
        /// Value to get.
        select: Select,
        /// Command dword 11; feature-specific.
        cdw11: u32,
    },
    /// 5.2: completes with the next event.
    AsyncEventRequest,
    /// 5.18.
    KeepAlive,
    /// 5.14.
    FormatNvm(FormatNvm),
    /// 5.8. The test continues after the command has completed.
    SelfTest(SelfTest),
    /// 5.24. Sanitize continues after the command has completed.
    Sanitize(Sanitize),
    /// 5.11: PRP1 is the page of the shadow doorbells, PRP2 the page of the event indexes.
    DoorbellBuffers,
    /// 5.23, SEL 0: creates a namespace from the data, an
    /// [`IdentifyNamespace`](super::identify::IdentifyNamespace).
    CreateNamespace {
        /// Command set of the namespace.
        csi: u8,
    },
    /// 5.23, SEL 1: deletes the namespace of the request.
    DeleteNamespace,
    /// 5.22, SEL 0: attaches to the controllers listed in the data.
    AttachNamespace,
    /// 5.22, SEL 1: detaches from the controllers listed in the data.
    DetachNamespace,
    /// Vendor-specific: collects a superblock of flash.
    Collect(Collect),
}

/// STC: self-test to begin, or abort of the running one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SelfTest {
    /// Short test, two minutes at most.
    Short = 1,
    /// Extended test; Identify gives its duration.
    Extended = 2,
    /// Aborts the running test.
    Abort = 0xf,
}

/// Parameters of Format NVM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FormatNvm {
    /// LBAF: number of the format, 0 to 63.
    pub format: u8,
    /// MSET: metadata follow each block's data.
    pub metadata_inline: bool,
    /// PI: type of protection information; 0 for none.
    pub protection: u8,
    /// PIL: protection information comes first in the metadata.
    pub protection_first: bool,
    /// SES: secure erase setting.
    pub erase: u8,
}

/// A new I/O submission queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreateSq {
    /// Queue identifier, never 0.
    pub qid: QueueId,
    /// Number of entries: 2 to 65536.
    pub size: u32,
    /// Identifier of its completion queue, never 0.
    pub cqid: QueueId,
    /// Its class under weighted round robin.
    pub priority: Priority,
    /// PC: PRP1 is the queue itself; otherwise a list of its pages.
    pub contiguous: bool,
}

/// A new I/O completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreateCq {
    /// Queue identifier, never 0.
    pub qid: QueueId,
    /// Number of entries: 2 to 65536.
    pub size: u32,
    /// Interrupt vector.
    pub vector: u16,
    /// IEN: interrupts enabled.
    pub irq_enabled: bool,
    /// PC: PRP1 is the queue itself; otherwise a list of its pages.
    pub contiguous: bool,
}

/// QPRIO: the class of a submission queue under weighted round robin (3.4.4.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// Before all others except the admin queue.
    #[default]
    Urgent,
    /// By the weight HPW.
    High,
    /// By the weight MPW.
    Medium,
    /// By the weight LPW.
    Low,
}

/// Part of a log page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetLogPage {
    /// Log page identifier: [`super::log::lid`].
    pub lid: u8,
    /// LSP: specific to the log page; below 128.
    pub lsp: u8,
    /// LSI: specific to the log page.
    pub lsi: u16,
    /// RAE: retain the asynchronous event of this page.
    pub retain_event: bool,
    /// Length in bytes: 4 to 2^34, a multiple of 4.
    pub bytes: u64,
    /// Offset in the page, bytes: a multiple of 4.
    pub offset: u64,
    /// CSI: command set, for log pages that depend on it.
    pub csi: u8,
}

/// Parameters of Identify.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identify {
    /// Structure: [`super::identify::cns`].
    pub cns: u8,
    /// Controller identifier, for structures that need one.
    pub cntid: u16,
    /// Specific to the structure.
    pub cns_specific: u16,
    /// CSI: command set, for structures that need one.
    pub csi: u8,
}

/// A new value of a feature.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetFeatures {
    /// Feature identifier: [`super::features::fid`].
    pub fid: u8,
    /// SV: save the value across resets and power cycles.
    pub save: bool,
    /// The value; [`super::features::Feature::unpack`] decodes it.
    pub cdw11: u32,
    /// Further dwords of the value, for the few features that need them.
    pub cdw12_to_15: [u32; 4],
}

/// Value of a feature to get (5.15).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Select {
    /// Current value.
    #[default]
    Current,
    /// Default value.
    Default,
    /// Saved value, in force after the next reset.
    Saved,
    /// Capabilities of the feature instead of a value.
    Supported,
}

/// Parses an entry of the admin submission queue.
///
/// Reserved fields are ignored, as the specification allows. The controller checks existence (of queues,
/// vectors, namespaces) and its own limits.
///
/// # Errors
/// Invalid Opcode for a command not known here; Invalid Queue Identifier or Invalid Queue Size for
/// queues that can't be on any controller; Invalid Field for reserved values of a field that has a
/// meaning, fused commands, and scatter gather lists.
pub fn parse(sqe: &Sqe) -> Result<Request, Status> {
    let command = match sqe.opcode {
        opcode::DELETE_SQ => Command::DeleteSq { qid: io_queue(sqe.cdw10.get() as u16)? },
        opcode::CREATE_SQ => Command::CreateSq(CreateSq::parse(sqe)?),
        opcode::GET_LOG_PAGE => Command::GetLogPage(GetLogPage::parse(sqe)?),
        opcode::DELETE_CQ => Command::DeleteCq { qid: io_queue(sqe.cdw10.get() as u16)? },
        opcode::CREATE_CQ => Command::CreateCq(CreateCq::parse(sqe)?),
        opcode::IDENTIFY => Command::Identify(Identify::parse(sqe)),
        opcode::ABORT => {
            let dword = AbortDword10::from_bits(sqe.cdw10.get());
            Command::Abort { sqid: QueueId(dword.sqid()), cid: CommandId(dword.cid()) }
        }
        opcode::SET_FEATURES => Command::SetFeatures(SetFeatures::parse(sqe)),
        opcode::GET_FEATURES => {
            let dword = GetDword10::from_bits(sqe.cdw10.get());
            let select = Select::parse(dword.sel())?;
            Command::GetFeatures { fid: dword.fid(), select, cdw11: sqe.cdw11.get() }
        }
        opcode::ASYNC_EVENT_REQUEST => Command::AsyncEventRequest,
        opcode::KEEP_ALIVE => Command::KeepAlive,
        opcode::FORMAT_NVM => Command::FormatNvm(FormatNvm::parse(sqe)),
        opcode::SELF_TEST => Command::SelfTest(match sqe.cdw10.get() & 0xf {
            1 => SelfTest::Short,
            2 => SelfTest::Extended,
            0xf => SelfTest::Abort,
            _ => return Err(Status::INVALID_FIELD),
        }),
        opcode::SANITIZE => Command::Sanitize(Sanitize::parse(sqe)?),
        opcode::DOORBELL_BUFFER_CONFIG => Command::DoorbellBuffers,
        opcode::NAMESPACE_MANAGEMENT => match sqe.cdw10.get() & 0xf {
            0 => Command::CreateNamespace { csi: (sqe.cdw11.get() >> 24) as u8 },
            1 => Command::DeleteNamespace,
            _ => return Err(Status::INVALID_FIELD),
        },
        opcode::NAMESPACE_ATTACHMENT => match sqe.cdw10.get() & 0xf {
            0 => Command::AttachNamespace,
            1 => Command::DetachNamespace,
            _ => return Err(Status::INVALID_FIELD),
        },
        opcode::COLLECT => Command::Collect(Collect::parse(sqe)),
        _ => return Err(Status::INVALID_OPCODE),
    };
    sqe.finish(command)
}

impl Request {
    /// The entry that parses to this request.
    ///
    /// # Panics
    /// If the command is one that [`parse`] would reject.
    pub fn to_sqe(&self) -> Sqe {
        let mut sqe = Sqe::start(self.command.opcode(), self);
        match &self.command {
            Command::DeleteSq { qid } | Command::DeleteCq { qid } => {
                sqe.cdw10 = u32::from(qid.0).into();
            }
            Command::CreateSq(create) => create.store(&mut sqe),
            Command::CreateCq(create) => create.store(&mut sqe),
            Command::GetLogPage(get) => get.store(&mut sqe),
            Command::Identify(identify) => identify.store(&mut sqe),
            Command::Abort { sqid, cid } => {
                let dword = AbortDword10::new().with_sqid(sqid.0).with_cid(cid.0);
                sqe.cdw10 = dword.into_bits().into();
            }
            Command::SetFeatures(set) => set.store(&mut sqe),
            Command::GetFeatures { fid, select, cdw11 } => {
                let dword = GetDword10::new().with_fid(*fid).with_sel(*select as u8);
                sqe.cdw10 = dword.into_bits().into();
                sqe.cdw11 = (*cdw11).into();
            }
            Command::AsyncEventRequest | Command::DoorbellBuffers | Command::KeepAlive => {}
            Command::FormatNvm(format) => format.store(&mut sqe),
            Command::Sanitize(sanitize) => sanitize.store(&mut sqe),
            Command::SelfTest(test) => sqe.cdw10 = (*test as u32).into(),
            Command::CreateNamespace { csi } => sqe.cdw11 = (u32::from(*csi) << 24).into(),
            Command::AttachNamespace => {}
            Command::Collect(collect) => collect.store(&mut sqe),
            Command::DeleteNamespace | Command::DetachNamespace => sqe.cdw10 = 1.into(),
        }
        sqe
    }
}

impl Command {
    /// Opcode of the command.
    pub const fn opcode(&self) -> u8 {
        match self {
            Command::DeleteSq { .. } => opcode::DELETE_SQ,
            Command::CreateSq(_) => opcode::CREATE_SQ,
            Command::DeleteCq { .. } => opcode::DELETE_CQ,
            Command::CreateCq(_) => opcode::CREATE_CQ,
            Command::GetLogPage(_) => opcode::GET_LOG_PAGE,
            Command::Identify(_) => opcode::IDENTIFY,
            Command::Abort { .. } => opcode::ABORT,
            Command::SetFeatures(_) => opcode::SET_FEATURES,
            Command::GetFeatures { .. } => opcode::GET_FEATURES,
            Command::AsyncEventRequest => opcode::ASYNC_EVENT_REQUEST,
            Command::KeepAlive => opcode::KEEP_ALIVE,
            Command::FormatNvm(_) => opcode::FORMAT_NVM,
            Command::SelfTest(_) => opcode::SELF_TEST,
            Command::Sanitize(_) => opcode::SANITIZE,
            Command::DoorbellBuffers => opcode::DOORBELL_BUFFER_CONFIG,
            Command::CreateNamespace { .. } | Command::DeleteNamespace => {
                opcode::NAMESPACE_MANAGEMENT
            }
            Command::AttachNamespace | Command::DetachNamespace => opcode::NAMESPACE_ATTACHMENT,
            Command::Collect(_) => opcode::COLLECT,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn admin_parse_rejects_unknown_opcodes() {
        let mut known = 0;
        for value in 0..=u8::MAX {
            // Dwords 10 and 11 hold 1 in every 16-bit half, which is legal in every command.
            let legal = 0x0001_0001.into();
            let sqe = Sqe { opcode: value, cdw10: legal, cdw11: legal, ..Sqe::default() };
            match parse(&sqe) {
                Ok(request) => {
                    assert_eq!(request.command.opcode(), value);
                    known += 1;
                }
                Err(status) => assert_eq!(status, Status::INVALID_OPCODE, "{value:#x}"),
            }
        }
        assert_eq!(known, 18);
    }
}
