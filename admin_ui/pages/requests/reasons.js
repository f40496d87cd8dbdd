// The reasons for which requests end, in plain words: what happened, what was billed, what to do.

/** Return {title, tone, text} for a request's finish reason; null if it ended normally. */
export function explained({ status, finish_reason: reason, output_tokens: tokens }) {
  if (status === "error") {
    const billed = tokens > 0 ? `The ${tokens} tokens that had been generated were billed.` : "No output was billed.";
    return {
      tone: "bad",
      title: "The engine failed",
      text:
        `The engine went down or failed before the request's end. ${billed} The client got an error that says so; ` +
        "System shows whether the engine is well.",
    };
  }
  if (status === "refused") {
    return {
      tone: "warn",
      title: "The engine refused it",
      text:
        "It asks for what cannot be served, such as a schema, pattern or grammar that is wrong, or an adapter that " +
        "does not fit. The client got an error that says what to change. Nothing was billed.",
    };
  }
  if (reason === "superseded") {
    return {
      tone: "warn",
      title: "Given up, and not billed",
      text:
        "Its batch was cancelled or expired before the line had a result, or another attempt was to take its place. " +
        "Nobody is billed for it.",
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
  superseded: "Given up",
  error: "Failed",
  refused: "Refused by the engine",
  tool_calls: "Called a tool",
};
