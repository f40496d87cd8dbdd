"""Texts that strangers read are understood alone: helps of metrics, settings, commands, and the API's documentation.

Prometheus, `lorikeet settings`, `--help` and `/docs` show each text without its neighbours, so a text begins with the
thing it describes and uses no word that points at another text.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from gateway.cli.command import build_parser
from gateway.observability.metrics import Metrics
from gateway.reference.openapi import document
from gateway.settings import settings_table
from tests.gateway.conftest import House

_POINTERS = "both he her his it its itself one ones she some such that their theirs them these they this those"
POINTERS = frozenset(_POINTERS.split())
"""Words that stand for a thing, and are unclear where the thing was not named before."""

_OPENINGS = (
    "above as at below between by default due e.g for from how in of on per than to what when whence where whether "
    "which who whoever whom whose why with within"
)
OPENINGS = POINTERS | frozenset(_OPENINGS.split())
"""Words that no text begins with: what follows them leaves out its subject."""

FORBIDDEN = re.compile(r"\b(whence|wherefore|whither|those (of|there are|that))\b", re.IGNORECASE)
PRONOUNS = re.compile(r"\b(it|its|them|their|theirs|they|those|both)\b", re.IGNORECASE)
NUM_WORDS_BEFORE_A_PRONOUN = 4
"""The number of first words among which a pronoun cannot refer to an earlier noun."""


def faults(text: str | None) -> list[str]:
    """Return the faults of a text, from the view of a reader who does not know the code.

    text: None: there is no text, which is a fault.
    """
    words = re.findall(r"[A-Za-z.'-]+", text or "")
    if not words:
        return ["is empty"]
    found = []
    if words[0].lower().strip(".") in OPENINGS:
        found.append(f"begins with '{words[0]}'")
    found += [f"has '{match[0]}'" for match in FORBIDDEN.finditer(text or "")]
    pronoun = PRONOUNS.search(text or "")
    if pronoun and len(re.findall(r"\w+", (text or "")[: pronoun.start()])) < NUM_WORDS_BEFORE_A_PRONOUN:
        found.append(f"has '{pronoun[0]}' before any noun")
    return found


def metric_helps() -> Iterator[tuple[str, str]]:
    registry = CollectorRegistry()
    Metrics(registry).watch({})
    for metric in registry.collect():
        yield metric.name, metric.documentation


def setting_texts() -> Iterator[tuple[str, str]]:
    for row in settings_table():
        yield row.name, row.doc


def command_texts(parser: argparse.ArgumentParser | None = None) -> Iterator[tuple[str, str | None]]:
    """Yield the description of every command, and the help of every command and argument.

    parser: None: that of `lorikeet`.
    """
    parser = parser or build_parser()
    yield parser.prog, parser.description
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for choice in action._choices_actions:
                yield f"{parser.prog} {choice.dest}", choice.help
            for command in action.choices.values():
                yield from command_texts(command)
        else:
            yield f"{parser.prog} {action.dest}", action.help


MIN_WORDS_OF_A_SUMMARY = 2

DOCUMENTED = {"summary", "description"}


def document_texts(described: Any, where: str = "") -> Iterator[tuple[str, str]]:
    """Yield every summary and description of the operations, parameters, schemas and fields of an OpenAPI document."""
    if isinstance(described, dict):
        for name, each in described.items():
            if name in DOCUMENTED and isinstance(each, str):
                yield f"{where}/{name}", each
            elif name not in ("example", "examples"):
                yield from document_texts(each, f"{where}/{name}")
    elif isinstance(described, list):
        for place, each in enumerate(described):
            yield from document_texts(each, f"{where}/{place}")


def faults_by_text(texts: Iterator[tuple[str, str | None]]) -> dict[str, list[str]]:
    return {f"{name}: {text}": found for name, text in texts if (found := faults(text))}


def test_the_help_of_every_metric_is_understood_alone() -> None:
    assert len(list(metric_helps())) > 50
    assert faults_by_text(metric_helps()) == {}


def test_every_metric_begins_with_a_noun_and_ends_as_a_sentence() -> None:
    for name, text in metric_helps():
        assert text[0].isupper() and text.endswith("."), f"{name}: {text}"


def test_the_text_of_every_setting_is_understood_alone() -> None:
    assert faults_by_text(setting_texts()) == {}


def test_the_help_of_every_command_and_argument_is_understood_alone() -> None:
    assert len(list(command_texts())) > 300
    assert faults_by_text(command_texts()) == {}


@pytest.fixture(scope="module")
def described(house: House) -> dict[str, Any]:
    assert house.gateway.app is not None
    return document(house.gateway.app)


def test_every_text_of_the_openapi_document_is_understood_alone(described: dict[str, Any]) -> None:
    assert len(list(document_texts(described))) > 800
    assert faults_by_text(document_texts(described)) == {}


def test_every_text_of_the_openapi_document_is_a_sentence(described: dict[str, Any]) -> None:
    for where, text in document_texts(described):
        assert (text[0].isupper() or text[0] in "`0123456789") and text.endswith("."), f"{where}: {text}"


def test_every_operation_says_what_it_does(described: dict[str, Any]) -> None:
    for methods in described["paths"].values():
        for each in methods.values():
            words = each["summary"].rstrip(".").split()
            assert len(words) >= MIN_WORDS_OF_A_SUMMARY, each["operationId"]
            assert each["summary"] != f"{each['operationId'].replace('_', ' ').capitalize()}.", each["operationId"]


def test_a_field_is_described_by_its_docstring(described: dict[str, Any]) -> None:
    schemas = described["components"]["schemas"]
    assert schemas["CreatedKey"]["properties"]["value"]["description"] == "The key, which is shown this once."
    inherited = schemas["TenantsAdapter"]["properties"]["rank"]["description"]
    assert inherited == schemas["Adapter"]["properties"]["rank"]["description"] != ""


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Their bytes.",
        "How long both waited.",
        "Of the products.",
        "Whence adapters may be fetched.",
        "show what it cost",
        "the tenants, and those of others",
        "default: text",
    ],
)
def test_a_text_that_needs_its_neighbours_is_found(text: str) -> None:
    assert faults(text)
