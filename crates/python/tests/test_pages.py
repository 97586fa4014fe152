"""The examples of docs/python.md, the scripts of examples/python, and the pictures."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import doorbell_ssd as db
from doorbell_ssd import plot

from conftest import JOB, ROOT


def script(name: str) -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "examples/python" / name))


def test_payoff_of_interfaces_is_that_of_the_page_of_sweeps() -> None:
    found = script("payoff.py")
    page = (ROOT / "docs/sweeps.md").read_text(encoding="utf-8")
    answer = re.search(r"^interface dcx: ([\d.]+) us \(", page, re.MULTILINE)
    assert answer is not None and found["last_us"]["dcx"] == float(answer[1])
    # Descriptor blocks never pay off for one read at a time.
    assert found["last_us"]["block"] is None
    # What DC Express saves does not depend on the medium, and its share only shrinks.
    assert 500 < found["saved_ns"]["dcx"] < 550
    assert found["share"]["dcx"].is_monotonic_increasing
    [nvme, dcx] = [found["runs"][name].read.latency.mean_ns for name in ("nvme", "dcx")]
    assert nvme - dcx == pytest.approx(found["saved_ns"]["dcx"], abs=10)


def test_write_cliff_comes_from_copies() -> None:
    found = script("write_cliff.py")
    assert found["before"] > 1.5 * found["after"]
    rates = [mib for _, mib, _, _ in found["table"]]
    amplifications = [amplification for _, _, amplification, _ in found["table"]]
    programmed = [product for *_, product in found["table"]]
    # Less to copy, a higher rate, from row to row; the rate of the chips stays within a fifth.
    assert rates == sorted(rates) and amplifications == sorted(amplifications, reverse=True)
    assert rates[-1] > 1.5 * rates[0] and max(programmed) < 1.2 * min(programmed)
    assert sum(found["waits"].values()) > 0.9 and "collector at buffer" in found["waits"]


def test_cost_of_a_collision_free_tag_is_the_writes() -> None:
    found = script("tag_cost.py")
    table: dict[str, dict[str, float]] = found["table"]
    random = [table[f"random, {bits} bits"] for bits in (12, 16, 32)]
    # A time-out of 1 ms for each collision: 16 times as many with 4 bits fewer, roughly, and none with 32.
    assert random[0]["retry_ns"] > 3 * random[1]["retry_ns"] > 0 and random[2]["retry_ns"] == 0
    assert len({row["p50_ns"] for row in table.values()}) == 1
    for scheme in ("device, counts", "device, compared"):
        assert table[scheme]["read_ns"] == random[2]["read_ns"] and table[scheme]["retry_ns"] == 0
    assert found["counts_cost_ns"] > 100 and found["compared_cost_ns"] == 0


def test_own_drive_departs_from_the_plans_where_the_measurement_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "svg")
    found = script("own_drive.py")
    measured = found["measured"]
    assert len(measured) == 9 and measured[4096, 1].at(0.5) == 44_288
    assert found["nearest"] == "vortex" == min(found["away"], key=found["away"].get)
    assert found["away"]["gen4"] > 3 > 2 > found["away"]["vortex-disks"]
    # With its keys the plan has the two medians that they are from; the tail departs everywhere.
    own = found["from_own"]
    assert abs(own[4096, 1]["p50"]) < 0.01 and abs(own[131072, 1]["p50"]) < 0.2
    assert all(at["p99"] > 3 for at in own.values())
    assert own[4096, 16]["p50"] > 1.5
    assert found["at_once"][16] > 1.3 * found["at_once"][4] > 1.3
    # Each key says what it is from, and the one that rests on an assumption says so.
    sources = {one.key: one for one in db.Plan("gen4", found["timing"]).sources}
    assert not sources["medium.timing.bandwidth"].assumed and sources["medium.timing.first_byte"].assumed
    assert "virtual-disk.json" in sources["medium.timing.first_byte"].source


def test_examples_of_the_page_print_what_it_shows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    page = (ROOT / "docs/python.md").read_text(encoding="utf-8")
    examples = re.findall(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", page, re.DOTALL)
    assert len(examples) >= 3
    scope: dict[str, Any] = {"__name__": "__main__"}
    for code, expected in examples:
        exec(compile(code, "docs/python.md", "exec"), scope)
        assert capsys.readouterr().out == expected


def test_pictures_show_every_result_and_stage(folder: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    runs = {name: db.simulate(JOB, "dc-express", interface=name) for name in ("nvme", "dcx")}
    cdf = plot.cdf(runs)
    assert [line.get_label() for line in cdf.get_lines()] == ["nvme", "dcx"]
    assert np.asarray(cdf.get_lines()[0].get_ydata())[-1] == 1.0
    bars = plot.breakdown(runs)
    ends: dict[float, float] = {}
    for bar in bars.patches:
        box = bar.get_extents().transformed(bars.transData.inverted())
        ends[round(box.y0, 3)] = max(ends.get(round(box.y0, 3), 0.0), box.x1)
    means = [run.read.breakdown.total_ns / 1e3 for run in runs.values() if run.read.breakdown]
    assert list(ends.values()) == pytest.approx(means, rel=1e-9)
    sweep = db.sweep({"plan": "gen4", "file": "job.fio", "axis": [{"job": "iodepth", "values": [1, 4, 16]}]})
    curve = plot.curves(sweep, "iodepth", "iops").get_lines()[0]
    assert np.array_equal(curve.get_xdata(), [1, 4, 16])
