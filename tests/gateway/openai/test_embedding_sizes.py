"""Embeddings are shortened to the sizes that the model's config declares, and to no other."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterator

import asyncpg
import openai
import pytest

from gateway.domain.errors import InvalidRequest
from gateway.pipeline.bounds import check_dimensions
from gateway.settings import Settings
from tests.conftest import with_database
from tests.gateway.live import BASE, LiveGateway, Tenant, make_tenant
from tests.gateway.model_folder import make_model_folder
from tests.gateway.routing.recording_engine import RecordingEngine


@pytest.fixture(scope="module")
def client(postgres: str, database_template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    """Of a model of 32 numbers that was trained to have 2 or 8."""
    folder, dsn = tmp_path_factory.mktemp("sizes"), with_database(postgres, "sizes")

    async def prepare() -> Tenant:
        conn = await asyncpg.connect(postgres)
        try:
            await conn.execute(f"CREATE DATABASE sizes TEMPLATE {database_template}")
        finally:
            await conn.close()
        return await make_tenant(dsn, "acme", "pirate", "1")

    tenant = asyncio.run(prepare())
    model_dir = make_model_folder(folder / "model")
    config = json.loads((model_dir / "config.json").read_text())
    (model_dir / "config.json").write_text(json.dumps(config | {"matryoshka_dimensions": [8, 2]}))
    settings = Settings(data_dir=folder, model=str(model_dir), model_name=BASE)
    (folder / "run").mkdir()
    engine = RecordingEngine(settings.engine.endpoint, model_dir, tokens_per_s=0)
    gateway = LiveGateway(settings, model_dir, dsn)
    try:
        gateway.start()
        with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=tenant.key, max_retries=0) as client:
            yield client
    finally:
        gateway.stop()
        engine.stop()


def test_fewer_dimensions_are_the_first_ones_of_unit_length(client: openai.OpenAI) -> None:
    token_ids = [64, 65, 65, 75]  # modulo 32: 0, 1, 1, 11
    vector = client.embeddings.create(model=BASE, input=token_ids, dimensions=2).data[0].embedding
    assert vector == pytest.approx([1 / math.sqrt(5), 2 / math.sqrt(5)])
    assert client.embeddings.create(model=BASE, input=[75], dimensions=2).data[0].embedding == [0, 0]
    assert [len(client.embeddings.create(model=BASE, input="a", dimensions=n).data[0].embedding) for n in (8, 32)] == [
        8,
        32,
    ]


def test_a_size_that_is_not_declared_is_refused(client: openai.OpenAI) -> None:
    for dimensions in (1, 3, 31, 33):
        with pytest.raises(openai.BadRequestError, match="must be one of 2, 8, 32") as refused:
            client.embeddings.create(model=BASE, input="a", dimensions=dimensions)
        assert refused.value.param == "dimensions"


def test_every_size_up_to_the_models_own_is_allowed_where_any_is_declared() -> None:
    sizes = tuple(range(1, 33))
    for dimensions in (None, 1, 7, 32):
        check_dimensions(dimensions, 32, sizes)
    with pytest.raises(InvalidRequest, match="at most 32"):
        check_dimensions(33, 32, sizes)
