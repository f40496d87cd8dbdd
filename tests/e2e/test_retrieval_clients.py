"""Cohere's and OpenAI's own clients get the figures that sentence-transformers computes for the same folder.

With --full, since the clients are installed into an environment of their own in build/ first (300 MB).
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.conformance.environments import python_environment
from tests.conformance.suites import Suite
from tests.e2e.test_embedding_and_ranking import PROMPTS, paired_tokenizer, serving
from tests.engine.models.encoders import save_encoder, write_modules
from tests.gateway.model_folder import make_model_folder

REPOSITORY = Path(__file__).parents[2]
CLIENTS = Suite(
    name="retrieval",
    title="retrieval",
    what="reranking and embeddings",
    runtime="python",
    packages=("cohere==7.3.1", "scikit-learn==1.9.1", "scipy==1.17.1"),
    scripts=(),
    borrows=("torch", "transformers", "openai"),
)
POOLING = {"pooling_mode_cls_token": True, "word_embedding_dimension": 48, "include_prompt": True}
ORACLE = "sentence-transformers==6.2.0"


def client_python() -> Path:
    """Return the interpreter of the environment, with an oracle that takes its libraries from ours."""
    python = python_environment(CLIENTS, REPOSITORY / "build" / "clients" / CLIENTS.name)
    install = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", ORACLE]
    subprocess.run(install, check=True, capture_output=True)
    return python


@pytest.mark.parametrize("purpose", ["rank", "embed"])
def test_stock_clients_get_the_figures_of_sentence_transformers(
    purpose: str, own_open_folder: Path, full: bool
) -> None:
    if not full:
        pytest.skip("with --full")
    folder = make_model_folder(own_open_folder / "model")
    tokenizer = paired_tokenizer(folder)
    sizes = {"vocab_size": tokenizer.backend_tokenizer.get_vocab_size(), "max_position_embeddings": 512}
    save_encoder("bert", folder, ranks=purpose == "rank", **sizes)
    if purpose == "embed":
        write_modules(folder, pooling=POOLING, normalize=True, prompts=PROMPTS)
    with serving(folder, own_open_folder / "data") as (url, key):
        script = Path(__file__).with_name("retrieval_clients.py")
        ended = subprocess.run(
            [str(client_python()), str(script), purpose, url, key, str(folder)],
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
    assert ended.returncode == 0, ended.stderr[-3000:]
