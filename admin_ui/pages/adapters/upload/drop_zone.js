// The zone into which files are dropped, or by which they are chosen, and the veil over the page while files hover over
// it.

import { Button } from "../../../components/button.js";
import { Icon } from "../../../components/icons.js";
import { html, useEffect, useRef, useState } from "../../../lib/html.js";
import { filesOfDrop } from "./dropped.js";

const hasFiles = (event) => event.dataTransfer?.types.includes("Files");

/** A zone for files to be dropped, or chosen by a click. onFiles: called with a list of File. */
export function DropZone({ onFiles }) {
  const [over, setOver] = useState(false);
  const files = useRef(null);
  const folder = useRef(null);
  useEffect(() => folder.current.setAttribute("webkitdirectory", ""), []);
  const take = (event) => {
    const list = [...event.target.files];
    event.target.value = "";
    if (list.length) onFiles(list);
  };
  return html`
    <div
      class="drop-zone ${over ? "over" : ""}"
      onDragOver=${(event) => hasFiles(event) && ((event.preventDefault(), setOver(true)))}
      onDragLeave=${() => setOver(false)}
      onDrop=${(event) => {
        event.preventDefault();
        event.stopPropagation();
        setOver(false);
        filesOfDrop(event.dataTransfer).then(onFiles);
      }}
    >
      <span class="empty-icon">
        <${Icon} name="upload" size=${20} />
      </span>
      <p>
        <b>Drop an adapter here</b>
      </p>
      <p class="hint">The folder that PEFT wrote, its two files, or a .zip, .tar or .tar.gz of them</p>
      <div class="row">
        <${Button} onClick=${() => files.current.click()}>Choose files<//>
        <${Button} onClick=${() => folder.current.click()}>Choose a folder<//>
      </div>
      <input
        ref=${files}
        type="file"
        multiple
        hidden
        accept=".json,.safetensors,.bin,.zip,.tar,.gz,.tgz"
        aria-label="Files of an adapter"
        onChange=${take}
      />
      <input ref=${folder} type="file" multiple hidden aria-label="Folder of an adapter" onChange=${take} />
    </div>
  `;
}

/** Shown while files are dragged over the page. */
export function DropVeil({ onFiles, label = "Drop to upload an adapter" }) {
  const [shown, show] = useState(false);
  useEffect(() => {
    let timer = null;
    const over = (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      show(true);
      clearTimeout(timer);
      timer = setTimeout(() => show(false), 300); // no event tells for sure that they have left the window
    };
    const drop = (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      show(false);
      filesOfDrop(event.dataTransfer).then(onFiles);
    };
    window.addEventListener("dragover", over);
    window.addEventListener("drop", drop);
    return () => {
      clearTimeout(timer);
      window.removeEventListener("dragover", over);
      window.removeEventListener("drop", drop);
    };
  }, [onFiles]);
  return (
    shown &&
    html`
      <div class="drop-veil">
        <div>
          <${Icon} name="upload" size=${24} />
          <b>${label}</b>
        </div>
      </div>
    `
  );
}
