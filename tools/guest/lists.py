"""The lists of checks: which guests are started, with what, and what they must find."""

import hashlib
import shutil
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from . import databases, faults, firmware, image, programs, several
from .machine import Guest
from .problem import Problem
from .servers import Server

HERE = Path(__file__).resolve().parent
# Firmware gives up long before: this is for a machine that is busy with other things.
FIRMWARE_S = 60


@dataclass
class Bench:
    """What every list works with."""

    tree: object
    initial: Path
    doorbell: Path
    logs: Path
    say: object
    short: bool = False
    bless: bool = False
    example: Path | None = None
    cuts: int = 0
    ignored: int = 0
    passed: int = 0
    failed: list = field(default_factory=list)

    def folder(self, name):
        """A new folder for the files of one guest."""
        folder = self.logs / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def guest(self, name, script, files, over=b"", **how):
        """Starts a guest with our scripts and these files besides; `over` is an archive before them."""
        inside = {f"guest/{path.name}": path.read_bytes() for path in (HERE / "inside").iterdir()}
        inside.update({f"guest/{path}": data for path, data in files.items()})
        self.say(f"== guest {name}")
        folder = self.logs / name
        return Guest(self.tree, self.initial, over + image.overlay(inside), folder, script=script, **how)

    def count(self, name, guest, begun):
        """Takes over what a guest has found."""
        said = guest.said
        self.passed += len(said.passed)
        self.failed += [f"{name}: {why}" for why in said.failed]
        self.say(f"-- guest {name}: {len(said.passed)} passed, {len(said.failed)} failed,"
                 f" {time.monotonic() - begun:.0f} s")
        if said.failed:
            self.say(guest.tail())

    def check(self, name, good, why=""):
        """A verdict of this side."""
        if good:
            self.passed += 1
            self.say(f"ok {name}")
        else:
            self.failed.append(f"{name}: {why}")
            self.say(f"not ok {name}: {why}")


def jobs():
    """The job files, by name."""
    return {path.name: path.read_bytes() for path in (HERE / "jobs").iterdir()}


def digest(path, length):
    """The SHA-256 of a file's first bytes."""
    with open(path, "rb") as file:
        return hashlib.sha256(file.read(length)).hexdigest()


def _over_vfio(bench, name, disk, vectors, devices):
    """Our driver on a device with so many vectors, whose contents lie in `disk`."""
    begun = time.monotonic()
    # The same job in the simulated world leaves the same bytes: what the guest's kernel must read.
    twin = disk.with_name("twin.img")
    ran = subprocess.run(
        [bench.doorbell, "run", HERE / "jobs/whole.fio", "--plan", "live", "--world", "sim",
         "--seed", "7", "--set", f"medium.file={twin}"],
        capture_output=True, text=True, check=False)
    if ran.returncode:
        raise Problem(f"the simulated twin: {ran.stderr}")
    expected = digest(twin, 16 << 20)
    twin.unlink()
    example = bench.example or programs.build_example(bench.say, bench.logs)
    files = {**jobs(), **programs.for_guest(bench.doorbell), **programs.for_guest(example, "hello"),
             "facts": f"DIGEST={expected}\nVECTORS={vectors}\n".encode()}
    guest = bench.guest(name, "vfio", files, devices=devices, iommu=True)
    try:
        guest.follow(600, bench.say)
    finally:
        guest.kill()
    bench.count(name, guest, begun)
    bench.check("the image holds it after the guest's end", digest(disk, 16 << 20) == expected,
                f"the first 16 MiB of {disk} differ")
    if not bench.failed:
        disk.unlink()


def vfio(bench):
    """Our driver on QEMU's own NVMe device, in a guest with an IOMMU."""
    disk = bench.folder("vfio") / "disk.img"
    with open(disk, "wb") as file:
        file.truncate(64 << 20)
    _over_vfio(bench, "vfio", disk, 9, [
        "-drive", f"file={disk},if=none,format=raw,id=disk,cache=writeback",
        "-device", "nvme,serial=qemu,drive=disk,max_ioqpairs=8,msix_qsize=9"])


def both(bench):
    """Our driver on our SSD, with QEMU, its IOMMU and a kernel's VFIO between them."""
    if bench.short:
        return
    folder = bench.folder("both")
    ssd = Server(bench.doorbell, folder, folder / "ssd.img", sets=["medium.capacity=64MiB"])
    try:
        _over_vfio(bench, "both", folder / "ssd.img", 64, ssd.device())
    finally:
        ssd.end()


def _firmware(bench, folder):
    """A machine starts from our SSD: its firmware's driver reads it."""
    image_file = folder / "boot.img"
    with open(image_file, "wb") as file:
        file.write(firmware.disk_image())
        file.truncate(64 << 20)
    ssd = Server(bench.doorbell, folder, image_file, sets=["medium.capacity=64MiB"])
    try:
        said = firmware.start(bench.tree, ssd.device(boots=True), FIRMWARE_S)
    finally:
        ssd.end()
    bench.check("a machine's firmware starts from the SSD", firmware.TEXT in said, said[-300:])
    image_file.unlink()


def kept(said):
    """The notes of a guest's `# kept` lines, as facts for the next life."""
    notes = [note.split() for note in said.notes if note.startswith("kept ")]
    return "".join(f"KEPT_{name}={digest}\n" for _, name, digest in notes)


def nvme(bench):
    """Linux on our SSD behind vfio-user: its tools, file systems, resets, and lives after each other."""
    folder, image_file = bench.folder("nvme"), bench.logs / "nvme" / "ssd.img"
    sets = ["medium.capacity=1GiB"]

    def server(name):
        """A server in a folder of its own, on the one image."""
        inside = folder / name
        inside.mkdir()
        return Server(bench.doorbell, inside, image_file, sets=sets)

    def life(name, script, facts, seconds, then=None):
        """One server, one guest; `then` ends them in the middle."""
        begun, ssd = time.monotonic(), server(name)
        try:
            how = {"devices": ssd.device(), "processors": 4}
            facts = f"SHORT={int(bench.short)}\n{facts}".encode()
            guest = bench.guest(f"nvme/{name}", script, {"facts": facts}, **how)
            guest.follow(seconds, bench.say, "cut me off" if then else None)
            if then:
                then(guest, ssd)
            bench.count(f"nvme/{name}", guest, begun)
            if not then:
                bench.check("the server lives, and has let nobody go",
                            ssd.lives() and "dropped" not in ssd.said(), ssd.said()[-400:])
        finally:
            guest.kill()
            ssd.end()
        return kept(guest.said)

    _firmware(bench, folder)
    facts = life("first", "nvme", "", 600)
    # Each life finds what the one before it left, by an end of its kind, and has an end of its own.
    if not bench.short:
        facts = life("after-power-off", "nvme-again", f"{facts}UNSAFE=0\nTHEN=cut\n", 120,
                     lambda guest, ssd: guest.kill())
    # A guest that powers off shuts the drive down; if guest or server is killed, the shutdown is unsafe.
    name, unsafe = ("after-power-off", 0) if bench.short else ("after-a-killed-guest", 1)
    facts = life(name, "nvme-again", f"{facts}UNSAFE={unsafe}\nTHEN=cut\n", 120, lambda guest, ssd: ssd.end())
    life("after-a-killed-server", "nvme-again", f"{facts}UNSAFE=1\nTHEN=fsck\n", 120)
    if not bench.failed:
        image_file.unlink()


LISTS = {"vfio": vfio, "nvme": nvme, "both": both, "drives": several.drives, "faults": faults.faults,
         "postgresql": databases.postgresql}
