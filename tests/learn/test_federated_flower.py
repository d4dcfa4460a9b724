"""Users in processes of their own, over Flower: equal to the simulation, strangers refused, lost users left out."""

import dataclasses
import json
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
from test_federated import COMPRESSORS, settings
from trainings import data

from privrob.kinds import Streams
from privrob.learn import federated, federated_desk, federated_flower, federated_users, federated_wire
from privrob.learn.federated_server import Server

SHARED = ("round", "test_accuracy", "bits_fixed", "bits_entropy", "empty_rounds")


def study_of(seed=5, **changes):
    return federated_wire.Study(settings(**changes), seed, 3, (1, 6, 6))


def member(study, user=0, randomness="study"):
    images, labels, *_ = data(60)
    run = federated.Simulation(study.settings, images, labels, num_classes=3, streams=study.streams)
    own = run.records[user]
    return federated_wire.Member(study, user, images[own], labels[own], randomness=randomness)


# ------------------------------------------------------------------------------------------------------ without Flower


@pytest.mark.parametrize("name", COMPRESSORS)
def test_a_packed_reply_comes_back_and_has_no_more_bytes_than_its_bits(name):
    mechanism = federated_users.compressor(name, COMPRESSORS[name], clip=1.0)
    vector, rng = np.random.default_rng(0).uniform(-0.3, 0.3, 111), np.random.default_rng(1)
    reply = vector if mechanism is None else mechanism.release(vector, rng=rng)
    packed = federated_wire.pack(mechanism, reply)
    assert len(packed) == (8 * 111 if mechanism is None else -(-111 * mechanism.bits_fixed // 8))
    assert np.array_equal(federated_wire.unpack(mechanism, packed, 111), reply)
    with pytest.raises(ValueError, match="must have"):
        federated_wire.unpack(mechanism, packed[:-1], 111)


def test_what_is_no_symbol_and_no_number_is_refused():
    ternary = federated_users.compressor("ternary", COMPRESSORS["ternary"], clip=1.0)
    with pytest.raises(ValueError, match="symbols of a reply must be one of 3, got number 3"):
        federated_wire.unpack(ternary, b"\xff", 4)
    with pytest.raises(ValueError, match="finite"):
        federated_wire.unpack(None, np.array([np.nan]).tobytes(), 1)


def test_a_user_answers_a_round_once_and_only_if_drawn():
    study = study_of(user_rate=0.5, num_rounds=40)
    one, weights = member(study), federated.flat_weights(study.model())
    drawn = Server(study.settings, streams=study.streams)
    want = [0 in drawn.drawn(number) for number in range(40)]
    assert 5 < sum(want) < 35
    assert [len(one.answer(number, weights.tobytes())) > 0 for number in range(40)] == want
    for number in (39, 3, 40):
        with pytest.raises(ValueError, match="a round is answered once"):
            one.answer(number, weights.tobytes())


def test_own_randomness_keeps_the_coin_and_changes_the_votes():
    study = study_of(user_rate=0.5, num_rounds=20)
    weights = federated.flat_weights(study.model()).tobytes()
    first, second, public = (member(study, randomness=way) for way in ("own", "own", "study"))
    replies = [[one.answer(number, weights) for number in range(20)] for one in (first, second, public)]
    assert len({tuple(map(len, found)) for found in replies}) == 1
    assert len({tuple(found) for found in replies}) == 3


def test_studies_are_compared_and_what_no_machine_knows_is_refused(tmp_path):
    study = study_of()
    file = tmp_path / "study.json"
    file.write_text(json.dumps(dataclasses.asdict(study)))
    assert federated_wire.Study.read(file).digest == study.digest
    assert len({study.digest, study_of(6).digest, study_of(batch_size=5).digest}) == 3
    with pytest.raises(ValueError, match="honest mean"):
        study_of(attack="knowing", num_attackers=1)
    with pytest.raises(ValueError, match="randomness must be one of"):
        member(study, randomness="private")


def test_without_flower_the_message_names_the_extra(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "flwr"] + ["flwr"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "1")
    with pytest.raises(ImportError, match=r"privrob\[federated\]"):
        federated_desk.flower()
    assert os.environ["FLWR_TELEMETRY_ENABLED"] == "0"


# --------------------------------------------------------------------------------------------------------- with Flower


def user(arguments, note=None, after=None, slow=0.0, dies=None):
    """A client process. Args: note — a file for its refusal;  after — a file to wait for;  slow — seconds a round;
    dies — the round in which it is killed."""
    answer = federated_wire.Member.answer

    def faulty(self, number, weights):
        time.sleep(slow)
        if number == dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer(self, number, weights)

    federated_wire.Member.answer = faulty
    while after is not None and not after.exists():
        time.sleep(0.02)
    try:
        federated_flower.main(arguments)
    except ConnectionRefusedError as error:
        note.write_text(str(error))


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """Start processes with one import for all, in an empty home."""
    pytest.importorskip("flwr")
    home, context = tmp_path_factory.mktemp("home"), multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["privrob.learn.federated_flower", "flwr.compat.client.app"])
    started = []

    def one(*arguments, **more):
        process = context.Process(target=user, args=([str(a) for a in arguments],), kwargs=more)
        process.start()
        started.append(process)
        return process

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        patch.setenv("OMP_NUM_THREADS", "1")  # tiny products: threads would only wait for each other
        yield one
        for process in started:
            process.join(10)
            process.kill()
        from flwr.supercore import telemetry

        assert telemetry.FLWR_TELEMETRY_ENABLED == "0"
        assert telemetry.state["source"] is None  # no event, not even a disabled one
        assert list(home.iterdir()) == []


class Machines:
    """A study's files and a free address. Args: changes — of its settings."""

    def __init__(self, folder, **changes):
        self.study, self.folder = study_of(evaluate_every=1, **changes), folder
        self.images, self.labels, *self.test = data(60)
        self.paths = federated_wire.share_out(self.study, self.images, self.labels, folder / "users")
        self.file = self.write("study.json", self.study)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"

    def write(self, name, study):
        (self.folder / name).write_text(json.dumps(dataclasses.asdict(study)))
        return self.folder / name

    def join(self, number, file=None):
        words = ("--user", number, "--records", self.paths[number], "--address", self.address)
        return ("join", file or self.file, *words, "--randomness", "study")

    def serve(self, **more):
        return federated_flower.serve(self.study, address=self.address, test=self.test, join_s=120, round_s=60, **more)


@pytest.mark.slow
@pytest.mark.paper("fdp", "Algorithm 5")
def test_processes_give_what_the_simulation_gives_to_the_bit_and_a_stranger_is_refused(start, tmp_path):
    some = {"num_users": 3, "num_attackers": 1, "attack": "label_flipping", "user_rate": 0.6, "num_rounds": 6}
    here, note = Machines(tmp_path, **some, compressor="ternary", aggregator="Average"), tmp_path / "refused"
    start(*here.join(1, here.write("other.json", study_of(6, **some))), note=note)
    for number in (2, 0, 3, 1):  # who has the highest number answers first
        start(*here.join(number), after=note, slow=0.05 * (3 - number))
    with pytest.warns(RuntimeWarning, match="user 1 was refused: its study"):
        rows = list(here.serve(save=tmp_path / "weights.npy"))
    assert "refused user 1: its study" in note.read_text()
    tensors = (here.images, here.labels, *here.test)
    want = list(federated.train(here.study.settings, *tensors, num_classes=3, streams=Streams(5)))
    assert [[row[name] for name in SHARED] for row in rows] == [[row[name] for name in SHARED] for row in want]
    run = federated.Simulation(here.study.settings, *tensors[:2], num_classes=3, streams=Streams(5))
    weights, sent = federated.flat_weights(run.model), 0
    for number in range(6):
        symbols, _, honest = run.round(weights, number)
        weights, sent = run.server.update(weights, dict(enumerate(symbols)), number=number), sent + honest
    assert np.array_equal(np.load(tmp_path / "weights.npy"), weights)
    assert 0 < sent < 18
    assert rows[-1]["bytes_packed"] == pytest.approx(28 * sent / 3)  # 111 symbols of 2 bits; who isn't drawn is silent
    assert rows[-1]["bits_fixed"] / 8 <= rows[-1]["bytes_packed"] <= rows[-1]["bytes_sent"] - 10 * sent / 3
    assert rows[-1]["bytes_sent"] <= rows[-1]["bytes_packed"] + 25 * sent / 3  # the envelope is small
    assert all(row["lost"] == {} for row in rows)


def certificates(folder):
    """(CA, certificate, key) of 127.0.0.1, or None without openssl."""
    if shutil.which("openssl") is None:
        return None
    words = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1"
    subprocess.run([*words.split(), "-keyout", "key.pem", "-out", "cert.pem"], cwd=folder, check=True)
    return tuple((folder / name).read_bytes() for name in ("cert.pem", "cert.pem", "key.pem"))


@pytest.mark.slow
def test_killed_users_are_reported_and_left_out_until_too_few_remain(start, tmp_path):
    here, tls = Machines(tmp_path, num_rounds=6), certificates(tmp_path)
    more = () if tls is None else ("--root-certificate", tmp_path / "cert.pem")
    users = [start(*here.join(number), *more, dies={2: 3, 3: 5}.get(number)) for number in range(4)]
    rows = here.serve(min_users=2, certificates=tls, save=tmp_path / "weights.npy")
    got = [next(rows)]
    users[0].kill()  # between two rounds; the others die in one
    users[0].join()
    with pytest.warns(RuntimeWarning, match="user 0 is lost from round 1 on"):
        got.append(next(rows))
    with pytest.warns(RuntimeWarning, match="user 2 is lost from round 3 on"):
        got += [next(rows), next(rows), next(rows)]
    assert [row["lost"] for row in got] == [{}, {0: 1}, {0: 1}, {0: 1, 2: 3}, {0: 1, 2: 3}]
    members, server = [member(here.study, number) for number in range(4)], Server(here.study.settings)
    weights, accuracies = federated.flat_weights(here.study.model()), []
    for number in range(5):
        alive = [u for u in range(4) if number < {0: 1, 2: 3}.get(u, 9)]
        replies = {u: members[u].client.reply(weights, number) for u in alive}
        weights = server.update(weights, replies, number=number)
        accuracies.append(federated.accuracy(members[0].client.model, weights, *here.test))
    assert [row["test_accuracy"] for row in got] == accuracies
    with (
        pytest.warns(RuntimeWarning, match="user 3 is lost from round 5 on"),
        pytest.raises(RuntimeError, match=r"1 users are left in round 5, min_users=2; lost .*0: 1, 2: 3, 3: 5"),
    ):
        next(rows)
    assert not (tmp_path / "weights.npy").exists()
    users[1].join(20)
    assert users[1].exitcode == 0  # told that it is over


@pytest.mark.slow
def test_missing_users_and_a_taken_address_are_named(start, tmp_path):
    here = Machines(tmp_path, num_users=2, num_rounds=1)
    with pytest.raises(TimeoutError, match=r"users \[0, 1\] did not join within join_s=0.2"):
        next(federated_flower.serve(here.study, address=here.address, join_s=0.2))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match="address must be a free HOST:PORT"):
            next(federated_flower.serve(here.study, address=f"127.0.0.1:{taken.getsockname()[1]}"))
    images, labels = federated_wire.records(here.paths[0])
    how = {"randomness": "own", "wait_s": 0.1}
    with pytest.raises(ConnectionError, match="after 0 replies of user 0"):
        federated_flower.join(here.study, 0, images, labels, address=here.address, **how)
