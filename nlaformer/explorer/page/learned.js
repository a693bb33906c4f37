// Learned: what a trained model does in every loop, what its probes read, and what was found out about it.
import { attentionMaps } from "./heatmap.js";
import { attentionOf } from "./transformer.js";
import { catalogue, openSolver } from "./engine.js";
import { drawSystem, parseMatrix, parseVector, relativeError, solve } from "./systems.js";
import { LEFT, breathe, el, field, paused, put, select, slider, svg } from "./dom.js";
import { errorChart, fitting, legend } from "./chart.js";
import { familiarity, run as runSolver } from "./solver.js";
import { LINES, lineColour } from "./colour.js";
import { number } from "./format.js";
import { panel } from "./panel.js";
import { seedField, sigmaSlider } from "./controls.js";
import { run as runProgram } from "./program.js";

const distance = (u, v) => u.reduce((sum, x, k) => sum + (x - v[k]) ** 2, 0) / (v.reduce((sum, x) => sum + x * x, 0) || 1);

// Entries of two vectors side by side: dots for what the probe reads, bars for what is true.
function entries(title, read, truth) {
  const [width, height, middle] = [470, 112, 64];
  const most = Math.max(...truth.map(Math.abs), ...read.map(Math.abs)) || 1;
  const X = (k) => 30 + (k + 0.5) * ((width - 40) / truth.length);
  const Y = (v) => middle - 40 * (v / most);
  const [bar, dot] = [lineColour(LINES[7]), lineColour(LINES[2])];
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "chart", role: "img", "aria-label": `${title}: squared relative distance ${number(distance(read, truth), 2)}` },
    svg("text", { x: 0, y: 14, class: "label" }, title),
    svg("text", { x: width - 4, y: 14, class: "faint", "text-anchor": "end" }, `squared relative distance ${number(distance(read, truth), 2)}`),
    svg("line", { x1: 30, x2: width - 10, y1: middle, y2: middle, class: "grid" }),
    truth.map((v, k) => svg("g", {}, svg("title", {}, `${read[k]}, CG ${v}`),
      svg("rect", { x: X(k) - 6, y: Math.min(Y(v), middle), width: 12, height: Math.abs(Y(v) - middle), fill: bar, "fill-opacity": 0.45 }),
      svg("circle", { cx: X(k), cy: Y(read[k]), r: 3.6, fill: dot }))));
}

