"""A request's arguments reach templates that read them. Elsewhere optional ones change nothing, and others are
refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.domain.errors import InvalidRequest
from gateway.text.options import Argument, Rendering
from gateway.text.tokenizer import Tokenizer
from tests.gateway.model_folder import CHAT_TEMPLATE, make_model_folder

MESSAGES = [{"role": "user", "content": "hello"}]
QWEN_LIKE = CHAT_TEMPLATE + "{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}"
EFFORT = (
    "{%- for message in messages %}{% if loop.index > 9 %}{% break %}{% endif %}"
    "{% generation %}{{ message.content }}{% endgeneration %}{% endfor %}"
    "{% set level = reasoning_effort or 'usual' %}{{ level }}{{ bos_token }}{{ strftime_now('') }}"
)


def tokenizer(folder: Path, template: str = CHAT_TEMPLATE) -> Tokenizer:
    model_dir = make_model_folder(folder / "model")
    (model_dir / "chat_template.jinja").write_text(template)
    return Tokenizer.from_folder(model_dir)


def effort(value: str) -> Argument:
    return Argument("reasoning_effort", value, "reasoning_effort", value in ("none", "medium"))


def optional(name: str) -> Argument:
    return Argument(name, "x", f"chat_template_kwargs.{name}", is_optional=True)


def render(model: Tokenizer, *arguments: Argument) -> str:
    return model.render_chat(MESSAGES, rendering=Rendering(arguments=arguments))


def test_an_argument_that_is_not_read_is_refused_unless_it_changes_nothing(tmp_path: Path) -> None:
    model = tokenizer(tmp_path)
    assert render(model, effort("medium"), effort("none")) == render(model)
    with pytest.raises(InvalidRequest) as refused:
        render(model, effort("low"))
    assert refused.value.param == "reasoning_effort"


def test_an_optional_argument_that_is_not_read_changes_nothing(tmp_path: Path) -> None:
    """Many clients send `enable_thinking` to every model."""
    model = tokenizer(tmp_path, EFFORT)
    assert render(model, optional("enable_thinking"), optional("level"), optional("loop")) == render(model)
    assert render(model, optional("enable_thinking"), optional("reasoning_effort")) == "hellox"


def test_an_argument_that_is_read_reaches_the_template(tmp_path: Path) -> None:
    model = tokenizer(tmp_path, EFFORT)
    assert render(model) == "hellousual"
    assert render(model, effort("low")) == "hellolow"
    assert render(model, effort("medium")) == "hellomedium"


def test_no_effort_is_no_thinking_where_a_template_has_a_switch_for_it(tmp_path: Path) -> None:
    model = tokenizer(tmp_path, QWEN_LIKE)
    assert render(model, effort("none")) == render(model) + "<think></think>"
    assert render(model, effort("medium")) == render(model)
    with pytest.raises(InvalidRequest):
        render(model, effort("high"))


@pytest.mark.parametrize(
    "name",
    [
        *("messages", "bos_token", "some_special_tokens", "strftime_now", "raise_exception", "namespace", "range"),
        *("tokenize", "chat_template", "tools", "return_tensors", "self", "tokenizer_kwargs", "padding"),
    ],
)
def test_names_that_the_renderer_uses_itself_cannot_be_set(tmp_path: Path, name: str) -> None:
    model = tokenizer(tmp_path, EFFORT)
    with pytest.raises(InvalidRequest) as refused:
        render(model, optional(name))
    assert refused.value.param == f"chat_template_kwargs.{name}"


def test_the_last_message_can_be_gone_on_with(tmp_path: Path) -> None:
    model = tokenizer(tmp_path)
    messages = [*MESSAGES, {"role": "assistant", "content": "I thi"}]
    open_ended = Rendering(add_generation_prompt=False, continue_final_message=True)
    assert model.render_chat(messages, rendering=open_ended).endswith("<|im_start|>assistant\nI thi")
