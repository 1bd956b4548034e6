"""The second-stage ranking of recall: order, relevance floor, and what repeats something else.

Pure: no I/O and no clock of its own. Hindsight hands over candidates with the raw scores of its arms. The
order is made here from the semantic score (z-scored over the candidates), the words shared with the query
(BM25 over the same candidates) and the score of the turns next to a candidate in its conversation.

Relevance answers another question: is the query answered at all, and by this one? It is a logistic function
of how high the best cosine is and how far it stands out from the others, of how many of the query's words
the leading candidates hold, and of whether they hold the kind of thing the query asks for (a date, a price,
a name …), times how close a candidate comes to the best one; 0.25 and more means "probably answers".
The constants were chosen with `tests/bench/recall`, split dev, from turns stored as one text each.
"""

import math
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from heapq import nlargest
from itertools import pairwise
from typing import Final

import regex

from service.policy.lexicon import IS_HAN, RUN, counts_of, fits, query_terms, tokens_of

DEFAULT_MIN_SCORE: Final = 0.25

_LEXICAL_WEIGHT: Final = 0.3
_NEIGHBOUR_WEIGHT: Final = 0.25
# Standard deviations between a memory that matters most and one that does not: it decides among near equals.
_IMPORTANCE_WEIGHT: Final = 0.2
_NEIGHBOUR_GAP: Final = timedelta(minutes=30)
_CLOSENESS_SPAN: Final = 6.0
# A small bank has no distribution of its own: about this many calibrated values are mixed in.
_PRIOR_COUNT: Final = 8
# The candidates, by cosine, that the best one must stand out from. Fixed ranks, so that it does not matter
# how many candidates were asked for.
_FOLLOWING: Final = slice(8, 40)
_USUAL_STANDOUT: Final = 3.0
# The candidates, by order, whose words and kinds count as evidence.
_LEADING: Final = 5
# Shared words weigh as much as in a bank of this many memories at least: in a tiny one no word is rare.
_RARITY_AMONG: Final = 90
# The square root of the shared words' weight (in units of this) that is as good as none.
_WORDS_UNIT: Final = 8.0
_USUAL_WORDS: Final = 0.7
_BM25_K1: Final = 1.2
_BM25_B: Final = 0.4
_DUPLICATE_OVERLAP: Final = 0.85
_RECENCY_HALF_LIFE_DAYS: Final = 90.0
# Of somebody of whom hardly anything is known, all that is known fits into the answer, and there is nothing
# the best memory could stand out from: a question about oneself gets the benefit of the doubt.
_FEW: Final = 10
_FEW_BONUS: Final = 3.5
_ABOUT_SELF: Final = regex.compile(r"[我俺咱]|\b(?:i|i['’]\p{L}+|my|me|mine|myself)\b", regex.IGNORECASE)