export function learnedView(state, changed) {
  const own = () => state.learned;
  const names = Object.keys(catalogue.solvers);
  let run = null;
  let round = 0;
  const setup = el("section", { class: "setup", "aria-label": "Model and system" });
  const loops = el("div", { class: "transport" });
  const message = el("p", { class: "message", role: "status" });
  const attention = panel("Attention in this loop", { id: "panel-loop", note: "Eight heads, 21 tokens: the sink and one token for each equation. Rows are queries, columns keys." });
  const probes = panel("What the probes read", { id: "panel-probes", note: "Dots: read from the last token by the model's linear probes. Bars: the x, r and d of conjugate gradients on the same system, at the same iteration." });
  const errors = panel("Error of each iterate", { id: "panel-learned-error" });
  const findings = panel("What the microscope found", { id: "panel-findings" });
  const left = el("div", { class: "column" }, probes.section, errors.section);
  const right = el("div", { class: "column" }, attention.section, findings.section);
  const root = el("div", { class: "view learned" }, setup, el("div", { class: "work" }, loops, message, el("div", { class: "stage even" }, left, right)));
  const again = paused(() => compute(), 120);

  function set(patch) {
    changed("learned", patch);
    again();
  }

  function drawSetup() {
    const model = own().model;
    const about = catalogue.solvers[model];
    const choice = select(names.map((name) => [name, name]), model, (value) => {
      set({ model: value });
      drawSetup();
      drawFindings();
    });
    const note = `${about.n} unknowns, ${about.d} rows, ${about.heads} heads; trained for ${about.T} iterations with sigma ${about.sigma.join(", ")}. `
      + `Its weights are rounded to ${about.bits} significant bits in this page (float32 has 24), so that late errors are larger than the model's own.`;
    put(setup, field("Model", choice), el("p", { class: "note" }, note),
      sigmaSlider("learned-sigma", own().sigma, (sigma) => set({ sigma })), seedField("learned-seed", own().seed, (seed) => set({ seed })), ownSystem());
  }

  // Fields for a system of one's own; while A is empty, systems are drawn.
  function ownSystem() {
    const area = (name, label, rows) => {
      const control = el("textarea", { id: `learned-${name}`, rows, spellcheck: "false", oninput: () => set({ texts: { ...own().texts, [name]: control.value } }) });
      control.value = own().texts[name] ?? "";
      return field(label, control);
    };
    return el("details", { open: Boolean(own().texts.A) }, el("summary", {}, "Or paste a system of your own"),
      area("A", "Matrix A, 20 × 20", 4), area("b", "Vector b, 20 numbers", 2));
  }

  // { A, b, x }, or { problem }, a sentence.
  function given(n) {
    const { sigma, seed, texts } = own();
    if (!texts.A?.trim()) return drawSystem("paper", n, { sigma }, seed);
    const [A, b] = [parseMatrix(texts.A), parseVector(texts.b ?? "")];
    if (A.problem) return { problem: `A: ${A.problem}` };
    if (b.problem) return { problem: `b: ${b.problem}` };
    if (A.n !== n || b.n !== n) return { problem: `This model solves systems of ${n} unknowns; A has ${A.n} and b ${b.n}.` };
    const x = solve(A.data, b.data);
    return x ? { A: A.data, b: b.data, x } : { problem: "A is singular; there is no solution to compare with." };
  }

  async function compute() {
    const mine = ++round;
    const solver = await openSolver(own().model);
    if (mine !== round) return;
    const { A, b, x, problem } = given(solver.n);
    message.classList.toggle("problem", Boolean(problem));
    if (problem) return void (message.textContent = problem);
    const iterates = [];
    for (const iterate of runSolver(solver, A, b)) {
      iterates.push(iterate);
      message.textContent = `Computing: loop ${iterate.t} of ${solver.T}`;
      await breathe();
      if (mine !== round) return;
    }
    const cg = [...runProgram(catalogue.algorithms.cg.sizes[8].program, { A, b, x0: new Array(solver.n).fill(0) }, solver.T, solver.n)];
    run = { solver, x, iterates, cg };
    message.textContent = familiarity(solver, A, b).unlike ? "This system is unlike those of the training; nothing is known about the errors here." : "";
    show(Math.min(own().t, solver.T));
    root.dataset.ready = `${own().model} ${own().sigma} ${own().seed}`;
  }

  function show(t) {
    changed("learned", { t });
    const { solver, x, iterates, cg } = run;
    put(loops, slider({ label: "Iteration", id: "learned-t", min: 0, max: solver.T, step: 1, value: t, shown: (k) => `${k} of ${solver.T}`, oninput: (k) => drawAt(k) }));
    const errorsOf = (list) => list.map((each) => relativeError(each, x));
    run.lines = [
      { name: "conjugate gradients", style: 0, values: errorsOf(cg.map((values) => values.x.data)) },
      { name: own().model, style: 2, values: errorsOf(iterates.map((each) => each.x)) },
    ];
    drawAt(t);
  }

  function drawAt(t) {
    changed("learned", { t });
    const { solver, iterates, cg, lines } = run;
    const { x, rd, block, before } = iterates[t];
    const n = solver.n;
    put(errors.body, errorChart(lines, { width: fitting(errors.body, 560), height: 260, yTitle: "squared relative error", mark: t }), legend(lines));
    put(probes.body, entries(`x at t = ${t}`, x, cg[t].x.data), entries("r", rd.slice(0, n), cg[t].r.data), entries("d", rd.slice(n), cg[t].d.data));
    const where = { pre: "the pre block", loop: `loop ${t}`, post: "the post block" }[block];
    attention.heading.textContent = `Attention in ${where}`;
    put(attention.body, attentionMaps(attentionOf(solver.model[block][0], before), n + 1, 118));
  }

  function drawFindings() {
    const found = catalogue.findings?.[own().model];
    const none = "The figures stand in paper/results/microscope/ of the repository, which this page was packed without; nlaformer microscope computes them.";
    if (!found) return void put(findings.body, el("p", {}, none));
    put(findings.body, el("ul", { class: "findings" }, found.sentences.map((text) => el("li", {}, text))),
      el("p", { class: "note" }, `From ${found.file}, written by: ${found.command}.`));
  }

  if (!names.includes(own().model)) changed("learned", { model: names[0] });
  drawSetup();
  drawFindings();
  compute();
  return { root, stop: () => (round = LEFT), redraw: () => run && show(own().t) };
}
