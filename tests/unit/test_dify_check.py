"""The template checker: good templates have no findings, and each single fault has the one that names it."""

import copy
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from service.cli.templates import templates
from service.policy.dify_check import check_template
from service.policy.dify_flow import read_flow
from service.policy.dify_template import LANGUAGES, TEMPLATES, TemplateName, file_name, render
from service.policy.dify_texts import TEXTS, Language

from tests.fakes.dify_faults import (
    CHAT,
    FAULTS,
    SUPPORT,
    WARNINGS,
    Change,
    Json,
    add_node,
    edges_of,
    json_body,
    link,
    set_data,
    set_field,
    set_key,
    set_prompt,
    several,
)

_COMMITTED = Path(__file__).parents[2] / "dify_templates"


@cache
def _parsed(template: TemplateName) -> Json:
    data: Json = yaml.load(render(template, "en"), Loader=yaml.CSafeLoader)
    return data


def _found(template: TemplateName, change: Change) -> set[tuple[str, str]]:
    """(code, node) of the findings after one change."""
    data = copy.deepcopy(_parsed(template))
    change(data)
    text = yaml.dump(data, Dumper=yaml.CSafeDumper, allow_unicode=True)
    return {(finding.code, finding.node) for finding in check_template(text)}


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("template", TEMPLATES)
def test_our_templates_have_no_findings(template: TemplateName, language: Language) -> None:
    assert check_template(render(template, language)) == []


@pytest.mark.parametrize(
    ("code", "template", "node_id", "change"), FAULTS, ids=[f"{n}-{f[0]}" for n, f in enumerate(FAULTS)]
)
def test_each_fault_is_named_and_at_its_node(
    code: str, template: TemplateName, node_id: str, change: Change
) -> None:
    titles = {item["id"]: item["data"]["title"] for item in _parsed(template)["workflow"]["graph"]["nodes"]}
    assert (code, titles.get(node_id, node_id)) in _found(template, change)


def test_every_fault_the_checker_knows_is_tried() -> None:
    source = "".join(
        path.read_text(encoding="utf-8")
        for path in (Path(__file__).parents[2] / "service" / "policy").glob("dify_check*.py")
    )
    known = set(re.findall(r'(?:error|warning)\(\s*"([a-z_]+)"', source))
    assert known == {code for code, *_ in FAULTS}


@pytest.mark.parametrize(
    "change",
    [
        set_field("recall", "user_id", "web-{{#sys.user_id#}}"),
        set_field("recall", "top_k", "8"),
        set_data("recall", headers="X-Tenant: {{#env.MEMORY_URL#}}"),
        set_data("recall", params="monkey: business"),
        json_body('{"user_id": "u", "n": {{#sys.dialogue_count#}}, "format": "text"}'),
        set_prompt("{{#context#}} and {{ braces }} and {{#recall.body#}}"),
        several(
            set_field("remember", "turn_id", None),
            set_data("remember", retry_config={"retry_enabled": False}),
        ),
        add_node("other", "llm", type="a-kind-of-the-future", anything={"x": "{{#llm.text#}}"}),
        add_node("t", "llm", type="template-transform", template="{{ a | tojson }}", variables=[]),
        lambda data: data.update(version="0.5.0"),
    ],
)
def test_what_is_allowed_is_not_reported(change: Change) -> None:
    found = {code for code, _ in _found(CHAT, change)}
    assert found <= {"users_differ", "user_fixed"}


def test_json_that_a_node_has_encoded_is_allowed() -> None:
    encoded = several(
        add_node("enc", "start", type="template-transform", template="{{ q | tojson }}", variables=[]),
        link("enc", "recall"),
        lambda data: edges_of(data)[-1].update(id="new-2"),
        json_body('{"user_id": {{#enc.output#}}, "format": "text"}'),
    )
    assert "json_breakout" not in {code for code, _ in _found(CHAT, encoded)}


