// The form that downloads one export: its kind, time and format, and the progress. The choice is in the URL.

import { Button } from "../../components/button.js";
import { Command, ErrorBox } from "../../components/feedback.js";
import { Select, TextField } from "../../components/form.js";
import { Section } from "../../components/page.js";
import { toast } from "../../components/toast.js";
import { download, urlOf } from "../../lib/api.js";
import { bytes, seconds } from "../../lib/format/format.js";
import { html, useEffect, useRef, useState } from "../../lib/html.js";
import { monthOf } from "../../lib/format/month.js";
import { useProjectId, useProjectNames } from "../../lib/projects.js";
import { useQuery } from "../../lib/router.js";
import { save } from "../../lib/save.js";
import { now } from "../../lib/format/time.js";
import { FORMATS, KINDS, formatOf } from "./export_kinds.js";

export function Download() {
  const projectId = useProjectId();
  const names = useProjectNames();
  const [kindText, setKind] = useQuery("kind", "usage");
  const [formatText, setFormat] = useQuery("format", "csv");
  const [period, setPeriod] = useQuery("period", monthOf(now()));
  const kind = kindText in FORMATS ? kindText : "usage";
  const format = formatOf(kind, formatText);
  const path = projectId ? `/projects/${projectId}/exports` : "/exports";
  const query = { kind, format, period };
  const { state, start, stop } = useDownload();
  const command = `curl -OJ -H "Authorization: Bearer $LORIKEET_ADMIN_KEY" \\
  "${window.location.origin}${urlOf(path, query)}"`;
  const submit = (event) => {
    event.preventDefault();
    start(path, query);
  };
  return html`
    <${Section}
      title="Download"
      hint="Of ${projectId ? names(projectId) : "all tenants"}; the switch above changes that."
      card
    >
      <form class="export-form" onSubmit=${submit} novalidate>
        <${Select} label="What" value=${kind} onValue=${setKind} options=${KINDS} />
        <${TextField}
          label="Period"
          value=${period}
          onValue=${setPeriod}
          hint=${kind === "invoice" ? "A month, such as 2026-10." : "A month 2026-10, or a day 2026-10-05, in UTC."}
          error=${state.error?.param === "period" ? state.error.message : ""}
          spellcheck="false"
        />
        <${Select} label="Format" value=${format} onValue=${setFormat} options=${FORMATS[kind]} />
        <div class="export-act">
          <${Button} kind="primary" icon="download" type="submit" busy=${state.running}>
            Download
          <//>
          ${state.running && html`<${Button} onClick=${stop}>Stop<//>`}
        </div>
      </form>
      <${Progress} state=${state} />
      ${
        state.error?.param !== "period" &&
        html`<${ErrorBox} error=${state.error} what="export it" retry=${() => start(path, query)} />`
      }
      <details>
        <summary>From a script</summary>
        <${Command} text=${command} label="Command that downloads it" />
      </details>
    <//>
  `;
}

function Progress({ state }) {
  if (!state.running && !state.name) return null;
  return html`
    <div class="export-progress" role="status">
      <div class="progress ${state.running ? "running" : ""}">
        <i></i>
      </div>
      <span class="num">
        ${
          state.running
            ? state.size
              ? `${bytes(state.size)} so far, ${bytes(state.size / Math.max(0.1, state.took))}/s`
              : "The rows are being read"
            : `${state.name}: ${bytes(state.size)} in ${seconds(state.took)}`
        }
      </span>
    </div>
  `;
}

const IDLE = { running: false, size: 0, took: 0, name: "", error: null };

function useDownload() {
  const [state, setState] = useState(IDLE);
  const leave = useRef(null);
  useEffect(() => () => leave.current?.abort(), []);
  const start = async (path, query) => {
    leave.current = new AbortController();
    const began = performance.now();
    const took = () => (performance.now() - began) / 1000;
    setState({ ...IDLE, running: true });
    try {
      const onProgress = (size) => setState((was) => ({ ...was, size, took: took() }));
      const { name, blob } = await download(path, { query, onProgress, signal: leave.current.signal });
      save(blob, name);
      setState({ ...IDLE, name, size: blob.size, took: took() });
    } catch (error) {
      setState({ ...IDLE, error: error.name === "AbortError" ? null : error });
      if (error.name === "AbortError") toast("The download was stopped", { tone: "info" });
    }
  };
  return { state, start, stop: () => leave.current?.abort() };
}
