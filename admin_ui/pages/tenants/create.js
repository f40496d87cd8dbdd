// The steps that make a tenant and its first key, and end with the curl line that uses the key.

import { Dialog } from "../../components/dialog.js";
import { Form, TextField, useForm } from "../../components/form.js";
import { Notice } from "../../components/feedback.js";
import { toast } from "../../components/toast.js";
import { post } from "../../lib/api.js";
import { named } from "../../lib/rules/checks.js";
import { invalidate } from "../../lib/data.js";
import { html, useState } from "../../lib/html.js";
import { readProjects } from "../../lib/projects.js";
import { pathOf } from "../../lib/projects_api.js";
import { navigate, to } from "../../lib/router.js";
import { KeyShownOnce } from "./keys/shown_once.js";

export function CreateTenant({ onClose }) {
  const [made, setMade] = useState(null);
  const form = useForm(
    { name: "" },
    async ({ name }) => {
      const project = await post("/projects", { name: name.trim() });
      invalidate("/projects");
      readProjects();
      try {
        setMade({ project, key: await firstKey(project.id) });
      } catch (error) {
        toast(`${project.name} is there, but it has no key yet: ${error.message}`, { tone: "bad" });
        navigate(to("tenants", project.id, "keys"));
      }
    },
    ({ name }) => ({ name: named(name) }),
  );
  if (made) {
    return html`
      <${KeyShownOnce}
        apiKey=${made.key}
        title="${made.project.name} is ready"
        onClose=${onClose}
        href=${to("tenants", made.project.id)}
      >
        <p>With this first key the tenant's programs can use the models. It has no limit yet.</p>
      <//>
    `;
  }
  return html`
    <${Dialog} title="New tenant" onClose=${onClose}>
      <${Form} form=${form} verb="Create tenant" what="create the tenant" onCancel=${onClose}>
        <${TextField}
          ...${form.bind("name")}
          label="Name"
          hint="Of the customer, team or product. It can be changed later."
          maxlength="64"
          autofocus
          autocomplete="off"
        />
        <${Notice}>A tenant has keys, adapters, limits and a bill of its own. Nothing of it is seen by others.<//>
      <//>
    <//>
  `;
}

/**
 * Make the tenant's first key. It belongs to a service account, so that it stays valid when the tenant's creator
 * leaves.
 */
async function firstKey(projectId) {
  const { api_key: key } = await post(pathOf(projectId, "/service_accounts"), { name: "first key" });
  return { ...key, scopes: ["inference"], models: null, project_id: projectId };
}
