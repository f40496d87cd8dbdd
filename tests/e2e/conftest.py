"""One installation for all end-to-end tests; tests that stop or break it leave it running again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.installation import Installation
from tests.e2e.signatures.model import make_signature_model

SIGNS = "signs"
"""The public name of the model whose adapters identify themselves."""

NUM_SLOTS = 8
"""Slots of the engine's device, so few that most of many adapters are evicted again and again."""


@pytest.fixture(scope="package")
def installation(open_folder: Path) -> Iterator[Installation]:
    installation = Installation(open_folder / "installation")
    installation.start()
    yield installation
    if installation.process is not None:
        installation.stop()


@pytest.fixture(scope="package")
def signs(open_folder: Path) -> Iterator[Installation]:
    """Give two gateways over a model whose adapters identify themselves; tests leave them running."""
    model = make_signature_model(open_folder / "signature-model")
    installation = Installation(open_folder / "signatures", flags=("--gateways", "2"))
    installation.env |= {
        "LORIKEET_MODEL": str(model),
        "LORIKEET_MODEL_NAME": SIGNS,
        "LORIKEET_DTYPE": "float32",
        "LORIKEET_QUANTIZATION": "none",
        "LORIKEET_MAX_ADAPTERS": str(NUM_SLOTS),
        "LORIKEET_KV_CACHE_BYTES": "64MiB",
        "LORIKEET_ADAPTER_GRACE_SECONDS": "3",  # deleted content leaves while requests run
    }
    installation.start()
    yield installation
    assert installation.stop() == 0
