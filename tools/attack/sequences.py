"""Power cuts, kills, stops, resets, forks, full disks and power losses of the host, in any order of the seed.

What one of them leaves the next one finds: a campaign of kills alone or of cuts alone can't see that. In each
round there are writes under way, some events while the server goes on, 20 writes and a flush, and then the
end of the process; the next server has all that was flushed, and says so when it is asked to check its state.
"""

import os
import resource
import signal
import struct

from . import plans
from .cases import case
from .control import again, controlled
from .drive import Writer, flush
from .errors import Died, Gone, Hung, Refused
from .flips import state_tool
from .ledger import Ledger, copy_of
from .server import Server
from .stops import expect_stopped, take_late_answers

# Of the journal: the frame's magic, length of its records, number of the batch, last batch that is synced.
JOURNAL_HEADER_BYTES, FRAME_BYTES = 64, 48
FRAME = struct.Struct("<4sIQQ")

# What may happen while the server goes on, and how a process ends. Forks take a server of their own.
EVENTS = ["cut"] * 6 + ["reset"] * 2 + ["full"] * 2 + ["fork"]
ENDS = ["kill"] * 3 + ["stop", "host"]


def synced_bytes(data):
    """Where each frame of a journal ends, from the last synced one on: what a power loss may leave of it."""
    ends, synced, at = [JOURNAL_HEADER_BYTES], 0, JOURNAL_HEADER_BYTES
    while at + FRAME_BYTES <= len(data):
        magic, length, number, known = FRAME.unpack_from(data, at)
        if magic != b"bat\n" or number != len(ends) or at + FRAME_BYTES + length > len(data):
            break
        at += FRAME_BYTES + length
        ends.append(at)
        synced = max(synced, known)
    return ends[synced:] if synced < len(ends) else ends[-1:]


