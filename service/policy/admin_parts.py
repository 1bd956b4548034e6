"""Parts of the page `/admin`: how things stand, what is used, what could not be stored."""

from datetime import datetime, tzinfo

from service.policy.admin_charts import Chart, Series, figure, table
from service.policy.admin_view import Letter, Overview, Part, Queue, Use
from service.policy.admin_words import AdminTexts
from service.policy.html import NOTHING, Html, fill, join


def section(name: str, title: str, body: Html) -> Html:
    """A part of the page under a heading."""
    return fill(
        '<section aria-labelledby="{name}"><h2 id="{name}">{title}</h2>{body}</section>',
        name=name,
        title=title,
        body=body,
    )


def now(texts: AdminTexts, shown: Overview) -> Html:
    """The numbers to look at first."""
    kind = {"ok": "is-ok", "degraded": "is-warn", "down": "is-bad"}[shown.status]
    used, queue = shown.used, shown.queue
    total = used.total if used else Use()
    ratio = total.hit_ratio
    tiles = [
        (
            texts.hit_ratio,
            "–" if ratio is None else f"{ratio:.0%}",
            texts.hit_ratio_more.format(hits=whole(total.hits), recalls=whole(total.recalls)),
        ),
        (texts.p50, millis(used.times.p50_ms if used else None), texts.last_day),
        (texts.p95, millis(used.times.p95_ms if used else None), texts.last_day),
        (texts.add_p95, millis(used.add_times.p95_ms if used else None), texts.last_day),
        *([_waiting(texts, queue)] if shown.sees_all_tenants else []),
        (texts.overdue, texts.span(queue.overdue_s) if queue else "–", texts.overdue_more),
        (texts.dead, _dead(shown), texts.dead_more),
    ]
    body = fill(
        '<p class="state {kind}">{said}</p><ul class="tiles">{tiles}</ul>',
        kind=kind,
        said=texts.statuses[shown.status],
        tiles=join(
            fill(
                '<li><span class="name">{name}</span><span class="value">{value}</span>'
                '<span class="more">{more}</span></li>',
                name=name,
                value=value,
                more=more,
            )
            for name, value, more in tiles
        ),
    )
    return section("now", texts.now, body)


def _waiting(texts: AdminTexts, queue: Queue | None) -> tuple[str, str, str]:
    turns, banks = (queue.turns, queue.banks) if queue else (None, None)
    return (
        texts.waiting,
        "–" if turns is None else whole(turns),
        texts.unknown if banks is None else texts.waiting_more.format(banks=whole(banks)),
    )


def _dead(shown: Overview) -> str:
    """How many dead letters there are; of one tenant they are counted as far as they are shown."""
    if shown.queue is None or shown.queue.dead_letters is None:
        return "–"
    is_part = not shown.sees_all_tenants and shown.letters is not None and shown.letters.next_cursor
    return f"{whole(shown.queue.dead_letters)}{'+' if is_part else ''}"


def health(texts: AdminTexts, shown: Overview) -> Html:
    """Each part, and what there is to say of it."""
    items = join(_part(texts, part) for part in shown.parts)
    return section("health", texts.health, fill('<ul class="parts">{items}</ul>', items=items))


def _part(texts: AdminTexts, part: Part) -> Html:
    has_trouble = bool(set(part.notes) - {"same_redis"})
    kind = ("is-warn" if has_trouble else "is-ok") if part.is_ok else "is-bad"
    return fill(
        '<li><strong>{name}</strong><p class="state {kind}">{state}</p>{facts}{notes}</li>',
        name=texts.parts[part.name],
        kind=kind,
        state=texts.states["away" if not part.is_ok else "trouble" if has_trouble else "well"],
        facts=join(fill('<p class="faint">{fact}</p>', fact=fact) for fact in part.facts),
        notes=join(fill("<p>{note}</p>", note=texts.notes.get(note, note)) for note in part.notes),
    )


