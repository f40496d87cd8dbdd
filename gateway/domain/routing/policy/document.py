"""The document of a routing policy: a tree whose leaves are model strings, none of which names another policy.

Knows nothing of requests. A refusal names the node at fault by its path, such as `root.fallback.nodes[1]`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gateway.domain.errors import InvalidRequest

MAX_DEPTH = 8
MAX_NODES = 64
MAX_LEAVES = 16
MAX_DOCUMENT_BYTES = 64 << 10
MAX_TARGET_CHARS = 256

ErrorKind = Literal["unavailable", "overloaded", "rate_limited", "timeout", "failed", "context_length"]
"""Why a target did not answer, as a policy names it."""

USUAL_ERRORS: tuple[ErrorKind, ...] = ("unavailable", "overloaded", "timeout", "failed")

_TIME = re.compile(r"([01][0-9]|2[0-3]):[0-5][0-9]")
_PLACE = re.compile(r" - at `\$(?:\.(?P<path>[^`]*))?`$")

Label = Annotated[str, Meta(min_length=1, max_length=64)]
Value = Annotated[str, Meta(max_length=512)]


class Choice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One branch of a weighted choice."""

    weight: Annotated[int, Meta(ge=0, le=1_000_000)]
    """The share of the branch, relative to the sum of all weights."""
    node: Node


