"""The docstrings of the science wing say what a reader of the reference needs: parameters, shapes, sides, sources.

:mod:`docstring_rules` reads them off the syntax trees. Names that mean the same everywhere need no word in each
docstring: the list in ``privrob.kinds`` has them, and nothing else is excused.
"""

import textwrap

import docstring_rules as rules
import pytest

TEXTS = {module: path.read_text(encoding="utf-8") for module, path in rules.files().items()}
VOCABULARY = rules.vocabulary(TEXTS)
DEFINITIONS, INDEX = rules.read(TEXTS)
LEFT = frozenset()  # places that are still to be written; it only shrinks


def failing(rule):
    return sorted(d.place for d in DEFINITIONS if rule(d) and d.place not in LEFT)


# ------------------------------------------------------------------------------------------------------------ the rules


def test_everything_public_has_a_docstring_or_overrides_what_has_one():
    assert failing(lambda d: not d.words and not d.overridden) == []


def test_every_parameter_is_named_where_a_reader_looks():
    """In its docstring, in that of its class, its module or what it overrides, or one click away."""
    missing = {d.place: found for d in DEFINITIONS if (found := rules.unnamed(d, INDEX, VOCABULARY))}
    assert {place: found for place, found in missing.items() if place not in LEFT} == {}


def test_arrays_that_go_in_or_come_out_have_a_shape():
    assert failing(lambda d: rules.unshaped(d, INDEX, VOCABULARY)) == []


def test_bounds_and_guarantees_say_their_side():
    assert failing(rules.sideless) == []


def test_guarantees_say_of_which_neighbours():
    """They are told, by ``neighbouring=``; or words say it; or that they hold for what a sensitivity was taken over."""
    assert failing(lambda d: rules.relationless(d, INDEX)) == []


@pytest.mark.parametrize("module", TEXTS)
def test_modules_say_where_they_come_from(module):
    """``Paper:`` a document's key and item, ``Source:`` the literature or ours; one of them, there or in a function."""
    found = rules.sources_of(TEXTS[module])
    assert found, "write 'Source: …' (or 'Source: ours.') at the end of the module's docstring"
    for label, text in found:
        known = text.split(",")[0].split(" ")[0] in rules.KEYS
        assert known == (label == "Paper"), f"{label}: {text}"
        assert label == "Source" or "," in text, f"Paper: {text} names no item"


def test_roles_lead_somewhere():
    assert rules.dead_roles(TEXTS, elsewhere="privrob.suite.") == []


# ------------------------------------------------------------------------------------------------------- the vocabulary


def test_the_vocabulary_is_short_and_each_of_its_names_is_used_by_several_modules():
    assert len(VOCABULARY) <= 45
    users = {name: {d.module for d in DEFINITIONS if name in d.parameters} for name in VOCABULARY}
    assert {name for name, modules in users.items() if len(modules) < 3} == set()


# ------------------------------------------------------------------------------------------------- the rules can say no


def read(text):
    """Definitions and index of one made-up module, beside an empty vocabulary."""
    return rules.read({"toy": textwrap.dedent(text)})


@pytest.fixture
def toy():
    found, index = read('''
        """A module. Its ``everywhere`` is explained here."""

        class Base:
            """Args: width — of it."""

            def release(self, data):
                """Rows, (n, d). Args: data — (n, d)."""

            def bare(self): ...

        class Mechanism(Base):
            """A mechanism of :class:`Base`."""

            def release(self, data): ...

            def bare(self): ...

        def short(a, rate): """Of a rate."""
        def full(a, rate, everywhere): """Args: a, rate — numbers."""
        def linking(width): """As :class:`Base` has it."""
        def lost(width): """As a class has it."""
        def flat(x): """The sum of ``x``."""; return x.shape
        def shaped(x): """The sum of ``x``, (n,)."""; return x.shape
        def claims(x): """Of (ε, δ)-DP, ``x``."""; return x.shape
        def epsilon_of(x): """The ε of ``x``."""
        def epsilon_upper(x): """An upper bound on the ε of ``x``, for one record replaced."""
        ''')
    return {d.name: d for d in found}, index


def test_missing_docstrings_are_found_and_documented_overrides_excused(toy):
    found, _ = toy
    assert {n for n, d in found.items() if not d.words and not d.overridden} == {"Base.bare", "Mechanism.bare"}


def test_unnamed_parameters_are_found(toy):
    found, index = toy
    missing = {n: rules.unnamed(d, index, set()) for n, d in found.items()}
    assert {n: m for n, m in missing.items() if m} == {"short": ["a"], "lost": ["width"]}
    assert rules.unnamed(found["lost"], index, {"width"}) == []


def test_unshaped_arrays_are_found_and_a_guarantees_pair_is_no_shape(toy):
    found, index = toy
    assert {n for n, d in found.items() if d.name and rules.unshaped(d, index, set())} == {"flat", "claims"}


def test_bounds_without_a_side_or_neighbours_are_found(toy):
    found, index = toy
    assert {n for n, d in found.items() if rules.sideless(d)} == {"epsilon_of"}
    assert {n for n, d in found.items() if rules.relationless(d, index)} == {"epsilon_of"}


def test_dead_roles_and_sources_are_found():
    text = '"""See :func:`here`, :func:`gone`, :func:`.here`.\n\nSource: ours."""\ndef here(): """Paper: ptr, Eq. 1."""'
    assert rules.dead_roles({"toy": text}) == [("toy", "gone")]
    assert rules.sources_of(text) == [("Source", "ours."), ("Paper", "ptr, Eq. 1.")]
    assert rules.sources_of('"""Nothing."""') == []
