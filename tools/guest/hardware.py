"""Hardware models of QEMU without a processor: the topologies that our PCI stack and driver meet.

Each is a start of QEMU with its qtest accelerator, and a run of `doorbell hardware` against it, which says a
verdict a line.
"""

import os
import subprocess
import time
import unittest
from dataclasses import dataclass, field

from .machine import Verdicts

MEMORY = "64M"
MEMORY_BYTES = 64 << 20
DISK_BYTES = 32 << 20
# The longest of them takes a minute on a busy machine.
BOUND_S = 300
# How long QEMU is given to listen.
START_S = 20


@dataclass(frozen=True)
class Topology:
    """A machine: its board, and devices as QEMU's options have them.

    In a device's options `DISK` stands for a disk of its own. Every machine is to show a verdict of success that
    holds each of these texts. `options` are of `doorbell hardware`.
    """

    name: str
    board: str
    devices: tuple
    shows: tuple = field(default=())
    options: tuple = field(default=())


def nvme(bus="", addr="", **more):
    """An NVMe device with a disk."""
    place = "".join(f",{key}={value}" for key, value in (("bus", bus), ("addr", addr)) if value)
    rest = "".join(f",{key}={value}" for key, value in more.items())
    return f"nvme,serial=doorbell,drive=DISK{place}{rest}"


def bridge(name, bus="", addr="", number=1):
    """A bridge between conventional buses. Its hot-plug controller has no part in this."""
    where = f",bus={bus}" if bus else ""
    return f"pci-bridge,id={name},chassis_nr={number},shpc=off,addr={addr}{where}"


SWITCH = (
    "pcie-root-port,id=p0,slot=1,addr=3", "x3130-upstream,id=up,bus=p0",
    "xio3130-downstream,id=down0,bus=up,chassis=1,slot=2",
    "xio3130-downstream,id=down1,bus=up,chassis=1,slot=3")

