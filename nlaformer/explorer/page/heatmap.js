// Matrices as pictures: one pixel for each entry, enlarged without smoothing, inside an SVG.
import { svg } from "./dom.js";
import { scrollable } from "./controls.js";
import { number, tiny } from "./format.js";
import { diverging, weight } from "./colour.js";

const canvas = document.createElement("canvas");
const context = canvas.getContext("2d", { willReadFrequently: true });

// A picture of rows x columns; paint(row, column) gives red, green and blue.
function picture(rows, columns, paint) {
  canvas.width = columns;
  canvas.height = rows;
  const image = context.createImageData(columns, rows);
  for (let r = 0; r < rows; r++) {
    for (let c = 0; c < columns; c++) image.data.set([...paint(r, c), 255], 4 * (r * columns + c));
  }
  context.putImageData(image, 0, 0);
  return canvas.toDataURL();
}

function placed(url, x, y, width, height) {
  return svg("image", { href: url, x, y, width, height, preserveAspectRatio: "none", style: "image-rendering: pixelated" });
}

const CAPTION = 140; // pixels for the longest line below a map

export const HOW_TO_READ = "Rows are queries, columns keys. The first column is the sink, from 0 to 1; the others run from the least to the largest weight among them, which stand below. Point at an entry to read it.";

// The attention of every head.
export function attentionMaps(heads, tokens, size) {
  return scrollable("Attention of every head", heads.map((weights, h) => attentionMap(weights, tokens, size, `head ${h + 1}`)), "maps");
}

// The attention of one head: a row for each query, a column for each key. The sink, token 0, may take nearly everything, and
// has a scale of its own; the colours of the others run from their least to their largest weight.
function attentionMap(weights, tokens, size, title) {
  const [least, most] = extent(weights.filter((_, at) => at % tokens));
  const shade = (x) => (most > least ? (x - least) / (most - least) : most && 0.5);
  const url = picture(tokens, tokens, (q, k) => weight(k ? shade(weights[q * tokens + k]) : weights[q * tokens]));
  const range = most - least < 1e-3 * most ? `${number(least, 3)} … +${tiny(most - least)}` : `${number(least, 3)} … ${number(most, 3)}`;
  const caption = svg("text", { x: 0, y: size + 26, class: "faint" }, range);
  const told = `${title}: weights from ${number(least, 6)} to ${number(most, 6)} beside the sink`;
  const width = Math.max(size, CAPTION);
  const map = svg("svg", { viewBox: `0 0 ${width} ${size + 30}`, width, height: size + 30, role: "img", "aria-label": told },
    svg("text", { x: 0, y: 10, class: "label" }, title),
    placed(url, 0, 15, size, size),
    svg("path", { d: `M0 15h${size}v${size}h${-size}zM${size / tokens} 15v${size}`, class: "frame" }),
    caption);
  map.addEventListener("pointermove", (event) => {
    const box = map.getBoundingClientRect();
    const k = Math.floor((tokens * (((event.clientX - box.left) * width) / box.width)) / size);
    const q = Math.floor((tokens * (((event.clientY - box.top) * (size + 30)) / box.height - 15)) / size);
    const inside = q >= 0 && q < tokens && k >= 0 && k < tokens;
    caption.textContent = inside ? `${q || "sink"} reads ${k || "sink"}: ${number(weights[q * tokens + k], 4)}` : range;
  });
  map.addEventListener("pointerleave", () => (caption.textContent = range));
  return map;
}

function extent(values) {
  let [least, most] = [Infinity, -Infinity];
  for (const x of values) {
    least = Math.min(least, x);
    most = Math.max(most, x);
  }
  return [least, most];
}

const isTemporary = (name) => /^(pre|loop|post) t\d+$/.test(name);
const rowHeight = (height, name) => (height === 1 ? (isTemporary(name) ? 9 : 13) : height <= 8 ? 7 : height <= 48 ? 3 : 1);

// The token matrix, register by register, each on a colour scale of its own; rows that differ from `before` are marked.
export function tokenMatrixMap(P, before, layout, { onpick, picked, cell, about }) {
  const left = 112;
  const width = cell * P.tokens;
  const children = [];
  // One register is a stop of the tabulator key; arrows lead to the others.
  const stop = layout.rows.has(picked) ? picked : layout.rows.keys().next().value;
  const first = [...layout.rows.keys()].find(isTemporary);
  const labelled = (name, changed) => (!isTemporary(name) || changed ? shortened(name) : name === first ? "temporaries" : "");
  let y = 22;
  const tokenName = (t) => (t + 1 === layout.first ? "sink" : String(t + 1 - layout.first));
  for (let t = 0; t < P.tokens; t++) {
    const place = t + 1 - layout.first;
    if (cell < 22 && place % 5) continue; // no room for all
    children.push(svg("text", { x: left + (t + 0.5) * cell, y: 14, class: "faint", "text-anchor": "middle" }, tokenName(t)));
  }
  for (const [name, { start, height }] of layout.rows) {
    if (!height) continue;
    const part = P.data.subarray(start * P.tokens, (start + height) * P.tokens);
    const most = part.reduce((largest, x) => Math.max(largest, Math.abs(x)), 0) || 1;
    const tall = height * rowHeight(height, name);
    const url = picture(height, P.tokens, (r, t) => diverging(part[r * P.tokens + t] / most));
    const changed = before && part.some((x, k) => x !== before.data[start * P.tokens + k]);
    const looks = ["register", changed ? "changed" : "", picked === name ? "picked" : ""].join(" ");
    const meaning = `${name}: ${about(name)}`;
    const told = `Register ${name}${changed ? ", written by this layer" : ""}`;
    const group = svg("g", { class: looks, role: "button", tabindex: name === stop ? 0 : -1, "data-register": name, "data-numbers": part.join(" "), "aria-label": told },
      svg("rect", { x: 0, y: y - 1, width: left + width, height: tall + 2, class: "hit" }),
      svg("text", { x: left - 14, y: y + tall / 2 + (isTemporary(name) ? 3 : 4), "text-anchor": "end", class: isTemporary(name) ? "minor" : "label" }, labelled(name, changed)),
      changed ? svg("path", { d: `M${left - 10} ${y + tall / 2 - 4} l6 4 l-6 4 z`, class: "mark" }) : null,
      placed(url, left, y, width, tall),
      svg("rect", { x: left, y, width, height: tall, class: "frame" }),
      svg("title", {}, meaning));
    group.addEventListener("click", () => onpick(name));
    group.addEventListener("pointermove", (event) => {
      const box = group.querySelector("image").getBoundingClientRect();
      const [r, t] = [(height * (event.clientY - box.top)) / box.height, (P.tokens * (event.clientX - box.left)) / box.width].map(Math.floor);
      const inside = r >= 0 && r < height && t >= 0 && t < P.tokens;
      group.querySelector("title").textContent = inside ? `${name}, row ${r + 1}, ${tokenName(t)}: ${part[r * P.tokens + t]}` : meaning;
    });
    group.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        onpick(name);
      }
      const next = { ArrowDown: group.nextElementSibling, ArrowUp: group.previousElementSibling }[event.key];
      if (next?.dataset.register !== undefined) {
        event.preventDefault();
        next.focus();
      }
    });
    children.push(group);
    y += tall + (isTemporary(name) ? 2 : 3);
  }
  return svg("svg", { viewBox: `0 0 ${left + width + 2} ${y}`, width: left + width + 2, height: y, role: "group", "aria-label": "The token matrix P" }, children);
}

const shortened = (name) => (name.length > 16 ? `${name.slice(0, 15)}…` : name);
