"""Results of fio on a real drive, from the JSON that ``fio --output-format=json`` writes."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ._arguments import read_text
from ._errors import ArgumentError

KINDS = ("read", "write")


@dataclass(frozen=True)
class Measured:
    """Operations of one kind of a job that fio ran."""

    job: str
    kind: str
    """``read`` or ``write``."""
    depth: int
    """Requests in flight: ``iodepth`` of the job, times ``numjobs``."""
    block_bytes: int
    """``bs`` of the job; of several lengths, the mean of the operations."""
    count: int
    iops: float
    bytes_per_second: float
    mean_ns: float
    percentiles: Mapping[float, int]
    """Nanoseconds by quantile: those of ``percentile_list``."""
    clock: str
    """``lat``: from the submission on, as latencies of this package; ``clat``: from its end on."""

    def at(self, quantile: float) -> int:
        """The latency at a quantile that fio wrote, in nanoseconds."""
        if quantile not in self.percentiles:
            expected = f"one of {sorted(self.percentiles)}: fio's percentile_list has them"
            raise ArgumentError(f"job {self.job}: quantile: found {quantile}, expected {expected}")
        return self.percentiles[quantile]


class _Reader:
    """A value of the document with its place, for errors."""

    def __init__(self, place: str, value: object) -> None:
        self.place, self.value = place, value

    def wrong(self, expected: str) -> ArgumentError:
        shown = repr(self.value)
        return ArgumentError(f"{self.place}: found {shown[:60]}{'...' * (len(shown) > 60)}, expected {expected}")

    def table(self) -> dict[str, Any]:
        if not isinstance(self.value, dict):
            raise self.wrong("an object")
        return self.value

    def list(self) -> list[_Reader]:
        if not isinstance(self.value, list):
            raise self.wrong("a list")
        return [_Reader(f"{self.place}.{number}", one) for number, one in enumerate(self.value)]

    def __getitem__(self, key: str) -> _Reader:
        table = self.table()
        if key not in table:
            raise ArgumentError(f"{self.place}: found no {key!r}, which fio writes with --output-format=json")
        return _Reader(f"{self.place}.{key}", table[key])

    def get(self, key: str, otherwise: object) -> _Reader:
        return _Reader(f"{self.place}.{key}", self.table().get(key, otherwise))

    def number(self) -> float:
        if isinstance(self.value, bool) or not isinstance(self.value, (int, float)):
            raise self.wrong("a number")
        try:
            number = float(self.value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number) or number < 0:
            raise self.wrong("a number that is not negative")
        return number

    def whole(self) -> int:
        """A whole number; fio writes those of options as text."""
        if isinstance(self.value, str) and self.value.isascii() and self.value.isdigit() and len(self.value) < 10:
            return int(self.value)
        number = self.number()
        if number != int(number):
            raise self.wrong("a whole number")
        return int(number)

    def text(self) -> str:
        if not isinstance(self.value, str):
            raise self.wrong("text")
        return self.value


def _block_bytes(bs: object, mean: float) -> int:
    """A single ``bs`` as bytes; otherwise the mean, which a ramp time leaves a little off."""
    found = re.fullmatch(r"(\d{1,9})([km]?)i?b?", bs.lower()) if isinstance(bs, str) else None
    return int(found[1]) << {"": 0, "k": 10, "m": 20}[found[2]] if found else round(mean)


def _percentiles(latency: _Reader) -> dict[float, int]:
    found = latency["percentile"]
    percentiles = {}
    for key in found.table():
        try:
            quantile = round(float(key) / 100, 9)
        except ValueError:
            raise ArgumentError(f"{found.place}: found {key!r}, expected percentiles, as in \"99.000000\"") from None
        percentiles[quantile] = found[key].whole()
    return percentiles


def _measured(job: _Reader, options: Mapping[str, Any], kind: str) -> Measured | None:
    of = job[kind]
    count = of["total_ios"].whole()
    if count == 0:
        return None
    clock = "lat" if "percentile" in of["lat_ns"].table() else "clat"
    own = _Reader(f"{job.place}.job options", {**options, **job.get("job options", {}).table()})
    return Measured(
        job=job["jobname"].text(),
        kind=kind,
        depth=own.get("iodepth", 1).whole() * own.get("numjobs", 1).whole(),
        block_bytes=_block_bytes(own.get("bs", None).value, of["io_bytes"].whole() / count),
        count=count,
        iops=of["iops"].number(),
        bytes_per_second=of["bw_bytes"].number(),
        mean_ns=of[f"{clock}_ns"]["mean"].number(),
        percentiles=_percentiles(of[f"{clock}_ns"]),
        clock=clock,
    )


def load_fio(path: str | os.PathLike[str]) -> list[Measured]:
    """What fio measured: one for each job and kind of operation that it ran, in fio's order.

    With ``--lat_percentiles=1 --clat_percentiles=0`` latencies begin where those of this package do.

    :raises ArgumentError: the file is not fio's JSON, or a job had an error; with the file and the key.
    """
    name = os.fspath(path)
    try:
        text = read_text(path)
        # Before the document fio writes its warnings, a line each.
        begin = 0 if text.startswith("{") else text.find("\n{") + 1
        data = json.loads(text[begin:])
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"{name}: found {error}, expected the JSON of fio --output-format=json") from error
    document = _Reader(name, data)
    options = document.get("global options", {}).table()
    found = []
    for job in document["jobs"].list():
        if (error_number := job.get("error", 0).whole()) != 0:
            raise ArgumentError(f"{job.place}: job {job['jobname'].text()}: found error {error_number}, expected none")
        found += [one for kind in KINDS if (one := _measured(job, options, kind)) is not None]
    if not found:
        raise document["jobs"].wrong("a job with reads or writes")
    return found
