// The filters of the list of requests as query parameters of the URL, and links that set them.

/** The names of filters in the URL, and in the API. */
const LISTS = { project: "project_ids", model: "models", key: "api_key_ids", adapter: "adapter_ids" };
const REASONS = { completed: ["stop", "length"], cancelled: ["abort"], error: ["error"], refused: ["refused"] };

/** The names of all filters in the URL. */
export const FILTERS = [...Object.keys(LISTS), "status", "id"];

/** Return the API's query for the URL's filters. */
export function apiQuery(filters) {
  const query = {};
  for (const [name, list] of Object.entries(LISTS)) if (filters[name]) query[list] = [filters[name]];
  if (filters.status in REASONS) query.finish_reasons = REASONS[filters.status];
  if (filters.id) query.request_id = filters.id;
  return query;
}

/**
 * Return the link to the list of requests with these filters: {project, model, key, adapter, status, from, to}; null
 * and undefined are left out.
 */
export function requestsHref(filters) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(filters))
    if (value !== null && value !== undefined && value !== "") query.set(name, value);
  const text = query.toString();
  return `/admin/requests${text && `?${text}`}`;
}
