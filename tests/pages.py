"""Reading a page the way a browser without scripts does: its texts, forms, and whether it is well-made."""

from dataclasses import dataclass, field
from html.parser import HTMLParser
from itertools import pairwise

_VOID = {"meta", "input", "br", "link", "line", "rect", "circle", "polyline"}
_WORDS = (
    "html head meta title style body a header nav ul li main h1 h2 h3 p div section form input label select "
    "option button details summary textarea dl dt dd strong br span code figure figcaption svg line rect "
    "circle polyline text table thead tbody tr th td fieldset legend"
)
_ALLOWED = frozenset(_WORDS.split())


@dataclass
class Form:
    """A form with the fields that a browser would send untouched, and the words on its button."""

    action: str
    method: str
    fields: dict[str, str] = field(default_factory=dict)
    button: str = ""


@dataclass
class _Element:
    tag: str
    attributes: dict[str, str]
    text: str = ""


class Page(HTMLParser):
    """A page; `check` fails on what a screen reader or a strict browser would stumble over."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.source = text
        self.forms: list[Form] = []
        self.elements: list[_Element] = []
        self._open: list[_Element] = []
        self.feed(text)
        self.close()
        assert not self._open, f"not closed: {self._open[-1].tag}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """An element begins."""
        names = [name for name, _ in attrs]
        assert len(set(names)) == len(names), f"two attributes of one name: {tag} {names}"
        attributes = {name: value or "" for name, value in attrs}
        element = _Element(tag, attributes)
        self.elements.append(element)
        if tag not in _VOID:
            self._open.append(element)
        if tag == "form":
            self.forms.append(Form(attributes["action"], attributes["method"]))
        elif tag == "input" and (attributes["type"] != "checkbox" or "checked" in attributes):
            self.forms[-1].fields[attributes["name"]] = attributes.get("value", "")
        elif tag == "option":
            name = next(one for one in reversed(self._open) if one.tag == "select").attributes["name"]
            if "selected" in attributes or name not in self.forms[-1].fields:
                self.forms[-1].fields[name] = attributes["value"]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """An element of an SVG that ends itself."""
        assert tag in _VOID, tag
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        """It ends: in the order in which they began."""
        closed = self._open.pop()
        assert closed.tag == tag, f"<{closed.tag}> is closed by </{tag}>"
        if tag == "textarea":
            self.forms[-1].fields[closed.attributes["name"]] = closed.text.removeprefix("\n")
        elif tag == "button":
            self.forms[-1].button = closed.text

    def handle_data(self, data: str) -> None:
        """Text of all elements that are open."""
        for element in self._open:
            element.text += data

    def all(self, tag: str, class_: str = "") -> list[_Element]:
        """Elements of a kind, in order."""
        return [
            one
            for one in self.elements
            if one.tag == tag and (not class_ or class_ in one.attributes.get("class", "").split())
        ]

    @property
    def words(self) -> list[str]:
        """The memories and waiting turns that are shown."""
        return [one.text for one in self.all("p", "words")]

    @property
    def text(self) -> str:
        """All that can be read in the body."""
        return self.all("main")[0].text

    def form(self, action: str, button: str = "") -> Form:
        """The first form with that action (and button)."""
        return next(
            form for form in self.forms if form.action == action and (not button or form.button == button)
        )

    def check(self, place: str = "") -> None:
        """What WCAG and our content security policy ask for, as far as the source shows it.

        `place` is the id of what was linked to, if anything was.
        """
        by_id: dict[str, _Element] = {}
        for one in self.elements:
            assert one.tag in _ALLOWED, one.tag
            for name, value in one.attributes.items():
                assert not name.startswith("on"), name
                assert name != "style", name
                if name in ("href", "action"):
                    assert not value.startswith(("http:", "https:", "//", "javascript:", "data:")), value
            if "id" in one.attributes:
                assert one.attributes["id"] not in by_id, f"two of one id: {one.attributes['id']}"
                by_id[one.attributes["id"]] = one
        assert not place or place in by_id
        assert self.elements[0].attributes["lang"] in ("en", "zh-CN")
        assert self.all("title")[0].text
        assert len(self.all("main")) == len(self.all("h1")) == 1
        self._check_names(by_id)
        levels = [int(one.tag[1]) for one in self.elements if one.tag in ("h1", "h2", "h3")]
        assert levels[0] == 1
        assert all(after - before <= 1 for before, after in pairwise(levels)), levels

    def _check_names(self, by_id: dict[str, _Element]) -> None:
        labels = {one.attributes["for"]: one.text for one in self.all("label")}
        for one in self.elements:
            for name in ("aria-labelledby", "aria-describedby", "for"):
                for target in one.attributes.get(name, "").split():
                    assert by_id[target].text or by_id[target].tag in ("input", "select", "textarea"), target
            if (
                one.tag in ("input", "select", "textarea")
                and one.attributes.get("type") != "hidden"
                and ("hidden" not in one.attributes)
            ):
                assert labels[one.attributes["id"]].strip(), one
            if one.tag in ("button", "a", "summary"):
                assert one.text.strip(), one
            if one.tag == "a" and one.attributes["href"].startswith("#"):
                assert one.attributes["href"][1:] in by_id, one
            if one.tag == "section":
                assert one.attributes["aria-labelledby"] in by_id
            if one.tag == "svg":
                assert one.attributes["role"] == "img"
                assert by_id[one.attributes["aria-labelledby"]].text
            if one.tag == "table":
                assert one.text.strip()
