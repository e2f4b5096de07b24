"""What travels between a method's hooks, and the contract of the seven hooks.

One method is one frozen dataclass. Its fields are the program and the hyper-parameters; all state is in trees.

    init(key) -> server                          the server's first state
    down(server, client) -> down                 what client `client` receives
    join(down) -> own                            a client's first own state
    local(down, own, data, key) -> Reply         the client's update: pure, no `.item()`, works under `vmap`
    aggregate(server, ups, cohort) -> server     `ups`: every leaf (C, ...), in ascending client id
    personal(down, own, data, key) -> theta      what the client predicts with (new clients: join, then personal)
    predict(theta, x, key) -> (B, K)             predictive parameters of one posterior draw (see `likelihoods`)

Two declarations go with them, for the gate and for the evaluation:

    message(down) -> Tree                        a tree with the names, shapes and dtypes of the client's `Reply.up`
    common(server) -> theta | None               the server's own model, None where there is none

A method with a field `rounds` is given the run's total; `uses_rounds` says whether it has an effect, as it has unless
this is overridden: then the run cannot be resumed with another total.

Server leaves named `report/NAME`, each (), are numbers for people: logged every round, and not sent to clients.

`methods.fedavg.FedAvg` defines all seven; every other method overrides some. The server sees `Reply.up` and nothing
else of a client; everything random takes `key`. Class attributes: `guide` and `prior` are the defaults of the
configuration, `guides` the families that fit, all others being refused because the method `guides_because`; `travels`
and `stays` say in words what leaves a client and what does not; `pools` marks a method that is given all clients' rows
at once.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from .tree import Tree


class Reply(NamedTuple):
    """What `local` returns."""

    up: Tree  # goes to the server
    own: Tree  # stays on the client until its next round
    info: Tree  # scalars for the log: another shape is a bad reply, which is left out


class Cohort(NamedTuple):
    """The clients whose replies reached `aggregate`, in ascending id."""

    ids: Tensor  # (C,) int64
    n: Tensor  # (C,) training rows
    key: Tensor  # () for a server step that draws
    round: int  # from 1
