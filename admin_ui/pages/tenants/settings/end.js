// The dialogs that suspend, resume and delete a tenant.

import { Button } from "../../../components/button.js";
import { Confirm } from "../../../components/dialog.js";
import { TextField, useForm } from "../../../components/form.js";
import { Section } from "../../../components/page.js";
import { toast } from "../../../components/toast.js";
import { ApiError, post } from "../../../lib/api.js";
import { whole } from "../../../lib/rules/checks.js";
import { invalidate } from "../../../lib/data.js";
import { html, useState } from "../../../lib/html.js";
import { readProjects } from "../../../lib/projects.js";
import { pathOf } from "../../../lib/projects_api.js";

export function End({ project }) {
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
