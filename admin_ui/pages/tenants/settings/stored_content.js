// The form for what may be stored of a tenant's content, and for how long.

import { Checkbox, Form, TextField, useForm } from "../../../components/form.js";
import { Section } from "../../../components/page.js";
import { whole } from "../../../lib/rules/checks.js";
import { plural } from "../../../lib/format/format.js";
import { html } from "../../../lib/html.js";
import { save } from "./save.js";

const STORE_COMPLETIONS_AND_RESPONSES_HINT =
  "Completions whose request says “store”, and responses unless theirs says not to: the tenant can read " +
  "them over the API.";
const KEEP_REPLIES_FOR_RETRIES_HINT =
  "For a day, for requests with an Idempotency-Key: one that is sent again gets the same reply and is not " +
  "paid twice.";
const CONTENT_LOG_HINT =
  "What was asked and answered, to be read at each request. E-mail addresses, card and phone numbers, bank " +
  "accounts and keys are taken out first. Each reading is in the audit log.";

const DEFAULT_STORE_DAYS = 30;

const DEFAULT_LOG_DAYS = 7;

export function storedSummary({ store_days: days, keep_replies: replies, log_content_days: logged }) {
  const parts = [
    days > 0 && `completions that ask for it for ${plural(days, "day")}`,
    replies && "replies to retried requests for a day",
    logged > 0 && `what all its requests say and get, redacted, for ${plural(logged, "day")}`,
  ].filter(Boolean);
  return parts.length
    ? `Kept of its content: ${parts.join("; ")}.`
    : "Nothing of what this tenant sends or gets is kept.";
}

const daysComplaint = (days) => whole(days, { min: 1, max: 365 });

export function StoredContent({ project }) {
  const form = useForm(
    {
      storing: project.store_days > 0,
      store_days: String(project.store_days || DEFAULT_STORE_DAYS),
      keep_replies: project.keep_replies,
    },
    ({ storing, store_days: days, keep_replies }) =>
      save(project, { store_days: storing ? Number(days) : 0, keep_replies }, "Saved"),
    ({ storing, store_days: days }) => ({ store_days: storing ? daysComplaint(days) : undefined }),
  );
  return html`
    <${Section} title="Content" card hint="Encrypted with a key of this tenant's own; gone with it.">
      <${Form} form=${form} verb="Save" what="save this">
        <${Checkbox}
          ...${form.bind("storing")}
          label="Store completions and responses"
          hint=${STORE_COMPLETIONS_AND_RESPONSES_HINT}
        />
        ${
          form.values.storing &&
          html`
            <${TextField}
              ...${form.bind("store_days")}
              label="Days until they are deleted"
              inputmode="numeric"
              autocomplete="off"
            />
          `
        }
        <${Checkbox}
          ...${form.bind("keep_replies")}
          label="Keep replies for retries"
          hint=${KEEP_REPLIES_FOR_RETRIES_HINT}
        />
      <//>
    <//>
  `;
}

export function ContentLog({ project }) {
  const form = useForm(
    { logging: project.log_content_days > 0, log_content_days: String(project.log_content_days || DEFAULT_LOG_DAYS) },
    ({ logging, log_content_days: days }) =>
      save(
        project,
        { log_content_days: logging ? Number(days) : 0 },
        logging ? "Requests and replies are kept from now on" : "Nothing more is logged, and what was is hidden",
        "/content_logging",
      ),
    ({ logging, log_content_days: days }) => ({ log_content_days: logging ? daysComplaint(days) : undefined }),
  );
  return html`
    <${Section}
      title="Content log"
      card
      hint=${CONTENT_LOG_HINT}
    >
      <${Form} form=${form} verb="Save" what="save this">
        <${Checkbox} ...${form.bind("logging")} label="Log requests and replies" />
        ${
          form.values.logging &&
          html`
            <${TextField}
              ...${form.bind("log_content_days")}
              label="Days until they are deleted"
              inputmode="numeric"
              autocomplete="off"
            />
          `
        }
      <//>
    <//>
  `;
}
