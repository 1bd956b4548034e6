"""What the tests of `deploy/` share: its files, and the chart without Helm."""

import re
from pathlib import Path
from typing import Any

import yaml
from annotated_types import Le
from service.settings import Settings

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "dify-memory"

_COMMENT = re.compile(r"\{\{-?\s*/\*.*?\*/\s*-?\}\}", re.DOTALL)
_DEFINE = re.compile(r'\{\{-? define "([\w.-]+)" -?\}\}\n(.*?)\n?\{\{-? end -?\}\}(?=\n\n|\n*\Z)', re.DOTALL)
_ACTION = re.compile(r"\{\{.*?\}\}")
_ALONE = re.compile(r"\s*\{\{.*\}\}\s*")
_INCLUDE = re.compile(r'(\s*)\{\{-? include "([\w.-]+)" .*?(?:\| nindent (\d+) )?\}\}\s*')


def texts() -> dict[str, str]:
    """Every file below `deploy/` by its path there, but for what an operator has made (`.gitignore`)."""
    made = {"memory.env", ".env", "files", "__pycache__"}
    return {
        str(path.relative_to(DEPLOY)): path.read_text("utf-8")
        for path in sorted(DEPLOY.rglob("*"))
        if path.is_file()
        and made.isdisjoint(path.relative_to(DEPLOY).parts)
        and "__pycache__" not in path.parts
    }


def most(setting: str) -> float:
    """The largest value that a setting may have."""
    [limit] = [each.le for each in Settings.model_fields[setting].metadata if isinstance(each, Le)]
    return float(str(limit))


def compose(name: str = "compose.yaml") -> dict[str, Any]:
    """A compose file, its anchors resolved and its variables as they are written."""
    loaded: dict[str, Any] = yaml.safe_load((DEPLOY / name).read_text("utf-8"))
    return loaded


def chart_documents(template: str) -> list[dict[str, Any]]:
    """What a template makes at most, with `x` for each value: every branch taken, every loop walked once.

    Not what Helm makes, but it has the same structure, without needing Helm.
    """
    defines = dict(_DEFINE.findall(_COMMENT.sub("", (CHART / "templates/_helpers.tpl").read_text("utf-8"))))
    text = _structure((CHART / "templates" / template).read_text("utf-8"), defines)
    return [document for document in yaml.safe_load_all(text) if document]


def _structure(text: str, defines: dict[str, str]) -> str:
    lines: list[str] = []
    for line in _COMMENT.sub("", text).splitlines():
        if found := _INCLUDE.fullmatch(line):
            indent = " " * int(found[3] or len(found[1]))
            lines += [indent + inner for inner in _structure(defines[found[2]], defines).splitlines()]
        elif not _ALONE.fullmatch(line) or line.lstrip().startswith("{{ $name }}"):
            lines.append(_ACTION.sub("x", line))
    return "\n".join(lines)
