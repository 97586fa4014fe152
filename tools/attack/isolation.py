"""Two processes on one drive, each with an extent: a hostile one beside one that verifies what it writes."""

import mmap
import os
import signal
import struct
import time
import traceback

from . import dcx, drive
from .cases import case
from .drive import Writer
from .errors import Gone, Hung, Refused
from .ledger import MAGIC, Ledger
from .memory import Memory
from .nvme import ACQ, AQA, ASQ, BASE, CC, CREATE_CQ, CREATE_SQ, DOORBELLS, READ, WRITE, Nvme
from .server import Server, die_with_parent
from .shm import Shm

BLOCKS = 16384
FROM = 4096
VICTIM_BASE = 7 << 32
CANARY = 1 << 20
WRITE_ZEROES, COMPARE, VERIFY, MANAGE, COPY, WRITE_UNCORRECTABLE = 8, 5, 12, 9, 0x19, 4
FORMAT, SANITIZE, NAMESPACES, ATTACH = 0x80, 0x84, 0x0d, 0x15
# What a read of the victim's blocks or memory would have in it.
SECRET = struct.pack("<I", MAGIC)


class Ledgers:
    """Counts that a child process makes and its parent reads."""

    NAMES = ("tried", "refused", "done", "stopped", "breached")

    def __init__(self):
        self.map = mmap.mmap(-1, 4096)
        self.words = memoryview(self.map).cast("Q")

    def add(self, name):
        self.words[self.NAMES.index(name)] += 1

    def get(self, name):
        return self.words[self.NAMES.index(name)]


class Hostile:
    """What the hostile client has: a connection, a drive, and counts. It knows all of the victim's numbers."""

    def __init__(self, connect, counts, rng, target):
        self.connect, self.counts, self.rng, self.target = connect, counts, rng, target
        self.again()

    def again(self):
        self.memory = Memory(4 << 20, BASE, sealed=True)
        self.function = self.connect(self.memory)
        self.drive = Nvme(self.function, self.memory)
        self.page = self.memory.base + self.memory.take(64 << 10)

    def look(self):
        """Whether the victim's data lie in this client's memory."""
        at = self.page - self.memory.base
        if SECRET in self.memory.map[at:at + (64 << 10)]:
            self.counts.add("breached")
        self.memory.map[at:at + (64 << 10)] = b"mallory\n" * (8 << 10)

    def io(self, opcode, lba=0, count=8, prp=None, namespace=1, words=None):
        """One command and its end. Most are refused; some name this client's own blocks."""
        queue = self.drive.queue
        prp = self.page if prp is None else prp
        dwords = words or (lba & 0xffff_ffff, lba >> 32 & 0xffff_ffff, count - 1, 0, 0, 0)
        self.counts.add("tried")
        number = queue.put(opcode, namespace, prp, 0, dwords)
        end = time.monotonic() + 30
        while time.monotonic() < end:
            for other, status, _ in queue.take():
                if other == number:
                    self.counts.add("refused" if status & 0x7ff else "done")
                    return status & 0x7ff
            self.function.check_alive()
        raise Hung(f"command {opcode:02x}h of the hostile client did not end")

    def admin(self, opcode, **keys):
        self.counts.add("tried")
        try:
            self.drive.command(opcode, patience=2.0, **keys)
            self.counts.add("done")
        except Refused:
            self.counts.add("refused")
        except Hung:
            # Its controller has stopped over an address: that is between it and the controller.
            self.counts.add("stopped")
            self.drive.bring_up()

    def lbas(self):
        """Past its extent, at its edge, and such that a sum with its first block wraps to the victim's."""
        mine = self.drive.blocks
        wraps = 2 ** 64 - FROM
        return [mine, mine - 4, mine + 1, 2 * mine, BLOCKS, 1 << 32, (1 << 32) - 4, 1 << 63, wraps, wraps + 8,
                wraps + self.rng.randrange(FROM), 2 ** 64 - 1, 2 ** 64 - 8]


