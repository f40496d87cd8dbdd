// Sends an archive through the imports API, piece by piece. What has come is kept: a connection that breaks, or a page
// that was closed, goes on where it stopped.

import { ApiError, get, post, upload } from "../../../lib/api.js";

const PIECE_BYTES = 16 << 20;
const MAX_DIGEST_BYTES = 1 << 30;
const MAX_TRIES = 8;
const MAX_PAUSE_S = 30;
const PACE_S = 6;
const AT_WORK = ["receiving", "fetching", "uploaded"];

/**
 * Upload an archive; return the answer (version_state, uploaded_version, …). tell({step, sent, waiting, resumed})
 * reports the progress: step "reading", "sending" or "checking"; waiting: seconds until the next try, why: the error
 * before it. Throws ApiError, and AbortError once the signal aborts; the import then stays and can go on later. base:
 * the name of its base model, undefined for the only one.
 */
export async function send({ projectId, name, base: model, archive, promote, signal, tell }) {
  const base = `/projects/${encodeURIComponent(projectId)}/adapter_imports`;
  tell({ step: "reading", sent: 0 });
  const row = await begin(base, { name, promote, ...(model && { base: model }) }, archive);
  const at = `${base}/${encodeURIComponent(row.id)}`;
  tell({ step: "sending", sent: row.received_bytes, resumed: row.received_bytes > 0, importId: row.id });
  await sendPieces(at, row.received_bytes, archive, signal, tell);
  tell({ step: "checking", sent: archive.size });
  return complete(at, signal);
}

/** Return the interrupted import of the same bytes for the same name and base, or a new import. */
async function begin(path, wanted, archive) {
  const sha256 = await digest(archive);
  if (sha256 !== null) {
    const known = await get(path, { limit: 100 });
    const isWanted = (row) => Object.entries(wanted).every(([name, value]) => row[name] === value);
    const same = known.data.find((row) => row.state === "receiving" && row.sha256 === sha256 && isWanted(row));
    if (same) return same;
  }
  return post(path, { ...wanted, size_bytes: archive.size, ...(sha256 && { sha256 }) });
}

/**
 * Return the SHA-256 of an archive; null where the browser has none, without HTTPS: then an upload can only go on
 * within this page.
 */
async function digest(archive) {
  if (!globalThis.crypto?.subtle || archive.size > MAX_DIGEST_BYTES) return null;
  const bytes = new Uint8Array(await crypto.subtle.digest("SHA-256", await archive.arrayBuffer()));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

async function sendPieces(path, received, archive, signal, tell) {
  let at = received;
  let tries = 0;
  while (at < archive.size) {
    try {
      if (tries > 0) at = (await get(path, {}, { signal })).received_bytes;
      tell({ sent: at, waiting: 0 });
      const from = at;
      const row = await upload(path, archive.slice(at, at + PIECE_BYTES), {
        method: "PATCH",
        headers: { "upload-offset": String(at), "content-type": "application/octet-stream" },
        onProgress: (sent) => tell({ sent: from + sent }),
        signal,
      });
      at = row.received_bytes;
      tries = 0;
    } catch (error) {
      tries += 1;
      if (!mayPass(error) || tries > MAX_TRIES) throw error;
      const pause = Math.min(MAX_PAUSE_S, 2 ** (tries - 1));
      tell({ sent: at, waiting: pause, why: error });
      await wait(pause, signal);
    }
  }
}

/** Complete an import; return its answer, asking again if an answer was lost, which gives the same answer. */
async function complete(path, signal) {
  for (let tries = 0; ; tries += 1) {
    try {
      return await post(`${path}/complete`, {}, { signal });
    } catch (error) {
      if (!mayPass(error) || tries >= MAX_TRIES) throw error;
      await over(path, signal);
    }
  }
}

async function over(path, signal) {
  for (let tries = 0; tries < MAX_TRIES * MAX_PAUSE_S; tries += 1) {
    await wait(1, signal);
    try {
      const { state } = await get(path, {}, { signal });
      if (!AT_WORK.includes(state) || state === "receiving") return;
    } catch (error) {
      if (!mayPass(error)) throw error;
    }
  }
}

const mayPass = (error) =>
  error instanceof ApiError && ([0, 502, 503, 504].includes(error.status) || error.code === "wrong_offset");

function wait(seconds, signal) {
  return new Promise((resolve, reject) => {
    const stop = () => (clearTimeout(timer), reject(new DOMException("The upload was stopped.", "AbortError")));
    const timer = setTimeout(() => (signal?.removeEventListener("abort", stop), resolve()), 1000 * seconds);
    signal?.addEventListener("abort", stop, { once: true });
  });
}

/** The pace of an upload: bytes per second over the last seconds. */
export class Pace {
  #seen = [];

  /** Record the bytes sent so far; return the pace, or null while it is unknown. */
  add(sent, atMs = performance.now()) {
    this.#seen = [...this.#seen.filter(([at]) => atMs - at < 1000 * PACE_S), [atMs, sent]];
    const [firstAt, first] = this.#seen[0];
    return atMs - firstAt < 250 || sent <= first ? null : (1000 * (sent - first)) / (atMs - firstAt);
  }
}
