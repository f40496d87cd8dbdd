// Where an adapter is: in the admin API, and in the playground.

export const pathOf = (projectId, name) =>
  `/projects/${encodeURIComponent(projectId)}/adapters/${encodeURIComponent(name)}`;

/** Of an adapter or a version, with its project. */
export const tryIt = ({ project_id: id, model }) =>
  `/admin/playground?project=${encodeURIComponent(id)}&model=${encodeURIComponent(model)}`;
