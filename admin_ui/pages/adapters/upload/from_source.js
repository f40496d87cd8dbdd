// The form that adds an adapter from a URL.

import { Checkbox, Form, TextField, useForm } from "../../../components/form.js";
import { toast } from "../../../components/toast.js";
import { post } from "../../../lib/api.js";
import { given } from "../../../lib/rules/checks.js";
import { html } from "../../../lib/html.js";
import { navigate } from "../../../lib/router.js";
import { BaseField, bodyOfBase, useBases } from "./base.js";
import { NAME_HINT, PROMOTE_HINT, checkName } from "./words.js";

const SOURCE_HINT =
  "hf://organization/repository[@revision], https://host/adapter.tar.gz or s3://bucket/prefix. The " +
  "operator allows places with LORIKEET_ADAPTER_SOURCES.";

export function FromSource({ projectId, name, onDone, onClose }) {
  const bases = useBases(name ? null : projectId);
  const form = useForm(
    { name, source: "", base: "", promote: true },
    async ({ base, ...values }) => {
      const started = await post(`/projects/${encodeURIComponent(projectId)}/adapters`, {
        ...values,
        ...bodyOfBase(base, bases),
      });
      onDone(started);
      onClose();
      toast(`Fetching ${values.name}; its import is listed below the adapters`, { tone: "info" });
      if (!name) navigate(`/admin/adapters?project=${encodeURIComponent(projectId)}`);
    },
    (values) => ({
      ...checkName(values),
      source: given(values.source, "Give the place that it is fetched from."),
    }),
  );
  return html`
    <${Form} form=${form} verb="Import" what="begin the import" onCancel=${onClose}>
      <${TextField}
        ...${form.bind("source")}
        label="Source"
        hint=${SOURCE_HINT}
        placeholder="hf://my-org/my-adapter"
        autocomplete="off"
        spellcheck="false"
      />
      ${
        !name &&
        html`
          <${TextField}
            ...${form.bind("name")}
            label="Name"
            hint=${NAME_HINT}
            autocomplete="off"
            spellcheck="false"
          />
        `
      }
      <${BaseField} form=${form} bases=${bases} />
      <${Checkbox}
        label="Make it the current version"
        hint=${PROMOTE_HINT}
        value=${form.values.promote}
        onValue=${(value) => form.set("promote", value)}
      />
    <//>
  `;
}
