"""Any text that a model writes under a format's grammar is read as calls that match their schemas, or as text."""

from __future__ import annotations

import json

import pytest
from jsonschema import Draft202012Validator

from engine.protocol import Grammar
from gateway.domain.errors import InvalidRequest
from gateway.text.tools.content_text import ContentText
from gateway.text.tools.formats import (
    GLM,
    HARMONY,
    HERMES,
    LLAMA,
    MINISTRAL,
    MISTRAL,
    QWEN_CODER,
    CallFormat,
    TemplateTools,
)
from gateway.text.tools.grammar import call_grammar
from gateway.text.tools.parser import CallParser
from gateway.text.tools.tool import NO_PARAMETERS, Tool, ToolUse
from tests.engine.grammar.grammars import RandomModel, allowed_ids, feed, matchers, next_characters, vocabulary
from tests.tool_schemas import tool_schema

FORMATS = {"hermes": HERMES, "llama": LLAMA, "mistral": MISTRAL, "glm": GLM, "ministral": MINISTRAL, "qwen": QWEN_CODER}
NUM_TOOLS, NUM_TOOLS_FULL = 8, 200
MAX_TOKENS = 600


def random_tools(seed: int) -> tuple[Tool, ...]:
    return (Tool("target", tool_schema(seed), "tools[0]"), Tool("target_2", NO_PARAMETERS, "tools[1]"))


def calls_in(text: str, form: CallFormat, use: ToolUse) -> tuple[str, list[tuple[str, str]]]:
    texts = {tool.name: form.text_arguments(tool) for tool in use.callable_tools}
    parser = CallParser(form, texts, ContentText(), must_call=use.must_call)
    content, calls = "", []
    for parsed in (parser.push(text), parser.finish()):
        content += parsed.content
        for delta in parsed.calls:
            if delta.name is not None:
                calls.append((delta.name, ""))
            name, arguments = calls[-1]
            calls[-1] = (name, arguments + delta.arguments)
    return content, calls


@pytest.mark.parametrize("name", FORMATS)
def test_calls_of_random_weights_are_read_and_match_their_schemas(name: str, full: bool) -> None:
    form, called = FORMATS[name], set()
    for seed in range(NUM_TOOLS_FULL if full else NUM_TOOLS):
        tools = random_tools(seed)
        schemas = {tool.name: Draft202012Validator(tool.parameters) for tool in tools}
        for must_call in (True, False):
            use = ToolUse(tools, frozenset(schemas), must_call=must_call, max_calls=2)
            matcher = matchers(call_grammar(TemplateTools(form, is_native=True), use, None, None))()
            begun = "" if must_call else form.trigger + form.opening + form.head("target")
            feed(matcher, begun)
            written = RandomModel(seed, num_rows=4).complete(matcher, MAX_TOKENS)
            assert written is not None
            content, calls = calls_in(begun + written, form, use)
            assert content == "" and 1 <= len(calls) <= (2 if form.parallel else 1)
            for called_name, arguments in calls:
                schemas[called_name].validate(json.loads(arguments))
                called.add(called_name)
    assert called == {"target", "target_2"}


def test_a_call_in_channels_is_a_message_to_its_function() -> None:
    """The ids of special tokens of the vocabulary stand for those of channels."""
    marks = {"<|channel|>": 3, "<|constrain|>": 4, "<|message|>": 5}
    template = TemplateTools(HARMONY, is_native=True, history="pairs", trigger_id=1, marks=marks)
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    tools = (Tool("target", schema, "tools[0]"), Tool("other", NO_PARAMETERS, "tools[1]"))
    use = ToolUse(tools, frozenset({"target"}), must_call=True)
    matcher = matchers(call_grammar(template, use, None, None))()
    parts = [1, "assistant", 3, "commentary to=functions.target ", 4, "json", 5]
    for part in parts:
        for token_id in [part] if isinstance(part, int) else vocabulary().tokenize_bytes(part.encode()):
            assert token_id in allowed_ids(matcher), part
            matcher.accept(token_id)
    assert "[" not in next_characters(matcher)
    feed(matcher, '{"n": 4}')
    assert matcher.is_complete


@pytest.mark.parametrize("name", FORMATS)
def test_text_is_read_as_text(name: str) -> None:
    use = ToolUse(random_tools(0), frozenset({"target"}))
    make = matchers(call_grammar(TemplateTools(FORMATS[name], is_native=True), use, None, None))
    for text in ("Hello.", '{"name": "target"}', '{"name": "target_2", "arguments": {}}'):
        assert feed(make(), text) and calls_in(text, FORMATS[name], use) == (text, [])


def test_json_and_calls_that_look_alike_are_refused_together() -> None:
    use, text = ToolUse(random_tools(0), frozenset({"target"})), Grammar("json_object")
    assert '"text_schema"' in call_grammar(TemplateTools(HERMES, is_native=True), use, text, "response_format").source
    with pytest.raises(InvalidRequest) as refused:
        call_grammar(TemplateTools(LLAMA, is_native=True), use, text, "response_format")
    assert refused.value.param == "response_format"
    named = ToolUse(random_tools(0), frozenset({"target_2"}))
    make = matchers(call_grammar(TemplateTools(GLM, is_native=True), named, text, "response_format"))
    assert feed(make(), '{"target_2": 1}') and feed(make(), "target_2\n{}") and not feed(make(), "target_2 is")


def test_a_model_that_was_trained_on_no_tools_calls_fewer_at_once() -> None:
    use = ToolUse(random_tools(0), frozenset({"target"}), max_calls=16)
    for is_native, max_calls in ((True, 16), (False, 4)):
        grammar = call_grammar(TemplateTools(HERMES, is_native=is_native), use, None, None)
        assert f'"max_calls":{max_calls}' in grammar.source
