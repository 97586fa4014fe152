//! Controller registers in BAR0 (NVMe base 2.0, 3.1.3) and doorbells (NVMe over PCIe 1.0, 3.1.2).

use bitfield_struct::bitfield;

use crate::QueueId;

/// One row of the register map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register {
    /// Name in the specification.
    pub name: &'static str,
    /// Offset in BAR0, bytes.
    pub offset: u32,
    /// Width in bytes.
    pub bytes: u32,
    /// Description.
    pub about: &'static str,
}

macro_rules! registers {
    ($($name:ident @ $offset:literal, $bytes:literal, $about:literal;)+) => {
        $(#[doc = concat!("Offset of ", stringify!($name), ": ", $about, ".")]
          pub const $name: u32 = $offset;)+

        /// Register map in ascending order; the doorbells follow at [`DOORBELLS`].
        pub const REGISTERS: &[Register] = &[$(Register {
            name: stringify!($name), offset: $offset, bytes: $bytes, about: $about,
        }),+];
    };
}

registers! {
    CAP @ 0x00, 8, "what the controller can do";
    VS @ 0x08, 4, "the specification's version it follows";
    INTMS @ 0x0c, 4, "sets interrupt mask bits";
    INTMC @ 0x10, 4, "clears interrupt mask bits";
    CC @ 0x14, 4, "how the host configures it";
    CSTS @ 0x1c, 4, "whether it is ready";
    NSSR @ 0x20, 4, "resets the whole subsystem";
    AQA @ 0x24, 4, "sizes of the admin queues";
    ASQ @ 0x28, 8, "where the admin submission queue lies";
    ACQ @ 0x30, 8, "where the admin completion queue lies";
}

/// Offset of the first doorbell.
pub const DOORBELLS: u32 = 0x1000;

/// Version 1.4 as in [`VS`]: major, minor and tertiary numbers.
pub const VERSION_1_4: u32 = 0x0001_0400;

/// CAP, controller capabilities (NVMe base 2.0, 3.1.3.1).
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct Cap {
    /// Maximum entries of an I/O queue, less one.
    pub mqes: u16,
    /// I/O queues must be contiguous.
    pub cqr: bool,
    /// Arbitration mechanisms in addition to round robin: bit 0 weighted round robin, bit 1 vendor specific.
    #[bits(2)]
    pub ams: u8,
    #[bits(5)]
    __: u8,
    /// Maximum time to become ready or not ready, in units of 500 ms.
    pub to: u8,
    /// Doorbell stride is 4 << DSTRD bytes.
    #[bits(4)]
    pub dstrd: u8,
    /// Subsystem reset is supported.
    pub nssrs: bool,
    /// Command sets: bit 0 NVM, bit 6 those given by Identify, bit 7 admin only.
    pub css: u8,
    /// Boot partitions are supported.
    pub bps: bool,
    /// Power scope of the controller.
    #[bits(2)]
    pub cps: u8,
    /// Minimum memory page is 4096 << MPSMIN bytes.
    #[bits(4)]
    pub mpsmin: u8,
    /// Maximum memory page is 4096 << MPSMAX bytes.
    #[bits(4)]
    pub mpsmax: u8,
    /// A persistent memory region is supported.
    pub pmrs: bool,
    /// A controller memory buffer is supported.
    pub cmbs: bool,
    /// Subsystem shutdown is supported.
    pub nsss: bool,
    /// Ready modes: bit 0 with media, bit 1 independent of media.
    #[bits(2)]
    pub crms: u8,
    #[bits(3)]
    __: u8,
}

impl Cap {
    /// Bit of [`css`](Self::css) for the NVM command set.
    pub const CSS_NVM: u8 = 1 << 0;

    /// AMS: weighted round robin with an urgent class.
    pub const AMS_WEIGHTED: u8 = 1 << 0;

    /// Maximum entries of an I/O queue.
    pub const fn queue_entries_max(self) -> u32 {
        self.mqes() as u32 + 1
    }

    /// Maximum time to become ready or not ready, in milliseconds.
    pub const fn timeout_ms(self) -> u32 {
        self.to() as u32 * 500
    }
}

