// What was typed into the form of an experiment and is not saved: kept in this tab for the person who typed it, until
// it is saved or thrown away or that person signs out. What others saved meanwhile is merged with it field by field.

import { beforeSignOut, session$ } from "../../../lib/session.js";

const KEY = "lorikeet.experiment-forms";

beforeSignOut(() => sessionStorage.removeItem(KEY));

/** {place: {loaded, values}} of the person who is signed in. */
function read() {
  try {
    const { user, forms } = JSON.parse(sessionStorage.getItem(KEY));
    return user === session$.value.who?.user_id ? forms : {};
  } catch {
    return {};
  }
}

/**
 * What was kept of a form: {loaded: {version, values}, values}; undefined where nothing was. place: which form it is.
 */
export const unsentOf = (place) => read()[place];

/** kept: as `unsentOf` gives it back; null forgets it. */
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
 * Values with what was typed since `loaded`, and everything else as it was saved by others. {values, both}: both has
 * the names of the fields that others changed as well, and in another way; there what was typed stays.
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
