//! Format NVM: NVMe base 2.0, 5.14.

use media::Labels;
use wire::nvme::admin::{self, FormatNvm};
use wire::nvme::dsm::Attributes;
use wire::nvme::io;
use wire::nvme::ranges::{CopyRange, DsmRange};
use wire::nvme::status::Status;
use wire::{Lba, Nsid};
use zerocopy::IntoBytes;

use crate::raw::nvme::world::{Setup, World, on_a_bench};
use crate::raw::nvme::{NS, PATIENCE, pattern};

/// Any erase setting, of one namespace or of all: every block is zeroed.
#[test]
fn format_zeroes_all_blocks_with_any_erase_setting() {
    on_a_bench(async |mut w: World| {
        let mut pair = w.raw.up().await;
        for (nsid, erase) in [(NS, 0), (NS, 1), (Nsid::BROADCAST, 0), (Nsid::BROADCAST, 1)] {
            for block in [0, 12_345, (1 << 20) - 8] {
                w.medium.poke(block, &pattern(block, 4096));
            }
            let format = FormatNvm { erase, ..FormatNvm::default() };
            w.raw.admin_ok(&admin::format_nvm(w.raw.cid(), nsid, format)).await;
            for block in [0, 12_345, (1 << 20) - 8] {
                assert_eq!(w.medium.peek(block, 4096), [0; 4096], "block {block}");
            }
        }
        assert_eq!(w.medium.flushes.get(), 4, "it is durable when it completes");
        let at = w.raw.place(4096, 4096);
        let sqe = io::read(w.raw.cid(), NS, Lba(0), 8, false, w.raw.data(at, 4096));
        assert_eq!(w.raw.run(&mut pair, &sqe).await.status(), Status::SUCCESS);
    });
}

/// Formats that the namespace does not support, and unknown erase settings.
#[test]
fn format_rejects_unsupported_formats() {
    on_a_bench(async |mut w: World| {
        w.raw.up().await;
        w.medium.poke(0, &pattern(1, 4096));
        let plain = FormatNvm::default();
        let cases = [
            (NS, FormatNvm { format: 2, ..plain }, Status::INVALID_FORMAT),
            (NS, FormatNvm { format: 16, ..plain }, Status::INVALID_FORMAT),
            (NS, FormatNvm { format: 63, ..plain }, Status::INVALID_FORMAT),
            (NS, FormatNvm { protection: 1, ..plain }, Status::INVALID_FORMAT),
            (NS, FormatNvm { metadata_inline: true, ..plain }, Status::INVALID_FORMAT),
            (NS, FormatNvm { erase: 2, ..plain }, Status::INVALID_FIELD),
            (NS, FormatNvm { erase: 7, ..plain }, Status::INVALID_FIELD),
            (Nsid(0), plain, Status::INVALID_NAMESPACE_OR_FORMAT),
            (Nsid(2), plain, Status::INVALID_FIELD),
            (Nsid(17), plain, Status::INVALID_NAMESPACE_OR_FORMAT),
        ];
        for (nsid, format, wanted) in cases {
            let sqe = admin::format_nvm(w.raw.cid(), nsid, format);
            assert_eq!(w.raw.admin(&sqe).await.status(), wanted.with_dnr(), "{format:?}");
        }
        assert_eq!(w.medium.peek(0, 4096), pattern(1, 4096));
    });
}

/// During a format, I/O and further formats fail with a status that permits a retry.
#[test]
fn io_and_format_fail_while_format_in_progress() {
    on_a_bench(async |mut w: World| {
        let mut pair = w.raw.up().await;
        let (_, data) = w.raw.page();
        w.medium.close();
        let format = admin::format_nvm(w.raw.cid(), NS, FormatNvm::default());
        w.raw.submit_admin(&format);
        w.medium.until_waiting(1).await;
        for sqe in [
            io::read(w.raw.cid(), NS, Lba(0), 1, false, data),
            io::write(w.raw.cid(), NS, Lba(0), 1, false, data),
            io::flush(w.raw.cid(), NS),
        ] {
            assert_eq!(w.raw.run(&mut pair, &sqe).await.status(), Status::FORMAT_IN_PROGRESS);
        }
        let another = admin::format_nvm(w.raw.cid(), NS, FormatNvm::default());
        w.raw.submit_admin(&another);
        let cqe = w.raw.next_admin(PATIENCE).await.expect("the second format's completion");
        assert_eq!((cqe.id(), cqe.status()), (another.id(), Status::FORMAT_IN_PROGRESS));
        w.medium.open();
        let cqe = w.raw.next_admin(PATIENCE).await.expect("the first format's completion");
        assert_eq!((cqe.id(), cqe.status()), (format.id(), Status::SUCCESS));
        let sqe = io::read(w.raw.cid(), NS, Lba(0), 1, false, data);
        assert_eq!(w.raw.run(&mut pair, &sqe).await.status(), Status::SUCCESS);
    });
}

/// A reset during a format leaves a working controller that accepts I/O.
#[test]
fn reset_ends_format_and_io_works() {
    on_a_bench(async |mut w: World| {
        w.raw.up().await;
        w.medium.close();
        let format = admin::format_nvm(w.raw.cid(), NS, FormatNvm::default());
        w.raw.submit_admin(&format);
        w.medium.until_waiting(1).await;
        w.raw.disable().await;
        w.medium.open();
        let mut pair = w.raw.up().await;
        let at = w.raw.place(4096, 4096);
        let sqe = io::read(w.raw.cid(), NS, Lba(0), 8, false, w.raw.data(at, 4096));
        assert_eq!(w.raw.run(&mut pair, &sqe).await.status(), Status::SUCCESS);
    });
}

