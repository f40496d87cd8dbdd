"""One reply, to be sent whole, streamed or stored: the items of a run become a response and its events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import cast

import msgspec

from engine.protocol import Usage
from gateway.backends.generation import Item, Piece, Token
from gateway.domain.errors import GatewayError
from gateway.http.sse import DONE, named_event
from gateway.openai.responses.conversation import item_id
from gateway.openai.responses.events import ArgumentsDelta, InputDelta, ReasoningDelta, ResponseEvent, TextDelta
from gateway.openai.responses.open_items import Seal
from gateway.openai.responses.progress import Progress, TokenShown
from gateway.openai.responses.tools import ResponseTools
from gateway.openai.responses.wire import InputTokensDetails, ResponseObject, ResponseUsage
from gateway.openai.shared.logprobs import ChatTokenLogprob, TokenBytes, chat_logprobs
from gateway.openai.shared.obfuscation import padding
from gateway.openai.shared.replies import call_id
from gateway.pipeline.collected import Collected
from gateway.text.thinking import ThinkingText

TOKENS_AT_ONCE = 64

_EVENT = msgspec.json.Decoder(ResponseEvent)


class ReplyIds(msgspec.Struct, frozen=True):
    """The ids of one response's items."""

    request_id: str
    random_part: str
    """The part of the response's id after its prefix."""
    num_input: int
    """The number of input items, which come before those of the output."""

    def item(self, prefix: str, index: int) -> str:
        """Return the id of an output item by its place in the output. prefix: the kind of item, as `msg`."""
        return item_id(prefix, self.random_part, self.num_input + index)

    def call(self, index: int) -> str:
        """Return the id by which the client answers a call, by the call's place among those of the response."""
        return call_id(self.request_id, 0, index)


class Counts(msgspec.Struct, frozen=True):
    """The token counts of a response that has not ended."""

    output: int = 0
    """The number of generated tokens, tokens of reasoning included."""
    reasoning: int = 0
    """The number of generated tokens that are reasoning."""
    input: int | None = None
    """The number of the prompt's tokens; None where it is not known yet."""
    request_id: str = ""
    """The id under which the run is billed."""


class Reply:
    """The reply to one request."""

    def __init__(
        self,
        initial: ResponseObject,
        ids: ReplyIds,
        *,
        tools: ResponseTools,
        must_call: bool,
        to_bytes: TokenBytes | None,
        num_prompt_tokens: int,
        thinks: bool = False,
        is_thinking: bool = False,
        seal: Seal | None = None,
    ) -> None:
        """Begin a reply.

        to_bytes: gives the bytes of tokens, where log-probabilities are shown.
        thinks: True: the model may think before it answers.
        is_thinking: True: the prompt ended with the beginning of thinking.
        seal: seals reasoning for the client to keep; None where the client does not ask for that.
        must_call: True: the answer has to be a call of a tool. num_prompt_tokens: the tokens of the prompt.
        """
        self.initial = initial
        self.is_stored = False
        """True if the response was stored, as the reply's last event tells the client."""
        self.is_added = False
        """True if the response was added to its conversation, as the reply's last event tells the client."""
        self._ids = ids
        self._tools = tools
        self._must_call = must_call
        self._to_bytes = to_bytes
        self._num_prompt_tokens = num_prompt_tokens
        self._thinks = thinks
        self._is_thinking = is_thinking
        self._seal = seal
        self._completed_at: int | None = None
        self._whole: ResponseObject | None = None

    def events(self, *, is_padded: bool) -> ResponseEvents:
        """Return the encoder of the reply as a stream. is_padded: True: padding hides the lengths of texts."""
        return ResponseEvents(self, self._progress(), is_padded=is_padded)

    async def whole(self, collected: Collected) -> ResponseObject:
        """Return the reply as one object.

        The first call returns the form to store, which assumes that storing works. Later calls return the form to send,
        which says whether it worked.
        """
        if self._whole is not None:
            conversation = self._whole.conversation if self.is_added else None
            return msgspec.structs.replace(self._whole, store=self.is_stored, conversation=conversation)
        progress, answer = self._progress(), collected.answers[0]
        progress.begin()
        tokens: list[TokenShown] = []
        for first in range(0, len(answer.tokens), TOKENS_AT_ONCE):
            tokens += self.shown(answer.tokens[first : first + TOKENS_AT_ONCE])
            await asyncio.sleep(0)
        progress.add_reasoning(answer.reasoning)
        begin = 0
        for end, num_tokens in answer.steps or [(len(answer.text), 0)]:
            progress.add_text(answer.text[begin:end], tokens, num_tokens)
            begin, tokens = end, []
        for new in answer.calls:
            progress.call(new)
        progress.stop(is_cut=answer.finish_reason == "length")
        progress.finish(usage_of(collected.usage), self.completed_at, is_stored=self.initial.store)
        self._whole = progress.response
        return self._whole

    @property
    def completed_at(self) -> int:
        """The time of the response's end in Unix seconds, fixed when it is first read."""
        if self._completed_at is None:
            self._completed_at = int(time.time())
        return self._completed_at

    def shown(self, tokens: Sequence[Token]) -> list[TokenShown]:
        """Return tokens with their log-probabilities, as encoded JSON, since several events show the same ones."""
        if self._to_bytes is None or not tokens:
            return []
        content = chat_logprobs(tokens, self._to_bytes).content
        encoded = [cast("ChatTokenLogprob", msgspec.Raw(msgspec.json.encode(each))) for each in content]
        return [TokenShown(token.start, each) for token, each in zip(tokens, encoded, strict=True)]

    def usage_so_far(self, num_output_tokens: int, prompt_tokens: int | None) -> ResponseUsage:
        """Return the usage of a response that has not ended by itself.

        num_output_tokens: the tokens of the output so far. prompt_tokens: the prompt's tokens as they were counted;
        None: as many as were sent.
        """
        num_input = self._num_prompt_tokens if prompt_tokens is None else prompt_tokens
        return ResponseUsage(num_input, num_output_tokens, num_input + num_output_tokens, InputTokensDetails(0))

    def _progress(self) -> Progress:
        return Progress(
            self.initial,
            self._ids,
            custom=self._tools.custom,
            namespaces=self._tools.namespaces,
            must_call=self._must_call,
            thinking=ThinkingText(is_open=self._is_thinking) if self._thinks else None,
            seal=self._seal,
        )


