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
from .machine import DIED
from .problem import Problem
from .qmp import Monitor

# QEMU cannot unplug a device whose server has gone away: each life of the drive has a slot, and a guest this many.
SLOTS = 26
# How long PostgreSQL works before a cut, seconds, and how long a life may take.
WORK_S, LIFE_S = (0.1, 1.5), 240
CUTS, IGNORED, HONEST_SHORT, IGNORED_SHORT = 100, 10, 1, 2
PROGRAMS = ("postgres", "initdb", "psql", "pg_amcheck", "pg_checksums", "pg_isready")
FLASH = ("small-flash", ["medium.keep=everything", "medium.flash.blocks=512", "medium.flash.spare_per_mille=330"], 0)
ASSERTION = "error_setv: Assertion `*errp == NULL' failed"
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

    def judged(self):
        """Cuts of each kind that lives have judged."""
        return (len(self.honest_clean) + len(self.honest_damaged), len(self.ignored_clean) + len(self.ignored_damaged))


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
    if ended := is_qemus_end(guest):
        guest.said.failed.remove(DIED)
        bench.say(f"# QEMU has ended at an assertion of its own: cuts judged {power.found.judged()}, another guest goes on")
    bench.count(name, guest, begun)
    return power.found, ended


def is_qemus_end(guest):
    """Whether QEMU ended itself. It does at times when a write to the server of a device that is gone fails twice."""
    log = guest.console.with_name("qemu.log").read_text(encoding="utf-8", errors="replace")
    return DIED in guest.said.failed and ASSERTION in log


def next_guest(honest, ignored):
    """How many cuts of each kind the next guest has, of those left: few share one, many fill its slots."""
    most = SLOTS - 1
    if honest + ignored <= most:
        return honest, ignored
    return (min(most, honest), 0) if honest else (0, min(most, ignored))


def campaign(honest, ignored, run):
    """What guests found that were run until each cut was judged; `run` says whether QEMU has ended before that."""
    found, number = Found(), 0
    while honest + ignored > 0:
        shares = next_guest(honest, ignored)
        new, ended = run(*shares, number)
        found.add(new)
        if ended:
            shares = new.judged()
            if sum(shares) == 0:
                raise Problem("PostgreSQL: QEMU has ended at an assertion of its own before the first cut was judged")
        honest, ignored, number = honest - shares[0], ignored - shares[1], number + 1
    return found


def postgresql(bench):
    """The cuts, and what they must have led to."""
    over = archive(bench.say).read_bytes()
    honest, ignored = bench.cuts or CUTS, bench.ignored or IGNORED
    if bench.short:
        honest, ignored = HONEST_SHORT, IGNORED_SHORT
    found = campaign(honest, ignored, lambda *shares: guest_of_cuts(bench, over, *shares))
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
        for honest, ignored in ((1, 2), (SLOTS - 1, 10), (SLOTS, SLOTS), (100, 10)):
            given = []
            campaign(honest, ignored, lambda *shares, to=given: (to.append(shares[:2]) or Found(), False))
            self.assertEqual([sum(some) for some in zip(*given, strict=True)], [honest, ignored])
            self.assertLess(max(map(sum, given)), SLOTS)

    def test_another_guest_goes_on_where_qemu_has_ended(self):
        given, ends = [], iter([Found(["a"] * 12), Found(["a"] * 10 + ["b"], ["c"])])

        def run(*shares):
            given.append(shares)
            new = next(ends, None)
            return new or Found(["a"] * shares[0], [], [], ["d"] * shares[1]), new is not None

        found = campaign(30, 2, run)
        self.assertEqual(given, [(25, 0, 0), (18, 2, 1), (6, 2, 2)])
        self.assertEqual(found.judged(), (30, 2))
        with self.assertRaises(Problem):
            campaign(3, 2, lambda *_: (Found(), True))

    def test_clean_is_what_every_life_has_said(self):
        for found, failures in ((Found(["a", "b"], [], [], ["c"]), 0), (Found(["a"], [], [], ["c"]), 1),
                                (Found(["a", "b"], ["d"], [], ["c"]), 1), (Found(["a", "b"], [], ["c"], []), 1)):
            verdicts = []
            judge(types.SimpleNamespace(check=lambda name, good, why, to=verdicts: to.append(bool(good))), found, 2, 1)
            self.assertEqual(verdicts.count(False), failures, found)
