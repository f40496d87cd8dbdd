// The results of an experiment in each of its segments, such as one API key or one endpoint.

import { Badge } from "../../../components/badge.js";
import { Loaded } from "../../../components/feedback.js";
import { Select } from "../../../components/form.js";
import { Section } from "../../../components/page.js";
import { Table } from "../../../components/table.js";
import { useApi } from "../../../lib/data.js";
import { count, plural } from "../../../lib/format/format.js";
import { html } from "../../../lib/html.js";
import { useQuery } from "../../../lib/router.js";
import { experimentPath } from "../paths.js";
import { Difference, WORD } from "./verdicts.js";
import { metricTitle, segmentInWords, SEGMENT_KINDS } from "../words.js";

const BY_SEGMENT_HINT =
  "A unit is in the segments of its first request. Many comparisons stand here, of which some look like " +
  "effects by chance: those that are marked have stood that.";

const EVERY_MS = 60_000;

export function Segments({ projectId, experiment, own, currency }) {
  const [kind, choose] = useQuery("segment", "");
  const wanted = SEGMENT_KINDS.some(([name]) => name === kind) ? kind : "";
  const found = useApi(
    wanted && experimentPath(projectId, experiment.id, "/results"),
    { segment: wanted },
    { every: EVERY_MS },
  );
  return html`
    <${Section}
      title="By segment"
      hint=${BY_SEGMENT_HINT}
    >
      <div class="over-time">
        <${Select}
          label="Show segments by"
          value=${wanted}
          options=${[["", "None"], ...SEGMENT_KINDS]}
          onValue=${choose}
        />
      </div>
      ${
        wanted &&
        html`
          <${Loaded} from=${found} what="load the segments">
            ${({ segments }) => html`
              <${Splits} segments=${segments ?? []} experiment=${experiment} />
              <${Effects} segments=${segments ?? []} experiment=${experiment} own=${own} currency=${currency} />
            `}
          <//>
        `
      }
    <//>
  `;
}

function Splits({ segments, experiment }) {
  const columns = [
    {
      key: "segment",
      title: "Segment",
      value: ({ split }) => segmentInWords(split),
      render: ({ split }) => html`
        <span>
          ${segmentInWords(split)}${" "}
          ${
            split.is_srm &&
            html`
              <${Badge} dot tone="bad">
                not split as declared
              <//>
            `
          }
        </span>
      `,
    },
    ...experiment.arms.map(({ name }, place) => ({
      key: `units ${name}`,
      title: name,
      align: "end",
      value: ({ split }) => split.arms[place].units,
      render: ({ split: { arms } }) => html`
        <span class="num" title="${plural(Math.round(arms[place].expected_units), "unit")} declared">
          ${count(arms[place].units)}
        </span>
      `,
    })),
  ];
  return html`
    <${Table}
      name="segments"
      label="Units by segment"
      columns=${columns}
      rows=${segments}
      rowKey=${({ split }) => split.value}
      filter=${false}
    />
  `;
}

function Effects({ segments, experiment, own, currency }) {
  const rows = segments.flatMap(({ split, comparisons }) =>
    comparisons.map((each) => ({ ...each, segment: segmentInWords(split), value: split.value })),
  );
  if (rows.length === 0) return null;
  const columns = [
    { key: "metric", title: "Metric", value: ({ metric }) => metricTitle(metric) },
    { key: "segment", title: "Segment" },
    { key: "arm", title: "Arm", hide: experiment.arms.length < 3 },
    {
      key: "difference",
      title: "Difference",
      align: "end",
      sort: false,
      csv: false,
      render: (row) => html`<${Difference} row=${row} own=${own} currency=${currency} />`,
    },
    {
      key: "verdict",
      title: "",
      sort: false,
      class: "shrink",
      render: ({ verdict }) => html`
        <${Badge} dot tone=${WORD[verdict][1]}>
          ${WORD[verdict][0]}
        <//>
      `,
    },
  ];
  return html`
    <${Table}
      name="segment-effects"
      label="Metrics by segment"
      columns=${columns}
      rows=${rows}
      rowKey=${({ metric, value, arm }) => `${metric} ${value} ${arm}`}
      filter=${false}
    />
  `;
}
