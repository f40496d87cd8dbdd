// How requests end, in plain words: what happened, what was billed, what to do.

/** {title, tone, text} of a request's finish reason; null where it just ended. */
export function explained({ status, finish_reason: reason, output_tokens: tokens }) {
  if (status === "error") {
    const billed = tokens > 0 ? `The ${tokens} tokens that had been generated were billed.` : "No output was billed.";
    return {
      tone: "bad",
      title: "It failed in the engine",
      text:
        `The engine stopped before its end: it went down, or refused the request or its adapter. ${billed} ` +
        "The client got an error and may try again; System shows whether the engine is well.",
    };
  }
  if (status === "cancelled") {
    return {
      tone: "warn",
      title: "The client went away",
      text:
        "The connection was closed, or the request was cancelled, before its end. What had been generated " +
        "until then was billed.",
    };
  }
  if (reason === "length")
    return {
      tone: "info",
      title: "Cut at its longest",
      text: "It reached max_tokens or the end of the model's context. A higher max_tokens gives longer answers.",
    };
  return null;
}

export const TITLES = {
  stop: "Stopped by itself",
  length: "Longest length",
  abort: "Cancelled",
  error: "Failed",
  tool_calls: "Called a tool",
};
