// The document of a route in words: its nodes, their branches, and what each does.

const KINDS = ["target", "fallback", "weighted", "conditional", "cheapest", "fastest", "cascade", "hedge", "shadow"];

/** Return the kind of a node: the one field of KINDS that it has. */
export const kindOf = (node) => KINDS.find((kind) => node?.[kind] !== undefined) ?? "nothing";

/** Return the nodes below a node as [words, node, path from the node]; the words say when the route goes there. */
export function branchesOf(node) {
  const kind = kindOf(node);
  const of = node[kind];
  if (kind === "weighted") {
    const sum = of.choices.reduce((total, { weight }) => total + weight, 0);
    return of.choices.map((choice, place) => [
      `${choice.weight} of ${sum}`,
      choice.node,
      `.weighted.choices[${place}].node`,
    ]);
  }
  if (kind === "conditional") {
    const cases = of.cases.map(({ when, node: below }, place) => [
      `if ${conditionOf(when)}`,
      below,
      `.conditional.cases[${place}].node`,
    ]);
    return [...cases, ["otherwise", of.otherwise, ".conditional.otherwise"]];
  }
  if (kind === "hedge" || kind === "shadow") return [["", of.node, `.${kind}.node`]];
  const words =
    { fallback: (place) => (place ? "then" : "first"), cascade: (place) => (place ? "then" : "first") }[kind] ??
    (() => "");
  return (of.nodes ?? []).map((below, place) => [words(place), below, `.${kind}.nodes[${place}]`]);
}

/** Return what a node does, in a few words. */
export function sentenceOf(node) {
  const kind = kindOf(node);
  const of = node[kind];
  if (kind === "fallback") {
    const late = of.first_token_ms ? `, or when no token comes in ${of.first_token_ms} ms` : "";
    const rounds = of.rounds > 1 ? `, in ${of.rounds} rounds` : "";
    return (
      "one after the other, the next one on " +
      `${(of.on ?? ["unavailable", "overloaded", "timeout", "failed"]).join(", ") || "nothing"}${late}${rounds}`
    );
  }
  if (kind === "weighted")
    return of.sticky ? `by weight; the same ${of.sticky} keeps its branch` : "by weight, drawn for each request";
  if (kind === "conditional") return "the first condition that holds";
  if (kind === "cheapest") return "the branch whose tokens cost least";
  if (kind === "fastest") return "the branch that was measured to answer soonest";
  if (kind === "cascade")
    return `from small to large, until an answer passes: ${Object.entries(of.accept)
      .map(([name, value]) => `${name} ${typeof value === "object" ? JSON.stringify(value) : value}`)
      .join(", ")}`;
  if (kind === "hedge")
    return `on another replica as well after ${of.delay_ms ? `${of.delay_ms} ms` : "the usual time of a late first token"}`;
  if (kind === "shadow")
    return `copies of ${Math.round((of.share ?? 1) * 1000) / 10} % of the requests go to ${of.target}${of.payer ? `, paid by ${of.payer}` : ""}`;
  return "";
}

function conditionOf(when) {
  return Object.entries(when)
    .map(([name, value]) => {
      if (name === "metadata")
        return Object.entries(value)
          .map(([key, wanted]) => `metadata.${key} is ${[wanted].flat().join(" or ")}`)
          .join(" and ");
      if (name === "prompt_tokens")
        return `the prompt has ${[value.min !== undefined && `at least ${value.min}`, value.max !== undefined && `at most ${value.max}`].filter(Boolean).join(" and ")} tokens`;
      if (name === "time") return `it is ${value.from} to ${value.until} UTC`;
      if (name === "tools") return value ? "it brings tools" : "it brings no tools";
      if (name === "stream") return value ? "the reply is streamed" : "the reply is not streamed";
      return `${name} is ${[value].flat().join(" or ")}`;
    })
    .join(" and ");
}

/** Return the model strings that may answer, each once. */
export function targetsOf({ root }) {
  const below = (node) =>
    kindOf(node) === "target" ? [node.target] : branchesOf(node).flatMap(([, each]) => below(each));
  return [...new Set(below(root))];
}
