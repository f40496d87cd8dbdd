// QR codes as paths of SVG, with the quiet zone of four squares around them.

import { encode } from "../vendor/uqr.esm.js";

/** Return the SVG path of a text's QR code, and the side of the square that the path lies in. */
export function qrPath(text) {
  const { data, size } = encode(text, { ecc: "M", border: 4 });
  const path = data.flatMap((row, y) => row.map((dark, x) => (dark ? `M${x} ${y}h1v1h-1z` : ""))).join("");
  return { path, size };
}
