"""A C program runs unchanged on every device, and named areas outlive theirs: devices.py PROGRAM DOORBELL LIBRARY.

PROGRAM is examples/hello.c, built; DOORBELL the command that serves drives; LIBRARY libfnvme.so.
"""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest

PROGRAM, DOORBELL, LIBRARY = (os.path.abspath(path) for path in sys.argv[1:4])

# The owner of a named area is killed; the next process finds what it has flushed.
OWNER = """
import os, signal, fnvme
area = fnvme.Area(64 << 10, name="log")
area.buffer[:] = bytes(range(256)) * 256
area.write(0, 64 << 10)
area.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""
HEIR = """
import fnvme
with fnvme.Area(1 << 20) as other:
    other.buffer[:] = bytes(1 << 20)
    other.write(0, 1 << 20)
    with fnvme.Area(0, name="log") as area:
        area.read(0, area.size)
        print(area.size, area.buffer == bytes(range(256)) * 256)
"""


def run(device):
    return subprocess.run([PROGRAM], capture_output=True, text=True, timeout=120,
                          env={**os.environ, "FNVME_DEVICE": device})


def python(code, device):
    folder = pathlib.Path(__file__).parent.parent / "python"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120,
                          env={**os.environ, "FNVME_DEVICE": device, "FNVME_LIBRARY": LIBRARY, "PYTHONPATH": str(folder)})


class Served:
    """A served drive of plan live, and its socket."""

    def __init__(self, folder, flag):
        self.socket = str(pathlib.Path(folder) / flag.lstrip("-"))
        self.server = subprocess.Popen([DOORBELL, "serve", "live", flag, self.socket],
                                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for line in self.server.stdout:
            if "waiting for" in line:
                return
        raise RuntimeError(f"doorbell serve {flag} ended before it waited for a client")

    def __enter__(self):
        return self.socket

    def __exit__(self, *_):
        self.server.terminate()
        self.server.communicate(timeout=60)


class Devices(unittest.TestCase):
    def says_hello(self, device):
        ended = run(device)
        self.assertEqual((ended.returncode, ended.stdout, ended.stderr), (0, "hello, drive\n", ""), device)

    def test_drives_of_this_process(self):
        for device in ("memory", "memory:16m", "plan:small-flash"):
            self.says_hello(device)

    def test_served_drives_twice(self):
        with tempfile.TemporaryDirectory() as folder:
            for flag, kind in (("--shm", "shm"), ("--vfio-user", "vfio-user")):
                with Served(folder, flag) as socket:
                    self.says_hello(f"{kind}:{socket}")
                    self.says_hello(f"{kind}:{socket}")

    def test_named_area_outlives_its_owner(self):
        with tempfile.TemporaryDirectory() as folder:
            for flag, kind in (("--shm", "shm"), ("--vfio-user", "vfio-user")):
                with Served(folder, flag) as socket:
                    owner = python(OWNER, f"{kind}:{socket}")
                    self.assertEqual((owner.returncode, owner.stderr), (-signal.SIGKILL, ""), kind)
                    heir = python(HEIR, f"{kind}:{socket}")
                    self.assertEqual((heir.stdout, heir.stderr), ("65536 True\n", ""), kind)

    def test_what_is_missing_is_named(self):
        for device, words in (("vfio-user:/nowhere/s", "/nowhere/s: No such file or directory"),
                              ("vfio:ffff:ff:1f.7", "ffff:ff:1f.7"),
                              ("vfio:nvme0", "0000:01:00.0"),
                              ("disk", "vfio-user:SOCKET")):
            ended = run(device)
            self.assertEqual((ended.returncode, ended.stdout), (1, ""), device)
            self.assertIn(words, ended.stderr, device)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
