"""A C program runs unchanged on every device: devices.py PROGRAM DOORBELL.

PROGRAM is examples/hello.c, built; DOORBELL the command that serves drives.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

PROGRAM, DOORBELL = (os.path.abspath(path) for path in sys.argv[1:3])


def run(device):
    return subprocess.run([PROGRAM], capture_output=True, text=True, timeout=120,
                          env={**os.environ, "FNVME_DEVICE": device})


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
