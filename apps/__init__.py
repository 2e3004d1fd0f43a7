"""Programs for people on top of kvsim; they hold widgets and calls, no modelling."""
