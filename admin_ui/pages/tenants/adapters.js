// The list of a tenant's adapters in brief: each has a page of its own.

import { Badge } from "../../components/badge.js";
import { Button } from "../../components/button.js";
import { Empty } from "../../components/feedback.js";
import { Table } from "../../components/table.js";
import { useList } from "../../lib/data.js";
import { plural } from "../../lib/format/format.js";
import { html } from "../../lib/html.js";
import { pathOf } from "../../lib/projects_api.js";
import { to } from "../../lib/router.js";
import { Tenant } from "./frame.js";

const COLUMNS = [
  { key: "name", title: "Adapter" },
  { key: "version", title: "Current version", align: "end" },
  { key: "rank", title: "Rank", format: "count" },
  { key: "size_bytes", title: "Size", format: "bytes", total: true },
  {
    key: "pinned",
    title: "Pinned",
    render: ({ pinned }) => (pinned ? html`<${Badge} tone="info">pinned<//>` : html`<span class="faint">–</span>`),
  },
  { key: "created_at", title: "Created", format: "time" },
];

export default function Adapters({ params }) {
  const id = params.project;
  const list = useList(pathOf(id, "/adapters"), {}, { limit: 100 });
  const upload = `/admin/adapters?project=${encodeURIComponent(id)}&add=file`;
  const button = (may) =>
    may("adapters.write") &&
    html`
      <${Button} kind="primary" icon="upload" href=${upload}>
        Upload
      <//>
    `;
  return html`
    <${Tenant}
      params=${params}
      lead=${list.items && html`<b>${plural(list.items.length, "adapter")}</b>, each under a model id of its own.`}
      actions=${(_, may) => button(may)}
    >
      ${(_project, may) => html`
        <${Table}
          label="Adapters"
          columns=${COLUMNS}
          rows=${list.items}
          href=${({ name }) => to("adapters", id, name)}
          error=${list.error}
          reload=${list.reload}
          loading=${list.loading}
          hasMore=${list.hasMore}
          more=${list.more}
          empty=${html`<${Empty} icon="adapters" title="No adapter yet" action=${button(may)} command=${command(id)}>
              Trained with PEFT? Its two files are all that is needed.
            <//>`}
        />
      `}
    <//>
  `;
}

function command(id) {
  return `curl ${window.location.origin}/v1/organization${pathOf(id, "/adapters")} \\
  -H "Authorization: Bearer $LORIKEET_API_KEY" -F name=my-adapter \\
  -F config=@adapter_config.json -F weights=@adapter_model.safetensors`;
}
