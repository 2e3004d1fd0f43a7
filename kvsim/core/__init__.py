"""Pure logic: allocators, schedulers and accounting. Standard library only."""
