"""The accountant on the command line."""

import json

import pytest

from privrob import cli


def call(capsys, *words):
    status = cli.main(list(words))
    out = capsys.readouterr()
    return status, out.out, out.err


STEP = ("--sample-rate", "0.004", "--delta", "1e-5")


def test_epsilon_says_what_it_assumes_and_rates_can_be_batches(capsys):
    status, out, err = call(capsys, "epsilon", *STEP, "--noise-multiplier", "1.1", "--steps", "15000")
    assert (status, err) == (0, "")
    assert "add_remove, sampling poisson, by pld" in out
    assert "not counted" in out
    row = json.loads(call(capsys, "epsilon", *STEP, "--noise-multiplier", "1.1", "--steps", "15000", "--json")[1])
    assert row["upper"] == pytest.approx(2.296, abs=0.005)  # a pessimistic distribution at 1e-4
    batches = ("--batch-size", "240", "--num-records", "60000", "--delta", "1e-5")
    again = json.loads(call(capsys, "epsilon", *batches, "--noise-multiplier", "1.1", "--epochs", "60", "--json")[1])
    assert (again["upper"], again["num_steps"]) == (row["upper"], 15000)


def test_calibrate_gives_noise_or_steps_and_never_overspends(capsys):
    row = json.loads(call(capsys, "calibrate", "--epsilon", "1", *STEP, "--steps", "2000", "--json")[1])
    assert 0.99 <= row["epsilon_upper"] <= 1
    noise = ("--noise-multiplier", str(row["noise_multiplier"]))
    steps = json.loads(call(capsys, "calibrate", "--epsilon", "1", *STEP, *noise, "--json")[1])
    assert 2000 <= steps["num_steps"] <= 2020
    status, out, _ = call(capsys, "calibrate", "--epsilon", "1", *STEP, "--steps", "2000")
    assert status == 0
    assert "of 1 at δ = 1e-05 (add_remove, poisson, by pld)" in out
    assert float(out.split()[2].rstrip(",")) >= row["noise_multiplier"], "printed noise is rounded up"


def test_weak_promises_are_told_on_stderr(capsys):
    words = (
        "--batch-size",
        "1",
        "--num-records",
        "240",
        "--delta",
        "0.01",
        "--noise-multiplier",
        "0.1",
        "--steps",
        "480",
    )
    status, _, err = call(capsys, "epsilon", *words, "--accountant", "rdp")
    assert status == 0
    assert "no meaningful guarantee" in err
    assert "not below 1/num_records" in err


def test_a_calibrated_setting_tells_weak_promises_and_all_that_it_assumes(capsys):
    batches = ("--batch-size", "10", "--num-records", "100")
    words = ("calibrate", "--epsilon", "50", "--delta", "0.01", *batches, "--steps", "100", "--accountant", "rdp")
    status, out, err = call(capsys, *words)
    assert status == 0
    assert "no meaningful guarantee" in err
    assert "not below 1/num_records" in err
    assert "(add_remove, poisson, by rdp, conversion balle2020)" in out
    row = json.loads(call(capsys, *words, "--json")[1])
    assert (row["neighbouring"], row["sampling"], row["conversion"]) == ("add_remove", "poisson", "balle2020")
    assert (row["accountant"], row["delta"], row["sample_rate"], row["tuning_counted"]) == ("rdp", 0.01, 0.1, False)
    assert 49.5 <= row["epsilon_upper"] <= 50


def test_a_part_of_a_step_counts_as_one(capsys):
    words = ("epsilon", *STEP, "--noise-multiplier", "1", "--accountant", "rdp", "--json")
    one = json.loads(call(capsys, *words, "--epochs", "1e-12")[1])
    assert one == json.loads(call(capsys, *words, "--steps", "1")[1])
    assert one["upper"] > 0
    assert json.loads(call(capsys, *words, "--epochs", "0")[1])["upper"] == 0


