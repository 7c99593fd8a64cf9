"""How a plain decoder becomes a parallel one, from outside: tensor roles, recomputation, sharding, and their order."""
