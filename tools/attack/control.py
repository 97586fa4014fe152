"""The control socket of a running drive: its verbs, hostile clients of it, metrics, and a drive that ignores flushes."""

import json
import os
import random
import re
import shutil
import socket
import sqlite3
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor, wait

from . import drive
from .cases import case
from .drive import Writer
from .errors import Died, Gone, Hung, LeftOut, Refused
from .ledger import Ledger
from .server import Server, free_port, status

IGNORES = '{ name = "liar", what = "ignore-flush" }'


class Rpc:
    """A JSON-RPC client, one object a line."""

    def __init__(self, path, timeout=30.0):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(timeout)
        self.socket.connect(path)
        self.received, self.id = b"", 0

    def line(self):
        while b"\n" not in self.received:
            try:
                some = self.socket.recv(1 << 16)
            except TimeoutError as error:
                raise Hung("no answer of the control socket") from error
            except OSError as error:
                raise Gone(str(error)) from error
            if not some:
                raise Gone("the control socket was closed")
            self.received += some
        line, self.received = self.received.split(b"\n", 1)
        return json.loads(line)

    def raw(self, line):
        self.socket.sendall(line)
        return self.line()

    def call(self, method, **parameters):
        """The result, or Refused with the message."""
        self.id += 1
        request = {"jsonrpc": "2.0", "id": self.id, "method": method, "params": parameters}
        reply = self.raw(json.dumps(request).encode() + b"\n")
        if reply.get("id") != self.id or reply.get("jsonrpc") != "2.0":
            raise Refused(f"a reply to another request: {reply}")
        if "error" in reply:
            raise Refused(reply["error"]["message"])
        return reply["result"]

    def commands(self):
        return self.call("stats")["drives"][0]["commands"]

    def close(self):
        self.socket.close()


def controlled(context, plan, front_end, sets=(), name="server", extra=()):
    """A server with a control socket, and a client of that."""
    path = context.path(f"{name}.ctl")
    server = Server(context.program, context.folder, plan, front_end, sets, name=name,
                    extra=["--control", path, *extra])
    return server, Rpc(path), path


def expect(context, found, expected, what):
    context.row.tried += 1
    if found != expected:
        context.fail("wrong", f"{what}: found {found}, expected {expected}")


def expect_refused(context, words, attempt, *arguments, **named):
    """The attempt is refused with a message that has these words in it."""
    context.row.tried += 1
    try:
        found = attempt(*arguments, **named)
    except Refused as error:
        if words not in str(error):
            context.fail("wrong", f"refused with {error}, expected {words!r} in it")
        return
    context.fail("wrong", f"found {found}, expected to be refused: {words}")


def again(server, patience=30.0, **keys):
    """A client after the power was switched on."""
    end = time.monotonic() + patience
    while True:
        try:
            return server.client(**keys)
        except (Gone, Refused, OSError):
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


