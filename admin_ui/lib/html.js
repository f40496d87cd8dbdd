// The one import that pages need for markup: htm's templates over Preact, and Preact's hooks.

import htm from "../vendor/htm.module.js";

export const { h, render, Fragment, createContext } = globalThis.preact;
export const {
  useState,
  useEffect,
  useLayoutEffect,
  useMemo,
  useCallback,
  useRef,
  useContext,
  useId,
  useErrorBoundary,
} = globalThis.preactHooks;
export const html = htm.bind(h);
