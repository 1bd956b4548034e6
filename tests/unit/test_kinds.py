"""Kinds and importance: read from whatever a memory carries, judged by the tenant's policy."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from service.policy.kinds import (
    DEFAULT_KINDS,
    KeepPolicy,
    Kind,
    importance_of,
    importance_of_sources,
    kind_of,
    kinds_named,
)
from service.policy.ranking import Candidate, rank

NOW = datetime(2026, 5, 1, tzinfo=UTC)


def test_the_default_kinds_are_described_in_both_languages() -> None:
    assert [kind.name for kind in DEFAULT_KINDS] == ["user_profile", "preference", "task_state"]
    assert all(kind.description and kind.description_zh for kind in DEFAULT_KINDS)


def test_named_kinds_are_the_known_ones_or_new_ones() -> None:
    assert kinds_named(["preference", "pets", "pets"]) == (DEFAULT_KINDS[1], Kind("pets"))


@pytest.mark.parametrize(
    ("kind", "importance", "why"),
    [
        ("preference", 0.5, ""),
        ("preference", 0.49, "importance"),
        ("preference", None, "importance"),
        ("event", 1.0, "kind"),
        (None, 1.0, "kind"),
    ],
)
def test_what_is_kept(kind: str | None, importance: float | None, why: str) -> None:
    assert KeepPolicy().why_dropped(kind, importance) == why


@pytest.mark.parametrize(
    ("kind", "age_days", "is_recalled"),
    [
        (None, 9999, True),
        ("a", 9999, True),
        ("b", 7, True),
        ("b", 8, False),
        ("c", 0, False),
        ("x", 0, False),
    ],
)
def test_what_is_recalled(kind: str | None, age_days: int, is_recalled: bool) -> None:
    policy = KeepPolicy((Kind("a"), Kind("b", retention_days=7), Kind("c", keep=False)))
    assert policy.is_recalled(kind, NOW - timedelta(days=age_days), NOW) is is_recalled
    assert policy.is_recalled("b", None, NOW)


@pytest.mark.parametrize(
    ("metadata", "tags", "importance"),
    [
        ({"importance": "0.80"}, (), 0.8),
        ({}, ("importance:0.7", "x"), 0.7),
        ({"importance": "0.80"}, ("importance:0.1",), 0.8),
        ({"importance": "lots"}, (), None),
        ({"importance": "7"}, (), None),
        ({"importance": "nan"}, (), None),
        ({}, (), None),
    ],
)
def test_importance_is_read(
    metadata: dict[str, str], tags: tuple[str, ...], importance: float | None
) -> None:
    assert importance_of(metadata, tags) == importance


def test_a_memory_made_from_facts_matters_as_much_as_the_weightiest_of_them() -> None:
    facts: tuple[list[str], ...] = (
        ["importance:0.3"],
        ["memory_type:preference", "importance:0.9"],
        ["importance:nonsense"],
        [],
    )
    assert importance_of_sources(facts) == 0.9
    assert importance_of_sources([[], ["memory_type:preference"]]) is None


def test_the_kind_is_a_tag() -> None:
    assert kind_of(["c-1", "memory_type:preference"]) == "preference"
    assert kind_of(["c-1"]) is None


def _ranked(*candidates: Candidate) -> list[str]:
    found = rank("where does she live", candidates, min_score=0, top_k=5)
    return [scored.candidate.id for scored in found.kept]


def test_importance_decides_among_equals_and_not_against_relevance() -> None:
    near = [
        Candidate("a", "She lives in Oslo now", semantic=0.8, importance=0.5),
        Candidate("b", "He lives in Rome today", semantic=0.8, importance=0.9),
    ]
    assert _ranked(*near) == ["b", "a"]
    far = Candidate("c", "A cat sleeps", semantic=0.2, importance=1.0)
    assert _ranked(*near, far)[-1] == "c"


def test_without_importance_nothing_changes() -> None:
    pair = (Candidate("a", "Oslo", semantic=0.8), Candidate("b", "Rome", semantic=0.7))
    half = tuple(replace(one, importance=0.5) for one in pair)
    plain = rank("where", pair, min_score=0).kept
    assert [one.relevance for one in plain] == [
        one.relevance for one in rank("where", half, min_score=0).kept
    ]
