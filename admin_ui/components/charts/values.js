// The data of a chart as a table.

import { html } from "../../lib/html.js";
import { Table } from "../table.js";

export const SUMMED = new Set(["count", "tokens", "money"]);

export function Values({ title, times, series, unit, currency, written, when, whenTitle, sums }) {
  const listed = series.flatMap(({ key, label, values, lows, highs }) => [
    { key, label, values },
    ...(lows
      ? [
          { key: `${key} low`, label: "from", values: lows },
          { key: `${key} high`, label: "to", values: highs },
        ]
      : []),
  ]);
  const rows = times.map((at, place) => ({
    at,
    currency,
    ...Object.fromEntries(listed.map(({ key, values }) => [key, values[place]])),
  }));
  const columns = [
    when ? { key: "at", title: whenTitle, render: ({ at }) => when(at) } : { key: "at", title: "Time", format: "time" },
    ...listed.map(({ key, label }) => ({
      key,
      title: label,
      format: unit,
      ...(written && { render: (row) => html`<span class="num">${written(row[key])}</span>` }),
      total: sums && listed.length === series.length,
    })),
  ];
  return html`
    <${Table}
      name="values"
      label=${title}
      columns=${columns}
      rows=${rows.reverse()}
      rowKey=${(row) => row.at}
      filter=${false}
    />
  `;
}
