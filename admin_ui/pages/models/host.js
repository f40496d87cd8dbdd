// One host: its agent, what runs there and what it could not prepare; it is labelled, drained and removed here.

import { Badge } from "../../components/badge.js";
import { Button } from "../../components/button.js";
import { Confirm, Dialog } from "../../components/dialog.js";
import { Empty, Loaded, Notice } from "../../components/feedback.js";
import { Checkbox, Form, TextArea, useForm } from "../../components/form.js";
import { Icon } from "../../components/icons.js";
import { Menu } from "../../components/menu.js";
import { Time } from "../../components/numbers.js";
import { Facts, Page, Section } from "../../components/page.js";
import { Table } from "../../components/table.js";
import { toast } from "../../components/toast.js";
import { del, post } from "../../lib/api.js";
import { invalidate, useAll, useApi } from "../../lib/data.js";
import { duration, plural } from "../../lib/format/format.js";
import { html, useState } from "../../lib/html.js";
import { navigate, to } from "../../lib/router.js";
import { can } from "../../lib/session.js";
import { Gauges, HOSTS_EVERY_MS, States, inShort } from "./hosts.js";
import { labelsOf, readLabels, replicas, writeLabels, wrongLabels } from "./words.js";

const CRUMBS = [["Models", "/admin/models"]];
const DIALOGS = { drain: DrainHost, undrain: UseAgain, label: LabelHost, remove: RemoveHost };
const pathOf = (id) => `/hosts/${encodeURIComponent(id)}`;

