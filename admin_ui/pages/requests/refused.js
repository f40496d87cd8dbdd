// The list of requests that were refused before they ran: the limit or rule, how much was left, and what to do.

import { Badge } from "../../components/badge.js";
import { Button, Code } from "../../components/button.js";
import { Dialog } from "../../components/dialog.js";
import { Empty, ErrorBox, Notice, Skeleton } from "../../components/feedback.js";
import { Gauge } from "../../components/charts/gauge.js";
import { Time } from "../../components/numbers.js";
import { Facts } from "../../components/page.js";
import { Table } from "../../components/table.js";
import { useApi, useList } from "../../lib/data.js";
import { count, plural } from "../../lib/format/format.js";
import { html, useState } from "../../lib/html.js";
import { useProjectNames } from "../../lib/projects.js";
import { here, setQuery, to, useQuery } from "../../lib/router.js";
import { ago } from "../../lib/format/time.js";
import { shownAs, titleOf } from "../tenants/limits/words.js";

const LIMIT = { limit: 50 };

/** A sentence on the number of the newest refusals. path: the path of the list. */
export function RefusalLead({ path }) {
  const { data } = useApi(path, LIMIT);
  if (!data) return null;
  if (data.data.length === 0) return "Nothing was refused in the last days.";
  const num = data.data.reduce((sum, row) => sum + row.num, 0);
  const reasons = new Map();
  for (const { code, type, num: times } of data.data)
    reasons.set(code ?? type, (reasons.get(code ?? type) ?? 0) + times);
  const [[code, most]] = [...reasons].sort(([, a], [, b]) => b - a);
  return html`
    <b>
      ${count(num)}
      ${data.has_more ? "+" : ""}
    </b>${" "}
    ${num === 1 ? "request was" : "requests were"} refused, the last one ${ago(data.data[0].created_at)};${" "}
    ${most === num ? "all" : count(most)} with <code>${code}</code>.
  `;
}

/**
 * The list of refusals. projectId: the current project, or null for all. The query's `q` names the refused request to
 * explain.
 */
export function Refusals({ path, projectId }) {
  const list = useList(path, {}, LIMIT);
  const names = useProjectNames();
  const [asked] = useQuery("q");
  const columns = [
    { key: "created_at", title: "When", format: "time" },
    { key: "project_id", title: "Tenant", hide: projectId !== null, value: (row) => names(row.project_id) },
    {
      key: "code",
      title: "Why",
      value: ({ code, type }) => code ?? type,
      render: ({ code, type, limit }) => html`
        <span class="row">
          <${Badge} tone="bad">${code ?? type}<//>
          ${limit && html`<span class="muted">${titleOf({ hard: true, ...limit })}</span>`}
        </span>
      `,
    },
    { key: "message", title: "Message", render: ({ message }) => html`<span class="muted">${message}</span>` },
    {
      key: "model",
      title: "Model",
      render: ({ model }) => (model ? html`<code>${model}</code>` : html`<span class="faint">–</span>`),
    },
    { key: "status", title: "Status", align: "end" },
    { key: "num", title: "Times", format: "count", total: true },
  ];
  return html`
    <${Ask} />
    ${
      list.error?.isMissing
        ? html`<${Empty} icon="shield" title="This gateway does not record refusals" />`
        : html`
          <${Table}
            name="refused"
            label="Refusals"
            columns=${columns}
            rows=${list.items}
            href=${(row) => here({ q: row.request_id })}
            error=${list.error}
            reload=${list.reload}
            loading=${list.loading}
            hasMore=${list.hasMore}
            more=${list.more}
            empty=${html`<${Empty} icon="shield" title="Nothing was refused">
                Requests that a limit, a key or a wrong field stops are listed here for a week, with what to do about
                each.
              <//>`}
          />
        `
    }
    ${asked && html`<${Explained} requestId=${asked} />`}
  `;
}

function Ask() {
  const [id, setId] = useState("");
  const go = (event) => {
    event.preventDefault();
    if (id.trim()) setQuery({ q: id.trim() }, { push: true });
  };
  return html`
    <form class="ask" onSubmit=${go} role="search">
      <input
        class="input"
        aria-label="Request id"
        placeholder="Why was this refused? Paste a request id: req_…"
        value=${id}
        onInput=${(event) => setId(event.target.value)}
        spellcheck="false"
        autocomplete="off"
      />
      <${Button} type="submit" icon="search">
        Explain
      <//>
    </form>
  `;
}

function Explained({ requestId }) {
  const { data, error, reload } = useApi(`/refusals/${encodeURIComponent(requestId)}`);
  const names = useProjectNames();
  return html`
    <${Dialog} title="Why was this refused?" side onClose=${() => setQuery({ q: null })}>
      <div class="stack">
        ${
          error?.isMissing
            ? html`
              <${Notice} title="No refusal has this id">
                It may have run (<a href=${to("requests", requestId)}>look at its requests page</a>), be older than a
                week, or be one of many alike in the same minute, which are counted together.
              <//>
            `
            : error
              ? html`<${ErrorBox} error=${error} what="explain it" retry=${reload} />`
              : (!data && html`<${Skeleton} lines=${5} />`)
        }
        ${
          data &&
          html`
            <p class="advice">${data.advice ?? data.message}</p>
            ${data.limit && html`<${LimitThen} limit=${data.limit} />`}
            <${Notice} tone="bad" title=${data.code ?? data.type}>
              ${data.message}
            <//>
            <${Facts}
              rows=${[
                ["When", html`<${Time} at=${data.created_at} />`],
                ["Tenant", html`<a href=${to("tenants", data.project_id)}>${names(data.project_id)}</a>`],
                [
                  "Key",
                  data.api_key_id
                    ? html`
                      <a href="${to("tenants", data.project_id, "keys")}?key=${data.api_key_id}">
                        ${data.api_key_id}
                      </a>
                    `
                    : undefined,
                ],
                ["Model", data.model ? html`<code>${data.model}</code>` : undefined],
                ["Endpoint", data.endpoint ? html`<code>${data.endpoint}</code>` : undefined],
                ["Room again", data.free_at ? html`<${Time} at=${data.free_at} />` : undefined],
                ["Status", data.status],
                ["Field", data.param ? html`<code>${data.param}</code>` : undefined],
                ["Alike in that minute", data.num > 1 ? plural(data.num, "request") : undefined],
                ["Request id", html`<${Code} text=${data.request_id} what="request id" />`],
              ]}
            />
            ${
              data.limit &&
              html`
                <p>
                  <${Button}
                    href=${
                      data.limit.scope === "organization"
                        ? "/admin/system/limits"
                        : to("tenants", data.project_id, "limits")
                    }
                    icon="limits"
                  >
                    Open the limits
                  <//>
                </p>
              `
            }
          `
        }
      </div>
    <//>
  `;
}

/** The limit with its usage at the time of the refusal. */
function LimitThen({ limit }) {
  const shown = shownAs(limit.unit);
  const { used, reserved, max, asked } = limit;
  if (used === null)
    return html`
      <p>
        ${titleOf({ hard: true, ...limit })}: at most <b>${shown(max)}</b> for all tenants together.
      </p>
    `;
  const hint =
    `${shown(used)} used · ${shown(reserved)} reserved · ${shown(Math.max(0, max - used - reserved))} free ` +
    `· ${shown(asked)} asked for`;
  return html`
    <div class="card">
      <${Gauge}
        label=${titleOf({ hard: true, ...limit })}
        used=${used}
        reserved=${reserved}
        max=${max}
        shown=${shown}
        hint=${hint}
      />
    </div>
  `;
}
