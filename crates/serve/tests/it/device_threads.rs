//! Several device threads: clients of one device are dealt to them, or the queues of one host. Each verifies
//! its blocks, under resets, beside clients that disappear with commands in flight.

use host::nvme::Queue;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bus::live;
use host::BlockDevice;
use plan::Plan;
use runtime::{Log, Rt, STD_CLOCK};
use serve::{Client, Control, FrontEnd, Hosts};
use testing::{Folder, clean, only, plan, work};
use wire::Lba;
use world::interfaces::{NVME, Row};
use world::{Options, Where, live_in_host_threads, live_over_socket, live_over_vfio_user};

const SETS: [(&str, &str); 4] = [
    ("medium.capacity", "16 MiB"),
    ("medium.block", "512 B"),
    ("host.memory", "64 MiB"),
    ("host.retries", "100"),
];

/// Blocks of client `number`: all lengths differ, so that another client's extent is noticed.
fn blocks(number: u64) -> u64 {
    4096 + 8 * number
}

/// Clients in the order of their extents.
fn clients(count: u64) -> Vec<Client> {
    let from = |number| (0..number).map(blocks).sum::<u64>();
    let one = |n| format!("c{n}={}+{}", from(n), blocks(n)).parse().expect("a client");
    (0..count).map(one).collect()
}

/// A server that lives as long as the test program.
struct Served {
    sockets: Vec<PathBuf>,
    events: Receiver<(PathBuf, String)>,
}

fn front_end(name: &str) -> &'static FrontEnd {
    serve::all().find(|row| row.name == name).expect("a front end")
}

impl Served {
    /// A drive divided among `count` clients.
    fn start(folder: &Folder, name: &'static str, count: u64, device_threads: usize) -> Served {
        Served::with(folder, name, count, move |clients| Hosts::Clients { clients, device_threads })
    }

    /// A drive of one host, whose queues are dealt.
    fn undivided(folder: &Folder, name: &'static str, device_threads: usize) -> Served {
        Served::with(folder, name, 1, move |_| Hosts::Apart { device_threads })
    }

    fn with(
        folder: &Folder,
        name: &'static str,
        count: u64,
        hosts: impl for<'a> Fn(&'a [Client]) -> Hosts<'a> + Send + 'static,
    ) -> Served {
        let sockets: Vec<_> = (0..count).map(|n| folder.path(&format!("socket{n}"))).collect();
        let (tell, events) = channel();
        let addresses = sockets.clone();
        std::thread::spawn(move || {
            let tell = Mutex::new(tell);
            let report = |address: &Path, what: &str| {
                let tell = tell.lock().unwrap_or_else(PoisonError::into_inner);
                // Fails at the end of the test.
                let _ = tell.send((address.to_owned(), what.to_owned()));
            };
            let clients = clients(count);
            let hosts = hosts(&clients);
            let control = Control::new().expect("two descriptors");
            let plan = plan("live", &SETS);
            front_end(name).serve(NVME, &plan, &addresses, hosts, &control, &report)
        });
        let served = Served { sockets, events };
        (0..count).for_each(|_| served.waits());
        served
    }

    /// Waits until a socket waits for a client.
    fn waits(&self) {
        loop {
            let (_, what) =
                self.events.recv_timeout(Duration::from_secs(120)).expect("it serves on");
            if what.contains("waiting for") {
                return;
            }
        }
    }
}

/// Runs a job that verifies every read, and checks that all of it was done on this client's extent.
fn verifies(name: &str, plan: &Plan, socket: &Path, resets: u32) {
    let job = "[v]\nrw=randrw\nbssplit=512/50:4k/40:64k/10\niodepth=8\nsize=1m\nio_size=1g\n\
               norandommap=1\nnumber_ios=2000\nverify=crc32c\nverify_fatal=1\n";
    let options = Options { resets, ..Options::default() };
    let run = match name {
        "shm" => live_over_socket(NVME, plan, &work(job), options, socket),
        _ => live_over_vfio_user(NVME, plan, &work(job), options, socket),
    };
    let run = clean(run.unwrap_or_else(|error| panic!("{}: {error}", socket.display())));
    assert!(only(&run).blocks_verified > 500, "{}", only(&run).blocks_verified);
    assert_eq!(run.resets, resets);
}

