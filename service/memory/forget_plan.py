"""What one forget means, once Hindsight was asked: what goes whole or alone, and what may bring it back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from service.adapters.hindsight_erase import Running
from service.adapters.turns_forget import ForgetKind
from service.scope import ConversationId, DocumentId, OperationId, turn_of_document


@dataclass(frozen=True, slots=True)
class Plan:
    """What is meant: documents that go whole, facts that go alone, in documents that are `touched`.

    `turns` are documents of words that a `touched` one was extracted from; they are superfluous beside it and
    go as well, but not what else was extracted from them.
    """

    kind: ForgetKind
    conversation: ConversationId | None = None
    documents: frozenset[DocumentId] = frozenset()
    facts: frozenset[str] = frozenset()
    touched: frozenset[DocumentId] = frozenset()
    turns: frozenset[DocumentId] = frozenset()
    memory_id: str = ""

    @classmethod
    def of_ids(cls, ids: Mapping[str, Sequence[str]], memory_id: str) -> "Plan":
        """The plan for one memory that has these `ids`."""
        whole = frozenset(map(DocumentId, ids.get("documents", ())))
        touched = frozenset(map(DocumentId, ids.get("touched", ())))
        turns = frozenset(map(DocumentId, ids.get("turns", ())))
        return cls("documents", None, whole, frozenset(ids.get("facts", ())), touched, turns, memory_id)

    @property
    def ids(self) -> dict[str, list[str]]:
        """All that a plan for one memory means, to be kept; ids only, no words."""
        return {
            "documents": sorted(self.documents),
            "facts": sorted(self.facts),
            "touched": sorted(self.touched),
            "turns": sorted(self.turns),
        }

    def with_all_of(self, other: "Plan | None") -> "Plan":
        """A plan for the same memory that means what either does."""
        if other is None:
            return self
        return replace(
            self,
            documents=self.documents | other.documents,
            facts=self.facts | other.facts,
            touched=self.touched | other.touched,
            turns=self.turns | other.turns,
        )

    @property
    def labels(self) -> list[str]:
        """What the log of accepted turns knows it by: the conversation, or the turns' documents."""
        if self.conversation:
            return [self.conversation]
        return sorted({turn_of_document(document) for document in self.documents | self.touched})

    def concerns(self, operation: Running, fences: Mapping[OperationId, DocumentId]) -> bool:
        """Whether the operation may still bring something of it back."""
        if operation.kind == "consolidation":
            return operation.status == "processing" and self.kind != "all"
        if operation.kind != "retain":
            return False
        if self.kind == "all" or not operation.is_known or self.conversation in operation.tags:
            return True
        # Memories extracted from a turn have documents of their own, named after the turn's.
        written = operation.documents | {
            turn_of_document(DocumentId(document)) for document in operation.documents
        }
        return bool(written & (self.documents | self.touched | self.turns | set(fences.values())))
