//! Flash software on the host with a limit of commands outstanding at each die, in virtual time.

use std::cell::Cell;
use std::rc::Rc;

use bus::sim::SimHost;
use ftl::{Blocks, Erase, Page, PageRead, Pages, Part};
use host::BlockDevice;
use runtime::{Log, Rt, Span, Time};
use testing::plan;
use wire::Lba;
use world::interfaces::{Connected, HOST_FLASH, HostFlashDriver};

/// Four dies behind one endpoint of eight commands.
const SKEWED: [(&str, &str); 3] =
    [("medium.flash.channels", "4"), ("pages.endpoints", "1"), ("pages.queue_depth", "8")];

/// Operations that ended, and the longest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    count: u64,
    longest: Span,
}

/// Blocks of 4 KiB that lie on each of the four dies, after a sequential fill.
async fn fill(driver: &Connected<SimHost>) -> [Vec<Lba>; 4] {
    let (disk, own) = (driver.disk(0), driver.typed::<HostFlashDriver<SimHost>>());
    let mut on = [const { Vec::new() }; 4];
    for unit in 0..384 {
        let written = disk.write(Lba(8 * unit), disk.buffer(4096).expect("memory"), false).await.1;
        written.expect("a good write");
    }
    disk.flush().await.expect("a good flush");
    for unit in 0..384 {
        let page = own.driver().software().locate(8 * unit).expect("on flash");
        on[page.die as usize].push(Lba(8 * unit));
    }
    on
}

/// Begins operations one after the other, until `end`.
fn repeat(rt: &Rt, end: Time, seen: &Rc<Cell<Seen>>, work: impl AsyncFn(usize) + 'static) {
    let (rt_, seen) = (rt.clone(), seen.clone());
    rt.spawn(async move {
        for at in 0.. {
            let begun = rt_.now();
            if begun >= end {
                return;
            }
            work(at).await;
            let Seen { count, longest } = seen.get();
            let took = rt_.now().since(begun);
            seen.set(Seen { count: count + 1, longest: longest.max(took) });
        }
    });
}

/// 24 readers of one die, and one of each other, for 20 ms: those of the busy die, and the rest.
fn skewed(more: &[(&str, &str)]) -> [Seen; 2] {
    let plan = plan("small-flash", &[&SKEWED, more].concat());
    let seen = world::in_virtual_time(HOST_FLASH, &plan, Log::Off, 1, async |rt, _, driver| {
        let on = fill(&driver).await;
        let end = rt.now() + Span::ms(20);
        let seen: [Rc<Cell<Seen>>; 2] = Default::default();
        for reader in 0..27 {
            let (die, of) = if reader < 24 { (0, 0) } else { (reader - 23, 1) };
            let (disk, blocks) = (driver.disk(0), on[die].clone());
            repeat(rt, end, &seen[of], async move |at| {
                let lba = blocks[(reader * 7 + at * 5) % blocks.len()];
                let read = disk.read(lba, disk.buffer(4096).expect("memory")).await.1;
                read.expect("a good read");
            });
        }
        rt.sleep(Span::ms(40)).await;
        seen.map(|seen| seen.get())
    });
    seen.expect("a world")
}

/// In 20 ms three idle dies end 38 reads of at most 1.8 ms in order of arrival, and 511 of at most 0.15 ms
/// by die; those of the busy one are 242 both times.
///
/// In order of arrival the commands of the busy die hold the slots of the endpoint, and reads of idle dies
/// wait for them.
#[test]
fn reads_of_idle_dies_pass_the_queue_of_a_busy_one() {
    let ([busy, idle], [busy_by_die, idle_by_die]) =
        (skewed(&[]), skewed(&[("pages.die_commands", "2")]));
    assert!(idle_by_die.count >= 4 * idle.count, "{idle_by_die:?} by die, {idle:?} in order");
    assert!(idle_by_die.longest * 4 <= idle.longest, "{idle_by_die:?} by die, {idle:?} in order");
    assert!(
        busy_by_die.count * 100 >= busy.count * 95,
        "{busy_by_die:?} by die, {busy:?} in order"
    );
}

