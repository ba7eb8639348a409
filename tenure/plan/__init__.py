"""What to compute and in which order: plan files, and the arithmetic of allocation."""
