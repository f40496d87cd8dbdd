"""The preparation of a prompt, from a client's words to a request that a backend can run.

Adds defaults, tokens, the grammar, bounds and the usage tag. Asks no engine and no limit's account: a prompt that is
refused here has cost nobody anything.
"""

from __future__ import annotations

import msgspec

from engine.protocol import BatchTerms, GenerateRequest, Grammar, SamplingParams
from gateway.backends.base import Model
from gateway.backends.generation import Generation
from gateway.domain.billing.book import BATCH_TIER, SHADOW_TIER
from gateway.domain.errors import InvalidRequest, Overloaded
from gateway.domain.experiments.exposure import Exposure
from gateway.limits.limiter import Limiter
from gateway.metering.meter import Meter
from gateway.metering.tag import MeterTag
from gateway.pipeline.bounds import (
    check_at_most,
    check_dimensions,
    check_ids,
    check_prompt,
    completion_bound,
    too_long,
)
from gateway.pipeline.context import RequestContext
from gateway.pipeline.defaults import with_defaults, with_treatment
from gateway.pipeline.features import check_features
from gateway.pipeline.requests import Conversation, EmbeddingRequest, RankRequest, TextRequest
from gateway.pipeline.run import Prepared
from gateway.pipeline.tasks import check_task, with_prompt
from gateway.pipeline.tokenizing import Tokenizing
from gateway.routing.route import Route
from gateway.text.options import Rendering
from gateway.text.tokenizer import Tokenizer
from gateway.text.tools.grammar import call_grammar

TIER_WEIGHTS = {"flex": 0.5, "default": 1.0, "priority": 2.0, SHADOW_TIER: 0.1}
"""The weights by which a saturated engine divides its time among tenants, by the service tier of their requests."""


def _terms(context: RequestContext) -> BatchTerms | None:
    """Return the terms under which an engine schedules a batch line; None for a request of its own."""
    return None if context.batch is None else BatchTerms(context.batch.slack_s)


def after_thinking(
    grammar: Grammar,
    tokenizer: Tokenizer,
    prompt_ids: list[int],
    rendering: Rendering,
    *,
    is_held: bool,
    is_in_channels: bool = False,
) -> Grammar:
    """Return a grammar that begins to hold once the model has thought, where it may think.

    is_held: True if the grammar holds all that comes after the thinking, rather than calls alone. is_in_channels: True
    if it is of a call in channels. Other calls of a model that thinks in a channel follow no thinking.
    """
    is_call = grammar.kind == "tool_calls"
    if is_call and tokenizer.channels is not None and not is_in_channels:
        return grammar
    is_new_turn = rendering.add_generation_prompt
    thinking = tokenizer.thinking_before(prompt_ids, is_new_turn=is_new_turn, is_before_call=is_call)
    if is_held and not rendering.may_think and thinking is not None and thinking.begin is not None:
        return grammar
    if thinking is not None:
        thinking = msgspec.structs.replace(thinking, may_end=not is_held)
    return msgspec.structs.replace(grammar, thinking=thinking)


def _check_hides_prompt(field: str | None) -> None:
    """Check that a request does not ask to see its prompt, which holds another project's system prompt.

    field: the field that asks for the prompt; None: no field does.

    Raises InvalidRequest: when a field asks for the prompt.
    """
    if field is not None:
        raise InvalidRequest(
            f"'{field}' would show the system prompt of an adapter that another project shares with yours. Send a "
            "system message of your own to use it.",
            param=field,
            code="shared_system_prompt",
        )


