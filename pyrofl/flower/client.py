"""The ClientApp: messages in, hooks of the method, messages out."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from ..gate import reason_of_info
from .records import record, tree
from .site import Site, Sum, as_key

Open = Callable[[str, Context], Site]  # (configuration, context) -> the site behind this node


def client_app(open_site: Open) -> ClientApp:
    """Answers four kinds of message, each with the run's configuration: who are you, your key, train, evaluate."""
    app = ClientApp()

    @app.query()
    def hello(message: Message, context: Context) -> Message:
        site = open_site(_asked(message)["config"], context)
        rows, tests = site.counts()
        facts = {"client": site.client, "name": site.name, "rows": rows, "tests": tests}
        return Message(RecordDict({"site": ConfigRecord(facts)}), reply_to=message)

    @app.query("key")
    def key(message: Message, context: Context) -> Message:
        asked = _asked(message)
        public = open_site(asked["config"], context).public_key(as_key(asked["key"]))
        return Message(RecordDict({"key": ConfigRecord({"public": public})}), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        asked = _asked(message)
        site = open_site(asked["config"], context)
        group = Sum(asked["sites"], asked["keys"], asked["share"]) if "sites" in asked else None
        try:
            reply = site.update(tree(message.content["down"]), as_key(asked["key"]), asked.get("after"), group)
        except Exception:
            if site.messages.privacy is None:
                raise
            logging.getLogger(__name__).exception("this site's update failed")  # here, since it may speak of rows
            raise RuntimeError("the update failed, and privacy lets only the site's own log say why") from None
        if reason := reason_of_info(reply.info):
            raise ValueError(f"{type(site.method).__name__}.local: {reason}")
        info = MetricRecord({name: float(v) for name, v in reply.info.items()})
        has_own = ConfigRecord({"own": bool(reply.own)})
        return Message(RecordDict({"up": record(reply.up), "info": info, "kept": has_own}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        asked, content = _asked(message), message.content
        site = open_site(asked["config"], context)
        down = tree(content["down"])
        common = None
        if "of_down" in asked:  # the server's own model: these of `down`, and what `down` does not hold
            common = {name: down[name] for name in asked["of_down"]}
            common |= tree(content["common"]) if "common" in content else {}
        scores = site.scores(down, common, as_key(asked["root"]), asked["round"], asked["draws"], asked.get("after"))
        flat = {f"{model}/{score}": v for model, values in scores.items() for score, v in values.items()}
        known = MetricRecord({name: float(v) for name, v in flat.items() if v is not None})
        undefined = ConfigRecord({"names": [name for name, v in flat.items() if v is None]})
        return Message(RecordDict({"scores": known, "undefined": undefined}), reply_to=message)

    return app


def _asked(message: Message) -> dict[str, Any]:
    return dict(message.content.config_records["asked"])
