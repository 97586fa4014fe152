"""PostgreSQL on a file system on our drive, in a guest, whose power is cut again and again under its load.

A flash drive keeps what was flushed. A cut takes what it had buffered, and the drive from the guest; the guest gets it
back in another slot, its file system and PostgreSQL recover, and pg_amcheck, pg_checksums and a ledger of what clients
were told say whether anything is missing. The same with a drive that completes flushes and does nothing must be caught.
"""

import hashlib
import random
import re
import time
import types
import unittest
from dataclasses import dataclass, field
from pathlib import Path

from . import image, packages
from .faults import Drive
from .image import Archive
from .qmp import Monitor

# QEMU cannot unplug a device whose server has gone away: each life of the drive has a slot, and a guest this many.
SLOTS = 26
# How long PostgreSQL works before a cut, seconds, and how long a life may take.
WORK_S, LIFE_S = (0.1, 1.5), 240
CUTS, HONEST_SHORT, IGNORED_SHORT = 100, 1, 2
PROGRAMS = ("postgres", "initdb", "psql", "pg_amcheck", "pg_checksums", "pg_isready")
FLASH = ("small-flash", ["medium.keep=everything", "medium.flash.blocks=512", "medium.flash.spare_per_mille=330"], 0)
IGNORES = '{ name = "row", what = "ignore-flush" }'


def archive(say):
    """PostgreSQL as an archive that is unpacked over the guest's own; kept, as that is."""
    tree, place = packages.fetch_postgresql(say)
    made_of = b"".join(file.read_bytes() for file in (place / "packages", Path(__file__), Path(image.__file__)))
    path = place / f"initial-{hashlib.sha256(made_of).hexdigest()[:16]}"
    if path.is_file():
        return path
    for old in place.glob("initial*"):
        old.unlink()
    new, taken = Archive(), {}
    home = next((tree.path / "usr/lib/postgresql").iterdir())
    for name in PROGRAMS:
        program = f"usr/lib/postgresql/{home.name}/bin/{name}"
        new.file(program, (tree.path / program).read_bytes(), True)
        for library in tree.libraries_of(program):
            taken[library.name] = library
    new.file(packages.LOADER, (tree.path / packages.LOADER).read_bytes(), True)
    for name, library in sorted(taken.items()):
        new.file(f"usr/lib/x86_64-linux-gnu/{name}", library.read_bytes(), True)
    for folder, ending in ((home / "lib", "*.so"), (tree.path / "usr/share/postgresql" / home.name, "*")):
        for file in sorted(folder.rglob(ending)):
            if file.is_file():
                new.file(str(file.relative_to(tree.path)), file.read_bytes())
    fresh = path.with_suffix(".new")
    fresh.write_bytes(new.done())
    fresh.rename(path)
    return path


class Power:
    """Plugs the drive into a running guest, and cuts its power; after `honest` cuts it ignores flushes."""

    def __init__(self, bench, drive, monitor, honest, seed):
        self.bench, self.drive, self.monitor, self.rng = bench, drive, monitor, random.Random(seed)
        self.honest, self.slot, self.found = honest, -1, Found()

    def plug(self, life):
        """The drive, with power, in the next slot."""
        if self.slot >= 0:
            self.drive.request("power.restore")
        if life == self.honest + 1:
            self.drive.request("faults.inject", fault=IGNORES)
        self.slot += 1
        socket = {"path": str(self.drive.server.sockets[-1]), "type": "unix"}
        self.monitor.execute("device_add", driver="vfio-user-pci", id=f"ssd{self.slot}", bus=f"slot{self.slot}",
                             socket=socket)

    def cut(self):
        """No power; the guest finds that the drive does not answer."""
        time.sleep(self.rng.uniform(*WORK_S))
        self.drive.request("power.cut")

    def hear(self, line):
        """One line of the guest. A life finds what the cut of the life before it has left."""
        self.bench.say(line)
        if not (said := re.fullmatch(r"# life (\d+) (\w+) ?(.*)", line)):
            return
        life, what, rest = int(said.group(1)), said.group(2), said.group(3)
        if what == "plug":
            self.plug(life)
        elif what == "load":
            self.cut()
        elif what in ("clean", "damaged"):
            which = "honest" if life - 1 <= self.honest else "ignored"
            getattr(self.found, f"{which}_{what}").append(rest)


@dataclass
class Found:
    """What lives found, after cuts of a drive that flushes and of one that ignores flushes."""

    honest_clean: list = field(default_factory=list)
    honest_damaged: list = field(default_factory=list)
    ignored_clean: list = field(default_factory=list)
    ignored_damaged: list = field(default_factory=list)

    def add(self, other):
        """Takes over what another guest has found."""
        for name, found in vars(other).items():
            getattr(self, name).extend(found)


