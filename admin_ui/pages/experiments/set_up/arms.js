// The table of an experiment's arms as they are served.

import { Badge } from "../../../components/badge.js";
import { Table } from "../../../components/table.js";
import { percent } from "../../../lib/format/format.js";
import { html } from "../../../lib/html.js";
import { IsControl } from "../tabs.js";
import { servedBy, settingsInWords } from "../words.js";

export function Arms({ experiment }) {
  const settings = ({ target }) => settingsInWords(target);
  const columns = [
    {
      key: "name",
      title: "Arm",
      render: ({ name, place, ended, isShadow }) => html`
        <span>
          ${name} <${IsControl} name=${name} place=${place} /> ${ended && html`<${Badge}>ended<//>`}${" "}
          ${isShadow && html`<${Badge}>shadow<//>`}
        </span>
      `,
    },
    {
      key: "model",
      title: "Serves",
      value: servedBy,
      render: ({ serves, target }) => html`
        <span>
          <code>${servedBy({ serves, target })}</code>
          ${
            serves &&
            serves.model !== target.model &&
            html`
              <br />
              <small class="faint">declared as ${target.model}</small>
            `
          }
        </span>
      `,
    },
    {
      key: "settings",
      title: "Its own settings",
      value: settings,
      render: (arm) =>
        settings(arm)
          ? html`<span title=${arm.target.defaults.system_prompt}>${settings(arm)}</span>`
          : html`<span class="faint">none</span>`,
    },
    {
      key: "share",
      title: "Of new units",
      value: ({ share }) => share,
      render: ({ share, isShadow }) => html`
        <span class="num">
          ${percent(share)}
          ${
            isShadow &&
            html`
              <br />
              <small class="faint">of requests, copied</small>
            `
          }
        </span>
      `,
    },
  ];
  const { arms, shadow } = experiment;
  const rows = [
    ...arms.map((arm, place) => ({ ...arm, place })),
    ...(shadow ? [{ ...shadow, share: shadow.share / 10_000, place: arms.length, isShadow: true }] : []),
  ];
  return html`
    <${Table} name="arms" label="Arms" columns=${columns} rows=${rows} rowKey=${({ name }) => name} filter=${false} />
  `;
}
