"""The second-stage ranking, and that the benchmark it was tuned on is sound."""

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from service.policy.lexicon import fits
from service.policy.ranking import (
    DEFAULT_MIN_SCORE,
    GENERIC,
    Candidate,
    calibration_for,
    has_word,
    keep_tail,
    rank,
)

from tests.bench.recall import dataset
from tests.bench.recall.scoring import Memory, Outcome, measure

E5 = calibration_for("intfloat/multilingual-e5-small")
NOON = datetime(2025, 6, 1, 12, tzinfo=UTC)
UNRELATED = tuple(
    Candidate(f"n{i}", text, semantic=0.79 + 0.002 * (i % 7))
    for i, text in enumerate(
        f"{subject} {verb} {place}"
        for subject in ("a train", "the committee", "old paint", "every violin", "one lamp", "that parcel")
        for verb in ("waited beside", "argued over", "faded near", "arrived after")
        for place in ("the harbour", "a ladder", "two mirrors")
    )
)


def ids(query: str, candidates: tuple[Candidate, ...], min_score: float = 0.0, top_k: int = 5) -> list[str]:
    kept = rank(query, candidates, calibration=E5, min_score=min_score, top_k=top_k).kept
    return [scored.candidate.id for scored in kept]


@pytest.mark.parametrize(
    ("query", "words"),
    [("???", False), ("", False), (" \n", False), ("👋🏽", False), ("喂", True), ("7", True), ("é?", True)],
)
def test_only_letters_and_digits_are_words(query: str, words: bool) -> None:
    assert has_word(query) is words


def test_a_short_query_is_kept_whole() -> None:
    assert keep_tail("Where did I park? 车停哪了") == "Where did I park? 车停哪了"


@pytest.mark.parametrize("filler", ["lorem ipsum ", "很长的背景说明。", "nospacesatall"])
def test_the_question_at_the_end_of_a_long_prompt_survives(filler: str) -> None:
    tail = keep_tail(filler * 2000 + " 最后的问题 is this one?")
    assert tail.endswith("最后的问题 is this one?")
    assert len(tail) < 1500


def test_the_tail_begins_at_a_word_and_never_inside_a_grapheme() -> None:
    assert keep_tail("alpha beta gamma " * 500, max_tokens=20).split()[0] in {"alpha", "beta", "gamma"}
    family = "👩‍👩‍👧"
    tail = keep_tail(family * 200, max_tokens=30)
    assert tail
    assert tail.replace(family, "") == ""


@given(st.text(max_size=300), st.integers(10, 200))
def test_a_tail_is_the_end_of_the_query_and_has_a_size(query: str, max_tokens: int) -> None:
    tail = keep_tail(query, max_tokens=max_tokens)
    assert query.endswith(tail)
    assert len(tail) <= 3 * max_tokens


def test_the_better_cosine_comes_first() -> None:
    found = Candidate("yes", "She plays the oboe", semantic=0.87)
    assert ids("musical instrument", (*UNRELATED, found))[0] == "yes"


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("Which plot is my allotment?", "My allotments are by the railway"),
        ("我的猫叫什么名字？", "那只猫又推杯子"),
    ],
)
def test_shared_words_decide_between_equal_cosines(query: str, text: str) -> None:
    shares = Candidate("z", text, semantic=0.80)
    other = Candidate("a", "Nothing of the kind", semantic=0.80)
    assert ids(query, (other, *UNRELATED, shares)).index("z") == 0


def test_a_related_memory_passes_the_default_floor_and_unrelated_ones_do_not() -> None:
    found = Candidate("yes", "My allotment is plot 27 by the railway", semantic=0.90)
    answer = rank("What number is my allotment plot?", (*UNRELATED, found), calibration=E5)
    assert [scored.candidate.id for scored in answer.kept] == ["yes"]
    assert answer.kept[0].relevance > DEFAULT_MIN_SCORE
    assert answer.filtered_count == len(UNRELATED)
    nothing = rank("What is my blood type?", UNRELATED, calibration=E5)
    assert nothing.kept == ()
    assert nothing.filtered_count == len(UNRELATED)


