"""Tokenizing is bounded: in length before a text is read, and in places, of which a project has one."""

from __future__ import annotations

import asyncio
import threading

import pytest

from engine.protocol import SamplingParams
from gateway.backends.base import Capabilities, Fit, Message, PreparedPrompt, unchanged
from gateway.domain.errors import InvalidRequest, LimitReached
from gateway.pipeline.requests import Conversation, FieldNames, Prompt, TextRequest
from gateway.pipeline.tokenizing import Tokenizing
from gateway.support.project_threads import MAX_WAITING, ProjectThreads
from gateway.text.options import USUAL, Rendering
from gateway.text.tokenizer import Tokenizer
from tests.gateway.model_folder import make_model_folder
from tests.patience import PATIENCE_S

CONTEXT = 1000


class Reader:
    """A real tokenizer with a count of the characters that it was given."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.num_chars = 0

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            max_model_len=CONTEXT,
            vocab_size=self._tokenizer.vocab_size,
            max_choices=1,
            max_in_flight=1,
            embedding_size=1,
            longest_token_bytes=self._tokenizer.longest_token_bytes,
        )

    def prepare_chat(
        self,
        messages: list[Message],
        tools: object = (),
        rendering: Rendering = USUAL,
        fit: Fit = unchanged,
        owner: str = "",
    ) -> PreparedPrompt:
        return self.prepare_text(fit(self._tokenizer.render_chat(messages, (), rendering)), "messages")

    def prepare_text(self, prompt: str | list[int], field: str, *, add_special_tokens: bool = False) -> PreparedPrompt:
        assert isinstance(prompt, str)
        self.num_chars += len(prompt)
        ids = self._tokenizer.encode_text(prompt, add_special_tokens=add_special_tokens)
        return PreparedPrompt(ids, len(ids))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_folder(make_model_folder(tmp_path_factory.mktemp("model")))


def request_of(prompt: Prompt, field: str, max_prompt_tokens: int | None = None) -> TextRequest:
    return TextRequest(
        prompt=prompt,
        names=FieldNames(prompt=field),
        sampling=SamplingParams(max_tokens=1),
        max_tokens=1,
        max_prompt_tokens=max_prompt_tokens,
        add_special_tokens=False,
    )


async def prepare(reader: Reader, request: TextRequest) -> PreparedPrompt:
    return await Tokenizing().prepared_prompt("proj_1", reader, request)  # type: ignore[arg-type]


def test_no_token_is_longer_than_the_longest(tokenizer: Tokenizer) -> None:
    lengths = [len(tokenizer.token_bytes(token_id)) for token_id in range(tokenizer.vocab_size)]
    assert max(lengths) <= tokenizer.longest_token_bytes <= max(lengths) + len("<0x00>")


@pytest.mark.parametrize("text", ["a", "💥"])
@pytest.mark.parametrize("field", ["prompt", "messages"])
async def test_a_text_that_no_context_holds_is_refused_unread(tokenizer: Tokenizer, text: str, field: str) -> None:
    reader = Reader(tokenizer)
    text *= CONTEXT * tokenizer.longest_token_bytes // len(text.encode()) + 1
    prompt = text if field == "prompt" else Conversation([{"role": "user", "content": text}])
    with pytest.raises(InvalidRequest) as refused:
        await prepare(reader, request_of(prompt, field))
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", field)
    assert f"maximum context length is {CONTEXT} tokens" in refused.value.message
    assert reader.num_chars == 0


async def test_a_text_that_might_fit_is_read(tokenizer: Tokenizer) -> None:
    reader = Reader(tokenizer)
    text = "a" * (CONTEXT * tokenizer.longest_token_bytes)
    await prepare(reader, request_of(text, "prompt"))
    assert reader.num_chars == len(text)


async def test_of_a_text_whose_end_alone_is_wanted_no_more_is_read_than_fills_the_context(tokenizer: Tokenizer) -> None:
    reader = Reader(tokenizer)
    text = "once upon a time, " * CONTEXT * tokenizer.longest_token_bytes
    found = await prepare(reader, request_of(text, "prompt", max_prompt_tokens=100))
    assert found.token_ids == tokenizer.encode_text(text, add_special_tokens=False)[-100:]
    assert reader.num_chars == CONTEXT * tokenizer.longest_token_bytes


class Jobs:
    """Jobs that end when a test allows it."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.begun = threading.Event()
        self._lock = threading.Lock()
        self._num_running = 0
        self.most_at_once = 0
        self.num_begun = 0

    def work(self) -> str:
        with self._lock:
            self._num_running += 1
            self.num_begun += 1
            self.begun.set()
            self.most_at_once = max(self.most_at_once, self._num_running)
        assert self.gate.wait(PATIENCE_S)
        with self._lock:
            self._num_running -= 1
        return "done"


async def test_a_project_has_one_place_and_others_pass_it_by() -> None:
    threads, jobs = ProjectThreads("tokenizing", "long prompts", 2), Jobs()
    greedy = [asyncio.create_task(threads.run("greedy", jobs.work)) for _ in range(10)]
    await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE_S):
        assert await threads.run("other", str.upper, "x") == "X"
    jobs.gate.set()
    assert await asyncio.gather(*greedy) == ["done"] * 10
    assert jobs.most_at_once == 1
    assert not threads._places


async def test_a_caller_that_stops_waiting_does_not_free_the_place_of_a_running_job() -> None:
    threads, jobs = ProjectThreads("tokenizing", "long prompts", 4), Jobs()
    for _ in range(3):
        left = asyncio.create_task(threads.run("greedy", jobs.work))
        assert await asyncio.to_thread(jobs.begun.wait, PATIENCE_S)
        left.cancel()
        await asyncio.gather(left, return_exceptions=True)
    last = asyncio.create_task(threads.run("greedy", jobs.work))
    async with asyncio.timeout(PATIENCE_S):
        assert await threads.run("other", str.upper, "x") == "X"
    assert jobs.num_begun == 1
    jobs.gate.set()
    assert await last == "done"
    assert jobs.num_begun == 2, "those that nobody waited for any more never began"


async def test_a_project_has_a_bounded_number_of_waiting_jobs() -> None:
    threads, jobs = ProjectThreads("tokenizing", "long prompts", 1), Jobs()
    waiting = [asyncio.create_task(threads.run("greedy", jobs.work)) for _ in range(MAX_WAITING)]
    await asyncio.sleep(0)
    with pytest.raises(LimitReached) as refused:
        await threads.run("greedy", jobs.work)
    assert refused.value.retry_after_s is not None
    jobs.gate.set()
    assert await asyncio.gather(*waiting) == ["done"] * MAX_WAITING
    assert await threads.run("greedy", jobs.work) == "done"
