"""The form that an answer must match: from OpenAI's `response_format` and vLLM's `structured_outputs` to a grammar.

Knows only the form of a grammar: the engine decides whether it can be enforced.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from engine.protocol import Grammar
from gateway.domain.errors import InvalidRequest, shortened
from gateway.http.fields import Name, as_json, check_depth, invalid_field, missing_field
from gateway.http.json_work import are_too_much

JSON_OBJECT = Grammar("json_object")


class JsonSchemaFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The JSON schema that the reply must fit."""

    name: Name
    description: str | None = None
    schema: dict[str, Any] | None = None
    """The schema. Any JSON object fits where the schema is left out."""
    strict: bool | None = None
    """Without effect: the schema is always enforced."""


class ResponseFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The form of the answer: text, any JSON object, or JSON of a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class StructuredOutputs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The form of the reply: exactly one of json, regex, choice, grammar and json_object.

    The other fields of vLLM are refused by name.
    """

    json: dict[str, Any] | str | None = None
    regex: Annotated[str, Meta(min_length=1)] | None = None
    choice: Annotated[list[str], Meta(min_length=1)] | None = None
    grammar: Annotated[str, Meta(min_length=1)] | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None
    whitespace_pattern: str | None = None
    structural_tag: Any = None


_KINDS = ("json", "regex", "choice", "grammar", "json_object")


def requested_grammar(
    response_format: ResponseFormat | None, structured_outputs: StructuredOutputs | None
) -> tuple[Grammar | None, str | None]:
    """Return the grammar that a request asks for, and the field that holds it, such as `structured_outputs.regex`.

    response_format, structured_outputs: the request's fields; None where they are absent.

    Raises InvalidRequest: when several fields ask for a grammar, or a field is wrong.
    """
    by_format = _grammar_of_format(response_format) if response_format is not None else None
    if structured_outputs is None:
        is_schema = response_format is not None and by_format is not None and by_format.kind == "json_schema"
        field = "response_format.json_schema.schema" if is_schema else "response_format"
        return by_format, field if by_format else None
    if by_format is not None:
        raise InvalidRequest(
            "Setting 'response_format' and 'structured_outputs' at the same time is not supported.",
            param="structured_outputs",
            code="invalid_parameter_combination",
        )
    grammar = _grammar_of_structured(structured_outputs)
    (kind,) = _given_fields(structured_outputs)
    return grammar, f"structured_outputs.{kind}"


def check_beside_tools(grammar: Grammar | None, field: str | None) -> None:
    """Check that a grammar can be combined with tools.

    grammar, field: as `requested_grammar` returns them; None without a grammar.

    Raises InvalidRequest: when the grammar is not one of JSON: tool calls could not be told from its text.
    """
    if grammar is not None and grammar.kind not in ("json_schema", "json_object"):
        raise InvalidRequest(
            f"'{field}' can be combined with tools only if it asks for JSON.",
            param=field,
            code="invalid_parameter_combination",
        )


def _grammar_of_format(wanted: ResponseFormat) -> Grammar | None:
    if wanted.type == "json_schema" and wanted.json_schema is None:
        raise missing_field("response_format.json_schema")
    if wanted.type != "json_schema" and wanted.json_schema is not None:
        raise InvalidRequest(
            "'response_format.json_schema' is only allowed with the type 'json_schema'.",
            param="response_format.json_schema",
            code="invalid_parameter_combination",
        )
    if wanted.json_schema is not None:
        schema = wanted.json_schema.schema
        check_depth(schema, "response_format.json_schema.schema")
        return JSON_OBJECT if schema is None else Grammar("json_schema", as_json(schema))
    return JSON_OBJECT if wanted.type == "json_object" else None


def _given_fields(wanted: StructuredOutputs) -> list[str]:
    """Return the names of the fields of `structured_outputs` that hold a grammar."""
    return [field for field in _KINDS if getattr(wanted, field) not in (None, False)]


def _grammar_of_structured(wanted: StructuredOutputs) -> Grammar:
    for field in wanted.__struct_fields__:
        if field not in _KINDS and getattr(wanted, field):
            raise InvalidRequest(
                f"The field 'structured_outputs.{field}' is not supported with this model.",
                param=f"structured_outputs.{field}",
                code="unsupported_parameter",
            )
    if len(_given_fields(wanted)) != 1:
        raise InvalidRequest(
            f"'structured_outputs' must have exactly one of {', '.join(_KINDS)}.",
            param="structured_outputs",
            code="invalid_value",
        )
    if wanted.json is not None:
        return Grammar("json_schema", _schema_text(wanted.json, "structured_outputs.json"))
    if wanted.regex is not None:
        return Grammar("regex", wanted.regex)
    if wanted.choice is not None:
        return Grammar("choice", as_json(wanted.choice))
    if wanted.grammar is not None:
        return Grammar("lark", wanted.grammar)
    return JSON_OBJECT


def _schema_text(schema: dict[str, Any] | str, field: str) -> str:
    """Return a schema as JSON text.

    Raises InvalidRequest: for a text that is not a JSON object, or a schema that is nested too deeply.
    """
    parsed = _object(schema, field) if isinstance(schema, str) else schema
    check_depth(parsed, field)
    return schema if isinstance(schema, str) else as_json(schema)


def _object(text: str, field: str) -> dict[str, Any]:
    if are_too_much([text]):
        raise invalid_field(f"'{field}' holds too many JSON values.", field)
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except RecursionError:
        raise invalid_field(f"'{field}' is nested too deeply.", field) from None
    except msgspec.DecodeError as error:
        raise invalid_field(f"'{field}' is not the text of a JSON object: {shortened(str(error))}", field) from None
