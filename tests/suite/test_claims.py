"""One rule decides every verdict, and a result that does not follow the schema is refused."""

import copy
import math

import pytest
import yaml

from privrob.suite import claims, files, record
from privrob.suite.claims import Claim, ClaimError

STATEMENT = {
    "id": "ptr/theorem_1",
    "kind": "theorem",
    "where": "§1",
    "text": "So.",
    "notebook": "ptr/sec1",
    "expected": "holds",
}
NUMBER = {**STATEMENT, "id": "ptr/table_1", "kind": "number", "expected": "matches", "paper": 1.3, "printed_digits": 1}
ORIGINAL = {"name": "mnist", "variant": "original", "kind": "real", "sha256": "0", "label": "MNIST"}
COPY = {**ORIGINAL, "variant": "JPEG q75 copies"}
SYNTHETIC = {**ORIGINAL, "name": "synthetic", "kind": "synthetic"}


def judge(entry, evidence, *, parameters=None, data=()):
    return claims.judge(Claim(**entry), evidence, parameters=parameters or {}, data=list(data))


def verdict(entry, evidence, **kwargs):
    return judge(entry, evidence, **kwargs)["verdict"]


# ------------------------------------------------------------------------------------------------------------- verdicts


@pytest.mark.parametrize(
    ("holds", "repaired", "want"),
    [
        (True, None, "holds"),
        (True, True, "holds"),
        (False, True, "corrected"),
        (False, False, "fails"),
        (False, None, "fails"),
    ],
)
def test_a_statement_holds_or_is_corrected_or_fails(holds, repaired, want):
    assert verdict(STATEMENT, {"holds": holds, "repaired": repaired}) == want


@pytest.mark.parametrize("got", [1.3, 1.35, 1.25, 1.3 + 0.05 - 1e-12])
def test_a_number_within_half_the_last_printed_digit_matches_the_boundary_included(got):
    assert verdict(NUMBER, {"got": got}) == "matches"


@pytest.mark.parametrize("got", [1.3501, 1.2499, 1.3 + 0.05 + 1e-9, 0.0, math.inf, -math.inf])
def test_a_number_beyond_half_the_last_printed_digit_differs(got):
    assert verdict(NUMBER, {"got": got}) == "differs"


def test_printed_digits_count_behind_the_point_and_may_be_negative():
    tens = {**NUMBER, "paper": 120, "printed_digits": -1}
    assert [verdict(tens, {"got": g}) for g in (125, 115, 126)] == ["matches", "matches", "differs"]
    whole = {**NUMBER, "paper": 7, "printed_digits": 0}
    assert [verdict(whole, {"got": g}) for g in (7.5, 6.5, 7.51)] == ["matches", "matches", "differs"]


def test_the_spread_widens_the_match_by_two_standard_errors():
    assert verdict(NUMBER, {"got": 1.55, "spread": 0.1}) == "matches"
    assert verdict(NUMBER, {"got": 1.5501, "spread": 0.1}) == "differs"
    assert verdict(NUMBER, {"got": 1.55, "spread": 0.0999}) == "differs"


@pytest.mark.parametrize(
    "evidence",
    [
        {"got": math.nan},
        {"got": None},
        {"got": "1.3"},
        {"got": True},
        {"got": 1.3, "spread": -0.1},
        {"got": 1.3, "spread": math.nan},
        {"got": 1.3, "spread": math.inf},
    ],
)
def test_what_cannot_be_compared_is_refused_not_judged(evidence):
    with pytest.raises(ClaimError, match="needs a number and a finite standard error"):
        judge(NUMBER, evidence)


# ---------------------------------------------------------------------------------------------------------------- scale


SCALED = {**NUMBER, "scale": {"epochs": 10, "dataset": "mnist"}}


def test_an_untouched_scale_is_judged_in_full_under_any_preset():
    assert verdict(SCALED, {"got": 1.3}, parameters={"epochs": 10, "seed": 5}, data=[ORIGINAL]) == "matches"


