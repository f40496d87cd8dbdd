"""The fake engine in threads of this process, with a record of everything that gateways asked of it."""

from __future__ import annotations

import threading
from pathlib import Path

from engine.config import load_model_config, model_digest
from engine.fake import BLOCK_SIZE, FakeCore
from engine.mailbox import Command, Mailbox
from engine.protocol import EngineError, EngineLimits, Final, GenerateRequest, StepOutputs, Usage
from engine.server import EngineServer
from tests.patience import PATIENCE_S


class _TappedMailbox(Mailbox):
    """A mailbox that records commands, and answers those that the engine is to refuse."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[Command] = []
        self.failures: dict[str, EngineError] = {}  # by content key

    def take_commands(self, timeout_s: float) -> list[Command]:
        commands = super().take_commands(timeout_s)
        self.taken += commands
        return [command for command in commands if not self._refuses(command)]

    def _refuses(self, command: Command) -> bool:
        if not isinstance(command, GenerateRequest) or (error := self.failures.get(command.adapter)) is None:
            return False
        usage = Usage(prompt_tokens=0, completion_tokens=0)
        self.post(StepOutputs(finals=[Final(command.request_id, "error", usage, error)]))
        return True


class RecordingEngine:
    """A fake engine in threads, which serves from its creation until `stop` and records requests."""

    def __init__(
        self, endpoint: str, model_dir: Path, *, tokens_per_s: float, make_core: type[FakeCore] = FakeCore
    ) -> None:
        config = load_model_config(model_dir)
        self._mailbox = _TappedMailbox()
        limits = EngineLimits(config.max_position, 64, 512, block_size=BLOCK_SIZE, num_blocks=4096)
        digest = model_digest(model_dir)
        self._server = EngineServer(endpoint, digest, limits, self._mailbox, fingerprint=digest)
        core = make_core(self._mailbox, tokens_per_s, vocab_size=config.vocab_size, hidden_size=config.hidden_size)
        self._threads = [threading.Thread(target=target, daemon=True) for target in (core.run, self._server.run)]
        for thread in self._threads:
            thread.start()

    @property
    def commands(self) -> list[Command]:
        """Return all commands in the order in which they came."""
        return list(self._mailbox.taken)

    @property
    def requests(self) -> list[GenerateRequest]:
        """Return all requests in the order in which they came."""
        return [each for each in self.commands if isinstance(each, GenerateRequest)]

    def request(self, request_id: str) -> GenerateRequest:
        """Return the request with this id, which has been answered."""
        (found,) = [each for each in self.requests if each.request_id == request_id]
        return found

    def lose(self, key: str) -> None:
        """Make the adapter of this content key fail to load from now on."""
        self._mailbox.failures[key] = EngineError("adapter_rejected", f"adapter {key} is missing")

    def break_on(self, key: str) -> None:
        """Make requests for the adapter of this content key crash the engine from now on."""
        self._mailbox.failures[key] = EngineError("internal", f"adapter {key} broke it")

    def fill(self, key: str) -> None:
        """Refuse requests for the adapter of this content key, as with a full queue, until `empty`."""
        self._mailbox.failures[key] = EngineError("queue_full", "no room", retry_after_s=0.1)

    def empty(self, key: str) -> None:
        """Accept requests for the adapter of this content key again."""
        del self._mailbox.failures[key]

    def stop(self) -> None:
        self._server.drain()
        for thread in self._threads:
            thread.join(timeout=PATIENCE_S)
            assert not thread.is_alive()
        self._mailbox.close()
