// The form that makes or changes a delivery, which is known by its name.

import { Dialog } from "../../components/dialog.js";
import { Form, Select, TextField, useForm } from "../../components/form.js";
import { toast } from "../../components/toast.js";
import { post } from "../../lib/api.js";
import { given, named, webAddress } from "../../lib/rules/checks.js";
import { invalidate } from "../../lib/data.js";
import { html } from "../../lib/html.js";
import { FORMATS, KINDS, formatOf } from "./export_kinds.js";

const BUCKET = ["bucket", "prefix", "region", "endpoint", "access_key_id", "secret_access_key"];
const NONE = {
  type: "folder",
  path: "",
  bucket: "",
  prefix: "",
  region: "us-east-1",
  endpoint: "",
  access_key_id: "",
  secret_access_key: "",
};

function destination(values) {
  if (values.type === "folder") return { type: "folder", path: values.path };
  return {
    type: "s3",
    ...Object.fromEntries(BUCKET.filter((name) => values[name] !== "").map((name) => [name, values[name].trim()])),
  };
}

const PARTS = /^[A-Za-z0-9_][A-Za-z0-9._=-]{0,127}(\/[A-Za-z0-9_][A-Za-z0-9._=-]{0,127})*$/;
const NO_PARTS =
  "Names of letters, digits, dots, dashes and underlines with slashes between them, such as finance/costs.";
const BUCKET_NAME = /^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$/;
const REGION = /^[a-z0-9-]{1,64}$/;
const PERIOD = /^\d{4}-\d{2}(-\d{2})?$/;

const fits = (text, pattern, sentence) => (pattern.test(text) ? undefined : sentence);

function isPeriod(text) {
  const start = PERIOD.test(text) ? Date.parse(`${text.length === 7 ? `${text}-01` : text}T00:00Z`) : NaN;
  return !Number.isNaN(start) && new Date(start).toISOString().startsWith(text); // 31 February is in March
}

/** Return what is wrong with the values, by field: those of a folder or of a bucket, as chosen. */
function check({ name, kind, schedule, from_period: first, type, ...to }) {
  const bucket = {
    bucket: fits(to.bucket, BUCKET_NAME, "The bucket's name: 3 to 63 lower-case letters, digits, dots and dashes."),
    prefix: to.prefix ? fits(to.prefix, PARTS, NO_PARTS) : undefined,
    region: fits(to.region, REGION, "The region's name, such as eu-central-1."),
    endpoint: to.endpoint ? webAddress(to.endpoint) : undefined,
    access_key_id: given(to.access_key_id, "Give the id of the access key."),
    secret_access_key: given(to.secret_access_key, "Give the secret of the access key."),
  };
  return {
    name: named(name),
    schedule:
      kind === "invoice" && schedule === "daily" ? "An invoice is of a whole month: choose monthly." : undefined,
    from_period: !first || isPeriod(first) ? undefined : "Give a month such as 2026-10, or a day such as 2026-10-05.",
    ...(type === "folder" ? { path: fits(to.path, PARTS, NO_PARTS) } : bucket),
  };
}

/** The form of a delivery. from: the delivery to change, null for a new one. */
export function SetDelivery({ from, onClose }) {
  const initial = {
    name: "",
    kind: "costs",
    format: "csv",
    schedule: "daily",
    from_period: "",
    ...NONE,
    ...(from && {
      name: from.name,
      kind: from.kind,
      format: from.format,
      schedule: from.schedule,
      ...from.destination,
    }),
  };
  const form = useForm(
    initial,
    async (values) => {
      const { name, kind, schedule, from_period: first } = values;
      await post("/deliveries", {
        name: name.trim(),
        kind,
        schedule,
        format: formatOf(kind, values.format),
        destination: destination(values),
        ...(first && { from_period: first }),
      });
      invalidate("/deliveries");
      toast(from ? `${name} is changed` : `${name} is set up`);
      onClose();
    },
    check,
  );
  const { kind, schedule } = form.values;
  const schedules = [
    ["daily", "Daily: each day when it is over"],
    ["monthly", "Monthly: each month when it is closed"],
  ];
  return html`
    <${Dialog} title=${from ? `Change ${from.name}` : "New delivery"} wide onClose=${onClose}>
      <${Form} form=${form} verb=${from ? "Save" : "Set up"} what="set the delivery" onCancel=${onClose}>
        <${TextField}
          label="Name"
          disabled=${from !== null}
          placeholder="finance"
          maxlength="64"
          ...${form.bind("name")}
        />
        <div class="grid-2">
          <${Select} label="What" options=${KINDS} ...${form.bind("kind")} />
          <${Select}
            label="Format"
            options=${FORMATS[kind]}
            ...${form.bind("format")}
            value=${formatOf(kind, form.values.format)}
          />
          <${Select} label="Schedule" options=${schedules} ...${form.bind("schedule")} />
          <${TextField}
            label="From"
            optional
            placeholder=${schedule === "daily" ? "2026-10-05" : "2026-10"}
            hint="The first day or month. Empty: ${from ? "as it was" : "the present one"}."
            ...${form.bind("from_period")}
          />
        </div>
        <${Select}
          label="Destination"
          options=${[["folder", "A folder of the server"], ["s3", "A bucket: S3 or what speaks its protocol"]]}
          ...${form.bind("type")}
        />
        ${
          form.values.type === "folder"
            ? html`
              <${TextField}
                label="Folder"
                hint="Below the server's folder for exports."
                placeholder="finance"
                spellcheck="false"
                ...${form.bind("path")}
              />
            `
            : html`<${Bucket} form=${form} isChange=${from?.destination.type === "s3"} />`
        }
      <//>
    <//>
  `;
}

function Bucket({ form, isChange }) {
  return html`
    <div class="grid-2">
      <${TextField} label="Bucket" spellcheck="false" ...${form.bind("bucket")} />
      <${TextField} label="Prefix" optional spellcheck="false" ...${form.bind("prefix")} />
      <${TextField} label="Region" spellcheck="false" ...${form.bind("region")} />
      <${TextField}
        label="Endpoint"
        optional
        type="url"
        hint="For stores other than Amazon's."
        ...${form.bind("endpoint")}
      />
      <${TextField} label="Access key id" autocomplete="off" spellcheck="false" ...${form.bind("access_key_id")} />
      <${TextField}
        label="Secret access key"
        type="password"
        autocomplete="new-password"
        hint=${isChange ? "Needed again: it is never shown." : "Never shown again."}
        ...${form.bind("secret_access_key")}
      />
    </div>
  `;
}