/// CC, controller configuration (NVMe base 2.0, 3.1.3.5).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Cc {
    /// Enable: 0 to 1 starts the controller, 1 to 0 resets it.
    pub en: bool,
    #[bits(3)]
    __: u8,
    /// Command set: 0 NVM, 6 all supported, 7 admin only.
    #[bits(3)]
    pub css: u8,
    /// Memory page size is 4096 << MPS bytes.
    #[bits(4)]
    pub mps: u8,
    /// Arbitration: 0 round robin, 1 weighted round robin with urgent class, 7 vendor specific.
    #[bits(3)]
    pub ams: u8,
    /// Shutdown notification: [`Cc::SHN_NORMAL`] or [`Cc::SHN_ABRUPT`].
    #[bits(2)]
    pub shn: u8,
    /// I/O submission entries are 1 << IOSQES bytes.
    #[bits(4)]
    pub iosqes: u8,
    /// I/O completion entries are 1 << IOCQES bytes.
    #[bits(4)]
    pub iocqes: u8,
    /// Ready independent of media is enabled.
    pub crime: bool,
    #[bits(7)]
    __: u8,
}

impl Cc {
    /// Arbitration: round robin.
    pub const AMS_ROUND_ROBIN: u8 = 0;
    /// Arbitration: weighted round robin with an urgent class.
    pub const AMS_WEIGHTED: u8 = 1;
    /// Normal shutdown notification.
    pub const SHN_NORMAL: u8 = 1;
    /// Abrupt shutdown notification: power is about to fail.
    pub const SHN_ABRUPT: u8 = 2;

    /// Memory page size in bytes, the unit of PRPs.
    pub const fn page_bytes(self) -> u64 {
        4096 << self.mps()
    }
}

/// CSTS, controller status (NVMe base 2.0, 3.1.3.6).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Csts {
    /// Ready: commands are processed.
    pub rdy: bool,
    /// Fatal status: an error that cannot be reported otherwise.
    pub cfs: bool,
    /// Shutdown: [`Csts::SHST_OCCURRING`], then [`Csts::SHST_COMPLETE`].
    #[bits(2)]
    pub shst: u8,
    /// The subsystem has been reset.
    pub nssro: bool,
    /// Command processing is paused.
    pub pp: bool,
    /// The shutdown reported by [`shst`](Self::shst) is that of the subsystem.
    pub st: bool,
    #[bits(25)]
    __: u32,
}

impl Csts {
    /// The controller is shutting down.
    pub const SHST_OCCURRING: u8 = 1;
    /// The controller has shut down: power may be removed.
    pub const SHST_COMPLETE: u8 = 2;
}

/// AQA, admin queue attributes (NVMe base 2.0, 3.1.3.8).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Aqa {
    /// Entries of the admin submission queue, less one.
    #[bits(12)]
    pub asqs: u16,
    #[bits(4)]
    __: u8,
    /// Entries of the admin completion queue, less one.
    #[bits(12)]
    pub acqs: u16,
    #[bits(4)]
    __: u8,
}

impl Aqa {
    /// Entries of the admin submission queue: 2 to 4096, or 1 if the host wrote an invalid size.
    pub const fn sq_entries(self) -> u32 {
        self.asqs() as u32 + 1
    }

    /// Entries of the admin completion queue: 2 to 4096, or 1 if the host wrote an invalid size.
    pub const fn cq_entries(self) -> u32 {
        self.acqs() as u32 + 1
    }
}

/// Offset of a submission queue's tail doorbell, bytes. `dstrd` is [`Cap::dstrd`].
///
/// A wide stride with a high queue identifier passes 4 GiB. The result is then `u32::MAX`, which is not a
/// multiple of 4 and is past the end of any BAR, so a bounds check rejects it.
pub const fn sq_tail_doorbell(qid: QueueId, dstrd: u8) -> u32 {
    doorbell(2 * qid.0 as u64, dstrd)
}

/// Offset of a completion queue's head doorbell, bytes; see [`sq_tail_doorbell`].
pub const fn cq_head_doorbell(qid: QueueId, dstrd: u8) -> u32 {
    doorbell(2 * qid.0 as u64 + 1, dstrd)
}

const fn doorbell(index: u64, dstrd: u8) -> u32 {
    assert!(dstrd < 16, "CAP.DSTRD has four bits");
    let offset = DOORBELLS as u64 + index * (4 << dstrd);
    if offset <= u32::MAX as u64 { offset as u32 } else { u32::MAX }
}

/// A doorbell register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doorbell {
    /// Tail of a submission queue.
    SqTail(QueueId),
    /// Head of a completion queue.
    CqHead(QueueId),
}

