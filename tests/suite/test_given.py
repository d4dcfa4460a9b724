"""Values that a person wrote, in a study's file or behind ``-p``: taken as meant, or refused in words."""

import math

import pytest

from privrob.suite import given, guard, studies

DEEP = "[" * 5000 + "]" * 5000


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("parameters: []", "parameters must hold 'parameter: value' pairs, got []"),
        ("parameters: false", "parameters must hold 'parameter: value' pairs, got False"),
        ("sweep: 0", "sweep must hold 'parameter: value' pairs, got 0"),
        ("notebooks: 0", "notebooks must be a list of names, got 0"),
        ("notebooks: false", "notebooks must be a list of names, got False"),
        ("title: {a: b}", "title must be text; put it in quotes, got {'a': 'b'}"),
        ("preset: 0", "preset must be text; put it in quotes, got 0"),
        ("parameters: {dataset: 2020-01-01}", f"dataset must be {given.ALLOWED}, got 2020-01-01 (a date; put it in"),
        ("parameters: {dataset: 2020-13-45}", f"dataset must be {given.ALLOWED}, got 2020-13-45 (a date; put it in"),
        ("parameters: {dataset: }", f"dataset must be {given.ALLOWED}, got None (nothing)"),
        ("parameters: {loud: !!bool x}", f"loud must be {given.ALLOWED}, got x (neither true nor false)"),
        ("parameters: {scale: !!int x}", f"scale must be {given.ALLOWED}, got x (no whole number"),
        ("parameters: {scale: !!timestamp x}", f"scale must be {given.ALLOWED}, got x (a date"),
        ("parameters: {scale: " + "1" * 6000 + "}", "… (6,000 letters) (no whole number, or too large a one)"),
        ("parameters: {rates: [{b: 1.0e+400}]}", f"rates[0]['b'] must be {given.ALLOWED}, got 1.0e+400 (too large"),
        ("sweep: {scale: [1, 2020-01-01]}", f"sweep of scale must be {given.ALLOWED}, got 2020-01-01"),
        ("parameters: {seed: 011}", "got 011 (YAML reads a leading zero as base 8; write 11 or 9, or text in quotes)"),
        ("parameters: {seed: -0_7}", "got -0_7 (YAML reads a leading zero as base 8; write -7, or text in quotes)"),
        ("parameters: {seed: 1:30}", "got 1:30 (YAML reads it in base 60; write 90 if that is meant, or put it in"),
        ("parameters: {scale: 1:30.5}", "got 1:30.5 (YAML reads it in base 60; write 90.5 if that is meant"),
        ("sweep: {seed: [1, 010]}", "sweep of seed must be a number, text, true or false, a list or a dict, got 010"),
        ("parameters: {<<: {seed: 1}}", "line 1: merge keys (<<) are not read; write the entries out"),
        ("title: &a {b: 1}\nparameters:\n  <<: *a", "line 3: merge keys (<<) are not read; write the entries out"),
        ("parameters: {name: <<}", "got << (a sign of YAML's own; put it in quotes where text is meant)"),
        ("parameters: {name: =}", "got = (a sign of YAML's own; put it in quotes where text is meant)"),
        ("parameters: {sizes: " + DEEP + "}", "it is nested too deeply"),
        ("parameters: {sizes: " + DEEP[4970:5030] + "}", "is nested more than 20 deep"),
        ("parameters: {sizes: &x [*x]}", "is nested more than 20 deep"),
    ],
    ids=lambda text: text[:40],
)
def test_a_study_of_wrong_types_is_refused_with_file_entry_value_and_what_is_allowed(tmp_path, text, words):
    (tmp_path / "mine.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(guard.ParameterError) as error:
        studies.read(tmp_path / "mine.yaml")
    assert str(tmp_path / "mine.yaml") in str(error.value)
    assert words in str(error.value)
    assert len(str(error.value)) < 600


def test_values_repeated_by_aliases_beyond_bounds_are_refused_at_once():
    lines = ["a0: &a0 [1, 1]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9))]
    with pytest.raises(given.Unreadable, match="holds more than 100,000 values"):
        given.load("\n".join(lines))


@pytest.mark.parametrize(
    "text", ["2020-13-45", "!!bool x", "1" * 5000, DEEP, "2020-01-01", "{a: 1, a: 2}", "011", "1:30"]
)
def test_a_text_that_reads_as_no_value_stays_text_in_a_studys_file(tmp_path, text):
    study = studies.Study((), "smoke", {"name": text})
    (tmp_path / "mine.yaml").write_text(study.text(), encoding="utf-8")
    assert studies.read(tmp_path / "mine.yaml") == study


@pytest.mark.parametrize(
    ("text", "like", "words"),
    [
        ("[1, 011]", [1], "name[1] must be a number, text, true or false, a list or a dict, got 011 (YAML reads a"),
        ("1:30", None, "got 1:30 (YAML reads it in base 60; write 90"),
        ("1" + "0" * 400, 1e-5, "must be a number, got 1"),
        ("1" + "0" * 5000, 1e-5, "must be a number that can be held, got '1"),
        ("1e400", 1e-5, "must be a number that can be held, got '1e400'"),
        ("[1, 1e400]", [1.0], "must be a number that can be held"),
        ("1" + "0" * 5000, 1, "must be a number that can be held"),
        ("0x" + "f" * 6000, 1, "got a number of 24,000 bits"),
        ("{a: 1, a: 2}", {"x": 1}, "must hold each name once, 'a' stands twice"),
        ("{'a': 1, 'a': 2}", {"x": 1}, "must hold each name once, 'a' stands twice"),
        ("[{'a': 1, 'a': 2}]", None, "must hold each name once, 'a' stands twice"),
        ("{[1]: 2}", {"x": 1}, "must be a dict"),
        (DEEP, [1], "must be a list"),
        ("!!bool x", None, "got x (neither true nor false)"),
        ("2020-13-45", None, "got 2020-13-45 (a date"),
    ],
    ids=lambda text: str(text)[:20],
)
def test_text_that_cannot_be_held_is_refused_by_name_and_in_short(text, like, words):
    with pytest.raises(guard.ParameterError) as error:
        guard.parse_text(text, like, where="-p name")
    assert "-p name" in str(error.value)
    assert words in str(error.value)
    assert len(str(error.value)) < 600


def test_infinity_has_a_word():
    assert guard.parse_text("-inf", 1e-5, where="-p x") == -math.inf
    assert guard.parse_text("[.inf, 1]", [1.0], where="-p x") == [math.inf, 1.0]


@pytest.mark.parametrize(
    ("text", "value"), [("0", 0), ("00", 0), ("0x1f", 31), ("0b11", 3), ("1_000", 1000), ("0.5", 0.5)]
)
def test_numbers_that_say_their_base_are_read(text, value):
    assert given.load(text) == value
