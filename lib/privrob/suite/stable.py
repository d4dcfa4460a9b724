"""The stable names: what other programs may build on. All else in the library may change from one version to the next.

A name here keeps its meaning and its arguments: new arguments have defaults, and nothing is renamed or taken away
without a version in which the old name still works and warns. ``tests/reference/stable_api.json`` holds today's
arguments, and a test compares. The page of these names is made from the sources; nothing is imported.
"""

from __future__ import annotations

import ast
import inspect
import re

from privrob.suite.files import read_text
from privrob.suite.sources import module_file

NAMES = {
    "kinds": ["Neighbouring", "Sampling", "Interval", "Guarantee", "NotAvailable", "Streams"],
    "accounting.ledger": ["Ledger"],
    "accounting.gdp": ["delta_of", "epsilon_of", "noise_multiplier_of", "tradeoff"],
    "accounting.pld": ["sampled_gaussian", "epsilon_curve"],
    "accounting.rdp": ["gaussian", "laplace", "compose", "epsilon_of", "delta_of"],
    "accounting.calibrate": ["noise_multiplier_for", "num_steps_for"],
    "accounting.ptr": ["Settings", "renyi", "delta", "epsilon", "composed_epsilon"],
    "accounting.ptr_plan": ["num_steps_for", "noise_multiplier_for", "gaussian_equivalent"],
    "accounting.hidden_state": ["NoisyDescent", "last_iterate", "composition"],
    "accounting.audit": ["clopper_pearson", "epsilon_from_counts", "two_samples", "one_run"],
    "mechanisms.noise": ["Laplace", "Gaussian"],
    "mechanisms.sampled": ["PoissonSampled", "gaussian_step"],
    "mechanisms.binomial": ["BinomialNoise", "BinomialMechanism"],
    "mechanisms.ternary": ["Ternary"],
    "mechanisms.signs": ["StoSign", "CLDP", "NoisySign"],
    "mechanisms.ptr": ["ProposeTestRelease"],
    "mechanisms.statistics": ["Sum", "TrimmedSum", "Median", "InterquartileRange"],
    "robust.bit_budget": ["binomial", "ternary"],
    "robust.prime": ["Settings", "settings_for", "prime"],
    "robust.aggregate": ["make"],
    "learn.datasets": ["load", "fetch"],
    "learn.cells": ["train_cell", "calibrated"],
    "suite.session": ["start"],
}


def entries():
    """(module, name, arguments, first line of its docstring) of each stable name, in order."""
    for short, names in NAMES.items():
        module = f"privrob.{short}"
        body = {
            node.name: node
            for node in ast.parse(read_text(module_file(module))).body
            if isinstance(node, (ast.FunctionDef, ast.ClassDef))
        }
        for name in names:
            node = body.get(name)
            if node is None:
                raise LookupError(f"{module} has no {name} any more; a stable name stays, or warns for a version")
            yield module, name, _arguments(node), (ast.get_docstring(node) or "").split("\n\n")[0].replace("\n", " ")


def _arguments(node):
    """The arguments of a function, or what a class is made from (its fields, or its ``__init__``), as text."""
    if isinstance(node, ast.FunctionDef):
        return ast.unparse(node.args)
    for part in node.body:
        if isinstance(part, ast.FunctionDef) and part.name == "__init__":
            return ast.unparse(part.args).removeprefix("self, ").removeprefix("self")
    fields = [n for n in node.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)]
    fields = [n for n in fields if "ClassVar" not in ast.unparse(n.annotation)]
    return ", ".join(f"{n.target.id}={ast.unparse(n.value)}" if n.value else n.target.id for n in fields)


def signatures():
    """{dotted name: arguments as text}: what the reference file holds."""
    return {f"{module}.{name}": arguments for module, name, arguments, _ in entries()}


def broken(old, new):
    """Why a call that fits the old arguments may not fit the new ones, or an empty text."""
    before, now = _parameters(old), _parameters(new)
    empty = inspect.Parameter.empty
    for name, parameter in before.items():
        if name not in now:
            return f"{name} is gone"
        if now[name].kind != parameter.kind:
            return f"{name} is given in another way"
        if parameter.default is not empty and now[name].default is empty:
            return f"{name} has no default any more"
    added = [n for n, p in now.items() if n not in before and p.default is empty and p.kind not in (2, 4)]
    if added:
        return f"{', '.join(added)} must be given now"
    positional = [n for n, p in before.items() if p.kind <= 1]
    return "" if positional == [n for n, p in now.items() if p.kind <= 1][: len(positional)] else "the order changed"


def _parameters(text):
    """The parameters that an argument list in text form stands for."""
    function = ast.parse(f"lambda {text}: 0", mode="eval").body.args
    plain, empty = function.posonlyargs + function.args, inspect.Parameter.empty
    defaults = [empty] * (len(plain) - len(function.defaults)) + [ast.unparse(d) for d in function.defaults]
    kind = inspect.Parameter
    found = {a.arg: kind(a.arg, kind.POSITIONAL_OR_KEYWORD, default=d) for a, d in zip(plain, defaults, strict=True)}
    if function.vararg:
        found[function.vararg.arg] = kind(function.vararg.arg, kind.VAR_POSITIONAL)
    for argument, default in zip(function.kwonlyargs, function.kw_defaults, strict=True):
        value = ast.unparse(default) if default else empty
        found[argument.arg] = kind(argument.arg, kind.KEYWORD_ONLY, default=value)
    if function.kwarg:
        found[function.kwarg.arg] = kind(function.kwarg.arg, kind.VAR_KEYWORD)
    return found


def page():
    """The list as a page, reStructuredText."""
    title = "Stable names"
    lines = [
        title,
        "=" * len(title),
        "",
        "What other programs may build on: these names keep their meaning and their arguments. New arguments have",
        "defaults, and nothing goes without a version that still has it and warns. All else may be read and used, and",
        "may change.",
        "",
    ]
    last = ""
    for module, name, arguments, about in entries():
        if module != last:
            heading = module.removeprefix("privrob.")
            lines += [heading, "-" * len(heading), "", f":doc:`{module} <{module}>`", ""]
            last = module
        about = re.sub(r":[a-z]+:(?=`)", "", about).replace("`", "").replace("*", r"\*")
        lines += [f"``{name}({arguments})``", f"   {about or name}", ""]
    return "\n".join(lines) + "\n"
