//! Round trips of SCSI commands through their bytes, and parsing of arbitrary bytes.

use proptest::prelude::*;
use wire::Lba;
use wire::scsi::capacity::{Shape, Unmapped};
use wire::scsi::cdb::{self, Access, Command, Form, Invalid, ModeSense, PageControl, Synchronize};
use wire::scsi::inquiry::{self, Identity, Limits, Rotation};
use wire::scsi::mode;
use wire::scsi::sense::{Additional, Field, Key, Sense};
use wire::scsi::unmap::{self, Range};

fn access() -> impl Strategy<Value = Access> {
    (0..4_u8, any::<(u64, u32, bool, bool)>()).prop_map(|(form, (lba, blocks, dpo, fua))| {
        let (form, lba, blocks) = match form {
            0 => (Form::Six, lba & 0x1f_ffff, blocks % 256 + 1),
            1 => (Form::Ten, lba & 0xffff_ffff, blocks & 0xffff),
            2 => (Form::Twelve, lba & 0xffff_ffff, blocks),
            _ => (Form::Sixteen, lba, blocks),
        };
        let flags = form != Form::Six;
        Access { form, lba: Lba(lba), blocks, dpo: dpo && flags, fua: fua && flags }
    })
}

fn synchronize() -> impl Strategy<Value = Synchronize> {
    any::<(bool, u64, u32)>().prop_map(|(long, lba, blocks)| match long {
        true => Synchronize { form: Form::Sixteen, lba: Lba(lba), blocks },
        false => {
            Synchronize { form: Form::Ten, lba: Lba(lba & 0xffff_ffff), blocks: blocks & 0xffff }
        }
    })
}

fn mode_sense() -> impl Strategy<Value = ModeSense> {
    let control = prop::sample::select(vec![
        PageControl::Current,
        PageControl::Changeable,
        PageControl::Default,
        PageControl::Saved,
    ]);
    (control, any::<(bool, bool, bool)>(), 0..64_u8, any::<(u8, u16)>()).prop_map(
        |(control, (ten, long, no_descriptor), page, (subpage, allocation))| ModeSense {
            ten,
            long_lba: ten && long,
            no_descriptor,
            control,
            page,
            subpage,
            allocation: if ten { allocation } else { allocation & 0xff },
        },
    )
}

fn command() -> impl Strategy<Value = Command> {
    prop_oneof![
        Just(Command::TestUnitReady),
        any::<(bool, u8)>().prop_map(|(descriptors, allocation)| Command::RequestSense {
            descriptors,
            allocation
        }),
        any::<(Option<u8>, u16)>()
            .prop_map(|(page, allocation)| Command::Inquiry { page, allocation }),
        mode_sense().prop_map(Command::ModeSense),
        any::<(bool, bool)>().prop_map(|(start, no_flush)| Command::StartStop { start, no_flush }),
        Just(Command::ReadCapacity10),
        any::<u32>().prop_map(|allocation| Command::ReadCapacity16 { allocation }),
        access().prop_map(Command::Read),
        access().prop_map(Command::Write),
        synchronize().prop_map(Command::SynchronizeCache),
        any::<u16>().prop_map(|list| Command::Unmap { list }),
        any::<(u8, u32)>()
            .prop_map(|(select, allocation)| Command::ReportLuns { select, allocation }),
    ]
}

fn sense() -> impl Strategy<Value = Sense> {
    let field = proptest::option::of(any::<(u16, Option<u8>)>())
        .prop_map(|field| field.map(|(byte, bit)| Field { byte, bit: bit.map(|bit| bit & 7) }));
    let key = prop::sample::select(vec![Key::NotReady, Key::MediumError, Key::IllegalRequest]);
    (key, any::<u16>(), field, any::<Option<u64>>()).prop_map(|(key, code, field, information)| {
        Sense { key, additional: Additional(code), field, information }
    })
}

