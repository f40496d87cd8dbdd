"""The interface between the pipeline and its backends: the request for a generation, and the items that it yields.

Text, calls of tools and log-probabilities travel here, whether a backend makes them of token ids or gets them as text.
Knows neither how a backend works nor how an API shows any of it.
"""

from __future__ import annotations

import msgspec

from engine.protocol import FinishReason, GenerateRequest, TokenLogprobs, Usage
from gateway.domain.routing.foreign_usage import TEMPLATE_TOKENS, likely_prompt
from gateway.text.conversation import Conversation
from gateway.text.options import PLAIN, TextStyle
from gateway.text.tools.parser import CallDelta
from gateway.text.tools.tool import ToolUse


class Generation(msgspec.Struct, frozen=True):
    """The completions of one prompt that a backend is asked for."""

    request: GenerateRequest
    """The prompt's token ids, the sampling and the bounds."""
    stop: tuple[str, ...] = ()
    """Strings that end a choice's text."""
    tools: ToolUse | None = None
    """Tools that the completions may call."""
    style: TextStyle = PLAIN
    """The way in which token ids become the text that is shown."""
    prompt_text: str | None = None
    """The whole prompt as the client wrote it; None where that is a conversation, token ids or cut."""
    conversation: Conversation | None = None
    """The prompt where that is a conversation, for backends that render it themselves."""
    num_prompt_tokens: int | None = None
    """An upper bound of the prompt's tokens, where nobody here knows their ids; None: the request has the ids."""
    key_owner: str = ""
    """The project whose own key the server is asked with; "" is the key of the pool."""
    trace: str = ""
    """The span that the request belongs to, as W3C's `traceparent` has it; "" for none."""
    is_whole: bool = False
    """True if nobody looks at the completions before their ends, so that a backend may yield many tokens at once."""

    @property
    def prompt_tokens(self) -> int:
        """The number of the prompt's tokens, or an upper bound of that number."""
        return len(self.request.prompt_token_ids) if self.num_prompt_tokens is None else self.num_prompt_tokens

    @property
    def template_tokens(self) -> int:
        """The tokens that a chat template may add by itself, as a part of the upper bound `prompt_tokens`."""
        return TEMPLATE_TOKENS if self.conversation is not None and self.num_prompt_tokens is not None else 0

    def prompt_tokens_by(self, reported: int) -> int:
        """Return the number of the prompt's tokens, given the number that a server that gets text reports.

        Our own number is returned where it is exact: a server that gets text may have another template and other
        tokens.
        reported: 0 if the server reports none.
        """
        return reported if reported > 0 and self.num_prompt_tokens is not None else self.likely_prompt_tokens

    @property
    def likely_prompt_tokens(self) -> int:
        """The number of the prompt's tokens, or our own count of them where only an upper bound is known."""
        if self.num_prompt_tokens is None:
            return len(self.request.prompt_token_ids)
        return likely_prompt(self.num_prompt_tokens, self.template_tokens)


class Token(msgspec.Struct, frozen=True):
    """One token with its log-probabilities."""

    token_id: int
    start: int
    """The index of the token's first character in the text."""
    logprobs: TokenLogprobs | None
    """The log-probabilities at the token's position; None for a prompt's first token."""


class Piece(msgspec.Struct, frozen=True):
    """The part of one choice that is new."""

    index: int
    """The number of the choice, from 0."""
    text: str
    """The new text."""
    tokens: list[Token] = []
    """The tokens of the text, with log-probabilities, where these were asked for."""
    finish_reason: FinishReason | None = None
    """Set in the last piece of a choice."""
    calls: tuple[CallDelta, ...] = ()
    """Calls of tools, which follow the text."""
    token_ids: list[int] = []
    """The token ids that came, where they were asked for, with the one that stopped the choice."""
    num_tokens: int = 0
    """Completion tokens of the choice so far, as they are billed."""
    prompt_tokens: int | None = None
    """Tokens of the prompt as they are billed by now, where only the server that has the tokenizer counts them."""
    stop_string: str = ""
    """In the last piece of a choice, the stop string that ended it; "" where none did, or where a server of another
    maker looked for it and does not say which."""
    reasoning: str = ""
    """New reasoning before the text, of a server of another maker that tells it apart. That of our own engine is a part
    of the text, which `gateway.text.thinking` divides."""


class PromptTokens(msgspec.Struct, frozen=True):
    """The log-probabilities of a prompt's own tokens."""

    tokens: list[Token]


Item = list[Piece] | PromptTokens | Usage
"""One step of a generation. PromptTokens come before all pieces; exactly one Usage comes last."""
