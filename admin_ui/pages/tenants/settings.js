// A tenant's name, what may be kept of its content, and its end.

import { Button } from "../../components/button.js";
import { Confirm } from "../../components/dialog.js";
import { Checkbox, Form, TextField, useForm } from "../../components/form.js";
import { Section } from "../../components/page.js";
import { toast } from "../../components/toast.js";
import { ApiError, post } from "../../lib/api.js";
import { named, whole } from "../../lib/rules/checks.js";
import { invalidate } from "../../lib/data.js";
import { plural } from "../../lib/format/format.js";
import { html, useState } from "../../lib/html.js";
import { readProjects } from "../../lib/projects.js";
import { pathOf } from "../../lib/projects_api.js";
import { Tenant } from "./frame.js";
import { ProviderKeys } from "./provider_keys.js";

const DEFAULT_STORE_DAYS = 30;
const DEFAULT_LOG_DAYS = 7;

export default function Settings({ params }) {
  return html`
    <${Tenant} params=${params} lead=${(project) => kept(project)}>
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
                <${Kept} project=${project} />
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

function kept({ store_days: days, keep_replies: replies, log_content_days: logged }) {
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

async function save(project, changes, text, path = "") {
  await post(pathOf(project.id, path), changes);
  invalidate("/projects");
  readProjects();
  toast(text);
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

function Kept({ project }) {
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
          hint="Completions whose request says “store”, and responses unless theirs says not to: the tenant can read them over the API."
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
          hint="For a day, for requests with an Idempotency-Key: one that is sent again gets the same reply and is not paid twice."
        />
      <//>
    <//>
  `;
}

function Tiers({ project }) {
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
      hint="What its requests may ask for, beside the default. While engines are full, a request gets service by its tier."
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

function ContentLog({ project }) {
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
      hint="What was asked and answered, to be read at each request. E-mail addresses, card and phone numbers, bank accounts and keys are taken out first. Each reading is in the audit log."
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

function End({ project }) {
  const [act, setAct] = useState(null);
  const close = () => setAct(null);
  const days = useForm({ retention_days: "30" }, async () => {});
  const change = async (verb, text, body) => {
    await post(pathOf(project.id, `/${verb}`), body);
    invalidate("/projects");
    readProjects();
    toast(text);
  };
  const archive = () => {
    const wrong = whole(days.values.retention_days, { max: 3650 });
    if (wrong) throw new ApiError({ status: 400, message: `Days until its content is purged: ${wrong}` });
    return change("archive", `${project.name} is archived`, { retention_days: Number(days.values.retention_days) });
  };
  const isSuspended = project.status === "suspended";
  return html`
    <${Section} title="Suspend or end" card>
      <div>
        <div class="act">
          <div>
            <h3>${isSuspended ? "Resume this tenant" : "Suspend this tenant"}</h3>
            <p>
              ${
                isSuspended
                  ? "Its keys work again, within a second."
                  : "Its keys are refused within a second, until it is resumed. Nothing is lost."
              }
            </p>
          </div>
          <${Button} icon=${isSuspended ? "play" : "pause"} onClick=${() => setAct(isSuspended ? "resume" : "suspend")}>
            ${isSuspended ? "Resume" : "Suspend"}
          <//>
        </div>
        <div class="act">
          <div>
            <h3>Archive this tenant</h3>
            <p>It ends for good: its keys die at once, its adapters and content go after a time. Its bills stay.</p>
          </div>
          <${Button} kind="danger" onClick=${() => setAct("archive")}>
            Archive
          <//>
        </div>
      </div>
      ${
        act === "suspend" &&
        html`
          <${Confirm}
            title="Suspend ${project.name}?"
            verb="Suspend tenant"
            onClose=${close}
            act=${() => change("suspend", `${project.name} is suspended`)}
          >
            <p>
              All its keys are refused by every gateway within a second. Requests that run end as they would. Adapters,
              limits and members stay as they are.
            </p>
          <//>
        `
      }
      ${
        act === "resume" &&
        html`
          <${Confirm}
            title="Resume ${project.name}?"
            verb="Resume tenant"
            danger=${false}
            onClose=${close}
            act=${() => change("resume", `${project.name} is resumed`)}
          >
            <p>Its keys work again.</p>
          <//>
        `
      }
      ${
        act === "archive" &&
        html`
          <${Confirm}
            title="Archive ${project.name}?"
            verb="Archive tenant"
            name=${project.name}
            onClose=${close}
            act=${async () => archive()}
          >
            <p>
              All its keys are revoked now. Its members lose it. Its adapters and stored content are purged after the
              days below; its ledger and invoices are kept.
            </p>
            <${TextField}
              ...${days.bind("retention_days")}
              label="Days until its content is purged"
              inputmode="numeric"
              autocomplete="off"
            />
          <//>
        `
      }
    <//>
  `;
}
