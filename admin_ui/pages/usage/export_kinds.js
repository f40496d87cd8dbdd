// The kinds of exports and the formats of each, as the API has them, in words.

export const KINDS = [
  ["usage", "Usage: every request"],
  ["costs", "Costs: by day, model and price"],
  ["invoice", "Invoice lines"],
];

export const FORMATS = {
  usage: [
    ["csv", "CSV"],
    ["jsonl", "JSON Lines"],
    ["parquet", "Parquet"],
    ["stripe", "Stripe meter events"],
    ["cloudevents", "CloudEvents"],
  ],
  costs: [
    ["csv", "CSV"],
    ["jsonl", "JSON Lines"],
    ["parquet", "Parquet"],
    ["focus", "FOCUS 1.2 (FinOps)"],
  ],
  invoice: [
    ["csv", "CSV"],
    ["jsonl", "JSON Lines"],
    ["parquet", "Parquet"],
  ],
};

/** Return the format, or the kind's first format if the kind does not have it. */
export const formatOf = (kind, format) =>
  FORMATS[kind].some(([name]) => name === format) ? format : FORMATS[kind][0][0];

export const titleOf = (options, key) => options.find(([name]) => name === key)?.[1] ?? key;
