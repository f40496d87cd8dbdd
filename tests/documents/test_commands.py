"""Commands that documents show are commands of `lorikeet`, with arguments that it takes."""

from __future__ import annotations

import argparse
import re
import shlex

import pytest

from gateway.cli.command import build_parser
from tests.documents import PRESENT, blocks, quoted

PARSER = build_parser()
CALL = re.compile(r"(?:^|\| |\$\()lorikeet (.*)")


def calls(line: str) -> list[tuple[str, ...]]:
    """Return the words behind `lorikeet` in one line of a shell's program, without the shell's own words."""
    found = CALL.search(line)
    if found is None:
        return []
    call = found[1].split(")")[0] if "$(lorikeet" in line else found[1]
    words = shlex.split(call, comments=True)
    end = next((number for number, word in enumerate(words) if word in ("<", ">")), len(words))
    return [tuple(words[:end])]


SHOWN = sorted(
    {call for name in PRESENT for text in blocks(name, "sh") for it in text.splitlines() for call in calls(it)}
)


def choices_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of a command's own commands by name."""
    actions = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(actions[0].choices) if actions else {}


def unknown_word(mention: str) -> str | None:
    """Return the first word of a mentioned command that names no command where one has to come."""
    parser = PARSER
    for word in mention.split()[1:]:
        choices = choices_of(parser)
        if not choices or word.startswith("-"):
            return None
        if word not in choices:
            return word
        parser = choices[word]
    return None


def test_the_documents_show_commands_for_most_tasks() -> None:
    assert {words[0] for words in SHOWN} >= set(choices_of(PARSER)) - {
        "gateway",
        "agent",
        "worker",
        "engine",
        "migrate",
        "model",
        "settings",
        "webhook",
        "organization",
        "stripe-customer",
    }


@pytest.mark.parametrize("words", SHOWN, ids=" ".join)
def test_a_command_that_is_shown_is_understood(words: tuple[str, ...]) -> None:
    PARSER.parse_args(words)


@pytest.mark.parametrize("name", PRESENT)
def test_a_command_that_is_mentioned_exists(name: str) -> None:
    mentioned = [piece for piece in quoted(name) if piece.startswith("lorikeet ")]
    assert {piece: word for piece in mentioned if (word := unknown_word(piece)) is not None} == {}


EXPERIMENTS = "gateway/experiments/README.md"
ABOUT_EXPERIMENTS = [
    call for text in blocks(EXPERIMENTS, "sh") for line in text.splitlines() for call in calls(line)
] + [tuple(shlex.split(piece)[1:]) for piece in quoted(EXPERIMENTS) if piece.startswith("lorikeet ") and " --" in piece]


def test_commands_of_the_guide_to_experiments_are_of_one_tenant_and_whole() -> None:
    """Each command that the guide prints can be run as it is, for the demo's tenant that has the experiments."""
    read = [PARSER.parse_args(words) for words in ABOUT_EXPERIMENTS]
    assert {each.tenant for each in read if hasattr(each, "tenant")} == {"acme"}
    lives = ("start", "stop", "health", "results", "decide", "change", "export")
    named = {words[2] for words in ABOUT_EXPERIMENTS if words[0] == "experiment" and words[1] in lives}
    assert named == {"tone", "support-tone"}
    files = {each.file for each in read if getattr(each, "file", None)}
    assert files.isdisjoint(str(each.out) for each in read if getattr(each, "out", None))
