"""Reads a file of trace events and checks the rules of the format that viewers depend on."""

import collections
import decimal
import json
import sys

KEYS = {
    "M": {"name", "pid", "tid", "args"},
    "X": {"name", "cat", "pid", "tid", "ts", "dur", "args"},
    "s": {"name", "cat", "id", "pid", "tid", "ts"},
    "t": {"name", "cat", "id", "pid", "tid", "ts"},
    "f": {"name", "cat", "id", "pid", "tid", "ts", "bp"},
}


def check(events):
    """The processes by number: their names, and the slices of each track."""
    names, tracks, slices = {}, {}, collections.defaultdict(list)
    flows = collections.defaultdict(list)
    for event in events:
        phase = event["ph"]
        missing = KEYS[phase] - event.keys()
        assert not missing, f"{event}: no {missing}"
        place = event["pid"], event["tid"]
        if event["name"] == "process_name":
            names[event["pid"]] = event["args"]["name"]
        elif event["name"] == "thread_name":
            tracks[place] = event["args"]["name"]
        elif phase == "X":
            assert event["ts"] >= 0 and event["dur"] >= 0, event
            assert {"operation", "lba", "queue", "bytes", "stage"} <= event["args"].keys(), event
            slices[place].append(event)
        elif phase != "M":
            flows[event["cat"], event["id"]].append(event)
    for place, track in slices.items():
        assert place in tracks and place[0] in names, f"{place}: no name"
        track.sort(key=lambda event: (event["ts"], event["dur"]))
        for one, two in zip(track, track[1:]):
            assert one["ts"] + one["dur"] <= two["ts"], f"{one} overlaps {two}"
    for flow in flows.values():
        check_flow(flow, slices)
    return names, tracks, slices


def check_flow(flow, slices):
    """A flow begins once, ends once, and each event of it lies at a slice's beginning."""
    flow.sort(key=lambda event: (event["ts"], "stf".index(event["ph"])))
    phases = "".join(event["ph"] for event in flow)
    assert phases == "s" + "t" * (len(phases) - 2) + "f", f"flow {flow[0]['id']}: {phases}"
    for event in flow:
        track = slices[event["pid"], event["tid"]]
        assert any(one["ts"] == event["ts"] for one in track), f"flow {event}: no slice"


def main(path):
    """Prints a line for each process."""
    with open(path, encoding="utf-8") as file:
        trace = json.load(file, parse_float=decimal.Decimal)
    names, tracks, slices = check(trace["traceEvents"])
    for pid, name in sorted(names.items()):
        own = {place: track for place, track in slices.items() if place[0] == pid}
        operations = {one["args"]["operation"] for track in own.values() for one in track}
        lanes = sorted({tracks[place].rstrip(" 0123456789") for place in own})
        count = sum(len(track) for track in own.values())
        print(f"{name}; {len(operations)} operations; {count} slices; lanes {', '.join(lanes)}")


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except AssertionError as error:
        sys.exit(str(error))