def test_a_fail_branch_before_the_model_is_allowed() -> None:
    change = several(
        set_data("recall", error_strategy="fail-branch"),
        add_node("sorry", "recall", type="answer", answer="Sorry."),
        lambda data: edges_of(data)[-1].update(sourceHandle="fail-branch"),
    )
    assert _found(CHAT, change) == set()


def test_findings_are_plain_words_for_a_users_export() -> None:
    body = '{"user_id": "{{#sys.user_id#}}", "query": "{{#sys.query#}}"}'
    data = copy.deepcopy(_parsed(CHAT))
    json_body(body)(data)
    text = yaml.dump(data, Dumper=yaml.CSafeDumper, allow_unicode=True)
    (first, *_) = [str(item) for item in check_template(text) if item.code == "json_breakout"]
    assert first.startswith("error: “Recall”: sys.")
    assert "another user's user_id" in first
    assert "x-www-form-urlencoded" in first


def test_errors_come_before_warnings() -> None:
    data = copy.deepcopy(_parsed(CHAT))
    several(set_data("recall", url="http://x/memory/recall"), set_key(api_key="k"))(data)
    found = [item.severity for item in check_template(yaml.dump(data, Dumper=yaml.CSafeDumper))]
    assert found == sorted(found)
    assert set(found) == {"error", "warning"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "a: [",
        "\x00",
        "kind: app",
        "kind: app\napp: 3",
        "!!python/object:os.system {}",
        "&a [*a]",
    ],
)
def test_what_is_no_app_is_one_finding(text: str) -> None:
    assert [item.code for item in check_template(text)] == ["unreadable"]