def test_the_floor_works_for_a_single_memory() -> None:
    one = Candidate("yes", "I am allergic to shrimp", semantic=0.91)
    assert ids("Am I allergic to shrimp?", (one,), DEFAULT_MIN_SCORE) == ["yes"]
    assert ids("Where do I work?", (Candidate("no", one.text, semantic=0.77),), DEFAULT_MIN_SCORE) == []


def test_the_floor_does_not_depend_on_how_many_candidates_were_asked_for() -> None:
    found = Candidate("yes", "My allotment is plot 27", semantic=0.88)
    everything = tuple(sorted((*UNRELATED, found), key=lambda c: -(c.semantic or 0)))
    query = "number of the plot"
    many = rank(query, everything, calibration=E5, min_score=0).kept[0].relevance
    fewer = rank(query, everything[:45], calibration=E5, min_score=0).kept[0].relevance
    assert many == pytest.approx(fewer, abs=0.05)


def test_an_unknown_model_falls_back_to_the_candidates_own_distribution() -> None:
    assert calibration_for("somebody/unheard-of") is GENERIC
    low = tuple(Candidate(c.id, c.text, semantic=(c.semantic or 0) - 0.7) for c in UNRELATED)
    found = Candidate("yes", "My allotment is plot 27", semantic=0.45)
    answer = rank("What number is my allotment plot?", (*low, found))
    assert [scored.candidate.id for scored in answer.kept] == ["yes"]
    assert rank("blood type", low).kept == ()


def test_a_row_without_a_semantic_score_falls_only_when_a_floor_is_asked() -> None:
    lost = Candidate("lost", "My allotment plot is 27")
    found = Candidate("yes", "The allotment plot", semantic=0.90)
    everything = (*UNRELATED, lost, found)
    assert "lost" not in ids("allotment plot", everything, DEFAULT_MIN_SCORE)
    assert "lost" in ids("allotment plot", everything, 0.0)


def test_without_any_semantic_score_the_words_decide() -> None:
    words = (Candidate("yes", "the allotment plot"), Candidate("no", "a harbour"))
    answer = rank("allotment plot", words)
    assert [scored.candidate.id for scored in answer.kept] == ["yes"]


def test_a_reranker_decides_order_and_floor() -> None:
    rows = (
        Candidate("low", "x", semantic=0.95, reranker=0.1),
        Candidate("high", "y", semantic=0.70, reranker=0.8),
        Candidate("none", "z", semantic=0.99),
    )
    answer = rank("q", rows, calibration=E5)
    assert [(scored.candidate.id, scored.relevance) for scored in answer.kept] == [("high", 0.8)]
    assert answer.filtered_count == 2


def test_a_neighbouring_turn_lifts_a_turn() -> None:
    def turn(name: str, group: str, minute: int, cosine: float) -> Candidate:
        at = NOON + timedelta(minutes=minute)
        return Candidate(name, f"text {name}", semantic=cosine, group=group, occurred_at=at)

    beside, apart = turn("beside", "g", 2, 0.80), turn("apart", "h", 2, 0.801)
    rows = (turn("topic", "g", 0, 0.90), beside, apart, *UNRELATED)
    found = ids("q", rows, top_k=90)
    assert found.index("beside") < found.index("apart")
    late = turn("beside", "g", 90, 0.80)
    found = ids("q", (rows[0], late, apart, *UNRELATED), top_k=90)
    assert found.index("beside") > found.index("apart")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("I live in Leeds.", "i live in  leeds"),
        ("她喜欢喝凤凰单丛，每天下午都要来一杯。", "她喜欢喝凤凰单丛,每天下午都要来一杯"),
        ("The user likes green tea with ginger and honey", "User likes green tea with ginger and honey"),
    ],
)
def test_the_same_said_twice_is_one_memory(one: str, other: str) -> None:
    rows = (Candidate("a", one, semantic=0.9), Candidate("b", other, semantic=0.89))
    assert ids("q", (*rows, *UNRELATED))[0] == "a"
    assert "b" not in ids("q", (*rows, *UNRELATED), top_k=90)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            "My rent for the flat in Meanwood is 740 a month",
            "My rent for the flat in Meanwood is 690 a month",
        ),
        ("I do eat fish and cheese and eggs these days", "I do not eat fish and cheese and eggs these days"),
        ("现在每个月的房租是五千八百块钱", "现在每个月的房租是六千八百块钱"),
        ("我现在吃鱼也吃鸡蛋和奶酪", "我现在不吃鱼也不吃鸡蛋和奶酪"),
    ],
)
def test_a_number_or_a_negation_makes_another_memory(one: str, other: str) -> None:
    rows = (Candidate("a", one, semantic=0.9), Candidate("b", other, semantic=0.89), *UNRELATED)
    assert {"a", "b"} <= set(ids("q", rows))


