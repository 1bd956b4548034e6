"""The wire, field by field: every field in every form that Dify, people and language models send it."""

import json
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from service.errors import InvalidRequest
from service.schemas import AddRequest, RecallRequest, Request

NOTHING: list[Any] = ["", " ", "null", "None", "undefined", None]
RECALL = {"user_id": "u", "query": "q"}
ADD = {"user_id": "u", "user_message": "m"}


def recall(**fields: Any) -> RecallRequest:
    return RecallRequest.read({**RECALL, **fields})


def add(**fields: Any) -> AddRequest:
    return AddRequest.read({**ADD, **fields})


def test_defaults_of_recall() -> None:
    assert recall().model_dump() == {
        "user_id": "u",
        "query": "q",
        "top_k": 5,
        "max_chars": 100,
        "max_total_chars": 0,
        "kinds": "",
        "fact_types": "",
        "min_score": -1,
        "budget": "mid",
        "tags": "",
        "tags_match": "all",
        "conversation_id": "",
        "format": "json",
        "language": "auto",
        "fresh": False,
        "on_error": "empty",
        "timeout_ms": 0,
    }


def test_defaults_of_add() -> None:
    assert add().model_dump() == {
        "user_id": "u",
        "messages": None,
        "user_message": "m",
        "assistant_message": "",
        "conversation_id": "",
        "turn_id": "",
        "timestamp": "",
        "tags": "",
        "metadata": None,
    }


OPTIONAL = [
    *((RecallRequest, RECALL, name) for name in RecallRequest.model_fields if name not in RECALL),
    *(
        (AddRequest, ADD, name)
        for name in AddRequest.model_fields
        if name not in ("user_id", "messages", "user_message", "assistant_message")
    ),
]


@pytest.mark.parametrize(("model", "least", "name"), OPTIONAL)
def test_an_optional_field_that_says_nothing_has_its_default(
    model: type[Request], least: dict[str, str], name: str
) -> None:
    for value in [*NOTHING, "{{#some.variable#}}"]:
        assert model.read({**least, name: value}) == model.read(least)


@pytest.mark.parametrize("value", [5, 5.0, "5", "5.0", " 5 ", "5e0", "+5", "05"])
@pytest.mark.parametrize("name", ["top_k", "max_chars", "max_total_chars", "timeout_ms"])
def test_a_whole_number_in_all_its_forms(name: str, value: object) -> None:
    assert getattr(recall(**{name: value}), name) == 5


@pytest.mark.parametrize(
    "value", ["five", "5.5", 5.5, "5,0", "0x5", "1e400", float("inf"), "-inf", "9" * 400, [5], {}]
)
@pytest.mark.parametrize("name", ["top_k", "max_chars", "max_total_chars", "timeout_ms"])
def test_what_is_no_whole_number_is_refused(name: str, value: object) -> None:
    with pytest.raises(InvalidRequest, match=f"^The field {name} is not valid"):
        recall(**{name: value})


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [("top_k", 1, 50), ("max_chars", 1, 10_000), ("max_total_chars", 0, 100_000), ("timeout_ms", 0, 60_000)],
)
def test_the_range_of_a_whole_number(name: str, least: int, most: int) -> None:
    for good in (least, most, str(least), str(most)):
        assert getattr(recall(**{name: good}), name) == int(good)
    for bad in (least - 1, most + 1, str(most + 1), -(10**30), 10**30):
        with pytest.raises(InvalidRequest, match=f"^The field {name} is not valid"):
            recall(**{name: bad})


@pytest.mark.parametrize(
    ("value", "score"),
    [("0.3", 0.3), (0.3, 0.3), (" 0.3 ", 0.3), ("3e-1", 0.3), (0, 0), ("1", 1), ("-1", -1), (-1, -1)],
)
def test_min_score_in_all_its_forms(value: object, score: float) -> None:
    assert recall(min_score=value).min_score == score


@pytest.mark.parametrize(
    "value", ["high", 1.1, "1.01", -1.1, "-nan", float("nan"), "inf", "1e400", 10**400, [0.3]]
)
def test_what_is_no_score_is_refused(value: object) -> None:
    with pytest.raises(InvalidRequest, match=r"^The field min_score is not valid"):
        recall(min_score=value)


@pytest.mark.parametrize(
    ("value", "is_fresh"),
    [
        (True, True),
        ("true", True),
        ("True", True),
        ("TRUE", True),
        (" true ", True),
        ("1", True),
        ("yes", True),
        (False, False),
        ("false", False),
        ("False", False),
        ("FALSE", False),
        ("0", False),
        ("no", False),
    ],
)
def test_fresh_in_all_its_forms(value: object, is_fresh: bool) -> None:
    assert recall(fresh=value).fresh is is_fresh


