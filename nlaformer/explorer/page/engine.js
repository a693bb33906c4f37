// Everything the page holds, by name; weights are unpacked when they are first asked for.
import { readAlgorithm } from "./algorithm.js";
import { openStore } from "./codec.js";
import { readOperation } from "./operation.js";
import { readSolver } from "./solver.js";

export const catalogue = JSON.parse(document.getElementById("data").textContent);

const stores = new Map();
const opened = new Map();

function store(name) {
  if (!stores.has(name)) stores.set(name, openStore(document.getElementById(`store-${name}`).textContent));
  return stores.get(name);
}

function once(key, make) {
  if (!opened.has(key)) opened.set(key, make());
  return opened.get(key);
}

// The text of a drawing, as it was stored.
export async function openFigure(name) {
  return new TextDecoder().decode((await store("figures"))(catalogue.figures[name]));
}

export function openAlgorithm(name, n) {
  const entry = catalogue.algorithms[name];
  return once(`algorithm ${name} ${n}`, async () => readAlgorithm({ ...entry.sizes[n], program: entry.program }, await store(entry.store)));
}

export function openOperation(name, n) {
  const entry = catalogue.operations[name];
  return once(`operation ${name} ${n}`, async () => readOperation(entry.sizes[n], await store(entry.store)));
}

export function openSolver(name) {
  const entry = catalogue.solvers[name];
  return once(`solver ${name}`, async () => readSolver(entry, await store(entry.store)));
}
