"""The target machine: rows of the prompt, instructions that are one layer each, and their weights."""
