// The options for the model of an arm: a base model, an adapter's current version or a certain one, an alias.

import { Select } from "../../../components/form.js";
import { useAll, useApi } from "../../../lib/data.js";
import { html } from "../../../lib/html.js";
import { pathOf } from "../../../lib/projects_api.js";

/**
 * Return {options: [[model, title]], adapters, aliases, isLoading}: adapters by the model string of their current
 * version, and names of aliases. exclude: the experiment's own name.
 */
export function useArmModels(projectId, exclude) {
  const bases = useAll(pathOf(projectId, "/models"));
  const adapters = useAll(pathOf(projectId, "/adapters"));
  const aliases = useAll(pathOf(projectId, "/aliases"));
  const own = (adapters.data ?? []).filter(({ version }) => version !== null);
  const names = (aliases.data ?? []).filter(
    ({ name, target_kind: kind }) => name !== exclude && !["experiment", "route"].includes(kind),
  );
  return {
    isLoading: [bases, adapters, aliases].some(({ data, error }) => data === undefined && !error),
    adapters: Object.fromEntries(own.map((adapter) => [adapter.model, adapter])),
    aliases: names.map(({ name }) => name),
    options: [
      ...own.map(({ model }) => [model, model]),
      ...(bases.data ?? []).map(({ name }) => [name, `${name}, the base model alone`]),
      ...names.map(({ name }) => [name, `${name}, where the alias points now`]),
    ],
  };
}

/** Return two initial models: the last versions of the adapter that has most of them, else two adapters, else any. */
export function firstModels({ options, adapters }) {
  const [most] = Object.values(adapters).sort((a, b) => b.version - a.version);
  if (most?.previous_version) return [`${most.model}@${most.previous_version}`, `${most.model}@${most.version}`];
  const names = options.map(([model]) => model);
  return [names[0], names[1] ?? names[0]];
}

/** The choice of a model, and of a version if the model is an adapter with several. */
export function ArmModel({ projectId, models, label, value, onValue, error }) {
  const [bare, version = ""] = value.split("@");
  const adapter = models.adapters[bare];
  const versions = useApi(
    adapter ? pathOf(projectId, `/adapters/${encodeURIComponent(adapter.name)}/versions`) : null,
    { limit: 20 },
  );
  const ready = (versions.data?.data ?? []).filter(({ state }) => state === "ready");
  const isKnown = models.options.some(([model]) => model === bare);
  const mayBeNone = models.options[0]?.[0] === "";
  const options = [
    ...(value || mayBeNone ? [] : [["", "Choose"]]),
    ...(value && !isKnown ? [[bare, bare]] : []),
    ...models.options,
  ];
  const ofAdapter = [
    ["", `The current one${adapter ? `, version ${adapter.version} now` : ""}`],
    ...ready.map(({ version }) => [String(version), `Version ${version}`]),
  ];
  return html`
    <${Select} label=${label} value=${bare} onValue=${onValue} error=${error} options=${options} />
    ${
      adapter &&
      html`
        <${Select}
          label="Version"
          value=${version}
          options=${ofAdapter}
          onValue=${(chosen) => onValue(chosen ? `${bare}@${chosen}` : bare)}
        />
      `
    }
  `;
}
