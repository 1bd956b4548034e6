"""HTML from templates in which everything is escaped that is not HTML already."""

from collections.abc import Iterable
from html import escape


class Html(str):
    """Text that is HTML: what `fill` and `join` have made, and literals of ours."""

    __slots__ = ()


def fill(template: str, **parts: object) -> Html:
    """`template` with `{name}` replaced; texts are escaped, so that they can stand in quoted attributes, too.

    Only what is `Html` stays as it is.
    """
    return Html(template.format_map({name: _shown(value) for name, value in parts.items()}))


def join(parts: Iterable[Html]) -> Html:
    """Several pieces of HTML, one after the other."""
    return Html("\n".join(map(_shown, parts)))


NOTHING = Html("")


def _shown(value: object) -> str:
    return value if isinstance(value, Html) else escape(str(value), quote=True)
