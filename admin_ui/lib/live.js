// Server-sent events of the admin API: one stream for the whole page, which can be paused, and reconnects by itself.
//
// A page that nobody looks at has none: browsers allow six connections to one host over HTTP/1.1, for all tabs
// together.

import { get } from "./api.js";
import { invalidate } from "./data.js";
import { useEffect, useRef } from "./html.js";
import { Store, useStore } from "./store.js";
import { now, tick } from "./format/time.js";

const URL_OF_STREAM = "/v1/organization/live";
const EVENTS = ["engines", "changed", "traffic"];
const TICK_MS = 15_000;
const RETRY_MS = 30_000;
const TRAFFIC_S = 5;

/**
 * The state of the stream: "live" | "paused" | "connecting" | "off"; off if the server has no stream for the reader.
 */
export const live$ = new Store("connecting");

/** The time, in Unix seconds, since when the gateway does not answer; null while it answers. */
const lost$ = new Store(null);

const handlers = new Map(EVENTS.map((name) => [name, new Set()]));
let isWanted = false; // between start and stop
let source = null;
let timer = null;
let retry = null;

/** The API's paths whose data each topic of the change feed is about. */
const PATHS_OF_TOPIC = {
  adapters: ["/projects", "/adapters", "/adapter_imports"],
  experiments: ["/projects"],
  keys: ["/projects", "/admin_api_keys"],
  limits: ["/projects", "/limits"],
  projects: ["/projects"],
  pools: ["/pools", "/replicas", "/hosts"],
  prices: ["/prices"],
  users: ["/users"],
};

handlers.get("changed").add(({ topics = [] }) => {
  for (const topic of topics) invalidate(...(PATHS_OF_TOPIC[topic] ?? [`/${topic}`]));
});

export function start() {
  isWanted = true;
  timer ??= setInterval(() => isVisible() && live$.value !== "paused" && tick(), TICK_MS);
  open();
}

const isVisible = () => document.visibilityState === "visible";

function open() {
  if (source !== null || live$.value === "paused" || !isVisible()) return;
  live$.set("connecting");
  source = new EventSource(URL_OF_STREAM);
  source.onopen = () => {
    live$.set("live");
    if (lost$.value === null) return;
    lost$.set(null);
    invalidate("");
  };
  source.onerror = () => {
    if (source.readyState !== EventSource.CLOSED) {
      live$.set("connecting");
      return void (lost$.value ?? lost$.set(now()));
    }
    end();
    live$.set("off");
    retry = setTimeout(open, RETRY_MS);
    // Something answers, perhaps a proxy whose gateway is away, or the login has ended.
    get("/admin/v1/session").then(
      () => lost$.set(null),
      () => {},
    );
  };
  for (const name of EVENTS) {
    source.addEventListener(name, (event) => {
      const data = JSON.parse(event.data);
      for (const handler of handlers.get(name)) handler(data);
    });
  }
}

function end() {
  source?.close();
  source = null;
  clearTimeout(retry);
}

function close() {
  end();
  lost$.set(null);
}

/** Stop the stream, when the reader signs out. */
export function stop() {
  isWanted = false;
  close();
  clearInterval(timer);
  timer = null;
  if (live$.value !== "paused") live$.set("connecting");
}

export function togglePaused() {
  if (live$.value === "paused") {
    live$.set("connecting");
    catchUp();
  } else {
    close();
    live$.set("paused");
  }
}

/** Read all shown data again, since changes meanwhile were missed, and open the stream. */
function catchUp() {
  tick();
  invalidate("");
  open();
}

document.addEventListener("visibilitychange", () => {
  if (!isWanted || live$.value === "paused") return;
  if (isVisible()) catchUp();
  else close();
});

export function useLiveState() {
  return useStore(live$);
}

export function useLostSince() {
  return useStore(lost$);
}

/** Call reload while requests come in, every few seconds at most. */
export function useWhileTraffic(reload) {
  const last = useRef({ at: 0, sums: null });
  useEffect(() => {
    const handler = ({ num_requests: requests, input_tokens: input, output_tokens: output }) => {
      const sums = `${requests} ${input} ${output}`;
      const { current } = last;
      if (current.sums === sums || now() - current.at < TRAFFIC_S) return;
      last.current = { at: now(), sums };
      if (current.sums !== null) reload();
    };
    handlers.get("traffic").add(handler);
    return () => handlers.get("traffic").delete(handler);
  }, [reload]);
}

/** Call handler(data) for each event of this name while the component is mounted; none come while paused. */
export function useLive(name, handler) {
  useEffect(() => {
    handlers.get(name).add(handler);
    return () => handlers.get(name).delete(handler);
  }, [name, handler]);
}
