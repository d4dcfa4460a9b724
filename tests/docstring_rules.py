"""What the docstrings of the science wing owe their readers, read off the syntax trees; nothing is imported.

A *definition* is a public module, class, function, method or property of ``checks``, ``kinds`` and the four rooms.
What a reader of its entry in the reference sees is its own docstring, that of its class and the bases of that (an
override is the same thing again), that of its module, and one click away what its ``:func:`` and ``:class:`` roles
name. Everything here asks whether a fact stands somewhere in that text.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from pathlib import Path

LIBRARY = Path(__file__).resolve().parents[1] / "lib" / "privrob"
ROOMS = ("accounting", "mechanisms", "robust", "learn")
OTHERS = ("numpy", "torch", "fractions", "decimal", "hashlib", "pathlib")  # other documentation
KEYS = ("ptr", "fdp", "dplearn", "stobatch", "prime")

ROLE = re.compile(r":(?:func|class|meth|mod|data|attr):`(?:[^`<]*<)?[~!]?([\w.]+)>?`")
SHORT = {"a", "at", "do", "in", "it", "of", "or", "is", "so", "to", "by", "as", "an"}  # words that say nothing if bare
SIZE = r"[\dA-Za-zβ…|#*][\w…·+−/*|# ]*"  # one number of a shape
SHAPE = re.compile(rf"\({SIZE},\)|\({SIZE}(, {SIZE})+\)(?!-DP)|\bshapes?\b|entry by entry")
SIDE = re.compile(
    r"^ *Side: |\b(upper|lower|at most|at least|exact(ly)?|never (more|less|above|below|larger|smaller)|least|"
    r"smallest|largest|Interval|claim(s|ed)?|certified|safe side|rounded (up|down)|NotAvailable)\b",
    re.I | re.M,
)
RELATION = re.compile(
    r"neighbour|replac|\badd(s|ed|ing)?\b|remov|sensitivit|relation|one record|\bpairs?\b|canar|two inputs|samples",
    re.I,
)
PRIVACY = re.compile(r"(^|_)(epsilon|delta|rdp|renyi|kl|tradeoff|mu)(_|$)")
BOUND = re.compile(rf"{PRIVACY.pattern}|_(upper|lower)$")
MADE = re.compile(
    r"(np|torch)\.(array|zeros|empty|full|ones|stack|cat|concatenate|where|cumsum|outer|sort|linspace|geomspace|arange|"
    r"einsum|matmul|exp|log|\w+_like)"
)


@dataclass
class Definition:
    """A public definition: where it stands, what its docstring says, and what stands around it."""

    module: str
    name: str
    node: object
    owner: object = None
    around: list = field(default_factory=list)  # docstrings of the class, of its bases and of the module
    overridden: list = field(default_factory=list)  # docstrings of the same method in the bases

    @cached_property
    def words(self):
        return ast.get_docstring(self.node) or ""

    @property
    def place(self):
        return f"{self.module}:{self.name}" if self.name else self.module

    @property
    def own(self):
        """Its own words: its docstring, or that of the method that it overrides."""
        return "\n".join([self.words, *self.overridden])

    @cached_property
    def parameters(self):
        node = self.node
        if isinstance(node, ast.FunctionDef):
            given = [*node.args.posonlyargs, *node.args.args, node.args.vararg, *node.args.kwonlyargs, node.args.kwarg]
            return [a.arg for a in given if a and a.arg not in ("self", "cls") and not a.arg.startswith("_")]
        if isinstance(node, ast.ClassDef):
            if any("dataclass" in ast.unparse(d) for d in [*node.decorator_list, *node.bases]) or _named_tuple(node):
                fields = [n for n in node.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)]
                names = [n.target.id for n in fields if "ClassVar" not in ast.unparse(n.annotation)]
                return [n for n in names if not n.startswith("_")]
            made = [n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"]
            return Definition(self.module, "", made[0]).parameters if made else []
        return []


def _named_tuple(node):
    return any(ast.unparse(b).endswith("NamedTuple") for b in node.bases)


def vocabulary(texts):
    """The names that ``kinds`` explains once for all: those in front of a dash in its list."""
    entries = re.findall(r"^\* (.+?)$", ast.get_docstring(parse(texts["kinds"])), re.M)
    heads = [part.partition(" — ")[0] for e in entries for part in e.split(";  ")]
    return {name for head in heads for name in re.findall(r"``(\w+)``", head)}


parse = lru_cache(maxsize=None)(ast.parse)  # nobody changes a tree here


def files(library=LIBRARY):
    """{dotted name below the package: file} of the science wing."""
    found = {name: library / f"{name}.py" for name in ("checks", "kinds")}
    for room in ROOMS:
        for path in sorted((library / room).rglob("*.py")):
            parts = path.relative_to(library).with_suffix("").parts
            found[".".join(p for p in parts if p != "__init__")] = path
    return found


def read(texts):
    """All public definitions of these modules, {dotted name: source}, and an index of every docstring by its name."""
    trees = {module: parse(text) for module, text in texts.items()}
    classes = Classes(trees)
    index = defaultdict(list)
    found = []
    for module, tree in trees.items():
        top = ast.get_docstring(tree) or ""
        index[module].append(top)
        found.append(Definition(module, "", tree))
        _walk(found, index, classes.of(module), module, top, tree.body, None, "")
    return found, index


def _walk(found, index, bases_of, module, top, body, owner, prefix):
    for node in body:
        if not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            continue
        words = ast.get_docstring(node) or ""
        index[f"{module}.{prefix}{node.name}"].append(words)
        index[node.name].append(words)
        family = bases_of(owner) if owner else []
        same = [m for b in family for m in b.body if isinstance(m, ast.FunctionDef) and m.name == node.name]
        if isinstance(node, ast.ClassDef):
            around = [ast.get_docstring(b) or "" for b in bases_of(node)]
        else:
            around = [ast.get_docstring(b) or "" for b in ([owner] if owner else []) + family]
        if not node.name.startswith("_"):
            overridden = [ast.get_docstring(m) or "" for m in same]
            overridden += [w for w in (ast.get_docstring(b) or "" for b in family) if names(node.name, w, marked=True)]
            made = Definition(module, prefix + node.name, node, owner, [*around, top], [w for w in overridden if w])
            found.append(made)
            if isinstance(node, ast.ClassDef):
                index[node.name] += [ast.get_docstring(m) or "" for m in node.body if _is_init(m)]
                made.around += [ast.get_docstring(m) or "" for m in node.body if _is_init(m)]
                _walk(found, index, bases_of, module, top, node.body, node, f"{prefix}{node.name}.")


def _is_init(node):
    return isinstance(node, ast.FunctionDef) and node.name == "__init__"


class Classes:
    """Where a module's names of classes lead: to its own, or to those that it imports."""

    def __init__(self, trees):
        self._own = {
            module: {n.name: (n, module) for n in tree.body if isinstance(n, ast.ClassDef)}
            for module, tree in trees.items()
        }
        self._imports = {module: dict(self._imported(tree)) for module, tree in trees.items()}

    def of(self, module):
        """The bases of a class of this module, theirs, and so on: a function of the class."""
        return lambda node: [base for base, _ in self._bases(node, module)]

    def _imported(self, tree):
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("privrob"):
                home = node.module.removeprefix("privrob").removeprefix(".")
                for alias in node.names:
                    yield alias.asname or alias.name, (home, alias.name)

    def _find(self, module, name):
        first, _, rest = name.partition(".")
        if rest:  # a class of a module that was imported by name
            home, inner = self._imports[module].get(first, ("", ""))
            return self._own.get(f"{home}.{inner}".strip("."), {}).get(rest)
        if first in self._own[module]:
            return self._own[module][first]
        home, inner = self._imports[module].get(first, ("", ""))
        return self._find(home, inner) if home in self._own and (home, inner) != (module, name) else None

    def _bases(self, node, module):
        for base in node.bases:
            if found := self._find(module, ast.unparse(base).partition("[")[0]):
                yield found
                yield from self._bases(*found)


