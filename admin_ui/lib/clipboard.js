// Copying text, on pages without HTTPS too, where browsers offer no clipboard.

/** Copy a text to the clipboard; return whether that worked. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyBySelection(text);
  }
}

function copyBySelection(text) {
  const area = document.createElement("textarea");
  area.value = text;
  area.setAttribute("readonly", "");
  area.className = "visually-hidden";
  (document.querySelector("dialog[open]") ?? document.body).append(area);
  area.select();
  const worked = document.execCommand("copy");
  area.remove();
  return worked;
}
