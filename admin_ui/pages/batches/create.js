// The form of a new batch: of a stored or newly uploaded file, run with one of the tenant's keys.

import { Dialog } from "../../components/dialog.js";
import { Notice } from "../../components/feedback.js";
import { Field, Form, Select, useForm } from "../../components/form.js";
import { post, upload } from "../../lib/api.js";
import { invalidate, useAll, useApi } from "../../lib/data.js";
import { bytes } from "../../lib/format/format.js";
import { html, useState } from "../../lib/html.js";
import { pathOf } from "../../lib/projects_api.js";
import { navigate, to } from "../../lib/router.js";
import { long, now } from "../../lib/format/time.js";
import { can } from "../../lib/session.js";

const ENDPOINTS = ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/rerank"];
const MAX_FILES = 100;

const isUsable = ({ scopes, revoked_at: revoked, suspended_at: suspended, expires_at: expires }) =>
  !revoked && !suspended && (!expires || expires > now()) && scopes.includes("inference");

/** The dialog that makes a batch. file: a stored file to run, or undefined. */
export function NewBatch({ projectId, file, onClose }) {
  const keys = useAll(pathOf(projectId, "/api_keys"));
  const usable = (keys.data ?? []).filter(isUsable);
  const known = useApi(can("content.read", projectId) && !file ? pathOf(projectId, "/files") : null, {
    limit: MAX_FILES,
  });
  const inputs = (known.data?.data ?? []).filter(({ purpose }) => purpose === "batch");
  const [sent, send] = useState(null);
  const form = useForm(
    { input_file_id: file?.id ?? "", chosen: null, endpoint: ENDPOINTS[0], api_key_id: "" },
    async (values) => {
      const id = values.input_file_id || (await sendFile(projectId, values.chosen, send)).id;
      form.set("input_file_id", id);
      const body = { input_file_id: id, endpoint: values.endpoint, api_key_id: values.api_key_id || usable[0].id };
      const made = await post(pathOf(projectId, "/batches"), body);
      invalidate(pathOf(projectId, "/batches"), pathOf(projectId, "/files"));
      onClose();
      navigate(to("tenants", projectId, "batches", made.id));
    },
    ({ input_file_id: id, chosen }) => ({
      chosen: id || chosen ? undefined : "Choose a file with a request on each line.",
    }),
  );
  if (keys.data && usable.length === 0) {
    return html`
      <${Dialog} title="New batch" onClose=${onClose}>
        <${Notice} tone="warn" title="No key may use models">
          The requests of a batch run as one of the tenant's keys. Make a key for inference first.
        <//>
      <//>
    `;
  }
  return html`
    <${Dialog} title="New batch" onClose=${onClose}>
      <${Form} form=${form} verb="Run the batch" what="run the batch" onCancel=${onClose}>
        ${
          file
            ? html`
              <p>
                The requests of <b>${file.name}</b>, ${bytes(file.bytes)}.
              </p>
            `
            : html`<${Source} form=${form} inputs=${inputs} sent=${sent} />`
        }
        <${Select}
          ...${form.bind("endpoint")}
          label="Endpoint"
          hint="Of all requests of the file."
          options=${ENDPOINTS.map((name) => [name, name])}
        />
        <${Select}
          ...${form.bind("api_key_id")}
          value=${form.values.api_key_id || usable[0]?.id}
          label="Run as"
          hint="The requests may use the models that this key may use."
          options=${usable.map(({ id, name }) => [id, name || id])}
        />
      <//>
    <//>
  `;
}

function Source({ form, inputs, sent }) {
  const { chosen, input_file_id: id } = form.values;
  const choose = (value) => form.set("input_file_id", value);
  return html`
    ${
      inputs.length > 0 &&
      html`
        <${Select}
          ...${form.bind("input_file_id")}
          onValue=${choose}
          label="File"
          options=${[["", "Upload a file"], ...choicesOf(inputs)]}
        />
      `
    }
    ${
      !id &&
      html`
        <${Field}
          label=${inputs.length ? "Upload" : "File"}
          hint="A .jsonl file: each line has custom_id, method, url and body."
          error=${form.bind("chosen").error}
        >
          ${(props) => html`
            <input
              class="input"
              type="file"
              accept=".jsonl"
              ...${props}
              onChange=${(event) => form.set("chosen", event.target.files[0] ?? null)}
            />
          `}
        <//>
      `
    }
    ${
      form.busy &&
      chosen &&
      !id &&
      html`
        <p class="hint num" role="status">
          ${bytes(sent ?? 0)} of ${bytes(chosen.size)} sent
        </p>
      `
    }
  `;
}

/** Return files as options with name, size and time; options that read alike also have their ids. */
function choicesOf(files) {
  const words = files.map((each) => `${each.name}, ${bytes(each.bytes)}, ${long(each.created_at)}`);
  const isAlone = (word) => words.indexOf(word) === words.lastIndexOf(word);
  return files.map(({ id }, place) => [id, isAlone(words[place]) ? words[place] : `${words[place]}, ${id}`]);
}

function sendFile(projectId, file, onProgress) {
  const body = new FormData();
  body.append("file", file, file.name);
  return upload(pathOf(projectId, "/files"), body, { onProgress });
}
