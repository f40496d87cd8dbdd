// Who used what, and what it cost: told apart by tenant, model, adapter or key; every number leads to its requests.

import { Chart } from "../../components/charts/chart.js";
import { Button } from "../../components/button.js";
import { Empty, ErrorBox, Skeleton } from "../../components/feedback.js";
import { Money, Num } from "../../components/numbers.js";
import { Page } from "../../components/page.js";
import { Table } from "../../components/table.js";
import { Choice } from "../../components/tabs.js";
import { sumOf } from "../../lib/buckets.js";
import { plural } from "../../lib/format/format.js";
import { html } from "../../lib/html.js";
import { useProjectId } from "../../lib/projects.js";
import { setQuery, useQuery } from "../../lib/router.js";
import { can } from "../../lib/session.js";
import { useRange } from "../../lib/format/time.js";
import { requestsHref } from "../requests/query.js";
import { ByTier } from "./by_tier.js";
import { GROUPS, MAX_ROWS, MEASURES, groupOf, measureOf, useExplored, useFilters, useNameOf } from "./explore_data.js";
import { useCostNote } from "./cost_note.js";
import { UsageTabs } from "./tabs.js";

export default function Explore() {
  const range = useRange();
  const projectId = useProjectId();
  const filters = useFilters(projectId);
  const groups = GROUPS.filter(([, , name]) => name === "key" || !filters[name]);
  const [wantedGroup, setGroup] = useQuery("by", groups[0][0]);
  const [group] = groups.find(([name]) => name === wantedGroup) ?? groups[0];
  const isByKey = group === "api_key_id" || filters.key !== "";
  const measures = MEASURES.filter(([name]) => !isByKey || name !== "errors");
  const [wantedMeasure, setMeasure] = useQuery("show", "cost");
  const [measure] = measures.find(([name]) => name === wantedMeasure) ?? measures[0];
  const explored = useExplored({ group, measure, filters, range });
  const { sums, error } = explored;
  const costNote = useCostNote(sums);
  const currency = sums?.find((row) => row.currency)?.currency ?? "usd";
  const [, title, unit] = measureOf(measure);
  const isEmpty = sums && sumOf(sums, "num_requests") === 0;
  return html`
    <${Page}
      title="Usage"
      lead=${sums && html`<${Lead} sums=${sums} currency=${currency} range=${range} />`}
      tabs=${html`<${UsageTabs} />`}
    >
      <div class="spread">
        <div class="row">
          <${Choice}
            label="Told apart by"
            value=${group}
            onValue=${setGroup}
            options=${groups.map(([name, word]) => [name, word])}
          />
          <${Marks} filters=${filters} range=${range} />
        </div>
        <${Choice}
          label="Shown"
          value=${measure}
          onValue=${setMeasure}
          options=${measures.map(([name, word]) => [name, word])}
        />
      </div>
      ${
        error &&
        !error.isMissing &&
        html`<${ErrorBox} error=${error} what="load the usage" retry=${explored.top.reload} />`
      }
      ${
        isEmpty
          ? html`<${Nothing} range=${range} filters=${filters} />`
          : html`
            ${
              explored.series
                ? html`
                  <${Chart}
                    title="${title} by ${groupOf(group)[1].toLowerCase()}"
                    kind="bars"
                    times=${explored.times}
                    series=${explored.series}
                    unit=${unit}
                    currency=${currency}
                    height=${240}
                    note=${measure === "cost" ? costNote : undefined}
                  />
                `
                : !error && html`<${Skeleton} height=${300} />`
            }
            ${
              !(error && !explored.rows) &&
              html`
                <${Rows}
                  rows=${explored.rows}
                  group=${group}
                  filters=${filters}
                  range=${range}
                  hasEnds=${!isByKey}
                />
              `
            }
            ${
              explored.rows?.length === MAX_ROWS &&
              html`
                <p class="hint">
                  The first ${MAX_ROWS} by ${title.toLowerCase()}; an export has all.
                </p>
              `
            }
            <${ByTier} filters=${filters} range=${range} currency=${currency} />
          `
      }
    <//>
  `;
}

