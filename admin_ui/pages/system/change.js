// Shows a change field by field, before and after; fields that stayed the same are left out.

import { html } from "../../lib/html.js";

const text = (value) =>
  value === undefined || value === null ? "–" : typeof value === "string" ? value : JSON.stringify(value);

/** A change. before, after: the object's fields; null if it did not exist. */
export function Change({ before, after }) {
  const names = [...new Set([...Object.keys(before ?? {}), ...Object.keys(after ?? {})])].filter(
    (name) => name !== "object",
  );
  const changed = before && after ? names.filter((name) => text(before[name]) !== text(after[name])) : names;
  if (changed.length === 0) return html`<p class="hint">No field of it changed.</p>`;
  return html`
    <table class="change">
      <caption class="visually-hidden">What changed</caption>
      <thead>
        <tr>
          <th scope="col">Field</th>
          ${before && html`<th scope="col">${after ? "Before" : "Was"}</th>`}
          ${after && html`<th scope="col">${before ? "After" : "Is"}</th>`}
        </tr>
      </thead>
      <tbody>
        ${changed.map(
          (name) => html`
            <tr key=${name}>
              <td>
                <code>${name}</code>
              </td>
              ${before && html`<td>${after ? html`<del>${text(before[name])}</del>` : text(before[name])}</td>`}
              ${after && html`<td>${before ? html`<ins>${text(after[name])}</ins>` : text(after[name])}</td>`}
            </tr>
          `,
        )}
      </tbody>
    </table>
  `;
}
