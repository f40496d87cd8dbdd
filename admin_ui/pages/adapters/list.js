// The list of all adapters that the reader sees: current version, traffic, and the engines that have it loaded. Files
// that are dropped anywhere on the page are uploaded.

import { Badge } from "../../components/badge.js";
import { Button } from "../../components/button.js";
import { Empty } from "../../components/feedback.js";
import { Num } from "../../components/numbers.js";
import { Page } from "../../components/page.js";
import { Table } from "../../components/table.js";
import { count, plural } from "../../lib/format/format.js";
import { html, useState } from "../../lib/html.js";
import { useShortcut } from "../../lib/rules/keys.js";
import { useProjectId, useProjectNames } from "../../lib/projects.js";
import { setQuery, to, useQuery } from "../../lib/router.js";
import { can, canSomewhere, isMember, useSession } from "../../lib/session.js";
import { useRange } from "../../lib/format/time.js";
import { useAdapters, useResidency, useTraffic } from "./all.js";
import { DropVeil } from "./upload/drop_zone.js";
import { Imports } from "./imports.js";
import { tryIt } from "./paths.js";
import { Upload } from "./upload/index.js";

export default function Adapters() {
  const projectId = useProjectId();
  const range = useRange();
  const list = useAdapters(projectId);
  const [adding] = useQuery("add");
  const [dropped, setDropped] = useState(null);
  const mayAdd = projectId ? can("adapters.write", projectId) : canSomewhere("adapters.write");
  const add = (how) => setQuery({ add: how }, { push: true });
  useShortcut("n", "Upload an adapter", () => mayAdd && add("file"));
  const mayImport = useSession().who.imports_from_sources;
  const actions =
    mayAdd &&
    html`
      ${
        mayImport &&
        html`
          <${Button} icon="download" onClick=${() => add("source")}>
            Import from a URL
          <//>
        `
      }
      <${Button} kind="primary" icon="upload" onClick=${() => add("file")}>
        Upload an adapter
      <//>
    `;
  const close = () => (setDropped(null), setQuery({ add: null }));
  return html`
    <${Page}
      title="Adapters"
      lead=${list.items && html`<${Lead} items=${list.items} isOne=${projectId !== null} hasMore=${list.hasMore} />`}
      actions=${actions}
    >
      <${List} list=${list} projectId=${projectId} range=${range} mayAdd=${mayAdd} />
      ${projectId && html`<${Imports} projectId=${projectId} />`}
      ${mayAdd && !adding && html`<${DropVeil} onFiles=${(files) => (setDropped(files), add("file"))} />`}
      ${
        mayAdd &&
        adding &&
        html`<${Upload} how=${adding} files=${dropped} projectId=${projectId} onClose=${close} onDone=${list.reload} />`
      }
    <//>
  `;
}

function Lead({ items, isOne, hasMore }) {
  const ready = items.filter(({ version }) => version !== null).length;
  const tenants = new Set(items.map(({ project_id: id }) => id)).size;
  if (items.length === 0) return "One engine serves many adapters of one base model; none is here yet.";
  return html`
    <b>${count(ready)}</b> of ${hasMore ? "the first " : ""}
    ${plural(items.length, "adapter")}
    ${isOne ? "" : ` of ${plural(tenants, "tenant")}`} can be called.
  `;
}

function List({ list, projectId, range, mayAdd }) {
  const names = useProjectNames();
  const traffic = useTraffic(range);
  const loaded = useResidency();
  const numEngines = (row) => loaded?.(row.id).length;
  const columns = [
    { key: "name", title: "Adapter" },
    {
      key: "tenant",
      title: "Tenant",
      hide: projectId !== null || isMember(),
      value: (row) => names(row.project_id),
      render: (row) => html`<a href=${to("tenants", row.project_id)}>${names(row.project_id)}</a>`,
    },
    {
      key: "version",
      title: "Current",
      value: ({ version }) => version,
      render: (row) =>
        row.version === null
          ? html`
            <${Badge} tone="warn" dot>
              none yet
            <//>
          `
          : html`
            <${Badge} dot tone="good">
              v${row.version}
            <//>
          `,
    },
    { key: "rank", title: "Rank", format: "count" },
    { key: "size_bytes", title: "Size", format: "bytes", total: true },
    {
      key: "num_requests",
      title: `Requests, ${range.label.toLowerCase()}`,
      format: "count",
      total: true,
      hide: traffic === null,
      value: ({ id }) => traffic(id)?.num_requests,
      render: ({ id }) => html`
        <a href="/admin/requests?adapter=${encodeURIComponent(id)}">
          <${Num} value=${traffic(id)?.num_requests} />
        </a>
      `,
    },
    {
      key: "errors",
      title: "Failed",
      format: "percent",
      hide: traffic === null,
      value: ({ id }) => share(traffic(id)),
    },
    {
      key: "loaded",
      title: "Loaded",
      hide: loaded === null,
      value: numEngines,
      render: (row) =>
        numEngines(row)
          ? html`<${Badge} tone="info">${plural(numEngines(row), "engine")}<//>`
          : html`<span class="faint">when asked for</span>`,
    },
    {
      key: "pinned",
      title: "",
      value: ({ pinned }) => (pinned ? "pinned" : ""),
      sort: false,
      class: "shrink",
      render: ({ pinned }) => pinned && html`<${Badge}>pinned<//>`,
    },
    {
      key: "try",
      title: "",
      sort: false,
      csv: false,
      class: "shrink",
      render: (row) =>
        row.version !== null &&
        html`
          <${Button} small icon="playground" href=${tryIt(row)}>
            Try it
          <//>
        `,
    },
  ];
  return html`
    <${Table}
      label="Adapters"
      columns=${columns}
      rows=${list.items}
      error=${list.error}
      reload=${list.reload}
      loading=${list.loading}
      hasMore=${list.hasMore}
      more=${list.more}
      what="load the adapters"
      sorted="-num_requests"
      href=${(row) => to("adapters", row.project_id, row.name)}
      empty=${html`<${NoAdapters} mayAdd=${mayAdd} projectId=${projectId} />`}
    />
  `;
}

const share = (row) => (row?.num_requests ? row.num_errors / row.num_requests : null);

function NoAdapters({ mayAdd, projectId }) {
  const command = `curl ${window.location.origin}/v1/organization/projects/${projectId ?? "PROJECT_ID"}/adapters \\
  -H "Authorization: Bearer $LORIKEET_ADMIN_KEY" -F name=my-adapter \\
  -F adapter_config.json=@adapter_config.json -F adapter_model.safetensors=@adapter_model.safetensors`;
  return html`
    <${Empty}
      icon="adapters"
      title="No adapter yet"
      command=${mayAdd ? command : undefined}
      action=${
        mayAdd &&
        html`
          <${Button} kind="primary" icon="upload" onClick=${() => setQuery({ add: "file" }, { push: true })}>
            Upload an adapter
          <//>
        `
      }
    >
      ${
        mayAdd
          ? "Drop the folder that PEFT's save_pretrained wrote anywhere on this page. It is inspected, " +
            "tried on an engine, and can be called by its name within seconds."
          : "Whoever may upload adapters here has not done so yet."
      }
    <//>
  `;
}
