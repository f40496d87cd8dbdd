"""A query and a document are rendered by the ranking model's chat template, if the template shows both."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from gateway.text.pairs import QueryTooLong, encode_pair_by_template
from gateway.text.tokenizer import Tokenizer
from tests.gateway.openai.rerank.ranker import PAIR_TEMPLATE, QUERY, Ranker, make_ranker_folder, serving


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


def test_a_pair_is_whole_in_its_template_or_refused_for_its_query(tmp_path: Path) -> None:
    """The template's text around a document is fewer tokens where that is empty, as `the` is one, and `txxhe` more."""
    template = "{% for m in messages %}{{ m['content'] }}{% if loop.first %} t{% else %}he{% endif %}{% endfor %}"
    folder = make_ranker_folder(tmp_path / "model")
    (folder / "chat_template.jinja").write_text(template)
    tokenizer = Tokenizer.from_folder(folder)
    around = len(tokenizer.encode_text("who the", add_special_tokens=False))
    least = len(tokenizer.encode_text("who txhe", add_special_tokens=False))
    assert least > around + 1
    for room in range(1, least + 4):
        for document in ("x", "x" * 40):
            encode = partial(encode_pair_by_template, tokenizer, "who", document, room, None)
            if room < least:
                with pytest.raises(QueryTooLong):
                    encode(instruction="", answers=False)
            else:
                token_ids = encode(instruction="", answers=False).token_ids
                kept = min(len(document), room - least + 1)
                assert tokenizer.decode(token_ids) == f"who t{'x' * kept}he"
