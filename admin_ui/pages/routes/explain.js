// The form that explains a route: the plan for a described request now, and the reasons. Nothing runs.

import { Button } from "../../components/button.js";
import { ErrorBox, Notice } from "../../components/feedback.js";
import { Checkbox, Select, TextArea, TextField, useForm } from "../../components/form.js";
import { Section } from "../../components/page.js";
import { Table } from "../../components/table.js";
import { post } from "../../lib/api.js";
import { html } from "../../lib/html.js";
import { useProjects } from "../../lib/projects.js";
import { pathOf } from "../../lib/projects_api.js";
import { given, whole } from "../../lib/rules/checks.js";

const NUMBERS = { max: 2_147_483_647 };

/** The form that explains a route. projectId: the tenant of the request; undefined lets the reader choose one. */
export function Explain({ projectId, route, told, tell }) {
  const tenants = (useProjects() ?? []).filter(({ status }) => status !== "archived");
  const initial = {
    tenant: projectId ?? "",
    prompt_tokens: "100",
    max_tokens: "256",
    metadata: "",
    user: "",
    api_key_id: "",
    request_id: "",
    body: "",
    tools: false,
    stream: false,
  };
  const form = useForm(
    initial,
    async ({
      tenant,
      prompt_tokens: prompt,
      max_tokens: most,
      metadata,
      user,
      api_key_id: key,
      request_id: id,
      body,
      tools,
      stream,
    }) => {
      const asked = {
        model: route.name,
        prompt_tokens: Number(prompt),
        max_tokens: Number(most),
        metadata: readPairs(metadata),
        tools,
        stream,
      };
      tell(
        await post(pathOf(tenant, "/plans/explain"), {
          ...asked,
          ...(user && { user }),
          ...(key && { api_key_id: key.trim() }),
          ...(id && { request_id: id }),
          ...(body.trim() && { body: JSON.parse(body) }),
        }),
      );
    },
    ({ tenant, prompt_tokens: prompt, max_tokens: most, metadata, body }) => ({
      tenant: given(tenant, "Choose a tenant."),
      prompt_tokens: whole(prompt, NUMBERS),
      max_tokens: whole(most, NUMBERS),
      metadata: wrongPairs(metadata),
      body: wrongBody(body),
    }),
  );
  return html`
    <${Section} title="Explain a request" hint="Which model a request would go to now, and why. Nothing runs.">
      <form class="form route-request" onSubmit=${form.submit} novalidate>
        ${
          projectId === undefined &&
          html`
            <${Select}
              ...${form.bind("tenant")}
              label="Tenant"
              options=${[["", "Choose one"], ...tenants.map(({ id, name }) => [id, name])]}
            />
          `
        }
        <div class="grid-2">
          <${TextField} ...${form.bind("prompt_tokens")} label="Prompt tokens" type="number" min="0" />
          <${TextField} ...${form.bind("max_tokens")} label="Most completion tokens" type="number" min="0" />
          <${TextField}
            ...${form.bind("user")}
            label="User"
            optional
            hint="The request's field user."
            autocomplete="off"
          />
          <${TextField}
            ...${form.bind("api_key_id")}
            label="API key"
            optional
            hint="Its id: whether the key may use the model, and for branches that stick to the key."
            autocomplete="off"
            spellcheck="false"
          />
          <${TextField}
            ...${form.bind("request_id")}
            label="Request id"
            optional
            hint="Draws are made as for this request."
            autocomplete="off"
            spellcheck="false"
          />
        </div>
        <${TextArea}
          ...${form.bind("metadata")}
          label="Metadata"
          optional
          rows=${2}
          hint="One KEY=VALUE in a line, such as plan=paid."
          spellcheck="false"
        />
        <${TextArea}
          ...${form.bind("body")}
          label="Body"
          optional
          rows=${3}
          hint="The request's JSON: what it says takes the place of the fields above."
          spellcheck="false"
        />
        <${Checkbox} ...${form.bind("tools")} label="It brings tools" />
        <${Checkbox} ...${form.bind("stream")} label="The reply is streamed" />
        <${ErrorBox} error=${form.error} what="explain the request" />
        <div class="form-actions">
          <${Button} kind="primary" type="submit" busy=${form.busy}>
            Explain
          <//>
        </div>
      </form>
      ${told && html`<${Told} told=${told} />`}
    <//>
  `;
}

function Told({ told }) {
  const rows = told.steps.map((step, number) => ({ ...step, number: number + 1 }));
  const columns = [
    { key: "number", title: "Step", align: "end" },
    { key: "target", title: "Target", render: ({ target }) => html`<code>${target}</code>` },
    { key: "price", title: "Price in, out", value: (row) => priceOf(told, row.target) },
    {
      key: "then",
      title: "Then",
      value: ({ then }) =>
        Object.entries(then)
          .map(([on, at]) => `${on}: step ${at + 1}`)
          .join(", ") || "the reply",
    },
    { key: "also", title: "Also", value: also, hide: rows.every((row) => !also(row)) },
  ];
  return html`
    <div class="stack">
      ${
        !told.is_allowed &&
        html`
          <${Notice} tone="warn" title="The key may not use this model">
            Clients with this key are told that the model does not exist.
          <//>
        `
      }
      ${
        rows.length === 0 &&
        html`
          <${Notice} tone="warn" title="No model answers">
            Clients are told that the model does not exist.
          <//>
        `
      }
      ${
        rows.length > 0 &&
        html`
          <${Table}
            name="route-steps"
            label="Steps"
            columns=${columns}
            rows=${rows}
            rowKey=${({ number }) => number}
            filter=${false}
          />
        `
      }
      <ol class="route-trace" aria-label="Decisions">
        ${told.trace.map(
          ({ path, reason }, place) => html`
            <li key=${place}>
              <code>${path}</code> ${reason}
            </li>
          `,
        )}
      </ol>
    </div>
  `;
}

/** Return a target's prices of a million input and output tokens, in the price book's currency. */
function priceOf({ targets }, target) {
  const { input_nanos: input, output_nanos: output } = targets.find(({ target: each }) => each === target);
  return input || output ? `${input / 1e9}, ${output / 1e9}` : "none";
}

function wrongBody(text) {
  if (!text.trim()) return undefined;
  try {
    const value = JSON.parse(text);
    return value !== null && typeof value === "object" && !Array.isArray(value)
      ? undefined
      : "A request's body is an object.";
  } catch (error) {
    return `This is not JSON: ${error.message}.`;
  }
}

function also({ wait_ms: wait, hedge_ms: hedge, first_token_ms: late, has_check: isChecked, copies }) {
  return [
    wait && `after ${wait} ms`,
    late !== null && `first token within ${late} ms`,
    hedge !== null && `another replica after ${Math.round(hedge)} ms`,
    isChecked && "the answer is checked",
    ...copies.map(({ target }) => `copy to ${target}`),
  ]
    .filter(Boolean)
    .join(", ");
}

const lines = (text) =>
  text
    .split("\n")
    .map((line) => line.trim())
    .filter(Boolean);

const wrongPairs = (text) =>
  lines(text).every((line) => line.indexOf("=") > 0) ? undefined : "Write one KEY=VALUE in a line.";

const readPairs = (text) =>
  Object.fromEntries(lines(text).map((line) => [line.slice(0, line.indexOf("=")), line.slice(line.indexOf("=") + 1)]));
