"""Questions read before: named by all they are read from, few enough to hold, none of their words kept."""

from itertools import combinations

from service.adapters.cache import address_of
from service.memory.asked import Asked, AskedBefore, name_of
from service.scope import bank_of

BANK = bank_of("default", "somebody")


def an_asked(key: str) -> Asked:
    return Asked(BANK, key, address_of(BANK, key), as_text=False, is_fresh=False, deadline_s=2.0)


def test_every_part_is_in_the_name() -> None:
    """And no part can run into another: that would hand one user's answer to the next."""
    requests = [
        ("t", b"json", b"", b"{}"),
        ("tj", b"son", b"", b"{}"),
        ("t", b"jso", b"n", b"{}"),
        ("t", b"json", b"{", b"}"),
        ("t", b"json{}", b"", b""),
        ("t", b"", b"", b"json{}"),
        ("other", b"json", b"", b"{}"),
        ("t", b"json", b"user_id=a", b"{}"),
        ("t", b"json", b"", b"{} "),
        ("t ", b"json", b"", b"{}"),
    ]
    names = [name_of(*request) for request in requests]
    assert all(one != other for one, other in combinations(names, 2))
    assert name_of(*requests[0]) == names[0]


def test_the_question_asked_least_lately_makes_room() -> None:
    known = AskedBefore(most=2)
    known.remember(b"a", an_asked("1"))
    known.remember(b"b", an_asked("2"))
    assert known.get(b"a") == an_asked("1")
    known.remember(b"c", an_asked("3"))
    assert known.get(b"b") is None
    assert [known.get(name) for name in (b"a", b"c")] == [an_asked("1"), an_asked("3")]


def test_what_is_asked_again_is_kept_once() -> None:
    known = AskedBefore(most=2)
    known.remember(b"a", an_asked("1"))
    known.remember(b"b", an_asked("2"))
    known.remember(b"a", an_asked("1"))
    assert known.get(b"b") == an_asked("2")
