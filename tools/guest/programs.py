"""Our programs as users build them, and the files with which they run in a guest."""

import re
import subprocess
import tempfile
import unittest
from pathlib import Path

from .problem import Problem

ROOT = Path(__file__).resolve().parent.parent.parent

# In a guest. The libraries are those of this machine, with which the program was linked: a guest's own may be older.
FOLDER = "/guest"
LIBRARIES = "libraries"


def build(say):
    """Builds it, and says where it is."""
    say("building doorbell")
    words = ["cargo", "build", "--locked", "--release", "--package", "doorbell"]
    built = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    if built.returncode:
        raise Problem(f"building doorbell:\n{built.stderr[-3000:]}")
    return ROOT / "target/release/doorbell"


def build_example(say, folder):
    """Builds libfnvme's example, as the test of its other devices does (crates/fnvme/tests/devices.py), and says where
    it is."""
    say("building libfnvme's example")
    crate, example = ROOT / "crates/fnvme", folder / "hello"
    for words in (["cargo", "build", "--locked", "--package", "doorbell-fnvme"],
                  ["gcc", "-I", crate / "include", crate / "examples/hello.c", ROOT / "target/debug/libfnvme.a",
                   "-lpthread", "-ldl", "-lm", "-o", example]):
        built = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
        if built.returncode:
            raise Problem(f"building libfnvme's example: {words[0]}:\n{built.stderr[-3000:]}")
    return example


def libraries(listed):
    """The libraries in what ldd prints of a program, and the loader, by their paths."""
    found = re.findall(r"^\s*(?:\S+ => )?(/\S+) \(0x[0-9a-f]+\)$", listed, re.MULTILINE)
    loaders = [path for path in found if Path(path).name.startswith("ld-linux")]
    if "not found" in listed or len(loaders) != 1:
        raise Problem(f"libraries of the program: found {listed!r}, expected each of them and a loader")
    return found, loaders[0]


def for_guest(program, name="doorbell"):
    """The program's files in a guest, by name; `name` is to be run."""
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
    if listed.returncode:
        raise Problem(f"ldd {program}: {listed.stdout}{listed.stderr}")
    paths, loader = libraries(listed.stdout)
    with tempfile.TemporaryDirectory() as folder:
        stripped = Path(folder) / "program"
        # Lines for traces of panics are most of it, and a guest's memory is small.
        subprocess.run(["strip", "-o", stripped, program], check=True)
        files = {f"{name}-program": stripped.read_bytes()}
    for path in paths:
        files[f"{LIBRARIES}/{Path(path).name}"] = Path(path).read_bytes()
    inside = f"{FOLDER}/{LIBRARIES}"
    # exec: the process that a script starts is the program itself, whose number it then has.
    files[name] = (f"#!/bin/sh\nexec {inside}/{Path(loader).name} --library-path {inside} "
                   f"{FOLDER}/{name}-program \"$@\"\n").encode()
    return files


class Tests(unittest.TestCase):
    """What ldd prints."""

    def test_libraries_and_loader_are_found(self):
        paths, loader = libraries(
            "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibm.so.6 => /lib/libm.so.6 (0x00007f01)\n"
            "\t/lib64/ld-linux-x86-64.so.2 (0x00007f02)\n")
        self.assertEqual(paths, ["/lib/libm.so.6", "/lib64/ld-linux-x86-64.so.2"])
        self.assertEqual(loader, "/lib64/ld-linux-x86-64.so.2")

    def test_missing_library_and_static_program_are_problems(self):
        for listed in ("\tliba.so => not found\n\t/lib64/ld-linux-x86-64.so.2 (0x0f)\n", "\tstatically linked\n"):
            with self.assertRaises(Problem):
                libraries(listed)
