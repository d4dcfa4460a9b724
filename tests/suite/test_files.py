"""Files are whole or absent, numbers survive, and a folder has one writer."""

import contextlib
import errno
import json
import math
import os
import random
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from house import ROOT, kill
from privrob import atomic
from privrob.suite import files

WRITER = """
import sys
sys.path.insert(0, sys.argv[2])
from privrob.suite import files
n = 0
while True:
    n += 1
    files.write_bytes(sys.argv[1], (b"%06d" % n) * 200_000)
    print(n, flush=True)
"""
HOLDER = """
import sys, time
sys.path.insert(0, sys.argv[2])
from privrob.suite import files
with files.lock(sys.argv[1], purpose="a long run"):
    print("held", flush=True)
    time.sleep(60)
"""
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
AWKWARD = [
    "",
    " ",
    "1",
    "1.0",
    "nan",
    "inf",
    "-inf",
    "True",
    "None",
    "null",
    '"',
    "'",
    "a,b",
    "a\nb",
    "a\r\nb",
    "\r",
    "[",
    "{}",
]


def python(code, *arguments):
    command = [sys.executable, "-c", code, *map(str, arguments), str(ROOT / "lib")]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def same(one, two):
    """Equal, with the same types and the same bits."""
    if isinstance(one, float) and isinstance(two, float):
        return struct.pack("d", one) == struct.pack("d", two) or (math.isnan(one) and math.isnan(two))
    if isinstance(one, (list, tuple)):
        return isinstance(two, list) and len(one) == len(two) and all(map(same, one, two))
    if isinstance(one, dict):
        return isinstance(two, dict) and one.keys() == two.keys() and all(same(one[k], two[k]) for k in one)
    return type(one) is type(two) and one == two


# -------------------------------------------------------------------------------------------------------------- writing


def test_a_writer_killed_at_20_random_moments_leaves_the_old_file_or_the_new_one(tmp_path):
    path, moments = tmp_path / "file", random.Random(1)
    for _ in range(20):
        writer = python(WRITER, path)
        writer.stdout.readline()
        time.sleep(moments.uniform(0, 0.03))
        kill(writer.pid)
        told = writer.stdout.read().split()
        writer.wait()
        data = path.read_bytes()
        assert len(data) == 1_200_000
        assert data == data[:6] * 200_000
        assert not told or int(data[:6]) >= int(told[-1]), "what was reported as written is there"


def test_a_full_disk_leaves_the_old_file_and_says_so(tmp_path, monkeypatch):
    path = tmp_path / "table.csv"
    files.write_text(path, "old")

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(files.NoSpace, match=r"no space left to write table.csv \(3,000,000 bytes\)"):
        files.write_text(path, "new" * 1_000_000)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["table.csv"], "no half-written file stays"


def test_a_really_full_file_system_leaves_the_old_file(tiny_disk):
    path = tiny_disk / "table.csv"
    files.write_text(path, "old")
    with pytest.raises(files.NoSpace, match="no space left"):
        files.write_bytes(path, os.urandom(2**21))
    assert path.read_text() == "old"
    assert [p.name for p in tiny_disk.iterdir()] == ["table.csv"]


def test_a_file_that_is_replaced_keeps_its_permissions_and_a_link_its_place(tmp_path):
    secret, link = tmp_path / "secret", tmp_path / "link"
    secret.write_text("old")
    secret.chmod(0o600)
    link.symlink_to(secret)
    files.write_text(link, "new")
    assert link.is_symlink()
    assert secret.read_text() == "new"
    assert secret.stat().st_mode & 0o777 == 0o600


def test_files_get_the_permissions_that_the_umask_allows(tmp_path):
    files.write_text(tmp_path / "x", "x")
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o666 & ~atomic._umask()


# ----------------------------------------------------------------------------------------------------------------- JSON


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=12))
def test_json_round_trips_bit_for_bit_and_is_strict(value):
    text = files.dump_json(value)
    assert same(files.load_json(text), value)

    def refuse(token):
        raise AssertionError(token)

    json.loads(text, parse_constant=refuse)


