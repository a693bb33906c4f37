// Systems: typed or pasted ones, and families drawn in the page with a seed. The draws are the page's own; the families
// are those of nlaformer.problems.
import { norm, normExponent, scaled, times2 } from "./scaling.js";

// --- text to numbers ---

// { rows } of numbers, or { problem }, a sentence. What NumPy and torch print may be pasted as it is.
function parseRows(text) {
  const lines = text.replace(/\b(\w+\.)?(array|tensor)\(|,?\s*\bdtype=[\w.]+/g, "").replace(/[[\]()]+\s*,?/g, "\n").split(/[\n;]+/).map((line) => line.trim().replace(/,$/, "")).filter(Boolean);
  const rows = [];
  for (const [k, line] of lines.entries()) {
    const row = [];
    for (const word of line.split(/[\s,]+/).filter(Boolean)) {
      const value = Number(word.replaceAll("−", "-"));
      if (!Number.isFinite(value)) return { problem: `“${word.slice(0, 40)}” in row ${k + 1} is not a finite number.` };
      row.push(value);
    }
    rows.push(row);
  }
  return rows.length ? { rows } : { problem: "There are no numbers." };
}

export function parseMatrix(text) {
  const { rows, problem } = parseRows(text);
  if (problem) return { problem };
  const wrong = rows.findIndex((row) => row.length !== rows[0].length);
  if (wrong > 0) return { problem: `The first row has length ${rows[0].length}, row ${wrong + 1} has length ${rows[wrong].length}.` };
  if (rows.length !== rows[0].length) return { problem: `The matrix is ${rows.length} × ${rows[0].length}; it must be square.` };
  return { n: rows.length, data: rows.flat() };
}

export function parseVector(text) {
  const { rows, problem } = parseRows(text);
  return problem ? { problem } : { n: rows.flat().length, data: rows.flat() };
}

export function matrixText(data, n) {
  return Array.from({ length: n }, (_, i) => vectorText(data.slice(i * n, (i + 1) * n))).join("\n");
}

export function vectorText(data) {
  return Array.from(data, (x) => String(Number(x.toPrecision(6)))).join("  ");
}

// --- random numbers ---

// Numbers in [0, 1) from a seed: splitmix32.
export function uniforms(seed) {
  let state = (seed | 0) ^ 0x2545f491;
  return () => {
    state = (state + 0x9e3779b9) | 0;
    let z = state ^ (state >>> 16);
    z = Math.imul(z, 0x21f0aaad);
    z = Math.imul(z ^ (z >>> 15), 0x735a2d97);
    return ((z ^ (z >>> 15)) >>> 0) / 4294967296;
  };
}

function normals(uniform) {
  return () => Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform());
}

// A random orthogonal matrix, columns after Gram and Schmidt, twice.
function orthogonal(n, entry) {
  const columns = Array.from({ length: n }, () => Array.from({ length: n }, entry));
  for (let pass = 0; pass < 2; pass++) {
    columns.forEach((v, k) => {
      for (const u of columns.slice(0, k)) {
        const along = u.reduce((sum, x, i) => sum + x * v[i], 0);
        u.forEach((x, i) => (v[i] -= along * x));
      }
      const size = Math.hypot(...v);
      v.forEach((x, i) => (v[i] = x / size));
    });
  }
  return columns;
}

// sum_k value_k u_k u_k^T.
function fromSpectrum(columns, values) {
  const n = columns.length;
  const A = new Array(n * n).fill(0);
  columns.forEach((u, k) => {
    for (let i = 0; i < n; i++) for (let j = 0; j < n; j++) A[i * n + j] += values[k] * u[i] * u[j];
  });
  return A;
}

// --- families: (n, parameter, random) -> A ---

