// A choice of several options among few: a group of checkboxes with one name.

import { html, useId } from "../lib/html.js";
import { Checkbox } from "./form.js";

/** A group of checkboxes. value: the chosen keys. options: [[key, title, hint], …]. */
export function Choices({ label, hint, error, value, onValue, options }) {
  const id = useId();
  const chosen = (key, on) => onValue(on ? [...value, key] : value.filter((each) => each !== key));
  return html`
    <fieldset class="field choices" aria-describedby=${hint || error ? id : undefined}>
      <legend class="label">${label}</legend>
      ${options.map(
        ([key, title, about]) => html`
          <${Checkbox}
            key=${key}
            label=${title}
            hint=${about}
            value=${value.includes(key)}
            onValue=${(on) => chosen(key, on)}
          />
        `,
      )}
      ${
        (hint || error) &&
        html`
          <p id=${id} class=${error ? "field-error" : "hint"}>
            ${error ?? hint}
          </p>
        `
      }
    </fieldset>
  `;
}
