//! Controller registers: capabilities, enable, disable, shutdown (NVMe base 2.0, 3.1.3, 3.5).

use bus::HostPort;
use runtime::{Span, Time};
use wire::BusAddr;
use wire::nvme::registers::{self, Aqa, Cap, Cc, Csts};

use super::{Options, PAGE_BYTES, REGISTER_POLL};
use crate::InitError;

/// Addresses and lengths of the admin queues.
#[derive(Clone, Copy)]
pub(super) struct AdminQueues {
    pub sq: BusAddr,
    pub sq_entries: u32,
    pub cq: BusAddr,
    pub cq_entries: u32,
}

/// Registers of a supported controller.
pub(super) struct Bar<P: HostPort> {
    port: P,
    cap: Cap,
    /// True if queues are arbitrated by weight.
    by_weight: bool,
    /// Time limit for CSTS.RDY to change.
    ready_timeout: Span,
}

impl<P: HostPort> Bar<P> {
    /// Reads and validates the capabilities.
    pub async fn probe(port: &P, options: &Options) -> Result<Bar<P>, InitError> {
        let by_weight = options.arbitration.is_some();
        let (port, cap) = (port.clone(), Cap::new());
        let mut bar = Bar { port, cap, by_weight, ready_timeout: Span::ZERO };
        bar.read("VS", registers::VS).await?;
        let low = bar.read("CAP", registers::CAP).await?;
        let high = bar.read("CAP", registers::CAP + 4).await?;
        bar.cap = Cap::from_bits(u64::from(high) << 32 | u64::from(low));
        bar.validate()?;
        let timeout = Span::ms(u64::from(bar.cap.timeout_ms()));
        bar.ready_timeout = timeout.max(options.ready_floor).min(options.ready_ceiling);
        Ok(bar)
    }

    fn validate(&self) -> Result<(), InitError> {
        let unsupported =
            |what, found, expected| Err(InitError::Unsupported { what, found, expected });
        let cap = self.cap;
        if cap.mpsmin() != 0 {
            return unsupported(
                "CAP.MPSMIN",
                u64::from(cap.mpsmin()),
                "0: memory pages of 4096 bytes",
            );
        }
        if cap.css() & (Cap::CSS_NVM | CSS_NAMED) == 0 {
            return unsupported(
                "CAP.CSS",
                u64::from(cap.css()),
                "the NVM command set (bit 0 or bit 6)",
            );
        }
        if self.by_weight && cap.ams() & Cap::AMS_WEIGHTED == 0 {
            return unsupported(
                "CAP.AMS",
                u64::from(cap.ams()),
                "weighted round robin with urgent class (bit 0), which was asked for",
            );
        }
        if cap.queue_entries_max() < 2 {
            return unsupported(
                "CAP.MQES",
                u64::from(cap.mqes()),
                "1 or more: queues of 2 entries",
            );
        }
        Ok(())
    }

    pub fn cap(&self) -> Cap {
        self.cap
    }

    /// Reads CSTS.
    pub async fn status(&self) -> Result<Csts, InitError> {
        Ok(Csts::from_bits(self.read("CSTS", registers::CSTS).await?))
    }

    /// Disables the controller and waits for CSTS.RDY = 0: from then on it writes nothing.
    pub async fn disable(&self) -> Result<(), InitError> {
        let cc = Cc::from_bits(self.read("CC", registers::CC).await?);
        if cc.en() {
            let off = cc.with_en(false).with_shn(0);
            self.port.write32(registers::CC, off.into_bits());
        }
        self.wait(self.ready_timeout, "CSTS.RDY", 0, |csts| Ok(u32::from(csts.rdy()))).await
    }

