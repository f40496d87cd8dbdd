// The table of all pools of the organization: the model of each, its ready replicas, and the change that is under way.

import { Badge } from "../../components/badge.js";
import { Empty } from "../../components/feedback.js";
import { Num } from "../../components/numbers.js";
import { Table } from "../../components/table.js";
import { useAll } from "../../lib/data.js";
import { plural } from "../../lib/format/format.js";
import { html } from "../../lib/html.js";
import { useProjectNames } from "../../lib/projects.js";
import { to } from "../../lib/router.js";
import { useSession } from "../../lib/session.js";
import { settingsOf, whoMayUse } from "./words.js";

const EVERY_MS = 10_000;

/** Return {data: pools, …}, read again at changes that the live stream reports, and regularly for all others. */
export const usePools = () => useAll("/pools", {}, { every: EVERY_MS });

export function PoolsLead({ pools }) {
  if (pools.length === 0) return "No pool yet: a pool is a base model with the engines that serve it.";
  const serving = pools.filter(({ num_ready: number }) => number > 0).length;
  const failed = pools.filter(({ state }) => state === "failed").length;
  const moving = pools.filter(({ state }) => ["starting", "changing", "scaling"].includes(state)).length;
  const more = [failed && `${plural(failed, "pool")} failed`, moving && `${moving} on the way`]
    .filter(Boolean)
    .join(", ");
  return html`
    <b>${serving}</b> of ${plural(pools.length, "pool")} ${serving === 1 ? "answers" : "answer"} requests
    ${more && `; ${more}`}.
  `;
}

export function Pools({ pools, action }) {
  const names = useProjectNames();
  const own = useSession().who.organization;
  const columns = [
    { key: "name", title: "Pool" },
    {
      key: "state",
      title: "State",
      render: ({ state, why }) => html`
        <span>
          <${Badge} dot>${state}<//>
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
    {
      key: "num_ready",
      title: "Replicas ready",
      align: "end",
      total: true,
      render: ({ num_ready: ready, num_wanted: wanted }) => html`
        <span class="num">
          ${ready}
          ${
            ready === wanted
              ? ""
              : html`
                ${" "}
                <span class="faint">of ${wanted}</span>
              `
          }
        </span>
      `,
    },
    {
      key: "model",
      title: "Model",
      render: (row) => html`
        <span>
          <code>${row.model}</code>
          ${
            settingsOf(row) &&
            html`
              <br />
              <small class="faint">${settingsOf(row)}</small>
            `
          }
        </span>
      `,
    },
    {
      key: "revision",
      title: "Revision",
      align: "end",
      render: ({ revision, wanted_revision: wanted }) =>
        revision === wanted
          ? html`<${Num} value=${revision} />`
          : html`
            <span class="num">
              ${revision ?? "none"} → ${wanted}
            </span>
          `,
    },
    { key: "replica_bytes", title: "Memory a replica", format: "bytes" },
    { key: "access", title: "Used by", value: (row) => whoMayUse(row, names, own) },
  ];
  return html`
    <${Table}
      name="pools"
      label="Pools"
      columns=${columns}
      rows=${pools.data}
      error=${pools.error}
      reload=${pools.reload}
      loading=${pools.loading}
      what="load the pools"
      href=${({ id }) => to("models", id)}
      empty=${html`<${Empty}
          icon="models"
          title="No pool yet"
          action=${action}
          command="lorikeet pool create NAME --model MODEL --wait"
        >
          A pool serves one base model under a name, with one or several engines. Adapters of the model answer there as
          well.
        <//>`}
    />
  `;
}
