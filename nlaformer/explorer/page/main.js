// The page: its header, its views, the state they share.
import { applyLayer, tokenMatrix } from "./transformer.js";
import { prompt as algorithmPrompt, run as runAlgorithm } from "./algorithm.js";
import { button, el, paused, put } from "./dom.js";
import { catalogue, openAlgorithm, openOperation, openSolver } from "./engine.js";
import { compareView } from "./compare.js";
import { drawSystem } from "./systems.js";
import { fromAddress, merged, toAddress, START } from "./state.js";
import { isDark } from "./colour.js";
import { learnedView } from "./learned.js";
import { paperView } from "./paper.js";
import { read as readResult, reference as operationReference, trace as traceOperation } from "./operation.js";
import { run as runProgram, spread } from "./program.js";
import { run as runSolver } from "./solver.js";
import { save } from "./panel.js";
import { walk } from "./walk.js";
import { watchView } from "./watch.js";

const VIEWS = {
  watch: ["Watch", () => watchView(state, changed, (model) => open("learned", { model }))],
  compare: ["Compare", () => compareView(state, changed)],
  learned: ["Learned", () => learnedView(state, changed)],
  paper: ["Paper", () => paperView(state, changed)],
};
let state = structuredClone(fromAddress(location.hash));
let current = null;
let own = location.hash; // the address as the page wrote it

function changed(view, patch) {
  Object.assign(state[view], patch);
  remember();
}

// Browsers refuse an address that changes many times a second, so it is written when changes have paused.
const remember = paused(address, 200);

function address() {
  if (location.hash === own) { // else another one was just entered, and is about to be followed
    own = toAddress(state);
    history.replaceState(null, "", own);
  }
  return location.href;
}

function open(view, patch) {
  state = merged(state, { view, [view]: patch });
  draw();
}

function draw() {
  if (!Object.hasOwn(VIEWS, state.view)) state.view = "watch";
  document.documentElement.dataset.theme = state.theme;
  current?.stop();
  current = VIEWS[state.view][1]();
  put(document.getElementById("page"), current.root);
  for (const link of document.querySelectorAll("nav [data-view]")) {
    if (link.dataset.view === state.view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${VIEWS[state.view][0]} · nlaformer explorer`;
  remember();
}

// --- the header ---

function header(tour) {
  const said = el("span", { class: "said", role: "status" });
  const silence = paused(() => (said.textContent = ""), 4000);
  const say = (text) => {
    said.textContent = text;
    silence();
  };
  const file = el("input", { type: "file", accept: ".json,application/json", hidden: true, "aria-label": "A saved state", onchange: () => restore(file, say) });
  return el("header", { class: "top" },
    el("h1", { title: `version ${catalogue.version}` }, "nlaformer"), el("p", {}, "Linear algebra inside transformers"),
    el("nav", { "aria-label": "Views" }, Object.entries(VIEWS).map(([view, [title]]) => button(title, () => open(view), { "data-view": view }))),
    el("div", { class: "tools" },
      button("Guided walk", () => tour.start(), { "data-walk": "", class: "main" }),
      button("Copy link", () => copyLink(say), { title: "The address holds everything you see" }),
      button("Save", () => save("explorer.json", "application/json", JSON.stringify(state, null, 1)), { title: "Save what you see to a file" }),
      button("Open", () => file.click(), { title: "Open a saved file" }), file,
      button("Theme", () => {
        state.theme = document.documentElement.dataset.theme = isDark() ? "light" : "dark";
        current.redraw();
        remember();
      }, { title: "Light or dark" }), said));
}

async function copyLink(say) {
  try {
    await navigator.clipboard.writeText(address());
    say("Copied.");
  } catch {
    say("Copy the address of the page.");
  }
}

async function restore(file, say) {
  try {
    const given = JSON.parse(await file.files[0].text());
    if (given === null || typeof given !== "object" || !("view" in given)) throw new TypeError();
    state = merged(structuredClone(START), given);
    draw();
    say(`Opened ${file.files[0].name}.`);
  } catch {
    say(`${file.files[0].name} is not a file that this page saved.`);
  }
  file.value = "";
}

document.body.prepend(header(walk(open)));
addEventListener("hashchange", () => {
  if (location.hash === own) return;
  own = location.hash;
  state = structuredClone(fromAddress(location.hash));
  draw();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => current.redraw());
draw();

// For the browser's console, and for the tests.
window.explorer = {
  catalogue, openAlgorithm, openOperation, openSolver, applyLayer, tokenMatrix, algorithmPrompt, runAlgorithm, operationReference, readResult,
  traceOperation, runProgram, spread, runSolver, drawSystem,
};
