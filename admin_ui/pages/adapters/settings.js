// The form of an adapter's settings, which hold for all versions: defaults for requests, and whether the adapter stays
// on the engines.

import { Form, TextArea, TextField, useForm } from "../../components/form.js";
import { Notice } from "../../components/feedback.js";
import { Badge } from "../../components/badge.js";
import { Button } from "../../components/button.js";
import { Confirm } from "../../components/dialog.js";
import { Facts, Section } from "../../components/page.js";
import { toast } from "../../components/toast.js";
import { post } from "../../lib/api.js";
import { invalidate } from "../../lib/data.js";
import { exactly } from "../../lib/format/format.js";
import { html, useState } from "../../lib/html.js";
import { checkSampling } from "../../lib/rules/sampling.js";
import { can } from "../../lib/session.js";
import { pathOf } from "./paths.js";

const DEFAULTS_HINT =
  "For requests that do not say otherwise; a request's own values win. They stay when another version is " +
  "promoted.";

const NUMBERS = [
  ["temperature", "Temperature", "0 to 2; 0 takes the likeliest token"],
  ["top_p", "Top p", "0 to 1"],
  ["top_k", "Top k", "How many tokens are left to choose from; 0: all"],
  ["min_p", "Min p", "0 to 1"],
  ["max_tokens", "Max tokens", "Of an answer"],
  ["presence_penalty", "Presence penalty", "−2 to 2"],
  ["frequency_penalty", "Frequency penalty", "−2 to 2"],
  ["repetition_penalty", "Repetition penalty", "0.001 to 2; 1 changes nothing"],
];

const MAX_PROMPT_CHARS = 32_768;

export function Settings({ adapter }) {
  const mayWrite = can("adapters.write", adapter.project_id);
  return html`
    <${Pinning} adapter=${adapter} />
    <${Section}
      title="Defaults"
      hint=${DEFAULTS_HINT}
      card
    >
      ${mayWrite ? html`<${Defaults} adapter=${adapter} />` : html`<${Shown} defaults=${adapter.defaults} />`}
    <//>
  `;
}

function Shown({ defaults }) {
  if (Object.keys(defaults).length === 0) return html`<p class="faint">None is set: requests get the base model's.</p>`;
  return html`
    <${Facts}
      rows=${[...NUMBERS.map(([name, label]) => [label, defaults[name]]), ["System prompt", defaults.system_prompt]]}
    />
  `;
}

function Defaults({ adapter }) {
  const { defaults, name, project_id: projectId } = adapter;
  const initial = Object.fromEntries(
    [...NUMBERS.map(([key]) => key), "system_prompt"].map((key) => [key, String(defaults[key] ?? "")]),
  );
  const form = useForm(
    initial,
    async (values) => {
      const wanted = Object.fromEntries(
        Object.entries(values).map(([key, text]) => [
          key,
          text.trim() === "" ? null : key === "system_prompt" ? text : Number(text),
        ]),
      );
      await post(pathOf(projectId, name), { defaults: wanted });
      invalidate(pathOf(projectId, name));
      toast("The defaults are saved");
    },
    (values) => ({
      ...checkSampling(values),
      system_prompt:
        [...values.system_prompt].length > MAX_PROMPT_CHARS
          ? `It is at most ${exactly(MAX_PROMPT_CHARS)} characters long.`
          : undefined,
    }),
  );
  return html`
    <div class="wide-form">
      <${Form} form=${form} verb="Save defaults" what="save the defaults">
        <div class="field-grid">
          ${NUMBERS.map(
            ([key, label, hint]) => html`
              <${TextField}
                key=${key}
                ...${form.bind(key)}
                label=${label}
                hint=${hint}
                inputmode="decimal"
                autocomplete="off"
                placeholder="not set"
              />
            `,
          )}
        </div>
        <${TextArea}
          ...${form.bind("system_prompt")}
          label="System prompt"
          hint="For conversations that bring none. Whoever may call the adapter can make it tell; keep secrets out."
          rows=${5}
          placeholder="not set"
        />
      <//>
    </div>
  `;
}

function Pinning({ adapter }) {
  const { name, pinned, project_id: projectId } = adapter;
  const [asking, ask] = useState(false);
  const mayPin = can("adapters.write");
  const action = mayPin && html`<${Button} onClick=${() => ask(true)}>${pinned ? "Unpin" : "Pin"}<//>`;
  const text = pinned
    ? "Its current version is kept on every engine, ahead of all that are not pinned."
    : "It is loaded with the first request for it, and makes room when others are asked for more.";
  return html`
    <${Section} title="Priority" actions=${action} card>
      <p class="row">
        <${Badge} dot tone=${pinned ? "good" : ""}>
          ${pinned ? "Pinned" : "Not pinned"}
        <//>${" "}
        ${text}
      </p>
      ${
        !mayPin &&
        html`
          <${Notice}>
            Pinning takes the engines' memory, which is the operator's to give: ask them if the first request takes too
            long.
          <//>
        `
      }
      ${
        asking &&
        html`
          <${Confirm}
            title=${pinned ? `Unpin ${name}?` : `Pin ${name}?`}
            verb=${pinned ? "Unpin" : "Pin"}
            danger=${false}
            onClose=${() => ask(false)}
            act=${async () => {
              await post(pathOf(projectId, name), { pinned: !pinned });
              invalidate(pathOf(projectId, name));
              toast(pinned ? `${name} is no longer pinned` : `${name} is pinned`);
            }}
          >
            <p>
              ${
                pinned
                  ? "It may leave the engines when others are asked for more; its next request then waits " +
                    "until it is loaded again."
                  : "It takes a slot on every engine for as long as it is pinned. The other tenants' " +
                    "adapters share what is left."
              }
            </p>
          <//>
        `
      }
    <//>
  `;
}
