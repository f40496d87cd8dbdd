// The form by which the reader sets a new password.

import { Form, TextField, useForm } from "../../components/form.js";
import { Section } from "../../components/page.js";
import { toast } from "../../components/toast.js";
import { post } from "../../lib/api.js";
import { html } from "../../lib/html.js";

export function Password() {
  const form = useForm({ password: "", new_password: "" }, async (values) => {
    const { ids } = await post("/admin/v1/password", values);
    form.reset();
    toast(ids.length ? `Password changed; ${ids.length} other sessions ended` : "Password changed");
  });
  return html`
    <${Section} title="Password" hint="Changing it ends all your other sessions." card>
      <${Form} form=${form} verb="Change password" what="change the password">
        <${TextField}
          ...${form.bind("password")}
          label="Current password"
          type="password"
          autocomplete="current-password"
        />
        <${TextField}
          ...${form.bind("new_password")}
          label="New password"
          type="password"
          autocomplete="new-password"
          hint="12 characters or more; a few words are best."
        />
      <//>
    <//>
  `;
}
