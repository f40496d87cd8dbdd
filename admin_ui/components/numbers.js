// Elements for numbers and times within a line of text, each with its exact form on hover.

import * as format from "../lib/format/format.js";
import { html } from "../lib/html.js";
import * as time from "../lib/format/time.js";

const KINDS = {
  count: [format.count, format.exactly],
  tokens: [format.tokens, (value) => `${format.exactly(value)} tokens`],
  ms: [format.ms, (value) => `${format.exactly(value)} ms`],
  seconds: [format.seconds, (value) => `${format.exactly(value)} s`],
  percent: [format.percent, (value) => `${format.exactly(value * 100)} %`],
  change: [format.change, (value) => `${format.exactly(value * 100)} %`],
  bytes: [format.bytes, (value) => `${format.exactly(value)} bytes`],
};

/** A number, with its exact form on hover. kind: count, tokens, ms, seconds, percent (of 1), change (of 1) or bytes. */
export function Num({ value, kind = "count" }) {
  const [shown, exact] = KINDS[kind];
  if (value === null || value === undefined) return html`<span class="num faint">–</span>`;
  return html`
    <span class="num" title=${exact(value)}>
      ${shown(value)}
    </span>
  `;
}

export function Money({ nanos, currency }) {
  if (nanos === null || nanos === undefined) return html`<span class="num faint">–</span>`;
  return html`
    <span class="num" title=${format.exactMoney(nanos, currency)}>
      ${format.money(nanos, currency)}
    </span>
  `;
}

/**
 * A time, with UTC on hover. at: Unix seconds. relative: shown as "3 min ago". none: the text where `at` is missing.
 */
export function Time({ at, relative = false, none = "never" }) {
  if (!at) return html`<span class="faint">${none}</span>`;
  const hover = `${time.long(at)}\n${time.utc(at)}`;
  const shown = relative ? time.ago(at) : time.short(at);
  return html`
    <time datetime=${new Date(at * 1000).toISOString()} title=${hover}>
      ${shown}
    </time>
  `;
}
