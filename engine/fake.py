"""A real, tiny engine without a model: the whole protocol over a real socket, deterministic answers, no torch.

It serves the gateway's tests and benchmarks. Choice i repeats the prompt's tokens from the i-th on; an adapter rotates
them by a number taken from its digest, so that an answer tells which adapter gave it. Grammars are not enforced, but
one whose source holds `UNSUPPORTED_WORD` is refused as an engine refuses what it cannot enforce. Whole blocks of a
prompt that the same tenant and adapter sent before count as cached. Each token of a prediction counts as a draft, those
at the positions where choice 0 has the same token as accepted. A probe refuses an adapter that rotates by nothing,
as one does whose digest begins with eight zeros.
"""

from __future__ import annotations

import argparse
import math
import signal
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from typing import BinaryIO

import msgspec

from engine.config import load_model_config, model_digest
from engine.mailbox import Drain, Drained, Mailbox
from engine.protocol import (
    Abort,
    AdapterProbe,
    AdapterStatus,
    CallGrammar,
    Delta,
    EngineError,
    EngineLimits,
    EngineStats,
    Final,
    FinishReason,
    GenerateRequest,
    Grammar,
    LoadAdapter,
    SamplingParams,
    StepOutputs,
    TenantStats,
    TokenLogprobs,
    UnloadAdapter,
    Usage,
)
from engine.server import EngineServer

BLOCK_SIZE = 16
BATCH_WANTED = 32
"""The choices of the batch band that the engine wants to hold after each heartbeat."""
MAX_SEEN_PREFIXES = 4096
UNSUPPORTED_WORD = "unsupported"
PROBE_TOKENS = 8
PROBE_PROMPT_TOKENS = 10007  # a prime, so that few rotations are none


def fake_token(request: GenerateRequest, position: int, index: int = 0) -> int:
    """Return the completion token that the fake engine makes at a position of choice `index`, counted from 0."""
    prompt = request.prompt_token_ids
    return prompt[(position + index + _rotation_of(request.adapter)) % len(prompt)]


def fake_logprobs(token_id: int, num_top: int, vocab_size: int) -> TokenLogprobs:
    """Return the log-probability of a token, which is higher the smaller the token's id modulo 10 is.

    The most likely tokens are num_top ids from the token's own on, modulo vocab_size, each less likely than the last.
    """
    logprob = -(1 + token_id % 10) / 10
    top = [(token_id + rank) % vocab_size for rank in range(num_top)]
    return TokenLogprobs(logprob, top, [logprob - rank / 10 for rank in range(num_top)])


def fake_embedding(request: GenerateRequest, size: int) -> bytes:
    """Return a vector of unit length that counts the prompt's ids modulo size, rotated by a number of the adapter.

    With pooling `last` only the last id counts. A score is one number instead: how often the last id is repeated at the
    prompt's end, and 0 to 3 quarters by the adapter.
    """
    if request.pooling == "score":
        last = [*takewhile(request.prompt_token_ids[-1].__eq__, reversed(request.prompt_token_ids))]
        return struct.pack("<f", len(last) - 1 + _rotation_of(request.adapter) % 4 / 4)
    token_ids = request.prompt_token_ids if request.pooling == "mean" else request.prompt_token_ids[-1:]
    counts = [0] * size
    for token_id in token_ids:
        counts[(token_id + _rotation_of(request.adapter)) % size] += 1
    norm = math.hypot(*counts)
    return struct.pack(f"<{size}f", *(count / norm for count in counts))


def _num_predicted(request: GenerateRequest, num_tokens: int) -> int:
    """Return how many of the prediction's first num_tokens tokens choice 0 has as well."""
    predicted = request.predicted_token_ids[:num_tokens]
    return sum(fake_token(request, position) == token for position, token in enumerate(predicted))


def _rotation_of(adapter: str) -> int:
    return int(adapter[:8], 16) if adapter else 0


def _label(grammar: Grammar) -> str:
    """Return the name of the grammar's tool that a fake engine refuses; "" where there is none."""
    if grammar.kind != "tool_calls":
        return ""
    tools = msgspec.json.decode(grammar.source, type=CallGrammar).tools
    return next((tool.label for tool in tools if UNSUPPORTED_WORD in f"{tool.parameters}{tool.input_lark}"), "")


