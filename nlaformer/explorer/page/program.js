// A program as plain data, carried out in plain float64 arithmetic: what NumPy computes for the same lines.
// After nlaformer/compiler/expression.py and reference.py. A value is { kind, data }, data row after row.

// What the answer is called among the states.
export const ANSWER = "finish()";

const AXES = { scalar: 0, vector: 1, matrix: 2 };

function zipped(f, u, v, kind, n) {
  const pick = (value) => {
    const [from, to] = [AXES[value.kind], AXES[kind]];
    if (from === to) return (k) => value.data[k];
    if (from === 0) return () => value.data[0];
    return (k) => value.data[Math.floor(k / n)]; // a vector beside a matrix: one number for each row
  };
  const [a, b] = [pick(u), pick(v)];
  return Array.from({ length: n ** AXES[kind] }, (_, k) => f(a(k), b(k)));
}

const divided = (u, v) => (v === 0 && u * u === 0 ? 0 : u / v);
const total = (values) => values.reduce((x, y) => x + y, 0);
const entries = (n, entry) => Array.from({ length: n * n }, (_, k) => entry(Math.floor(k / n), k % n));

function product(M, v, n) {
  if (v.kind === "vector") {
    return Array.from({ length: n }, (_, i) => {
      let sum = 0;
      for (let k = 0; k < n; k++) sum += M.data[i * n + k] * v.data[k];
      return sum;
    });
  }
  return entries(n, (i, j) => {
    let sum = 0;
    for (let k = 0; k < n; k++) sum += M.data[i * n + k] * v.data[k * n + j];
    return sum;
  });
}

function rolled({ kind, data }, shift, n) {
  const from = (k) => (((k - shift) % n) + n) % n;
  if (kind === "vector") return data.map((_, k) => data[from(k)]);
  return entries(n, (i, j) => data[from(i) * n + j]);
}

const each = (f) => ({ args }) => args[0].data.map(f);

const OPERATIONS = {
  constant: ({ extra }) => (typeof extra === "number" ? [extra] : extra.flat(2)),
  zeros: ({ size }) => new Array(size).fill(0),
  ones: ({ size }) => new Array(size).fill(1),
  identity: ({ n }) => entries(n, (i, j) => (i === j ? 1 : 0)),
  add: ({ args: [u, v], kind, n }) => zipped((x, y) => x + y, u, v, kind, n),
  multiply: ({ args: [u, v], kind, n }) => zipped((x, y) => x * y, u, v, kind, n),
  divide: ({ args: [u, v], kind, n }) => zipped(divided, u, v, kind, n),
  matmul: ({ args: [u, v], n }) => product(u, v, n),
  transpose: ({ args: [M], n }) => entries(n, (i, j) => M.data[j * n + i]),
  dot: ({ args: [u, v] }) => [total(u.data.map((x, k) => x * v.data[k]))],
  outer: ({ args: [u, v], n }) => entries(n, (i, j) => u.data[i] * v.data[j]),
  diag: ({ args: [M], n }) => Array.from({ length: n }, (_, k) => M.data[k * n + k]),
  diagonal: ({ args: [v], n }) => entries(n, (i, j) => (i === j ? v.data[i] : 0)),
  triangle: ({ args: [M], extra: [side, k], n }) =>
    entries(n, (i, j) => ((side === "lower" ? j - i <= k : j - i >= k) ? M.data[i * n + j] : 0)),
  roll: ({ args: [v], extra, n }) => rolled(v, extra, n),
  sum: ({ args: [v] }) => [total(v.data)],
  mean: ({ args: [v] }) => [total(v.data) / v.data.length],
  sqrt: each(Math.sqrt),
  exp: each(Math.exp),
  log: each(Math.log),
  positive: each((x) => x),
  relu: each((x) => Math.max(x, 0)),
  sign: each(Math.sign),
};

const EXACT = new Set(["constant", "zeros", "ones", "identity", "transpose", "diag", "diagonal", "triangle", "roll", "positive", "relu", "sign"]);
const SUMS = new Set(["add", "matmul", "dot", "sum", "mean"]);
const absolute = ({ kind, data }) => ({ kind, data: data.map(Math.abs) });

// Results rounded to so many bits, up or down at random, on the grid of the terms that the operation sums.
// After nlaformer/compiler/judge.py. What only moves entries is exact, and so are whole numbers.
function rounding(bits, random) {
  return (op, use, data) => {
    if (EXACT.has(op)) return data;
    const terms = SUMS.has(op) ? OPERATIONS[op]({ ...use, args: use.args.map(absolute) }) : data.map((x) => Math.abs(x) + (op === "log" ? 1 : 0));
    return data.map((x, k) => {
      const grid = 2 ** (Math.floor(Math.log2(terms[k])) + 1 - bits);
      const found = Math.floor(x / grid + random()) * grid;
      return Number.isFinite(found) ? found : x;
    });
  };
}

// The outputs of an expression by name, from inputs and states by name; rounded() may change what an operation makes.
function evaluate({ nodes, outputs }, values, n, rounded = (op, use, data) => data) {
  const results = [];
  for (const [op, at, extra, kind] of nodes) {
    if (op === "input" || op === "state") {
      results.push(values[extra]);
      continue;
    }
    const use = { args: at.map((k) => results[k]), extra, kind, n, size: n ** AXES[kind] };
    results.push({ kind, data: rounded(op, use, OPERATIONS[op](use)) });
  }
  return Object.fromEntries(Object.entries(outputs).map(([name, k]) => [name, results[k]]));
}

// The states after start and after each step, and the answer; a state that is a constant is spread to its kind.
export function* run(program, inputs, iterations, n, rounded) {
  const given = Object.fromEntries(
    Object.entries(program.inputs).map(([name, kind]) => [name, { kind, data: Array.from(inputs[name]) }]),
  );
  const finish = (values) => ({ ...values, ...evaluate(program.finish, { ...given, ...values }, n, rounded) });
  let values = evaluate(program.start, given, n, rounded);
  yield finish(values);
  for (let t = 0; t < iterations; t++) {
    values = evaluate(program.step, { ...given, ...values }, n, rounded);
    yield finish(values);
  }
}

const RUNS = 24;
const BITS = 33;

// How far the answers of 24 runs with 33-bit operations are from those of a run, over these: 10 to the minus digits.
export function spread(program, inputs, iterations, n, own) {
  let seed = 1; // a congruential generator, so that a picture is the same each time
  const random = () => (seed = (1664525 * seed + 1013904223) % 2 ** 32) / 2 ** 32;
  const norm = (values) => Math.hypot(...values);
  const largest = own.map(() => 0);
  for (let k = 0; k < RUNS; k++) {
    let t = 0;
    for (const values of run(program, inputs, iterations, n, rounding(BITS, random))) {
      const [found, wanted] = [values[ANSWER].data, own[t][ANSWER].data];
      const distance = norm(found.map((x, j) => x - wanted[j]));
      largest[t] = Math.max(largest[t], Number.isFinite(distance) ? distance : Infinity);
      t++;
    }
  }
  return largest.map((distance, t) => (distance ? Math.min(distance / norm(own[t][ANSWER].data), 1) : 0));
}
