// Compare: the errors of transformers and of classical methods, iteration by iteration.
import { LEFT, breathe, button, el, field, paused, put, select, slider } from "./dom.js";
import { conditionSlider, scrollable, seedField, sigmaSlider } from "./controls.js";
import { catalogue, openAlgorithm, openSolver } from "./engine.js";
import { drawSystem, FAMILIES, squaredRelativeError } from "./systems.js";
import { errorChart, fitting, legend, legendSample } from "./chart.js";
import { number, tiny } from "./format.js";
import { panel } from "./panel.js";
import { run as runAlgorithm } from "./algorithm.js";
import { ANSWER, run as runProgram } from "./program.js";
import { run as runSolver } from "./solver.js";

const T = 24;
// The look of each line, by its place.
const STYLES = ["cg", "pcg", "cg-accelerated", "guided-cg", "cg-imitation", "compiled cg", "conjugate_residual", "steepest_descent", "chebyshev"];
const FEW = 8; // systems that a slow transformer is run on, of many

// Classical methods run as programs in plain arithmetic, for any n; transformers have the sizes the page holds.
const classical = (name) => ({
  title: catalogue.algorithms[name].title,
  group: "Classical, plain arithmetic",
  iterates: async (A, b, n) => [...runProgram(catalogue.algorithms[name].program, { A, b, x0: new Array(n).fill(0) }, T, n)].map((values) => values[ANSWER].data),
});

const compiled = (name, title, iterations) => ({
  title,
  group: "Transformers",
  sizes: Object.keys(catalogue.algorithms[name].sizes).map(Number),
  slow: name === "guided-cg",
  iterates: async (A, b, n) => [...runAlgorithm(await openAlgorithm(name, n), { A, b, x0: new Array(n).fill(0) }, iterations)].map((values) => values[ANSWER].data),
});

const learned = (name) => ({
  title: `${name} (learned)`,
  group: "Transformers",
  sizes: [catalogue.solvers[name].n],
  slow: true,
  iterates: async (A, b) => [...runSolver(await openSolver(name), A, b)].map(({ x }) => x),
});

function methods() {
  return {
    cg: classical("cg"),
    pcg: classical("pcg"),
    conjugate_residual: classical("conjugate_residual"),
    steepest_descent: classical("steepest_descent"),
    chebyshev: classical("chebyshev"),
    "compiled cg": compiled("cg", "CG as a transformer (compiled)", T),
    "guided-cg": compiled("guided-cg", "guided-cg (compiled, a trained network inside)", 12),
    ...Object.fromEntries(Object.keys(catalogue.solvers).map((name) => [name, learned(name)])),
  };
}

// Squared relative errors by iteration: of one system the values, of many their medians and the band of the middle 80%;
// infinite ones count as the largest.
function summary(errors) {
  const sorted = errors[0].map((_, t) => Float64Array.from(errors, (each) => each[t]).sort());
  const quantile = (q) => sorted.map((column) => column[Math.round(q * (column.length - 1))]);
  return errors.length === 1 ? { values: errors[0] } : { values: quantile(0.5), low: quantile(0.1), high: quantile(0.9) };
}

