"""The labelled corpus: what is found, what is left alone, per kind and over both parts."""

from collections import Counter

import pytest
from service.policy.redaction import RedactionPolicy, find, redact
from service.policy.redaction_types import KINDS, Span

from tests.redaction_corpus.tables import Part, Sample, sensitive, untouched

MASK = RedactionPolicy()
PARTS: tuple[Part, ...] = ("tuned", "held_back")
CHECKSUMMED = ("card", "national_id", "iban")


def _is_found(sample: Sample, spans: list[Span]) -> bool:
    """Whether every letter and digit that has to go is covered, by a finding of its kind first of all."""
    for begin, end in sample.marked:
        if not any(span.kind == sample.kind and span.start < end and span.end > begin for span in spans):
            return False
        for at in range(begin, end):
            if sample.text[at].isalnum() and not any(span.start <= at < span.end for span in spans):
                return False
    return True


def _spills(sample: Sample, spans: list[Span]) -> bool:
    """Whether a letter or digit goes that should stay."""
    return any(
        sample.text[at].isalnum() and not any(begin <= at < end for begin, end in sample.marked)
        for span in spans
        for at in range(span.start, span.end)
    )


def _told(samples: list[Sample]) -> str:
    """What failed, as it is printed with a failing test."""
    return "\n".join(f"{one.kind}\t{one.text!r} → {redact(one.text, MASK).text!r}" for one in samples)


def test_the_corpus_is_large_and_half_of_it_is_harmless() -> None:
    sensitives = [sample for part in PARTS for sample in sensitive(part)]
    harmless = [sample for part in PARTS for sample in untouched(part)]
    assert len(sensitives) + len(harmless) >= 400
    assert len(harmless) >= 200
    held_back = len(sensitive("held_back")) + len(untouched("held_back"))
    assert held_back * 3 >= len(sensitives) + len(harmless), "A third is held back."
    assert {sample.kind for sample in sensitives} == set(KINDS)
    assert all(sample.marked for sample in sensitives)


@pytest.mark.parametrize("part", PARTS)
def test_sensitive_data_is_found(part: Part) -> None:
    total: Counter[str] = Counter()
    missed: list[Sample] = []
    for sample in sensitive(part):
        total[sample.kind] += 1
        if not _is_found(sample, find(sample.text, MASK)):
            missed.append(sample)
    by_kind = Counter(sample.kind for sample in missed)
    assert len(missed) <= 0.1 * total.total(), _told(missed)
    assert all(by_kind[kind] <= 0.15 * total[kind] for kind in total), _told(missed)


def test_numbers_with_a_checksum_are_found() -> None:
    samples = [one for part in PARTS for one in sensitive(part) if one.kind in CHECKSUMMED]
    missed = [one for one in samples if not _is_found(one, find(one.text, MASK))]
    assert len(missed) <= 0.02 * len(samples), _told(missed)


@pytest.mark.parametrize("part", PARTS)
def test_harmless_text_stays(part: Part) -> None:
    samples = untouched(part)
    changed = [one for one in samples if redact(one.text, MASK).text != one.text]
    assert len(changed) <= 0.01 * len(samples), _told(changed)


@pytest.mark.parametrize("part", PARTS)
def test_what_stands_around_sensitive_data_stays(part: Part) -> None:
    samples = sensitive(part)
    spilt = [one for one in samples if _spills(one, find(one.text, MASK))]
    assert len(spilt) <= 0.03 * len(samples), _told(spilt)


@pytest.mark.parametrize("part", PARTS)
def test_redacting_again_changes_nothing(part: Part) -> None:
    for sample in sensitive(part):
        once = redact(sample.text, MASK)
        assert redact(once.text, MASK).text == once.text


@pytest.mark.parametrize("part", PARTS)
def test_all_samples_in_one_text_are_found_as_well(part: Part) -> None:
    """Neighbours neither hide each other nor make each other sensitive (order numbers stay)."""
    samples = [*sensitive(part), *untouched(part)]
    text = "\n\n".join(one.text for one in samples)
    spans = find(text, MASK)
    at = 0
    failed: list[Sample] = []
    for one in samples:
        mine = [
            Span(span.start - at, span.end - at, span.kind)
            for span in spans
            if at <= span.start < at + len(one.text)
        ]
        if not _is_found(one, mine) or (not one.marked and mine):
            failed.append(one)
        at += len(one.text) + 2
    assert len(failed) <= 0.03 * len(samples), _told(failed)
