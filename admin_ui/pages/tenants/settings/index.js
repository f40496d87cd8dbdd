// The page of a tenant's settings: its name, the retention of its content, and its deletion.

import { Form, TextField, useForm } from "../../../components/form.js";
import { Section } from "../../../components/page.js";
import { named } from "../../../lib/rules/checks.js";
import { html } from "../../../lib/html.js";
import { Tenant } from "../frame.js";
import { ProviderKeys } from "../provider_keys.js";
import { End } from "./end.js";
import { ContentLog, StoredContent, storedSummary } from "./stored_content.js";
import { save } from "./save.js";
import { Tiers } from "./tiers.js";

export default function Settings({ params }) {
  return html`
    <${Tenant} params=${params} lead=${(project) => storedSummary(project)}>
      ${(project, may) => {
        const runs = may("projects.write"),
          logs = may("content.write"),
          keys = may("keys.read");
        const changes = runs || logs || may("keys.write");
        return html`
          <div class="settings">
            ${!changes && html`<p class="hint">Nothing here can be changed by you.</p>`}
            ${
              runs &&
              html`
                <${Name} project=${project} />
                <${StoredContent} project=${project} />
                <${Tiers} project=${project} />
              `
            }
            ${logs && html`<${ContentLog} project=${project} />`}
            ${keys && html`<${ProviderKeys} project=${project} mayWrite=${may("keys.write")} />`}
            ${runs && html`<${End} project=${project} />`}
          </div>
        `;
      }}
    <//>
  `;
}

function Name({ project }) {
  const form = useForm(
    { name: project.name },
    ({ name }) => save(project, { name }, `It is called ${name} now`),
    ({ name }) => ({ name: named(name) }),
  );
  return html`
    <${Section} title="Name" card hint="Keys, adapters and bills go on: they know the tenant by its id.">
      <${Form} form=${form} verb="Rename" what="rename it">
        <${TextField} ...${form.bind("name")} label="Name" maxlength="64" autocomplete="off" />
      <//>
    <//>
  `;
}
