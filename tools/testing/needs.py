"""What the parts need beside Rust and Python, and its installation.

Nothing here ends a run: a need that can't be met is said, and the parts that have it say what they leave
out. Packages are Debian's.
"""

import os
import shutil
import subprocess
import time
from pathlib import Path

from . import processes

# A command, and the Debian package that brings it.
PACKAGES = {
    "gcc": "gcc",
    "c++": "g++",
    "chromium": "chromium",
    "chromedriver": "chromium-driver",
    "fio": "fio",
    "pkg-config": "pkg-config",
    "jsonschema": "python3-jsonschema",
    "shellcheck": "shellcheck",
    "valgrind": "valgrind",
    "verilator": "verilator",
    "iverilog": "iverilog",
    "yosys": "yosys",
}

# Needs that are no command of one package.
VENV, MIRI = "a Python that makes virtual environments", "a nightly Rust with Miri"
COMPONENTS = "rustfmt and clippy"
EXAMPLES, EXAMPLES_AT = "fio's example jobs", Path("/usr/share/doc/fio/examples")

APT = ("apt-get", "-o", "DPkg::Lock::Timeout=600", "-o", "Acquire::Retries=3",
       "-o", "Acquire::http::Timeout=60")
INSTALL = ("install", "--yes", "--no-install-recommends")
# A configuration file that somebody changed stays, and no question is asked about it.
KEEP_FILES = ("-o", "Dpkg::Options::=--force-confdef", "-o", "Dpkg::Options::=--force-confold")
COMPONENTS_LINE = "rustup component add rustfmt clippy"
MIRI_LINE = "rustup toolchain install nightly --profile minimal --component miri --component rust-src"

# Seconds before the second and the third try: another package manager may be at work, a mirror may be away.
PAUSES = (10, 30)

# Seconds after which nothing more is begun.
PATIENCE = 900

# Seconds of a command, those included that apt waits for a lock.
LIMIT = 1200

HUGE_PAGES = Path("/proc/sys/vm/nr_hugepages")
HUGE_PAGES_WANTED = 8


def environment():
    """Of commands here. A toolchain that is missing is not installed by looking for it."""
    return os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUSTUP_AUTO_INSTALL": "0",
                         "RUST_BACKTRACE": "0"}


def quiet(*words):
    """Whether a command succeeds."""
    try:
        return subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL,
                              env=environment(), check=False, timeout=120).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def miri():
    """Whether there is Miri, and the standard library's sources that it interprets."""
    if not quiet("cargo", "+nightly", "miri", "--version"):
        return False
    try:
        root = subprocess.run(["rustc", "+nightly", "--print", "sysroot"], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, check=True, timeout=120,
                              env=environment()).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return False
    return (Path(root) / "lib/rustlib/src/rust/library/std").is_dir()


def there(need):
    """Whether a need is met."""
    if need == MIRI:
        return miri()
    if need == COMPONENTS:
        return quiet("cargo", "fmt", "--version") and quiet("cargo", "clippy", "--version")
    if need == EXAMPLES:
        return EXAMPLES_AT.is_dir()
    if need == VENV:
        return quiet("python3", "-c", "import ensurepip, venv")
    return shutil.which(need) is not None


def package(need):
    """The Debian package that meets a need, if one does."""
    return {VENV: "python3-venv", EXAMPLES: "fio-examples"}.get(need) or PACKAGES.get(need)


def lines(missing):
    """The command lines by which a user installs what is missing."""
    packages = sorted(filter(None, map(package, missing)))
    if packages:
        yield f"as root: apt-get {' '.join(INSTALL)} {' '.join(packages)}"
    if COMPONENTS in missing:
        yield COMPONENTS_LINE
    if MIRI in missing:
        yield MIRI_LINE


