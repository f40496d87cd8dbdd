// The form that sets a limit, or gives a limit another maximum. Its scope can't be changed: that would be another
// limit.

import { Button } from "../../../components/button.js";
import { Dialog } from "../../../components/dialog.js";
import { Notice } from "../../../components/feedback.js";
import { Form, Select, TextField, useForm } from "../../../components/form.js";
import { toast } from "../../../components/toast.js";
import { fromNanos, toNanos } from "../../../lib/format/amount.js";
import { pages, post } from "../../../lib/api.js";
import { given, whole } from "../../../lib/rules/checks.js";
import { invalidate, useApi } from "../../../lib/data.js";
import { html, useState } from "../../../lib/html.js";
import { pathOf } from "../../../lib/projects_api.js";
import { isInUse } from "../keys/state.js";
import { COUNTED, OF_NO_KEY, UNITS, shownAs, titleOf } from "./words.js";

const MIB = 2 ** 20;
const WINDOWS = [
  ["minute", "per minute"],
  ["day", "per day, in UTC"],
  ["month", "per month, in UTC"],
];
const ONE = ["none", "in one request"];

/**
 * The form of a limit. base: the path of the limits. limit: the limit to change, null for a new one. keysOnly: the
 * reader may set limits of keys alone. preset: initial values. onChange(limit): called to change a limit that exists
 * already.
 */
export function SetLimit({
  base,
  projectId,
  limit = null,
  preset = {},
  keysOnly = false,
  currency,
  onChange,
  onClose,
}) {
  const [same, setSame] = useState(null);
  const keys = useApi(projectId ? pathOf(projectId, "/api_keys") : null, { limit: 100 });
  const models = useApi(projectId ? pathOf(projectId, "/rate_limits") : null, { limit: 100 });
  const form = useForm(
    valuesOf(limit, preset),
    async (values) => {
      const body = bodyOf(values);
      const found = limit ? null : await sameAs(base, body);
      setSame(found);
      if (found) return;
      await post(base, body);
      invalidate(base);
      toast(limit ? "The limit is changed" : "The limit holds now");
      onClose();
    },
    (values) => complaints(values, { currency, keysOnly }),
  );
  const { unit, hard } = form.values;
  const setUnit = (next) => {
    form.set("unit", next);
    if (!COUNTED.includes(next)) form.set("window", "none");
    else if (form.values.window === "none") form.set("window", "day");
    if (!COUNTED.includes(next)) form.set("hard", "true");
  };
  const keyOptions = (keys.data?.data ?? []).filter(isInUse).map(({ id, name }) => [id, name]);
  const modelOptions = (models.data?.data ?? []).map(({ model }) => [model, model]);
  const windows =
    ["tokens", "input_tokens", "output_tokens"].includes(unit) && hard === "true" ? [...WINDOWS, ONE] : WINDOWS;
  return html`
    <${Dialog} title=${limit ? `Change ${titleOf(limit).toLowerCase()}` : "New limit"} onClose=${onClose}>
      <${Form} form=${form} verb=${limit ? "Save" : "Set limit"} what="set the limit" onCancel=${onClose}>
        ${
          !limit &&
          html`<${Select} ...${form.bind("unit")} onValue=${setUnit} label="Of" options=${Object.entries(UNITS)} />`
        }
        <${TextField}
          ...${form.bind("max")}
          label="At most${unit === "cost_nanos" ? `, in ${currency.toUpperCase()}` : unit === "storage_bytes" ? ", in MiB" : ""}"
          inputmode="decimal"
          autocomplete="off"
          autofocus
        />
        ${
          !limit &&
          COUNTED.includes(unit) &&
          html`<${Select} ...${form.bind("window")} label="Counted" options=${windows} />`
        }
        ${
          !limit &&
          projectId &&
          html`
            ${
              !OF_NO_KEY.includes(unit) &&
              html`
                <${Select}
                  ...${form.bind("api_key_id")}
                  label="Of whom"
                  options=${[
                    ...(keysOnly ? [["", "Choose a key"]] : [["", "The whole tenant"]]),
                    ...keyOptions.map(([id, name]) => [id, `Key ${name}`]),
                  ]}
                />
              `
            }
            ${
              unit !== "storage_bytes" &&
              html`
                <${Select}
                  ...${form.bind("model")}
                  label="Of which model"
                  options=${[["", "All models together"], ...modelOptions]}
                />
              `
            }
          `
        }
        ${
          !limit &&
          COUNTED.includes(unit) &&
          html`
            <${Select}
              ...${form.bind("hard")}
              label="At its end"
              options=${[["true", "Refuse requests"], ["false", "Only alert"]]}
            />
          `
        }
        ${
          COUNTED.includes(unit) &&
          form.values.window !== "none" &&
          html`
            <${TextField}
              ...${form.bind("alert_percents")}
              label="Alert at, in %"
              optional
              hint="Webhooks are called when use crosses these shares, such as 80, 100."
            />
          `
        }
        ${
          same &&
          html`
            <${Notice}
              tone="warn"
              title="There is one already"
              action=${html`<${Button} small onClick=${() => onChange(same)}>
                  Change it
                <//>`}
            >
              ${titleOf(same)}: at most ${shownAs(same.unit, currency)(same.max)}. Nothing was changed.
            <//>
          `
        }
      <//>
    <//>
  `;
}

