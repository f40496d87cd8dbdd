// Colours of series: the same entity has the same colour on every page. Eight that colour-blind readers tell apart.

import { session$ } from "./session.js";

const NUM_COLOURS = 8;
const MAX_KEPT = 500;
const places = new Map();

session$.watch(({ state }) => state === "out" && places.clear());

/**
 * Return the CSS colour of an entity (an id or a name): that of its hash, or the least used one if others of its kind
 * have it.
 */
export function colourOf(entity) {
  return `var(--series-${placeOf(String(entity)) + 1})`;
}

/**
 * Return the colours of entities that are shown together: each its own colour, unless another of them has it already.
 */
export function coloursOf(entities) {
  const taken = new Set();
  return entities.map((entity) => {
    let place = placeOf(String(entity));
    for (let tries = 0; taken.has(place) && tries < NUM_COLOURS; tries += 1) place = (place + 1) % NUM_COLOURS;
    taken.add(place);
    return `var(--series-${place + 1})`;
  });
}

function placeOf(entity) {
  if (!places.has(entity)) {
    const used = Array(NUM_COLOURS).fill(0);
    for (const [other, place] of places) if (kindOf(other) === kindOf(entity)) used[place] += 1;
    const wanted = hash(entity) % NUM_COLOURS;
    const least = Math.min(...used);
    let place = wanted;
    while (used[place] !== least) place = (place + 1) % NUM_COLOURS;
    places.set(entity, place);
    if (places.size > MAX_KEPT) places.delete(places.keys().next().value);
  }
  return places.get(entity);
}

/** Return the prefix of an id before its first underscore: only entities of one kind need different colours. */
function kindOf(entity) {
  return entity.split("_")[0];
}

function hash(text) {
  let value = 2166136261; // FNV-1a
  for (const character of text) value = Math.imul(value ^ character.codePointAt(0), 16777619) >>> 0;
  return value;
}

/** Return a CSS colour, which may be a variable, as numbers: canvases know no variables. */
export function resolved(colour, element = document.body) {
  const probe = document.createElement("span");
  probe.style.color = colour;
  element.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}
