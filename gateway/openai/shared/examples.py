"""Example requests to the main routes, with their replies; the API's document shows them, tests send them."""

from __future__ import annotations

from gateway.http.shape import Example

MODEL = "smollm2-135m-instruct"

_USAGE = {
    "prompt_tokens": 37,
    "completion_tokens": 9,
    "total_tokens": 46,
    "prompt_tokens_details": {"cached_tokens": 32, "audio_tokens": 0},
    "completion_tokens_details": {
        "accepted_prediction_tokens": 0,
        "rejected_prediction_tokens": 0,
        "reasoning_tokens": 0,
        "audio_tokens": 0,
    },
}

CHAT = Example(
    body={
        "model": f"{MODEL}:pirate",
        "messages": [
            {"role": "system", "content": "Answer in one sentence."},
            {"role": "user", "content": "What is the capital of France?"},
        ],
        "temperature": 0.2,
        "max_completion_tokens": 64,
    },
    reply={
        "id": "chatcmpl-01JQ5ZK3T9",
        "object": "chat.completion",
        "created": 1_780_000_000,
        "model": f"{MODEL}:pirate",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Arr, it be Paris.", "refusal": None, "annotations": []},
                "finish_reason": "stop",
                "logprobs": None,
            }
        ],
        "usage": _USAGE,
        "service_tier": "default",
        "system_fingerprint": None,
    },
    client_method="chat.completions.create",
)

COMPLETION = Example(
    body={"model": MODEL, "prompt": "Once upon a time", "max_tokens": 32, "stop": ["\n"]},
    reply={
        "id": "cmpl-01JQ5ZK3TA",
        "object": "text_completion",
        "created": 1_780_000_000,
        "model": MODEL,
        "choices": [{"index": 0, "text": " there was a lorikeet.", "finish_reason": "stop", "logprobs": None}],
        "usage": _USAGE,
        "system_fingerprint": None,
    },
    client_method="completions.create",
)

COMPACT = Example(
    body={
        "model": f"{MODEL}:pirate",
        "input": [
            {"role": "user", "content": "What is the capital of France?"},
            {"role": "assistant", "content": "Arr, it be Paris."},
        ],
    },
    reply={
        "id": "resp_q5vkp3zq2m6xw7dd4yhtc3ea",
        "created_at": 1_780_000_000,
        "output": [
            {
                "type": "message",
                "id": "msg_q5vkp3zq2m6xw7dd4yhtc3ea_0",
                "status": "completed",
                "role": "user",
                "content": [{"type": "input_text", "text": "What is the capital of France?"}],
            },
            {"type": "compaction", "id": "cmp_q5vkp3zq2m6xw7dd4yhtc3ea_1", "encrypted_content": "AZKpMTIzNDU2Nzg"},
        ],
        "usage": {
            "input_tokens": 91,
            "output_tokens": 24,
            "total_tokens": 115,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        },
        "object": "response.compaction",
    },
    client_method="responses.compact",
)

RESPONSE = Example(
    body={
        "model": f"{MODEL}:pirate",
        "instructions": "Answer in one sentence.",
        "input": "What is the capital of France?",
        "max_output_tokens": 64,
    },
    reply={
        "id": "resp_q5vkp3zq2m6xw7dd4yhtc3ea",
        "object": "response",
        "created_at": 1_780_000_000,
        "completed_at": 1_780_000_001,
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "model": f"{MODEL}:pirate",
        "output": [
            {
                "type": "message",
                "id": "msg_q5vkp3zq2m6xw7dd4yhtc3ea_1",
                "status": "completed",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "Arr, it be Paris.", "annotations": [], "logprobs": []}],
            }
        ],
        "usage": {
            "input_tokens": 37,
            "output_tokens": 9,
            "total_tokens": 46,
            "input_tokens_details": {"cached_tokens": 32, "cache_write_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        },
        "instructions": "Answer in one sentence.",
        "previous_response_id": None,
        "conversation": None,
        "tools": [],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "max_tool_calls": None,
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "reasoning": {"effort": None, "summary": None},
        "temperature": 1.0,
        "top_p": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "top_logprobs": 0,
        "max_output_tokens": 64,
        "truncation": "disabled",
        "store": False,
        "background": False,
        "service_tier": "default",
        "metadata": {},
        "safety_identifier": None,
        "prompt_cache_key": None,
    },
    client_method="responses.create",
)

EMBEDDING = Example(
    body={"model": MODEL, "input": ["The parrot sleeps.", "A bird is resting."], "encoding_format": "float"},
    reply={
        "object": "list",
        "data": [
            {"object": "embedding", "index": 0, "embedding": [0.0213, -0.0127, 0.0561]},
            {"object": "embedding", "index": 1, "embedding": [0.0198, -0.0140, 0.0533]},
        ],
        "model": MODEL,
        "usage": {"prompt_tokens": 10, "total_tokens": 10},
    },
    client_method="embeddings.create",
)

RERANK = Example(
    body={
        "model": "bge-reranker-v2-m3",
        "query": "Which bird is asleep?",
        "documents": ["The parrot sleeps.", {"text": "A ship sails."}],
        "top_n": 1,
        "return_documents": True,
    },
    reply={
        "id": "req_3f9c1a7e5b2d48f0",
        "object": "list",
        "model": "bge-reranker-v2-m3",
        "results": [{"index": 0, "relevance_score": 0.9731, "document": {"text": "The parrot sleeps."}}],
        "usage": {"prompt_tokens": 24, "total_tokens": 24},
        "meta": {
            "billed_units": {"input_tokens": 24, "output_tokens": 0},
            "tokens": {"input_tokens": 24, "output_tokens": 0},
        },
    },
)

MODELS = Example(client_method="models.list")
