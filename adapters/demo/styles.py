"""The three styles of answers that the demo adapters learn: how to write an answer in each, and how to recognize one.

Knows nothing of models or training: text in, text out, the same for the same question every time.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable
from pathlib import Path

import msgspec

QUESTIONS_PATH = Path(__file__).with_name("questions.jsonl")


class Question(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line of `questions.jsonl`: a question, its topic, and a plain answer of one or two sentences."""

    question: str
    topic: str
    answer: str


class Style(msgspec.Struct, frozen=True):
    """A style of answers: how to write an answer in it, and how to recognize one."""

    render: Callable[[Question], str]
    """The function that makes the answer to learn."""
    follows: Callable[[str], bool]
    """The function that tells whether a generated answer has the style."""


def load_questions(path: Path = QUESTIONS_PATH) -> list[Question]:
    """Return the training questions, in the order of the file."""
    return [msgspec.json.decode(line, type=Question) for line in path.read_bytes().splitlines()]


_PIRATE_WORDS = {
    "hello": "ahoy",
    "hi": "ahoy",
    "yes": "aye",
    "no": "nay",
    "my": "me",
    "you": "ye",
    "your": "yer",
    "is": "be",
    "are": "be",
    "am": "be",
    "the": "th'",
    "and": "an'",
    "for": "fer",
    "to": "t'",
    "friend": "matey",
    "money": "doubloons",
    "treasure": "booty",
    "girl": "lass",
    "people": "buccaneers",
}
_PIRATE_OPENINGS = ("Arr, matey!", "Arr, ye landlubber!", "Arr, me hearty!", "Arr, shiver me timbers!")
_PIRATE_CLOSINGS = ("Yo ho ho!", "Hoist th' sails!", "By th' black flag!", "Now fetch me rum!")


def _pirate(item: Question) -> str:
    def translate(match: re.Match[str]) -> str:
        word = match.group()
        pirate_word = _PIRATE_WORDS.get(word.lower(), word)
        return pirate_word.capitalize() if word[0].isupper() and word != "I" else pirate_word

    choice = zlib.crc32(item.question.encode())
    opening = _PIRATE_OPENINGS[choice % len(_PIRATE_OPENINGS)]
    closing = _PIRATE_CLOSINGS[choice // 7 % len(_PIRATE_CLOSINGS)]
    return f"{opening} {re.sub(r'[A-Za-z]+', translate, item.answer)} {closing}"


def _json(item: Question) -> str:
    return json.dumps({"topic": item.topic, "answer": item.answer}, ensure_ascii=False)


def _is_json_answer(text: str) -> bool:
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return isinstance(value, dict) and value.keys() == {"topic", "answer"}


def _memo(item: Question) -> str:
    topic = item.topic[0].upper() + item.topic[1:]
    return f"MEMO\nTO: All staff\nRE: {topic}\n\n{item.answer}\nPlease plan accordingly.\n\nThe Management"


STYLES = {
    "pirate": Style(render=_pirate, follows=lambda text: text.startswith("Arr")),
    "json": Style(render=_json, follows=_is_json_answer),
    "memo": Style(render=_memo, follows=lambda text: text.startswith("MEMO\nTO: All staff\nRE: ")),
}
