"""The agent's connection to one engine: whether it is there, what it runs, and whether it answers well.

An engine that an agent is connected to does not end by itself. The tokens of a probe are billed to nobody.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable

from engine.config.model import Task
from engine.curve import Peer
from engine.protocol import (
    AdapterStatus,
    EngineMessage,
    EngineStats,
    Final,
    GenerateRequest,
    Heartbeat,
    LoadAdapter,
    Pooling,
    SamplingParams,
    StepOutputs,
    Submit,
    Welcome,
)
from gateway.backends.engine.adapter_calls import AdapterCalls
from gateway.backends.engine.link import EngineGone, EngineLink

NO_DATABASE = ""
"""The database id under which an agent connects, for which engines keep no usage (`engine.protocol.Hello`)."""

GOLDEN_PROMPT = [1, 2, 3, 5, 8, 13, 21, 34]
"""The token ids of a probe's prompt. Any will do, since only the number of answered tokens is checked."""
GOLDEN_TOKENS = 4
_POOLINGS: dict[str, Pooling | None] = {"text": None, "embed": "mean", "rerank": "score"}
GOLDEN_WAIT_S = 120.0
ADAPTER_WAIT_S = 60.0


class ProbeFailed(Exception):
    """The error for an engine that fails a probe; the message says why."""


class Follower:
    """A connection to one engine, kept up from its making until `stop`.

    changed: called when the engine comes or goes.
    """

    def __init__(self, address: str, model_digest: str, changed: Callable[[], None], peer: Peer | None = None) -> None:
        """Begin to connect to the engine at an address.

        peer: the keys for an endpoint that is guarded by keys; None: the endpoint is a socket of this machine.
        """
        self.stats: EngineStats | None = None
        """The statistics of the last heartbeat; None while the engine is not there."""
        self.silent_since_s: float | None = asyncio.get_running_loop().time()
        """The time when the engine was last connected, in seconds of the event loop's clock; None while it is
        connected."""
        self.was_connected = False
        self.welcome: Welcome | None = None
        """The engine's last greeting."""
        self._changed = changed
        self._finals: dict[str, asyncio.Future[Final]] = {}
        self._link = EngineLink(address, database_id=NO_DATABASE, model_digest=model_digest, listener=self, peer=peer)
        self._adapter_calls = AdapterCalls(self._link.send)
        self._link.start()

    @property
    def is_connected(self) -> bool:
        """True if the engine is there and answers."""
        return self.silent_since_s is None

    @property
    def is_idle(self) -> bool:
        """Tell whether the engine's last heartbeat says that it runs no request."""
        stats = self.stats
        if stats is None:
            return False
        return not (stats.num_running or stats.num_waiting or stats.num_batch_running or stats.num_batch_waiting)

    @property
    def resident(self) -> list[str]:
        """Content keys of the adapters that are on the engine's device."""
        return self.stats.resident_adapters if self.stats is not None else []

    async def stop(self) -> None:
        """End the connection."""
        await self._link.stop()

    async def probe(self, vocab_size: int, task: Task) -> None:
        """Have the engine generate a few tokens with the base model, or embed or rank if that is what the model is for.

        vocab_size: the size of the vocabulary, within which the probe's token ids are.

        Raises ProbeFailed: when the engine is lost, refuses, or does not answer in time.
        """
        num_tokens = GOLDEN_TOKENS if task.kind == "text" else 0
        request = GenerateRequest(
            request_id=f"probe-{uuid.uuid4().hex}",
            prompt_token_ids=[token % vocab_size for token in GOLDEN_PROMPT],
            sampling=SamplingParams(num_tokens, temperature=0.0, ignore_eos=True),
            tenant="probe",
            pooling=_POOLINGS[task.kind],
        )
        answer: asyncio.Future[Final] = asyncio.get_running_loop().create_future()
        self._finals[request.request_id] = answer
        try:
            self._link.send(Submit(request))
            async with asyncio.timeout(GOLDEN_WAIT_S):
                final = await answer
        except EngineGone as gone:
            raise ProbeFailed(f"it was lost while it was tried: {gone}") from None
        except TimeoutError:
            raise ProbeFailed(f"it gave no answer in {GOLDEN_WAIT_S:g} s") from None
        finally:
            del self._finals[request.request_id]
        if final.error is not None:
            raise ProbeFailed(f"it failed at a short prompt: {final.error.message}")
        if final.usage.completion_tokens != num_tokens:
            raise ProbeFailed(f"it gave {final.usage.completion_tokens} tokens where {num_tokens} were asked for")

    async def probe_adapter(self, key: str) -> None:
        """Have the engine load an adapter and try it.

        Raises ProbeFailed: when the engine is lost, refuses the adapter, or does not answer in time.
        """
        try:
            status = await self._adapter_calls.ask(LoadAdapter(key, pin=False, probe=True), ADAPTER_WAIT_S)
        except EngineGone as gone:
            raise ProbeFailed(f"it was lost while adapter {key[:12]} was tried: {gone}") from None
        except TimeoutError:
            raise ProbeFailed(f"it did not answer about adapter {key[:12]} in {ADAPTER_WAIT_S:g} s") from None
        if status.error is not None:
            raise ProbeFailed(f"adapter {key[:12]} does not work with it: {status.error}")

    # what the link tells

    def connected(self, welcome: Welcome) -> None:
        """Record that the engine is connected."""
        self.silent_since_s = None
        self.was_connected = True
        self.welcome = welcome
        self._changed()

    def received(self, message: EngineMessage) -> None:
        """Process a heartbeat, or an answer to a probe."""
        match message:
            case Heartbeat(stats=EngineStats() as stats):
                self.stats = stats
            case StepOutputs(finals=finals):
                for final in finals:
                    answer = self._finals.get(final.request_id)
                    if answer is not None and not answer.done():
                        answer.set_result(final)
            case AdapterStatus():
                self._adapter_calls.answered(message)

    def disconnected(self, reason: str) -> None:
        """Record that the engine is gone, and end the probes that wait for its answer."""
        self.silent_since_s = asyncio.get_running_loop().time()
        self.stats = None
        self._adapter_calls.lost(lambda: EngineGone(reason))
        for answer in self._finals.values():
            if not answer.done():
                answer.set_exception(EngineGone(reason))
        self._changed()
