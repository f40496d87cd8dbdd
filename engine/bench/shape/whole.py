"""The engine's own loop around a rig's pool and runner: scheduler and statistics, without grammars or sockets."""

from __future__ import annotations

import time

from engine.bench.drive import BenchEngine
from engine.bench.shape.rig import Rig
from engine.compilations import Compilations
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.device import tokens_ahead
from engine.lora.loader import HostTier
from engine.mailbox import Mailbox, Wake
from engine.probes import Probes
from engine.scheduling.block_manager import BlockManager
from engine.scheduling.limits import Limits
from engine.scheduling.scheduler import Scheduler
from engine.statistics import Statistics


def whole_engine(rig: Rig) -> BenchEngine:
    """Return an engine around the rig. The rig's pool ends with the engine."""
    return BenchEngine(rig.config, build=lambda config, mailbox: _core(rig, config, mailbox))


def _core(rig: Rig, config: EngineConfig, mailbox: Mailbox) -> EngineCore:
    rig.wake = lambda: mailbox.command(Wake())
    blocks = BlockManager(rig.device.num_blocks, config.block_size, rig.device.layout, None, tokens_ahead(config))
    limits = Limits(
        max_num_seqs=config.max_num_seqs,
        max_batched_tokens=config.max_batched_tokens,
        max_waiting=config.max_waiting,
        max_model_len=rig.device.max_model_len,
        vocab_size=rig.model.vocab_size,
        eos_token_ids=frozenset(),
        token_bytes=1,
    )
    scheduler = Scheduler(blocks, rig.pool, limits, time.monotonic)
    compilations = Compilations(scheduler, None)
    statistics = Statistics(scheduler, blocks, rig.pool, HostTier(0), compilations)
    probes = Probes(rig.pool, rig.model.vocab_size, rig.device.max_model_len)
    return EngineCore(mailbox, scheduler, rig.pool, rig.runner, compilations, statistics, probes)
