// The page of a recording. `data` has every number in one base64 string of float32; see recording.py.
const bytes = Uint8Array.from(atob(data.numbers), c => c.charCodeAt(0));
const numbers = new Float32Array(bytes.buffer);
const element = id => document.getElementById(id);
const make = (name, text, parent) => {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (parent) parent.append(made);
  return made;
};
const shown = v => Number.isFinite(v) ? (v === 0 ? '0' : v.toPrecision(6)) : String(v);
const values = part => numbers.subarray(part.start, part.start + part.shape.reduce((a, b) => a * b, 1));

// Blue is negative, orange positive; how opaque a cell is says how large. Both are seen on light and on dark ground.
function colour(v, largest, logarithmic) {
  if (!Number.isFinite(v)) return 'rgba(204,121,167,1)';
  if (v === 0 || largest === 0) return 'rgba(128,128,128,.06)';
  const share = Math.abs(v) / largest;
  const part = logarithmic ? Math.max(0.06, 1 + Math.log10(share) / 6) : Math.max(0.04, share);
  return v < 0 ? `rgba(0,114,178,${part})` : `rgba(213,94,0,${part})`;
}

// Attention: token 0, the sink, may take nearly everything, so that it has a scale of its own; the others run from the
// least to the largest weight among them.
function attentionColours(cells, columns) {
  const others = cells.filter((v, at) => at % columns && Number.isFinite(v));
  const least = others.reduce((a, b) => Math.min(a, b), Infinity), most = others.reduce((a, b) => Math.max(a, b), 0);
  return (v, j) => `rgba(43,130,176,${j === 0 ? v : most > least ? (v - least) / (most - least) : most && 0.5})`;
}

function heatMap(parent, part, title, rowName, columnName, sizes) {
  const [rows, columns] = part.shape.slice(-2), cells = values(part);
  const figure = make('figure', undefined, parent);
  make('figcaption', title, figure);
  const canvas = make('canvas', undefined, figure), margin = sizes.names ? 78 : 0;
  const wide = Math.max(4, Math.min(sizes.wide, sizes.most / columns)), high = Math.max(3, Math.min(sizes.high, 900 / rows));
  const scale = window.devicePixelRatio || 1;
  canvas.style.width = `${margin + wide * columns}px`;
  canvas.style.height = `${high * rows}px`;
  canvas.width = scale * (margin + wide * columns);
  canvas.height = scale * high * rows;
  canvas.setAttribute('role', 'img');
  canvas.setAttribute('aria-label', `${title}: ${rows} rows, ${columns} columns`);
  const pen = canvas.getContext('2d'), logarithmic = element('scale').value === 'logarithmic';
  pen.scale(scale, scale);
  const largest = cells.reduce((most, v) => Number.isFinite(v) ? Math.max(most, Math.abs(v)) : most, 0);
  const painted = sizes.attention ? attentionColours(cells, columns) : v => colour(v, largest, logarithmic);
  for (let i = 0; i < rows; i++) for (let j = 0; j < columns; j++) {
    pen.fillStyle = painted(cells[i * columns + j], j);
    pen.fillRect(margin + j * wide, i * high, wide - 0.5, high - 0.5);
  }
  if (sizes.names) {
    pen.fillStyle = getComputedStyle(document.body).color;
    for (const [name, first, height] of data.rows) {
      const size = Math.min(11, height * high - 1);
      pen.fillRect(0, first * high - 0.5, margin + wide * columns, 0.25);
      pen.font = `${size}px sans-serif`;
      if (size >= 7) pen.fillText(name, 0, (first + height / 2) * high + size / 3, margin - 4);
    }
  }
  canvas.addEventListener('mousemove', event => {
    const i = Math.floor(event.offsetY / high), j = Math.floor((event.offsetX - margin) / wide);
    if (i < 0 || j < 0 || i >= rows || j >= columns) return;
    element('reading').textContent = `${title}, ${rowName(i)}, ${columnName(j)}: ${shown(cells[i * columns + j])}`;
  });
}

function registerOf(i) {
  const found = data.rows.find(([, first, height]) => i >= first && i < first + height);
  return found ? `${found[0]}${found[2] > 1 ? `[${i - found[1]}]` : ''} (row ${i})` : `row ${i}`;
}

function show() {
  const at = Number(element('layer').value), layer = data.layers[at];
  for (const id of ['before', 'heads', 'states']) element(id).replaceChildren();
  const token = j => `token ${j}`;
  element('name').textContent = layer ? `${layer.name} (${at + 1} of ${data.layers.length})` : 'no layer was kept';
  element('computes').textContent = layer ? layer.computes : '';
  const P = {wide: 18, high: 12, most: 240, names: data.rows.length > 0};
  if (layer) for (const [key, title] of [['input', 'P before'], ['output', 'P after']])
    if (layer[key]) heatMap(element('before'), layer[key], title, registerOf, token, P);
  if (layer && layer.weights) {
    const [heads, tokens] = layer.weights.shape, cell = Math.max(5, Math.min(26, 120 / tokens));
    for (let h = 0; h < heads; h++) {
      const part = {start: layer.weights.start + h * tokens * tokens, shape: [tokens, tokens]};
      heatMap(element('heads'), part, `head ${h}`, i => `query ${i}`, j => `key ${j}`, {wide: cell, high: cell, most: Infinity, attention: true});
    }
  }
  if (layer && !element('heads').children.length) make('p', 'No attention was kept here: the layer has no heads, or they were not recorded.', element('heads'));
  const t = Math.min(layer ? layer.step : 0, data.steps);
  element('step').textContent = `after t = ${t}`;
  element('step').parentElement.hidden = data.states.length === 0;
  for (const state of data.states) {
    const shape = state.shape.slice(1), size = shape.reduce((a, b) => a * b, 1);
    const part = {start: state.start + t * size, shape};
    if (shape.length === 2) {
      heatMap(element('states'), part, state.name, i => `row ${i}`, j => `column ${j}`, {wide: 12, high: 12, most: 320});
    } else {
      const line = make('p', undefined, element('states'));
      make('b', `${state.name} `, line);
      make('span', [...values(part)].map(shown).join('  '), line);
    }
  }
}

function move(by) {
  element('layer').value = Number(element('layer').value) + by;
  show();
}
element('layer').max = Math.max(data.layers.length - 1, 0);
element('layer').addEventListener('input', show);
element('scale').addEventListener('change', show);
element('back').addEventListener('click', () => move(-1));
element('on').addEventListener('click', () => move(1));
show();
