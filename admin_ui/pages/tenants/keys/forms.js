// The forms that make, change and rotate a key.

import { Dialog } from "../../../components/dialog.js";
import { Form, Select, useForm } from "../../../components/form.js";
import { post } from "../../../lib/api.js";
import { invalidate } from "../../../lib/data.js";
import { html } from "../../../lib/html.js";
import { pathOf } from "../../../lib/projects_api.js";
import { toast } from "../../../components/toast.js";
import { KeyFields, bodyOf, checkKey, valuesOf } from "./fields.js";

/**
 * The form for a new key. onMade(key): called with the key and its secret. accounts: the service accounts that may own
 * the key.
 */
export function NewKey({ projectId, accounts, onMade, onClose }) {
  const form = useForm(
    valuesOf(null),
    async (values) => {
      const made = await post(pathOf(projectId, "/api_keys"), bodyOf(values));
      invalidate(pathOf(projectId, "/api_keys"));
      onMade(made);
    },
    checkKey,
  );
  return html`
    <${Dialog} title="New API key" onClose=${onClose}>
      <${Form} form=${form} verb="Create key" what="create the key" onCancel=${onClose}>
        <${KeyFields} form=${form} projectId=${projectId} accounts=${accounts} />
      <//>
    <//>
  `;
}

export function ChangeKey({ projectId, apiKey, onClose }) {
  const form = useForm(
    valuesOf(apiKey),
    async (values) => {
      await post(pathOf(projectId, `/api_keys/${apiKey.id}`), bodyOf(values, apiKey));
      invalidate(pathOf(projectId, "/api_keys"));
      toast("The key is changed; gateways follow within a second");
      onClose();
    },
    checkKey,
  );
  return html`
    <${Dialog} title="Change ${apiKey.name}" onClose=${onClose}>
      <${Form} form=${form} verb="Save" what="change the key" onCancel=${onClose}>
        <${KeyFields} form=${form} projectId=${projectId} apiKey=${apiKey} />
      <//>
    <//>
  `;
}

const OVERLAPS = [
  ["86400", "A day"],
  ["3600", "An hour"],
  ["604800", "A week"],
  ["2592000", "30 days"],
  ["0", "Not at all: the old secret ends now"],
];

export function RotateKey({ projectId, apiKey, onMade, onClose }) {
  const form = useForm({ grace_seconds: "86400" }, async (values) => {
    const made = await post(pathOf(projectId, `/api_keys/${apiKey.id}/rotate`), {
      grace_seconds: Number(values.grace_seconds),
    });
    invalidate(pathOf(projectId, "/api_keys"));
    onMade(made);
  });
  return html`
    <${Dialog} title="Rotate ${apiKey.name}" onClose=${onClose}>
      <${Form} form=${form} verb="Rotate" what="rotate the key" onCancel=${onClose}>
        <p>
          The key gets a new secret and keeps its name, limits and usage. Programs have the overlap's time to change
          over.
        </p>
        <${Select} ...${form.bind("grace_seconds")} label="Old secret works for" options=${OVERLAPS} />
      <//>
    <//>
  `;
}
