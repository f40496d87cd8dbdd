// The fields for the parameters of the playground's requests. Numbers are in the URL; texts, which may be somebody's,
// are not.

import { Button } from "../../components/button.js";
import { ErrorBox } from "../../components/feedback.js";
import { Checkbox, Select, TextArea, TextField } from "../../components/form.js";
import { Time } from "../../components/numbers.js";
import { Choice } from "../../components/tabs.js";
import { exactly } from "../../lib/format/format.js";
import { html, useState } from "../../lib/html.js";
import { useProjects } from "../../lib/projects.js";
import { setQuery, useLocation } from "../../lib/router.js";
import { checkSampling } from "../../lib/rules/sampling.js";
import { can, isMember } from "../../lib/session.js";
import { APIS } from "./apis.js";
import { forget, paste } from "./key.js";

const NUMBERS = [
  ["temperature", "Temperature", "0 to 2"],
  ["top_p", "Top p", "0 to 1"],
  ["max_tokens", "Max tokens", "Of the answer"],
  ["seed", "Seed", "The same one, the same answer"],
];

/** The names of settings in Responses that differ from ours. */
const API_NAMES = { system: "instructions", max_tokens: "max_output_tokens", schema: "text.format" };

const MAX_STOPS = 4;
const MAX_STOP_CHARS = 1024;

/**
 * Return {values, set, problem, asked}. asked: the settings of a request, as `body` of APIS takes them; problem: {name:
 * sentence} of settings that are wrong.
 */
export function useSettings() {
  const { query } = useLocation();
  const [texts, setTexts] = useState({ system: "", schema: "" });
  const values = {
    ...texts,
    ...Object.fromEntries(
      [...NUMBERS.map(([name]) => name), "stop", "api", "store"].map((name) => [name, query.get(name) ?? ""]),
    ),
  };
  const set = (name, value) =>
    name in texts ? setTexts((was) => ({ ...was, [name]: value })) : setQuery({ [name]: value });
  const problem = checkSampling(values);
  const asked = {
    system: values.system,
    numbers: Object.fromEntries(
      NUMBERS.filter(([name]) => values[name].trim() !== "").map(([name]) => [name, Number(values[name])]),
    ),
    store: values.store !== "",
  };
  const stop = values.stop.split("\n").filter(Boolean);
  if (stop.length) asked.stop = stop;
  if (stop.length > MAX_STOPS) problem.stop = `At most ${MAX_STOPS} texts, one a line.`;
  else if (stop.some((text) => [...text].length > MAX_STOP_CHARS))
    problem.stop = `Each is at most ${exactly(MAX_STOP_CHARS)} characters long.`;
  if (values.schema.trim()) {
    try {
      asked.schema = JSON.parse(values.schema);
    } catch (error) {
      problem.schema = `It is not valid JSON: ${error.message}.`;
    }
  }
  return { values, set, problem, asked };
}

/** Return the name of the chosen API in APIS. */
export const apiOf = ({ api }) => (Object.hasOwn(APIS, api) ? api : "chat");

export function Settings({ settings: { values, set, problem }, error }) {
  const names = (name) => error && (error.param === name || error.param === API_NAMES[name]);
  const bind = (name) => ({
    name,
    value: values[name],
    onValue: (value) => set(name, value),
    error: problem[name] ?? (names(name) ? error.message : undefined),
  });
  return html`
    <aside class="play-settings stack" aria-label="Settings">
      <${Choice}
        label="API"
        value=${apiOf(values)}
        onValue=${(name) => set("api", name === "chat" ? null : name)}
        options=${Object.entries(APIS).map(([name, { title }]) => [name, title])}
      />
      ${
        apiOf(values) === "responses" &&
        html`
          <${Checkbox}
            label="Store the answers"
            value=${values.store !== ""}
            onValue=${(on) => set("store", on ? "yes" : null)}
            hint="Each goes on from the one before by its id, where the tenant's settings allow that."
          />
        `
      }
      <${TextArea} ...${bind("system")} label="System prompt" rows=${3} placeholder="The model's own" />
      <div class="field-grid">
        ${NUMBERS.map(
          ([name, label, hint]) => html`
            <${TextField}
              key=${name}
              ...${bind(name)}
              label=${label}
              hint=${hint}
              inputmode="decimal"
              autocomplete="off"
              placeholder="default"
            />
          `,
        )}
      </div>
      <${TextArea}
        ...${bind("stop")}
        label="Stop at"
        hint="One text a line, at most four."
        rows=${1}
        placeholder="nothing"
      />
      <details open=${values.schema !== ""}>
        <summary>JSON schema</summary>
        <${TextArea}
          ...${bind("schema")}
          label="Schema"
          hint="The answer is held to it, token by token."
          rows=${6}
          spellcheck=${false}
          placeholder=${'{"type": "object", "properties": {…}}'}
        />
      </details>
    </aside>
  `;
}

/** The fields for the tenant, and for the key with which requests are sent. */
export function Access({ projectId, access, onProject }) {
  const projects = (useProjects() ?? []).filter(({ status }) => status !== "archived");
  const mayMake = projectId !== null && can("keys.write", projectId);
  const [pasting, setPasting] = useState(false);
  const [typed, type] = useState("");
  const [error, setError] = useState(null);
  const use = (event) => {
    event.preventDefault();
    if (!typed.trim()) return;
    paste(typed.trim());
    type("");
    setPasting(false);
  };
  const showPaste = !access && (pasting || (!mayMake && (projectId !== null || isMember())));
  return html`
    <section class="stack play-access" aria-label="Tenant and key">
      ${
        !isMember() &&
        html`
          <${Select}
            label="Tenant"
            hint="Its adapters can be called, and it is charged."
            value=${projectId ?? ""}
            onValue=${onProject}
            options=${[["", "Choose a tenant"], ...projects.map(({ id, name }) => [id, name])]}
          />
        `
      }
      ${
        access
          ? html`
            <p class="hint">
              Calls with ${access.id ? "a key made for this page" : "the key you pasted"}, <code>${access.shown}</code>
              ${access.expiresAt ? html`, until <${Time} at=${access.expiresAt} />` : ""}
              , which is kept in memory only.${" "}
              <button type="button" class="link" onClick=${() => forget(access).then(() => setError(null), setError)}>
                ${access.id ? "Revoke it" : "Forget it"}
              </button>
            </p>
          `
          : mayMake &&
            !pasting &&
            html`
              <p class="hint">
                The first message makes a key for an hour, which is kept in this page's memory only.${" "}
                <button type="button" class="link" onClick=${() => setPasting(true)}>
                  Paste a key instead
                </button>
              </p>
            `
      }
      <${ErrorBox} error=${error} what="revoke the key" />
      ${
        showPaste &&
        html`
          <form class="stack" onSubmit=${use}>
            <${TextField}
              label="API key"
              type="password"
              value=${typed}
              onValue=${type}
              autocomplete="off"
              hint=${
                mayMake
                  ? "It is kept in this page's memory only."
                  : "Your role makes no keys here: paste one. It is kept in this page's memory only."
              }
            />
            <div class="row">
              <${Button} type="submit">Use this key<//>
              ${
                mayMake &&
                html`
                  <${Button} kind="quiet" onClick=${() => setPasting(false)}>
                    Make one
                  <//>
                `
              }
            </div>
          </form>
        `
      }
    </section>
  `;
}
