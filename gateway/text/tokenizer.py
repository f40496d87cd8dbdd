"""Text to token ids with a model folder's own tokenizer and chat template. Never imports torch, knows no HTTP."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import jinja2
from tokenizers import Tokenizer as BackendTokenizer

from engine.protocol import Thinking
from gateway.domain.errors import InvalidRequest
from gateway.text.channels import ChannelTokens
from gateway.text.chat_template import TOOLS, ChatTemplate, Message, Sources
from gateway.text.options import USUAL, Rendering
from gateway.text.pieces import Pieces
from gateway.text.system_messages import LATE_SYSTEM, has_late_system, without_late_system
from gateway.text.template_arguments import is_reserved, known_arguments
from gateway.text.thinking import BEGIN, END, ENDS_OPEN_TOKENS, begins_thinking, ends_thinking
from gateway.text.token_text import TokenText
from gateway.text.tokenizer_files import BadTokenizer, read_tokenizer
from gateway.text.tools.formats import HARMONY, TemplateTools, template_tools
from gateway.text.tools.prompt import as_plain_messages, as_the_template_reads
from gateway.text.tools.tool import Tool

# The library encodes one prompt at a time: threads of the library's own would be woken for nothing. Read when it first
# encodes.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


EFFORTS_IN_CHANNELS = {"none": "low", "minimal": "low", "xhigh": "high", "max": "high"}
"""The efforts that gpt-oss knows instead of OpenAI's further ones."""

PAIR: list[Message] = [
    {"role": "query", "content": "gale over the harbor"},
    {"role": "document", "content": "a stiff breeze"},
]
"""A pair of messages that shows whether a chat template uses both of them."""


