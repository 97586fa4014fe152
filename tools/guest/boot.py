"""Machines of QEMU's that our image starts on, without an operating system: see tools/boot.

Each has a processor, emulated, and firmware, SeaBIOS, which numbers its buses its own way, and writes the MP table
that the image reads. The image says a verdict a line on the serial line, and ends the machine with a status.
"""

import subprocess
import time
import unittest
from dataclasses import dataclass, field

from .hardware import SWITCH, bridge, nvme
from .machine import Verdicts
from .problem import Problem
from .programs import ROOT

MEMORY = "128M"
DISK_BYTES = 32 << 20
MANIFEST = ROOT / "examples/boot/Cargo.toml"
# Beside the time that diskhog works on each device: firmware, bring-up and verification, on a busy machine.
BOUND_S = 120
# What isa-debug-exit makes of the image's 10h.
PASSED = 0x10 << 1 | 1


@dataclass(frozen=True)
class Machine:
    """A machine: its board, how many processors it has, and devices as QEMU's options have them.

    Its image is to show a success that holds each of these texts.
    """

    name: str
    board: str
    processors: int
    devices: tuple
    shows: tuple = field(default=())


MACHINES = (
    Machine("pc-root", "pc", 1, (nvme(addr=4),), ("input 11",)),
    Machine("q35-root", "q35", 2, (nvme(addr=4), nvme(addr=5)), ("on INTA, which is INTA of 00:05.0",)),
    Machine("q35-root-port", "q35", 4, ("pcie-root-port,id=p0,slot=1,addr=2", nvme("p0")),
            ("which is INTA of 00:02.0", "diskhog on core 3")),
    Machine("q35-switch", "q35", 2, (*SWITCH, nvme("down0"), nvme("down1")),
            ("behind 3 bridges diskhog on core 1",)),
    # Bridges with a hot-plug controller have a pin, and of what has none the firmware's table says nothing.
    Machine("pc-bridge-in-bridge", "pc", 2, (
        "pci-bridge,id=b1,chassis_nr=1,addr=5", "pci-bridge,id=b2,bus=b1,chassis_nr=2,addr=8",
        nvme("b2", 4)), ("behind 2 bridges comes up before it has vectors: on INTA, which is INTA of 00:05.0",)),
    Machine("pc-other-root", "pc", 2, (
        "pxb,id=far,bus_nr=64,addr=6", bridge("b", "far", 3, 2), nvme("b", 5), nvme("pci.0", 8)),
            ("2 root buses", "polled, as the MP table says nothing of", "which is INTA of 00:08.0")),
    Machine("q35-other-root", "q35", 4, (
        "pxb-pcie,id=far,bus_nr=128,addr=10", "pcie-root-port,id=p0,bus=far,slot=1,addr=2", nvme("p0")),
            ("2 root buses", "diskhog on core 3")),
    # One vector for two queues of I/O: the second core polls.
    Machine("few-vectors", "q35", 2, (nvme(addr=4, msix_qsize=2),), ("2 vectors", "diskhog on core 1")),
)
# What continuous integration starts: both boards, one, two and four processors, bridges, another root bus.
SHORT = ("pc-root", "q35-root-port", "pc-bridge-in-bridge", "pc-other-root")


def build(say):
    """Builds the image, and says where it is."""
    say("building the image")
    words = ["cargo", "build", "--locked", "--release", "--manifest-path", str(MANIFEST),
             "--target-dir", "target/bare"]
    built = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    if built.returncode:
        raise Problem(f"building the image:\n{built.stderr[-3000:]}")
    return ROOT / "target/bare/release/doorbell-boot"


def arguments(tree, machine, image, folder, seconds):
    """QEMU's, for this machine, with a disk for each device that wants one."""
    words = [
        "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
        "-L", tree.path / "usr/share/qemu", "-L", tree.path / "usr/share/seabios",
        "-machine", f"{machine.board},accel=tcg", "-cpu", "max", "-m", MEMORY,
        # The firmware's table has the first processor of each socket only.
        "-smp", f"{machine.processors},sockets={machine.processors}",
        "-kernel", image, "-append", f"seconds={seconds}", "-serial", "stdio",
        "-device", "isa-debug-exit,iobase=0xf4,iosize=4"]
    for number, device in enumerate(machine.devices):
        if "DISK" in device:
            disk = folder / f"disk{number}"
            with open(disk, "wb") as file:
                file.truncate(DISK_BYTES)
            words += ["-drive", f"file={disk},if=none,format=raw,id=disk{number},cache=unsafe"]
            device = device.replace("DISK", f"disk{number}")
        words += ["-device", device]
    return words


def judge(machine, output, ended):
    """The verdicts of a run, with one of our own for each text that is to be among its successes."""
    verdicts = Verdicts()
    for line in output.splitlines():
        verdicts.take(line)
    wanted = [f"{machine.processors}, by their local APICs", *machine.shows]
    for text in wanted:
        if any(text in passed for passed in verdicts.passed):
            verdicts.passed.append(f"it shows {text!r}")
        else:
            verdicts.failed.append(f"no check that has passed shows {text!r}")
    if ended != PASSED:
        verdicts.failed.append(f"the machine ended with {ended}, expected {PASSED}")
    return verdicts


def run(bench, machine, image, seconds):
    """One machine: started, followed to its end, judged."""
    begun, folder = time.monotonic(), bench.folder(machine.name)
    bench.say(f"== {machine.name}")
    words = bench.tree.command("usr/bin/qemu-system-x86_64",
                               *arguments(bench.tree, machine, image, folder, seconds))
    bound = BOUND_S + seconds * len(machine.devices)
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT) as qemu:
        try:
            said, _ = qemu.communicate(timeout=bound)
        except subprocess.TimeoutExpired:
            qemu.kill()
            said, _ = qemu.communicate()
            said += f"\nnot ok {machine.name}: it was not done after {bound} s\n".encode()
    output = said.decode("utf-8", "replace")
    bench.say(output.rstrip())
    verdicts = judge(machine, output, qemu.returncode)
    bench.passed += len(verdicts.passed)
    bench.failed += [f"{machine.name}: {why}" for why in verdicts.failed]
    bench.say(f"-- {machine.name}: {len(verdicts.passed)} passed, {len(verdicts.failed)} failed,"
              f" {time.monotonic() - begun:.1f} s")
    for disk in folder.glob("disk*"):
        disk.unlink()


class Tests(unittest.TestCase):
    """What counts as a success."""

    def test_a_status_and_all_texts_are_wanted(self):
        machine = Machine("m", "pc", 2, (), ("input 11",))
        said = "ok cores work: 2, by their local APICs [0, 1]\nok a: input 11\n"
        self.assertEqual(judge(machine, said, PASSED).failed, [])
        self.assertEqual(len(judge(machine, said, 0).failed), 1)
        self.assertEqual(len(judge(machine, said + "not ok b: c\n", PASSED).failed), 1)
        self.assertEqual(len(judge(machine, "", PASSED).failed), 2)

    def test_names_are_one_of_a_kind_and_the_short_ones_are_among_them(self):
        names = [machine.name for machine in MACHINES]
        self.assertEqual(len(names), len(set(names)))
        self.assertLessEqual(set(SHORT), set(names))
