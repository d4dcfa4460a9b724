"""What a notebook's parameters cell may hold, and which values may change it."""

import math
from types import SimpleNamespace

import nbformat
import pytest

from house import PARAMETERS, notebook
from privrob.suite import guard
from privrob.suite.guard import ParameterError
from privrob.suite.session import Run

DEFAULTS = {
    "delta": 1e-5,
    "count": 3,
    "loud": False,
    "name": "mnist",
    "sizes": [1, 2],
    "rates": [0.1, 1],
    "labels": ["a"],
    "anything": None,
    "mixed": [1, "a"],
    "table": {"a": 1},
    "by_set": {"mnist": [0.5], "letters": [1.0]},
    "options": {"network": "mnist", "crop": 28},
    "seeds": [0, 1],
    "seed": 0,
}
SOURCE = guard.Source("dplearn/toy", None, None, DEFAULTS, {})


def read(tmp_path, node):
    path = tmp_path / "sec1_toy.ipynb"
    nbformat.write(node, path)
    return guard.read(path, "dplearn/sec1_toy")


# -------------------------------------------------------------------------------------------------- the parameters cell


def test_the_parameters_cell_is_read_with_its_comments(tmp_path):
    source = read(tmp_path, notebook("dplearn/sec1_toy"))
    assert source.defaults["names"] == ["a", "b"]
    assert source.defaults["sleep"] == 0.0
    assert source.comments["num_cells"] == "how many cells"
    assert source.about["title"] == "Toy sec1_toy"


def test_a_hash_within_text_is_no_comment_and_a_list_may_span_lines():
    values, comments = guard.literals(
        'name: str = "a # b"  # colour\nsizes = [\n    1,\n    2,\n]\n"""Text."""\nx = -1e-5'
    )
    assert values == {"name": "a # b", "sizes": [1, 2], "x": -1e-5}
    assert comments == {"name": "colour"}


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("a = 1\nb = a + 1", "b must be a literal, found 'a \\+ 1'; derive values in the next cell"),
        ("a = b = 1", "holds only 'name = literal'"),
        ("a, b = 1, 2", "holds only 'name = literal'"),
        ("import os", "holds only 'name = literal'"),
        ("a: int", "holds only 'name = literal'"),
        ("a = 1\na = 2", "a stands twice"),
    ],
)
def test_anything_but_one_literal_a_name_is_refused(code, words):
    with pytest.raises(ParameterError, match=words):
        guard.literals(code)


def test_two_parameter_cells_none_and_a_text_cell_are_refused(tmp_path):
    node = notebook("dplearn/sec1_toy", extra=["x = 1"])
    node.cells[-2].metadata["tags"] = ["parameters"]
    with pytest.raises(ParameterError, match="exactly one code cell tagged 'parameters', has 2"):
        read(tmp_path, node)
    for cell in node.cells:
        cell.metadata.pop("tags", None)
    with pytest.raises(ParameterError, match="has 0"):
        read(tmp_path, node)
    node.cells[0].metadata["tags"] = ["parameters"]
    with pytest.raises(ParameterError, match="exactly one code cell"):
        read(tmp_path, node)


def test_a_parameter_that_no_cell_reads_is_refused_except_the_seed(tmp_path):
    with pytest.raises(ParameterError, match=r"no cell reads the parameter\(s\) idle"):
        read(tmp_path, notebook("dplearn/sec1_toy", parameters=PARAMETERS + "\nidle: int = 1"))
    with pytest.raises(ParameterError, match="idle"):  # writing it is not reading it
        read(tmp_path, notebook("dplearn/sec1_toy", parameters=PARAMETERS + "\nidle: int = 1", extra=["idle = 2"]))


@pytest.mark.parametrize(
    "code", ["!ls", "x = !ls", "%matplotlib inline", "%%time\nx = 1", "for i in range(2):\n    !ls", "x = ("]
)
def test_a_cell_that_is_not_plain_python_is_refused_before_anything_runs(tmp_path, code):
    with pytest.raises(ParameterError, match=r"dplearn/sec1_toy: code cell 5 is not plain Python .* hide failures"):
        read(tmp_path, notebook("dplearn/sec1_toy", extra=[code]))


