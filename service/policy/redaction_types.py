"""What redaction looks for, and where it was found."""

from typing import Final, Literal, NamedTuple

Kind = Literal["secret", "card", "national_id", "iban", "passport", "phone", "email", "address"]

# Where two overlap, the first of these names the mask.
KINDS: Final[tuple[Kind, ...]] = (
    "secret",
    "card",
    "national_id",
    "iban",
    "passport",
    "phone",
    "email",
    "address",
)


class Span(NamedTuple):
    """`text[start:end]` is sensitive, and of which kind."""

    start: int
    end: int
    kind: Kind
