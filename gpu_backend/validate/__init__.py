"""Simulated against measured: the same scenario on a clock that predicts and on one that runs."""
