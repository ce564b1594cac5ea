"""Charts as SVG inside HTML: shapes stretch with the page, words do not.

Each chart's drawing is WIDE by its height in units, stretched to its box with preserveAspectRatio="none"; lines and
dots keep their size (non-scaling strokes), and labels are HTML at a percentage. So one page is legible at any width.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from elastic.events import words
from elastic.events.account import PARTS, Account

WIDE = 1000
_LANES_MAX = 96
_OVERLAP_S = 0.1  # a process's start is known to hundredths; its predecessor's end, as its agent saw it
_RECTANGLES = 24_000
_TITLES_MAX = 400
_DOTS_MAX = 800
_TIME_STEPS_S = (
    *(base * 10.0**power for power in range(-3, 1) for base in (1, 2, 5)),
    *(10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800),
)


@dataclass(frozen=True)
class Axis:
    """Values from `low` to `high`, on 0 … WIDE."""

    low: float
    high: float

    def at(self, value: float) -> float:
        span = self.high - self.low
        return WIDE * min(1.0, max(0.0, (value - self.low) / span)) if span > 0 else 0.0


@dataclass(frozen=True)
class Label:
    """at: percent of the way"""

    at: float
    text: str


@dataclass(frozen=True)
class Lanes:
    """The accounts of workers in places: who begins after another has ended goes on in its place."""

    lanes: tuple[tuple[Account, ...], ...]
    hidden: int

    @classmethod
    def of(cls, accounts: Iterable[Account]) -> Lanes:
        lanes: list[list[Account]] = []
        for account in sorted(accounts, key=lambda a: a.begin_s):
            free = [lane for lane in lanes if lane[-1].end_s <= account.begin_s + _OVERLAP_S]
            if free:
                max(free, key=lambda lane: lane[-1].end_s).append(account)
            else:
                lanes.append([account])
        return cls(tuple(map(tuple, lanes[:_LANES_MAX])), max(0, len(lanes) - _LANES_MAX))


def figure(
    title: str,
    drawing: str,
    *,
    height: int,
    units: int,
    said: str,
    x: Sequence[Label],
    y: Sequence[Label],
    note: str = "",
) -> str:
    """height: of the drawing on the page, in pixels; units: its height in its own; said: to those who cannot see it"""
    grid = "".join(f"M{_n(WIDE * label.at / 100)} 0V{units}" for label in x)
    grid += "".join(f"M0 {_n(units * label.at / 100)}H{WIDE}" for label in y)
    marks = "".join(_x_label(label, index) for index, label in enumerate(x))
    sides = "".join(f'<span style="top:{label.at:.1f}%">{escape(label.text)}</span>' for label in y)
    caption = f'<p class="note">{note}</p>' if note else ""
    return (
        f'<figure><figcaption>{escape(title)}</figcaption>{caption}<div class="chart" style="height:{height}px">'
        f'<div class="y" aria-hidden="true">{sides}</div>'
        f'<svg viewBox="0 0 {WIDE} {units}" preserveAspectRatio="none" role="img" aria-label="{escape(said)}">'
        f'<path class="grid" d="{grid}"/>{drawing}</svg>'
        f'</div><div class="x" aria-hidden="true">{marks}</div></figure>'
    )


def _x_label(label: Label, index: int) -> str:
    kind = ("odd" if index % 2 else "even") + (" first" if label.at < 4 else " last" if label.at > 96 else "")
    return f'<span class="{kind}" style="left:{label.at:.2f}%">{escape(label.text)}</span>'


def time_labels(axis: Axis) -> list[Label]:
    """Some five of them, at round times since the axis begins."""
    span = axis.high - axis.low
    if span <= 0:
        return []
    step = next((s for s in _TIME_STEPS_S if span / s <= 6), span / 5)
    later = [i * step for i in range(1, int(span / step) + 1)]
    return [Label(0, "0"), *(Label(100 * at / span, f"+{round_seconds(at)}") for at in later)]


def round_seconds(value: float) -> str:
    return words.seconds(value).replace(".0 ", " ")


def number_labels(low: float, high: float, *, most: int = 4) -> list[tuple[float, str]]:
    """Round values between, and how they are written."""
    span = high - low
    if span <= 0 or not math.isfinite(span):
        return [(low, words.number(low))] if math.isfinite(low) else []
    rough = span / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(base * power for base in (1, 2, 5, 10) if rough <= base * power * (1 + 1e-9))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    digits = max(0, -math.floor(math.log10(step)))
    return [
        (i * step, f"{i * step:,.{digits}f}" if digits < 7 else words.number(i * step)) for i in range(first, last + 1)
    ]


def lanes_drawing(lanes: Lanes, axis: Axis, *, lane: int = 10) -> str:
    """Each place a bar; what most of the time in an interval went to decides its colour. Deaths are dots at its end."""
    bins = min(WIDE, max(120, _RECTANGLES // max(1, len(lanes.lanes))))
    paths: dict[str, list[str]] = {part: [] for part in PARTS}
    dots: list[str] = []
    births: list[str] = []
    titles: list[str] = []
    for index, accounts in enumerate(lanes.lanes):
        top = index * lane + 1
        for part, x, width in _bars(accounts, axis, bins):
            paths[part].append(f"M{_n(x)} {top}h{_n(width)}v{lane - 2}h-{_n(width)}z")
        for account in accounts:
            x0, x1 = axis.at(account.begin_s), axis.at(account.end_s)
            births.append(f"M{_n(x0)} {top}v{lane - 2}")
            if account.died:
                dots.append(f"M{_n(x1)} {top + lane / 2 - 1:g}h0")
            if len(titles) < _TITLES_MAX:
                end = "died" if account.died else "ended"
                life = words.seconds(account.end_s - account.begin_s)
                text = f"{account.worker}: {end} after {life}"
                titles.append(
                    f'<path class="hover" d="M{_n(x0)} {top}h{_n(max(x1 - x0, 2))}v{lane - 2}h-{_n(max(x1 - x0, 2))}z">'
                    f"<title>{escape(text)}</title></path>"
                )
    drawn = "".join(f'<path class="f-{part}" d="{"".join(d)}"/>' for part, d in paths.items() if d)
    drawn += f'<path class="birth" d="{"".join(births[:_DOTS_MAX])}"/>'
    return drawn + "".join(titles) + f'<path class="death" d="{"".join(dots[:_DOTS_MAX])}"/>'


def _bars(accounts: Sequence[Account], axis: Axis, bins: int) -> Iterable[tuple[str, float, float]]:
    """(part, x, width) of a place's bars, neighbours of one colour as one."""
    spent: dict[int, dict[str, float]] = {}
    width = WIDE / bins
    for account in accounts:
        for begin, end, part in account.stretches:
            x0, x1 = axis.at(begin) / width, axis.at(end) / width
            for at in range(int(x0), min(bins - 1, int(x1)) + 1):
                share = min(x1, at + 1) - max(x0, at)
                if share > 0:
                    into = spent.setdefault(at, {})
                    into[part] = into.get(part, 0.0) + share
    run: tuple[str, int, int] | None = None
    for at in sorted(spent):
        part = max(spent[at], key=lambda name: (spent[at][name], name))
        if sum(spent[at].values()) < 0.05 and run is not None:
            continue
        if run is not None and run[0] == part and run[2] == at:
            run = part, run[1], at + 1
            continue
        if run is not None:
            yield run[0], run[1] * width, (run[2] - run[1]) * width
        run = part, at, at + 1
    if run is not None:
        yield run[0], run[1] * width, (run[2] - run[1]) * width


