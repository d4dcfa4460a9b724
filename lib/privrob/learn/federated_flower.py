r"""The same federated rounds with users on machines of their own: Flower carries the messages.

The server and each user read the same ``study.json``; a user has a file of its own records (``images``, ``labels``)::

    {"seed": 7, "num_classes": 10, "in_shape": [1, 28, 28], "settings": {"num_users": 3, "num_rounds": 50, ...}}

    python -m privrob.learn.federated_flower serve study.json --address 0.0.0.0:8080 --test test.npz --min-users 2
    python -m privrob.learn.federated_flower join study.json --user 0 --records user-0.npz --address server:8080 \
        --randomness own

``settings`` are those of :class:`privrob.learn.federated.FederatedSettings`. For a comparison, ``share`` deals the
files of all users as the simulation deals its records. With ``--randomness study`` everyone sends the symbols of
:func:`privrob.learn.federated.train` under ``Streams(seed)``, in whatever order replies come, so that weights and rows
agree to the bit. (Gradients are summed in another order: a vote differs if its uniform number falls into that rounding,
about 1e-16 of the time; without a compressor weights agree to rounding only.)

Privacy. Who knows the seed can recompute what ``study`` randomness hid: it is for experiments. With ``own``, only the
coin of a round is shared; records and votes are drawn from the machine's entropy (through Philox, which is no
cryptographic generator). A user answers a round once, and never round T or later; started again it counts anew, so
don't. The server reads every reply by name, and nothing proves who a user is: use ``--certificates`` against listeners.

A lost user. Whoever breaks the connection, exceeds the time of a round, or sends what is no reply counts as not drawn,
then and for the rest of the run; a warning and the column ``lost`` (user: round) say so. The aggregate is over who did
reply, with nothing rescaled: an average stays an average of fewer, and honest users who are lost leave attackers a
larger share of the votes. The guarantee of :func:`privrob.learn.federated_privacy.user_privacy` stays an upper bound (a
late reply may have been read, so none is given back), but that someone is lost is outside of it. With fewer than
``min_users`` left (default: as soon as one is lost) the run stops before that round's step.

Flower's older server and client are used, one process a machine. Flower deprecates them (hence the exact pin) for a
launcher that sends the study's code from the server to the users, who here run what they have installed themselves. Its
telemetry is off (FLWR_TELEMETRY_ENABLED=0), and what would note an id under the home folder is never called.

Paper: fdp, Algorithm 5.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np

from privrob import checks
from privrob.learn.batches import as_labels
from privrob.learn.federated import accuracy, bits_sent, flat_weights
from privrob.learn.federated_desk import Desk, flower
from privrob.learn.federated_server import Server
from privrob.learn.federated_wire import RANDOMNESS, Member, Study, records, share_out


def serve(study, *, address, test=((), ()), min_users=None, join_s=3600.0, round_s=600.0, certificates=None, save=None):
    """Run a study's server; yields rows as :func:`privrob.learn.federated.train` does, but for what only a study knows.

    Paper: fdp, Algorithm 5, the outer loop.
    Args: address — HOST:PORT;  test — images, labels;  min_users — of all, attackers too;  join_s, round_s — seconds
        that users have to join, and to reply;  certificates — for TLS: CA, server certificate and key, each as bytes;
        save — a file for the last weights.
    Yields: dicts ``round``, ``test_accuracy``, ``bits_fixed``, ``bits_entropy``, ``empty_rounds``, ``seconds`` as
        there; an honest user's ``bytes_packed`` (symbols) and ``bytes_sent`` (with Flower's envelope; those of
        HTTP/2, TLS and TCP come on top) so far; ``lost``.
    """
    settings, model, began = study.settings, study.model(), time.perf_counter()
    images, labels = test[0], as_labels("test labels", test[1], num_classes=study.num_classes)
    total = settings.num_users + settings.num_attackers
    least = total if min_users is None else checks.integer("min_users", min_users, low=1, high=total)
    server, weights, counts, empty = Server(settings, streams=study.streams), flat_weights(model), np.zeros(4), 0
    desk = Desk(flower(), study, address, certificates)
    try:
        desk.gather(total, join_s)
        for number in range(settings.num_rounds):
            got = desk.round(server.drawn(number).tolist(), weights, number, round_s)
            if len(desk.present) < least:
                left = f"{len(desk.present)} users are left in round {number}, min_users={least}"
                raise RuntimeError(f"{left}; lost (user: round): {desk.lost}")
            weights = server.update(weights, {user: reply[0] for user, reply in got.items()}, number=number)
            empty += not got
            honest = [got[user] for user in sorted(got) if user < settings.num_users]
            if honest:
                bits = bits_sent(server.mechanism, np.stack([reply[0] for reply in honest]))
                counts += np.array([*bits, *np.sum([reply[1:] for reply in honest], axis=0)]) / settings.num_users
            done = number + 1
            if done == settings.num_rounds or done % (settings.evaluate_every or settings.num_rounds) == 0:
                row = {"round": done, "test_accuracy": accuracy(model, weights, images, labels)}
                row |= dict(zip(("bits_fixed", "bits_entropy", "bytes_packed", "bytes_sent"), counts.tolist()))
                lost = dict(desk.lost)
                yield row | {"empty_rounds": empty, "lost": lost, "seconds": time.perf_counter() - began}
                empty = 0
        if save is not None:
            np.save(save, weights)
    finally:
        desk.close()


def join(study, user, images, labels, *, address, randomness, wait_s=3600.0, root_certificate=None):
    """Be one user until the server ends the study. Returns how many replies were sent.

    Args: as of :class:`privrob.learn.federated_wire.Member`;  address — the server's;  wait_s — seconds to wait for it;
        root_certificate — for TLS, as bytes.
    """
    member, fl, met = Member(study, user, images, labels, randomness=randomness), flower(), []
    common = fl.common
    good = common.Status(common.Code.OK, "")

    class Node(fl.Client):
        def get_properties(self, ins):
            if "refused" in ins.config:
                raise ConnectionRefusedError(f"the server refused user {user}: {ins.config['refused']}")
            met.append(True)
            return common.GetPropertiesRes(good, {"user": member.client.user, "study": study.digest})

        def fit(self, ins):
            reply = member.answer(ins.config["round"], ins.parameters.tensors[0])
            return common.FitRes(good, common.Parameters([reply], "privrob"), num_examples=0, metrics={})

    until = time.monotonic() + wait_s
    while True:
        try:
            how = {"node_config": {}, "client": Node(), "root_certificates": root_certificate}
            fl.run_client(server_address=address, **how)
            return member.sent
        except fl.LostConnection as error:
            if met or time.monotonic() > until:
                raise ConnectionError(f"no server at {address} after {member.sent} replies of user {user}") from error
            time.sleep(0.5)


def main(arguments=None):
    """The commands ``serve`` (prints a JSON line a row), ``join`` and ``share``.

    Args: arguments — of the command line, None: the process's own.
    """
    parser = argparse.ArgumentParser(prog="python -m privrob.learn.federated_flower", description="see the module")
    commands = parser.add_subparsers(dest="command", required=True)
    ways = {name: commands.add_parser(name) for name in ("serve", "join", "share")}
    for one in ways.values():
        one.add_argument("study", type=Study.read)
    for name in ("serve", "join"):
        ways[name].add_argument("--address", required=True, help="HOST:PORT of the server")
    ways["serve"].add_argument("--test", type=records, default=((), ()), help="npz of test records")
    ways["serve"].add_argument("--min-users", type=int)
    ways["serve"].add_argument("--save", help="npy for the last weights")
    ways["serve"].add_argument("--certificates", nargs=3, type=lambda p: Path(p).read_bytes(), metavar="PEM")
    ways["join"].add_argument("--user", type=int, required=True)
    ways["join"].add_argument("--records", type=records, required=True, help="npz of images and labels")
    ways["join"].add_argument("--randomness", choices=RANDOMNESS, required=True)
    ways["join"].add_argument("--root-certificate", type=lambda p: Path(p).read_bytes(), metavar="PEM")
    ways["share"].add_argument("--records", type=records, required=True, help="npz of all training records")
    ways["share"].add_argument("--folder", required=True)
    given = vars(parser.parse_args(arguments))
    command, study = given.pop("command"), given.pop("study")
    if command == "serve":
        for row in serve(study, **given):
            print(json.dumps(row), flush=True)
    elif command == "join":
        print(f"{join(study, given.pop('user'), *given.pop('records'), **given)} replies sent")
    else:
        share_out(study, *given.pop("records"), given["folder"])


if __name__ == "__main__":
    main()
