"""The frame of the pages `/me` and `/admin`: document, language switch, common style, locked-down headers.

A page is one document with its style sheet inside, which the policy allows by its digest and nothing else.
"""

import base64
import hashlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from service.policy.html import NOTHING, Html, fill, join

BASE_STYLE: Final = """
:root { color-scheme: light dark; --back: #ffffff; --text: #1b1c1e; --faint: #55585d; --line: #8a8d93;
  --link: #0b4fb3; --button: #0b4fb3; --on-button: #ffffff; --danger: #a5211a; --on-danger: #ffffff;
  --good: #e7f3e9; --bad: #fdeceb; --good-line: #2e7d43; }
@media (prefers-color-scheme: dark) { :root { --back: #16171a; --text: #ececee; --faint: #b3b6bc;
  --line: #83868d;
  --link: #9cc2ff; --button: #9cc2ff; --on-button: #10233f; --danger: #ffb4ab; --on-danger: #3b0906;
  --good: #17311c; --bad: #401512; --good-line: #63b578; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 0 1rem 3rem; max-width: 46rem; background: var(--back); color: var(--text);
  font: 1rem/1.6 system-ui, "Noto Sans", "PingFang SC", "Microsoft YaHei", "Noto Sans CJK SC", sans-serif;
  overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.3; } h2 { font-size: 1.25rem; margin: 2rem 0 .5rem; }
h3 { font-size: 1rem; margin: 1.5rem 0 .25rem; }
a { color: var(--link); }
:focus-visible { outline: 3px solid var(--link); outline-offset: 2px; }
.skip { position: absolute; left: -999rem; } .skip:focus { position: static; }
header { display: flex; flex-wrap: wrap; justify-content: flex-end; gap: .5rem; padding: .75rem 0; }
header ul { display: flex; gap: .25rem; list-style: none; margin: 0; padding: 0; }
header a { display: inline-block; padding: .6rem .75rem; }
header a[aria-current] { font-weight: bold; text-decoration: none; color: var(--text); }
.faint { color: var(--faint); font-size: .9rem; margin: .25rem 0; }
.list { list-style: none; margin: 0; padding: 0; }
.list > li { border: 1px solid var(--line); border-radius: .5rem; padding: .75rem 1rem; margin: .5rem 0; }
.words { margin: 0; white-space: pre-wrap; }
summary { cursor: pointer; padding: .6rem 0; color: var(--link); min-height: 2.75rem; }
label { display: block; margin: .75rem 0 .25rem; }
.tick { display: flex; gap: .6rem; align-items: flex-start; }
.tick input { width: 1.5rem; height: 1.5rem; flex: none; }
.tick label { margin: 0; }
input[type=search], input[type=date], select, textarea { width: 100%; font: inherit; padding: .55rem .7rem;
  min-height: 2.75rem; color: var(--text); background: var(--back); border: 1px solid var(--line);
  border-radius: .4rem; }
button { font: inherit; min-height: 2.75rem; padding: .5rem 1.1rem; margin: .75rem .5rem 0 0;
  border-radius: .4rem; border: 1px solid var(--button); background: var(--button);
  color: var(--on-button); cursor: pointer; }
button.plain { background: var(--back); color: var(--link); }
button.danger { background: var(--danger); border-color: var(--danger); color: var(--on-danger); }
.danger-link { color: var(--danger); font-weight: bold; display: inline-block; padding: .6rem 0; }
.done, .problem { border: 1px solid var(--line); border-left-width: .5rem; border-radius: .4rem;
  padding: .25rem 1rem 1rem; margin: 1rem 0; background: var(--good); }
.done { border-left-color: var(--good-line); }
.problem { background: var(--bad); border-left-color: var(--danger); }
.two-ways { display: flex; flex-wrap: wrap; gap: 0 1.5rem; align-items: flex-start; }
.two-ways > details[open] { flex-basis: 100%; }
.fields { display: grid; grid-template-columns: repeat(auto-fit, minmax(13rem, 1fr)); gap: 0 1rem; }
dl { display: grid; grid-template-columns: minmax(8rem, max-content) 1fr; gap: .2rem 1rem; margin: .5rem 0; }
dd { margin: 0; }
@media (max-width: 30rem) { dl { grid-template-columns: 1fr; }
  dd { margin-bottom: .4rem; font-weight: bold; } }
@media print { header, details, button, form { display: none; } }
"""


def headers_with(style: str) -> Mapping[str, str]:
    """Of every answer of a page with that style: it loads nothing, sends nothing elsewhere, is neither kept
    nor framed."""
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return MappingProxyType(
        {
            "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{digest}'; "
            "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
            "X-Frame-Options": "DENY",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
            "X-Robots-Tag": "noindex",
            "Cache-Control": "no-store",
            "Vary": "Accept-Language, Cookie",
        }
    )


def document(
    *,
    lang: str,
    title: str,
    skip: str,
    language: str,
    switch_to: str,
    body: Html,
    style: str,
    head: Html = NOTHING,
) -> Html:
    """A whole page. `switch_to` is where its language is switched, to which `?lang=zh` is added."""
    return fill(
        """<!DOCTYPE html>
<html lang="{lang}"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>{head}<style>{style}</style></head>
<body><a class="skip" href="#content">{skip}</a>
<header><nav aria-label="{language}"><ul>{languages}</ul></nav></header>
<main id="content" tabindex="-1">
{body}
</main></body></html>
""",
        lang=lang,
        title=title,
        head=head,
        style=Html(style),
        skip=skip,
        language=language,
        languages=join(
            _language_link(switch_to, short, its_lang, name, is_current=its_lang == lang)
            for short, its_lang, name in (("zh", "zh-CN", "中文"), ("en", "en", "English"))
        ),
        body=body,
    )


def _language_link(to: str, short: str, lang: str, name: str, *, is_current: bool) -> Html:
    return fill(
        '<li><a href="{to}?lang={short}" lang="{lang}" hreflang="{lang}"{current}>{name}</a></li>',
        to=to,
        short=short,
        lang=lang,
        current=Html(' aria-current="true"') if is_current else NOTHING,
        name=name,
    )


def problem_box(said: str) -> Html:
    """What went wrong, read out at once."""
    return fill('<div class="problem" role="alert"><p>{said}</p></div>', said=said)
