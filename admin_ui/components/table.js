// Tables: sort and filter in the URL, totals, copy as CSV, keyset paging; on a phone each row is a card.
//
// Columns are data: {key, title, value, render, format, align, sort, total, csv, hide, width}.
//   value(row): the value that is sorted, filtered, summed and copied; by default row[key].
//   render(row): the content of the cell; by default the value, by `format`: count, tokens, ms, seconds, percent, bytes,
//   time, money (money takes the currency from row.currency).
//   align "end" for numbers (any format but time has it); sort false: not sortable; total: true sums the rows shown, or
//   a function of them, undefined where it is not known of a row; csv false: not copied; hide: leave the column out;
//   primary: the card's title on a phone.

import { copy } from "../lib/clipboard.js";
import { csv } from "../lib/format/csv.js";
import { html, useEffect, useMemo, useRef } from "../lib/html.js";
import { useQuery } from "../lib/router.js";
import { Button } from "./button.js";
import { Empty, ErrorBox, Skeleton } from "./feedback.js";
import { Icon } from "./icons.js";
import { Money, Num, Time } from "./numbers.js";
import { toast } from "./toast.js";

const NUMERIC = new Set(["count", "tokens", "ms", "seconds", "percent", "change", "bytes", "money"]);

/**
 * A table. name: the prefix of the table's values in the URL, for pages with several tables. label: for screen readers.
 * rows: undefined while they load. rowKey(row): by default row.id. current: the key of the current row, which is
 * scrolled into view. href(row): the target of a click on the row. sorted: the initial order, "-cost" for descending;
 * without it, the server's order. filter: false hides the filter box. hasMore, more: as useList returns them. tools:
 * more controls beside the filter. empty: shown instead of an empty table.
 */
export function Table({
  name = "",
  label,
  columns,
  rows,
  rowKey = (row) => row.id,
  href,
  sorted = "",
  filter = true,
  loading,
  error,
  reload,
  hasMore = false,
  more,
  empty,
  tools,
  what = "load this table",
  current,
}) {
  const box = useRef(null);
  const prefix = name && `${name}.`;
  const [sort, setSort] = useQuery(`${prefix}sort`, sorted);
  const [wanted, setWanted] = useQuery(`${prefix}q`, "");
  const shownColumns = columns.filter((column) => !column.hide);
  const shown = useMemo(
    () => ordered(matching(rows ?? [], shownColumns, wanted), shownColumns, sort),
    [rows, columns, wanted, sort],
  );

  useEffect(
    () => box.current?.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" }),
    [current, rows === undefined],
  );

  if (rows === undefined)
    return error ? html`<${ErrorBox} error=${error} what=${what} retry=${reload} />` : html`<${Skeleton} lines=${6} />`;
  if (rows.length === 0 && !error) return empty ?? html`<${Empty} title="Nothing here yet" />`;
  const isPart =
    hasMore ||
    shown.length < rows.length ||
    shown.some((row) => shownColumns.some((column) => column.total === true && valueIn(column, row) === undefined));
  const hasTotals = shown.length > 1 && shownColumns.some((column) => column.total);
  return html`
    <div class="table-box">
      ${
        (filter || tools) &&
        html`
          <div class="table-tools">
            ${
              filter &&
              html`
                <label class="filter">
                  <${Icon} name="search" />
                  <span class="visually-hidden">Filter ${label}</span>
                  <input
                    type="search"
                    placeholder="Filter"
                    value=${wanted}
                    onInput=${(event) => setWanted(event.target.value)}
                  />
                </label>
              `
            }
            ${tools}
            <span class="table-count">
              ${shown.length === rows.length ? "" : `${shown.length} of `}
              ${rows.length}
              ${hasMore ? "+" : ""}
            </span>
            <${Button}
              kind="quiet"
              small
              icon="copy"
              label="Copy as CSV"
              onClick=${() => copyAsCsv(shownColumns, shown)}
            />
          </div>
        `
      }
      <${ErrorBox} error=${error} what=${what} retry=${reload} />
      <div class="table-scroll" ref=${box} tabindex="0" role="region" aria-label=${label}>
        <table class="table" aria-busy=${loading || undefined}>
          <caption class="visually-hidden">${label}</caption>
          <thead>
            <tr>
              ${shownColumns.map(
                (column) => html`<${Heading} key=${column.key} column=${column} sort=${sort} onSort=${setSort} />`,
              )}
            </tr>
          </thead>
          <tbody>
            ${shown.map(
              (row) => html`
                <tr
                  key=${rowKey(row)}
                  class=${href ? "is-link" : ""}
                  aria-current=${(current && rowKey(row) === current) || undefined}
                >
                  ${shownColumns.map(
                    (column, place) => html`
                      <td
                        key=${column.key}
                        class=${cellClass(column)}
                        data-title=${column.title}
                        data-first=${place === 0 || undefined}
                      >
                        ${
                          place === 0 && href
                            ? html`
                              <a class="row-link" href=${href(row)}>
                                ${cell(column, row)}
                              </a>
                            `
                            : cell(column, row)
                        }
                      </td>
                    `,
                  )}
                </tr>
              `,
            )}
            ${
              shown.length === 0 &&
              html`
                <tr class="table-none">
                  <td colspan=${shownColumns.length}>Nothing matches “${wanted}”.</td>
                </tr>
              `
            }
          </tbody>
          ${
            hasTotals &&
            html`
              <tfoot>
                <tr>
                  ${shownColumns.map(
                    (column, place) => html`
                      <td
                        key=${column.key}
                        class=${cellClass(column)}
                        data-title=${column.title}
                        data-first=${place === 0 || undefined}
                      >
                        ${column.total ? total(column, shown) : place === 0 ? (isPart ? "Total of these" : "Total") : ""}
                      </td>
                    `,
                  )}
                </tr>
              </tfoot>
            `
          }
        </table>
      </div>
      ${
        hasMore &&
        html`
          <div class="table-more">
            <${Button} busy=${loading} onClick=${more}>
              Show more
            <//>
          </div>
        `
      }
    </div>
  `;
}