def beyond(hostile):
    for lba in hostile.lbas():
        for opcode in (READ, WRITE, WRITE_ZEROES, COMPARE, VERIFY, WRITE_UNCORRECTABLE):
            hostile.io(opcode, lba)
            hostile.look()
        # One range of 8 blocks to deallocate, then to copy to the first of its own blocks.
        at = hostile.page - hostile.memory.base
        struct.pack_into("<IIQ", hostile.memory.map, at, 0, 8, lba)
        hostile.io(MANAGE, words=(0, 4, 0, 0, 0, 0))
        hostile.memory.map[at:at + 32] = struct.pack("<QQHHIII", 0, lba, 7, 0, 0, 0, 0)
        hostile.io(COPY, words=(0, 0, 0, 0, 0, 0))
        hostile.io(READ, 0)
        hostile.look()
    for namespace in (0, 2, 3, 0xffff_fffe, 0xffff_ffff):
        hostile.io(READ, 0, namespace=namespace)
        hostile.io(WRITE, 0, namespace=namespace)


def administer(hostile):
    """Commands of the whole drive."""
    hostile.admin(FORMAT, namespace=1)
    hostile.admin(FORMAT, namespace=0xffff_ffff, dwords=(1 << 9, 0, 0, 0, 0, 0))
    for action in (1, 2, 3, 4):
        hostile.admin(SANITIZE, dwords=(action, 0, 0, 0, 0, 0))
    hostile.admin(NAMESPACES, namespace=1, dwords=(1, 0, 0, 0, 0, 0))
    hostile.admin(NAMESPACES, prp1=hostile.page)
    for number in range(1, 5):
        hostile.admin(ATTACH, namespace=number, prp1=hostile.page)


def addresses(hostile):
    """The victim's memory as data, as lists of pages and as rings."""
    target = hostile.target
    places = [target, target + CANARY, target + (4 << 20) - 4096, target - 4096, 2 ** 64 - 4096, 0, 8]
    for prp in places:
        for opcode in (READ, WRITE, COMPARE):
            hostile.io(opcode, hostile.rng.randrange(64), prp=prp)
    hostile.io(READ, 0)
    hostile.look()
    for prp in places[:3]:
        hostile.drive.bring_up()
        hostile.admin(CREATE_CQ, prp1=prp, dwords=(2 | 31 << 16, 1, 0, 0, 0, 0))
        hostile.admin(CREATE_SQ, prp1=prp, dwords=(2 | 31 << 16, 1 | 2 << 16, 0, 0, 0, 0))
        hostile.function.ring(DOORBELLS + 2 * 2 * hostile.drive.stride, 3)
    # Its admin queue in the victim's memory.
    hostile.function.write32(CC, 0)
    for register in (ASQ, ACQ):
        hostile.drive._write64(register, target + CANARY)
    hostile.function.write32(AQA, 31 | 31 << 16)
    hostile.function.write32(CC, 1 | 6 << 16 | 4 << 20)
    hostile.function.ring(DOORBELLS, 5)
    hostile.counts.add("tried")
    time.sleep(0.05)
    hostile.drive.bring_up()


def queues(hostile):
    """Doorbells of queues that it did not make, and tails out of range."""
    for _ in range(200):
        at = DOORBELLS + hostile.drive.stride * hostile.rng.randrange(4, 64)
        if at < getattr(hostile.function, "register_bytes", 0x1100):
            hostile.function.ring(at, hostile.rng.randrange(1 << 32))
            hostile.counts.add("tried")
    hostile.io(READ, 0)


def flood(hostile):
    """A full queue of reads and writes, again and again, whose completions it does not take."""
    queue = hostile.drive.queue
    for _ in range(400):
        queue.take()
        while queue.under_way < queue.entries - 1:
            opcode = hostile.rng.choice((READ, WRITE, COMPARE, WRITE_ZEROES))
            lba = hostile.rng.choice((0, 8, hostile.drive.blocks, 2 ** 64 - FROM))
            queue.put(opcode, 1, hostile.page, 0, (lba & 0xffff_ffff, lba >> 32, 7, 0, 0, 0), ring=False)
            hostile.counts.add("tried")
        queue.ring()
        hostile.function.check_alive()