def usage(texts: AdminTexts, shown: Overview) -> Html:
    """Charts, and the tenants side by side."""
    used = shown.used
    if used is None:
        nothing = section("usage", texts.usage, fill("<p>{unknown}</p>", unknown=texts.unknown))
        return join([nothing, _tenants(texts, shown)])
    hours = [f"{moment.astimezone(shown.zone):%H:%M}" for moment, _, _ in used.hours]
    days = [texts.short_day(moment) for moment, _ in used.days]
    charts = [
        (
            texts.hour,
            Chart(
                "recalls",
                texts.recalls_by_hour,
                hours,
                [
                    Series(texts.hits, [use.hits for _, use, _ in used.hours]),
                    Series(texts.misses, [use.misses for _, use, _ in used.hours]),
                    Series(texts.failures, [use.failures for _, use, _ in used.hours]),
                ],
                whole,
            ),
        ),
        (
            texts.hour,
            Chart(
                "times",
                texts.times_by_hour,
                hours,
                [
                    Series(texts.half, [times.p50_ms for _, _, times in used.hours]),
                    Series(texts.most, [times.p95_ms for _, _, times in used.hours]),
                ],
                millis,
                is_line=True,
            ),
        ),
        (
            texts.day,
            Chart(
                "turns",
                texts.turns_by_day,
                days,
                [
                    Series(texts.added, [use.adds for _, use in used.days]),
                    Series(texts.stored, [use.stored for _, use in used.days]),
                ],
                whole,
                is_line=True,
            ),
        ),
        (
            texts.day,
            Chart(
                "spent",
                texts.spent_by_day,
                days,
                [Series(texts.cost, [use.usd for _, use in used.days])],
                dollars,
            ),
        ),
    ]
    figures = join(
        figure(chart, first=first, table_name=texts.as_table, nothing=texts.nothing_yet)
        for first, chart in charts
    )
    scope = texts.usage_scope_all if shown.sees_all_tenants else texts.usage_scope_own
    body = fill(
        '<p class="faint">{scope}</p><div class="charts">{figures}</div>', scope=scope, figures=figures
    )
    return join([section("usage", texts.usage, body), _tenants(texts, shown)])


def _tenants(texts: AdminTexts, shown: Overview) -> Html:
    used = shown.used
    keys = dict(shown.tenant_keys)
    found = dict(used.tenants) if used else {}
    names = sorted(found.keys() | keys.keys(), key=lambda name: (-found.get(name, Use()).recalls, name))
    rows: list[list[object]] = []
    for name in names:
        use = found.get(name, Use())
        ratio = "–" if use.hit_ratio is None else f"{use.hit_ratio:.0%}"
        cells = [use.recalls, use.adds, use.stored, use.dead, use.chat_tokens, use.tokens]
        rows.append([name, whole(keys.get(name, 0)), ratio, *map(whole, cells), dollars(use.usd)])
    heads = [
        texts.tenant, texts.keys_in_force, texts.hit_ratio, texts.recalls, texts.added, texts.stored,
        texts.dead, texts.chat_tokens, texts.tokens, texts.cost,
    ]  # fmt: skip
    said = table(texts.tenants, heads, rows) if rows else fill("<p>{no}</p>", no=texts.nothing_yet)
    body = fill('<p class="faint">{period}</p>{said}', period=texts.last_month, said=said)
    return section("tenants", texts.tenants, body)


def letters(texts: AdminTexts, shown: Overview) -> Html:
    """The dead letters, and what can be done with them."""
    found = shown.letters
    if found is None:
        return section("letters", texts.letters, fill("<p>{unknown}</p>", unknown=texts.unknown))
    if not found.letters and not found.next_cursor:
        return section("letters", texts.letters, fill("<p>{none}</p>", none=texts.letters_none))
    items = join(_letter(texts, shown, letter, f"d{number}") for number, letter in enumerate(found.letters))
    more = (
        fill(
            '<p><a href="admin?cursor={cursor}{show}#letters">{more}</a></p>',
            cursor=found.next_cursor,
            show="&show=yes" if found.has_text else "",
            more=texts.more_letters,
        )
        if found.next_cursor
        else NOTHING
    )
    body = fill(
        '<p>{intro}</p>{show}<ul class="list">{items}</ul>{more}<div class="two-ways">{replay}{drop}</div>',
        intro=texts.letters_intro,
        show=_show_link(texts, shown),
        items=items,
        more=more,
        replay=_all(texts, shown, "replay", texts.replay_all, texts.replay_all_now, ""),
        drop=_all(texts, shown, "drop", texts.drop_all, texts.drop_all_now, "danger"),
    )
    return section("letters", texts.letters, body)


