"""Small charts as SVG made here, without scripts or style attributes, each with its numbers in a table.

The colours come from the style sheet by class, so that they follow the visitor's light or dark scheme.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from service.policy.html import NOTHING, Html, fill, join

_WIDTH: Final = 480
_HEIGHT: Final = 160
_LEFT: Final = 4
_TOP: Final = 24
_BOTTOM: Final = 24
_PLOT: Final = _HEIGHT - _TOP - _BOTTOM
# Classes of the series, in order.
CLASSES: Final = ("one", "two", "three")


@dataclass(frozen=True, slots=True)
class Series:
    """One row of values (None: there is none) under a name."""

    name: str
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Chart:
    """`labels` name the places from left to right; `shown` writes a value."""

    id: str
    title: str
    labels: Sequence[str]
    series: Sequence[Series]
    shown: Callable[[float], str]
    is_line: bool = False

    @property
    def top(self) -> float:
        """The highest value that has to fit."""
        if self.is_line:
            return max((value or 0 for one in self.series for value in one.values), default=0)
        columns = zip(*(one.values for one in self.series), strict=True)
        return max((sum(value or 0 for value in column) for column in columns), default=0)


def figure(chart: Chart, *, first: str, table_name: str, nothing: str) -> Html:
    """The chart with its caption and its table; `first` heads the table's first column."""
    if not chart.top:
        inside = fill('<p class="empty">{nothing}</p>', nothing=nothing)
    else:
        inside = fill(
            "{legend}{picture}<details><summary>{table}</summary>{numbers}</details>",
            legend=_legend(chart) if len(chart.series) > 1 else NOTHING,
            picture=_picture(chart),
            table=fill('{words}<span class="unseen">: {title}</span>', words=table_name, title=chart.title),
            numbers=_numbers(chart, first),
        )
    return fill(
        '<figure class="card"><figcaption id="{id}-title">{title}</figcaption>{inside}</figure>',
        id=chart.id,
        title=chart.title,
        inside=inside,
    )


def _legend(chart: Chart) -> Html:
    items = join(
        fill('<li class="{kind}">{name}</li>', kind=kind, name=one.name)
        for kind, one in zip(CLASSES, chart.series, strict=False)
    )
    return fill('<ul class="legend">{items}</ul>', items=items)


def _picture(chart: Chart) -> Html:
    top = chart.top
    marks = _lines(chart, top) if chart.is_line else _bars(chart, top)
    return fill(
        '<svg viewBox="0 0 {width} {height}" role="img" aria-labelledby="{id}-title" focusable="false">'
        '<line class="grid" x1="0" x2="{width}" y1="{top_y}" y2="{top_y}"/>'
        '<line class="grid" x1="0" x2="{width}" y1="{middle_y}" y2="{middle_y}"/>'
        '<line class="axis" x1="0" x2="{width}" y1="{base_y}" y2="{base_y}"/>'
        '{marks}<text x="0" y="{label_y}">{top}</text>'
        '<text x="0" y="{below_y}">{from_}</text>'
        '<text class="end" x="{width}" y="{below_y}">{to}</text></svg>',
        width=_WIDTH,
        height=_HEIGHT,
        id=chart.id,
        top_y=_TOP,
        middle_y=_TOP + _PLOT // 2,
        base_y=_TOP + _PLOT,
        marks=marks,
        label_y=_TOP - 6,
        top=chart.shown(top),
        below_y=_HEIGHT - 4,
        from_=chart.labels[0],
        to=chart.labels[-1],
    )


def _bars(chart: Chart, top: float) -> Html:
    step = (_WIDTH - 2 * _LEFT) / len(chart.labels)
    bars: list[Html] = []
    for place in range(len(chart.labels)):
        base = float(_TOP + _PLOT)
        for kind, one in zip(CLASSES, chart.series, strict=False):
            height = (one.values[place] or 0) / top * _PLOT
            if height <= 0:
                continue
            height = max(height, 1.5)
            base -= height
            bars.append(
                fill(
                    '<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}"/>',
                    kind=kind,
                    x=_short(_LEFT + place * step + step * 0.12),
                    y=_short(max(base, _TOP)),
                    width=_short(step * 0.76),
                    height=_short(height),
                )
            )
    return join(bars)


def _lines(chart: Chart, top: float) -> Html:
    step = (_WIDTH - 2 * _LEFT) / max(1, len(chart.labels) - 1)
    lines: list[Html] = []
    for kind, one in zip(CLASSES, chart.series, strict=False):
        run: list[tuple[float, float]] = []
        for place, value in enumerate([*one.values, None]):
            if value is not None:
                run.append((_LEFT + place * step, _TOP + _PLOT - value / top * _PLOT))
                continue
            if len(run) > 1:
                points = " ".join(f"{_short(x)},{_short(y)}" for x, y in run)
                lines.append(fill('<polyline class="{kind}" points="{points}"/>', kind=kind, points=points))
            lines += [
                fill(
                    '<circle class="{kind}" cx="{x}" cy="{y}" r="2.5"/>', kind=kind, x=_short(x), y=_short(y)
                )
                for x, y in run
            ]
            run = []
    return join(lines)


def _numbers(chart: Chart, first: str) -> Html:
    rows = [
        [label, *("" if value is None else chart.shown(value) for value in values)]
        for label, *values in zip(chart.labels, *(one.values for one in chart.series), strict=True)
    ]
    return table(chart.title, [first, *(one.name for one in chart.series)], rows)


def table(
    title: str, heads: Sequence[str], rows: Sequence[Sequence[object]], *, is_wide: bool = False
) -> Html:
    """A table whose first column heads its rows; it scrolls by itself where it is too wide for the screen."""
    head = join(fill('<th scope="col">{name}</th>', name=name) for name in heads)
    body = join(
        fill(
            '<tr><th scope="row">{name}</th>{cells}</tr>',
            name=name,
            cells=join(fill("<td>{value}</td>", value=value) for value in cells),
        )
        for name, *cells in rows
    )
    return fill(
        '<div class="wide" role="region" tabindex="0" aria-label="{title}"><table{kind}>'
        "<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>",
        title=title,
        kind=Html(' class="big"') if is_wide else NOTHING,
        head=head,
        body=body,
    )


def _short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
