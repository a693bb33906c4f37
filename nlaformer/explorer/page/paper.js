// Paper: every claim beside our figures and the verdict, as paper/claims.md has them.
import { button, el, field, put, select } from "./dom.js";
import { catalogue, openFigure } from "./engine.js";
import { panel, save } from "./panel.js";
import { scrollable } from "./controls.js";

// Text with `code` and **strong** parts, as elements.
function rich(text) {
  return text.split(/(`[^`]*`|\*\*[^*]*\*\*)/).map((part) => {
    if (part.startsWith("`")) return el("code", {}, part.slice(1, -1));
    if (part.startsWith("**")) return el("strong", {}, part.slice(2, -2));
    return part;
  });
}

// A claim; its figure is unpacked when it is asked for.
function article({ claim, found, verdict, figure }) {
  const drawing = el("div", { class: "figure", hidden: true });
  const show = button("Figure", async () => {
    drawing.hidden = !drawing.hidden;
    show.setAttribute("aria-expanded", String(!drawing.hidden));
    if (drawing.childElementCount) return;
    const drawn = await openFigure(figure);
    const file = figure.split("/").at(-1);
    const url = URL.createObjectURL(new Blob([drawn], { type: "image/svg+xml" }));
    put(drawing, button("SVG", () => save(file, "image/svg+xml", drawn), { class: "quiet", "aria-label": `Save ${file}`, title: "Save as SVG" }),
      scrollable(figure, el("img", { src: url, alt: `${figure}, drawn by the repository: ${found}` })));
  }, { class: "quiet", "aria-expanded": "false" });
  return el("article", { class: "claim" }, el("p", { class: "said" }, rich(claim)), el("p", { class: "found" }, rich(found)),
    el("p", { class: "judged" }, el("span", { class: "verdict", "data-verdict": verdict }, verdict), figure in catalogue.figures ? show : null), drawing);
}

export function paperView(state, changed) {
  const claims = catalogue.claims;
  const list = el("div", { class: "claims" });
  const root = el("div", { class: "view paper" });
  if (!claims) {
    put(root, el("div", { class: "work" }, el("h2", {}, "The paper's claims"), el("p", {}, "This page was packed without the repository. The claims, our figures and the verdicts stand in paper/claims.md there; a page that nlaformer explore writes in a checkout shows them.")));
    return { root, stop() {}, redraw() {} };
  }
  const verdicts = [...new Set(claims.rows.map(({ verdict }) => verdict))];
  const chosen = verdicts.includes(state.paper.verdict) ? state.paper.verdict : "all";
  const count = (verdict) => claims.rows.filter((row) => row.verdict === verdict).length;

  function draw(verdict) {
    changed("paper", { verdict });
    const shown = claims.rows.filter((row) => verdict === "all" || row.verdict === verdict);
    const sections = [...new Set(shown.map(({ section }) => section))];
    put(list, sections.map((title) => {
      const { section, body } = panel(title);
      put(body, shown.filter((row) => row.section === title).map(article));
      return section;
    }));
  }

  const filter = select("paper-verdict", [["all", `all (${claims.rows.length})`], ...verdicts.map((verdict) => [verdict, `${verdict} (${count(verdict)})`])], chosen, draw);
  const meanings = el("dl", { class: "meanings" }, claims.meanings.map(([verdict, meaning]) => [el("dt", {}, verdict), el("dd", {}, meaning)]));
  const about = el("p", { class: "note" }, "NLAFormer: Transformers Learn Numerical Linear Algebra Operations, by Ma, Gao and Ng.");
  put(root, el("section", { class: "setup", "aria-label": "Which claims" }, field("Verdict", filter), el("p", { class: "note" }, claims.about), meanings),
    el("div", { class: "work" }, el("h2", {}, "The paper’s claims, and what we found"), about, list));
  draw(chosen);
  return { root, stop() {}, redraw() {} };
}
