"""The labelled samples of this folder; its README says how the tables are written."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Part = Literal["tuned", "held_back"]

_ESCAPE = re.compile(r"\\u([0-9a-f]{4})")
_MARK = re.compile("[«»]")


@dataclass(frozen=True, slots=True)
class Sample:
    """A text, its kind (`-` for none), and where what has to go stands."""

    kind: str
    text: str
    marked: tuple[tuple[int, int], ...]


def sensitive(part: Part) -> list[Sample]:
    """The samples of which something has to go."""
    return _read(f"{part}_sensitive.tsv")


def untouched(part: Part) -> list[Sample]:
    """The samples that have to stay as they are."""
    return _read(f"{part}_untouched.tsv")


def _read(name: str) -> list[Sample]:
    lines = (Path(__file__).parent / name).read_text(encoding="utf-8").splitlines()
    return [_sample(line) for line in lines]


def _sample(line: str) -> Sample:
    kind, text = line.split("\t")
    text = _ESCAPE.sub(lambda match: chr(int(match[1], 16)), text.replace("¦", "")).replace("\\n", "\n")
    marked: list[tuple[int, int]] = []
    at = 0
    pieces = _MARK.split(text)
    for i, piece in enumerate(pieces):
        if i % 2:
            marked.append((at, at + len(piece)))
        at += len(piece)
    return Sample(kind, "".join(pieces), tuple(marked))