def test_a_touched_scale_leaves_only_the_trend_and_names_what_changed():
    item = judge(SCALED, {"got": 9.0, "agrees": True}, parameters={"epochs": 2}, data=[ORIGINAL])
    assert (item["verdict"], item["agrees"], item["surprise"]) == ("trend", True, False)
    assert item["changed"] == {"epochs": {"paper": 10, "here": 2}}
    statement = {**STATEMENT, "scale": {"epochs": 10}}
    item = judge(statement, {"holds": False}, parameters={"epochs": 2})
    assert (item["verdict"], item["agrees"]) == ("trend", False)


def test_a_touched_scale_without_a_direction_is_refused():
    with pytest.raises(ClaimError, match=r"epochs changed, so hand in agrees=True or False"):
        judge(SCALED, {"got": 1.3}, parameters={"epochs": 2}, data=[ORIGINAL])


def test_a_changed_copy_of_the_data_and_no_data_count_as_other_data():
    for data, here in (([COPY], "mnist (JPEG q75 copies)"), ([], "none")):
        item = judge(SCALED, {"got": 1.3, "agrees": True}, parameters={"epochs": 10}, data=data)
        assert item["verdict"] == "trend"
        assert item["changed"]["dataset"] == {"paper": "mnist", "here": here}


@pytest.mark.parametrize("data", [SYNTHETIC, {**ORIGINAL, "name": "folder:mine"}])
def test_made_up_data_or_own_images_in_place_of_the_real_ones_mean_not_tried(data):
    item = judge(SCALED, {"got": 1.3, "agrees": True}, parameters={"epochs": 10}, data=[data])
    assert (item["verdict"], item["reason"], item["surprise"]) == ("not tried", "needs data", False)


def test_a_scale_that_names_no_parameter_is_refused():
    with pytest.raises(ClaimError, match="its scale names 'epochs', which is no parameter of the notebook"):
        judge(SCALED, {"got": 1.3}, data=[ORIGINAL])


# ------------------------------------------------------------------------------------------------ reasons and surprises


@pytest.mark.parametrize("reason", claims.REASONS)
def test_not_tried_takes_only_reasons_of_the_closed_list(reason):
    item = judge(STATEMENT, {"not_tried": reason})
    assert (item["verdict"], item["reason"]) == ("not tried", reason)
    with pytest.raises(ClaimError, match="the reasons are needs data, needs hardware, not in the text"):
        judge(STATEMENT, {"not_tried": "no time"})


def test_only_a_verdict_other_than_the_expected_one_is_a_surprise():
    assert not judge(STATEMENT, {"holds": True})["surprise"]
    assert judge(STATEMENT, {"holds": False})["surprise"]
    assert judge({**STATEMENT, "expected": "corrected"}, {"holds": True})["surprise"]
    assert not judge({**STATEMENT, "expected": "corrected"}, {"holds": False, "repaired": True})["surprise"]
    assert judge(NUMBER, {"got": 2.0})["surprise"]
    assert not judge({**NUMBER, "expected": "differs"}, {"got": 2.0})["surprise"]
    assert judge({**NUMBER, "expected": "differs"}, {"got": 1.3})["surprise"], "a match we did not stand by is one too"
    assert judge({**STATEMENT, "expected": "not tried"}, {"holds": True})["surprise"]


def test_missing_data_or_hardware_is_no_surprise_but_leaving_an_item_out_is():
    assert not judge(STATEMENT, {"not_tried": "needs data"})["surprise"]
    assert not judge(STATEMENT, {"not_tried": "needs hardware"})["surprise"]
    assert judge(STATEMENT, {"not_tried": "not in the text"})["surprise"]
    assert not judge({**STATEMENT, "expected": "not tried"}, {"not_tried": "not in the text"})["surprise"]


