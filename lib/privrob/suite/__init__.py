"""The suite wing: runs notebooks, keeps rows, judges claims, draws the site. It knows no maths.

Notebooks need one name from here::

    from privrob.suite import start

    run = start("dplearn/sec2_1_mechanisms", globals())
"""

from __future__ import annotations


def start(notebook, namespace):
    """Begin a notebook's run: see :func:`privrob.suite.session.start`."""
    from privrob.suite import session

    return session.start(notebook, namespace)
