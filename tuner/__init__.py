"""How the best variant is found: compile, prune, predict, time, verify, choose."""