const LARGE: FormatNvm = FormatNvm {
    format: 1,
    metadata_inline: false,
    protection: 0,
    protection_first: false,
    erase: 0,
};

/// Blocks of 4096 bytes over a medium of 512: Identify counts in them, also that of the controller that
/// comes after, until the namespace is formatted back.
#[test]
fn format_survives_reset_and_new_controller() {
    let setup = Setup { blocks: 8_005, ..Setup::default() };
    let label = setup.clone().run(async |mut w: World| {
        w.raw.up().await;
        w.medium.poke(0, &pattern(1, 4096));
        w.raw.admin_ok(&admin::format_nvm(w.raw.cid(), NS, LARGE)).await;
        assert_eq!(w.medium.peek(0, 4096), [0; 4096]);
        let n = w.raw.identify_namespace().await;
        // The last five blocks of the medium are not a whole one.
        assert_eq!((n.nsze.get(), n.nlbaf, n.flbas), (1_000, 1, 1));
        assert_eq!((n.lbaf[1].ds, n.mssrl.get()), (12, 256));
        w.raw.disable().await;
        w.raw.up().await;
        assert_eq!(w.raw.identify_namespace().await, n, "after a reset");
        Some(w.medium.label())
    });
    let label = Setup { label, ..setup.clone() }.run(async |mut w: World| {
        w.raw.up().await;
        let n = w.raw.identify_namespace().await;
        assert_eq!((n.nsze.get(), n.flbas), (1_000, 1), "another controller");
        w.raw.admin_ok(&admin::format_nvm(w.raw.cid(), NS, FormatNvm::default())).await;
        let n = w.raw.identify_namespace().await;
        assert_eq!((n.nsze.get(), n.flbas), (8_005, 0), "formatted back");
        Some(w.medium.label())
    });
    Setup { label, ..setup }.run(async |mut w: World| {
        w.raw.up().await;
        assert_eq!(w.raw.identify_namespace().await.flbas, 0);
    });
}

/// Every command counts in the namespace's blocks.
#[test]
fn commands_count_in_4k_blocks_after_format() {
    let setup = Setup { blocks: 8_005, ..Setup::default() };
    setup.run(async |mut w: World| {
        let mut pair = w.raw.up().await;
        w.raw.admin_ok(&admin::format_nvm(w.raw.cid(), NS, LARGE)).await;
        let (at, list) = (w.raw.place(8192, 4096), w.raw.place(4096, 4096));
        let data = w.raw.data(at, 8192);
        w.raw.memory.write(at, &pattern(9, 8192)).unwrap();
        for (lba, wanted) in [(998, Status::SUCCESS), (999, Status::LBA_OUT_OF_RANGE.with_dnr())] {
            for make in [io::write, io::read] {
                let sqe = make(w.raw.cid(), NS, Lba(lba), 2, false, data);
                assert_eq!(w.raw.run(&mut pair, &sqe).await.status(), wanted);
            }
        }
        assert_eq!(w.medium.peek(998 * 8, 8192), pattern(9, 8192));
        let copied = CopyRange::new(Lba(998), 1);
        w.raw.memory.write(list, copied.as_bytes()).unwrap();
        let commands = [
            io::compare(w.raw.cid(), NS, Lba(998), 2, data),
            io::write_zeroes(w.raw.cid(), NS, Lba(999), 1, false, false),
            io::copy(w.raw.cid(), NS, Lba(5), 1, w.raw.data(list, 32)),
        ];
        for sqe in commands {
            assert_eq!(w.raw.run(&mut pair, &sqe).await.status(), Status::SUCCESS, "{sqe:?}");
        }
        assert_eq!(w.medium.peek(999 * 8, 4096), [0; 4096]);
        assert_eq!(w.medium.peek(40, 4096), pattern(9, 8192)[..4096]);
        w.raw.memory.write(list, DsmRange::new(Lba(998), 1).as_bytes()).unwrap();
        let sqe = io::dataset_management(
            w.raw.cid(),
            NS,
            1,
            Attributes::DEALLOCATE,
            w.raw.data(list, 16),
        );
        assert_eq!(w.raw.run(&mut pair, &sqe).await.status(), Status::SUCCESS);
        assert_eq!(w.medium.peek(998 * 8, 4096), [0; 4096]);
        assert_eq!(w.medium.peek(5 * 8, 4096), pattern(9, 8192)[..4096]);
    });
}

/// A medium that stores only blocks has one format; an invalid label counts as none.
#[test]
fn medium_without_valid_label_has_one_format() {
    let setup = Setup { label: None, ..Setup::default() };
    setup.run(async |mut w: World| {
        w.raw.up().await;
        let n = w.raw.identify_namespace().await;
        assert_eq!((n.nlbaf, n.flbas, n.lbaf[1].ds), (0, 0, 0));
        let status = w.raw.admin(&admin::format_nvm(w.raw.cid(), NS, LARGE)).await.status();
        assert_eq!(status, Status::INVALID_FORMAT.with_dnr());
    });
    for label in [&b"DBNS\x01"[..], b"DBNS\x01\x0d", b"DBNS\x02\x0c", b"something else"] {
        let setup = Setup { label: Some(label.to_vec()), ..Setup::default() };
        setup.run(async |mut w: World| {
            w.raw.up().await;
            let n = w.raw.identify_namespace().await;
            assert_eq!((n.nlbaf, n.flbas), (1, 0), "{label:?}");
        });
    }
}