TOPOLOGIES = (
    Topology("pc-root", "pc", tuple(nvme(addr=f"{slot:x}") for slot in range(3, 7)),
             ("is input 5", "is input 7", "is input 10", "is input 11")),
    Topology("q35-root", "q35", tuple(nvme(addr=slot) for slot in ("4", "5", "6", "7", "1a", "1e")),
             ("is input 16", "is input 20", "is input 21", "is input 22", "is input 23")),
    Topology("q35-root-ports", "q35", (
        "pcie-root-port,id=p0,slot=1,addr=2.0,multifunction=on", "pcie-root-port,id=p1,slot=2,addr=2.1",
        "pcie-root-port,id=p2,slot=3,addr=9", nvme("p0"), nvme("p1"), nvme("p2"))),
    Topology("q35-switch", "q35", (*SWITCH, nvme("down0"), nvme("down1"))),
    Topology("q35-mixed", "q35", (
        *SWITCH, "pcie-pci-bridge,id=old,bus=down1", bridge("b", "old", 5), nvme("b", 6), nvme("old", 7),
        "ich9-usb-uhci1,bus=b,addr=1", "ich9-usb-uhci2,bus=b,addr=2", "ich9-usb-uhci3,bus=old,addr=9",
        "usb-ehci,bus=b,addr=3"), ("INTA, 5", "INTB, 5", "INTC, 4", "INTD, 5")),
    Topology("q35-crowded-bus", "q35", (
        "pcie-pci-bridge,id=old,addr=4", *(nvme("old", f"{slot:x}") for slot in (1, 2, 3, 4, 31))),
             ("is input 20", "is input 21", "is input 22", "is input 23")),
    Topology("pc-bridge-in-bridge", "pc", (
        bridge("b1", addr=5), bridge("b2", "b1", 7, 2), nvme("b2", 6), nvme("b1", 1),
        "ich9-usb-uhci1,bus=b1,addr=2", "ich9-usb-uhci2,bus=b1,addr=3", "ich9-usb-uhci3,bus=b2,addr=2",
        "usb-ehci,bus=b2,addr=3"), ("INTA, 1", "INTB, 1", "INTC, 2", "INTD, 2")),
    Topology("pc-four-deep", "pc", (
        bridge("b1", addr=4), bridge("b2", "b1", 6, 2), bridge("b3", "b2", 11, 3), bridge("b4", "b3", 1, 4),
        nvme(addr=7), nvme("b1", 1), nvme("b2", 2), nvme("b3", 3), nvme("b4", 9)),
             ("0 bridges up", "1 bridges up", "2 bridges up", "3 bridges up", "4 bridges up")),
    Topology("pc-other-root", "pc", (
        "pxb,id=far,bus_nr=64,addr=6", bridge("b", "far", 3, 2), nvme("far", 6), nvme("b", 5), nvme("pci.0", 8))),
    # In another slot QEMU 11 wires such a bus differently from what its firmware says: docs/pci.md.
    Topology("q35-other-root", "q35", (
        "pxb-pcie,id=far,bus_nr=128,addr=10", "pcie-root-port,id=p0,bus=far,slot=1,addr=2",
        "pcie-root-port,id=p1,bus=far,slot=2,addr=3", nvme("p0"),
        "pcie-pci-bridge,id=old,bus=p1", nvme("old", 3), nvme("old", 2))),
    Topology("q35-hot-removal", "q35", (
        "pcie-root-port,id=p0,slot=1,addr=2", "pcie-root-port,id=p1,slot=2,addr=3", nvme("p0"), nvme("p1")),
             ("01:00.0 is pulled out under reads", "02:00.0 namespace 1 by MSI-X, verified"), ("--pull",)),
    Topology("namespaces", "q35", (
        "pcie-root-port,id=p0,slot=1,addr=2", "nvme,id=ctrl,serial=doorbell,bus=p0",
        "nvme-ns,bus=ctrl,nsid=1,drive=DISK",
        "nvme-ns,bus=ctrl,nsid=2,drive=DISK,logical_block_size=4096,physical_block_size=4096",
        "nvme-ns,bus=ctrl,nsid=7,drive=DISK,ms=8"),
             ("namespace 2 by MSI-X", "namespace 7 is refused with a reason: MS is 8")),
    Topology("limits", "q35", (
        nvme(addr=4, mdts=1), nvme(addr=5, cmb_size_mb=16), nvme(addr=6, max_ioqpairs=1, msix_qsize=2),
        nvme(addr=7, mqes=31)),
             ("of up to 8192 bytes", "at once by 1 queues")),
)


class Machine:
    """One start of QEMU."""

    def __init__(self, tree, topology, folder):
        self.socket, self.memory = folder / "qtest.sock", folder / "memory"
        with open(self.memory, "wb") as file:
            file.truncate(MEMORY_BYTES)
        arguments = [
            "-accel", "qtest", "-nodefaults", "-no-user-config", "-display", "none",
            "-L", tree.path / "usr/share/qemu", "-L", tree.path / "usr/share/seabios",
            "-machine", f"{topology.board},memory-backend=ram",
            "-object", f"memory-backend-file,id=ram,mem-path={self.memory},size={MEMORY},share=on",
            "-m", MEMORY, "-qtest", f"unix:{self.socket},server=on,wait=off", "-qtest-log", "none"]
        for device in topology.devices:
            if "DISK" in device:
                disk = f"disk{len(arguments)}"
                with open(folder / disk, "wb") as file:
                    file.truncate(DISK_BYTES)
                arguments += ["-drive", f"file={folder / disk},if=none,format=raw,id={disk},cache=unsafe"]
                device = device.replace("DISK", disk)
            arguments += ["-device", device]
        modules = tree.path / "usr/lib/x86_64-linux-gnu/qemu"
        with open(folder / "qemu.log", "wb") as log:
            self.qemu = subprocess.Popen(  # pylint: disable=consider-using-with
                tree.command("usr/bin/qemu-system-x86_64", *arguments), stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, env={**os.environ, "QEMU_MODULE_DIR": str(modules)})
        self.log = folder / "qemu.log"

    def listens(self):
        """Waits until it does; False if it has ended instead."""
        end = time.monotonic() + START_S
        while not self.socket.exists() and self.qemu.poll() is None and time.monotonic() < end:
            time.sleep(0.01)
        return self.socket.exists() and self.qemu.poll() is None

    def said(self):
        """What it has complained about."""
        return self.log.read_text(encoding="utf-8", errors="replace")[-2000:]

    def end(self):
        """Power off without notice."""
        self.qemu.kill()
        self.qemu.wait()


