"""A Linux guest with our SSD as /dev/nvme0, to a shell or a script of one's own.

    tools/linux-guest shell                          a shell; `exit` powers off
    tools/linux-guest shell --script FILE            runs it, and ends with its exit status
    tools/linux-guest shell --share FOLDER           the folder is /share inside
    tools/linux-guest shell --drives 2 --plan tlc    /dev/nvme0 and /dev/nvme1
    tools/linux-guest shell --client a=0+65536 --client b=65536+65536   tenants of one drive
    tools/linux-guest shell --self-test              boots, and checks all of this

nvme-cli, fio, and tools of ext4 and XFS are inside. The server's control socket is named at the start:
`doorbell ctl SOCKET ...` injects faults, cuts the power, and forks the drive while the guest runs.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from . import image, packages, programs
from .machine import Guest
from .problem import Problem

HERE = Path(__file__).resolve().parent
LISTENING_S = 30
SHARE_TAG = "share"


class Drives:
    """A server with one vfio-user socket for each drive or tenant, and a control socket."""

    def __init__(self, doorbell, place, log, options):
        count = len(options.client) or options.drives
        self.sockets = [place / f"ssd{number}" for number in range(count)]
        self.control, self.log = Path(options.control or place / "ctl").resolve(), log
        words = [doorbell, "serve", options.plan, "--control", self.control]
        for socket in self.sockets:
            words += ["--vfio-user", socket]
        for key in options.set:
            words += ["--set", key]
        for client in options.client:
            words += ["--client", client]
        with open(log, "wb") as file:
            self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        wait_for([*self.sockets, self.control], self.process, log)

    def devices(self):
        """QEMU's arguments for them."""
        words = []
        for number, socket in enumerate(self.sockets):
            device = {"driver": "vfio-user-pci", "id": f"ssd{number}",
                      "socket": {"path": str(socket), "type": "unix"}}
            words += ["-device", json.dumps(device)]
        return words

    def end(self):
        """An orderly stop: what was written is saved."""
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def wait_for(paths, process, log):
    """Waits until a program has made its sockets."""
    deadline = time.monotonic() + LISTENING_S
    while not all(path.exists() for path in paths):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise Problem(f"{log.name}: not listening:\n{log.read_text(errors='replace')}")
        time.sleep(0.05)


class Share:
    """virtiofsd for a folder of this machine, as its owner."""

    def __init__(self, tree, folder, place):
        self.socket, self.log = place / "share", place / "share.log"
        command = tree.command("usr/libexec/virtiofsd", "--shared-dir", folder, "--socket-path", self.socket,
                               "--sandbox", "none", "--log-level", "warn")
        with open(self.log, "wb") as file:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        wait_for([self.socket], self.process, self.log)

    def devices(self):
        """QEMU's arguments for it."""
        return ["-chardev", f"socket,id=share,path={self.socket}",
                "-device", f"vhost-user-fs-pci,chardev=share,tag={SHARE_TAG}"]

    def end(self):
        """It ends with its guest."""
        self.process.kill()
        self.process.wait()


def start(tree, options, place, interactive):
    """The guest and what it needs, in the order to end them."""
    doorbell = options.doorbell or programs.ROOT / "target/debug/doorbell"
    if options.doorbell is None:
        subprocess.run(["cargo", "build", "--locked", "--quiet", "-p", "doorbell", "--bin", "doorbell"],
                       cwd=programs.ROOT, check=True)
    inside = {f"guest/{path.name}": path.read_bytes() for path in (HERE / "inside").iterdir()}
    if options.script:
        inside["guest/own"] = Path(options.script).read_bytes()
    started = []
    try:
        drives = Drives(doorbell, place, place / "server.log", options)
        started.append(drives)
        devices = drives.devices()
        if options.share:
            share = Share(tree, Path(options.share).resolve(), place)
            started.append(share)
            devices += share.devices()
        guest = Guest(tree, image.base(tree, packages.cache()), image.overlay(inside), place, script="shell",
                      devices=devices, processors=options.processors, interactive=interactive)
    except BaseException:
        for one in reversed(started):
            one.end()
        raise
    return guest, drives, started


def follow(guest, say):
    """Passes on what a script says; its exit status."""
    status = None
    for line in guest.qemu.stdout:
        text = line.decode("utf-8", "replace").rstrip("\r\n")
        if text.startswith("exit "):
            status = int(text[5:])
        elif text != "done":
            say(text)
    if status is None:
        raise Problem(f"the guest has ended without the script's end:\n{guest.tail()}")
    return status


