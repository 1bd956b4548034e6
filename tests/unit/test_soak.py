"""The soak's own judgement: a ledger that could not find a fault would prove nothing."""

import asyncio
import time

import pytest
from service.scope import bank_of

from tests.fakes.hindsight_store import Bank, Document
from tests.soak.ledger import Ledger, marked
from tests.soak.watch import Pulse, Sample, Watch
from tests.support import wait_until


def _bank(user: int, *texts: str) -> dict[str, Bank]:
    name = bank_of("default", f"user-{user}")
    documents = {str(n): Document(str(n), f"User: {text}", [], {}) for n, text in enumerate(texts)}
    return {name: Bank(name, name, documents=documents)}


@pytest.fixture
def ledger() -> Ledger:
    """User 7 has said two things in two conversations, both acknowledged, and a third with no answer."""
    made = Ledger()
    for conversation in (0, 1):
        made.acknowledge(7, made.add(7, conversation))
    made.add(7, 1)
    return made


KEPT = (marked(7, 0, "tea"), marked(7, 1, "music"))


def test_what_is_as_promised(ledger: Ledger) -> None:
    counts = ledger.check_stored(_bank(7, *KEPT))
    ledger.check_recall(7, [f"User: {KEPT[0]}", "nothing in particular"])
    assert ledger.breaches == []
    assert counts == {"kept": 2, "sent": 1}
    ledger.check_stored(_bank(7, *KEPT, marked(7, 2, "garden")))  # it may have been accepted
    assert ledger.breaches == []


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        (KEPT[:1], "lost"),
        ((*KEPT, KEPT[0]), "stored twice"),
        ((*KEPT, marked(7, 2, "a"), marked(7, 2, "a")), "stored twice"),
        ((*KEPT, marked(8, 0, "tea")), "another's memory"),
        ((*KEPT, marked(7, 3, "tea")), "another's memory"),  # nobody has ever said it
    ],
)
def test_what_is_not_as_promised(ledger: Ledger, texts: tuple[str, ...], kind: str) -> None:
    ledger.check_stored(_bank(7, *texts))
    assert [found for found, _ in ledger.breaches] == [kind]


def test_a_missing_bank_is_a_loss(ledger: Ledger) -> None:
    ledger.check_stored({})
    assert [found for found, _ in ledger.breaches] == ["lost", "lost"]


def test_forgotten_is_forgotten(ledger: Ledger) -> None:
    for turn in ledger.meant(7, 0):
        turn.state = "forgotten"
    ledger.check_stored(_bank(7, KEPT[1]))
    ledger.check_recall(7, [KEPT[1]])
    assert ledger.breaches == []
    ledger.check_stored(_bank(7, *KEPT))
    ledger.check_recall(7, [KEPT[0]])
    assert [found for found, _ in ledger.breaches] == ["forgotten and stored", "forgotten and recalled"]


@pytest.mark.parametrize(
    ("text", "kind"), [(marked(70, 0, "tea"), "another's memory"), (marked(7, 9, "tea"), "never said")]
)
def test_recalls_of_what_nobody_should_hear(ledger: Ledger, text: str, kind: str) -> None:
    ledger.check_recall(7, [text])
    assert [found for found, _ in ledger.breaches] == [kind]


def test_growth_is_seen_in_the_longest_life() -> None:
    steady = [Sample(at, 100.0, 10) for at in range(0, 20, 2)]
    growing = [Sample(100.0 + at, 100 + at / 10, 10 + at // 100) for at in range(0, 600, 2)]
    trend = Watch({}, {"api": {1: steady, 2: growing}}).trends()["api"]
    assert trend["rss_mib_per_hour"] == pytest.approx(360, abs=1)
    assert Watch({}, {"api": {1: steady}}).trends()["api"]["rss_mib_per_hour"] is None  # it has just started
    assert trend["rss_mib_after"] - trend["rss_mib_before"] > 15  # type: ignore[operator]
    assert (trend["lives"], trend["fds_before"], trend["fds_after"]) == (2, 13, 15)


@pytest.mark.anyio
async def test_the_pulse_knows_when_its_own_process_was_held_up() -> None:
    pulse, is_over = Pulse(), asyncio.Event()
    beating = asyncio.create_task(pulse.run(is_over))
    await wait_until(lambda: pulse.late_ms, "it beats")
    time.sleep(0.12)  # noqa: ASYNC251 - this is the hold-up
    is_over.set()
    await beating
    assert pulse.late_ms[-1] >= 40
