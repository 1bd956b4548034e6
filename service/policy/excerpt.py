"""The cut of a memory for a prompt: the sentence that answers, whole if it fits, never half a character."""

import math
import unicodedata
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import regex

from service.policy.block import LABELS, Language, Role
from service.policy.content import clean, parse_rendered
from service.policy.sentences import GRAPHEME, sentence_ends, split_long

ELLIPSIS: Final = "…"
# Longer memories are looked at up to here: bounds the time of one excerpt.
MAX_TEXT_CHARS: Final = 20_000
# A shorter rest of a memory says nothing.
MIN_REST_CHARS: Final = 20

_SPACES = regex.compile(r"\s++")
_BREAKS: Final = frozenset("\n\x85\u2028\u2029")
# What `content.render` writes before a speaker's words; inside somebody's words it loses its colon.
_FAKE_LABEL = regex.compile(
    r"(?i)((?<!\w)(?:user|assistant|tool)|(?<!\p{Han})(?:用户|助手|工具))[*_]{0,2}\s?[:：]"
)
_CJK = r"\p{Han}\p{Hiragana}\p{Katakana}"
_UNSPACED = rf"{_CJK}\p{{Thai}}\p{{Lao}}\p{{Khmer}}\p{{Myanmar}}"
# Where a word ends: white space, a mark, or any character of a script without spaces (not before a mark).
_WORD_END = regex.compile(
    rf"\s++|(?<=[{_UNSPACED}\p{{So}}\p{{Sk}}\uFE0F])(?![\p{{Po}}\p{{Pe}}\p{{Pf}}\s])"
    rf"|(?<=\S)(?=[{_UNSPACED}\p{{So}}])|(?<=[，、；：。！？;!?—…]|,(?!\d))(?!\s)"
)
_BEFORE_ELLIPSIS: Final = " ，,、；;：:。."
_TOKEN = regex.compile(rf"([{_CJK}\p{{Hangul}}]++)|(?:(?![{_CJK}\p{{Hangul}}])[\p{{L}}\p{{M}}\p{{N}}])++")
_SUFFIX = regex.compile(r"(?<=\w{3})(?:ing|ies|ied|es|ed|s|e|y)$")
_STOP_EN: Final = (
    "a an and any are as at be been but by can could did do does for from had has have he her his how i if "
    "in is it its me my of on or our she so than that the their them then there they this to us was we were "
    "what when where which who why will with would you your about tell know please"
)
_STOP_ZH: Final = (
    "什么 怎么 哪里 哪儿 时候 多少 的 了 我 你 是 吗 呢 吧 啊 在 有 不 么 什 怎 哪 这 那 个 们 "
    "他 她 它 多 少 为 和 就 都 也 要"
)
_WEAK: Final = 0.3
_MAX_QUERY_WORDS: Final = 200
_QUESTION = regex.compile(r"[?？]|吗[。!！]?$")


@dataclass(frozen=True, slots=True)
class _Sentence:
    message: int
    begin: int
    end: int


class _Memory:
    """A memory as messages of one line each (`\\n` still marks where lines ended) and their sentences."""

    def __init__(self, text: str) -> None:
        messages = parse_rendered(text)
        language: Language = "zh" if text.startswith(tuple(LABELS["zh"].values())) else "en"
        self.roles: list[Role | None] = [message.role for message in messages] or [None]
        self.labels = [LABELS[language][role] if role else "" for role in self.roles]
        self.bodies = [_one_line(message.text) for message in messages] or [_one_line(text)]
        self.sentences = [
            sentence for index, body in enumerate(self.bodies) for sentence in _sentences(index, body)
        ]

    def is_users(self, sentence: _Sentence) -> bool:
        return self.roles[sentence.message] in {None, "user"}

    def text_of(self, sentence: _Sentence) -> str:
        return self.bodies[sentence.message][sentence.begin : sentence.end].replace("\n", " ")


def _one_line(text: str) -> str:
    text = _FAKE_LABEL.sub(r"\1 – ", text)
    return _SPACES.sub(lambda m: " " if _BREAKS.isdisjoint(m[0]) else "\n", text).strip()


def _sentences(message: int, body: str) -> Iterator[_Sentence]:
    begin = 0
    for end in sentence_ends(body):
        trimmed = end - 1 if body[end - 1] in " \n" else end  # white space is single by now
        if trimmed > begin:
            yield _Sentence(message, begin, trimmed)
        begin = end


