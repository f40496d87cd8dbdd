// A tenant's limits with the used, reserved and free part of each; rate limits by model; the limits of cost.

import { Button } from "../../../components/button.js";
import { Empty, ErrorBox, Skeleton } from "../../../components/feedback.js";
import { Section } from "../../../components/page.js";
import { useAll } from "../../../lib/data.js";
import { percent, plural } from "../../../lib/format/format.js";
import { html, useState } from "../../../lib/html.js";
import { useShortcut } from "../../../lib/rules/keys.js";
import { mayIn, pathOf, useMonthlyCost } from "../../../lib/projects_api.js";
import { setQuery, useQuery } from "../../../lib/router.js";
import { Tenant } from "../frame.js";
import { SetLimit } from "./form.js";
import { LimitGauges } from "./gauges.js";
import { RateLimits } from "./rate_limits.js";
import { shareOf, titleOf } from "./words.js";

const EVERY_MS = 3000;

export default function Limits({ params }) {
  const id = params.project;
  const base = pathOf(id, "/limits");
  const list = useAll(base, {}, { every: EVERY_MS });
  const keys = useAll(pathOf(id, "/api_keys"));
  const { currency } = useMonthlyCost(id);
  const [making] = useQuery("new");
  const [preset, setPreset] = useState(null);
  const [changing, change] = useState(null);
  const limits = list.data;
  const set = (values = {}) => (setPreset(values), setQuery({ new: 1 }));
  const close = () => (setPreset(null), change(null), setQuery({ new: null }));
  const keyName = (keyId) => keys.data?.find((key) => key.id === keyId)?.name ?? keyId;
  useShortcut("n", "New limit", () => mayIn(id, { status: "active" })("key_limits.write") && set());
  const mayChange = (may) => (limit) => may(limit.api_key_id ? "key_limits.write" : "limits.write");
  const gauges = (shown, may) => html`
    <${LimitGauges}
      limits=${shown}
      base=${base}
      currency=${currency}
      keyName=${keyName}
      mayChange=${mayChange(may)}
      onChange=${change}
    />
  `;
  return html`
    <${Tenant}
      params=${params}
      lead=${limits && html`<${Lead} limits=${limits} />`}
      actions=${(_, may) =>
        may("key_limits.write") &&
        html`
          <${Button} kind="primary" icon="plus" onClick=${() => set()}>
            New limit
          <//>
        `}
    >
      ${(project, may) => html`
        <${ErrorBox} error=${list.error} what="load the limits" retry=${list.reload} />
        ${
          limits === undefined
            ? !list.error && html`<${Skeleton} lines=${5} />`
            : html`
              <${Section} title="Usage" hint="Live. Reserved is held for requests that run now.">
                ${
                  usage(limits).length
                    ? gauges(usage(limits), may)
                    : html`
                      <${NoLimit}
                        project=${project}
                        action=${
                          may("key_limits.write") &&
                          html`
                            <${Button} icon="plus" onClick=${() => set()}>
                              Set a limit
                            <//>
                          `
                        }
                      />
                    `
                }
              <//>
              <${Section}
                title="Spend"
                hint="A hard limit refuses at its end; an alert calls the organization's webhooks."
                actions=${
                  may("limits.write") &&
                  html`
                    <${Button} onClick=${() => set({ unit: "cost_nanos", window: "month" })}>Set spend limit<//>
                    <${Button}
                      onClick=${() =>
                        set({ unit: "cost_nanos", window: "month", hard: "false", alert_percents: "100" })}
                    >
                      Set alert
                    <//>
                  `
                }
              >
                ${
                  spend(limits).length
                    ? gauges(spend(limits), may)
                    : html`<p class="hint">This tenant may spend without end, and nobody is told.</p>`
                }
              <//>
            `
        }
        <${RateLimits} projectId=${id} may=${may} />
        ${
          (making || changing) &&
          may("key_limits.write") &&
          html`
            <${SetLimit}
              key=${changing?.id ?? "new"}
              base=${base}
              projectId=${id}
              limit=${changing}
              preset=${preset ?? {}}
              keysOnly=${!may("limits.write")}
              currency=${currency}
              onChange=${change}
              onClose=${close}
            />
          `
        }
      `}
    <//>
  `;
}

const usage = (limits) => limits.filter(({ unit }) => unit !== "cost_nanos");
const spend = (limits) => limits.filter(({ unit }) => unit === "cost_nanos");

function Lead({ limits }) {
  if (limits.length === 0) return html`<b>No limit</b>: this tenant may use all there is.`;
  const fullest = limits.reduce((a, b) => (shareOf(b) > shareOf(a) ? b : a));
  return html`
    <b>${plural(limits.length, "limit")}</b>; the fullest, ${titleOf(fullest).toLowerCase()}, is at${" "}
    <b>${percent(shareOf(fullest))}</b>.
  `;
}

function NoLimit({ project, action }) {
  const command = `curl ${window.location.origin}/v1/organization${pathOf(project.id, "/limits")} \\
  -H "Authorization: Bearer $LORIKEET_ADMIN_KEY" -H "Content-Type: application/json" \\
  -d '{"unit": "tokens", "max": 1000000, "window": "day"}'`;
  return html`
    <${Empty} icon="limits" title="Nothing is limited" command=${command} action=${action}>
      A limit keeps one tenant from using up what others need.
    <//>
  `;
}