/// Programs are overtaken by reads, a bounded number of times.
#[test]
fn writes_proceed_under_reads_that_overtake_them() {
    let longest = |more: &[(&str, &str)]| {
        let plan = plan("small-flash", &[&SKEWED, more].concat());
        let done = world::in_virtual_time(HOST_FLASH, &plan, Log::Off, 1, async |rt, _, driver| {
            let on = fill(&driver).await;
            let end = rt.now() + Span::ms(200);
            let [reads, writes]: [Rc<Cell<Seen>>; 2] = Default::default();
            for reader in 0..48 {
                let (disk, blocks) = (driver.disk(0), on[reader % 4].clone());
                repeat(rt, end, &reads, async move |at| {
                    let lba = blocks[(reader * 7 + at * 5) % blocks.len()];
                    disk.read(lba, disk.buffer(4096).expect("memory")).await.1.expect("a read");
                });
            }
            let disk = driver.disk(0);
            repeat(rt, end, &writes, async move |at| {
                let lba = Lba(8 * (400 + at as u64 % 16));
                disk.write(lba, disk.buffer(4096).expect("memory"), true).await.1.expect("a write");
            });
            rt.sleep(Span::ms(400)).await;
            [reads.get(), writes.get()]
        });
        done.expect("a world")
    };
    let ([_, in_order], [reads, by_die]) = (longest(&[]), longest(&[("pages.die_commands", "1")]));
    assert!(by_die.count > 20 && reads.count > 1000, "{by_die:?}, {reads:?}");
    assert!(by_die.longest < in_order.longest * 4, "{by_die:?} by die, {in_order:?} in order");
}

/// A read waits for its die while the erase of its block begins, and overtakes it: what it finds is not there
/// any more for the next reader.
#[test]
fn read_that_overtakes_the_erase_of_its_block_leaves_nothing_behind() {
    let plan = plan("small-flash", &[SKEWED.as_slice(), &[("pages.die_commands", "1")]].concat());
    let seen = world::in_virtual_time(HOST_FLASH, &plan, Log::Off, 1, async |rt, _, driver| {
        let on = fill(&driver).await;
        let own = driver.typed::<HostFlashDriver<SimHost>>();
        let software = own.driver().software();
        let page = software.locate(on[0][0].0).expect("on flash");
        let erased = move |block| Erase {
            blocks: Blocks { die: page.die, block, planes: 1 << page.plane },
            failed: 0,
        };
        let another = (page.block + 1) % software.pages().shape().blocks;
        let reads: Rc<Cell<Option<PageRead>>> = Rc::default();
        for erase in [Some(another), None, Some(page.block)] {
            let (pages, reads) = (software.pages().clone(), reads.clone());
            rt.spawn(async move {
                match erase.map(erased) {
                    Some(erase) => pages.erase(&mut [erase]).await,
                    None => reads.set(Some(read(&*pages, page).await)),
                }
            });
            rt.sleep(Span::us(10)).await;
        }
        rt.sleep(Span::ms(100)).await;
        let kept = software.pages().header(page);
        (reads.get().expect("it has ended"), kept, read(&**software.pages(), page).await)
    });
    let (overtaking, kept, after) = seen.expect("a world");
    assert!(matches!(overtaking, PageRead::Good { .. }), "{overtaking:?}");
    assert_eq!((kept, after), (None, PageRead::Erased));
}

async fn read(pages: &impl Pages, page: Page) -> PageRead {
    let mut part = [Part { page, units: 1, seen: PageRead::Unreadable }];
    pages.read(&mut part).await;
    part[0].seen
}

/// Contents are verified by `host_flash.rs`.
#[test]
fn limit_of_a_die_is_from_one_on() {
    let said = |most: &str| plan::Plan::open("small-flash", &[("pages.die_commands", most)]);
    let error = said("0").expect_err("none at all").to_string();
    let expected = "pages.die_commands: found 0, expected a whole number from 1 to 1024";
    assert!(error.ends_with(expected), "{error}");
    said("1024").expect("a plan");
}
