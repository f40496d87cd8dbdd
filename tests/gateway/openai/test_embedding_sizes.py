"""Embeddings are shortened to the sizes that the model's config declares, and to no other."""

from __future__ import annotations

import asyncio
import functools
import json
import math
from collections.abc import Iterator

import openai
import pytest

from gateway.domain.errors import InvalidRequest
from gateway.pipeline.bounds import check_dimensions
from tests.gateway.live import BASE, make_tenant
from tests.gateway.model_folder import make_model_folder
from tests.gateway.routing.recording_engine import RecordingEngine
from tests.installation.live_gateway import gateways_with


@pytest.fixture(scope="module")
def client(module_dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    """Give a client of a model with embeddings of 32 numbers that was trained to have 2 or 8 as well."""
    folder = tmp_path_factory.mktemp("sizes")
    tenant = asyncio.run(make_tenant(module_dsn, "acme", "pirate", "1"))
    model_dir = make_model_folder(folder / "model")
    config = json.loads((model_dir / "config.json").read_text())
    (model_dir / "config.json").write_text(json.dumps(config | {"matryoshka_dimensions": [8, 2]}))
    make_engine = functools.partial(RecordingEngine, tokens_per_s=0)
    with gateways_with(make_engine, module_dsn, model_dir, data_dir=folder) as installed:
        url = f"{installed.gateway.url}/v1"
        with openai.OpenAI(base_url=url, api_key=tenant.key, max_retries=0) as client:
            yield client


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
