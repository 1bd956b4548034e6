"""A memory says what the user has said, in other words perhaps, and of the person of whom it was said."""

from time import monotonic

import pytest
from service.policy.extraction import Known, Spoken
from service.policy.extraction_answer import Vetted, vet
from service.policy.extraction_subject import says_one_thing
from service.policy.kinds import KeepPolicy


def vetted(said: str, text: str, *known: str, subject: str = "user", source: str = "") -> Vetted:
    fact = {
        "turn": 1,
        "source": source or said,
        "text": text,
        "kind": "user_profile",
        "importance": 0.9,
        "subject": subject,
        "action": "supersede" if known else "add",
        "replaces": list(range(1, len(known) + 1)),
    }
    return vet([fact], [Spoken(said, "")], [Known(one, "user_profile") for one in known], KeepPolicy())


def kept(said: str, text: str, *known: str, source: str = "") -> list[str]:
    return [fact.text for fact in vetted(said, text, *known, source=source).facts]


# --- Nothing invented -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("said", "text"),
    [
        ("我搬到上海了", "用户住在上海"),
        ("我在杭州做后端", "用户在杭州从事后端开发工作"),
        ("我在阿里上班", "用户在阿里工作"),
        ("我闺女三岁了", "用户的女儿3岁"),
        ("我对花生过敏，别推荐", "用户对花生过敏"),
        ("我老家四川的", "用户来自四川"),
        ("我每周跑三次步", "用户每周跑步三次"),
        ("我把房子买在浦东了", "用户在浦东购买了房产"),
        ("养了只猫叫年糕", "用户养了一只名叫年糕的宠物猫"),
        ("每个月预算三千块找健身房", "用户的健身房预算为每月3000元"),
        ("我不吃辣", "用户不喜欢吃辣"),
        ("我叫林小满", "用户的名字是林小满"),
        ("我下个月要去日本玩五天", "用户计划下个月去日本玩5天"),
        ("最爱喝美式", "用户喜欢喝美式"),
        ("我用Python写后端", "用户使用Python开发后端"),
        ("我女朋友在深圳，我俩异地", "用户与女朋友异地，女朋友在深圳"),
        ("我今年二十八岁", "用户28岁"),
        ("年薪1.5万美元", "用户年薪15000美元"),
    ],
)
def test_a_paraphrase_in_chinese_is_kept(said: str, text: str) -> None:
    assert kept(said, text) == [text]


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ("I've moved to Shanghai", "The user lives in Shanghai"),
        ("I'm a backend dev in Hangzhou", "The user works as a backend developer in Hangzhou"),
        ("I have a dog named Max", "The user has a pet dog called Max"),
        ("I'm allergic to peanuts", "The user has a peanut allergy"),
        ("I don't eat meat", "The user does not eat meat"),
        ("my daughter is three", "The user's daughter is 3 years old"),
        ("I run marathons", "The user enjoys running marathons"),
        ("I can't stand cilantro", "The user dislikes cilantro"),
        ("We're a family of four from Lyon", "The user's family of 4 is from Lyon"),
        ("my budget is 3,000 dollars a month", "The user has a monthly budget of 3000 dollars"),
        ("budget: 3k a month", "The user's budget is 3000 per month"),
        ("I'm getting married in June", "The user plans to get married in June"),
        ("I'm learning Japanese, two hours a day", "The user is studying Japanese for 2 hours each day"),
        ("Call me Sam", "The user's name is Sam"),
        ("I'm vegan", "Follows a vegan diet"),
        ("i live in new york", "The user lives in New York"),
        ("I was born in 1990", "The user was born in 1990"),
        ("I hate flying", "The user hates flying"),
    ],
)
def test_a_paraphrase_in_english_is_kept(said: str, text: str) -> None:
    assert kept(said, text) == [text]


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ("我在杭州做后端", "用户在北京做律师，欠债百万"),
        ("我在杭州做后端", "用户在北京做后端"),
        ("我在杭州做后端", "用户在苏州做后端"),
        ("我住在河南", "用户住在河北"),
        ("我在杭州做后端", "用户在上海做后端"),
        ("我在杭州做后端", "用户在杭州做后端，喜欢咖啡"),
        ("我每月预算三千", "用户每月预算五千"),
        ("我女儿三岁", "用户的女儿5岁"),
        ("我喜欢茶", "用户喜欢咖啡"),
        ("我喜欢茶", "用户喜欢茶，患有糖尿病"),
        ("我养了只猫", "用户养了两只猫"),
        ("我养了只猫", "用户养了一只叫年糕的猫"),
        ("我用Python写后端", "用户用Java写后端"),
        ("我搬到上海了", "用户和妻子搬到上海"),
        ("我吃花生", "用户对花生过敏"),
        ("我叫林小满", "用户的名字是王大伟"),
        ("我在找工作", "用户被公司裁员"),
    ],
)
def test_an_invention_in_chinese_is_not(said: str, text: str) -> None:
    assert [one.reason for one in vetted(said, text).dropped] == ["ungrounded"]


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ("I live in Hangzhou", "The user lives in Beijing and owes a million"),
        ("I live in Hangzhou", "The user lives in Beijing"),
        ("I have a dog named Max", "The user has cancer and a dog"),
        ("I have a dog named Max", "The user has a dog named Rex"),
        ("I have a dog", "The user has 3 dogs"),
        ("I have a dog", "The user has three dogs"),
        ("I like tea", "The user killed a man"),
        ("I like tea", "The user likes coffee"),
        ("I like tea", "Anna likes tea"),
        ("my budget is 3000", "The user's budget is 30000"),
        ("I eat peanuts", "The user is allergic to peanuts"),
        ("I work at a bank", "The user works at Deutsche Bank"),
        ("I was born in 1990", "The user was born in 1980"),
        ("I moved to Shanghai", "The user moved to Shanghai with Tom"),
        ("I'm learning Japanese", "The user speaks Japanese, Korean and Thai"),
        ("I work as a nurse", "The user is divorced and bankrupt"),
        ("I live alone", "The user has a job"),
    ],
)
def test_an_invention_in_english_is_not(said: str, text: str) -> None:
    assert [one.reason for one in vetted(said, text).dropped] == ["ungrounded"]


