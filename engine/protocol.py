"""The messages between gateways and engines: MessagePack structs over ZeroMQ.

ROUTER at the engine, DEALER at each gateway, one frame per message. A conversation, in order:

1. The gateway sends `Hello`; the engine answers `Welcome` (with its limits and the gateway's credits) or `Refused`.
2. `Submit` starts a request; the engine answers with `StepOutputs`, one message per step and gateway, that hold
`Delta`s and, exactly once per request, a `Final`.
3. `Abort` ends a request early; its `Final` still comes, with the exact count.
4. `AckUsage` tells the engine that a `Final` is journaled; until then the engine keeps it and hands it as
`UnackedUsage` to any gateway of the same database that says hello after the first one vanished.
5. `Heartbeat` flows both ways every `HEARTBEAT_INTERVAL_S`; `HEARTBEATS_MISSED` of them missed means dead, or
`HEARTBEATS_MISSED_ALONE` where no other engine or gateway gains by it. `Silence` tells when.

Token ids only: no text crosses this border. Never pickle.

Gateways and engines of two versions that follow each other work together. `PROTOCOL_VERSION` has to be equal on both
sides. `PROTOCOL_MINOR` grows with each addition, and either side tells its own in its first message. An addition is a
field with a default outside of `GenerateRequest`, which a peer that does not know the field passes over, or else it is
sent only to a peer whose minor has it. An unknown field of a `GenerateRequest` would change the answer, so a peer
refuses that request, and no other.

Minor 1: `Hello.minor`, `Welcome.minor`, `Welcome.software`, `Submit.trace`, `Usage.arrived_unix_ns`.
Minor 2: `CallGrammar.marks`, sent only to engines that have it (`minor_of`).
Minor 3: `Grammar.thinking`, sent only to engines that have it.
Minor 4: `CallGrammar.argument_pieces`, `CallableTool.texts`, sent only to engines that have them.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

PROTOCOL_VERSION = 3
PROTOCOL_MINOR = 4
MINOR_OF_MARKS, MINOR_OF_THINKING, MINOR_OF_ARGUMENT_PIECES = 2, 3, 4
HEARTBEAT_INTERVAL_S = 1.0
HEARTBEATS_MISSED = 3
HEARTBEATS_MISSED_ALONE = 10
STEP_BUCKETS_S = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 10.0)
MAX_MESSAGE_BYTES = 64 * 1024 * 1024
MAX_LOGPROBS = 20

DEAD_AFTER_S = HEARTBEAT_INTERVAL_S * HEARTBEATS_MISSED
DEAD_ALONE_AFTER_S = HEARTBEAT_INTERVAL_S * HEARTBEATS_MISSED_ALONE
LATE_AFTER_S = 1.5 * HEARTBEAT_INTERVAL_S
"""The seconds between two looks at a silence that show that the side which looks did not run itself."""

MIN_LOOK_S = 0.01
"""The least seconds between two looks, which a rounded sum of earlier ones may come to need."""

FinishReason = Literal["stop", "length", "abort", "error"]
Pooling = Literal["cls", "last", "mean", "score"]
ErrorCode = Literal["queue_full", "draining", "invalid_request", "adapter_rejected", "internal"]


class Thinking(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The thinking of a model, which its grammar does not hold, in the tokens around it.

    [begin] TOKENS end[0] TOKENS end[1] ...    and from here on the text that the grammar holds
    """

    end: tuple[tuple[int, ...], ...]
    """Runs of token ids that end the thinking, in this order; between two of them any tokens may come."""
    begin: int | None = None
    """The token that begins the thinking as the first of the completion, where any other token means that there is no
    thinking; None: the prompt has begun it."""
    may_end: bool = False
    """True: the completion may end within the thinking, as its grammar asks for nothing after it."""


