// Shows a state as a coloured word: good, warn, bad, info, or none. The word carries the meaning; the colour only
// helps.

import { html } from "../lib/html.js";

const TONES = {
  active: "good",
  completed: "good",
  ready: "good",
  live: "good",
  ok: "good",
  running: "good",
  open: "info",
  starting: "info",
  changing: "info",
  scaling: "info",
  preparing: "info",
  prepared: "good",
  stopped: "",
  suspended: "warn",
  paused: "warn",
  cancelled: "warn",
  waiting: "warn",
  draining: "warn",
  warning: "warn",
  loading: "warn",
  draft: "",
  decided: "info",
  archived: "",
  revoked: "",
  expired: "",
  retired: "",
  closed: "",
  error: "bad",
  refused: "bad",
  failed: "bad",
  rejected: "bad",
  down: "bad",
  critical: "bad",
  unreachable: "bad",
};

/** A state as a coloured word. tone: by default that of the word in TONES. dot: show a dot before the word. */
export function Badge({ children, tone, dot = false, title }) {
  const word = Array.isArray(children) ? children.join("") : children;
  const look = tone ?? TONES[String(word).toLowerCase()] ?? "";
  return html`
    <span class="badge ${look}" title=${title}>
      ${dot && html`<i class="dot"></i>`}
      ${children}
    </span>
  `;
}
