// What may be wrong with an experiment and nothing refuses yet: in the words of the API, which also tells them on the
// command line.

import { Notice } from "../../components/feedback.js";
import { html } from "../../lib/html.js";
import { percentsSpaced } from "./words.js";

/** experiment: as the API gives it by its id; lists have no warnings. */
export function Warnings({ experiment: { state, warnings } }) {
  if (!warnings?.length) return null;
  return html`
    <${Notice} tone="warn" title=${state === "draft" ? "Look at this before the start" : "Something deserves a look"}>
      <span class="plan">
        ${warnings.map(({ text }) => html`<span key=${text}>${percentsSpaced(text)}</span>`)}
      </span>
    <//>
  `;
}
