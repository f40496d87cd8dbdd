// The page of one request: its end, the parts of its time, its usage and its cost, attempt by attempt.

import { Badge } from "../../../components/badge.js";
import { Code } from "../../../components/button.js";
import { Empty, Loaded } from "../../../components/feedback.js";
import { Money } from "../../../components/numbers.js";
import { Page, Section } from "../../../components/page.js";
import { useApi } from "../../../lib/data.js";
import { exactly, ms } from "../../../lib/format/format.js";
import { html } from "../../../lib/html.js";
import { Content } from "../content.js";
import { Stored } from "../stored.js";
import { Timeline } from "../timeline.js";
import { Attempts } from "./attempts.js";
import { Prices } from "./prices.js";
import { What, Why } from "./what.js";

export default function RequestView({ params: { id } }) {
  const request = useApi(`/requests/${encodeURIComponent(id)}`);
  const data = request.data;
  const lead =
    data &&
    html`
      <${Badge} dot>${data.status}<//> in <b>${ms(data.latency_ms)}</b> for${" "}
      <b>
        <${Money} nanos=${data.cost_nanos} currency=${data.currency} />
      </b>
      : ${exactly(data.input_tokens)} tokens in, ${exactly(data.output_tokens)} out.
    `;
  return html`
    <${Page}
      title="Request"
      crumbs=${[["Requests", "/admin/requests"]]}
      lead=${lead}
      actions=${html`<${Code} text=${id} what="request id" />`}
    >
      <${Loaded} from=${request} what="load the request" missing=${html`<${Missing} id=${id} />`}>
        ${(found) => html`
          <${Why} request=${found} />
          <${Section} title="Where its time went">
            <${Timeline} request=${found} />
          <//>
          <${Section} title="What it was" card>
            <${What} request=${found} />
          <//>
          <${Section}
            title="What it cost"
            hint="Tokens at the price per million that was in force when it began, less the tenant's discount."
          >
            <${Prices} request=${found} />
          <//>
          <${Section}
            title="Attempts"
            hint="One, unless an engine failed and the request was run again, or it had several prompts."
          >
            <${Attempts} request=${found} />
          <//>
          <${Content} key=${found.id} request=${found} />
          <${Stored} key="stored ${found.id}" request=${found} />
        `}
      <//>
    <//>
  `;
}

function Missing({ id }) {
  return html`
    <${Empty}
      icon="search"
      title="No request has this id"
      action=${html`<a class="button secondary" href="/admin/refusals?q=${encodeURIComponent(id)}">
          Look among the refused ones
        </a>`}
    >
      Requests show a second after their end, for 92 days. One that was refused before it ran is among the refusals.
    <//>
  `;
}