def linked(definition, index):
    """The docstrings that its roles lead to."""
    out = []
    for target in ROLE.findall("\n".join([definition.own, *definition.around])):
        out += index.get(target.removeprefix("privrob.")) or index.get(target.rpartition(".")[2]) or []
    return out


def names(word, text, *, marked=False):
    """Whether the text names the parameter; ``marked``: as code or as an entry, not as a word of a sentence."""
    name = re.escape(word)
    as_role = rf":(?:attr|meth):`[~.\w]*(?<!\w){name}`"
    as_code, as_entry = rf"``[^`]*(?<!\w){name}(?!\w)[^`]*``", rf"(?<![\w.])\**{name}(, ?\**\w+)* +[—–]"
    if re.search(f"{as_role}|{as_code}|{as_entry}", text):
        return True
    return not marked and word not in SHORT and len(word) > 1 and bool(re.search(rf"(?<!\w){name}(?!\w)", text))


def unnamed(definition, index, vocabulary):
    """Parameters that neither its words, nor what stands around them or one click away, name."""
    near = [*definition.around, *linked(definition, index)]
    return [
        p
        for p in definition.parameters
        if p not in vocabulary and not names(p, definition.own) and not any(names(p, t, marked=True) for t in near)
    ]


def array_parameters(definition):
    """Parameters that the body treats as arrays: it asks for their shape, or makes arrays of them."""
    node, given = definition.node, set(definition.parameters)
    if not isinstance(node, ast.FunctionDef):
        return []
    found = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute) and part.attr in ("shape", "ndim") and isinstance(part.value, ast.Name):
            found.add(part.value.id)
        if isinstance(part, ast.Call):
            call = ast.unparse(part.func)
            if call in ("np.asarray", "np.array", "np.atleast_1d", "torch.as_tensor", "checks.array", "checks.orders"):
                found |= {a.id for a in part.args[:2] if isinstance(a, ast.Name)}
    return sorted(found & given)


