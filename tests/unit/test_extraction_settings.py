"""Who makes memories, and what is kept, as an operator sets it."""

from pathlib import Path

import pytest
from pydantic import ValidationError
from service.memory.policies import Policies
from service.policy.bank_config import bank_config
from service.policy.kinds import DEFAULT_KINDS, KeepPolicy, Kind
from service.policy.policy_mistakes import PolicyFileError
from service.policy.redaction import RedactionPolicy
from service.policy.tenant_policy import TenantPolicy
from service.settings import Settings


def settings(**fields: object) -> Settings:
    return Settings.model_validate(fields)


def policy_of(of: Settings) -> TenantPolicy:
    return Policies.from_settings(of).of(of.tenant)


@pytest.mark.parametrize(
    ("fields", "mode"),
    [
        ({}, "auto"),
        ({"llm_model": "openai/m"}, "litellm"),
        ({"llm_model": "openai/m", "extraction": "none"}, "none"),
        ({"llm_model": "openai/m", "extraction": "hindsight"}, "hindsight"),
        ({"extraction": "hindsight"}, "hindsight"),
    ],
)
def test_the_mode_is_what_is_set_or_what_can_be_had(fields: dict[str, object], mode: str) -> None:
    assert settings(**fields).extraction_mode == mode


def test_our_own_extraction_needs_a_model() -> None:
    with pytest.raises(ValidationError, match="MEMORY_LLM_MODEL"):
        settings(extraction="litellm")


def test_fallbacks_stand_in_only_for_a_model() -> None:
    assert settings(llm_fallbacks="a").llm_models == ()
    assert settings(llm_model="a", llm_fallbacks="b, a ,,c").llm_models == ("a", "b", "c")


@pytest.mark.parametrize("kinds", ["", " ", "a,,b", "a b", "a;b", ","])
def test_kinds_are_a_list_of_names(kinds: str) -> None:
    with pytest.raises(ValidationError, match="kinds"):
        settings(kinds=kinds)


def test_the_policy_is_the_settings_unless_a_file_says_otherwise(tmp_path: Path) -> None:
    plain = policy_of(settings(kinds="preference, pets", importance_threshold=0.7))
    assert plain.keep == KeepPolicy((DEFAULT_KINDS[1], Kind("pets")), 0.7)
    assert plain.redaction == RedactionPolicy()
    path = tmp_path / "policy.yaml"
    path.write_text("version: 1\ntenants:\n  acme: {redaction: {email: drop}}\n", "utf-8")
    theirs = policy_of(settings(kinds="pets", policy_file=path, tenant="acme"))
    assert theirs.keep == KeepPolicy((Kind("pets"),), 0.5)
    assert theirs.redaction == RedactionPolicy(email="drop")


@pytest.mark.parametrize("content", [None, b"\xff", b"version: 2"])
def test_a_file_that_cannot_be_used_is_no_policy(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "policy.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(PolicyFileError, match="line 1"):
        policy_of(settings(policy_file=path))


def test_a_bank_is_configured_for_who_extracts() -> None:
    policy = KeepPolicy((Kind("pets", "Animals.", "动物。"),))
    assert bank_config("auto", policy) == {}
    assert bank_config("none", policy) == bank_config("litellm", policy)
    assert bank_config("none", policy)["retain_extraction_mode"] == "chunks"
    kinds, importance = bank_config("hindsight", policy)["entity_labels"]
    assert (kinds["key"], kinds["tag"]) == ("memory_type", True)
    assert kinds["values"] == [{"value": "pets", "description": "Animals. 动物。"}]
    assert all(0 <= float(one["value"]) <= 1 for one in importance["values"])


def test_words_that_may_not_be_kept_as_they_are_wait_for_a_budget() -> None:
    assert settings(extraction_over_budget="none").extraction_over_budget == "none"
    with pytest.raises(ValidationError, match="extraction_over_budget"):
        settings(extraction_fallback="dead_letter", extraction_over_budget="none")