proptest! {
    #[test]
    fn scsi_command_round_trip(command in command()) {
        let cdb = command.cdb();
        prop_assert_eq!(cdb::parse(cdb.as_slice()), Ok(command));
        // Transports pad to their own length; bytes beyond the command are ignored.
        let mut padded = [0xff; 32];
        padded[..cdb.as_slice().len()].copy_from_slice(cdb.as_slice());
        prop_assert_eq!(cdb::parse(&padded), Ok(command));
        for short in 0..cdb.as_slice().len() {
            prop_assert_eq!(cdb::parse(&cdb.as_slice()[..short]), Err(Invalid::Short));
        }
    }

    #[test]
    fn scsi_parse_accepts_arbitrary_bytes(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
        if let Err(Invalid::Field(field)) = cdb::parse(&bytes) {
            prop_assert!(usize::from(field.byte) < 16 && field.bit.is_none_or(|bit| bit < 8));
        }
        Sense::parse(&bytes);
        inquiry::parse_standard(&bytes);
        inquiry::parse_limits(&bytes);
        Shape::parse_16(&bytes);
        prop_assert!(unmap::parse(&bytes).map_or(0, Iterator::count) <= bytes.len() / 16);
        mode::parse_write_cache(&bytes);
    }

    #[test]
    fn scsi_unmap_list_round_trip(
        ranges in prop::collection::vec(any::<(u64, u32)>(), 0..16),
    ) {
        let ranges = ranges.iter().map(|(lba, blocks)| Range { lba: Lba(*lba), blocks: *blocks });
        let list = unmap::list(ranges.clone());
        let seen: Vec<_> = unmap::parse(list.as_slice()).unwrap().collect();
        prop_assert_eq!(seen, ranges.collect::<Vec<_>>());
    }

    #[test]
    fn scsi_sense_round_trip_both_formats(sense in sense(), more in any::<[u8; 4]>()) {
        let bytes = [sense.descriptors().as_slice(), &more].concat();
        prop_assert_eq!(Sense::parse(&bytes), Some(sense));
        let near = Sense { information: sense.information.map(|lba| lba & 0xffff_ffff), ..sense };
        let bytes = [&near.fixed()[..], &more].concat();
        prop_assert_eq!(Sense::parse(&bytes), Some(near));
    }
}

/// Example bytes of SPC-4 and SBC-3: errors that builder and parser could share.
#[test]
fn scsi_cdbs_match_standard_bytes() {
    let read = Access { form: Form::Six, lba: Lba(0x1f_0203), blocks: 256, dpo: false, fua: false };
    assert_eq!(Command::Read(read).cdb().as_slice(), [0x08, 0x1f, 2, 3, 0, 0]);
    let at = |form, lba, blocks| Access { form, lba: Lba(lba), blocks, dpo: true, fua: true };
    let ten = Command::Write(at(Form::Ten, 0x0102_0304, 0x0506)).cdb();
    assert_eq!(ten.as_slice(), [0x2a, 0x18, 1, 2, 3, 4, 0, 5, 6, 0]);
    let twelve = Command::Read(at(Form::Twelve, 0x0102_0304, 0x0506_0708)).cdb();
    assert_eq!(twelve.as_slice(), [0xa8, 0x18, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0]);
    let sixteen = Command::Write(at(Form::Sixteen, 0x0102_0304_0506_0708, 0x090a_0b0c)).cdb();
    let bytes = [0x8a, 0x18, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0, 0];
    assert_eq!(sixteen.as_slice(), bytes);
    let capacity = Command::ReadCapacity16 { allocation: 32 }.cdb();
    assert_eq!(capacity.as_slice()[..2], [0x9e, 0x10]);
    assert_eq!(capacity.as_slice()[10..14], [0, 0, 0, 32]);
    let pages = Command::Inquiry { page: Some(0xb0), allocation: 0x0102 }.cdb();
    assert_eq!(pages.as_slice(), [0x12, 1, 0xb0, 1, 2, 0]);
}

