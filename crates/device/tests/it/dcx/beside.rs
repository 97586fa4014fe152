//! NVMe and DC Express on one port and one medium.

use runtime::Span;
use wire::Lba;
use wire::dcx::command::{Access, Command};
use wire::dcx::report::Code;
use wire::nvme::io;
use wire::nvme::status::Status;

use crate::raw::dcx::pattern;
use crate::raw::dcx::world::{Setup, World};
use crate::raw::nvme::{NS, Settings};

/// Each interface reads the other's writes, and a reset of one does not affect the other.
#[test]
fn nvme_and_dcx_share_blocks_and_reset_separately() {
    for grain in [None, Some(128)] {
        let setup = Setup { grain, ..Setup::default() };
        setup.run(async |mut w: World| {
            let mut pair = w.nvme.up().await;
            let mut ring = w.raw.up(0, 32, Some(128)).await;
            let (a, b) = (w.raw.place(4096, 4096), w.raw.place(4096, 4096));
            for round in 0..20u64 {
                let (lba, one, two) =
                    (round * 8, pattern(2 * round, 4096), pattern(2 * round + 1, 4096));
                w.raw.memory.write(a, &one).unwrap();
                let data = w.nvme.data(a, 4096);
                let sqe = io::write(w.nvme.cid(), NS, Lba(lba), 8, false, data);
                assert_eq!(w.nvme.run(&mut pair, &sqe).await.status(), Status::SUCCESS);
                assert!(w.raw.read_now(&mut ring, lba, 8, 4096).await == one, "{round}");
                w.raw.memory.write(b, &two).unwrap();
                let access = Access { lba: Lba(lba), bytes: 512 * 8, at: b };
                w.raw.push(&mut ring, 1, Command::Write { access, fua: false });
                assert_eq!(w.raw.report(&mut ring).await.2, Code::DONE);
                let sqe = io::read(w.nvme.cid(), NS, Lba(lba), 8, false, data);
                assert_eq!(w.nvme.run(&mut pair, &sqe).await.status(), Status::SUCCESS);
                assert!(w.raw.bytes(a, 4096) == two, "{round}");
            }
            // NVMe reset under DC Express reads, and the reverse.
            let to = w.raw.marked(&ring, 4096, 0);
            w.raw.read(&mut ring, 0, 0, 8, &to);
            w.nvme.disable().await;
            assert!(w.raw.arrived(&to).await == w.medium.peek(0, 4096));
            w.raw.disable(&ring).await;
            w.nvme.forget_places();
            w.nvme.enable(Settings::default()).await;
            w.rt.sleep(Span::us(10)).await;
            let mut ring = w.raw.up(0, 32, None).await;
            assert!(w.raw.read_now(&mut ring, 0, 8, 4096).await == w.medium.peek(0, 4096));
        });
    }
}