def vanishing(hostile):
    """Its memory is taken away under commands; the server lets it go."""
    queue = hostile.drive.queue
    for _ in range(20):
        queue.put(READ, 1, hostile.page, 0, (0, 0, 7, 0, 0, 0))
        hostile.counts.add("tried")
    hostile.memory.punch(0, hostile.memory.size)
    time.sleep(0.05)
    hostile.function.close()
    hostile.again()


def forged(hostile):
    """DC Express: versions of tags, slots, numbers, blocks and addresses that are not its own."""
    queue, target = dcx.Dcx(hostile.function, hostile.memory), hostile.target
    buffer = queue.buffer

    def look():
        if SECRET in hostile.memory.map[buffer:buffer + (64 << 10)]:
            hostile.counts.add("breached")
        hostile.memory.map[buffer:buffer + (64 << 10)] = b"mallory\n" * (8 << 10)

    def settle():
        for _, code in queue.settle():
            hostile.counts.add("refused" if code else "done")
        look()

    for commands, reports in ((target, None), (None, target + CANARY), (2 ** 64 - 64, None)):
        queue.open(commands, reports)
        time.sleep(0.01)
    queue.open()
    for lba in hostile.lbas():
        for tag in (0, 1, 2, hostile.rng.randrange(1 << 32)):
            queue.put(dcx.READ, lba, tag=tag, slot=hostile.rng.randrange(1 << 16))
            queue.put(dcx.WRITE, lba, slot=hostile.rng.randrange(1 << 16))
            hostile.counts.add("tried")
            settle()
    for address in (target, target + CANARY, 2 ** 64 - 4096, 0):
        queue.put(dcx.READ, 0, address=address)
        queue.put(dcx.WRITE, 8, address=address)
        hostile.counts.add("tried")
        settle()
    queue.put(dcx.READ, 8)
    settle()
    # Queues that there may not be, and a flood: the ring is full all the time, without a look at reports.
    for other in range(1, 32):
        if queue.group(other) + 0x20 < hostile.function.register_bytes:
            hostile.function.write32(queue.group(other) + 0x1c, 7)
    for _ in range(200):
        for _ in range(dcx.ENTRIES):
            queue.put(hostile.rng.choice((dcx.READ, dcx.WRITE)), hostile.rng.choice((0, hostile.drive.blocks)))
        hostile.counts.add("tried")
        hostile.function.check_alive()
        time.sleep(0.001)
    queue.open()


class Victim:
    """The client that behaves. Its memory has a canary behind what it uses."""

    def __init__(self, connect, interface):
        self.memory = Memory(4 << 20, VICTIM_BASE, sealed=True)
        self.used, self.function = CANARY + (3 << 20), connect(self.memory)
        self.drive = Nvme(self.function, self.memory, slots=16, slot_bytes=16 << 10)
        if interface == "dcx":
            self.dcx = dcx.Dcx(self.function, self.memory)
            self.dcx.open()
        else:
            self.dcx = None
        self.canary = self.memory.take(CANARY)
        self.memory.map[self.canary:self.canary + CANARY] = b"\xca" * CANARY

    def is_whole(self):
        return self.memory.map[self.canary:self.canary + CANARY] == b"\xca" * CANARY

    def verify(self, context, ledger):
        """Every block by NVMe; and some by DC Express, where it is spoken."""
        context.check(self.drive, ledger, newest=True)
        if self.dcx is None:
            return
        for lba in context.rng.sample(ledger.blocks(), 24):
            data = self.dcx.read(lba, self.drive.block_bytes)
            context.row.checked += 1
            for wrong in ledger.newest(lba, data):
                context.fail("lost", f"by DC Express: {wrong}")


