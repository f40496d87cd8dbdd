"""An engine that dies in the middle of a stream: no client takes the part that came for a whole answer."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import openai
import pytest

from tests.gateway.live import make_tenant
from tests.gateway.model_folder import make_model_folder
from tests.gateway.openai.responses.laws import check, read
from tests.installation.live_gateway import running_gateways
from tests.patience import PATIENCE_S


def test_a_stream_that_breaks_says_so_in_both_shapes(dsn: str, tmp_path: Path) -> None:
    tenant = asyncio.run(make_tenant(dsn, "acme", "pirate", "1"))
    model_dir = make_model_folder(tmp_path / "model")
    body = {"model": "tiny", "input": "hello there", "max_output_tokens": 300}
    with running_gateways(dsn, model_dir, engine_flags=("--tokens-per-s", "50"), data_dir=tmp_path) as installed:
        headers = {"authorization": f"Bearer {tenant.key}"}
        with (
            httpx.Client(base_url=installed.gateway.url, headers=headers, timeout=PATIENCE_S) as http,
            openai.OpenAI(base_url=f"{installed.gateway.url}/v1", api_key=tenant.key, max_retries=0) as client,
            http.stream("POST", "/v1/responses", json=body | {"stream": True}) as reply,
            client.responses.create(**body, stream=True) as theirs,  # type: ignore[call-overload]
        ):
            lines, events = reply.iter_lines(), iter(theirs)
            begun = [next(lines) for _ in range(20)]
            assert next(events).type == "response.created"
            installed.engine.stop()
            response = check(read("\n".join([*begun, *lines, ""])))
            with pytest.raises(openai.APIError, match="engine"):
                for event in events:
                    assert event.type != "response.completed"
        assert (response["status"], response["error"]["code"]) == ("failed", "server_error")
        assert response["output"][0]["content"][0]["text"].startswith("user\n")
        assert response["usage"]["output_tokens"] > 0
