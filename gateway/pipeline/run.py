"""A request that was admitted: its prompts run while they are read, and its reservation ends when it is closed.

Knows neither how a request is prepared nor how its reply is shown.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import lru_cache, partial

import msgspec
import structlog

from engine.protocol import Usage
from gateway.backends.generation import Generation, Item, Piece
from gateway.backends.pool import PoolRevision
from gateway.content.transcript import Transcript
from gateway.domain.billing.pricing import Rates, cost
from gateway.domain.errors import (
    CONTEXT_LENGTH_EXCEEDED,
    REFUSED_BY_SERVER,
    BackendFailed,
    GatewayError,
    InvalidRequest,
)
from gateway.domain.limits.refusal import Headers
from gateway.domain.routing.retry_budget import RetryBudget
from gateway.metering.tag import MeterTag
from gateway.pipeline.collected import Collected, Collector
from gateway.pipeline.context import RequestContext
from gateway.pipeline.items.attempts import Restarted, embed_prompt, generate_items, has_no_successor
from gateway.pipeline.items.cold_start import after_first_replica, await_first_replica
from gateway.pipeline.items.collecting import collect_items, replay_items
from gateway.pipeline.items.first_item import await_first_item
from gateway.pipeline.items.hedged import Hedging, generate_hedged
from gateway.pipeline.items.timing import Took, timed_items
from gateway.pipeline.merge import merge_items, run_jobs
from gateway.pipeline.model_call import ModelCall
from gateway.routing.route import RoutedAdapter
from gateway.text.thinking import ENDS_OPEN_TOKENS, answer_start, begins_thinking

log = structlog.get_logger(__name__)

MAX_FINGERPRINTS = 1024
"""The most fingerprints that are cached: one for each adapter in use."""


class Prepared(msgspec.Struct, frozen=True):
    """A prompt that has passed all checks, except its tenant's limits and those of the backend."""

    generation: Generation
    """The request as backends take it."""
    tag: MeterTag
    """The tag of the prompt's usage, which travels with the request once it is admitted."""
    grammar_field: str | None = None
    """The client's name of the grammar's field, for an error of the engine, which alone understands grammars."""
    prompt_field: str | None = None
    """The client's name of the prompt's field, for a server of another maker that alone knows the prompt's length."""
    is_held_at_once: bool = False
    """True if a grammar holds the whole completion, which then has no thinking, whatever the prompt ended with."""

    @property
    def max_tokens(self) -> int:
        """Return the most tokens of each of the prompt's completions."""
        return self.generation.request.sampling.max_tokens


class ReplyDetails(msgspec.Struct, frozen=True):
    """The facts about a reply's source and price that its headers may show."""

    pool: str
    """The name of the pool that answers."""
    rates: Rates | None
    """The rates of the reply's tokens, if they are known before the ledger has the request."""

    def cost_nanos(self, usages: Sequence[Usage]) -> int | None:
        """Return the price that the ledger will bill for usages, each of one prompt; None where it is not known yet."""
        if self.rates is None:
            return None
        return sum(
            cost(self.rates, each.prompt_tokens - each.cached_tokens, each.cached_tokens, each.completion_tokens).total
            for each in usages
        )