@pytest.mark.parametrize(
    ("stood_by", "agrees", "surprise"), [(None, False, False), (True, True, False), (True, False, True)]
)
def test_a_trend_surprises_only_against_the_direction_we_stand_by(stood_by, agrees, surprise):
    entry = {**SCALED, "expected_trend": stood_by}
    item = judge(entry, {"got": 1.0, "agrees": agrees}, parameters={"epochs": 1}, data=[ORIGINAL])
    assert item["surprise"] is surprise


def test_the_closing_line_counts_every_verdict():
    items = [{"verdict": v} for v in ("holds", "matches", "corrected", "differs", "not tried", "fails")]
    assert claims.tally(items) == "5 of 6 judged in full: 2 reproduced, 1 corrected, 1 differs, 1 fails; 1 not tried"
    twice = claims.tally([*items, *items])
    assert twice == "10 of 12 judged in full: 4 reproduced, 2 corrected, 2 differ, 2 fail; 2 not tried"
    assert claims.tally(items[:3]) == "2/3 reproduced, 1 corrected"
    assert claims.tally([]) == "beyond the document: no items"


def test_the_closing_line_does_not_count_a_trend_as_a_failure():
    trends = [{"verdict": "trend", "agrees": a} for a in (True, True, False)]
    assert claims.tally(trends) == "3 tried only as a trend: 2 agree, 1 does not"
    assert claims.tally(trends[:2]) == "2 tried only as a trend: all agree"
    assert claims.tally(trends[2:]) == "1 tried only as a trend: it does not"
    assert claims.tally(trends[:1]) == "1 tried only as a trend: it agrees"
    assert claims.tally(trends[2:] * 2) == "2 tried only as a trend: none agrees"
    assert claims.tally([*trends, {"verdict": "holds"}]).startswith("1 of 4 judged in full: 1 reproduced; 3 tried only")


# ---------------------------------------------------------------------------------------------------------- claims.yaml


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "guess"}, "kind must be one of"),
        ({"id": "nowhere/x"}, "id must be"),
        ({"id": "ptr"}, "id must be"),
        ({"id": 7}, "needs an id that is text"),
        ({"expected": "matches"}, "expected must be one of holds, corrected, fails"),
        ({"expected": "hold"}, "expected must be one of"),
        ({"extra": 1}, r"unknown field\(s\) extra"),
        ({"kind": "number", "expected": "matches"}, "a number needs 'paper'"),
        ({"kind": "number", "expected": "matches", "paper": "1.3", "printed_digits": 1}, "a number needs 'paper'"),
        (
            {"kind": "number", "expected": "holds", "paper": 1.3, "printed_digits": 1},
            "expected must be one of matches, differs",
        ),
    ],
)
def test_entries_that_cannot_be_judged_are_refused_by_id(tmp_path, change, words):
    path = tmp_path / "claims.yaml"
    path.write_text(yaml.safe_dump([{**STATEMENT, **change}]))
    with pytest.raises(ClaimError, match=f"claims.yaml.*{words}"):
        claims.load(path)


def test_a_missing_field_a_repeated_id_and_text_that_is_no_yaml_are_refused(tmp_path):
    path = tmp_path / "claims.yaml"
    path.write_text(yaml.safe_dump([{k: v for k, v in STATEMENT.items() if k != "text"}]))
    with pytest.raises(ClaimError, match=r"ptr/theorem_1.*'text'"):
        claims.load(path)
    path.write_text(yaml.safe_dump([STATEMENT, STATEMENT]))
    with pytest.raises(ClaimError, match=r"ptr/theorem_1 stands twice"):
        claims.load(path)
    for text in ("- [", "- text"):
        path.write_text(text)
        with pytest.raises(ClaimError, match=r"claims.yaml"):
            claims.load(path)
    with pytest.raises(ClaimError, match="cannot be read"):
        claims.load(tmp_path / "none.yaml")


def test_the_real_claims_can_all_be_judged_and_name_notebooks_of_their_document():
    for claim in claims.load().values():
        assert claim.notebook.startswith(f"{claim.document}/"), claim.id
        assert claim.text.strip(), claim.id


