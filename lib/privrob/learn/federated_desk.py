"""What the federated server needs of Flower: it loaded quietly, and the server's end of all connections.

Source: ours, on Flower's older server.
"""

from __future__ import annotations

import logging
import os
import time
import warnings
from types import SimpleNamespace

from privrob import checks
from privrob.learn.federated_wire import unpack


def flower():
    """The parts of Flower used here, loaded late and silent.

    Nothing in them notes an id under the home folder, as ``start_server`` and ``start_client`` do even when told to
    send no telemetry.
    """
    os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
    try:
        import grpc
        from flwr import client, common, server
        from flwr.common import serde
        from flwr.compat.client import app
        from flwr.proto import transport_pb2
        from flwr.server import server as rounds
        from flwr.server.superlink.fleet.grpc_bidi import grpc_server
        from flwr.supercore import telemetry
    except ImportError as error:
        raise ImportError(
            "users on machines of their own need the package flwr: install privrob[federated], or simulate them with "
            "privrob.learn.federated.train"
        ) from error
    telemetry.FLWR_TELEMETRY_ENABLED = "0"  # also where Flower was loaded before
    for name in ("flwr", "grpc._server"):  # a connection that breaks is a lost user, not a traceback
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return SimpleNamespace(
        LostConnection=grpc.RpcError,
        Client=client.Client,
        common=common,
        run_client=app.start_client_internal,
        new_manager=server.SimpleClientManager,
        run_server=grpc_server.start_grpc_server,
        rounds=rounds,
        message_size=lambda reply: transport_pb2.ClientMessage(fit_res=serde.fit_res_to_proto(reply)).ByteSize(),
    )


class Desk:
    """The server's end of all connections. ``present`` — {user: connection};  ``lost`` — {user: round}.

    Args: fl — Flower, loaded quietly;  study — :class:`privrob.learn.federated_wire.Study`;  address — HOST:PORT;
        certificates — for TLS, or None.
    """

    def __init__(self, fl, study, address, certificates):
        self.fl, self.study, self.manager = fl, study, fl.new_manager()
        self.present, self.lost = {}, {}
        try:
            self.engine = fl.run_server(self.manager, address, certificates=certificates)
        except (SystemExit, RuntimeError) as error:
            raise OSError(f"address must be a free HOST:PORT of this machine, got address={address!r}") from error

    def gather(self, total, join_s):
        """Wait for all users; a client with another study, or for a user who is here, is sent away.

        Args: total — how many users;  join_s — seconds to wait.
        """
        seen, until = set(), time.monotonic() + join_s
        while len(self.present) < total:
            for name, proxy in list(self.manager.all().items()):
                if name not in seen:
                    seen.add(name)
                    self._welcome(proxy, total)
            self.present = {user: proxy for user, proxy in self.present.items() if proxy.cid in self.manager.all()}
            if time.monotonic() > until:
                missing = sorted(set(range(total)) - set(self.present))
                raise TimeoutError(f"users {missing} did not join within join_s={join_s:g} seconds")
            time.sleep(0.05)

    def _welcome(self, proxy, total):
        ask = self.fl.common.GetPropertiesIns
        try:
            said = proxy.get_properties(ask({}), timeout=60, group_id=0).properties
            user, why = checks.integer("user", said["user"], low=0, high=total - 1), None
            if said["study"] != self.study.digest:
                why = "its study (settings, seed, classes, shape) differs from the server's"
            elif user in self.present:
                why = "this user is here already"
            if why is None:
                self.present[user] = proxy
                return
            warnings.warn(f"a client for user {user} was refused: {why}", RuntimeWarning, stacklevel=4)
            proxy.get_properties(ask({"refused": why}), timeout=60, group_id=0)
        except Exception:  # whoever breaks off has not joined
            logging.getLogger(__name__).info("a client left before it joined", exc_info=True)

    def round(self, users, weights, number, round_s):
        """{user: (symbols, bytes of them, bytes of the message)} of those who reply; the others are lost from now.

        Args: users — who is asked;  weights — (d,);  number — of the round;  round_s — seconds to wait.
        """
        common, alive = self.fl.common, self.manager.all()
        gone = {user for user, proxy in self.present.items() if proxy.cid not in alive}
        parameters = common.Parameters([weights.astype("<f8").tobytes()], "privrob")
        ask, names = common.FitIns(parameters, {"round": number}), {p.cid: u for u, p in self.present.items()}
        asked = [user for user in users if user in self.present and user not in gone]
        found, replies = [], {}
        if asked:
            orders = [(self.present[user], ask) for user in asked]
            found, _ = self.fl.rounds.fit_clients(orders, len(orders), round_s, number)
        for proxy, result in found:
            try:
                (data,) = result.parameters.tensors
                symbols = unpack(self.study.settings.mechanism, data, len(weights))
            except ValueError as error:
                warnings.warn(f"user {names[proxy.cid]}: {error}", RuntimeWarning, stacklevel=3)
                continue
            replies[names[proxy.cid]] = symbols, len(data), self.fl.message_size(result)
        for user in sorted(gone | (set(asked) - set(replies))):
            warnings.warn(f"user {user} is lost from round {number} on", RuntimeWarning, stacklevel=3)
            self.lost[user] = number
            del self.present[user]
        return replies

    def close(self):
        """Tell everyone that it is over."""
        goodbye = self.fl.common.ReconnectIns(seconds=None)
        self.fl.rounds.reconnect_clients([(p, goodbye) for p in list(self.manager.all().values())], None, timeout=10)
        self.engine.stop(grace=1).wait()
