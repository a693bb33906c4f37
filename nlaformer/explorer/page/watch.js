// Watch: a transformer at work on a system of your own, layer by layer.
import { attentionOf } from "./transformer.js";
import { LEFT, button, el, field, paused, put, putControls, select } from "./dom.js";
import { catalogue } from "./engine.js";
import { conditionSlider, scrollable, seedField, sigmaSlider } from "./controls.js";
import { attentionMaps, HOW_TO_READ, tokenMatrixMap } from "./heatmap.js";
import { chosen, completed, compute, readInputs, valuesAt, wanted } from "./watching.js";
import { counted, number, tiny } from "./format.js";
import { errorChart, fitting, legend } from "./chart.js";
import { FAMILIES, drawSystem, matrixText, squaredRelativeError, uniforms, vectorText } from "./systems.js";
import { panel } from "./panel.js";
import { ORIGINS, aboutRegister, notesOn } from "./words.js";

const SHAPES = /, \((n|\))[^;]*/;
const spaced = (name) => name.replaceAll("_", " ");

export function watchView(state, changed, openLearned) {
  const own = () => state.watch;
  const update = (patch) => changed("watch", patch);
  let run = null;
  let round = 0;
  let timer = null;

  const setup = el("section", { class: "setup", "aria-label": "What runs, and on what" });
  const transport = el("div", { class: "transport", role: "group", "aria-label": "Steps of the run" });
  const message = el("p", { class: "message", role: "status" });
  const tokens = panel("Token matrix P", { id: "panel-p", note: "A column is a token, a group of rows with a name a register. Blue is negative, orange positive; each register has its own scale. An arrow marks what this layer wrote or cleared. Point at an entry to read it." });
  const layer = panel("This layer", { id: "panel-layer" });
  const heads = panel("Attention of this layer", { id: "panel-attention", note: HOW_TO_READ });
  const values = panel("Values", { id: "panel-values" });
  const errors = panel("Error", { id: "panel-error" });
  const stage = el("div", { class: "stage" }, tokens.section, el("div", { class: "column" }, layer.section, values.section, heads.section, errors.section));
  const root = el("div", { class: "view watch" }, setup, el("div", { class: "work" }, transport, message, stage));

  // --- set-up ---

  function drawSetup() {
    const choice = chosen(own().what);
    const what = select("watch-what", options(), own().what, (value) => {
      if (value.startsWith("solver ")) return openLearned(value.slice(7));
      stop();
      update({ what: value, at: 0, register: null });
      drawSetup();
      // What was typed is kept where the new choice can run on it.
      if (readInputs(chosen(value), own().texts).problem) sample(sizeFor(chosen(value), own().n));
      else start();
    });
    const inputs = wanted(choice).map(({ name, kind }) => {
      const control = el("textarea", { id: `input-${name}`, rows: kind === "matrix" ? 5 : 2, spellcheck: "false", autocomplete: "off", oninput: paused(() => {
        update({ texts: { ...own().texts, [name]: control.value }, at: 0 });
        start();
      }, 300) });
      control.value = own().texts[name] ?? "";
      return field(kind === "matrix" ? `Matrix ${name}` : `Vector ${name}`, control, kind === "matrix" ? "One row a line; spaces or commas between numbers." : null);
    });
    const about = choice.kind === "operation" ? `Computes ${choice.entry.about.replace(SHAPES, "")}.` : choice.entry.about;
    putControls(setup, field("What runs", what), el("p", { class: "note" }, about), inputs, drawFields(choice));
  }

  function options() {
    const compiled = Object.entries(catalogue.algorithms).map(([name, { title }]) => [`algorithm ${name}`, title]);
    return [
      ["Compiled algorithms", compiled],
      ["Learned models", Object.keys(catalogue.solvers).map((name) => [`solver ${name}`, name])],
      ["Operations", Object.keys(catalogue.operations).map((name) => [`operation ${name}`, spaced(name)])],
    ];
  }

  function drawFields(choice) {
    const size = select("watch-size", choice.sizes.map((n) => [String(n), `n = ${n}`]), String(sizeFor(choice, own().n)), (value) => sample(Number(value)));
    const seed = seedField("watch-seed", own().seed, (value) => sample(own().n, { seed: value }));
    if (choice.kind === "operation") return el("fieldset", {}, el("legend", {}, "Or draw numbers"), field("Size", size), seed);
    const family = select("watch-family", Object.entries(FAMILIES).map(([name, { title }]) => [name, title]), own().family, (value) => {
      sample(own().n, { family: value });
      drawSetup();
    });
    const strengths = {
      sigma: () => sigmaSlider("watch-sigma", own().sigma, (sigma) => sample(own().n, { sigma })),
      condition: () => conditionSlider("watch-condition", own().condition, (condition) => sample(own().n, { condition })),
    };
    const strength = strengths[FAMILIES[own().family].parameter]?.();
    return el("fieldset", {}, el("legend", {}, "Or draw a system"), field("Family", family, FAMILIES[own().family].about), strength, field("Size", size), seed);
  }

  const sizeFor = (choice, n) => (choice.sizes.includes(n) ? n : choice.sizes.filter((size) => size <= 8).at(-1) ?? choice.sizes[0]);

  // New numbers in all fields.
  function sample(n, patch = {}) {
    update(patch);
    const { family, sigma, condition, seed } = own();
    const choice = chosen(own().what);
    const texts = {};
    if (choice.kind === "operation") {
      const uniform = uniforms(seed);
      for (const { name, kind } of wanted(choice)) {
        const data = Array.from({ length: kind === "matrix" ? n * n : n }, () => Math.round(40 * uniform() - 20) / 10 || 0.5);
        texts[name] = kind === "matrix" ? matrixText(data, n) : vectorText(data);
      }
    } else {
      const { A, b } = drawSystem(family, n, { sigma, condition }, seed);
      Object.assign(texts, { A: matrixText(A, n), b: vectorText(b) });
    }
    update({ n, texts: { ...own().texts, ...texts }, at: 0 });
    // The controls stay as they are: one of them may be in the user's hands.
    for (const { name } of wanted(choice)) document.getElementById(`input-${name}`).value = texts[name];
    document.getElementById("watch-size").value = String(n);
    start();
  }

  // --- the run ---

  async function start() {
    const mine = ++round;
    if (mine !== round) return; // the view was left
    stop();
    const choice = chosen(own().what);
    const { problem, at, n, inputs } = readInputs(choice, own().texts);
    for (const { name } of wanted(choice)) document.getElementById(`input-${name}`)?.toggleAttribute("aria-invalid", at === name);
    message.textContent = problem ?? "";
    message.classList.toggle("problem", Boolean(problem));
    stage.classList.toggle("stale", Boolean(problem));
    if (problem) return;
    if (n !== own().n) update({ n });
    const size = document.getElementById("watch-size");
    if (size) size.value = String(n);
    try {
      const found = await compute(choice, n, inputs);
      if (mine !== round) return;
      run = found;
    } catch (error) {
      if (!(error instanceof RangeError)) throw error;
      if (mine !== round) return;
      message.textContent = error.message;
      message.classList.add("problem");
      stage.classList.add("stale");
      return;
    }
    message.textContent = run.remark;
    show(Math.min(own().at, run.steps.length - 1));
    root.dataset.ready = own().what;
  }

  function stop() {
    clearInterval(timer);
    timer = null;
  }

  function play() {
    if (timer) stop();
    else {
      if (own().at >= run.steps.length - 1) show(0);
      timer = setInterval(() => {
        if (own().at >= run.steps.length - 1) stop();
        else show(own().at + 1);
        drawTransport();
      }, matchMedia("(prefers-reduced-motion: reduce)").matches ? 1500 : 500);
    }
    drawTransport();
  }

  // The next or previous end of an iteration.
  function iterate(direction) {
    const ends = run.steps.map((_, k) => k).filter((k) => run.steps[k].layer === -1 || run.steps[k].layer === run.model[run.steps[k].block].length - 1);
    const next = direction > 0 ? ends.find((k) => k > own().at) : ends.filter((k) => k < own().at).at(-1);
    if (next !== undefined) show(next);
  }

  function show(at) {
    update({ at });
    drawTransport();
    drawTokens(at);
    drawLayer(at);
    drawHeads(at);
    drawValues(at);
    drawErrors(at);
  }

  function drawTransport() {
    const focused = document.activeElement?.dataset?.move;
    const at = own().at;
    const move = (label, name, action, disabled) => button(label, () => { stop(); action(); }, { "data-move": name, "aria-label": name, title: name, disabled });
    const told = { "aria-label": "Step", "aria-valuetext": where(at), "data-move": "scrub" };
    const scrub = el("input", { type: "range", min: 0, max: run.steps.length - 1, value: at, ...told, oninput: () => {
      stop();
      show(Number(scrub.value));
    } });
    put(transport,
      move("|‹", "First step", () => show(0), at === 0),
      move("«", "Previous iteration", () => iterate(-1), at === 0),
      move("‹", "Previous layer", () => show(at - 1), at === 0),
      button(timer ? "Pause" : "Play", play, { class: "main", "data-move": "play" }),
      move("›", "Next layer", () => show(at + 1), at === run.steps.length - 1),
      move("»", "Next iteration", () => iterate(1), at === run.steps.length - 1),
      scrub, el("strong", { class: "where", id: "where" }, where(at)));
    if (focused) transport.querySelector(`[data-move="${focused}"]:not([disabled])`)?.focus();
  }

  function where(at) {
    const { block, iteration, layer: k } = run.steps[at];
    if (block === "input") return "The prompt";
    const of = `layer ${k + 1} of ${run.model[block].length}`;
    return block === "pre" ? (run.kind === "operation" ? `Layer ${k + 1} of ${run.model.pre.length}` : `Start, ${of}`) : `Iteration ${iteration}, ${of}`;
  }

  // --- the panels ---

  function drawTokens(at) {
    const { P } = run.steps[at];
    const before = at > 0 ? run.steps[at - 1].P : null;
    const picked = own().register;
    const focused = document.activeElement?.dataset?.register;
    const cell = Math.max(9, Math.min(46, Math.floor(280 / P.tokens)));
    const drawing = tokenMatrixMap(P, before, run.layout, { picked, cell, about, onpick: (name) => {
      update({ register: own().register === name ? null : name });
      drawTokens(own().at);
    } });
    put(tokens.body, registerTable(P, picked), scrollable("The token matrix P", drawing));
    if (focused) drawing.querySelector(`[data-register="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  }

  const inputNames = () => wanted(chosen(own().what)).map(({ name }) => name);
  const about = (name) => aboutRegister(name, run.state, [...inputNames(), "x0"]);

  function registerTable(P, name) {
    const rows = run.layout.rows.get(name);
    if (!rows) return el("p", { class: "note" }, `${P.rows} rows × ${P.tokens} tokens. Choose a register to read its numbers.`);
    const shown = Math.min(rows.height, 8);
    const line = (r) => el("tr", {}, Array.from({ length: P.tokens }, (_, t) => el("td", {}, number(P.data[(rows.start + r) * P.tokens + t], 3))));
    const caption = `Register ${name}${rows.height > shown ? `, first ${shown} of ${rows.height} rows` : ""}. ${about(name)}`;
    const table = el("table", {}, el("tbody", {}, Array.from({ length: shown }, (_, r) => line(r))));
    return [el("p", { class: "note" }, caption), scrollable(`Numbers in register ${name}`, table, "scroll register-values")];
  }

  function drawLayer(at) {
    const { block, layer: k } = run.steps[at];
    layer.heading.textContent = block === "input" ? "The prompt" : "This layer";
    if (block === "input") {
      const given = inputNames().join(" and ");
      return void put(layer.body, el("p", {}, ORIGINS[run.kind === "operation" ? "operation" : run.program ? "compiled" : "guided"]),
        el("p", {}, `Its input is the token matrix P, which holds ${given}. Press Play to apply its layers one by one, or type numbers of your own.`),
        run.source ? program([]) : null);
    }
    const part = run.model[block][k];
    const size = [part.heads ? counted(part.heads.count, "head") : "no heads", part.ffn ? `FFN of width ${part.ffn.W_1.rows}` : "no FFN"].join(", ");
    if (run.kind === "operation") return void put(layer.body, el("p", { class: "size" }, size));
    const entries = run.schedule[block][k];
    put(layer.body, el("p", { class: "size" }, size),
      el("ul", { class: "instructions" }, entries.map(({ text }) => el("li", {}, el("code", {}, text)))),
      notesOn(entries.map(({ text }) => text)).map((note) => el("p", { class: "note" }, note)),
      program(entries.map(({ line }) => line)));
  }

  function program(lines) {
    return el("pre", { class: "program", tabindex: 0, "aria-label": "The program; lines that this layer works on are marked" }, run.source.map((text, k) => {
      const active = lines.includes(k);
      return el("span", { class: active ? "line active" : "line", "aria-current": active ? "true" : undefined }, `${text}\n`);
    }));
  }

  function drawHeads(at) {
    const { block, layer: k } = run.steps[at];
    heads.section.hidden = block === "input";
    if (heads.section.hidden) return;
    const weights = attentionOf(run.model[block][k], run.steps[at - 1].P);
    const none = "This layer has no heads; its FFN works token by token.";
    put(heads.body, weights.length ? attentionMaps(weights, run.steps[at].P.tokens, 104) : el("p", { class: "note" }, none));
  }

  function drawValues(at) {
    const rows = valuesAt(run, at);
    const t = run.kind === "algorithm" ? completed(run, at) : null;
    values.section.hidden = run.steps[at].block === "input";
    values.heading.textContent = t === null ? "The result" : t < 0 ? "Values" : `Values after iteration ${t}`;
    const none = run.kind === "operation" ? "The last layer writes the result." : "The program’s states are there when the start has ended.";
    if (!rows.length) return void put(values.body, el("p", { class: "note" }, none));
    const note = "A trained network is part of this program, so that there is no plain value beside it.";
    put(values.body, scrollable("Values", valuesTable(rows)), rows.some(({ plain }) => plain) ? null : el("p", { class: "note" }, note));
  }

  // Each value of the transformer above the plain one, digits below digits.
  function valuesTable(rows) {
    const texts = (data) => Array.from(data.slice(0, 8), (x) => number(x, 5));
    const width = Math.max(...rows.flatMap(({ found, plain }) => [...texts(found), ...texts(plain ?? [])]).map((text) => text.length));
    const entries = (data) => texts(data).map((text) => text.padStart(width)).join("  ") + (data.length > 8 ? "  …" : "");
    const of = (label, data) => [el("td", { class: "which" }, label), el("td", { title: data.join(" ") }, entries(data))];
    const row = ({ name, found, plain, difference }) => el("tbody", { "data-value": name },
      el("tr", {}, el("th", { scope: "row", rowspan: plain ? 2 : 1 }, name), el("td", { rowspan: plain ? 2 : 1 }, plain ? tiny(difference) : "—"), of("transformer", found)),
      plain ? el("tr", {}, of("plain float64", plain)) : null);
    const columns = ["", "difference", "computed by", "entries"];
    return el("table", { class: "values" },
      el("thead", {}, el("tr", {}, columns.map((text) => el("th", { scope: "col" }, text)))), rows.map(row));
  }

  function drawErrors(at) {
    errors.section.hidden = run.kind === "operation" || !run.exact;
    if (errors.section.hidden) return;
    const of = (list) => list.map((values) => Math.sqrt(squaredRelativeError(values[run.answer].data, run.exact)));
    const lines = [{ name: "transformer", style: 2, values: of(run.values) }];
    if (run.program) lines.unshift({ name: "plain float64, as in NumPy", style: 1, values: of(run.program) });
    if (run.undetermined) lines.push({ name: "what the program leaves open: the spread of 24 runs in 33 bits", style: 3, values: run.undetermined });
    const mark = Math.max(completed(run, at), 0);
    put(errors.body, errorChart(lines, { width: fitting(errors.body, 560), height: 240, yTitle: "relative error of x", mark }), legend(lines));
  }

  drawSetup();
  start();
  return { root, stop: () => { stop(); round = LEFT; }, redraw: () => run && show(own().at) };
}
