"""fio's JSON: what is read of it, and what is refused."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

import doorbell_ssd as db

from conftest import ROOT

FILE = ROOT / "examples/python/measured/virtual-disk.json"


def written(folder: Path, text: str) -> Path:
    path = folder / "fio.json"
    path.write_text(text, encoding="utf-8")
    return path


def changed(change: Any) -> str:
    data = copy.deepcopy(json.loads(FILE.read_text(encoding="utf-8")))
    change(data)
    return json.dumps(data)


def test_sizes_depths_and_latencies_are_read() -> None:
    found = db.load_fio(FILE)
    assert [(one.job, one.block_bytes, one.depth) for one in found[:4]] == [
        ("4k-1", 4096, 1), ("4k-4", 4096, 4), ("4k-16", 4096, 16), ("16k-1", 16384, 1)]
    first = found[0]
    assert (first.kind, first.clock, first.count > 30_000) == ("read", "lat", True)
    assert first.percentiles == {0.5: 44_288, 0.99: 2_277_376, 0.999: 12_910_592}
    assert first.bytes_per_second == pytest.approx(first.iops * 4096, rel=1e-3)
    with pytest.raises(db.ArgumentError, match=r"job 4k-1: quantile: found 0.9, expected one of \[0.5, 0.99, 0.999\]"):
        first.at(0.9)


def test_options_of_all_jobs_and_other_forms_count(folder: Path) -> None:
    def change(data: dict[str, Any]) -> None:
        data["global options"] |= {"iodepth": "8", "numjobs": "2", "bs": "4k,8k"}
        one = data["jobs"][0]
        one["job options"] = {"rw": "randrw"}
        one["write"] = copy.deepcopy(one["read"])
        one["write"]["clat_ns"] |= {"percentile": {"99.000000": 7}, "mean": 6.5}
        del one["write"]["lat_ns"]["percentile"]
        del data["jobs"][1:]

    # fio writes warnings before the document.
    reads, writes = db.load_fio(written(folder, "fio: a warning\n" + changed(change)))
    assert (reads.depth, reads.block_bytes, reads.clock) == (16, 4096, "lat")
    assert (writes.kind, writes.clock, writes.mean_ns, dict(writes.percentiles)) == ("write", "clat", 6.5, {0.99: 7})


def put(*path: Any, value: Any) -> Any:
    def change(data: Any) -> None:
        for key in path[:-1]:
            data = data[key]
        data[path[-1]] = value

    return change


def drop(*path: Any) -> Any:
    def change(data: Any) -> None:
        for key in path[:-1]:
            data = data[key]
        del data[path[-1]]

    return change


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (drop("jobs"), "found no 'jobs'"),
        (put("jobs", value={}), r"jobs: found {}, expected a list"),
        (put("jobs", value=[]), r"jobs: found \[\], expected a job with reads or writes"),
        (put("jobs", 2, value=7), r"jobs\.2: found 7, expected an object"),
        (drop("jobs", 2, "read"), r"jobs\.2: found no 'read'"),
        (put("jobs", 2, "error", value=5), r"jobs\.2: job 4k-16: found error 5, expected none"),
        (put("jobs", 0, "read", "iops", value="fast"), r"read\.iops: found 'fast', expected a number"),
        (put("jobs", 0, "read", "iops", value=-1), r"read\.iops: found -1, expected a number that is not negative"),
        (put("jobs", 0, "read", "iops", value=float("nan")), r"read\.iops: found nan, expected"),
        (put("jobs", 0, "read", "total_ios", value=True), r"total_ios: found True, expected a number"),
        (put("jobs", 0, "read", "total_ios", value=1.5), r"total_ios: found 1\.5, expected a whole number"),
        (put("jobs", 0, "job options", value=[]), r"job options: found \[\], expected an object"),
        (put("jobs", 0, "job options", "iodepth", value="many"), r"iodepth: found 'many', expected a number"),
        (put("jobs", 0, "read", "lat_ns", "percentile", value={"half": 1}), r"percentile: found 'half', expected"),
        (put("jobs", 0, "read", "lat_ns", "mean", value="x" * 200), r"mean: found 'x+\.\.\., expected a number"),
        (put("jobs", 0, "read", "bw_bytes", value=10**400), r"bw_bytes: found 1000.*, expected a number that"),
        (put("global options", value=3), r"global options: found 3, expected an object"),
    ],
)
def test_broken_file_is_refused_with_its_key(folder: Path, change: Any, expected: str) -> None:
    path = written(folder, changed(change))
    with pytest.raises(db.ArgumentError, match=expected) as refused:
        db.load_fio(path)
    assert str(refused.value).startswith(str(path))


@pytest.mark.parametrize("text", ["", "fio: no such file\n", "{", "[1, 2]", "[" * 100_000, '{"jobs": 1e999}'])
def test_what_is_no_document_is_refused(folder: Path, text: str) -> None:
    with pytest.raises(db.ArgumentError, match=r"fio\.json"):
        db.load_fio(written(folder, text))


def test_bytes_that_are_no_text_are_refused(folder: Path) -> None:
    (folder / "fio.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(db.ArgumentError, match=r"fio\.json: found .*utf-8.*, expected the JSON of fio"):
        db.load_fio(folder / "fio.json")


def test_file_that_is_cut_short_is_refused(folder: Path) -> None:
    text = FILE.read_text(encoding="utf-8")
    for length in range(1, len(text), len(text) // 40):
        with pytest.raises(db.ArgumentError, match="expected the JSON of fio"):
            db.load_fio(written(folder, text[:length]))
