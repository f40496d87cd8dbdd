// The numbers of each tenant, model, adapter or key as a table.

import { Empty } from "../../../components/feedback.js";
import { Money, Num } from "../../../components/numbers.js";
import { Table } from "../../../components/table.js";
import { html } from "../../../lib/html.js";
import { setQuery } from "../../../lib/router.js";
import { requestsHref } from "../../requests/query.js";
import { groupOf } from "./data.js";

const ENDS = ["num_errors", "num_refused", "num_cancelled"];

/**
 * The table of the numbers. hasEnds: whether the numbers of failed, refused and cancelled requests are known; by key
 * they are not.
 */
export function Rows({ rows, group, filters, range, hasEnds }) {
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
    number("num_refused", "Refused", "count", (row) => row.num_refused, "refused"),
    number("num_cancelled", "Cancelled", "count", (row) => row.num_cancelled, "cancelled"),
    number("input_tokens", "Input", "tokens"),
    number("cached_tokens", "of which cached", "tokens"),
    number("output_tokens", "Output", "tokens"),
    number("cost_nanos", "Cost", "money"),
  ].filter(({ key }) => hasEnds || !ENDS.includes(key));
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

/** Return the filters for the link of a row: all active ones except the row's own. */
const given = (filters, own) =>
  Object.fromEntries(Object.entries(filters).filter(([name, value]) => value && name !== own));
