"""Secrets known by their form: keys and tokens of common services, JWTs, private keys, passwords in URLs.

Each form has a literal part; its pattern runs only when that part occurs, which almost no text does. Every
pattern either has a bounded length or cannot start again inside what it has read: linear time.
"""

import re
from collections.abc import Iterator
from typing import Final

from service.policy.redaction_fold import Folded
from service.policy.redaction_types import Span

_EDGE: Final = r"(?<![A-Za-z0-9_-])"
# Literal part → pattern; a group named `value` is the secret, else the whole match is.
_FORMS: Final = tuple(
    (needle, re.compile(pattern))
    for needle, pattern in (
        ("AKIA", r"(?<![A-Za-z0-9])AKIA[A-Z0-9]{16}(?![A-Za-z0-9])"),
        ("ASIA", r"(?<![A-Za-z0-9])ASIA[A-Z0-9]{16}(?![A-Za-z0-9])"),
        ("LTAI", r"(?<![A-Za-z0-9])LTAI[A-Za-z0-9]{12,26}(?![A-Za-z0-9])"),
        ("AKID", r"(?<![A-Za-z0-9])AKID[A-Za-z0-9]{13,40}(?![A-Za-z0-9])"),
        ("AIza", r"(?<![A-Za-z0-9])AIza[A-Za-z0-9_-]{30,40}+"),
        ("ya29.", r"(?<![A-Za-z0-9])ya29\.[A-Za-z0-9_-]{20,}+"),
        ("GOCSPX-", r"GOCSPX-[A-Za-z0-9_-]{20,40}+"),
        ("ghp_", rf"{_EDGE}ghp_[A-Za-z0-9]{{30,}}+"),
        ("gho_", rf"{_EDGE}gho_[A-Za-z0-9]{{30,}}+"),
        ("ghu_", rf"{_EDGE}ghu_[A-Za-z0-9]{{30,}}+"),
        ("ghs_", rf"{_EDGE}ghs_[A-Za-z0-9]{{30,}}+"),
        ("ghr_", rf"{_EDGE}ghr_[A-Za-z0-9]{{30,}}+"),
        ("github_pat_", rf"{_EDGE}github_pat_[A-Za-z0-9_]{{22,}}+"),
        ("glpat-", rf"{_EDGE}glpat-[A-Za-z0-9_-]{{20,}}+"),
        ("xox", rf"{_EDGE}xox[abeoprs]-[A-Za-z0-9-]{{10,}}+"),
        ("xapp-", rf"{_EDGE}xapp-[A-Za-z0-9-]{{10,}}+"),
        ("k_live_", rf"{_EDGE}[sr]k_live_[A-Za-z0-9]{{16,}}+"),
        ("k_test_", rf"{_EDGE}[sr]k_test_[A-Za-z0-9]{{16,}}+"),
        ("whsec_", rf"{_EDGE}whsec_[A-Za-z0-9+/=]{{16,}}+"),
        ("hf_", rf"{_EDGE}hf_[A-Za-z0-9]{{30,}}+"),
        ("npm_", rf"{_EDGE}npm_[A-Za-z0-9]{{36,}}+"),
        ("pypi-", rf"{_EDGE}pypi-[A-Za-z0-9_-]{{40,}}+"),
        ("SG.", rf"{_EDGE}SG\.[A-Za-z0-9_-]{{16,64}}\.[A-Za-z0-9_-]{{16,64}}"),
        ("dckr_pat_", rf"{_EDGE}dckr_pat_[A-Za-z0-9_-]{{20,}}+"),
        ("shpat_", rf"{_EDGE}shpat_[A-Fa-f0-9]{{32,}}+"),
        ("dop_v1_", rf"{_EDGE}dop_v1_[a-f0-9]{{60,}}+"),
        ("lin_api_", rf"{_EDGE}lin_api_[A-Za-z0-9]{{30,}}+"),
        ("gsk_", rf"{_EDGE}gsk_[A-Za-z0-9]{{40,}}+"),
        ("xai-", rf"{_EDGE}xai-[A-Za-z0-9]{{40,}}+"),
        ("nvapi-", rf"{_EDGE}nvapi-[A-Za-z0-9_-]{{40,}}+"),
        ("tvly-", rf"{_EDGE}tvly-[A-Za-z0-9_-]{{20,}}+"),
        ("pplx-", rf"{_EDGE}pplx-[A-Za-z0-9]{{32,}}+"),
        # Dify's own keys.
        ("app-", rf"{_EDGE}app-(?=[A-Za-z]{{0,23}}[0-9])[A-Za-z0-9]{{24}}(?![A-Za-z0-9_-])"),
        ("dataset-", rf"{_EDGE}dataset-(?=[A-Za-z]{{0,23}}[0-9])[A-Za-z0-9]{{24}}(?![A-Za-z0-9_-])"),
        ("AGE-SECRET-KEY-1", r"AGE-SECRET-KEY-1[A-Z0-9]{50,60}"),
        ("eyJ", rf"{_EDGE}eyJ[A-Za-z0-9_-]{{6,}}+\.[A-Za-z0-9_-]{{4,}}+(?:\.[A-Za-z0-9_-]*+)?"),
        (":AA", r"(?<![0-9])[0-9]{8,10}:AA[A-Za-z0-9_-]{30,40}"),
        (
            "hooks.slack.com/",
            r"hooks\.slack\.com/services/(?P<value>[A-Za-z0-9]{1,20}/[A-Za-z0-9]{1,20}/[A-Za-z0-9]{8,})",
        ),
        ("/api/webhooks/", r"/api/webhooks/[0-9]{1,25}/(?P<value>[A-Za-z0-9_-]{20,}+)"),
        ("/bot/v2/hook/", r"/bot/v2/hook/(?P<value>[A-Za-z0-9-]{20,}+)"),
        ("/webhook/send?key=", r"/webhook/send\?key=(?P<value>[A-Za-z0-9-]{20,}+)"),
        (" -u ", r" -u [^\s:\[]{1,64}:(?P<value>(?!\[)\S{4,128})"),
        (
            "://",
            # Not what documentation writes there, nor a mask.
            (
                r"://[^\s/@:\[\]]{0,64}:(?P<value>(?!(?:pass(?:word|wd)?|pwd|secret|\*+|x+|<[^>\s]{0,40}>|"
                r"\$?\{[^}\s]{0,40}\}|\[[a-z_]{1,20}\])@)[^\s/]{1,128})@"
            ),
        ),
    )
)
# sk-, sk-proj-, sk-ant-: also the beginning of ordinary words with hyphens, so the rest has to look random.
_SK = re.compile(rf"{_EDGE}sk-[A-Za-z0-9_-]{{20,}}+")
_BEGIN: Final = "-----BEGIN "
_PRIVATE = re.compile(r"-----BEGIN [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----")
_PRIVATE_END = re.compile(r"-----END [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----")
_KEY_LINES = re.compile(r"(?:[A-Za-z0-9+/=:,\s\\-])*+")


def find_tokens(folded: Folded) -> Iterator[Span]:
    """Every secret whose form gives it away; they may overlap."""
    text = folded.text
    for needle, pattern in _FORMS:
        # The last character, mostly a mark, is looked for faster than the word.
        if needle[-1] in text and needle in text:
            group = "value" if "value" in pattern.groupindex else 0
            for match in pattern.finditer(text):
                yield Span(*match.span(group), "secret")
    if "sk-" in text:
        for match in _SK.finditer(text):
            if sum(char.isdigit() for char in match[0]) >= 3:
                yield Span(*match.span(), "secret")
    if _BEGIN in text:
        yield from _private_keys(text)


def _private_keys(text: str) -> Iterator[Span]:
    at = 0
    while begin := _PRIVATE.search(text, at):
        end = _PRIVATE_END.search(text, begin.end())
        if end is None:
            # Cut off: everything that can be a key's line, and nothing is searched for an end again.
            lines = _KEY_LINES.match(text, begin.end())
            at = lines.end() if lines else begin.end()
            yield Span(begin.start(), at, "secret")
            for rest in _PRIVATE.finditer(text, at):
                yield Span(*rest.span(), "secret")
            return
        at = end.end()
        yield Span(begin.start(), at, "secret")
