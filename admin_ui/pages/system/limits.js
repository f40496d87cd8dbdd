// The limits of the whole organization: all its tenants together.

import { Button } from "../../components/button.js";
import { Empty, Loaded } from "../../components/feedback.js";
import { Page } from "../../components/page.js";
import { useAll } from "../../lib/data.js";
import { percent, plural } from "../../lib/format/format.js";
import { html, useState } from "../../lib/html.js";
import { useMonthlyCost } from "../../lib/projects_api.js";
import { setQuery, useQuery } from "../../lib/router.js";
import { can } from "../../lib/session.js";
import { SetLimit } from "../tenants/limits/form.js";
import { LimitGauges } from "../tenants/limits/gauges.js";
import { shareOf, titleOf } from "../tenants/limits/words.js";
import { SystemTabs } from "./tabs.js";

const BASE = "/limits";
const EVERY_MS = 3000;

export default function OrganizationLimits() {
  const list = useAll(BASE, {}, { every: EVERY_MS });
  const { currency } = useMonthlyCost(null);
  const [making] = useQuery("new");
  const [changing, change] = useState(null);
  const mayWrite = can("limits.write");
  const limits = list.data;
  const close = () => (change(null), setQuery({ new: null }));
  const add =
    mayWrite &&
    html`
      <${Button} kind="primary" icon="plus" onClick=${() => setQuery({ new: 1 })}>
        New limit
      <//>
    `;
  return html`
    <${Page}
      title="System"
      tabs=${html`<${SystemTabs} />`}
      lead=${limits && html`<${Lead} limits=${limits} />`}
      actions=${add}
    >
      <${Loaded} from=${list} what="load the limits">
        ${() =>
          limits.length
            ? html`
              <${LimitGauges}
                limits=${limits}
                base=${BASE}
                currency=${currency}
                keyName=${(id) => id}
                mayChange=${() => mayWrite}
                onChange=${change}
              />
            `
            : html`
              <${Empty} icon="limits" title="The organization has no limit" action=${add}>
                One bounds all tenants together; each tenant's own are on its page.
              <//>
            `}
      <//>
      ${
        (making || changing) &&
        mayWrite &&
        html`
          <${SetLimit}
            key=${changing?.id ?? "new"}
            base=${BASE}
            projectId=${null}
            limit=${changing}
            currency=${currency}
            onChange=${change}
            onClose=${close}
          />
        `
      }
    <//>
  `;
}

function Lead({ limits }) {
  if (limits.length === 0) return "All tenants together may use all there is.";
  const fullest = limits.reduce((a, b) => (shareOf(b) > shareOf(a) ? b : a));
  return html`
    <b>${plural(limits.length, "limit")}</b> on all tenants together; the fullest,${" "}
    ${titleOf(fullest).toLowerCase()}, is at <b>${percent(shareOf(fullest))}</b>.
  `;
}
