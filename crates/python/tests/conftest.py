"""Shared by the tests: the root of the sources, a small job, a small sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]

JOB = {"reads": {"rw": "randread", "bs": "4k", "size": "1m", "iodepth": 4, "number_ios": 200}}

# Points of interfaces and depths, then of a used flash drive whose state points share.
SWEEP: dict[str, Any] = {
    "about": "Depth by interface",
    "plan": "dc-express",
    "file": "job.fio",
    "axis": [
        {"over": "interface", "values": ["nvme", "dcx"]},
        {"job": "iodepth", "values": [1, 4, 16, 32]},
        {"name": "first_byte", "set": "medium.timing.first_byte", "values": ["100 ns", "1 us", "10 us"]},
    ],
}
FLASH: dict[str, Any] = {
    "plan": "small-flash",
    "file": "job.fio",
    "set": {"medium.flash.start": "steady"},
    "axis": [{"job": "iodepth", "values": [1, 4, 16]}, {"over": "seed", "values": [1, 2]}],
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a job file."""
    monkeypatch.chdir(tmp_path)
    text = "[reads]\nrw=randread\nbs=4k\nsize=1m\nnorandommap=1\nnumber_ios=50\n"
    (tmp_path / "job.fio").write_text(text, encoding="utf-8")
    return tmp_path
