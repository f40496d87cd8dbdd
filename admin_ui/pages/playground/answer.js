// Streams one answer: its reasoning and text as they come, then its usage and times. Knows no page.

import { open } from "./client.js";

/**
 * Send a request and call onPart({text, reasoning}) as its answer comes, either of which may be "". Return
 * {finishReason, usage, storedId, requestId, ttftMs, totalMs, tokensPerS} at its end. api: an entry of APIS; body: made
 * by its `body`. Throws ApiError, and AbortError once the signal aborts.
 */
export async function complete({ api, key, body, signal, onPart }) {
  const began = performance.now();
  const { requestId, events } = await open(api.path, { key, body: { ...body, ...api.streaming }, signal });
  const done = { finishReason: null, usage: null, requestId };
  let first = null;
  let last = null;
  for await (const event of events) {
    const { text, reasoning, ...more } = api.read(event);
    if (text || reasoning) {
      last = performance.now();
      first ??= last;
      onPart({ text: text ?? "", reasoning: reasoning ?? "" });
    }
    for (const [name, value] of Object.entries(more)) done[name] = value ?? done[name];
  }
  const tokens = done.usage?.output ?? 0;
  return {
    ...done,
    ttftMs: first === null ? null : first - began,
    totalMs: performance.now() - began,
    tokensPerS: tokens > 1 && last > first ? (1000 * (tokens - 1)) / (last - first) : null,
  };
}