@pytest.mark.parametrize("value", ["maybe", "2", 2, [], {}])
def test_what_is_neither_true_nor_false_is_refused(value: object) -> None:
    with pytest.raises(InvalidRequest, match=r"^The field fresh is not valid"):
        recall(fresh=value)


CHOICES = {
    "budget": ("low", "mid", "high"),
    "tags_match": ("all", "any"),
    "format": ("json", "text"),
    "language": ("auto", "zh", "en"),
    "on_error": ("empty", "fail"),
}


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, values in CHOICES.items() for v in values])
def test_a_choice_whatever_its_case(name: str, value: str) -> None:
    for written in (value, value.upper(), value.title(), f" {value} "):
        assert getattr(recall(**{name: written}), name) == value


@pytest.mark.parametrize("name", CHOICES)
def test_another_choice_is_refused_with_the_choices(name: str) -> None:
    for value in ("other", 1, True, ["low"]):
        with pytest.raises(InvalidRequest) as caught:
            recall(**{name: value})
        assert caught.value.detail.startswith(f"The field {name} is not valid")
        assert all(choice in caught.value.detail for choice in CHOICES[name])


@pytest.mark.parametrize("text", ["null", "None", "undefined", "DEFAULT-USER", "{{#sys.query#}}", " "])
def test_free_text_may_be_a_word_for_nothing(text: str) -> None:
    assert recall(query=text).query == text
    assert add(user_message=text, assistant_message=text).assistant_message == text


@pytest.mark.parametrize("least", [{"user_id": "u"}, {"query": "q"}, {}, {"user_id": None, "query": "q"}])
def test_user_id_and_query_must_be_there(least: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=r"^The field (user_id|query) is (missing|not valid)"):
        RecallRequest.read(least)


@pytest.mark.parametrize("value", [5, 5.5, True, [], ["u"], {}, {"a": "b"}])
@pytest.mark.parametrize("name", ["user_id", "query", "kinds", "fact_types", "tags", "conversation_id"])
def test_a_text_of_another_type_is_refused(name: str, value: object) -> None:
    with pytest.raises(InvalidRequest, match=f"^The field {name} is not valid"):
        recall(**{name: value})


def test_an_unknown_field_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidRequest) as caught:
        recall(userid="secret-word")
    assert "known are: user_id, query, top_k" in caught.value.detail
    assert "userid" not in caught.value.detail
    assert "secret-word" not in caught.value.detail


@pytest.mark.parametrize("name", ["conversation_id", "turn_id"])
@pytest.mark.parametrize("value", ["{{#sys.conversation_id#}}", "run-{{#sys.workflow_run_id#}}", "", "null"])
def test_an_id_that_dify_did_not_resolve_is_absent(name: str, value: str) -> None:
    assert getattr(add(**{name: value}), name) == ""


@pytest.mark.parametrize("value", ["a:b", "../x", "%2e", "会话 😀", "x" * 1024, "a\x00b"])
def test_an_id_is_kept_as_it_came(value: str) -> None:
    assert add(turn_id=value).turn_id == value
    with pytest.raises(InvalidRequest):
        add(turn_id="x" * 1025)


def test_lone_surrogates_leave_free_text_and_pairs_are_joined() -> None:
    request = add(user_message="a\ud800b", assistant_message="\ud83d\ude00")
    assert (request.user_message, request.assistant_message) == ("ab", "😀")
    assert recall(query="a\udfffb\udc00").query == "ab"


@given(st.text(alphabet=st.characters(exclude_categories=[])))
def test_free_text_without_surrogates_stays_as_it_is(text: str) -> None:
    kept = recall(query=text).query
    kept.encode()
    if not any("\ud800" <= char <= "\udfff" for char in text):
        assert kept == text


def test_tags_and_kinds_are_split_at_commas_of_both_kinds() -> None:
    assert recall(tags=" a, b，c ,,a").tag_list == ("a", "b", "c")
    assert recall(kinds="preference,fact").kind_list == ("preference", "fact")


