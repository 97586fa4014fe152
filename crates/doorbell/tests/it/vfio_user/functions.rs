//! Descriptor blocks and DC Express as PCI functions of their own, beside NVMe: identity, registers, verified
//! work, and drivers before another driver's function.

use std::process::Stdio;
use std::time::Duration;

use wire::block::registers as block;
use wire::dcx::registers as dcx;
use wire::vfio_user::{RegionInfo, SparseArea, SparseMmap, command, region};
use zerocopy::{FromBytes, IntoBytes};

use crate::common::{Folder, Server, assert_verified, doorbell, mixed, output_of};
use crate::vfio_user::env_or;
use crate::vfio_user::raw::Raw;
use crate::vfio_user::serving::{SETS, serve_by};
use crate::vfio_user::work::run_on;

/// Interface, and its class and identifiers as its driver states them.
const FUNCTIONS: [(&str, &str); 3] =
    [("nvme", "010802"), ("block", "018000 (0db1:0002)"), ("dcx", "018000 (0db1:0003)")];

fn serve(folder: &Folder, interface: &str) -> Server {
    let words = ["serve", "live", "--vfio-user", "socket", "--interface", interface];
    serve_by(folder, doorbell(folder, &words).args(SETS))
}

fn run(folder: &Folder, interface: &str, job: &str, more: &[&str]) -> std::process::Command {
    let mut command = run_on(folder, "socket", job, &["--interface", interface]);
    command.args(more);
    command
}

#[test]
fn block_and_dcx_verified_as_pci_functions() {
    let folder = Folder::new("vfu-functions");
    let job = mixed(&folder, env_or("DOORBELL_IOS", 300)).display().to_string();
    let interrupts = ["--set", "host.completion=interrupt"];
    for interface in ["block", "dcx"] {
        let mut server = serve(&folder, interface);
        // A reset has as long as a busy machine needs.
        let resets = ["--resets", "5", "--set", "host.timeout=60 s"];
        for more in [&[][..], &interrupts, &resets] {
            let output = output_of(&mut run(&folder, interface, &job, more));
            assert_verified(&output, 100);
            server.expect_event("client connected");
            server.expect_event("client disconnected");
            server.expect_event("waiting for a client");
        }
        // A driver that dies in the middle of its work leaves a device that the next one can use.
        let endless = mixed(&folder, 1_000_000_000).display().to_string();
        let mut command = run(&folder, interface, &endless, &[]);
        let mut client = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it");
        server.expect_event("client connected");
        std::thread::sleep(Duration::from_millis(300));
        client.kill().expect("it runs");
        client.wait().expect("it has ended");
        server.expect_event("client disconnected");
        let job = mixed(&folder, 300).display().to_string();
        assert_verified(&output_of(&mut run(&folder, interface, &job, &[])), 100);
        assert!(server.lives());
    }
}

