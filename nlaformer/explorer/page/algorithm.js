// A compiled algorithm: its prompt, its passes, its states. After nlaformer/compiler/algorithm.py and states.py.
//
// Values are { kind, data }: a scalar has one number, a vector n, a matrix n x n row after row.
import { ANSWER } from "./program.js";
import { cell, emptyPrompt, readLayout, write } from "./prompt.js";
import { norm, normExponent, scaled, times2 } from "./scaling.js";
import { applyBlock, applyLayer, readModel } from "./transformer.js";

export function readAlgorithm(described, array) {
  return { ...described, layout: readLayout(described.layout), model: readModel(described.model, array) };
}

const fraction = (text) => {
  const [over, under = 1] = text.split("/").map(Number);
  return { over, under };
};

const unitOf = (algorithm, name) => (algorithm.units[name] ?? ["0", "0"]).map(fraction);

function exponentOf(algorithm, name, e) {
  const [A, b] = unitOf(algorithm, name);
  return Math.floor((e.A * A.over) / A.under) + Math.floor((e.b * b.over) / b.under);
}

const gcd = (a, b) => (b ? gcd(b, a % b) : a);

// The powers of two that A and b are divided by. Throws where an input lies beyond the bound of the weights.
function exponents(algorithm, inputs) {
  const denominators = Object.keys(algorithm.units).flatMap((name) => unitOf(algorithm, name).map((f) => f.under));
  const whole = denominators.reduce((a, b) => (a * b) / gcd(a, b), 1);
  const found = { A: 0, b: 0 };
  for (const name of ["A", "b"]) {
    if (!(name in inputs)) continue;
    const magnitude = norm(inputs[name]);
    if (!algorithm.scaled.includes(name)) {
      if (magnitude > algorithm.bound) {
        throw new RangeError(`The norm of ${name} is ${magnitude.toPrecision(4)}; `
          + `this program has constants that keep ${name} from being scaled, and takes at most ${algorithm.bound}.`);
      }
      continue;
    }
    let e = normExponent(inputs[name]);
    const unit = unitOf(algorithm, "x0");
    if (name === "b" && "x0" in inputs && unit[1].over === unit[1].under) {
      const there = norm(inputs.x0);
      const far = normExponent(inputs.x0) - unit[0].over * found.A;
      if (there > 0) e = magnitude > 0 ? Math.max(e, far) : far;
    }
    found[name] = Math.ceil(e / whole) * whole;
  }
  return found;
}

// P, and the exponents that its values are scaled by.
export function prompt(algorithm, inputs) {
  const { layout, n } = algorithm;
  const P = emptyPrompt(layout);
  const e = exponents(algorithm, inputs);
  write(layout, P, "one", n, () => 1);
  for (const [name, kind] of Object.entries(algorithm.inputs)) {
    const value = inputs[name];
    const put = (register, by) => {
      const data = scaled(value, -by);
      // Token j holds row j of a matrix.
      const entry = { scalar: () => data[0], vector: (r, k) => data[k], matrix: (r, k) => data[k * n + r] }[kind];
      write(layout, P, register, n, entry);
    };
    const own = exponentOf(algorithm, name, e);
    if (name in algorithm.scales) {
      const [normal, log] = algorithm.scales[name];
      const size = normExponent(value);
      put(normal, size);
      write(layout, P, log, n, () => Math.LN2 * (size - own));
    }
    if (layout.rows.has(name)) put(name, own);
  }
  return { P, exponents: e };
}

const power = (log) => Math.min(Math.exp(log), Number.MAX_VALUE);

// A state in P, in units of the prompt.
function held(algorithm, P, place) {
  const { layout, n } = algorithm;
  const [row] = place.rows;
  const data = {
    scalar: () => [cell(layout, P, row, 0, 0)],
    vector: () => Array.from({ length: n }, (_, k) => cell(layout, P, row, 0, k)),
    matrix: () => Array.from({ length: n * n }, (_, k) => cell(layout, P, row, k % n, Math.floor(k / n))),
  }[place.kind]();
  if (place.logarithm) return data.map(power);
  if (place.scale === null) return data;
  const factor = power(cell(layout, P, place.scale, 0, 0));
  return data.map((x) => x * factor);
}

// Every state by name in the units of what was given. The answer is read after the post block.
export function states(algorithm, P, e) {
  const read = (name, place, from) => {
    const by = exponentOf(algorithm, name, e);
    return { kind: place.kind, data: held(algorithm, from, place).map((x) => times2(x, by)) };
  };
  const found = Object.fromEntries(Object.entries(algorithm.state).map(([name, place]) => [name, read(name, place, P)]));
  const last = applyBlock(algorithm.model.post, P);
  return { ...found, [ANSWER]: read(ANSWER, algorithm.answer, last) };
}

// The layers of a run in order: { block, iteration, layer }; the loop block again and again.
function* places(algorithm, iterations) {
  for (let layer = 0; layer < algorithm.model.pre.length; layer++) yield { block: "pre", iteration: 0, layer };
  for (let iteration = 1; iteration <= iterations; iteration++) {
    for (let layer = 0; layer < algorithm.model.loop.length; layer++) yield { block: "loop", iteration, layer };
  }
}

// P after every layer: [{ block, iteration, layer, P }], the prompt first with layer -1.
export function* trace(algorithm, inputs, iterations) {
  let { P } = prompt(algorithm, inputs);
  yield { block: "input", iteration: 0, layer: -1, P };
  for (const place of places(algorithm, iterations)) {
    P = applyLayer(algorithm.model[place.block][place.layer], P);
    yield { ...place, P };
  }
}

// The states after start and after each iteration.
export function* run(algorithm, inputs, iterations) {
  const { P: first, exponents: e } = prompt(algorithm, inputs);
  let P = applyBlock(algorithm.model.pre, first);
  yield states(algorithm, P, e);
  for (let t = 0; t < iterations; t++) {
    P = applyBlock(algorithm.model.loop, P);
    yield states(algorithm, P, e);
  }
}
