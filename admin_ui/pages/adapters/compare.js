// The comparison of two versions: how each was made, and what the inspection found in it.

import { Dialog } from "../../components/dialog.js";
import { ErrorBox, Skeleton } from "../../components/feedback.js";
import { Checkbox, Select } from "../../components/form.js";
import { useApi } from "../../lib/data.js";
import * as format from "../../lib/format/format.js";
import { html, useState } from "../../lib/html.js";
import { setQuery } from "../../lib/router.js";
import { short } from "../../lib/format/time.js";
import { pathOf } from "./paths.js";
import { byProjection } from "./report.js";

/** The comparison of two versions. compared: the numbers of the versions, such as "2..3". */
export function Compare({ adapter, versions, compared, onClose }) {
  const [left, right] = compared.split("..");
  const path = (version) => `${pathOf(adapter.project_id, adapter.name)}/versions/${encodeURIComponent(version)}`;
  const before = useApi(path(left));
  const after = useApi(path(right));
  const [all, showAll] = useState(false);
  const error = before.error ?? after.error;
  const options = versions.map(({ version, state, current }) => [
    String(version),
    `Version ${version}${current ? ", current" : state === "ready" ? "" : `, ${state}`}`,
  ]);
  const rows = before.data && after.data ? differences(before.data, after.data) : null;
  const shown = rows?.filter(({ differs }) => all || differs);
  return html`
    <${Dialog} wide title="Versions of ${adapter.name} compared" onClose=${onClose}>
      <div class="stack">
        <div class="grid-2">
          <${Select}
            label="This version"
            value=${left}
            options=${options}
            onValue=${(value) => setQuery({ compare: `${value}..${right}` })}
          />
          <${Select}
            label="with this one"
            value=${right}
            options=${options}
            onValue=${(value) => setQuery({ compare: `${left}..${value}` })}
          />
        </div>
        <${ErrorBox} error=${error} what="load the versions" />
        ${
          rows === null
            ? !error && html`<${Skeleton} lines=${5} />`
            : html`
              <p>
                ${
                  rows.every(({ differs }) => !differs)
                    ? "They are the same."
                    : html`<b>${format.plural(rows.filter(({ differs }) => differs).length, "difference")}</b>.`
                }
              </p>
              <${Checkbox} label="Show what is the same, too" value=${all} onValue=${showAll} />
              ${
                shown.length > 0 &&
                html`
                  <table class="diff">
                    <thead>
                      <tr>
                        <th scope="col">What</th>
                        <th scope="col">Version ${left}</th>
                        <th scope="col">Version ${right}</th>
                      </tr>
                    </thead>
                    <tbody>
                      ${shown.map(
                        ({ name, before, after, differs }) => html`
                          <tr key=${name} class=${differs ? "differs" : ""}>
                            <th scope="row">${name}</th>
                            <td>${before}</td>
                            <td>${after}</td>
                          </tr>
                        `,
                      )}
                    </tbody>
                  </table>
                `
              }
            `
        }
      </div>
    <//>
  `;
}

/** Return [{name, before, after, differs}] of two versions, in words. */
export function differences(before, after) {
  const [left, right] = [facts(before), facts(after)];
  return [...new Set([...Object.keys(left), ...Object.keys(right)])].map((name) => ({
    name,
    before: left[name] ?? "–",
    after: right[name] ?? "–",
    differs: left[name] !== right[name],
  }));
}

function facts({ state, digest, rank, size_bytes: size, source, created_at: at, report }) {
  const found = {
    State: state,
    Content: digest.slice(0, 16),
    From: source,
    Added: short(at),
    Rank: String(rank),
    Size: format.bytes(size),
  };
  if (!report) return found;
  found.Parameters = format.exactly(report.num_parameters);
  found["Adapted linears"] = format.exactly(report.num_modules);
  for (const row of byProjection(report)) {
    found[row.projection] =
      `${format.plural(row.layers, "layer")}, rank ${row.rank}, scaling ${row.scaling}, ${row.dtype}, ` +
      `‖A‖ ${format.count(row.norm_a)}, ‖B‖ ${format.count(row.norm_b)}`;
  }
  return found;
}