class Run:
    """The admitted prompts of one request. Close the run once the request is answered or has failed.

    adapter: None: the base model answers. transcript: records prompt and answer for the project's content log; None:
    nothing is logged.
    """

    def __init__(
        self,
        context: RequestContext,
        pool: PoolRevision,
        budget: RetryBudget,
        adapter: RoutedAdapter | None,
        prepared: Sequence[Prepared],
        headers: Headers,
        close: Callable[[], None],
        transcript: Transcript | None,
    ) -> None:
        self.headers = headers
        """The standing of the caller's limits, as headers of a reply."""
        self.close = close
        """The function that gives the reservation back and has the request logged. May be called again."""
        self.adapter_label = None if adapter is None else adapter.label
        """`<name>@<version>` of the adapter that answers."""
        self.prompts: list[list[int]] = [each.generation.request.prompt_token_ids for each in prepared]
        """Each prompt's token ids; none of a model whose tokenizer is not known here."""
        self.num_prompt_tokens = sum(each.generation.prompt_tokens for each in prepared)
        """The tokens of all prompts, or an upper bound of them where the tokenizer is not known here."""
        self.prompt_tokens = [each.generation.likely_prompt_tokens for each in prepared]
        """The tokens of each prompt, or our own count of them where the tokenizer is not known here."""
        self.prompt_texts = [each.generation.prompt_text for each in prepared]
        """Each whole prompt as the client wrote it; None where that is a conversation, token ids or cut."""
        self.sampling = prepared[0].generation.request.sampling
        """The sampling of the first prompt, with what an adapter or an arm adds to the client's own."""
        self.vote_id = context.request_id
        """The request's id from which ids of replies are made; in an experiment it has a MAC (`vote_ids`)."""
        self.on_unanswered: Callable[[GatewayError], None] | None = None
        """The function that is called if the first prompt was refused before any engine had it.

        The ledger will not have the request then.
        """
        self._context = context
        self._pool = pool
        self._budget = budget
        self._adapter = adapter
        self._prepared = prepared
        self._transcript = transcript
        self._before_end: Callable[[Collected], Awaitable[None]] | None = None
        self.give_back = close
        """The function that gives the reservation back, where another run takes this one's place."""
        self.instant_ns: int | None = None
        """The time of the request in Unix nanoseconds, which its rows in the ledger have."""
        self.serves: Callable[[], None] = _do_nothing
        """The function that is called once no other run can take this one's place any more."""
        self.log_fields: dict[str, str] = {}
        """More fields of the request's log line."""
        self.details: ReplyDetails | None = None
        """Facts about the pool and the cost that the reply may show, where the operator allows that."""
        self.took: Took | None = None
        """The function that is called with the speed of the first prompt's answer."""
        self._whole: list[Item | Restarted] = []
        self.hedging: Hedging | None = None
        """The terms on which the only prompt is tried at a second replica as well; None: never."""
        self._begun: AsyncGenerator[Item | Restarted] | None = None
        self.call: ModelCall | None = None
        """The spans of the run, where its request is traced."""
        self.waits = True
        """True if prompts wait for a first replica of a pool that starts one for them."""

    @property
    def may_fill_context(self) -> bool:
        """Tell whether the first prompt and its completion may have as many tokens as the model's context."""
        first = self._prepared[0]
        return first.generation.prompt_tokens + first.max_tokens >= self._pool.capabilities.max_model_len

    @property
    def generations(self) -> list[Generation]:
        """Return the prompts as backends get them."""
        return [each.generation for each in self._prepared]

    @property
    def token_bytes(self) -> Callable[[int], bytes]:
        """Return a function that gives the bytes of a token id's text, which need not be whole characters."""
        if not self._knows_tokens:
            return _no_bytes
        return self._pool.tokenizer.token_bytes

    @property
    def thinks(self) -> bool:
        """Tell whether the model may think before it answers, by its chat template."""
        return self._knows_tokens and self._pool.tokenizer.thinks

    @property
    def always_thinks(self) -> bool:
        """Tell whether the model may think without being asked to, as those do that answer in channels."""
        return self._knows_tokens and self._pool.tokenizer.channels is not None

    @property
    def has_begun_to_think(self) -> bool:
        """True where the first prompt ends with the beginning of the model's thinking, which goes on."""
        if self._prepared[0].is_held_at_once:
            return False
        last = self.prompts[0][-ENDS_OPEN_TOKENS:]
        return bool(last) and begins_thinking(b"".join(map(self.token_bytes, last)))

    def without_thinking(self, collected: Collected) -> Collected:
        """Return an answer to the first prompt without the thinking before it: its texts, and the tokens of these."""
        if not self.thinks:
            return collected
        answers = []
        for each in collected.answers:
            start = answer_start(each.text, is_open=self.has_begun_to_think)
            tokens = [token for token in each.tokens if token.start >= start]
            answers.append(msgspec.structs.replace(each, text=each.text[start:], tokens=tokens, steps=[]))
        return msgspec.structs.replace(collected, answers=answers)

    @property
    def _knows_tokens(self) -> bool:
        return "token_ids" in self._pool.capabilities.features

    def decode(self, token_ids: list[int]) -> str:
        """Return the text of token ids of this run's model, special tokens included."""
        return self._pool.tokenizer.decode(token_ids, with_special=True)

    @property
    def fingerprint(self) -> str | None:
        """Return the digest of all that an answer with a seed depends on beside its request.

        None while no engine is known. An adapter counts by its version, since only its owner may compare its content.
        """
        backend, adapter = self._pool.capabilities.fingerprint, self._adapter
        if not backend:
            return None
        return _fingerprint(backend if adapter is None else f"{backend}:{adapter.id}@{adapter.ref.version}")

    async def begin(
        self, bound_s: float | None, is_followed: Callable[[GatewayError], bool], give_up: Callable[[], None]
    ) -> None:
        """Run the first prompt up to its first item, which `items` yields later with the others.

        Until then another run may take this one's place, after errors for which `is_followed` returns True.

        bound_s: the seconds in which the first item has to come; None: there is no bound. give_up: called before a
        prompt without an item after `bound_s` is aborted.

        Raises as `items`.
        Raises TooSlow: when the first item is not there after `bound_s`.
        """
        prepared, has_begun = self._prepared[0], False

        def is_followed_now(error: GatewayError) -> bool:
            return not has_begun and is_followed(error)

        source = self._source(prepared, may_restart=not self._context.stream, is_followed=is_followed_now)
        try:
            self._begun = await await_first_item(source, bound_s, self._context.check, give_up)
        except (InvalidRequest, BackendFailed) as error:
            raise self._for_caller(error, prepared) from None
        has_begun = True

    async def begin_whole(
        self, bound_s: float | None, is_followed: Callable[[GatewayError], bool], give_up: Callable[[], None]
    ) -> Collected:
        """Run the prompt of a request with a single prompt to its end, and return its answer without any thinking.

        `items` yields the answer once `serve_whole` is called. Another run may take this one's place after any error
        for which `is_followed` returns True.

        bound_s: the seconds in which the first item has to come; None: there is no bound. give_up: called before a
        prompt without an item after `bound_s` is aborted.

        Raises as `items`.
        Raises TooSlow: when the first item is not there after `bound_s`.
        """
        (prepared,) = self._prepared
        source = self._source(prepared, may_restart=True, is_followed=is_followed)
        try:
            coming = await await_first_item(source, bound_s, self._context.check, give_up)
            self._whole, answer = await collect_items(coming, prepared.generation.request.n, self._context.check)
        except (InvalidRequest, BackendFailed) as error:
            raise self._for_caller(error, prepared) from None
        return self.without_thinking(answer)

    def serve_whole(self) -> None:
        """Make `items` yield the answer that `begin_whole` collected."""
        self._begun, self._whole = replay_items(self._whole), []

    def before_end(self, take: Callable[[Collected], Awaitable[None]]) -> None:
        """Await `take` with each prompt's whole answer before the prompt's last item is yielded.

        take: called with the answer.
        """
        self._before_end = take

    def items(self, index: int = 0) -> AsyncGenerator[Item]:
        """Yield one prompt's items as they come. Closing the generator aborts the prompt.

        Raises as `gateway.backends.base.Backend.generate`, with the client's names of fields.
        Raises Overloaded: when no replica takes the prompt.
        Raises DeadlinePassed: when the request's deadline passes meanwhile.
        """
        return self._generated(index)

    def merged(self) -> AsyncGenerator[tuple[int, Item]]:
        """Yield the items of all prompts, each with the number of its prompt. Raises as `items`."""
        return merge_items([self.items(index) for index in range(len(self._prepared))])

    async def collect(self) -> list[Collected]:
        """Run all prompts to their ends. A prompt whose replica dies is begun anew on another. Raises as `items`."""
        return await run_jobs([self._collected_choices(index) for index in range(len(self._prepared))])

    async def embed(self) -> list[tuple[bytes, Usage]]:
        """Return each prompt's embedding, fp32 little-endian and of unit length. Raises as `items`."""
        return await run_jobs([self._embed(each) for each in self._prepared])

    @property
    def _is_plain(self) -> bool:
        return self._transcript is None and self._before_end is None and self._context.deadline is None

    @property
    def _is_untimed(self) -> bool:
        """Tell whether it makes no difference when a reply comes, and in how many items."""
        return not self.thinks and self.call is None and self.took is None and self.hedging is None

    def _unanswered_hook(self, prepared: Prepared) -> Callable[[GatewayError], None] | None:
        """Return the function to call where a prompt is not answered: the first prompt stands for the request."""
        return self.on_unanswered if prepared is self._prepared[0] else None

    def _source(
        self,
        prepared: Prepared,
        *,
        may_restart: bool,
        is_whole: bool = False,
        is_followed: Callable[[GatewayError], bool] = has_no_successor,
    ) -> AsyncGenerator[Item | Restarted]:
        """Return the items of a prompt, which may have begun.

        may_restart: True if the reader can begin anew after some items. is_whole: as `Generation.is_whole`.
        is_followed: tells whether something else takes the prompt after an error, and is billed.
        """
        is_first = prepared is self._prepared[0]
        if is_first and self._begun is not None:
            source, self._begun = self._begun, None
            return source
        begin: Callable[..., AsyncGenerator[Item | Restarted]] = generate_items
        if self.hedging is not None and len(self._prepared) == 1:
            begin = partial(generate_hedged, hedging=self.hedging)
        generation = prepared.generation
        source = begin(
            self._pool,
            msgspec.structs.replace(generation, is_whole=True) if is_whole else generation,
            self._budget,
            on_unanswered=self._unanswered_hook(prepared),
            may_restart=may_restart,
            is_followed=is_followed,
            call=self.call,
        )
        if is_first and self.took is not None:
            source = timed_items(source, self.took)
        return source if self._goes_on(is_followed) else self._after_cold_start(prepared, source, is_followed)

    def _goes_on(self, is_followed: Callable[[GatewayError], bool]) -> bool:
        """Tell whether a prompt is sent at once, rather than held for the pool's first replica.

        The prompt is sent if there is a replica, or if another target can answer meanwhile.
        """
        pool = self._pool
        if not self.waits or not pool.is_cold:
            return True
        if is_followed(pool.room.refusal("another model may answer", 1.0)):
            pool.room.want()
            return True
        return False

    def _after_cold_start(
        self,
        prepared: Prepared,
        source: AsyncGenerator[Item | Restarted],
        is_followed: Callable[[GatewayError], bool],
    ) -> AsyncGenerator[Item | Restarted]:
        return after_first_replica(
            self._pool, source, prepared.generation.request.tenant, self._unanswered_hook(prepared), is_followed
        )

    async def _generated(self, index: int) -> AsyncGenerator[Item]:
        """Yield the items of a prompt, which go to the client at once: after the first, no other replica is asked.

        Each item goes to the request log before it is yielded. The whole answer goes to the function that `before_end`
        was given, before the last item is yielded.
        """
        prepared = self._prepared[index]
        watch = None if self._is_plain else self._watch(index)
        is_ending = False
        try:
            async with aclosing(self._source(prepared, may_restart=False)) as items:
                self._context.check()
                async for item in items:
                    assert not isinstance(item, Restarted)
                    if watch is not None and (collected := watch(item)) is not None:
                        assert self._before_end is not None
                        is_ending = True
                        await self._before_end(collected)
                    yield item
        except (InvalidRequest, BackendFailed) as error:
            if is_ending:
                raise  # it is not about the prompt
            raise self._for_caller(error, prepared) from None

    def _watch(self, index: int) -> Callable[[Item], Collected | None]:
        """Return a function that logs each item and, for `before_end`, collects the items.

        With the last item it returns the collected answer if `before_end` was given a function, else None.
        """
        collector = self._collector(self._prepared[index]) if self._before_end is not None else None

        def watch(item: Item) -> Collected | None:
            self._log(index, item)
            return None if collector is None else collector.add(item)

        return watch

    async def _collected_choices(self, index: int) -> Collected:
        prepared = self._prepared[index]
        num_choices = prepared.generation.request.n
        collector = self._collector(prepared)
        items = self._source(prepared, may_restart=True, is_whole=self._is_untimed)
        try:
            self._context.check()
            async for item in items:
                if isinstance(item, Restarted):
                    collector = self._collector(prepared)
                    if self._transcript is not None:
                        self._transcript.restart(range(index * num_choices, (index + 1) * num_choices))
                    continue
                self._log(index, item)
                if (collected := collector.add(item)) is not None:
                    if self._before_end is not None:
                        await self._before_end(collected)
                    return collected
        except (InvalidRequest, BackendFailed) as error:
            raise self._for_caller(error, prepared) from None
        finally:
            await items.aclose()
        raise AssertionError("the backend ended without a usage")

    def _collector(self, prepared: Prepared) -> Collector:
        return Collector(prepared.generation.request.n, counts_steps=self.thinks)

    async def _embed(self, prepared: Prepared) -> tuple[bytes, Usage]:
        self._context.check()
        try:
            if not self._goes_on(has_no_successor):
                await await_first_replica(
                    self._pool, prepared.generation.request.tenant, self._unanswered_hook(prepared)
                )
            return await embed_prompt(
                self._pool,
                prepared.generation.request,
                self._budget,
                self._unanswered_hook(prepared),
                trace=prepared.generation.trace,
                call=self.call,
            )
        except (InvalidRequest, BackendFailed) as error:
            raise self._for_caller(error, prepared) from None

    def _log(self, index: int, item: Item) -> None:
        """Add an item of a prompt to the request log, where there is one.

        Raises ClientGone or DeadlinePassed: when going on would be of no use.
        """
        self._context.check()
        if self._transcript is not None and isinstance(item, list):
            _log_pieces(self._transcript, item, index * self._prepared[index].generation.request.n)

    def _for_caller(self, error: InvalidRequest | BackendFailed, prepared: Prepared) -> InvalidRequest | BackendFailed:
        """Return the error with the caller's own name of the field at fault: grammar, prompt or adapter.

        If a shared adapter cannot be loaded or fails, the reason is left out: it is for the adapter's owner alone.
        """
        is_borrowed = self._adapter is not None and self._adapter.is_shared
        if isinstance(error, BackendFailed):
            context = self._context
            trace_id = context.trace.id
            log.warning("backend_failed", request_id=context.request_id, trace_id=trace_id, error=error.message)
            return BackendFailed("The engine failed while it worked on the request.") if is_borrowed else error
        if error.param == "model" and is_borrowed:
            return InvalidRequest(
                "The adapter of this model cannot be loaded. Ask the owner of the adapter to upload it again.",
                param=error.param,
                code=error.code,
            )
        fields: dict[str | None, str | None] = {
            CONTEXT_LENGTH_EXCEEDED: prepared.prompt_field,
            REFUSED_BY_SERVER: None,
        }
        param = error.param or fields.get(error.code, prepared.grammar_field)
        return InvalidRequest(error.message, param=param, code=error.code)


def _do_nothing() -> None:
    pass


@lru_cache(MAX_FINGERPRINTS)
def _fingerprint(whole: str) -> str:
    return f"fp_{hashlib.sha256(whole.encode()).hexdigest()[:10]}"


def _no_bytes(token_id: int) -> bytes:
    raise AssertionError("a model without a known tokenizer was asked for tokens")


def _log_pieces(transcript: Transcript, pieces: list[Piece], first: int) -> None:
    """Add pieces to the request log. first: the number of the prompt's first choice within the whole reply."""
    for piece in pieces:
        index = first + piece.index
        if text := piece.reasoning + piece.text:
            transcript.add(index, text)
        for new in piece.calls:
            transcript.add_call(index, new.name, new.arguments)
        if piece.finish_reason is not None:
            transcript.end(index, piece.finish_reason)