def run(options, say):
    """One guest, from its start to its end; the exit status."""
    tree = packages.fetch(say)
    place = Path(tempfile.mkdtemp(prefix="doorbell-"))
    try:
        guest, drives, started = start(tree, options, place, interactive=not options.script)
        try:
            say(f"control: doorbell ctl {drives.control} stats; log: {drives.log}")
            if options.script:
                return follow(guest, say)
            return guest.qemu.wait()
        finally:
            guest.kill()
            for one in reversed(started):
                one.end()
    finally:
        shutil.rmtree(place, ignore_errors=True)


# What the self-test runs inside. It ends with 7, which must be the exit status outside.
OWN = """
. /guest/lib
# Linux numbers drives in the order in which they are ready.
disk_of() { echo "/dev/$(ls -d /sys/bus/pci/devices/*/nvme/nvme* | sed -n "$1s,.*/,,p")n1"; }
check "both drives are there" within 20 test -b /dev/nvme0n1 -a -b /dev/nvme1n1
check "nvme-cli finds them" sh -c 'test "$(nvme list | grep -c ^/dev/nvme)" = 2'
check "fio verifies" fio --name=v --filename=/dev/nvme0n1 --direct=1 --rw=randwrite --bs=4k --size=1m --verify=crc32c
same "the folder is shared" "$(cat /share/hello)" "from outside"
echo "from inside" >/share/answer
check "a fault is injected meanwhile" within 60 test -e /share/injected
refuse "a write of the second drive fails" dd if=/dev/zero of="$(disk_of 2)" bs=4k count=1 oflag=direct
check "the first drive goes on" dd if=/dev/zero of="$(disk_of 1)" bs=4k count=1 oflag=direct
exit 7
"""


def self_test(options, say):
    """Boots two drives, a share and a script, and injects a fault from outside; whether all is as it should be."""
    folder = Path(tempfile.mkdtemp(prefix="doorbell-share-"))
    lines = []

    def hear(line):
        lines.append(line)
        say(line)

    def inject():
        while not (folder / "answer").exists():
            if folder.exists():
                time.sleep(0.1)
            else:
                return
        doorbell = options.doorbell or programs.ROOT / "target/debug/doorbell"
        fault = '{ name = "bad", what = "status", status = "Write Fault", command = "write", dnr = true }'
        sockets = json.loads(subprocess.run([doorbell, "ctl", options.control, "--json", "clients"],
                                            capture_output=True, text=True, check=True).stdout)["drives"]
        subprocess.run([doorbell, "ctl", options.control, "--drive", sockets[1]["drive"], "faults", "inject", fault],
                       check=True)
        (folder / "injected").touch()

    try:
        (folder / "hello").write_text("from outside\n")
        script = folder / "own"
        script.write_text(OWN)
        options.script, options.share, options.drives = script, folder, 2
        options.control = options.control or str(folder / "ctl")
        threading.Thread(target=inject, daemon=True).start()
        status = run(options, hear)
        answer = (folder / "answer").read_text() if (folder / "answer").exists() else "nothing"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    passed = [line for line in lines if line.startswith("ok ")]
    failed = [line for line in lines if line.startswith("not ok ")]
    for name, good in (("the exit status is the script's", status == 7), ("the answer is outside", answer == "from inside\n"),
                       ("every check was made", len(passed) + len(failed) == 7)):
        hear(f"ok {name}" if good else f"not ok {name}")
        (passed if good else failed).append(name)
    say(f"{len(passed)} passed, {len(failed)} failed")
    return not failed


def main(arguments, say):
    """The command line behind `shell`; the exit status."""
    parser = argparse.ArgumentParser(prog="tools/linux-guest shell", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", default="live", help="plan of the drive: live")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a key of the plan")
    parser.add_argument("--drives", type=int, default=1, metavar="N", help="drives, each of its own: 1")
    parser.add_argument("--client", action="append", default=[], metavar="NAME=FROM+BLOCKS",
                        help="a tenant of one drive, a drive of the guest; again for another")
    parser.add_argument("--share", metavar="FOLDER", help="a folder that is /share inside")
    parser.add_argument("--script", metavar="FILE", help="run this in place of a shell")
    parser.add_argument("--control", metavar="SOCKET", help="where the server's control socket is made")
    parser.add_argument("--processors", type=int, default=2, metavar="N", help="processors of the guest: 2")
    parser.add_argument("--doorbell", metavar="PATH", help="the program: target/debug/doorbell, built first")
    parser.add_argument("--self-test", action="store_true", help="boot, and check all of this")
    options = parser.parse_args(arguments)
    if options.self_test:
        return 0 if self_test(options, say) else 1
    if not options.script and not os.isatty(sys.stdin.fileno()):
        raise Problem("standard input is no terminal: expected --script FILE")
    return run(options, say)
