"""`python -m tests.readme [--write]`: what the documentation says of the settings, made from the code.

The table in the README, and `deploy/memory.env.example`, which an operator copies and fills in.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from pydantic import SecretStr
from pydantic_core import PydanticUndefined
from service.settings import Settings

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
EXAMPLE = ROOT / "deploy" / "memory.env.example"
BEGIN = "<!-- settings: made by `python -m tests.readme --write`, held to the code by a test -->\n"
END = "<!-- /settings -->"


def settings() -> Iterator[tuple[str, str, str]]:
    """Variable, default ("" for none) and meaning of each setting."""
    for name, field in Settings.model_fields.items():
        default = field.default
        has_none = default in (None, PydanticUndefined) or isinstance(default, SecretStr)
        yield f"MEMORY_{name.upper()}", "" if has_none else str(default), str(field.description)


def table() -> str:
    """One row a setting."""
    rows = ["| variable | default | meaning |", "|---|---|---|"]
    rows += [
        f"| `{name}` | {f'`{default}`' if default else ''} | {text} |" for name, default, text in settings()
    ]
    return "\n".join(rows) + "\n"


def rendered() -> str:
    """The README with the table as it should be."""
    text = README.read_text("utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + table() + END + after


def example() -> str:
    """The example as it should be."""
    lines = ["# Settings of dify-memory: copy, uncomment what you change, and load it into both processes."]
    for name, default, text in settings():
        lines += ["", f"# {text}", f"#{name}={default}"]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write both, or say which is out of date."""
    wanted = {README: rendered(), EXAMPLE: example()}
    if "--write" in sys.argv[1:]:
        for path, text in wanted.items():
            path.write_text(text, "utf-8")
        return 0
    old = [path.name for path, text in wanted.items() if not path.exists() or path.read_text("utf-8") != text]
    for name in old:
        sys.stderr.write(f"{name} is out of date: run python -m tests.readme --write\n")
    return 1 if old else 0


if __name__ == "__main__":
    sys.exit(main())
