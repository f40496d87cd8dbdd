// The parts of every page: its title, the sentence that its reader came for, its actions; and sections.

import { html, useEffect } from "../lib/html.js";

/**
 * A page. lead: the one sentence or number that the reader came for. actions: buttons. tabs: a <Tabs>. crumbs: [[title,
 * href], …] of the pages above this one.
 */
export function Page({ title, lead, actions, tabs, crumbs = [], children, wide = false }) {
  useEffect(() => {
    document.title = `${title} · Lorikeet`;
  }, [title]);
  return html`
    <div class="page ${wide ? "wide" : ""}">
      <header class="page-head">
        <div class="page-title">
          ${
            crumbs.length > 0 &&
            html`
              <nav class="crumbs" aria-label="Above this page">
                ${crumbs.map(
                  ([name, href]) => html`
                    <a href=${href} key=${href}>
                      ${name}
                    </a>
                    <span aria-hidden="true">/</span>
                  `,
                )}
              </nav>
            `
          }
          <h1>${title}</h1>
          ${lead && html`<p class="lead">${lead}</p>`}
        </div>
        ${actions && html`<div class="page-actions">${actions}</div>`}
      </header>
      ${tabs}
      ${children}
    </div>
  `;
}

/** A titled part of a page; card: on a surface of its own. */
export function Section({ title, hint, actions, card = false, children, id }) {
  return html`
    <section class="section ${card ? "card" : ""}" id=${id}>
      ${
        (title || actions) &&
        html`
          <header class="section-head">
            <div>
              ${title && html`<h2>${title}</h2>`}
              ${hint && html`<p class="hint">${hint}</p>`}
            </div>
            ${actions && html`<div class="section-actions">${actions}</div>`}
          </header>
        `
      }
      ${children}
    </section>
  `;
}

/** A list of names and values. rows: [[name, value], …]; rows whose value is undefined are left out. */
export function Facts({ rows }) {
  return html`
    <dl class="facts">
      ${rows
        .filter(([, value]) => value !== undefined)
        .map(
          ([name, value]) => html`
            <div key=${name}>
              <dt>${name}</dt>
              <dd>${value ?? html`<span class="faint">–</span>`}</dd>
            </div>
          `,
        )}
    </dl>
  `;
}