function Heading({ column, sort, onSort }) {
  const sortable = column.sort !== false && column.title;
  const way = sort === column.key ? "ascending" : sort === `-${column.key}` ? "descending" : undefined;
  const first = isNumeric(column) ? `-${column.key}` : column.key;
  const next = way === undefined ? first : way === "ascending" ? `-${column.key}` : column.key;
  return html`
    <th
      scope="col"
      class=${cellClass(column)}
      aria-sort=${way}
      style=${column.width ? { width: column.width } : undefined}
    >
      ${
        sortable
          ? html`
            <button type="button" onClick=${() => onSort(next)}>
              ${column.title}
              <i class="sort-mark ${way ?? ""}" aria-hidden="true"></i>
            </button>
          `
          : column.title || html`<span class="visually-hidden">Actions</span>`
      }
    </th>
  `;
}

const isNumeric = (column) => column.align === "end" || NUMERIC.has(column.format);
const cellClass = (column) => `${isNumeric(column) ? "end" : ""} ${column.class ?? ""}`;
const valueIn = (column, row) => (column.value ? column.value(row) : row[column.key]);

function cell(column, row) {
  if (column.render) return column.render(row);
  return shownAs(column.format, valueIn(column, row), row.currency);
}

function shownAs(format, value, currency) {
  if (format === "money") return html`<${Money} nanos=${value} currency=${currency} />`;
  if (format === "time") return html`<${Time} at=${value} />`;
  if (format) return html`<${Num} value=${value} kind=${format} />`;
  return value ?? html`<span class="faint">–</span>`;
}

function total(column, rows) {
  const sum =
    column.total === true ? rows.reduce((sum, row) => sum + (valueIn(column, row) ?? 0), 0) : column.total(rows);
  const currencies = new Set(rows.map((row) => row.currency));
  if (column.format === "money" && currencies.size > 1)
    return html`
      <span class="faint" title="Several currencies">
        –
      </span>
    `;
  return shownAs(column.format, sum, rows[0]?.currency);
}

function matching(rows, columns, wanted) {
  const words = wanted.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length === 0) return rows;
  return rows.filter((row) => {
    const text = columns
      .map((column) => valueIn(column, row) ?? "")
      .join(" ")
      .toLowerCase();
    return words.every((word) => text.includes(word));
  });
}

function ordered(rows, columns, sort) {
  const column = columns.find((column) => column.key === sort.replace(/^-/, ""));
  if (!column) return rows;
  const way = sort.startsWith("-") ? -1 : 1;
  return rows
    .map((row) => [valueIn(column, row), row])
    .sort(([a], [b]) => (isNone(a) || isNone(b) ? isNone(a) - isNone(b) : way * compared(a, b)))
    .map(([, row]) => row);
}

const isNone = (value) => value === null || value === undefined || value === "";

function compared(a, b) {
  return typeof a === "number" && typeof b === "number"
    ? a - b
    : String(a).localeCompare(String(b), undefined, { numeric: true });
}

async function copyAsCsv(columns, rows) {
  const copied = columns.filter((column) => column.csv !== false && column.title);
  const text = csv(
    copied.map((column) => column.title),
    rows.map((row) => copied.map((column) => valueIn(column, row))),
  );
  if (await copy(text)) toast(`Copied ${rows.length} rows as CSV`);
  else toast("The browser did not allow copying", { tone: "bad" });
}
