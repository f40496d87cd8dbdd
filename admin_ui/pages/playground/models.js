// The models that the playground can chat with: the base model, a project's adapters and aliases, and each version of
// an adapter.

import { Icon } from "../../components/icons.js";
import { Menu } from "../../components/menu.js";
import { useApi } from "../../lib/data.js";
import { html, useEffect, useState } from "../../lib/html.js";
import { can, useSession } from "../../lib/session.js";
import { listModels } from "./client.js";

const MAX_SHOWN = 40;

/** Return {base, ids} of the models that a project may call, as far as they are known. */
export function useModels(projectId, key) {
  const path = projectId && can("adapters.read", projectId) ? `/projects/${encodeURIComponent(projectId)}` : null;
  const adapters = useApi(path && `${path}/adapters`, { limit: 100 }).data?.data ?? [];
  const aliases = useApi(path && `${path}/aliases`, { limit: 100 }).data?.data ?? [];
  const base = useSession().who.model;
  const [ofKey, setOfKey] = useState([]);
  useEffect(() => {
    if (!key) return void setOfKey([]);
    const leave = new AbortController();
    listModels(key.value, leave.signal).then(setOfKey, () => {}); // The message that is sent tells what is wrong.
    return () => leave.abort();
  }, [key?.value]);
  const callable = adapters.filter(({ version }) => version !== null).map(({ model }) => model);
  const ids = [...new Set([base, ...callable, ...aliases.map(({ name }) => name), ...ofKey])];
  return { base, ids };
}

/** The choice of a model. model: "" is the base model. */
export function ModelPicker({ label, model, models, projectId, onModel }) {
  const [typed, type] = useState("");
  const { base } = models;
  const adapter = model.startsWith(`${base}:`) ? model.slice(base.length + 1).split("@")[0] : null;
  const versions = useApi(
    adapter && projectId && can("adapters.read", projectId)
      ? `/projects/${encodeURIComponent(projectId)}/adapters/${encodeURIComponent(adapter)}/versions`
      : null,
    { limit: 20 },
  );
  const ofAdapter = (versions.error ? [] : (versions.data?.data ?? [])).filter(
    ({ state, adapter: name }) => state === "ready" && name === adapter,
  );
  const choose = (id) => (type(""), onModel(id === base ? "" : id));
  const item = (id, hint) => ({ title: id, hint, checked: id === (model || base), onClick: () => choose(id) });
  const found = models.ids.filter((id) => id.toLowerCase().includes(typed.toLowerCase())).slice(0, MAX_SHOWN);
  const items = [
    ...found.map((id) => item(id, id === base ? "Base model, without an adapter" : undefined)),
    ...(ofAdapter.length && !typed
      ? [
          null,
          ...ofAdapter.map(({ model, version, current }) =>
            item(model, `Version ${version}${current ? ", current" : ""}`),
          ),
        ]
      : []),
    ...(typed && !models.ids.includes(typed) ? [null, item(typed, "Another model id, as typed")] : []),
  ];
  return html`
    <${Menu}
      label="${label}: ${model || base}"
      look="button secondary model-picker"
      items=${items}
      button=${html`
        <span>${model || base}</span>
        <${Icon} name="down" />
      `}
    >
      <input
        class="input menu-filter"
        type="search"
        placeholder="Find, or type base:adapter@version"
        aria-label="Find a model"
        value=${typed}
        onInput=${(event) => type(event.target.value)}
      />
    <//>
  `;
}
