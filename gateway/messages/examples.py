"""An example request to the route, with its reply; the API's document shows it, tests send it."""

from __future__ import annotations

from gateway.http.shape import Example
from gateway.openai.shared.examples import MODEL

MESSAGE = Example(
    body={
        "model": f"{MODEL}:pirate",
        "max_tokens": 64,
        "system": "Answer in one sentence.",
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
    },
    reply={
        "id": "msg_q5vkp3zq2m6xw7dd4yhtc3ea",
        "type": "message",
        "role": "assistant",
        "model": f"{MODEL}:pirate",
        "content": [{"type": "text", "text": "Arr, it be Paris.", "citations": None}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "stop_details": None,
        "container": None,
        "usage": {
            "input_tokens": 5,
            "output_tokens": 9,
            "cache_read_input_tokens": 32,
            "cache_creation_input_tokens": 0,
            "cache_creation": {"ephemeral_1h_input_tokens": 0, "ephemeral_5m_input_tokens": 0},
            "service_tier": "standard",
            "inference_geo": None,
            "output_tokens_details": None,
            "server_tool_use": None,
        },
    },
)