def _show_link(texts: AdminTexts, shown: Overview) -> Html:
    if shown.letters is None or "review" not in shown.scopes:
        return NOTHING
    if shown.letters.has_text:
        return fill('<p><a href="admin#letters">{hide}</a></p>', hide=texts.hide_text)
    return fill(
        '<p><a href="admin?show=yes#letters">{show}</a> <span class="faint">{hint}</span></p>',
        show=texts.show_text,
        hint=texts.text_hint,
    )


def _letter(texts: AdminTexts, shown: Overview, letter: Letter, name: str) -> Html:
    accepted = datetime.fromisoformat(letter.accepted_at)
    facts = texts.letter_facts.format(
        age=texts.span(max(0.0, (shown.now - accepted).total_seconds())),
        time=texts.moment(accepted.astimezone(shown.zone)),
        chars=whole(letter.chars),
        tenant=letter.tenant or "?",
    )
    text = (
        NOTHING if letter.text is None else fill('<p class="words" dir="auto">{text}</p>', text=letter.text)
    )
    return fill(
        '<li><p id="{name}"><strong>{title}</strong> · <span lang="en">{reason}</span></p>'
        '<p class="faint">{facts}</p>{text}<div class="two-ways">{replay}{drop}</div></li>',
        name=name,
        # Enough of the digest to tell it from the others.
        title=texts.letter_name.format(id=letter.id[2:10]),
        reason=letter.reason,
        facts=facts,
        text=text,
        replay=_one(shown, letter, "replay", name, texts.replay, texts.replay_hint, texts.replay, ""),
        drop=_one(shown, letter, "drop", name, texts.drop, texts.drop_warning, texts.drop_now, "danger"),
    )


def _one(
    shown: Overview, letter: Letter, action: str, name: str, title: str, hint: str, button: str, kind: str
) -> Html:
    fields = hidden(form_key=shown.form_key, ids=letter.id)
    return folded(title, hint, f"admin/{action}", fields, button, kind=kind, about=name)


def _all(texts: AdminTexts, shown: Overview, action: str, title: str, button: str, kind: str) -> Html:
    tick = fill(
        '<p class="tick"><input type="checkbox" id="sure-{action}" name="sure" value="yes" required>'
        '<label for="sure-{action}">{sure}</label></p>',
        action=action,
        sure=texts.sure,
    )
    fields = join([hidden(form_key=shown.form_key, all="true"), tick])
    hint = texts.all_hint_everywhere if shown.sees_all_tenants else texts.all_hint.format(tenant=shown.tenant)
    return folded(title, hint, f"admin/{action}", fields, button, kind=kind)


def hidden(**fields: str) -> Html:
    """Fields of a form that nobody sees."""
    return join(
        fill('<input type="hidden" name="{name}" value="{value}">', name=name, value=value)
        for name, value in fields.items()
    )


def folded(
    title: str, hint: str, action: str, fields: Html, button: str, *, kind: str = "", about: str = ""
) -> Html:
    """A form that is asked for first; `about` is the id of what it concerns."""
    described = fill(' aria-describedby="{about}"', about=about) if about else NOTHING
    return fill(
        "<details><summary{described}>{title}</summary><p>{hint}</p>"
        '<form method="post" action="{action}">{fields}<button{kind}{described}>{button}</button></form>'
        "</details>",
        described=described,
        title=title,
        hint=hint,
        action=action,
        fields=fields,
        kind=fill(' class="{kind}"', kind=kind) if kind else NOTHING,
        button=button,
    )


def whole(value: float) -> str:
    """A number of things."""
    return f"{value:,.0f}"


def millis(value: float | None) -> str:
    """A time in ms, in its fitting unit."""
    if value is None:
        return "–"
    if value >= 1000:
        return f"{value / 1000:.1f} s"
    return f"{value:.0f} ms" if value >= 10 else f"{value:.1f} ms"


def dollars(value: float) -> str:
    """US dollars, small ones too."""
    return f"${value:,.2f}" if value >= 0.01 or not value else f"${value:.4f}"


def moment(texts: AdminTexts, iso: str, zone: tzinfo) -> str:
    """A moment of a record; "" for never."""
    return texts.moment(datetime.fromisoformat(iso).astimezone(zone)) if iso else texts.never
