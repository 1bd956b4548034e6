"""What the Hindsight stand-in keeps: banks, documents, memories and operations, with Hindsight 1.1's rules.

Each rule that looks odd was read off a real 1.1.0 server and is checked against one by
`tests/e2e/test_stand_in_is_faithful.py`.
"""

import copy
import dataclasses
import hashlib
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tests.fakes.hindsight_config import CONFIG_DEFAULTS

Json = dict[str, Any]

CHUNK_CHARS: int = CONFIG_DEFAULTS["retain_chunk_size"]
FACT_TYPES = ("world", "experience", "observation")


class Refused(Exception):
    """An answer of Hindsight's that is not a success."""

    def __init__(self, status: int, detail: Any) -> None:
        super().__init__(status, detail)
        self.status = status
        self.detail = detail


def now() -> str:
    return datetime.now(UTC).isoformat()


@dataclass
class Fact:
    """What an extraction makes of a text: one future memory."""

    text: str
    type: str = "world"
    tags: Sequence[str] = ()


@dataclass
class Memory:
    id: str
    text: str
    type: str
    document_id: str | None
    chunk_id: str | None
    tags: list[str]
    metadata: dict[str, str] | None
    context: str
    mentioned_at: str | None
    observation_scopes: Any = None
    occurred_start: str | None = None
    occurred_end: str | None = None
    entities: list[str] = field(default_factory=list)
    source_fact_ids: list[str] = field(default_factory=list)
    state: str = "valid"
    invalidation_reason: str | None = None
    invalidated_at: str | None = None
    edited_at: str | None = None
    created_at: str = field(default_factory=now)
    updated_at: str = field(default_factory=now)


