//! A device of flash in a process that is killed: its state and the journal beside it are what a power cut
//! would have left. `DOORBELL_KILLS=200` kills it so often; without it,
//! it is killed six times.

mod common;

use std::cell::RefCell;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Stdio};
use std::rc::Rc;

use bus::live::{self, LiveHost};
use common::flushed::{ALL_BLOCKS, check_all, write_until_killed};
use common::{Folder, doorbell, plan};
use machine::interfaces::{Driver, Interface, Nvme};
use machine::plan::Plan;
use runtime::{Either, Log, Rt, STD_CLOCK, Span, race};
use workload::verify::Ledger;

/// A serving process. Killed when dropped.
struct Server {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Server {
    /// Starts to serve a state, and waits until it listens.
    fn start(folder: &Folder, pace: &str) -> Server {
        let pace = format!("medium.pace={pace}");
        let state = "medium.flash.state=drive.nand";
        let words =
            ["serve", "small-flash", "--shm", "socket", "--set", state, "--set", pace.as_str()];
        let mut command = doorbell(folder, &words);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the server starts");
        let lines = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut server = Server { child, lines };
        server.says("waiting for a host");
        server
    }

    fn says(&mut self, words: &str) {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("a line of the server");
        assert_eq!(line, format!("doorbell: socket: {words}\n"));
    }

    /// As `kill -9`.
    fn kill(&mut self) {
        self.child.kill().expect("the server lives");
        self.child.wait().expect("the server has ended");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a driver against the device behind the socket, until `body` is done.
fn over_socket<T>(
    plan: &Plan,
    socket: &Path,
    body: impl AsyncFnOnce(Rt, <Nvme as Interface>::Driver<LiveHost>) -> T,
) -> T {
    let memory_bytes = usize::try_from(plan.host.memory_bytes).expect("it fits");
    let (shared, mut client) =
        live::connect(socket, memory_bytes, plan.host.memory_base).expect("the server accepts");
    let rt = Rt::live(&STD_CLOCK, None, Log::Off);
    let host = shared.host(&rt);
    let watched = host.clone();
    let watch = async {
        while !client.is_gone() {
            rt.sleep(Span::ms(1)).await;
        }
        watched.mark_gone();
        core::future::pending::<()>().await;
    };
    let run = async {
        let driver = Nvme::connect(vec![host], plan).await.expect("the device is there");
        body(rt.clone(), driver).await
    };
    let result = match rt.block_on(race(run, watch)) {
        Either::First(result) => result,
        Either::Second(()) => unreachable!("the watch never ends"),
    };
    rt.drop_tasks();
    result
}

#[test]
fn what_was_flushed_before_flash_was_killed_is_there_and_nothing_is_torn() {
    let kills = std::env::var("DOORBELL_KILLS").map_or(6, |kills| kills.parse().expect("kills"));
    let folder = Folder::new("flash-killed");
    let (plan, socket) = (plan("small-flash", &[]), folder.path("socket"));
    let ledger = Rc::new(RefCell::new(Ledger::new(ALL_BLOCKS)));
    let mut server = None;
    for round in 0..kills {
        // The one that looked goes on: it has seen an orderly end, and is killed in the middle of work.
        let pace = if round % 4 == 3 { "modelled" } else { "immediate" };
        let mut serving = server.take().unwrap_or_else(|| Server::start(&folder, pace));
        let kept = ledger.clone();
        let flushed = over_socket(&plan, &socket, async |rt, driver| {
            let kill = || serving.kill();
            write_until_killed(rt, driver.disk(0), kept, 5 + round * 61 % 150, kill).await
        });
        assert!(flushed > 0, "nothing was flushed before the end");
        ledger.borrow_mut().power_cut();

        let mut looked = Server::start(&folder, pace);
        let kept = ledger.clone();
        over_socket(&plan, &socket, async |_, driver| {
            check_all(driver.disk(0), kept, &format!("kill {round}")).await;
            if round % 3 == 0 {
                driver.stop().await.expect("an orderly end");
            }
        });
        looked.says("a host has connected");
        looked.says("the host has gone");
        if round % 3 == 0 {
            looked.says("waiting for a host");
            server = Some(looked);
        }
    }
}
