// Limits as gauges that move: used, reserved, free.

import { Badge } from "../../../components/badge.js";
import { Confirm } from "../../../components/dialog.js";
import { Gauge } from "../../../components/charts/gauge.js";
import { Icon } from "../../../components/icons.js";
import { Menu } from "../../../components/menu.js";
import { toast } from "../../../components/toast.js";
import { del } from "../../../lib/api.js";
import { invalidate } from "../../../lib/data.js";
import { html, useState } from "../../../lib/html.js";
import { bounds, isBalance, rulesOf, shownAs, titleOf } from "./words.js";

/**
 * The gauges of limits. keyName(id): the name of an API key. mayChange(limit): whether the reader may change it.
 * onChange(limit): called to change a limit.
 */
export function LimitGauges({ limits, base, currency, keyName, mayChange, onChange }) {
  const [removing, remove] = useState(null);
  return html`
    <div class="limits">
      ${limits.map(
        (limit) => html`
          <${One}
            key=${limit.id}
            limit=${limit}
            currency=${currency}
            keyName=${keyName}
            menu=${
              mayChange(limit) &&
              !isBalance(limit) && [
                { title: "Change …", icon: "limits", onClick: () => onChange(limit) },
                { title: "Remove …", icon: "trash", danger: true, onClick: () => remove(limit) },
              ]
            }
          />
        `,
      )}
    </div>
    ${
      removing &&
      html`
        <${Confirm}
          title="Remove “${titleOf(removing)}”?"
          verb="Remove limit"
          onClose=${() => remove(null)}
          act=${async () => {
            await del(`${base}/${removing.id}`);
            invalidate(base);
            toast("The limit is removed");
          }}
        >
          <p>
            ${removing.hard ? "Requests that it would refuse run from now on" : "Its alerts are no longer sent"}:${" "}
            ${shownAs(removing.unit, currency)(removing.max)} of ${whom(removing, keyName)} is no longer the most.
          </p>
        <//>
      `
    }
  `;
}

function One({ limit, currency, keyName, menu }) {
  const shown = shownAs(limit.unit, currency);
  return html`
    <article class="limit">
      <div class="limit-head">
        <div>
          <h3>${titleOf(limit)}</h3>
          <p class="hint">${whom(limit, keyName)}</p>
        </div>
        ${
          menu &&
          html`
            <${Menu}
              label="Actions on ${titleOf(limit)}, ${whom(limit, keyName)}"
              align="end"
              look="button quiet small icon-only"
              button=${html`<${Icon} name="more" />`}
              items=${menu}
            />
          `
        }
      </div>
      ${
        bounds(limit)
          ? html`<p class="limit-max">${shown(limit.max)}</p>`
          : html`
            <${Gauge}
              isLimit
              label="Used"
              used=${limit.used}
              reserved=${limit.reserved}
              max=${limit.max}
              shown=${shown}
              hint="${shown(limit.used)} used · ${shown(limit.reserved)} reserved · ${shown(limit.free)} free"
            />
          `
      }
      <p class="hint">
        ${rulesOf(limit)} ${!limit.hard && html`<${Badge}>soft<//>`}
      </p>
    </article>
  `;
}

function whom({ api_key_id: key, model, scope }, keyName) {
  const who = key ? `key ${keyName(key)}` : scope === "organization" ? "all tenants" : "the whole tenant";
  return `${who}${model ? `, ${model}` : ""}`;
}
