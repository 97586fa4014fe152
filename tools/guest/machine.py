"""One start of the guest: QEMU, its disks, its two serial lines, and a bound on its time.

The kernel's console goes into a file. What the script inside says comes over the second line, a
verdict a line: `ok NAME`, `not ok NAME: WHY`, `# TEXT`, and `done` as the last. A guest that ends
without `done` has died, whatever it said before.
"""

import queue
import signal
import subprocess
import threading
import time
import unittest
from dataclasses import dataclass, field

# A guest is given this long for its orderly end once its script is done, in seconds.
POWER_OFF_S = 60
DIED = "the guest has died"


@dataclass
class Verdicts:
    """What a guest's script said."""

    passed: list = field(default_factory=list)
    failed: list = field(default_factory=list)
    notes: list = field(default_factory=list)
    done: bool = False

    def take(self, line):
        """One line from inside."""
        line = line.strip("\r\n")
        if line.startswith("ok "):
            self.passed.append(line[3:])
        elif line.startswith("not ok "):
            self.failed.append(line[7:])
        elif line == "done":
            self.done = True
        elif line.startswith("# "):
            self.notes.append(line[2:])
        return line


class Guest:
    """A guest that runs. If it is interactive, its second serial line is this terminal."""

    def __init__(self, tree, initial, overlay, folder, *, script, devices=(), iommu=False,
                 processors=2, interactive=False):
        self.console = folder / "console.log"
        self.said = Verdicts()
        archive = folder / "initial"
        archive.write_bytes(initial.read_bytes() + overlay)
        kernel, _ = tree.kernel()
        remapping = ",kernel-irqchip=split" if iommu else ""
        # Without KVM time is what a busy machine leaves of it: the kernel is not to judge its timers by
        # it. nvme-cli's show-regs maps registers that the driver has (iomem).
        words = [f"doorbell.script={script}", "console=ttyS0", "loglevel=4", "panic=-1",
                 "rdinit=/guest/init", "tsc=unstable", "no_timer_check",
                 "iomem=relaxed"]
        arguments = [
            "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
            "-L", tree.path / "usr/share/qemu", "-L", tree.path / "usr/share/seabios",
            "-machine", f"q35,accel=tcg{remapping},memory-backend=ram",
            # vfio-user hands its server the guest's memory: it must be a file that others can map.
            "-object", "memory-backend-memfd,id=ram,size=1G,share=on", "-m", "1G",
            "-cpu", "max", "-smp", processors,
            "-kernel", kernel, "-initrd", archive,
            "-serial", f"file:{self.console}",
            # Keys that are signals elsewhere go to the guest.
            "-chardev", "stdio,id=said,signal=off", "-serial", "chardev:said",
            "-device", "virtio-rng-pci",
        ]
        if iommu:
            words += ["intel_iommu=on", "iommu.strict=1"]
            arguments += ["-device", "intel-iommu,intremap=on,caching-mode=on"]
        arguments += [*devices, "-append", " ".join(words)]
        with open(folder / "qemu.log", "wb") as log:
            self.qemu = subprocess.Popen(  # pylint: disable=consider-using-with
                tree.command("usr/bin/qemu-system-x86_64", *arguments),
                stdin=None if interactive else subprocess.DEVNULL,
                stdout=None if interactive else subprocess.PIPE, stderr=log)
        self.lines = queue.SimpleQueue()
        if interactive or script == "shell":
            return
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.qemu.stdout:
            self.lines.put(line.decode("utf-8", "replace"))
        self.lines.put(None)

    def follow(self, seconds, say, until=None):
        """Takes verdicts until the guest is done or says the line `until`; False if it never did.

        A guest that takes longer than `seconds` is ended, and that is a failed check.
        """
        deadline = time.monotonic() + seconds
        while True:
            try:
                line = self.lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                self.said.failed.append(f"the guest was not done after {seconds} s")
                self.kill()
                return False
            if line is None:
                if not self.said.done:
                    self.said.failed.append(DIED)
                return until is None and self.said.done
            line = self.said.take(line)
            say(line)
            if until is not None and line == until:
                return True
            if self.said.done:
                self._wait_for_the_end()
                return until is None

    def _wait_for_the_end(self):
        try:
            self.qemu.wait(POWER_OFF_S)
        except subprocess.TimeoutExpired:
            self.said.failed.append(f"the guest did not power off within {POWER_OFF_S} s")
            self.kill()

    def kill(self):
        """Power off without notice."""
        if self.qemu.poll() is None:
            self.qemu.send_signal(signal.SIGKILL)
        self.qemu.wait()

    def tail(self, lines=20):
        """The end of what the kernel and QEMU said."""
        logs = [self.console, self.console.with_name("qemu.log")]
        texts = [log.read_text(encoding="utf-8", errors="replace") for log in logs if log.is_file()]
        return "\n".join(line for text in texts for line in text.splitlines()[-lines:])


class Tests(unittest.TestCase):
    """What counts as a verdict."""

    def test_lines_are_sorted_by_what_they_say(self):
        said = Verdicts()
        for line in ("ok a", "not ok b: why", "# c", "noise", "done\r\n"):
            said.take(line)
        self.assertEqual((said.passed, said.failed), (["a"], ["b: why"]))
        self.assertEqual((said.notes, said.done), (["c"], True))
