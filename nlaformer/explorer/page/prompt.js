// The token matrix with named rows; nlaformer/prompt.py.
import { tokenMatrix } from "./transformer.js";

export function readLayout({ registers, tokens, sink }) {
  const rows = new Map();
  let at = 0;
  for (const [name, height] of registers) {
    rows.set(name, { start: at, height });
    at += height;
  }
  return { rows, height: at, tokens, first: sink ? 1 : 0 };
}

// Zeros, with the unit vectors in the rows named position.
export function emptyPrompt(layout) {
  const P = tokenMatrix(layout.height, layout.tokens);
  const position = layout.rows.get("position");
  if (position) for (let t = 0; t < layout.tokens; t++) P.data[(position.start + t) * layout.tokens + t] = 1;
  return P;
}

// entry(row, column) into the rows of a register, from a token on.
export function write(layout, P, name, width, entry, token = layout.first) {
  const { start, height } = layout.rows.get(name);
  for (let r = 0; r < height; r++) {
    for (let k = 0; k < width; k++) P.data[(start + r) * P.tokens + token + k] = entry(r, k);
  }
}

export function cell(layout, P, name, row, column) {
  return P.data[(layout.rows.get(name).start + row) * P.tokens + layout.first + column];
}
