// A value that several components watch: the session, the route, whether live updates are paused.

import { useEffect, useState } from "./html.js";

export class Store {
  #value;
  #watchers = new Set();

  constructor(value) {
    this.#value = value;
  }

  get value() {
    return this.#value;
  }

  set(value) {
    if (value === this.#value) return;
    this.#value = value;
    for (const watcher of [...this.#watchers]) watcher(value);
  }

  /** Call watcher(value) with each new value; return the function that ends this. */
  watch(watcher) {
    this.#watchers.add(watcher);
    return () => this.#watchers.delete(watcher);
  }
}

export function useStore(store) {
  const [, render] = useState(store.value);
  useEffect(() => {
    render(store.value); // it may have changed between rendering and watching
    return store.watch(render);
  }, [store]);
  return store.value;
}
