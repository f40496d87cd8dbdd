// A tar archive of a few files, without copying them: what the API takes in pieces is one archive. The same files give
// the same bytes, so that an upload can go on where it stopped.

const BLOCK = 512;

/** Return a tar archive as a Blob. files: [[name, Blob], …], with ASCII names below 100 characters. */
export function tar(files) {
  const parts = files.flatMap(([name, file]) => [
    header(name, file.size),
    file,
    new Uint8Array(-file.size & (BLOCK - 1)),
  ]);
  return new Blob([...parts, new Uint8Array(2 * BLOCK)], { type: "application/x-tar" });
}

/**
 * Return a header of POSIX.1-1988 ("ustar"): numbers are octal text; the checksum is computed with blanks in its place.
 */
function header(name, size) {
  const block = new Uint8Array(BLOCK);
  const put = (offset, text) => block.set(new TextEncoder().encode(text), offset);
  put(0, name);
  put(100, "0000644\0");
  put(108, "0000000\0");
  put(116, "0000000\0");
  put(124, `${size.toString(8).padStart(11, "0")}\0`);
  put(136, "00000000000\0");
  put(148, "        ");
  put(156, "0");
  put(257, "ustar\x0000");
  put(
    148,
    `${block
      .reduce((sum, byte) => sum + byte, 0)
      .toString(8)
      .padStart(6, "0")}\0 `,
  );
  return block;
}
