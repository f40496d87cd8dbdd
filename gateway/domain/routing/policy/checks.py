"""Reads the documents of routing policies, and refuses wrong ones by the path of the node at fault."""

from __future__ import annotations

import re

import msgspec

from gateway.domain.errors import InvalidRequest
from gateway.domain.routing.policy.answers import schema_fault
from gateway.domain.routing.policy.document import (
    MAX_DEPTH,
    MAX_DOCUMENT_BYTES,
    MAX_LEAVES,
    MAX_NODES,
    MAX_STEPS,
    Accept,
    Document,
    Node,
    When,
    nodes_of,
    num_steps,
)

_TIME = re.compile(r"([01][0-9]|2[0-3]):[0-5][0-9]")
_PLACE = re.compile(r" - at `\$(?:\.(?P<path>[^`]*))?`$")

_DECODER = msgspec.json.Decoder(Document)


def read_document(text: bytes) -> Document:
    """Return the policy that a JSON text is.

    Raises InvalidRequest: when it is none, with the path of the node at fault.
    """
    if len(text) > MAX_DOCUMENT_BYTES:
        raise policy_error("", f"the document is larger than {MAX_DOCUMENT_BYTES >> 10} KiB")
    try:
        document = _DECODER.decode(text)
    except RecursionError:
        raise policy_error("root", f"nodes are nested more than {MAX_DEPTH} deep") from None
    except msgspec.DecodeError as error:  # ValidationError is one
        message = str(error)
        place = _PLACE.search(message)
        path = (place["path"] or "") if place else ""
        message = message[: place.start()] if place else message
        raise policy_error(path, message[:1].lower() + message[1:]) from None
    check_document(document)
    return document


def check_document(document: Document) -> None:
    """Check the rules of a document that its types cannot express, such as the depth and the number of nodes.

    Raises InvalidRequest: when a node breaks one; the error has the path of the node.
    """
    num_leaves = 0
    for num_nodes, (path, node, depth) in enumerate(nodes_of(document), start=1):
        given = [name for name in Node.__struct_fields__ if getattr(node, name) is not None]
        if len(given) != 1:
            raise policy_error(path, f"a node has exactly one of {', '.join(Node.__struct_fields__)}")
        num_leaves += node.target is not None
        if depth > MAX_DEPTH:
            raise policy_error(path, f"nodes are nested more than {MAX_DEPTH} deep")
        if num_nodes > MAX_NODES:
            raise policy_error(path, f"there are more than {MAX_NODES} nodes")
        if num_leaves > MAX_LEAVES:
            raise policy_error(path, f"there are more than {MAX_LEAVES} targets")
        if node.cascade is not None:
            _check_accept(f"{path}.cascade.accept", node.cascade.accept)
            if ".cascade." in path:
                raise policy_error(path, "a cascade holds no other cascade")
        if node.weighted is not None and not any(choice.weight for choice in node.weighted.choices):
            raise policy_error(f"{path}.weighted", "at least one weight must be above 0")
        if node.weighted is not None and not _is_sticky(node.weighted.sticky):
            raise policy_error(f"{path}.weighted.sticky", "expected user, key, or metadata. and a key of the metadata")
        if node.conditional is not None:
            for index, case in enumerate(node.conditional.cases):
                _check_when(f"{path}.conditional.cases[{index}].when", case.when)
    if num_steps(document.root) > MAX_STEPS:
        raise policy_error("root", f"a request may be tried more than {MAX_STEPS} times")


def _is_sticky(part: str | None) -> bool:
    return part in (None, "user", "key") or (part.startswith("metadata.") and len(part) > len("metadata."))


def _check_accept(path: str, accept: Accept) -> None:
    if accept == Accept():
        raise policy_error(path, "a check says something")
    if accept.schema is not None and (fault := schema_fault(accept.schema)) is not None:
        raise policy_error(f"{path}.schema{fault[0]}", fault[1])


def _check_when(path: str, when: When) -> None:
    if when == When():
        raise policy_error(path, "a condition says something; 'otherwise' is for all other requests")
    size = when.prompt_tokens
    if size is not None and size.min is not None and size.max is not None and size.min > size.max:
        raise policy_error(f"{path}.prompt_tokens", "'min' is above 'max'")
    if when.time is not None:
        for name, value in (("from", when.time.from_), ("until", when.time.until)):
            if _TIME.fullmatch(value) is None:
                raise policy_error(f"{path}.time.{name}", "a time of day is HH:MM, from 00:00 to 23:59")


def unusable_target_error(path: str, target: str) -> InvalidRequest:
    """Return the error for a policy with a target that its project may not use, or that is itself a route."""
    return policy_error(path, f"the project has no model '{target}'; another route can be no target")


def policy_error(path: str, why: str) -> InvalidRequest:
    """Return the error that refuses a policy: `path` is that of the node at fault, `why` is the reason."""
    field = f"document.{path}" if path else "document"
    return InvalidRequest(f"Invalid value for '{field}': {why}.", param=field, code="invalid_value")
