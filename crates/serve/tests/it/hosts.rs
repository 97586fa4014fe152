//! A served drive with its control, and a host of several threads, each with a queue of its own.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use bus::live::{self, LiveHost, Shared};
use bus::vfio_user::{self, Connection, Sharing};
use host::nvme::threads::{Queues, granter};
use host::nvme::{Controller, Queue, QueueOptions};
use plan::Plan;
use runtime::{Either, Log, Rt, STD_CLOCK, Span, race};
use serde_json::{Value, json};
use serve::{Control, ControlSocket, Hosts};
use testing::Folder;
use wire::pci::FunctionKind;
use world::interfaces::{NVME, controller_options};
use world::{RunError, until};

/// Threads of the host, and of the device.
pub const THREADS: usize = 4;

/// Decides that something hangs, and nothing else.
pub const PATIENCE: Span = Span::s(120);

/// A server with a control socket.
pub struct Served {
    pub socket: PathBuf,
    front_end: &'static str,
    control: Arc<Control>,
    rpc: PathBuf,
    events: Mutex<Receiver<String>>,
    server: Option<JoinHandle<Result<(), RunError>>>,
}

impl Served {
    pub fn start(folder: &Folder, front_end: &'static str, plan: &Plan) -> Served {
        let (socket, rpc) = (folder.path("socket"), folder.path("control"));
        let control = Arc::new(Control::watching(plan.clone()).expect("two descriptors"));
        let listening = ControlSocket::bind(&rpc).expect("a path");
        let watched = control.clone();
        std::thread::spawn(move || listening.serve(&watched, &|_, _| ()));
        let (tell, events) = channel();
        let (watched, plan, address) = (control.clone(), plan.clone(), socket.clone());
        let server = std::thread::spawn(move || {
            let tell = Mutex::new(tell);
            let report = |_: &Path, what: &str| {
                let tell = tell.lock().unwrap_or_else(PoisonError::into_inner);
                // Fails at the end of the test.
                let _ = tell.send(what.to_owned());
            };
            let row = serve::all().find(|row| row.name == front_end).expect("a front end");
            let hosts = Hosts::Apart { device_threads: THREADS };
            row.serve(NVME, &plan, &[address], hosts, &watched, &report)
        });
        let events = Mutex::new(events);
        let served = Served { socket, front_end, control, rpc, events, server: Some(server) };
        served.waits();
        served
    }

    /// Waits until it waits for a client.
    pub fn waits(&self) {
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let next = || events.recv_timeout(Duration::from_nanos(PATIENCE.as_ns()));
        while next().expect("it serves on") != "waiting for a client" {}
    }

    /// The answer of the control socket.
    pub fn ask(&self, method: &str, parameters: &Value) -> Result<Value, String> {
        let stream = UnixStream::connect(&self.rpc).expect("it listens");
        let request = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": parameters });
        writeln!(&stream, "{request}").expect("sent");
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line).expect("an answer");
        let answer: Value = serde_json::from_str(&line).expect("an object");
        match answer["error"]["message"].as_str() {
            Some(error) => Err(error.to_owned()),
            None => Ok(answer["result"].clone()),
        }
    }

    pub fn call(&self, method: &str) -> Value {
        self.ask(method, &json!({})).unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    /// The only drive of `stats`.
    pub fn stats(&self) -> Value {
        self.call("stats")["drives"][0].clone()
    }

    /// Connects; again, while the server serves no client.
    pub fn connect(&self, plan: &Plan) -> Link {
        let (bytes, base) = (plan.host.memory_bytes as usize, plan.host.memory_base);
        let connect = || match self.front_end {
            "shm" => live::connect(&self.socket, bytes, base)
                .map(|(shared, client)| Link::Shared(shared.with_masks(NVME.masks), client))
                .map_err(|error| error.to_string()),
            _ => {
                let (kind, mapped) = (FunctionKind::NVME, Sharing::Mapped);
                vfio_user::connect(&self.socket, kind, bytes, base, mapped)
                    .map(|connection| Link::VfioUser(Arc::new(connection)))
                    .map_err(|error| error.to_string())
            }
        };
        /// Each may take the time limit of a greeting.
        const ATTEMPTS: u32 = 20;
        let attempts = (0..ATTEMPTS).map(|_| connect());
        let mut failed = String::new();
        for attempt in attempts {
            match attempt {
                Ok(link) => return link,
                Err(error) => failed = error,
            }
        }
        panic!("no connection: {failed}");
    }

    /// Stops the server and its host if the caller panics.
    pub fn ends_with_test<'a>(&'a self, resets: &'a Resets) -> EndsWithTest<'a> {
        EndsWithTest(&self.control, resets)
    }

    pub fn stop(mut self) {
        self.control.stop().request();
        let server = self.server.take().expect("it is stopped once");
        server.join().expect("no panic").expect("it has served");
    }
}

pub struct EndsWithTest<'a>(&'a Control, &'a Resets);

impl Drop for EndsWithTest<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stop().request();
            self.1.has_failed.store(true, Ordering::Release);
        }
    }
}

pub enum Link {
    Shared(Shared, live::Client),
    VfioUser(Arc<Connection>),
}

