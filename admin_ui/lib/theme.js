// Light, dark, or as the system is (""): kept in the browser, applied before anything is painted by theme.js.

import { Store, useStore } from "./store.js";

const theme$ = new Store(document.documentElement.dataset.theme ?? "");

export function useTheme() {
  return useStore(theme$);
}

export function setTheme(name) {
  if (name) {
    document.documentElement.dataset.theme = name;
    localStorage.setItem("theme", name);
  } else {
    delete document.documentElement.dataset.theme;
    localStorage.removeItem("theme");
  }
  theme$.set(name);
}
