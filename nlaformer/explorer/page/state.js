// What the page shows, as plain data: kept in the address, saved to a file, restored from either.
import { FAMILIES } from "./systems.js";

export const START = {
  view: "watch",
  theme: "", // that of the system
  watch: { what: "algorithm cg", n: 4, texts: { A: "4 1 0 0\n1 3 1 0\n0 1 2 1\n0 0 1 5", b: "1 2 3 4" }, at: 0, register: null, family: "paper", sigma: 1.2, condition: 100, seed: 1 },
  compare: { family: "paper", n: 20, sigma: 1.2, condition: 100, count: 1, seed: 1, methods: ["cg", "pcg", "compiled cg", "guided-cg", "cg-accelerated"] },
  learned: { model: "cg-accelerated", sigma: 1.2, seed: 1, t: 1, texts: { A: "", b: "" } },
  paper: { verdict: "all" },
};

// The least and the largest of each number, and whether it is whole: an address or a file may say anything.
export const NUMBERS = {
  at: [0, 1e6, true], t: [0, 1e6, true], n: [2, 20, true], seed: [0, 999999, true], count: [1, 128, true], sigma: [0, 2], condition: [1, 1e6],
};

export function bounded(name, value) {
  const [least, most, whole] = NUMBERS[name];
  const inside = Math.min(Math.max(value, least), most);
  return whole ? Math.round(inside) : inside;
}

// A copy of `known` with those values of `given` that have the same kind; anything else stays as it is known.
export function merged(known, given) {
  if (given === null || typeof given !== "object") return known;
  const result = { ...known };
  for (const name of Object.keys(known)) {
    const [here, there] = [known[name], given[name]];
    if (there === undefined) continue;
    if (Array.isArray(here)) {
      if (Array.isArray(there)) result[name] = there.filter((item) => typeof item === "string");
    } else if (name === "texts") {
      if (there && typeof there === "object") result[name] = Object.fromEntries(Object.entries(there).filter(([, text]) => typeof text === "string"));
    } else if (here !== null && typeof here === "object") result[name] = merged(here, there);
    else if (typeof here === "number") result[name] = typeof there === "number" ? bounded(name, there) : here;
    else if (name === "family") result[name] = Object.hasOwn(FAMILIES, there) ? there : here;
    else if (name === "theme") result[name] = ["", "light", "dark"].includes(there) ? there : here;
    else if (name === "register") result[name] = typeof there === "string" ? there : null;
    else if (typeof here === typeof there) result[name] = there;
  }
  return result;
}

export function fromAddress(hash) {
  try {
    return merged(START, JSON.parse(decodeURIComponent(hash.slice(1))));
  } catch {
    return START;
  }
}

export function toAddress(state) {
  return `#${encodeURIComponent(JSON.stringify(state))}`;
}
