"""Which parts a call of tools/test runs: the short ones, all, or those that changed files concern."""

import subprocess

from .session import NAMED

# What --quick runs: a line that is too long is found before half an hour of building and testing.
QUICK = ("format", "rules")

# What runs by default: ten minutes, each promise of the README in a short form, on the debug build alone.
SHORT = ("format", "rules", "tools", "tests", "results")

RUST = ("clippy", "docs")
WHOLE_PROGRAM = (*RUST, "release", "fnvme", "python", "attacks")

# The parts that a change of a file concerns beyond the short ones, by the beginning of its path; the longest
# decides. A path without a row concerns all.
CONCERNS = {
    ".gitignore": (),
    "CHANGELOG.md": (),
    "CONTRIBUTING.md": (),
    "SECURITY.md": (),
    "README.md": (),
    "ARCHITECTURE.md": (),
    "docs/": (),
    "deny.toml": ("licences",),
    "crates/array/": (*WHOLE_PROGRAM, "no-std", "power-cuts"),
    "crates/campaign/": (*WHOLE_PROGRAM, "power-cuts", "papers", "gpu"),
    "crates/microbench/": (*WHOLE_PROGRAM, "instructions"),
    "crates/conformance/": (*WHOLE_PROGRAM, "gpu"),
    "crates/fio-engine/": (*RUST, "fnvme"),
    "crates/flash/": (*WHOLE_PROGRAM, "power-cuts", "papers", "instructions", "fuzz"),
    "crates/fnvme/": (*RUST, "fnvme"),
    "crates/ftl/": (*WHOLE_PROGRAM, "no-std", "power-cuts", "papers", "instructions", "fuzz"),
    "crates/functions/": (*RUST, "release", "fnvme"),
    "crates/papers/": (*RUST, "release", "papers", "browser"),
    "crates/python/": (*RUST, "python"),
    "crates/qemu/": (*RUST, "release", "guest"),
    "crates/report/": (*WHOLE_PROGRAM, "papers", "browser"),
    "crates/rtl/": (*RUST, "rtl"),
    "crates/rtl-command/": (*RUST, "rtl"),
    "crates/rules/": RUST,
    "crates/scsi/": (*WHOLE_PROGRAM, "no-std", "bare", "guest", "papers", "fuzz"),
    "crates/serve/": (*WHOLE_PROGRAM, "browser", "gpu", "guest", "fuzz"),
    "drives/": RUST,
    "examples/bare/": ("bare",),
    "examples/boot/": ("bare", "guest"),
    "examples/patches/": (),
    "examples/python/": ("python",),
    "examples/sweeps/": (),
    "fuzz/": ("fuzz",),
    "gpu/": ("gpu",),
    "rtl/": ("block", "rtl"),
    "tools/attack": ("attacks",),
    "tools/boot": ("guest",),
    "tools/browser": ("browser",),
    "tools/copies": ("release",),
    "tools/fuzz": ("fuzz",),
    "tools/gpu": ("gpu",),
    "tools/guest/": ("guest",),
    "tools/instructions": ("instructions",),
    "tools/linux-guest": ("guest",),
    "tools/patches": (),
    "tools/qemu-hardware": ("guest",),
    "tools/words": (),
}


def concerned(path):
    """The parts that a change of this file concerns beyond the short ones; None: all."""
    fits = [begin for begin in CONCERNS if path.startswith(begin)]
    return CONCERNS[max(fits, key=len)] if fits else None


def of_paths(parts, paths):
    """The short parts, and those that these files concern, with what they use; in the order of the table."""
    by_name, wanted = {part.name: part for part in parts}, set(SHORT)
    for path in paths:
        names = concerned(path)
        if names is None:
            return whole(parts)
        wanted.update(names)
    left = list(wanted)
    while left:
        for name in by_name[left.pop()].after:
            if name not in wanted:
                wanted.add(name)
                left.append(name)
    return [part for part in parts if part.name in wanted]


def whole(parts):
    """All parts but those that run only by name."""
    return [part for part in parts if part.column != NAMED]


def changed(base, root):
    """The files that differ from a commit, those not committed included; None where git can't tell."""
    files = []
    for words in (["diff", "--name-only", "-z", "--no-renames", base, "--"],
                  ["ls-files", "-z", "--others", "--exclude-standard"]):
        try:
            told = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
        except OSError:
            return None
        if told.returncode != 0:
            return None
        files += filter(None, told.stdout.split("\0"))
    return files