# ---------------------------------------------------------------------------------------------------------- result.json


@pytest.fixture(scope="module")
def result():
    sha = "0" * 64
    return {
        "format": 1,
        "notebook": "ptr/sec1",
        "title": "PTR",
        "preset": "smoke",
        "parameters": {"seed": 0},
        "changed_parameters": {},
        "seed": 0,
        "device": {"type": "cpu", "name": "CPU"},
        "versions": {"python": "3.11", "privrob": "0", "numpy": "2"},
        "commit": "unknown",
        "sources": {"notebook": sha, "library": sha},
        "inputs": sha,
        "data": [ORIGINAL],
        "sweeps": [],
        "figures": [],
        "files": {"rows.csv": sha},
        "claims": [judge(STATEMENT, {"holds": True}), judge(NUMBER, {"got": 1.3})],
        "summary": "2/2 reproduced",
        "run": {"started": "now", "seconds": 1.0, "token": "x"},
    }


def test_a_result_as_the_suite_writes_it_is_valid(result):
    assert record.validate(files.plain(result))


def _set(value, *path):
    def change(result):
        for key in path[:-1]:
            result = result[key]
        result[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (lambda r: r.pop("commit"), "top level"),
        (lambda r: r.update(extra=1), "top level"),
        (_set(2, "format"), "format"),
        (_set("PTR sec 1", "notebook"), "notebook"),
        (_set(-1, "seed"), "seed"),
        (_set("0", "seed"), "seed"),
        (_set("abc", "inputs"), "inputs"),
        (_set("abc", "files", "rows.csv"), "files/rows.csv"),
        (_set(3, "versions", "numpy"), "versions/numpy"),
        (lambda r: r["data"][0].pop("sha256"), "data/0"),
        (_set("proved", "claims", 0, "verdict"), "claims/0/verdict"),
        (_set("no time", "claims", 0, "reason"), "claims/0/reason"),
        (lambda r: r["claims"][0].pop("surprise"), "claims/0"),
        (_set("trend", "claims", 0, "verdict"), "claims/0/agrees"),
        (_set("not tried", "claims", 0, "verdict"), "claims/0/reason"),
        (_set("0.1", "claims", 1, "spread"), "claims/1/spread"),
        (_set({"$float": "big"}, "claims", 1, "spread"), "claims/1/spread"),
        (_set(-2.0, "run", "seconds"), "run/seconds"),
        (lambda r: r["run"].pop("token"), "run"),
    ],
)
def test_a_wrong_result_is_refused_with_the_place(result, change, place):
    wrong = copy.deepcopy(files.plain(result))
    change(wrong)
    with pytest.raises(record.BadResult, match=f"result.json, {place}: "):
        record.validate(wrong)


def test_a_result_in_a_folder_is_read_back_and_checked_against_its_files(tmp_path, result):
    assert record.read(tmp_path) is None
    (tmp_path / "rows.csv").write_text("a\n1\n")
    infinite = {**result["claims"][1], "got": math.inf}
    good = {**result, "files": {"rows.csv": files.file_digest(tmp_path / "rows.csv")}, "claims": [infinite]}
    files.write_text(tmp_path / "result.json", files.dump_json(good))
    assert record.read(tmp_path, check_files=True)["claims"][0]["got"] == math.inf
    (tmp_path / "rows.csv").write_text("a\n2\n")
    with pytest.raises(record.BadResult, match=r"rows.csv is changed"):
        record.read(tmp_path, check_files=True)
    (tmp_path / "rows.csv").unlink()
    with pytest.raises(record.BadResult, match=r"rows.csv is missing"):
        record.read(tmp_path, check_files=True)
    for text in ("", "{", '{"a": NaN}', "[]"):
        (tmp_path / "result.json").write_text(text)
        with pytest.raises(record.BadResult):
            record.read(tmp_path)