@case("control/verbs", "every verb of the control socket does what it says, live, over NBD")
def verbs(context):
    server, rpc, path = controlled(context, "live", "nbd")
    try:
        expect(context, stat.S_IMODE(os.stat(path).st_mode), 0o600, "mode of the socket")
        client = server.client()
        block = b"a" * client.block_bytes
        for lba in range(10):
            drive.write(client, lba, block)
        for lba in range(7):
            drive.read(client, lba, 1)
        drive.flush(client)
        counts = rpc.commands()
        found = [counts[kind]["commands"] for kind in ("write", "read", "flush")]
        expect(context, found, [10, 7, 1], "commands")
        expect(context, counts["write"]["bytes"], 10 * client.block_bytes, "bytes written")
        expect(context, len(rpc.call("clients")["drives"][0]["clients"]), 1, "clients")
        # Faults come and go while it runs.
        rpc.call("faults.inject", fault='{ name = "bad", what = "status", status = "Write Fault", command = "write" }')
        expect_refused(context, "error 5", drive.write, client, 3, b"b" * client.block_bytes)
        expect_refused(context, "bad", rpc.call, "faults.inject", fault='{ name = "bad", what = "hang" }')
        expect_refused(context, "expected", rpc.call, "faults.inject", fault='{ name = "x", what = "nonsense" }')
        expect_refused(context, "expected", rpc.call, "faults.inject", fault="}]")
        expect(context, rpc.call("faults.list")["drives"][0]["faults"],
               [{"name": "bad", "what": "status", "injected": 1}], "faults")
        expect(context, rpc.commands()["write"]["errors"], 1, "errors")
        rpc.call("faults.clear", name="bad")
        drive.write(client, 3, block)
        expect_refused(context, "bad", rpc.call, "faults.clear", name="bad")
        # Nothing completes in a pause, and everything after it.
        rpc.call("pause")
        tag = client.submit_read(3, 1)
        expect(context, client.poll(0.3), [], "answers in a pause")
        expect(context, rpc.call("stats")["drives"][0]["paused"], True, "paused")
        rpc.call("resume")
        expect(context, drive.wait_for(client, tag), block, "the read after the pause")
        expect_refused(context, "expected", rpc.call, "timing.set", key="channels", value="2")
        expect_refused(context, "modelled", rpc.call, "timing.set", key="first_byte", value="5 us")
        expect_refused(context, "medium.file: found none", rpc.call, "save")
        expect_refused(context, "expected one of", rpc.call, "nonsense")
        # What is misspelt or of another type never counts as absent.
        for method, more in (("faults.clear", {"nam": "bad"}), ("faults.clear", {"name": 5}), ("power.cut", {"drive": 5}),
                             ("stop", {"drive": path})):
            expect_refused(context, "expected", rpc.call, method, **more)
        # A power cut ends clients; the drive answers none until it has power.
        rpc.call("power.cut")
        try:
            drive.read(client, 3, 1)
            context.fail("wrong", "a read was answered without power")
        except Gone:
            pass
        try:
            server.client(5.0)
            context.fail("wrong", "a client was served without power")
        except (Gone, Refused):
            pass
        rpc.call("power.restore")
        expect(context, drive.read(again(server), 3, 1), block, "what was flushed")
        rpc.call("stop")
        expect(context, server.wait(60.0), 0, "exit code after stop")
    finally:
        server.kill()


@case("control/timing", "a time of the medium that is changed live shows in the latency that the drive reports")
def timing(context):
    plan = context.path("plan.toml")
    with open(plan, "w", encoding="ascii") as file:
        file.write('base = "live"\n')
    server, rpc, _ = controlled(context, plan, "nbd", ["medium.pace=modelled"])
    try:
        client = server.client()

        def mean_us():
            before = rpc.commands()["read"]
            for lba in range(50):
                drive.read(client, lba, 1)
            after = rpc.commands()["read"]
            total = after["commands"] * after["mean_us"] - before["commands"] * (before["mean_us"] or 0.0)
            return total / (after["commands"] - before["commands"])

        fast = mean_us()
        rpc.call("timing.set", key="first_byte", value="20 ms")
        slow = mean_us()
        context.row.tried += 1
        context.note(f"mean of 50 reads {fast:.0f} us, with first_byte 20 ms {slow:.0f} us")
        # The model is a lower bound of the time, on any machine.
        if slow < 20_000:
            context.fail("wrong", f"a read took {slow:.0f} us, expected at least 20 ms")
        # The plan is what was opened, whatever has become of its file.
        with open(plan, "w", encoding="ascii") as file:
            file.write("nothing")
        rpc.call("timing.set", key="first_byte", value="10 us")
        os.remove(plan)
        rpc.call("timing.set", key="first_byte", value="1 us")
        expect_refused(context, "expected", rpc.call, "timing.set", key="first_byte", value="fast")
    finally:
        server.kill()


@case("control/front-ends", "control of a drive over vfio-user and shared memory; of a shared drive it is refused")
def front_ends(context):
    for front_end in ("vfio-user", "shm"):
        server, rpc, _ = controlled(context, "live", front_end, name=front_end)
        try:
            # Without a client there is no device: what is set takes effect when one comes.
            rpc.call("faults.inject",
                     fault='{ name = "bad", what = "status", status = "Write Fault", command = "write", nth = 2 }')
            client = server.client()
            block = b"c" * client.block_bytes
            drive.write(client, 1, block)
            expect_refused(context, "", drive.write, client, 1, block)
            expect(context, drive.read(client, 1, 1), block, f"{front_end}: the first write")
            expect(context, rpc.call("faults.list")["drives"][0]["faults"][0]["injected"], 1, f"{front_end}: injections")
            expect(context, rpc.commands()["write"]["errors"], 1, f"{front_end}: errors")
            rpc.call("faults.clear")
            drive.write(client, 1, block)
            client.close()
            # A drive that is paused without a client is paused for the next one.
            rpc.call("pause")
            with ThreadPoolExecutor(1) as pool:
                later = pool.submit(server.client)
                expect(context, wait([later], 0.3).done, set(), f"{front_end}: clients that a paused drive serves")
                rpc.call("resume")
                expect(context, drive.read(later.result(), 1, 1), block, f"{front_end}: the write, after the pause")
        finally:
            server.kill()
    server, rpc, _ = controlled(context, "live", "shared", name="shared")
    try:
        expect_refused(context, "do not share", rpc.call, "power.cut")
        server.client()
        expect(context, len(rpc.call("clients")["drives"][0]["clients"]), 1, "clients of a shared drive")
    finally:
        server.kill()


