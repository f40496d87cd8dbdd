"""Stock clients against a served model, with the figures of sentence-transformers for its folder as the oracle.

`python retrieval_clients.py rank|embed URL KEY FOLDER`, in an environment that has the clients. Ends with 0 where all
figures are the same.
"""

from __future__ import annotations

import math
import sys

import cohere
import openai
from sentence_transformers import CrossEncoder, SentenceTransformer

QUERY = "how are you?"
DOCUMENTS = ["the lazy dog", "hello there, how are you today? " * 3, "stop", "the quick brown fox jumps over the dog"]
NEAR = 1e-5


def rank(url: str, key: str, folder: str) -> None:
    """Compare the ranking of both of Cohere's clients with that of a cross encoder."""
    expected = [(int(each["corpus_id"]), float(each["score"])) for each in CrossEncoder(folder).rank(QUERY, DOCUMENTS)]
    given = {"model": "base", "query": QUERY, "documents": DOCUMENTS}
    for client in (cohere.ClientV2(api_key=key, base_url=url), cohere.Client(api_key=key, base_url=url)):
        reply = client.rerank(**given)
        assert [each.index for each in reply.results] == [index for index, _ in expected], reply
        for each, (_, score) in zip(reply.results, expected, strict=True):
            assert math.isclose(each.relevance_score, score, abs_tol=NEAR), (each, score)
        assert reply.meta.billed_units.input_tokens > 0
        assert len(client.rerank(**given, top_n=2).results) == 2
        try:
            client.rerank(**(given | {"model": "none"}))
        except cohere.errors.NotFoundError as refused:
            assert "none" in str(refused.body)
        else:
            raise AssertionError("a model that is not there ranked")


def embed(url: str, key: str, folder: str) -> None:
    """Compare the vectors of OpenAI's client with those of sentence-transformers, with and without a prompt."""
    model = SentenceTransformer(folder)
    client = openai.OpenAI(base_url=f"{url}/v1", api_key=key)
    usual = client.embeddings.create(model="base", input=DOCUMENTS)  # in base64, which the client itself asks for
    numbers = client.embeddings.create(model="base", input=DOCUMENTS, encoding_format="float")
    for reply in (usual, numbers):
        _assert_near([each.embedding for each in reply.data], model.encode(DOCUMENTS).tolist())
    asked = client.embeddings.create(model="base", input=QUERY, extra_body={"input_type": "query"})
    _assert_near([asked.data[0].embedding], [model.encode(QUERY, prompt_name="query").tolist()])


def _assert_near(ours: list[list[float]], theirs: list[list[float]]) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        assert len(mine) == len(other)
        assert max(abs(a - b) for a, b in zip(mine, other, strict=True)) < NEAR


if __name__ == "__main__":
    {"rank": rank, "embed": embed}[sys.argv[1]](*sys.argv[2:])
