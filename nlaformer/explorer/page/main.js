// The page's own functions for those who look at it from outside: the browser's console, and the tests.
import { applyLayer, tokenMatrix } from "./transformer.js";
import { prompt as algorithmPrompt, run as runAlgorithm, trace as traceAlgorithm } from "./algorithm.js";
import { catalogue, openAlgorithm, openOperation, openSolver } from "./engine.js";
import { prompt as operationPrompt, read as readResult, reference as operationReference, trace as traceOperation } from "./operation.js";
import { run as runProgram } from "./program.js";
import { run as runSolver } from "./solver.js";

window.explorer = {
  catalogue, openAlgorithm, openOperation, openSolver, applyLayer, tokenMatrix, algorithmPrompt, runAlgorithm,
  traceAlgorithm, operationPrompt, operationReference, readResult, traceOperation, runProgram, runSolver,
};