impl Link {
    fn is_gone(&mut self) -> bool {
        match self {
            Link::Shared(_, client) => client.is_gone(),
            Link::VfioUser(connection) => connection.is_gone(),
        }
    }
}

/// The memory and registers of a connection, for all threads.
enum Bus {
    Shared(Shared),
    VfioUser(Arc<Connection>),
}

impl Bus {
    fn of(link: &Link) -> Bus {
        match link {
            Link::Shared(shared, _) => Bus::Shared(shared.clone()),
            Link::VfioUser(connection) => Bus::VfioUser(connection.clone()),
        }
    }

    fn host_of(&self, rt: &Rt, part: usize) -> LiveHost {
        match self {
            Bus::Shared(shared) => shared.host_of(rt, part, THREADS),
            Bus::VfioUser(connection) => connection.host_of(rt, part, THREADS),
        }
    }
}

#[derive(Default)]
pub struct Resets {
    pub wanted: AtomicU64,
    pub done: AtomicU64,
    /// The host is to end, because the test has failed.
    has_failed: AtomicBool,
}

/// A thread of the host, as its work sees it.
pub struct HostThread {
    pub number: usize,
    pub rt: Rt,
    pub queue: Rc<Queue<LiveHost>>,
}

/// Runs a host of [`THREADS`] threads until all have returned, or the device has gone. Returns true if it has
/// gone.
pub fn host(
    plan: &Plan,
    mut link: Link,
    resets: &Resets,
    thread: &(impl AsyncFn(HostThread) + Sync),
) -> bool {
    let (bus, gone, begun) = (Bus::of(&link), AtomicBool::new(false), AtomicUsize::new(0));
    let is_gone = || gone.load(Ordering::Acquire) || resets.has_failed.load(Ordering::Acquire);
    // A queue that is given back before all have theirs would leave its device thread to another.
    let all_have_queues = || begun.load(Ordering::Acquire) == THREADS;
    let thread = &async |own: HostThread| {
        begun.fetch_add(1, Ordering::AcqRel);
        until(&own.rt.clone(), all_have_queues).await;
        thread(own).await;
    };
    let (granter, queues) = granter();
    std::thread::scope(|scope| {
        for number in 1..THREADS {
            let (queues, bus) = (queues.clone(), &bus);
            scope.spawn(move || {
                on_thread(bus, number, is_gone, async |rt, port| {
                    own(rt, port, number, queues, thread).await;
                });
            });
        }
        on_thread(&bus, 0, is_gone, async |rt, port| {
            let watch = async {
                loop {
                    gone.fetch_or(link.is_gone(), Ordering::Release);
                    rt.sleep(Span::ms(1)).await;
                }
            };
            let work = async {
                let wanted = controller_options(plan, THREADS as u16);
                let controller = match Controller::start(port.clone(), wanted).await {
                    Ok(controller) => controller,
                    Err(error) => return until_gone(rt, &is_gone, &error.to_string()).await,
                };
                let reset = async {
                    loop {
                        let done = resets.done.load(Ordering::Acquire);
                        until(rt, || resets.wanted.load(Ordering::Acquire) > done).await;
                        if let Err(error) = controller.reset().await {
                            return until_gone(rt, &is_gone, &error.to_string()).await;
                        }
                        resets.done.store(done + 1, Ordering::Release);
                    }
                };
                let work = async {
                    let (mut own, mut serve) =
                        (pin!(own(rt, port, 0, queues, thread)), pin!(granter.serve(&controller)));
                    if let Either::First(()) = race(&mut own, &mut serve).await {
                        serve.await;
                    }
                    if let Err(error) = controller.shutdown().await {
                        until_gone(rt, &is_gone, &error.to_string()).await;
                    }
                };
                race(work, reset).await;
            };
            race(work, watch).await;
        });
    });
    is_gone()
}

/// An error that only the end of the device explains.
async fn until_gone(rt: &Rt, is_gone: &impl Fn() -> bool, error: &str) {
    let until_when = rt.now() + PATIENCE;
    until(rt, || is_gone() || rt.now() > until_when).await;
    assert!(is_gone(), "{error}");
}

/// One thread of the host, until `body` ends or the device has gone.
fn on_thread(
    bus: &Bus,
    number: usize,
    is_gone: impl Fn() -> bool,
    body: impl AsyncFnOnce(&Rt, &LiveHost),
) {
    let rt = Rt::live(&STD_CLOCK, None, Log::Off);
    let port = bus.host_of(&rt, number);
    rt.block_on(race(body(&rt, &port), until(&rt, is_gone)));
    rt.drop_tasks();
}

/// The work of a thread on its queue. Without a queue it waits for the end of the device.
async fn own(
    rt: &Rt,
    port: &LiveHost,
    number: usize,
    queues: Queues,
    thread: &impl AsyncFn(HostThread),
) {
    let queue = match queues.queue(port, QueueOptions::default()).await {
        Ok(queue) => queue,
        Err(_) => return core::future::pending().await,
    };
    drop(queues);
    thread(HostThread { number, rt: rt.clone(), queue: queue.queue().clone() }).await;
    if queue.give_back().await.is_err() {
        core::future::pending().await
    }
}