def test_a_magic_called_as_a_function_is_refused(tmp_path):
    with pytest.raises(ParameterError, match=r"code cell 5 calls get_ipython\(\)"):
        read(tmp_path, notebook("dplearn/sec1_toy", extra=['get_ipython().system("false")']))


@pytest.mark.parametrize("tag", ["raises-exception", "skip-execution"])
def test_a_tag_that_lets_a_failure_pass_is_refused(tmp_path, tag):
    node = notebook("dplearn/sec1_toy", extra=["1 / 0"])
    node.cells[-2].metadata["tags"] = [tag]
    with pytest.raises(ParameterError, match=f"code cell 5 is tagged {tag}"):
        read(tmp_path, node)


@pytest.mark.parametrize("text", ["", "{", '{"cells": 3}', "[]"])
def test_a_file_that_is_no_notebook_is_refused_by_name(tmp_path, text):
    path = tmp_path / "x.ipynb"
    path.write_text(text)
    with pytest.raises(ParameterError, match="dplearn/x: "):
        guard.read(path, "dplearn/x")


# ------------------------------------------------------------------------------------------------------- changed values


def test_an_unknown_name_is_refused_with_the_nearest_one():
    with pytest.raises(
        ParameterError, match=r"no parameter 'dleta'; did you mean 'delta'\? There is: anything, by_set, count"
    ):
        guard.check(SOURCE, {"dleta": 1e-6})


def test_an_int_serves_as_a_float_and_items_follow_their_list():
    got = guard.check(SOURCE, {"delta": 1, "rates": [1, 2], "sizes": [], "labels": ("x", "y"), "mixed": [None, 2.5]})
    assert got == {"delta": 1.0, "rates": [1.0, 2.0], "sizes": [], "labels": ["x", "y"], "mixed": [None, 2.5]}
    assert type(got["delta"]) is float
    assert [type(r) for r in got["rates"]] == [float, float]
    assert guard.check(SOURCE, {"delta": math.inf})["delta"] == math.inf


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("delta", "1e-5"),
        ("delta", True),
        ("delta", None),
        ("delta", [1e-5]),
        ("delta", math.nan),
        ("count", 3.0),
        ("count", True),
        ("count", "3"),
        ("count", None),
        ("loud", 1),
        ("loud", "true"),
        ("name", 7),
        ("name", False),
        ("name", ["mnist"]),
        ("sizes", 1),
        ("sizes", "12"),
        ("sizes", [1, 2.5]),
        ("sizes", [True]),
        ("rates", ["0.1"]),
        ("rates", [math.nan]),
        ("labels", [1]),
        ("table", [1]),
        ("table", {"a": "x"}),
        ("by_set", {"mnist": 0.1}),
        ("by_set", {"mnist": [0.1, "x"]}),
        ("anything", object()),
    ],
)
def test_a_changed_type_is_refused_naming_the_parameter_and_the_value(name, value):
    with pytest.raises(ParameterError, match=rf"dplearn/toy: {name}.* must be .*, got ") as error:
        guard.check(SOURCE, {name: value})
    told = str(error.value)
    assert any(repr(part)[:20] in told for part in _parts(value)[1 if f"{name}[" in told else 0 :])


