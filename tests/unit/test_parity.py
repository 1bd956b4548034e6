"""The table beside hindsight-litellm: every option is in it, and every test it names is there."""

import re
from pathlib import Path

from service.policy.chat_options import MemoryOptions

ROOT = Path(__file__).parents[2]
TABLE = (ROOT / "deploy" / "examples" / "model.md").read_text("utf-8")
# What hindsight-litellm 0.5.4 lets a caller configure, default or override.
OFFERED = (
    "hindsight_api_url", "api_key", "bank_id", "entity_id", "session_id", "document_id", "hindsight_query",
    "store_conversations", "inject_memories", "injection_mode", "excluded_models", "sync_storage", "verbose",
    "budget", "fact_types", "max_memories", "max_memory_tokens", "include_entities", "use_reflect",
    "reflect_include_facts", "reflect_context", "reflect_response_schema", "trace", "tags", "recall_tags",
    "recall_tags_match",
)  # fmt: skip


def test_every_option_is_told_of() -> None:
    told = set(re.findall(r"`([a-z_]+)(?::[^`]*)?`", TABLE))
    assert set(MemoryOptions.model_fields) <= told


def test_everything_it_offers_is_told_of() -> None:
    first_column = " ".join(re.findall(r"^\| ([^|]*) \|", TABLE, re.MULTILINE))
    assert [name for name in OFFERED if name not in first_column] == []


def test_every_test_that_is_named_exists() -> None:
    written = "\n".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    named = set(re.findall(r"`(test_\w+)`", TABLE))
    assert len(named) > 20
    assert [name for name in named if f"def {name}(" not in written] == []
