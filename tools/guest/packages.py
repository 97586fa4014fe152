"""Debian packages, fetched and unpacked beside the system: nothing is installed, nobody is root.

apt does the fetching, with a state of its own in the cache: it resumes what was cut off, and checks
every file against the archive's signed index. QEMU and the guest's tools then run out of the unpacked
tree, by the tree's own dynamic loader.
"""

import hashlib
import os
import re
import shutil
import subprocess
import unittest
from pathlib import Path

from .problem import Problem, Unavailable

SUITE = "forky"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
# tiny-initramfs: the kernel wants some builder of initial file systems, and this is the smallest.
PACKAGES = (
    "qemu-system-x86", "seabios", "linux-image-cloud-amd64", "tiny-initramfs", "busybox-static",
    "nvme-cli", "fio", "e2fsprogs", "xfsprogs", "fdisk", "parted", "virtiofsd")
# For `tools/linux-guest postgresql`, in a tree of their own.
POSTGRESQL = ("postgresql-18",)
LIBRARIES = ("usr/lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu/ceph")
LOADER = "usr/lib64/ld-linux-x86-64.so.2"


def cache():
    """Where everything is kept: $DOORBELL_CACHE, or doorbell in the user's cache."""
    named = os.environ.get("DOORBELL_CACHE")
    user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return (Path(named) if named else user / "doorbell") / "guest"


def pick_mirror(targets):
    """The mirror among apt's own lines of `URI ORIGIN`: Debian's, and not its security archive."""
    for line in targets.splitlines():
        uri, _, origin = line.partition(" ")
        if origin == "Debian" and "security" not in uri and "snapshot" not in uri:
            return uri.rstrip("/")
    raise Unavailable("apt knows no mirror of Debian here: name one in DOORBELL_MIRROR")


def mirror():
    """$DOORBELL_MIRROR, or what this machine's apt uses for Debian."""
    named = os.environ.get("DOORBELL_MIRROR")
    if named:
        return named
    asked = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI) $(ORIGIN)"],
        capture_output=True, text=True, check=False)
    return pick_mirror(asked.stdout)


class Tree:
    """The unpacked packages."""

    def __init__(self, path):
        self.path = path

    def command(self, program, *arguments):
        """A program of the tree, as a command line for this machine."""
        libraries = ":".join(str(self.path / folder) for folder in LIBRARIES)
        return [str(self.path / LOADER), "--library-path", libraries,
                str(self.path / program), *map(str, arguments)]

    def libraries_of(self, program):
        """The shared libraries that a program of the tree is started with, by their real paths."""
        listed = subprocess.run(
            [str(self.path / LOADER), "--library-path",
             ":".join(str(self.path / folder) for folder in LIBRARIES),
             "--list", str(self.path / program)],
            capture_output=True, text=True, check=False)
        if "not found" in listed.stdout or listed.returncode:
            raise Problem(f"{program}: its libraries are not all there:\n{listed.stdout}"
                          f"{listed.stderr}")
        return [Path(line.split()[2]) for line in listed.stdout.splitlines() if " => /" in line]

    def kernel(self):
        """The kernel's image and its modules' folder."""
        for folder in sorted((self.path / "usr/lib/modules").glob("*")):
            for image in (folder / "vmlinuz", self.path / f"boot/vmlinuz-{folder.name}"):
                if image.is_file():
                    return image, folder
        raise Problem(f"{self.path}: there is no kernel in the unpacked packages")


def _needed():
    for program in ("apt-get", "dpkg-deb"):
        if not shutil.which(program):
            raise Unavailable(
                f"{program} is not there: the guest is made of Debian packages, so this needs Debian"
                " or a system with its package tools")
    if not KEYRING.is_file():
        raise Unavailable(f"{KEYRING} is not there: install debian-archive-keyring, by which"
                          " packages are checked")


