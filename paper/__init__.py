"""The paper's tables and figures, and a verdict on each of its claims: plan, runs, numbers, figure, verdict."""
