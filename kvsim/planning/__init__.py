"""What a server would do at start-up with a model on a GPU, and what to change."""
