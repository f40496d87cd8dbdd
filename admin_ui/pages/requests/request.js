// One request: how it ended, where its time went, what it used and what that cost, attempt by attempt.

import { Badge } from "../../components/badge.js";
import { Code } from "../../components/button.js";
import { Empty, Loaded, Notice } from "../../components/feedback.js";
import { Money, Num, Time } from "../../components/numbers.js";
import { Facts, Page, Section } from "../../components/page.js";
import { Table } from "../../components/table.js";
import { useApi } from "../../lib/data.js";
import { exactly, ms } from "../../lib/format/format.js";
import { html } from "../../lib/html.js";
import { useProjectNames } from "../../lib/projects.js";
import { to } from "../../lib/router.js";
import { can } from "../../lib/session.js";
import { Content } from "./content.js";
import { KeyName } from "./filters.js";
import { requestsHref } from "./query.js";
import { TITLES, explained } from "./reasons.js";
import { Stored } from "./stored.js";
import { Timeline } from "./timeline.js";

export default function RequestView({ params: { id } }) {
  const request = useApi(`/requests/${encodeURIComponent(id)}`);
  const data = request.data;
  const lead =
    data &&
    html`
      <${Badge} dot>${data.status}<//> in <b>${ms(data.latency_ms)}</b> for${" "}
      <b>
        <${Money} nanos=${data.cost_nanos} currency=${data.currency} />
      </b>
      : ${exactly(data.input_tokens)} tokens in, ${exactly(data.output_tokens)} out.
    `;
  return html`
    <${Page}
      title="Request"
      crumbs=${[["Requests", "/admin/requests"]]}
      lead=${lead}
      actions=${html`<${Code} text=${id} what="request id" />`}
    >
      <${Loaded} from=${request} what="load the request" missing=${html`<${Missing} id=${id} />`}>
        ${(found) => html`
          <${Why} request=${found} />
          <${Section} title="Where its time went">
            <${Timeline} request=${found} />
          <//>
          <${Section} title="What it was" card>
            <${What} request=${found} />
          <//>
          <${Section}
            title="What it cost"
            hint="Tokens at the price per million that was in force when it began, less the tenant's discount."
          >
            <${Prices} request=${found} />
          <//>
          <${Section}
            title="Attempts"
            hint="One, unless an engine failed and the request was run again, or it had several prompts."
          >
            <${Attempts} request=${found} />
          <//>
          <${Content} key=${found.id} request=${found} />
          <${Stored} key="stored ${found.id}" request=${found} />
        `}
      <//>
    <//>
  `;
}

function Missing({ id }) {
  return html`
    <${Empty}
      icon="search"
      title="No request has this id"
      action=${html`<a class="button secondary" href="/admin/refusals?q=${encodeURIComponent(id)}">
          Look among the refused ones
        </a>`}
    >
      Requests show a second after their end, for 92 days. One that was refused before it ran is among the refusals.
    <//>
  `;
}

function Why({ request }) {
  const why = explained(request);
  if (request.service_tier === "shadow") {
    return html`
      <${Notice} title="A copy for a shadow arm of an experiment">
        Nobody got its answer. It was made of${" "}
        <a href=${to("requests", request.id.replace(/_shadow$/, ""))}>
          the request ${request.id.replace(/_shadow$/, "")}
        </a>${" "}
        and is billed at the tier “shadow”.${why ? ` ${why.title}: ${why.text}` : ""}
      <//>
    `;
  }
  return (
    why &&
    html`
      <${Notice} tone=${why.tone} title=${why.title}>
        ${why.text}
      <//>
    `
  );
}

function What({ request }) {
  const names = useProjectNames();
  const [, adapter] = request.model.split(/:(.*)/);
  const projectId = request.project_id;
  return html`
    <${Facts}
      rows=${[
        ["Tenant", html`<a href=${to("tenants", projectId)}>${names(projectId)}</a>`],
        [
          "Key",
          html`<a href=${requestsHref({ project: projectId, key: request.api_key_id })}>
            <${KeyName} id=${request.api_key_id} projectId=${projectId} />
          </a>`,
        ],
        ["Model", html`<a href=${requestsHref({ project: projectId, model: request.model })}>${request.model}</a>`],
        ["Adapter", html`<${Adapter} request=${request} name=${adapter} />`],
        ["Endpoint", html`<code>${request.endpoint}</code>`],
        ["Streamed", request.stream ? "yes" : "no"],
        ["Service tier", request.service_tier],
        ["Ended", TITLES[request.finish_reason] ?? request.finish_reason],
        ["Began", html`<${Time} at=${request.created_at} />`],
        [
          "Input",
          html`
            ${exactly(request.input_tokens)}
            ${
              request.cached_tokens > 0 &&
              html`
                ${" "}
                <span class="faint">of which ${exactly(request.cached_tokens)} cached</span>
              `
            }
          `,
        ],
        [
          "Output",
          html`
            ${exactly(request.output_tokens)}
            ${
              request.discarded_tokens > 0 &&
              html`
                ${" "}
                <span class="faint">${exactly(request.discarded_tokens)} more past a stop, not billed</span>
              `
            }
          `,
        ],
        ["Trace", request.trace_id === null ? undefined : html`<${Code} text=${request.trace_id} what="trace id" />`],
        ["Per output token", html`<${Num} value=${request.tpot_ms} kind="ms" />`],
      ]}
    />
  `;
}

