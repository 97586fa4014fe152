"""Line charts as SVG files that need nothing else: logarithmic axes, a legend at the right."""

import math
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 920, 400, 70, 310, 40, 50
COLOURS = ("#0060a8", "#c04000", "#208040", "#8030a0", "#a08000", "#606060")


def size(value):
    """1024 as 1 KiB."""
    return f"{value / 1024:g} KiB" if value >= 1024 else f"{value:g} B"


@dataclass
class Line:
    """A name, points (x, y), a colour by its number, and whether it is a prediction, which is dashed."""

    name: str
    points: list
    colour: int
    dashed: bool = False


def spread(values):
    """Powers of two that hold all values."""
    return math.floor(math.log2(min(values))), math.ceil(math.log2(max(values)))


def short(value):
    """1024 as 1k."""
    return f"{value / 1024:g}k" if value >= 1024 else f"{value:g}"


def chart(title, x_name, y_name, lines):
    """The text of a picture."""
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points]
    (x_low, x_high), (y_low, y_high) = spread(xs), spread(ys)

    def across(x):
        return LEFT + (math.log2(x) - x_low) / max(x_high - x_low, 1) * (WIDTH - LEFT - RIGHT)

    def up(y):
        return HEIGHT - BOTTOM - (math.log2(y) - y_low) / max(y_high - y_low, 1) * (HEIGHT - TOP - BOTTOM)

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
             f'font-size="12" role="img" aria-label="{escape(title)}">',
             f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
             f'<text x="{LEFT}" y="20" font-size="14">{escape(title)}</text>']
    for power in range(x_low, x_high + 1):
        x = across(2**power)
        parts.append(f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{HEIGHT - BOTTOM}" stroke="#ddd"/>')
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{short(2**power)}</text>')
    for power in range(y_low, y_high + 1):
        y = up(2**power)
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{2.0**power:g}</text>')
    parts.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 12}" text-anchor="middle">{escape(x_name)}</text>')
    parts.append(f'<text x="16" y="{HEIGHT / 2:.0f}" text-anchor="middle" '
                 f'transform="rotate(-90 16 {HEIGHT / 2:.0f})">{escape(y_name)}</text>')
    names = {line.name: COLOURS[line.colour % len(COLOURS)] for line in lines}
    for line in lines:
        colour = names[line.name]
        dashes = ' stroke-dasharray="5 4"' if line.dashed else ""
        at = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in line.points)
        parts.append(f'<polyline points="{at}" fill="none" stroke="{colour}" stroke-width="1.8"{dashes}/>')
    for number, (name, colour) in enumerate(names.items()):
        y, x = TOP + 10 + 18 * number, WIDTH - RIGHT + 14
        parts.append(f'<line x1="{x}" y1="{y}" x2="{x + 22}" y2="{y}" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{x + 28}" y="{y + 4}">{escape(name)}</text>')
    if any(line.dashed for line in lines):
        y = TOP + 10 + 18 * len(names)
        parts.append(f'<text x="{WIDTH - RIGHT + 14}" y="{y + 8}">dashed: predicted</text>')
    return "\n".join(parts) + "\n</svg>\n"