@pytest.mark.parametrize("value", [",".join(map(str, range(21))), "x" * 65, "x" * 2001])
def test_too_many_or_too_long_tags_are_refused(value: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^The field tags"):
        _ = recall(tags=value).tag_list
    with pytest.raises(InvalidRequest, match=r"^The field tags"):
        _ = add(tags=value).tag_list


@pytest.mark.parametrize(
    ("value", "moment"),
    [
        ("2026-01-31T09:30:00+08:00", "2026-01-31T09:30:00+08:00"),
        ("2026-01-31T09:30:00Z", "2026-01-31T09:30:00+00:00"),
        ("2026-01-31T09:30:00", "2026-01-31T09:30:00+00:00"),
        ("2026-01-31 09:30", "2026-01-31T09:30:00+00:00"),
        ("2026-01-31", "2026-01-31T00:00:00+00:00"),
        (" 2026-01-31T09:30:00.123Z ", "2026-01-31T09:30:00.123000+00:00"),
        ("2026-01-31T09:30:00+08:00:30", "2026-01-31T01:29:30+00:00"),
        ("", ""),
    ],
)
def test_a_timestamp_becomes_iso_8601_with_an_offset(value: str, moment: str) -> None:
    assert add(timestamp=value).said_at == moment


@pytest.mark.parametrize(
    "value",
    [
        "yesterday",
        "31.01.2026",
        "1767225600",
        "2026-13-01",
        "2026-01-31T25:00:00Z",
        "0001-01-01T00:00:00+08:00",
        "9999-12-31T23:59:59-08:00",
    ],
)
def test_what_is_no_usable_moment_is_refused(value: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^The field timestamp"):
        _ = add(timestamp=value).said_at


FIRST, LAST = datetime.fromisoformat("1900-01-01"), datetime.fromisoformat("2199-12-31")


@given(st.datetimes(min_value=FIRST, max_value=LAST), st.integers(-1439, 1439))
def test_any_moment_that_python_writes_is_read(moment: datetime, offset_min: int) -> None:
    sign = "-" if offset_min < 0 else "+"
    hours, minutes = divmod(abs(offset_min), 60)
    said_at = add(timestamp=f"{moment.isoformat()}{sign}{hours:02}:{minutes:02}").said_at
    read = datetime.fromisoformat(said_at)
    assert read.replace(tzinfo=None) == moment
    assert read.utcoffset() == timedelta(minutes=offset_min)


@pytest.mark.parametrize(
    ("value", "texts"),
    [
        ('{"a": "b"}', {"a": "b"}),
        ({"a": "b"}, {"a": "b"}),
        ('{"a": 1, "b": 1.5, "c": true}', {"a": "1", "b": "1.5", "c": "true"}),
        ("{'a': 'it\\'s', 'b': True}", {"a": "it's", "b": "true"}),
        ("{}", {}),
        ("", {}),
        ("null", {}),
        (None, {}),
        ('{"城市": "杭州"}', {"城市": "杭州"}),
    ],
)
def test_metadata_in_all_its_forms(value: object, texts: dict[str, str]) -> None:
    assert add(metadata=value).metadata_map == texts


@pytest.mark.parametrize(
    "value",
    [
        "a=b",
        "[]",
        '"text"',
        "5",
        5,
        [],
        '{"a": null}',
        '{"a": ["b"]}',
        '{"a": {"b": "c"}}',
        '{"a": ' + "9" * 5000 + "}",
        "[" * 100_000,
        json.dumps({"a": "x" * 501}),
        json.dumps({"x" * 65: "a"}),
        json.dumps({str(i): "a" for i in range(21)}),
    ],
)
def test_metadata_of_another_shape_is_refused(value: object) -> None:
    with pytest.raises(InvalidRequest, match="metadata"):
        _ = add(metadata=value).metadata_map


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


def reading(model: type[Request], data: dict[str, object]) -> str:
    """Read everything a route reads of a request; the detail of the refusal, or "" if there was none."""
    try:
        request = model.read(data)
        if isinstance(request, AddRequest):
            _ = request.tag_list, request.said_at, request.metadata_map
        elif isinstance(request, RecallRequest):
            _ = request.tag_list, request.kind_list, request.fact_type_list
    except InvalidRequest as exc:
        return f"{exc!r} {exc.detail}"
    return ""


@pytest.mark.parametrize("model", [RecallRequest, AddRequest])
@given(st.data())
def test_any_object_is_read_or_refused(model: type[Request], data: st.DataObject) -> None:
    names = st.sampled_from(list(model.model_fields)) | st.text()
    reading(model, data.draw(st.dictionaries(names, JSON)))


MARK = "cafe5ca1ab1e"


@pytest.mark.parametrize("name", [*RecallRequest.model_fields, *AddRequest.model_fields, f"field-{MARK}"])
@pytest.mark.parametrize("value", [MARK, [MARK], {MARK: MARK}, MARK * 100_000, f"{MARK}\ud800"])
def test_a_refusal_never_quotes_what_was_sent(name: str, value: object) -> None:
    for model, least in ((RecallRequest, RECALL), (AddRequest, ADD)):
        assert MARK not in reading(model, {**least, name: value})
