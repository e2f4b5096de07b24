"""Whether a variational posterior deserves trust: each check is a function of plain arrays.

`khat` (is the guide close enough to the posterior to correct it?), `elbo_trend` (has training settled?), `contraction`
(what did the data add to the prior?) and `agreement` (do runs with other seeds say the same?). There is one chain, so
there is no R-hat.
"""

from .agreement import Agreement, agreement
from .contraction import Contraction, contraction
from .elbo import Trend, elbo_trend
from .khat import Khat, khat
from .table import table

__all__ = ["Agreement", "Contraction", "Khat", "Trend", "agreement", "contraction", "elbo_trend", "khat", "table"]
