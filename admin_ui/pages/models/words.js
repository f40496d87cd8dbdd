// Words for pools that several views share: states, settings, memory, access, labels.

import { bytes, plural } from "../../lib/format/format.js";

export const pathOf = (id, rest = "") => `/pools/${encodeURIComponent(id)}${rest}`;

/** Return whether something is under way at a pool, so that its view is read more often. */
export const isMoving = ({ state }) => ["starting", "changing", "scaling", "draining"].includes(state);

/** Return settings as "max_model_len=8192, dtype=float32"; "" if nothing is set. */
export const settingsOf = ({ settings }) =>
  Object.entries(settings)
    .sort()
    .map(([name, value]) => `${name}=${value}`)
    .join(", ");

/** Read engine settings from a text with one NAME=VALUE in each line. */
export function readSettings(text) {
  const lines = text
    .split("\n")
    .map((line) => line.trim())
    .filter(Boolean);
  return Object.fromEntries(
    lines.map((line) => [line.split("=", 1)[0].trim(), line.slice(line.indexOf("=") + 1).trim()]),
  );
}

export const writeSettings = (settings) =>
  Object.entries(settings)
    .map(([name, value]) => `${name}=${value}`)
    .join("\n");

/** What is wrong with such a text. */
export function wrongSettings(text) {
  const wrong = text.split("\n").find((line) => line.trim() && !/^\s*\w+\s*=\s*\S/.test(line));
  return wrong === undefined
    ? undefined
    : `“${wrong.trim()}” is no setting: write a name, = and a value, such as max_model_len=8192.`;
}

/** Return the memory that some replicas need, in words; "" while it is unknown. */
export const memoryOf = (replicaBytes, number) =>
  replicaBytes && number > 0 ? `about ${bytes(replicaBytes * number)} of memory` : "";

/** Return who may use a pool, in words. names(project id): a project's name. own: the reader's organization. */
export function whoMayUse({ access, grants }, names, own) {
  if (access === "all") return "all tenants of the installation";
  return grants
    .map(({ organization_id: organization, project_id: project }) =>
      project ? names(project) : `all tenants of ${organization === own.id ? own.name : organization}`,
    )
    .join(", ");
}

export const replicas = (number) => plural(number, "replica");

// Labels of hosts, one NAME=VALUE in each line of a text.

const linesOf = (text) =>
  text
    .split("\n")
    .map((line) => line.trim())
    .filter(Boolean);

const pairOf = (line) => [line.slice(0, line.indexOf("=")).trim(), line.slice(line.indexOf("=") + 1).trim()];

export const readLabels = (text) => Object.fromEntries(linesOf(text).map(pairOf));

export const writeLabels = (labels) =>
  Object.entries(labels)
    .sort()
    .map(([name, value]) => `${name}=${value}`)
    .join("\n");

/** Read excluded labels from a text with one NAME=VALUE in each line, as {name: [value, …]}. */
export function readExcluded(text) {
  const excluded = {};
  for (const [name, value] of linesOf(text).map(pairOf)) {
    excluded[name] ??= [];
    excluded[name].push(value);
  }
  return excluded;
}

export const writeExcluded = (excluded) =>
  Object.entries(excluded)
    .sort()
    .flatMap(([name, values]) => values.map((value) => `${name}=${value}`))
    .join("\n");

/** What is wrong with such a text. */
export function wrongLabels(text) {
  const wrong = linesOf(text).find((line) => !/^[a-z0-9][^=]*=\s*[a-z0-9]/.test(line));
  return wrong === undefined
    ? undefined
    : `“${wrong}” is no label: write a name, = and a value in lower case, such as zone=west.`;
}

/** Return whether a host has all wanted labels and no excluded one. */
export const hasLabels = ({ labels }, wanted, excluded) =>
  Object.entries(wanted).every(([name, value]) => labels[name] === value) &&
  !Object.entries(excluded).some(([name, values]) => values.includes(labels[name]));

export const labelsOf = ({ labels }) =>
  Object.entries(labels)
    .sort()
    .map(([name, value]) => `${name}=${value}`);

/** Return the labels that a pool requires of hosts, in words; "any host" if it requires none. */
export function placementOf({ placement, exclusion }) {
  const excluded = Object.entries(exclusion)
    .sort()
    .flatMap(([name, values]) => values.map((value) => `not ${name}=${value}`));
  return [...labelsOf({ labels: placement }), ...excluded].join(", ") || "any host";
}
