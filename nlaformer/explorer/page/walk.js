// The guided walk: eight stops for a first visit. Each sets the page to a state and points at a panel.
import { button, el, put } from "./dom.js";

const LAPLACE = { A: "2 -1 0 0\n-1 2 -1 0\n0 -1 2 -1\n0 0 -1 2", b: "1 2 3 4" };

const STOPS = [
  {
    title: "What is a token here?",
    text: "This is a transformer, and its input is a matrix of numbers. A column is a token. Token j holds row j of A and entry j of b. The first token, the sink, holds zeros: attention that is not needed goes there.",
    view: "watch", state: { what: "algorithm cg", n: 4, texts: LAPLACE, at: 0, register: "A" }, panel: "panel-p",
  },
  {
    title: "Registers are rows with names",
    text: "Nothing here was trained. A compiler gave every value of the program rows of its own: x, r, d, the logarithm of rho, and temporaries t1, t2, … An arrow marks what the layer has just written. Choose a register to read its numbers.",
    view: "watch", state: { what: "algorithm cg", n: 4, texts: LAPLACE, at: 8, register: "r" }, panel: "panel-p",
  },
  {
    title: "How softmax multiplies",
    text: "A softmax of small scores is nearly linear in them: e^s ≈ 1 + s. Two heads with scores +c s and −c s share everything but the linear part, so that their difference is a product. Here two heads multiply a matrix by a vector. Nearly all attention goes to the sink, the first column; the product is in the tiny rest. The last row of each map reads b = 1, 2, 3, as more in head 1 and as less in head 2.",
    view: "watch", state: { what: "operation matvec", n: 3, texts: { A: "1 2 0\n0 1 -1\n2 0 1", b: "1 2 3" }, at: 1, register: "result" }, panel: "panel-attention",
  },
  {
    title: "As exact as you like",
    text: "The result stands beside the one of plain arithmetic. The difference comes from linearizing and from rounding, and has a proven bound: op.error_bound(A, b) gives it for your own numbers.",
    view: "watch", state: { what: "operation matvec", n: 3, texts: { A: "1 2 0\n0 1 -1\n2 0 1", b: "1 2 3" }, at: 1, register: null }, panel: "panel-values",
  },
  {
    title: "One step of conjugate gradients",
    text: "An iteration takes seven layers. This one computes q = A d; the marked line of the program says so. Step on with › and watch alpha, the new residual and the new direction appear.",
    view: "watch", state: { what: "algorithm cg", n: 4, texts: LAPLACE, at: 9, register: null }, panel: "panel-layer",
  },
  {
    title: "The loop",
    text: "The same seven layers again and again: a looped transformer. After n iterations plain arithmetic ends at its rounding, and so does the transformer, at the larger one of its inner products. Type a matrix of your own at the top of the page; it runs at once.",
    view: "watch", state: { what: "algorithm cg", n: 4, texts: LAPLACE, at: 36, register: null }, panel: "panel-error",
  },
  {
    title: "A transformer that learned",
    text: "This one was trained, on random systems, to imitate CG and to find the solution. It is ahead of CG in its first ten iterations and then stands still, while CG converges. Its probes read x well; what they read of r and d, judge for yourself.",
    view: "learned", state: { model: "cg-accelerated", sigma: 1.2, seed: 1, t: 4 }, panel: "panel-probes",
  },
  {
    title: "Who is ahead?",
    text: "Errors of every iterate, transformers beside classical methods. Move sigma, the condition number or n. Then write a method of your own in Python, nf.compile(YourMethod(), n=8), and it is a transformer too.",
    view: "compare", state: { family: "paper", n: 20, sigma: 1.2, count: 1, seed: 1, methods: ["cg", "pcg", "compiled cg", "guided-cg", "cg-accelerated"] }, panel: "panel-errors",
  },
];

// The card that leads through the stops; `go` opens a view in a state.
export function walk(go) {
  const card = el("aside", { class: "walk", "aria-label": "Guided walk", hidden: true });
  document.body.append(card);
  let at = 0;
  let pointing;

  function point(id) {
    for (const marked of document.querySelectorAll(".pointed")) marked.classList.remove("pointed");
    const target = id && document.getElementById(id);
    if (!target) return;
    target.classList.add("pointed");
    const { top } = target.getBoundingClientRect();
    if (top > innerHeight / 2 || top < parseFloat(getComputedStyle(target).scrollMarginTop)) target.scrollIntoView({ block: "start" });
  }

  function show(stop) {
    at = stop;
    const { title, text, view, state, panel } = STOPS[at];
    go(view, state);
    const heading = el("h2", { tabindex: -1 }, title);
    put(card, el("p", { class: "count" }, `Stop ${at + 1} of ${STOPS.length}`), heading, el("p", {}, text),
      el("div", { class: "buttons" }, button("Close", close), button("Back", () => show(at - 1), { disabled: at === 0 }), at < STOPS.length - 1 ? button("Next", () => show(at + 1), { class: "main" }) : button("Done", close, { class: "main" })));
    card.hidden = false;
    heading.focus({ preventScroll: true });
    clearTimeout(pointing);
    pointing = setTimeout(() => point(panel), 250);
  }

  function close() {
    clearTimeout(pointing);
    card.hidden = true;
    point(null);
    document.querySelector("[data-walk]")?.focus();
  }

  card.addEventListener("keydown", (event) => event.key === "Escape" && close());
  return { start: () => show(0) };
}
