// Make a delivery, or change one: it is known by its name.

import { Dialog } from "../../components/dialog.js";
import { Form, Select, TextField, useForm } from "../../components/form.js";
import { toast } from "../../components/toast.js";
import { post } from "../../lib/api.js";
import { invalidate } from "../../lib/data.js";
import { html } from "../../lib/html.js";
import { FORMATS, KINDS, formatOf } from "./export_kinds.js";

const BUCKET = ["bucket", "prefix", "region", "endpoint", "access_key_id", "secret_access_key"];
const NONE = { type: "folder", path: "", bucket: "", prefix: "", region: "us-east-1", endpoint: "", access_key_id: "", secret_access_key: "" };

function destination(values) {
  if (values.type === "folder") return { type: "folder", path: values.path };
  return { type: "s3", ...Object.fromEntries(BUCKET.filter((name) => values[name] !== "").map((name) => [name, values[name]])) };
}

/** The API names "destination.bucket", where this form has "bucket". */
async function sent(body) {
  try {
    return await post("/deliveries", body);
  } catch (error) {
    if (error.param) error.param = error.param.replace(/^destination\./, "");
    throw error;
  }
}

/** from: the one that is changed, null for a new one. */
export function SetDelivery({ from, onClose }) {
  const initial = {
    name: "", kind: "costs", format: "csv", schedule: "daily", from_period: "", ...NONE,
    ...(from && { name: from.name, kind: from.kind, format: from.format, schedule: from.schedule, ...from.destination }),
  };
  const form = useForm(initial, async (values) => {
    const { name, kind, schedule, from_period: first } = values;
    await sent({ name, kind, schedule, format: formatOf(kind, values.format), destination: destination(values), ...(first && { from_period: first }) });
    invalidate("/deliveries");
    toast(from ? `${name} is changed` : `${name} is set up`);
    onClose();
  });
  const { kind, schedule } = form.values;
  const schedules = [["daily", "Daily: each day when it is over"], ["monthly", "Monthly: each month when it is closed"]];
  return html`<${Dialog} title=${from ? `Change ${from.name}` : "New delivery"} wide onClose=${onClose}>
    <${Form} form=${form} verb=${from ? "Save" : "Set up"} what="set the delivery" onCancel=${onClose}>
      <${TextField} label="Name" disabled=${from !== null} placeholder="finance" ...${form.bind("name")} />
      <div class="grid-2">
        <${Select} label="What" options=${KINDS} ...${form.bind("kind")} />
        <${Select} label="Format" options=${FORMATS[kind]} ...${form.bind("format")} value=${formatOf(kind, form.values.format)} />
        <${Select} label="Schedule" options=${schedules} ...${form.bind("schedule")} />
        <${TextField} label="From" optional placeholder=${schedule === "daily" ? "2026-10-05" : "2026-10"} hint="The first day or month. Empty: ${from ? "as it was" : "the present one"}." ...${form.bind("from_period")} />
      </div>
      <${Select} label="Destination" options=${[["folder", "A folder of the server"], ["s3", "A bucket: S3 or what speaks its protocol"]]} ...${form.bind("type")} />
      ${form.values.type === "folder"
        ? html`<${TextField} label="Folder" hint="Below the server's folder for exports." placeholder="finance" spellcheck="false" ...${form.bind("path")} />`
        : html`<${Bucket} form=${form} isChange=${from?.destination.type === "s3"} />`}
    <//>
  <//>`;
}

function Bucket({ form, isChange }) {
  return html`<div class="grid-2">
    <${TextField} label="Bucket" spellcheck="false" ...${form.bind("bucket")} />
    <${TextField} label="Prefix" optional spellcheck="false" ...${form.bind("prefix")} />
    <${TextField} label="Region" spellcheck="false" ...${form.bind("region")} />
    <${TextField} label="Endpoint" optional type="url" hint="For stores other than Amazon's." ...${form.bind("endpoint")} />
    <${TextField} label="Access key id" autocomplete="off" spellcheck="false" ...${form.bind("access_key_id")} />
    <${TextField} label="Secret access key" type="password" autocomplete="new-password" hint=${isChange ? "Needed again: it is never shown." : "Never shown again."} ...${form.bind("secret_access_key")} />
  </div>`;
}
