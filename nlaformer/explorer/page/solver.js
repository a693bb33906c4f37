// A trained model: the prompt [0 | a_i ; b_i] read in, pre block, T - 1 loops, post block, two linear probes on the last
// token. After nlaformer/learn/model.py and learn/scale.py. Weights are float32, the arithmetic is float64.
import { logNorm, norm, normExponent, scaled, times2 } from "./scaling.js";
import { applyBlock, readModel, readWeight, times, tokenMatrix } from "./transformer.js";

export function readSolver(described, array) {
  const weight = (name) => readWeight(described[name], array);
  return {
    ...described,
    read_in: weight("read_in"),
    probe_x: weight("probe_x"),
    probe_rd: weight("probe_rd"),
    positions: array(described.positions),
    model: readModel(described.model, array),
  };
}

// --- the scale that it knows ---

const outside = (range, value) => Number.isFinite(value) && !(range.low <= value && value <= range.high);
const steps = (range, value, where) => (where && Number.isFinite(value) ? roundEven(value - range.middle) : 0);

function roundEven(x) {
  const below = Math.floor(x);
  if (x - below !== 0.5) return Math.round(x);
  return below % 2 === 0 ? below : below + 1;
}

// The spread of log a_ii, log2 of its geometric mean over |A|, and |A - diag A| / |A|.
function shape(given, n) {
  const A = scaled(given, -normExponent(given));
  const size = norm(A);
  const logs = Array.from({ length: n }, (_, k) => (A[k * n + k] > 0 ? Math.log(A[k * n + k]) : NaN));
  const mean = logs.reduce((x, y) => x + y, 0) / n;
  const spread = Math.sqrt(logs.reduce((x, y) => x + (y - mean) ** 2, 0) / n);
  const beside = norm(A.map((a, k) => (k % (n + 1) === 0 ? 0 : a)));
  return [spread, mean / Math.LN2 - Math.log2(size), beside / size];
}

// The exponents e and f of a system: A' = 2^-e A, b' = 2^-(e+f) b; and whether it is unlike those of the training.
export function familiarity(solver, A, b) {
  const known = solver.familiar;
  if (!known) return { e: 0, f: 0, unlike: false };
  const measures = shape(A, solver.n);
  const size = logNorm(A);
  const length = logNorm(b) - size;
  const far = outside(known.size, size) || outside(known.diagonal, size + measures[1]);
  return {
    e: steps(known.size, size, far),
    f: steps(known.length, length, outside(known.length, length)),
    unlike: !measures.every((value, k) => known.shape[k].least <= value && value <= known.shape[k].most),
  };
}

// --- its run ---

// The prompt read in: d rows over n + 1 tokens.
function tokens(solver, A, b) {
  const { n, d } = solver;
  const P = tokenMatrix(n + 1, n + 1);
  for (let i = 0; i < n; i++) {
    for (let k = 0; k < n; k++) P.data[k * (n + 1) + i + 1] = A[i * n + k];
    P.data[n * (n + 1) + i + 1] = b[i];
  }
  // The model takes float32.
  P.data = Float64Array.from(P.data, Math.fround);
  const X = times(solver.read_in, P);
  for (let r = 0; r < d; r++) for (let t = 0; t <= n; t++) X.data[r * (n + 1) + t] += solver.positions[t * d + r];
  return X;
}

// What a probe reads from the last token.
function probed(probe, P) {
  const last = tokenMatrix(P.rows, 1);
  for (let r = 0; r < P.rows; r++) last.data[r] = P.data[r * P.tokens + P.tokens - 1];
  return Array.from(times(probe, last).data);
}

// Each iterate: { t, block, x, rd, before }, before being the state that entered the block.
export function* run(solver, A, b) {
  const { e, f } = familiarity(solver, A, b);
  const model = solver.model;
  let P = tokens(solver, scaled(A, -e), scaled(b, -(e + f)));
  const iterate = (t, block, before) => {
    const x = probed(solver.probe_x, P).map((v) => times2(v, f));
    // r and d have the unit of b.
    const rd = probed(solver.probe_rd, P).map((v) => times2(v, e + f));
    return { t, block, x, rd, before };
  };
  let before = P;
  P = applyBlock(model.pre, P);
  yield iterate(0, "pre", before);
  for (let t = 1; t <= solver.T; t++) {
    const block = t === solver.T && model.post.length ? "post" : "loop";
    before = P;
    P = applyBlock(model[block], P);
    yield iterate(t, block, before);
  }
}
