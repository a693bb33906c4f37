// Equation (1) in float64. A token matrix P is { rows, tokens, data }, row after row.
//
//   Attn(P) = P + sum_i W_V^i P softmax(P^T W_K^iT W_Q^i P)      softmax over the keys of each column
//   TF(P)   = Attn(P) + W_2 ReLU(W_1 Attn(P) + b_1) + b_2
//
// The heads of a layer are stored together and factored, W_V = W_O W_U, as in nlaformer/transformer.py.

export function tokenMatrix(rows, tokens, data = new Float64Array(rows * tokens)) {
  return { rows, tokens, data };
}

// --- weights ---

// A weight out of the store; a sparse one by rows: first[r] is where the entries of row r begin.
export function readWeight(described, array) {
  const [rows, columns] = described.shape;
  const values = array(described.values);
  if (!described.counts) return { rows, columns, values };
  const counts = array(described.counts);
  const steps = array(described.steps);
  const first = new Int32Array(rows + 1);
  for (let r = 0; r < rows; r++) first[r + 1] = first[r] + counts[r];
  const column = new Int32Array(steps.length);
  for (let k = 0, at = 0; k < steps.length; k++) column[k] = at += steps[k];
  return { rows, columns, values, first, column };
}

function readLayer(described, array) {
  const { heads, ffn, norm } = described;
  const weights = (part, names) => Object.fromEntries(names.map((name) => [name, readWeight(part[name], array)]));
  return {
    heads: heads && { count: heads.count, ...weights(heads, ["W_Q", "W_K", "W_U", "W_O"]) },
    ffn: ffn && { ...weights(ffn, ["W_1", "W_2"]), b_1: array(ffn.b_1), b_2: array(ffn.b_2) },
    norm: norm && { gains: norm.gains.map(array), rows: norm.rows, eps: norm.eps },
  };
}

export function readModel(described, array) {
  const block = (name) => described[name].map((layer) => readLayer(layer, array));
  return { pre: block("pre"), loop: block("loop"), post: block("post") };
}

// W X, as a new token matrix.
export function times(W, X) {
  const { tokens, data } = X;
  const { rows, columns, values, first, column } = W;
  const out = new Float64Array(rows * tokens);
  for (let r = 0; r < rows; r++) {
    const begin = first ? first[r] : r * columns;
    const end = first ? first[r + 1] : begin + columns;
    // For entry k, where its row of X begins.
    const from = first ? (k) => column[k] * tokens : (k) => (k - begin) * tokens;
    let k = begin;
    for (; k + 4 <= end; k += 4) addFour(out, r * tokens, data, tokens, values, k, from(k), from(k + 1), from(k + 2), from(k + 3));
    for (; k < end; k++) {
      const [w, at] = [values[k], from(k)];
      for (let t = 0; t < tokens; t++) out[r * tokens + t] += w * data[at + t];
    }
  }
  return tokenMatrix(rows, tokens, out);
}

// Four rows of X at once: this loop takes nearly all the time of a trained model.
function addFour(out, at, data, tokens, values, k, a, b, c, d) {
  const [u, v, w, x] = [values[k], values[k + 1], values[k + 2], values[k + 3]];
  for (let t = 0; t < tokens; t++) out[at + t] += u * data[a + t] + v * data[b + t] + w * data[c + t] + x * data[d + t];
}

// --- the parts of a layer ---

function plus(X, Y) {
  const data = new Float64Array(X.data);
  for (let k = 0; k < data.length; k++) data[k] += Y.data[k];
  return tokenMatrix(X.rows, X.tokens, data);
}

// X over the root mean square of each column, times the gain; over all rows, or those from rows[0] to before rows[1].
function normalized(X, gain, { rows, eps }) {
  const [begin, end] = rows ?? [0, X.rows];
  const { tokens } = X;
  const data = new Float64Array(X.data);
  for (let t = 0; t < tokens; t++) {
    let square = 0;
    for (let r = begin; r < end; r++) square += X.data[r * tokens + t] ** 2;
    const factor = 1 / Math.sqrt(square / (end - begin) + eps);
    for (let r = begin; r < end; r++) data[r * tokens + t] *= factor * gain[r - begin];
  }
  return tokenMatrix(X.rows, tokens, data);
}

// The softmax over the keys: weights[q * tokens + k] is what query q reads from key k.
function attentionWeights(Q, K, head, width) {
  const tokens = Q.tokens;
  const weights = new Float64Array(tokens * tokens);
  for (let q = 0; q < tokens; q++) {
    const at = q * tokens;
    let largest = -Infinity;
    for (let k = 0; k < tokens; k++) {
      let score = 0;
      for (let i = head * width; i < (head + 1) * width; i++) score += Q.data[i * tokens + q] * K.data[i * tokens + k];
      weights[at + k] = score;
      if (!(score <= largest)) largest = score;
    }
    let sum = 0;
    for (let k = 0; k < tokens; k++) sum += weights[at + k] = Math.exp(weights[at + k] - largest);
    for (let k = 0; k < tokens; k++) weights[at + k] /= sum;
  }
  return weights;
}

// What the heads add to P, for X = P or P normalized; `record` is given each head's attention weights.
function attended(heads, X, record) {
  const { count } = heads;
  const { tokens } = X;
  const [Q, K, U] = [heads.W_Q, heads.W_K, heads.W_U].map((W) => times(W, X));
  const width = Q.rows / count;
  const carried = U.rows / count;
  const mixed = tokenMatrix(U.rows, tokens);
  for (let h = 0; h < count; h++) {
    const weights = attentionWeights(Q, K, h, width);
    record?.(h, weights);
    for (let r = h * carried; r < (h + 1) * carried; r++) {
      for (let q = 0; q < tokens; q++) {
        let sum = 0;
        for (let k = 0; k < tokens; k++) sum += weights[q * tokens + k] * U.data[r * tokens + k];
        mixed.data[r * tokens + q] = sum;
      }
    }
  }
  return times(heads.W_O, mixed);
}

function fed(ffn, X) {
  const hidden = times(ffn.W_1, X);
  const { tokens } = X;
  for (let r = 0; r < hidden.rows; r++) {
    for (let t = 0; t < tokens; t++) {
      const value = hidden.data[r * tokens + t] + ffn.b_1[r];
      hidden.data[r * tokens + t] = value > 0 || Number.isNaN(value) ? value : 0;
    }
  }
  const added = times(ffn.W_2, hidden);
  for (let r = 0; r < added.rows; r++) for (let t = 0; t < tokens; t++) added.data[r * tokens + t] += ffn.b_2[r];
  return added;
}

// One layer. `record`, if given, is called with (head, weights) for each head.
export function applyLayer(layer, P, record) {
  const { heads, ffn, norm } = layer;
  let X = P;
  if (heads) X = plus(X, attended(heads, norm ? normalized(X, norm.gains[0], norm) : X, record));
  if (ffn) X = plus(X, fed(ffn, norm ? normalized(X, norm.gains[1], norm) : X));
  return X;
}

export function applyBlock(layers, P) {
  return layers.reduce((X, layer) => applyLayer(layer, X), P);
}

// The attention weights of every head of a layer.
export function attentionOf(layer, P) {
  const found = [];
  if (layer.heads) applyLayer({ ...layer, ffn: undefined }, P, (head, weights) => (found[head] = weights));
  return found;
}
