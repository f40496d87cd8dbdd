// One chat completion over the public API, streamed: text as it comes, then what it took. Knows no page.

import { ApiError } from "../../lib/api.js";

const PATH = "/v1/chat/completions";

/**
 * {finishReason, usage, requestId, ttftMs, totalMs, tokensPerS} once it is over; onText(text) as it comes. body: as the
 * API takes it, less what streaming needs. Throws ApiError, and AbortError once the signal aborts.
 */
export async function complete({ key, body, signal, onText }) {
  const began = performance.now();
  const response = await request(PATH, key, { body: { ...body, stream: true, stream_options: { include_usage: true } }, signal });
  const requestId = response.headers.get("x-request-id") ?? "";
  const done = { finishReason: null, usage: null, requestId };
  let first = null;
  let last = null;
  for await (const data of events(response.body)) {
    if (data === "[DONE]") break;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError({ status: chunk.error.status ?? 500, ...chunk.error, requestId });
    const [choice] = chunk.choices;
    if (choice?.delta.content) {
      last = performance.now();
      first ??= last;
      onText(choice.delta.content);
    }
    done.finishReason = choice?.finish_reason ?? done.finishReason;
    done.usage = chunk.usage ?? done.usage;
  }
  const tokens = done.usage?.completion_tokens ?? 0;
  return {
    ...done,
    ttftMs: first === null ? null : first - began,
    totalMs: performance.now() - began,
    tokensPerS: tokens > 1 && last > first ? (1000 * (tokens - 1)) / (last - first) : null,
  };
}

/** Ids of the models that a key may call, the base model first. */
export async function listModels(key, signal) {
  const { data } = await (await request("/v1/models", key, { signal })).json();
  return data.map(({ id }) => id);
}

async function request(path, key, { body, signal }) {
  let response;
  try {
    response = await fetch(path, {
      method: body ? "POST" : "GET",
      credentials: "omit",
      headers: { authorization: `Bearer ${key}`, ...(body && { "content-type": "application/json" }) },
      body: body && JSON.stringify(body),
      signal,
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError({ status: 0, code: "unreachable", message: "The gateway does not answer." });
  }
  if (response.ok) return response;
  const { error = {} } = await response.json().catch(() => ({}));
  throw new ApiError({
    status: response.status, code: error.code ?? "", message: error.message ?? `The gateway answered with status ${response.status}.`,
    param: error.param ?? null, requestId: response.headers.get("x-request-id") ?? "",
  });
}

/** The data of each server-sent event (WHATWG HTML, section 9.2), one line each as the API sends them. */
async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) if (line.startsWith("data:")) yield line.slice(5).trim();
  }
}
