// Setting a limit, or giving one another maximum. Whom it bounds can't be changed: that would be another limit.

import { Dialog } from "../../../components/dialog.js";
import { Form, Select, TextField, useForm } from "../../../components/form.js";
import { toast } from "../../../components/toast.js";
import { post } from "../../../lib/api.js";
import { invalidate, useApi } from "../../../lib/data.js";
import { html } from "../../../lib/html.js";
import { pathOf } from "../../../lib/projects_api.js";
import { isInUse } from "../keys/state.js";
import { COUNTED, UNITS, titleOf } from "./words.js";

const NANOS = 1e9;
const MIB = 2 ** 20;
const WINDOWS = [["minute", "per minute"], ["day", "per day, in UTC"], ["month", "per month, in UTC"]];
const ONE = ["none", "in one request"];

/** base: path of the limits. limit: to change, null for a new one. keysOnly: the reader may bound keys alone. preset: values to begin with. */
export function SetLimit({ base, projectId, limit = null, preset = {}, keysOnly = false, currency, onClose }) {
  const keys = useApi(projectId ? pathOf(projectId, "/api_keys") : null, { limit: 100 });
  const models = useApi(projectId ? pathOf(projectId, "/rate_limits") : null, { limit: 100 });
  const form = useForm(valuesOf(limit, preset), async (values) => {
    await post(base, bodyOf(values));
    invalidate(base);
    toast(limit ? "The limit is changed" : "The limit holds now");
    onClose();
  });
  const { unit, hard } = form.values;
  const setUnit = (next) => {
    form.set("unit", next);
    if (!COUNTED.includes(next)) form.set("window", "none");
    else if (form.values.window === "none") form.set("window", "day");
    if (!COUNTED.includes(next)) form.set("hard", "true");
  };
  const keyOptions = (keys.data?.data ?? []).filter(isInUse).map(({ id, name }) => [id, name]);
  const modelOptions = (models.data?.data ?? []).map(({ model }) => [model, model]);
  const windows = ["tokens", "input_tokens", "output_tokens"].includes(unit) && hard === "true" ? [...WINDOWS, ONE] : WINDOWS;
  return html`<${Dialog} title=${limit ? `Change ${titleOf(limit).toLowerCase()}` : "New limit"} onClose=${onClose}>
    <${Form} form=${form} verb=${limit ? "Save" : "Set limit"} what="set the limit" onCancel=${onClose}>
      ${!limit && html`<${Select} ...${form.bind("unit")} onValue=${setUnit} label="Of" options=${Object.entries(UNITS)} />`}
      <${TextField} ...${form.bind("max")} label="At most${unit === "cost_nanos" ? `, in ${currency.toUpperCase()}` : unit === "storage_bytes" ? ", in MiB" : ""}" type="number" min="0" step="any" inputmode="decimal" autofocus />
      ${!limit && COUNTED.includes(unit) && html`<${Select} ...${form.bind("window")} label="Counted" options=${windows} />`}
      ${!limit && projectId && html`
        <${Select} ...${form.bind("api_key_id")} label="Of whom" options=${[...(keysOnly ? [["", "Choose a key"]] : [["", "The whole tenant"]]), ...keyOptions.map(([id, name]) => [id, `Key ${name}`])]} />
        ${unit !== "storage_bytes" && html`<${Select} ...${form.bind("model")} label="Of which model" options=${[["", "All models together"], ...modelOptions]} />`}
      `}
      ${!limit && COUNTED.includes(unit) && html`<${Select} ...${form.bind("hard")} label="At its end" options=${[["true", "Refuse requests"], ["false", "Only alert"]]} />`}
      ${COUNTED.includes(unit) && form.values.window !== "none" && html`<${TextField} ...${form.bind("alert_percents")} label="Alert at, in %" optional hint="Webhooks are called when use crosses these shares, such as 80, 100." />`}
    <//>
  <//>`;
}

function valuesOf(limit, preset) {
  if (!limit) return { unit: "tokens", max: "", window: "day", hard: "true", model: "", api_key_id: "", alert_percents: "80, 100", ...preset };
  const { unit, window, max, hard, model, api_key_id: key, alert_percents: percents } = limit;
  return { unit, window, max: String(max / sizeOf(unit)), hard: String(hard), model: model ?? "", api_key_id: key ?? "", alert_percents: percents.join(", ") };
}

const sizeOf = (unit) => (unit === "cost_nanos" ? NANOS : unit === "storage_bytes" ? MIB : 1);

function bodyOf({ unit, max, window, hard, model, api_key_id: key, alert_percents: percents }) {
  const counted = COUNTED.includes(unit) && window !== "none";
  return {
    unit,
    max: max === "" ? null : Math.round(Number(max) * sizeOf(unit)),
    window: COUNTED.includes(unit) ? window : "none",
    hard: hard === "true",
    ...(model && unit !== "storage_bytes" && { model }),
    ...(key && { api_key_id: key }),
    ...(counted && { alert_percents: percents.split(/[\s,%]+/).filter(Boolean).map(Number) }),
  };
}
