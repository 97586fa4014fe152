//! Sanitize on flash: NVMe base 2.0, 5.24 and 8.21.

use std::rc::Rc;

use bus::sim::SimBus;
use device::nvme::Controller;
use flash::chips::{ChipState, Chips, Options as ChipOptions};
use flash::drive::Drive;
use ftl::Pages;
use media::contents::Keep;
use media::nand::{Geometry, Nand, Profile, Spec};
use runtime::{Either, Log, Rt, Span, Time, race};
use wire::Lba;
use wire::nvme::admin::{self, Sanitize, SanitizeAction};
use wire::nvme::io;
use wire::nvme::log::{SanitizeStatus, lid, sanicap};
use wire::nvme::status::Status;

use crate::raw::nvme::world::Setup;
use crate::raw::nvme::{NS, Pair, Raw, pattern};

type Host = Raw<bus::sim::SimHost>;

/// State after a power cut: the flash, and the label.
pub(super) struct Kept {
    remains: ChipState,
    label: Vec<u8>,
}

impl Kept {
    pub(super) fn new() -> Kept {
        let Profile { geometry, errors, .. } = Profile::test();
        let geometry = Geometry { blocks: 24, ..geometry };
        let spec = Spec { geometry, keep: Keep::Everything, block_bytes: 4096, errors, seed: 7 };
        Kept { remains: Nand::new(spec).expect("chips").into(), label: Vec::new() }
    }

    fn fork(&self) -> Kept {
        Kept { remains: self.remains.fork(), label: self.label.clone() }
    }

    /// Runs a device on it until `work` is done, or until the power cut.
    pub(super) fn live<T>(
        &mut self,
        cut: Option<Time>,
        work: impl AsyncFnOnce(&Rt, &mut Host) -> T,
    ) -> Option<T> {
        let rt = Rt::simulated(None, Log::Off);
        let setup = Setup { block_bytes: 4096, ..Setup::default() };
        let bus = SimBus::new(&rt, setup.spec());
        let timing = Some(Profile::test().timing);
        let options =
            ChipOptions { timing, protected_buffer: false, nv_slots: None, held_up: false };
        let chips = Chips::new(&rt, self.remains.fork(), options).expect("chips");
        let chips = Rc::new(chips);
        let shape = chips.shape();
        let software = ftl::Options {
            block_bytes: 4096,
            units: ftl::Options::units_for(&shape, 150, 2, 0),
            ..ftl::Options::new(&shape)
        };
        let label = std::mem::take(&mut self.label);
        let drive = Drive::start(&rt, chips.clone(), software, Keep::Everything, label);
        let controller = Controller::start(bus.device(), drive.clone(), setup.options.clone());
        let mut raw = Raw::new(bus.host(0));
        let life = work(&rt, &mut raw);
        let done = match cut {
            None => Some(rt.block_on(life)),
            Some(cut) => match rt.block_on(race(life, rt.sleep_until(cut))) {
                Either::First(done) => Some(done),
                Either::Second(()) => None,
            },
        };
        rt.drop_tasks();
        drop(controller);
        self.label = Rc::into_inner(drive).expect("nobody else has it").into_label();
        self.remains = Rc::into_inner(chips).expect("nobody else has them").cut();
        done
    }

    /// Number of blocks with programmed pages.
    fn blocks_in_use(&self) -> usize {
        let nand = self.remains.nand();
        let all = nand.spec().geometry.all_dies() * nand.spec().geometry.planes;
        let blocks = 0..all * nand.spec().geometry.blocks;
        blocks.filter(|block| nand.next_page(*block) != Some(0)).count()
    }
}

async fn log(raw: &mut Host) -> SanitizeStatus {
    let at = raw.place(0, 4096);
    let page = raw.log(lid::SANITIZE).await;
    raw.free_from(at);
    page
}

/// Waits until the sanitize has ended.
async fn ended(rt: &Rt, raw: &mut Host) -> SanitizeStatus {
    loop {
        let log = log(raw).await;
        if log.stands() != SanitizeStatus::UNDER_WAY {
            return log;
        }
        rt.sleep(Span::us(500)).await;
    }
}

async fn ask(raw: &mut Host, sanitize: Sanitize) -> Status {
    let sqe = admin::sanitize(raw.cid(), sanitize);
    raw.admin(&sqe).await.status().kind()
}

const BLOCKS: u64 = 200;

/// Writes or reads blocks one by one; reads compare.
async fn each(raw: &Host, pair: &mut Pair, holds: Option<u64>, writes: bool) {
    let at = raw.place(4096, 4096);
    for lba in 0..BLOCKS {
        let bytes = holds.map_or(vec![0; 4096], |seed| pattern(seed + lba, 4096));
        let data = raw.data(at, 4096);
        let sqe = if writes {
            raw.memory.write(at, &bytes).expect("host memory");
            io::write(raw.cid(), NS, Lba(lba), 1, false, data)
        } else {
            io::read(raw.cid(), NS, Lba(lba), 1, false, data)
        };
        assert_eq!(raw.run(pair, &sqe).await.status(), Status::SUCCESS, "block {lba}");
        assert!(writes || raw.bytes(at, 4096) == bytes, "block {lba}");
    }
    let sqe = io::flush(raw.cid(), NS);
    assert_eq!(raw.run(pair, &sqe).await.status(), Status::SUCCESS);
    raw.free_from(at);
}

