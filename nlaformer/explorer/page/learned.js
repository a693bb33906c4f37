// Learned: what a trained model does in every loop, what its probes read, and what was found out about it.
import { attentionMaps, HOW_TO_READ } from "./heatmap.js";
import { attentionOf } from "./transformer.js";
import { catalogue, openSolver } from "./engine.js";
import { FAMILIES, UNSOLVED, drawSystem, parseMatrix, parseVector, solve, squaredRelativeError } from "./systems.js";
import { LEFT, breathe, el, field, paused, put, putControls, select, slider, svg } from "./dom.js";
import { errorChart, fitting, legend } from "./chart.js";
import { familiarity, run as runSolver } from "./solver.js";
import { LINES, lineColour } from "./colour.js";
import { number } from "./format.js";
import { panel } from "./panel.js";
import { seedField, sigmaSlider } from "./controls.js";
import { run as runProgram } from "./program.js";

// Entries of two vectors side by side: dots for what the probe reads, bars for CG's; a tick for the solution where it is given.
function entries(width, name, read, truth, solution = []) {
  const [height, middle] = [112, 64];
  const most = Math.max(...[...truth, ...read, ...solution].filter(Number.isFinite).map(Math.abs)) || 1;
  const X = (k) => 30 + (k + 0.5) * ((width - 40) / truth.length);
  const Y = (v) => middle - 40 * (v / most);
  const [bar, dot] = [lineColour(LINES[7]), lineColour(LINES[2])];
  const off = (what, from) => `to ${what}: ${number(squaredRelativeError(read, from), 2)}`;
  const distance = `distance ${off(`CG’s ${name}`, truth)}${solution.length ? `, ${off("the solution", solution)}` : ""}`;
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "chart", role: "img", "aria-label": `${name}: ${distance}` },
    svg("text", { x: 0, y: 14, class: "label" }, name),
    svg("text", { x: width - 4, y: 14, class: "faint", "text-anchor": "end" }, distance),
    svg("line", { x1: 30, x2: width - 10, y1: middle, y2: middle, class: "grid" }),
    truth.map((v, k) => svg("g", {}, svg("title", {}, `${read[k]}, CG ${v}${solution.length ? `, solution ${solution[k]}` : ""}`),
      Number.isFinite(v) ? svg("rect", { x: X(k) - 5, y: Math.min(Y(v), middle), width: 10, height: Math.abs(Y(v) - middle), fill: bar, "fill-opacity": 0.45 }) : null,
      solution.length ? svg("path", { d: `M${X(k) - 7} ${Y(solution[k])}h14`, class: "tick-mark" }) : null,
      Number.isFinite(read[k]) ? svg("circle", { cx: X(k), cy: Y(read[k]), r: 3.6, fill: dot }) : null)));
}

export function learnedView(state, changed) {
  const own = () => state.learned;
  const names = Object.keys(catalogue.solvers);
  let run = null;
  let round = 0;
  const setup = el("section", { class: "setup", "aria-label": "Model and system" });
  const loops = el("div", { class: "transport" });
  const message = el("p", { class: "message", role: "status" });
  const attention = panel("Attention in this loop", { id: "panel-loop", note: `21 tokens: the sink and one for each equation. ${HOW_TO_READ}` });
  const probes = panel("What the probes read", { id: "panel-probes", note: "Dots: what the model’s linear probes read from the last token. Bars: x, the residual r and the direction d of conjugate gradients (CG) on the same system, after as many iterations. Ticks: the solution. Distances are relative and squared." });
  const errors = panel("Error of each iterate", { id: "panel-learned-error" });
  const findings = panel("What the microscope found", { id: "panel-findings" });
  const left = el("div", { class: "column" }, probes.section, errors.section);
  const right = el("div", { class: "column" }, attention.section, findings.section);
  const stage = el("div", { class: "stage even" }, left, right);
  const root = el("div", { class: "view learned" }, setup, el("div", { class: "work" }, loops, message, stage));
  const again = paused(() => compute(), 120);

  function set(patch) {
    changed("learned", patch);
    again();
  }

  function drawSetup() {
    const model = own().model;
    const about = catalogue.solvers[model];
    const choice = select("learned-model", names.map((name) => [name, name]), model, (value) => {
      set({ model: value });
      drawSetup();
      drawFindings();
    });
    const note = `A transformer that was trained ${about.aim}, on random systems of ${about.n} unknowns with sigma ${about.sigma.join(", ")}. `
      + `${about.T} iterations, ${about.heads} heads, ${about.d} rows. Its weights are rounded to ${about.bits} significant bits in this page (float32 has 24), so that late errors are larger than the model’s own.`;
    putControls(setup, field("Model", choice), el("p", { class: "note" }, note), drawn, ownSystem());
    putDrawn();
  }

  // What a system is drawn with; it rests while there is a pasted one.
  const drawn = el("div");
  function putDrawn() {
    const pasted = Boolean(own().texts.A?.trim());
    put(drawn, sigmaSlider("learned-sigma", own().sigma, (sigma) => set({ sigma })), seedField("learned-seed", own().seed, (seed) => set({ seed })),
      el("p", { class: "note" }, pasted ? "sigma and the seed rest while a matrix is pasted below; empty it to draw systems again." : FAMILIES.paper.about));
    for (const control of drawn.querySelectorAll("input")) control.disabled = pasted;
  }

  // Fields for a system of one's own; while A is empty, systems are drawn.
  function ownSystem() {
    const area = (name, label, rows) => {
      const control = el("textarea", { id: `learned-${name}`, rows, spellcheck: "false", oninput: () => {
        set({ texts: { ...own().texts, [name]: control.value } });
        putDrawn();
      } });
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
    return x ? { A: A.data, b: b.data, x } : { problem: UNSOLVED };
  }

  async function compute() {
    const mine = ++round;
    const solver = await openSolver(own().model);
    if (mine !== round) return;
    const { A, b, x, problem } = given(solver.n);
    message.classList.toggle("problem", Boolean(problem));
    stage.classList.toggle("stale", Boolean(problem));
    if (problem) return void (message.textContent = problem);
    const iterates = [];
    for (const iterate of runSolver(solver, A, b)) {
      iterates.push(iterate);
      message.textContent = `Computing: loop ${iterate.t} of ${solver.T}`;
      await breathe();
      if (mine !== round) return;
    }
    const cg = [...runProgram(catalogue.algorithms.cg.program, { A, b, x0: new Array(solver.n).fill(0) }, solver.T, solver.n)];
    run = { solver, x, iterates, cg };
    message.textContent = familiarity(solver, A, b).unlike ? "This system is unlike those of the training; nothing is known about the errors here." : "";
    show(Math.min(own().t, solver.T));
    root.dataset.ready = `${own().model} ${own().sigma} ${own().seed}`;
  }

  function show(t) {
    changed("learned", { t });
    const { solver, x, iterates, cg } = run;
    put(loops, slider({ label: "Iteration", id: "learned-t", min: 0, max: solver.T, step: 1, value: t, shown: (k) => `${k} of ${solver.T}`, oninput: (k) => drawAt(k) }));
    const errorsOf = (list) => list.map((each) => squaredRelativeError(each, x));
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
    const width = fitting(probes.body, 560);
    put(probes.body, entries(width, "x", x, cg[t].x.data, run.x), entries(width, "r", rd.slice(0, n), cg[t].r.data), entries(width, "d", rd.slice(n), cg[t].d.data));
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
