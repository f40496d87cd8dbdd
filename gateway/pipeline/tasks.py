"""The tasks that a model was made for, and the task that a request asks of it. Pure; knows no backend."""

from __future__ import annotations

from typing import Literal

import msgspec

from engine.config.model import Task
from gateway.domain.errors import InvalidRequest
from gateway.pipeline.requests import EmbeddingRequest

_INSTEAD = {
    "text": "This model makes text: it ranks no documents. Use a model that is made for reranking.",
    "embed": "This model makes embeddings alone. Use /v1/embeddings.",
    "rerank": "This model ranks documents alone. Use /v1/rerank.",
}
_DOCUMENT_PROMPTS = ("document", "passage", "corpus")
"""The names under which models may list the prompt for documents, in order of preference."""


def check_task(task: Task, wanted: Literal["text", "embed", "rerank"]) -> None:
    """Check that a model can do the task of a request. A model for text can embed as well.

    Raises InvalidRequest: when the model cannot do the task; the error names the model's own task.
    """
    if task.kind != wanted and (task.kind, wanted) != ("text", "embed"):
        raise InvalidRequest(_INSTEAD[task.kind], param="model", code="unsupported_parameter")


def with_prompt(request: EmbeddingRequest, task: Task) -> EmbeddingRequest:
    """Return a request with the model's own prompt before its text. Token ids stay as they are.

    Raises InvalidRequest: when the model has no prompt of the name, or the request names one and has token ids.
    """
    name = _name_of(request, task)
    if isinstance(request.prompt, list):
        if request.prompt_name is not None:
            raise InvalidRequest(
                "'prompt_name' is for texts: nothing is put before token ids.",
                param="prompt_name",
                code="unsupported_parameter",
            )
        return request
    prompt = task.prompts.get(name, "")
    return msgspec.structs.replace(request, prompt=prompt + request.prompt) if prompt else request


def _name_of(request: EmbeddingRequest, task: Task) -> str:
    """Return the name of the model's own prompt that goes before a text; "" for none."""
    if request.prompt_name is not None:
        if request.prompt_name not in task.prompts:
            known = ", ".join(task.prompts) or "none"
            raise InvalidRequest(
                f"This model has no prompt of the name in 'prompt_name'. It has: {known}.",
                param="prompt_name",
                code="invalid_value",
            )
        return request.prompt_name
    names = {"query": ("query",), "document": _DOCUMENT_PROMPTS, None: ()}[request.input_type]
    return next((name for name in names if name in task.prompts), task.default_prompt)
