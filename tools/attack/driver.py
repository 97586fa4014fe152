"""Our driver on a target that is not ours: `doorbell run --vfio-user` on a controller in Python."""

import json
import os
import subprocess

from .cases import case
from .errors import LeftOut
from .folders import on_disk
from .target import Target

JOB = "[job]\nrw={rw}\nbs=4k\niodepth={depth}\nsize=4m\nnumber_ios={number}\n"


def drive(context, doorbells, name, rw="randread", depth=1, number=1000, mqes=1023, verify=""):
    """A job on a target of its own: the target, the report, and the driver's words."""
    path, job, report = (context.path(f"{name}.{kind}") for kind in ("sock", "fio", "json"))
    with open(job, "w", encoding="utf-8") as file:
        file.write(JOB.format(rw=rw, depth=depth, number=number) + verify)
    target = Target(path, doorbells, mqes)
    target.start()
    typed = [context.program, "run", job, "--world", "live", "--vfio-user", path, "--json", report,
             "--format", "fio"]
    try:
        ran = subprocess.run(typed, capture_output=True, text=True, timeout=180, check=False)
    except subprocess.TimeoutExpired:
        context.fail("hung", f"{name}: the driver did not end within 180 s")
        return target, None, ""
    finally:
        target.stop()
    context.row.tried += 1
    words = ran.stdout + ran.stderr
    if ran.returncode != 0:
        context.fail("died" if ran.returncode < 0 else "wrong",
                     f"{name}: the driver ended with {ran.returncode}: {(target.failure or words)[-400:]}")
        return target, None, words
    with open(report, encoding="utf-8") as file:
        return target, json.load(file), words


def rate(report):
    """I/O a second of the only job."""
    return report["jobs"][0]["read"]["iops"]


@case("driver/doorbell-page", "our driver on a target that polls its socket each ms, doorbells in tmpfs, on a disk")
def doorbell_page(context):
    folder = on_disk(context.folder)
    if folder is None:
        raise LeftOut("no folder on a disk can be written")
    # Judged by which way the doorbells went, which a busy machine does not change; the rates are only shown.
    number, ratios = context.count(150, 4000), []
    for attempt in range(3):
        path = os.path.join(folder, f"doorbells-{os.getpid()}-{attempt}")
        disk = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        memory = os.memfd_create("doorbells")
        try:
            near, in_memory, _ = drive(context, memory, f"tmpfs{attempt}", number=number)
            far, on_a_disk, words = drive(context, disk, f"disk{attempt}", number=number)
        finally:
            os.unlink(path)
            os.close(disk)
            os.close(memory)
        if in_memory is None or on_a_disk is None:
            return
        ratios.append(rate(in_memory) / rate(on_a_disk))
        if near.by_message:
            context.fail("wrong", f"a doorbell page in tmpfs: {near.by_message} doorbells went by message")
        told = [line for line in words.splitlines() if "doorbell" in line and "message" in line]
        if far.by_message and not told:
            context.fail("wrong", f"a doorbell page on a disk: {far.by_message} doorbells went by message, which "
                                  "nothing says")
    shown = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    context.note(f"from tmpfs {shown} times the rate of a page on a disk, of which {far.by_message} doorbells went "
                 f"by message; said: {told[:1]}")


@case("driver/data", "our driver writes, reads and verifies on a target that is not ours, depth 8")
def data(context):
    memory = os.memfd_create("doorbells")
    drive(context, memory, "verify", rw="randwrite", depth=8, number=context.count(300, 3000),
          verify="verify=crc32c\n")


@case("driver/mqes", "our driver on a controller whose queues have 16 entries: clamped, and said")
def mqes(context):
    memory = os.memfd_create("doorbells")
    target, report, words = drive(context, memory, "mqes", depth=32, number=200, mqes=15)
    if report is None:
        return
    if target.queue_entries > 16:
        context.fail("wrong", f"queues of {target.queue_entries} entries were made")
    if not any("16" in line and "queue" in line for line in words.splitlines()):
        context.fail("wrong", "the depth of queues was clamped, and nothing says so")
