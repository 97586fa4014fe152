"""Hostile peers: what one client does takes nothing from the next, and the server lives."""

import fcntl
import os
import resource
import stat
import struct
import time

from . import drive, plans
from .cases import case
from .drive import Writer
from .errors import Gone, Hung, LeftOut, Refused
from .ledger import Ledger
from .memory import HUGE_BYTES, Memory
from .nbd import IHAVEOPT, Nbd, dial
from .nvme import BASE, Nvme
from .server import FRONT_ENDS, Server
from .shm import GREETING, Shm
from .vfio_user import send_message

# Of a server's log, whatever its clients do.
LOG_BYTES_MAX = 256 << 10
HUGE_PAGES = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
FREE_HUGE_PAGES = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages"


def good_client(context, server, what, patience=60.0, number=0):
    """A client that behaves is served: it writes and reads."""
    end, why = time.monotonic() + patience, None
    while time.monotonic() < end:
        server.expect_alive()
        try:
            client = server.client(max(1.0, end - time.monotonic()), number=number)
            data = os.urandom(client.block_bytes)
            drive.write(client, 3, data)
            if drive.read(client, 3, 1) != data:
                context.fail("lost", f"what was written after {what} is not read back")
            client.close()
            context.row.checked += 1
            return
        except (Gone, Refused) as error:
            why = error
            time.sleep(0.1)
    raise Hung(f"after {what} no client was served within {patience:.0f} s: {why}")


def serve(context, front_end, **keys):
    return Server(context.program, context.folder, "live", front_end, ["medium.capacity=64 MiB"], **keys)


def connect(server):
    """A connection that says nothing."""
    return dial(server.address, 30.0)


def silent(front_end, number):
    @case(f"peers/silent/{front_end}", f"{number} silent connections, then a good client, {front_end}")
    def campaign(context):
        server = serve(context, front_end)
        held = [connect(server) for _ in range(number)]
        context.row.tried += number
        good_client(context, server, f"{number} silent connections")
        for one in held:
            one.close()
        good_client(context, server, f"{number} silent connections that have gone")
        server.kill()


silent("nbd", 80)
silent("nbd-tcp", 80)
silent("shm", 16)
silent("vfio-user", 16)
silent("shared", 16)


def flood(front_end):
    @case(f"peers/descriptors/{front_end}", f"more connections than descriptors, {front_end}")
    def campaign(context):
        server = serve(context, front_end, limits={resource.RLIMIT_NOFILE: 48})
        held, pid = [], server.process.pid
        if front_end in ("shm", "vfio-user", "shared"):
            # These take one client at a time: already the first finds no descriptor.
            open_now = len(os.listdir(f"/proc/{pid}/fd"))
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (open_now, 48))
        for _ in range(context.count(120, 400)):
            try:
                held.append(dial(server.address, 0.2))
            except Gone:
                break
        context.row.tried += len(held)
        # What it says and does meanwhile, over some seconds.
        time.sleep(context.count(3, 20))
        size = os.path.getsize(server.log_path)
        if size > LOG_BYTES_MAX:
            context.fail("wrong", f"the server's log has {size} bytes")
        context.guarded(server.expect_alive)
        for one in held:
            one.close()
        if server.is_alive():
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (48, 48))
            good_client(context, server, "a flood of connections")
        context.note(f"{len(held)} connections, a log of {size} bytes")
        server.kill()


for _front_end in FRONT_ENDS:
    flood(_front_end)


def threads(front_end):
    @case(f"peers/threads/{front_end}", f"a server that can make no more threads, then can, {front_end}")
    def campaign(context):
        server = serve(context, front_end)
        pid = server.process.pid
        with open(f"/proc/{pid}/statm", encoding="ascii") as statm:
            used = int(statm.read().split()[0]) * 4096
        _, hard = resource.prlimit(pid, resource.RLIMIT_AS)
        resource.prlimit(pid, resource.RLIMIT_AS, (used + (1 << 20), hard))
        for _ in range(context.count(4, 100)):
            context.row.tried += 1
            try:
                server.client(1.0).close()
            except (Gone, Hung, Refused, OSError):
                pass
        resource.prlimit(pid, resource.RLIMIT_AS, (hard, hard))
        context.guarded(server.expect_alive)
        if server.is_alive():
            good_client(context, server, "a time without threads")
        server.kill()


for _front_end in FRONT_ENDS:
    threads(_front_end)


@case("peers/modes", "sockets, images, states and journals are their owner's alone, whatever the umask")
def modes(context):
    for front_end in ("shm", "vfio-user", "shared", "nbd"):
        for plan in ("live", "small-flash"):
            path = context.path(f"{plan}-{front_end}")
            server = Server(context.program, context.folder, plan, front_end, plans.keeping(plan, path),
                            umask=0, name=f"{plan}-{front_end}-server")
            client = server.client()
            made = [server.address, path] + ([path + ".journal"] if plan == "small-flash" else [])
            for one in made:
                context.row.tried += 1
                mode = stat.S_IMODE(os.stat(one).st_mode)
                if mode & 0o077:
                    context.fail("wrong", f"{os.path.basename(one)} has mode {mode:o}, expected 600")
            client.close()
            server.kill()


