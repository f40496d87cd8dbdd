// Words about a batch: its progress, the reasons of failed lines, and the actions that its status allows.

import { html } from "../../lib/html.js";
import * as format from "../../lib/format/format.js";
import { now } from "../../lib/format/time.js";
import { Time } from "../../components/numbers.js";

const OPEN = ["validating", "in_progress", "finalizing", "cancelling"];
const TONES = { validating: "info", in_progress: "info", finalizing: "info", cancelling: "warn" };
const WORDS = {
  validating: "checking the file",
  in_progress: "running",
  finalizing: "writing the files",
  cancelling: "being cancelled",
};

/** Return whether a batch can still change. */
export const isOpen = ({ status }) => OPEN.includes(status);
export const mayCancel = ({ status }) => ["validating", "in_progress"].includes(status);
export const toneOf = ({ status, waits_for }) => (waits_for ? "warn" : TONES[status]);
export const wordOf = ({ status, waits_for }) => (waits_for ? "waiting" : (WORDS[status] ?? status));
export const numDone = ({ completed, failed }) => completed + failed;
export const shareDone = (batch) => (batch.total ? numDone(batch) / batch.total : batch.ended_at ? 1 : 0);

const REASONS = {
  batch_cancelled: "The batch was cancelled before the line had a result",
  batch_expired: "The completion window was over before the line had a result",
  model_not_found: "The line names a model that does not exist, or that the key may not use",
  context_length_exceeded: "The prompt and its answer do not fit into the model's context",
  insufficient_quota: "A limit of cost or the credit was used up",
  invalid_value: "A field has a value that is not allowed",
  missing_required_parameter: "A field that is needed is missing",
  unknown_parameter: "A field that the endpoint does not know",
  unsupported_value: "A value that is not served, such as a stream",
};

export const reasonOf = (code) => REASONS[code] ?? "The line in the error file says more";

/** Return a batch's lines_per_s as text; slow batches have lines per minute or per hour. */
export function paceOf({ lines_per_s: pace }) {
  if (!pace) return "";
  if (pace >= 1) return `${pace.toFixed(pace < 10 ? 1 : 0)} lines/s`;
  return pace * 60 >= 1 ? `${(pace * 60).toFixed(1)} lines/min` : `${(pace * 3600).toFixed(1)} lines/h`;
}

const roughly = (left) =>
  format.seconds(left < 60 ? Math.ceil(left) : left < 3600 ? 60 * Math.ceil(left / 60) : 600 * Math.ceil(left / 600));

/** The time at which a batch ended or is expected to end. */
export function End({ batch }) {
  if (batch.ended_at) return html`<${Time} at=${batch.ended_at} relative />`;
  if (batch.waits_for) return html`<span class="faint">when lines can run again</span>`;
  if (!batch.expected_at)
    return html`<span class="faint">${batch.status === "in_progress" ? "not known yet" : "soon"}</span>`;
  return html`<span class="num">in ${roughly(Math.max(1, batch.expected_at - now()))}</span>`;
}

/** A bar of the lines of a batch that have a result: completed, then failed. */
export function Progress({ batch, compact = false }) {
  const { total, completed, failed } = batch;
  const share = (number) => ({ width: `${total ? (100 * number) / total : 0}%` });
  return html`
    <div class="batch-progress">
      <div
        class="gauge-bar"
        role="progressbar"
        aria-label="Lines with a result"
        aria-valuemin="0"
        aria-valuemax=${total}
        aria-valuenow=${numDone(batch)}
      >
        <i style=${share(completed)}></i>
        <i class="failed" style=${share(failed)}></i>
      </div>
      <span class="num ${compact ? "faint" : ""}">
        ${
          total
            ? html`
              ${format.exactly(numDone(batch))} of ${format.exactly(total)}
              ${failed ? html`, <span class="batch-failed">${format.exactly(failed)} failed</span>` : ""}
            `
            : html`<span class="faint">no lines</span>`
        }
      </span>
    </div>
  `;
}
