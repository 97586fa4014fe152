//! Sanitize (NVMe base 2.0, 5.24).

use bitfield_struct::bitfield;

use crate::nvme::entry::Sqe;
use crate::nvme::status::Status;

/// Parameters of Sanitize.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sanitize {
    /// SANACT: the sanitize action.
    pub action: SanitizeAction,
    /// AUSE: allow unrestricted sanitize exit, so that Exit Failure Mode may follow a failure.
    pub unrestricted: bool,
    /// OWPASS: number of overwrite passes, 1 to 16.
    pub passes: u8,
    /// OIPBP: invert the pattern between passes.
    pub invert: bool,
    /// NDAS: no deallocate after sanitize.
    pub keep_allocated: bool,
    /// OVRPAT: overwrite pattern.
    pub pattern: u32,
}

/// SANACT: the sanitize action.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SanitizeAction {
    /// Exit Failure Mode: no data are sanitized.
    ExitFailure = 1,
    /// Block Erase: all blocks are erased by a medium-specific method.
    #[default]
    BlockErase = 2,
    /// Overwrite: all blocks are overwritten, once per pass.
    Overwrite = 3,
    /// Crypto Erase: the media encryption keys of all blocks are changed.
    CryptoErase = 4,
}

impl Default for Sanitize {
    /// Block Erase, restricted completion mode.
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
    /// 0 means 16.
    #[bits(4)]
    owpass: u8,
    oipbp: bool,
    ndas: bool,
    #[bits(22)]
    __: u32,
}

impl Sanitize {
    /// Encodes to command dwords 10 and 11, also used in the Sanitize Status log.
    pub fn into_dwords(self) -> (u32, u32) {
        let dword = Dword10::new()
            .with_sanact(self.action as u8)
            .with_ause(self.unrestricted)
            .with_owpass(self.passes & 0xf)
            .with_oipbp(self.invert)
            .with_ndas(self.keep_allocated);
        (dword.into_bits(), self.pattern)
    }

    /// Decodes command dwords 10 and 11.
    ///
    /// # Errors
    /// Invalid Field for an undefined action.
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

    /// Pattern of a pass, counted from 0: the last pass writes the pattern as given.
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
    fn sanitize_overwrite_dwords_layout() {
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
    fn sanitize_last_pass_writes_pattern() {
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
