"""Machines of QEMU's that our image starts on, without an operating system: see tools/boot.

Each has a processor, emulated, and firmware, SeaBIOS, which numbers its buses its own way, and writes the MP table
that the image reads. The image says a verdict a line on the serial line, and ends the machine with a status.

The image measures a lock and the way of a cache line, then runs diskhog under each queue policy. Our model, with these
two costs and otherwise those of plan vortex, says which core is favoured; beside it is which one was.
"""

import json
import re

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
# The policies that each device is to show with its queues, of a machine with N processors: as the image has them.
POLICIES = {"single, unfair": lambda _: 1, "single, fair": lambda _: 1, "round-robin, unfair": lambda n: 2 * n,
            "round-robin, fair": lambda n: 2 * n, "per-core": lambda n: n, "pool": lambda n: 2 * n}
# A core is favoured from this share on, as in `doorbell diskhog`.
FAVOURED = 1.1
COSTS = re.compile(r"policies: (\d+) cores, (\d+) commands of each, queues of (\d+), home core (\d+), "
                   r"lock (\d+) ps, line (\d+) ps")
SHARES = re.compile(r"^(.*) policy ([a-z, -]+): (\d+) queues of .* ([1-9]\d*) KiB verified, .* shares ([0-9. ]+)$")
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
    judge_policies(machine, verdicts)
    if ended != PASSED:
        verdicts.failed.append(f"the machine ended with {ended}, expected {PASSED}")
    return verdicts


def judge_policies(machine, verdicts):
    """Each device is to have run each policy, with its number of queues and a share of each core."""
    shown = [found.groups() for found in map(SHARES.match, verdicts.passed) if found]
    disks = sum("DISK" in device for device in machine.devices)
    for policy, queues in POLICIES.items():
        wanted = (str(queues(machine.processors)), machine.processors)
        found = [(number, len(shares.split())) for _, name, number, _, shares in shown if name == policy]
        if found == [wanted] * disks:
            verdicts.passed.append(f"each device shows policy {policy}")
        else:
            verdicts.failed.append(f"policy {policy}: found queues and cores {found},"
                                   f" expected {wanted} of each of {disks} devices")


def favoured(shares):
    """The core with the highest share, if it is favoured."""
    most = max(range(len(shares)), key=shares.__getitem__)
    return f"core {most}, {shares[most]:.2f}" if shares[most] >= FAVOURED else "none"


def predicted(doorbell, costs):
    """The shares of each policy that our model expects with the costs that the image has measured."""
    cores, batch, depth, home, lock, line = costs
    words = [doorbell, "diskhog", "--threads", cores, "--batch", batch, "--bytes", "32 KiB", "--random",
             "--lock", "both", "--time", "10 ms", "--interval", "10 ms", "--json", "-"]
    for pair in (f"host.cores={cores}", f"host.queue_depth={depth}", f"host.queues={2 * int(cores)}",
                 f"host.sharing.home={home}", f"host.sharing.lock={lock} ps", f"host.sharing.transfer={line} ps"):
        words += ["--set", pair]
    ran = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise Problem(f"{doorbell} diskhog: {ran.stderr[-2000:]}")
    policies = json.loads(ran.stdout)["diskhog"][0]["policies"]
    shared = ("single", "round-robin")
    return {f"{one['policy']}, {one['lock']}" if one["policy"] in shared else one["policy"]:
            [core["median_share"] for core in one["cores"]] for one in policies}


def beside(doorbell, verdicts):
    """A line for each policy: the favoured core that the model expects, and the one that was."""
    costs = next((found.groups() for found in map(COSTS.search, verdicts.notes) if found), None)
    if costs is None:
        return []
    expected, lines = predicted(doorbell, costs), []
    for device, policy, _, _, shares in (found.groups() for found in map(SHARES.match, verdicts.passed) if found):
        model, here = favoured(expected[policy]), favoured([float(share) for share in shares.split()])
        holds = "holds" if model.split(",")[0] == here.split(",")[0] else "departs"
        lines.append(f"# {device} policy {policy}: favoured by the model {model}; here {here}: {holds}")
    return lines


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
    for line in beside(bench.doorbell, verdicts) if bench.doorbell else ():
        bench.say(line)
    bench.passed += len(verdicts.passed)
    bench.failed += [f"{machine.name}: {why}" for why in verdicts.failed]
    bench.say(f"-- {machine.name}: {len(verdicts.passed)} passed, {len(verdicts.failed)} failed,"
              f" {time.monotonic() - begun:.1f} s")
    for disk in folder.glob("disk*"):
        disk.unlink()


class Tests(unittest.TestCase):
    """What counts as a success."""

    def verdicts(self, *, leave_out="", **changes):
        """Verdicts of two cores under all policies."""
        said = Verdicts()
        for policy, queues in POLICIES.items():
            fields = {"queues": queues(2), "verified": 8, "shares": "1.20 0.80", **changes}
            if policy != leave_out:
                said.take("ok 00:04.0 policy {policy}: {queues} queues of 4, 9 KiB in 250 ms, {verified} KiB verified, "
                          "0 lock waits, shares {shares}".format(policy=policy, **fields))
        return said

    def test_each_policy_is_wanted_of_each_device(self):
        two = Machine("m", "pc", 2, ("bridge", "DISK"))
        for machine, said, failures in (
                (two, self.verdicts(), 0), (two, self.verdicts(leave_out="pool"), 1),
                (two, self.verdicts(queues=2), 5), (two, self.verdicts(verified=0), 6),
                (two, self.verdicts(shares="1.00"), 6), (Machine("m", "pc", 2, ("DISK", "DISK")), self.verdicts(), 6)):
            judge_policies(machine, said)
            self.assertEqual(len(said.failed), failures, said.failed)

    def test_a_core_is_favoured_from_a_tenth_above_even(self):
        self.assertEqual(favoured([0.9, 1.2, 0.9]), "core 1, 1.20")
        self.assertEqual(favoured([1.05, 0.95]), "none")

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