@case("control/ctl", "doorbell ctl: every verb as text and JSON, and its errors")
def ctl(context):
    server, rpc, path = controlled(context, "live", "nbd")

    def run(*words):
        done = subprocess.run([context.program, "ctl", path, *words], capture_output=True, text=True, timeout=60)
        context.row.tried += 1
        return done

    try:
        for words in (["stats"], ["clients"], ["faults", "list"], ["faults", "inject", IGNORES], ["faults", "clear"],
                      ["pause"], ["resume"], ["power", "cut"], ["power", "restore"],
                      ["top", "--views", "2"], ["stop"]):
            text = words == ["clients"]
            done = run(*words, *([] if text else ["--json"]))
            if done.returncode != 0 or done.stderr:
                context.fail("wrong", f"{words}: {done.returncode} {done.stderr}")
            elif not text:
                for line in done.stdout.splitlines():
                    json.loads(line)
        expect(context, server.wait(60.0), 0, "exit code after stop")
        done = run("stats")
        expect(context, (done.returncode, "expected a server's --control" in done.stderr), (1, True), "no server")
    finally:
        server.kill()


@case("control/hostile", "garbage, endless lines, silence and crowds at the control socket, beside verified I/O")
def hostile(context):
    server, rpc, path = controlled(context, "live", "nbd")
    crowd = []

    def dial():
        one = socket.socket(socket.AF_UNIX)
        one.settimeout(20.0)
        one.connect(path)
        crowd.append(one)
        return one

    try:
        client = server.client()
        ledger = Ledger(client.block_bytes, context.seed)
        writer = Writer(client, ledger, context.rng, 512)
        rng = random.Random(context.seed)
        for turn in range(context.count(8, 80)):
            one = dial()
            try:
                kind = turn % 8
                if kind == 0:
                    one.sendall(rng.randbytes(4096) + b"\n")
                elif kind == 1:
                    one.sendall(b"[" * 60_000 + b"\n")
                elif kind == 2:
                    for _ in range(64):
                        one.sendall(b"x" * (1 << 16))
                elif kind == 3:
                    one.sendall(b'{"jsonrpc": "2.0", "id": 1, "method": "stats"}\n' * 500)
                elif kind == 4:
                    for byte in b'{"jsonrpc"':
                        one.sendall(bytes([byte]))
                elif kind == 5:
                    one.sendall(b'{"jsonrpc": "2.0", "id": 1, "method": "faults.inject", "params": {"fault": "'
                                + b"[" * 30_000 + b'"}}\n')
                elif kind == 6:
                    one.shutdown(socket.SHUT_WR)
                else:
                    for _ in range(64):
                        dial()
            except OSError:
                # It was disconnected, as it should be.
                pass
            context.row.tried += 1
            writer.run(20)
        fresh = Rpc(path)
        stats = fresh.call("stats")["drives"][0]
        expect(context, stats["powered"], True, "power after all this")
        while writer.under_way:
            writer.take(0.1)
        context.check(client, ledger, newest=True, when="beside hostile clients: ")
        server.expect_alive()
        with open(f"/proc/{server.process.pid}/status", encoding="utf-8") as status:
            threads = int(re.search(r"Threads:\s+(\d+)", status.read()).group(1))
        context.note(f"{threads} threads at the end")
        if threads > 64:
            context.fail("wrong", f"{threads} threads, expected a limit")
    finally:
        for one in crowd:
            one.close()
        server.kill()