/// Connects over shared memory, and calls `body` with the first disk.
fn connected<T>(
    plan: &Plan,
    socket: &Path,
    body: impl AsyncFnOnce(Rc<Queue<live::LiveHost>>) -> T,
) -> T {
    let (shared, _client) =
        live::connect(socket, 64 << 20, plan.host.memory_base).expect("the server accepts");
    let rt = Rt::live(&STD_CLOCK, None, Log::Off);
    let host = shared.with_masks(NVME.masks).host(&rt);
    let done = rt.block_on(async {
        let driver = NVME.connect(vec![host], plan).await.expect("a controller");
        body(testing::queue(&driver)).await
    });
    rt.drop_tasks();
    done
}

/// A client that leaves with writes in flight, as one that is killed does.
fn disappears(plan: &Plan, socket: &Path) {
    connected(plan, socket, async |disk| {
        let writes = (0..4).map(|n| {
            let buffer = disk.buffer(65536).expect("memory");
            Box::pin(disk.write(Lba(n * 128), buffer, false))
        });
        let mut writes: Vec<_> = writes.collect();
        std::future::poll_fn(|cx| {
            // Each is submitted, and none is waited for.
            writes.iter_mut().for_each(|write| drop(write.as_mut().poll(cx)));
            std::task::Poll::Ready(())
        })
        .await;
    });
}

#[test]
fn four_device_threads_verify_under_resets_and_client_kills() {
    let _turn = testing::turn();
    let (folder, plan) = (Folder::new("threads"), plan("live", &SETS));
    let served = Served::start(&folder, "shm", 5, 4);
    std::thread::scope(|scope| {
        for socket in &served.sockets[..4] {
            scope.spawn(|| verifies("shm", &plan, socket, 5));
        }
        scope.spawn(|| (0..4).for_each(|_| disappears(&plan, &served.sockets[4])));
    });
    // The next session of a client reads what the last one wrote, on an extent of its own.
    for (number, socket) in (0..).zip(&served.sockets) {
        for writes in [true, false] {
            connected(&plan, socket, async |disk| {
                assert_eq!(disk.geometry().blocks, blocks(number), "client {number}");
                let mut buffer = disk.buffer(512).expect("memory");
                let (last, data) = (Lba(blocks(number) - 1), [number as u8 + 1; 512]);
                if writes {
                    buffer.copy_in(0, &data);
                    disk.write(last, buffer, false).await.1.expect("a write");
                    return;
                }
                buffer = disk.read(last, buffer).await.0;
                let mut found = [0; 512];
                buffer.copy_out(0, &mut found);
                assert_eq!(found, data, "client {number}");
            });
        }
    }
}

#[test]
fn two_device_threads_verify_over_vfio_user() {
    let _turn = testing::turn();
    let (folder, plan) = (Folder::new("threads-vfu"), plan("live", &SETS));
    let served = Served::start(&folder, "vfio-user", 3, 2);
    std::thread::scope(|scope| {
        for socket in &served.sockets {
            scope.spawn(|| verifies("vfio-user", &plan, socket, 2));
        }
    });
}

/// Each thread has a medium of its own, so clients must share nothing but its blocks.
#[test]
fn device_threads_are_refused_where_clients_share_more_than_blocks() {
    let folder = Folder::new("threads-refused");
    let refused = |name: &str, sets: &[(&str, &str)], device_threads: usize| {
        let clients = clients(2);
        let hosts = Hosts::Clients { clients: &clients, device_threads };
        let addresses = [folder.path("a"), folder.path("b")];
        let row: &Row = NVME;
        let plan = plan(name, sets);
        let control = Control::new().expect("two descriptors");
        let error = front_end("shm").serve(row, &plan, &addresses, hosts, &control, &|_, _| ());
        error.expect_err("refused").to_string()
    };
    let threads = |found| {
        format!("--device-threads: found {found}, expected 1 to 2: at most one for each client")
    };
    assert_eq!(refused("live", &SETS, 0), threads(0));
    assert_eq!(refused("live", &SETS, 3), threads(3));
    for (name, sets, key) in [
        ("small-flash", &[][..], "medium.kind: found flash"),
        ("live", &[("medium.pace", "modelled")], "medium.pace: found modelled"),
        ("live", &[("medium.file", "\"image\"")], "medium.file: found one"),
    ] {
        let error = refused(name, sets, 2);
        assert!(error.starts_with("--device-threads: ") && error.contains(key), "{error}");
    }
}

