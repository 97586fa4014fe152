//! Sanitize (NVMe base 2.0, 5.24): what is to become of all that the subsystem holds.

use bitfield_struct::bitfield;

use crate::nvme::entry::Sqe;
use crate::nvme::status::Status;

/// What Sanitize asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sanitize {
    /// SANACT.
    pub action: SanitizeAction,
    /// AUSE: should it fail, the failure may be left behind.
    pub unrestricted: bool,
    /// OWPASS: how often the medium is overwritten, 1 to 16.
    pub passes: u8,
    /// OIPBP: the pattern is inverted between passes.
    pub invert: bool,
    /// NDAS: blocks are not deallocated afterwards.
    pub keep_allocated: bool,
    /// OVRPAT: what blocks are overwritten with.
    pub pattern: u32,
}

/// SANACT.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SanitizeAction {
    /// Nothing is sanitized: a failure is left behind.
    ExitFailure = 1,
    /// All blocks are erased by the medium's own means.
    #[default]
    BlockErase = 2,
    /// All blocks are overwritten, pass after pass.
    Overwrite = 3,
    /// The keys are changed that all blocks are encrypted with.
    CryptoErase = 4,
}

impl Default for Sanitize {
    /// Block Erase, with no leave to fail.
    fn default() -> Sanitize {
        Sanitize {
            action: SanitizeAction::BlockErase,
            unrestricted: false,
            passes: 1,
            invert: false,
            keep_allocated: false,
            pattern: 0,
        }
    }
}

#[bitfield(u32)]
struct Dword10 {
    #[bits(3)]
    sanact: u8,
    ause: bool,
    /// 0 says 16.
    #[bits(4)]
    owpass: u8,
    oipbp: bool,
    ndas: bool,
    #[bits(22)]
    __: u32,
}

impl Sanitize {
    /// Dwords 10 and 11, as the entry and the Sanitize Status log have them.
    pub fn into_dwords(self) -> (u32, u32) {
        let dword = Dword10::new()
            .with_sanact(self.action as u8)
            .with_ause(self.unrestricted)
            .with_owpass(self.passes & 0xf)
            .with_oipbp(self.invert)
            .with_ndas(self.keep_allocated);
        (dword.into_bits(), self.pattern)
    }

    /// The reverse.
    ///
    /// # Errors
    /// Invalid Field for an action that there is not.
    pub fn from_dwords(dword10: u32, pattern: u32) -> Result<Sanitize, Status> {
        let dword = Dword10::from_bits(dword10);
        let action = match dword.sanact() {
            1 => SanitizeAction::ExitFailure,
            2 => SanitizeAction::BlockErase,
            3 => SanitizeAction::Overwrite,
            4 => SanitizeAction::CryptoErase,
            _ => return Err(Status::INVALID_FIELD),
        };
        Ok(Sanitize {
            action,
            unrestricted: dword.ause(),
            passes: if dword.owpass() == 0 { 16 } else { dword.owpass() },
            invert: dword.oipbp(),
            keep_allocated: dword.ndas(),
            pattern,
        })
    }

    /// What a pass, counted from 0, writes: the last writes the pattern as it was given.
    pub fn pattern_of(&self, pass: u8) -> u32 {
        let inverted = self.invert && (self.passes - 1 - pass) % 2 == 1;
        if inverted { !self.pattern } else { self.pattern }
    }

    pub(super) fn parse(sqe: &Sqe) -> Result<Sanitize, Status> {
        Sanitize::from_dwords(sqe.cdw10.get(), sqe.cdw11.get())
    }

    pub(super) fn store(&self, sqe: &mut Sqe) {
        let (dword10, dword11) = self.into_dwords();
        (sqe.cdw10, sqe.cdw11) = (dword10.into(), dword11.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overwrite_bit_by_bit() {
        let sanitize = Sanitize {
            action: SanitizeAction::Overwrite,
            unrestricted: true,
            passes: 16,
            invert: true,
            keep_allocated: true,
            pattern: 0x1234_5678,
        };
        assert_eq!(sanitize.into_dwords(), (0x30b, 0x1234_5678));
        assert_eq!(Sanitize::from_dwords(0x30b, 0x1234_5678), Ok(sanitize));
        assert_eq!(Sanitize::default().into_dwords(), (0x12, 0));
        for action in [0, 5, 6, 7] {
            assert_eq!(Sanitize::from_dwords(action, 0), Err(Status::INVALID_FIELD));
        }
    }

    #[test]
    fn the_last_pass_writes_the_pattern() {
        for passes in 1..=16 {
            let plain = Sanitize { passes, pattern: 0xa5a5_0f0f, ..Sanitize::default() };
            let inverting = Sanitize { invert: true, ..plain };
            for pass in 0..passes {
                assert_eq!(plain.pattern_of(pass), 0xa5a5_0f0f);
                let before = inverting.pattern_of(pass.saturating_sub(1));
                assert!(pass == 0 || inverting.pattern_of(pass) == !before);
            }
            assert_eq!(inverting.pattern_of(passes - 1), 0xa5a5_0f0f);
        }
    }
}
