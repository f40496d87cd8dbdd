// What the form begins with.

import { firstModels } from "./models.js";
import { initialValues, valuesOf } from "./values.js";

/** What a form begins with: {version, values}; of a new experiment the version is 0. */
export function beginning(draft, models, own) {
  if (draft) return { version: draft.version, values: valuesOf(draft) };
  const values = initialValues(firstModels(models));
  return { version: 0, values: own.length ? { ...values, primary: [own[0].name] } : values };
}
