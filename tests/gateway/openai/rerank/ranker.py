"""A gateway over a fake engine of a model that ranks.

The fake engine's score of a document is the number of equal token ids at the document's end, less one.
"""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
from tokenizers import Tokenizer, processors

from engine.protocol import GenerateRequest
from tests.gateway.live import BASE, Tenant, make_tenant
from tests.gateway.model_folder import make_model_folder
from tests.gateway.routing.recording_engine import RecordingEngine
from tests.installation.live_gateway import gateways_with
from tests.patience import PATIENCE_S

PAIR_TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'system' %}[{{ m['content'] }}]{% endif %}{% endfor %}"
    "{% for m in messages %}{% if m['role'] in ('query', 'document') %}<{{ m['content'] }}>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}?{% endif %}"
)
QUERY = "who"
Body = dict[str, Any]


class Ranker(msgspec.Struct, frozen=True):
    """A gateway over a fake engine of a model that ranks."""

    url: str
    tenant: Tenant
    engine: RecordingEngine
    dsn: str
    tokenizer: Tokenizer

    def ask(self, path: str = "/v1/rerank", **fields: Any) -> httpx.Response:
        body = {"model": BASE} | fields
        headers = {"authorization": f"Bearer {self.tenant.key}"}
        return httpx.post(f"{self.url}{path}", json=body, headers=headers, timeout=PATIENCE_S)

    def asked(self, reply: httpx.Response) -> list[GenerateRequest]:
        """Return the requests that the engine received for a reply, one for each document."""
        name = reply.headers["x-request-id"]
        found = [each for each in self.engine.commands if isinstance(each, GenerateRequest)]
        mine = [each for each in found if each.request_id.startswith(name)]
        return sorted(mine, key=lambda each: (len(each.request_id), each.request_id))


def make_ranker_folder(folder: Path, **changes: Any) -> Path:
    """Return the folder of a classifier with one label, whose pairs have a token around and between them."""
    make_model_folder(folder)
    (folder / "chat_template.jinja").unlink()
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["LlamaForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
    (folder / "config.json").write_text(json.dumps(config | changes))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    start, end = tokenizer.token_to_id("<|im_start|>"), tokenizer.token_to_id("<|im_end|>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A",
        pair="<|im_start|>:0 $A:0 <|im_end|>:0 $B:1",
        special_tokens=[("<|im_start|>", start), ("<|im_end|>", end)],
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    named = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"], "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    return folder


@contextmanager
def serving(dsn: str, folder: Path, template: str = "") -> Iterator[Ranker]:
    """Give a gateway over the model. template: the model's chat template; "" for none."""
    tenant = asyncio.run(make_tenant(dsn, "acme", "pirate", "1"))
    model_dir = make_ranker_folder(folder / "model")
    if template:
        (model_dir / "chat_template.jinja").write_text(template)
    make_engine = functools.partial(RecordingEngine, tokens_per_s=0)
    with gateways_with(make_engine, dsn, model_dir, data_dir=folder) as installed:
        tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
        yield Ranker(installed.gateway.url, tenant, installed.engine, dsn, tokenizer)