class ThinkingPlace:
    """The place of one completion in its thinking by the tokens so far, which engine and gateway read alike."""

    def __init__(self, thinking: Thinking) -> None:
        """Stand at the beginning of a completion."""
        self.begin = thinking.begin
        """The token that would begin the thinking, as long as it may still begin; None: it cannot."""
        self.is_within = thinking.begin is None
        """True while tokens belong to the thinking, up to the last one of its end."""
        self._ends = list(thinking.end)
        self._recent: tuple[int, ...] = ()

    def push(self, token_id: int) -> bool:
        """Go on by a token; return whether it belongs to the thinking, its beginning and end included."""
        if not self.is_within:
            self.is_within, self.begin = token_id == self.begin, None
            return self.is_within
        self._recent = (*self._recent, token_id)[-len(self._ends[0]) :]
        if self._recent == self._ends[0]:
            self._recent = ()
            del self._ends[0]
            self.is_within = bool(self._ends)
        return True


class Grammar(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A grammar that the completion's text must match, enforced token by token."""

    kind: Literal["json_schema", "json_object", "regex", "choice", "lark", "tool_calls"]
    source: str = ""
    """The grammar's text, by its kind.
    The schema as JSON text for `json_schema`; nothing for `json_object` (any JSON object); the expression for `regex`;
    a JSON list of strings for `choice`; the grammar for `lark` (llguidance's dialect, EBNF included); a `CallGrammar`
    as JSON for `tool_calls`.
    """
    thinking: Thinking | None = None
    """The thinking that comes before the text, or may come; None: the completion begins with the text."""


class CallableTool(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A tool that a completion may call."""

    head: str
    """The text of a call up to its arguments, the tool's name included."""
    parameters: dict[str, Any]
    """The JSON schema of the arguments, which are an object."""
    label: str
    """The name of the arguments' schema in refusals."""
    input_lark: str = ""
    """The grammar of TEXT, before JSON escapes it, where the arguments are `{"input": TEXT}`; empty for all others."""
    texts: list[str] = []
    """The names of the arguments whose values are text instead of JSON; empty without `argument_pieces`."""


class ArgumentPieces(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The letters around each argument, where a model writes arguments one by one.

        ARGUMENTS = (before NAME after VALUE end)*        in the order of the schema's properties

    VALUE is JSON, or text up to the first `end`.
    """

    before: str
    after: str
    end: str


class CallGrammar(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Tool calls, in the letters in which the model writes them.

        trigger opening call (separator call)* closing        call = head ARGUMENTS end

    The fields below are the pieces; `head` is a tool's own.
    """

    tools: list[CallableTool]
    """The tools that may be called."""
    end: str
    """The text after a call's arguments."""
    trigger: str | int = ""
    """The text that begins the calls, or the id of a special token that does; "": nothing does."""
    opening: str = ""
    """The text between the trigger and the first call."""
    separator: str = ""
    """The text between two calls."""
    closing: str = ""
    """The text after the last call."""
    marks: dict[str, int] = {}
    """The ids of special tokens within the other pieces, by the tokens' letters."""
    argument_pieces: ArgumentPieces | None = None
    """The letters around each argument; None: ARGUMENTS are a JSON object."""
    max_calls: int = 1
    """The most calls of one completion."""
    must_call: bool = False
    """True: the completion is calls alone. False: it may be text instead, of text_schema if there is one; without a
    text_schema, text may also stand before the calls if the trigger is not empty."""
    text_schema: dict[str, Any] | None = None
    """The JSON schema that text instead of calls must fit; None: any text."""
    text_label: str = ""
    """The name of text_schema in refusals."""


class _LaterFields(msgspec.Struct, frozen=True):
    """The fields of a `CallGrammar` that engines of earlier minors refuse."""

    marks: dict[str, int] = {}
    argument_pieces: ArgumentPieces | None = None


class SamplingParams(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The way in which the next token is chosen. The gateway has validated every bound stated here."""

    max_tokens: int
    """The most tokens of the completion, at least 1; 0 where only the prompt is wanted (num_prompt_logprobs,
    pooling)."""
    temperature: float = 1.0
    """The divisor of the logits, at least 0; 0 always takes the most likely token."""
    top_p: float = 1.0
    """In [0, 1]: the least probability that the likeliest tokens to choose from have together; 0 takes the most likely
    token, 1 is off."""
    top_k: int = 0
    """The number of likeliest tokens to choose from; 0 or -1 is off."""
    min_p: float = 0.0
    """In [0, 1]: the least probability of a token, as a part of the likeliest token's; 0 is off."""
    seed: int | None = None
    """The seed of the draws, with which the same prompt gives the same tokens; None draws from the engine's own
    entropy."""
    min_tokens: int = 0
    """The number of tokens, at most max_tokens, before which no end of sequence and no stop id can be chosen."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end the sequence. The stopping token is counted, but is no part of the completion (`Delta`)."""
    ignore_eos: bool = False
    """True: the model's own end of sequence does not end the completion."""
    presence_penalty: float = 0.0
    """In [-2, 2]: subtracted from the logit of each token that the completion has."""
    frequency_penalty: float = 0.0
    """In [-2, 2]: subtracted from a token's logit once for each time that the completion has it."""
    repetition_penalty: float = 1.0
    """Above 0: makes tokens of the prompt and of the completion less likely; below 1, more likely."""
    logit_bias: dict[int, float] = {}
    """In [-100, 100] by token id: added to the logits."""
    allowed_token_ids: tuple[int, ...] = ()
    """The only tokens that can be chosen; () allows all. Not beside a grammar."""
    num_logprobs: int | None = None
    """The number of most likely tokens that come with each token of the completion, at most MAX_LOGPROBS; None asks for
    no log-probabilities. They are those of the unmodified distribution."""
    num_prompt_logprobs: int | None = None
    """The number of most likely tokens that come with each token of the prompt, as for num_logprobs."""
    grammar: Grammar | None = None


class BatchTerms(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The terms of a request in the batch band: it gets the part of each step that interactive requests leave."""

    slack_s: float | None = None
    """Seconds that the work of which the request is a part can still rest and meet its deadline: the time to the
    deadline less what the rest of the work takes. In its last hour the request's weight in the band grows. None: the
    work has no deadline."""


class GenerateRequest(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One prompt, and `n` completions of it to generate; or, with pooling, its embedding and no completion.

    Choice i of a seeded request draws with seed + i.
    """

    request_id: str
    """The id of the request. A later attempt by another gateway of the same database aborts an earlier one that still
    runs, and starts once that has ended; any other request with the id of a running one is refused."""
    prompt_token_ids: list[int]
    sampling: SamplingParams
    tenant: str
    """An opaque id, the unit of fairness and of cache isolation."""
    adapter: str = ""
    """The content key of the adapter (`adapters.ref`); "" for the base."""
    n: int = 1
    """The number of completions."""
    pooling: Pooling | None = None
    """The pooling of the final hidden states: the first token's, the last one's, or the mean of all; score: what the
    head of a model that ranks makes of them, one number."""
    is_normalized: bool = True
    """True: an embedding is of unit length. A score is as the head gives it."""
    num_first_tokens: int = 0
    """For a pair of texts whose second one is a segment of its own (BERT), the tokens of the first; 0: one segment."""
    weight: float = 1.0
    """Above 0: the share of service that the tenant is due relative to others while the engine is saturated."""
    attempt: int = 0
    """The number of the attempt at the request, by which usage tells several attempts apart."""
    meter: bytes = b""
    """Opaque bytes that come back with the usage, so that any gateway can bill a request it never saw."""
    predicted_token_ids: list[int] = []
    """The completion that the client expects.

    An engine that speculates takes its drafts from it; it has no effect on the text.
    """
    batch: BatchTerms | None = None
    """The terms of a request in the batch band; None for an interactive one."""


def minor_of(request: GenerateRequest) -> int:
    """Return the least minor of an engine that understands a request's grammar.

    Fields of the request itself need no minor: an engine that does not know one refuses that request in words.
    """
    grammar = request.sampling.grammar
    if grammar is None:
        return 0
    minor = 0 if grammar.thinking is None else MINOR_OF_THINKING
    if grammar.kind != "tool_calls" or not ('"marks"' in grammar.source or '"argument_pieces"' in grammar.source):
        return minor
    later = _decode_later_fields(grammar.source)  # a schema may have properties of these names
    if later.argument_pieces is not None:
        return MINOR_OF_ARGUMENT_PIECES
    return max(minor, MINOR_OF_MARKS if later.marks else 0)


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Exact counts of one request, over all its choices."""

    prompt_tokens: int
    """Prompt tokens, counted once."""
    completion_tokens: int
    """Completion tokens, which are billed."""
    cached_tokens: int = 0
    """Prompt tokens that were found in the cache."""
    discarded_tokens: int = 0
    """Tokens that ran past a stop, and are not billed."""
    queue_ms: float = 0.0
    """Milliseconds from the request's arrival until the engine began to compute it."""
    prefill_ms: float = 0.0
    """Milliseconds from the beginning of the computation to the first token."""
    decode_ms: float = 0.0
    """Milliseconds from the first token to the end."""
    adapter_wait_ms: float = 0.0
    """The part of queue_ms spent waiting for the adapter alone."""
    adapter_load_bytes: int = 0
    """Bytes of the adapter if it was loaded for this request, else 0."""
    draft_tokens: int = 0
    """Tokens that speculation proposed."""
    accepted_draft_tokens: int = 0
    """Proposed tokens that became part of the completion."""
    arrived_unix_ns: int = 0
    """When the engine got the request, in Unix nanoseconds by the clock of its machine; 0 of a request without a
    `Submit.trace`."""


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Natural-log probabilities at one position, for the chosen token and the `num_logprobs` most likely ones."""

    logprob: float
    top_token_ids: list[int]
    top_logprobs: list[float]
    """The log-probability of each of `top_token_ids`, the most likely first."""


class Delta(msgspec.Struct, frozen=True, omit_defaults=True):
    """New tokens of one choice."""

    request_id: str
    token_ids: list[int]
    num_completion_tokens: int
    """The number of the choice's completion tokens so far, those of this delta included."""
    index: int = 0
    """The index of the choice."""
    logprobs: list[TokenLogprobs] | None = None
    """The log-probabilities of each token id, if they were asked for."""
    finish_reason: FinishReason | None = None
    """The reason of the choice's end; None where it goes on."""
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    """The log-probabilities of each prompt token, None for the first one: once, with choice 0's first delta, if asked
    for."""
    stop_token_id: int | None = None
    """The counted token that ended the choice without being part of the completion, an end of sequence or a stop id;
    None where there is none."""


class EngineError(msgspec.Struct, frozen=True):
    """The reason why a request failed."""

    code: ErrorCode
    """The code that a gateway maps to a status.

    queue_full and draining may be retried (retry_after_s); invalid_request and adapter_rejected may not; internal is a
    fault of the engine.
    """
    message: str
    """The reason in words, for the client."""
    retry_after_s: float | None = None
    """Seconds after which the request may be sent again; None: not known."""
    label: str = ""
    """The client's name of the refused part of the request, where it has one."""


class Final(msgspec.Struct, frozen=True, omit_defaults=True):
    """The end of one request: sent exactly once, after the last delta of all its choices."""

    request_id: str
    finish_reason: FinishReason
    """The finish reason of the choice that ended last."""
    usage: Usage
    error: EngineError | None = None
    embedding: bytes | None = None
    """The embedding, of unit length if the request has `is_normalized`, or the score of a model that ranks; fp32,
    little-endian. None without pooling."""


class UsageRecord(msgspec.Struct, frozen=True):
    """A final that no gateway has acknowledged yet."""

    request_id: str
    attempt: int
    finish_reason: FinishReason
    usage: Usage
    meter: bytes
    """The meter of the request."""


class EngineLimits(msgspec.Struct, frozen=True):
    """The capacity of an engine."""

    max_model_len: int
    """The most prompt and completion tokens of one sequence."""
    max_num_seqs: int
    """The most choices that run at once."""
    max_waiting: int
    """The most choices that may wait, beside those that run."""
    block_size: int
    """The tokens of one block of the KV cache."""
    num_blocks: int
    """The blocks of the KV cache."""


class TenantStats(msgspec.Struct, frozen=True, array_like=True):
    """The choices of one tenant in the engine."""

    num_running: int
    num_waiting: int
    service: float
    """The tenant's virtual counter of the service that it got: token units divided by the weights of its requests; that
    of its interactive requests while it has any, else that of the batch band."""


class EngineStats(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of an engine at a moment, sent with every heartbeat.

    Counters (`*_total`) count since the engine started.
    """

    num_running: int = 0
    """Interactive choices that are being computed."""
    num_waiting: int = 0
    """Interactive choices that wait to be computed."""
    num_batch_running: int = 0
    """Choices of the batch band that hold memory, also while they sit out in favour of interactive ones."""
    num_batch_waiting: int = 0
    """Choices of the batch band that wait to be computed."""
    num_batch_wanted: int = 0
    """Choices of the batch band that the engine wants to hold, running and waiting, so as never to run out of them
    between two heartbeats."""
    kv_blocks_used: int = 0
    """Blocks of the KV cache that sequences hold."""
    kv_blocks_total: int = 0
    preemptions_total: int = 0
    """Times that a choice gave its memory up to others and had to wait again."""
    prompt_tokens_total: int = 0
    """Prompt tokens computed. Tokens that are computed again after a preemption count again."""
    generation_tokens_total: int = 0
    """Completion tokens generated."""
    batch_prompt_tokens_total: int = 0
    """Tokens of `prompt_tokens_total` that were computed for the batch band."""
    batch_generation_tokens_total: int = 0
    """Tokens of `generation_tokens_total` that were generated for the batch band."""
    batch_preemptions_total: int = 0
    """Times that a choice of the batch band gave its memory or its adapter's slot up to others."""
    batch_recomputed_tokens_total: int = 0
    """Tokens of the batch band that were computed again, since their choice had given its memory up."""
    step_seconds_total: float = 0.0
    """Seconds that all steps took together."""
    step_counts: list[int] = []
    """Steps that took at most each of STEP_BUCKETS_S and more than the one before it; the last number counts longer
    steps."""
    unacked_usage: int = 0
    """Final counts of requests that no gateway has on disk yet."""
    dropped_usage_total: int = 0
    """Final counts of requests for which the engine had no room."""
    ended_prompt_tokens_total: int = 0
    """Prompt tokens of requests that have ended, as their final counts say. In the end the ledgers contain as many
    tokens of this engine."""
    ended_completion_tokens_total: int = 0
    """Completion tokens of requests that have ended, as their final counts say, discarded tokens included."""
    adapter_loads_total: int = 0
    """Adapters loaded onto the device."""
    adapter_load_bytes_total: int = 0
    """Bytes of adapters loaded onto the device."""
    adapter_load_seconds_total: float = 0.0
    """Seconds spent loading adapters onto the device, failed loads included."""
    adapter_evictions_total: int = 0
    """Adapters removed from the device."""
    adapter_slots_used: int = 0
    """Slots of the device that hold an adapter."""
    adapter_slots_total: int = 0
    """Slots for adapters on the device."""
    adapter_bytes_used: int = 0
    """Bytes of adapters on the device."""
    adapter_bytes_total: int = 0
    """Bytes for adapters on the device."""
    adapters_waiting: int = 0
    """Adapters that were asked for and wait for a slot, or are being loaded."""
    adapter_host_bytes: int = 0
    """Bytes of adapters in the host's memory."""
    adapter_host_hits_total: int = 0
    """Loads of an adapter that was in the host's memory."""
    grammars_compiling: int = 0
    """Requests that wait until their grammar is compiled."""
    grammars_compiled_total: int = 0
    """Requests whose grammar was compiled."""
    grammars_refused_total: int = 0
    """Requests whose grammar was refused with a reason."""
    grammar_wait_seconds_total: float = 0.0
    """Seconds that requests waited for their grammar, compiled or refused."""
    prefix_query_tokens_total: int = 0
    """Prompt tokens looked up in the prefix cache."""
    prefix_hit_tokens_total: int = 0
    """Prompt tokens found in the prefix cache."""
    draft_tokens_total: int = 0
    """Tokens that speculation proposed."""
    accepted_draft_tokens_total: int = 0
    """Proposed tokens that became part of a completion."""
    tenants: dict[str, TenantStats] = {}
    """The busiest tenants, by opaque id."""
    resident_adapters: list[str] = []
    """Content keys of the adapters on the device."""
    waiting_adapters: list[str] = []
    """Content keys of adapters that are waited for, up to a bound: those being loaded, then the next in line."""


# gateway -> engine


class Service(msgspec.Struct, frozen=True, array_like=True):
    """The service that a tenant's requests got: amounts that are each divided by the request's weight."""

    prompt_tokens: float = 0.0
    """Prompt tokens that were computed, and not found in the cache."""
    completion_tokens: float = 0.0
    """Generated tokens, those that ran past a stop included."""
    adapter_bytes: float = 0.0
    """Bytes of the adapters that were loaded for the tenant's requests."""


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """The first message. Gateways that share a database_id may take over each other's unacknowledged usage."""

    version: int
    """The gateway's `PROTOCOL_VERSION`."""
    gateway_id: str
    database_id: str
    """The id of the gateway's database; "" for an agent, whose requests are probes: their usage is neither kept nor
    counted."""
    minor: int = 0
    """The gateway's `PROTOCOL_MINOR`."""


class Submit(msgspec.Struct, frozen=True, tag="submit", omit_defaults=True):
    """The message that starts a request."""

    request: GenerateRequest
    trace: str = ""
    """The span that the request belongs to, as W3C's `traceparent` has it: the usage then tells when it arrived."""


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """The message that stops a request now or, with an index, one choice of the request."""

    request_id: str
    num_kept_tokens: int | None = None
    """The number of the choice's completion tokens that count (a stop string was found in the text after them), the
    rest being discarded; None counts all."""
    index: int | None = None
    """The index of the choice to stop; None stops the whole request."""


class AckUsage(msgspec.Struct, frozen=True, tag="ack"):
    """Usage records, as (request_id, attempt), that are durable on the gateway's side."""

    keys: list[tuple[str, int]]


class LoadAdapter(msgspec.Struct, frozen=True, tag="load"):
    """The message that makes an adapter resident."""

    digest: str
    """The adapter's content key, here and in every message about adapters."""
    pin: bool = True
    """True: keep the adapter until it is unloaded, as far as the engine's pins go; else it may be evicted like any
    other."""
    probe: bool = False
    """True: try the adapter as well, and answer when that is done, with the outcome."""


class UnloadAdapter(msgspec.Struct, frozen=True, tag="unload"):
    """The message that unpins an adapter, or unloads it."""

    digest: str
    evict: bool = True
    """True: the adapter takes no new users and leaves with its last one; False: it may only be evicted, like any other.
    """


class Goodbye(msgspec.Struct, frozen=True, tag="goodbye"):
    """The message that the gateway leaves; its running requests are aborted."""


# engine -> gateway


class Welcome(msgspec.Struct, frozen=True, tag="welcome"):
    """The engine's answer to a hello that it accepts."""

    version: int
    """The engine's `PROTOCOL_VERSION`."""
    engine_id: str
    model_digest: str
    limits: EngineLimits
    credits: int
    """The most requests that this gateway may have in flight."""
    fingerprint: str = ""
    """The digest of everything that a seeded answer depends on beside its request: weights, software, kind of device,
    format."""
    device: str = ""
    """The device that the engine computes on, for people."""
    dtype: str = ""
    """The number format that the engine computes in, for people."""
    minor: int = 0
    """The engine's `PROTOCOL_MINOR`."""
    software: str = ""
    """The engine's version of Lorikeet; "" of an engine of minor 0."""


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """An engine's answer to a `Hello` that it does not accept."""

    reason: str


class StepOutputs(msgspec.Struct, frozen=True, tag="step", omit_defaults=True):
    """The output of one step for all requests of a gateway."""

    deltas: list[Delta] = []
    finals: list[Final] = []


class AdapterProbe(msgspec.Struct, frozen=True):
    """The result of trying an adapter: the same short generation with it and without it."""

    load_seconds: float
    """Seconds until the adapter was resident; 0 if it was already."""
    num_bytes: int
    """Bytes that the adapter takes on the device."""
    num_tokens: int
    """Tokens that the probe computed with the adapter."""
    max_difference: float
    """The largest difference between the two log-probabilities of one token, above 0."""


class AdapterStatus(msgspec.Struct, frozen=True, tag="adapter", omit_defaults=True):
    """The answer to LoadAdapter and UnloadAdapter, sent to every gateway."""

    digest: str
    resident: bool
    """True if the adapter is on the device."""
    error: str | None = None
    """The reason why a load or a probe failed."""
    code: ErrorCode | None = None
    """The error's code, as in `EngineError`."""
    probed: bool = False
    """True: the status answers a LoadAdapter with probe, and has either an error or a probe."""
    probe: AdapterProbe | None = None
    """The outcome of the probe; None without one."""


class UnackedUsage(msgspec.Struct, frozen=True, tag="unacked"):
    """The usage records that a gateway has not acknowledged yet, sent when it connects."""

    records: list[UsageRecord]


class Heartbeat(msgspec.Struct, frozen=True, tag="heartbeat", omit_defaults=True):
    """A sign of life, in both directions."""

    sequence: int
    """The number of the heartbeat, counted from 0 in each direction."""
    stats: EngineStats | None = None
    """The engine's statistics; None from a gateway."""
    batch_credit: int = 0
    """From the engine: the number of choices of the batch band that this gateway may submit until the next heartbeat.

    An engine that knows no such band sends none.
    """
    elsewhere: dict[str, Service] = {}
    """From the gateway: the service that its own requests got on the pool's other replicas since its last heartbeat, by
    tenant."""


class Silence:
    """The seconds since a peer's last message, as far as this side ran itself, so that it could have read one.

    This side looks at the silence in every heartbeat interval. A look that comes late shows that this side was stopped,
    or is on a busy machine: the peer's messages may wait to be read.
    """

    def __init__(self, now_s: float) -> None:
        """Begin with a message at this time of a monotonic clock."""
        self.note_message(now_s)

    def note_message(self, now_s: float) -> None:
        """End the silence: a message has come."""
        self._counted_s, self._looked_s = 0.0, now_s

    def is_over(self, limit_s: float, now_s: float) -> bool:
        """Look at the silence, and tell whether it has reached a limit.

        A late look adds no more than `LATE_AFTER_S`, and returns False: the next look decides. On a machine where every
        look is late, the limit is twice as long.
        """
        passed_s = now_s - self._looked_s
        self._looked_s = now_s
        self._counted_s += min(passed_s, LATE_AFTER_S)
        is_late = passed_s >= LATE_AFTER_S
        return self._counted_s >= (2 * limit_s if is_late else limit_s)

    def next_look_s(self, limit_s: float) -> float:
        """Return the seconds until the next look is due.

        The last look before the limit is due exactly there. After a late one there is time to read messages.
        """
        left_s = limit_s - self._counted_s
        due_s = max(left_s, MIN_LOOK_S) if left_s > 0 else HEARTBEAT_INTERVAL_S / 2
        return min(due_s, HEARTBEAT_INTERVAL_S)


GatewayMessage = Hello | Submit | Abort | AckUsage | LoadAdapter | UnloadAdapter | Heartbeat | Goodbye
EngineMessage = Welcome | Refused | StepOutputs | AdapterStatus | UnackedUsage | Heartbeat

encode = msgspec.msgpack.Encoder().encode
decode_from_gateway = msgspec.msgpack.Decoder(GatewayMessage).decode
decode_from_engine = msgspec.msgpack.Decoder(EngineMessage).decode
_decode_later_fields = msgspec.json.Decoder(_LaterFields).decode


class _NamedRequest(msgspec.Struct):
    request_id: str


class _NamedSubmit(msgspec.Struct, tag="submit"):
    request: _NamedRequest


_name_decoder = msgspec.msgpack.Decoder(_NamedSubmit)


def submitted_id(frame: bytes) -> str | None:
    """Return the id of the request in a `Submit` that does not decode as a whole; None of any other frame."""
    try:
        return _name_decoder.decode(frame).request.request_id
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def protocol_text() -> str:
    """Return the protocol of this code in words, such as `3.1`."""
    return f"{PROTOCOL_VERSION}.{PROTOCOL_MINOR}"
