// The status of the installation: its version, and the health of its parts.

import { Badge } from "../../components/badge.js";
import { Code } from "../../components/button.js";
import { Loaded, Notice } from "../../components/feedback.js";
import { Facts, Page, Section } from "../../components/page.js";
import { useApi } from "../../lib/data.js";
import { html } from "../../lib/html.js";
import { Alerts } from "../overview/alerts.js";
import { SystemTabs } from "./tabs.js";

const EVERY_MS = 10_000;

export default function Status() {
  const status = useApi("/status", {}, { every: EVERY_MS });
  const organization = useApi("/");
  const backend = status.data?.backend;
  const lead =
    backend && (backend.ready ? "Everything answers." : html`<b>The engine is not ready.</b> ${backend.detail}`);
  return html`
    <${Page} title="System" lead=${lead} tabs=${html`<${SystemTabs} />`}>
      <${Alerts} />
      <${Loaded} from=${status} what="load the status">
        ${(data) => html`
          ${
            !data.backend.ready &&
            html`
              <${Notice} tone="bad" title="Requests are refused">
                ${data.backend.detail || "No engine answers."} It is restarted by itself where it was started by
                lorikeet serve.
              <//>
            `
          }
          <${Section} title="Installation" card>
            <${Facts}
              rows=${[
                ["Version", data.version],
                ["Base model", html`<code>${data.model}</code>`],
                [
                  "Backend",
                  html`<${Badge} dot tone=${data.backend.ready ? "good" : "bad"}>
                    ${data.backend.ready ? "Ready" : "Not ready"}
                  <//>`,
                ],
                ["Organization", organization.data?.name],
                ["Installation", html`<${Code} text=${data.installation} what="installation id" />`],
                [
                  "API",
                  html`<a href="/docs" target="_blank" rel="noopener">
                    Reference
                  </a>`,
                ],
              ]}
            />
          <//>
        `}
      <//>
    <//>
  `;
}
