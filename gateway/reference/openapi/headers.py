"""The headers of requests and replies, described once: components that operations refer to."""

from __future__ import annotations

from typing import Any

DURATION = r"^(\d+h)?(\d+m)?(\d+(\.\d+)?(s|ms))?$"

IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "Your own name for this request, up to 255 printable ASCII characters. Within 24 hours the same key "
    "and body get the first reply again, and are billed once; another body with it is refused with 400. Where that "
    "reply is not there, now or any more, the answer is 409, and `code` says why.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": r"^[!-~]([ -~]*[!-~])?$"},
}


def _header(description: str, example: str, **schema: Any) -> dict[str, Any]:
    return {"description": description, "schema": {"type": "string", "examples": [example], **schema}}


def _limit_headers(kind: str) -> dict[str, dict[str, Any]]:
    return {
        f"x-ratelimit-limit-{kind}": _header(
            f"The most {kind} that the tightest limit on them allows in its window.", "600", pattern=r"^\d+$"
        ),
        f"x-ratelimit-remaining-{kind}": _header(f"How many {kind} of these are left.", "599", pattern=r"^\d+$"),
        f"x-ratelimit-reset-{kind}": _header("When the window ends, as a duration.", "6m0s", pattern=DURATION),
    }


EVERY = {
    "x-request-id": _header("The request's id: name it when something is wrong.", "req_0Q3kV9"),
    "openai-processing-ms": _header("Milliseconds until the reply began.", "12", pattern=r"^\d+$"),
    "openai-version": _header("The version of OpenAI's API that this one follows.", "2020-10-01"),
    "openai-organization": _header("Whose key it was; absent until the key is known to be good.", "org_0Q3kV9"),
}
RETRY = {
    "retry-after": _header("Whole seconds to wait before the next try.", "1", pattern=r"^\d+$"),
    "retry-after-ms": _header("The same in milliseconds.", "640", pattern=r"^\d+$"),
    "x-should-retry": _header("`false` where trying again soon is no use.", "false", enum=["true", "false"]),
}
LIMITS = _limit_headers("requests") | _limit_headers("tokens")
ADAPTER = {
    "x-lorikeet-adapter": _header(
        "`<name>@<version>` of the adapter that the reply comes from; absent for the base model.", "support@3"
    ),
}
REPLAY = {
    "idempotent-replayed": _header("`true` where an Idempotency-Key brought an earlier reply again.", "true"),
    "x-lorikeet-original-request-id": _header("The `x-request-id` of the reply that this one repeats.", "req_0Q3kV9"),
}

ALL = EVERY | RETRY | LIMITS | ADAPTER | REPLAY


def references(*groups: dict[str, Any]) -> dict[str, dict[str, str]]:
    """The `headers` of a reply."""
    return {name: {"$ref": f"#/components/headers/{name}"} for group in groups for name in group}
