// QR codes (ISO/IEC 18004) of short texts: bytes, error correction level M, versions 1 to 10. Pure.

const WORDS = [0, 26, 44, 70, 100, 134, 172, 196, 242, 292, 346]; // code words of a version, in all
const CHECK = [0, 10, 16, 26, 18, 24, 16, 18, 22, 22, 26]; // code words of error correction of each block
const BLOCKS = [0, 1, 1, 1, 2, 2, 4, 4, 4, 5, 5];
const ALIGNED = [[], [], [6, 18], [6, 22], [6, 26], [6, 30], [6, 34], [6, 22, 38], [6, 24, 42], [6, 26, 46], [6, 28, 50]];
const MASKS = [
  (x, y) => (x + y) % 2 === 0,
  (_, y) => y % 2 === 0,
  (x) => x % 3 === 0,
  (x, y) => (x + y) % 3 === 0,
  (x, y) => (Math.floor(x / 3) + Math.floor(y / 2)) % 2 === 0,
  (x, y) => ((x * y) % 2) + ((x * y) % 3) === 0,
  (x, y) => (((x * y) % 2) + ((x * y) % 3)) % 2 === 0,
  (x, y) => (((x + y) % 2) + ((x * y) % 3)) % 2 === 0,
];

// The field of 256 elements over x^8 + x^4 + x^3 + x^2 + 1.
const EXP = new Uint8Array(512);
const LOG = new Uint8Array(256);
for (let power = 0, value = 1; power < 255; power += 1) {
  EXP[power] = EXP[power + 255] = value;
  LOG[value] = power;
  value = value & 128 ? ((value << 1) ^ 0x11d) : value << 1;
}
const times = (a, b) => (a && b ? EXP[LOG[a] + LOG[b]] : 0);

/** Rows of booleans, true is dark; without the quiet zone. Throws RangeError for a text of more than 213 bytes. */
export function qr(text) {
  const bytes = new TextEncoder().encode(text);
  const version = WORDS.findIndex((words, version) => version > 0 && bytes.length <= capacity(version));
  if (version < 0) throw new RangeError("The text is too long for a QR code of this kind.");
  const words = interleaved(dataWords(bytes, version), version);
  const grids = MASKS.map((_, mask) => drawn(words, version, mask));
  return grids.reduce((best, grid) => (penalty(grid) < penalty(best) ? grid : best));
}

const numDataWords = (version) => WORDS[version] - CHECK[version] * BLOCKS[version];
const capacity = (version) => numDataWords(version) - (version < 10 ? 2 : 3);

function dataWords(bytes, version) {
  const bits = [];
  const put = (value, length) => {
    for (let bit = length - 1; bit >= 0; bit -= 1) bits.push((value >> bit) & 1);
  };
  put(4, 4); // bytes
  put(bytes.length, version < 10 ? 8 : 16);
  for (const byte of bytes) put(byte, 8);
  const size = numDataWords(version) * 8;
  put(0, Math.min(4, size - bits.length));
  while (bits.length % 8) bits.push(0);
  for (let pad = 0xec; bits.length < size; pad ^= 0xec ^ 0x11) put(pad, 8);
  return Array.from({ length: size / 8 }, (_, word) => parseInt(bits.slice(word * 8, word * 8 + 8).join(""), 2));
}

function interleaved(data, version) {
  const numBlocks = BLOCKS[version];
  const short = Math.floor(data.length / numBlocks);
  const numShort = numBlocks - (data.length % numBlocks);
  const blocks = [];
  for (let block = 0, start = 0; block < numBlocks; block += 1) {
    const end = start + short + (block >= numShort ? 1 : 0);
    blocks.push(data.slice(start, end));
    start = end;
  }
  const checks = blocks.map((block) => remainder(block, CHECK[version]));
  const across = (columns) =>
    Array.from({ length: Math.max(...columns.map(({ length }) => length)) }, (_, place) =>
      columns.filter(({ length }) => place < length).map((column) => column[place]),
    ).flat();
  return [...across(blocks), ...across(checks)];
}

/** Of Reed-Solomon: the block times x^degree, modulo the generator. */
function remainder(block, degree) {
  let generator = [1];
  for (let power = 0; power < degree; power += 1) {
    generator = [...generator, 0].map((value, place) => value ^ times(generator[place - 1] ?? 0, EXP[power]));
  }
  const rest = [...block, ...Array(degree).fill(0)];
  for (let place = 0; place < block.length; place += 1) {
    const factor = rest[place];
    generator.forEach((value, offset) => (rest[place + offset] ^= times(value, factor)));
  }
  return rest.slice(block.length);
}

