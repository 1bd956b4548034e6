"""The page `/me` as HTML: everything works without scripts, and every text is escaped.

Links and forms are relative, so that the page also works behind a proxy that puts a path before it. `up` is
the way from the page shown to `/me`: empty on it, `../` on the pages below.
"""

from datetime import datetime

from service.policy.html import NOTHING, Html, fill, join
from service.policy.me_parts import done_box, kept, memories, pages, search, waiting
from service.policy.me_style import STYLE
from service.policy.me_texts import Texts
from service.policy.me_view import Shown
from service.policy.page_frame import document, problem_box


def page(texts: Texts, shown: Shown) -> Html:
    """What is remembered about somebody."""
    view = shown.view
    empty = texts.nothing_found if view.is_narrow or view.cursor else texts.nothing
    body = join(
        [
            fill("<h1>{title}</h1>", title=texts.title),
            done_box(texts, shown.done, shown.zone) if shown.done else NOTHING,
            fill('<p>{intro}</p><p class="faint">{kept}</p>', intro=texts.intro, kept=kept(texts, shown)),
            search(texts, shown),
            Html('<div id="results">'),
            waiting(texts, shown),
            fill(
                '<section aria-labelledby="memories"><h2 id="memories">{title}</h2>', title=texts.remembered
            ),
            memories(texts, shown) if shown.memories else fill("<p>{empty}</p>", empty=empty),
            pages(texts, shown),
            Html("</section></div>"),
            _data(texts, shown),
        ]
    )
    return _layout(texts, texts.title, body)


def forget_all_page(texts: Texts, form_key: str, *, is_unsure: bool = False) -> Html:
    """The warning before everything is deleted."""
    body = fill(
        """<h1>{title}</h1>
{problem}<p><strong>{warning}</strong></p>
<ul>{what}</ul>
<p><a href="download">{first}</a></p>
<form method="post" action="forget-all"><input type="hidden" name="form_key" value="{form_key}">
<p class="tick"><input type="checkbox" id="sure" name="sure" value="yes" required>
<label for="sure">{sure}</label></p>
<button class="danger">{now}</button></form>
<p><a href="../me">{back}</a></p>""",
        title=texts.delete_all_title,
        problem=problem_box(texts.delete_all_unsure) if is_unsure else NOTHING,
        warning=texts.delete_all_warning,
        what=join(fill("<li>{line}</li>", line=line) for line in texts.delete_all_what),
        first=texts.delete_all_first,
        form_key=form_key,
        sure=texts.delete_all_sure,
        now=texts.delete_all_now,
        back=texts.go_back,
    )
    return _layout(texts, texts.delete_all_title, body, up="../")


def problem_page(texts: Texts, code: str, *, up: str = "") -> Html:
    """What went wrong, by the code of the error."""
    said = texts.problems.get(code, texts.problem_otherwise)
    way = (
        NOTHING
        if code == "link_refused"
        else fill('<p><a href="{up}me">{go_on}</a></p>', up=up, go_on=texts.go_on)
    )
    title = texts.title if code == "link_refused" else texts.problem
    body = join([fill("<h1>{title}</h1>", title=title), problem_box(said), way])
    return _layout(texts, title, body, up=up)


def opening_page(texts: Texts) -> Html:
    """A page that goes on to `/me` by itself.

    A redirect would not do: a browser that comes from another site does not send a strict cookie along with
    what it is redirected to, but with what a page of ours leads to.
    """
    body = fill('<h1>{title}</h1><p><a href="me">{go_on}</a></p>', title=texts.opening, go_on=texts.go_on)
    return _layout(texts, texts.opening, body, head=Html('<meta http-equiv="refresh" content="0; url=me">'))


def _layout(texts: Texts, title: str, body: Html, *, up: str = "", head: Html = NOTHING) -> Html:
    return document(
        lang=texts.lang,
        title=title,
        skip=texts.skip,
        language=texts.language,
        switch_to=f"{up}me",
        body=body,
        style=STYLE,
        head=head,
    )


def _data(texts: Texts, shown: Shown) -> Html:
    ends = datetime.fromtimestamp(shown.expires_s, shown.zone)
    return fill(
        """<section aria-labelledby="data"><h2 id="data">{title}</h2>
<p><a href="me/download">{download}</a></p><p class="faint">{download_hint}</p>
<p><a class="danger-link" href="me/forget-all">{delete_all}</a></p>
<p class="faint">{delete_all_hint}</p>
<details><summary>{end}</summary><p>{end_hint}</p>
<form method="post" action="me/end"><input type="hidden" name="form_key" value="{form_key}">
<button>{end_now}</button></form></details><p class="faint">{until}</p></section>""",
        title=texts.more,
        download=texts.download,
        download_hint=texts.download_hint,
        delete_all=texts.delete_all,
        delete_all_hint=texts.delete_all_hint,
        end=texts.end,
        end_hint=texts.end_hint,
        form_key=shown.form_key,
        end_now=texts.end_now,
        until=texts.valid_until.format(moment=f"{texts.day(ends)} {ends:%H:%M} ({ends.tzname()})"),
    )
