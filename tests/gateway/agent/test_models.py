"""The models of one host: the memory they take, and failed preparations, which are tried again.

A host tries again even when another host has prepared the model meanwhile.
"""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
import torch

from engine.config import EngineConfig, load_model_config, model_digest
from engine.cpu.quantization import Format, load_quantized, makers
from engine.models.checkpoint import load_weights
from gateway.agent.hardware import Hardware
from gateway.agent.models import MAX_RETRY_S, RETRY_S, Models, retry_pause_s
from gateway.agent.preparation import prepare, weights_of
from gateway.db.pools.host_failures import list_failures
from gateway.db.pools.revisions import RevisionRow
from gateway.db.pools.served import list_served
from gateway.domain.pools.capacity import estimate
from gateway.domain.pools.drivers import Driver
from gateway.settings import Settings
from kernels.cpu.library import installed
from kernels.cpu.linear import NativeEmbedding, NativeLinear
from tests.engine.models.packing import save_packed
from tests.engine.models.test_gguf import mixed, write_gguf
from tests.gateway.agent.site import Host
from tests.gateway.pools.acting_agent import Agent
from tests.installation.waiting import until


async def test_a_host_that_failed_once_tries_again_though_the_revision_is_prepared_elsewhere(host: Host) -> None:
    here, other = Agent(host.database), Agent(host.database, "host_2", "gpu-2")
    await here.claim()
    await other.claim()
    pool = await host.pool(host.model())
    folder = host.model("another")
    digest, config = model_digest(folder), folder / "config.json"
    text = config.read_text()
    config.unlink()
    revision = await host.want(pool, str(folder))
    settings = Settings(data_dir=host.data_dir)
    models = Models(host.database, settings, Hardware("gpu-1", 8, 64 << 30, [], []), here.host_id, lambda: None)

    async def prepare_until(num_failures: int) -> None:
        async def is_so() -> bool:
            async with host.database.acquire() as conn:
                models.prepare(await list_served(conn))
                return len(await list_failures(conn)) == num_failures

        await until(is_so, "the number of failures never became as expected")

    try:
        await prepare_until(1)
        async with host.database.acquire() as conn:
            [served] = await list_served(conn)
        assert models.last_failure(served.revisions[revision])
        await other.prepare(pool.id, revision, digest, folder=str(folder))
        config.write_text(text)
        models._not_before_s.clear()  # its pause is over
        await prepare_until(0)
    finally:
        await models.stop()
    assert models.last_failure(served.revisions[revision]) == ""


def test_the_pause_grows_up_to_an_hour_however_often_a_preparation_has_failed() -> None:
    assert [retry_pause_s(number) for number in (0, 1, 9, 10**6)] == [RETRY_S, 2 * RETRY_S, 2560.0, MAX_RETRY_S]


@pytest.mark.skipif(installed() is None, reason="the native kernels are not built: run make")
@pytest.mark.parametrize("quantized", ["gguf", "int8", "int4"])
def test_the_estimated_memory_of_weights_is_what_the_kernels_hold(quantized: Format, tmp_path: Path) -> None:
    folder = write_gguf("llama", tmp_path, mixed)
    model, (linear, embedding, _) = load_model_config(folder), makers(quantized, torch.float32, folder)
    loaded = load_weights(
        folder, model, torch.float32, torch.device("cpu"), make_linear=linear, make_embedding=embedding
    )
    products = [loaded.lm_head, *(each for layer in loaded.layers for each in (layer.qkv, layer.o))]
    products += [each for layer in loaded.layers for each in (layer.gate_up, layer.down)]
    matrices = [each.weight for each in products if isinstance(each, NativeLinear)]
    assert isinstance(loaded.embed, NativeEmbedding) and len(matrices) == len(products)
    held = {each.address: each for each in (*matrices, loaded.embed.table)}.values()
    num_bytes = sum(part.memory.nbytes for each in held for part in each.parts())
    config = EngineConfig(model_dir="", endpoint="", adapter_store="", quantization=quantized)
    found = estimate(weights_of(folder), model, config, gpu_bytes=[], has_bf16=False)
    assert found.weights == pytest.approx(num_bytes, rel=0.02)


@pytest.mark.skipif(installed() is None, reason="the native kernels are not built: run make")
def test_the_estimated_memory_of_a_4_bit_checkpoint_is_what_the_kernels_hold(tmp_path: Path) -> None:
    save_packed("awq-32", tmp_path)
    model = load_model_config(tmp_path)
    loaded = load_quantized(tmp_path, model, "int4", torch.float32)
    products = [loaded.lm_head, *(each for layer in loaded.layers for each in (layer.qkv, layer.o))]
    products += [each for layer in loaded.layers for each in (layer.gate_up, layer.down)]
    assert isinstance(loaded.embed, NativeEmbedding)
    matrices = [loaded.embed.table, *(each.weight for each in products if isinstance(each, NativeLinear))]
    num_bytes = sum(part.memory.nbytes for each in matrices for part in each.parts())
    config = EngineConfig(model_dir="", endpoint="", adapter_store="")
    found = estimate(weights_of(tmp_path), model, config, gpu_bytes=[], has_bf16=False)
    assert found.weights == pytest.approx(num_bytes, rel=0.1)  # 199 tokens take 208 rows in memory


class FirstProgressLine(Exception):
    """An exception raised at the first line of a preparation's progress, which aborts it."""


@pytest.mark.parametrize(("driver", "does"), [("vllm", "converting"), ("lorikeet", "preparing")])
async def test_a_folder_with_one_gguf_file_is_converted_for_vllm_alone(
    driver: Driver, does: str, tmp_path: Path
) -> None:
    folder, now = write_gguf("llama", tmp_path, lambda name: "Q8_0"), datetime.datetime.now(datetime.UTC)
    revision = RevisionRow(
        "pool_1", 1, str(folder), {}, None, None, False, None, "preparing", "", now, now, driver, driver == "vllm", []
    )

    async def report(line: str) -> None:
        raise FirstProgressLine(line)  # which ends the preparation

    hardware = Hardware("gpu-1", 8, 64 << 30, [], [])
    with pytest.raises(FirstProgressLine, match=f"^{does} model.gguf: loading libraries$"):
        await prepare(Settings(data_dir=tmp_path / "data"), hardware, revision, report)