class Weighted(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One of several branches, by weight."""

    choices: Annotated[tuple[Choice, ...], Meta(min_length=1)]
    sticky: Literal["user", "key"] | None = None
    """The field `user` of a request, or its API key, keeps its branch; null draws for each request."""


class Fallback(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Branches one after the other, until one has begun to answer."""

    nodes: Annotated[tuple[Node, ...], Meta(min_length=1)]
    on: tuple[ErrorKind, ...] = USUAL_ERRORS
    """The errors after which the next branch is tried. Other errors are the client's."""
    first_token_ms: Annotated[int, Meta(ge=1, le=600_000)] | None = None
    """The time that a branch may take to its first token, where another one follows; then its error is `timeout`."""


class Size(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Bounds of a number, both included."""

    min: Annotated[int, Meta(ge=0)] | None = None
    max: Annotated[int, Meta(ge=0)] | None = None


class Hours(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"from_": "from"}):
    """A part of the day in UTC, over midnight where it ends before it begins."""

    from_: str
    """The first minute, as HH:MM."""
    until: str
    """The first minute after it, as HH:MM."""


class When(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A condition on requests; all of it has to hold."""

    metadata: dict[Label, Value | tuple[Value, ...]] = {}
    """The value, or one of the values, that each of these keys of the request's `metadata` has to have."""
    prompt_tokens: Size | None = None
    """The estimated size of the prompt: a token per four bytes of its text."""
    tools: bool | None = None
    """True for requests that bring tools, false for others."""
    tier: str | tuple[str, ...] | None = None
    """The request's service tier, or several."""
    time: Hours | None = None
    stream: bool | None = None
    """True for requests whose reply is streamed, false for others."""


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A branch and its condition."""

    when: When
    node: Node


class Conditional(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first branch whose condition holds."""

    cases: Annotated[tuple[Case, ...], Meta(min_length=1)]
    otherwise: Node
    """The branch for requests that no condition is about."""


class Several(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Branches to choose from by what they cost or how fast they answer."""

    nodes: Annotated[tuple[Node, ...], Meta(min_length=1)]


class Node(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One node; exactly one of its fields is there."""

    target: Annotated[str, Meta(min_length=1, max_length=MAX_TARGET_CHARS)] | None = None
    """A model string of a base model, an adapter, an alias or an experiment."""
    weighted: Weighted | None = None
    fallback: Fallback | None = None
    conditional: Conditional | None = None
    cheapest: Several | None = None
    """The branch whose tokens cost least by the price book."""
    fastest: Several | None = None
    """The branch that was measured to answer soonest."""


class Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole policy."""

    root: Node


_DECODER = msgspec.json.Decoder(Document)


def read_document(text: bytes) -> Document:
    """Return the policy that a JSON text is.

    Raises InvalidRequest: when it is none, with the path of the node at fault.
    """
    if len(text) > MAX_DOCUMENT_BYTES:
        raise _refusal("", f"the document is larger than {MAX_DOCUMENT_BYTES >> 10} KiB")
    try:
        document = _DECODER.decode(text)
    except RecursionError:
        raise _refusal("root", f"nodes are nested more than {MAX_DEPTH} deep") from None
    except msgspec.DecodeError as error:  # ValidationError is one
        message = str(error)
        place = _PLACE.search(message)
        path = (place["path"] or "") if place else ""
        message = message[: place.start()] if place else message
        raise _refusal(path, message[:1].lower() + message[1:]) from None
    check_document(document)
    return document


def check_document(document: Document) -> None:
    """Check what the types of a document do not say.

    Raises InvalidRequest: with the path of the node at fault.
    """
    num_leaves = 0
    for num_nodes, (path, node, depth) in enumerate(nodes_of(document), start=1):
        given = [name for name in Node.__struct_fields__ if getattr(node, name) is not None]
        if len(given) != 1:
            raise _refusal(path, f"a node has exactly one of {', '.join(Node.__struct_fields__)}")
        num_leaves += node.target is not None
        if depth > MAX_DEPTH:
            raise _refusal(path, f"nodes are nested more than {MAX_DEPTH} deep")
        if num_nodes > MAX_NODES:
            raise _refusal(path, f"there are more than {MAX_NODES} nodes")
        if num_leaves > MAX_LEAVES:
            raise _refusal(path, f"there are more than {MAX_LEAVES} targets")
        if node.weighted is not None and not any(choice.weight for choice in node.weighted.choices):
            raise _refusal(f"{path}.weighted", "one weight at least is above 0")
        if node.conditional is not None:
            for index, case in enumerate(node.conditional.cases):
                _check_when(f"{path}.conditional.cases[{index}].when", case.when)


def _check_when(path: str, when: When) -> None:
    if when == When():
        raise _refusal(path, "a condition says something; 'otherwise' is for all other requests")
    size = when.prompt_tokens
    if size is not None and size.min is not None and size.max is not None and size.min > size.max:
        raise _refusal(f"{path}.prompt_tokens", "'min' is above 'max'")
    if when.time is not None:
        for name, value in (("from", when.time.from_), ("until", when.time.until)):
            if _TIME.fullmatch(value) is None:
                raise _refusal(f"{path}.time.{name}", "a time of day is HH:MM, from 00:00 to 23:59")


def branches(node: Node) -> list[tuple[str, Node]]:
    """Return the nodes directly below a node, each with its path from there."""
    if node.weighted is not None:
        return [(f".weighted.choices[{i}].node", each.node) for i, each in enumerate(node.weighted.choices)]
    if node.conditional is not None:
        cases = [(f".conditional.cases[{i}].node", each.node) for i, each in enumerate(node.conditional.cases)]
        return [*cases, (".conditional.otherwise", node.conditional.otherwise)]
    for name, several in (("fallback", node.fallback), ("cheapest", node.cheapest), ("fastest", node.fastest)):
        if several is not None:
            return [(f".{name}.nodes[{i}]", each) for i, each in enumerate(several.nodes)]
    return []


def nodes_of(document: Document) -> Iterator[tuple[str, Node, int]]:
    """Yield each node with its path and its depth, from 1."""
    waiting = [("root", document.root, 1)]
    while waiting:
        path, node, depth = waiting.pop()
        yield path, node, depth
        waiting += [(path + step, below, depth + 1) for step, below in reversed(branches(node))]


def targets_of(document: Document) -> dict[str, str]:
    """Return the model strings of a document, each with the path of the first node that names it."""
    found: dict[str, str] = {}
    for path, node, _ in nodes_of(document):
        if node.target is not None:
            found.setdefault(node.target, path)
    return found


def metadata_keys(document: Document) -> set[str]:
    """Return the keys of a request's metadata that conditions are about."""
    cases = (case for _, node, _ in nodes_of(document) if node.conditional for case in node.conditional.cases)
    return {key for case in cases for key in case.when.metadata}


def unusable(path: str, target: str) -> InvalidRequest:
    """Return the refusal of a policy one of whose targets its project may not use."""
    return _refusal(path, f"the project has no model '{target}', or it is a route itself")


def _refusal(path: str, why: str) -> InvalidRequest:
    field = f"document.{path}" if path else "document"
    return InvalidRequest(f"Invalid value for '{field}': {why}.", param=field, code="invalid_value")
