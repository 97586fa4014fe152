"""Our driver on a device that shares no code with ours: what was written is read, whatever happens between."""

import array
import os
import re
import socket
import subprocess

from .problem import Problem
from .serving import INTERFACES, Endpoint, doorbell

SETS = ("--set", "host.memory=192 MiB", "--set", "host.retries=100")

# Depth, operations, and controller resets that come under the work.
RUNS = ((1, 100, 0), (32, 600, 0), (8, 600, 10))


def mixed(depth, operations):
    """Reads and writes of all lengths, of a region so small that they meet."""
    return (f"[mixed]\nrw=randrw\nbssplit=512/50:4k/40:64k/8:1m/2\niodepth={depth}\nsize=8m\nio_size=1t\n"
            f"norandommap=1\nnumber_ios={operations}\nfsync=64\nverify=crc32c\n")


def verified(said):
    """The blocks that a run has verified."""
    found = re.search(r"^mixed: (\d+) blocks verified$", said, re.MULTILINE)
    if not found:
        raise Problem(f"no blocks were verified:\n{said}")
    return int(found[1])


def bad_greetings(endpoint):
    """Peers that do not speak the protocol, or whose memory could shrink under the device."""
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(endpoint.socket)
        peer.sendall(b"GET / HTTP/1.1\r\n\r\n 24 b")
    endpoint.expect("the peer's greeting is too short, or came without a memory descriptor")
    endpoint.expect("waiting for a client")
    unsealed = os.memfd_create("unsealed")
    os.ftruncate(unsealed, 1 << 20)
    greeting = b"DOOR" + b"".join(n.to_bytes(size, "little") for n, size in ((1, 4), (0, 8), (1 << 20, 8)))
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(endpoint.socket)
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [unsealed]))
        peer.sendmsg([greeting], [rights])
        endpoint.expect("the peer's memory is not sealed against shrinking (F_SEAL_SHRINK expected)")
    os.close(unsealed)
    endpoint.expect("waiting for a client")


def conforms(endpoint):
    """What it has of NVMe, against the specification, case by case; gives how many passed."""
    with Endpoint(endpoint, "nvme") as served:
        command = [str(doorbell()), "conformance", "--socket", served.socket, "--data", "erase"]
        said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=540)
        if said.returncode != 0:
            raise Problem(f"{' '.join(command)}:\n{said.stdout}{said.stderr}")
        return said.stdout.splitlines()[-1]


def all_faces(programs):
    """Every interface, at depth and under resets; then one host after another has been served by each."""
    endpoint, hostile, trials = programs
    if subprocess.run([str(hostile)], check=False).returncode != 0:
        raise Problem(f"{hostile} has found something")
    tried = subprocess.run([str(trials), "--rounds", "100"], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        raise Problem(f"{trials}: {tried.stderr}")
    print(conforms(endpoint), flush=True)
    for interface, *more in [*((interface,) for interface in INTERFACES), ("dcx", "--packets", "128")]:
        with Endpoint(endpoint, interface, *more) as served:
            bad_greetings(served)
            for depth, operations, resets in RUNS:
                said = served.run(mixed(depth, operations), interface, "--resets", str(resets), *SETS)
                note = f", {resets} resets asked for" if resets else ""
                print(f"{' '.join([interface, *more])}, depth {depth}: {verified(said)} blocks verified{note}", flush=True)