    /// Disables a controller in an unknown state, so that it can be enabled: another driver may have been
    /// killed right after it enabled it.
    pub async fn disable_unknown(&self) -> Result<(), InitError> {
        let cc = Cc::from_bits(self.read("CC", registers::CC).await?);
        if cc.en() {
            // Clearing EN before RDY has followed it is undefined (NVMe base 2.0, 3.1.3.5): a controller that
            // is still becoming ready could miss that EN was clear. One that never becomes ready is disabled
            // all the same.
            let settled = |csts: Csts| Ok(u32::from(csts.rdy() || csts.cfs()));
            ignore_time(self.wait(self.ready_timeout, "CSTS.RDY", 1, settled).await)?;
        }
        self.disable().await?;
        // A controller that failed before it was ready has RDY = 0 throughout; that it has seen EN = 0 shows
        // in CFS becoming 0. If CFS stays set, the next enable reports it.
        let fatal = |csts: Csts| Ok(u32::from(csts.cfs()));
        ignore_time(self.wait(self.ready_timeout, "CSTS.CFS", 0, fatal).await)
    }

    /// Programs the admin queues, enables the controller, and waits for CSTS.RDY = 1.
    pub async fn enable(&self, admin: AdminQueues) -> Result<(), InitError> {
        let aqa = Aqa::new()
            .with_asqs((admin.sq_entries - 1) as u16)
            .with_acqs((admin.cq_entries - 1) as u16);
        self.port.write32(registers::AQA, aqa.into_bits());
        self.write64(registers::ASQ, admin.sq.0);
        self.write64(registers::ACQ, admin.cq.0);
        let css = if self.cap.css() & Cap::CSS_NVM != 0 { 0 } else { 6 };
        let ams = if self.by_weight { Cc::AMS_WEIGHTED } else { Cc::AMS_ROUND_ROBIN };
        let cc = Cc::new().with_css(css).with_ams(ams).with_mps(0).with_iosqes(6).with_iocqes(4);
        let cc = cc.with_en(true);
        debug_assert_eq!(cc.page_bytes(), PAGE_BYTES);
        self.port.write32(registers::CC, cc.into_bits());
        self.wait(self.ready_timeout, "CSTS.RDY", 1, |csts| match csts.cfs() {
            true => Err(InitError::Fatal { found: csts.into_bits() }),
            false => Ok(u32::from(csts.rdy())),
        })
        .await
    }

    /// Requests a normal shutdown (CC.SHN) and waits for its completion.
    pub async fn notify_shutdown(&self, timeout: Span) -> Result<(), InitError> {
        let cc = Cc::from_bits(self.read("CC", registers::CC).await?);
        self.port.write32(registers::CC, cc.with_shn(Cc::SHN_NORMAL).into_bits());
        let complete = u32::from(Csts::SHST_COMPLETE);
        let timeout = timeout.max(self.ready_timeout);
        self.wait(timeout, "CSTS.SHST", complete, |csts| Ok(u32::from(csts.shst()))).await
    }

    /// Polls CSTS until `field` equals `expected`, for at most `timeout`.
    async fn wait(
        &self,
        timeout: Span,
        register: &'static str,
        expected: u32,
        field: impl Fn(Csts) -> Result<u32, InitError>,
    ) -> Result<(), InitError> {
        let deadline: Time = self.port.rt().now() + timeout;
        loop {
            let csts = self.status().await?;
            if field(csts)? == expected {
                return Ok(());
            }
            if self.port.rt().now() >= deadline {
                let found = csts.into_bits();
                return Err(InitError::NotReady { register, found, expected, waited: timeout });
            }
            self.port.rt().sleep(REGISTER_POLL).await;
        }
    }

    /// Reads a register. All registers read here have reserved bits, so none reads all ones while the device
    /// is present.
    async fn read(&self, register: &'static str, offset: u32) -> Result<u32, InitError> {
        let value = self.port.read32(offset).await;
        if value == u32::MAX || self.port.is_gone() {
            return Err(InitError::Gone { register });
        }
        Ok(value)
    }

    /// Writes the low half first (NVMe base 2.0, 3.1: 8-byte registers may be written in two halves).
    fn write64(&self, offset: u32, value: u64) {
        self.port.write32(offset, value as u32);
        self.port.write32(offset + 4, (value >> 32) as u32);
    }
}

/// Ignores a time-out where the next step is the same with and without it.
fn ignore_time(waited: Result<(), InitError>) -> Result<(), InitError> {
    match waited {
        Err(InitError::NotReady { .. }) => Ok(()),
        other => other,
    }
}

/// Bit of CAP.CSS: the supported command sets are in Identify data.
const CSS_NAMED: u8 = 1 << 6;
