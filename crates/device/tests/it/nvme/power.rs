//! Power states: NVMe base 2.0, 8.15, 5.27.1.2 and 5.27.1.9.

use device::nvme::{Options, PowerState};
use runtime::Span;
use wire::nvme::admin::{self, Command, Request, Select, SetFeatures};
use wire::nvme::entry::DataPointer;
use wire::nvme::features::{ApstTable, fid};
use wire::nvme::identify::{self};
use wire::nvme::io;
use wire::nvme::status::Status;
use wire::{BusAddr, Lba, Nsid};
use zerocopy::IntoBytes;

use crate::raw::nvme::world::{Setup, World, on_a_bench};
use crate::raw::nvme::{NS, Pair, Settings};

const fn state(milliwatts: u32, idle: bool, enter: Span, leave: Span) -> PowerState {
    PowerState { milliwatts, idle, enter, leave }
}

/// Two operational states, two non-operational ones.
fn states() -> Setup {
    let power_states = vec![
        state(8_000, false, Span::ZERO, Span::ZERO),
        state(4_000, false, Span::us(20), Span::us(30)),
        state(50, true, Span::us(500), Span::us(700)),
        state(3, true, Span::ms(2), Span::ms(9)),
    ];
    Setup { options: Options { power_states, ..Options::default() }, ..Setup::default() }
}

async fn set(w: &mut World, ps: u32) -> Status {
    let sqe = admin::set_feature(w.raw.cid(), fid::POWER_MANAGEMENT, ps);
    w.raw.admin(&sqe).await.status().kind()
}

async fn now(w: &mut World) -> u32 {
    let sqe = admin::get_feature(w.raw.cid(), fid::POWER_MANAGEMENT);
    w.raw.admin_ok(&sqe).await
}

/// Reads a block; returns the latency.
async fn read(w: &World, pair: &mut Pair, data: DataPointer) -> Span {
    let begin = w.raw.rt.now();
    let sqe = io::read(w.raw.cid(), NS, Lba(0), 1, false, data);
    assert_eq!(w.raw.run(pair, &sqe).await.status(), Status::SUCCESS);
    w.raw.rt.now().since(begin)
}

async fn follow(w: &mut World, at: BusAddr, table: &ApstTable) -> Status {
    w.raw.memory.write(at, table.as_bytes()).unwrap();
    let set = SetFeatures { fid: fid::AUTONOMOUS_POWER, cdw11: 1, ..SetFeatures::default() };
    let (cid, data) = (w.raw.cid(), w.raw.data(at, 256));
    let command = Command::SetFeatures(set);
    let sqe = Request { cid, nsid: Nsid::NONE, data, command }.to_sqe();
    w.raw.admin(&sqe).await.status().kind()
}

/// 5.17.2.1.
#[test]
fn identify_power_state_descriptors() {
    states().run(async |mut w: World| {
        w.raw.enable(Settings::default()).await;
        let c = w.raw.identify_controller().await;
        assert_eq!((c.npss, c.apsta), (3, 1));
        let said = |ps: &identify::PowerState| {
            (ps.mp.get(), ps.flags, ps.enlat.get(), ps.exlat.get(), ps.rrt)
        };
        let said: Vec<_> = c.psd[..5].iter().map(said).collect();
        // 50 mW are 5 units of 10 mW; 3 mW are 30 of 0.1 mW.
        let expected = [
            (800, 0, 0, 0, 0),
            (400, 0, 20, 30, 0),
            (5, 2, 500, 700, 0),
            (30, 3, 2_000, 9_000, 0),
            (0, 0, 0, 0, 0),
        ];
        assert_eq!(said, expected);
    });
}

/// Set Features completes when the state has been entered; the next read wakes the controller, which returns
/// to its last operational state.
#[test]
fn io_wakes_non_operational_power_state() {
    states().run(async |mut w: World| {
        let mut pair = w.raw.up().await;
        let at = w.raw.place(4096, 4096);
        let data = w.raw.data(at, 512);
        let usual = read(&w, &mut pair, data).await;
        assert_eq!(set(&mut w, 4).await, Status::INVALID_FIELD);
        let begin = w.raw.rt.now();
        assert_eq!(set(&mut w, 1).await, Status::SUCCESS);
        let took = w.raw.rt.now().since(begin);
        assert!((Span::us(20)..Span::us(30)).contains(&took), "{took}");
        assert_eq!(read(&w, &mut pair, data).await, usual, "as fast as in any state");
        assert_eq!(set(&mut w, 3).await, Status::SUCCESS);
        assert_eq!(now(&mut w).await, 3, "admin commands do not wake it");
        // 9 ms to leave it, 20 us to enter the earlier state.
        let (expected, found) =
            (Span(Span::us(9_020).0 + usual.0), read(&w, &mut pair, data).await);
        assert_eq!(found, expected);
        assert_eq!(now(&mut w).await, 1);
        assert_eq!(read(&w, &mut pair, data).await, usual);
    });
}

