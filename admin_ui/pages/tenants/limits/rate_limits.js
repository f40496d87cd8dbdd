// Rate limits of each model, in the three numbers that OpenAI's clients know.

import { Button } from "../../../components/button.js";
import { Dialog } from "../../../components/dialog.js";
import { Form, TextField, useForm } from "../../../components/form.js";
import { Section } from "../../../components/page.js";
import { Table } from "../../../components/table.js";
import { toast } from "../../../components/toast.js";
import { post } from "../../../lib/api.js";
import { whole } from "../../../lib/rules/checks.js";
import { invalidate, useList } from "../../../lib/data.js";
import { exactly } from "../../../lib/format/format.js";
import { html, useState } from "../../../lib/html.js";
import { pathOf } from "../../../lib/projects_api.js";

const FIELDS = [
  ["max_requests_per_1_minute", "Requests per minute"],
  ["max_tokens_per_1_minute", "Tokens per minute"],
  ["max_requests_per_1_day", "Requests per day"],
];

export function RateLimits({ projectId, may }) {
  const list = useList(pathOf(projectId, "/rate_limits"), {}, { limit: 100 });
  const [changing, change] = useState(null);
  const columns = [
    { key: "model", title: "Model", render: ({ model }) => html`<code>${model}</code>` },
    ...FIELDS.map(([key, title]) => ({
      key,
      title,
      align: "end",
      render: (row) =>
        row[key] === null
          ? html`<span class="faint">no limit</span>`
          : html`<span class="num">${exactly(row[key])}</span>`,
    })),
    {
      key: "act",
      title: "",
      sort: false,
      csv: false,
      class: "shrink",
      hide: !may("limits.write"),
      render: (row) => html`
        <${Button} small onClick=${() => change(row)} aria-label="Change the rate limits of ${row.model}">
          Change
        <//>
      `,
    },
  ];
  return html`
    <${Section} title="Rate limits by model" hint="What each model takes from this tenant, all its keys together.">
      <${Table}
        name="rates"
        label="Rate limits"
        columns=${columns}
        rows=${list.items}
        error=${list.error}
        reload=${list.reload}
        hasMore=${list.hasMore}
        more=${list.more}
        filter=${(list.items?.length ?? 0) > 8}
      />
      ${changing && html`<${Change} projectId=${projectId} rate=${changing} onClose=${() => change(null)} />`}
    <//>
  `;
}

function Change({ projectId, rate, onClose }) {
  const form = useForm(
    Object.fromEntries(FIELDS.map(([key]) => [key, rate[key] === null ? "" : String(rate[key])])),
    async (values) => {
      const body = Object.fromEntries(
        FIELDS.map(([key]) => [key, values[key].trim() === "" ? null : Number(values[key])]),
      );
      await post(pathOf(projectId, `/rate_limits/${encodeURIComponent(rate.id)}`), body);
      invalidate(pathOf(projectId));
      toast(`The rate limits of ${rate.model} are changed`);
      onClose();
    },
    (values) => Object.fromEntries(FIELDS.map(([key]) => [key, whole(values[key], { optional: true })])),
  );
  return html`
    <${Dialog} title="Rate limits of ${rate.model}" onClose=${onClose}>
      <${Form} form=${form} verb="Save" what="change the rate limits" onCancel=${onClose}>
        ${FIELDS.map(
          ([key, label]) => html`
            <${TextField}
              key=${key}
              ...${form.bind(key)}
              label=${label}
              optional
              inputmode="numeric"
              autocomplete="off"
            />
          `,
        )}
        <p class="hint">
          Empty is no limit. More is refused with status 429 until the minute or the day is over.
        </p>
      <//>
    <//>
  `;
}