def guest_of_cuts(bench, over, honest, ignored, number):
    """One drive and its cuts, in one guest."""
    name, cuts = f"postgresql-{number}", honest + ignored
    begun, folder = time.monotonic(), bench.folder(name)
    drive = Drive(bench, folder, name, FLASH)
    try:
        path = drive.place / "monitor"
        ports = [word for slot in range(cuts + 1)
                 for word in ("-device", f"pcie-root-port,id=slot{slot},chassis={slot + 1},slot={slot + 1}")]
        facts = f"LIVES={cuts}\nCLIENTS=2\nUNTIL_DAMAGED={int(bench.short)}\n"
        guest = bench.guest(name, "postgresql", {"facts": facts.encode()},
                            devices=[*ports, *Monitor.arguments(path)], over=over)
        try:
            power = Power(bench, drive, Monitor(path), honest, number)
            guest.follow(LIFE_S * (cuts + 1), power.hear)
        finally:
            guest.kill()
    finally:
        drive.end()
    bench.count(name, guest, begun)
    return power.found


def guests(honest, ignored):
    """How many cuts of each kind there are in each guest: few share one, many fill the slots of some."""
    if honest + ignored < SLOTS:
        return [(honest, ignored)]
    most = SLOTS - 1
    return [(min(most, honest - first), 0) for first in range(0, honest, most)] + [
        (0, min(most, ignored - first)) for first in range(0, ignored, most)]


def postgresql(bench):
    """The cuts, and what they must have led to."""
    over, found = archive(bench.say).read_bytes(), Found()
    honest, ignored = (HONEST_SHORT, IGNORED_SHORT) if bench.short else (bench.cuts or CUTS, bench.cuts or CUTS)
    for number, (some, others) in enumerate(guests(honest, ignored)):
        found.add(guest_of_cuts(bench, over, some, others, number))
    judge(bench, found, honest, ignored)


def judge(bench, found, honest, ignored):
    """A life that said nothing is none that was clean."""
    bench.check(f"PostgreSQL: nothing is damaged or missing after {honest} power cuts",
                len(found.honest_clean) == honest and not found.honest_damaged,
                f"clean after {len(found.honest_clean)}, damaged after others: {found.honest_damaged}")
    bench.check(f"PostgreSQL: with ignored flushes it is, after {len(found.ignored_damaged)} of {ignored}",
                found.ignored_damaged, f"clean after {len(found.ignored_clean)}")


class Tests(unittest.TestCase):
    """What is made of what a guest says of its lives."""

    def test_lives_are_plugged_cut_and_counted(self):
        done = []
        drive = types.SimpleNamespace(request=lambda method, **_: done.append(method),
                                      server=types.SimpleNamespace(sockets=["a"]))
        monitor = types.SimpleNamespace(execute=lambda command, **how: done.append(f"{command} {how['bus']}"))
        power = Power(types.SimpleNamespace(say=lambda line: None), drive, monitor, 1, 1)
        for line in ("# life 1 plug", "# life 1 load", "# life 2 plug", "# life 2 clean 3 4", "# life 2 load",
                     "# life 3 plug", "# life 3 damaged pg_amcheck: heap", "# lifeless", "ok life"):
            power.hear(line)
        self.assertEqual(done, ["device_add slot0", "power.cut", "power.restore", "faults.inject", "device_add slot1",
                                "power.cut", "power.restore", "device_add slot2"])
        self.assertEqual(power.found, Found(honest_clean=["3 4"], ignored_damaged=["pg_amcheck: heap"]))

    def test_every_cut_is_in_one_guest(self):
        self.assertEqual(guests(1, 2), [(1, 2)])
        for cuts in (SLOTS - 1, SLOTS, 100):
            each = guests(cuts, cuts)
            self.assertEqual([sum(some) for some in zip(*each, strict=True)], [cuts, cuts])
            self.assertLess(max(map(sum, each)), SLOTS)

    def test_clean_is_what_every_life_has_said(self):
        for found, failures in ((Found(["a", "b"], [], [], ["c"]), 0), (Found(["a"], [], [], ["c"]), 1),
                                (Found(["a", "b"], ["d"], [], ["c"]), 1), (Found(["a", "b"], [], ["c"], []), 1)):
            verdicts = []
            judge(types.SimpleNamespace(check=lambda name, good, why, to=verdicts: to.append(bool(good))), found, 2, 1)
            self.assertEqual(verdicts.count(False), failures, found)