def _apt(base, *arguments):
    """apt with a state of its own; its proxy and other settings are the machine's."""
    settings = {
        "Dir::State": base, "Dir::State::lists": base / "lists",
        "Dir::State::status": base / "status", "Dir::Cache": base,
        "Dir::Cache::archives": base / "archives", "Dir::Etc::sourcelist": base / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null", "Dir::Etc::preferences": "/dev/null",
        "Dir::Etc::preferencesparts": "/dev/null",
        "APT::Architecture": "amd64", "APT::Architectures": "amd64",
        "APT::Install-Recommends": "false", "APT::Keep-Downloaded-Packages": "true",
        "Acquire::Languages": "none", "Acquire::Retries": "3", "Acquire::http::Timeout": "60",
    }
    if os.geteuid() == 0:
        # Otherwise apt turns into a user that may not write here.
        settings["APT::Sandbox::User"] = "root"
    options = [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]
    ran = subprocess.run(
        ["apt-get", *options, "--quiet=2", *arguments],
        capture_output=True, text=True, check=False,
        env={**os.environ, "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"})
    if ran.returncode:
        raise Unavailable(f"apt-get {' '.join(arguments[:2])}: {ran.stdout}{ran.stderr}".strip())


def fetch(say, refresh=False, wanted=PACKAGES, place=None):
    """The tree, fetched and unpacked if it is not there yet or is to be refreshed."""
    place = place or cache()
    base, root, stamp = place / "apt", place / "root", place / "packages"
    if stamp.is_file() and root.is_dir() and not refresh:
        there, _, _ = stamp.read_text(encoding="utf-8").partition("\n")
        if there == " ".join(wanted):
            return Tree(root)
    _needed()
    for folder in ("lists/partial", "archives/partial"):
        (base / folder).mkdir(parents=True, exist_ok=True)
    # No package is installed yet: all that is needed is fetched, down to the C library.
    (base / "status").write_text("", encoding="utf-8")
    source = mirror()
    line = f"deb [signed-by={KEYRING} arch=amd64] {source} {SUITE} main\n"
    (base / "sources.list").write_text(line, encoding="utf-8")
    say(f"fetching {SUITE} from {source} into {place}")
    _apt(base, "update")
    _apt(base, "--yes", "--download-only", "install", *wanted)
    unpack(base, root, stamp, wanted, say)
    return Tree(root)


def fetch_postgresql(say, refresh=False):
    """The tree of PostgreSQL, and its place."""
    place = cache().with_name("postgresql")
    return fetch(say, refresh, wanted=POSTGRESQL, place=place), place


def unpack(base, root, stamp, wanted, say):
    """Unpacks what apt would install into a new tree, and notes what it was made of."""
    debs = sorted((base / "archives").glob("*.deb"))
    bytes_in_all = sum(deb.stat().st_size for deb in debs)
    say(f"unpacking {len(debs)} packages, {bytes_in_all / 1e6:.0f} MB")
    fresh = root.with_name("root.new")
    shutil.rmtree(fresh, ignore_errors=True)
    stamp.unlink(missing_ok=True)
    for deb in debs:
        subprocess.run(["dpkg-deb", "--extract", str(deb), str(fresh)], check=True)
    shutil.rmtree(root, ignore_errors=True)
    fresh.rename(root)
    lines = [" ".join(wanted)]
    lines += [f"{hashlib.sha256(deb.read_bytes()).hexdigest()}  {deb.name}" for deb in debs]
    stamp.write_text("\n".join(lines) + "\n", encoding="utf-8")


class Tests(unittest.TestCase):
    """The choice of a mirror."""

    def test_debians_own_archive_is_taken_and_not_its_security_archive(self):
        targets = ("http://a.example/debian-security/ Debian\nhttp://b.example/other Other\n"
                   "http://c.example/debian/ Debian\n")
        self.assertEqual(pick_mirror(targets), "http://c.example/debian")

    def test_without_any_one_has_to_be_named(self):
        with self.assertRaisesRegex(Unavailable, "DOORBELL_MIRROR"):
            pick_mirror("http://b.example/other Other\n")

    def test_package_names_are_names(self):
        self.assertTrue(all(re.fullmatch(r"[a-z0-9.+-]+", name) for name in PACKAGES + POSTGRESQL))
