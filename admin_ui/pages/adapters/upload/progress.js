// The progress of an upload: bytes sent, speed, and the time that is left.

import { Button } from "../../../components/button.js";
import { Notice } from "../../../components/feedback.js";
import * as format from "../../../lib/format/format.js";
import { html, useRef } from "../../../lib/html.js";
import { Pace } from "./transfer.js";

const STEPS = {
  reading: "Reading the files",
  sending: "Sending",
  checking: "Inspecting it, then trying it on an engine",
};

/** The progress of an upload. state: {step, sent, size, waiting, why, resumed}, as `send` of transfer.js tells it. */
export function Progress({ state: { step, sent = 0, size, waiting, why, resumed }, name, onStop }) {
  const pace = useRef(new Pace());
  const perS = step === "sending" ? pace.current.add(sent) : null;
  const share = step === "checking" ? 1 : size ? sent / size : 0;
  const left = perS ? (size - sent) / perS : null;
  return html`
    <section class="stack upload-progress">
      <h3>
        ${STEPS[step]} ${step === "sending" ? name : ""}
      </h3>
      <div
        class="gauge-bar"
        role="progressbar"
        aria-label="Upload"
        aria-valuemin="0"
        aria-valuemax="100"
        aria-valuenow=${Math.floor(share * 100)}
      >
        <i class="gauge-used ${step === "checking" ? "pulsing" : ""}" style=${{ width: `${share * 100}%` }}></i>
      </div>
      <p class="spread hint">
        <span class="num">
          ${format.bytes(sent)} of ${format.bytes(size)}
        </span>
        <span class="num">
          ${perS ? `${format.bytes(perS)}/s` : ""}
          ${left !== null ? `, ${format.seconds(Math.ceil(left))} left` : ""}
        </span>
      </p>
      ${resumed && step === "sending" && html`<p class="hint">Goes on where an upload of these files stopped.</p>`}
      ${
        waiting > 0 &&
        html`
          <${Notice} tone="warn" title="The connection broke">
            ${why?.message} It goes on by itself in ${format.seconds(waiting)}.
          <//>
        `
      }
      ${
        step !== "checking" &&
        html`
          <div class="row">
            <${Button} onClick=${onStop}>Cancel<//>
          </div>
        `
      }
    </section>
  `;
}
