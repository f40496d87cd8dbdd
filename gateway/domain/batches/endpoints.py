"""The endpoints of the API whose requests a batch may contain."""

from __future__ import annotations

from typing import Literal, get_args

BatchEndpoint = Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/rerank"]
ENDPOINTS: tuple[str, ...] = get_args(BatchEndpoint)