function Adapter({ request, name }) {
  if (request.adapter_id === null) return "none: the base itself";
  const text = `${name ?? request.adapter_id}${request.adapter_version === null ? "" : `, version ${request.adapter_version}`}`;
  return name && can("adapters.read", request.project_id)
    ? html`<a href=${to("adapters", request.project_id, name)}>${text}</a>`
    : text;
}

const ITEMS = { input: "Input", "cached input": "Cached input", output: "Output" };

function Prices({ request }) {
  const rows = request.attempts.flatMap((attempt, place) =>
    attempt.price_lines
      .filter(({ tokens, cost_nanos: cost }) => tokens || cost)
      .map((line) => ({
        ...line,
        currency: request.currency,
        key: `${place} ${line.item}`,
        place: place + 1,
        version: attempt.price_version,
        own_key: attempt.own_key,
        price_class: attempt.price_class,
        discount: attempt.discount_percent,
      })),
  );
  const columns = [
    { key: "item", title: "Of", value: ({ item }) => ITEMS[item] ?? item },
    { key: "place", title: "Attempt", align: "end", hide: request.attempts.length < 2 },
    { key: "tokens", title: "Tokens", format: "tokens", total: true },
    { key: "nanos_per_million", title: "Per million", format: "money" },
    {
      key: "discount",
      title: "Discount",
      align: "end",
      render: ({ discount }) => (discount ? `${discount} %` : "–"),
    },
    { key: "price_class", title: "Class", render: ({ price_class: name }) => (name === "none" ? "base" : name) },
    {
      key: "version",
      title: "Prices",
      align: "end",
      render: ({ version, own_key: own }) =>
        own
          ? "the tenant's own key"
          : version
            ? can("billing.read")
              ? html`<a href="/admin/usage/prices">version ${version}</a>`
              : `version ${version}`
            : html`<span class="faint">none in force</span>`,
    },
    { key: "cost_nanos", title: "Cost", format: "money", total: true },
  ];
  return html`
    <${Table}
      name="prices"
      label="Price lines"
      columns=${columns}
      rows=${rows}
      rowKey=${({ key }) => key}
      filter=${false}
      empty=${html`<${Empty} icon="usage" title="It used nothing" />`}
    />
  `;
}

function Attempts({ request }) {
  const numbers = [...new Set(request.attempts.map(({ attempt }) => attempt))].sort((a, b) => a - b);
  const rows = request.attempts.map((attempt) => ({
    ...attempt,
    currency: request.currency,
    key: `${attempt.request_id} ${attempt.attempt} ${attempt.revision}`,
    number: numbers.indexOf(attempt.attempt) + 1,
  }));
  const columns = [
    {
      key: "number",
      title: "Attempt",
      render: (row) => html`
        ${row.number}
        ${
          row.revision > 0 &&
          html`
            ${" "}
            <span class="faint">recount ${row.revision}</span>
          `
        }
      `,
    },
    { key: "model", title: "Model", hide: new Set(rows.map(({ model }) => model)).size < 2 },
    { key: "finish_reason", title: "Ended", value: ({ finish_reason: reason }) => TITLES[reason] ?? reason },
    { key: "queue_ms", title: "Queue", format: "ms" },
    { key: "prefill_ms", title: "Prefill", format: "ms" },
    { key: "decode_ms", title: "Decode", format: "ms" },
    { key: "latency_ms", title: "Took", format: "ms" },
    {
      key: "adapter_load_bytes",
      title: "Adapter loaded",
      format: "bytes",
      hide: rows.every((row) => !row.adapter_load_bytes),
    },
    {
      key: "adapter_digest",
      title: "Adapter's content",
      hide: rows.every((row) => !row.adapter_digest),
      render: ({ adapter_digest: digest }) => (digest ? html`<${Code} text=${digest} max=${16} what="digest" />` : "–"),
    },
    { key: "finished_at", title: "Ended at", format: "time" },
    { key: "cost_nanos", title: "Cost", format: "money", total: true },
  ];
  return html`
    <${Table}
      name="attempts"
      label="Attempts"
      columns=${columns}
      rows=${rows}
      rowKey=${({ key }) => key}
      filter=${false}
    />
  `;
}