function drawn(words, version, mask) {
  const size = version * 4 + 17;
  const grid = Array.from({ length: size }, () => Array(size).fill(null));
  const set = (x, y, dark) => x >= 0 && y >= 0 && x < size && y < size && (grid[y][x] = Boolean(dark));
  const square = (x, y, reach, dark) => {
    for (let dy = -reach; dy <= reach; dy += 1)
      for (let dx = -reach; dx <= reach; dx += 1) set(x + dx, y + dy, dark(Math.max(Math.abs(dx), Math.abs(dy))));
  };
  for (const [x, y] of [[3, 3], [size - 4, 3], [3, size - 4]]) square(x, y, 4, (ring) => ring !== 2 && ring !== 4);
  const aligned = ALIGNED[version];
  const last = aligned.at(-1);
  for (const x of aligned)
    for (const y of aligned) {
      const inFinder = (x === 6 && y === 6) || (x === 6 && y === last) || (x === last && y === 6);
      if (!inFinder) square(x, y, 2, (ring) => ring !== 1);
    }
  for (let place = 8; place < size - 8; place += 1) {
    if (grid[6][place] === null) set(place, 6, place % 2 === 0);
    if (grid[place][6] === null) set(6, place, place % 2 === 0);
  }
  formatBits(mask).forEach((bit, place) => {
    if (place < 8) set(8, place < 6 ? place : place + 1, bit);
    else set(place === 8 ? 7 : 14 - place, 8, bit);
    if (place < 8) set(size - 1 - place, 8, bit);
    else set(8, size - 15 + place, bit);
  });
  set(8, size - 8, true);
  if (version >= 7) {
    versionBits(version).forEach((bit, place) => {
      const [near, far] = [Math.floor(place / 3), size - 11 + (place % 3)];
      set(near, far, bit);
      set(far, near, bit);
    });
  }
  const bits = words.flatMap((word) => Array.from({ length: 8 }, (_, bit) => (word >> (7 - bit)) & 1));
  let next = 0;
  for (let right = size - 1; right > 0; right -= 2) {
    if (right === 6) right = 5;
    const isUp = ((right + 1) & 2) === 0;
    for (let step = 0; step < size; step += 1)
      for (const x of [right, right - 1]) {
        const y = isUp ? size - 1 - step : step;
        if (grid[y][x] === null) grid[y][x] = Boolean((bits[next++] ?? 0) ^ MASKS[mask](x, y));
      }
  }
  return grid;
}

/** Lowest bit first. */
function formatBits(mask) {
  let rest = mask; // level M is 00
  for (let round = 0; round < 10; round += 1) rest = (rest << 1) ^ ((rest >> 9) * 0x537);
  const bits = ((mask << 10) | rest) ^ 0x5412;
  return Array.from({ length: 15 }, (_, bit) => (bits >> bit) & 1);
}

function versionBits(version) {
  let rest = version;
  for (let round = 0; round < 12; round += 1) rest = (rest << 1) ^ ((rest >> 11) * 0x1f25);
  const bits = (version << 12) | rest;
  return Array.from({ length: 18 }, (_, bit) => (bits >> bit) & 1);
}

/** How hard a grid is to read: runs, squares, what looks like a finder, and imbalance. */
function penalty(grid) {
  const size = grid.length;
  const columns = grid.map((_, x) => grid.map((row) => row[x]));
  let points = 0;
  for (const line of [...grid, ...columns]) {
    const text = line.map((dark) => (dark ? "1" : "0")).join("");
    for (const [run] of text.matchAll(/0{5,}|1{5,}/g)) points += run.length - 2;
    points += 40 * [...text.matchAll(/(?=10111010000|00001011101)/g)].length;
  }
  for (let y = 1; y < size; y += 1)
    for (let x = 1; x < size; x += 1)
      if (grid[y][x] === grid[y - 1][x] && grid[y][x] === grid[y][x - 1] && grid[y][x] === grid[y - 1][x - 1]) points += 3;
  const dark = grid.flat().filter(Boolean).length / (size * size);
  return points + Math.floor(Math.abs(dark - 0.5) * 20) * 10;
}

/** The same as the path of an SVG whose viewBox is 0 0 n n; with a quiet zone of four: {path, size}. */
export function qrPath(text) {
  const grid = qr(text);
  const path = grid.flatMap((row, y) => row.map((dark, x) => (dark ? `M${x + 4} ${y + 4}h1v1h-1z` : ""))).join("");
  return { path, size: grid.length + 8 };
}
