// The rows of prices and of discounts in the form of a price book.

import { Button } from "../../../components/button.js";
import { Icon } from "../../../components/icons.js";
import { html } from "../../../lib/html.js";
import { useProjects } from "../../../lib/projects.js";
import { NEW_ENTRY, PRICES, TIERS } from "./values.js";

/** Return the rows of a list in a form, with functions that add, change and remove rows. */
function useRows(form, name) {
  const rows = form.values[name];
  return {
    rows,
    add: (row) => form.set(name, [...rows, row]),
    change: (place, field, value) =>
      form.set(
        name,
        rows.map((row, at) => (at === place ? { ...row, [field]: value } : row)),
      ),
    remove: (place) =>
      form.set(
        name,
        rows.filter((_, at) => at !== place),
      ),
    wrong: (place, field) => ({ "aria-invalid": form.errors[`${name}.${place}.${field}`] ? "true" : undefined }),
    // One sentence for each kind of mistake; the fields it is about are marked.
    errors: [
      ...new Set(
        Object.entries(form.errors)
          .filter(([field]) => field.split(".")[0] === name)
          .map(([, error]) => error),
      ),
    ],
  };
}

const cell = (label, value, onValue, more = {}) => html`
  <input
    class="input"
    aria-label=${label}
    value=${value}
    onInput=${(event) => onValue(event.target.value)}
    ...${more}
  />
`;

const choose = (label, value, options, onValue) => html`
  <span class="select">
    <select class="input" aria-label=${label} value=${value} onChange=${(event) => onValue(event.target.value)}>
      ${options.map(
        ([key, title]) => html`
          <option key=${key} value=${key} selected=${key === value}>
            ${title}
          </option>
        `,
      )}
    </select>
    <${Icon} name="down" />
  </span>
`;

export function Entries({ form }) {
  const { rows, add, change, remove, wrong, errors } = useRows(form, "entries");
  return html`
    <fieldset class="rows">
      <legend class="label">
        Prices <span class="faint">per million tokens; * is any</span>
      </legend>
      <div class="price-row rows-head" aria-hidden="true">
        <span>Model</span>
        <span>Class</span>
        <span>Tier</span>
        ${PRICES.map(([, title]) => html`<span>${title}</span>`)}
        <span></span>
      </div>
      ${rows.map(
        (row, place) => html`
          <div class="price-row" key=${place}>
            ${cell(
              `Model of price ${place + 1}`,
              row.model,
              (value) => change(place, "model", value),
              wrong(place, "model"),
            )}
            ${cell(
              `Adapter class of price ${place + 1}`,
              row.adapter_class,
              (value) => change(place, "adapter_class", value),
              { title: "none: the base without an adapter", ...wrong(place, "adapter_class") },
            )}
            ${choose(
              `Service tier of price ${place + 1}`,
              row.service_tier,
              TIERS.map((tier) => [tier, tier]),
              (value) => change(place, "service_tier", value),
            )}
            ${PRICES.map(([name, title]) =>
              cell(`${title} of price ${place + 1}`, row[name], (value) => change(place, name, value), {
                inputmode: "decimal",
                placeholder: name === "cached_input" ? "as input" : "0.00",
                ...wrong(place, name),
              }),
            )}
            <${Button} kind="quiet" icon="trash" label="Remove price ${place + 1}" onClick=${() => remove(place)} />
          </div>
        `,
      )}
      <div>
        <${Button} small icon="plus" onClick=${() => add(NEW_ENTRY)}>
          Add a price
        <//>
      </div>
      ${errors.map(
        (error) => html`
          <p key=${error} class="field-error" role="alert">
            ${error}
          </p>
        `,
      )}
    </fieldset>
  `;
}

export function Discounts({ form }) {
  const projects = (useProjects() ?? []).filter(({ status }) => status !== "archived");
  const { rows, add, change, remove, wrong, errors } = useRows(form, "discounts");
  const free = projects.find(({ id }) => !rows.some((row) => row.project_id === id));
  return html`
    <fieldset class="rows">
      <legend class="label">
        Discounts <span class="faint">of single tenants, on every price</span>
      </legend>
      ${rows.map(
        (row, place) => html`
          <div class="discount-row" key=${place}>
            ${choose(
              `Tenant of discount ${place + 1}`,
              row.project_id,
              projects.map(({ id, name }) => [id, name]),
              (value) => change(place, "project_id", value),
            )}
            ${cell(`Percent of discount ${place + 1}`, row.percent, (value) => change(place, "percent", value), {
              inputmode: "decimal",
              placeholder: "10",
              ...wrong(place, "percent"),
            })}
            <span aria-hidden="true">%</span>
            <${Button} kind="quiet" icon="trash" label="Remove discount ${place + 1}" onClick=${() => remove(place)} />
          </div>
        `,
      )}
      ${
        free &&
        html`
          <div>
            <${Button} small icon="plus" onClick=${() => add({ project_id: free.id, percent: "" })}>
              Add a discount
            <//>
          </div>
        `
      }
      ${errors.map(
        (error) => html`
          <p key=${error} class="field-error" role="alert">
            ${error}
          </p>
        `,
      )}
    </fieldset>
  `;
}
