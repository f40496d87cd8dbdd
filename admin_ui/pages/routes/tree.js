// The document of a route as a tree. taken: paths of nodes that are marked, as an explanation has them.

import { html } from "../../lib/html.js";
import { branchesOf, kindOf, sentenceOf } from "./words.js";

export function Tree({ document, taken = new Set() }) {
  return html`
    <ul class="policy" aria-label="Policy">
      <${Node} node=${document.root} path="root" taken=${taken} />
    </ul>
  `;
}

function Node({ node, path, words, taken }) {
  const kind = kindOf(node);
  const branches = branchesOf(node);
  const isTaken = [...taken].some((each) => each === path || each.startsWith(`${path}.`));
  return html`
    <li class=${isTaken ? "taken" : undefined} title=${path}>
      ${words && html`<span class="faint">${words}</span>${" "}`}
      ${
        kind === "target"
          ? html`<code>${node.target}</code>`
          : html`<b>${kind}</b> <span class="faint">${sentenceOf(node)}</span>`
      }
      ${
        branches.length > 0 &&
        html`
          <ul>
            ${branches.map(
              ([lead, below, step]) => html`
                <${Node} key=${step} node=${below} path=${path + step} words=${lead} taken=${taken} />
              `,
            )}
          </ul>
        `
      }
    </li>
  `;
}