def words(text: str) -> Iterator[tuple[int, str]]:
    """The words of a text with their positions, made comparable: case-folded, NFKC, without common endings.

    Chinese, Japanese and Korean give pairs of neighbouring characters and single characters.
    """
    for match in _TOKEN.finditer(text):
        at, word = match.start(), match[0]
        if match[1] is None:
            yield at, _stem(_folded(word))
            continue
        for index, char in enumerate(word):
            yield at + index, char
            if index + 1 < len(word):
                yield at + index, word[index : index + 2]


def _folded(text: str) -> str:
    return text.lower() if text.isascii() else unicodedata.normalize("NFKC", text).casefold()


def _stem(word: str) -> str:
    """Makes "swim", "swims" and "swimming" one; crude, but the same for text and query."""
    word = _SUFFIX.sub("", word)
    return word[:-1] if word[-1:] == word[-2:-1] else word


_STOP_WORDS: Final = frozenset(_stem(word) for word in f"{_STOP_EN} {_STOP_ZH}".split())


def _weight(word: str) -> float:
    """How much it means to share this word: single characters and pairs such as 我的 say little."""
    is_weak = not word.isascii() and len(word) <= 2 and (len(word) == 1 or not _STOP_WORDS.isdisjoint(word))
    return _WEAK if is_weak else 1.0


def _hits(memory: _Memory, query: str) -> list[dict[int, str]]:
    """For each sentence, where in it which word of the query stands."""
    asked = {word for _, word in words(query)} - _STOP_WORDS
    if len(asked) > _MAX_QUERY_WORDS:  # the end of a long prompt is the question
        asked = set([word for _, word in words(query) if word not in _STOP_WORDS][-_MAX_QUERY_WORDS:])
    if not asked:
        return [{} for _ in memory.sentences]
    found: list[dict[int, str]] = []
    for sentence in memory.sentences:
        text = memory.text_of(sentence)
        folded = _folded(text)
        if any(word in folded for word in asked):
            # At one position the pair comes after the single character, and wins.
            found.append({at: word for at, word in words(text) if word in asked})
        else:
            found.append({})
    return found


def _best(memory: _Memory, found: list[dict[int, str]]) -> int:
    """The sentence that shares the most with the query; without any, the first one."""
    spread = Counter(word for hits in found for word in set(hits.values()))
    best, best_score = 0, 0.0
    for index, hits in enumerate(found):
        if not hits:
            continue
        score = sum(_weight(word) * math.log(1 + len(found) / spread[word]) for word in set(hits.values()))
        sentence = memory.sentences[index]
        if _QUESTION.search(memory.text_of(sentence)[-3:]):
            score *= 0.5  # asks, rather than tells
        if not memory.is_users(sentence):
            score *= 0.9
        if score > best_score:
            best, best_score = index, score
    return best


def excerpt(text: str, query: str, max_chars: int) -> str:
    """At most `max_chars` (>= 1) characters of a memory, on one line, around what answers the query.

    The sentence that shares most words with the query is kept, with as many of its neighbours as fit. A
    sentence that does not fit is cut at words around the shared words, `…` marking (and counting) each cut;
    inside a word only where one alone is too long; never inside a visible character. Words that are not the
    user's keep their speaker ("Assistant: …"), and so do all when there are several speakers; the user's
    alone stand without. The result is not a rendered turn any more: cut it again with `shorten` only. ""
    for a blank text, "…" when nothing fits. Only the first 20,000 characters are looked at.
    """
    if max_chars < 1:
        raise ValueError("an excerpt needs at least one character")
    text = clean(text[: 2 * MAX_TEXT_CHARS])
    if len(text) > MAX_TEXT_CHARS:
        text = split_long(text, MAX_TEXT_CHARS)[0]
    memory = _Memory(text)
    if not memory.sentences:
        return ""
    found = _hits(memory, query)
    best = _best(memory, found)
    sentence = memory.sentences[best]
    label = "" if memory.is_users(sentence) else memory.labels[sentence.message]
    room = max_chars - len(label)
    if sentence.end - sentence.begin <= room:
        return _grown(memory, best, max_chars)
    cut = _cut(memory.text_of(sentence), sorted(found[best]), room)
    return label + cut if cut else ELLIPSIS


