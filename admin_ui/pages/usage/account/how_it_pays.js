// The tenant's mode of payment, prepaid or billed, and its customer at Stripe.

import { Badge } from "../../../components/badge.js";
import { Button } from "../../../components/button.js";
import { Confirm } from "../../../components/dialog.js";
import { ErrorBox } from "../../../components/feedback.js";
import { Money } from "../../../components/numbers.js";
import { Facts, Section } from "../../../components/page.js";
import { toast } from "../../../components/toast.js";
import { del, post } from "../../../lib/api.js";
import { invalidate, useApi } from "../../../lib/data.js";
import { html } from "../../../lib/html.js";
import { to } from "../../../lib/router.js";

export function HowItPays({ data, path, open }) {
  const customer = useApi(`${path}/stripe_customer`);
  const id = customer.data?.customer_id;
  return html`
    <${Section} card>
      <${Facts}
        rows=${[
          [
            "Pays",
            html`<span class="row">
              <${Badge} tone=${data.mode === "prepaid" ? "info" : ""}>${data.mode}<//>
              ${
                open &&
                html`
                  <${Button} small onClick=${() => open("mode")}>
                    ${data.mode === "prepaid" ? "Let it pay by invoice" : "Make it prepaid"}
                  <//>
                `
              }
            </span>`,
          ],
          [
            "Balance",
            html`<b>
              <${Money} nanos=${data.balance_nanos} currency=${data.currency} />
            </b>`,
          ],
          [
            "Limit",
            data.limit_id
              ? html`<a href=${to("tenants", data.project_id, "limits")}>held by a limit</a>`
              : html`<span class="faint">none: it may go below zero</span>`,
          ],
          [
            "Stripe customer",
            html`<span class="row">
              ${id ? html`<code>${id}</code>` : html`<span class="faint">none</span>`}
              ${
                open &&
                html`
                  <${Button} small onClick=${() => open("customer")}>
                    ${id ? "Change" : "Set"}
                  <//>
                `
              }
              ${
                open &&
                id &&
                html`
                  <${Button}
                    small
                    kind="quiet"
                    icon="trash"
                    label="Remove the Stripe customer"
                    onClick=${() => open("no customer")}
                  />
                `
              }
            </span>`,
          ],
        ]}
      />
      <${ErrorBox} error=${customer.error} what="load the Stripe customer" retry=${customer.reload} />
    <//>
  `;
}

export function ChangeMode({ path, name, data, onClose }) {
  const mode = data.mode === "prepaid" ? "postpaid" : "prepaid";
  const act = async () => {
    await post(`${path}/billing`, { mode });
    invalidate(`${path}/billing`, `${path}/limits`);
    toast(mode === "prepaid" ? `${name} pays in advance` : `${name} pays by invoice`);
  };
  if (mode === "postpaid") {
    return html`
      <${Confirm}
        title="Let ${name} pay by invoice?"
        verb="Pay by invoice"
        act=${act}
        onClose=${onClose}
        danger=${false}
      >
        <p>Its balance stops no request any more; what goes beyond its credits comes on the invoice.</p>
      <//>
    `;
  }
  return html`
    <${Confirm}
      title="Make ${name} prepaid?"
      verb="Make it prepaid"
      act=${act}
      onClose=${onClose}
      danger=${data.balance_nanos <= 0}
    >
      <p>
        Requests are refused when the balance is used up; running ones go on to their end.
        ${
          data.balance_nanos <= 0 &&
          html`
            ${" "}
            <b>
              Its balance is <${Money} nanos=${data.balance_nanos} currency=${data.currency} />: all its requests are
              refused from now on, until credit is granted.
            </b>
          `
        }
      </p>
    <//>
  `;
}

export function RemoveCustomer({ path, name, onClose }) {
  const act = async () => {
    await del(`${path}/stripe_customer`);
    invalidate(`${path}/stripe_customer`);
    toast(`${name} has no Stripe customer`);
  };
  return html`
    <${Confirm} title="Remove the Stripe customer of ${name}?" verb="Remove" act=${act} onClose=${onClose}>
      <p>
        Meter events of ${name} name nobody from then on: Stripe does not bill its usage. Invoices here go on as
        before.
      </p>
    <//>
  `;
}
