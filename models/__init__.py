"""Networks and Pyro models of the experiments, named in a configuration as "models.mlp:MLP"; pyrofl imports none."""