// scikit-learn's make_spd_matrix plus a log-normal diagonal: with the eigenvectors U of G^T G for a uniform G, each with a
// random sign, (U 1)(U 1)^T + U diag(u) U^T + diag(e^(sigma z)). See nlaformer/problems/spd.py.
function paperFamily(n, sigma, uniform) {
  const normal = normals(uniform);
  const G = Array.from({ length: n * n }, uniform);
  const square = Array.from({ length: n * n }, (_, k) => {
    let sum = 0;
    for (let i = 0; i < n; i++) sum += G[i * n + Math.floor(k / n)] * G[i * n + (k % n)];
    return sum;
  });
  const columns = eigenvectors(square, n).map((u) => {
    const sign = (u.reduce((x, y) => x + y, 0) < 0) !== (uniform() < 0.5) ? -1 : 1;
    return u.map((x) => sign * x);
  });
  const A = fromSpectrum(columns, columns.map(uniform));
  const ones = Array.from({ length: n }, (_, i) => columns.reduce((sum, u) => sum + u[i], 0));
  for (let i = 0; i < n; i++) for (let j = 0; j < n; j++) A[i * n + j] += ones[i] * ones[j];
  for (let i = 0; i < n; i++) A[i * n + i] += Math.exp(sigma * normal());
  return A;
}

// The eigenvectors of a symmetric matrix, by Jacobi's rotations.
function eigenvectors(given, n) {
  const S = Float64Array.from(given);
  const V = Array.from({ length: n }, (_, i) => Array.from({ length: n }, (_, j) => (i === j ? 1 : 0)));
  for (let sweep = 0; sweep < 12; sweep++) {
    let beside = 0;
    for (let p = 0; p < n; p++) for (let q = p + 1; q < n; q++) {
      beside += S[p * n + q] ** 2;
      if (S[p * n + q] !== 0) rotate(S, V, n, p, q);
    }
    if (beside < 1e-24) break;
  }
  return V;
}

// The rotation in the plane of p and q that takes S[p, q] to 0; V holds the eigenvectors as rows.
function rotate(S, V, n, p, q) {
  const theta = (S[q * n + q] - S[p * n + p]) / (2 * S[p * n + q]);
  const t = (theta < 0 ? -1 : 1) / (Math.abs(theta) + Math.sqrt(theta * theta + 1));
  const c = 1 / Math.sqrt(t * t + 1);
  const s = t * c;
  for (let k = 0; k < n; k++) {
    const [a, b] = [S[k * n + p], S[k * n + q]];
    [S[k * n + p], S[k * n + q]] = [c * a - s * b, s * a + c * b];
  }
  for (let k = 0; k < n; k++) {
    const [a, b] = [S[p * n + k], S[q * n + k]];
    [S[p * n + k], S[q * n + k]] = [c * a - s * b, s * a + c * b];
    [V[p][k], V[q][k]] = [c * V[p][k] - s * V[q][k], s * V[p][k] + c * V[q][k]];
  }
}

function conditioned(n, condition, uniform) {
  const columns = orthogonal(n, normals(uniform));
  return fromSpectrum(columns, columns.map((_, k) => condition ** (n > 1 ? -k / (n - 1) : 0)));
}

function laplacian(n) {
  return Array.from({ length: n * n }, (_, k) => {
    const distance = Math.abs(Math.floor(k / n) - (k % n));
    return distance === 0 ? 2 : distance === 1 ? -1 : 0;
  });
}

export const FAMILIES = {
  paper: { title: "The paper’s family", about: "A random positive definite matrix plus diag(e^(sigma z)), z normal: larger sigma, larger condition number.", parameter: "sigma", make: paperFamily },
  condition: { title: "Given condition number", about: "Random eigenvectors; eigenvalues from 1 down to 1 / condition, each a constant factor below the last.", parameter: "condition", make: conditioned },
  laplacian: { title: "Second differences", about: "2 on the diagonal, −1 beside it: the Laplace operator on a line.", parameter: null, make: laplacian },
};