def garbage(front_end):
    @case(f"peers/garbage/{front_end}", f"messages of no sense, then a good client, {front_end}")
    def campaign(context):
        server, rng = serve(context, front_end), context.rng
        for number in range(context.count(60, 3000)):
            context.row.tried += 1
            try:
                # Much of it silence: the server waits for the rest, and others are not to.
                one = dial(server.address, 2.0)
                say_garbage(server, one, rng)
                one.close()
            except (Gone, Hung, OSError):
                pass
            server.expect_alive()
            if number % 20 == 19:
                good_client(context, server, "messages of no sense")
        if b"panicked" in server.log():
            context.fail("died", server.words())
        server.kill()


def say_garbage(server, one, rng):
    """Some bytes: random, or a message whose header is good."""
    data = rng.randbytes(rng.choice([1, 15, 16, 24, 100, 5000]))
    fds = []
    if server.front_end == "shm" and rng.random() < 0.7:
        base = rng.choice([0, BASE, 1 << 63, 2**64 - 4096])
        size = rng.choice([0, 1, 4096, 1 << 40, 2**64 - 4096])
        data = GREETING.pack(b"DOOR", rng.choice([0, 1, 2]), base, size)
        fds = [os.memfd_create("garbage", os.MFD_ALLOW_SEALING)] if rng.random() < 0.8 else []
    elif server.front_end in ("vfio-user", "shared") and rng.random() < 0.8:
        said = rng.choice([b"{}\0", b"[" * 5000, b"{\"capabilities\":7}\0", b""])
        version = struct.pack("<HH", 0, 1) + said
        data = struct.pack("<HHIII", 1, 1, 16 + len(version), 0, 0) + version
        for _ in range(rng.randrange(0, 8)):
            payload = rng.randbytes(rng.choice([0, 4, 16, 20, 24, 32, 40]))
            length = 16 + len(payload) if rng.random() < 0.8 else rng.getrandbits(32)
            data += struct.pack("<HHIII", rng.getrandbits(16), rng.randrange(0, 16), length,
                                rng.choice([0, 1, 0x10, 0x21]), 0) + payload
        fds = [0] if rng.random() < 0.2 else []
    elif server.front_end in ("nbd", "nbd-tcp") and rng.random() < 0.8:
        data = struct.pack(">I", 3) + rng.choice([
            struct.pack(">QII", IHAVEOPT, rng.randrange(0, 12), rng.choice([0, 4, 1 << 20, 2**32 - 1])),
            struct.pack(">QIIIHQ", IHAVEOPT, 7, 6, 0, 0, rng.getrandbits(64)),
            struct.pack(">QII", IHAVEOPT, 1, 0) + rng.randbytes(28 * rng.randrange(0, 4))])
    send_message(one, data, fds)
    for fd in fds:
        if fd > 2:
            os.close(fd)
    if rng.random() < 0.3:
        one.recv(4096)


for _front_end in FRONT_ENDS:
    garbage(_front_end)


@case("peers/beside", "a good client beside connections of no sense, nbd: it loses nothing")
def beside(context):
    server, rng = serve(context, "nbd"), context.rng
    client = server.client()
    ledger = Ledger(client.block_bytes, context.seed)
    writer = Writer(client, ledger, rng, 1024)
    for _ in range(context.count(40, 1000)):
        context.row.tried += 1
        one = dial(server.address, 5.0)
        try:
            say_garbage(server, one, rng)
        except (Gone, Hung, OSError):
            pass
        writer.run(10)
        one.close()
    writer.settle()
    if writer.errors:
        context.fail("wrong", writer.errors[0])
    context.check(client, ledger, newest=True)
    server.kill()


def mappings(front_end, long_only=False):
    @case(f"peers/mappings/{front_end}", f"70,000 mappings of one client, then others, {front_end}",
          long_only)
    def campaign(context):
        server = serve(context, front_end, sockets=2)
        before = server.maps()
        greedy = server.function()
        memory = Memory(4096, BASE)
        refused, made = None, 0
        # Many requests under way: the answers are counted.
        total = context.count(70_000, 70_000)
        try:
            for first in range(0, total, 100):
                numbers = []
                for page in range(first, first + 100):
                    payload = struct.pack("<IIQQQ", 32, 3, 0, BASE + page * 8192, 4096)
                    numbers.append(greedy.send(2, payload, [memory.fd]))
                for number in numbers:
                    try:
                        greedy.reply(number)
                        made += 1
                    except Refused as error:
                        refused = str(error)
                context.row.tried += 100
        except Gone as error:
            refused = f"let go: {error}"
        context.note(f"{made} mappings, then {refused}")
        server.expect_alive()
        good_client(context, server, "70,000 mappings at the other socket", number=1)
        greedy.close()
        good_client(context, server, "70,000 mappings of a client that has gone")
        good_client(context, server, "70,000 mappings of a client that has gone", number=1)
        end = time.monotonic() + 30
        while server.maps() > before + 200 and time.monotonic() < end:
            time.sleep(0.1)
        if server.maps() > before + 200:
            context.fail("wrong", f"{server.maps()} mappings are left of {before} before: they leak")
        server.kill()