def test_no_loss_prints_a_plain_zero_and_no_noise_says_infinite(capsys):
    for words in (
        ("--sample-rate", "0", "--noise-multiplier", "0", "--steps", "5", "--delta", "1e-5"),
        ("--sample-rate", "1", "--noise-multiplier", "1", "--steps", "0", "--delta", "1e-5"),
        ("--sample-rate", "1", "--noise-multiplier", "1", "--steps", "1", "--delta", "0.9"),
    ):
        for accountant in ("pld", "rdp"):
            assert "= (0, " in call(capsys, "epsilon", *words, "--accountant", accountant)[1]
    words = ("--sample-rate", "1", "--noise-multiplier", "0", "--steps", "1", "--delta", "1e-5")
    assert "= (infinite, " in call(capsys, "epsilon", *words)[1]
    assert json.loads(call(capsys, "epsilon", *words, "--json")[1])["upper"] == "inf"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["epsilon", "--sample-rate", "1.4", "--delta", "1e-5", "--noise-multiplier", "1", "--steps", "1"],
            "sample_rate must",
        ),
        (["epsilon", "--delta", "1e-5", "--noise-multiplier", "1", "--steps", "1"], "give either --sample-rate"),
        (
            ["epsilon", *STEP, "--batch-size", "3", "--noise-multiplier", "1", "--steps", "1"],
            "give either --sample-rate",
        ),
        (
            ["epsilon", "--batch-size", "3", "--delta", "1e-5", "--noise-multiplier", "1", "--steps", "1"],
            "needs --num-records",
        ),
        (
            [
                "epsilon",
                "--batch-size",
                "128",
                "--num-records",
                "100",
                "--delta",
                "1e-5",
                "--noise-multiplier",
                "1",
                "--steps",
                "1",
            ],
            "--batch-size must lie in [0, num_records = 100], got 128",
        ),
        (
            [
                "epsilon",
                "--batch-size",
                "0",
                "--num-records",
                "0",
                *STEP[2:],
                "--noise-multiplier",
                "1",
                "--steps",
                "1",
            ],
            "--num-records must be an integer in [1, inf]",
        ),
        (["epsilon", *STEP, "--noise-multiplier", "1", "--steps", "-1"], "--steps must be an integer in [0, inf]"),
        (["epsilon", *STEP[:3], "1", "--noise-multiplier", "1", "--steps", "1"], "delta must lie in [0, 1)"),
        (["calibrate", "--epsilon", "1", *STEP, "--steps", "-1"], "--steps must be an integer in [0, inf]"),
        (["epsilon", *STEP, "--steps", "1"], "needs --noise-multiplier"),
        (["epsilon", *STEP, "--noise-multiplier", "nan", "--steps", "1"], "noise_multiplier must lie"),
        (["epsilon", *STEP, "--noise-multiplier", "1", "--epochs", "nan"], "--epochs must be a number"),
        (
            ["epsilon", *STEP, "--noise-multiplier", "1e200", "--steps", "1"],
            "--noise-multiplier must be at most 1e+100",
        ),
        (["epsilon", *STEP, "--noise-multiplier", "1", "--steps", f"{10**308}"], "--steps must be at most 1e+18"),
        (["epsilon", *STEP, "--noise-multiplier", "1", "--epochs", "1e308"], "--epochs must give at most 1e+18 steps"),
        (
            ["calibrate", "--epsilon", "1", *STEP[2:], "--sample-rate", "1e-300", "--epochs", "1e10"],
            "--epochs must give at most 1e+18 steps",
        ),
        (
            ["epsilon", *STEP[2:], "--batch-size", "1", "--num-records", f"{10**400}", "--steps", "1"],
            "--num-records must be at most 1e+18, got a number of 401 digits",
        ),
        (
            ["epsilon", *STEP, "--noise-multiplier", "1", "--steps", "1", "--neighbouring", "both"],
            "neighbouring must be one of",
        ),
        (["calibrate", "--epsilon", "1", *STEP], "needs either --steps"),
        (["calibrate", "--epsilon", "-1", *STEP, "--steps", "5"], "epsilon must lie in"),
    ],
)
def test_a_wrong_call_is_refused_with_the_way_out(capsys, words, said):
    status, out, err = call(capsys, *words)
    assert (status, out) == (2, "")
    assert said in err
    assert err.startswith("refused: ")


def test_the_printed_upper_end_is_no_less_than_the_guarantee(capsys):
    words = ("--batch-size", "600", "--num-records", "50000", "--noise-multiplier", "0.7", "--steps", "3333")
    out = call(capsys, "epsilon", *words, "--delta", "1e-6")[1]
    guarantee = float(out.split("= (")[1].split(",")[0])
    lower, upper = (float(v) for v in out.split("lies in [")[1].split("]")[0].split(", "))
    assert lower <= guarantee == upper