/// Commands that arrive during a state's entry also wait for the rest of the entry; all of them wait for the
/// same moment.
#[test]
fn io_waits_for_power_state_entry_before_exit() {
    states().run(async |mut w: World| {
        let mut pair = w.raw.up().await;
        let at = w.raw.place(4096, 4096);
        let data = w.raw.data(at, 512);
        let usual = read(&w, &mut pair, data).await;
        let begin = w.raw.rt.now();
        w.raw.submit_admin(&admin::set_feature(w.raw.cid(), fid::POWER_MANAGEMENT, 3));
        w.raw.rt.sleep(Span::ms(1)).await;
        for _ in 0..5 {
            let sqe = io::read(w.raw.cid(), NS, Lba(0), 1, false, data);
            w.raw.submit(&mut pair.sq, &sqe);
        }
        for _ in 0..5 {
            assert_eq!(w.raw.next(&mut pair.cq).await.status(), Status::SUCCESS);
        }
        let took = w.raw.rt.now().since(begin);
        let least = Span::ms(11);
        assert!(took >= least && took <= Span(least.0 + 8 * usual.0), "{took}, {usual}");
    });
}

/// From state to state as the APST table gives, after each idle time; a command restarts the idle time.
#[test]
fn apst_enters_power_states_after_idle_time() {
    states().run(async |mut w: World| {
        let mut pair = w.raw.up().await;
        let at = w.raw.place(8192, 4096);
        let data = w.raw.data(BusAddr(at.0 + 4096), 512);
        let mut table = ApstTable::stays();
        table.go(0, 2, 10);
        table.go(2, 3, 40);
        assert_eq!(follow(&mut w, at, &table).await, Status::SUCCESS);
        for _ in 0..5 {
            w.raw.rt.sleep(Span::ms(9)).await;
            assert!(read(&w, &mut pair, data).await < Span::us(100), "it was awake");
        }
        w.raw.rt.sleep(Span::ms(12)).await;
        assert_eq!(now(&mut w).await, 2);
        w.raw.rt.sleep(Span::ms(30)).await;
        assert_eq!(now(&mut w).await, 2);
        w.raw.rt.sleep(Span::ms(12)).await;
        assert_eq!(now(&mut w).await, 3);
        assert!(read(&w, &mut pair, data).await > Span::ms(9));
        assert_eq!(now(&mut w).await, 0);
        // A reset clears the table.
        w.raw.disable().await;
        w.raw.up().await;
        w.raw.rt.sleep(Span::ms(100)).await;
        assert_eq!(now(&mut w).await, 0);
    });
}

/// A table reads back. A transition to an operational or unknown state is rejected, and so is any table on a
/// controller without non-operational states.
#[test]
fn apst_table_reads_back_and_rejects_invalid_states() {
    states().run(async |mut w: World| {
        w.raw.up().await;
        let at = w.raw.place(8192, 4096);
        let mut table = ApstTable::stays();
        table.go(1, 3, 1000);
        assert_eq!(follow(&mut w, at, &table).await, Status::SUCCESS);
        let (to, cid) = (BusAddr(at.0 + 4096), w.raw.cid());
        let command =
            Command::GetFeatures { fid: fid::AUTONOMOUS_POWER, select: Select::Current, cdw11: 0 };
        let data = w.raw.data(to, 256);
        let sqe = Request { cid, nsid: Nsid::NONE, data, command }.to_sqe();
        assert_eq!(w.raw.admin_ok(&sqe).await, 1);
        assert_eq!(w.raw.bytes(to, 256), table.as_bytes());
        for wrong in [0, 1, 4, 31] {
            let mut table = ApstTable::stays();
            table.go(0, wrong, 1);
            assert_eq!(follow(&mut w, at, &table).await, Status::INVALID_FIELD, "{wrong}");
        }
    });
    on_a_bench(async |mut w: World| {
        w.raw.up().await;
        let at = w.raw.place(4096, 4096);
        assert_eq!(follow(&mut w, at, &ApstTable::stays()).await, Status::INVALID_FIELD);
        assert_eq!(set(&mut w, 1).await, Status::INVALID_FIELD);
        assert_eq!(set(&mut w, 0).await, Status::SUCCESS);
    });
}

/// An abort, and a reset, while commands wait for the controller to wake.
#[test]
fn abort_and_reset_end_wait_for_power_state_exit() {
    states().run(async |mut w: World| {
        let mut pair = w.raw.up().await;
        let at = w.raw.place(4096, 4096);
        let data = w.raw.data(at, 512);
        assert_eq!(set(&mut w, 3).await, Status::SUCCESS);
        let sqe = io::read(w.raw.cid(), NS, Lba(0), 1, false, data);
        w.raw.submit(&mut pair.sq, &sqe);
        w.raw.rt.sleep(Span::us(50)).await;
        let abort = admin::abort(w.raw.cid(), pair.sq.qid, sqe.id());
        assert_eq!(w.raw.admin_ok(&abort).await, 0, "it was aborted");
        let status = w.raw.next(&mut pair.cq).await.status().kind();
        assert_eq!(status, Status::ABORT_REQUESTED);
        assert!(read(&w, &mut pair, data).await > Span::ms(8), "it still wakes");
        assert_eq!(set(&mut w, 3).await, Status::SUCCESS);
        let sqe = io::read(w.raw.cid(), NS, Lba(0), 1, false, data);
        w.raw.submit(&mut pair.sq, &sqe);
        w.raw.rt.sleep(Span::us(50)).await;
        w.raw.disable().await;
        let mut pair = w.raw.up().await;
        assert!(read(&w, &mut pair, data).await < Span::us(100));
    });
}