class _Running(msgspec.Struct):
    """A request that runs."""

    request: GenerateRequest
    started_s: float
    """The time at which the request was begun, by the loop's clock."""
    num_cached_tokens: int
    num_sent: list[int]
    """The number of tokens of each choice that were sent."""
    num_kept: dict[int, int] = msgspec.field(default_factory=dict)
    """The number of tokens that count, by the index of each choice that has ended."""

    @property
    def num_running(self) -> int:
        return len(self.num_sent) - len(self.num_kept)


TokenOf = Callable[[GenerateRequest, int, int], int]
"""A function that returns the completion token at a position of a choice."""


class FakeCore:
    """A core that makes one token for every running choice each step; steps last 1 / tokens_per_s seconds.

    produced: an unbuffered file that gets a line with the request's id for each token, before anybody sees it.
    token_of: returns the tokens of answers.
    end_id: the token that ends an answer, if any.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        tokens_per_s: float,
        *,
        vocab_size: int = 512,
        hidden_size: int = 32,
        produced: BinaryIO | None = None,
        token_of: TokenOf = fake_token,
        end_id: int | None = None,
    ) -> None:
        self._mailbox = mailbox
        self._token_of = token_of
        self._end_id = end_id
        self._produced = produced
        self._step_s = 1 / tokens_per_s if tokens_per_s else 0.0
        self._vocab_size = vocab_size
        self._hidden_size = hidden_size
        self._running: dict[str, _Running] = {}
        self._resident: set[str] = set()
        self._seen: dict[int, None] = {}  # hashes of prefixes, oldest first
        self._num_tokens = self._num_prompt_tokens = self._num_cached_tokens = self._num_loads = 0
        self._draining = False

    def run(self) -> None:
        """Process commands and make steps until the engine is drained, then post `Drained`."""
        self._mailbox.post(self._stats())  # how much batch work is wanted, before any has come
        while not (self._draining and not self._running):
            commands = self._mailbox.take_commands(0.0 if self._running else 0.5)
            for command in commands:
                self._obey(command)
            if commands and not self._running:
                self._mailbox.post(self._stats())  # a request that was aborted runs no more
            if self._running:
                time.sleep(self._step_s)
                outputs = self._step()
                self._note(outputs)
                self._mailbox.post(outputs)
                self._mailbox.post(self._stats())
        self._mailbox.post(Drained())

    def _obey(self, command: object) -> None:
        match command:
            case GenerateRequest():
                self._add(command)
            case Abort(request_id, num_kept, index):
                self._abort(request_id, num_kept, index)
            case LoadAdapter(digest, probe=probe):
                self._load_adapter(digest)
                self._mailbox.post(self._probe(digest) if probe else AdapterStatus(digest, True))
            case UnloadAdapter(digest, evict):
                if evict:
                    self._resident.discard(digest)
                self._mailbox.post(AdapterStatus(digest, digest in self._resident))
            case Drain():
                self._draining = True

    def _add(self, request: GenerateRequest) -> None:
        grammar = request.sampling.grammar
        if grammar is not None and UNSUPPORTED_WORD in grammar.source:
            reason = f"the keyword '{UNSUPPORTED_WORD}' cannot be enforced"
            error = EngineError("invalid_request", reason, label=_label(grammar))
            final = Final(request.request_id, "error", Usage(prompt_tokens=0, completion_tokens=0), error)
            self._mailbox.post(StepOutputs(finals=[final]))
            return
        num_cached_tokens = self._look_up(request)
        self._num_prompt_tokens += len(request.prompt_token_ids)
        self._num_cached_tokens += num_cached_tokens
        if request.adapter:
            self._load_adapter(request.adapter)
        self._running[request.request_id] = _Running(request, time.monotonic(), num_cached_tokens, [0] * request.n)

    def _load_adapter(self, digest: str) -> None:
        self._num_loads += digest not in self._resident
        self._resident.add(digest)

    def _probe(self, key: str) -> AdapterStatus:
        """Return the result of a probe: the fake model's answers with the adapter beside those without it."""
        prompt = [index * index % self._vocab_size for index in range(PROBE_PROMPT_TOKENS)]
        answers = []
        for adapter in (key, ""):
            request = GenerateRequest("probe", prompt, SamplingParams(PROBE_TOKENS), tenant="", adapter=adapter)
            tokens = [fake_token(request, position) for position in range(PROBE_TOKENS)]
            answers.append([fake_logprobs(token, 0, self._vocab_size).logprob for token in tokens])
        differences = [abs(adapted - plain) for adapted, plain in zip(*answers, strict=True)]
        if not any(differences):
            why = "it changes nothing: the model answers with it as it does without it"
            return AdapterStatus(key, True, why, "adapter_rejected", probed=True)
        num_tokens = len(prompt) + PROBE_TOKENS
        return AdapterStatus(key, True, probed=True, probe=AdapterProbe(0.0, 0, num_tokens, max(differences)))

    def _look_up(self, request: GenerateRequest) -> int:
        """Return how many of the prompt's tokens are cached; all but the last one may be.

        The prompt's blocks are cached from now on.
        """
        prompt, num_cached = request.prompt_token_ids, 0
        key = hash((request.tenant, request.adapter))
        for end in range(BLOCK_SIZE, len(prompt), BLOCK_SIZE):
            key = hash((key, *prompt[end - BLOCK_SIZE : end]))  # the hash is of all tokens before it as well
            if key in self._seen:
                num_cached = end
            self._seen[key] = None
        while len(self._seen) > MAX_SEEN_PREFIXES:
            del self._seen[next(iter(self._seen))]
        return num_cached

    def _abort(self, request_id: str, num_kept: int | None, index: int | None) -> None:
        running = self._running.get(request_id)
        if running is None:
            return
        for choice in range(len(running.num_sent)) if index is None else (index,):
            sent = running.num_sent[choice]
            running.num_kept.setdefault(choice, sent if num_kept is None else min(num_kept, sent))
        if not running.num_running:
            self._mailbox.post(StepOutputs(finals=[self._end(running, "abort" if num_kept is None else "stop")]))

    def _step(self) -> StepOutputs:
        outputs = StepOutputs([], [])
        for running in list(self._running.values()):
            if running.request.pooling is not None:
                outputs.finals.append(self._end(running, "stop"))
                continue
            for index in range(len(running.num_sent)):
                if index not in running.num_kept:
                    outputs.deltas.append(self._advance(running, index))
            if not running.num_running:
                outputs.finals.append(self._end(running, outputs.deltas[-1].finish_reason or "stop"))
        return outputs

    def _note(self, outputs: StepOutputs) -> None:
        """Write the request id of each choice that a step took further to the file of produced tokens, if any."""
        if self._produced is not None:
            self._produced.write("".join(f"{delta.request_id}\n" for delta in outputs.deltas).encode())

    def _advance(self, running: _Running, index: int) -> Delta:
        """Take one choice one token further, and return its delta."""
        request, position = running.request, running.num_sent[index]
        sampling = request.sampling
        prompt_logprobs = self._prompt_logprobs(request) if index == position == 0 else None
        token_ids: list[int] = []
        stop_token_id: int | None = None
        reason: FinishReason | None = None
        if position < sampling.max_tokens:
            token = self._token_of(request, position, index)
            position += 1
            self._num_tokens += 1
            is_end = token in sampling.stop_token_ids or (token == self._end_id and not sampling.ignore_eos)
            if is_end and position > sampling.min_tokens:
                reason, stop_token_id = "stop", token
            else:
                token_ids.append(token)
        if reason is None and position == sampling.max_tokens:
            reason = "length"
        running.num_sent[index] = position
        if reason is not None:
            running.num_kept[index] = position
        logprobs = None
        if sampling.num_logprobs is not None:
            logprobs = [fake_logprobs(each, sampling.num_logprobs, self._vocab_size) for each in token_ids]
        return Delta(request.request_id, token_ids, position, index, logprobs, reason, prompt_logprobs, stop_token_id)

    def _prompt_logprobs(self, request: GenerateRequest) -> list[TokenLogprobs | None] | None:
        num_top = request.sampling.num_prompt_logprobs
        if num_top is None:
            return None
        return [None, *(fake_logprobs(token, num_top, self._vocab_size) for token in request.prompt_token_ids[1:])]

    def _end(self, running: _Running, reason: FinishReason) -> Final:
        request, num_kept_tokens = running.request, sum(running.num_kept.values())
        del self._running[request.request_id]
        usage = Usage(
            prompt_tokens=len(request.prompt_token_ids),
            completion_tokens=num_kept_tokens,
            cached_tokens=running.num_cached_tokens,
            discarded_tokens=sum(running.num_sent) - num_kept_tokens,
            decode_ms=(time.monotonic() - running.started_s) * 1e3,
            draft_tokens=len(request.predicted_token_ids),
            accepted_draft_tokens=_num_predicted(request, running.num_kept.get(0, 0)),
        )
        embedding = fake_embedding(request, self._hidden_size) if request.pooling else None
        return Final(request.request_id, reason, usage, embedding=embedding)

    def _stats(self) -> EngineStats:
        tenants: dict[str, TenantStats] = {}
        for running in self._running.values():
            tenant = running.request.tenant
            num_running = tenants[tenant].num_running if tenant in tenants else 0
            tenants[tenant] = TenantStats(num_running + 1, 0, 0.0)
        by_band: Counter[bool] = Counter()
        for running in self._running.values():
            by_band[running.request.batch is not None] += running.num_running
        return EngineStats(
            num_running=by_band[False],
            num_batch_running=by_band[True],
            num_batch_wanted=BATCH_WANTED,
            prompt_tokens_total=self._num_prompt_tokens,
            generation_tokens_total=self._num_tokens,
            adapter_loads_total=self._num_loads,
            adapter_slots_used=len(self._resident),
            prefix_query_tokens_total=self._num_prompt_tokens,
            prefix_hit_tokens_total=self._num_cached_tokens,
            tenants=tenants,
            resident_adapters=sorted(self._resident),
        )


