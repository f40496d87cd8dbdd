// The tables of one host: replicas, nodes of Ray, and models that it could not prepare.

import { Badge } from "../../../components/badge.js";
import { Empty } from "../../../components/feedback.js";
import { Time } from "../../../components/numbers.js";
import { Table } from "../../../components/table.js";
import { plural } from "../../../lib/format/format.js";
import { html } from "../../../lib/html.js";
import { to } from "../../../lib/router.js";
import { labelsOf } from "../words.js";

export function Running({ here, from, total }) {
  const columns = [
    { key: "pool", title: "Pool", render: ({ pool, pool_id: id }) => html`<a href=${to("models", id)}>${pool}</a>` },
    {
      key: "state",
      title: "State",
      render: ({ state, why, replace }) => html`
        <span>
          <${Badge} dot>${state}<//>
          ${
            replace &&
            html`
              ${" "}
              <${Badge} tone="info">to be replaced<//>
            `
          }
          ${
            why &&
            html`
              <br />
              <small class="faint">${why}</small>
            `
          }
        </span>
      `,
    },
    { key: "gpu", title: "Computes on", value: ({ gpu }) => (gpu === null ? "processors" : `GPU ${gpu}`) },
    { key: "revision", title: "Revision", align: "end" },
    { key: "since", title: "Since", render: ({ since }) => html`<${Time} at=${since} relative />` },
  ];
  const others =
    here && total > here.length
      ? html`
        <p class="hint">
          ${plural(total - here.length, "replica")} of other organizations${" "}
          ${total - here.length === 1 ? "runs" : "run"} there as well.
        </p>
      `
      : null;
  return html`
    <${Table}
      name="running"
      label="What runs there"
      columns=${columns}
      rows=${here}
      error=${from.error}
      reload=${from.reload}
      loading=${from.loading}
      what="load the replicas"
      filter=${false}
      empty=${html`<${Empty} icon="system" title="No replica runs there">
          One starts where most memory is free.
        <//>`}
    />
    ${others}
  `;
}

export function Nodes({ rows }) {
  const columns = [
    {
      key: "name",
      title: "Node",
      render: ({ name, address }) => html`<span>${name}<br /><small class="faint">${address}</small></span>`,
    },
    { key: "num_processors", title: "Processors", format: "count" },
    { key: "memory_bytes", title: "Memory", format: "bytes" },
    { key: "num_gpus", title: "GPUs", format: "count" },
    { key: "num_replicas", title: "Replicas", format: "count" },
    { key: "labels", title: "Labels", value: (node) => labelsOf(node).join(" ") || "none" },
  ];
  return html`
    <${Table}
      name="nodes"
      label="Nodes"
      columns=${columns}
      rows=${rows}
      rowKey=${({ address, name }) => `${address} ${name}`}
      filter=${false}
      empty=${html`<${Empty} icon="system" title="No node">
          The agent has not seen the cluster yet, or no node of it lives.
        <//>`}
    />
  `;
}

export function Failures({ rows }) {
  const columns = [
    { key: "pool_id", title: "Pool", render: ({ pool_id: id }) => html`<a href=${to("models", id)}>${id}</a>` },
    { key: "revision", title: "Revision", align: "end" },
    { key: "why", title: "Why" },
    { key: "num_failures", title: "Attempts", format: "count" },
    { key: "retry_at", title: "Next one", render: ({ retry_at: at }) => html`<${Time} at=${at} relative />` },
  ];
  return html`
    <${Table}
      name="failures"
      label="Models that it could not prepare"
      columns=${columns}
      rows=${rows}
      rowKey=${({ pool_id: id, revision }) => `${id} ${revision}`}
      filter=${false}
    />
  `;
}
