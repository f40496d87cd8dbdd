// The price book: its versions, each complete, with the one that is in force and the ones to come.

import { Badge } from "../../components/badge.js";
import { Button } from "../../components/button.js";
import { Confirm } from "../../components/dialog.js";
import { Empty, Notice } from "../../components/feedback.js";
import { Money, Time } from "../../components/numbers.js";
import { Page, Section } from "../../components/page.js";
import { Table } from "../../components/table.js";
import { toast } from "../../components/toast.js";
import { del } from "../../lib/api.js";
import { invalidate, useList } from "../../lib/data.js";
import { plural } from "../../lib/format/format.js";
import { html, useState } from "../../lib/html.js";
import { useProjectNames } from "../../lib/projects.js";
import { useQuery } from "../../lib/router.js";
import { can } from "../../lib/session.js";
import { now, short } from "../../lib/format/time.js";
import { SetPrices } from "./set_prices/index.js";
import { UsageTabs } from "./tabs.js";

/** Return each version with its state: "in force", "upcoming" or "past". Versions come newest first. */
function withStates(versions) {
  let found = false;
  return versions.map((version) => {
    if (version.effective_at > now()) return { ...version, state: "upcoming" };
    const state = found ? "past" : "in force";
    found = true;
    return { ...version, state };
  });
}

const TONES = { "in force": "good", upcoming: "info", past: "" };

export default function Prices() {
  const list = useList("/prices", {}, { limit: 20 });
  const [chosen, choose] = useQuery("version", "");
  const [dialog, open] = useState(null);
  const versions = list.items && withStates(list.items);
  const current = versions?.find(({ state }) => state === "in force");
  const shown = versions?.find(({ id }) => id === chosen) ?? current ?? versions?.[0];
  const mayWrite = can("billing.write");
  const lead =
    versions &&
    (current
      ? html`
        Version ${current.version} is in force since <${Time} at=${current.effective_at} />:${" "}
        ${plural(current.entries.length, "price")}
        ${current.discounts.length ? `, ${plural(current.discounts.length, "discount")}` : ""}, in${" "}
        ${current.currency.toUpperCase()}.
      `
      : "No prices are in force: usage is counted and costs nothing.");
  return html`
    <${Page}
      title="Usage"
      lead=${lead}
      tabs=${html`<${UsageTabs} />`}
      actions=${
        mayWrite &&
        html`
          <${Button} kind="primary" icon="plus" onClick=${() => open("new")}>
            New prices
          <//>
        `
      }
    >
      ${
        shown &&
        html`
          <${Version}
            version=${shown}
            onWithdraw=${mayWrite && shown.state === "upcoming" && (() => open("withdraw"))}
          />
        `
      }
      <${Section}
        title="Versions"
        hint="A version is complete and never changes. A request is priced by the one that is in force when it begins."
      >
        <${Versions} list=${list} rows=${versions} shown=${shown} choose=${choose} mayWrite=${mayWrite} />
      <//>
      ${
        dialog === "new" &&
        html`
          <${SetPrices}
            from=${versions?.[0]}
            onClose=${() => open(null)}
            onDone=${(made) => (open(null), choose(made.id))}
          />
        `
      }
      ${
        dialog === "withdraw" &&
        html`<${Withdraw} version=${shown} onClose=${() => open(null)} onDone=${() => choose("")} />`
      }
    <//>
  `;
}

