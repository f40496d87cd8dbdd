// Warnings about an experiment that do not refuse anything yet, in the words of the API, which the command line shows
// as well.

import { Notice } from "../../components/feedback.js";
import { html } from "../../lib/html.js";
import { percentsSpaced } from "./words.js";

/** The warnings of an experiment. experiment: as the API returns it by its id; lists have no warnings. */
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