def steps_drawing(points: Sequence[tuple[float, float]], x: Axis, y: Axis, *, units: int = 100) -> str:
    """A quantity that stays as it is until it changes: (at, value from there on), the last one to the end."""
    d = ""
    for index, (at, value) in enumerate(points):
        height = units - units * y.at(value) / WIDE
        d += f"M{_n(x.at(at))} {_n(height)}" if not index else f"H{_n(x.at(at))}V{_n(height)}"
    d += f"H{_n(x.at(x.high))}" if points else ""
    area = f'<path class="area" d="{d}V{units}H{_n(x.at(points[0][0]))}z"/>' if points else ""
    return f'{area}<path class="line" d="{d}"/>'


def line_drawing(points: Sequence[tuple[float, float, float, float]], x: Axis, y: Axis, *, units: int = 100) -> str:
    """(at, value, least, greatest): a line, in the band between these."""

    def up(value: float) -> str:
        return _n(units - units * y.at(value) / WIDE)

    if not points:
        return ""
    band = "M" + "L".join(f"{_n(x.at(p[0]))} {up(p[3])}" for p in points)
    band += "L" + "L".join(f"{_n(x.at(p[0]))} {up(p[2])}" for p in reversed(points)) + "z"
    line = "M" + "L".join(f"{_n(x.at(p[0]))} {up(p[1])}" for p in points)
    return f'<path class="band" d="{band}"/><path class="line" d="{line}"/>'


def sticks_drawing(sticks: Sequence[tuple[float, float, str]], x: Axis, y: Axis, *, units: int = 100) -> str:
    """(at, value, in words): a stick with a head for each."""
    lines = heads = titles = ""
    for at, value, text in sticks[:_DOTS_MAX]:
        left, top = _n(x.at(at)), _n(units - units * y.at(value) / WIDE)
        lines += f"M{left} {units}V{top}"
        heads += f"M{left} {top}h0"
        if len(sticks) <= _TITLES_MAX:
            titles += f'<path class="hover head" d="M{left} {top}h0"><title>{escape(text)}</title></path>'
    return f'<path class="stick" d="{lines}"/><path class="head" d="{heads}"/>{titles}'


def ticks_drawing(times: Iterable[float], axis: Axis, *, top: int, bottom: int, style: str) -> str:
    """A mark at each of the times; those that would lie on another are left out."""
    positions = sorted({round(2 * axis.at(t)) / 2 for t in times})
    d = "".join(f"M{_n(x)} {top}V{bottom}" for x in positions)
    return f'<path class="{style}" d="{d}"/>' if d else ""


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
