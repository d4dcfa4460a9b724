"""How far the pages are, told while they are built: a line a part, and within long parts a sign of life."""

from __future__ import annotations

import shutil
import sys
import time

from privrob.suite import tables

HEARTBEAT = 10.0  # seconds between signs of life where there is no terminal


class Progress:
    """Tells parts and steps through ``say`` (a line each); on a terminal, steps stand on one line that changes."""

    def __init__(self, say, *, live=None):
        self.say = say
        self.live = sys.stdout.isatty() if live is None else live
        self.began = self.spoke = time.monotonic()
        self.width = self.done = self.total = 0
        self.what = ""

    def part(self, what, total=0):
        """A part begins; ``total`` pages will be told as they are done."""
        self._clear()
        self.what, self.done, self.total = what, 0, total
        self.spoke = time.monotonic()
        self.say(f"{self._seconds()}  {what}" + (f": {tables.count(total, 'page')}" if total else ""))

    def step(self):
        """One more page of this part is done."""
        self.done += 1
        now = time.monotonic()
        if now - self.spoke < (0.3 if self.live else HEARTBEAT):
            return
        self.spoke = now
        text = f"{self._seconds()}  {self.what}: {self.done} of {tables.count(max(self.total, self.done), 'page')}"
        if self.live:
            text = text[: shutil.get_terminal_size().columns - 1]
            print("\r" + text.ljust(self.width), end="", flush=True)
            self.width = len(text)
        else:
            self.say(text)

    def end(self, words):
        """All is done."""
        self._clear()
        self.say(f"{self._seconds()}  {words}")

    def watch(self, app):
        """Follow a Sphinx application through reading and writing."""
        app.connect("env-before-read-docs", lambda app, env, names: self.part("reading", len(names)))
        app.connect("source-read", lambda *_: self.step())
        app.connect("env-updated", lambda app, env: self.part("writing", len(env.found_docs)))
        app.connect("html-page-context", lambda *_: self.step())

    def _seconds(self):
        return f"{time.monotonic() - self.began:4.0f} s"

    def _clear(self):
        if self.live and self.width:
            print("\r" + " " * self.width + "\r", end="", flush=True)
            self.width = 0
