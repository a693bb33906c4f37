// A trained model: the prompt [0 | a_i ; b_i] read in, pre block, T - 1 loops, post block, two linear probes on the last
// token. After nlaformer/learn/model.py and learn/scale.py. Weights are float32, the arithmetic is float64.
import { logNorm, norm, normExponent, scaled } from "./scaling.js";
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

// What to subtract from log2 of a measure; see Range.shift.
function shift(range, value) {
  if (!Number.isFinite(value) || (range.least <= value && value <= range.most)) return 0;
  const steps = roundEven(value - range.middle);
  return range.low <= value - steps && value - steps <= range.high ? steps : value - range.middle;
}

function roundEven(x) {
  const below = Math.floor(x);
  if (x - below !== 0.5) return Math.round(x);
  return below % 2 === 0 ? below : below + 1;
}

// Values times 2^e for any real e.
function timesPower(values, e) {
  const whole = roundEven(e);
  return scaled(values.map((x) => x * 2 ** (e - whole)), whole);
}

const dot = (v, w) => v.reduce((sum, x, k) => sum + x * w[k], 0);
const withoutDiagonal = (A, n) => A.map((a, k) => (k % (n + 1) === 0 ? 0 : a));

// log2 of the size of A: of |A - diag A|, or of the geometric mean of |a_ii| where that is larger than in training.
function logSize(A, n, floor) {
  let diagonal = 0;
  for (let k = 0; k < n; k++) diagonal += Math.log2(Math.abs(A[k * n + k])) / n;
  return Math.max(logNorm(withoutDiagonal(A, n)), diagonal + floor);
}

// log2 of the length of x after three steps of conjugate gradients with Jacobi's preconditioner.
function logLength(A, given, n) {
  const e = normExponent(given);
  const b = scaled(given, -e);
  let [r, direction, rho] = [b, null, 0];
  const x = new Float64Array(n);
  for (let step = 0; step < 3; step++) {
    const z = r.map((v, k) => v / A[k * n + k]);
    const next = dot(r, z);
    direction = direction ? z.map((v, k) => v + (next / rho) * direction[k]) : z;
    rho = next;
    const product = r.map((_, k) => dot(A.subarray(k * n, (k + 1) * n), direction));
    const along = rho / dot(direction, product);
    for (let k = 0; k < n; k++) x[k] += along * direction[k];
    r = r.map((v, k) => v - along * product[k]);
  }
  return e + (x.every(Number.isFinite) ? logNorm(x) : logNorm(b) - logNorm(A));
}

// The spread of log a_ii, log2 of its geometric mean over |A|, and |A - diag A| / |A|.
function shape(given, n) {
  const A = scaled(given, -normExponent(given));
  const size = norm(A);
  const logs = Array.from({ length: n }, (_, k) => (A[k * n + k] > 0 ? Math.log(A[k * n + k]) : NaN));
  const mean = logs.reduce((x, y) => x + y, 0) / n;
  const spread = Math.sqrt(logs.reduce((x, y) => x + (y - mean) ** 2, 0) / n);
  return [spread, mean / Math.LN2 - Math.log2(size), norm(withoutDiagonal(A, n)) / size];
}

// The exponents e and f of a system: A' = 2^-e A, b' = 2^-(e+f) b; and whether it is unlike those of the training.
export function familiarity(solver, givenA, givenB) {
  const known = solver.familiar;
  if (!known) return { e: 0, f: 0, unlike: false };
  const [A, b] = [Float64Array.from(givenA), Float64Array.from(givenB)];
  const e = shift(known.size, logSize(A, solver.n, known.floor));
  const f = shift(known.length, logLength(timesPower(A, -e), b, solver.n) - e);
  const measures = shape(A, solver.n);
  return { e, f, unlike: !measures.every((value, k) => known.shape[k].least <= value && value <= known.shape[k].most) };
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
  let P = tokens(solver, timesPower(Float64Array.from(A), -e), timesPower(Float64Array.from(b), -(e + f)));
  const iterate = (t, block, before) => {
    const x = timesPower(probed(solver.probe_x, P), f);
    // r and d have the unit of b.
    const rd = timesPower(probed(solver.probe_rd, P), e + f);
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
