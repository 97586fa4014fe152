"""`doorbell serve` as a process of its own, with its log."""

import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from .problem import Problem

# A server listens after this long, in seconds, or something is wrong.
LISTENING_S = 30


class Server:
    """An SSD behind a vfio-user socket, its contents in an image file."""

    def __init__(self, doorbell, folder, image, *, plan="live", sets=()):
        # Not in the folder: a Unix socket's path has at most 107 bytes.
        self.place = Path(tempfile.mkdtemp(prefix="doorbell-"))
        self.socket = self.place / "ssd"
        self.log = folder / "server.log"
        words = [doorbell, "serve", plan, "--vfio-user", self.socket, "--set",
                 f"medium.file={image}"]
        for setting in sets:
            words += ["--set", setting]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(  # pylint: disable=consider-using-with
                words, stdout=log, stderr=log)
        deadline = time.monotonic() + LISTENING_S
        while not self.socket.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.end()
                raise Problem(f"the server does not listen:\n{self.said()}")
            time.sleep(0.05)

    def device(self, boots=False):
        """QEMU's arguments for it; `boots`: it is what the machine starts from."""
        socket = f'{{"path":"{self.socket}","type":"unix"}}'
        order = ',"bootindex":0' if boots else ""
        return ["-device", f'{{"driver":"vfio-user-pci","id":"ssd","socket":{socket}{order}}}']

    def said(self):
        """Its log."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def lives(self):
        """Whether it has not ended by itself."""
        return self.process.poll() is None

    def end(self):
        """Ends it without notice: what a host has flushed is in the image, whatever happens."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        shutil.rmtree(self.place, ignore_errors=True)
