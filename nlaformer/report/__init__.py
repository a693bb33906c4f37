"""Pictures of prompts, models and runs, drawn from plain arrays and sizes; this room imports no other."""
