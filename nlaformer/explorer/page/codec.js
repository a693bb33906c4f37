// Arrays out of the page: base 85, inflated, their byte planes put together again. See store.py.

const ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%.()*+-;,=>?@^_`{|}~";
const DIGIT = new Uint8Array(128);
for (let k = 0; k < 85; k++) DIGIT[ALPHABET.charCodeAt(k)] = k;

function fromBase85(text) {
  const groups = text.length / 5;
  const bytes = new Uint8Array(4 * groups);
  for (let g = 0, at = 0; g < groups; g++) {
    let value = 0;
    for (let k = 0; k < 5; k++) value = value * 85 + DIGIT[text.charCodeAt(at++)];
    bytes[4 * g] = value / 16777216;
    bytes[4 * g + 1] = value >>> 16;
    bytes[4 * g + 2] = value >>> 8;
    bytes[4 * g + 3] = value;
  }
  return bytes;
}

async function inflated(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

const HEADER = 20; // five whole numbers: the length of the stream, and how many entries each kind has
const KINDS = { f8: Float64Array, f4: Float32Array, i4: Int32Array, u1: Uint8Array };

// A function from [kind, first entry, length] to the array.
export async function openStore(text) {
  const bytes = fromBase85(text);
  const header = new DataView(bytes.buffer);
  const content = await inflated(bytes.subarray(HEADER, HEADER + header.getUint32(0, true)));
  const whole = {};
  let at = 0;
  Object.entries(KINDS).forEach(([kind, Kind], k) => {
    const count = header.getUint32(4 + 4 * k, true);
    whole[kind] = gathered(content, Kind, at, count);
    at += count * Kind.BYTES_PER_ELEMENT;
  });
  return ([kind, start, count]) => whole[kind].subarray(start, start + count);
}

function gathered(content, Kind, start, count) {
  const width = Kind.BYTES_PER_ELEMENT;
  const bytes = new Uint8Array(width * count);
  for (let plane = 0; plane < width; plane++) {
    const from = start + plane * count;
    for (let k = 0; k < count; k++) bytes[k * width + plane] = content[from + k];
  }
  return new Kind(bytes.buffer);
}