class Drive:
    """A drive over the lives of its servers."""

    def __init__(self, context, plan, front_end, sets):
        self.context, self.plan, self.front_end, self.sets = context, plan, front_end, sets
        self.path = context.path("contents")
        self.server = self.client = self.ledger = None
        self.lives, self.is_full, self.happened = 0, False, []

    def start(self, newest=False):
        """Starts a server, and checks all that is known."""
        self.lives, self.is_full, self.was_full = self.lives + 1, False, False
        self.server, self.rpc, _ = controlled(self.context, self.plan, self.front_end, self.sets,
                                              name=f"life{self.lives % 8}")
        self.client = self.server.client()
        self.ledger = self.ledger or Ledger(self.client.block_bytes, self.context.seed)
        self.check(newest)

    def check(self, newest=False, ledger=None):
        when = f"round {self.context.row.tried}, after {' '.join(self.happened[-8:])}: "
        good = self.context.check(self.client, ledger or self.ledger, newest=newest, when=when)
        self.server.expect_alive()
        return good

    def writer(self, durable=0.05):
        rng = self.context.rng
        return Writer(self.client, self.ledger, rng, self.client.blocks, most=16, durable=durable)

    def busy(self, answers=150):
        """A writer with requests under way."""
        writer = self.writer()
        writer.run(self.context.rng.randrange(1, answers))
        writer.fill()
        if writer.errors and not self.is_full:
            errors = writer.errors
            self.context.fail("wrong", f"{len(errors)} errors of a drive with room: {errors[0]}")
        return writer

    def happen(self, event):
        self.happened.append(event)
        getattr(self, event)()

    # While the server goes on.

    def cut(self):
        writer = self.busy()
        self.rpc.call("power.cut")
        take_late_answers(writer)
        self.client.close()
        # On a full disk what a cut has left is in memory alone.
        ledger = copy_of(self.ledger) if self.is_full else None
        # The limit would hold for the memory of the next device too.
        self.make_room()
        self.rpc.call("power.restore")
        self.client = again(self.server)
        self.check(ledger=ledger)
        if ledger:
            self.ledger.in_memory(ledger)

    def reset(self):
        """Of the controller, or of the function; by NBD a client that is replaced."""
        writer, client = self.busy(), self.client
        if self.front_end == "nbd":
            # Nothing of the old client is carried out later, beside writes of the new one.
            writer.settle()
            client.close()
            self.client = again(self.server)
            return
        if self.front_end != "shm" and self.context.rng.random() < 0.5:
            client.function.reset()
            client.function.write(7, 4, b"\6\0")
        client.disable()
        client.enable()
        client.create_queues()
        # What is found need not be durable.
        self.check(newest=True, ledger=copy_of(self.ledger))

    def full(self):
        """No file grows any more; perhaps there is room again, perhaps the next end comes first."""
        pid = self.server.process.pid
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        length = os.path.getsize(self.path + ".journal") + self.context.rng.randrange(0, 200_000)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (length, hard))
        self.is_full = self.was_full = True
        writer = self.writer()
        while writer.answers < 300 and len(writer.errors) < 5:
            writer.fill()
            writer.take()
        writer.settle()
        if self.context.rng.random() < 0.7:
            self.make_room()

    def make_room(self):
        _, hard = resource.prlimit(self.server.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self.server.process.pid, resource.RLIMIT_FSIZE, (hard, hard))
        self.is_full = False

    def fork(self):
        """A copy has all that was answered."""
        writer = self.writer()
        writer.run(20)
        writer.settle()
        copy = self.context.path(f"copy{self.lives}-{len(self.happened)}")
        try:
            self.rpc.call("fork", file=copy)
        except Refused as error:
            if not self.is_full and "files of pages" not in str(error):
                self.context.fail("wrong", f"fork: {error}")
            return
        sets = [one for one in self.sets if "medium.flash.state" not in one] + [f"medium.flash.state={copy}"]
        copied = Server(self.context.program, self.context.folder, self.plan, "nbd", sets, name="copy")
        try:
            self.context.check(copied.client(), copy_of(self.ledger), newest=True, when="the copy: ")
        finally:
            copied.kill()
        for ending in ("", ".journal", ".lock"):
            os.path.exists(copy + ending) and os.unlink(copy + ending)

    def few(self):
        """20 writes and a flush that is answered, perhaps with others under way."""
        if self.is_full:
            return
        writer = self.writer(durable=0.0)
        writer.run(20)
        writer.settle(flush=True)
        if writer.errors:
            self.context.fail("wrong", f"20 writes and a flush: {writer.errors[0]}")

    # How a process ends.

    def kill(self):
        writer = self.busy() if self.context.rng.random() < 0.5 else None
        self.server.kill()
        if writer:
            take_late_answers(writer)
        self.client.close()

    def stop(self):
        writer = self.busy()
        self.server.process.send_signal(signal.SIGTERM)
        take_late_answers(writer)
        self.client.close()
        # A full disk takes no state.
        expect_stopped(self.context, self.server, 1 if self.is_full else 0)

    def host(self):
        """The machine loses its power: what was not synced may be there, as far as any frame."""
        self.kill()
        with open(self.path + ".journal", "r+b") as journal:
            data = journal.read()
            # On a full disk a sync may succeed whose frame that says so has no room.
            ends = synced_bytes(data)[-1 if self.was_full else 0:]
            journal.truncate(self.context.rng.choice(ends + [ends[0]] * (len(ends) // 2)))

    def one_round(self):
        rng = self.context.rng
        for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
            self.happen(rng.choice(EVENTS))
        self.few()
        end = rng.choice(ENDS)
        is_newest = end == "stop" and not self.is_full
        self.happen(end)
        checked = state_tool(self.context, "check", self.path)
        try:
            self.start(newest=is_newest)
        except (Died, Gone, Hung) as error:
            words = "finds no damage" if checked[0] == 0 else "finds damage"
            happened = " ".join(self.happened[-8:])
            self.context.fail("lost", f"no start after {happened}, state check {words}: {error}")
            return False
        self.context.row.tried += 1
        return True


def campaign_of(context, plan, front_end, sets, rounds):
    sets = plans.keeping(plan, context.path("contents")) + list(sets)
    number = bad = 0
    while number < rounds:
        for name in os.listdir(context.folder):
            name.startswith("contents") and os.unlink(context.path(name))
        one = Drive(context, plan, front_end, sets)
        one.start()
        lost = context.row.lost
        try:
            # A drive that has lost something is not asked again.
            while number < rounds and context.row.lost == lost:
                number += 1
                if not one.one_round():
                    break
        finally:
            one.server.kill()
        bad += context.row.lost > lost
    context.note(f"{bad} of {number} rounds lost something")


TLC = ["medium.flash.blocks=64", "medium.flash.word_lines=4"]
RESIDENT = ["medium.resident=1 MiB"]


def sequences(plan, front_end, name="", sets=(), rounds=(6, 100)):
    @case(f"sequences/{plan}{name}/{front_end}",
          f"cuts, kills, stops, resets, forks, full disks, power losses: {plan}{name}, {front_end}")
    def campaign(context):
        campaign_of(context, plan, front_end, sets, context.count(*rounds))


for _front_end in ("nbd", "vfio-user", "shm"):
    sequences("small-flash", _front_end, rounds=(8, 134))
    sequences("small-flash", _front_end, "-resident", RESIDENT, rounds=(8, 134))
sequences("tlc", "nbd", "-small", TLC, rounds=(6, 100))
sequences("flash-closer", "nbd", rounds=(6, 96))