def in_a_child(attack, connect, counts, rng, target):
    """Repeats an attack in a process of its own, until it is killed."""
    pid = os.fork()
    if pid:
        return pid
    die_with_parent()
    try:
        hostile = Hostile(connect, counts, rng, target)
        while True:
            attack(hostile)
    except (Hung, Gone, Refused) as error:
        os.write(2, f"{attack.__name__}: {error}\n".encode())
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def beside(context, victim, ledger, attack, connect):
    """The victim writes and verifies beside an attack, whose process is then killed in the middle."""
    counts = Ledgers()
    pid = in_a_child(attack, connect, counts, context.rng, VICTIM_BASE)
    writer = Writer(victim.drive, ledger, context.rng, FROM - 64)
    end, rounds = time.monotonic() + 60, 0
    # The victim gets on while the other does what it can: both are counted, no time is.
    while rounds < context.count(3, 30) or counts.get("tried") < context.count(100, 3000):
        writer.run(60)
        rounds += 1
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            context.fail("hung", f"{attack.__name__}: the hostile client was not served: status {status}")
            break
        if time.monotonic() > end:
            context.fail("hung", f"{attack.__name__}: {counts.get('tried')} tried in 60 s")
            break
    else:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    writer.settle(flush=True)
    for error in writer.errors[:3]:
        context.fail("wrong", f"{attack.__name__}: the other client: {error}")
    victim.verify(context, ledger)
    if not victim.is_whole():
        context.fail("lost", f"{attack.__name__}: the other client's memory was written")
    if counts.get("breached"):
        context.fail("lost", f"{attack.__name__}: {counts.get('breached')} reads had the other client's data")
    context.row.tried += counts.get("tried")
    context.note(f"{attack.__name__}: {counts.get('tried')} tried, {counts.get('refused')} refused, "
                 f"{counts.get('done')} done")
    return counts


ATTACKS = [beyond, administer, addresses, queues, flood, vanishing]


def isolated(interface, front_end, attacks):
    @case(f"isolation/{interface}/{front_end}",
          f"two clients with extents of one drive, one of them hostile, {interface} over {front_end}")
    def campaign(context):
        extents = [f"alice=0+{FROM}", f"mallory={FROM}+{FROM}"]
        server = Server(context.program, context.folder, "live", front_end, ["medium.capacity=8 MiB"],
                        sockets=2, clients=extents, interface=interface)

        def connect(number):
            if front_end == "shm":
                return lambda memory: Shm(server.paths[number], memory)
            return lambda memory: server.function(number)
        victim = Victim(connect(0), interface)
        if victim.drive.blocks != FROM:
            context.fail("wrong", f"a drive of {victim.drive.blocks} blocks, expected {FROM}")
        ledger = Ledger(victim.drive.block_bytes)
        for attack in attacks:
            beside(context, victim, ledger, attack, connect(1))
            server.expect_alive()
        said = f"client mallory: refused a command with LBA {FROM}, 8 blocks: expected blocks of its extent"
        if front_end == "shm" and said not in server.log().decode():
            context.fail("wrong", f"the server does not say: {said}")
        server.kill()


isolated("nvme", "shm", ATTACKS)
isolated("nvme", "vfio-user", [beyond, administer, addresses, queues, flood])
isolated("dcx", "shm", [*ATTACKS, forged])


@case("isolation/checker", "the same attack where both reach the whole drive: it must be seen")
def checker(context):
    server = Server(context.program, context.folder, "live", "shared", ["medium.capacity=8 MiB"], sockets=2)
    victim = Victim(lambda memory: server.function(0), "nvme")
    ledger = Ledger(victim.drive.block_bytes)
    writer = Writer(victim.drive, ledger, context.rng, FROM - 64)
    writer.run(200)
    writer.settle(flush=True)
    counts = Ledgers()
    hostile = Hostile(lambda memory: server.function(1), counts, context.rng, VICTIM_BASE)
    hostile.lbas = lambda: ledger.blocks()[:8]
    beyond(hostile)
    context.row.tried += counts.get("tried")
    wrong = drive.check_all(victim.drive, ledger, newest=True)
    if not wrong or not counts.get("breached"):
        context.fail("wrong", f"without extents: {len(wrong)} blocks lost, {counts.get('breached')} reads with data")
    server.kill()