function valuesOf(limit, preset) {
  if (!limit)
    return {
      unit: "tokens",
      max: "",
      window: "day",
      hard: "true",
      model: "",
      api_key_id: "",
      alert_percents: "80, 100",
      ...preset,
    };
  const { unit, window, max, hard, model, api_key_id: key, alert_percents: percents } = limit;
  const shown = unit === "cost_nanos" ? fromNanos(max) : String(unit === "storage_bytes" ? max / MIB : max);
  return {
    unit,
    window,
    max: shown,
    hard: String(hard),
    model: model ?? "",
    api_key_id: key ?? "",
    alert_percents: percents.join(", "),
  };
}

/** Return the maximum in the API's unit: a whole number, nanos of the currency, or bytes. */
function amountOf({ unit, max }) {
  return unit === "cost_nanos" ? toNanos(max) : Number(max) * (unit === "storage_bytes" ? MIB : 1);
}

const percentsOf = (text) => text.split(/[\s,;%]+/).filter(Boolean);

const isAlerting = ({ unit, window }) => COUNTED.includes(unit) && window !== "none";

function complaints(values, { currency, keysOnly }) {
  const percents = percentsOf(values.alert_percents);
  const isRight = percents.length <= 10 && percents.every((text) => !whole(text, { min: 1, max: 100 }));
  return {
    max: amountComplaint(values, currency),
    api_key_id: keysOnly ? given(values.api_key_id, "Choose the key.") : undefined,
    alert_percents:
      !isAlerting(values) || isRight ? undefined : "Whole percentages from 1 to 100, at most ten, such as 80, 100.",
  };
}

function amountComplaint({ unit, max }, currency) {
  const smallest = `The least is 0.000000001 ${currency.toUpperCase()}.`;
  if (unit === "cost_nanos") {
    if (toNanos(max) > 0) return undefined;
    return Number(max) >= 0 && String(max).trim()
      ? `${smallest} To stop a tenant, suspend it.`
      : "Give an amount such as 12.50.";
  }
  if (unit !== "storage_bytes") return whole(max);
  return Number.isInteger(Number(max) * MIB) && Number(max) >= 0 && String(max).trim()
    ? undefined
    : "Give a whole number of MiB.";
}

/** Return the existing limit with the same unit, window, model, key and hardness; null if there is none. */
async function sameAs(base, wanted) {
  for await (const limit of pages(base)) {
    const alike = ["unit", "window", "hard"].every((name) => limit[name] === wanted[name]);
    if (alike && limit.model === (wanted.model ?? null) && limit.api_key_id === (wanted.api_key_id ?? null))
      return limit;
  }
  return null;
}

function bodyOf(values) {
  const { unit, window, hard, model, api_key_id: key, alert_percents: percents } = values;
  return {
    unit,
    max: amountOf(values),
    window: COUNTED.includes(unit) ? window : "none",
    hard: hard === "true",
    ...(model && unit !== "storage_bytes" && { model }),
    ...(key && !OF_NO_KEY.includes(unit) && { api_key_id: key }),
    ...(isAlerting(values) && { alert_percents: percentsOf(percents).map(Number) }),
  };
}
