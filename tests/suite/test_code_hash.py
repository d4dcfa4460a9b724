"""The hash of the code behind a result: what the code does counts, words about it do not."""

import ast
import io
import tokenize

import pytest

from privrob.suite import sources

CODE = '''\
"""What it is."""
import math  # a comment

LINE = "a # in a string"  # and a comment
TEXT = f"""an answer: # {math.pi}

after a blank line   """


class Thing:
    """A docstring
    of two lines.
    """

    def twice(self, x):
        """Another."""
        return 2 * x  # ü: not one byte


def only_words():
    """Nothing else."""
'''


def words_left_out(text):
    return sources.without_words(text, ast.parse(text))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"""What it is."""', '"""What it was."""'),
        ("  # a comment", ""),
        ("# and a comment", "# \"another\" # '''comment"),
        ("    of two lines.\n", "    of three\n    lines.\n"),
        ("# ü: not one byte", ""),
        ("\n\n\nclass", "\n# the class\n\nclass"),
        ('"""Nothing else."""', '"""Nothing. # Else."""'),
    ],
)
def test_words_do_not_count(old, new):
    assert CODE.count(old) == 1
    assert words_left_out(CODE.replace(old, new)) == words_left_out(CODE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("2 * x", "3 * x"),
        ("a # in a string", "a # in the string"),
        ("a # in a string", "a"),
        ("answer: # {math.pi}", "answer: # {math.e}"),
        ("\n\nafter", "\nafter"),
        ("blank line   ", "blank line"),
        ("import math ", "import cmath as math "),
        ("        return", "    return"),
    ],
)
def test_code_counts(old, new):
    assert CODE.count(old) == 1
    assert words_left_out(CODE.replace(old, new)) != words_left_out(CODE)


def test_every_module_keeps_its_code():
    """Against Python's own tokenizer: the same tokens are left, but for comments and docstrings."""
    space = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)

    def tokens(text, without=()):
        found = tokenize.generate_tokens(io.StringIO(text).readline)
        return [t.string for t in found if t.type not in space and t.start not in without]

    for path in sorted((sources.package_root() / sources.PACKAGE).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        nodes = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        bodies = [
            n.body[0] for n in ast.walk(ast.parse(text)) if isinstance(n, nodes) and ast.get_docstring(n) is not None
        ]
        starts = {(b.value.lineno, b.value.col_offset) for b in bodies}
        assert tokens(words_left_out(text)) == tokens(text, starts), path


def test_a_hash_follows_imports_and_leaves_the_suite_out(tmp_path):
    package = tmp_path / "privrob"
    for name, text in {
        "__init__.py": "",
        "a.py": "def f():\n    from privrob import b\n    import privrob.suite.c\n    return b.x\n",
        "b.py": "x = 1  # one\n",
        "d.py": "y = 1\n",
        "suite/__init__.py": "",
        "suite/c.py": "z = 1\n",
    }.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    first = sources.code_hash(["privrob.a"], root=tmp_path)
    for name, text, same in [
        ("b.py", "x = 1  # another word\n", True),
        ("d.py", "y = 20\n", True),
        ("suite/c.py", "z = 20\n", True),
        ("b.py", "x = 2000\n", False),
    ]:
        (package / name).write_text(text)
        assert (sources.code_hash(["privrob.a"], root=tmp_path) == first) == same, name
