"""Pictures of prompts, layers and runs."""
