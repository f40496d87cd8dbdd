"""`lorikeet rerank` and `lorikeet embed` take texts from arguments, files and pipes, against live gateways."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.cli import main
from tests.gateway.cli.conftest import Cli
from tests.gateway.conftest import House
from tests.gateway.live import BASE
from tests.gateway.openai.rerank.ranker import QUERY, Ranker, serving


@pytest.fixture(scope="module")
def ranker(module_dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranker]:
    with serving(module_dsn, tmp_path_factory.mktemp("ranker")) as ranker:
        yield ranker


@pytest.fixture
def lorikeet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli({"LORIKEET_DATA_DIR": str(tmp_path)}, capsys)


class PipedInput(io.TextIOWrapper):
    """A standard input that is not a terminal."""


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch):
    def give(content: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", PipedInput(io.BytesIO(content)))

    give(b"")
    return give


async def test_documents_are_ranked_wherever_they_come_from(
    lorikeet: Cli, ranker: Ranker, pipe, tmp_path: Path
) -> None:
    access = ("--url", ranker.url, "--key", ranker.tenant.key, "--model", BASE)
    path = tmp_path / "documents.txt"
    path.write_text("bzzz\n\ncyy\n")
    code, out, err = await lorikeet("rerank", QUERY, "ax", "--file", str(path), *access)
    assert (code, err) == (0, "")
    header, *rows = (line.split() for line in out.splitlines())
    assert header == ["SCORE", "PLACE", "DOCUMENT"]
    assert [(place, text) for _, place, text in rows] == [("1", "bzzz"), ("2", "cyy"), ("0", "ax")]
    assert float(rows[0][0]) > float(rows[1][0]) > float(rows[2][0])

    given = ("rerank", QUERY, "--top-n", "2", "--raw-scores", *access)
    for words, piped in (((), b"a\nbb\nccc\n"), (("--file", "-"), b"a\r\nbb\r\nccc")):
        pipe(piped)
        reply = await lorikeet.json(*given, *words)
        assert [(each["index"], each["relevance_score"]) for each in reply["results"]] == [(2, 2.0), (1, 1.0)]
        assert reply["results"][0]["document"] == {"text": "ccc"}


async def test_a_document_cannot_act_on_the_terminal(lorikeet: Cli, ranker: Ranker, pipe) -> None:
    access = ("--url", ranker.url, "--key", ranker.tenant.key, "--model", BASE)
    code, out, _ = await lorikeet("rerank", QUERY, "a\x1b[2Jb\nc" + "d" * 300, *access)
    assert code == 0
    assert "\x1b" not in out and len(out.splitlines()) == 2 and out.endswith("…\n")


async def test_texts_become_vectors_in_their_order(lorikeet: Cli, house: House, pipe, tmp_path: Path) -> None:
    access = ("--url", house.url, "--key", house.globex.key, "--model", BASE)
    path = tmp_path / "texts.txt"
    path.write_text("b\nc\n")
    reply = await lorikeet.json("embed", "a", "--file", str(path), *access)
    vectors = [each["embedding"] for each in reply["data"]]
    assert len(vectors) == 3 and len(set(map(tuple, vectors))) == 3
    pipe(b"a\nb\nc\n")
    code, out, err = await lorikeet("embed", *access)
    assert (code, err) == (0, "")
    assert [json.loads(line) for line in out.splitlines()] == vectors
    by_pooling = [await lorikeet.json("embed", "abc", "--pooling", each, *access) for each in ("mean", "last")]
    assert by_pooling[0]["data"] != by_pooling[1]["data"]


@pytest.mark.parametrize("verb", [("embed",), ("rerank", "q")])
async def test_missing_and_unreadable_texts_are_refused_in_one_line(
    lorikeet: Cli, house: House, pipe, verb: tuple[str, ...], tmp_path: Path
) -> None:
    access = ("--url", house.url, "--key", house.globex.key, "--model", BASE)
    (tmp_path / "latin").write_bytes(b"\xe4\n")
    for words, expected, message in (
        ((), 2, "no texts were given"),
        (("--file", str(tmp_path / "gone")), 1, "No such file"),
        (("--file", str(tmp_path)), 1, "Is a directory"),
        (("--file", str(tmp_path / "latin")), 1, "not UTF-8"),
    ):
        code, out, err = await lorikeet(*verb, *words, *access)
        assert (code, out, message in err, err.count("\n")) == (expected, "", True, 1), err


async def test_a_model_that_does_not_rank_says_so(lorikeet: Cli, house: House, pipe) -> None:
    access = ("--url", house.url, "--key", house.globex.key, "--model", BASE)
    code, out, err = await lorikeet("rerank", QUERY, "a", *access)
    assert (code, out) == (1, "") and "rank" in err


async def test_a_pipe_beside_arguments_is_read_where_it_is_asked_for(
    lorikeet: Cli, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    access = ("--url", house.url, "--key", house.globex.key, "--model", BASE)
    for flags, num_texts, left in (((), 1, b"b\nc\n"), (("--file", "-"), 3, b"")):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"b\nc\n")))
        code, out, _ = await lorikeet("embed", "a", *flags, *access)
        assert (code, len(out.splitlines()), sys.stdin.buffer.read()) == (0, num_texts, left)


async def test_a_file_gives_the_lines_that_line_feeds_end(lorikeet: Cli, ranker: Ranker, pipe, tmp_path: Path) -> None:
    access = ("--url", ranker.url, "--key", ranker.tenant.key, "--model", BASE)
    path = tmp_path / "documents.txt"
    path.write_bytes("\ufeffa\r\nb\u2028c\x0cd\n".encode())
    reply = await lorikeet.json("rerank", QUERY, "--file", str(path), *access)
    assert sorted(each["document"]["text"] for each in reply["results"]) == ["a", "b\u2028c\x0cd"]


def test_a_query_and_a_model_are_all_that_rerank_requires(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["rerank"], {})
    assert capsys.readouterr().err.endswith("the following arguments are required: QUERY, --model\n")
