"""Which folders are on a disk."""

import os
import pathlib

IN_MEMORY = {"tmpfs", "ramfs", "devtmpfs", "hugetlbfs"}


def kind_of(path):
    """The kind of file system that a path is on (proc(5), mounts)."""
    best, kind = "", ""
    path = os.path.realpath(path)
    with open("/proc/mounts", encoding="utf-8") as mounts:
        for line in mounts:
            _, point, found = line.split()[:3]
            if (path == point or path.startswith(point.rstrip("/") + "/")) and len(point) >= len(best):
                best, kind = point, found
    return kind


def on_disk(folder):
    """This folder, or another that is on a disk and can be written; none if there is none."""
    root = pathlib.Path(__file__).resolve().parents[2]
    for one in (folder, str(root / "target"), "/var/tmp"):
        if os.path.isdir(one) and os.access(one, os.W_OK) and kind_of(one) not in IN_MEMORY:
            return one
    return None