class ResponseEvents:
    """The encoder of a streamed response."""

    def __init__(self, reply: Reply, progress: Progress, *, is_padded: bool) -> None:
        """Prepare the events of a reply. is_padded: True: padding hides how long each token is."""
        self._reply = reply
        self._progress = progress
        self._is_padded = is_padded
        self._has_begun = False
        self._num_tokens = 0
        self._prompt_tokens: int | None = None
        self._billed: ResponseUsage | None = None

    async def encode(self, item: Item) -> bytes:
        """Return the events for pieces that came together, as one write."""
        return b"".join(self.encode_each(item))

    def encode_each(self, item: Item) -> list[bytes]:
        """Return the events for pieces that came together, as a list of encoded events."""
        if isinstance(item, list):
            events = [] if self._has_begun else self._progress.begin()
            self._has_begun = True
            for piece in item:
                events += self._events(piece)
            return [*map(self._encoded, events)]
        if isinstance(item, Usage):
            reply = self._reply
            return [
                *map(
                    self._encoded,
                    self._progress.finish(
                        usage_of(item), reply.completed_at, is_stored=reply.is_stored, is_added=reply.is_added
                    ),
                )
            ]
        return []

    def end(self) -> bytes:
        """Return the event `[DONE]`, with which OpenAI ends a stream."""
        return DONE

    def failed(self, error: GatewayError) -> bytes:
        """Return the events that end a stream after a failure."""
        return b"".join(self.failure_events(error)) + DONE

    def failure_events(self, error: GatewayError) -> list[bytes]:
        """Return the events of a failure as a list of encoded events."""
        return [*map(self._encoded, self._progress.fail(error, self._usage_so_far))]

    def cancellation_events(self) -> list[bytes]:
        """Return the events of a cancellation as a list of encoded events."""
        return [*map(self._encoded, self._progress.cancel(self._usage_so_far))]

    def bill(self, usage: ResponseUsage) -> None:
        """Make a failed or cancelled response show this usage in place of what this gateway counted."""
        self._billed = usage

    def restore(self, encoded: Sequence[bytes], counts: Counts) -> None:
        """Bring a response that has not begun into the state after all events that an earlier run of it logged.

        encoded: the logged events, as bytes. counts: the token counts up to the last one.
        """
        self._progress.restore([*map(_decoded, encoded)], counts.reasoning)
        self._num_tokens, self._prompt_tokens, self._has_begun = counts.output, counts.input, True

    @property
    def counts(self) -> Counts:
        """The token counts up to now."""
        return Counts(self._num_tokens, self._progress.num_reasoning_tokens, self._usage_so_far.input_tokens)

    @property
    def has_begun(self) -> bool:
        """True once the response has events, which `encode_each` does not return again."""
        return self._has_begun

    @property
    def response(self) -> ResponseObject:
        """The response in its present state."""
        return self._progress.response

    @property
    def _usage_so_far(self) -> ResponseUsage:
        return self._billed or self._reply.usage_so_far(self._num_tokens, self._prompt_tokens)

    def _events(self, piece: Piece) -> list[ResponseEvent]:
        self._num_tokens = piece.num_tokens
        if piece.prompt_tokens is not None:
            self._prompt_tokens = piece.prompt_tokens
        events = self._progress.add_reasoning(piece.reasoning)
        events += self._progress.add_text(piece.text, self._reply.shown(piece.tokens), piece.num_tokens)
        for new in piece.calls:
            events += self._progress.call(new)
        if piece.finish_reason is not None:
            events += self._progress.stop(is_cut=piece.finish_reason == "length")
        return events

    def _encoded(self, event: ResponseEvent) -> bytes:
        name = event.__struct_config__.tag
        assert isinstance(name, str)
        data = named_event(name, event)
        if not self._is_padded or not isinstance(event, TextDelta | ReasoningDelta | ArgumentsDelta | InputDelta):
            return data
        return b'%b,"obfuscation":"%b"}\n\n' % (data[: -len(b"}\n\n")], padding(_num_shown_bytes(event)).encode())


def _decoded(encoded: bytes) -> ResponseEvent:
    """Return an event from the bytes that a stream has for it."""
    event: ResponseEvent = _EVENT.decode(encoded.partition(b"\ndata: ")[2])
    return event


def _num_shown_bytes(event: TextDelta | ReasoningDelta | ArgumentsDelta | InputDelta) -> int:
    """Return the number of bytes in an event that show the model's tokens."""
    size = len(msgspec.json.encode(event.delta))
    return size + len(msgspec.json.encode(event.logprobs)) if isinstance(event, TextDelta) else size


def usage_of(usage: Usage) -> ResponseUsage:
    """Return an engine's count as replies show it."""
    total = usage.prompt_tokens + usage.completion_tokens
    return ResponseUsage(usage.prompt_tokens, usage.completion_tokens, total, InputTokensDetails(usage.cached_tokens))