export default function HostView({ params: { host: id } }) {
  const host = useApi(pathOf(id), {}, { every: HOSTS_EVERY_MS });
  const running = useAll("/replicas", {}, { every: HOSTS_EVERY_MS });
  const [asking, ask] = useState(null);
  if (host.error?.isMissing) {
    return html`
      <${Page} title="Host" crumbs=${CRUMBS}>
        <${Empty}
          icon="system"
          title="There is no host with this id"
          action=${html`<${Button} href="/admin/models">All hosts<//>`}
        >
          It may have been removed.
        <//>
      <//>
    `;
  }
  const Asked = DIALOGS[asking];
  return html`
    <${Page}
      title=${host.data?.name ?? "Host"}
      crumbs=${CRUMBS}
      lead=${
        host.data &&
        html`
          <span class="row">
            <${States} host=${host.data} />
            <span>${inShort(host.data)}</span>
          </span>
        `
      }
      actions=${host.data && can("pools.write") && html`<${Actions} host=${host.data} ask=${ask} />`}
    >
      <${Loaded} from=${host} what="load the host">
        ${(data) => html`<${View} host=${data} running=${running} />`}
      <//>
      ${Asked && host.data && html`<${Asked} host=${host.data} onClose=${() => ask(null)} />`}
    <//>
  `;
}

function Actions({ host, ask }) {
  const items = [
    {
      title: "Remove",
      hint: "for good; its keys open nothing any more",
      icon: "trash",
      danger: true,
      onClick: () => ask("remove"),
    },
  ];
  return html`
    <${Button} onClick=${() => ask("label")}>Labels<//>
    ${
      host.is_drained
        ? html`
          <${Button} kind="primary" icon="play" onClick=${() => ask("undrain")}>
            Use again
          <//>
        `
        : html`
          <${Button} icon="pause" onClick=${() => ask("drain")}>
            Drain
          <//>
        `
    }
    <${Menu}
      label="More actions"
      align="end"
      look="button secondary icon-only"
      button=${html`<${Icon} name="more" />`}
      items=${items}
    />
  `;
}

function View({ host, running }) {
  const here = running.data?.filter(({ host_id: id }) => id === host.id);
  return html`
    ${
      !host.is_alive &&
      html`
        <${Notice} tone="warn" title="No agent runs there">
          ${away(host)}
        <//>
      `
    }
    <${Section} title="Memory" hint="What replicas take is estimated when a model is prepared.">
      <${Gauges} host=${host} />
    <//>
    <${Section} title="What runs there">
      <${Running} here=${here} from=${running} total=${host.num_replicas} />
    <//>
    ${
      host.placement === "ray" &&
      html`
        <${Section}
          title="Nodes"
          hint="Machines of the Ray cluster, as the agent sees them. Ray chooses where each engine runs."
        >
          <${Nodes} rows=${host.nodes} />
        <//>
      `
    }
    ${
      host.failures.length > 0 &&
      html`
        <${Section}
          title="Models that it could not prepare"
          hint="No replica of them starts there until an attempt succeeds."
        >
          <${Failures} rows=${host.failures} />
        <//>
      `
    }
    <${Section} title="The machine" card>
      <${Facts}
        rows=${[
          ["Labels", labelsOf(host).length ? html`<code>${labelsOf(host).join(" ")}</code>` : "none"],
          ["Version of its agent", host.version ?? "no agent yet"],
          [
            "Lease",
            host.is_alive
              ? "held by its agent"
              : host.away_seconds === null
                ? "given back, with no engine left"
                : `ended ${duration(Math.round(host.away_seconds))} ago`,
          ],
          [
            "Keys for other hosts",
            host.is_joined ? "yes" : "none: its engines serve the gateways of its own machine alone",
          ],
          ["Starts servers of", host.programs.length ? host.programs.join(", ") : "Lorikeet alone"],
          ["Id", html`<code>${host.id}</code>`],
        ]}
      />
    <//>
  `;
}

function away({ away_seconds: seconds, num_replicas: number }) {
  if (seconds === null) return "Its last agent ended with all of its engines. A new agent takes the host up again.";
  return number
    ? "Its replicas go to other hosts half a minute after the lease has ended, where there is room. Its engines serve on for gateways that still reach them."
    : "Nothing runs there.";
}

function Running({ here, from, total }) {
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

function Nodes({ rows }) {
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

function Failures({ rows }) {
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

function DrainHost({ host, onClose }) {
  return html`
    <${Confirm}
      title="Drain ${host.name}?"
      verb="Drain"
      onClose=${onClose}
      act=${async () => {
        await post(pathOf(host.id), { is_drained: true });
        invalidate("/hosts", "/pools", "/replicas");
        toast(`${host.name} drains`);
      }}
    >
      <p>
        No replica starts there any more.${" "}
        ${
          host.num_replicas
            ? `${replicas(host.num_replicas)} ${host.num_replicas === 1 ? "goes" : "go"}, each once another one is ready on another host; one for which no other host has room stays and serves.`
            : "None runs there."
        }
      </p>
    <//>
  `;
}

function UseAgain({ host, onClose }) {
  return html`
    <${Confirm}
      title="Use ${host.name} again?"
      verb="Use again"
      danger=${false}
      onClose=${onClose}
      act=${async () => {
        await post(pathOf(host.id), { is_drained: false });
        invalidate("/hosts", "/pools", "/replicas");
        toast(`${host.name} is used again`);
      }}
    >
      <p>Replicas start there again where it has most memory free. Those that run elsewhere stay.</p>
    <//>
  `;
}

function LabelHost({ host, onClose }) {
  const form = useForm(
    { labels: writeLabels(host.labels) },
    async ({ labels }) => {
      await post(pathOf(host.id), { labels: readLabels(labels) });
      invalidate("/hosts", "/pools");
      onClose();
      toast(`The labels of ${host.name} are set`);
    },
    ({ labels }) => ({ labels: wrongLabels(labels) }),
  );
  return html`
    <${Dialog} title="Labels of ${host.name}" onClose=${onClose}>
      <${Form} form=${form} verb="Save" what="set the labels" onCancel=${onClose}>
        <${TextArea}
          ...${form.bind("labels")}
          label="Labels"
          optional
          rows=${5}
          hint="One NAME=VALUE in each line, such as zone=west."
          spellcheck="false"
          autofocus
        />
        <${Notice} title="What will happen">
          Pools that ask for labels start replicas where these fit. Replicas of pools that the host no longer
          fits go once others are ready.
        <//>
      <//>
    <//>
  `;
}

function RemoveHost({ host, onClose }) {
  const [force, setForce] = useState(false);
  const holds = host.num_replicas > 0;
  return html`
    <${Confirm}
      title="Remove ${host.name}?"
      verb="Remove host"
      name=${host.name}
      isReady=${!holds || force}
      onClose=${onClose}
      act=${async () => {
        await del(`${pathOf(host.id)}${force ? "?force=true" : ""}`);
        invalidate("/hosts", "/pools");
        navigate("/admin/models");
        toast(`The host ${host.name} is removed`);
      }}
    >
      <p>
        Its keys open no engine any more, and its agent ends its engines and itself. Bring the journals of its
        gateways home first: they may hold usage that is nowhere else.
      </p>
      ${
        holds &&
        html`
          <${Checkbox}
            value=${force}
            onValue=${setForce}
            label="Remove it with ${replicas(host.num_replicas)}"
            hint="They count as lost, whether or not they still run. Drain the host first where it still answers."
          />
        `
      }
    <//>
  `;
}
