// The form of a new pool whose replicas are servers of another maker that run elsewhere.

import { Dialog } from "../../../components/dialog.js";
import { Notice } from "../../../components/feedback.js";
import { Form, Select, TextField, useForm } from "../../../components/form.js";
import { toast } from "../../../components/toast.js";
import { post } from "../../../lib/api.js";
import { invalidate } from "../../../lib/data.js";
import { html } from "../../../lib/html.js";
import { navigate, to } from "../../../lib/router.js";
import { named } from "../../../lib/rules/checks.js";
import { AccessFields, bodyOfAccess, wrongGrants } from "../access.js";
import { Fields, settingsOf, wrong } from "./fields.js";
import { KINDS, consequence, keyRefused, linesOf } from "./words.js";

export function ConnectServers({ onClose }) {
  const initial = {
    name: "",
    engine: "openai",
    urls: "",
    is_private: false,
    model: "",
    own_keys: "none",
    settings: "",
    key: "",
    access: "all",
    grants: [],
  };
  const form = useForm(
    initial,
    async (values) => {
      const body = {
        name: values.name.trim(),
        engine: values.engine,
        urls: linesOf(values.urls),
        model: values.model.trim(),
        settings: settingsOf(values),
      };
      const made = await post("/pools", { ...body, ...bodyOfAccess(values) });
      const refused = values.key.trim() && (await keyRefused(made.id, values.key.trim()));
      invalidate("/pools", "/hosts");
      onClose();
      navigate(to("models", made.id));
      toast(
        refused ? `The pool ${made.name} is made, but its key is not set: ${refused}` : `The pool ${made.name} is made`,
        refused ? { tone: "bad" } : {},
      );
    },
    ({ name, access, grants, ...values }) => ({
      name: named(name),
      ...wrong(values),
      grants: wrongGrants({ access, grants }),
    }),
  );
  return html`
    <${Dialog} title="Connect servers" onClose=${onClose} wide>
      <${Form} form=${form} verb="Create pool" what="create the pool" onCancel=${onClose}>
        <${TextField}
          ...${form.bind("name")}
          label="Name"
          hint="Requests ask for the servers by this name. It cannot be changed later."
          maxlength="128"
          autocomplete="off"
          spellcheck="false"
          autofocus
        />
        <${Select} ...${form.bind("engine")} label="Kind of server" options=${KINDS} />
        <${Fields} form=${form} />
        <${TextField}
          ...${form.bind("key")}
          label="Key"
          optional
          type="password"
          hint="If the servers ask for one. Kept encrypted: the last four characters are shown."
          autocomplete="off"
          spellcheck="false"
        />
        <${AccessFields} form=${form} />
        <${Notice} title="What will happen">${consequence(form.values)}<//>
      <//>
    <//>
  `;
}