_ANY_WORD: Final = regex.compile(r"[\p{L}\p{N}]")
# Two texts that differ in one of these do not say the same thing, however much else they share.
_DECISIVE: Final = regex.compile(
    r"\p{N}+|\b(?:no|not|never|none|without|cannot|[a-z]+n['’]t)\b|[不没无未非别一二两三四五六七八九十百千万亿]",
    regex.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One memory as Hindsight returned it; a score is None when that arm did not surface it.

    `group` is the conversation; `source_ids` are the memories an observation was made from; `importance` is 0
    to 1, None for turns kept word for word.
    """

    id: str
    text: str
    semantic: float | None = None
    keyword: float | None = None
    reranker: float | None = None
    final: float | None = None
    occurred_at: datetime | None = None
    document_id: str | None = None
    fact_type: str = "world"
    group: str | None = None
    source_ids: tuple[str, ...] = ()
    importance: float | None = None


@dataclass(frozen=True, slots=True)
class Scored:
    """A candidate that is part of the answer and its relevance, 0 to 1."""

    candidate: Candidate
    relevance: float


@dataclass(frozen=True, slots=True)
class Ranked:
    """The answer, best first, and how many candidates fell below the floor."""

    kept: tuple[Scored, ...]
    filtered_count: int


@dataclass(frozen=True, slots=True)
class Calibration:
    """What the cosines of one embedding model mean.

    `unrelated` and `unrelated_han` are the usual cosine of a question (in Han characters: the second) and the
    texts that come after the related ones; `spread` is the standard deviation among these. The weights belong
    to the logistic function that the module describes: `cosine` per spread of the best candidate above
    `unrelated`, `standout` per spread above the candidates that follow, `words` for words shared with the
    leading candidates, `coverage` for all of the query's words in the best one, `kinds` and `best_kind` for
    leading candidates, and a best one, that hold (or lack) what the query asks for. Without `unrelated` the
    candidates' own deviation takes the place of the spread.
    """

    unrelated: float | None
    unrelated_han: float | None
    spread: float
    bias: float
    cosine: float
    standout: float
    words: float
    coverage: float
    kinds: float = 0.95
    best_kind: float = 0.44


# Each is the mean of two fits, one on the best candidate alone and one on the leading ones: few questions
# stand behind either, and the mean errs less on others.
GENERIC: Final = Calibration(
    None, None, 0.05, bias=-3.22, cosine=0.0, standout=0.58, words=1.65, coverage=1.5
)
_CALIBRATIONS: Final[Mapping[str, Calibration]] = {
    "multilingual-e5-small": Calibration(
        0.80, 0.85, 0.02, bias=-3.28, cosine=0.16, standout=0.755, words=1.65, coverage=0.615
    ),
}


def calibration_for(model: str) -> Calibration:
    """The calibration of an embedding model by its name (`intfloat/multilingual-e5-small`), else GENERIC."""
    name = model.casefold()
    return next((found for known, found in _CALIBRATIONS.items() if known in name), GENERIC)


def has_word(query: str) -> bool:
    """Whether the query holds a letter or a digit. Hindsight refuses one that does not with 422."""
    return _ANY_WORD.search(query) is not None


def keep_tail(query: str, max_tokens: int = 480) -> str:
    """The end of a query, at most about `max_tokens` tokens of it, beginning at a word.

    Hindsight cuts the tail at 500 tokens, and the question stands at the end of a long prompt. Tokens are
    estimated to the safe side: three ASCII characters make one, any other character makes one and a half.
    """
    if len(query) * 1.5 <= max_tokens:
        return query
    left = float(max_tokens)
    clusters = regex.findall(r"\X", query[-4 * max_tokens :])
    start = len(clusters)
    while start and left > 0:
        cost = sum(0.34 if char < "\x80" else 1.5 for char in clusters[start - 1])
        if cost > left:
            break
        left -= cost
        start -= 1
    tail = "".join(clusters[start:])
    if len(tail) == len(query):
        return query
    before = query[len(query) - len(tail) - 1]
    if before.isspace() or IS_HAN.match(before):
        return tail.lstrip()
    # Inside a Latin word: go on to the next one, unless the text has no spaces at all.
    _, _, rest = tail.partition(" ")
    return rest.lstrip() if rest and not IS_HAN.match(tail) else tail.lstrip()


def rank(
    query: str,
    candidates: Sequence[Candidate],
    *,
    calibration: Calibration = GENERIC,
    min_score: float = DEFAULT_MIN_SCORE,
    top_k: int = 5,
    now: datetime | None = None,
    recency_weight: float = 0.0,
) -> Ranked:
    """The at most `top_k` candidates that answer the query, best first.

    A candidate with less relevance than `min_score` falls, and so does one without any score of its own; a
    `min_score` of 0 or less asks for no floor. An observation takes the place of the memories it was made
    from; of texts that say the same the best stays.
    `recency_weight` adds so many standard deviations to a memory of `now`, half of that to one 90 days old.
    """
    if not candidates or top_k < 1:
        return Ranked((), 0)
    if any(candidate.reranker is not None for candidate in candidates):
        order = [_MISSING if c.reranker is None else c.reranker for c in candidates]
        relevance = [0.0 if c.reranker is None else min(1.0, max(0.0, c.reranker)) for c in candidates]
    else:
        order, relevance = _scores(query, candidates, calibration, now, recency_weight)
    above = [i for i in range(len(candidates)) if min_score <= 0 or relevance[i] >= min_score]
    filtered = len(candidates) - len(above)
    superseded: set[str] = set()
    by_id = {candidate.id: i for i, candidate in enumerate(candidates)}
    for i in above:
        sources = candidates[i].source_ids
        superseded.update(sources)
        for source in (by_id[source] for source in sources if source in by_id):
            order[i] = max(order[i], order[source])
            relevance[i] = max(relevance[i], relevance[source])
    above = [i for i in above if candidates[i].id not in superseded]
    above.sort(key=lambda i: (-order[i], -_timestamp(candidates[i].occurred_at), candidates[i].id))
    kept: list[Scored] = []
    seen = _Seen()
    for i in above:
        if seen.repeats(candidates[i]):
            continue
        kept.append(Scored(candidates[i], relevance[i]))
        if len(kept) == top_k:
            break
    return Ranked(tuple(kept), filtered)


_MISSING: Final = -1e9


def _scores(
    query: str,
    candidates: Sequence[Candidate],
    calibration: Calibration,
    now: datetime | None,
    recency_weight: float,
) -> tuple[list[float], list[float]]:
    """Order (any scale) and relevance (0 to 1) of each candidate, by cosine and words."""
    lexical, shares, matched = _lexical(query, candidates)
    cosines = sorted((c.semantic for c in candidates if c.semantic is not None), reverse=True)
    mean, deviation = _distribution(cosines, calibration)
    order = [_LEXICAL_WEIGHT * value for value in _standardised(lexical)]
    for i, candidate in enumerate(candidates):
        if candidate.semantic is not None:
            order[i] += (candidate.semantic - mean) / deviation
        if candidate.importance is not None:
            order[i] += _IMPORTANCE_WEIGHT * (candidate.importance - 0.5)
        if recency_weight and now is not None and candidate.occurred_at is not None:
            age_days = max(0.0, (now - candidate.occurred_at).total_seconds() / 86400)
            order[i] += recency_weight * 0.5 ** (age_days / _RECENCY_HALF_LIFE_DAYS)
    order = _with_neighbours(candidates, order)
    if cosines:
        # The floor has no measure for a row that only another arm surfaced.
        measured = [i for i, c in enumerate(candidates) if c.semantic is not None]
        leading = nlargest(_LEADING, measured, key=lambda i: (order[i], candidates[i].id))
        best = leading[0]
        kinds = [fits(query, candidates[i].text) for i in leading]
        logit = calibration.kinds * sum(kinds) / len(kinds) + calibration.best_kind * kinds[0]
        logit += calibration.coverage * shares[best]
        if _shares_script(query, candidates):
            most = max(matched[i] for i in leading)
            logit += calibration.words * (math.sqrt(most / _WORDS_UNIT) - _USUAL_WORDS)
        answered = _answered(query, cosines, logit, calibration)
    else:
        measured = [i for i in range(len(candidates)) if shares[i] > 0]
        best = max(measured, key=lambda i: (order[i], candidates[i].id), default=0)
        answered = shares[best]
    relevance = [0.0] * len(candidates)
    for i in measured:
        behind = max(0.0, order[best] - order[i]) / _CLOSENESS_SPAN
        relevance[i] = answered * math.exp(-behind * behind)
    return order, relevance


def _answered(query: str, cosines: Sequence[float], logit: float, calibration: Calibration) -> float:
    """How likely the best candidate answers the query, 0 to 1. `cosines` are sorted, the best one first."""
    best = cosines[0]
    logit += calibration.bias
    if len(cosines) < _FEW and _ABOUT_SELF.search(query):
        logit += _FEW_BONUS * (1 - len(cosines) / _FEW)
    others = list(cosines[_FOLLOWING])
    if calibration.unrelated is None or calibration.unrelated_han is None:
        standout = _USUAL_STANDOUT  # Nothing to compare with: the words decide.
        if others:
            _, deviation = _distribution(cosines[: _FOLLOWING.stop], calibration)
            standout = (best - math.fsum(others) / len(others)) / deviation
        logit += calibration.standout * standout
    else:
        usual = calibration.unrelated_han if IS_HAN.search(query) else calibration.unrelated
        missing = _FOLLOWING.stop - _FOLLOWING.start - len(others)
        reference = (math.fsum(others) + missing * usual) / (len(others) + missing)
        logit += calibration.standout * (best - reference) / calibration.spread
        logit += calibration.cosine * (best - calibration.unrelated) / calibration.spread
    return 1 / (1 + math.exp(-min(40.0, max(-40.0, logit))))


def _shares_script(query: str, candidates: Sequence[Candidate]) -> bool:
    """Whether the query could share words with most candidates: both in Han characters, or neither."""
    han = sum(IS_HAN.search(candidate.text) is not None for candidate in candidates)
    return (IS_HAN.search(query) is not None) == (2 * han > len(candidates))


def _distribution(cosines: Sequence[float], calibration: Calibration) -> tuple[float, float]:
    """Mean and standard deviation of the cosines; the calibrated spread counts in as long as they are few."""
    count = len(cosines)
    if not count:
        return 0.0, calibration.spread
    mean = math.fsum(cosines) / count
    weight = _PRIOR_COUNT * _PRIOR_COUNT / (_PRIOR_COUNT + count)
    variance = math.fsum((x - mean) ** 2 for x in cosines) + calibration.spread**2 * weight
    return mean, math.sqrt(variance / (weight + count))


def _standardised(values: Sequence[float]) -> list[float]:
    count = len(values)
    mean = math.fsum(values) / count
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / count)
    return [(value - mean) / deviation if deviation > 1e-9 else 0.0 for value in values]


def _with_neighbours(candidates: Sequence[Candidate], order: Sequence[float]) -> list[float]:
    """A turn gains from the better of the turns beside it: an answer often stands next to its topic."""
    best: dict[tuple[str, datetime], float] = {}
    for candidate, score in zip(candidates, order, strict=True):
        if candidate.group is not None and candidate.occurred_at is not None:
            place = (candidate.group, candidate.occurred_at)
            best[place] = max(score, best.get(place, score))
    places = sorted(best)
    gain: dict[tuple[str, datetime], float] = {}
    for earlier, later in pairwise(places):
        if earlier[0] == later[0] and later[1] - earlier[1] <= _NEIGHBOUR_GAP:
            gain[earlier] = max(gain.get(earlier, 0.0), best[later])
            gain[later] = max(gain.get(later, 0.0), best[earlier])
    return [
        score + _NEIGHBOUR_WEIGHT * gain.get((c.group, c.occurred_at), 0.0)
        if c.group is not None and c.occurred_at is not None
        else score
        for c, score in zip(candidates, order, strict=True)
    ]


def _lexical(query: str, candidates: Sequence[Candidate]) -> tuple[list[float], list[float], list[float]]:
    """Of each candidate: BM25, the share of the query's words it holds (by weight), their whole weight."""
    terms = query_terms(query)
    counts = [counts_of(candidate.text.lower(), terms) for candidate in candidates]
    found = {term: sum(term in count for count in counts) for term in terms}
    weights = _weights(terms, found, len(candidates))
    rarities = _weights(terms, found, max(len(candidates), _RARITY_AMONG))
    whole = math.fsum(weights.values()) or 1.0
    average = sum(len(candidate.text) for candidate in candidates) / len(candidates) or 1.0
    scores: list[float] = []
    for candidate, count in zip(candidates, counts, strict=True):
        damping = _BM25_K1 * (1 - _BM25_B + _BM25_B * len(candidate.text) / average)
        scores.append(sum(weights[t] * n * (_BM25_K1 + 1) / (n + damping) for t, n in count.items()))
    shares = [sum(weights[term] for term in count) / whole for count in counts]
    return scores, shares, [sum(rarities[term] for term in count) for count in counts]


def _weights(terms: Mapping[str, float], found: Mapping[str, int], total: int) -> dict[str, float]:
    """The terms' weights by how few of `total` texts hold them."""
    return {
        term: weight * math.log(1 + (total - found[term] + 0.5) / (found[term] + 0.5))
        for term, weight in terms.items()
    }


class _Seen:
    """The texts an answer already holds."""

    def __init__(self) -> None:
        self._exact: set[str] = set()
        self._sets: list[tuple[frozenset[str], list[str]]] = []

    def repeats(self, candidate: Candidate) -> bool:
        """Whether a candidate says what an earlier one said; remembers it when it does not."""
        text = unicodedata.normalize("NFKC", candidate.text).casefold()
        pieces = RUN.findall(text)
        exact = "".join(pieces)
        if exact in self._exact:
            return True
        tokens = frozenset(tokens_of(pieces))
        decisive = sorted(_DECISIVE.findall(text))
        for other, other_decisive in self._sets:
            shared = len(tokens & other)
            if decisive == other_decisive and shared >= _DUPLICATE_OVERLAP * (len(tokens | other) or 1):
                return True
        self._exact.add(exact)
        self._sets.append((tokens, decisive))
        return False


def _timestamp(moment: datetime | None) -> float:
    return 0.0 if moment is None else moment.timestamp()
