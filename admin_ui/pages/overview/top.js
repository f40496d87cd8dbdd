// The tenants and adapters with the most traffic, by a number that the reader chooses.

import { ErrorBox, Skeleton } from "../../components/feedback.js";
import { Money, Num } from "../../components/numbers.js";
import { Section } from "../../components/page.js";
import { Choice } from "../../components/tabs.js";
import { colourOf } from "../../lib/colours.js";
import { useApi } from "../../lib/data.js";
import { html } from "../../lib/html.js";
import { useWhileTraffic } from "../../lib/live.js";
import { useQuery } from "../../lib/router.js";

const ORDERS = [
  ["requests", "Requests"],
  ["tokens", "Tokens"],
  ["cost", "Cost"],
  ["errors", "Errors"],
];
const VALUE = {
  requests: (row) => row.num_requests,
  tokens: (row) => (row.input_tokens ?? 0) + (row.output_tokens ?? 0),
  cost: (row) => row.cost_nanos,
  errors: (row) => row.num_errors,
};

export function Top({ range, projectId }) {
  const [order, setOrder] = useQuery("top", "requests");
  return html`
    <${Section}
      title="Most active"
      actions=${html`<${Choice} label="Ordered by" value=${order} onValue=${setOrder} options=${ORDERS} />`}
    >
      <div class="grid-2">
        ${
          !projectId &&
          html`
            <${List}
              title="Tenants"
              by="project_id"
              order=${order}
              range=${range}
              href=${({ id }) => `/admin/tenants/${id}`}
            />
          `
        }
        <${List}
          title="Adapters"
          by="adapter_id"
          order=${order}
          range=${range}
          projectId=${projectId}
          href=${({ name }) => `/admin/adapters?q=${encodeURIComponent(name)}`}
        />
        ${
          projectId &&
          html`
            <${List}
              title="Models"
              by="model"
              order=${order}
              range=${range}
              projectId=${projectId}
              href=${() => null}
            />
          `
        }
      </div>
    <//>
  `;
}

function List({ title, by, order, range, projectId = null, href }) {
  const top = useApi("/traffic/top", {
    by,
    order,
    start_time: range.start,
    end_time: range.end,
    limit: 8,
    times: false,
    project_ids: projectId ? [projectId] : [],
  });
  useWhileTraffic(top.reload);
  const rows = (top.data?.data ?? []).filter(({ id }) => id !== "");
  const value = VALUE[order];
  const max = Math.max(1, ...rows.map(value));
  return html`
    <section class="section card">
      <h3>${title}</h3>
      ${!top.error?.isMissing && html`<${ErrorBox} error=${top.error} retry=${top.reload} />`}
      ${
        top.data === undefined
          ? !top.error && html`<${Skeleton} lines=${4} />`
          : rows.length === 0
            ? html`<p class="faint">None in this range.</p>`
            : html`
              <div class="bars">
                ${rows.map((row) => {
                  const link = href(row);
                  const inside = html`
                    <i style=${{ width: `${(100 * value(row)) / max}%`, "--bar-colour": colourOf(row.id) }}></i>
                    <span class="ellipsis">${row.name || row.id}</span>
                    ${
                      order === "cost"
                        ? html`<${Money} nanos=${value(row)} currency=${row.currency} />`
                        : html`<${Num} value=${value(row)} />`
                    }
                  `;
                  return link
                    ? html`
                      <a key=${row.id} class="bar-row" href=${link}>
                        ${inside}
                      </a>
                    `
                    : html`
                      <div key=${row.id} class="bar-row">
                        ${inside}
                      </div>
                    `;
                })}
              </div>
            `
      }
    </section>
  `;
}