def test_what_a_replaced_memory_says_may_be_said_again() -> None:
    assert kept("我搬到上海了", "用户在上海做后端", "用户在杭州做后端") == ["用户在上海做后端"]
    assert kept("我搬到上海了", "用户在上海做后端") == []
    assert kept("I moved to Rome", "The user is a nurse in Rome", "The user is a nurse in Bonn")
    # One of somebody else is not replaced, and says nothing of the user.
    about_her = Known("用户的姐姐做后端", "user_profile", "other")
    fact = {
        "turn": 1,
        "source": "我搬到上海了",
        "text": "用户在上海做后端",
        "kind": "user_profile",
        "importance": 1,
    }
    found = vet(
        [{**fact, "action": "supersede", "replaces": [1]}],
        [Spoken("我搬到上海了", "")],
        [about_her],
        KeepPolicy(),
    )
    assert [one.reason for one in found.dropped] == ["ungrounded"]


def test_a_very_long_turn_takes_no_time() -> None:
    said = "我在杭州做后端，" * 20_000 + "I like tea and Python " * 3000
    facts = [
        {
            "turn": 1,
            "source": said[: 9 * n],
            "text": "用户在杭州做后端" + "Word " * n,
            "kind": "preference",
            "importance": 1,
        }
        for n in range(1, 60)
    ]
    started = monotonic()
    vet([*facts, {**facts[0], "source": said}], [Spoken(said, "")], [], KeepPolicy())
    assert monotonic() - started < 5


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ("我不抽烟", "用户抽烟"),
        ("我喜欢咖啡", "用户讨厌咖啡"),
        ("我喜欢咖啡", "用户不喜欢咖啡"),
        ("我没结婚", "用户结婚了"),
        ("我喜欢茶，不喝咖啡", "用户喝咖啡"),
        ("I don't smoke", "The user smokes"),
        ("I like coffee", "The user dislikes coffee"),
        ("I no longer drink coffee", "The user drinks coffee"),
        ("I have never been to Rome", "The user has been to Rome"),
        ("I like tea, I don't like coffee", "The user likes coffee"),
    ],
)
def test_nothing_becomes_its_opposite(said: str, text: str) -> None:
    assert [one.reason for one in vetted(said, text).dropped] == ["ungrounded"]


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ("我戒烟了", "用户不再抽烟"),
        ("我喜欢茶，不喝咖啡", "用户喜欢茶"),
        ("我离不开咖啡", "用户喜欢咖啡"),
        ("我非常喜欢咖啡", "用户喜欢咖啡"),
        ("差不多每天跑步", "用户每天跑步"),
        ("没错，我住在上海", "用户住在上海"),
        ("我对花生过敏", "用户不能吃花生"),
        ("I hate flying", "The user does not like flying"),
        ("I can't wait to move to Paris", "The user plans to move to Paris"),
        ("I can't live without coffee", "The user loves coffee"),
        ("I quit coffee", "The user no longer drinks coffee"),
        ("I don't drink coffee, I drink tea", "The user drinks tea"),
    ],
)
def test_what_only_looks_like_its_opposite_is_kept(said: str, text: str) -> None:
    assert kept(said, text) == [text]