export function compareView(state, changed) {
  const own = () => state.compare;
  const all = methods();
  const known = new Map(); // errors by method, for the systems that are drawn
  let round = 0;

  const setup = el("section", { class: "setup", "aria-label": "Systems and methods" });
  const chart = panel("Squared relative error of each iterate", { id: "panel-errors" });
  const table = panel("Iterations to an error", { id: "panel-iterations", note: "The first iteration at which the squared relative error, or its median over the systems, is at most the given number." });
  const message = el("p", { class: "message", role: "status" });
  const root = el("div", { class: "view compare" }, setup, el("div", { class: "work" }, message, el("div", { class: "column" }, chart.section, table.section)));
  const again = paused(() => compute(), 120);

  function set(patch, systems = true) {
    changed("compare", patch);
    if (systems) known.clear();
    again();
  }

  function drawSetup() {
    const { family, n, sigma, condition, count, seed } = own();
    const kinds = select("compare-family", Object.entries(FAMILIES).map(([name, { title }]) => [name, title]), family, (value) => turn(value));
    const families = field("Family", kinds, FAMILIES[family].about);
    // A slider of a family chooses the family.
    const turn = (name, patch) => {
      kinds.value = name;
      families.querySelector("small").textContent = FAMILIES[name].about;
      set({ family: name, ...patch });
    };
    const strengths = [
      sigmaSlider("compare-sigma", sigma, (x) => turn("paper", { sigma: x }), "sigma, of the paper’s family"),
      conditionSlider("compare-condition", condition, (x) => turn("condition", { condition: x }), "Condition number, where it is given"),
    ];
    const draws = seedField("compare-seed", seed, (value) => set({ seed: value }));
    const others = button("Draw others", () => {
      draws.querySelector("input").value = own().seed + 1;
      set({ seed: own().seed + 1 });
    });
    put(setup,
      families,
      strengths,
      slider({ label: "Unknowns, n", id: "compare-n", min: 2, max: 20, step: 1, value: n, oninput: (x) => {
        set({ n: x });
        drawMethods();
      } }),
      slider({ label: "Number of systems", id: "compare-count", min: 0, max: 7, step: 1, value: Math.log2(count), shown: (x) => String(2 ** x),
        oninput: (x) => set({ count: 2 ** x }) }),
      draws, others, list);
    drawMethods();
  }

  const list = el("div", { class: "methods" });
  const fits = (method) => !method.sizes || method.sizes.includes(own().n);

  function drawMethods() {
    const groups = [...new Set(Object.values(all).map(({ group }) => group))];
    put(list, groups.map((group) => el("fieldset", {}, el("legend", {}, group), Object.entries(all).filter(([, method]) => method.group === group).map(([name, method], k) => {
      const box = el("input", { type: "checkbox", id: `method-${group[0]}${k}`, checked: own().methods.includes(name), disabled: !fits(method), onchange: () => {
        set({ methods: Object.keys(all).filter((each) => (each === name ? box.checked : own().methods.includes(each))) }, false);
      } });
      const why = fits(method) ? "" : ` — n = ${method.sizes.join(", ")}`;
      return el("div", { class: "check" }, box, el("label", { for: box.id }, legendSample(style(name)), ` ${method.title}${why}`));
    }))));
  }

  const style = (name) => Math.max(STYLES.indexOf(name), 0); // a model that has no look of its own yet

  // --- the numbers ---

  async function compute() {
    const mine = ++round;
    const { family, n, sigma, condition, count, seed } = own();
    const systems = Array.from({ length: count }, (_, k) => drawSystem(family, n, { sigma, condition }, 1000 * seed + k));
    for (const name of own().methods.filter((each) => Object.hasOwn(all, each) && fits(all[each]))) {
      if (known.has(name)) continue;
      const taken = all[name].slow ? systems.slice(0, FEW) : systems;
      const errors = [];
      for (const [k, { A, b, x }] of taken.entries()) {
        message.textContent = `${all[name].title}: system ${k + 1} of ${taken.length}`;
        if (all[name].slow || k % 16 === 0) await breathe();
        if (mine !== round) return;
        errors.push((await all[name].iterates(A, b, n)).map((iterate) => squaredRelativeError(iterate, x)));
        if (mine !== round) return;
      }
      known.set(name, errors);
      draw();
    }
    draw();
    message.textContent = notes();
    root.dataset.round = String(mine);
  }

  function notes() {
    const { count, methods: chosen } = own();
    const few = count > FEW && chosen.some((name) => all[name]?.slow && known.has(name)) ? ` Learned networks ran on the first ${FEW}.` : "";
    return (count > 1 ? `Medians of ${count} systems; the bands hold the middle 80%.${few}` : "One system.") + " The solution is known, since b = A x was computed from it.";
  }

  function draw() {
    const lines = own().methods.filter((name) => known.has(name)).map((name) => ({ name: all[name].title, style: style(name), ...summary(known.get(name)) }));
    table.section.hidden = !lines.length;
    if (!lines.length) return void put(chart.body, el("p", { class: "note" }, "Choose a method from the list."));
    put(chart.body, errorChart(lines, { width: fitting(chart.body, 940), height: 430, yTitle: "squared relative error" }), legend(lines));
    const levels = [1e-2, 1e-4, 1e-6, 1e-8, 1e-12];
    const reached = (values, level) => {
      const t = values.findIndex((v) => v <= level);
      return t < 0 ? "—" : String(t);
    };
    const columns = ["method", ...levels.map(tiny), "last error"];
    const row = ({ name, values }) => el("tr", {}, el("th", { scope: "row" }, name),
      levels.map((level) => el("td", {}, reached(values, level))), el("td", {}, number(values.at(-1), 3)));
    put(table.body, scrollable("Iterations", el("table", { class: "values" },
      el("thead", {}, el("tr", {}, columns.map((text) => el("th", { scope: "col" }, text)))), el("tbody", {}, lines.map(row)))));
  }

  drawSetup();
  compute();
  return { root, stop: () => (round = LEFT), redraw: () => { drawMethods(); draw(); } };
}