def main() -> None:
    """Serve a fake engine with the arguments of the command line."""
    serve(arguments().parse_args(), fake_token)


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="python -m engine.fake", description=__doc__)
    parser.add_argument("--endpoint", required=True, help="ZeroMQ address to listen on, such as ipc:///run/engine.sock")
    parser.add_argument("--model-dir", required=True, help="folder whose config.json the gateway serves")
    parser.add_argument("--tokens-per-s", type=float, default=0.0, help="steps per second; 0 is as fast as it goes")
    parser.add_argument("--produced", type=Path, help="file that gets a line for each token, as FakeCore says")
    parser.add_argument("--max-num-seqs", type=int, default=64)
    parser.add_argument("--max-waiting", type=int, default=512)
    parser.add_argument("--unattended-s", type=float, default=0.0, help="as in EngineConfig")
    parser.add_argument("--link-dir", default="", help="as in EngineConfig")
    return parser


def serve(args: argparse.Namespace, token_of: TokenOf, *, end_id: int | None = None) -> None:
    """Serve until a signal ends the process. token_of, end_id: as for `FakeCore`."""
    model = load_model_config(args.model_dir)
    limits = EngineLimits(
        model.max_position, args.max_num_seqs, args.max_waiting, block_size=BLOCK_SIZE, num_blocks=4096
    )
    mailbox = Mailbox()
    digest = model_digest(args.model_dir)
    server = EngineServer(
        args.endpoint,
        digest,
        limits,
        mailbox,
        fingerprint=digest,
        device="fake",
        unattended_s=args.unattended_s,
        link_dir=args.link_dir,
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: server.drain())
    core = FakeCore(
        mailbox,
        args.tokens_per_s,
        vocab_size=model.vocab_size,
        hidden_size=model.hidden_size,
        produced=args.produced.open("ab", buffering=0) if args.produced else None,
        token_of=token_of,
        end_id=end_id,
    )
    threading.Thread(target=core.run, name="fake-core", daemon=True).start()
    server.run()


if __name__ == "__main__":
    main()