def _parts(value):
    """A value and all that is in it."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [value, *(part for one in inside for part in _parts(one))]


def test_entries_of_a_dict_are_checked_and_left_as_they_are():
    given = {"by_set": {"other": [1, 0.5]}, "options": {"crop": "none", "more": [1]}}
    got = guard.check(SOURCE, given)
    assert got == given
    assert type(got["by_set"]["other"][0]) is int  # 1 and 1.0 name different cells


@pytest.mark.parametrize("seeds", [[-1], [0, 2**64], [0, 1, 0], [0, 1.5]])
def test_lists_of_seeds_hold_each_seed_once(seeds):
    with pytest.raises((ValueError, TypeError), match=r"dplearn/toy: seeds.* must "):
        guard.check(SOURCE, {"seeds": seeds})


@pytest.mark.parametrize("seed", [-1, 1.5, 1.0, "7", None, True, 2**64])
def test_seeds_that_are_no_whole_number_in_range_are_refused(seed):
    with pytest.raises((ValueError, TypeError), match="seed must"):
        guard.check(SOURCE, {"seed": seed})


@pytest.mark.parametrize("seed", [0, 1, 2**32, 2**63, 2**64 - 1])
def test_large_seeds_are_taken_as_they_are(seed):
    assert guard.check(SOURCE, {"seed": seed}) == {"seed": seed}


# ----------------------------------------------------------------------------------------------------- the command line


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("1e-5", "delta", 1e-5),
        ("-1e-5", "delta", -1e-5),
        ("1", "delta", 1.0),
        ("inf", "delta", math.inf),
        ("12", "count", 12),
        ("true", "loud", True),
        ("True", "loud", True),
        ("false", "loud", False),
        ("cifar10", "name", "cifar10"),
        ("1", "name", "1"),
        ("'it''s'", "name", "it''s"),
        ('"quoted text"', "name", "quoted text"),
        ('"', "name", '"'),
        ("", "name", ""),
        ("[3, 4]", "sizes", [3, 4]),
        ("[]", "sizes", []),
        ("1,2", "sizes", [1, 2]),
        ("[1e-3, 1]", "rates", [1e-3, 1.0]),
        ("[a, b]", "labels", ["a", "b"]),
        ("['a b', \"c\"]", "labels", ["a b", "c"]),
        ("{'a': 2}", "table", {"a": 2}),
        ("none", "anything", "none"),
        ("2.5", "anything", 2.5),
    ],
)
def test_text_of_the_command_line_is_read_as_the_type_of_the_default(text, name, value):
    got = guard.parse_text(text, DEFAULTS[name], where=f"-p {name}")
    assert got == value
    assert type(got) is type(value)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("'1e-5'", "delta"),
        ("nan", "delta"),
        ("much", "delta"),
        ("true", "delta"),
        ("1e5", "count"),
        ("3.0", "count"),
        ("three", "count"),
        ("1", "loud"),
        ("maybe", "loud"),
        ("1", "sizes"),
        ("[1, x]", "sizes"),
        ("[", "sizes"),
        ("a,b", "labels"),
        ("2020-01-01", "anything"),
    ],
)
def test_text_that_is_not_of_that_type_is_refused(text, name):
    with pytest.raises(ParameterError, match=f"-p {name}.* must be "):
        guard.parse_text(text, DEFAULTS[name], where=f"-p {name}")


def test_parameters_out_of_range_are_refused_by_name_before_any_work():
    run = SimpleNamespace(parameters={"num_draws": 0, "scales": [1.0, math.inf], "shown": [], "huge": 10**400, "ok": 1})
    for name, words in (
        ("num_draws", "num_draws=0"),
        ("scales", "scales=inf"),
        ("shown", r"got \[\]"),
        ("huge", "beyond 1.8e308"),
    ):
        with pytest.raises(ValueError, match=rf"{name} must .*{words}"):
            Run.within(run, **{name: (1, 10)})
    Run.within(run, ok=(1, 1))


def test_numbers_in_dicts_are_refused_by_their_keys():
    run = SimpleNamespace(parameters={"rates": {"mnist": 0.1, "letters": [0.2, 20.0]}, "words": {"mnist": "x"}})
    with pytest.raises(ValueError, match=r"rates\['letters'\] must .*20"):
        Run.within(run, rates=(0, 1))
    with pytest.raises((ValueError, TypeError), match=r"words\['mnist'\] must"):
        Run.within(run, words=(0, 1))
    Run.within(run, rates=(0, 20))


def test_a_name_that_is_not_known_is_refused_and_the_known_ones_are_told():
    run = SimpleNamespace(parameters={"more": {"StoBtch": {"psi": 1.0}}, "sets": ["mnist"], "none": {}})
    with pytest.raises(ParameterError, match="more must name some of StoBatch, AdLM, got 'StoBtch'"):
        Run.among(run, more=("StoBatch", "AdLM"))
    Run.among(run, sets={"mnist": 1, "letters": 2}, none=())
    twice = SimpleNamespace(parameters={"sets": ["mnist", "letters", "mnist"]})
    with pytest.raises(ParameterError, match="sets must hold each name once, got 'mnist' twice"):
        Run.among(twice, sets=("mnist", "letters"))
