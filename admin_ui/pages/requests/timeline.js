// A request's time as one bar: waiting, until the first token, until the end.

import { Num } from "../../components/numbers.js";
import { ms, percent } from "../../lib/format/format.js";
import { html } from "../../lib/html.js";

/** Return [[key, title, ms], …] of the phases that took any time. */
function phasesOf({ queue_ms: queue, ttft_ms: first, latency_ms: latency }) {
  const end = latency ?? first ?? queue;
  const phases =
    first === null
      ? [
          ["queue", "Queue", Math.min(queue, end)],
          ["decode", "No token came", end - queue],
        ]
      : [
          ["queue", "Queue", Math.min(queue, first)],
          ["prefill", "Prompt to first token", first - queue],
          ["decode", "First token to end", end - first],
        ];
  return phases.filter(([, , took]) => took > 0);
}

export function Timeline({ request }) {
  const phases = phasesOf(request);
  const all = phases.reduce((sum, [, , took]) => sum + took, 0);
  if (all === 0) return html`<p class="faint">No times are known.</p>`;
  const text = phases.map(([, title, took]) => `${title} ${ms(took)}`).join(", ");
  return html`
    <div class="timeline">
      <div class="timeline-bar" role="img" aria-label=${text}>
        ${phases.map(
          ([key, title, took]) => html`
            <i key=${key} class=${key} style=${{ flexGrow: took }} title="${title}: ${ms(took)}"></i>
          `,
        )}
      </div>
      <ul class="timeline-legend">
        ${phases.map(
          ([key, title, took]) => html`
            <li key=${key}>
              <i class=${key}></i>
              <span>${title}</span>
              <b>
                <${Num} value=${took} kind="ms" />
              </b>
              <span class="faint">${percent(took / all)}</span>
            </li>
          `,
        )}
        <li>
          <span>In all</span>
          <b>
            <${Num} value=${all} kind="ms" />
          </b>
        </li>
      </ul>
    </div>
  `;
}