def parsed(text):
    """Samples of the text format, by (name, labels); raises Refused for what the format forbids."""
    types, samples = {}, {}
    name = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
    label = r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"'
    if not text.endswith("\n"):
        raise Refused("the last line has no end")
    for line in text.splitlines():
        if kind := re.fullmatch(rf"# TYPE ({name}) (counter|gauge|summary|histogram|untyped)", line):
            if kind[1] in types:
                raise Refused(f"two types of {kind[1]}")
            types[kind[1]] = kind[2]
        elif line.startswith("# HELP "):
            continue
        elif found := re.fullmatch(rf"({name})(?:\{{((?:{label},?)*)\}})? (\S+)", line):
            family = re.sub(r"_(sum|count)$", "", found[1])
            if found[1] not in types and types.get(family) != "summary":
                raise Refused(f"a sample without a type: {line}")
            key = (found[1], tuple(sorted(re.findall(label, found[2] or ""))))
            if key in samples:
                raise Refused(f"a sample twice: {line}")
            samples[key] = float(found[5])
        else:
            raise Refused(f"a line of no form: {line!r}")
    return samples


@case("control/metrics", "metrics by a parser that shares no code, and hostile scrapers")
def metrics(context):
    port = free_port()
    server, _, _ = controlled(context, "live", "nbd", extra=["--metrics", f"127.0.0.1:{port}"])
    url = f"http://127.0.0.1:{port}/metrics"
    try:
        client = server.client()
        for lba in range(5):
            drive.write(client, lba, b"m" * client.block_bytes)
        with urllib.request.urlopen(url, timeout=20) as reply:
            text = reply.read().decode()
        samples = parsed(text)
        try:
            from prometheus_client.parser import text_string_to_metric_families
            families = list(text_string_to_metric_families(text))
            context.note(f"prometheus_client finds {len(families)} metrics")
        except ImportError:
            context.note("without prometheus_client")
        labels = (("drive", server.address), ("kind", "write"))
        expect(context, samples.get(("doorbell_commands_total", labels)), 5.0, "writes")
        expect(context, samples.get(("doorbell_bytes_total", labels)), 5.0 * client.block_bytes, "bytes")
        expect(context, samples.get(("doorbell_command_latency_seconds_count", labels)), 5.0, "latencies")
        for sent in (b"nonsense\r\n\r\n", b"GET /metrics", b"G" * 100_000, b"", b"POST /metrics HTTP/1.1\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", port), 20) as one:
                try:
                    one.sendall(sent)
                    if sent:
                        one.recv(1 << 16)
                except OSError:
                    pass
            context.row.tried += 1
        expect(context, status(port, ["GET /metrics HTTP/1.1", "Host: evil.example"]), 421, "status at another name")
        with urllib.request.urlopen(url, timeout=20) as reply:
            parsed(reply.read().decode())
        server.expect_alive()
    finally:
        server.kill()
    for address, token, code in ((f"0.0.0.0:{free_port()}", None, None), (f"127.0.0.1:{free_port()}", "secret", 401)):
        extra = ["--metrics", address] + (["--metrics-token", token] if token else [])
        try:
            server = Server(context.program, context.folder, "live", "nbd", name=f"token{code}", extra=extra)
        except Died as error:
            expect(context, (code, "loopback" in str(error)), (None, True), "an open address")
            continue
        try:
            expect(context, code is not None, True, "served at an open address")
            url = f"http://{address}/metrics"
            try:
                urllib.request.urlopen(url, timeout=20).close()
                context.fail("wrong", "metrics without the token")
            except urllib.error.HTTPError as error:
                expect(context, error.code, code, "status without the token")
            request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
            with urllib.request.urlopen(request, timeout=20) as reply:
                parsed(reply.read().decode())
        finally:
            server.kill()


def lost_in_cuts(context, front_end, ignores, cuts):
    """Blocks lost of what was flushed, over power cuts."""
    name = f"{front_end}-{'ignores' if ignores else 'honest'}"
    server, rpc, _ = controlled(context, "small-flash", front_end, ["medium.keep=everything"], name=name)
    try:
        if ignores:
            rpc.call("faults.inject", fault=IGNORES)
        client = server.client()
        ledger, lost = Ledger(client.block_bytes, context.seed), 0
        for _ in range(cuts):
            writer = Writer(client, ledger, context.rng, 256)
            writer.run(100)
            rpc.call("power.cut")
            try:
                while writer.under_way:
                    writer.take(0.05)
            except Gone:
                pass
            client.close()
            rpc.call("power.restore")
            client = again(server)
            before = ledger.checked
            lost += len(drive.check_all(client, ledger))
            context.row.checked += ledger.checked - before
            context.row.tried += 1
        context.note(f"{name}: {lost} blocks lost in {cuts} cuts")
        return lost
    finally:
        server.kill()


