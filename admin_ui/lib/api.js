// The admin API over HTTP: every call of the dashboard goes through here.
//
// Paths are below /v1/organization, unless they begin with /admin/ or /v1/. Errors are ApiError, in words and with the
// field at fault. A reader who is no longer signed in is sent to the sign-in page.

const BASE = "/v1/organization";

/** Error codes about a password or code that was just typed, which do not mean that the login has ended. */
const OF_A_PASSWORD = new Set(["invalid_credentials", "totp_required"]);

let csrfToken = "";
let whenSignedOut = () => {};

/** Set the CSRF token of the session, which is sent with requests that change something. */
export function setCsrfToken(token) {
  csrfToken = token;
}

/** Set the function to call when the server says that the login has ended. */
export function onSignedOut(callback) {
  whenSignedOut = callback;
}

export class ApiError extends Error {
  /** status: 0 if no answer came. param: the field at fault. */
  constructor({ status, code = "", message, param = null, requestId = "", body = null }) {
    super(message);
    Object.assign(this, { status, code, param, requestId, body });
  }

  /** Whether the route, or the object, does not exist. */
  get isMissing() {
    return this.status === 404;
  }
}

export const get = (path, query, options) => call("GET", path, { query, ...options });
export const post = (path, body = {}, options) => call("POST", path, { body, ...options });
export const patch = (path, body = {}, options) => call("PATCH", path, { body, ...options });
export const del = (path, options) => call("DELETE", path, options);

export function urlOf(path, query = {}) {
  const base = path.startsWith("/admin/") || path.startsWith("/v1/") ? "" : BASE;
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries(query ?? {})) {
    if (Array.isArray(value)) for (const each of value) params.append(`${name}[]`, each);
    else if (value !== null && value !== undefined && value !== "") params.append(name, value);
  }
  const text = params.toString();
  return base + path + (text && `?${text}`);
}

async function call(method, path, { query, body, signal, keepalive, headers = {} } = {}) {
  const changes = method !== "GET";
  let response;
  try {
    response = await fetch(urlOf(path, query), {
      method,
      signal,
      keepalive, // sent to its end though the page is left
      credentials: "same-origin",
      headers: {
        accept: "application/json",
        ...(body !== undefined && { "content-type": "application/json" }),
        ...(changes && { "x-csrf-token": csrfToken }),
        ...headers,
      },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError({ status: 0, code: "unreachable", message: "The gateway does not answer." });
  }
  return reply(response.status, response.headers.get("x-request-id"), await response.text());
}

function reply(status, requestId, text) {
  const body = parsed(text);
  if (status >= 200 && status < 300) return body;
  const error = body?.error ?? {};
  if (status === 401 && !OF_A_PASSWORD.has(error.code)) whenSignedOut();
  throw new ApiError({
    status,
    code: error.code ?? "",
    message: error.message ?? `The gateway answered with status ${status}.`,
    param: error.param ?? null,
    requestId: requestId ?? "",
    body,
  });
}

function parsed(text) {
  try {
    return text ? JSON.parse(text) : null;
  } catch {
    return null;
  }
}

/**
 * Send a Blob or a FormData. onProgress(bytes sent, bytes in all) is called meanwhile, which `fetch` cannot do for
 * uploads. signal aborts the upload.
 */
export function upload(path, body, { method = "POST", query, headers = {}, onProgress, signal } = {}) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open(method, urlOf(path, query));
    request.setRequestHeader("x-csrf-token", csrfToken);
    for (const [name, value] of Object.entries(headers)) request.setRequestHeader(name, value);
    request.upload.onprogress = (event) => onProgress?.(event.loaded, event.total);
    request.onload = () => {
      try {
        resolve(reply(request.status, request.getResponseHeader("x-request-id"), request.responseText));
      } catch (error) {
        reject(error);
      }
    };
    request.onerror = () =>
      reject(new ApiError({ status: 0, code: "unreachable", message: "The upload was cut off before its end." }));
    request.onabort = () => reject(new DOMException("The upload was stopped.", "AbortError"));
    signal?.addEventListener("abort", () => request.abort());
    request.send(body);
  });
}

/**
 * Download a file; return it as a Blob with the name that the server gives it. onProgress(bytes received) is called
 * meanwhile. Throws where the reply is cut off.
 */
export async function download(path, { query, onProgress, signal } = {}) {
  const unreachable = (message) => new ApiError({ status: 0, code: "unreachable", message });
  let response;
  try {
    response = await fetch(urlOf(path, query), { signal, credentials: "same-origin" });
  } catch (error) {
    throw error.name === "AbortError" ? error : unreachable("The gateway does not answer.");
  }
  if (!response.ok) return reply(response.status, response.headers.get("x-request-id"), await response.text(), path);
  const name = /filename="([^"]+)"/.exec(response.headers.get("content-disposition") ?? "")?.[1] ?? "download";
  const parts = [];
  let size = 0;
  try {
    for (const reader = response.body.getReader(); ; ) {
      const { done, value } = await reader.read();
      if (done) break;
      parts.push(value);
      size += value.length;
      onProgress?.(size);
    }
  } catch (error) {
    throw error.name === "AbortError" ? error : unreachable("The file was cut off before its end.");
  }
  return { name, blob: new Blob(parts, { type: response.headers.get("content-type") }) };
}

/** Yield all items of a list in OpenAI's shape, page after page: `for await (const key of pages("/projects"))`. */
export async function* pages(path, query = {}, { signal } = {}) {
  let after = null;
  do {
    const page = await get(path, { limit: 100, ...query, after }, { signal });
    yield* page.data;
    after = page.has_more ? page.last_id : null;
  } while (after !== null);
}
