// The form that changes the servers, or the settings, of a pool of another maker.

import { Dialog } from "../../../components/dialog.js";
import { Notice } from "../../../components/feedback.js";
import { Form, useForm } from "../../../components/form.js";
import { toast } from "../../../components/toast.js";
import { post } from "../../../lib/api.js";
import { invalidate } from "../../../lib/data.js";
import { html } from "../../../lib/html.js";
import { pathOf, writeSettings } from "../words.js";
import { FROM_FIELDS, Fields, settingsOf, wrong } from "./fields.js";
import { linesOf } from "./words.js";

export function ChangeServers({ pool, onClose }) {
  const others = Object.fromEntries(Object.entries(pool.settings).filter(([name]) => !FROM_FIELDS.includes(name)));
  const initial = {
    urls: pool.urls.join("\n"),
    is_private: pool.settings.allow_private === "true",
    model: pool.model,
    own_keys: pool.settings.own_keys ?? "none",
    settings: writeSettings(others),
  };
  const form = useForm(
    initial,
    async (values) => {
      const changed = await post(pathOf(pool.id), {
        urls: linesOf(values.urls),
        model: values.model.trim(),
        settings: settingsOf(values),
      });
      invalidate("/pools", "/projects");
      onClose();
      toast(
        changed.wanted_revision === pool.wanted_revision
          ? "Nothing to change"
          : `${pool.name} changes to revision ${changed.wanted_revision}`,
      );
    },
    wrong,
  );
  return html`
    <${Dialog} title="Change the servers of ${pool.name}" onClose=${onClose} wide>
      <${Form} form=${form} verb="Change" what="change the pool" onCancel=${onClose}>
        <${Fields} form=${form} />
        <${Notice} title="What will happen">
          The pool gets a new revision. Its servers are asked how they are; until one has answered, which takes
          moments, requests may be refused and can be sent again. Requests that run finish where they are.
        <//>
      <//>
    <//>
  `;
}
