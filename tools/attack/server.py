"""A serving process: started, killed, and looked at from outside."""

import ctypes
import os
import re
import resource
import signal
import socket
import subprocess
import time

from .errors import Died, Hung
from .memory import Memory
from .nbd import Nbd
from .nvme import BASE, Nvme
from .shm import Shm
from .vfio_user import VfioUser, served

FRONT_ENDS = ["shm", "vfio-user", "shared", "nbd", "nbd-tcp"]
LIBC = ctypes.CDLL(None)
# Sockets of free_port.
RESERVED = []
# What a server prints when it listens and its drive's contents are open.
WAITING = re.compile(rb"waiting for a client")


def die_with_parent():
    """Whoever is killed leaves nothing running."""
    pr_set_pdeathsig = 1
    LIBC.prctl(pr_set_pdeathsig, signal.SIGKILL)


def free_port():
    """A TCP port of the loopback for a server. It stays bound here, so that nobody else gets it: who listens may
    bind it too."""
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    one.bind(("127.0.0.1", 0))
    RESERVED.append(one)
    return one.getsockname()[1]


def status(port, lines, body=b""):
    """The status of a request of these lines; none if the connection was closed without."""
    with socket.create_connection(("127.0.0.1", port), 20) as one:
        one.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        received = b""
        try:
            while some := one.recv(1 << 16):
                received += some
        except ConnectionResetError:
            pass
    return int(received.split()[1]) if received.startswith(b"HTTP/1.1 ") else None


class Server:
    """`doorbell serve PLAN` at one front end; `sets` are keys of the plan."""

    def __init__(self, program, folder, plan, front_end, sets=(), name="server", limits=None, start=True,
                 patience=60.0, umask=None, sockets=1, clients=(), interface=None, extra=()):
        self.folder, self.plan, self.front_end = folder, plan, front_end
        self.log_path = os.path.join(folder, f"{name}.log")
        self.paths = [os.path.join(folder, f"{name}{number or ''}.sock") for number in range(sockets)]
        self.address = self.paths[0]
        typed = [program, "serve", plan]
        if front_end in ("vfio-user", "shared"):
            for path in self.paths:
                typed += ["--vfio-user", path]
            typed += ["--shared"] if front_end == "shared" else []
        elif front_end == "nbd-tcp":
            self.address = ("127.0.0.1", free_port())
            typed += ["--nbd", "%s:%d" % self.address]
        else:
            for path in self.paths if clients else self.paths[:1]:
                typed += [f"--{front_end}", path]
        for client in clients:
            typed += ["--client", client]
        typed += ["--interface", interface] if interface else []
        for key_and_value in sets:
            typed += ["--set", key_and_value]
        typed += extra
        self.typed, self.limits, self.patience = typed, limits or {}, patience
        # Of each address that it listens at.
        self.waits = typed.count("--vfio-user") + typed.count("--shm") + typed.count("--nbd")
        self.umask, self.process = umask, None
        if start:
            self.start()

    def _prepare(self):
        """In the new process. SIGXFSZ stays ignored, as a limit on files is to be an error and no signal."""
        die_with_parent()
        for which, most in self.limits.items():
            _, hard = resource.getrlimit(which)
            resource.setrlimit(which, (most, hard))
        if self.umask is not None:
            os.umask(self.umask)

    def launch(self):
        """Starts it, and does not wait."""
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(self.typed, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            preexec_fn=self._prepare, restore_signals=False)

    def start(self):
        """Starts it, and waits until it listens. Raises Died with its words if it ends before."""
        begin = time.monotonic()
        self.launch()
        while len(WAITING.findall(self.log())) < self.waits:
            if self.process.poll() is not None:
                raise Died(self.how_it_ended())
            if time.monotonic() > begin + self.patience:
                self.kill()
                raise Hung(f"{self.front_end} of {self.plan} did not listen within {self.patience:.0f} s")
            time.sleep(0.005)
        self.start_s = time.monotonic() - begin

    def log(self):
        try:
            with open(self.log_path, "rb") as log:
                return log.read(1 << 20)
        except OSError:
            return b""

    def words(self):
        """What it said that is no routine."""
        text = self.log().decode(errors="replace").splitlines()
        lines = [line for line in text if not re.search(r"waiting for|client connected|client disconnected|vectors$", line)]
        return " | ".join(lines[-6:])[-600:] or "nothing said"

    def how_it_ended(self):
        return f"{self.front_end} of {self.plan} ended with {self.process.returncode}: {self.words()}"

    def is_alive(self):
        return self.process is not None and self.process.poll() is None

    def wait(self, patience):
        """Waits for its end: the exit code, or none."""
        try:
            return self.process.wait(patience)
        except subprocess.TimeoutExpired:
            return None

    def expect_alive(self):
        if not self.is_alive():
            raise Died(self.how_it_ended())
        if b"panicked" in self.log():
            raise Died(f"{self.front_end} of {self.plan} panicked: {self.words()}")

    def kill(self):
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()

    def client(self, patience=60.0, mapped=True, number=0, queues=1):
        """A drive, through this front end; over NVMe, with this number of I/O queues."""
        if self.front_end in ("nbd", "nbd-tcp"):
            return Nbd(self.address, patience)
        if self.front_end == "shm":
            memory = Memory(4 << 20, BASE, sealed=True)
            return Nvme(Shm(self.address, memory, patience), memory, queues=queues)
        return Nvme(served(self.paths[number], patience, self.expect_alive, mapped=mapped), queues=queues)

    def function(self, number=0, mapped=True, patience=60.0):
        """A PCI function that nobody has enabled."""
        return VfioUser(self.paths[number], patience, mapped=mapped)

    def maps(self):
        """How many mappings it has."""
        with open(f"/proc/{self.process.pid}/maps", "rb") as maps:
            return sum(1 for _ in maps)

    def written(self):
        """Bytes that it has handed to write calls (proc(5), io)."""
        with open(f"/proc/{self.process.pid}/io", encoding="ascii") as io:
            return int(re.search(r"wchar: (\d+)", io.read()).group(1))
