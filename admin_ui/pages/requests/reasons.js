// How requests end, in plain words: what happened, what was billed, what to do.

/** {title, tone, text} of a request's finish reason; null where it just ended. */
export function explained({ status, finish_reason: reason, output_tokens: tokens }) {
  if (status === "error") {
    const billed = tokens > 0 ? `The ${tokens} tokens that had been generated were billed.` : "No output was billed.";
    return {
      tone: "bad",
      title: "The engine failed, or refused it",
      text:
        "The engine went down or failed before the request's end, or it refused the request's schema, pattern or " +
        `adapter. ${billed} The client got an error that says which; System shows whether the engine is well.`,
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
  tool_calls: "Called a tool",
};
