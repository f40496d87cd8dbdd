// The steps that add an adapter from the reader's files: choose, send with progress, and the inspection's result.

import { Button } from "../../../components/button.js";
import { ErrorBox, Notice } from "../../../components/feedback.js";
import { Checkbox, Form, TextField, useForm } from "../../../components/form.js";
import { get } from "../../../lib/api.js";
import { invalidate } from "../../../lib/data.js";
import * as format from "../../../lib/format/format.js";
import { html, useEffect, useRef, useState } from "../../../lib/html.js";
import { navigate, to } from "../../../lib/router.js";
import { BaseField, bodyOfBase, useBases } from "./base.js";
import { DropZone } from "./drop_zone.js";
import { readFiles } from "./dropped.js";
import { Progress } from "./progress.js";
import { Rejection, Report } from "../report.js";
import { send } from "./transfer.js";
import { NAME_HINT, PROMOTE_HINT, checkName } from "./words.js";

export function FromFiles({ projectId, name, files, setBusy, onDone, onClose }) {
  const [read, setRead] = useState(null);
  const [state, setState] = useState({ step: "choosing" });
  const stopper = useRef(null);
  const bases = useBases(name ? null : projectId);
  const form = useForm({ name, base: "", promote: true }, (values) => run(values), checkName);
  const tell = (more) => setState((was) => ({ ...was, ...more }));
  const take = async (files) => {
    const found = await readFiles(files);
    setRead(found);
    tell({ step: "choosing", result: null, error: null });
    if (!form.values.name && found.name) form.set("name", found.name);
  };
  useEffect(() => void (files && take(files)), [files]);
  useEffect(() => () => stopper.current?.abort(), []);

  const run = async (values) => {
    if (!projectId) return undefined;
    stopper.current = new AbortController();
    setBusy(true);
    tell({ step: "reading", sent: 0, error: null, result: null, size: read.archive.size });
    try {
      const result = await send({
        projectId,
        ...values,
        base: undefined,
        ...bodyOfBase(values.base, bases),
        archive: read.archive,
        signal: stopper.current.signal,
        tell,
      });
      const path = `/projects/${encodeURIComponent(projectId)}/adapters/${encodeURIComponent(result.name)}/versions/${result.uploaded_version}`;
      tell({ step: "done", result, detail: await get(path) });
      onDone(result);
    } catch (error) {
      if (error.name === "AbortError") return tell({ step: "stopped" });
      const isField = ["name", "base", "promote"].includes(error.param);
      tell({
        step: error.code === "adapter_rejected" ? "refused" : isField ? "choosing" : "failed",
        error,
      });
      if (isField) throw error;
    } finally {
      setBusy(false);
      invalidate(`/projects/${encodeURIComponent(projectId)}/adapter_imports`);
    }
  };
  const again = () => (setRead(null), setState({ step: "choosing" }));

  if (["reading", "sending", "checking"].includes(state.step))
    return html`<${Progress} state=${state} name=${form.values.name} onStop=${() => stopper.current.abort()} />`;
  if (state.step === "done") return html`<${Done} state=${state} projectId=${projectId} onClose=${onClose} />`;
  if (state.step === "refused") {
    return html`
      <${Rejection} message=${state.error.message} />
      <div class="row">
        <${Button} kind="primary" onClick=${again}>
          Choose other files
        <//>
        <${Button} onClick=${onClose}>Close<//>
      </div>
    `;
  }
  if (!read || read.problem)
    return html`
      ${
        read?.problem &&
        html`
          <${Notice} tone="bad" title="That is no adapter">
            ${read.problem}
          <//>
        `
      }
      <${DropZone} onFiles=${take} />
    `;
  return html`
    ${
      state.step === "stopped" &&
      html`
        <${Notice} tone="warn" title="Stopped">
          What has come is kept for a day: upload the same files again, and it goes on from there.
        <//>
      `
    }
    <${ErrorBox} error=${state.step === "failed" ? state.error : null} what="upload the adapter" />
    <${Chosen} read=${read} onOther=${again} />
    <${Form}
      form=${form}
      verb=${state.step === "stopped" || state.step === "failed" ? "Go on" : "Upload"}
      what="upload the adapter"
    >
      ${
        !name &&
        html`
          <${TextField}
            ...${form.bind("name")}
            label="Name"
            hint=${NAME_HINT}
            autocomplete="off"
            spellcheck="false"
            required
          />
        `
      }
      <${BaseField} form=${form} bases=${bases} />
      <${Checkbox}
        label="Make it the current version"
        hint=${PROMOTE_HINT}
        value=${form.values.promote}
        onValue=${(value) => form.set("promote", value)}
      />
      ${!projectId && html`<p class="hint">Choose the tenant first.</p>`}
    <//>
  `;
}

function Chosen({ read, onOther }) {
  const { config } = read;
  return html`
    <div class="card chosen">
      <div class="spread">
        <ul>
          ${read.parts.map(
            ([name, size]) => html`
              <li key=${name}>
                <code>${name}</code> <span class="faint num">${format.bytes(size)}</span>
              </li>
            `,
          )}
        </ul>
        <${Button} small onClick=${onOther}>
          Other files
        <//>
      </div>
      ${
        config &&
        html`
          <p class="hint">
            ${[
              config.rank && `Rank ${config.rank}`,
              config.alpha && `alpha ${config.alpha}`,
              config.targets.length > 0 && config.targets.join(", "),
              config.base && `trained on ${config.base}`,
            ]
              .filter(Boolean)
              .join(" · ")}
          </p>
        `
      }
    </div>
  `;
}

function Done({ state: { result, detail }, projectId, onClose }) {
  const isServed = result.version === result.uploaded_version;
  const title = !result.changed
    ? "This content is there already"
    : result.version_state === "inspected"
      ? "It waits for an engine"
      : isServed
        ? "It can be called now"
        : "The version is ready";
  const text =
    result.version_state === "inspected"
      ? "It fits the base model. No engine is there to try it; that happens by itself once one is."
      : isServed
        ? html`Version ${result.uploaded_version} answers as <code>${result.model}</code>.`
        : html`
          Version ${result.uploaded_version} waits to be promoted;${" "}
          <code>
            ${result.model}@${result.uploaded_version}
          </code>${" "}
          calls it.
        `;
  const model = isServed ? result.model : `${result.model}@${result.uploaded_version}`;
  return html`
    <${Notice} tone=${result.version_state === "inspected" ? "warn" : "good"} title=${title}>
      ${text}
    <//>
    <div class="row">
      <${Button}
        kind="primary"
        icon="playground"
        href="/admin/playground?project=${encodeURIComponent(projectId)}&model=${encodeURIComponent(model)}"
      >
        Try it
      <//>
      <${Button} onClick=${() => (onClose(), navigate(to("adapters", projectId, result.name)))}>
        Open the adapter
      <//>
    </div>
    <${Report} report=${detail.report} probe=${detail.probe} />
  `;
}
