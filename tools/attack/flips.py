"""Flipped bits in a state and its journal: all that was flushed is there, or the file is refused by its name.

What `doorbell state repair` makes of a damaged journal has all that was flushed before the damage.
"""

import os
import shutil
import subprocess

from . import plans
from .cases import case
from .drive import Writer, check_all
from .errors import Died
from .ledger import History, Ledger, copy_of
from .server import Server


def files_of(folder):
    """Every file of a drive, and its bytes."""
    found = {}
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), "rb") as file:
            found[name] = file.read()
    return found


def put_back(folder, files):
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    for name, data in files.items():
        with open(os.path.join(folder, name), "wb") as file:
            file.write(data)


def places(rng, data, count):
    """Bits to flip: the first bytes, where headers and lengths are, and everywhere."""
    head = [rng.randrange(0, min(len(data), 64) * 8) for _ in range(count // 2)]
    near = [rng.randrange(0, min(len(data), 4096) * 8) for _ in range(count // 4)]
    rest = [rng.randrange(0, len(data) * 8) for _ in range(count - len(head) - len(near))]
    return head + near + rest


def state_tool(context, what, path):
    """`doorbell state WHAT FILE`: its exit code and words; none if there is no such command."""
    ran = subprocess.run([context.program, "state", what, path], capture_output=True, text=True, timeout=120,
                         check=False)
    if "unrecognized subcommand" in ran.stderr:
        return None
    return ran.returncode, ran.stdout + ran.stderr


def expect_refusal(context, error, folder, path, damaged, where):
    """The server did not start: it has to say why, leave the files, and the tool has to see it too."""
    if path not in str(error):
        context.fail("wrong", f"{where}: refused without the name of the file: {error}")
    if files_of(folder) != damaged:
        context.fail("wrong", f"{where}: refused, and the files were changed")
    checked = state_tool(context, "check", path)
    if checked is None:
        context.fail("wrong", "there is no command `doorbell state check`")
    elif checked[0] == 0:
        context.fail("wrong", f"{where}: the server refuses what `state check` finds good")


def try_flip(context, plan, sets, folder, path, files, ledger, name, bit):
    damaged = dict(files)
    data = bytearray(files[name])
    data[bit // 8] ^= 1 << bit % 8
    damaged[name] = bytes(data)
    put_back(folder, damaged)
    context.row.tried += 1
    where = f"bit {bit % 8} of byte {bit // 8} of {name} of {len(data)}"
    server = Server(context.program, context.folder, plan, "nbd", sets, start=False)
    try:
        server.start()
    except Died as error:
        expect_refusal(context, error, folder, path, damaged, where)
        return "refused"
    try:
        asked = copy_of(ledger)
        client = server.client()
        wrong = check_all(client, asked)
        context.row.checked += asked.checked
        # A read that fails is no silent loss.
        silent = [line for line in wrong if "unreadable" not in line]
        if silent:
            words = f"{where}: {silent[0]} (and {len(silent) - 1} others), in silence"
            context.fail("lost", words, len(silent))
        client.close()
        server.expect_alive()
        return "unreadable" if wrong else "whole"
    finally:
        server.kill()


# Damage to these bytes of a journal alone is mended, and all its batches are there.
JOURNAL_HEADER_BYTES = 64


def mends(context, path, name):
    """Whether `state repair` repairs; that it does not is no fault of a state."""
    done = state_tool(context, "repair", path)
    if done is None:
        context.fail("wrong", "there is no command `doorbell state repair`")
    elif done[0] == 0:
        return True
    elif name.endswith(".journal"):
        context.fail("wrong", f"repair of {name} refuses: {done[1][-200:]}")
    else:
        context.note(f"repair of {name} refuses: {done[1][-200:]}")
    return False


def what_is_left(context, plan, sets, asked):
    """Serves it: what of this ledger is lost, in words."""
    server = Server(context.program, context.folder, plan, "nbd", sets)
    try:
        client = server.client()
        wrong = check_all(client, asked)
        context.row.checked += asked.checked
        client.close()
        server.expect_alive()
        return wrong
    finally:
        server.kill()


def repaired(context, plan, sets, folder, path, files, ledger, name, bit):
    """What `state repair` leaves can be served, and of a journal all is left that lies before the damage."""
    damaged, data = bit // 8, bytearray(files[name])
    data[damaged] ^= 1 << bit % 8
    put_back(folder, dict(files, **{name: bytes(data)}))
    context.row.tried += 1
    if not mends(context, path, name):
        return
    if not name.endswith(".journal"):
        # Rows that are gone may have held anything.
        what_is_left(context, plan, sets, Ledger(ledger.block_bytes))
        return
    asked = ledger.before(len(data) if damaged < JOURNAL_HEADER_BYTES else damaged)
    wrong = what_is_left(context, plan, sets, asked)
    if wrong:
        words = f"repaired, byte {damaged} of {name} of {len(data)}: {wrong[0]} (and {len(wrong) - 1} others)"
        context.fail("lost", words, len(wrong))


def repairs(context, plan, sets, folder, path, files, ledger, name):
    """In the header, in the middle, and anywhere."""
    bits, rng = len(files[name]) * 8, context.rng
    places = [rng.randrange(0, JOURNAL_HEADER_BYTES * 8), bits // 2]
    places += [rng.randrange(0, bits) for _ in range(context.count(2, 20))]
    for bit in places:
        repaired(context, plan, sets, folder, path, files, ledger, name, bit)


def sees_bad_repair(context, plan, sets, folder, files, ledger):
    """The check itself: a repair that throws the journal away loses what was flushed, which has to be seen."""
    put_back(folder, {name: data for name, data in files.items() if not name.endswith(".journal")})
    if not what_is_left(context, plan, sets, copy_of(ledger)):
        context.fail("wrong", "no loss is seen without the whole journal")


def flips(plan, kills_first):
    @case(f"flips/{plan}", f"flipped bits in the state and the journal of {plan}")
    def campaign(context):
        folder = context.fresh("drive")
        path = os.path.join(folder, "contents")
        sets = plans.keeping(plan, path)
        ledger = None
        for _ in range(kills_first):
            server = Server(context.program, context.folder, plan, "nbd", sets)
            client = server.client()
            ledger = ledger or History(client.block_bytes, context.seed, path + ".journal")
            ledger.begin()
            writer = Writer(client, ledger, context.rng, 512)
            writer.run(300)
            writer.settle(flush=True)
            server.kill()
            client.close()
        files = files_of(folder)
        outcomes = {}
        for name in files:
            if not files[name]:
                continue
            for bit in places(context.rng, files[name], context.count(8, 200)):
                outcome = try_flip(context, plan, sets, folder, path, files, ledger, name, bit)
                outcomes[f"{name} {outcome}"] = outcomes.get(f"{name} {outcome}", 0) + 1
            repairs(context, plan, sets, folder, path, files, ledger, name)
        sees_bad_repair(context, plan, sets, folder, files, ledger)
        context.note(", ".join(f"{number} {words}" for words, number in sorted(outcomes.items())))


flips("small-flash", 2)
flips("flash-closer", 1)


@case("flips/tail", "a journal of small-flash cut behind the last flush: what was flushed is there")
def tail(context):
    folder = context.fresh("drive")
    path = os.path.join(folder, "contents")
    sets = plans.keeping("small-flash", path)
    server = Server(context.program, context.folder, "small-flash", "nbd", sets)
    client = server.client()
    ledger = Ledger(client.block_bytes, context.seed)
    writer = Writer(client, ledger, context.rng, 256)
    writer.run(200)
    writer.settle(flush=True)
    # What was flushed is before this byte. A journal cut earlier looks like one that ended there.
    flushed, frozen = os.path.getsize(path + ".journal"), copy_of(ledger)
    # From here on no version becomes impossible: nothing is flushed.
    writer.durable = 0.0
    writer.run(100)
    for block, versions in ledger.versions.items():
        frozen.versions.setdefault(block, [[0, True]])
        known = {entry[0] for entry in frozen.versions[block]}
        frozen.versions[block] += [list(entry) for entry in versions if entry[0] not in known]
    server.kill()
    client.close()
    files = files_of(folder)
    length = len(files["contents.journal"])
    for _ in range(context.count(4, 100)):
        cut = context.rng.randrange(flushed, length + 1)
        put_back(folder, dict(files, **{"contents.journal": files["contents.journal"][:cut]}))
        context.row.tried += 1
        server = Server(context.program, context.folder, "small-flash", "nbd", sets)
        client = server.client()
        context.check(client, copy_of(frozen), when=f"the journal of {length} bytes cut at {cut}: ")
        client.close()
        server.kill()
