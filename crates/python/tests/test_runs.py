"""Runs, their results, and their errors."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import doorbell_ssd as db

from conftest import JOB, ROOT

# Reads until it is stopped.
ENDLESS: dict[str, dict[str, Any]] = {
    "reads": {"rw": "randread", "bs": "4k", "size": "1m", "norandommap": True, "time_based": True, "runtime": "9h"}
}


def doorbell() -> Path:
    """The command that the check builds beside the package."""
    program = Path(os.environ.get("DOORBELL", ROOT / "target/debug/doorbell"))
    if not program.exists():
        pytest.fail(f"{program}: not found; DOORBELL names the program that results are compared with")
    return program


def test_names_of_plans_and_interfaces() -> None:
    assert {"live", "gen4", "dc-express", "small-flash"} <= set(db.plans())
    assert {"nvme", "dcx", "block", "fastpath"} <= set(db.interfaces())
    assert db.__version__ == db.version()


def test_document_equals_that_of_the_command_but_for_the_call(folder: Path) -> None:
    arguments = ["run", "job.fio", "--plan", "dc-express", "--world", "sim", "--interface", "dcx", "--job", "iodepth=4"]
    arguments += ["--set", "link.lanes=2", "--seed", "7", "--json", "out.json"]
    arguments += ["--series", "series.csv", "--interval", "50 us"]
    subprocess.run([doorbell(), *arguments], check=True, stdout=subprocess.DEVNULL)
    expected = json.loads((folder / "out.json").read_text(encoding="utf-8"))
    result = db.simulate(
        "job.fio", "dc-express", interface="dcx", set={"link.lanes": 2}, job_set={"iodepth": 4}, seed=7, series="50 us"
    )
    assert result.series is not None and len(result.series.at_ps) > 2
    # The seed is an argument of both, so only the words of the call differ.
    found = {**result.data, "command": expected["command"]}
    assert found == expected
    # The text too, to the last byte.
    text = (folder / "out.json").read_text(encoding="utf-8")
    cut = text.index('"runs"')
    assert result.json()[result.json().index('"runs"') :] == text[cut:]


def test_saved_result_is_replayed_by_the_command(folder: Path) -> None:
    db.simulate(JOB, "gen4").save("result.json")
    done = subprocess.run([doorbell(), "replay", "result.json"], capture_output=True, text=True)
    assert done.returncode == 0 and "as in result.json" in done.stdout, done.stderr
    [again] = db.load("result.json")
    assert again.read.count == 200
    Path("other.json").write_text("{}", encoding="utf-8")
    with pytest.raises(db.ArgumentError, match="other.json: expected a doorbell-result"):
        db.load("other.json")


def test_job_as_file_text_and_dict_are_one_job(folder: Path) -> None:
    text = (folder / "job.fio").read_text(encoding="utf-8")
    sections = {"reads": {"rw": "randread", "bs": "4k", "size": "1m", "norandommap": True, "number_ios": 50}}
    runs = [db.simulate(job, "gen4") for job in ("job.fio", folder / "job.fio", text, sections)]
    assert {run.read.latency.mean_ns for run in runs} == {runs[0].read.latency.mean_ns}
    assert [run.read.count for run in runs] == [50] * 4


def test_plan_as_name_file_dict_and_object_are_one_plan(folder: Path) -> None:
    (folder / "plan.toml").write_text('base = "gen4"\nversion = 1\n', encoding="utf-8")
    lanes = {"link.lanes": 1}
    plan = db.Plan("gen4", {"link": {"lanes": 1}})
    texts = db.Plan("mine.toml", lanes, text=db.Plan("gen4").text)
    forms: list[tuple[db.PlanLike, dict[str, Any]]] = [
        ("gen4", lanes),
        (folder / "plan.toml", lanes),
        ({"base": "gen4", "link": {"lanes": 1}}, {}),
        (plan, {}),
        (db.Plan("gen4").with_(lanes), {}),
        (texts, {}),
    ]
    means = [db.simulate(JOB, form, set=set).read.latency.mean_ns for form, set in forms]
    assert len(set(means)) == 1 and means[0] != db.simulate(JOB, "gen4").read.latency.mean_ns
    assert plan["link.latency"].source and plan.name == "gen4"
    with pytest.raises(KeyError, match="link.latencies"):
        plan["link.latencies"]


def test_histogram_cdf_and_percentiles_agree_with_the_document() -> None:
    latency = db.simulate(JOB, "tlc").read.latency
    ns, share = latency.cdf()
    assert int(latency.counts.sum()) == latency.count == 200 and share[-1] == 1.0
    assert ns.dtype == np.uint64 and bool((np.diff(ns.astype(np.int64)) > 0).all())
    # By hand, from the bins: the first one that reaches the rank.
    for quantile in (0.0, 0.01, 0.5, 0.99, 1.0):
        rank, passed = max(int(np.ceil(quantile * 200)), 1), 0
        for upper, count in latency.data["bins"]:
            passed += count
            if passed >= rank:
                break
        assert latency.at(quantile) == upper
    assert latency.percentiles[0.5] == pytest.approx(latency.at(0.5), rel=1e-3)
    with pytest.raises(db.ArgumentError, match="quantile: found 99"):
        latency.at(99)


def test_breakdown_adds_up_to_the_mean() -> None:
    read = db.simulate(JOB, "dc-express", interface="dcx").read
    breakdown = read.breakdown
    assert breakdown is not None and breakdown.traced == 200
    assert sum(breakdown.stages_ns.values()) == pytest.approx(breakdown.total_ns, rel=1e-9)
    assert breakdown.total_ns == pytest.approx(read.latency.mean_ns, rel=1e-3)
    assert sum(breakdown.at(0.99).values()) > 0
    with pytest.raises(db.ArgumentError, match="expected one of"):
        breakdown.at(0.42)


def test_frames_have_a_row_for_each_job_kind_and_stage() -> None:
    jobs = {"a": {"rw": "randread", "bs": "4k", "size": "1m"}, "b": {"rw": "randrw", "bs": "4k", "size": "1m"}}
    result = db.simulate(jobs, "gen4", job_set={"number_ios": 50})
    frame = result.frame()
    assert list(zip(frame["job"], frame["kind"], strict=True)) == [("a", "read"), ("b", "read"), ("b", "write")]
    assert frame["count"].sum() == 100 and result["b"]["write"].count == frame["count"].iloc[2]
    stages = result.breakdown_frame()
    means = stages[(stages["at"] == "mean") & (stages["job"] == "a")]
    a = result["a"]["read"].breakdown
    assert a is not None and means["ns"].sum() == pytest.approx(a.total_ns, rel=1e-9)
    with pytest.raises(db.ArgumentError, match="kind: found 'read' in 2 jobs"):
        result.read
    with pytest.raises(KeyError, match="expected one of a, b"):
        result["c"]


def test_plan_error_names_each_key_and_the_expected_value() -> None:
    with pytest.raises(db.PlanError) as caught:
        db.simulate(JOB, "gen4", set={"link.lanes": 3, "host.cores": 0})
    assert sorted(item.key for item in caught.value.items) == ["host.cores", "link.lanes"]
    lanes = next(item for item in caught.value.items if item.key == "link.lanes")
    assert lanes.found == "3" and lanes.expected == "1, 2, 4, 8, 16 or 32 lanes" and "--set" in lanes.place
    assert "link.lanes: found 3, expected 1, 2, 4" in str(caught.value)
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value) and again.items == caught.value.items
    with pytest.raises(db.PlanError, match="gen5.*built-in plans"):
        db.Plan("gen5")


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: db.simulate("no.fio"), db.JobError, "no.fio: cannot be read"),
        (lambda: db.simulate("[a]\nrw=sideways\n"), db.JobError, "job.fio:2: .*rw"),
        (lambda: db.simulate({"a": {"rw": "read", "colour": 1}}), db.JobError, 'job.fio:3: unknown key "colour"'),
        (lambda: db.simulate({"a": {"rw": "read\n[b]"}}), db.ArgumentError, "found a line break"),
        (lambda: db.simulate(JOB, interface="scssi"), db.ArgumentError, "scssi"),
        (lambda: db.simulate(JOB, "flash-bridge", interface="dcx"), db.RunError, r"flash-bridge.*\[dcx\]"),
        (lambda: db.simulate(JOB, series="soon"), db.ArgumentError, "series: found \"soon\", expected a time"),
        (lambda: db.simulate(JOB, {"link": {"lanes": 1}}), db.ArgumentError, "found base None"),
        (lambda: db.simulate(JOB, set={"run.seed": float("nan")}), db.ArgumentError, "request: found"),
        (lambda: db.simulate(JOB, set={"run.seed": None}), db.ArgumentError, "null"),
        (lambda: db.simulate(JOB, seed=-1), db.ArgumentError, "-1"),
        (lambda: db.run_live(JOB, threads=0), db.ArgumentError, "threads 0"),
        (lambda: db.run_live(JOB, threads=2, interface="block"), db.ArgumentError, "another interface than nvme"),
        (lambda: db.run_live(JOB, socket="a", vfio_user="b"), db.ArgumentError, "expected one of them"),
        (lambda: db.run_live(JOB, socket="/nowhere"), db.RunError, "/nowhere"),
    ],
)
def test_errors_name_what_is_wrong(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call()


def test_live_run_verifies_its_data() -> None:
    job = {"w": {"rw": "write", "bs": "4k", "size": "256k", "verify": "crc32c"}}
    result = db.run_live(job, "live")
    assert (result.world, result.errors) == ("live", 0) and result.data["machine"]["cores"] > 0
    assert result.jobs[0].data["blocks_verified"] > 0
    with pytest.raises(db.ArgumentError):
        db.simulate(job, "live", resets=-1)


def test_progress_ends_with_all_operations_and_other_threads_run_meanwhile() -> None:
    seen: list[int] = []
    turns = threading.Event()
    other = threading.Thread(target=turns.set)

    def progress(operations: int) -> None:
        if not seen:
            # With the lock held by the run this thread would never end.
            other.start()
            other.join()
        seen.append(operations)

    db.simulate(JOB, "gen4", progress=progress)
    assert seen[-1] == 200 and seen == sorted(seen) and turns.is_set()


@pytest.mark.parametrize("run", [db.simulate, db.run_live])
def test_exception_of_progress_stops_an_endless_run(run: Any) -> None:
    class Enough(Exception):
        pass

    def progress(operations: int) -> None:
        if operations > 100:
            raise Enough

    with pytest.raises(Enough):
        run(ENDLESS, "live", progress=progress)


@pytest.mark.parametrize(("run", "more"), [(db.simulate, {}), (db.run_live, {}), (db.run_live, {"threads": 2})])
def test_keyboard_interrupt_stops_an_endless_run(run: Any, more: dict[str, Any]) -> None:
    # A shell starts what runs in its background with the signal ignored, and Python leaves it so.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    job = {"reads": {**ENDLESS["reads"], "numjobs": 2}}
    sent: list[int] = []

    def progress(operations: int) -> None:
        if operations > 100 and not sent:
            sent.append(operations)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(job, "live", progress=progress, **more)
    # No thread of the run is left: neither its own nor those of device and host.
    names = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    assert not [name for name in names if name in ("doorbell", "device") or name.startswith("host ")]
    # The next run is not stopped.
    assert db.simulate(JOB, "live").read.count == 200
