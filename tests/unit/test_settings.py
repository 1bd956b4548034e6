"""Settings: read from `MEMORY_*`, frozen, in range, and silent about secrets."""

from typing import Any, get_args

import annotated_types
import pytest
from pydantic import SecretStr, ValidationError
from service.settings import Settings

FIELDS = Settings.model_fields
NUMBERS = [
    name for name, field in FIELDS.items() if {int, float} & {field.annotation, *get_args(field.annotation)}
]


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in FIELDS:
        monkeypatch.delenv(f"MEMORY_{name.upper()}", raising=False)


def test_every_setting_says_what_it_is() -> None:
    assert all(
        field.description and field.description.strip().endswith((".", "…")) for field in FIELDS.values()
    )


def test_there_are_numbers() -> None:
    assert len(NUMBERS) >= 15


@pytest.mark.parametrize("name", NUMBERS)
def test_every_number_has_a_range_that_holds(name: str) -> None:
    limits = {type(item): item for item in FIELDS[name].metadata}
    least, most = limits[annotated_types.Ge], limits[annotated_types.Le]
    assert isinstance(least, annotated_types.Ge)
    assert isinstance(most, annotated_types.Le)
    low: Any = least.ge
    high: Any = most.le
    for good in (low, high):
        assert getattr(Settings.model_validate({name: good}), name) == good
    for bad in (low - 1, high + 1, "many", float("nan"), float("inf")):
        with pytest.raises(ValidationError):
            Settings.model_validate({name: bad})


def test_the_environment_is_read_and_empty_values_are_not() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEMORY_PORT", "9000")
        patch.setenv("memory_tenant", "acme")
        patch.setenv("MEMORY_API_KEY", "")
        patch.setenv("MEMORY_UNKNOWN", "x")
        settings = Settings()
    assert (settings.port, settings.tenant, settings.api_key) == (9000, "acme", None)


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Settings().port = 1  # type: ignore[misc]


@pytest.mark.parametrize("name", ["api_key", "hindsight_api_key", "llm_api_key"])
def test_a_secret_is_not_printed(name: str) -> None:
    settings = Settings.model_validate({name: "correct-horse-battery"})
    value = getattr(settings, name)
    assert isinstance(value, SecretStr)
    assert value.get_secret_value() == "correct-horse-battery"
    assert "correct-horse" not in repr(settings) + str(settings) + settings.model_dump_json()


def test_every_setting_with_a_secret_name_is_a_secret() -> None:
    for name, field in FIELDS.items():
        if name.endswith(("_key", "_secret", "_token", "_password")):
            assert SecretStr in {field.annotation, *get_args(field.annotation)}, name


def test_a_refusal_does_not_quote_what_was_set() -> None:
    with pytest.raises(ValidationError) as caught:
        Settings.model_validate({"api_key": "short-secret", "redis_url": "http://user:pw-secret@host"})
    assert "secret" not in str(caught.value).replace("SecretStr", "")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hindsight_url", "localhost:8888"),
        ("hindsight_url", "ftp://host"),
        ("hindsight_url", "http://a b"),
        ("redis_url", "127.0.0.1:6379"),
        ("redis_url", "http://127.0.0.1"),
        ("timezone", "Mars/Olympus"),
        ("timezone", "../etc/passwd"),
        ("log_level", "loud"),
        ("tenant", ""),
        ("tenant", "x" * 65),
        ("api_key", "too-short"),
    ],
)
def test_a_value_that_cannot_work_is_refused(name: str, value: str) -> None:
    with pytest.raises(ValidationError, match=name):
        Settings.model_validate({name: value})


def test_urls_lose_their_trailing_slash() -> None:
    settings = Settings.model_validate({"hindsight_url": "http://h:1//", "public_url": "https://p/x/"})
    assert (settings.hindsight_url, settings.public_url) == ("http://h:1", "https://p/x")


def test_the_cache_uses_the_redis_of_accepted_turns_unless_it_has_its_own() -> None:
    settings = Settings.model_validate({"redis_url": "redis://a:1/0"})
    assert settings.effective_cache_redis_url == "redis://a:1/0"
    settings = Settings.model_validate({"redis_url": "redis://a:1/0", "cache_redis_url": "unix:///tmp/x"})
    assert settings.effective_cache_redis_url == "unix:///tmp/x"


def test_the_time_zone_is_a_real_one() -> None:
    assert str(Settings.model_validate({"timezone": "Asia/Shanghai"}).zone) == "Asia/Shanghai"
