"""Redis keys: ours by their prefix, fixed in their parts, and all in the module's table."""

import inspect
import re
from collections.abc import Callable
from typing import Any, cast

import pytest
from service import keyspace
from service.scope import JobId, bank_of

MAKERS: list[Callable[..., str]] = [
    cast("Callable[..., str]", function)
    for _, function in inspect.getmembers(keyspace, inspect.isfunction)
    if function.__module__ == keyspace.__name__
]
FIXED = [value for name, value in vars(keyspace).items() if name.isupper() and isinstance(value, str)]
BANK = bank_of("default", "u")
EXAMPLES: dict[str, Any] = {
    "bank": BANK,
    "job_id": JobId("0" * 32),
    "digest": "d" * 48,
    "question": "q" * 32,
    "code": "llm_paused",
}


def made(maker: Callable[..., str], **changes: str) -> str:
    return maker(**{name: {**EXAMPLES, **changes}[name] for name in inspect.signature(maker).parameters})


def test_there_are_keys() -> None:
    assert len(MAKERS) >= 10
    assert len(FIXED) >= 5


@pytest.mark.parametrize("key", [*FIXED, *map(made, MAKERS)])
def test_every_key_has_our_prefix_and_plain_characters(key: str) -> None:
    assert re.fullmatch(r"mem:[a-z-]+(:[a-z0-9{}-]+)*", key)


def test_no_two_keys_are_the_same() -> None:
    keys = [*FIXED, *map(made, MAKERS)]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("maker", MAKERS)
def test_every_part_counts(maker: Callable[..., str]) -> None:
    for name in inspect.signature(maker).parameters:
        assert made(maker, **{name: "e" * 48}) != made(maker)


def test_what_the_cache_reads_together_lies_in_one_slot() -> None:
    # A cluster hashes only what stands between the first braces.
    keys = [
        keyspace.write_epoch(BANK),
        keyspace.purge_epoch(BANK),
        keyspace.recall(BANK, "q"),
        keyspace.lease(BANK, "q"),
    ]
    assert {re.findall(r"\{([^}]+)\}", key)[0] for key in keys} == {BANK}


@pytest.mark.parametrize("key", [*FIXED, *map(made, MAKERS)])
def test_every_key_is_in_the_table(key: str) -> None:
    assert f"`{':'.join(key.split(':')[:2])}" in (keyspace.__doc__ or "")
