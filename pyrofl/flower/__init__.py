"""The same methods on Flower: many simulated clients, or real sites that keep their rows (docs/deployment.md).

The server sends `Method.down`, a site answers with `Reply.up`, and nothing else of a client leaves it but its number of
training rows, the scalars of its round and its scores. Needs flwr: pip install 'pyrofl[flower]'.
"""

from importlib.util import find_spec

if find_spec("flwr") is None:
    raise ModuleNotFoundError("engine = 'flower' needs Flower: pip install 'pyrofl[flower]'", name="flwr")