def returns_an_array(definition):
    """Whether a return statement builds an array on the spot."""
    node = definition.node
    if not isinstance(node, ast.FunctionDef):
        return False
    within = [n for n in ast.walk(node) if n is not node and isinstance(n, (ast.FunctionDef, ast.Lambda))]
    inner = {id(part) for n in within for part in ast.walk(n)}
    for part in ast.walk(node):
        made = isinstance(part, ast.Return) and isinstance(part.value, ast.Call)
        if made and id(part) not in inner and MADE.fullmatch(ast.unparse(part.value.func)):
            return True
    return False


def unshaped(definition, index, vocabulary):
    """Whether it takes or returns arrays, and nothing near says of what shape.

    A module that names an array once for all its functions says its shape there; so do the words of ``kinds``.
    """
    arrays = array_parameters(definition)
    if not arrays and not returns_an_array(definition):
        return False
    top = definition.around[-1]
    near = [definition.own, *definition.around[:-1], *linked(definition, index)]
    if any(names(a, top, marked=True) for a in arrays):
        near.append(top)
    known = arrays and set(arrays) <= vocabulary & {"images", "labels", "orders", "type1"}
    return not known and not any(SHAPE.search(text) for text in near)


def sideless(definition):
    """Whether its name says that it gives a bound or a guarantee, and its words not on which side it lies."""
    called = definition.name.rpartition(".")[2]
    return (
        isinstance(definition.node, ast.FunctionDef) and bool(BOUND.search(called)) and not SIDE.search(definition.own)
    )


def relationless(definition, index):
    """Whether it gives a guarantee without being told of which neighbours, and nothing near says it either."""
    called = definition.name.rpartition(".")[2]
    if not isinstance(definition.node, ast.FunctionDef) or not PRIVACY.search(called):
        return False
    near = [definition.own, *definition.around, *linked(definition, index)]
    return "neighbouring" not in definition.parameters and not any(RELATION.search(text) for text in near)


@cache
def docstrings(text):
    """All docstrings of a module, those of private names too."""
    named = [n for n in ast.walk(parse(text)) if isinstance(n, (ast.Module, ast.ClassDef, ast.FunctionDef))]
    return [words for words in map(ast.get_docstring, named) if words]


def sources_of(text):
    """What a module says it comes from: the texts after ``Paper:`` and ``Source:`` in all its docstrings."""
    found = []
    for words in docstrings(text):
        found += re.findall(r"(?:^|[.] +|  )(Paper|Source): (\S.*)", words, re.M)
    return found


def objects(texts):
    """{module: names that a role may lead to}: functions, classes, methods, fields and constants of the top."""
    found = {}
    for module, text in texts.items():
        names_ = found[module] = set()
        for node in parse(text).body:
            names_.update(_bound(node))
            if isinstance(node, ast.ClassDef):
                inner = {n for part in ast.walk(node) if part is not node for n in _bound(part)}
                inner |= {
                    n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute) and ast.unparse(n.value) == "self"
                }
                names_.update(f"{node.name}.{n}" for n in inner)
    return found


def _bound(node):
    """The names that a statement binds."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [t.id for t in targets if isinstance(t, ast.Name)]


def dead_roles(texts, elsewhere=()):
    """(module, role's target) of every role that leads to nothing: the reference would show a name without a link.

    A full path leads to that object, a name to one of its own module, a name after a dot to the only one of that name.
    """
    known, dead = objects(texts), []
    every = [f"{module}.{name}" for module, names_ in known.items() for name in names_] + list(known)
    for module, text in texts.items():
        for words in docstrings(text):
            for target in ROLE.findall(words):
                if target.startswith("."):
                    ends = [name for name in every if f".{name}".endswith(target)]
                    good = len(ends) == 1
                elif target.startswith("privrob."):
                    good = target.removeprefix("privrob.") in every or target.startswith(elsewhere)
                else:
                    own = any(n == target or n.endswith(f".{target}") for n in known[module])
                    good = own or target.partition(".")[0] in OTHERS
                if not good:
                    dead.append((module, target))
    return dead