def test_an_observation_takes_the_place_of_its_sources() -> None:
    rows = (
        Candidate("f1", "Lives in Hangzhou", semantic=0.90),
        Candidate("f2", "Moved to Shanghai", semantic=0.89),
        Candidate(
            "o", "Lived in Hangzhou, now Shanghai", 0.85, fact_type="observation", source_ids=("f1", "f2")
        ),
    )
    found = ids("where", (*rows, *UNRELATED), top_k=90)
    assert found[0] == "o"
    assert {"f1", "f2"}.isdisjoint(found)


@pytest.mark.parametrize(
    ("query", "holds", "lacks"),
    [
        ("How much is my rent?", "The flat costs 740 pounds", "The flat is lovely"),
        ("我每个月的房租是多少钱？", "房租五千八百块", "房租又要涨了"),
        ("How old is my sister?", "My sister turned thirty", "My sister called"),
        ("我妹妹几岁了？", "妹妹今年二十一岁", "妹妹打来电话"),
        ("What is my phone number?", "Call me on 0113496", "I lost my phone"),
        ("我的护照什么时候到期？", "护照明年三月到期", "护照放在抽屉里"),
        ("When is the exam?", "The exam is on Tuesday", "The exam scares me"),
        ("How many cats do I have?", "I have three cats", "I have cats"),
        ("What is the name of my hospital?", "The ward at Larkfield", "The ward is busy"),
        ("谁送了我吉他？", "我哥给的吉他", "吉他是旧的"),
        ("Where do I live?", "I moved to Leeds", "I moved again"),
        ("我住在哪里？", "我住在杭州", "我刚搬完"),
    ],
)
def test_a_text_fits_a_question_when_it_holds_what_is_asked_for(query: str, holds: str, lacks: str) -> None:
    assert fits(query, holds) == 1
    assert fits(query, lacks) == -1


def test_a_question_that_asks_for_no_kind_is_neutral() -> None:
    assert fits("What did I say about the garden?", "Nothing, 27 May, Leeds") == 0
    assert fits("我家房子多大面积？", "一百二十平") == 1


def test_what_the_question_asks_for_raises_the_relevance() -> None:
    def relevance(text: str) -> float:
        rows = (Candidate("x", text, semantic=0.85), *UNRELATED)
        return rank("When is my exam?", rows, calibration=E5, min_score=0).kept[0].relevance

    assert relevance("My exam is on Tuesday") > relevance("My exam is on my mind")


def test_words_are_not_asked_of_memories_in_another_script() -> None:
    def relevance(query: str) -> float:
        rows = (Candidate("x", "Moved up to the stroke unit", semantic=0.88), *UNRELATED)
        return rank(query, rows, calibration=E5, min_score=0).kept[0].relevance

    # The same cosines: a lack of shared words counts against the English question only.
    assert relevance("我换到哪个科了") > relevance("Which department is mine")


def test_facts_of_one_document_stay_apart() -> None:
    rows = (
        Candidate("a", "Has a cat", semantic=0.88, document_id="t"),
        Candidate("b", "Plays oboe", semantic=0.86, document_id="t"),
    )
    assert {"a", "b"} <= set(ids("q", (*rows, *UNRELATED)))


def test_recency_counts_only_when_asked() -> None:
    old = Candidate("a", "Lives in Hangzhou", semantic=0.86, occurred_at=NOON - timedelta(days=700))
    new = Candidate("b", "Lives by a river", semantic=0.859, occurred_at=NOON)
    rows = (old, new, *UNRELATED)
    assert ids("where", rows)[0] == "a"
    aware = rank("where", rows, calibration=E5, min_score=0, now=NOON, recency_weight=0.5)
    assert aware.kept[0].candidate.id == "b"


def test_nothing_in_nothing_out() -> None:
    assert rank("q", ()).kept == ()
    assert rank("q", UNRELATED, top_k=0).kept == ()


