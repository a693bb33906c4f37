// What Watch computes, apart from how it looks: the inputs from their texts, the run, the values at a point of it.
import { catalogue, openAlgorithm, openOperation } from "./engine.js";
import { prompt, states, trace } from "./algorithm.js";
import { read, reference, trace as traceOperation } from "./operation.js";
import { ANSWER, run as runProgram, spread } from "./program.js";
import { number } from "./format.js";
import { UNSOLVED, parseMatrix, parseVector, remark, solve, spectralRadius } from "./systems.js";

const ITERATIONS = { cg: (n) => n + 2, pcg: (n) => n + 2, minres: (n) => n + 2, conjugate_residual: (n) => n + 2, "guided-cg": () => 10 };
// What methods for A x = b ask of A: stationary ones converge where their iteration matrix has a spectral radius below 1.
const STATIONARY = ["jacobi", "richardson"];
const SYMMETRIC = ["minres"]; // the others ask for a positive definite A

export function chosen(what) {
  const [kind, name] = what.split(" ");
  const lists = { algorithm: catalogue.algorithms, operation: catalogue.operations };
  const list = Object.hasOwn(lists, kind) ? lists[kind] : {};
  if (!Object.hasOwn(list, name)) return chosen("algorithm cg");
  return { kind, name, entry: list[name], sizes: Object.keys(list[name].sizes).map(Number) };
}

// The inputs a user gives: [{ name, kind }]. x0 is zero.
export function wanted({ kind, entry, sizes }) {
  const any = entry.sizes[sizes[0]];
  if (kind === "operation") return any.operands.map(({ name, kind: shape }) => ({ name, kind: shape === "matrix" ? "matrix" : "vector" }));
  return Object.entries(any.inputs).filter(([name]) => name !== "x0").map(([name, shape]) => ({ name, kind: shape }));
}

// { n, inputs } by name, or { problem, at }: a sentence and the input that it is about.
export function readInputs(choice, texts) {
  const inputs = {};
  let n = null;
  for (const { name, kind } of wanted(choice)) {
    const found = kind === "matrix" ? parseMatrix(texts[name] ?? "") : parseVector(texts[name] ?? "");
    if (found.problem) return { problem: `${name}: ${found.problem}`, at: name };
    n ??= found.n;
    if (found.n !== n) return { problem: `${name} has ${found.n} entries; n is ${n}.`, at: name };
    inputs[name] = found.data;
  }
  if (!choice.sizes.includes(n)) {
    // A trained network is for one n; anything else is written down for any.
    const elsewhere = choice.entry.program || choice.kind === "operation" ? ` In Python, nf.${choice.kind}("${choice.name}", n=${n}) has them.` : "";
    return { problem: `The page holds weights for n = ${choice.sizes.join(", ")}; this is n = ${n}.${elsewhere}`, at: wanted(choice)[0].name };
  }
  return { n, inputs };
}

// A run: every P, and what is known about the values. Throws a RangeError, with a sentence, for inputs out of range.
export async function compute(choice, n, inputs) {
  return choice.kind === "operation" ? computeOperation(choice, n, inputs) : computeAlgorithm(choice, n, inputs);
}

async function computeAlgorithm({ name, entry }, n, given) {
  const algorithm = await openAlgorithm(name, n);
  const inputs = { x0: new Array(n).fill(0), ...given };
  const iterations = ITERATIONS[name]?.(n) ?? 12;
  const steps = [...trace(algorithm, inputs, iterations)];
  const { exponents } = prompt(algorithm, inputs);
  const ends = steps.filter(({ block, layer }) => block !== "input" && layer === algorithm.model[block].length - 1);
  const values = ends.map(({ P }) => states(algorithm, P, exponents));
  const program = algorithm.program ? [...runProgram(algorithm.program, inputs, iterations, n)] : null;
  const exact = "b" in inputs ? solve(inputs.A, inputs.b) : null;
  const undetermined = program && exact ? spread(algorithm.program, inputs, iterations, n, program) : null;
  return {
    kind: "algorithm", layout: algorithm.layout, model: algorithm.model, state: algorithm.state, steps, values, program, exact, undetermined, answer: ANSWER,
    schedule: algorithm.schedule, source: entry.source, remark: told(name, inputs, exact, algorithm.program, program),
  };
}

// What to know about a run; "" if nothing.
function told(name, inputs, exact, program, values) {
  const isFinite = values?.every((states) => Object.values(states).every(({ data }) => data.every(Number.isFinite))) ?? true;
  const range = isFinite ? "" : "Plain arithmetic leaves the range of float64 on these numbers, as NumPy does.";
  if (!("b" in inputs)) return range;
  if (!exact) return UNSOLVED;
  return (STATIONARY.includes(name) ? convergence(inputs, program) : remark(inputs.A, inputs.b.length, !SYMMETRIC.includes(name))) || range;
}

// With b = 0, one iteration of a stationary method takes a unit vector to a column of its iteration matrix.
function convergence(inputs, program) {
  const zeros = inputs.b.map(() => 0);
  const n = zeros.length;
  const column = (_, k) => [...runProgram(program, { ...inputs, b: zeros, x0: zeros.map((_, i) => (i === k ? 1 : 0)) }, 1, n)][1][ANSWER].data;
  const radius = spectralRadius(zeros.flatMap(column), n);
  return radius < 1 ? "" : `The iteration matrix has spectral radius ${number(radius, 3)} for this A: this method does not converge.`;
}

async function computeOperation({ name }, n, given) {
  const operation = await openOperation(name, n);
  const operands = operation.operands.map((operand) => given[operand.name]);
  const steps = [...traceOperation(operation, operands)];
  return {
    kind: "operation", layout: operation.layout, model: operation.model, steps, remark: "",
    results: read(operation, steps.at(-1).P), plain: reference(name, n, operands),
  };
}

// The iteration whose values stand in P at a step: those after the last whole pass; -1 inside the pre block.
export function completed(run, at) {
  const { block, iteration, layer } = run.steps[at];
  if (block === "input") return -1;
  const whole = layer === run.model[block].length - 1;
  return block === "pre" ? (whole ? 0 : -1) : whole ? iteration : iteration - 1;
}

// [{ name, found, plain, difference }] at a step.
export function valuesAt(run, at) {
  if (run.kind === "operation") {
    if (at < run.steps.length - 1) return [];
    const named = (k) => (run.results.length > 1 ? `result ${k + 1}` : "result");
    return run.results.map(({ data }, k) => ({ name: named(k), found: data, plain: run.plain[k], difference: furthest(data, run.plain[k]) }));
  }
  const t = completed(run, at);
  if (t < 0) return [];
  return Object.entries(run.values[t]).filter(([name]) => name !== run.answer || !("x" in run.values[t])).map(([name, { data }]) => {
    const plain = run.program?.[t][name]?.data ?? null;
    return { name: name === run.answer ? "answer" : name, found: data, plain, difference: plain ? furthest(data, plain) : null };
  });
}

function furthest(u, v) {
  return u.reduce((most, x, k) => Math.max(most, Math.abs(x - v[k])), 0);
}