/// Identify and the log report the supported actions and the estimated time, and the erase takes that time:
/// every erase of every die, 24 of 3.001 ms in sequence, and a few programs for the roots.
#[test]
fn block_erase_erases_all_blocks_in_estimated_time() {
    let mut kept = Kept::new();
    kept.live(None, async |rt, raw| {
        let mut pair = raw.up().await;
        let c = raw.identify_controller().await;
        assert_eq!(c.sanicap.get(), sanicap::BLOCK_ERASE | sanicap::NOT_MODIFIED_AFTERWARDS);
        for action in [SanitizeAction::Overwrite, SanitizeAction::CryptoErase] {
            let what = Sanitize { action, ..Sanitize::default() };
            assert_eq!(ask(raw, what).await, Status::INVALID_FIELD);
        }
        let times = log(raw).await.times.map(|time| time.get());
        assert_eq!((times[1], times[0], times[2]), (1, u32::MAX, u32::MAX), "72 ms, in seconds");
        each(raw, &mut pair, Some(1), true).await;
        let begun = rt.now();
        assert_eq!(ask(raw, Sanitize::default()).await, Status::SUCCESS);
        let log = ended(rt, raw).await;
        assert_eq!(log.status.get(), SanitizeStatus::DONE | SanitizeStatus::GLOBAL_DATA_ERASED);
        let (took, erases) = (rt.now().since(begun), Span::us(3001) * 24);
        assert!(took > erases && took < erases + Span::ms(25), "{took:?}");
        each(raw, &mut pair, None, false).await;
    });
    assert_eq!(kept.blocks_in_use(), 1, "that of the root");
    let nand = kept.remains.nand();
    let wear = |block| nand.wear(block).cycles;
    assert!((0..4 * 24).filter(|block| wear(*block) == 0).count() <= 1, "but where that lies");
}

/// After a power cut at any moment the next controller continues and completes the sanitize, rejects reads
/// meanwhile, and keeps data written afterwards.
#[test]
fn sanitize_resumes_after_power_cut() {
    let mut used = Kept::new();
    used.live(None, async |_, raw| {
        let mut pair = raw.up().await;
        each(raw, &mut pair, Some(1), true).await;
    });
    let mut under_way = 0;
    for at_us in (0..90_000).step_by(4_300) {
        let mut kept = used.fork();
        // The mount takes time: measure the cut from the start of the command.
        let begun = kept.fork().live(None, async |rt, raw| {
            raw.up().await;
            ask(raw, Sanitize::default()).await;
            rt.now()
        });
        let cut = begun.map(|begun| begun + Span::us(at_us));
        kept.live(cut, async |rt, raw| {
            raw.up().await;
            assert_eq!(ask(raw, Sanitize::default()).await, Status::SUCCESS);
            rt.sleep(Span::s(1)).await;
        });
        kept.live(None, async |rt, raw| {
            let mut pair = raw.up().await;
            let (read, stood) = (raw.place(4096, 4096), log(raw).await.stands());
            let data = raw.data(read, 4096);
            let sqe = io::read(raw.cid(), NS, Lba(0), 1, false, data);
            let status = raw.run(&mut pair, &sqe).await.status();
            if stood == SanitizeStatus::UNDER_WAY {
                under_way += 1;
                assert_eq!(status, Status::SANITIZE_IN_PROGRESS, "cut after {at_us} us");
            }
            let log = ended(rt, raw).await;
            let done = SanitizeStatus::DONE | SanitizeStatus::GLOBAL_DATA_ERASED;
            assert_eq!(log.status.get(), done, "cut after {at_us} us");
            each(raw, &mut pair, None, false).await;
            each(raw, &mut pair, Some(77), true).await;
        });
        kept.live(None, async |_, raw| {
            let mut pair = raw.up().await;
            each(raw, &mut pair, Some(77), false).await;
        });
    }
    assert!(under_way > 12, "{under_way} were cut in the midst");
}

/// Neither a controller reset nor reads of the log end the sanitize.
#[test]
fn sanitize_continues_across_controller_reset() {
    Kept::new().live(None, async |rt, raw| {
        let mut pair = raw.up().await;
        each(raw, &mut pair, Some(1), true).await;
        assert_eq!(ask(raw, Sanitize::default()).await, Status::SUCCESS);
        rt.sleep(Span::ms(20)).await;
        raw.disable().await;
        pair = raw.up().await;
        let before = log(raw).await;
        assert_eq!(before.stands(), SanitizeStatus::UNDER_WAY);
        assert!((10_000..30_000).contains(&before.progress.get()), "{before:?}");
        assert_eq!(ended(rt, raw).await.stands(), SanitizeStatus::DONE);
        each(raw, &mut pair, None, false).await;
    });
}