class Tokenizer:
    """One model's tokenizer. Encoding is thread-safe and lets other threads run."""

    def __init__(
        self,
        backend: BackendTokenizer,
        templates: Sources | None = None,
        special_tokens: Mapping[str, str] | None = None,
        *,
        has_segments: bool = True,
    ) -> None:
        """Set up a tokenizer.

        has_segments: True: the model is told to which of two texts each token belongs. templates: the chat templates;
        None without any. special_tokens: the texts of special tokens by their names in templates.
        """
        self.has_segments = has_segments
        self.backend = backend
        self._template = ChatTemplate(templates, special_tokens or {}) if templates else None
        # A tokenizer.json may ask for either; a prompt must be neither cut nor filled up in silence.
        self.backend.no_truncation()
        self.backend.no_padding()
        self._pieces = Pieces.of(self.backend, self._encode_all)
        self._token_text = TokenText(self.backend)
        self.token_bytes: Callable[[int], bytes] = self._token_text.to_bytes
        """The bytes of one token, which need not be whole characters."""
        self.longest_token_bytes = self._token_text.longest_bytes()
        """Bytes of text in the longest token: a text has no fewer tokens than its bytes divided by that."""
        reads = self._template.reads if self._template is not None else ()
        self._template_arguments = frozenset(name for name in reads if not is_reserved(name))
        self._takes_late_system: bool | None = None
        self._shows_pairs: bool | None = None
        source = _source_for_tools(templates)
        special = self._special()
        self.channels = ChannelTokens.of(special)
        """The tokens that divide replies into channels; None for a model that writes text alone."""
        self.thinks = BEGIN in source or self.channels is not None
        """True if the chat template has thinking before an answer."""
        self._think_ids = tuple(self.backend.token_to_id(mark) for mark in (BEGIN, END))
        """The ids of the tokens around thinking, each None where the vocabulary has no such token."""
        self._special_ids = self._token_text.special_ids.difference(self._think_ids if self.thinks else ())
        self.tools = template_tools(source if TOOLS.intersection(reads) else "").with_special(special)
        """The way in which the chat template treats tools."""
        self.channel_calls = TemplateTools(HARMONY, is_native=True, history="pairs").with_special(special)
        """The way in which a model writes calls in channels, where `calls_in_channels`."""

    @classmethod
    def from_folder(cls, folder: str | Path) -> Tokenizer:
        """Load `tokenizer.json`, `tokenizer_config.json` and the chat template.

        Raises FileNotFoundError: when the folder has no `tokenizer.json`.
        Raises BadTokenizer: when a file cannot be used.
        """
        files = read_tokenizer(Path(folder))
        try:
            return cls(files.backend, files.templates, files.special_tokens, has_segments=files.has_segments)
        except jinja2.TemplateError as error:
            where = "tokenizer_config.json or chat_template.jinja"
            raise BadTokenizer(f"the chat template of {where} is none: {str(error)[:300]}") from None
        except Exception as error:  # whatever the library raises for a tokenizer that it has read, but cannot use
            raise BadTokenizer(f"tokenizer.json cannot be used: {str(error)[:300]}") from None

    @property
    def vocab_size(self) -> int:
        """The number of token ids in use, including added tokens."""
        return int(self.backend.get_vocab_size(with_added_tokens=True))

    def render_chat(self, messages: list[Message], tools: Sequence[Tool] = (), rendering: Rendering = USUAL) -> str:
        """Return the model's prompt for a conversation.

        Messages are as templates expect them: a call's arguments are an object, or a text if they are no object.

        tools: the tools that the model may call. rendering: the request's choices about the template.

        Raises InvalidRequest: when there is no template, or it refuses the messages; the error's param is "messages".
        """
        if self._template is None:
            raise InvalidRequest(
                "This model has no chat template. Use /v1/completions instead.",
                param="messages",
                code="unsupported_parameter",
            )
        arguments = known_arguments(rendering.arguments, self._template_arguments)
        if self.channels is not None and "reasoning_effort" in arguments:
            effort = str(arguments["reasoning_effort"])
            arguments = {**arguments, "reasoning_effort": EFFORTS_IN_CHANNELS.get(effort, effort)}
        fits_system = rendering.fits_system or self.tools.history == "pairs"  # such templates leave others out unsaid
        if fits_system and has_late_system(messages) and not self.takes_late_system:
            messages = without_late_system(messages)
        described = None
        try:
            if self.tools.is_native:
                # A message that the model continues keeps the thinking in its content.
                keeps_last = rendering.continue_final_message and self.tools.history == "pairs"
                continued = messages[-1:] if keeps_last else []
                messages = as_the_template_reads(messages[: len(messages) - len(continued)], self.tools) + continued
                described = [tool.described() for tool in tools] or None
            else:
                messages = as_plain_messages(messages, tools, self.tools.format)
            return self._template.render(
                messages,
                described,
                add_generation_prompt=rendering.add_generation_prompt,
                continue_final_message=rendering.continue_final_message,
                arguments=arguments,
            )
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, RecursionError) as error:
            raise InvalidRequest(
                f"The chat template refuses these messages: {error}", param="messages", code="invalid_value"
            ) from None

    @property
    def calls_in_channels(self) -> bool:
        """True if the model writes calls in channels, as its chat template asks for."""
        return self.channels is not None and self.tools.history == "pairs"

    def thinking_before(
        self, prompt_ids: list[int], *, is_new_turn: bool, is_before_call: bool = False
    ) -> Thinking | None:
        """Return the thinking that may come before a text that is held to a grammar; None where none may.

        Thinking has to end with a token of its own, which a model without one cannot write.

        prompt_ids: the prompt. is_new_turn: True if the prompt ends with the beginning of an answer. is_before_call:
        True if a call in channels has to follow, rather than an answer.
        """
        if self.channels is not None:
            channels = self.channels
            final = (channels.channel, *self.encode_text("final", add_special_tokens=False))
            end = ((channels.end,),) if is_before_call else (final, (channels.message,))
            return Thinking(end=end) if is_new_turn else None
        begin_id, end_id = self._think_ids
        if not self.thinks or end_id is None:
            return None
        prompt_end = b"".join(map(self.token_bytes, prompt_ids[-ENDS_OPEN_TOKENS:]))
        if begins_thinking(prompt_end):
            return Thinking(end=((end_id,),))
        if begin_id is None or not is_new_turn or ends_thinking(prompt_end):
            return None
        return Thinking(end=((end_id,),), begin=begin_id)

    @property
    def takes_late_system(self) -> bool:
        """True if the chat template shows a system message that follows other messages. Computed once."""
        if self._takes_late_system is None:
            shown = ""
            if self._template is not None:
                with suppress(jinja2.TemplateError, TypeError, ValueError, KeyError):
                    shown = self._template.render(LATE_SYSTEM, add_generation_prompt=True)
            self._takes_late_system = LATE_SYSTEM[-2]["content"] in shown
        return self._takes_late_system

    @property
    def shows_pairs(self) -> bool:
        """True if the chat template shows a query and a document, as messages of these roles."""
        if self._shows_pairs is None:
            shown = ""
            if self._template is not None:
                with suppress(jinja2.TemplateError, TypeError, ValueError, KeyError):
                    shown = self._template.render(PAIR, add_generation_prompt=True)
            self._shows_pairs = all(message["content"] in shown for message in PAIR)
        return self._shows_pairs

    def encode_text(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text, with the special tokens that the tokenizer adds around a prompt (BOS)."""
        return self._encode_all([text], add_special_tokens=add_special_tokens)[0]

    def encode_chat(self, text: str, owner: str) -> list[int]:
        """Return the token ids of a text that `render_chat` returned, without special tokens around it.

        owner: the project whose earlier turns may be remembered.
        """
        if self._pieces is None:
            return self.encode_text(text, add_special_tokens=False)
        return self._pieces.encode(owner, text)

    def _encode_all(self, texts: list[str], *, add_special_tokens: bool = False) -> list[list[int]]:
        # The batch calls release the interpreter lock; the fast one leaves out offsets, which nobody reads.
        encodings = self.backend.encode_batch_fast(texts, add_special_tokens=add_special_tokens)
        return [list(each.ids) for each in encodings]

    @property
    def special_ids(self) -> frozenset[int]:
        """The ids of the tokens that are not text. The tokens around thinking are, as readers divide text by them."""
        return self._special_ids

    @property
    def strips_first_space(self) -> bool:
        """True if the decoder strips the space at the beginning of a text's first token."""
        return self._token_text.strips_first_space

    def decode(self, token_ids: list[int], *, with_special: bool = False) -> str:
        """Return the text of token ids, without special tokens unless with_special."""
        return str(self.backend.decode(token_ids, skip_special_tokens=not with_special))

    def _special(self) -> dict[str, int]:
        """Return the ids of the special tokens by their text."""
        added = self.backend.get_added_tokens_decoder()
        return {token.content: token_id for token_id, token in added.items() if token.special}


def _source_for_tools(templates: Sources | None) -> str:
    """Return the source of the chat template that describes tools: of several, `tool_use` or else `default`."""
    if isinstance(templates, Mapping):
        return templates.get("tool_use") or templates.get("default") or ""
    return templates or ""
