"""Every name of OpenTelemetry's conventions that spans use, and the version of the conventions that they are of.

The conventions for generative AI are still in development, and moved out of the general ones with version 1.42; a
newer version is a change of this file alone. Names of our own begin with `lorikeet.`.
"""

from __future__ import annotations

from typing import Final

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"
"""The version of the general conventions; names of generative AI are those of open-telemetry/semantic-conventions-genai
that do not differ from it."""
SCOPE: Final = "lorikeet"

# resources

SERVICE_NAME: Final = "service.name"
SERVICE_VERSION: Final = "service.version"
SERVICE_INSTANCE_ID: Final = "service.instance.id"
GATEWAY: Final = "lorikeet-gateway"
ENGINE: Final = "lorikeet-engine"

# requests over HTTP

HTTP_METHOD: Final = "http.request.method"
HTTP_ROUTE: Final = "http.route"
HTTP_STATUS: Final = "http.response.status_code"
URL_PATH: Final = "url.path"
URL_SCHEME: Final = "url.scheme"
ERROR_TYPE: Final = "error.type"

# calls of models

OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
REQUEST_STREAM: Final = "gen_ai.request.stream"
REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
REQUEST_TEMPERATURE: Final = "gen_ai.request.temperature"
REQUEST_TOP_P: Final = "gen_ai.request.top_p"
REQUEST_TOP_K: Final = "gen_ai.request.top_k"
REQUEST_SEED: Final = "gen_ai.request.seed"
REQUEST_CHOICES: Final = "gen_ai.request.choice.count"
REQUEST_FREQUENCY_PENALTY: Final = "gen_ai.request.frequency_penalty"
REQUEST_PRESENCE_PENALTY: Final = "gen_ai.request.presence_penalty"
RESPONSE_ID: Final = "gen_ai.response.id"
RESPONSE_MODEL: Final = "gen_ai.response.model"
RESPONSE_FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
RESPONSE_FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
CACHED_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"

CHAT: Final = "chat"
TEXT_COMPLETION: Final = "text_completion"
EMBEDDINGS: Final = "embeddings"
RERANK: Final = "rerank"

# experiments and votes: the attributes are those of the log line, which have these names by themselves

FLAG_EVENT: Final = "feature_flag.evaluation"
FLAG_PREFIX: Final = "feature_flag."
EVALUATION_EVENT: Final = "gen_ai.evaluation.result"
EVALUATION_PREFIX: Final = "gen_ai."

# our own

TENANT: Final = "lorikeet.tenant"
API_KEY_ID: Final = "lorikeet.api_key.id"
REQUEST_ID: Final = "lorikeet.request.id"
ROUTE: Final = "lorikeet.route"
TARGET: Final = "lorikeet.route.target"
ATTEMPTS: Final = "lorikeet.route.attempts"
BATCH: Final = "lorikeet.batch.id"
OUTCOME: Final = "lorikeet.outcome"
POOL: Final = "lorikeet.pool"
REPLICA: Final = "lorikeet.replica"
ATTEMPT: Final = "lorikeet.attempt"
QUEUE_MS: Final = "lorikeet.engine.queue_ms"
ADAPTER_WAIT_MS: Final = "lorikeet.engine.adapter_wait_ms"
PREFILL_MS: Final = "lorikeet.engine.prefill_ms"
DECODE_MS: Final = "lorikeet.engine.decode_ms"
TIMED_BY: Final = "lorikeet.engine.timed_by"
"""The attribute that says who measured a span's times: `engine`, or `gateway` where the engine reported none."""
SPANS_LEFT_OUT: Final = "lorikeet.spans_left_out"

BATCH_LINE: Final = "batch line"
"""The name of the first span of a batch line."""
BACKGROUND_RESPONSE: Final = "background response"
"""The name of the first span of a background response."""
SHADOW: Final = "shadow"
"""The name of the first span of a shadow copy."""

PREFILL_EVENT: Final = "prefill"
FIRST_TOKEN_EVENT: Final = "first_token"  # noqa: S105 - the name of an event
