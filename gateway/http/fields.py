"""JSON bodies to wire structs, with every refusal naming the field at fault as OpenAI's API does.

Knows the shape of errors, not the meaning of any field.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from gateway.domain.errors import InvalidRequest, shortened
from gateway.http.explain import explain
from gateway.http.json_work import UNCOUNTED_BYTES, affordable, without_collector

T = TypeVar("T")

Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Temperature = Annotated[float, Meta(ge=0, le=2)]
TopP = Annotated[float, Meta(ge=0, le=1)]
TopK = Annotated[int, Meta(ge=-1, le=2**31 - 1)]
MinP = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
RepetitionPenalty = Annotated[float, Meta(ge=1e-3, le=2)]
NumTokens = Annotated[int, Meta(ge=1, le=2**31 - 1)]
TruncationSide = Literal["left", "right"]
"""The side on which `truncate_prompt_tokens` cuts a prompt: on the left, as without the field, the last tokens are
kept."""

MinTokens = Annotated[int, Meta(ge=0, le=2**31 - 1)]
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
StopTokenIds = Annotated[list[TokenId], Meta(max_length=128)]
AllowedTokenIds = Annotated[list[TokenId], Meta(min_length=1, max_length=1024)]
NumLogprobs = Annotated[int, Meta(ge=0, le=20)]
NumChoices = Annotated[int, Meta(ge=1, le=128)]
StopString = Annotated[str, Meta(min_length=1, max_length=1024)]
Stop = StopString | Annotated[list[StopString], Meta(max_length=4)]
Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)
]
Name = Annotated[str, Meta(pattern=r"\A[a-zA-Z0-9_-]{1,64}\Z", extra_json_schema={"pattern": "^[a-zA-Z0-9_-]{1,64}$"})]
"""The type of a tool's or a schema's name. Python's `$` lets a line end follow, unlike that of the document."""

LogitBias = Annotated[dict[TokenId, Annotated[float, Meta(ge=-100, le=100)]], Meta(max_length=1024)]
"""The type of biases by token id. JSON's keys are strings, so token ids are quoted."""

MAX_DEPTH = 100
"""The deepest nesting of schemas and of calls' arguments: rendering and compiling them takes stack frames for each
level."""

_LONE_SURROGATE = re.compile(rb"(?<!\\)(?:\\\\)*\\u[dD][89abAB]..(?!\\u[dD][c-fC-F])")
"""The pattern of an escaped half of a surrogate pair.

It is searched for only where decoding failed: the decoder then says that the body was cut off.
"""


SEARCHED_BYTES = 256 << 10
"""The number of bytes of a malformed body that are searched for half of a surrogate pair."""


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The options of a stream that the client asks for."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    continuous_usage_stats: bool | None = None


def decode(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """Decode a body.

    Raises InvalidRequest: when the body is not JSON, or a field is wrong; the error has the path of the field.
    """
    try:
        if len(body) <= UNCOUNTED_BYTES:
            return decoder.decode(body)
        body = affordable(body, decoder.type)
        with without_collector():
            return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise explain(str(error), decoder.type, body) from None
    except RecursionError:
        raise InvalidRequest("The body of the request is nested too deeply.", code="invalid_json") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(_no_json(body, str(error)), code="invalid_json") from None


def invalid_field(message: str, param: str) -> InvalidRequest:
    """Return the error for a field with a value that is not allowed. param: the field."""
    return InvalidRequest(message, param=param, code="invalid_value")


def missing_field(param: str) -> InvalidRequest:
    """Return the error for a request that lacks a required field."""
    return InvalidRequest(f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter")


def check_depth(value: Any, field: str) -> None:
    """Check how deep a value's objects and arrays are nested, since code that recurses through them has a limit.

    Raises InvalidRequest: when objects and arrays are nested more than `MAX_DEPTH` levels deep.
    """
    level = [value]
    for _ in range(MAX_DEPTH):
        within = [each for each in level if isinstance(each, dict | list)]
        if not within:
            return
        level = [below for each in within for below in _elements(each)]
        if not level:
            return
    raise invalid_field(f"'{field}' is nested more than {MAX_DEPTH} levels deep.", field)


def _elements(value: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def _no_json(body: bytes, reason: str) -> str:
    if not body:
        return "The body of the request is empty: expected a JSON object."
    if _LONE_SURROGATE.search(body, 0, SEARCHED_BYTES):
        reason = "half of a surrogate pair is not text"
    try:
        body.decode()
    except UnicodeDecodeError as error:  # the decoder counts from the beginning of the text that it is in
        reason = f"byte {error.start} (0x{body[error.start]:02x}): {error.reason}"
    return f"The body of the request is not valid JSON in UTF-8: {shortened(reason)}"


def refuse_unsupported(request: msgspec.Struct, no_effect: dict[str, tuple[Any, ...]]) -> None:
    """Refuse, by name, every field of no_effect whose value is neither null nor one of those without effect."""
    for field, accepted in no_effect.items():
        value = getattr(request, field)
        # 1 == True in Python, so compare types as well.
        if value is not None and not any(value == other and type(value) is type(other) for other in accepted):
            shown = f" The value must be {' or '.join(as_json(other) for other in accepted)}." if accepted else ""
            raise InvalidRequest(
                f"The field '{field}' is not supported with this model.{shown}",
                param=field,
                code="unsupported_value" if accepted else "unsupported_parameter",
            )


def as_json(value: Any) -> str:
    """Return a value as JSON text."""
    return msgspec.json.encode(value).decode()
