"""How the page `/me` looks: one style sheet inside the page, allowed by its digest and nothing else is."""

import base64
import hashlib
from types import MappingProxyType
from typing import Final

STYLE: Final = """
:root { color-scheme: light dark; --back: #ffffff; --text: #1b1c1e; --faint: #55585d; --line: #8a8d93;
  --link: #0b4fb3; --button: #0b4fb3; --on-button: #ffffff; --danger: #a5211a; --on-danger: #ffffff;
  --good: #e7f3e9; --bad: #fdeceb; }
@media (prefers-color-scheme: dark) { :root { --back: #16171a; --text: #ececee; --faint: #b3b6bc;
  --line: #83868d;
  --link: #9cc2ff; --button: #9cc2ff; --on-button: #10233f; --danger: #ffb4ab; --on-danger: #3b0906;
  --good: #17311c; --bad: #401512; } }
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
.problem { background: var(--bad); }
.fields { display: grid; grid-template-columns: repeat(auto-fit, minmax(13rem, 1fr)); gap: 0 1rem; }
dl { display: grid; grid-template-columns: minmax(8rem, max-content) 1fr; gap: .2rem 1rem; margin: .5rem 0; }
dd { margin: 0; }
@media (max-width: 30rem) { dl { grid-template-columns: 1fr; }
  dd { margin-bottom: .4rem; font-weight: bold; } }
@media print { header, details, button, form { display: none; } }
"""

_DIGEST: Final = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()

# Of every answer under `/me`: it loads nothing, sends nothing elsewhere, is neither kept nor framed.
HEADERS: Final = MappingProxyType(
    {
        "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_DIGEST}'; "
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
