// The form of a new version of the price book, filled in from the latest version, since each is complete.

import { Dialog } from "../../../components/dialog.js";
import { Form, TextField, useForm } from "../../../components/form.js";
import { toast } from "../../../components/toast.js";
import { post } from "../../../lib/api.js";
import { invalidate } from "../../../lib/data.js";
import { html } from "../../../lib/html.js";
import { Discounts, Entries } from "./rows.js";
import { NEW_ENTRY, check, sent, typed } from "./values.js";

/**
 * The form of a version of the price book. from: the version to begin from, if there is one. onDone(version): called
 * once it is saved.
 */
export function SetPrices({ from, onClose, onDone }) {
  const form = useForm(
    {
      currency: from?.currency ?? "usd",
      entries: from?.entries.map(typed) ?? [NEW_ENTRY],
      discounts:
        from?.discounts.map((each) => ({
          project_id: each.project_id,
          percent: String(each.basis_points / 100),
        })) ?? [],
      effective_at: "",
    },
    async (values) => {
      const made = await post("/prices", sent(values));
      invalidate("/prices");
      toast(`Version ${made.version} of the prices is set`);
      onDone(made);
    },
    check,
  );
  return html`
    <${Dialog} title="New prices" wide onClose=${onClose}>
      <${Form} form=${form} verb="Set prices" what="set the prices" onCancel=${onClose}>
        <p class="hint">It replaces the version before it as a whole. What was billed stays as it was.</p>
        <${Entries} form=${form} />
        <${Discounts} form=${form} />
        <div class="grid-2">
          <${TextField}
            label="In force from"
            type="datetime-local"
            optional
            hint="In your time zone. Empty: as soon as every gateway knows, in seconds."
            ...${form.bind("effective_at")}
          />
          <${TextField}
            label="Currency"
            maxlength="3"
            disabled=${from !== undefined}
            hint=${from ? "It can't change any more." : "Three letters, such as usd or eur. It can't change later."}
            ...${form.bind("currency")}
          />
        </div>
      <//>
    <//>
  `;
}
