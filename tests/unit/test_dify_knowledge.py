"""What an external-knowledge request asks for, whatever its body is."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from service.memory.knowledge import DEADLINE_MS, question_in
from service.settings import Settings

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda children: (
        st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=8), children, max_size=3)
    ),
    max_leaves=12,
)
_CONDITION = st.fixed_dictionaries(
    {
        "name": st.just("user_id") | _JSON,
        "comparison_operator": st.sampled_from(["is", "=", "in"]) | _JSON,
        "value": _JSON,
    }
)


@given(
    query=st.just("Where?") | _JSON,
    setting=_JSON | st.fixed_dictionaries({"top_k": _JSON, "score_threshold": _JSON}),
    conditions=_JSON | st.lists(_CONDITION, max_size=3),
    operator=st.sampled_from(["and", "or"]) | _JSON,
)
def test_no_body_breaks_it_and_a_reason_leaves_nobody(
    query: Any, setting: Any, conditions: Any, operator: Any
) -> None:
    question = question_in(
        {
            "query": query,
            "retrieval_setting": setting,
            "metadata_condition": {"conditions": conditions, "logical_operator": operator},
        }
    )
    assert not (question.user_id and question.reason)
    assert 1 <= question.top_k <= 50
    assert 0 <= question.score_threshold <= 1


def test_the_deadline_stays_below_dify_s_whatever_the_server_s_is() -> None:
    question = question_in(
        {
            "query": "Where?",
            "metadata_condition": {
                "conditions": [{"name": "user_id", "comparison_operator": "is", "value": "alice"}]
            },
        }
    )
    longest = Settings.model_fields["recall_deadline_ms"].metadata
    assert max(getattr(limit, "le", 0) for limit in longest) > DEADLINE_MS
    assert question.recall_request(30_000).timeout_ms == DEADLINE_MS < 5000
    assert question.recall_request(2000).timeout_ms == 2000