def flushes(front_end):
    @case(f"control/flushes/{front_end}", f"power cuts over {front_end}: nothing flushed is lost, unless flushes are ignored")
    def campaign(context):
        if (lost := lost_in_cuts(context, front_end, False, context.count(3, 50))) > 0:
            context.fail("lost", f"{lost} blocks by a drive that flushes", lost)
        if lost_in_cuts(context, front_end, True, context.count(3, 50)) == 0:
            context.fail("wrong", "a drive that ignores flushes lost nothing")


for _front_end in ("nbd", "vfio-user", "shm"):
    flushes(_front_end)


# Runs transactions; the number of each is written to `marks` when it is committed.
TRANSACTIONS = """
import os, random, sqlite3, sys
folder, count = sys.argv[1], int(sys.argv[2])
marks = os.open(folder + "/marks", os.O_CREAT | os.O_WRONLY)
db = sqlite3.connect(folder + "/db", isolation_level=None)
for pragma in ("journal_mode=persist", "synchronous=full", "cache_size=20"):
    db.execute("pragma " + pragma)
rng = random.Random(1)
for n in range(count):
    db.execute("begin")
    if n == 0:
        db.execute("create table t(k integer primary key, v blob, n int)")
        db.execute("create index i on t(n)")
        db.execute("create index j on t(v)")
    for _ in range(8):
        db.execute("insert or replace into t values(?, ?, ?)", (rng.randrange(1, 500), rng.randbytes(200), n))
    db.execute("insert or replace into t values(0, x'00', ?)", (n,))
    db.execute("commit")
    os.write(marks, b"%d\\n" % n)
"""
# Where the files lie on the drive, bytes.
PLACES = {"db": 0, "db-journal": 3 << 20}
SPACE = 1 << 20


def recorded(folder, count):
    """What SQLite does to its files, in order: (write, file, offset, data), (flush,) and (commit, number)."""
    program, trace = os.path.join(folder, "transactions.py"), os.path.join(folder, "trace")
    with open(program, "w", encoding="utf-8") as file:
        file.write(TRANSACTIONS)
    if shutil.which("strace") is None:
        raise LeftOut("no strace here")
    calls = "pwrite64,write,fsync,fdatasync,ftruncate"
    done = subprocess.run(["strace", "-y", "-xx", "-s", "1000000", "-e", f"trace={calls}", "-o", trace,
                           sys.executable, program, folder, str(count)], capture_output=True, text=True)
    if done.returncode != 0:
        raise LeftOut(f"strace: {done.stderr[-200:]}")
    form = re.compile(r'(\w+)\(\d+<([^>]*)>(?:, "([^"]*)", (\d+)(?:, (\d+))?)?\)\s+= (-?\d+)')
    events = []
    with open(trace, encoding="ascii") as lines:
        for line in lines:
            if (call := form.match(line)) is None:
                continue
            path = bytes.fromhex(call[2].replace("\\x", "")).decode()
            name, data = os.path.basename(path), bytes.fromhex((call[3] or "").replace("\\x", ""))
            if name in PLACES and call[1] == "pwrite64":
                events.append(("write", name, int(call[5]), data))
            elif name in PLACES and call[1] in ("fsync", "fdatasync"):
                events.append(("flush",))
            elif name == "marks":
                events.append(("commit", int(data)))
            elif name in PLACES:
                raise Refused(f"a call that is not replayed: {line[:80]}")
    return events


