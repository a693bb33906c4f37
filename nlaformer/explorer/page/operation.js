// One operation: operands into the prompt, one pass, the result out of it. After nlaformer/express/operation.py.
import { emptyPrompt, readLayout, write } from "./prompt.js";
import { exponent, normExponent, scaled, times2 } from "./scaling.js";
import { applyLayer, readModel } from "./transformer.js";

export function readOperation(described, array) {
  return { ...described, layout: readLayout(described.layout), model: readModel(described.model, array) };
}

const largest = (values) => values.reduce((most, x) => Math.max(most, Math.abs(x)), 0);

// The exponent of the largest entry, or of the largest norm of a column of the block that is written.
function measured(operand, value, n) {
  if (operand.measure === "none") return 0;
  if (operand.measure === "largest") return exponent(largest(value));
  const columns = { row: value.map((x) => [x]), column: [value], matrix: [] }[operand.kind];
  for (let k = 0; operand.kind === "matrix" && k < n; k++) columns.push(value.filter((_, i) => i % n === k));
  return normExponent(...columns);
}

function prompt(operation, operands) {
  const { layout, n } = operation;
  const P = emptyPrompt(layout);
  let total = 0;
  operation.operands.forEach((operand, k) => {
    const e = measured(operand, operands[k], n);
    const data = scaled(operands[k], -e);
    if (operation.minimum !== null && k === 1 && data.some((x) => Math.abs(x) < operation.minimum)) {
      throw new RangeError(`A divisor is below ${operation.minimum.toPrecision(2)} of the largest one; the weights are made for larger ones.`);
    }
    const entry = { row: (r, j) => data[j], column: (r) => data[r], matrix: (r, j) => data[r * n + j] }[operand.kind];
    write(layout, P, operand.register, operand.kind === "column" ? 1 : n, entry, operand.token);
    total += operation.powers[k] * e;
  });
  if (layout.rows.has("exponent")) write(layout, P, "exponent", 1, () => total, 0);
  return P;
}

// The results in P, each { shape, data }.
export function read(operation, P) {
  const row = operation.layout.rows.get("exponent");
  const e = row ? P.data[row.start * P.tokens] : 0;
  return operation.results.map(({ shape, places }) => ({ shape, data: places.map((at) => times2(P.data[at], e)) }));
}

export function* trace(operation, operands) {
  let P = prompt(operation, operands);
  yield { block: "input", iteration: 0, layer: -1, P };
  for (let layer = 0; layer < operation.model.pre.length; layer++) {
    P = applyLayer(operation.model.pre[layer], P);
    yield { block: "pre", iteration: 0, layer, P };
  }
}

// What the operation is of, in plain arithmetic: the value that the transformer is compared with.
export function reference(name, n, [a, b]) {
  const square = (entry) => Array.from({ length: n * n }, (_, k) => entry(Math.floor(k / n), k % n));
  const sum = (term) => Array.from({ length: n }, (_, k) => term(k)).reduce((x, y) => x + y, 0);
  const known = {
    add: () => [a.map((x, k) => x + b[k])],
    subtract: () => [a.map((x, k) => x - b[k])],
    multiply: () => [a.map((x, k) => x * b[k])],
    divide: () => [a.map((x, k) => x / b[k])],
    column_shift: () => [b, a],
    row_shift: () => [b, a],
    vector_transpose: () => [a],
    inner_product: () => [[sum((k) => a[k] * b[k])]],
    outer_product: () => [square((i, j) => a[i] * b[j])],
    matrix_transpose: () => [square((i, j) => a[j * n + i])],
    transposed_matmul: () => [square((i, j) => sum((k) => a[k * n + i] * b[k * n + j]))],
    matmul: () => [square((i, j) => sum((k) => a[i * n + k] * b[k * n + j]))],
    matvec: () => [Array.from({ length: n }, (_, i) => sum((k) => a[i * n + k] * b[k]))],
  };
  return known[name]();
}
