"""Each field of each request with values of every kind: honoured, accepted as documented, or refused with its name."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from engine.protocol import GenerateRequest
from gateway.http.fields import StreamOptions
from gateway.messages.wire import CountTokens, CreateMessage
from gateway.openai.chat.wire import ChatCompletionRequest
from gateway.openai.completions.wire import CompletionRequest
from gateway.openai.embeddings.wire import EmbeddingsRequest
from gateway.openai.responses.wire import CompactResponse, CountInputTokens, CreateResponse, TextOptions
from gateway.openai.shared.grammar import JsonSchemaFormat, ResponseFormat, StructuredOutputs
from gateway.openai.tokens.wire import DetokenizeRequest, TokenizeRequest
from gateway.text.tokenizer import Tokenizer
from tests.gateway.live import make_tenant
from tests.gateway.model_folder import CHAT_TEMPLATE, make_model_folder
from tests.gateway.openai import openai_fields
from tests.gateway.openai.field_matrix import FIELDS, Case, Field, ObservedEffects
from tests.gateway.openai.field_matrix.table import as_markdown
from tests.gateway.routing.recording_engine import RecordingEngine
from tests.installation.live_gateway import gateways_with
from tests.patience import PATIENCE_S

AT_ONCE = 16
PAGE = Path(__file__).parents[2] / "conformance" / "fields.md"
READS = "".join(
    f"{{% if {name} is defined %}}{{{{ '{name}=' ~ {name} ~ '\\n' }}}}{{% endif %}}"
    for name in ("reasoning_effort", "verbosity", "enable_thinking")
)
"""A chat template that writes the arguments it gets into the prompt."""

WIRE: dict[tuple[str, str], type[msgspec.Struct]] = {
    ("/v1/chat/completions", ""): ChatCompletionRequest,
    ("/v1/chat/completions", "stream_options."): StreamOptions,
    ("/v1/chat/completions", "response_format."): ResponseFormat,
    ("/v1/chat/completions", "response_format.json_schema."): JsonSchemaFormat,
    ("/v1/chat/completions", "structured_outputs."): StructuredOutputs,
    ("/v1/completions", ""): CompletionRequest,
    ("/v1/completions", "stream_options."): StreamOptions,
    ("/v1/completions", "structured_outputs."): StructuredOutputs,
    ("/v1/responses", ""): CreateResponse,
    ("/v1/responses", "text."): TextOptions,
    ("/v1/responses/compact", ""): CompactResponse,
    ("/v1/responses/input_tokens", ""): CountInputTokens,
    ("/v1/messages", ""): CreateMessage,
    ("/v1/messages/count_tokens", ""): CountTokens,
    ("/v1/embeddings", ""): EmbeddingsRequest,
    ("/tokenize", ""): TokenizeRequest,
    ("/detokenize", ""): DetokenizeRequest,
}
ELSEWHERE = {"response_format.json_schema"}
"""Fields whose own subfields have rows of their own."""


class Stage(msgspec.Struct, frozen=True):
    """A gateway at a URL with a tenant's key, its recording engine, and the model's tokenizer."""

    url: str
    key: str
    engine: RecordingEngine
    tokenizer: Tokenizer

    def asked(self) -> dict[str, GenerateRequest]:
        """Return the requests that the engine has received, by request id."""
        return {each.request_id: each for each in self.engine.commands if isinstance(each, GenerateRequest)}

    def observed(self, reply: httpx.Response, engine: GenerateRequest | None) -> ObservedEffects:
        body: Any = None
        if reply.headers["content-type"].startswith("text/event-stream"):
            data = [part.rpartition("data: ")[2] for part in reply.text.split("\n\n") if part]
            body = [event if event == "[DONE]" else msgspec.json.decode(event) for event in data]
        else:
            body = reply.json()
        token_ids = (
            engine.prompt_token_ids if engine is not None else body.get("tokens", []) if isinstance(body, dict) else []
        )
        return ObservedEffects(body, engine, self.tokenizer.decode(token_ids, with_special=True))


@pytest.fixture(scope="module")
def stage(module_dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("stage")
    tenant = asyncio.run(make_tenant(module_dsn, "acme", "pirate", "1"))
    model_dir = make_model_folder(folder / "model")
    (model_dir / "chat_template.jinja").write_text(READS + CHAT_TEMPLATE)
    make_engine = functools.partial(RecordingEngine, tokens_per_s=0)
    with gateways_with(make_engine, module_dsn, model_dir, data_dir=folder, max_body_bytes=4 << 20) as installed:
        yield Stage(installed.gateway.url, tenant.key, installed.engine, Tokenizer.from_folder(model_dir))


@pytest.fixture
async def client(stage: Stage) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"authorization": f"Bearer {stage.key}"}
    async with httpx.AsyncClient(base_url=stage.url, headers=headers, timeout=PATIENCE_S) as client:
        yield client


async def send(client: httpx.AsyncClient, field: Field, case: Case) -> httpx.Response:
    """Send a case, again after a wait where the tenant's pace refuses it; return the reply."""
    while True:
        content = msgspec.json.encode(field.body(case))
        reply = await client.post(field.endpoint, content=content, headers={"content-type": "application/json"})
        if reply.status_code != 429:
            return reply
        await asyncio.sleep(float(reply.headers["retry-after-ms"]) / 1e3)