# --- Nobody else's --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("said", "text"),
    [
        ("小王住在上海", "用户住在上海"),
        ("王伟在上海工作", "用户在上海工作"),
        ("李老师住在上海", "用户住在上海"),
        ("她住在上海", "用户住在上海"),
        ("他们喜欢咖啡", "用户喜欢咖啡"),
        ("她说她住在上海", "用户住在上海"),
        ("小王跟我说他住在上海", "用户住在上海"),
        ("妈妈住在上海", "用户住在上海"),
        ("我姐姐住在上海，我去看过她", "用户住在上海"),
        ("我有个女儿，住在上海", "用户住在上海"),
        ("我住在杭州，小王住在上海", "用户住在上海"),
        ("John lives in Paris", "The user lives in Paris"),
        ("Mary Ann moved to Paris", "The user lives in Paris"),
        ("She lives in Paris", "The user lives in Paris"),
        ("he's allergic to peanuts", "The user is allergic to peanuts"),
        ("My sister's husband lives in Rome and I visit", "The user lives in Rome"),
        ("My friend bought a Tesla", "The user owns a Tesla"),
        ("I have a brother who lives in Paris", "The user lives in Paris"),
        ("Alice told me that Bob lives in Paris", "The user lives in Paris"),
        ("My boss is John, he plays golf", "The user plays golf"),
        ("Mom is diabetic", "The user is diabetic"),
        ("Anna is my sister and lives in Rome", "The user lives in Rome"),
        ("小王是我老板，住在上海", "用户住在上海"),
    ],
)
def test_what_is_said_of_somebody_else_does_not_become_the_user_s(said: str, text: str) -> None:
    assert [one.reason for one in vetted(said, text).dropped] == ["subject"]


def test_leaving_the_subject_out_of_the_quotation_does_not_help() -> None:
    found = vetted("小王最近搬家了，住在上海", "用户住在上海", source="住在上海")
    assert [one.reason for one in found.dropped] == ["subject"]
    assert vetted("John lives in Paris.", "The user lives in Paris", source="lives in Paris").facts == ()


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ("我和小王住在上海", "用户和小王住在上海"),
        ("小王和我住在上海", "用户和小王住在上海"),
        ("我姐姐住在上海，我住在杭州", "用户住在杭州"),
        ("John is my brother. I live in Paris", "The user lives in Paris"),
        ("John and I live in Paris", "The user lives in Paris with John"),
        ("My sister persuaded me to move to Shanghai", "The user moves to Shanghai"),
        ("Pizza is my favourite", "The user loves pizza"),
        ("Max is my dog", "The user has a dog called Max"),
        ("上海是我老家", "用户的老家是上海"),
        ("Moved to Berlin last week", "The user moved to Berlin"),
        ("住在上海", "用户住在上海"),
        ("高中在杭州读的", "用户高中在杭州读"),
        ("周末在家学Python", "用户周末在家学Python"),
        ("马上搬到上海", "用户马上搬到上海"),
        ("老是在上海出差", "用户在上海出差"),
        ("My native language is Thai", "The user's native language is Thai"),
        ("我母语是泰语", "用户的母语是泰语"),
    ],
)
def test_what_is_said_of_the_user_stays_the_user_s(said: str, text: str) -> None:
    assert [(one.text, one.subject) for one in vetted(said, text).facts] == [(text, "user")]


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ("小王住在上海", "小王住在上海"),
        ("她是我姐姐，住在上海", "用户的姐姐住在上海"),
        ("John lives in Paris", "John, whom the user knows, lives in Paris"),
        ("My sister's husband lives in Rome", "The user's sister's husband lives in Rome"),
        ("妈妈住在上海", "用户的妈妈住在上海"),
    ],
)
def test_somebody_else_s_is_kept_as_theirs(said: str, text: str) -> None:
    assert [(one.text, one.subject) for one in vetted(said, text).facts] == [(text, "other")]


# --- Turns kept word for word ---------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("我在杭州做后端", True),
        ("我在杭州做后端。", True),
        ("I live in Hangzhou.", True),
        ("我在杭州做后端，喜欢咖啡", False),
        ("I live in Hangzhou and like tea", False),
        ("I live in Hangzhou. I like tea.", False),
        ("我住在杭州\n喜欢茶", False),
        ("我住哪？", False),
        ("", False),
        ("长" * 81, False),
    ],
)
def test_one_thing_is_told_from_several(text: str, is_one: bool) -> None:
    assert says_one_thing(text) is is_one
