"""Words of a turn that keep Hindsight from extracting from it.

Hindsight has no work with a document whose text it holds already. Where it is the one that extracts, a turn
that has also come past the log, to be kept word for word (see `fallback`), would stay so. Found out after an
operation: it has made fewer memories than its documents hold, and some document holds just its words. That
goes before the next operation, and not at once: whoever does it must be sure to store the turn again.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from service.adapters.hindsight import HindsightAdapter
from service.adapters.hindsight_curate import HindsightCurate, StoredFact
from service.adapters.hindsight_erase import HindsightEraser
from service.policy.kinds import kind_of
from service.scope import BankId, DocumentId, OperationId

# Share of a text that unlabelled passages of it must cover to be its words and no extraction's.
_SHARE: Final = 0.9


async def words_in_the_way(
    hindsight: HindsightAdapter,
    bank: BankId,
    operation: OperationId,
    texts: Mapping[DocumentId, str],
    found: Mapping[DocumentId, Sequence[StoredFact]],
) -> list[DocumentId]:
    """Documents that held their words before `operation`, which is completed and had to extract from them.

    `texts` is what it was sent, `found` what each document holds now. Raises `HindsightUnavailable`.
    """
    documents = [document for document, facts in found.items() if _are_words_of(texts[document], facts)]
    if not documents:
        return []
    made = (await hindsight.operation_state(bank, operation)).memories or 0
    return documents if made < sum(map(len, found.values())) else []


async def make_way(
    hindsight: HindsightAdapter, bank: BankId, operation: OperationId, texts: Mapping[DocumentId, str]
) -> None:
    """Delete documents that hold just their words, unless `operation`, which is to extract, is under way.

    Raises `HindsightUnavailable` and `HindsightRejected`.
    """
    if not texts or await hindsight.operation(bank, operation) != "not_found":
        return
    curate = HindsightCurate(hindsight)
    found = {document: await curate.facts_of(bank, document) for document in texts}
    documents = [document for document, text in texts.items() if _are_words_of(text, found[document])]
    await HindsightEraser(hindsight).delete_documents(bank, documents)


def _are_words_of(text: str, facts: Sequence[StoredFact]) -> bool:
    covered = sum(len(fact.text) for fact in facts if fact.text in text)
    return covered >= _SHARE * len(text) and not any(kind_of(fact.tags) for fact in facts)
