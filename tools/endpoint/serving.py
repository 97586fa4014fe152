"""An endpoint that serves, and the doorbell that drives it."""

import os
import subprocess
import tempfile
from pathlib import Path

from .build import ROOT
from .problem import Problem

# The words of the two programs for one thing.
INTERFACES = ("nvme", "dcx", "block")


def doorbell():
    """The program that drives it."""
    program = Path(os.environ.get("DOORBELL", ROOT / "target/debug/doorbell"))
    if not program.exists():
        raise Problem(f"{program} is not there: cargo build -p doorbell makes it, or name one by $DOORBELL")
    return program


class Endpoint:
    """A serving process, with a folder for its socket. It ends with the block that it is for."""

    def __init__(self, program, interface, *more, cores=None):
        """`cores`: which the driver is to have, and which the endpoint's own process."""
        self.command = [str(program), "--interface", interface, *more]
        self.cores = cores
        self.folder = tempfile.TemporaryDirectory(prefix="doorbell-gpu-")
        self.socket = str(Path(self.folder.name) / "socket")
        self.process = None

    def __enter__(self):
        command = [*self.pinned(1), self.command[0], self.socket, *self.command[1:]]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            self.name = self.line()
            self.expect("waiting for a client")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.folder.cleanup()

    def pinned(self, which):
        return ["taskset", "-c", str(self.cores[which])] if self.cores else []

    def line(self):
        """The next thing that it says, without its name."""
        said = self.process.stdout.readline()
        prefix = f"endpoint: {self.socket}: "
        if not said.startswith(prefix):
            raise Problem(f"{self.command[0]} has ended, or said {said!r}")
        return said[len(prefix):].rstrip("\n")

    def expect(self, words):
        said = self.line()
        if said != words:
            raise Problem(f"{self.command[0]} said {said!r}, {words!r} was expected")

    def run(self, job, interface, *more):
        """Runs a job file's text on it; gives what doorbell said."""
        path = Path(self.folder.name) / "job.fio"
        path.write_text(job, encoding="utf-8")
        command = [*self.pinned(0), str(doorbell()), "run", "--verbose", str(path), "--world", "live", "--interface", interface,
                   "--socket", self.socket, *more]
        said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=540)
        if said.returncode != 0 or said.stderr:
            raise Problem(f"{' '.join(command)}:\n{said.stdout}{said.stderr}")
        self.expect("client connected")
        self.expect("client disconnected")
        self.expect("waiting for a client")
        return said.stdout
