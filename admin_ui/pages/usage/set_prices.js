// A new version of the price book: begun from the latest one, since each version is complete.

import { Button } from "../../components/button.js";
import { Dialog } from "../../components/dialog.js";
import { Form, TextField, useForm } from "../../components/form.js";
import { Icon } from "../../components/icons.js";
import { toast } from "../../components/toast.js";
import { fromNanos, toNanos } from "../../lib/format/amount.js";
import { post } from "../../lib/api.js";
import { invalidate } from "../../lib/data.js";
import { html } from "../../lib/html.js";
import { useProjects } from "../../lib/projects.js";

const TIERS = ["*", "default", "flex", "priority", "batch", "shadow"];
const PRICES = [
  ["input", "Input"],
  ["cached_input", "Cached input"],
  ["output", "Output"],
];
const NEW_ENTRY = { model: "*", adapter_class: "*", service_tier: "*", input: "", cached_input: "", output: "" };

const typed = (entry) => ({
  ...entry,
  ...Object.fromEntries(PRICES.map(([name]) => [name, fromNanos(entry[`${name}_nanos_per_million`])])),
});

const basisPoints = (percent) => Math.round(Number(String(percent).replace(",", ".")) * 100);
const LABEL = /^(\*|[A-Za-z0-9._-]{1,64})$/;

/** What is wrong, by place and field: "entries.0.input". */
function check({ entries, discounts, currency, effective_at: at }) {
  const wrong = {};
  entries.forEach((entry, place) => {
    for (const [name] of PRICES) {
      const isLeftOut = name === "cached_input" && entry[name] === "";
      if (!isLeftOut && toNanos(entry[name]) === null)
        wrong[`entries.${place}.${name}`] = "Amounts are such as 0.25, with at most nine decimal places.";
    }
    const [input, cached] = [toNanos(entry.input), toNanos(entry.cached_input)];
    if (input !== null && cached > input)
      wrong[`entries.${place}.cached_input`] = "The price of cached input must not be higher than the price of input.";
    if (!entry.model.trim()) wrong[`entries.${place}.model`] = "Name a model, or * for any.";
    if (!LABEL.test(entry.adapter_class.trim()))
      wrong[`entries.${place}.adapter_class`] =
        "A class is letters, digits, dots, dashes and underlines, or * for any.";
  });
  discounts.forEach(({ percent }, place) => {
    const points = basisPoints(percent);
    if (!(points >= 1 && points <= 10_000))
      wrong[`discounts.${place}.percent`] = "Discounts are percentages from 0.01 to 100.";
  });
  if (entries.length === 0) wrong.entries = "Add at least one price.";
  if (!/^[a-z]{3}$/i.test(currency.trim())) wrong.currency = "Three letters, such as usd.";
  if (at && !(Date.parse(at) > 0)) wrong.effective_at = "That is no time.";
  return wrong;
}

function sent(values) {
  return {
    currency: values.currency.trim().toLowerCase(),
    entries: values.entries.map((entry) => ({
      model: entry.model.trim(),
      adapter_class: entry.adapter_class.trim(),
      service_tier: entry.service_tier,
      input_nanos_per_million: toNanos(entry.input),
      output_nanos_per_million: toNanos(entry.output),
      ...(entry.cached_input !== "" && { cached_input_nanos_per_million: toNanos(entry.cached_input) }),
    })),
    discounts: values.discounts.map(({ project_id: id, percent }) => ({
      project_id: id,
      basis_points: basisPoints(percent),
    })),
    ...(values.effective_at && { effective_at: Math.floor(Date.parse(values.effective_at) / 1000) }),
  };
}

/** from: the version that it begins from, if there is one. onDone(version). */
export function SetPrices({ from, onClose, onDone }) {
  const form = useForm(
    {
      currency: from?.currency ?? "usd",
      entries: from?.entries.map(typed) ?? [NEW_ENTRY],
      discounts:
        from?.discounts.map((each) => ({
          project_id: each.project_id,
          percent: String(each.basis_points / 100),
        })) ?? [],
      effective_at: "",
    },
    async (values) => {
      const made = await post("/prices", sent(values));
      invalidate("/prices");
      toast(`Version ${made.version} of the prices is set`);
      onDone(made);
    },
    check,
  );
  return html`
    <${Dialog} title="New prices" wide onClose=${onClose}>
      <${Form} form=${form} verb="Set prices" what="set the prices" onCancel=${onClose}>
        <p class="hint">It replaces the version before it as a whole. What was billed stays as it was.</p>
        <${Entries} form=${form} />
        <${Discounts} form=${form} />
        <div class="grid-2">
          <${TextField}
            label="In force from"
            type="datetime-local"
            optional
            hint="In your time zone. Empty: as soon as every gateway knows, in seconds."
            ...${form.bind("effective_at")}
          />
          <${TextField}
            label="Currency"
            maxlength="3"
            disabled=${from !== undefined}
            hint=${from ? "It can't change any more." : "Three letters, such as usd or eur. It can't change later."}
            ...${form.bind("currency")}
          />
        </div>
      <//>
    <//>
  `;
}

/** Rows of a list in a form: add, change, remove. */
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

function Entries({ form }) {
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

function Discounts({ form }) {
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
