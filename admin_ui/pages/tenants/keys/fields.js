// The fields of forms about a key, the same for a new key and for a change.

import { Choices } from "../../../components/choices.js";
import { Checkbox, Select, TextArea, TextField } from "../../../components/form.js";
import { named } from "../../../lib/rules/checks.js";
import { useApi } from "../../../lib/data.js";
import { html } from "../../../lib/html.js";
import { pathOf } from "../../../lib/projects_api.js";
import { can } from "../../../lib/session.js";
import { now, short } from "../../../lib/format/time.js";

export const SCOPES = [
  ["inference", "Use models", "Chat, completions, embeddings and reranking, and feedback on them"],
  ["feedback", "Post feedback", "And nothing else: fit for an app on its users' devices"],
  ["adapters", "Manage adapters", "Upload, promote and delete over the API"],
  ["experiments", "Run experiments", "Create, start, read and decide them, with “lorikeet experiment” or over the API"],
  ["usage", "Read usage", "Tokens and cost of this tenant"],
];
const DAY_S = 86_400;
const EXPIRIES = [
  ["never", "Never"],
  ["7", "In 7 days"],
  ["30", "In 30 days"],
  ["90", "In 90 days"],
  ["365", "In a year"],
  ["date", "On a day …"],
];

const NETWORK = /^[\da-f.:]+(\/\d{1,3})?$/i;
const split = (networks) => networks.split(/[\s,]+/).filter(Boolean);

/** Return the values of a form for an existing key, or for a new one. */
export function valuesOf(key) {
  return {
    name: key?.name ?? "",
    scopes: key?.scopes ?? ["inference"],
    expires_at: key?.expires_at ? "same" : "never",
    date: "",
    models: key?.models ?? null,
    ip_allowlist: (key?.ip_allowlist ?? []).join("\n"),
    service_account_id: "",
  };
}

/** Return what is wrong with the values, by field. */
export function checkKey({ name, scopes, expires_at: when, date, models, ip_allowlist: networks }) {
  const day = date && Date.parse(`${date}T23:59:59`);
  return {
    name: named(name),
    scopes: scopes.length ? undefined : "Choose what it may do.",
    date: when !== "date" || day / 1000 > now() ? undefined : day ? "That day is over." : "Choose the last day.",
    models: models?.length === 0 ? "Choose at least one, or all." : undefined,
    ip_allowlist: split(networks).every((text) => NETWORK.test(text))
      ? undefined
      : "Addresses or networks, such as 203.0.113.7 or 203.0.113.0/24, one a line.",
  };
}

/** Return the values as the API takes them. */
export function bodyOf(values, key) {
  const networks = split(values.ip_allowlist);
  return {
    name: values.name.trim(),
    scopes: values.scopes,
    expires_at: expiry(values, key),
    models: values.models,
    ip_allowlist: networks.length ? networks : null,
    ...(values.service_account_id && { service_account_id: values.service_account_id }),
  };
}

function expiry({ expires_at: when, date }, key) {
  if (when === "same") return key.expires_at;
  if (when === "never") return null;
  return when === "date" ? Math.floor(Date.parse(`${date}T23:59:59`) / 1000) || 0 : now() + Number(when) * DAY_S;
}

export function KeyFields({ form, projectId, apiKey, accounts = [] }) {
  const { values } = form;
  const expiries = apiKey?.expires_at ? [["same", `As it is: ${short(apiKey.expires_at)}`], ...EXPIRIES] : EXPIRIES;
  return html`
    <${TextField}
      ...${form.bind("name")}
      label="Name"
      hint="Where it is used, such as “checkout in production”."
      maxlength="64"
      autofocus
      autocomplete="off"
    />
    ${
      accounts.length > 0 &&
      html`
        <${Select}
          ...${form.bind("service_account_id")}
          label="Owner"
          options=${[["", "Me"], ...accounts.map(({ id, name }) => [id, `Service account ${name}`])]}
          hint="A service account's key goes on when people leave."
        />
      `
    }
    <${Choices} ...${form.bind("scopes")} label="It may" options=${SCOPES} />
    <${Select} ...${form.bind("expires_at")} label="Expires" options=${expiries} />
    ${values.expires_at === "date" && html`<${TextField} ...${form.bind("date")} label="Last day" type="date" />`}
    <${Models} ...${form.bind("models")} projectId=${projectId} />
    <${TextArea}
      ...${form.bind("ip_allowlist")}
      label="Networks"
      optional
      rows=${2}
      placeholder="203.0.113.0/24"
      hint="Addresses or networks that it may be used from, one a line. Empty: from anywhere."
      spellcheck="false"
    />
  `;
}

/** The choice of models. value: the ids of models, null for all. */
function Models({ projectId, value, onValue, error }) {
  // The one list of the admin API that names all models that a project can call.
  const known = useApi(can("limits.read", projectId) ? pathOf(projectId, "/rate_limits") : null, { limit: 100 });
  const ids = [...new Set([...(known.data?.data ?? []).map(({ model }) => model), ...(value ?? [])])];
  return html`
    <div class="field">
      <span class="label">Models</span>
      <${Checkbox}
        label="All, those to come too"
        value=${value === null}
        onValue=${(all) => onValue(all ? null : ids.slice(0, 1))}
      />
      ${
        value !== null &&
        html`
          <div class="choices-scroll">
            <${Choices}
              label="Only these"
              value=${value}
              onValue=${onValue}
              options=${ids.map((id) => [id, id])}
              error=${error}
            />
          </div>
        `
      }
    </div>
  `;
}