class Files:
    """The files on the drive: a host's cache writes every block that changes, and flushes at a sync."""

    def __init__(self, client):
        self.client, self.bytes = client, {name: bytearray(SPACE) for name in PLACES}
        # Of each write under way its first block and the one behind its last.
        self.sizes, self.under_way = dict.fromkeys(PLACES, 0), {}

    def take(self, wait):
        for tag, error, _ in self.client.poll(wait):
            self.under_way.pop(tag, None)
            if error:
                raise Refused(error)

    def put(self, name, begin, end):
        size = self.client.block_bytes
        begin, end = begin // size * size, -(-end // size) * size
        first = (PLACES[name] + begin) // size
        last = first + (end - begin) // size
        # A host has one write of a block under way, as a drive may reorder two.
        while any(first < other_last and other < last for other, other_last in self.under_way.values()):
            self.take(1.0)
        tag = self.client.submit_write(first, bytes(self.bytes[name][begin:end]))
        self.under_way[tag] = (first, last)

    def play(self, event):
        """Returns when the call would return."""
        if event[0] == "write":
            _, name, offset, data = event
            if offset + len(data) > SPACE:
                raise Refused(f"{name} is longer than {SPACE} bytes")
            self.bytes[name][offset:offset + len(data)] = data
            self.sizes[name] = max(self.sizes[name], offset + len(data))
            self.put(name, offset, offset + len(data))
        elif event[0] == "flush":
            while self.under_way:
                self.take(1.0)
            drive.flush(self.client)

    def fetch(self, client, folder):
        """The files as the drive has them, and whether anything that was written is not there."""
        size, differs = client.block_bytes, False
        for name, place in PLACES.items():
            blocks = -(-self.sizes[name] // size)
            data = b"".join(drive.read(client, place // size + first, min(64, blocks - first))
                            for first in range(0, blocks, 64))[:self.sizes[name]]
            differs |= data != bytes(self.bytes[name][:self.sizes[name]])
            with open(os.path.join(folder, name), "wb") as file:
                file.write(data)
        return differs

    def put_all(self, client):
        """Writes the files again, as they were before the cut."""
        self.client, self.under_way = client, {}
        for name, length in self.sizes.items():
            for begin in range(0, length, 32 << 10):
                self.put(name, begin, min(begin + (32 << 10), length))
        self.play(("flush",))


def integrity(folder, committed):
    """What is wrong with the database, in words; none if nothing is."""
    database = sqlite3.connect(os.path.join(folder, "db"))
    try:
        found = database.execute("pragma integrity_check").fetchall()
        if found != [("ok",)]:
            return f"integrity: {found[0][0]}"[:100]
        if committed < 0:
            return None
        newest = database.execute("select n from t where k = 0").fetchone()
        # The next may be there too: it was under way.
        if newest is None or newest[0] not in (committed, committed + 1):
            return f"commits: found {newest}, expected {committed} or the next"
        return None
    except sqlite3.DatabaseError as error:
        return f"integrity: {error}"
    finally:
        database.close()


def sqlite_campaign(context, ignores, cuts):
    """SQLite's files under power cuts: the number of databases that are damaged, and that lack commits."""
    name = "ignores" if ignores else "honest"
    folder = context.fresh(name)
    events = recorded(folder, context.count(60, 120))
    server, rpc, _ = controlled(context, "small-flash", "nbd", ["medium.keep=everything"], name=name)
    try:
        if ignores:
            rpc.call("faults.inject", fault=IGNORES)
        files, committed, at = Files(server.client()), -1, 0
        damaged = lacking = cut_short = 0
        places = sorted(context.rng.sample(range(1, len(events)), cuts))
        for place in places:
            for event in events[at:place]:
                files.play(event)
                committed = event[1] if event[0] == "commit" else committed
            at = place
            rpc.call("power.cut")
            files.client.close()
            rpc.call("power.restore")
            client = again(server)
            found = context.fresh(f"{name}-found")
            cut_short += files.fetch(client, found)
            wrong = integrity(found, committed)
            damaged += wrong is not None and wrong.startswith("integrity")
            lacking += wrong is not None and wrong.startswith("commits")
            if wrong and not ignores:
                context.fail("lost", f"cut {context.row.tried} after event {place}: {wrong}")
            context.row.tried += 1
            context.row.checked += sum(-(-size // client.block_bytes) for size in files.sizes.values())
            files.put_all(client)
        context.note(f"{name}: {cuts} cuts, {cut_short} lost a write, {damaged} databases damaged, "
                     f"{lacking} lack commits")
        return damaged, cut_short
    finally:
        server.kill()


@case("control/sqlite", "SQLite's own writes and syncs under 100 power cuts: clean, unless flushes are ignored")
def sqlite(context):
    _, cut_short = sqlite_campaign(context, False, 100)
    if cut_short == 0:
        context.fail("wrong", "no cut has lost a write that was not flushed: they prove nothing")
    damaged, _ = sqlite_campaign(context, True, 100)
    if damaged == 0:
        context.fail("wrong", "no database was damaged by a drive that ignores flushes")
