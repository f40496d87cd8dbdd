"""JSON bodies to wire structs, with every refusal naming the field at fault as OpenAI's API does.

Knows the shape of errors, not the meaning of any field.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from gateway.errors import InvalidRequest

T = TypeVar("T")

Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Temperature = Annotated[float, Meta(ge=0, le=2)]
TopP = Annotated[float, Meta(gt=0, le=1)]
TopK = Annotated[int, Meta(ge=-1, le=2**31 - 1)]
MinP = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
RepetitionPenalty = Annotated[float, Meta(ge=1e-3, le=2)]
NumTokens = Annotated[int, Meta(ge=1, le=2**31 - 1)]
MinTokens = Annotated[int, Meta(ge=0, le=2**31 - 1)]
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
StopTokenIds = Annotated[list[TokenId], Meta(max_length=128)]
NumChoices = Annotated[int, Meta(ge=1, le=128)]
StopString = Annotated[str, Meta(min_length=1, max_length=1024)]
Stop = StopString | Annotated[list[StopString], Meta(max_length=4)]
Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)
]
LogitBias = Annotated[dict[TokenId, Annotated[float, Meta(ge=-100, le=100)]], Meta(max_length=1024)]
"""Its keys are token ids as JSON has them for keys: in quotes."""

_PATH = re.compile(r" - at (?:`(?:key|value)` in )?`\$\.?(?P<path>.*)`$")
_MISSING = re.compile(r"^Object missing required field `(?P<field>.*)`")
_LONE_SURROGATE = re.compile(rb"(?<!\\)(?:\\\\)*\\u[dD][89abAB]..(?!\\u[dD][c-fC-F])")
"""Found only where decoding failed: the decoder then says that the body was cut off."""
_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<field>.*)`")


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


def decode(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """Raises InvalidRequest: without param for what is not JSON, else with the path of the field."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _explain(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        reason = "half of a surrogate pair is not text" if _LONE_SURROGATE.search(body) else error
        raise InvalidRequest(
            f"The body of the request is not valid JSON in UTF-8: {reason}", code="invalid_json"
        ) from None


def refuse_unsupported(request: msgspec.Struct, no_effect: dict[str, tuple[Any, ...]]) -> None:
    """Refuse, by name, every field of no_effect whose value is neither null nor one of those without effect."""
    for field, accepted in no_effect.items():
        value = getattr(request, field)
        # 1 == True in Python, so compare types as well.
        if value is not None and not any(value == other and type(value) is type(other) for other in accepted):
            shown = f" The value must be {' or '.join(_json(other) for other in accepted)}." if accepted else ""
            raise InvalidRequest(
                f"The field '{field}' is not supported with this model.{shown}",
                param=field,
                code="unsupported_value" if accepted else "unsupported_parameter",
            )


def _explain(message: str) -> InvalidRequest:
    found = _PATH.search(message)
    path = found["path"].replace("[...]", "") if found else ""
    reason = message[: found.start()] if found else message
    if unknown := _UNKNOWN.match(reason):
        param = _join(path, unknown["field"])
        return InvalidRequest(f"Unrecognized request argument supplied: {param}", param=param, code="unknown_parameter")
    if missing := _MISSING.match(reason):
        param = _join(path, missing["field"])
        return InvalidRequest(f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter")
    code = "invalid_type" if ", got " in reason else "invalid_value"
    where = f" for '{path}'" if path else ""
    return InvalidRequest(f"Invalid value{where}: {reason.replace('`', '')}.", param=path or None, code=code)


def _join(path: str, field: str) -> str:
    return f"{path}.{field}" if path else field


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
