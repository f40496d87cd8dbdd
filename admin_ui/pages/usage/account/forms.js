// The forms of a tenant's account: grant a credit, make an adjustment, name its Stripe customer.

import { Dialog } from "../../../components/dialog.js";
import { Form, Select, TextField, useForm } from "../../../components/form.js";
import { toast } from "../../../components/toast.js";
import { toNanos } from "../../../lib/format/amount.js";
import { post } from "../../../lib/api.js";
import { given } from "../../../lib/rules/checks.js";
import { invalidate } from "../../../lib/data.js";
import { money } from "../../../lib/format/format.js";
import { html } from "../../../lib/html.js";

const complaints = ({ amount_nanos: text, reason, expires_at: until, corrects_period: period }) => ({
  amount_nanos: toNanos(text) > 0 ? undefined : "Expected an amount above zero, such as 25 or 0.50.",
  reason: given(reason, "Say what it is for."),
  expires_at: until && !(Date.parse(until) > Date.now()) ? "That time is over." : undefined,
  corrects_period: !period || /^\d{4}-(0[1-9]|1[0-2])$/.test(period.trim()) ? undefined : "A month is such as 2026-10.",
});

export function Grant({ path, name, currency, onClose }) {
  const form = useForm(
    { amount_nanos: "", reason: "", expires_at: "" },
    async ({ amount_nanos: text, reason, expires_at: until }) => {
      const amount = toNanos(text);
      await post(`${path}/credits`, {
        amount_nanos: amount,
        reason,
        ...(until && { expires_at: Math.floor(Date.parse(until) / 1000) }),
      });
      invalidate(`${path}/credits`, `${path}/billing`);
      toast(`${name} has ${money(amount, currency)} more`);
      onClose();
    },
    complaints,
  );
  return html`
    <${Dialog} title="Grant credit to ${name}" onClose=${onClose}>
      <${Form} form=${form} verb="Grant" what="grant the credit" onCancel=${onClose}>
        <${TextField}
          label="Amount in ${currency.toUpperCase()}"
          inputmode="decimal"
          placeholder="25.00"
          ...${form.bind("amount_nanos")}
        />
        <${TextField}
          label="Reason"
          hint="The tenant sees it."
          placeholder="Paid in advance"
          ...${form.bind("reason")}
        />
        <${TextField}
          label="Expires"
          type="datetime-local"
          optional
          hint="In your time zone. What is left of it then lapses."
          ...${form.bind("expires_at")}
        />
      <//>
    <//>
  `;
}

export function Adjust({ path, name, currency, onClose }) {
  const initial = {
    direction: "refund",
    amount_nanos: "",
    reason: "",
    corrects_period: "",
    corrects_request_id: "",
  };
  const form = useForm(
    initial,
    async ({ amount_nanos: text, corrects_period: period, corrects_request_id: id, ...rest }) => {
      const amount = toNanos(text);
      await post(`${path}/adjustments`, {
        ...rest,
        amount_nanos: amount,
        ...(period && { corrects_period: period.trim() }),
        ...(id && { corrects_request_id: id.trim() }),
      });
      invalidate(`${path}/adjustments`, `${path}/billing`, `${path}/invoices`, "/periods");
      toast(`${rest.direction === "refund" ? "Refunded" : "Charged"} ${money(amount, currency)}`);
      onClose();
    },
    complaints,
  );
  return html`
    <${Dialog} title="Adjust what ${name} pays" onClose=${onClose}>
      <${Form}
        form=${form}
        verb=${form.values.direction === "refund" ? "Refund" : "Charge"}
        what="adjust it"
        onCancel=${onClose}
      >
        <${Select}
          label="Direction"
          options=${[["refund", "Refund: it pays less"], ["charge", "Charge: it pays more"]]}
          ...${form.bind("direction")}
        />
        <${TextField}
          label="Amount in ${currency.toUpperCase()}"
          inputmode="decimal"
          placeholder="1.50"
          ...${form.bind("amount_nanos")}
        />
        <${TextField} label="Reason" hint="It is on the invoice." ...${form.bind("reason")} />
        <${TextField}
          label="Corrects a closed month"
          optional
          placeholder="2026-10"
          ...${form.bind("corrects_period")}
        />
        <${TextField}
          label="Corrects a request"
          optional
          hint="Its id: what the reply's x-request-id said."
          ...${form.bind("corrects_request_id")}
        />
      <//>
    <//>
  `;
}

export function SetCustomer({ path, name, onClose }) {
  const form = useForm(
    { customer_id: "" },
    async ({ customer_id: id }) => {
      await post(`${path}/stripe_customer`, { customer_id: id.trim() });
      invalidate(`${path}/stripe_customer`);
      toast(`Stripe bills ${name} as ${id.trim()}`);
      onClose();
    },
    ({ customer_id: id }) => ({
      customer_id: /^cus_[A-Za-z0-9_]{1,64}$/.test(id.trim())
        ? undefined
        : "Ids of Stripe's customers begin with cus_, such as cus_NffrFeUfNV2Hib.",
    }),
  );
  return html`
    <${Dialog} title="Stripe customer of ${name}" onClose=${onClose}>
      <${Form} form=${form} verb="Save" what="set the customer" onCancel=${onClose}>
        <${TextField}
          label="Customer id"
          placeholder="cus_…"
          hint="Meter events in exports name it, and Stripe bills it. Usage before stays with whom it named then."
          ...${form.bind("customer_id")}
        />
      <//>
    <//>
  `;
}