def test_infinity_nan_and_minus_zero_survive_json():
    value = [math.inf, -math.inf, math.nan, -0.0, 5e-324, 0.1, 1.7976931348623157e308]
    assert same(files.load_json(files.dump_json(value)), value)


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", '{"a": -Infinity}'])
def test_bare_infinity_and_nan_in_json_are_refused(text):
    with pytest.raises(ValueError, match="not strict JSON"):
        files.load_json(text)


def test_numpy_values_become_plain_ones():
    value = {"a": np.float32(0.5), "b": np.int64(3), "c": np.bool_(True), "d": np.array([1.0, np.inf]), "e": (1, 2)}
    assert same(
        files.load_json(files.dump_json(value)), {"a": 0.5, "b": 3, "c": True, "d": [1.0, math.inf], "e": [1, 2]}
    )


@pytest.mark.parametrize("value", [object(), 1j, b"x", {1: "a", "1": "b"}])
def test_what_json_cannot_hold_is_refused_in_words(value):
    with pytest.raises(TypeError, match="cannot be written as JSON"):
        files.dump_json(value)


def test_equal_values_have_equal_digests_whatever_the_order_of_keys():
    assert files.digest({"a": 1, "b": 2.0}) == files.digest({"b": 2.0, "a": 1})
    assert files.digest({"a": 1}) != files.digest({"a": 1.0})
    assert files.digest({"a": True}) != files.digest({"a": 1})


# ------------------------------------------------------------------------------------------------------------------ CSV


FIELDS = SCALARS | st.sampled_from(AWKWARD) | st.lists(SCALARS, max_size=3)


@settings(derandomize=True, deadline=None, max_examples=150)
@given(rows=st.lists(st.dictionaries(st.sampled_from(["a", "b", "c,d", 'e"f', "g h"]), FIELDS), max_size=6))
def test_rows_survive_csv_through_a_file_with_types_and_last_digits(tmp_path_factory, rows):
    path = tmp_path_factory.getbasetemp() / "rows.csv"
    path.write_bytes(files.rows_to_csv(rows).encode())
    expected = [{k: v for k, v in row.items() if v is not None} for row in rows]
    assert same(files.csv_to_rows(files.read_text(path)), expected)


def test_csv_has_one_token_for_each_number_that_is_not_finite_and_nothing_for_a_missing_value():
    text = files.rows_to_csv([{"a": math.inf, "b": -math.inf, "c": math.nan, "d": None, "e": "inf"}])
    assert text == 'a,b,c,d,e\ninf,-inf,nan,,"""inf"""\n'


# ----------------------------------------------------------------------------------------------------------------- lock


def test_a_second_writer_is_refused_at_once_naming_the_first_and_a_killed_one_leaves_no_stale_lock(tmp_path):
    holder = python(HOLDER, tmp_path)
    try:
        assert holder.stdout.readline() == "held\n"
        began = time.monotonic()
        with pytest.raises(files.Locked, match=rf"a long run, pid {holder.pid} on "), files.lock(tmp_path):
            pass
        assert time.monotonic() - began < 10
    finally:
        kill(holder.pid)
        holder.wait()
    with files.lock(tmp_path) as path:
        assert f"pid {os.getpid()}" in path.read_text()
    assert path.read_text() == ""


def test_a_lock_ends_with_an_error_in_its_block(tmp_path):
    with contextlib.suppress(ZeroDivisionError), files.lock(tmp_path):
        _ = 1 / 0
    with files.lock(tmp_path):
        pass


def test_a_file_in_place_of_the_folder_and_a_place_that_cannot_be_made_are_refused(tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(ValueError, match="must be a folder, got a file"):
        files.check_writable(tmp_path / "out")
    for nowhere in (tmp_path / "out" / "below", Path("/proc/nowhere")):
        with pytest.raises(ValueError, match="--out must be writable"):
            files.check_writable(nowhere)


def test_a_missing_folder_is_made_and_left_empty(tmp_path):
    assert list(files.check_writable(tmp_path / "a" / "b").iterdir()) == []