/// Runs a job of four threads that verifies every read, through queues of their own.
fn verifies_in_threads(plan: &Plan, socket: Where<'_>, resets: u32) {
    let job = "[v]\nrw=randrw\nbssplit=512/50:4k/40:64k/10\niodepth=8\nnumjobs=4\nsize=1m\n\
               io_size=1g\nnorandommap=1\nnumber_ios=1000\nverify=crc32c\nverify_fatal=1\n";
    let options = Options { resets, ..Options::default() };
    let run = live_in_host_threads(plan, &work(job), options, 4, socket);
    let run = clean(run.unwrap_or_else(|error| panic!("{socket:?}: {error}")));
    assert!(only(&run).blocks_verified > 1000, "{}", only(&run).blocks_verified);
    assert_eq!(run.resets, resets);
}

#[test]
fn four_threads_serve_one_host_under_resets_and_kills() {
    let _turn = testing::turn();
    let (folder, plan) = (Folder::new("queue-threads"), plan("live", &SETS));
    let served = Served::undivided(&folder, "shm", 4);
    let socket = &served.sockets[0];
    for resets in [0, 5] {
        verifies_in_threads(&plan, Where::Socket(socket), resets);
        served.waits();
        disappears(&plan, socket);
        served.waits();
    }
    // The next session reads what the last one wrote.
    for writes in [true, false] {
        connected(&plan, socket, async |disk| {
            let mut buffer = disk.buffer(512).expect("memory");
            let last = Lba(disk.geometry().blocks - 1);
            if writes {
                buffer.copy_in(0, &[9; 512]);
                disk.write(last, buffer, false).await.1.expect("a write");
                return;
            }
            buffer = disk.read(last, buffer).await.0;
            let mut found = [0; 512];
            buffer.copy_out(0, &mut found);
            assert_eq!(found, [9; 512]);
        });
        served.waits();
    }
}

#[test]
fn four_threads_serve_one_host_over_vfio_user() {
    let _turn = testing::turn();
    let (folder, plan) = (Folder::new("queue-threads-vfu"), plan("live", &SETS));
    let served = Served::undivided(&folder, "vfio-user", 4);
    for resets in [0, 3] {
        verifies_in_threads(&plan, Where::VfioUser(&served.sockets[0]), resets);
        served.waits();
    }
}

/// The queues of a host share more than blocks where a plan has more.
#[test]
fn queues_are_not_dealt_where_threads_share_more_than_blocks() {
    let folder = Folder::new("queue-threads-refused");
    let refused = |front: &str, name: &str, sets: &[(&str, &str)], device_threads: usize| {
        let plan = plan(name, sets);
        let control = Control::new().expect("two descriptors");
        let hosts = Hosts::Apart { device_threads };
        let (at, row): (_, &Row) = ([folder.path("a")], NVME);
        let error = front_end(front).serve(row, &plan, &at, hosts, &control, &|_, _| ());
        error.expect_err("refused").to_string()
    };
    for threads in [0, 65] {
        let error = refused("shm", "live", &SETS, threads);
        assert_eq!(error, format!("--device-threads: found {threads}, expected 1 to 64"));
    }
    for (name, sets, key) in [
        ("small-flash", &[][..], "medium.kind: found flash"),
        ("live", &[("medium.pace", "modelled")], "medium.pace: found modelled"),
        ("live", &[("medium.file", "\"image\"")], "medium.file: found contents"),
        ("live", &[("faults", "[{ name = \"x\", what = \"drop\" }]")], "faults: found some"),
    ] {
        let error = refused("vfio-user", name, sets, 2);
        assert!(error.contains(key) && error.contains("2 device threads"), "{error}");
    }
    let error = refused("nbd", "live", &SETS, 2);
    assert_eq!(error, "--device-threads: found --nbd, expected a front end with queues");
}
