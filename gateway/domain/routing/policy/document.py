"""The document of a routing policy: a tree whose leaves are model strings, none of which names another policy.

Knows nothing of requests. A node is known by its path, such as `root.fallback.nodes[1]`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

MAX_DEPTH = 8
MAX_NODES = 64
MAX_LEAVES = 16
MAX_STEPS = 64
"""The most attempts that a plan may have."""
MAX_DOCUMENT_BYTES = 64 << 10
MAX_TARGET_CHARS = 256

ErrorKind = Literal["unavailable", "overloaded", "rate_limited", "timeout", "failed", "context_length"]
"""The kinds of errors after which a policy may try another target."""

Outcome = ErrorKind | Literal["rejected"]
"""The reasons to try another target: a kind of error, or an answer that a cascade did not accept."""

USUAL_ERRORS: tuple[ErrorKind, ...] = ("unavailable", "overloaded", "timeout", "failed")


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
    sticky: Annotated[str, Meta(max_length=80)] | None = None
    """The part of a request that keeps its branch: its field `user`, its API key, or a key of its metadata, such as
    `metadata.session`; null draws for each request."""


class Fallback(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Branches one after the other, until one has begun to answer."""

    nodes: Annotated[tuple[Node, ...], Meta(min_length=1)]
    on: tuple[ErrorKind, ...] = USUAL_ERRORS
    """The errors after which the next branch is tried. Other errors are sent to the client."""
    rounds: Annotated[int, Meta(ge=1, le=4)] = 1
    """The number of times that all branches are tried. A further round begins after a wait, which doubles with each."""
    first_token_ms: Annotated[int, Meta(ge=1, le=600_000)] | None = None
    """The time that a branch may take to its first token, where another one follows; then its error is `timeout`."""


class Accept(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A check on an answer: the answer has to pass every field that is given."""

    schema: dict[str, Any] | None = None
    """A JSON schema of the answer's text (`answers.SCHEMA_WORDS` says which parts of JSON schema there are)."""
    regex: Annotated[str, Meta(min_length=1, max_length=1_000)] | None = None
    """A regular expression in the syntax of RE2 that the text has to hold somewhere."""
    min_logprob: Annotated[float, Meta(ge=-100, le=0)] | None = None
    """The least mean log-probability of the answer's tokens."""


class Cascade(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Branches one after the other, from small to large, until an answer is accepted; that of the last always is."""

    nodes: Annotated[tuple[Node, ...], Meta(min_length=2)]
    accept: Accept
    on: tuple[ErrorKind, ...] = USUAL_ERRORS
    """The errors after which the next branch is tried as well."""


class Hedge(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A branch whose targets are tried on another replica as well, where the first token is late."""

    node: Node
    delay_ms: Annotated[int, Meta(ge=1, le=600_000)] | None = None
    """The time after which the second try begins; null: the time in which 19 of 20 first tokens of the model came."""


class Shadow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A branch whose requests are copied to another target, whose answers no client gets."""

    node: Node
    target: Annotated[str, Meta(min_length=1, max_length=MAX_TARGET_CHARS)]
    """The model string of the copies' target: a base model, an adapter or an alias."""
    share: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """The part of the requests that is copied."""
    payer: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    """The id of the project that pays for copies; null: the project that sends the request."""


class Size(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The lower and the upper bound of a number, both inclusive."""

    min: Annotated[int, Meta(ge=0)] | None = None
    max: Annotated[int, Meta(ge=0)] | None = None


class Hours(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"from_": "from"}):
    """A part of the day in UTC; it passes midnight where it ends before it begins."""

    from_: str
    """The first minute, as HH:MM."""
    until: str
    """The first minute after the hours, as HH:MM."""


class When(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A condition on requests: a request has to meet every field that is given."""

    metadata: dict[Label, Value | tuple[Value, ...]] = {}
    """The value, or the allowed values, of each of these keys of the request's `metadata`."""
    prompt_tokens: Size | None = None
    """Bounds on the estimated size of the prompt, at one token per four bytes of its text."""
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
    """The first branch whose condition holds, else the branch `otherwise`."""

    cases: Annotated[tuple[Case, ...], Meta(min_length=1)]
    otherwise: Node
    """The branch for requests that meet no condition."""


class Several(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The branches among which price or speed decides."""

    nodes: Annotated[tuple[Node, ...], Meta(min_length=1)]


class Node(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One node of the tree; exactly one of its fields is set."""

    target: Annotated[str, Meta(min_length=1, max_length=MAX_TARGET_CHARS)] | None = None
    """A model string of a base model, an adapter, an alias or an experiment."""
    weighted: Weighted | None = None
    fallback: Fallback | None = None
    conditional: Conditional | None = None
    cheapest: Several | None = None
    """The branch whose tokens cost least by the price book."""
    fastest: Several | None = None
    """The branch that was measured to answer soonest."""
    cascade: Cascade | None = None
    hedge: Hedge | None = None
    shadow: Shadow | None = None


class Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole policy."""

    root: Node


def branches(node: Node) -> list[tuple[str, Node]]:
    """Return the nodes directly below a node, each with its path from there."""
    if node.weighted is not None:
        return [(f".weighted.choices[{i}].node", each.node) for i, each in enumerate(node.weighted.choices)]
    if node.conditional is not None:
        cases = [(f".conditional.cases[{i}].node", each.node) for i, each in enumerate(node.conditional.cases)]
        return [*cases, (".conditional.otherwise", node.conditional.otherwise)]
    for name, wrapped in (("hedge", node.hedge), ("shadow", node.shadow)):
        if wrapped is not None:
            return [(f".{name}.node", wrapped.node)]
    listed: tuple[tuple[str, Fallback | Several | Cascade | None], ...] = (
        ("fallback", node.fallback),
        ("cheapest", node.cheapest),
        ("fastest", node.fastest),
        ("cascade", node.cascade),
    )
    for name, several in listed:
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
    """Return the model strings that may answer a request, each with the path of the first node that names it."""
    found: dict[str, str] = {}
    for path, node, _ in nodes_of(document):
        if node.target is not None:
            found.setdefault(node.target, path)
    return found


def copy_targets_of(document: Document) -> dict[str, str]:
    """Return the model strings that get copies of requests, each with the path of the first node that names it."""
    found: dict[str, str] = {}
    for path, node, _ in nodes_of(document):
        if node.shadow is not None:
            found.setdefault(node.shadow.target, f"{path}.shadow")
    return found


def payers_of(document: Document) -> dict[str, str]:
    """Return the ids of the projects that pay for copies, each with the path of the first node that names it."""
    found: dict[str, str] = {}
    for path, node, _ in nodes_of(document):
        if node.shadow is not None and node.shadow.payer is not None:
            found.setdefault(node.shadow.payer, f"{path}.shadow.payer")
    return found


def metadata_keys(document: Document) -> set[str]:
    """Return the keys of a request's metadata that a walk depends on."""
    found = set()
    for _, node, _ in nodes_of(document):
        if node.conditional is not None:
            found |= {key for case in node.conditional.cases for key in case.when.metadata}
        if node.weighted is not None and node.weighted.sticky not in (None, "user", "key"):
            found.add(node.weighted.sticky.partition(".")[2])
    return found


def num_steps(node: Node) -> int:
    """Return the largest number of attempts that a plan for a node can have."""
    below = [num_steps(each) for _, each in branches(node)]
    if node.fallback is not None:
        return sum(below) * node.fallback.rounds
    return sum(below) if node.cascade is not None else max(below, default=1)
