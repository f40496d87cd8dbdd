"""A query and a document go to a model that ranks by its chat template, where that shows both."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.gateway.openai.rerank.ranker import PAIR_TEMPLATE, QUERY, Ranker, serving


@pytest.fixture(scope="module")
def ranker(module_dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranker]:
    with serving(module_dsn, tmp_path_factory.mktemp("ranker"), PAIR_TEMPLATE) as ranker:
        yield ranker


def test_the_chat_template_shows_the_pair_and_the_instruction(ranker: Ranker) -> None:
    for instruction, shown in ((None, "<who><cyy>"), ("Be kind", "[Be kind]<who><cyy>")):
        fields = {} if instruction is None else {"instruction": instruction}
        reply = ranker.ask(query=QUERY, documents=["cyy"], **fields)
        (asked,) = ranker.asked(reply)
        assert ranker.tokenizer.decode(asked.prompt_token_ids) == shown
        assert not asked.num_first_tokens


@pytest.mark.parametrize("most", [None, 3])
def test_long_documents_are_cut_at_their_ends(ranker: Ranker, most: int | None) -> None:
    document = "xy" * 2000
    fields = {} if most is None else {"max_tokens_per_doc": most}
    reply = ranker.ask(query=QUERY, documents=[document, "q"], **fields)
    assert reply.status_code == 200, reply.text
    long, short = ranker.asked(reply)
    whole = len(ranker.tokenizer.encode("xyx" if most else document, add_special_tokens=False))
    room = len(short.prompt_token_ids) - 1 + whole
    assert len(long.prompt_token_ids) == (room if most else 512)
