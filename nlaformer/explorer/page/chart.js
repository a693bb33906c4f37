// Lines over iterations on a logarithmic scale, with a band where a line stands for many systems.
import { el, svg } from "./dom.js";
import { LINES, lineColour } from "./colour.js";
import { number } from "./format.js";

const MARKERS = {
  circle: (x, y) => `M${x - 3} ${y} a3 3 0 1 0 6 0 a3 3 0 1 0 -6 0`,
  square: (x, y) => `M${x - 2.7} ${y - 2.7} h5.4 v5.4 h-5.4 z`,
  diamond: (x, y) => `M${x} ${y - 3.6} l3.6 3.6 l-3.6 3.6 l-3.6 -3.6 z`,
  triangle: (x, y) => `M${x} ${y - 3.4} l3.4 6 h-6.8 z`,
};

const HIGHEST = 6; // larger errors, infinite ones too, are drawn at 1e6

// lines: [{ name, style, values, low, high }], values by iteration; style is a number.
export function errorChart(lines, { width = 640, height = 360, yTitle, xTitle = "iteration t", mark }) {
  const box = { left: 66, right: width - 12, top: 12, bottom: height - 40 };
  const all = lines.flatMap(({ values, low = [], high = [] }) => [...values, ...low, ...high]).filter((v) => v > 0 && Number.isFinite(v));
  const top = Math.min(Math.ceil(Math.log10(Math.max(...all, 1e-3)) + 0.1), HIGHEST);
  const bottom = Math.max(Math.min(Math.floor(Math.log10(Math.min(...all, 1))), top - 2), -32);
  const last = Math.max(...lines.map((line) => line.values.length - 1), 1);
  const X = (t) => box.left + ((box.right - box.left) * t) / last;
  const Y = (v) => {
    const log = Math.min(Math.max(Math.log10(Math.max(v, 1e-300)), bottom), top);
    return box.top + ((top - log) / (top - bottom)) * (box.bottom - box.top);
  };
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", class: "chart", "aria-label": described(lines, yTitle) },
    axes(box, bottom, top, last, X, Y, xTitle, yTitle),
    mark === undefined ? null : svg("line", { x1: X(mark), x2: X(mark), y1: box.top, y2: box.bottom, class: "cursor" }),
    lines.filter((line) => line.low).map((line) => band(line, X, Y)),
    lines.map((line) => drawn(line, X, Y)));
}

function axes(box, bottom, top, last, X, Y, xTitle, yTitle) {
  const step = Math.max(1, Math.ceil((top - bottom) / 6));
  const parts = [];
  // Errors at the highest may be larger, which must be said whatever the step.
  const exponents = top === HIGHEST && top % step ? [top] : [];
  for (let e = step * Math.floor(top / step); e >= bottom; e -= step) if (!exponents.length || top - e > step / 2) exponents.push(e);
  for (const e of exponents) {
    parts.push(svg("line", { x1: box.left, x2: box.right, y1: Y(10 ** e), y2: Y(10 ** e), class: "grid" }));
    parts.push(svg("text", { x: box.left - 8, y: Y(10 ** e) + 4, "text-anchor": "end", class: "tick" }, `${e === HIGHEST ? "≥ " : ""}1e${e}`.replace("-", "−")));
  }
  const every = Math.max(1, Math.ceil(last / 10));
  for (let t = 0; t <= last; t += every) {
    parts.push(svg("text", { x: X(t), y: box.bottom + 16, "text-anchor": "middle", class: "tick" }, String(t)));
  }
  parts.push(svg("line", { x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom, class: "axis" }));
  parts.push(svg("text", { x: (box.left + box.right) / 2, y: box.bottom + 34, "text-anchor": "middle", class: "label" }, xTitle));
  if (yTitle) parts.push(svg("text", { x: -(box.top + box.bottom) / 2, y: 12, transform: "rotate(-90)", "text-anchor": "middle", class: "label" }, yTitle));
  return parts;
}

function drawn({ name, style, values }, X, Y) {
  const look = LINES[style % LINES.length];
  const colour = lineColour(look);
  const points = values.map((v, t) => [t, v]);
  const path = points.map(([t, v], k) => `${k ? "L" : "M"}${X(t).toFixed(2)} ${Y(v).toFixed(2)}`).join("");
  const every = Math.max(1, Math.ceil(points.length / 30));
  const markers = points.filter((_, k) => k % every === 0).map(([t, v]) => MARKERS[look.marker](X(t), Y(v))).join("");
  return svg("g", { class: "line" }, svg("title", {}, name),
    svg("path", { d: path, fill: "none", stroke: colour, "stroke-width": 1.6, "stroke-dasharray": look.dash }),
    svg("path", { d: markers, fill: colour, stroke: "none" }));
}

function band({ style, low, high }, X, Y) {
  const colour = lineColour(LINES[style % LINES.length]);
  const [lower, upper] = [low, high].map((values) => values.map((v, t) => [t, v]));
  const path = [...upper, ...lower.reverse()].map(([t, v], k) => `${k ? "L" : "M"}${X(t).toFixed(2)} ${Y(v).toFixed(2)}`).join("");
  return svg("path", { d: `${path}z`, fill: colour, "fill-opacity": 0.12, stroke: "none" });
}

function described(lines, yTitle) {
  return `${yTitle}: ${lines.map(({ name, values }) => `${name} ends at ${number(values.at(-1), 2)}`).join("; ")}`;
}

// The width of a drawing that fills a panel, so that its letters keep their size.
export function fitting(body, widest) {
  return Math.round(Math.min(Math.max(body.clientWidth || widest, 300), widest));
}

// The names of lines, each beside a sample.
export function legend(lines) {
  return el("p", { class: "legend" }, lines.map(({ name, style }) => el("span", {}, legendSample(style), ` ${name}`)));
}

export function legendSample(style) {
  const look = LINES[style % LINES.length];
  const colour = lineColour(look);
  return svg("svg", { viewBox: "0 0 34 12", width: 34, height: 12, "aria-hidden": "true" },
    svg("path", { d: "M0 6H34", fill: "none", stroke: colour, "stroke-width": 1.6, "stroke-dasharray": look.dash }),
    svg("path", { d: MARKERS[look.marker](17, 6), fill: colour, stroke: "none" }));
}
