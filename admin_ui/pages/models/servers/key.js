// The dialogs that set and remove the key that servers of another maker ask for.

import { Confirm, Dialog } from "../../../components/dialog.js";
import { Notice } from "../../../components/feedback.js";
import { Form, TextField, useForm } from "../../../components/form.js";
import { toast } from "../../../components/toast.js";
import { del, post } from "../../../lib/api.js";
import { invalidate } from "../../../lib/data.js";
import { html } from "../../../lib/html.js";
import { given } from "../../../lib/rules/checks.js";
import { pathOf } from "../words.js";

export function SetServerKey({ pool, onClose }) {
  const form = useForm(
    { key: "" },
    async ({ key }) => {
      await post(pathOf(pool.id, "/key"), { key: key.trim() });
      invalidate("/pools");
      onClose();
      toast(`${pool.name} sends its servers the key`);
    },
    ({ key }) => ({ key: given(key, "Paste the key.") }),
  );
  return html`
    <${Dialog} title="Key for the servers of ${pool.name}" onClose=${onClose}>
      <${Form} form=${form} verb="Save key" what="save the key" onCancel=${onClose}>
        <${TextField}
          ...${form.bind("key")}
          label="Key"
          type="password"
          autocomplete="off"
          spellcheck="false"
          hint="Kept encrypted. Nobody can read it again: the last four characters are shown."
          autofocus
        />
        <${Notice} title="What will happen">
          ${
            pool.key_hint === null
              ? "Within seconds requests are sent with the key"
              : `Within seconds the key takes the place of the one that ends in ${pool.key_hint || "…"}`
          }
          , and gateways ask the servers with it how they are.
        <//>
      <//>
    <//>
  `;
}

export function RemoveServerKey({ pool, onClose }) {
  return html`
    <${Confirm}
      title="Remove the key of ${pool.name}?"
      verb="Remove key"
      onClose=${onClose}
      act=${async () => {
        await del(pathOf(pool.id, "/key"));
        invalidate("/pools");
        toast(`${pool.name} has no key any more`);
      }}
    >
      <p>
        Requests are sent without a key within seconds: servers that ask for one refuse them. Keys that tenants have
        brought stay.
      </p>
    <//>
  `;
}
