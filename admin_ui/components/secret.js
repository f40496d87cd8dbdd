// A secret that is shown once: masked until asked for, with a button that copies. It is kept nowhere.

import { html, useState } from "../lib/html.js";
import { Button, CopyButton } from "./button.js";

/**
 * A secret that is masked until the reader shows it. label: the name of the secret. shown: not masked from the start.
 */
export function Secret({ value, label = "Secret", shown: initially = false }) {
  const [shown, show] = useState(initially);
  const text = shown ? value : `${value.slice(0, 6)}${"•".repeat(Math.min(28, Math.max(8, value.length - 6)))}`;
  return html`
    <div class="secret" role="group" aria-label=${label}>
      <code class=${shown ? "" : "masked"} aria-label=${shown ? undefined : "hidden"}>
        ${text}
      </code>
      <${Button}
        kind="quiet"
        small
        icon="eye"
        label=${shown ? "Hide" : "Show"}
        aria-pressed=${shown}
        onClick=${() => show(!shown)}
      />
      <${CopyButton} text=${value} what=${label.toLowerCase()} />
    </div>
  `;
}
