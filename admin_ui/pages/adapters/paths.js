// The paths of an adapter: in the admin API, and in the playground.

export const pathOf = (projectId, name) =>
  `/projects/${encodeURIComponent(projectId)}/adapters/${encodeURIComponent(name)}`;

/** Return the playground's path for an adapter or a version, with its project. */
export const tryIt = ({ project_id: id, model }) =>
  `/admin/playground?project=${encodeURIComponent(id)}&model=${encodeURIComponent(model)}`;
