// Keeps unsaved values of the form of an experiment in this tab, until they are saved or discarded or their author
// signs out. Values that others saved meanwhile are merged field by field.

import { beforeSignOut, session$ } from "../../../lib/session.js";

const KEY = "lorikeet.experiment-forms";

beforeSignOut(() => sessionStorage.removeItem(KEY));

/** Return the unsaved forms of the signed-in person, as {place: {loaded, values}}. */
function read() {
  try {
    const { user, forms } = JSON.parse(sessionStorage.getItem(KEY));
    return user === session$.value.who?.user_id ? forms : {};
  } catch {
    return {};
  }
}

/**
 * Return the unsaved values of a form, {loaded: {version, values}, values}; undefined if there are none. place: the
 * form's key.
 */
export const unsentOf = (place) => read()[place];

/** Store unsaved values of a form, in the shape that `unsentOf` returns; null removes them. */
export function keepUnsent(place, kept) {
  const { [place]: _, ...others } = read();
  const forms = { ...others, ...(kept && { [place]: kept }) };
  try {
    if (Object.keys(forms).length)
      sessionStorage.setItem(KEY, JSON.stringify({ user: session$.value.who?.user_id, forms }));
    else sessionStorage.removeItem(KEY);
  } catch {
    // The tab's storage is full: the form stays as it is, and leaving it asks first.
  }
}

export const isSame = (a, b) => JSON.stringify(a) === JSON.stringify(b);

/**
 * Merge the values typed since `loaded` with those that others saved; return {values, both}. both: the names of fields
 * that both have changed, differently; in these the typed value stays.
 */
export function merged(loaded, typed, saved) {
  const both = [];
  const one = (name, was, mine, theirs) => {
    if (isSame(was, mine)) return theirs;
    if (!isSame(was, theirs) && !isSame(mine, theirs)) both.push(name);
    return mine;
  };
  const areAlike = [typed.arms, saved.arms].every(({ length }) => length === loaded.arms.length);
  const arms = areAlike
    ? saved.arms.map((arm, place) =>
        Object.fromEntries(
          Object.keys(arm).map((part) => [
            part,
            one("arms", loaded.arms[place][part], typed.arms[place][part], arm[part]),
          ]),
        ),
      )
    : one("arms", loaded.arms, typed.arms, saved.arms);
  const values = Object.fromEntries(
    Object.keys(saved).map((name) => [
      name,
      name === "arms" ? arms : one(name, loaded[name], typed[name], saved[name]),
    ]),
  );
  return { values, both: [...new Set(both)] };
}