class Preparation:
    """Prepares the prompts of requests. One per gateway process."""

    def __init__(self, meter: Meter, limiter: Limiter, tokenizing: Tokenizing, *, default_max_tokens: int) -> None:
        self._meter = meter
        self._limiter = limiter
        self._tokenizing = tokenizing
        self._default_max_tokens = default_max_tokens

    async def completion(
        self,
        context: RequestContext,
        route: Route,
        model: Model,
        request: TextRequest,
        row_id: str,
        exposure: Exposure | None = None,
        key_owner: str = "",
    ) -> Prepared:
        """Prepare the completions of one prompt.

        row_id: the id of the completions' row in the ledger.
        exposure: the arm that the request got; None: the request is of no experiment.
        key_owner: the project whose own key the server is asked with; "" is the key of the pool.

        Raises InvalidRequest: when a field cannot be served; the error has the client's name of the field.
        Raises Overloaded: when no more usage can be kept.
        """
        adapter, is_delivered = route.adapter, True
        if route.treatment is not None:
            request, is_delivered = with_treatment(request, route.treatment)
        if adapter is not None:
            asked, request = request, with_defaults(request, adapter.defaults)
            if adapter.is_shared and request.prompt is not asked.prompt:
                _check_hides_prompt(request.names.shows_prompt)
        conversation = request.prompt if isinstance(request.prompt, Conversation) else None
        tools = conversation.tools if conversation is not None else None
        check_task(model.capabilities.task, "text")
        check_features(request, model.capabilities.features)
        prompt = await self._tokenizing.prepared_prompt(context.fair_account, model, request)
        capabilities, sampling = model.capabilities, request.sampling
        has_ids = "token_ids" in capabilities.features
        # A server that renders the conversation itself reads the calls as well.
        must_call = tools is not None and tools.must_call
        is_free = (sampling.grammar is None or must_call) and not request.style.with_special
        may_be_in_channels = is_free and has_ids and model.tokenizer.calls_in_channels
        is_held = has_ids and (sampling.grammar is not None or must_call)
        # A call in channels is a message of its own, which a message of the prompt's that goes on cannot become.
        is_in_channels = (
            may_be_in_channels and conversation is not None and conversation.rendering.add_generation_prompt
        )
        if tools is not None and has_ids and (must_call or not may_be_in_channels):
            form = model.tokenizer.channel_calls if is_in_channels else model.tokenizer.tools
            grammar = call_grammar(form, tools, sampling.grammar, request.names.grammar)
            sampling = msgspec.structs.replace(sampling, grammar=grammar)
        if sampling.grammar is not None and conversation is not None and has_ids:
            grammar, rendering = sampling.grammar, conversation.rendering
            grammar = after_thinking(
                grammar,
                model.tokenizer,
                prompt.token_ids,
                rendering,
                is_held=is_held,
                is_in_channels=is_in_channels,
            )
            sampling = msgspec.structs.replace(sampling, grammar=grammar)
        check_ids("stop_token_ids", sampling.stop_token_ids, capabilities.vocab_size)
        check_ids("allowed_token_ids", sampling.allowed_token_ids, capabilities.vocab_size)
        check_ids("logit_bias", sampling.logit_bias, capabilities.vocab_size)
        check_at_most(request.names.n, request.n, capabilities.max_choices)
        sizes = (await self._limiter.rules(context.principal, route.model)).sizes
        # An upper bound of a prompt's tokens may be several times their number: that server knows what fits.
        context_length = capabilities.max_model_len + (0 if has_ids else prompt.num_tokens)
        max_tokens = completion_bound(context_length, sizes, prompt.num_tokens, request, self._default_max_tokens)
        tier = request.service_tier if context.batch is None else BATCH_TIER
        tag = self._tag(context, route, tier, exposure, is_delivered=is_delivered)
        if key_owner:
            tag = msgspec.structs.replace(tag, own_key=True)
        predicted = await self._tokenizing.predicted_tokens(context.fair_account, model, request.prediction, max_tokens)
        generate = GenerateRequest(
            request_id=row_id,
            prompt_token_ids=prompt.token_ids,
            sampling=msgspec.structs.replace(sampling, max_tokens=max_tokens),
            tenant=context.fair_account,
            adapter=adapter.key if adapter else "",
            n=request.n,
            predicted_token_ids=predicted,
            weight=TIER_WEIGHTS.get(tier, 1.0),
            batch=_terms(context),
        )
        is_cut = request.max_prompt_tokens is not None
        text = request.prompt if isinstance(request.prompt, str) and not is_cut else None
        bound = None if has_ids else prompt.num_tokens
        generation = Generation(
            generate,
            request.stop,
            tools,
            request.style,
            text,
            conversation,
            bound,
            key_owner,
            context.trace.header,
        )
        is_held_at_once = is_held and sampling.grammar is not None and sampling.grammar.thinking is None
        return Prepared(generation, tag, request.names.grammar, request.names.this_prompt, is_held_at_once)

    async def embedding(
        self,
        context: RequestContext,
        route: Route,
        model: Model,
        request: EmbeddingRequest,
        row_id: str,
        exposure: Exposure | None = None,
    ) -> Prepared:
        """Prepare one text's embedding. A treatment is for completions alone.

        row_id: the id of the text's row in the ledger. exposure: None: the request is of no experiment.

        Raises as `completion`.
        """
        capabilities = model.capabilities
        if "embeddings" not in capabilities.features:
            raise InvalidRequest(
                "This model makes no embeddings.", param=request.names.prompt, code="unsupported_parameter"
            )
        task = capabilities.task
        check_task(task, "embed")
        pooling = request.pooling or task.pooling
        if pooling == "cls" and task.pooling != "cls":
            raise InvalidRequest(
                "'pooling' cannot be 'cls' with this model: it was not made for that.",
                param="pooling",
                code="unsupported_value",
            )
        request = with_prompt(request, task)
        prompt = await self._tokenizing.prepared_prompt(context.fair_account, model, request)
        if prompt.num_tokens > capabilities.max_model_len:
            raise too_long(capabilities.max_model_len, prompt.num_tokens, request.names.this_prompt)
        sizes = (await self._limiter.rules(context.principal, route.model)).sizes
        check_prompt(sizes, prompt.num_tokens, request.names.this_prompt)
        check_dimensions(request.dimensions, capabilities.embedding_size, capabilities.embedding_sizes)
        is_delivered = route.treatment is None
        tier = request.service_tier if context.batch is None else BATCH_TIER
        tag = self._tag(context, route, tier, exposure, is_delivered=is_delivered)
        generate = GenerateRequest(
            request_id=row_id,
            prompt_token_ids=prompt.token_ids,
            sampling=SamplingParams(max_tokens=0),
            tenant=context.fair_account,
            adapter=route.adapter.key if route.adapter else "",
            pooling=pooling,
            is_normalized=task.is_normalized,
            batch=_terms(context),
        )
        return Prepared(Generation(generate, trace=context.trace.header), tag)

    async def ranked(
        self,
        context: RequestContext,
        route: Route,
        model: Model,
        request: RankRequest,
        row_id: str,
        exposure: Exposure | None = None,
    ) -> Prepared:
        """Prepare the score of one document. A treatment is for completions alone.

        row_id: the id of the document's row in the ledger. exposure: None: the request is of no experiment.

        Raises as `completion`.
        """
        check_task(model.capabilities.task, "rerank")
        prompt = await self._tokenizing.pair(context.fair_account, model, request)
        sizes = (await self._limiter.rules(context.principal, route.model)).sizes
        check_prompt(sizes, prompt.num_tokens, request.names.prompt)
        is_delivered = route.treatment is None
        tier = request.service_tier if context.batch is None else BATCH_TIER
        tag = self._tag(context, route, tier, exposure, is_delivered=is_delivered)
        generate = GenerateRequest(
            request_id=row_id,
            prompt_token_ids=prompt.token_ids,
            sampling=SamplingParams(max_tokens=0),
            tenant=context.fair_account,
            adapter=route.adapter.key if route.adapter else "",
            pooling="score",
            num_first_tokens=prompt.num_first_tokens,
            batch=_terms(context),
        )
        return Prepared(Generation(generate, trace=context.trace.header), tag)

    def _tag(
        self,
        context: RequestContext,
        route: Route,
        service_tier: str,
        exposure: Exposure | None,
        *,
        is_delivered: bool,
    ) -> MeterTag:
        """Return the facts that a prompt's usage event states beside its counts.

        is_delivered: True if the prompt got all that the arm of its experiment sets. exposure: None: the request is of
        no experiment.

        Raises Overloaded: when no more usage can be kept.
        """
        if not self._meter.has_room:
            raise Overloaded("The server cannot record usage at the moment. Try again later.", retry_after_s=5.0)
        principal, adapter = context.principal, route.adapter
        tag = MeterTag(
            organization_id=principal.organization_id,
            project_id=principal.project_id,
            api_key_id=principal.api_key_id,
            endpoint=context.endpoint,
            model=route.model,
            adapter_id=adapter.id if adapter else None,
            adapter_version=adapter.ref.version if adapter else None,
            # The digest of a shared adapter is its owner's to know; of a version there is but one.
            adapter_digest=adapter.ref.digest if adapter and not adapter.is_shared else None,
            created_at_ns=0,
            stream=context.stream,
            service_tier=service_tier,
            journal_id=self._meter.journal_id,
            trace_id=context.trace.id or None,
        )
        if exposure is None:
            return tag
        return msgspec.structs.replace(
            tag,
            experiment_id=exposure.experiment_id,
            experiment_version=exposure.version,
            experiment_arm=exposure.arm,
            experiment_epoch=exposure.epoch,
            experiment_delivered=is_delivered,
            unit_digest=exposure.digest,
        )
