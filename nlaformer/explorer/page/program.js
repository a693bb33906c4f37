// A program as plain data, carried out in plain float64 arithmetic: what NumPy computes for the same lines.
// After nlaformer/program/data.py, in core primitives. A value is { shape, data }, data row after row. In the data of a
// program, { at: [a, b] } stands for the number a + b n, so that it is one for systems of any size.

// What the answer is called among the states.
export const ANSWER = "finish()";

const count = (shape) => shape.reduce((x, y) => x * y, 1);
const total = (values) => values.reduce((x, y) => x + y, 0);
const divided = (u, v) => (v === 0 && u * u === 0 ? 0 : u / v);

// For each entry of an array the place of the entry of another that stands there, as NumPy broadcasts.
function places(from, to) {
  const steps = [];
  let step = 1;
  for (let k = from.length - 1; k >= 0; k--) {
    steps.unshift(from[k] === 1 ? 0 : step);
    step *= from[k];
  }
  return strided(0, [...new Array(to.length - from.length).fill(0), ...steps], to);
}

function strided(first, steps, shape) {
  let found = [first];
  shape.forEach((side, axis) => {
    found = found.flatMap((place) => Array.from({ length: side }, (_, k) => place + k * steps[axis]));
  });
  return found;
}

const pairwise = (f) => ({ args: [u, v], shape }) => {
  const [p, q] = [places(u.shape, shape), places(v.shape, shape)];
  return p.map((place, k) => f(u.data[place], v.data[q[k]]));
};

function product({ args: [u, v], shape }) {
  const [inner, columns] = [u.shape.at(-1), v.shape.length > 1 ? v.shape[1] : 1];
  return Array.from({ length: count(shape) }, (_, k) => {
    const [i, j] = [Math.floor(k / columns), k % columns];
    let sum = 0;
    for (let l = 0; l < inner; l++) sum += u.data[i * inner + l] * v.data[l * columns + j];
    return sum;
  });
}

function summed({ args: [v], extra: [axes] }) {
  const kept = v.shape.map((side, k) => (axes.includes(k) ? 1 : side));
  const found = new Array(count(kept)).fill(0);
  places(kept, v.shape).forEach((place, k) => (found[place] += v.data[k]));
  return found;
}

function moved({ args, extra, shape }) {
  const entries = args.flatMap(({ data }) => Array.from(data));
  const from = Array.isArray(extra) ? extra : strided(extra.first, extra.steps, shape);
  return from.map((place) => (place < 0 ? 0 : entries[place]));
}

const each = (f) => ({ args }) => Array.from(args[0].data, f);

const OPERATIONS = {
  constant: ({ extra, shape }) => {
    if (typeof extra === "number") return new Array(count(shape)).fill(extra);
    if (Array.isArray(extra)) return extra.flat(2);
    return Array.from({ length: count(shape) }, (_, k) => (k % (shape[0] + 1) === 0 ? extra.diagonal : 0));
  },
  add: pairwise((x, y) => x + y),
  multiply: pairwise((x, y) => x * y),
  divide: pairwise(divided),
  matmul: product,
  sum: summed,
  move: moved,
  sqrt: each(Math.sqrt),
  exp: each(Math.exp),
  log: each(Math.log),
  positive: each((x) => x),
  relu: each((x) => Math.max(x, 0)),
  sign: each(Math.sign),
};

const EXACT = new Set(["constant", "move", "positive", "relu"]);
const SUMS = new Set(["add", "matmul", "sum"]);
const absolute = ({ shape, data }) => ({ shape, data: data.map(Math.abs) });

// Results rounded to so many bits, up or down at random, on the grid of the terms that the operation sums.
// After nlaformer/program/judge.py. What only moves entries is exact, and so are whole numbers.
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

// The data of a program for systems of size n.
function sized(data, n) {
  if (Array.isArray(data)) return data.map((part) => sized(part, n));
  if (data === null || typeof data !== "object") return data;
  if (data.at) return data.at[0] + data.at[1] * n;
  return Object.fromEntries(Object.entries(data).map(([name, part]) => [name, sized(part, n)]));
}

// The numbers of the nodes that outputs are made of, in order.
function below(nodes, outputs) {
  const needed = new Set(Object.values(outputs));
  for (let k = nodes.length - 1; k >= 0; k--) if (needed.has(k)) nodes[k][1].forEach((argument) => needed.add(argument));
  return [...needed].sort((j, k) => j - k);
}

// Some outputs of a program by name, from inputs and states by name; rounded() may change what an operation makes.
function evaluate(nodes, outputs, values, rounded = (op, use, data) => data) {
  const results = [];
  for (const k of below(nodes, outputs)) {
    const [op, at, extra, shape] = nodes[k];
    if (op === "input" || op === "state") {
      results[k] = values[extra];
      continue;
    }
    const use = { args: at.map((argument) => results[argument]), extra, shape };
    results[k] = { shape, data: rounded(op, use, OPERATIONS[op](use)) };
  }
  return Object.fromEntries(Object.entries(outputs).map(([name, k]) => [name, results[k]]));
}

// The states after start and after each step, and the answer.
export function* run(program, inputs, iterations, n, rounded) {
  const { nodes, inputs: names, start, step, answer } = sized(program, n);
  const given = Object.fromEntries(Object.entries(names).map(([name, k]) => [name, { shape: nodes[k][3], data: Array.from(inputs[name]) }]));
  const finish = (values) => ({ ...values, ...evaluate(nodes, { [ANSWER]: answer }, { ...given, ...values }, rounded) });
  let values = evaluate(nodes, start, given, rounded);
  yield finish(values);
  for (let t = 0; t < iterations; t++) {
    values = evaluate(nodes, step, { ...given, ...values }, rounded);
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