def complaint(
    stage: Stage, field: Field, case: Case, reply: httpx.Response, asked: GenerateRequest | None
) -> str | None:
    """Return the difference of a reply from the promise of the matrix, in words; None for no difference.

    asked: the request that reached the engine; None: none did.
    """
    if case.outcome == "refused":
        if reply.status_code != case.status:
            return f"status {reply.status_code}, not {case.status}: {reply.text[:200]}"
        error, param = reply.json()["error"], case.param or field.name
        if field.endpoint.startswith("/v1/messages"):  # Anthropic's errors name the field in words
            return None if set(error) == {"type", "message"} and param in error["message"] else f"not said: {error}"
        if set(error) != {"message", "type", "param", "code"} or len(error["message"]) > 400:
            return f"not the error shape: {error}"
        return None if error["param"] == param else f"param {error['param']!r}, not {param!r}: {error['message']}"
    if reply.status_code != 200:
        return f"status {reply.status_code}: {reply.text[:300]}"
    if case.seen is None:
        return None if case.outcome == "accepted" else "nothing says what honouring it looks like"
    seen = stage.observed(reply, asked)
    return None if case.seen(seen) else f"not seen in {str(seen)[:600]}"


async def test_every_value_of_every_field_is_answered_as_the_matrix_says(
    stage: Stage, client: httpx.AsyncClient
) -> None:
    places = asyncio.Semaphore(AT_ONCE)

    async def answered(field: Field, case: Case) -> httpx.Response:
        async with places:
            return await send(client, field, case)

    rows = [(field, kind, case) for field in FIELDS for kind, cases in field.cases.items() for case in cases]
    replies = await asyncio.gather(*(answered(field, case) for field, _, case in rows))
    asked = stage.asked()
    wrong = [
        f"{field.endpoint} {field.name} = {str(case.value)[:60]} ({kind}): {why}"
        for (field, kind, case), reply in zip(rows, replies, strict=True)
        if (why := complaint(stage, field, case, reply, asked.get(reply.headers["x-request-id"]))) is not None
    ]
    assert wrong == [], "\n".join(wrong)
    assert len(rows) > 600


def test_every_field_that_is_read_has_rows_of_every_kind() -> None:
    named = {(field.endpoint, field.name): field for field in FIELDS}
    assert len(named) == len(FIELDS), "one row per field"
    for (endpoint, prefix), struct in WIRE.items():
        missing = {prefix + name for name in struct.__struct_fields__} - {name for at, name in named if at == endpoint}
        assert missing <= ELSEWHERE, (endpoint, missing)
    for field in FIELDS:
        assert field.null and field.wrong_type, f"{field.endpoint} {field.name}"
        assert field.valid or field.invalid, f"{field.endpoint} {field.name}"


def test_every_field_of_the_apis_requests_has_rows() -> None:
    for endpoint, names in (
        ("/v1/chat/completions", openai_fields.CHAT),
        ("/v1/completions", openai_fields.COMPLETIONS),
        ("/v1/responses", openai_fields.RESPONSES),
        ("/v1/responses/input_tokens", openai_fields.INPUT_TOKENS),
        ("/v1/messages", openai_fields.MESSAGES),
        ("/v1/embeddings", openai_fields.EMBEDDINGS),
    ):
        assert set(names) <= {field.name for field in FIELDS if field.endpoint == endpoint}, endpoint


def test_the_page_is_the_matrix() -> None:
    assert PAGE.read_text() == as_markdown(FIELDS), "write it anew: python -m tests.gateway.openai.field_matrix"
