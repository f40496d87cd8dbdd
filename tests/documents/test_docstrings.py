"""Docstrings are sentences that a reader understands without the body: signs of compressed language are refused.

The meaning of a sentence is for people to judge. The patterns here are those that were wrong nearly always when found.
"""

from __future__ import annotations

import ast
import functools
import itertools
import re
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.documents import REPOSITORY, TRACKED


class Docstring(NamedTuple):
    """A docstring of a module, a class, a function, or the value above it."""

    place: str
    """The file and the line."""

    kind: str
    """The kind of the documented object: module, class, function, test or value."""

    text: str
    """The text with one space between words, paragraphs separated by a line's end."""


def _flat(text: str) -> str:
    return "\n".join(" ".join(each.split()) for each in re.split(r"\n\s*\n", text.strip()))


def _text_of(statement: ast.stmt) -> str | None:
    match statement:
        case ast.Expr(ast.Constant(str(text))):
            return _flat(text)
    return None


def _kind_of(node: ast.AST) -> str:
    if isinstance(node, ast.Module):
        return "module"
    if isinstance(node, ast.ClassDef):
        return "class"
    return "test" if getattr(node, "name", "").startswith("test_") else "function"


def _blocks(owner: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and all below that have statements. Expressions, which are most of a file, have none."""
    yield owner
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        inner = getattr(owner, field, None)
        for each in inner if isinstance(inner, list) else ():
            yield from _blocks(each)


def _docstrings(name: str) -> Iterator[Docstring]:
    """Yield the docstrings of a file, those below assignments too."""
    for node in _blocks(ast.parse((REPOSITORY / name).read_text())):
        body = getattr(node, "body", None)
        if not isinstance(body, list) or not body:
            continue
        owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        if isinstance(node, owners) and (text := _text_of(body[0])) is not None:
            yield Docstring(f"{name}:{body[0].lineno}", _kind_of(node), text)
        for before, statement in itertools.pairwise(body):
            if isinstance(before, ast.Assign | ast.AnnAssign) and (text := _text_of(statement)) is not None:
                yield Docstring(f"{name}:{statement.lineno}", "value", text)


@functools.cache
def docstrings() -> list[Docstring]:
    """Return the docstrings of all files, which takes seconds: the first test that asks reads them."""
    names = sorted(name for name in TRACKED if name.endswith(".py") and (REPOSITORY / name).exists())
    return [each for name in names for each in _docstrings(name)]


EVERY = ("module", "class", "function", "test", "value")
FUNCTION = ("function",)
SENTENCE = r"(?:^|(?<=[.!?])[\"”)`]* |\n)"
PRONOUN = r"(?:its?|they|them|their|those|that of|the ones?)\b"
SIGNS: dict[str, tuple[tuple[str, ...], str]] = {
    "a sentence begins with a word that has no subject": (
        EVERY,
        rf"{SENTENCE}(?:Who|Whom|Whose|Whoever|What|Which|Where|Whence|Those|Of)\b",
    ),
    "the thing that the text is about is a pronoun": (
        EVERY,
        r"^(?:(?:It|Its|They|Their|Them|That|As)\b"
        r"|(?:This|These|Both|Such|The same|The others?)(?: of| in| by| as| is| are|[.,]))",
    ),
    "an error is raised nobody knows when": (
        EVERY,
        rf"{SENTENCE}Raises (?!as (?:`[\w.]+`(?: and |, )?)+[.,;])(?![^:]+: (?:when|if|for) )",
    ),
    "an error is raised in the middle of a sentence": (EVERY, r"(?<=[a-z,] )Raises\b"),
    "the verb's object is a pronoun": (FUNCTION, rf"^\w+ {PRONOUN}"),
    "the verb's object is a clause": (FUNCTION, r"^\w+ (?:what|whatever|who|whoever|whom)\b"),
    "a parameter stands in place of the sentence": (FUNCTION, r"^[a-z]\w*: "),
    "the first sentence has no object": (
        FUNCTION,
        r"^\w+(?: (?:all|again|anew|here|now|back|on|up|down|off|out|in))?\.(?: |\n|$)",
    ),
    "a parameter is explained by a pronoun": (
        EVERY,
        rf"(?:\n|[.;] )\*{{0,2}}[a-z_]\w*: (?:{PRONOUN}|of\b|whose\b|which\b|such\b|as in\b)",
    ),
    "a value is described by a pronoun": (
        ("value",),
        r"^(?:True(?::| if| once| when| while)|False(?::| if| when)|When|While|Once|Seconds (?:until|for which))"
        r" (?:it|its|they)\b"
        r"|^(?:The )?(?:\w+ ){1,2}(?:of|that|with|(?:at|on|in|by|for|from) which|until|when) (?:its?|they|them)\b",
    ),
    "a word refers to another place": (EVERY, r"\b(?:as such|for whom|thereof|therein)\b"),
}
"""The kinds of docstrings that a sign is looked for in, and its pattern, by what is wrong."""


def wrong(sign: str, among: list[Docstring]) -> list[str]:
    """Return the place and the first words of each docstring that has the sign."""
    kinds, pattern = SIGNS[sign]
    found = re.compile(pattern)
    return [f"{each.place}: {each.text[:100]}" for each in among if each.kind in kinds and found.search(each.text)]


@pytest.mark.parametrize("sign", SIGNS)
def test_no_docstring_has_the_sign(sign: str) -> None:
    assert wrong(sign, docstrings()) == []


BAD = {
    "a sentence begins with a word that has no subject": "Return the size. Where nothing is stored, 0.",
    "the thing that the text is about is a pronoun": "It is closed when the last reader leaves.",
    "an error is raised nobody knows when": "Return a file. Raises OSError.",
    "an error is raised in the middle of a sentence": "Return a file, or None Raises OSError: when it is damaged.",
    "the verb's object is a pronoun": "Return those of native matrices.",
    "the verb's object is a clause": "Note what a step did.",
    "a parameter stands in place of the sentence": "link: the connection to the engine.",
    "the first sentence has no object": "Stop.",
    "a parameter is explained by a pronoun": "Rotate a secret. former: that of a webhook.",
    "a value is described by a pronoun": "The key that it proves there.",
    "a word refers to another place": "Pass a message on to the one for whom it is.",
}
"""A docstring with each sign."""

GOOD = [
    "Return the size in bytes of an archive, or of all files in a folder.\nRaises OSError: when a file cannot be read.",
    "Send the rest of an upload.\nRaises as `Client.patch`.\nRaises as `begin` and `end`.",
    "Raise AssertionError: the server has the adapters with which it was started.",
    "Do nothing: the folder may be opened by everybody who may connect.",
    "Add a store.\nplaces: as for `Store`. units: the largest number of units.",
]
"""Docstrings that have no sign."""


@pytest.mark.parametrize("sign", SIGNS)
def test_each_sign_is_found(sign: str) -> None:
    assert wrong(sign, [Docstring("here", SIGNS[sign][0][-1], BAD[sign])]) != []


@pytest.mark.parametrize("text", GOOD)
def test_plain_sentences_have_no_sign(text: str) -> None:
    assert [sign for sign in SIGNS if wrong(sign, [Docstring("here", "function", text)])] == []


def test_docstrings_of_all_rooms_are_read() -> None:
    assert {each.place.split("/")[0] for each in docstrings()} >= {"gateway", "engine", "kernels", "adapters", "tests"}
    assert len(docstrings()) > 10_000
