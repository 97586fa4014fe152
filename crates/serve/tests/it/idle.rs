//! Processor time of idle servers, and the latency of the first command after a pause. Figures, by
//! `DOORBELL_IDLE=SECONDS cargo test -p doorbell-serve --release --test it -- idle --nocapture`.

use std::path::PathBuf;

use bus::live;
use bus::vfio_user::{self, Sharing};
use plan::Plan;
use runtime::{STD_CLOCK, Span, WallClock};
use serve::disk::{Disk, Operation};
use serve::{Control, Hosts};
use testing::Folder;
use wire::pci::FunctionKind;
use world::interfaces::NVME;

/// Processor time of all threads of this process, nanoseconds.
fn processor_ns() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").expect("threads").flatten();
    tasks
        .filter_map(|task| std::fs::read_to_string(task.path().join("schedstat")).ok())
        .filter_map(|text| text.split(' ').next().and_then(|ns| ns.parse::<u64>().ok()))
        .sum()
}

/// Calls `measured` while an idle server with one drive and `threads` device threads runs at this front end.
fn served(name: &str, plan: &Plan, threads: usize, measured: impl FnOnce(&PathBuf)) {
    let folder = Folder::new("idle");
    let addresses = [folder.path("socket")];
    let control = Control::watching(plan.clone()).expect("two descriptors");
    let front_end = serve::all().find(|row| row.name == name).expect("a front end");
    let hosts = Hosts::Apart { device_threads: threads };
    std::thread::scope(|scope| {
        let serve = || front_end.serve(NVME, plan, &addresses, hosts, &control, &|_, _| ());
        scope.spawn(serve);
        while !addresses[0].exists() {
            std::thread::yield_now();
        }
        measured(&addresses[0]);
        control.stop().request();
    });
}

#[test]
fn measured() {
    let Some(seconds) = std::env::var("DOORBELL_IDLE").ok().and_then(|text| text.parse().ok())
    else {
        return;
    };
    let span = std::time::Duration::from_secs(seconds);
    for sleep_after in ["10 ms", "0 us"] {
        let sets = [("medium.capacity", "16 MiB"), ("device.sleep_after", sleep_after)];
        let plan = Plan::open("live", &sets).expect("a plan");
        let flash = [("medium.keep", "everything"), ("device.sleep_after", sleep_after)];
        let flash = Plan::open("small-flash", &flash).expect("a plan");
        let idle = |what: &str| {
            // The time until it sleeps is not counted.
            std::thread::sleep(std::time::Duration::from_secs(1));
            let before = processor_ns();
            std::thread::sleep(span);
            let percent = (processor_ns() - before) as f64 / (seconds as f64 * 1e7);
            println!("sleep_after {sleep_after}, {what}: {percent:.2} % of a core");
        };
        for (name, plan, threads) in
            [("nbd", &plan, 1), ("nbd", &flash, 1), ("shm", &plan, 1), ("vfio-user", &plan, 1)]
        {
            let kind = plan.origin.to_string();
            served(name, plan, threads, |_| idle(&format!("{name}, {kind}, no client")));
        }
        let (bytes, base) = (16 << 20, plan.host.memory_base);
        for threads in [1, 2] {
            served("shm", &plan, threads, |socket| {
                let _client = live::connect(socket, bytes, base).expect("it accepts");
                idle(&format!("shm, {threads} device threads, idle client"));
            });
            served("vfio-user", &plan, threads, |socket| {
                let kind =
                    FunctionKind::of(&NVME.require_function(&plan).expect("a function").identity);
                let _client = vfio_user::connect(socket, kind, bytes, base, Sharing::Mapped);
                idle(&format!("vfio-user, {threads} device threads, idle client"));
            });
        }
        let disk = Disk::of_plan(NVME, &plan).expect("a drive");
        let (client, done) = disk.client();
        let mut first: Vec<Span> = (0..200)
            .map(|tag| {
                std::thread::sleep(std::time::Duration::from_millis(30));
                let since = STD_CLOCK.now();
                client.begin(tag, 0, Operation::Read(4096), false).expect("it runs");
                done.recv().expect("it runs");
                STD_CLOCK.now().since(since)
            })
            .collect();
        first.sort_unstable();
        println!(
            "sleep_after {sleep_after}, first read after 30 ms: p50 {}, p99 {}",
            first[100], first[198]
        );
    }
}
