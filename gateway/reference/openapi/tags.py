"""The part of the document in which an operation stands: by its path, so that no route has to name it. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

INFERENCE, ADMIN, OPERATION = "Inference", "Administration", "Operation"

_WORDS = {"api": "API", "totp": "TOTP", "id": "id"}


class Tag(msgspec.Struct, frozen=True, order=True):
    """A part of the document, and the group of parts that it belongs to."""

    group: str
    name: str


def tag_of(path: str) -> Tag:
    """Return the resource that a path is about; for a path of a project, the resource below the project."""
    parts = [part for part in path.split("/") if part and not part.startswith("{")]
    match parts:
        case ["v1", "organization", "projects"] | ["v1", "organization", "projects", "suspend" | "resume" | "archive"]:
            return Tag(ADMIN, "Projects")
        case ["v1", "organization", "projects", "models"] | ["v1", "organization", "pools" | "replicas" | "hosts", *_]:
            return Tag(ADMIN, "Pools")
        case ["v1", "organization", "projects", "files" | "batches" as resource, *_]:
            return Tag(ADMIN, f"{_words(resource)} of projects")
        case ["v1", "organization", "projects", resource, *_]:
            return Tag(ADMIN, _words(resource))
        case ["v1", "organization"] | ["v1", "organization", "suspend" | "resume" | "status" | "engines"]:
            return Tag(ADMIN, "Organization")
        case ["v1", "organization", resource, *_]:
            return Tag(ADMIN, _words(resource))
        case ["admin", *_]:
            return Tag(ADMIN, "Logins")
        case ["v1", "tokenize" | "detokenize"] | ["tokenize" | "detokenize"]:
            return Tag(INFERENCE, "Tokens")
        case ["rerank"] | ["v1" | "v2", "rerank"]:
            return Tag(INFERENCE, "Reranking")
        case ["ofrep", *_]:
            return Tag(INFERENCE, "Flags")
        case ["v1", resource, *_]:
            return Tag(INFERENCE, _words(resource))
    return Tag(OPERATION, "Documents" if parts[:1] in (["docs"], ["openapi.json"]) else _words(parts[0]))


def tag_groups(tags: set[Tag]) -> list[dict[str, Any]]:
    """Return `x-tagGroups`, with the parts first that operators and users look for first."""
    ordered = sorted(tags, key=lambda tag: tag.name.lower())
    return [
        {"name": group, "tags": [tag.name for tag in ordered if tag.group == group]}
        for group in (INFERENCE, ADMIN, OPERATION)
    ]


def _words(name: str) -> str:
    first, *others = name.split("_")
    return " ".join([_WORDS.get(first, first.capitalize()), *(_WORDS.get(word, word) for word in others)])
