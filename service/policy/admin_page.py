"""The page `/admin` as HTML: everything works without scripts, and every text is escaped.

Links and forms are relative, so that the page also works behind a proxy that puts a path before it. `up` is
the way from the page shown to `/admin`: empty on it, `../` on the pages below.
"""

from datetime import datetime

from service.policy.admin_keys import keys, policy
from service.policy.admin_parts import health, hidden, letters, now, usage
from service.policy.admin_style import STYLE
from service.policy.admin_view import Overview
from service.policy.admin_words import AdminTexts
from service.policy.html import NOTHING, Html, fill, join
from service.policy.page_frame import document, problem_box


def overview_page(texts: AdminTexts, shown: Overview) -> Html:
    """How the installation stands, for an operator who has signed in."""
    told = shown.told
    body = join(
        [
            _head(texts, shown),
            fill(
                '<div class="done" id="told" role="status" tabindex="-1"><p>{said}</p></div>',
                said=texts.told[told.what].format(count=told.count),
            )
            if told
            else NOTHING,
            _places(texts),
            now(texts, shown),
            usage(texts, shown),
            letters(texts, shown),
            health(texts, shown),
            keys(texts, shown),
            policy(texts, shown),
        ]
    )
    return _layout(texts, texts.title, body)


def sign_in_page(texts: AdminTexts, *, up: str = "", is_wrong: bool = False, is_off: bool = False) -> Html:
    """The form that takes a key; `is_off`: nobody can sign in at all."""
    if is_off:
        body = fill("<h1>{title}</h1>{said}", title=texts.title, said=problem_box(texts.sign_in_off))
        return _layout(texts, texts.title, body, up=up)
    body = fill(
        """<div class="narrow"><h1>{title}</h1><p>{intro}</p>{problem}
<form method="post" action="{up}admin/sign-in">
<input type="text" name="username" value="admin" autocomplete="username" hidden><label for="key">{key}</label>
<input type="password" id="key" name="key" maxlength="1000" required autocomplete="current-password"
 aria-describedby="key-hint"{invalid}><p class="faint" id="key-hint">{hint}</p>
<button>{sign_in}</button></form></div>""",
        title=texts.title,
        intro=texts.sign_in_intro,
        problem=problem_box(texts.sign_in_wrong) if is_wrong else NOTHING,
        up=up,
        key=texts.key,
        invalid=Html(' aria-invalid="true"') if is_wrong else NOTHING,
        hint=texts.key_hint,
        sign_in=texts.sign_in_now,
    )
    return _layout(texts, f"{texts.sign_in} · {texts.title}", body, up=up)


def key_page(texts: AdminTexts, key: str, name: str, *, up: str) -> Html:
    """A key that was made, shown this once."""
    body = fill(
        '<h1>{title}</h1><div class="done" role="status"><p><strong>{once}</strong></p><p>{name}</p>'
        '<code class="key-shown">{key}</code></div><p><a href="{up}admin#keys">{back}</a></p>',
        title=texts.key_made,
        once=texts.key_made_once,
        name=name,
        key=key,
        up=up,
        back=texts.go_back,
    )
    return _layout(texts, texts.key_made, body, up=up)


def problem_page(texts: AdminTexts, code: str, *, up: str, is_unsure: bool = False) -> Html:
    """What went wrong, by the code of the error."""
    said = texts.unsure if is_unsure else texts.problems.get(code, texts.problem_otherwise)
    body = fill(
        '<h1>{title}</h1>{box}<p><a href="{up}admin">{back}</a></p>',
        title=texts.problem,
        box=problem_box(said),
        up=up,
        back=texts.go_back,
    )
    return _layout(texts, texts.problem, body, up=up)


def _head(texts: AdminTexts, shown: Overview) -> Html:
    ends = datetime.fromtimestamp(shown.expires_s, shown.zone)
    return fill(
        '<div class="top"><h1>{title}</h1><form method="post" action="admin/sign-out">{fields}'
        '<button class="plain">{out}</button></form></div>'
        '<p class="faint">{who}<br>{as_of} · <a href="admin">{refresh}</a> · {version}</p>',
        title=texts.title,
        fields=hidden(form_key=shown.form_key),
        out=texts.sign_out,
        who=texts.signed_in.format(key=shown.key_id, tenant=shown.tenant, time=f"{ends:%H:%M}"),
        as_of=texts.as_of.format(time=f"{texts.moment(shown.now.astimezone(shown.zone))} ({ends.tzname()})"),
        refresh=texts.refresh,
        version=f"dify-memory {shown.version}",
    )


def _places(texts: AdminTexts) -> Html:
    places = [
        ("now", texts.now),
        ("usage", texts.usage),
        ("tenants", texts.tenants),
        ("letters", texts.letters),
        ("health", texts.health),
        ("keys", texts.keys),
        ("policy", texts.policy),
    ]
    return fill(
        '<nav aria-label="{name}"><ul class="places">{items}</ul></nav>',
        name=texts.places,
        items=join(
            fill('<li><a href="#{place}">{title}</a></li>', place=place, title=title)
            for place, title in places
        ),
    )


def _layout(texts: AdminTexts, title: str, body: Html, *, up: str = "") -> Html:
    return document(
        lang=texts.lang,
        title=title,
        skip=texts.skip,
        language=texts.language,
        switch_to=f"{up}admin",
        body=body,
        style=STYLE,
    )