_TREE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.just("{{#sys.query#}}"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(tree=_TREE, where=st.integers(0, 10_000))
def test_no_shape_of_a_file_breaks_the_checker(tree: object, where: int) -> None:
    """Any part of a good template replaced by anything: findings at most, no exception."""
    data = copy.deepcopy(_parsed(SUPPORT))
    places: list[tuple[Any, Any]] = []

    def collect(value: Any) -> None:
        items = (
            value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        )
        for key, inner in items:
            places.append((value, key))
            collect(inner)

    collect(data)
    holder, key = places[where % len(places)]
    holder[key] = tree
    check_template(yaml.dump(data, Dumper=yaml.CSafeDumper, allow_unicode=True))


# --- The templates as files --------------------------------------------------------------------------------
def test_the_committed_templates_are_current() -> None:
    for template in TEMPLATES:
        for language in LANGUAGES:
            name = file_name(template, language)
            text = (_COMMITTED / name).read_text(encoding="utf-8")
            assert text == render(template, language), f"run `dify-memory templates` ({name})"


def test_both_languages_have_every_text() -> None:
    assert set(TEXTS["en"]) == set(TEXTS["zh"])
    for language, texts in TEXTS.items():
        for name, text in texts.items():
            assert text.strip(), (language, name)
        # One phrase each would do what another already did.
        phrases = [phrase for name in texts if name.startswith("say_") for phrase in texts[name].split("|")]
        assert len(phrases) == len(set(phrases))


@pytest.mark.parametrize("template", TEMPLATES)
def test_both_languages_are_the_same_flow(template: TemplateName) -> None:
    flows = [read_flow(render(template, language)) for language in LANGUAGES]
    shapes = [
        ([(node.id, node.kind) for node in flow.nodes], [(e.source, e.handle, e.target) for e in flow.edges])
        for flow in flows
    ]
    assert shapes[0] == shapes[1]


def test_the_command_renders_for_a_deployment_without_a_key(tmp_path: Path) -> None:
    out = tmp_path / "rendered"
    done = CliRunner().invoke(templates, ["--base-url", "https://memory.example.com/", "--out", str(out)])
    assert done.exit_code == 0, done.output
    names = {path.name for path in out.iterdir()}
    assert names == {file_name(template, language) for template in TEMPLATES for language in LANGUAGES}
    for path in out.iterdir():
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
        variables = {item["name"]: item for item in data["workflow"]["environment_variables"]}
        if "openai" not in path.name:
            assert variables["MEMORY_URL"]["value"] == "https://memory.example.com"
            assert variables["MEMORY_API_KEY"] | {"value": ""} == variables["MEMORY_API_KEY"]
    checked = CliRunner().invoke(templates, ["--check", "--strict", *map(str, out.iterdir())])
    assert checked.exit_code == 0, checked.output


@pytest.mark.parametrize("url", ["http://localhost:8000", "memory:8000", "https://memory:8443"])
def test_the_command_refuses_an_address_dify_cannot_reach(tmp_path: Path, url: str) -> None:
    done = CliRunner().invoke(templates, ["--base-url", url, "--out", str(tmp_path / "rendered")])
    assert done.exit_code == 1
    assert not (tmp_path / "rendered").exists()


@pytest.mark.parametrize("name", ["README.md", "README.zh.md"])
def test_the_guide_names_the_address_that_compose_gives_the_service(name: str) -> None:
    guide = (_COMMITTED / name).read_text("utf-8")
    services = yaml.safe_load((_COMMITTED.parent / "deploy/compose.dify.yaml").read_text("utf-8"))["services"]
    [row] = [line for line in guide.splitlines() if "SSRF_PROXY_ALLOW_PRIVATE_DOMAINS=" in line]
    for pattern in (r"`http://([^.`:]+):8000`", r"DOMAINS=([^`]+)`"):
        assert re.findall(pattern, row) == list(services)
    assert set(re.findall(r"http://([\w-]+):8000", guide)) == set(services)


def test_the_command_checks_a_users_export(tmp_path: Path) -> None:
    bad, warned = tmp_path / "bad.yml", tmp_path / "warned.yml"
    for path, change in ((bad, set_key(api_key="k-123456")), (warned, set_field("recall", "format", None))):
        data = copy.deepcopy(_parsed(CHAT))
        change(data)
        path.write_text(yaml.dump(data, allow_unicode=True), encoding="utf-8")
    runner = CliRunner()
    failed = runner.invoke(templates, ["--check", str(bad), str(warned)])
    assert failed.exit_code == 1
    assert f"{bad}: error: “Recall”: Its API key is written into the file" in failed.output
    assert f"{warned}: warning: “Recall”" in failed.output
    assert runner.invoke(templates, ["--check", str(warned)]).exit_code == 0
    assert runner.invoke(templates, ["--check", "--strict", str(warned)]).exit_code == 1
    assert runner.invoke(templates, ["--check"]).exit_code == 2
    assert runner.invoke(templates, [str(warned)]).exit_code == 2
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    assert runner.invoke(templates, ["--check", str(tmp_path / "binary")]).exit_code == 1


def test_warnings_are_the_ones_that_may_be_lived_with() -> None:
    for code, template, _, change in FAULTS:
        data = copy.deepcopy(_parsed(template))
        change(data)
        text = yaml.dump(data, Dumper=yaml.CSafeDumper, allow_unicode=True)
        severity = {item.severity for item in check_template(text) if item.code == code}
        assert severity == {"warning" if code in WARNINGS else "error"}, code


@pytest.mark.parametrize(("readme", "language"), [("README.md", "en"), ("README.zh.md", "zh")])
def test_the_guide_names_what_there_is(readme: str, language: Language) -> None:
    text = (_COMMITTED / readme).read_text(encoding="utf-8")
    for template in TEMPLATES:
        assert f"### {template}\n" in text
        assert f"`{file_name(template, language)}`" in text
    for title in ("recall", "remember", "llm", "wish", "in_reach", "as_lines"):
        assert TEXTS[language][title].split(" (")[0] in text, title
    for key in ("say_forget", "say_known", "say_how"):
        assert TEXTS[language][key].split("|")[0] in text
    for variable in ("MEMORY_URL", "MEMORY_API_KEY"):
        assert f"`{variable}`" in text
    for path in re.findall(r"\]\((README[\w.]*)\)", text):
        assert (_COMMITTED / path).is_file()
    for anchor in re.findall(r"\]\(#([^)]+)\)", text):
        headings = [
            line.strip("# ").lower().replace(" ", "-") for line in text.splitlines() if line[:2] == "##"
        ]
        assert anchor in headings
