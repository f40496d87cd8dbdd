// The findings of an inspection in words; for a refused adapter also what to do about each reason.

import { Notice } from "../../components/feedback.js";
import { Facts, Section } from "../../components/page.js";
import { Table } from "../../components/table.js";
import * as format from "../../lib/format/format.js";
import { html } from "../../lib/html.js";

/** The findings about a version. report, probe: as the API has them. */
export function Report({ report, probe }) {
  return html`
    <div class="stack">
      ${
        report
          ? html`<${Inspection} report=${report} />`
          : html`<p class="faint">No inspection report was kept for this version.</p>`
      }
      ${
        probe &&
        html`
          <${Section} title="Tried on an engine" hint="The same short generation with the adapter and without it.">
            <${Facts}
              rows=${[
                ["Loaded in", format.seconds(probe.load_seconds)],
                ["Takes on the device", format.bytes(probe.num_bytes)],
                ["Tokens computed", format.count(probe.num_tokens)],
                ["Largest change of a log-probability", format.exactly(Number(probe.max_difference?.toPrecision(3)))],
              ]}
            />
          <//>
        `
      }
    </div>
  `;
}

/** Return one row for each projection: the number of layers that have it, and the size of its matrices. */
export function byProjection(report) {
  const rows = new Map();
  for (const module of report.modules ?? []) {
    const row = rows.get(module.projection) ?? {
      projection: module.projection,
      layers: [],
      ranks: new Set(),
      scalings: new Set(),
      dtypes: new Set(),
      norm_a: 0,
      norm_b: 0,
    };
    row.layers.push(module.layer);
    row.ranks.add(module.rank);
    row.scalings.add(Number(module.scaling.toPrecision(4)));
    row.dtypes.add(module.dtype);
    row.norm_a += module.norm_a ** 2;
    row.norm_b += module.norm_b ** 2;
    rows.set(module.projection, row);
  }
  return [...rows.values()].map((row) => ({
    projection: row.projection,
    layers: row.layers.length,
    rank: listed(row.ranks),
    scaling: listed(row.scalings),
    dtype: listed(row.dtypes),
    norm_a: Math.sqrt(row.norm_a),
    norm_b: Math.sqrt(row.norm_b),
  }));
}

const listed = (values) => [...values].join(", ");

/** Return a report as one sentence, such as "Adapts q_proj and v_proj in 2 layers, …". */
export function inWords(report) {
  const rows = byProjection(report);
  const names = rows.map(({ projection }) => projection);
  const shown = names.length > 1 ? `${names.slice(0, -1).join(", ")} and ${names.at(-1)}` : names[0];
  return (
    `Adapts ${shown ?? "nothing"} in ` +
    `${format.plural(Math.max(0, ...rows.map(({ layers }) => layers)), "layer")} with ` +
    `${format.plural(report.num_parameters, "parameter")} of rank ${report.rank}, ` +
    `${format.bytes(report.size_bytes)}.`
  );
}

function Inspection({ report }) {
  const columns = [
    { key: "projection", title: "Projection", render: ({ projection }) => html`<code>${projection}</code>` },
    { key: "layers", title: "Layers", format: "count" },
    { key: "rank", title: "Rank", align: "end" },
    { key: "scaling", title: "Scaling", align: "end" },
    { key: "dtype", title: "Type" },
    { key: "norm_a", title: "‖A‖", format: "count" },
    { key: "norm_b", title: "‖B‖", format: "count" },
  ];
  const left = Object.keys(report.unadapted ?? {});
  return html`
    <${Section} title="Inspection">
      <p>${inWords(report)}</p>
      <${Table}
        name="modules"
        label="Adapted projections"
        columns=${columns}
        rows=${byProjection(report)}
        rowKey=${({ projection }) => projection}
        filter=${false}
      />
      ${
        left.length > 0 &&
        html`<p class="hint">Left as in the base model, in some layers or all: ${left.join(", ")}.</p>`
      }
      ${
        report.ignored?.length > 0 &&
        html`<p class="hint">In the archive, but no part of the adapter: ${report.ignored.join(", ")}.</p>`
      }
    <//>
  `;
}

/** Advice on each reason for a rejection, by a pattern of the reason's text. */
const ADVICE = [
  [
    /LORIKEET_MAX_ADAPTER_RANK/,
    "Train with a smaller r in LoraConfig, or ask the operator to raise LORIKEET_MAX_ADAPTER_RANK and " +
      "restart the engine.",
  ],
  [
    /the base model has|the base model takes no adapter/,
    "It was trained for another base model. Train it on the one that is served here.",
  ],
  [
    /is missing/,
    "Pack the folder that save_pretrained wrote: adapter_config.json and adapter_model.safetensors, side by side.",
  ],
  [/bias is/, 'Train with bias="none".'],
  [/task_type is/, 'Train with task_type="CAUSAL_LM".'],
  [
    /peft_type is|init_lora_weights|use_dora|this option/,
    "Only plain LoRA is served. Turn the option off and train again, or convert the adapter to plain LoRA.",
  ],
  [
    /is zero: it changes nothing/,
    "It was saved before it was trained, or the training changed nothing. Save it after training.",
  ],
  [
    /is not lora_A or lora_B|modules_to_save|is there twice/,
    "Save the adapter alone, without whole layers (no modules_to_save, no trained embeddings).",
  ],
  [/not finite|NaN|inf\b/i, "The training diverged. Train with a smaller learning rate, or use an earlier checkpoint."],
  [
    /bytes are allowed|more than \d+ bytes|over \d+ bytes/,
    "It is larger than may be here. Save it in bfloat16, use a smaller rank, or ask the operator.",
  ],
  [/archive|gzip|zip|member/, "Pack it again, as a plain .zip or .tar.gz of the two files."],
  [/must be above zero/, "Set lora_alpha above zero and train again."],
  [
    /not valid JSON|not a JSON object|safetensors|header/,
    "The file is damaged or of another kind. Save the adapter again with safe_serialization=True.",
  ],
  [/SHA-256/, "The bytes changed on their way. Upload it again."],
];

export function adviceOn(reason) {
  return ADVICE.find(([pattern]) => pattern.test(reason))?.[1] ?? null;
}

/**
 * The reasons for a rejection, with advice. message: the error's or the version's, with every reason in one sentence.
 */
export function Rejection({ message, title = "The adapter was refused" }) {
  const reasons = (message ?? "")
    .replace(/^The adapter was refused: /, "")
    .replace(/\.$/, "")
    .split("; ")
    .filter(Boolean);
  const advice = [...new Set(reasons.map(adviceOn).filter(Boolean))];
  return html`
    <div class="stack rejection" role="alert">
      <${Notice} tone="bad" title=${title}>
        Nothing that is served has changed. ${format.plural(reasons.length, "reason")}:
      <//>
      <ul class="reasons">
        ${reasons.map((reason) => html`<li key=${reason}>${reason}</li>`)}
      </ul>
      ${
        advice.length > 0 &&
        html`
          <div class="prose">
            <h3>What to do</h3>
            <ul>
              ${advice.map((text) => html`<li key=${text}>${text}</li>`)}
            </ul>
          </div>
        `
      }
    </div>
  `;
}
