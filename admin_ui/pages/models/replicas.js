// The table of one pool's replicas: the host and the state of each, since when, and why.

import { Badge } from "../../components/badge.js";
import { Code } from "../../components/button.js";
import { Empty } from "../../components/feedback.js";
import { Icon } from "../../components/icons.js";
import { Menu } from "../../components/menu.js";
import { Time } from "../../components/numbers.js";
import { Table } from "../../components/table.js";
import { html, useState } from "../../lib/html.js";
import { can } from "../../lib/session.js";
import { DrainReplica, RestartReplica } from "./confirm_dialogs.js";

export function Replicas({ pool }) {
  const [act, setAct] = useState(null);
  const mayWrite = can("pools.write");
  const columns = [
    { key: "id", title: "Replica", render: ({ id }) => html`<${Code} text=${id} what="replica id" />` },
    { key: "state", title: "State", render: (row) => html`<${State} replica=${row} />` },
    { key: "revision", title: "Revision", align: "end" },
    {
      key: "host",
      title: "Host",
      value: ({ host, host_id: id }) => host ?? (id ? id : "elsewhere"),
      render: ({ host, host_id: id, gpu }) => html`
        <span>
          ${
            host ??
            (id
              ? id
              : html`
                <span class="faint" title="Somebody else runs this replica; it is only connected to.">
                  elsewhere
                </span>
              `)
          }
          ${
            gpu !== null &&
            html`
              ${" "}
              <small class="faint">GPU ${gpu}</small>
            `
          }
        </span>
      `,
    },
    {
      key: "address",
      title: "Address",
      render: ({ address }) =>
        address ? html`<${Code} text=${address} max=${24} what="address" />` : html`<span class="faint">–</span>`,
    },
    { key: "since", title: "Since", render: ({ since }) => html`<${Time} at=${since} relative />` },
    { key: "generation", title: "Starts", format: "count" },
    {
      key: "act",
      title: "",
      sort: false,
      csv: false,
      class: "shrink",
      hide: !mayWrite,
      render: (row) => html`
        <${Actions}
          replica=${row}
          isChanging=${pool.revision !== null && pool.revision !== pool.wanted_revision}
          onAct=${(kind) => setAct({ kind, replica: row })}
        />
      `,
    },
  ];
  return html`
    <${Table}
      name="replicas"
      label="Replicas"
      columns=${columns}
      rows=${pool.replicas}
      filter=${false}
      empty=${html`<${Empty} icon="system" title="No replica runs">
          ${
            pool.num_replicas
              ? "An agent starts the wanted ones once the model is prepared and a host has room."
              : pool.engine && pool.engine !== "lorikeet" && !pool.is_managed
                ? "None is wanted: name the addresses of its servers again (change its servers)."
                : "None is wanted: scale the pool up to have some."
          }
        <//>`}
    />
    ${
      act?.kind === "drain" &&
      html`<${DrainReplica} replica=${act.replica} pool=${pool} onClose=${() => setAct(null)} />`
    }
    ${
      act?.kind === "restart" &&
      html`<${RestartReplica} replica=${act.replica} pool=${pool} onClose=${() => setAct(null)} />`
    }
  `;
}

function State({ replica: { state, why, replace, num_failures: failures, retry_at: retryAt, server } }) {
  const more = [why, failures > 0 && `failed ${failures} ${failures === 1 ? "time" : "times"} in a row`]
    .filter(Boolean)
    .join("; ");
  return html`
    <span>
      <${Badge} dot>${state}<//>
      ${
        replace &&
        html`
          ${" "}
          <${Badge} tone="info">to be replaced<//>
        `
      }${" "}
      <${Trust} server=${server} />
      <${Abilities} server=${server} />
      ${
        more &&
        html`
          <br />
          <small class="faint">
            ${more}
            ${retryAt && html`; next start <${Time} at=${retryAt} relative />`}
          </small>
        `
      }
    </span>
  `;
}

/**
 * How far the gateway that answers trusts a server of another maker: the circuit breaker, and whether its token counts
 * are believed.
 */
function Trust({ server }) {
  if (!server) return null;
  const { breaker, open_for_seconds: open, num_unbelieved: lies, distrusted_for_seconds: distrusted } = server;
  return html`
    ${
      breaker !== "closed" &&
      html`
        <${Badge} tone=${breaker === "open" ? "bad" : "warn"} title="It failed at its last requests">
          ${breaker === "open" ? `breaker open, a trial in ${Math.ceil(open)} s` : "breaker half open"}
        <//>
      `
    }
    ${
      distrusted > 0 &&
      html`
        ${" "}
        <${Badge} tone="bad" title="It reported counts of tokens that cannot be true">
          distrusted for ${Math.ceil(distrusted)} s
        <//>
      `
    }
    ${
      distrusted === 0 &&
      lies > 0 &&
      html`
        ${" "}
        <small class="faint">${lies} of its last 50 counts not believed</small>
      `
    }
  `;
}

/** The features of a server of another maker, by its version. */
function Abilities({ server }) {
  if (!server) return null;
  const { version, is_tried_version: isTried, has_adapters: hasAdapters, separates_caches: separates } = server;
  const adapters = hasAdapters
    ? isTried
      ? "adapters answer"
      : "adapters answer once a probe has shown them"
    : "no adapters";
  const facts = [
    version && `version ${version}`,
    adapters,
    separates ? "a prompt cache for each tenant" : "tenants may share its prompt cache",
  ];
  return html`
    ${
      !isTried &&
      html`
        ${" "}
        <${Badge}
          tone="warn"
          title="Its driver was not tried with this version, so that a generic protocol is spoken"
        >
          version not tried
        <//>
      `
    }
    <br />
    <small class="faint">${facts.filter(Boolean).join(" · ")}</small>
  `;
}

/** The menu of a replica. While a change of revision is under way, that change decides which replicas drain. */
function Actions({ replica, isChanging, onAct }) {
  const ends = ["draining", "stopped"].includes(replica.state);
  const items = [
    ...(replica.host_id !== null && !replica.replace
      ? [
          {
            title: "Replace",
            hint: "by another one of the pool",
            icon: "refresh",
            onClick: () => onAct("restart"),
          },
        ]
      : []),
    ...(isChanging
      ? []
      : [
          {
            title: "Drain",
            hint: "and run one replica less",
            icon: "pause",
            danger: true,
            onClick: () => onAct("drain"),
          },
        ]),
  ];
  return (
    !ends &&
    items.length > 0 &&
    html`
      <${Menu}
        label="Actions on ${replica.id}"
        align="end"
        look="button quiet icon-only small"
        button=${html`<${Icon} name="more" />`}
        items=${items}
      />
    `
  );
}
