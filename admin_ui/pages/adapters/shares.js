// The list of the other tenants that may call an adapter, with the form that adds one.

import { Button } from "../../components/button.js";
import { Confirm, Dialog } from "../../components/dialog.js";
import { Empty } from "../../components/feedback.js";
import { Form, Select, useForm } from "../../components/form.js";
import { Section } from "../../components/page.js";
import { Table } from "../../components/table.js";
import { toast } from "../../components/toast.js";
import { ApiError, del, post } from "../../lib/api.js";
import { invalidate, useList } from "../../lib/data.js";
import { html, useState } from "../../lib/html.js";
import { useProjectNames, useProjects } from "../../lib/projects.js";
import { to } from "../../lib/router.js";
import { can } from "../../lib/session.js";
import { pathOf } from "./paths.js";

export function Shares({ adapter }) {
  const base = `${pathOf(adapter.project_id, adapter.name)}/shares`;
  const list = useList(base, {}, { limit: 100 });
  const names = useProjectNames();
  const [sharing, share] = useState(false);
  const [ending, end] = useState(null);
  const mayShare = can("projects.write");
  const columns = [
    {
      key: "project_id",
      title: "Tenant",
      value: (row) => names(row.project_id),
      render: (row) => html`<a href=${to("tenants", row.project_id)}>${names(row.project_id)}</a>`,
    },
    { key: "created_at", title: "Since", format: "time" },
    {
      key: "end",
      title: "",
      sort: false,
      csv: false,
      class: "shrink",
      hide: !mayShare,
      render: (row) => html`
        <${Button} small onClick=${() => end(row)}>
          End
        <//>
      `,
    },
  ];
  return html`
    <${Section}
      title="Shared with"
      hint="Other tenants that may call it under its name, at their own cost. They see nothing else of its owner."
      actions=${
        mayShare &&
        html`
          <${Button} small icon="plus" onClick=${() => share(true)}>
            Share
          <//>
        `
      }
    >
      <${Table}
        name="shares"
        label="Shares"
        columns=${columns}
        rows=${list.items}
        error=${list.error}
        reload=${list.reload}
        hasMore=${list.hasMore}
        more=${list.more}
        what="load the shares"
        filter=${false}
        empty=${html`<${Empty}
            icon="tenants"
            title="Shared with nobody"
            action=${mayShare && html`<${Button} onClick=${() => share(true)}>Share it with a tenant<//>`}
          >
            Only ${names(adapter.project_id)} can call it.
          <//>`}
      />
      ${
        sharing &&
        html`
          <${Share}
            adapter=${adapter}
            base=${base}
            taken=${(list.items ?? []).map(({ project_id: id }) => id)}
            onClose=${() => share(false)}
          />
        `
      }
      ${
        ending &&
        html`
          <${Confirm}
            title="Stop sharing with ${names(ending.project_id)}?"
            verb="End the share"
            onClose=${() => end(null)}
            act=${async () => {
              await del(`${base}/${encodeURIComponent(ending.project_id)}`);
              invalidate(base);
              toast(`No longer shared with ${names(ending.project_id)}`);
            }}
          >
            <p>
              New requests of ${names(ending.project_id)} for <code>${adapter.model}</code> are refused with “model not
              found”; those that run finish.
            </p>
          <//>
        `
      }
    <//>
  `;
}

function Share({ adapter, base, taken, onClose }) {
  const projects = (useProjects() ?? []).filter(
    ({ id, status }) => status !== "archived" && id !== adapter.project_id && !taken.includes(id),
  );
  const form = useForm({ project_id: "" }, async (values) => {
    if (!values.project_id) throw new ApiError({ message: "Choose the tenant that may call it.", param: "project_id" });
    await post(base, values);
    invalidate(base);
    onClose();
    toast(`${adapter.name} is shared`);
  });
  return html`
    <${Dialog} title="Share ${adapter.name}" onClose=${onClose}>
      <${Form} form=${form} verb="Share" what="share the adapter" onCancel=${onClose}>
        <p>
          The tenant calls <code>${adapter.model}</code>, whatever version is current, with its settings. An adapter of
          its own by that name wins.
        </p>
        <${Select}
          ...${form.bind("project_id")}
          label="Tenant"
          options=${[["", "Choose a tenant"], ...projects.map(({ id, name }) => [id, name])]}
        />
      <//>
    <//>
  `;
}
