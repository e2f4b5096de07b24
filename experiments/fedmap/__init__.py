"""Personal models under a Gaussian prior: the scenarios of the FedMAP paper."""