mappings("vfio-user")
mappings("shared", long_only=True)


def leaks(front_end):
    @case(f"peers/leaks/{front_end}", f"mappings and descriptors of clients that have gone, {front_end}")
    def campaign(context):
        server = serve(context, front_end)

        def held():
            return server.maps(), len(os.listdir(f"/proc/{server.process.pid}/fd"))
        # Stacks and heaps of threads are kept for the next ones.
        for _ in range(30):
            server.client().close()
        before, clients = held(), context.count(100, 1000)
        for _ in range(clients):
            context.row.tried += 1
            server.client().close()
        end = time.monotonic() + 10
        while any(now > then + clients // 2 for now, then in zip(held(), before)) and time.monotonic() < end:
            time.sleep(0.1)
        for now, then, what in zip(held(), before, ("mappings", "descriptors")):
            if now > then + clients // 2:
                context.fail("wrong", f"{now} {what} after {clients} clients, {then} before")
        good_client(context, server, "many clients")
        server.kill()


for _front_end in FRONT_ENDS:
    leaks(_front_end)


class HugePages:
    """Pages of 2 MiB in the kernel's pool, and the pool as it was afterwards. One case at a time."""

    def __init__(self, context, number):
        self.lock = open(os.path.join(os.path.dirname(context.folder), "huge-pages"), "w", encoding="ascii")
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        try:
            with open(HUGE_PAGES, encoding="ascii") as file:
                self.before = int(file.read())
            with open(FREE_HUGE_PAGES, encoding="ascii") as file:
                free = int(file.read())
        except OSError as error:
            raise LeftOut(f"this kernel has no huge pages: {error}") from error
        if free != self.before:
            raise LeftOut(f"another program has {self.before - free} huge pages, and the pool is to be emptied")
        self.set(self.before + number)
        with open(HUGE_PAGES, encoding="ascii") as file:
            if int(file.read()) < self.before + number:
                self.close()
                raise LeftOut("the kernel gives no huge pages")

    def set(self, number):
        try:
            with open(HUGE_PAGES, "w", encoding="ascii") as file:
                file.write(str(number))
        except OSError as error:
            raise LeftOut(f"huge pages cannot be set aside: {error}") from error

    def close(self):
        self.set(self.before)
        self.lock.close()


def take_away(context, server, nvme, memory, how):
    """Takes the memory behind commands away, with a command under way in it."""
    for _ in range(8):
        nvme.submit_read(context.rng.randrange(0, 64), 8)
    how(memory)
    context.row.tried += 1
    try:
        for _ in range(8):
            nvme.function.ring(0x1000 + 2 * nvme.stride, context.rng.randrange(0, 60))
            time.sleep(0.01)
        nvme.function.check_alive()
    except (Gone, Hung):
        pass
    time.sleep(0.2)
    server.expect_alive()


def sigbus(front_end, huge, how_named):
    pages = "huge pages" if huge else "pages"

    @case(f"peers/sigbus/{front_end}-{how_named}{'-huge' if huge else ''}",
          f"memory of {pages} that is taken away under I/O ({how_named}), {front_end}")
    def campaign(context):
        pool = HugePages(context, 12) if huge else None
        try:
            server = serve(context, front_end)
            for _ in range(context.count(3, 50)):
                size = 4 * HUGE_BYTES if huge else 8 << 20
                memory = Memory(size, BASE, sealed=front_end == "shm", huge=huge)
                nvme = Nvme(Shm(server.address, memory) if front_end == "shm" else server.function(), memory)
                drive.write(nvme, 0, bytes(nvme.block_bytes))

                def how(memory):
                    if how_named == "truncated":
                        os.ftruncate(memory.fd, 0)
                    else:
                        memory.punch(0, size)
                        if pool:
                            # No page is left to fill the hole with.
                            pool.set(0)
                take_away(context, server, nvme, memory, how)
                # Our own mapping of it must not be touched any more.
                nvme.function.socket.close()
                if pool:
                    os.close(memory.fd)
                    memory.words.release()
                    memory.map.close()
                    pool.set(pool.before + 12)
                good_client(context, server, "memory that was taken away")
            server.kill()
        finally:
            if pool:
                pool.close()


sigbus("vfio-user", False, "truncated")
sigbus("shared", False, "truncated")
sigbus("vfio-user", False, "punched")
sigbus("shm", False, "punched")
sigbus("vfio-user", True, "truncated")
sigbus("vfio-user", True, "punched")
sigbus("shm", True, "punched")


@case("peers/stopped-readers", "clients that ask for much and read no answer, nbd, then a good one")
def stopped_readers(context):
    server, held = serve(context, "nbd"), []
    for _ in range(context.count(8, 60)):
        context.row.tried += 1
        client = Nbd(server.address)
        client.socket.settimeout(0.5)
        try:
            for _ in range(200):
                client.submit_read(0, 2048)
        except (Hung, Gone):
            pass
        held.append(client)
    good_client(context, server, "clients that read no answers")
    server.kill()