#[test]
fn scsi_rejected_field_has_field_pointer() {
    let refused = |cdb: &[u8], byte, bit| {
        let found = cdb::parse(cdb);
        assert_eq!(found, Err(Invalid::Field(Field { byte, bit })), "{cdb:x?}");
    };
    // RDPROTECT and WRPROTECT: there is no protection information.
    refused(&[0x28, 0x20, 0, 0, 0, 0, 0, 0, 1, 0], 1, Some(7));
    refused(&[0x8a, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0], 1, Some(7));
    // NACA, in the control byte of every length.
    refused(&[0x00, 0, 0, 0, 0, 4], 5, Some(2));
    refused(&[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 4], 9, Some(2));
    // A page without EVPD, CMDDT, IMMED, PMI, an LBA without it, a power condition, LOEJ.
    refused(&[0x12, 0, 0x80, 0, 36, 0], 2, None);
    refused(&[0x12, 2, 0, 0, 36, 0], 1, Some(1));
    refused(&[0x35, 2, 0, 0, 0, 0, 0, 0, 0, 0], 1, Some(1));
    refused(&[0x25, 0, 0, 0, 0, 0, 0, 0, 1, 0], 8, Some(0));
    refused(&[0x25, 0, 0, 0, 0, 7, 0, 0, 0, 0], 2, None);
    refused(&[0x1b, 0, 0, 0, 0x10, 0], 4, Some(7));
    refused(&[0x1b, 0, 0, 0, 0x03, 0], 4, Some(1));
    // Another service action.
    refused(&[0x9e, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 1, Some(4));
    for unknown in [0x01, 0x2e, 0x43, 0x7f, 0x93, 0xff] {
        assert_eq!(cdb::parse(&[unknown; 16]), Err(Invalid::Opcode), "{unknown:#x}");
    }
}

#[test]
fn scsi_pages_match_standard_bytes() {
    let identity = Identity {
        vendor: *b"NVMe    ",
        product: *b"a disk          ",
        revision: *b"1.0 ",
        serial: *b"0123456789          ",
        eui64: Some([1, 2, 3, 4, 5, 6, 7, 8]),
        nguid: Some([9; 16]),
        rotation: Rotation::PerMinute(10_000),
    };
    let limits = Limits {
        transfer_max: 0x100,
        transfer_optimal: 0x40,
        unmap_max: 0x200,
        unmap_ranges_max: 3,
    };
    let standard = inquiry::standard(&identity);
    assert_eq!(standard.as_slice()[..8], [0, 0, 6, 0x12, 91, 0, 0, 2]);
    assert_eq!(&standard.as_slice()[8..36], b"NVMe    a disk          1.0 ");
    assert_eq!(standard.as_slice()[58..64], [0x00, 0xa0, 0x04, 0x60, 0x04, 0xc0]);
    assert_eq!(standard.len(), 96);
    let page = |number| inquiry::vital(number, &identity, &limits, Unmapped::Unknown).unwrap();
    assert_eq!(page(0x00).as_slice(), [0, 0, 0, 6, 0x00, 0x80, 0x83, 0xb0, 0xb1, 0xb2]);
    assert_eq!(&page(0x80).as_slice()[4..], b"0123456789          ");
    let ids = page(0x83);
    assert_eq!(ids.as_slice()[..8], [0, 0x83, 0, 20 + 12 + 48, 1, 2, 0, 16]);
    assert_eq!(ids.as_slice()[24..36], [1, 2, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(ids.as_slice()[36..40], [2, 1, 0, 44]);
    let limits = page(0xb0);
    assert_eq!((limits.len(), &limits.as_slice()[8..16]), (64, &[0, 0, 1, 0, 0, 0, 0, 0x40][..]));
    let characteristics = page(0xb1);
    assert_eq!((characteristics.len(), &characteristics.as_slice()[4..6]), (64, &[0x27, 0x10][..]));
    assert_eq!(limits.as_slice()[20..28], [0, 0, 2, 0, 0, 0, 0, 3]);
    assert_eq!(page(0xb2).as_slice(), [0, 0xb2, 0, 4, 0, 0x80, 1, 0]);
    let seen = inquiry::parse_limits(limits.as_slice()).unwrap();
    assert_eq!((seen.unmap_max, seen.unmap_ranges_max), (0x200, 3));
    for none in [0x01, 0x81, 0xb2, 0xff] {
        assert!(inquiry::vital(none, &identity, &seen, Unmapped::Never).is_none());
    }
}

#[test]
fn scsi_capacity_10_saturates_beyond_32_bits() {
    let shape = Shape { blocks: 1 << 33, block_bytes: 4096, unmapped: Unmapped::Unknown };
    assert_eq!(shape.capacity_10().as_slice(), [0xff, 0xff, 0xff, 0xff, 0, 0, 0x10, 0]);
    assert_eq!(shape.capacity_16().as_slice()[..12], [0, 0, 0, 1, 255, 255, 255, 255, 0, 0, 16, 0]);
    assert_eq!(Shape::parse_16(shape.capacity_16().as_slice()), Some(shape));
    assert_eq!(shape.capacity_16().as_slice()[14], 0x80);
    // 2^32 blocks: the last LBA fits 32 bits, and is not marked as exceeding them.
    let shape = Shape { blocks: 1 << 32, block_bytes: 512, unmapped: Unmapped::Never };
    assert_eq!(shape.capacity_10().as_slice()[..4], [255; 4]);
}
