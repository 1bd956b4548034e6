"""Words of a turn that Hindsight holds as they were said, where it is the one that extracts.

They came past the log (see `fallback`), and Hindsight has no work with a document whose text it holds
already: when the worker brings the same turn, nothing is extracted from it. Whoever vets what was extracted
would find memories of no kind and take them out, and with them all that is kept of the turn. They stay.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from service.adapters.hindsight import HindsightAdapter
from service.adapters.hindsight_curate import StoredFact
from service.policy.kinds import kind_of
from service.scope import BankId, DocumentId, OperationId

# Share of a text that passages of it must cover to be its words and no extraction's.
_SHARE: Final = 0.9


async def documents_of_words(
    hindsight: HindsightAdapter,
    bank: BankId,
    operation: OperationId,
    texts: Mapping[DocumentId, str],
    found: Mapping[DocumentId, Sequence[StoredFact]],
) -> set[DocumentId]:
    """Those of the documents that `operation`, which is completed, has not extracted from.

    `texts` is what it was sent, `found` what each document holds now. A document whose words somebody has
    corrected is known by what the operation has made: fewer memories than there are. Raises
    `HindsightUnavailable`.
    """
    unlabelled = {
        document
        for document, facts in found.items()
        if facts and not any(kind_of(fact.tags) for fact in facts)
    }
    words = {document for document in unlabelled if _are_words_of(texts[document], found[document])}
    if unlabelled == words:
        return words
    made = (await hindsight.operation_state(bank, operation)).memories
    return unlabelled if made is not None and made < sum(map(len, found.values())) else words


def _are_words_of(text: str, facts: Sequence[StoredFact]) -> bool:
    return sum(len(fact.text) for fact in facts if fact.text in text) >= _SHARE * len(text)
