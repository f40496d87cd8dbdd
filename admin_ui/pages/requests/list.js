// The list of recent requests: how each ended, its usage, its time and its cost, and nothing of its content.

import { Badge } from "../../components/badge.js";
import { Button } from "../../components/button.js";
import { Empty } from "../../components/feedback.js";
import { Page } from "../../components/page.js";
import { Table } from "../../components/table.js";
import { useApi } from "../../lib/data.js";
import { html } from "../../lib/html.js";
import { useProjectId, useProjectNames } from "../../lib/projects.js";
import { setQuery, to } from "../../lib/router.js";
import { useRange } from "../../lib/format/time.js";
import { Filters } from "./filters.js";
import { useLiveRequests } from "./live_list.js";
import { explained } from "./reasons.js";
import { RequestTabs } from "./tabs.js";

const MAX_MODELS = 100;

export default function Requests() {
  const projectId = useProjectId();
  const names = useProjectNames();
  const range = useRange();
  const { list, filters, state, hold, back } = useLiveRequests(projectId);
  const rows = list.items;
  const columns = [
    { key: "created_at", title: "Time", format: "time", sort: false, class: "shrink" },
    { key: "status", title: "Result", class: "shrink", render: (row) => html`<${Result} row=${row} />` },
    {
      key: "project_id",
      title: "Tenant",
      class: "shrink",
      hide: projectId !== null,
      value: ({ project_id: id }) => names(id),
    },
    {
      key: "model",
      title: "Model",
      class: "name-cell",
      render: (row) => html`
        <span>
          ${row.model}
          ${
            row.adapter_version !== null &&
            html`
              ${" "}
              <span class="faint">v${row.adapter_version}</span>
            `
          }
          ${
            row.service_tier === "shadow" &&
            html`
              ${" "}
              <${Badge} title="A copy for a shadow arm of an experiment: nobody got its answer">shadow<//>
            `
          }
        </span>
      `,
    },
    { key: "input_tokens", title: "Input", format: "tokens", total: true },
    { key: "cached_tokens", title: "Cached", format: "tokens", total: true },
    { key: "output_tokens", title: "Output", format: "tokens", total: true },
    { key: "ttft_ms", title: "First token", format: "ms" },
    { key: "latency_ms", title: "Took", format: "ms" },
    { key: "cost_nanos", title: "Cost", format: "money", total: true },
  ];
  const models = useModels(projectId, range);
  const isNarrow = Object.entries(filters).some(([name, value]) => value && name !== "project");
  return html`
    <${Page}
      title="Requests"
      wide
      lead=${
        rows &&
        html`
          <${Lead}
            rows=${rows}
            isAll=${!list.hasMore && (state === "live" || state === "fixed")}
            isNarrow=${isNarrow}
            range=${range}
          />
        `
      }
      tabs=${html`<${RequestTabs} />`}
      actions=${html`<${State} state=${state} back=${back} />`}
    >
      <div ...${hold}>
        <${Table}
          name="requests"
          label="Requests"
          columns=${columns}
          rows=${rows}
          rowKey=${({ id }) => id}
          href=${({ id }) => to("requests", id)}
          filter=${false}
          tools=${html`<${Filters} filters=${filters} models=${models} />`}
          error=${list.error}
          reload=${list.reload}
          loading=${list.loading && list.hasMore}
          hasMore=${list.hasMore}
          more=${list.more}
          what="load the requests"
          empty=${html`<${None}
              isNarrow=${isNarrow}
              filters=${filters}
              models=${models}
              range=${range}
              hasMore=${list.hasMore}
              more=${list.more}
            />`}
        />
      </div>
    <//>
  `;
}

/** Return the models that were requested in the range, the busiest first. */
function useModels(projectId, range) {
  const asked = {
    by: "model",
    start_time: range.start,
    end_time: range.end,
    limit: MAX_MODELS,
    times: false,
    project_ids: projectId ? [projectId] : [],
  };
  return (useApi("/traffic/top", asked).data?.data ?? []).map(({ id }) => id);
}

/** A sentence on the shown requests. isAll: the list is complete: there is no other page, and no newer request. */
function Lead({ rows, isAll, isNarrow, range }) {
  const failed = rows.filter(({ status }) => status === "error").length;
  if (rows.length === 0)
    return `No request ${isNarrow ? "matches " : ""}in ${range.name ? `the ${range.label.toLowerCase()}` : range.label}.`;
  return html`
    The latest <b>${rows.length}</b>
    ${isAll ? ` and all ${isNarrow ? "that match" : "there are"}` : ""} of${" "}
    ${range.name ? `the ${range.label.toLowerCase()}` : range.label}
    ${failed ? html`; <b>${failed}</b> of them failed` : "; none of them failed"}
    .
  `;
}

const STATES = {
  live: ["good", "Live", "New requests come in by themselves"],
  held: ["warn", "Held", "Held while the pointer is on the table"],
  paused: ["warn", "Paused", "Paused for all of the dashboard, in the bar above"],
  fixed: ["", "Fixed range", "The range has an end: nothing new comes into it"],
  pages: ["warn", "Held", "Held while more pages are shown"],
};

function State({ state, back }) {
  const [tone, word, why] = STATES[state];
  return html`
    <span class="row">
      ${
        state === "pages" &&
        html`
          <${Button} small onClick=${back}>
            Back to the latest
          <//>
        `
      }
      <${Badge} dot tone=${tone} title=${why}>
        ${word}
      <//>
    </span>
  `;
}

function Result({ row }) {
  const why = explained(row);
  if (row.status === "completed")
    return row.finish_reason === "length"
      ? html`<${Badge} title=${why.text}>length<//>`
      : html`<${Badge} tone="good">completed<//>`;
  return html`
    <span>
      <${Badge} title=${why.text}>${row.status}<//>
      <span class="row-why">${why.title}</span>
    </span>
  `;
}

function None({ isNarrow, filters, models, range, hasMore, more }) {
  const where = range.name ? `the ${range.label.toLowerCase()}` : range.label;
  const command = `curl ${window.location.origin}/v1/chat/completions \\
  -H "Authorization: Bearer $LORIKEET_API_KEY" -H "Content-Type: application/json" \\
  -d '{"model": "MODEL", "messages": [{"role": "user", "content": "Hello"}]}'`;
  const all = { status: null, model: null, key: null, adapter: null, id: null };
  if (!isNarrow)
    return html`
      <${Empty} icon="requests" title="No request in ${where}" command=${command}>
        Each one shows here a second after its end.
      <//>
    `;
  return html`
    <div class="table-box">
      <div class="table-tools">
        <${Filters} filters=${filters} models=${models} />
      </div>
      <${Empty}
        icon="filter"
        title="No request matches in ${where}"
        action=${html`<span class="row">
            ${hasMore && html`<${Button} onClick=${more}>Look further back<//>`}
            <${Button} onClick=${() => setQuery(all)}>Show all requests<//>
          </span>`}
      />
    </div>
  `;
}