class Installer:
    """Installs needs. What it does to the machine goes through `run`, `there` and `pause`."""

    def __init__(self, say, log, root=None, run=None, there=there, pause=time.sleep):
        self.say, self.log, self.there, self.pause = say, Path(log), there, pause
        self.root = os.geteuid() == 0 if root is None else root
        self.run = run or self.logged
        self.deadline = time.monotonic() + PATIENCE

    def logged(self, *words):
        """Runs a command with its output in the log; whether it succeeded."""
        with open(self.log, "a", encoding="utf-8") as log:
            log.write(f"$ {' '.join(words)}\n")
        return processes.logged(words, self.log, "/", LIMIT, environment()) == 0

    def install(self, needs):
        """Installs what is missing of the needs; those that are missing still."""
        missing = [need for need in needs if not self.there(need)]
        if not missing:
            return []
        self.say(f"missing: {', '.join(missing)}")
        if self.root:
            self.packages([need for need in missing if package(need)])
        if COMPONENTS in missing and self.there("rustup"):
            self.tried(*COMPONENTS_LINE.split())
        if MIRI in missing:
            self.nightly()
        missing = [need for need in missing if not self.there(need)]
        if missing:
            self.say(f"still missing: {', '.join(missing)} (see {self.log})")
            for line in lines(missing):
                self.say(f"    {line}")
        else:
            self.say("all of it is installed")
        return missing

    def tried(self, *words):
        """Runs a command up to three times, while there is time; whether it succeeded."""
        for pause in (*PAUSES, None):
            if time.monotonic() > self.deadline:
                break
            if self.run(*words):
                return True
            if pause:
                self.say(f"failed, once more in {pause} s: {' '.join(words)}")
                self.pause(pause)
        self.say(f"failed: {' '.join(words)}")
        return False

    def packages(self, needs):
        """Installs Debian packages: all at once or, if that fails, one by one."""
        if not needs:
            return
        if not self.there("apt-get"):
            self.say("there is no apt-get: packages of this system are installed by hand")
            return
        # The headers of C, which no command tells of.
        names = ["libc6-dev", *sorted(map(package, needs))]
        self.say(f"apt-get {' '.join(INSTALL)} {' '.join(names)}")
        # Where it fails, the lists that are there may do.
        self.tried(*APT, "update")
        if self.tried(*APT, *KEEP_FILES, *INSTALL, *names):
            return
        self.run("dpkg", "--configure", "-a")
        for name in names:
            if time.monotonic() > self.deadline:
                self.say(f"no time left: {name} is not installed")
            elif not self.run(*APT, *KEEP_FILES, *INSTALL, name):
                self.say(f"can't be installed: {name}")

    def nightly(self):
        """Adds Miri to the nightly Rust that is there or, if it can't be had for that, installs another."""
        if not self.there("rustup"):
            self.say("there is no rustup: a nightly Rust is installed by hand")
            return
        self.say("rustup: Miri")
        if not self.run("rustup", "component", "add", "--toolchain", "nightly", "miri", "rust-src") \
                or not self.there(MIRI):
            self.tried(*MIRI_LINE.split(), "--no-self-update")


def huge_pages(say, file=HUGE_PAGES, root=None):
    """Reserves the few huge pages that tests of peers with such memory use; else those are left out."""
    root = os.geteuid() == 0 if root is None else root
    try:
        if int(file.read_text(encoding="ascii")) > 0:
            return
        if not root:
            say(f"no huge pages, tests with them are left out; as root: echo {HUGE_PAGES_WANTED} > {file}")
            return
        file.write_text(str(HUGE_PAGES_WANTED), encoding="ascii")
        if int(file.read_text(encoding="ascii")) < HUGE_PAGES_WANTED:
            say("the kernel gives fewer huge pages than the tests want")
    except (OSError, ValueError) as error:
        say(f"no huge pages: {error}")


def prepare(say, log, needs, install):
    """Before the parts: installs what is missing, or says how that is done. Never ends the run."""
    try:
        if install:
            Path(log).parent.mkdir(parents=True, exist_ok=True)
            Path(log).write_text("", encoding="utf-8")
            Installer(say, log).install(needs)
            huge_pages(say)
            return
        missing = [need for need in needs if not there(need)]
        if missing:
            say(f"not installed: {', '.join(missing)}")
            for line in lines(missing):
                say(f"    {line}")
    except Exception as error:
        say(f"installation: {type(error).__name__}: {error}")

