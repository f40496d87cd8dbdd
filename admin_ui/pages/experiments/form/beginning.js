// The initial values of the form of an experiment.

import { firstModels } from "./models.js";
import { initialValues, valuesOf } from "./values.js";

/** Return the initial {version, values} of the form for a draft, or for a new experiment, whose version is 0. */
export function beginning(draft, models, own) {
  if (draft) return { version: draft.version, values: valuesOf(draft) };
  const values = initialValues(firstModels(models));
  return { version: 0, values: own.length ? { ...values, primary: [own[0].name] } : values };
}