function Versions({ list, rows, shown, choose, mayWrite }) {
  const columns = [
    {
      key: "version",
      title: "Version",
      render: (row) => html`
        <button
          type="button"
          class="link"
          aria-current=${row.id === shown?.id ? "true" : undefined}
          onClick=${() => choose(row.id)}
        >
          Version ${row.version}
        </button>
      `,
    },
    {
      key: "state",
      title: "State",
      render: ({ state }) => html`
        <${Badge} dot tone=${TONES[state]}>
          ${state}
        <//>
      `,
    },
    { key: "effective_at", title: "In force from", format: "time" },
    { key: "created_at", title: "Set", format: "time" },
    { key: "entries", title: "Prices", align: "end", value: ({ entries }) => entries.length },
    { key: "discounts", title: "Discounts", align: "end", value: ({ discounts }) => discounts.length },
  ];
  const command = `curl ${window.location.origin}/v1/organization/prices \\
  -H "Authorization: Bearer $LORIKEET_ADMIN_KEY" -H "Content-Type: application/json" \\
  -d '{"currency": "usd", "entries": [{"input_nanos_per_million": 200000000, "output_nanos_per_million": 800000000}]}'`;
  return html`
    <${Table}
      name="versions"
      label="Versions of the price book"
      columns=${columns}
      rows=${rows}
      error=${list.error}
      reload=${list.reload}
      loading=${list.loading}
      hasMore=${list.hasMore}
      more=${list.more}
      filter=${false}
      empty=${html`<${Empty} icon="usage" title="No prices yet" command=${mayWrite ? command : undefined}>
          Usage is counted from the first request on. What it costs is known once there are prices, for requests
          that begin after that.
        <//>`}
    />
  `;
}

function Version({ version, onWithdraw }) {
  const names = useProjectNames();
  const any = (value, word) => (value === "*" ? html`<span class="muted">${word}</span>` : html`<code>${value}</code>`);
  const price = (key, title) => ({
    key,
    title,
    align: "end",
    value: (row) => row[key],
    render: (row) => html`<${Money} nanos=${row[key]} currency=${version.currency} />`,
  });
  const columns = [
    { key: "model", title: "Model", render: ({ model }) => any(model, "Any model") },
    {
      key: "adapter_class",
      title: "Adapter class",
      render: ({ adapter_class: name }) => (name === "none" ? "Base, no adapter" : any(name, "Any")),
    },
    { key: "service_tier", title: "Service tier", render: ({ service_tier: tier }) => any(tier, "Any") },
    price("input_nanos_per_million", "Input"),
    price("cached_input_nanos_per_million", "Cached input"),
    price("output_nanos_per_million", "Output"),
  ];
  const discounts = [
    {
      key: "project_id",
      title: "Tenant",
      value: ({ project_id: id }) => names(id),
      render: ({ project_id: id }) => html`<a href="/admin/usage/credits?project=${id}">${names(id)}</a>`,
    },
    {
      key: "basis_points",
      title: "Discount",
      align: "end",
      render: ({ basis_points: points }) => `${points / 100} %`,
    },
  ];
  return html`
    <${Section}
      title="Version ${version.version}"
      hint="Per million tokens, in ${version.currency.toUpperCase()}. Of the prices that match a request, that one counts which names the most, its model first."
      actions=${onWithdraw && html`<${Button} onClick=${onWithdraw}>Withdraw<//>`}
    >
      ${
        version.state === "upcoming" &&
        html`
          <${Notice} title="Not in force yet">
            It takes effect at ${short(version.effective_at)}. Until shortly before, it can be withdrawn.
          <//>
        `
      }
      <${Table}
        name="prices"
        label="Prices of version ${version.version}"
        columns=${columns}
        rows=${version.entries}
        filter=${version.entries.length > 8}
        rowKey=${(row) => `${row.model} ${row.adapter_class} ${row.service_tier}`}
        empty=${html`<${Empty} icon="usage" title="Everything is free in this version" />`}
      />
      ${
        version.discounts.length > 0 &&
        html`
          <${Table}
            name="discounts"
            label="Discounts of version ${version.version}"
            columns=${discounts}
            rows=${version.discounts}
            rowKey=${(row) => row.project_id}
            filter=${version.discounts.length > 8}
          />
        `
      }
    <//>
  `;
}

function Withdraw({ version, onClose, onDone }) {
  const act = async () => {
    await del(`/prices/${version.id}`);
    invalidate("/prices");
    onDone();
    toast(`Version ${version.version} is withdrawn`);
  };
  return html`
    <${Confirm} title="Withdraw version ${version.version}?" verb="Withdraw" act=${act} onClose=${onClose}>
      <p>
        It will not take effect at ${short(version.effective_at)}: the prices before it stay in force. No usage
        was priced by it, so no bill changes.
      </p>
    <//>
  `;
}