def doorbell(bench, machine, command, *arguments):
    """Our program on a machine, or no longer than the bound: what it said by then is kept."""
    words = [bench.doorbell, command, "--qtest", machine.socket, "--memory", machine.memory]
    words += [str(argument) for argument in arguments]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as ran:
        try:
            said, complained = ran.communicate(timeout=BOUND_S)
        except subprocess.TimeoutExpired:
            ran.kill()
            said, complained = ran.communicate()
            said += f"not ok {command}: it was not done after {BOUND_S} s\n"
    return subprocess.CompletedProcess(words, ran.returncode, said, complained)


def judge(topology, output, ended):
    """The verdicts of a run, with one of our own for each text that is to be among its successes."""
    verdicts = Verdicts()
    for line in output.splitlines():
        verdicts.take(line)
    for text in topology.shows:
        if any(text in passed for passed in verdicts.passed):
            verdicts.passed.append(f"it shows {text!r}")
        else:
            verdicts.failed.append(f"no check that has passed shows {text!r}")
    if ended != bool(verdicts.failed):
        verdicts.failed.append(f"it ended with {ended}")
    return verdicts


def run(bench, topology, ios):
    """One topology: started, met, judged."""
    begun, folder = time.monotonic(), bench.folder(topology.name)
    machine = Machine(bench.tree, topology, folder)
    try:
        if not machine.listens():
            bench.check(f"{topology.name}: QEMU starts", False, machine.said())
            return
        bench.say(f"== {topology.name}")
        ran = doorbell(bench, machine, "hardware", "--ios", ios, *topology.options)
    finally:
        machine.end()
    bench.say((ran.stdout + ran.stderr).rstrip())
    verdicts = judge(topology, ran.stdout, ran.returncode)
    bench.passed += len(verdicts.passed)
    bench.failed += [f"{topology.name}: {why}" for why in verdicts.failed]
    if verdicts.failed:
        bench.say(machine.said())
    took = time.monotonic() - begun
    bench.say(f"-- {topology.name}: {len(verdicts.passed)} passed, {len(verdicts.failed)} failed,"
              f" {took:.1f} s")
    if not verdicts.failed:
        for disk in [*folder.glob("disk*"), machine.memory]:
            disk.unlink()


def conformance(bench):
    """The conformance suite on QEMU's controller: said, and not judged, as it is not ours."""
    folder = bench.folder("conformance")
    machine = Machine(bench.tree, Topology("conformance", "q35", (
        "pcie-root-port,id=p0,slot=1", nvme("p0"))), folder)
    try:
        if not machine.listens():
            bench.check("QEMU starts", False, machine.said())
            return
        ran = doorbell(bench, machine, "conformance", "--data", "overwrite")
    finally:
        machine.end()
    bench.say((ran.stdout + ran.stderr).rstrip())
    bench.check("the suite comes to its end", " cases: " in ran.stdout, ran.stderr)


class Tests(unittest.TestCase):
    """What counts as a success, and what the machines are."""

    def test_a_text_that_is_not_shown_is_a_failure(self):
        topology = Topology("t", "pc", (), ("input 5",))
        good = judge(topology, "# x\nok a: is input 5\n1 passed, 0 failed\n", 0)
        self.assertEqual((len(good.passed), good.failed), (2, []))
        self.assertEqual(len(judge(topology, "ok a: is input 7\n", 0).failed), 2)

    def test_a_run_that_ends_badly_is_a_failure_whatever_it_said(self):
        topology = Topology("t", "pc", ())
        self.assertEqual(judge(topology, "ok a\n", 1).failed, ["it ended with 1"])
        self.assertEqual(judge(topology, "not ok a: b\n", 1).failed, ["a: b"])

    def test_names_are_one_of_a_kind_and_boards_are_known(self):
        names = [topology.name for topology in TOPOLOGIES]
        self.assertEqual(len(names), len(set(names)))
        self.assertTrue(all(topology.board in ("pc", "q35") for topology in TOPOLOGIES))
