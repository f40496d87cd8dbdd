"""An adapter's defaults apply exactly where the request leaves a field out."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from engine.protocol import SamplingParams
from gateway.domain.adapters.defaults import NO_DEFAULTS, SAMPLING, Defaults
from gateway.pipeline.defaults import with_defaults
from gateway.pipeline.requests import Conversation, FieldNames, TextRequest

USER = {"role": "user", "content": "hello"}
SYSTEM = {"role": "system", "content": "mine"}


def request(**fields: Any) -> TextRequest:
    common: dict[str, Any] = {
        "prompt": Conversation([USER]),
        "names": FieldNames(prompt="messages"),
        "sampling": SamplingParams(max_tokens=0),
    }
    return TextRequest(**(common | fields))


def test_a_request_is_unchanged_without_defaults() -> None:
    asked = request()
    assert with_defaults(asked, NO_DEFAULTS) is asked


@pytest.mark.parametrize("name", SAMPLING)
def test_each_option_counts_unless_it_was_given(name: str) -> None:
    value: Any = 7 if name == "top_k" else 0.25
    defaults = Defaults(**{name: value})
    expected = msgspec.structs.replace(SamplingParams(max_tokens=0), **{name: value})
    assert with_defaults(request(), defaults).sampling == expected
    others = frozenset(SAMPLING) - {name}
    assert with_defaults(request(given=others), defaults).sampling == expected
    given = request(given=frozenset({name}))
    assert with_defaults(given, defaults).sampling == given.sampling


def test_a_zero_is_a_default_like_any_other() -> None:
    assert with_defaults(request(), Defaults(temperature=0.0)).sampling.temperature == 0.0


def test_max_tokens_are_usual_ones_and_replace_no_explicit_number() -> None:
    answered = with_defaults(request(max_tokens=3, usual_max_tokens=16), Defaults(max_tokens=99))
    assert (answered.max_tokens, answered.usual_max_tokens) == (3, 99)
    assert with_defaults(request(usual_max_tokens=16), Defaults(top_k=1)).usual_max_tokens == 16


def test_the_system_prompt_comes_first_where_there_is_none() -> None:
    defaults = Defaults(system_prompt="theirs")
    assert with_defaults(request(), defaults).prompt == Conversation([{"role": "system", "content": "theirs"}, USER])
    for prompt in (Conversation([SYSTEM, USER]), Conversation([USER, SYSTEM]), "text", [1, 2]):
        assert with_defaults(request(prompt=prompt), defaults).prompt == prompt


def test_defaults_of_a_later_gateway_are_read_as_far_as_they_are_known() -> None:
    read = msgspec.json.decode('{"temperature": 0, "from_the_future": [1]}', type=Defaults)
    assert read == Defaults(temperature=0.0)
    assert msgspec.json.encode(read) == b'{"temperature":0.0}'
