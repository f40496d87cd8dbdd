// A new version of the price book: begun from the latest one, since each version is complete.

import { Button } from "../../components/button.js";
import { Dialog } from "../../components/dialog.js";
import { Form, TextField, useForm } from "../../components/form.js";
import { Icon } from "../../components/icons.js";
import { toast } from "../../components/toast.js";
import { fromNanos, toNanos } from "../../lib/amount.js";
import { ApiError, post } from "../../lib/api.js";
import { invalidate } from "../../lib/data.js";
import { html } from "../../lib/html.js";
import { useProjects } from "../../lib/projects.js";

const TIERS = ["*", "default", "flex", "priority", "batch"];
const PRICES = [["input", "Input"], ["cached_input", "Cached input"], ["output", "Output"]];
const NEW_ENTRY = { model: "*", adapter_class: "*", service_tier: "*", input: "", cached_input: "", output: "" };

const typed = (entry) => ({
  ...entry,
  ...Object.fromEntries(PRICES.map(([name]) => [name, fromNanos(entry[`${name}_nanos_per_million`])])),
});

function sent(values) {
  const amount = (text, param, title) => {
    const nanos = toNanos(text);
    if (nanos === null) throw new ApiError({ status: 400, param, message: `${title}: expected an amount such as 0.25.` });
    return nanos;
  };
  return {
    currency: values.currency.trim().toLowerCase(),
    entries: values.entries.map((entry, place) => ({
      model: entry.model.trim(),
      adapter_class: entry.adapter_class.trim(),
      service_tier: entry.service_tier,
      input_nanos_per_million: amount(entry.input, "entries", `Price ${place + 1}, input`),
      output_nanos_per_million: amount(entry.output, "entries", `Price ${place + 1}, output`),
      ...(entry.cached_input !== "" && { cached_input_nanos_per_million: amount(entry.cached_input, "entries", `Price ${place + 1}, cached input`) }),
    })),
    discounts: values.discounts.map(({ project_id: id, percent }, place) => {
      const points = Math.round(Number(String(percent).replace(",", ".")) * 100);
      if (!(points >= 1 && points <= 10_000)) throw new ApiError({ status: 400, param: "discounts", message: `Discount ${place + 1}: expected a percentage from 0.01 to 100.` });
      return { project_id: id, basis_points: points };
    }),
    ...(values.effective_at && { effective_at: Math.floor(Date.parse(values.effective_at) / 1000) }),
  };
}

/** from: the version that it begins from, if there is one. onDone(version). */
export function SetPrices({ from, onClose, onDone }) {
  const form = useForm(
    {
      currency: from?.currency ?? "usd",
      entries: from?.entries.map(typed) ?? [NEW_ENTRY],
      discounts: from?.discounts.map((each) => ({ project_id: each.project_id, percent: String(each.basis_points / 100) })) ?? [],
      effective_at: "",
    },
    async (values) => {
      const made = await post("/prices", sent(values));
      invalidate("/prices");
      toast(`Version ${made.version} of the prices is set`);
      onDone(made);
    },
  );
  return html`<${Dialog} title="New prices" wide onClose=${onClose}>
    <${Form} form=${form} verb="Set prices" what="set the prices" onCancel=${onClose}>
      <p class="hint">It replaces the version before it as a whole. What was billed stays as it was.</p>
      <${Entries} form=${form} />
      <${Discounts} form=${form} />
      <div class="grid-2">
        <${TextField} label="In force from" type="datetime-local" optional hint="In your time zone. Empty: as soon as every gateway knows, in seconds." ...${form.bind("effective_at")} />
        <${TextField} label="Currency" maxlength="3" disabled=${from !== undefined} hint=${from ? "It can't change any more." : "Three letters, such as usd or eur. It can't change later."} ...${form.bind("currency")} />
      </div>
    <//>
  <//>`;
}

/** Rows of a list in a form: add, change, remove. */
function useRows(form, name) {
  const rows = form.values[name];
  return {
    rows,
    add: (row) => form.set(name, [...rows, row]),
    change: (place, field, value) => form.set(name, rows.map((row, at) => (at === place ? { ...row, [field]: value } : row))),
    remove: (place) => form.set(name, rows.filter((_, at) => at !== place)),
    error: form.errors[name],
  };
}

const cell = (label, value, onValue, more = {}) =>
  html`<input class="input" aria-label=${label} value=${value} onInput=${(event) => onValue(event.target.value)} ...${more} />`;

const choose = (label, value, options, onValue) => html`<span class="select"><select class="input" aria-label=${label} value=${value} onChange=${(event) => onValue(event.target.value)}>
  ${options.map(([key, title]) => html`<option key=${key} value=${key} selected=${key === value}>${title}</option>`)}
</select><${Icon} name="down" /></span>`;

function Entries({ form }) {
  const { rows, add, change, remove, error } = useRows(form, "entries");
  return html`<fieldset class="rows">
    <legend class="label">Prices <span class="faint">per million tokens; * is any</span></legend>
    <div class="price-row rows-head" aria-hidden="true"><span>Model</span><span>Class</span><span>Tier</span>${PRICES.map(([, title]) => html`<span>${title}</span>`)}<span></span></div>
    ${rows.map((row, place) => html`<div class="price-row" key=${place}>
      ${cell(`Model of price ${place + 1}`, row.model, (value) => change(place, "model", value))}
      ${cell(`Adapter class of price ${place + 1}`, row.adapter_class, (value) => change(place, "adapter_class", value), { title: "none: the base without an adapter" })}
      ${choose(`Service tier of price ${place + 1}`, row.service_tier, TIERS.map((tier) => [tier, tier]), (value) => change(place, "service_tier", value))}
      ${PRICES.map(([name, title]) => cell(`${title} of price ${place + 1}`, row[name], (value) => change(place, name, value), { inputmode: "decimal", placeholder: name === "cached_input" ? "as input" : "0.00" }))}
      <${Button} kind="quiet" icon="trash" label="Remove price ${place + 1}" onClick=${() => remove(place)} />
    </div>`)}
    <div><${Button} small icon="plus" onClick=${() => add(NEW_ENTRY)}>Add a price<//></div>
    ${error && html`<p class="field-error" role="alert">${error}</p>`}
  </fieldset>`;
}

function Discounts({ form }) {
  const projects = (useProjects() ?? []).filter(({ status }) => status !== "archived");
  const { rows, add, change, remove, error } = useRows(form, "discounts");
  const free = projects.find(({ id }) => !rows.some((row) => row.project_id === id));
  return html`<fieldset class="rows">
    <legend class="label">Discounts <span class="faint">of single tenants, on every price</span></legend>
    ${rows.map((row, place) => html`<div class="discount-row" key=${place}>
      ${choose(`Tenant of discount ${place + 1}`, row.project_id, projects.map(({ id, name }) => [id, name]), (value) => change(place, "project_id", value))}
      ${cell(`Percent of discount ${place + 1}`, row.percent, (value) => change(place, "percent", value), { inputmode: "decimal", placeholder: "10" })}<span aria-hidden="true">%</span>
      <${Button} kind="quiet" icon="trash" label="Remove discount ${place + 1}" onClick=${() => remove(place)} />
    </div>`)}
    ${free && html`<div><${Button} small icon="plus" onClick=${() => add({ project_id: free.id, percent: "" })}>Add a discount<//></div>`}
    ${error && html`<p class="field-error" role="alert">${error}</p>`}
  </fieldset>`;
}
