//! Admin commands: what a host asks of the controller itself (NVMe base 2.0, 5).

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

/// An admin command that makes sense, and where its data lies.
pub type Request = entry::Request<Command>;

/// What is asked of the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// 5.7: commands still in it complete as Aborted due to SQ Deletion.
    DeleteSq {
        /// Never the admin queue.
        qid: QueueId,
    },
    /// 5.5. The queue lies at the request's PRP1.
    CreateSq(CreateSq),
    /// 5.6: refused while a submission queue still completes to it.
    DeleteCq {
        /// Never the admin queue.
        qid: QueueId,
    },
    /// 5.4. The queue lies at the request's PRP1.
    CreateCq(CreateCq),
    /// 5.16.
    GetLogPage(GetLogPage),
    /// 5.17. The answer is always 4096 bytes.
    Identify(Identify),
    /// 5.1: best effort, for a command that may already have completed.
    Abort {
        /// The queue that the command was submitted to.
        sqid: QueueId,
        /// The command.
        cid: CommandId,
    },
    /// 5.27.
    SetFeatures(SetFeatures),
    /// 5.15.
    GetFeatures {
        /// Which feature: [`super::features::fid`].
        fid: u8,
        /// Which of its values.
        select: Select,
        /// What the feature makes of command dword 11.
        cdw11: u32,
    },
    /// 5.2: completes when something happens.
    AsyncEventRequest,
    /// 5.18: the host is there.
    KeepAlive,
    /// 5.14.
    FormatNvm(FormatNvm),
    /// 5.8. The test goes on after the command has completed.
    SelfTest(SelfTest),
    /// 5.24: it goes on after the command has completed.
    Sanitize(Sanitize),
    /// 5.11: where the host keeps shadows of its doorbells, and where the controller says behind which values
    /// it is to be rung: both pages of the data pointer.
    DoorbellBuffers,
    /// 5.23, SEL 0: a new namespace, as the data, an
    /// [`IdentifyNamespace`](super::identify::IdentifyNamespace), describe it.
    CreateNamespace {
        /// The command set that it is to be of.
        csi: u8,
    },
    /// 5.23, SEL 1: the request's namespace is given up.
    DeleteNamespace,
    /// 5.22, SEL 0: to the controllers that the data list.
    AttachNamespace,
    /// 5.22, SEL 1: from the controllers that the data list.
    DetachNamespace,
    /// Of our own: goes over a superblock of flash.
    Collect(Collect),
}

/// STC: which self-test is to be begun, or whether the one that runs is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SelfTest {
    /// One of two minutes at most.
    Short = 1,
    /// One that takes as long as Identify says.
    Extended = 2,
    /// None: the one that runs is aborted.
    Abort = 0xf,
}

/// How a namespace is to be formatted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FormatNvm {
    /// LBAF: the number of the format, 0 to 63.
    pub format: u8,
    /// MSET: metadata follow each block's data.
    pub metadata_inline: bool,
    /// PI: the type of protection information; 0 for none.
    pub protection: u8,
    /// PIL: protection information is the first of the metadata.
    pub protection_first: bool,
    /// SES: which erase there is to be.
    pub erase: u8,
}

/// A new I/O submission queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreateSq {
    /// Its number, never 0.
    pub qid: QueueId,
    /// How many entries it has: 2 to 65536.
    pub size: u32,
    /// The completion queue it completes to, never 0.
    pub cqid: QueueId,
    /// Its class under weighted round robin.
    pub priority: Priority,
    /// PC: PRP1 is the queue itself, else a list of its pages.
    pub contiguous: bool,
}

/// A new I/O completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreateCq {
    /// Its number, never 0.
    pub qid: QueueId,
    /// How many entries it has: 2 to 65536.
    pub size: u32,
    /// The interrupt vector to signal.
    pub vector: u16,
    /// IEN: whether to signal it.
    pub irq_enabled: bool,
    /// PC: PRP1 is the queue itself, else a list of its pages.
    pub contiguous: bool,
}

/// QPRIO: the class of a submission queue under weighted round robin (3.4.4.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// Before all others but the admin queue.
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
    /// Which page: [`super::log::lid`].
    pub lid: u8,
    /// LSP: what the page makes of it; below 128.
    pub lsp: u8,
    /// LSI: what the page makes of it.
    pub lsi: u16,
    /// RAE: don't clear the asynchronous event that told of this page.
    pub retain_event: bool,
    /// How much, in bytes: 4 to 2^34, a multiple of 4.
    pub bytes: u64,
    /// Where in the page to begin, in bytes: a multiple of 4.
    pub offset: u64,
    /// The command set meant, where the page depends on it.
    pub csi: u8,
}

/// Which structure to identify by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identify {
    /// Which structure: [`super::identify::cns`].
    pub cns: u8,
    /// The controller meant, for the structures that need one.
    pub cntid: u16,
    /// What the structure makes of it.
    pub cns_specific: u16,
    /// The command set meant, for the structures that need one.
    pub csi: u8,
}

/// A new value of a feature.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetFeatures {
    /// Which feature: [`super::features::fid`].
    pub fid: u8,
    /// SV: keep the value across resets and power cycles.
    pub save: bool,
    /// The value; [`super::features::Feature::unpack`] makes sense of it.
    pub cdw11: u32,
    /// More of the value, for the few features that are so large.
    pub cdw12_to_15: [u32; 4],
}

/// Which value of a feature to get (5.15).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Select {
    /// What holds now.
    #[default]
    Current,
    /// What held when the controller was made.
    Default,
    /// What will hold after the next reset.
    Saved,
    /// Not a value, but what can be done with the feature.
    Supported,
}

/// Makes sense of an entry of the admin submission queue.
///
/// Reserved fields are ignored, as the specification allows. What exists (queues, vectors,
/// namespaces) and what is within the controller's limits is left to the controller.
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
    /// If the command is one that [`parse`] would refuse.
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
    /// The command's number.
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
    fn only_known_opcodes_parse() {
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
