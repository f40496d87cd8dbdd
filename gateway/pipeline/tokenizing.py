"""The tokens that an engine gets for a request: those of prompts, and of the completion that a client predicts.

Long texts are tokenized off the event loop. Knows no field of an API.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from gateway.backends.base import Capabilities, Fit, Message, Model, PreparedPrompt, unchanged
from gateway.domain.errors import InvalidRequest
from gateway.pipeline.bounds import too_long
from gateway.pipeline.requests import Conversation, EmbeddingRequest, Prompt, RankRequest, TextRequest
from gateway.support.project_threads import ProjectThreads
from gateway.text.pairs import QueryTooLong, encode_pair, encode_pair_by_template

THREAD_ABOVE_CHARS = 4096
"""The number of characters above which a prompt is tokenized in a thread, so that streams are not delayed."""

MAX_CHAR_BYTES = 4
"""The most bytes of one character in UTF-8."""

CHARS_PER_VALUE = 16
"""The number of characters for which each message, field and value of a conversation counts, beside its text.

A template goes through all of them.
"""


PREDICTED_PER_TOKEN = 4
"""The number of a prediction's tokens that are kept for each token that the completion may have.

Much of a prediction may be left out in the completion.
"""


class Tokenizing:
    """The tokenizer of prompts for all projects of one gateway process."""

    def __init__(self) -> None:
        self._threads = ProjectThreads("tokenizing", "long prompts")

    async def prepared_prompt(
        self, account: str, model: Model, request: TextRequest | EmbeddingRequest
    ) -> PreparedPrompt:
        """Return a request's prompt as tokens, cut to its end or its beginning if the client asked for that.

        Raises InvalidRequest: for a prompt that cannot fit the model's context, most of them without reading it.
        """
        wanted, field = request.max_prompt_tokens, request.names.this_prompt
        cut = _beginning_within if request.keeps_first else _end_within
        fit = partial(_within if wanted is None else cut, model.capabilities, field)
        if wanted is None and isinstance(request.prompt, list):
            _check_number(model.capabilities, field, request.prompt)
        prompt = await self.tokenized(
            account, model, request.prompt, field, add_special_tokens=request.add_special_tokens, fit=fit
        )
        if wanted is None or prompt.num_tokens <= wanted:
            return prompt
        return PreparedPrompt(prompt.token_ids[:wanted] if request.keeps_first else prompt.token_ids[-wanted:], wanted)

    async def tokenized(
        self,
        account: str,
        model: Model,
        prompt: Prompt,
        field: str,
        *,
        add_special_tokens: bool,
        fit: Fit = unchanged,
    ) -> PreparedPrompt:
        """Return the tokens of a prompt. The special tokens of a conversation are decided by its own rendering.

        field: the client's name of the prompt.
        fit: shortens or refuses a rendered text before it is tokenized.

        Raises InvalidRequest: for a prompt that the model cannot read.
        """
        if isinstance(prompt, Conversation):
            messages, rendering = prompt.messages, prompt.rendering
            tools = prompt.tools.tools if prompt.tools else ()
            if tools or is_long(messages):
                return await self._threads.run(account, model.prepare_chat, messages, tools, rendering, fit, account)
            return model.prepare_chat(messages, tools, rendering, fit, account)
        if isinstance(prompt, str):
            prompt = fit(prompt)
        prepare = partial(model.prepare_text, prompt, field, add_special_tokens=add_special_tokens)
        if isinstance(prompt, str) and len(prompt) > THREAD_ABOVE_CHARS:
            return await self._threads.run(account, prepare)
        return prepare()

    async def pair(self, account: str, model: Model, request: RankRequest) -> PreparedPrompt:
        """Return the tokens of a query and a document, whose end is cut off where it is too long.

        Raises InvalidRequest: for a query that leaves no room for a document, or an instruction for a model that takes
        none.
        """
        capabilities, field = model.capabilities, request.names.prompt
        _within(capabilities, field, request.query)
        document = _beginning_within(capabilities, field, request.document)
        if len(request.query) + len(document) > THREAD_ABOVE_CHARS:
            return await self._threads.run(account, _pair, model, request, document)
        return _pair(model, request, document)

    async def predicted_tokens(self, account: str, model: Model, prediction: str, max_tokens: int) -> list[int]:
        """Return the tokens of a prediction, at most as many as can help a completion of max_tokens tokens."""
        if not prediction:
            return []
        capabilities = model.capabilities
        most = min(PREDICTED_PER_TOKEN * max_tokens, capabilities.max_model_len)
        text = prediction[: most * capabilities.longest_token_bytes]
        prepared = await self.tokenized(account, model, text, "prediction", add_special_tokens=False)
        return prepared.token_ids[:most]


def _pair(model: Model, request: RankRequest, document: str) -> PreparedPrompt:
    tokenizer, task, room = model.tokenizer, model.capabilities.task, model.capabilities.max_model_len
    by_template = tokenizer.shows_pairs
    if task.scored_by == "tokens" and not by_template:
        raise InvalidRequest(
            "The chat template of this model shows no query and document.", code="unsupported_parameter"
        )
    if request.instruction is not None and not by_template:
        raise InvalidRequest(
            "'instruction' is not supported with this model: it reads a query and a document alone.",
            param="instruction",
            code="unsupported_parameter",
        )
    try:
        if by_template:
            usual = task.prompts.get(task.default_prompt, "")
            instruction = usual if request.instruction is None else request.instruction
            found = encode_pair_by_template(
                tokenizer,
                request.query,
                document,
                room,
                request.max_document_tokens,
                instruction=instruction,
                answers=task.begins_answer,
            )
        else:
            found = encode_pair(tokenizer, request.query, document, room, request.max_document_tokens)
    except QueryTooLong as error:
        raise too_long(room, error.num_tokens, request.names.prompt) from None
    return PreparedPrompt(found.token_ids, len(found.token_ids), found.num_first_tokens)


def _within(capabilities: Capabilities, field: str, text: str) -> str:
    """Return a text unchanged, after checking its size.

    Raises InvalidRequest: when the text has more bytes than a context full of the longest tokens.
    """
    longest = capabilities.longest_token_bytes
    if len(text) * MAX_CHAR_BYTES > capabilities.max_model_len * longest:
        num_tokens = -(-len(text.encode(errors="replace")) // longest)
        if num_tokens > capabilities.max_model_len:
            raise too_long(capabilities.max_model_len, num_tokens, field, is_at_least=True)
    return text


def _check_number(capabilities: Capabilities, field: str, token_ids: list[int]) -> None:
    """Check that token ids fit the context before each of them is looked at.

    Raises InvalidRequest: when the token ids are more than the context holds.
    """
    most = capabilities.max_model_len
    if "token_ids" in capabilities.features and len(token_ids) > most:
        raise too_long(most, len(token_ids), field)


def _end_within(capabilities: Capabilities, field: str, text: str) -> str:
    """Return the end of a text, cut to the most characters that can matter for the model's context."""
    return text[-capabilities.max_model_len * capabilities.longest_token_bytes :]


def _beginning_within(capabilities: Capabilities, field: str, text: str) -> str:
    """Return the beginning of a text, cut to the most characters that can matter for the model's context."""
    return text[: capabilities.max_model_len * capabilities.longest_token_bytes]


def is_long(messages: Sequence[Message]) -> bool:
    """Tell whether a conversation is so long that it should be rendered in a thread, tool calls and names included.

    The count ends as soon as the answer is known.
    """
    left = THREAD_ABOVE_CHARS
    to_count: list[Any] = [*messages]
    while to_count and left >= 0:
        value = to_count.pop()
        left -= CHARS_PER_VALUE
        if isinstance(value, str):
            left -= len(value)
        elif isinstance(value, dict):
            left -= sum(map(len, value))
            to_count += value.values()
        elif isinstance(value, list | tuple):
            to_count += value
    return left < 0