// A system with a known solution: { A, b, x }.
export function drawSystem(family, n, { sigma = 1.2, condition = 100 }, seed) {
  const uniform = uniforms(seed);
  const { make, parameter } = FAMILIES[family];
  const A = make(n, { sigma, condition }[parameter], uniform);
  const normal = normals(uniform);
  const x = Array.from({ length: n }, normal);
  return { A, b: product(A, x), x };
}

function product(A, x) {
  const n = x.length;
  return Array.from({ length: n }, (_, i) => x.reduce((sum, value, k) => sum + A[i * n + k] * value, 0));
}

// The solution of A x = b by elimination with pivots; null where a pivot is zero or the solution beyond float64.
export function solve(given, right) {
  const n = right.length;
  const [e, f] = [normExponent(given), normExponent(right)];
  const [A, b] = [scaled(given, -e), scaled(right, -f)];
  const M = Array.from({ length: n }, (_, i) => [...A.subarray(i * n, (i + 1) * n), b[i]]);
  for (let k = 0; k < n; k++) {
    const pivot = M.reduce((best, row, i) => (i >= k && Math.abs(row[k]) > Math.abs(M[best][k]) ? i : best), k);
    if (!(Math.abs(M[pivot][k]) > 0)) return null;
    [M[k], M[pivot]] = [M[pivot], M[k]];
    for (let i = k + 1; i < n; i++) {
      const factor = M[i][k] / M[k][k];
      for (let j = k; j <= n; j++) M[i][j] -= factor * M[k][j];
    }
  }
  const x = new Array(n).fill(0);
  for (let i = n - 1; i >= 0; i--) {
    x[i] = (M[i][n] - M[i].slice(i + 1, n).reduce((sum, a, k) => sum + a * x[i + 1 + k], 0)) / M[i][i];
  }
  const solution = x.map((value) => times2(value, f - e));
  return solution.every(Number.isFinite) ? solution : null;
}

export const UNSOLVED = "Elimination finds no solution of A x = b in float64 to compare with: A is singular, or the solution too large.";

// What a user should know about a matrix before a method for symmetric ones runs on it; "" if nothing.
export function remark(given, n, definite) {
  const A = scaled(given, -normExponent(given));
  const isSymmetric = A.every((a, k) => Math.abs(a - A[(k % n) * n + Math.floor(k / n)]) < 1e-12);
  if (!isSymmetric) return "A is not symmetric; this method is made for symmetric matrices.";
  return !definite || isDefinite(A, n) ? "" : "A is not positive definite; this method need not converge.";
}

// |M^k|^(1/k) for k = 2^20, by squaring.
export function spectralRadius(M, n) {
  let [power, log] = [M, 0];
  for (let k = 0; k < 20; k++) {
    const size = norm(power);
    if (size === 0) return 0;
    if (!Number.isFinite(size)) return Infinity;
    log += Math.log(size) / 2 ** k;
    const P = power.map((x) => x / size);
    power = P.map((_, at) => {
      let sum = 0;
      for (let k = 0; k < n; k++) sum += P[Math.floor(at / n) * n + k] * P[k * n + (at % n)];
      return sum;
    });
  }
  return Math.exp(log);
}

function isDefinite(A, n) {
  const L = new Float64Array(n * n);
  for (let i = 0; i < n; i++) for (let j = 0; j <= i; j++) {
    let sum = A[i * n + j];
    for (let k = 0; k < j; k++) sum -= L[i * n + k] * L[j * n + k];
    if (i === j && !(sum > 0)) return false;
    L[i * n + j] = i === j ? Math.sqrt(sum) : sum / L[j * n + j];
  }
  return true;
}

// |x - exact|^2 / |exact|^2; what is not a number is infinitely far off.
export function squaredRelativeError(x, exact) {
  const e = -normExponent(exact);
  const squares = (values) => values.reduce((sum, v) => sum + times2(v, e) ** 2, 0);
  const off = squares(exact.map((v, k) => x[k] - v));
  if (Number.isNaN(off)) return Infinity;
  return off === 0 ? 0 : off / squares(exact);
}
