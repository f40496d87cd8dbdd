// The columns of a list of routes, whoever owns them.

import { Badge } from "../../components/badge.js";
import { html } from "../../lib/html.js";
import { kindOf, targetsOf } from "./words.js";

export const COLUMNS = [
  { key: "name", title: "Route" },
  { key: "kind", title: "Begins with", value: ({ document }) => kindOf(document.root) },
  { key: "targets", title: "Targets", value: ({ document }) => targetsOf(document).join(", ") },
  {
    key: "version",
    title: "Version",
    align: "end",
    render: ({ version }) => html`<${Badge} tone="info">v${version}<//>`,
  },
  { key: "changed_at", title: "Changed", format: "time" },
];
