"""Sizes as users type them."""

import argparse

UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def size_of(text):
    """Bytes of `512m`, `1g`, or a plain number."""
    number, unit = (text[:-1], text[-1].lower()) if text[-1:].lower() in UNITS else (text, None)
    if not number.isdigit() or int(number) == 0:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a size such as 512m or 1g")
    return int(number) * UNITS.get(unit, 1)
