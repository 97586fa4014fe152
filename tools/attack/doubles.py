"""Two servers on one file: the second refuses to start, and names the file."""

import subprocess

from . import plans
from .cases import case
from .drive import flush, read, write
from .errors import Died
from .server import Server

JOB = "[job]\nrw=read\nbs=4k\nsize=64k\n"


def refused(context, second, path):
    """Whether the second server was refused, with the name of the file."""
    try:
        second.start()
    except Died as error:
        if path not in str(error):
            context.fail("wrong", f"refused without the name of the file: {error}")
        return True
    return False


def double(plan, first_end, second_end, long_only=False):
    @case(f"two-servers/{plan}/{first_end}+{second_end}",
          f"two servers on the contents of {plan}, {first_end} then {second_end}", long_only)
    def campaign(context):
        path = context.path("contents")
        sets = plans.keeping(plan, path)
        first = Server(context.program, context.folder, plan, first_end, sets, name="first")
        client = first.client()
        written = bytes(range(256)) * (client.block_bytes // 256)
        write(client, 0, written)
        flush(client)
        for _ in range(context.count(1, 10)):
            second = Server(context.program, context.folder, plan, second_end, sets, name="second",
                            start=False)
            context.row.tried += 1
            if not refused(context, second, path):
                context.fail("wrong", f"a second server of {path} started")
                second.kill()
        first.expect_alive()
        write(client, 1, written)
        flush(client)
        first.kill()
        client.close()
        third = Server(context.program, context.folder, plan, first_end, sets, name="third")
        client = third.client()
        context.row.checked += 2
        if read(client, 0, 2) != written * 2:
            context.fail("lost", "what was flushed before and after a second server started is not there")
        third.kill()


for _plan in ("small-flash", "live"):
    for _first, _second in (("nbd", "nbd"), ("vfio-user", "nbd"), ("shm", "vfio-user"), ("shared", "shm"),
                            ("nbd-tcp", "shared")):
        double(_plan, _first, _second)
double("flash-closer", "nbd", "vfio-user")
double("tlc", "nbd", "nbd", long_only=True)


def with_run(plan):
    @case(f"two-servers/{plan}/run", f"doorbell run on the contents of {plan} while a server has them")
    def campaign(context):
        path = context.path("contents")
        sets = plans.keeping(plan, path)
        server = Server(context.program, context.folder, plan, "nbd", sets)
        job = context.path("job.fio")
        with open(job, "w", encoding="utf-8") as file:
            file.write(JOB)
        typed = [context.program, "run", job, "--world", "live", "--plan", plan]
        for one in sets:
            typed += ["--set", one]
        context.row.tried += 1
        ran = subprocess.run(typed, capture_output=True, text=True, timeout=120, check=False)
        if ran.returncode == 0:
            context.fail("wrong", f"a run on {path} went on beside its server")
        elif path not in ran.stderr:
            context.fail("wrong", f"refused without the name of the file: {ran.stderr[-300:]}")
        server.expect_alive()
        server.kill()


with_run("small-flash")
with_run("live")
