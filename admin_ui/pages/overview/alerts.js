// The list of conditions that hold now and need a person, the worst first; nothing where there are none.

import { Icon } from "../../components/icons.js";
import { Time } from "../../components/numbers.js";
import { useApi } from "../../lib/data.js";
import { html } from "../../lib/html.js";

const EVERY_MS = 15_000;
const ICONS = { critical: "critical", warning: "alert", info: "info" };
const RANK = { critical: 0, warning: 1, info: 2 };

export function Alerts({ projectId }) {
  const { data } = useApi("/alerts", {}, { every: EVERY_MS });
  const shown = (data?.data ?? []).filter((alert) => !projectId || !alert.project_id || alert.project_id === projectId);
  if (shown.length === 0) return null;
  const ordered = [...shown].sort((a, b) => RANK[a.severity] - RANK[b.severity]);
  return html`
    <section class="alerts" aria-label="Alerts">
      ${ordered.map((alert) => {
        const inside = html`
          <${Icon} name=${ICONS[alert.severity]} />
          <div>
            <strong>
              <span class="visually-hidden">${alert.severity}: </span>
              ${alert.title}
            </strong>
            <p>${alert.detail}</p>
          </div>
          ${
            alert.since &&
            html`
              <small class="faint">
                <${Time} at=${alert.since} relative />
              </small>
            `
          }
        `;
        const key = `${alert.code} ${alert.href} ${alert.title}`;
        return alert.href
          ? html`
            <a key=${key} class="alert ${alert.severity}" href=${alert.href}>
              ${inside}
            </a>
          `
          : html`
            <div key=${key} class="alert ${alert.severity}">
              ${inside}
            </div>
          `;
      })}
    </section>
  `;
}
