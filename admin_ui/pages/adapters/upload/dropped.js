// Reads the files that a person dropped or chose, an archive or the two files that PEFT writes, and checks what can be
// checked before the upload.

import { tar } from "./tar.js";

const CONFIG = "adapter_config.json";
const WEIGHTS = "adapter_model.safetensors";
const ARCHIVE = /\.(zip|tar|tar\.gz|tgz)$/i;
const MAX_CONFIG_BYTES = 1 << 20;

/**
 * Read chosen files; return {archive, name, config, parts}: a Blob to send, a name for the adapter, its configuration
 * if there is one to read, and [[file name, size], …]. Return {problem} if the files cannot be an adapter: why not, and
 * what to do.
 */
export async function readFiles(files) {
  const named = (name) => files.find((file) => file.name === name);
  const config = named(CONFIG);
  const weights = named(WEIGHTS);
  if (config && weights) {
    return {
      archive: tar([
        [CONFIG, config],
        [WEIGHTS, weights],
      ]),
      name: asName(folderOf(weights) ?? ""),
      config: await readConfig(config),
      parts: [config, weights].map(({ name, size }) => [name, size]),
    };
  }
  const archive = files.find(({ name }) => ARCHIVE.test(name));
  if (archive)
    return {
      archive,
      name: asName(archive.name.replace(ARCHIVE, "")),
      config: null,
      parts: [[archive.name, archive.size]],
    };
  return { problem: problemOf(files, config, weights) };
}

function problemOf(files, config, weights) {
  if (files.some(({ name }) => name === "adapter_model.bin")) {
    return (
      "The weights are a pickle, adapter_model.bin, which is not accepted since it can run code. Save them " +
      "again: model.save_pretrained(folder, safe_serialization=True)."
    );
  }
  if (config || weights)
    return (
      `${config ? WEIGHTS : CONFIG} is missing: drop the folder that PEFT's save_pretrained wrote, or both ` +
      "of its files."
    );
  return (
    `No adapter is in there. Drop the folder that PEFT's save_pretrained wrote (${CONFIG} and ${WEIGHTS}), ` +
    "or a .zip, .tar or .tar.gz of it."
  );
}

/** Return the files of a drop, including those in folders. Call it while the event is handled. */
export function filesOfDrop(transfer) {
  const entries = [...transfer.items]
    .filter(({ kind }) => kind === "file")
    .map((item) => item.webkitGetAsEntry?.() ?? item.getAsFile());
  return Promise.all(entries.map(filesOf)).then((lists) => lists.flat());
}

async function filesOf(entry) {
  if (entry === null || entry instanceof File) return entry ? [entry] : [];
  if (entry.isFile) {
    const file = await new Promise((resolve, reject) => entry.file(resolve, reject));
    folders.set(file, entry.fullPath.split("/").at(-2));
    return [file];
  }
  const reader = entry.createReader();
  const found = [];
  for (;;) {
    const some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
    if (some.length === 0) break;
    found.push(...some);
  }
  const files = await Promise.all(found.filter(({ isFile }) => isFile).map(filesOf));
  return files.flat();
}

const folders = new WeakMap();

function folderOf(file) {
  return folders.get(file) || file.webkitRelativePath?.split("/").at(-2) || null;
}

/** Return a text as a valid name of an adapter: lower case, digits, dots, dashes and underscores. */
export function asName(text) {
  return text
    .toLowerCase()
    .replace(/[^a-z0-9._-]+/g, "-")
    .replace(/^[^a-z0-9]+|-+$/g, "")
    .slice(0, 64);
}

async function readConfig(file) {
  if (file.size > MAX_CONFIG_BYTES) return null;
  try {
    const {
      r,
      lora_alpha: alpha,
      target_modules: targets,
      base_model_name_or_path: base,
    } = JSON.parse(await file.text());
    return { rank: r, alpha, targets: Array.isArray(targets) ? targets : targets ? [targets] : [], base };
  } catch {
    return null; // The inspection tells what is wrong with it.
  }
}
