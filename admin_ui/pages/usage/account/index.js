// The account of one tenant: its mode of payment, its credits, its adjustments, and its customer at Stripe.

import { Loaded } from "../../../components/feedback.js";
import { html, useState } from "../../../lib/html.js";
import { can } from "../../../lib/session.js";
import { Adjust, Grant, SetCustomer } from "./forms.js";
import { Adjustments } from "./adjustments.js";
import { Credits } from "./credits.js";
import { ChangeMode, HowItPays, RemoveCustomer } from "./how_it_pays.js";

export function Account({ projectId, name, billing }) {
  const [dialog, open] = useState(null);
  const close = () => open(null);
  const mayWrite = can("billing.write");
  const currency = billing.data?.currency;
  const path = `/projects/${projectId}`;
  return html`
    <${Loaded} from=${billing} what="load the account">
      ${(data) => html`
        <${HowItPays} data=${data} path=${path} open=${mayWrite && open} />
        <${Credits} path=${path} currency=${currency} onGrant=${mayWrite && (() => open("grant"))} />
        <${Adjustments} path=${path} currency=${currency} onAdjust=${mayWrite && (() => open("adjust"))} />
        ${dialog === "grant" && html`<${Grant} path=${path} name=${name} currency=${currency} onClose=${close} />`}
        ${dialog === "adjust" && html`<${Adjust} path=${path} name=${name} currency=${currency} onClose=${close} />`}
        ${dialog === "customer" && html`<${SetCustomer} path=${path} name=${name} onClose=${close} />`}
        ${dialog === "mode" && html`<${ChangeMode} path=${path} name=${name} data=${data} onClose=${close} />`}
        ${dialog === "no customer" && html`<${RemoveCustomer} path=${path} name=${name} onClose=${close} />`}
      `}
    <//>
  `;
}
