"""The README says what exists: settings, routes, commands, files."""

import re
from pathlib import Path

import click
from service.app import create_app
from service.cli.main import main
from service.settings import Settings

from tests import readme

ROOT = Path(__file__).parents[2]
TEXT = readme.README.read_text("utf-8")
# Documents about the API itself are not part of it.
_UNLISTED = {"/openapi.json", "/docs", "/docs/oauth2-redirect"}


def _settings() -> Settings:
    return Settings.model_validate({"api_key": "test-key-0123456789"})


def test_the_settings_table_is_the_code_s() -> None:
    assert readme.rendered() == TEXT, "run python -m tests.readme --write"


def test_the_example_environment_is_the_code_s() -> None:
    assert readme.EXAMPLE.read_text("utf-8") == readme.example(), "run python -m tests.readme --write"


def test_every_setting_named_in_the_text_exists() -> None:
    known = {f"MEMORY_{name.upper()}" for name in Settings.model_fields}
    # A template's own variable.
    named = set(re.findall(r"\bMEMORY_[A-Z0-9_]*[A-Z0-9]\b", TEXT)) - {"MEMORY_URL"}
    assert named <= known, named - known


def test_every_route_is_in_the_readme_and_the_other_way_round() -> None:
    routes = set(create_app(_settings()).openapi()["paths"]) - _UNLISTED
    named = set(re.findall(r"`(?:GET|POST) (/[^`?]*)", TEXT))
    named |= {f"/health/{kind}" for kind in ("live", "ready") if f"/health/{kind}" in TEXT}
    assert named == routes


def test_every_command_is_in_the_readme_and_the_other_way_round() -> None:
    commands = set(main.list_commands(click.Context(main)))
    named = set(re.findall(r"`dify-memory ([a-z-]+)", TEXT))
    assert named == commands


def test_every_make_target_named_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make ([a-z][a-z-]*)", TEXT, re.MULTILINE))
    assert named
    assert named <= targets, named - targets


def test_every_file_linked_exists() -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", TEXT):
        assert (ROOT / target).exists(), target
