"""What changes or is copied of a running drive: forks, wear, breakdowns, shared drives, crowds at the control socket."""

import json
import os
import random
import socket
import struct
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from . import drive
from .cases import case
from .control import Rpc, controlled, expect, expect_refused
from .drive import Writer
from .errors import Gone, Refused
from .ledger import Ledger
from .server import Server

STAMP = struct.Struct("<QQ")


class Sequence:
    """Writes one block after another, each with the number of its write: what is on a drive at any moment follows
    from the number of the last."""

    def __init__(self, client, lbas, seed):
        self.client, self.lbas, self.rng = client, lbas, random.Random(seed)
        self.written, self.longest_s = [], 0.0

    def one(self):
        lba = self.rng.choice(self.lbas)
        begin = time.monotonic()
        drive.write(self.client, lba, STAMP.pack(len(self.written) + 1, lba) * (self.client.block_bytes // 16))
        self.longest_s = max(self.longest_s, time.monotonic() - begin)
        self.written.append(lba)

    def until(self, stop):
        while not stop.is_set():
            self.one()

    def wrong(self, read, least):
        """What is wrong with a copy in which `read` finds blocks: it must be that of one moment, not before `least`."""
        found = {}
        for lba in self.lbas:
            data = read(lba)
            number, of = STAMP.unpack_from(data)
            if data != data[:16] * (len(data) // 16) or (number and of != lba):
                return f"block {lba}: unknown bytes"
            found[lba] = number
        last = max(found.values())
        if last < least:
            return f"the last write is {last}, expected at least {least}"
        expected = dict.fromkeys(self.lbas, 0)
        for number, lba in enumerate(self.written[:last], 1):
            expected[lba] = number
        bad = [lba for lba in self.lbas if found[lba] != expected[lba]]
        if bad:
            return (f"{len(bad)} blocks are not those of write {last}: block {bad[0]} has {found[bad[0]]}, "
                    f"expected {expected[bad[0]]}")
        return None


@case("control/fork", "fork of a 512 GiB drive under writes: the copy is that of one moment, commands wait under 1 s")
def fork(context):
    sets = ["medium.capacity=512 GiB"]
    server, rpc, path = controlled(context, "live", "nbd", sets)
    try:
        client = server.client()
        spread = random.Random(context.seed).sample(range(client.blocks // 128), 200)
        sequence = Sequence(client, [place * 128 + place % 128 for place in spread], context.seed)
        for _ in range(600):
            sequence.one()
        # What a copy takes time for.
        other = server.client()
        for number in range(48):
            drive.write(other, client.blocks // 2 + number * 4096, os.urandom(1 << 20))
        stop = threading.Event()
        load = threading.Thread(target=sequence.until, args=(stop,))
        load.start()
        for number in range(context.count(3, 20)):
            sequence.longest_s, least = 0.0, len(sequence.written)
            copy = context.path(f"copy{number}")
            words = [context.program, "ctl", path, "--json", "fork", f"copy{number}"]
            done = subprocess.run(words, cwd=context.folder, capture_output=True, text=True, timeout=120)
            context.row.tried += 1
            if done.returncode != 0:
                context.fail("wrong", f"fork: {done.stderr}")
                break
            answer = json.loads(done.stdout)
            context.note(f"fork: {answer['done']}; longest write {sequence.longest_s * 1e3:.0f} ms")
            if not answer["pause_ms"] < 1000:
                context.fail("wrong", f"commands waited for {answer['pause_ms']} ms, expected less than 1000")
            expect(context, os.path.getsize(copy), client.blocks * client.block_bytes, "length of the copy")
            with open(copy, "rb") as image:
                def read(lba):
                    image.seek(lba * client.block_bytes)
                    return image.read(client.block_bytes)
                if wrong := sequence.wrong(read, least):
                    context.fail("lost", f"copy {number}: {wrong}")
            context.row.checked += len(sequence.lbas)
        stop.set()
        load.join()
        expect_refused(context, "exists", rpc.call, "fork", file=context.path("copy0"))
        expect_refused(context, "absolute", rpc.call, "fork", file="copy")
        expect_refused(context, "file", rpc.call, "fork")
        expect_refused(context, "No such file", rpc.call, "fork", file=context.path("none/copy"))
        rpc.call("pause")
        expect_refused(context, "paused", rpc.call, "fork", file=context.path("late"))
        expect_refused(context, "paused", rpc.call, "save")
        rpc.call("resume")
        expect(context, sorted(os.listdir(context.folder)) == sorted(
            name for name in os.listdir(context.folder) if not name.endswith(".new")), True, "nothing half-made is left")
        # The drive goes on, and the copy is a drive of its own.
        expect(context, sequence.wrong(lambda lba: drive.read(client, lba, 1), len(sequence.written)), None, "the drive")
        copied = Server(context.program, context.folder, "live", "nbd", [*sets, f"medium.file={context.path('copy0')}"],
                        name="copied")
        try:
            reader = copied.client()
            expect(context, sequence.wrong(lambda lba: drive.read(reader, lba, 1), 600), None, "the copy, served")
        finally:
            copied.kill()
    finally:
        server.kill()


class Everything(Ledger):
    """Knows every version that was ever written."""

    def __init__(self, block_bytes, seed):
        super().__init__(block_bytes, seed)
        self.written = {}

    def write(self, lba, count):
        data, token = super().write(lba, count)
        for block, entry in enumerate(token, lba):
            self.written.setdefault(block, [0]).append(entry[0])
        return data, token

    def since(self, floors):
        """A ledger of what may be found: of each block a version not before its floor."""
        one = Ledger(self.block_bytes)
        one.versions = {block: [[version, True] for version in written if version >= floors.get(block, 0)]
                        for block, written in self.written.items()}
        return one


@case("control/fork/flash", "fork of flash under writes, over NBD and vfio-user: the copy has what was answered before")
def fork_flash(context):
    sets = ["medium.keep=everything", "medium.pace=modelled"]
    for front_end in ("nbd", "vfio-user"):
        server, rpc, path = controlled(context, "small-flash", front_end, sets, name=front_end)
        try:
            if front_end == "vfio-user":
                expect_refused(context, "off", rpc.call, "fork", file=context.path("off"))
            client = server.client()
            ledger = Everything(client.block_bytes, context.seed)
            writer = Writer(client, ledger, context.rng, 2048)
            writer.run(context.count(300, 3000))
            answers = {}

            def ask():
                answers.update(Rpc(path).call("fork", file=context.path(f"{front_end}-state")))

            # What was answered by now, flushed or not.
            floors = {block: next(version for version, answered in reversed(versions) if answered)
                      for block, versions in ledger.versions.items()}
            asking = threading.Thread(target=ask)
            asking.start()
            while asking.is_alive():
                writer.run(1)
            writer.settle()
            asking.join()
            context.row.tried += 1
            context.note(f"{front_end}: paused for {answers.get('pause_ms')} ms")
            if not answers.get("pause_ms", 1e9) < 1000:
                context.fail("wrong", f"{front_end}: {answers}")
                continue
            copied = Server(context.program, context.folder, "small-flash", "nbd",
                            [*sets, f"medium.flash.state={context.path(f'{front_end}-state')}"], name=f"{front_end}-copy")
            try:
                context.check(copied.client(), ledger.since(floors), when=f"{front_end}: the copy: ")
            finally:
                copied.kill()
            context.check(client, ledger, newest=True, when=f"{front_end}: the drive: ")
        finally:
            server.kill()


@case("control/wear", "wear by years and cycles: counts of each die, and reads that fail, never wrong data")
def wear(context):
    sets = ["medium.keep=everything", "medium.flash.errors=profile"]
    server, rpc, path = controlled(context, "small-flash", "nbd", sets)
    try:
        client = server.client()
        blocks = {lba: bytes([lba % 251 + 1]) * 4096 for lba in range(0, 1024, 8)}
        for lba, data in blocks.items():
            drive.write(client, lba, data)
        drive.flush(client)
        def failed():
            count = 0
            for lba, data in blocks.items():
                try:
                    expect(context, drive.read(client, lba, 8) == data, True, f"block {lba}")
                except Refused:
                    count += 1
            return count

        def cycles():
            return [die["cycles_mean"] for die in rpc.call("stats")["drives"][0]["dies"]]

        new, fresh = cycles(), failed()
        expect(context, fresh, 0, "reads that fail on a new drive")
        done = subprocess.run([context.program, "ctl", path, "wear", "0", "1000"], capture_output=True, text=True)
        expect(context, done.returncode, 0, f"ctl wear: {done.stderr}")
        expect(context, cycles(), [of + 1000 for of in new], "cycles of each die")
        rpc.call("wear", years=5)
        rated = cycles()[0] - new[0] - 1000
        context.note(f"5 years are {rated} cycles")
        if not 1000 <= rated <= 100_000:
            context.fail("wrong", f"5 years are {rated} cycles, expected those that TLC is rated for")
        rpc.call("wear", years="100", cycles="100000")
        worn = failed()
        context.note(f"{worn} of {len(blocks)} reads fail after 105 years and {cycles()[0]} cycles")
        if worn == 0:
            context.fail("wrong", "no read fails on a drive that is worn out")
        for years in ("-1", "1.5", "101", "many", None, [], 2**40):
            expect_refused(context, "expected a whole number", rpc.call, "wear", years=years)
        expect_refused(context, "expected a whole number", rpc.call, "wear")
        expect_refused(context, "expected a whole number", rpc.call, "wear", years=1, cycles="x")
        rpc.call("power.cut")
        expect_refused(context, "off", rpc.call, "wear", years=1)
    finally:
        server.kill()
    server, rpc, _ = controlled(context, "live", "nbd", name="dram")
    try:
        expect_refused(context, "expected flash", rpc.call, "wear", years=1)
    finally:
        server.kill()


@case("control/breakdown", "latency breakdown: a stage that is made slow has the time")
def breakdown(context):
    server, rpc, path = controlled(context, "live", "nbd", ["medium.pace=modelled", "medium.timing.first_byte=5 ms"])
    try:
        client, end = server.client(), time.monotonic() + 30.0
        while time.monotonic() < end:
            tags = {client.submit_read(lba, 1) for lba in range(0, 32 * 4096, 4096)}
            while tags:
                tags -= {tag for tag, _, _ in client.poll(1.0)}
            stages = {stage["stage"]: stage["us"] for stage in rpc.commands()["read"]["stages_us"]}
            if stages:
                break
        context.row.tried += 1
        of_medium = stages.get("media", 0) + stages.get("media wait", 0)
        context.note(", ".join(f"{stage} {us:.0f} us" for stage, us in stages.items()))
        # The model is a lower bound of the time.
        if of_medium < 5000 or of_medium < 0.5 * sum(stages.values()):
            context.fail("wrong", f"the medium has {of_medium:.0f} us of {stages}, expected at least 5 ms and the most")
        done = subprocess.run([context.program, "ctl", path, "stats"], capture_output=True, text=True)
        expect(context, "read us: media" in done.stdout, True, f"the breakdown of ctl stats: {done.stdout}")
    finally:
        server.kill()


@case("control/concurrent", "control clients that inject faults and read counts at the same time: each fault is there")
def concurrent(context):
    clients, each = 4, 15
    server, rpc, path = controlled(context, "live", "nbd")

    def inject(number):
        own = Rpc(path)
        for nth in range(each):
            fault = f'{{ name = "{number}-{nth}", what = "delay", span = "1 us", command = "flush" }}'
            own.call("faults.inject", fault=fault)
            own.call("stats")

    try:
        with ThreadPoolExecutor(clients) as pool:
            for done in [pool.submit(inject, number) for number in range(clients)]:
                done.result()
        found = {fault["name"] for fault in rpc.call("faults.list")["drives"][0]["faults"]}
        expect(context, found, {f"{number}-{nth}" for number in range(clients) for nth in range(each)}, "faults")
    finally:
        server.kill()


@case("control/shared", "hosts that share a drive, and clients with extents: counts of each, and faults of one host alone")
def shared(context):
    server = Server(context.program, context.folder, "live", "shared", sockets=2,
                    extra=["--control", context.path("ctl")])
    rpc = Rpc(context.path("ctl"))
    try:
        one, two = (server.client(number=number) for number in range(2))
        block = b"s" * one.block_bytes
        for lba in range(5):
            drive.write(one, lba, block)
        drive.read(two, 0, 1)

        def counts(of):
            return [drive["commands"][kind]["commands"] for drive in of for kind in ("write", "read")]

        expect(context, counts(rpc.call("stats")["drives"]), [5, 0, 0, 1], "commands of each host")
        fault = '{ name = "bad", what = "status", status = "Write Fault", command = "write", times = 1 }'
        expect_refused(context, "drive: found none", rpc.call, "faults.inject", fault=fault)
        rpc.call("faults.inject", fault=fault, drive=server.paths[1])
        drive.write(one, 1, block)
        expect_refused(context, "", drive.write, two, 1, block)
        drive.write(two, 1, block)
        injected = [drive["faults"] for drive in rpc.call("faults.list")["drives"]]
        expect(context, injected, [[], [{"name": "bad", "what": "status", "injected": 1}]], "faults of each host")
        expect(context, [drive["commands"]["write"]["errors"] for drive in rpc.call("stats")["drives"]], [0, 1], "errors")
        rpc.call("faults.clear", drive=server.paths[1])
        for method, more in (("power.cut", {}), ("pause", {}), ("save", {}), ("fork", {"file": "/nowhere"}),
                             ("wear", {"years": 1})):
            expect_refused(context, "do not share", rpc.call, method, drive=server.paths[0], **more)
        # What a host counted outlives its session.
        one.close()
        again = server.client()
        drive.write(again, 9, block)
        expect(context, counts(rpc.call("stats")["drives"])[0], 7, "commands over two sessions")
    finally:
        server.kill()
    for front_end in ("shm", "vfio-user"):
        path = context.path(f"{front_end}.ctl")
        server = Server(context.program, context.folder, "live", front_end, name=front_end, sockets=2,
                        clients=("alice=0+1024", "bob=1024+1024"), extra=["--control", path])
        try:
            rpc = Rpc(path)
            alice = server.client() if front_end == "vfio-user" else None
            if alice is not None:
                for lba in range(3):
                    drive.write(alice, lba, b"a" * alice.block_bytes)
                expect(context, counts(rpc.call("stats")["drives"]), [3, 0, 0, 0], "commands of each client")
            expect_refused(context, "do not share", rpc.call, "faults.inject", fault=fault, drive=server.paths[0])
        finally:
            server.kill()


@case("control/crowd", "one client more than the control socket has places for: the oldest leaves, the others are answered")
def crowd(context):
    server, first, path = controlled(context, "live", "nbd")
    try:
        others = [Rpc(path) for _ in range(15)]
        for client in (first, *others):
            client.call("clients")
        late = Rpc(path)
        late.call("clients")
        context.row.tried += 1
        try:
            first.call("clients")
            context.fail("wrong", "the oldest client is answered, expected it to be disconnected")
        except (Gone, BrokenPipeError):
            pass
        for client in others:
            client.call("clients")
            context.row.tried += 1
        # One that has left makes room: the server closes its end when it has forgotten it.
        others[7].socket.shutdown(socket.SHUT_WR)
        while others[7].socket.recv(4096):
            pass
        Rpc(path).call("clients")
        others[0].call("clients")
        context.row.tried += 2
    finally:
        server.kill()