function Lead({ sums, currency, range }) {
  const where = range.name ? `the ${range.label.toLowerCase()}` : range.label;
  const [cost, requests] = [sumOf(sums, "cost_nanos"), sumOf(sums, "num_requests")];
  return html`
    <b>
      <${Money} nanos=${cost} currency=${currency} />
    </b>${" "}
    for ${plural(requests, "request")} and${" "}
    <${Num} value=${sumOf(sums, "input_tokens") + sumOf(sums, "output_tokens")} kind="tokens" /> tokens in${" "}
    ${where}.
    ${
      cost === 0 &&
      requests > 0 &&
      can("billing.read") &&
      html`
        ${" "}
        Nothing costs until there are <a href="/admin/usage/prices">prices</a>.
      `
    }
  `;
}

/** Filters that are on, but for the project, which the switch above shows. */
function Marks({ filters, range }) {
  return GROUPS.filter(([, , name]) => name !== "project" && filters[name]).map(
    (group) => html`<${Mark} key=${group[0]} group=${group} id=${filters[group[2]]} range=${range} />`,
  );
}

function Mark({ group, id, range }) {
  const [, title, filter] = group;
  const name = useNameOf(group, id, range);
  return html`
    <span class="mark">
      <span title=${id}>
        ${title} ${name}
      </span>
      <${Button}
        kind="quiet"
        small
        icon="close"
        label="No longer by ${title.toLowerCase()}"
        onClick=${() => setQuery({ [filter]: null })}
      />
    </span>
  `;
}

/** hasEnds: whether it is known how requests ended, which it is not by key. */
function Rows({ rows, group, filters, range, hasEnds }) {
  const [, title, filter] = groupOf(group);
  const nameOf = ({ id, name }) => (id === "" ? "None: the base" : name);
  const of = (row, status) =>
    requestsHref({
      ...(row.id !== "" && { [filter]: row.id }),
      ...given(filters, filter),
      status,
      from: range.start,
      to: range.end,
    });
  const narrow = (row) => setQuery({ [filter]: row.id, by: null }, { push: true });
  const number = (key, name, format, value = (row) => row[key], status) => ({
    key,
    title: name,
    format,
    value,
    total: true,
    render: (row) => html`
      <a class="cell" href=${of(row, status)}>
        ${
          format === "money"
            ? html`<${Money} nanos=${value(row)} currency=${row.currency} />`
            : html`<${Num} value=${value(row)} kind=${format} />`
        }
      </a>
    `,
  });
  const columns = [
    {
      key: "name",
      title,
      value: nameOf,
      render: (row) =>
        row.id === ""
          ? html`<span class="muted">${nameOf(row)}</span>`
          : html`
            <button
              type="button"
              class="link"
              title="Only this ${title.toLowerCase()}"
              onClick=${() => narrow(row)}
            >
              ${nameOf(row)}
            </button>
          `,
    },
    number("num_requests", "Requests", "count"),
    number("num_errors", "Failed", "count", (row) => row.num_errors, "error"),
    number("num_cancelled", "Cancelled", "count", (row) => row.num_cancelled, "cancelled"),
    number("input_tokens", "Input", "tokens"),
    number("cached_tokens", "of which cached", "tokens"),
    number("output_tokens", "Output", "tokens"),
    number("cost_nanos", "Cost", "money"),
  ].filter(({ key }) => hasEnds || (key !== "num_errors" && key !== "num_cancelled"));
  return html`
    <${Table}
      name="usage"
      label="Usage by ${title.toLowerCase()}"
      columns=${columns}
      rows=${rows}
      empty=${html`<${Empty} icon="usage" title="Nothing in this range" />`}
    />
  `;
}

/** Filters for the link of a row: all that are on, but the one that the row itself is. */
const given = (filters, own) =>
  Object.fromEntries(Object.entries(filters).filter(([name, value]) => value && name !== own));

function Nothing({ range, filters }) {
  const isNarrow = GROUPS.some(([, , name]) => name !== "project" && filters[name]);
  const command = `curl "${window.location.origin}/v1/organization/traffic?start_time=${range.start}" \\
  -H "Authorization: Bearer $LORIKEET_ADMIN_KEY"`;
  return html`
    <${Empty}
      icon="usage"
      title="No usage in ${range.name ? `the ${range.label.toLowerCase()}` : range.label}"
      command=${isNarrow ? undefined : command}
      action=${
        isNarrow &&
        html`
          <${Button} onClick=${() => setQuery({ model: null, adapter: null, key: null })}>
            Show all usage
          <//>
        `
      }
    >
      Requests count here a second or two after they end. Scripts get the same numbers from the API.
    <//>
  `;
}
