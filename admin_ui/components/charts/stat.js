// A number with its name, how it went lately, and a link to the rows that make it up.

import { html } from "../../lib/html.js";

/**
 * A number with a title. value: a <Num>, a <Money> or text. values: numbers for a sparkline beneath. hint: a second
 * line. tone: good, warn or bad.
 */
export function Stat({ title, value, hint, values, color = "var(--accent)", href, tone = "" }) {
  const inside = html`
    <span class="stat-title">${title}</span>
    <span class="stat-value ${tone}">${value}</span>
    ${hint && html`<span class="stat-hint">${hint}</span>`}
    ${values && html`<${Sparkline} values=${values} color=${color} />`}
  `;
  return href
    ? html`
      <a class="stat" href=${href}>
        ${inside}
      </a>
    `
    : html`<div class="stat">${inside}</div>`;
}

export function Stats({ children }) {
  return html`<div class="stats">${children}</div>`;
}

const WIDTH = 120;
const HEIGHT = 28;

/** A sparkline. values: numbers or null. It shows only the shape of the values, since the numbers stand beside it. */
export function Sparkline({ values, color = "var(--accent)" }) {
  const max = Math.max(...values.map((value) => value ?? 0), 0);
  if (values.length < 2 || max === 0)
    return html`<svg class="spark" viewBox="0 0 ${WIDTH} ${HEIGHT}" aria-hidden="true"></svg>`;
  const points = values.map((value, place) => [
    ((place / (values.length - 1)) * WIDTH).toFixed(1),
    (HEIGHT - 2 - ((value ?? 0) / max) * (HEIGHT - 5)).toFixed(1),
  ]);
  const line = `M${points.map((point) => point.join(" ")).join("L")}`;
  return html`
    <svg
      class="spark"
      viewBox="0 0 ${WIDTH} ${HEIGHT}"
      preserveAspectRatio="none"
      aria-hidden="true"
      style=${{ color }}
    >
      <path class="spark-fill" d="${line}L${WIDTH} ${HEIGHT}L0 ${HEIGHT}Z" />
      <path class="spark-line" d=${line} />
    </svg>
  `;
}
