// The public API, called with a key as any program would. Knows no page and none of the API's shapes.

import { ApiError } from "../../lib/api.js";

/** Return the ids of the models that a key may call, the base model first. */
export async function listModels(key, signal) {
  const { data } = await (await request("/v1/models", key, { signal })).json();
  return data.map(({ id }) => id);
}

/**
 * Send a request whose answer is streamed; return {requestId, events}. events yields the data of each event as an
 * object. Throws ApiError, and AbortError once the signal aborts.
 */
export async function open(path, { key, body, signal }) {
  const response = await request(path, key, { body, signal });
  const requestId = response.headers.get("x-request-id") ?? "";
  return { requestId, events: events(response.body, requestId) };
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
    status: response.status,
    code: error.code ?? "",
    message: error.message ?? `The gateway answered with status ${response.status}.`,
    param: error.param ?? null,
    requestId: response.headers.get("x-request-id") ?? "",
  });
}

/** Yield the events before the stream's end mark. An event with `error` is thrown as ApiError. */
async function* events(stream, requestId) {
  for await (const data of dataOf(stream)) {
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    if (event.error) throw new ApiError({ status: event.error.status ?? 500, ...event.error, requestId });
    yield event;
  }
}

/** Yield the data of each server-sent event (WHATWG HTML, section 9.2), which is one line as the API sends it. */
async function* dataOf(stream) {
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
