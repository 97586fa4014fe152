"""Sweeps: the same results everywhere, killed workers, frames."""

from __future__ import annotations

import concurrent.futures
import contextlib
import importlib
import json
import multiprocessing
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import doorbell_ssd as db

from conftest import FLASH, SWEEP
from test_runs import doorbell


def toml(spec: dict[str, Any]) -> str:
    """JSON's values are TOML's."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in spec.items() if not isinstance(value, (dict, list))]
    for key, value in spec.get("set", {}).items():
        lines.append(f"set.{key} = {json.dumps(value)}")
    for axis in spec["axis"]:
        lines += ["[[axis]]", *(f"{key} = {json.dumps(value)}" for key, value in axis.items())]
    return "\n".join(lines) + "\n"


def of_command(folder: Path, spec: dict[str, Any]) -> str:
    (folder / "sweep.toml").write_text(toml(spec), encoding="utf-8")
    subprocess.run(
        [doorbell(), "sweep", "sweep.toml", "--out", "command.jsonl"],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return (folder / "command.jsonl").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    # Without annotations.
    distributed: Any = importlib.import_module("distributed")
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


@pytest.mark.parametrize("spec", [SWEEP, FLASH], ids=["dram", "flash"])
def test_local_sweep_is_that_of_the_command_byte_for_byte(folder: Path, spec: dict[str, Any]) -> None:
    expected = of_command(folder, spec)
    assert db.sweep("sweep.toml").jsonl() == expected
    assert db.sweep(toml(spec)).jsonl() == expected
    assert db.sweep(spec, "out.jsonl", jobs=3).jsonl() == expected
    assert (folder / "out.jsonl").read_text(encoding="utf-8") == expected


@pytest.mark.parametrize("spec", [SWEEP, FLASH], ids=["dram", "flash"])
def test_sweep_on_dask_is_that_of_the_command_byte_for_byte(folder: Path, client: Any, spec: dict[str, Any]) -> None:
    # Workers have a working directory of their own.
    spec = {**spec, "file": str(folder / "job.fio")}
    expected = of_command(folder, spec)
    seen: list[tuple[int, int, int]] = []
    found = db.sweep(folder / "sweep.toml", pool=client, progress=lambda *counts: seen.append(counts))
    assert found.jsonl() == expected
    points = found.header["points"]
    assert seen[0] == (0, points, 0) and seen[-1] == (points, points, 0) and len(seen) > 2


def kills_a_worker(folder: Path, pool: Any, worker: Callable[[], int | None]) -> None:
    """Kills the process that ``worker`` finds while others have points: nothing that was there runs again."""
    spec = {**SWEEP, "file": str(folder / "job.fio"), "job": {"number_ios": 400}}
    expected = db.sweep(spec).jsonl()
    seen: list[int] = []
    killed: list[int] = []

    def kill_one(done: int, of: int, failed: int) -> None:
        seen.append(done)
        # After the first batch: all workers have others.
        if 0 < done < of and not killed:
            process = worker()
            if process is not None:
                killed.append(process)
                os.kill(process, signal.SIGKILL)

    found = db.sweep(spec, pool=pool, progress=kill_one)
    assert killed and found.jsonl() == expected
    assert seen == sorted(set(seen)) and seen[-1] == 24


def test_killed_dask_worker_costs_only_its_points(folder: Path, client: Any) -> None:
    kills_a_worker(folder, client, lambda: next(iter(client.run(os.getpid).values())))


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    module: Any = pytest.importorskip("ray")
    module.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield module
    module.shutdown()


@pytest.mark.parametrize("spec", [SWEEP, FLASH], ids=["dram", "flash"])
def test_sweep_on_ray_is_that_of_the_command_byte_for_byte(folder: Path, ray: Any, spec: dict[str, Any]) -> None:
    spec = {**spec, "file": str(folder / "job.fio")}
    expected = of_command(folder, spec)
    assert db.sweep(folder / "sweep.toml", pool="ray").jsonl() == expected


def test_killed_ray_worker_costs_only_its_points(folder: Path, ray: Any) -> None:
    def worker() -> int | None:
        # Ray's processes have the name of what they run.
        for name in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                if name.read_bytes().startswith(b"ray::run_points"):
                    return int(name.parent.name)
        return None

    kills_a_worker(folder, "ray", worker)


def test_executor_of_processes_gives_the_same(folder: Path) -> None:
    expected = db.sweep(SWEEP).jsonl()
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=spawn) as pool:
        assert db.sweep(SWEEP, pool=pool).jsonl() == expected


def test_worker_with_another_job_file_is_an_error_that_names_it(folder: Path) -> None:
    class Elsewhere(concurrent.futures.ThreadPoolExecutor):
        def submit(self, *arguments: Any, **more: Any) -> Any:
            # Whole at once: a worker may read it already.
            (folder / "other.fio").write_text("[reads]\nrw=randread\nsize=1m\nnumber_ios=7\n", encoding="utf-8")
            (folder / "other.fio").rename(folder / "job.fio")
            return super().submit(*arguments, **more)

    with Elsewhere(1) as pool, pytest.raises(db.SweepError, match="has another sweep: inputs: found.*file job.fio"):
        db.sweep(SWEEP, pool=pool)


def test_stopped_sweep_goes_on_to_the_same_file(folder: Path) -> None:
    expected = db.sweep(SWEEP).jsonl()

    def interrupt(done: int, of: int, failed: int) -> None:
        if done > 0:
            raise KeyboardInterrupt

    slow = {**SWEEP, "job": {"number_ios": 400}}
    with pytest.raises(KeyboardInterrupt):
        db.sweep(slow, "slow.jsonl", progress=interrupt)
    there = len((folder / "slow.jsonl").read_text(encoding="utf-8").splitlines()) - 1
    assert 0 < there < 24
    assert db.sweep(slow, "slow.jsonl").jsonl() == db.sweep(slow).jsonl()
    with pytest.raises(db.SweepError, match="results of another sweep.*job number_ios"):
        db.sweep(SWEEP, "slow.jsonl")
    assert db.sweep(SWEEP, "slow.jsonl", restart=True).jsonl() == expected


def test_frame_has_axes_with_their_units_and_parquet_keeps_them(folder: Path) -> None:
    result = db.sweep(SWEEP)
    frame = result.frame()
    assert len(frame) == 24 and not result.failed
    assert sorted(frame["first_byte_ps"].unique()) == [1e5, 1e6, 1e7]
    assert list(frame["first_byte"].unique()) == ["100 ns", "1 us", "10 us"]
    assert sorted(frame["iodepth"].unique()) == [1, 4, 16, 32]
    first = result.points[0]["result"]["operations"]["read"]
    assert frame["mean_ns"].iloc[0] == first["mean_ns"] and frame["interface"].iloc[0] == "nvme"
    result.to_parquet(folder / "frame.parquet")
    pd.testing.assert_frame_equal(pd.read_parquet(folder / "frame.parquet"), frame)


def test_failed_points_have_their_reason_in_the_frame(folder: Path) -> None:
    axes = [{"job": "size", "values": ["1m", "90t"]}]
    result = db.sweep({**SWEEP, "axis": axes})
    assert list(result.failed) == [1] and "job.fio" in result.failed[1]
    frame = result.frame()
    assert list(frame["failed"].isna()) == [True, False]


def test_search_finds_what_the_sweep_shows(folder: Path) -> None:
    frame = db.sweep(SWEEP).frame()
    answers = db.find(SWEEP, "lowest iodepth where iops >= 150k")
    assert len(answers) == 6 and any(answer["value"] is None or answer["value"] != "1" for answer in answers)
    for answer in answers:
        at = answer["at"]
        of = frame[(frame["interface"] == at["interface"]) & (frame["first_byte"] == at["first_byte"])]
        enough = of[of["iops"] >= 150_000]["iodepth"]
        assert answer["value"] == (None if enough.empty else str(int(enough.min())))
    with pytest.raises(db.SweepError, match="found depth, expected one of the axes"):
        db.find(SWEEP, "lowest depth where iops >= 20k")


@pytest.mark.parametrize(
    ("spec", "more", "error", "text"),
    [
        ("no.toml", {}, db.SweepError, "no.toml: cannot be read"),
        ({"axis": 1}, {}, db.SweepError, "sweep:1: invalid type: integer `1`"),
        ({**SWEEP, "colour": 1}, {}, db.SweepError, "unknown field `colour`"),
        ({**SWEEP, "about": None}, {}, db.ArgumentError, "null"),
        ({**SWEEP, "set": {"link.lanes": 3}}, {}, db.SweepError, "24 points: .*link.lanes: found 3, expected 1, 2"),
        (SWEEP, {"pool": "cloud"}, db.ArgumentError, "pool: found 'cloud'"),
        (SWEEP, {"jobs": 0}, db.ArgumentError, "jobs: found 0"),
        (SWEEP, {"out": "/dev/null/out"}, db.SweepError, "/dev/null/out: cannot be "),
    ],
)
def test_errors_name_what_is_wrong(
    folder: Path, spec: Any, more: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        db.sweep(spec, **more)
