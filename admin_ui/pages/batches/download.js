// The button that downloads a file and shows the progress.

import { Button } from "../../components/button.js";
import { toast } from "../../components/toast.js";
import { ApiError, download } from "../../lib/api.js";
import { bytes } from "../../lib/format/format.js";
import { html, useEffect, useRef, useState } from "../../lib/html.js";
import { save } from "../../lib/save.js";

/** A download button. title: the button's text; without it the button is an icon. */
export function Download({ path, name, title, kind }) {
  const [size, setSize] = useState(null);
  const leave = useRef(null);
  useEffect(() => () => leave.current?.abort(), []);
  const start = async () => {
    leave.current = new AbortController();
    setSize(0);
    try {
      const { blob } = await download(path, { onProgress: setSize, signal: leave.current.signal });
      save(blob, name);
    } catch (error) {
      if (error.name === "AbortError") return;
      if (!(error instanceof ApiError)) throw error;
      toast(`Could not download ${name}: ${error.message}`, { tone: "bad" });
    }
    setSize(null);
  };
  const busy = size !== null;
  return html`
    <${Button}
      small=${!title}
      kind=${kind ?? "secondary"}
      icon="download"
      busy=${busy}
      label=${title ? undefined : `Download ${name}`}
      onClick=${start}
    >
      ${title && (busy && size ? bytes(size) : title)}
    <//>
  `;
}
