//! Target: logical units by number.

use alloc::vec::Vec;
use core::future::Future;

use bus::{Buffer, OutOfMemory};
use wire::scsi::capacity::{self, Select};
use wire::scsi::cdb::{self, Cdb, Command, Invalid};
use wire::scsi::inquiry;
use wire::scsi::lun::Lun;
use wire::scsi::sense::{Additional, Field, Key, Sense};

use super::unit::{Unit, give, sense_data};
use super::{Reply, Transport};
use host::BlockDevice;

/// Shorter allocation lengths for REPORT LUNS are invalid (SPC-4, 6.33).
const LUNS_ALLOCATION_MIN: u32 = 16;

/// Numbered logical units.
pub struct Target<D> {
    units: Vec<(Lun, Unit<D>)>,
}

impl<D: BlockDevice> Target<D> {
    /// Creates a target of these units, numbered from 0.
    ///
    /// # Panics
    /// If there are no units, or more than one list can hold.
    pub fn new(units: Vec<Unit<D>>) -> Target<D> {
        assert!((1..=capacity::LUNS_MAX).contains(&units.len()));
        let numbered = units.into_iter().enumerate();
        Target { units: numbered.map(|(n, unit)| (Lun::of(n as u16), unit)).collect() }
    }

    /// Unit of this number, in any addressing method.
    pub fn unit(&self, lun: Lun) -> Option<&Unit<D>> {
        let number = lun.number()?;
        self.units.iter().find(|(has, _)| has.number() == Some(number)).map(|(_, unit)| unit)
    }

    /// Executes a command of any bytes. The buffer comes back with the reply.
    ///
    /// May be dropped at any await, like the operations of a [`BlockDevice`].
    pub async fn execute(&self, lun: Lun, block: &[u8], buffer: Option<Buffer>) -> Reply {
        let command = match cdb::parse(block) {
            Ok(command) => command,
            Err(invalid) => return Reply::check(buffer, self.refusal(lun, invalid)),
        };
        if let Command::ReportLuns { select, allocation } = command {
            return self.report(select, allocation, buffer);
        }
        match self.unit(lun) {
            Some(unit) => unit.execute(&command, buffer).await,
            None => without_unit(&command, buffer),
        }
    }

    /// Sense of an invalid command; a missing unit takes precedence.
    fn refusal(&self, lun: Lun, invalid: Invalid) -> Sense {
        if self.unit(lun).is_none() {
            return NO_UNIT;
        }
        match invalid {
            Invalid::Opcode => Sense::new(Key::IllegalRequest, Additional::INVALID_OPCODE),
            Invalid::Field(field) => Sense::invalid_field(field),
            Invalid::Short => Sense::new(Key::IllegalRequest, Additional::INVALID_FIELD_IN_CDB),
        }
    }

    fn report(&self, select: u8, allocation: u32, buffer: Option<Buffer>) -> Reply {
        let Some(select) = Select::of(select) else {
            return Reply::check(buffer, Sense::invalid_field(Field::byte(2)));
        };
        if allocation < LUNS_ALLOCATION_MIN {
            return Reply::check(buffer, Sense::invalid_field(Field::byte(6)));
        }
        let units = self.units.iter().map(|(lun, _)| *lun);
        let units = units.filter(|_| select != Select::WellKnown);
        give(buffer, capacity::luns(units).as_slice(), allocation)
    }
}

/// Sense for a missing unit.
const NO_UNIT: Sense = Sense::new(Key::IllegalRequest, Additional::UNIT_NOT_SUPPORTED);

/// Reply of a missing unit (SAM-5, 4.7.2; SPC-4, 5.12).
fn without_unit(command: &Command, buffer: Option<Buffer>) -> Reply {
    match *command {
        Command::Inquiry { page: None, allocation } => {
            give(buffer, inquiry::no_unit().as_slice(), allocation.into())
        }
        Command::RequestSense { descriptors, allocation } => {
            give(buffer, sense_data(&NO_UNIT, descriptors).as_slice(), allocation.into())
        }
        _ => Reply::check(buffer, NO_UNIT),
    }
}

impl<D: BlockDevice> Transport for Target<D> {
    fn execute(&self, lun: Lun, cdb: &Cdb, buffer: Option<Buffer>) -> impl Future<Output = Reply> {
        Target::execute(self, lun, cdb.as_slice(), buffer)
    }

    fn buffer(&self, bytes: usize) -> Result<Buffer, OutOfMemory> {
        self.units[0].1.device().buffer(bytes)
    }
}
