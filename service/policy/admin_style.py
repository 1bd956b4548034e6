"""How the page `/admin` looks, and the headers of every answer under it."""

from typing import Final

from service.policy.page_frame import BASE_STYLE, headers_with

STYLE: Final = (
    BASE_STYLE
    + """
:root { --one: #0b4fb3; --two: #b45f06; --three: #a5211a; --card: #f6f7f9; --grid: #d8dade;
  --ok: #1d6b2f; --warn: #8a4b00; }
@media (prefers-color-scheme: dark) { :root { --one: #7fb0ff; --two: #f0a95c; --three: #ff9b92;
  --card: #1e2024; --grid: #3a3d43; --ok: #7fd495; --warn: #f0a95c; } }
body { max-width: 76rem; }
header { align-items: center; }
.unseen { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%);
  white-space: nowrap; }
.top { display: flex; flex-wrap: wrap; justify-content: space-between; align-items: baseline; gap: 0 2rem; }
.top form button { margin: 0; }
.places { display: flex; flex-wrap: wrap; gap: 0 .25rem; list-style: none; margin: .5rem 0 0; padding: 0;
  border-bottom: 1px solid var(--grid); }
.places a { display: inline-block; padding: .6rem .75rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .75rem;
  margin: 1rem 0; padding: 0; list-style: none; }
.tiles > li, .card, .parts > li, .list > li { background: var(--card);
  border: 1px solid var(--grid); border-radius: .6rem; }
.tiles > li { padding: .75rem 1rem; }
.tiles .value { display: block; font-size: 1.7rem; line-height: 1.3; font-weight: 600;
  font-variant-numeric: tabular-nums; }
.tiles .name { display: block; } .tiles .more { display: block; font-size: .85rem; color: var(--faint); }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 25rem), 1fr)); gap: 1rem; }
.card { margin: 0; padding: 1rem; } figcaption { font-weight: 600; }
.empty { color: var(--faint); padding: 2rem 0; text-align: center; }
svg { display: block; width: 100%; height: auto; margin-top: .5rem; }
svg text { font-size: 11px; fill: var(--faint); } svg .end { text-anchor: end; }
@media (max-width: 40rem) { svg text { font-size: 17px; } }
.grid { stroke: var(--grid); } .axis { stroke: var(--line); }
rect.one, circle.one { fill: var(--one); } rect.two, circle.two { fill: var(--two); }
rect.three, circle.three { fill: var(--three); }
polyline { fill: none; stroke-width: 2; stroke-linejoin: round; }
polyline.one { stroke: var(--one); } polyline.two { stroke: var(--two); stroke-dasharray: 5 3; }
.legend { display: flex; flex-wrap: wrap; gap: .25rem 1rem; list-style: none; margin: .25rem 0 0; padding: 0;
  font-size: .9rem; }
.legend li::before { content: ""; display: inline-block; width: .8rem; height: .8rem; margin-right: .4rem;
  border-radius: .15rem; background: var(--one); }
.legend .two::before { background: var(--two); } .legend .three::before { background: var(--three); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; overflow-wrap: normal; }
th, td { text-align: start; vertical-align: top; padding: .5rem .75rem; border-bottom: 1px solid var(--grid);
  font-weight: normal; }
thead th { font-size: .9rem; color: var(--faint); white-space: nowrap; }
thead th::first-letter { text-transform: uppercase; }
table:not(.big) td { text-align: end; }
table:not(.big) thead th:not(:first-child) { text-align: end; } .big { min-width: 46rem; }
.big details { min-width: 13rem; } .big summary { padding-top: 0; min-height: 1.5rem; }
.state { font-weight: 600; } .state.is-ok { color: var(--ok); } .state.is-warn { color: var(--warn); }
.state.is-bad { color: var(--danger); }
.parts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 17rem), 1fr)); gap: .75rem;
  list-style: none; margin: 1rem 0; padding: 0; }
.parts > li { padding: .75rem 1rem; }
.parts p { margin: .15rem 0; }
code { font-family: ui-monospace, "Noto Sans Mono", monospace; font-size: .95em; }
.key-shown { display: block; padding: .9rem 1rem; border: 2px solid var(--line); border-radius: .4rem;
  user-select: all; font-size: 1.05rem; }
input[type=password], input[type=text] { width: 100%; font: inherit; padding: .55rem .7rem;
  min-height: 2.75rem; color: var(--text); background: var(--back); border: 1px solid var(--line);
  border-radius: .4rem; }
fieldset { border: 1px solid var(--grid); border-radius: .4rem; margin: .75rem 0 0;
  padding: .5rem 1rem 1rem; }
.ticks { display: grid; grid-template-columns: repeat(auto-fill, minmax(9rem, 1fr)); gap: .75rem; }
.narrow { max-width: 28rem; }
"""
)
# With no-referrer, browsers would send `Origin: null` with its own forms (Fetch standard, section 3.2).
HEADERS: Final = {**headers_with(STYLE), "Referrer-Policy": "same-origin"}
