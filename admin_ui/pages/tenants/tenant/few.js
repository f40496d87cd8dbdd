// The first few of a tenant's limits, adapters and keys, for its overview.

import { Badge } from "../../../components/badge.js";
import { ErrorBox, Skeleton } from "../../../components/feedback.js";
import { Gauge } from "../../../components/charts/gauge.js";
import { Time } from "../../../components/numbers.js";
import { Section } from "../../../components/page.js";
import { useApi } from "../../../lib/data.js";
import { plural } from "../../../lib/format/format.js";
import { html } from "../../../lib/html.js";
import { pathOf } from "../../../lib/projects_api.js";
import { to } from "../../../lib/router.js";
import { isInUse, stateOf } from "../keys/state.js";
import { shareOf, shownAs, titleOf } from "../limits/words.js";

const NUM_SHOWN = 5;

/** A card with the first few of a list and a link to all. */
function Few({ title, href, list, empty, children }) {
  const items = list.data?.data;
  return html`
    <${Section}
      card
      title=${html`<a class="quiet-link" href=${href}>
          ${title}
        </a>`}
    >
      <${ErrorBox} error=${list.error} retry=${list.reload} />
      ${
        items === undefined
          ? !list.error && html`<${Skeleton} lines=${3} />`
          : items.length === 0
            ? html`<p class="hint">${empty}</p>`
            : (children(items))
      }
    <//>
  `;
}

export function Limits({ id, may, currency }) {
  const href = to("tenants", id, "limits");
  const list = useApi(pathOf(id, "/limits"), { limit: 100 });
  const empty = html`
    None: this tenant may use all there is. ${may("limits.write") && html`<a href="${href}?new=1">Set one</a>`}
  `;
  return html`
    <${Few} title="Limits" href=${href} list=${list} empty=${empty}>
      ${(limits) => html`
        <div class="stack">
          ${[...limits]
            .sort((a, b) => shareOf(b) - shareOf(a))
            .slice(0, NUM_SHOWN)
            .map(
              (limit) => html`
                <${Gauge}
                  isLimit
                  key=${limit.id}
                  label=${titleOf(limit)}
                  used=${limit.used}
                  reserved=${limit.reserved}
                  max=${limit.max}
                  shown=${shownAs(limit.unit, currency)}
                />
              `,
            )}
        </div>
      `}
    <//>
  `;
}

export function Adapters({ id, may }) {
  const href = to("tenants", id, "adapters");
  const list = useApi(pathOf(id, "/adapters"), { limit: NUM_SHOWN });
  const empty = html`
    None yet. ${may("adapters.write") && html`<a href="/admin/adapters?project=${id}&add=file">Upload one</a>`}
  `;
  return html`
    <${Few} title="Adapters" href=${href} list=${list} empty=${empty}>
      ${(adapters) => html`
        <div class="state-list">
          ${adapters.map(
            ({ name, version, rank }) => html`
              <a class="state-row" key=${name} href=${to("adapters", id, name)}>
                <span class="ellipsis">${name}</span>
                <span class="faint">
                  ${version === null ? "no version yet" : `version ${version}, rank ${rank}`}
                </span>
              </a>
            `,
          )}
        </div>
      `}
    <//>
  `;
}

export function Keys({ id, may }) {
  const href = to("tenants", id, "keys");
  const list = useApi(pathOf(id, "/api_keys"), { limit: 100 });
  const empty = html`None yet. ${may("keys.write") && html`<a href=${href}>Create one</a>`}`;
  return html`
    <${Few} title="Keys" href=${href} list=${list} empty=${empty}>
      ${(all) => {
        const keys = all.filter(isInUse);
        if (keys.length === 0) return html`<p class="hint">None in use.</p>`;
        return html`
          <div class="state-list">
            ${keys.slice(0, NUM_SHOWN).map(
              (key) => html`
                <a class="state-row" key=${key.id} href="${href}?key=${key.id}">
                  <span class="ellipsis">${key.name}</span>
                  ${
                    stateOf(key) === "active"
                      ? html`
                        <span class="faint">
                          <${Time} at=${key.last_used_at} relative none="not used yet" />
                        </span>
                      `
                      : html`<${Badge} dot>${stateOf(key)}<//>`
                  }
                </a>
              `,
            )}
            ${
              keys.length > NUM_SHOWN &&
              html`
                <a class="state-row" href=${href}>
                  ${plural(keys.length - NUM_SHOWN, "more key", "more keys")}
                </a>
              `
            }
          </div>
        `;
      }}
    <//>
  `;
}
