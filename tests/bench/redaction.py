"""`python -m tests.bench.redaction`: how long redaction takes; prints one line per kind of text.

Chat is the recall benchmark's made-up conversations, cut to 20,000 characters. "sensitive" is the same with
a sample of the redaction corpus after every tenth line. "hostile" is the slowest of some texts that are made
to be slow, 100,000 characters each. Process time, so that a busy machine matters less.
"""

import statistics
import sys
from collections.abc import Iterator
from time import process_time

from service.policy.redaction import RedactionPolicy, redact

from tests.bench.recall.dataset import load
from tests.redaction_corpus.tables import sensitive

_CHARS = 20_000
_HOSTILE_CHARS = 100_000
_HOSTILE = ("14 ", "4111 ", "1-", "密码", "pass=", "+14155550132 ", "13800138000 ", "路1号", "DE00", "a@a.")
_EVERY = 10


def run(repeats: int = 100) -> dict[str, float]:
    """Name → milliseconds: the median and the 95th percentile for each text, and the slowest hostile text."""
    policy = RedactionPolicy()
    found: dict[str, float] = {}
    for name, text in _texts().items():
        redact(text, policy)  # loads phonenumbers' data of the countries in it
        times = sorted(_milliseconds(text, policy) for _ in range(repeats))
        found[f"redaction_ms_{name}_median"] = round(statistics.median(times), 2)
        found[f"redaction_ms_{name}_p95"] = round(times[int(len(times) * 0.95)], 2)
    slowest = max(_milliseconds(unit * (_HOSTILE_CHARS // len(unit)), policy) for unit in _HOSTILE)
    found["redaction_ms_hostile_100k_max"] = round(slowest, 1)
    return found


def _milliseconds(text: str, policy: RedactionPolicy) -> float:
    begin = process_time()
    redact(text, policy)
    return (process_time() - begin) * 1000


def _texts() -> dict[str, str]:
    languages: dict[str, list[str]] = {"zh": [], "en": []}
    for person in load():
        for turn in person.turns:
            languages[person.language] += [turn.user_text, turn.assistant_text]
    both = [line for pair in zip(languages["zh"], languages["en"], strict=False) for line in pair]
    plain = {
        "zh": _joined(languages["zh"]),
        "en": _joined(languages["en"]),
        "zh_en": _joined(both),
    }
    return plain | {"zh_en_sensitive": _joined(list(_salted(both)))}


def _joined(lines: list[str]) -> str:
    text = "\n".join(lines)
    return (text * (_CHARS // len(text) + 1))[:_CHARS]


def _salted(lines: list[str]) -> Iterator[str]:
    samples = sensitive("tuned")
    for number, line in enumerate(lines):
        yield line
        if number % _EVERY == 0:
            yield samples[number // _EVERY % len(samples)].text


def main() -> None:
    """Print what `run` measures."""
    for name, milliseconds in run().items():
        sys.stdout.write(f"{name}: {milliseconds}\n")


if __name__ == "__main__":
    main()
