// One conversation with one model: messages, what each answer took, and the stream that is open.

import { get } from "../../lib/api.js";
import { useCallback, useEffect, useRef, useState } from "../../lib/html.js";
import { can } from "../../lib/session.js";
import { complete } from "./answer.js";

const COST_TRIES = 6;
const COST_PAUSE_MS = 1500;

/**
 * Return the state of a conversation, {turns, busy, error, send, stop, clear}. A turn: {role, content, reasoning?,
 * model?, stopped?, failed?, result?, cost?}; failed: the turn got no answer.
 */
export function useConversation() {
  const [turns, setTurns] = useState([]);
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState(null);
  const open = useRef(null);
  const kept = useRef([]);
  const show = (next) => {
    kept.current = next;
    setTurns(next);
  };
  const change = (at, more) =>
    show(kept.current.map((turn, place) => (place === at ? { ...turn, ...more(turn) } : turn)));
  useEffect(() => () => open.current?.abort(), []);

  /**
   * Send a message; return whether it was answered or stopped. api: an entry of APIS; key: the result of needKey;
   * projectId: the project whose list of requests has the answer's cost.
   */
  const send = useCallback(async ({ text, api, key, model, settings, projectId }) => {
    const stopper = new AbortController();
    open.current = stopper;
    const before = kept.current.filter(({ failed }) => !failed);
    const said = [...before, { role: "user", content: text }];
    const at = said.length;
    show([...said, { role: "assistant", content: "", reasoning: "", model }]);
    setBusy(true);
    setError(null);
    try {
      const result = await complete({
        api,
        key: key.value,
        body: api.body({ model, turns: said, settings }),
        signal: stopper.signal,
        onPart: (more) =>
          change(at, ({ content, reasoning }) => ({
            content: content + more.text,
            reasoning: reasoning + more.reasoning,
          })),
      });
      change(at, () => ({ result }));
      costOf(result.requestId, key.projectId ?? projectId, stopper.signal).then(
        (cost) => cost && kept.current[at]?.result === result && change(at, () => ({ cost })),
      );
    } catch (failure) {
      if (failure.name === "AbortError") change(at, () => ({ stopped: true }));
      else setError(failure);
      if (!kept.current[at]?.content && !kept.current[at]?.reasoning)
        show(failure.name === "AbortError" ? before : [...before, { role: "user", content: text, failed: true }]);
      return failure.name === "AbortError";
    } finally {
      setBusy(false);
    }
    return true;
  }, []);
  const stop = useCallback(() => open.current?.abort(), []);
  const clear = useCallback(() => (open.current?.abort(), setError(null), show([])), []);
  return { turns, busy, error, send, stop, clear };
}

/**
 * Return {nanos, currency} once the ledger has a request; null for readers who may not see it, or if that takes too
 * long.
 */
async function costOf(requestId, projectId, signal) {
  if (!requestId || !projectId || !can("billing.read", projectId)) return null;
  try {
    for (let tries = 0; tries < COST_TRIES && !signal.aborted; tries += 1) {
      await new Promise((resolve) => setTimeout(resolve, COST_PAUSE_MS));
      const { data } = await get(
        `/projects/${encodeURIComponent(projectId)}/requests`,
        { request_id: requestId },
        { signal },
      );
      if (data.length) return { nanos: data[0].cost_nanos, currency: data[0].currency };
    }
  } catch {
    // The answer itself is there; what it cost is in Requests.
  }
  return null;
}