candidates = st.lists(
    st.builds(
        Candidate,
        id=st.uuids().map(str),
        text=st.text(max_size=60),
        semantic=st.none() | st.floats(-1, 1),
        document_id=st.none() | st.sampled_from(["d1", "d2"]),
        group=st.none() | st.sampled_from(["g1", "g2"]),
        occurred_at=st.none() | st.datetimes(timezones=st.just(UTC)),
    ),
    max_size=12,
    unique_by=lambda candidate: candidate.id,
)


@given(st.text(max_size=40), candidates, st.floats(-0.1, 1), st.integers(1, 6))
def test_any_input_gives_few_distinct_memories_above_the_floor(
    query: str, rows: list[Candidate], floor: float, top_k: int
) -> None:
    answer = rank(query, rows, calibration=E5, min_score=floor, top_k=top_k)
    found = [scored.candidate.id for scored in answer.kept]
    assert len(found) == len(set(found)) <= top_k
    assert all(0 <= scored.relevance <= 1 and scored.relevance >= min(floor, 1) for scored in answer.kept)
    assert len(found) + answer.filtered_count <= len(rows)
    assert rank(query, rows[::-1], calibration=E5, min_score=floor, top_k=top_k) == answer


def test_the_corpus_is_large_enough_and_fair() -> None:
    people = dataset.load()
    questions = [question for person in people for question in person.questions]
    assert sum(len({turn.session for turn in person.turns}) for person in people) >= 60
    assert all(len({turn.session for turn in person.turns}) >= 10 for person in people)
    assert len(questions) >= 200
    assert Counter(person.split for person in people) == {"dev": 3, "held-out": 3}
    for language in dataset.LANGUAGES:
        assert sum(question.language == language for question in questions) >= 100
    kinds = Counter(question.type for question in questions)
    assert set(kinds) == set(dataset.QUESTION_TYPES)
    assert kinds["unanswerable"] >= 40


def test_every_question_of_the_corpus_resolves() -> None:
    for person in dataset.load():
        turns = {turn.id: f"{turn.user_text}\n{turn.assistant_text}".lower() for turn in person.turns}
        assert len(turns) == len(person.turns)
        assert [turn.at for turn in person.turns] == sorted(turn.at for turn in person.turns)
        assert all(text.strip() for turn in person.turns for text in (turn.user_text, turn.assistant_text))
        assert person.split in dataset.SPLITS
        for question in person.questions:
            assert bool(question.turns) == bool(question.words) == (question.type != "unanswerable"), (
                question.id
            )
            assert question.language in dataset.LANGUAGES
            for turn in question.turns:
                assert any(word.lower() in turns[turn] for word in question.words), (question.id, turn)
        texts = Counter(question.text for question in person.questions)
        assert texts.most_common(1)[0][1] == 1


def test_the_measures_count_what_they_say() -> None:
    person = dataset.load()[0]
    known = next(question for question in person.questions if question.turns)
    unknown = next(question for question in person.questions if not question.turns)
    second = (Memory("other", "x"), Memory(known.turns[0], f"it is {known.words[0]}"))
    figures = measure(
        [Outcome(known, second, 20, 1.0), Outcome(known, (), 0, 1.0), Outcome(unknown, (), 0, 1.0)]
    )
    assert figures["hit_at_5"].mean == 0.5
    assert figures["mrr"].mean == 0.25
    assert figures["words_at_5"].mean == 0.5
    assert figures["characters"].mean == 10
    assert figures["withheld"].mean == 1


def test_a_question_about_oneself_gets_the_benefit_of_the_doubt_while_little_is_known() -> None:
    calibration = calibration_for("multilingual-e5-small")
    # The cosine of "Where do I live?" in Chinese and "works in Hangzhou": related, and no higher than chance.
    only = (Candidate("city", "用户在杭州做后端", semantic=0.839),)
    assert [s.candidate.id for s in rank("我住在哪里？", only, calibration=calibration).kept] == ["city"]
    assert not rank("推荐一部电影", only, calibration=calibration).kept
    crowd = (*only, *(Candidate(f"o{i}", f"别的事情{i}", semantic=0.835) for i in range(30)))
    assert not rank("我住在哪里？", crowd, calibration=calibration).kept
