// Types, goals and kinds of metrics in words.

import { labelsOf } from "../words.js";

export const TYPES = [
  ["boolean", "yes or no, such as a thumb"],
  ["number", "a number, such as stars"],
  ["label", "one of some words"],
];

export const GOALS = [
  ["increase", "more is better"],
  ["decrease", "less is better"],
];

export const KINDS = [
  ["mean", "a unit: what its votes sum up to"],
  ["ratio", "a vote: the mean of all votes"],
];

export const wordFor = (options, key) => options.find(([each]) => each === key)?.[1] ?? key;

export function boundsOf({ type, least, most, ...metric }) {
  if (type === "label")
    return labelsOf(metric)
      .map(([label, value]) => `${label} = ${value}`)
      .join(", ");
  if (type !== "number" || (least === null && most === null)) return "";
  return `${least ?? "any"} to ${most ?? "any"}`;
}