#[test]
fn dcx_interrupt_vectors_must_fit_function() {
    let folder = Folder::new("vfu-dcx-vectors");
    let job = "[crowd]\nrw=randread\nbs=4k\nnumjobs=32\nsize=1m\nnumber_ios=4\n";
    let job = folder.file("crowd.fio", job).display().to_string();
    let _server = serve(&folder, "dcx");
    let queues = |queues: &str| {
        let depth = "host.queue_depth=8";
        let more = ["--set", "host.completion=interrupt", "--set", queues, "--set", depth];
        run(&folder, "dcx", &job, &more).output().expect("it ends")
    };
    let output = queues("host.queues=32");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let error = "host.queues: found 32, whose driver uses 65 interrupt vectors, expected fewer: a \
                 function has 64";
    assert!(said.contains(error), "{said}");
    let output = queues("host.queues=1");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn driver_before_wrong_function_names_both_classes() {
    let folder = Folder::new("vfu-wrong-function");
    let job = mixed(&folder, 100).display().to_string();
    for (served, _) in FUNCTIONS {
        let server = serve(&folder, served);
        let found = match served {
            "nvme" => "010802 (0db1:0001)",
            "block" => "018000 (0db1:0002)",
            _ => "018000 (0db1:0003)",
        };
        for (interface, expected) in FUNCTIONS.iter().filter(|(interface, _)| *interface != served)
        {
            let output = run(&folder, interface, &job, &[]).output().expect("it ends");
            assert_eq!(output.status.code(), Some(1), "{interface} on {served}");
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            let error = format!("it is of class {found}, expected {expected}");
            assert!(said.contains(&error), "{interface} on {served}: {said}");
        }
        let output = output_of(&mut run(&folder, served, &job, &[]));
        assert_verified(&output, 10);
        drop(server);
    }
}

/// Size of BAR 0, and the area of it that may be mapped.
fn window(raw: &mut Raw) -> (u64, (u64, u64)) {
    let info = RegionInfo { argsz: 4096.into(), ..RegionInfo::default() };
    let id = raw.send(command::REGION_INFO, &[info.as_bytes()], &[]);
    let answer = raw.reply(id).expect("an answer");
    let (info, rest) = RegionInfo::read_from_prefix(&answer.payload).expect("its length");
    let (sparse, rest) = SparseMmap::read_from_prefix(rest).expect("its length");
    assert_eq!(sparse.areas.get(), 1);
    let area = SparseArea::read_from_bytes(rest).expect("its length");
    (info.size.get(), (area.offset.get(), area.size.get()))
}

/// Writes all ones to these registers; returns those that have kept their values.
fn kept(raw: &mut Raw, registers: &[u32]) -> Vec<u32> {
    let keeps = |register: &u32| {
        let before = raw.read32(*register);
        raw.write32(*register, u32::MAX);
        raw.read32(*register) == before
    };
    registers.iter().copied().filter(keeps).collect()
}

#[test]
fn block_function_maps_announcements_only() {
    let folder = Folder::new("vfu-block-function");
    let server = serve(&folder, "block");
    let mut raw = Raw::greeted(&server.socket);
    let header = raw.read(region::CONFIG, 0, 12).expect("the configuration space");
    assert_eq!((&header[..4], &header[9..]), (&[0xb1, 0x0d, 2, 0][..], &[0, 0x80, 1][..]));
    assert_eq!(window(&mut raw), (0x2000, (0x1000, 0x1000)));
    assert_eq!(raw.read32(block::ID), block::MAGIC);
    let read_only =
        [block::ID, block::LIMITS, block::CAPACITY, block::MEDIUM, block::READ_NS, block::STATUS];
    let writable = [block::RING, block::RING + 4, block::SHAPE, block::OFFSET, block::BLOCK];
    assert_eq!(kept(&mut raw, &read_only), read_only);
    assert_eq!(kept(&mut raw, &writable), [0_u32; 0]);
    // After a reset the registers are as before the first write.
    raw.reset();
    assert_eq!((raw.read32(block::RING), raw.read32(block::OFFSET)), (0, 0));
    assert_eq!(raw.read32(block::ID), block::MAGIC);
}

#[test]
fn dcx_function_maps_nvme_doorbells_only() {
    let folder = Folder::new("vfu-dcx-function");
    let server = serve(&folder, "dcx");
    let mut raw = Raw::greeted(&server.socket);
    let header = raw.read(region::CONFIG, 0, 12).expect("the configuration space");
    assert_eq!((&header[..4], &header[9..]), (&[0xb1, 0x0d, 3, 0][..], &[0, 0x80, 1][..]));
    let (_, (from, bytes)) = window(&mut raw);
    assert_eq!((from, bytes), (0x1000, 0x1000));
    let at = (from + bytes) as u32;
    assert_eq!(raw.read32(at + dcx::ID), dcx::MAGIC);
    let group = dcx::Group::of(at, 0);
    let read_only = [at + dcx::ID, at + dcx::LIMITS, at + dcx::GRAIN, group.status];
    let writable = [group.commands, group.reports, group.notice, group.shape, group.doorbell];
    assert_eq!(kept(&mut raw, &read_only), read_only);
    assert_eq!(kept(&mut raw, &writable), [0_u32; 0]);
}
