// The form for the service tiers that a tenant's requests may ask for.

import { Checkbox, Form, useForm } from "../../../components/form.js";
import { Section } from "../../../components/page.js";
import { html } from "../../../lib/html.js";
import { save } from "./save.js";

const SERVICE_TIERS_HINT =
  "What its requests may ask for, beside the default. " + "While engines are full, a request gets service by its tier.";

export function Tiers({ project }) {
  const has = (tier) => project.service_tiers.includes(tier);
  const form = useForm({ flex: has("flex"), priority: has("priority") }, ({ flex, priority }) =>
    save(
      project,
      { service_tiers: ["default", ...(flex ? ["flex"] : []), ...(priority ? ["priority"] : [])] },
      "Service tiers saved",
    ),
  );
  return html`
    <${Section}
      title="Service tiers"
      card
      hint=${SERVICE_TIERS_HINT}
    >
      <${Form} form=${form} verb="Save tiers" what="save this">
        <${Checkbox} ...${form.bind("flex")} label="flex" hint="Half of the default's service." />
        <${Checkbox}
          ...${form.bind("priority")}
          label="priority"
          hint="Twice the default's service, taken from other tenants: set a price for it."
        />
      <//>
    <//>
  `;
}
