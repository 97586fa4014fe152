"""The guest's initial file system: a cpio archive of busybox, the tools, their libraries and modules.

The kernel unpacks several archives one behind the other, so the large part is made once and kept, and
what a run brings (scripts, programs) is a small archive behind it.
"""

import hashlib
import io
import lzma
import os
import re
import stat
import unittest
from pathlib import Path

from .problem import Problem

TOOLS = (
    "usr/bin/fio", "usr/sbin/nvme", "usr/sbin/mke2fs", "usr/sbin/e2fsck", "usr/sbin/mkfs.xfs",
    "usr/sbin/xfs_repair", "usr/sbin/sfdisk", "usr/sbin/parted")
DATA = ("etc/mke2fs.conf",)
MODULES = ("xfs", "vfio_iommu_type1", "vfio-pci")
MODULE_LIST = "etc/modules-in-order"
LINKS = {
    "bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64",
    "usr/sbin/mkfs.ext4": "mke2fs", "usr/sbin/fsck.ext4": "e2fsck"}
FOLDERS = ("dev", "proc", "sys", "tmp", "run", "mnt", "root", "job")


class Archive:
    """A cpio archive of the kind that the kernel reads ("newc")."""

    def __init__(self):
        self.bytes = io.BytesIO()
        self.entries = 0
        self.folders = set()

    def _entry(self, name, mode, data=b"", device=(0, 0)):
        self.entries += 1
        name_bytes = name.encode() + b"\0"
        fields = (self.entries, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(name_bytes), 0)
        header = b"070701" + b"".join(b"%08X" % field for field in fields)
        for part in (header + name_bytes, data):
            self.bytes.write(part + b"\0" * (-len(part) % 4))

    def folder(self, name):
        """A folder, and those above it."""
        parts = name.split("/")
        for depth in range(1, len(parts) + 1):
            path = "/".join(parts[:depth])
            if path and path not in self.folders:
                self.folders.add(path)
                self._entry(path, stat.S_IFDIR | 0o755)

    def file(self, name, data, executable=False):
        """A file with these bytes."""
        self.folder(os.path.dirname(name))
        self._entry(name, stat.S_IFREG | (0o755 if executable else 0o644), data)

    def link(self, name, to):
        """A symbolic link."""
        self.folder(os.path.dirname(name))
        self._entry(name, stat.S_IFLNK | 0o777, to.encode())

    def console(self):
        """The device that the kernel opens for the first program."""
        self.folder("dev")
        self._entry("dev/console", stat.S_IFCHR | 0o600, device=(5, 1))

    def done(self):
        """The archive's bytes."""
        self._entry("TRAILER!!!", 0)
        data = self.bytes.getvalue()
        return data + b"\0" * (-len(data) % 512)


def load_order(wanted, depends_of):
    """The modules to load, those that others need first."""
    order = []

    def take(name):
        name = name.replace("-", "_")
        if name not in order:
            for other in depends_of(name):
                take(other)
            order.append(name)

    for name in wanted:
        take(name)
    return order


def _modules(archive, folder):
    """The modules and all that they need, unpacked, with a list in the order to load them."""
    files = {path.name.split(".")[0].replace("-", "_"): path
             for path in (folder / "kernel").rglob("*.ko*")}
    images = {}

    def depends_of(name):
        if name not in files:
            raise Problem(f"the kernel {folder.name} has no module {name}")
        data = files[name].read_bytes()
        images[name] = lzma.decompress(data) if files[name].suffix == ".xz" else data
        found = re.search(rb"\0depends=([^\0]*)\0", images[name])
        return found.group(1).decode().split(",") if found and found.group(1) else []

    order = load_order(MODULES, depends_of)
    for name in order:
        archive.file(f"lib-modules/{name}.ko", images[name])
    lines = "".join(f"/lib-modules/{name}.ko\n" for name in order)
    archive.file(MODULE_LIST, lines.encode())


def base(tree, cache):
    """The large archive, made unless it is there already: of these packages, by this program."""
    made_of = (cache / "packages").read_bytes() + Path(__file__).read_bytes()
    path = cache / f"initial-{hashlib.sha256(made_of).hexdigest()[:16]}"
    if path.is_file():
        return path
    for old in cache.glob("initial*"):
        old.unlink()
    archive = Archive()
    for folder in FOLDERS:
        archive.folder(folder)
    for name, to in LINKS.items():
        archive.link(name, to)
    archive.console()
    archive.file("usr/bin/busybox", (tree.path / "usr/bin/busybox").read_bytes(), True)
    archive.link("usr/bin/sh", "busybox")
    taken = {}
    for tool in TOOLS:
        archive.file(tool, (tree.path / tool).resolve().read_bytes(), True)
        for library in tree.libraries_of(tool):
            taken[library.name] = library
    loader = tree.path / "usr/lib64/ld-linux-x86-64.so.2"
    archive.file("usr/lib64/ld-linux-x86-64.so.2", loader.read_bytes(), True)
    for name, library in sorted(taken.items()):
        # One folder for all of them: the loader looks there without being told.
        archive.file(f"usr/lib/x86_64-linux-gnu/{name}", library.read_bytes(), True)
    for name in DATA:
        archive.file(name, (tree.path / name).read_bytes())
    _modules(archive, tree.kernel()[1])
    fresh = path.with_suffix(".new")
    fresh.write_bytes(archive.done())
    fresh.rename(path)
    return path


def overlay(files):
    """A small archive behind the large one. `files` are names and bytes; all may be run."""
    archive = Archive()
    for name, data in sorted(files.items()):
        archive.file(name, data, True)
    return archive.done()


class Tests(unittest.TestCase):
    """Archives and load order."""

    def test_an_archive_is_what_cpio_would_write(self):
        archive = Archive()
        archive.file("a/b", b"hello", True)
        data = archive.done()
        self.assertEqual(data[:6], b"070701")
        self.assertEqual(len(data) % 512, 0)
        # Header and name of the folder, then of the file, each padded to four bytes.
        second = (110 + 2 + 3) // 4 * 4
        self.assertEqual(data[second:second + 6], b"070701")
        self.assertEqual(int(data[second + 14:second + 22], 16), stat.S_IFREG | 0o755)
        self.assertEqual(int(data[second + 54:second + 62], 16), 5)
        body = second + (110 + 4 + 3) // 4 * 4
        self.assertEqual(data[body:body + 8], b"hello\0\0\0")
        self.assertIn(b"TRAILER!!!\0", data)

    def test_what_a_module_needs_is_loaded_before_it(self):
        needs = {"c": ["b", "a"], "b": ["a"], "a": []}
        self.assertEqual(load_order(["c", "a"], needs.__getitem__), ["a", "b", "c"])
