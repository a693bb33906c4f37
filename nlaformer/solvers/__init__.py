"""Classical methods, batched; their states are the teachers' trajectories."""