def _grown(memory: _Memory, best: int, max_chars: int) -> str:
    """The sentence and its neighbours, first those of the same message, as long as all fit."""
    sentences = memory.sentences
    low = high = best
    chars = sentences[best].end - sentences[best].begin
    label_chars = len(memory.labels[sentences[best].message])
    is_labelled = not memory.is_users(sentences[best])
    for same_message in (True, False):
        open_sides = {1, -1}
        while open_sides:
            for side in (1, -1):
                edge = sentences[high if side > 0 else low]
                index = high + 1 if side > 0 else low - 1
                if side not in open_sides:
                    continue
                open_sides.discard(side)
                if not 0 <= index < len(sentences):
                    continue
                new = sentences[index]
                is_same = new.message == edge.message
                if same_message and not is_same:
                    continue
                if is_same:
                    added, new_labels = (new.end - edge.end if side > 0 else edge.begin - new.begin), 0
                else:
                    added, new_labels = 1 + new.end - new.begin, len(memory.labels[new.message])
                labelled = is_labelled or not memory.is_users(new)
                if chars + added + (label_chars + new_labels if labelled else 0) > max_chars:
                    continue
                chars, label_chars, is_labelled = chars + added, label_chars + new_labels, labelled
                low, high = min(low, index), max(high, index)
                open_sides.add(side)
    return _joined(memory, low, high, is_labelled)


def _joined(memory: _Memory, low: int, high: int, is_labelled: bool) -> str:
    first, last = memory.sentences[low], memory.sentences[high]
    parts: list[str] = []
    for message in range(first.message, last.message + 1):
        body = memory.bodies[message]
        begin = first.begin if message == first.message else 0
        end = last.end if message == last.message else len(body)
        if begin < end:
            label = memory.labels[message] if is_labelled else ""
            parts.append(label + body[begin:end].replace("\n", " "))
    return " ".join(parts)


def _clusters(text: str) -> list[int]:
    """Where visible characters end."""
    return list(range(1, len(text) + 1)) if text.isascii() else [m.end() for m in GRAPHEME.finditer(text)]


def _cut(text: str, hits: Sequence[int], room: int) -> str:
    """At most `room` characters of a longer sentence, around most of the places `hits`; "" if none fits."""
    clusters = _clusters(text)
    edges = set(clusters)
    spaces = [(m.start(), m.end()) for m in _WORD_END.finditer(text)]
    ends = [start for start, _ in spaces if start in edges]
    begins = [end for _, end in spaces if end in edges]
    begin = _begin(text, hits, room, begins, clusters) if room > 2 and hits else 0
    lead = ELLIPSIS if begin else ""
    if len(text) - begin <= room - len(lead):
        return lead + text[begin:]
    limit = begin + room - len(lead) - len(ELLIPSIS)
    for stops in (ends, clusters):
        index = bisect_right(stops, limit) - 1
        if index >= 0 and (kept := text[begin : stops[index]].rstrip(_BEFORE_ELLIPSIS)):
            return f"{lead}{kept}{ELLIPSIS}"
    return ""


def _begin(text: str, hits: Sequence[int], room: int, begins: list[int], clusters: list[int]) -> int:
    """Where to begin so that most hits are inside; 0 whenever that does."""
    inside = room - 2
    most, first, low = 0, 0, 0
    for high, at in enumerate(hits):
        while at - hits[low] >= inside:
            low += 1
        if high - low + 1 > most:
            most, first = high - low + 1, low
    last_hit = hits[first + most - 1]
    last_end = clusters[bisect_right(clusters, last_hit + 1)] if last_hit + 2 < len(text) else len(text)
    if last_end <= room - 1:
        return 0
    spare = max(0, inside - (last_end - hits[first]))
    earliest = max(0, hits[first] - spare // 2)
    earliest = min(earliest, max(0, len(text) - room + 1))
    for stops in (begins, clusters):
        index = bisect_left(stops, earliest)
        if index < len(stops) and stops[index] <= hits[first]:
            return stops[index]
    index = bisect_right(clusters, hits[first]) - 1
    return clusters[index] if index >= 0 else 0


def shorten(text: str, max_chars: int) -> str:
    """The beginning of an excerpt in at most `max_chars` (>= 1) characters.

    Whole sentences if they fill half of it, else whole words and `…`.
    """
    if len(text) <= max_chars:
        return text
    edges = [end for end in sentence_ends(text[: max_chars + 1]) if max_chars / 2 <= end <= max_chars]
    kept = text[: edges[-1]].rstrip() if edges and edges[-1] in set(_clusters(text[: max_chars + 1])) else ""
    return kept or _cut(text, (), max_chars) or ELLIPSIS


def total_budget(texts: Sequence[str], max_total_chars: int) -> list[str]:
    """The first excerpts that fit together into `max_total_chars` characters (<= 0: no limit).

    They are taken whole in their order; the first that does not fit is cut when at least 20 characters
    remain for it, and ends the list.
    """
    if max_total_chars <= 0:
        return list(texts)
    taken: list[str] = []
    room = max_total_chars
    for text in texts:
        if len(text) > room:
            if room >= MIN_REST_CHARS:
                taken.append(shorten(text, room))
            break
        taken.append(text)
        room -= len(text)
    return taken