@dataclass
class Document:
    """One document; `writes` counts how often a retain has written it, the same text included."""

    id: str
    text: str
    tags: list[str]
    item: Json
    writes: int = 0
    created_at: str = field(default_factory=now)
    updated_at: str = field(default_factory=now)

    @property
    def content_hash(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def retain_params(self) -> Json | None:
        kept = {k: self.item.get(k) for k in ("context", "metadata", "observation_scopes", "strategy")}
        timestamp = self.item.get("timestamp")
        kept["event_date"] = None if timestamp == "unset" else timestamp
        return {key: value for key, value in kept.items() if value} or None


@dataclass
class Operation:
    """A submitted retain (`batch_retain`) or the part of it that a worker runs (`retain`)."""

    id: str
    bank_id: str
    kind: str
    items: list[Json]
    parent_id: str | None = None
    child_id: str | None = None
    status: str = "pending"
    error_message: str | None = None
    memories: int | None = None
    created_at: str = field(default_factory=now)
    updated_at: str = field(default_factory=now)
    completed_at: str | None = None

    def move(self, status: str, error_message: str | None = None) -> None:
        self.status = status
        self.error_message = error_message
        self.updated_at = now()
        self.completed_at = self.updated_at if status in ("completed", "failed") else None


@dataclass
class Bank:
    """One bank; `written` lists (document id, text) of every retained item in the order of commit."""

    id: str
    name: str
    config: Json = field(default_factory=dict)
    documents: dict[str, Document] = field(default_factory=dict)
    memories: dict[str, Memory] = field(default_factory=dict)
    written: list[tuple[str, str]] = field(default_factory=list)
    created_at: str = field(default_factory=now)
    updated_at: str = field(default_factory=now)

    @property
    def texts(self) -> list[str]:
        """The texts of the memories that can be recalled, oldest first."""
        return [memory.text for memory in self.memories.values() if memory.state == "valid"]

    def setting(self, key: str) -> Any:
        return self.config.get(key, CONFIG_DEFAULTS[key])

    def memories_of(self, document_id: str) -> list[Memory]:
        return [memory for memory in self.memories.values() if memory.document_id == document_id]

    def drop_memories(self, ids: Iterable[str]) -> int:
        """Remove memories and the observations that rest on them; how many facts were removed."""
        gone = set(ids)
        derived = {m.id for m in self.memories.values() if gone.intersection(m.source_fact_ids)}
        for memory_id in gone | derived:
            del self.memories[memory_id]
        return len(gone)


def clean(text: str) -> str:
    """Without NUL and lone surrogates, as Hindsight stores it."""
    return "".join(char for char in text if char != "\0" and not "\ud800" <= char <= "\udfff")


def verbatim(item: Json) -> list[Fact]:
    """The extraction of a server without an LLM: the text itself, in pieces of at most 3000 characters."""
    text = item["content"]
    return [Fact(text[start : start + CHUNK_CHARS]) for start in range(0, len(text), CHUNK_CHARS)]


class Store:
    """Everything the stand-in knows. `extract` turns an item into facts and may be replaced by a test."""

    def __init__(self) -> None:
        self.banks: dict[str, Bank] = {}
        self.operations: dict[str, Operation] = {}
        self.deleted_banks: Counter[str] = Counter()
        self.extract: Callable[[Json], Sequence[Fact]] = verbatim
        # Whether it says that it has a language model; None: it is of a version that cannot be asked.
        self.has_llm: bool | None = False

    def bank(self, bank_id: str) -> Bank:
        if bank_id not in self.banks:
            raise Refused(404, f"Bank '{bank_id}' not found")
        return self.banks[bank_id]

    def ensure_bank(self, bank_id: str) -> Bank:
        if bank_id in self.banks:
            return self.banks[bank_id]
        if len(bank_id.encode()) > 192:
            raise Refused(400, "Bank id is too long: at most 192 bytes of UTF-8 are allowed")
        if bank_id.startswith("_"):
            raise Refused(400, "Bank id must not start with '_': that prefix is reserved")
        if any(ord(char) < 32 or ord(char) == 127 for char in bank_id):
            raise Refused(400, "Bank id must not contain control characters")
        self.banks[bank_id] = Bank(bank_id, bank_id)
        return self.banks[bank_id]

    def delete_bank(self, bank_id: str) -> int:
        """Remove a bank with its operations, queued ones included; how many rows went with it."""
        self.deleted_banks[bank_id] += 1
        self.operations = {k: op for k, op in self.operations.items() if op.bank_id != bank_id}
        bank = self.banks.pop(bank_id, None)
        return len(bank.memories) + len(bank.documents) if bank else 0

    def clear(self, bank_id: str, fact_type: str | None) -> int:
        """Remove memories. Documents go too, unless a type is given; queued operations stay."""
        bank = self.banks.get(bank_id)
        if bank is None:
            return 0
        ids = [m.id for m in bank.memories.values() if fact_type in (None, m.type)]
        for memory_id in ids:
            del bank.memories[memory_id]
        if fact_type is None:
            bank.documents.clear()
        return len(ids)

    def set_config(self, bank_id: str, updates: Json) -> Bank:
        if unknown := sorted(set(updates) - set(CONFIG_DEFAULTS)):
            some = sorted(CONFIG_DEFAULTS)[:10]
            raise Refused(
                400, f"Unknown configuration fields: {unknown}. Valid configurable fields: {some}..."
            )
        bank = self.ensure_bank(bank_id)
        bank.config.update(updates)
        for cleared in [name for name, value in updates.items() if value is None]:
            del bank.config[cleared]
        return bank

    def retain(self, bank_id: str, items: Sequence[Json], *, extracts: bool = True) -> int:
        """Write items as documents with their memories; how many memories are new."""
        bank = self.ensure_bank(bank_id)
        fresh_in_this_call: set[str] = set()
        made = 0
        for raw in items:
            item = {**raw, "content": clean(raw["content"])}
            document_id = item.get("document_id") or str(uuid.uuid4())
            appends = item.get("update_mode") == "append" or document_id in fresh_in_this_call
            fresh_in_this_call.add(document_id)
            made += self._write(bank, document_id, item, appends=appends, extracts=extracts)
        return made

    def _write(self, bank: Bank, document_id: str, item: Json, *, appends: bool, extracts: bool) -> int:
        tags = list(item.get("tags") or [])
        old = bank.documents.get(document_id)
        text = f"{old.text}\n{item['content']}" if old and appends else item["content"]
        document = old or Document(document_id, text, tags, item)
        is_same = old is not None and old.text == text
        document.text, document.tags, document.item, document.updated_at = text, tags, item, now()
        document.writes += 1
        bank.documents[document_id] = document
        bank.written.append((document_id, item["content"]))
        if is_same:
            # The same text again is no new work: the memories stay, only their tags follow.
            for memory in bank.memories_of(document_id):
                memory.tags = tags
            return 0
        if not appends:
            bank.drop_memories(memory.id for memory in bank.memories_of(document_id))
        strategy = (bank.setting("retain_strategies") or {}).get(item.get("strategy"), {})
        extract = verbatim if strategy.get("retain_extraction_mode") == "chunks" else self.extract
        facts = extract(item) if extracts else []
        timestamp = item.get("timestamp")
        for fact in facts:
            index = len(bank.memories_of(document_id))
            self.add_memory(
                bank.id,
                fact.text,
                type=fact.type,
                document_id=document_id,
                chunk_id=f"{bank.id}_{document_id}_{index}",
                tags=[*tags, *fact.tags],
                metadata=item.get("metadata") or {},
                context=item.get("context") or "",
                mentioned_at=None if timestamp == "unset" else timestamp or now(),
                observation_scopes=item.get("observation_scopes"),
            )
        return len(facts)

    def add_memory(self, bank_id: str, text: str, **fields: Any) -> Memory:
        """Put one memory into a bank, by default a world fact of no document, said now."""
        values: Json = {"type": "world", "document_id": None, "chunk_id": None, "tags": [], "metadata": None}
        values |= {"context": "", "mentioned_at": now(), **fields}
        memory = Memory(id=str(uuid.uuid4()), text=text, **values)
        self.ensure_bank(bank_id).memories[memory.id] = memory
        return memory

    def update_memory(self, bank_id: str, memory_id: str, changes: Json) -> Memory:
        memory = self.memory(bank_id, memory_id)
        bank = self.banks[bank_id]
        if memory.type == "observation":
            raise Refused(
                400, f"Memory '{memory_id}' is a observation; only world/experience facts can be curated."
            )
        if changes.get("text") is not None and not changes["text"].strip():
            raise Refused(400, "text must not be empty.")
        state = changes.get("state")
        edits = {key: value for key, value in changes.items() if key in ("text", "context") and value}
        if edits and memory.state == "invalidated":
            raise Refused(400, "Cannot edit an invalidated memory; revert it to 'valid' first.")
        if edits and memory.state == "invalidated":
            raise Refused(400, "Cannot edit an invalidated memory; revert it to 'valid' first.")
        for key, value in edits.items():
            setattr(memory, key, value)
        if edits:
            memory.edited_at = memory.updated_at = now()
        if state == "invalidated":
            memory.state, memory.invalidated_at = "invalidated", now()
            memory.invalidation_reason = changes.get("reason")
        elif state == "valid":
            memory.state, memory.invalidated_at, memory.invalidation_reason = "valid", None, None
        if state == "invalidated" or edits:
            derived = [m.id for m in bank.memories.values() if memory_id in m.source_fact_ids]
            bank.drop_memories(derived)
        return memory

    def memory(self, bank_id: str, memory_id: str) -> Memory:
        try:
            uuid.UUID(memory_id)
        except ValueError:
            raise Refused(400, f"Invalid memory_id: '{memory_id}' is not a valid UUID") from None
        bank = self.banks.get(bank_id)
        if bank is None or memory_id not in bank.memories:
            raise Refused(404, f"Memory unit '{memory_id}' not found")
        return bank.memories[memory_id]

    def delete_document(self, bank_id: str, document_id: str) -> int:
        bank = self.banks.get(bank_id)
        if bank is None or document_id not in bank.documents:
            raise Refused(404, "Document not found")
        del bank.documents[document_id]
        return bank.drop_memories(memory.id for memory in bank.memories_of(document_id))

    def submit(self, bank_id: str, items: list[Json], operation_id: str | None) -> Operation:
        """Queue a retain. A known id in the same bank answers the first one and drops the new content."""
        known = self.operations.get(operation_id or "")
        if known is not None:
            if known.bank_id != bank_id:
                raise Refused(409, f"operation_id {operation_id} is already in use")
            return known
        ids = Counter(item["document_id"] for item in items if item.get("document_id"))
        if twice := [document_id for document_id, count in ids.items() if count > 1]:
            raise Refused(400, f"Batch contains duplicate document_ids: {twice}.")
        self.ensure_bank(bank_id)
        parent = Operation(operation_id or str(uuid.uuid4()), bank_id, "batch_retain", items)
        child = Operation(str(uuid.uuid4()), bank_id, "retain", items, parent_id=parent.id)
        parent.child_id = child.id
        self.operations |= {parent.id: parent, child.id: child}
        return parent

    def operation(self, bank_id: str, operation_id: str) -> Operation | None:
        try:
            uuid.UUID(operation_id)
        except ValueError:
            raise Refused(400, f"Invalid operation_id format: {operation_id}") from None
        found = self.operations.get(operation_id)
        return found if found is not None and found.bank_id == bank_id else None

    def cancel(self, bank_id: str, operation_id: str) -> None:
        """Cancel an operation. A cancelled parent leaves its child running, which still stores its items."""
        found = self.operation(bank_id, operation_id)
        if found is None:
            raise Refused(404, f"Operation {operation_id} not found for bank {bank_id}")
        if found.status not in ("pending", "processing"):
            raise Refused(
                409,
                f"Operation {operation_id} cannot be cancelled: status is '{found.status}', "
                "only 'pending' and 'processing' operations can be cancelled",
            )
        found.move("cancelled")
        if found.parent_id is not None and (parent := self.operations.get(found.parent_id)):
            parent.move("cancelled")

    def settle(self, child: Operation, status: str, error_message: str | None = None) -> None:
        """Move a running part on, and its parent with it unless that one was cancelled."""
        child.move(status, error_message)
        parent = self.operations.get(child.parent_id or "")
        if parent is not None and parent.status in ("pending", "processing"):
            parent.memories = child.memories
            parent.move(status, error_message)

    def dump(self) -> Json:
        """Everything, as JSON values."""
        return {
            "banks": {bank_id: dataclasses.asdict(bank) for bank_id, bank in self.banks.items()},
            "operations": {key: dataclasses.asdict(op) for key, op in self.operations.items()},
            "deleted_banks": dict(self.deleted_banks),
        }

    def load(self, data: Json) -> None:
        """Take over what `dump` has written; what was being processed is pending again."""
        self.banks = {key: load_bank(value) for key, value in data["banks"].items()}
        self.operations = {key: Operation(**value) for key, value in data["operations"].items()}
        self.deleted_banks = Counter(data["deleted_banks"])
        for operation in self.operations.values():
            if operation.status == "processing":
                operation.status = "pending"


def load_bank(data: Json) -> Bank:
    """A bank from the JSON values that `Store.dump` makes of it."""
    data = copy.copy(data)
    data["documents"] = {key: Document(**value) for key, value in data["documents"].items()}
    data["memories"] = {key: Memory(**value) for key, value in data["memories"].items()}
    data["written"] = [(document_id, text) for document_id, text in data["written"]]
    return Bank(**data)