impl Doorbell {
    /// The doorbell at `offset` of BAR0; `None` if there is none.
    pub const fn at(offset: u32, dstrd: u8) -> Option<Doorbell> {
        assert!(dstrd < 16, "CAP.DSTRD has four bits");
        let stride = 4u32 << dstrd;
        if offset < DOORBELLS || !(offset - DOORBELLS).is_multiple_of(stride) {
            return None;
        }
        let index = (offset - DOORBELLS) / stride;
        if index > 2 * u16::MAX as u32 + 1 {
            return None;
        }
        let qid = QueueId((index / 2) as u16);
        Some(if index.is_multiple_of(2) { Doorbell::SqTail(qid) } else { Doorbell::CqHead(qid) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_are_sorted_and_do_not_overlap() {
        for pair in REGISTERS.windows(2) {
            assert!(pair[0].offset + pair[0].bytes <= pair[1].offset, "{pair:?}");
        }
        let last = REGISTERS.last().unwrap();
        assert!(last.offset + last.bytes <= DOORBELLS);
        assert_eq!((CAP, CC, CSTS, AQA, ASQ, ACQ), (0, 0x14, 0x1c, 0x24, 0x28, 0x30));
    }

    #[test]
    fn cap_matches_golden_value() {
        let cap = Cap::from_bits(0x0000_0020_0f01_07ff);
        assert_eq!((cap.queue_entries_max(), cap.cqr(), cap.timeout_ms()), (2048, true, 7500));
        assert_eq!((cap.dstrd(), cap.css(), cap.mpsmin()), (0, Cap::CSS_NVM, 0));
    }

    #[test]
    fn cap_cc_csts_aqa_field_positions() {
        assert_eq!(Cap::new().with_ams(3).into_bits(), 3 << 17);
        assert_eq!(Cap::new().with_to(0xff).into_bits(), 0xff << 24);
        assert_eq!(Cap::new().with_dstrd(0xf).into_bits(), 0xf << 32);
        assert_eq!(Cap::new().with_nssrs(true).into_bits(), 1 << 36);
        assert_eq!(Cap::new().with_css(0xff).into_bits(), 0xff << 37);
        assert_eq!(Cap::new().with_mpsmin(0xf).into_bits(), 0xf << 48);
        assert_eq!(Cap::new().with_mpsmax(0xf).into_bits(), 0xf << 52);
        assert_eq!(Cap::new().with_crms(3).into_bits(), 3 << 59);
        assert_eq!(Cc::new().with_mps(0xf).into_bits(), 0xf << 7);
        assert_eq!(Cc::new().with_shn(3).into_bits(), 3 << 14);
        assert_eq!(Csts::new().with_shst(3).into_bits(), 3 << 2);
        assert_eq!(Csts::new().with_pp(true).into_bits(), 1 << 5);
    }

    #[test]
    fn cc_value_as_written_by_hosts() {
        let cc = Cc::new().with_en(true).with_iosqes(6).with_iocqes(4);
        assert_eq!(cc.into_bits(), 0x0046_0001);
        assert_eq!(cc.page_bytes(), 4096);
        assert_eq!(cc.with_mps(4).page_bytes(), 65536);
        let aqa = Aqa::from_bits(0x00ff_001f);
        assert_eq!((aqa.sq_entries(), aqa.cq_entries()), (32, 256));
    }

    #[test]
    fn doorbell_offsets_follow_stride() {
        assert_eq!(sq_tail_doorbell(QueueId(0), 0), 0x1000);
        assert_eq!(cq_head_doorbell(QueueId(0), 0), 0x1004);
        assert_eq!(sq_tail_doorbell(QueueId(3), 0), 0x1018);
        assert_eq!(cq_head_doorbell(QueueId(1), 4), 0x10c0);
        assert_eq!(cq_head_doorbell(QueueId(u16::MAX), 15), u32::MAX);
    }

    #[test]
    fn doorbell_round_trips_through_offset() {
        for dstrd in 0..16 {
            for qid in [0, 1, 2, 7, 1000, 16_000, u16::MAX].map(QueueId) {
                let (sq, cq) = (sq_tail_doorbell(qid, dstrd), cq_head_doorbell(qid, dstrd));
                let fits = 2 * u64::from(qid.0) * (4 << dstrd) < u64::from(u32::MAX - DOORBELLS);
                assert_eq!(Doorbell::at(sq, dstrd), fits.then_some(Doorbell::SqTail(qid)));
                assert_eq!(Doorbell::at(cq, dstrd), fits.then_some(Doorbell::CqHead(qid)));
            }
        }
        assert_eq!(Doorbell::at(0x0ffc, 0), None);
        assert_eq!(Doorbell::at(0x1002, 0), None);
        assert_eq!(Doorbell::at(0x1004, 1), None);
        assert_eq!(Doorbell::at(0x1000 + 0x20000 * 4, 0), None);
    }
}
