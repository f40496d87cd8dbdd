"""The headers of requests and replies, described once: components that operations refer to."""

from __future__ import annotations

from typing import Any

DURATION = r"^(\d+h)?(\d+m)?(\d+(\.\d+)?(s|ms))?$"

IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "A name that you choose for this request, up to 255 printable ASCII characters. Within 24 hours the "
    "same key and body get the first reply again and are billed once; the same key with another body is refused with "
    "400. If the first reply is not stored, or not yet, the answer is 409, and `code` says why.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": r"^[!-~]([ -~]*[!-~])?$"},
}

# Only an experiment reads these, so that no value is refused by their form alone.
EXPERIMENTS: tuple[dict[str, Any], ...] = (
    {
        "name": "x-lorikeet-unit",
        "in": "header",
        "required": False,
        "description": "The end user, conversation or whatever else keeps its arm, for experiments whose unit is here. "
        "In UTF-8, up to 128 characters.",
        "schema": {"type": "string"},
    },
    {
        "name": "x-lorikeet-arm",
        "in": "header",
        "required": False,
        "description": "The name of an arm of the experiment that `model` names, to get that arm. The request is not "
        "analysed. Without an experiment it changes nothing.",
        "schema": {"type": "string"},
    },
    {
        "name": "x-lorikeet-experiment",
        "in": "header",
        "required": False,
        "description": "The value `off` gives the request the control, without analysing it.",
        "schema": {"type": "string"},
    },
)


def _header(description: str, example: str, **schema: Any) -> dict[str, Any]:
    return {"description": description, "schema": {"type": "string", "examples": [example], **schema}}


def _limit_headers(kind: str) -> dict[str, dict[str, Any]]:
    return {
        f"x-ratelimit-limit-{kind}": _header(
            f"The most {kind} that the tightest limit allows in its window.", "600", pattern=r"^\d+$"
        ),
        f"x-ratelimit-remaining-{kind}": _header(
            f"The number of {kind} that are left in the window.", "599", pattern=r"^\d+$"
        ),
        f"x-ratelimit-reset-{kind}": _header(
            "The time until the window ends, as a duration.", "6m0s", pattern=DURATION
        ),
    }


EVERY = {
    "x-request-id": _header("The id of the request. Name it when you report a problem.", "req_0Q3kV9"),
    "openai-processing-ms": _header("The milliseconds until the reply began.", "12", pattern=r"^\d+$"),
    "openai-version": _header("The version of OpenAI's API that this API follows.", "2020-10-01"),
    "openai-organization": _header(
        "The organization of the API key; absent if the key was not recognized.", "org_0Q3kV9"
    ),
}
RETRY = {
    "retry-after": _header("Whole seconds to wait before the next try.", "1", pattern=r"^\d+$"),
    "retry-after-ms": _header("The milliseconds to wait before the next try.", "640", pattern=r"^\d+$"),
    "x-should-retry": _header(
        "The value `false` says that trying again soon does not help.", "false", enum=["true", "false"]
    ),
}
CODINGS = {"accept-encoding": _header("The content codings of bodies that are read.", "identity", enum=["identity"])}
LIMITS = _limit_headers("requests") | _limit_headers("tokens")
ADAPTER = {
    "x-lorikeet-adapter": _header(
        "The adapter that wrote the reply, as `<name>@<version>`; absent for the base model.", "support@3"
    ),
}
EXPERIMENT = {
    "x-lorikeet-experiment": _header(
        "The experiment that `model` names, its version, the arm that served the request, and why it was that arm: a "
        "string with parameters of RFC 9651. `split`: by the unit; `targeting_match`: the request asked for it; "
        "`default`: no unit, or not of the experiment; `disabled`: paused, or the arm has ended. Absent otherwise.",
        '"support-tone";v=3;arm="warm";reason=split',
    ),
}
ROUTE = {
    "x-lorikeet-route": _header(
        "The route that `model` names, as `<name>@<version>`; absent where `model` names no route.", "support@3"
    ),
    "x-lorikeet-target": _header("The model that answers a request to a route.", "smollm2-135m-instruct:support"),
    "x-lorikeet-attempts": _header(
        "The number of models that a route has tried, the last of which answers.", "1", pattern=r"^\d+$"
    ),
}
DETAILS = {
    "x-lorikeet-pool": _header(
        "The pool that answers, where the operator has replies tell it.", "smollm2-135m-instruct"
    ),
    "x-lorikeet-cost-nanos": _header(
        "The cost of a whole reply in billionths of the currency, where the operator has replies tell it. Absent where "
        "the ledger alone knows it: of streams, where prices differ by adapters' classes, and where a route rejected "
        "an answer before.",
        "1350",
        pattern=r"^\d+$",
    ),
}
REPLAY = {
    "idempotent-replayed": _header(
        "The value `true` says that an Idempotency-Key brought an earlier reply again.", "true"
    ),
    "x-lorikeet-original-request-id": _header("The `x-request-id` of the reply that this reply repeats.", "req_0Q3kV9"),
}

ALL = EVERY | RETRY | CODINGS | LIMITS | ADAPTER | EXPERIMENT | ROUTE | DETAILS | REPLAY


def references(*groups: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Return the `headers` of a reply in the document, as references to the components of these groups."""
    return {name: {"$ref": f"#/components/headers/{name}"} for group in groups for name in group}
