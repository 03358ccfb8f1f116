"""The gate as CI runs it: exit codes, decision.json, and the same decision again from the finished run."""

from __future__ import annotations

import html
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from engram.cli.app import app
from engram.core.files import write_tensors
from tests.auditing.cases import faces, memorising
from tests.cli.command import engram
from tests.schemas import problems

STRICT = """
name = "strict"
images_recovered = 0
members_at_0_fpr = 0.5  # 20 records can show no less
data = true
tests = ["reconstruction", "membership"]
"""
MORE = f"{STRICT}smallest_control = 100\n"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that knows the faces, one that never saw them, the faces, and policies."""
    place = tmp_path_factory.mktemp("policy")
    for name, start in (("knowing", 0), ("innocent", 40)):
        write_tensors(place / f"{name}.safetensors", memorising(start).params)
    for name, start in (("own", 0), ("other", 20)):
        one = faces(start)
        np.savez(place / f"{name}.npz", images=one.images.numpy(), labels=one.labels.numpy())
    (place / "strict.toml").write_text(STRICT)
    (place / "more.toml").write_text(MORE)
    return place


def audit_of(place: Path, name: str, policy: str, *more: object) -> list[object]:
    data = ("--data", f"npz:{place / 'own.npz'}", "--held-out", f"npz:{place / 'other.npz'}")
    run = ("--budget", "2s", "--baselines", "none", "--policy", place / f"{policy}.toml", "-o", place / name)
    return ["audit", place / f"{name}.safetensors", "--input-shape", "1x25x25", *data, *run, *more]


def invoked(*arguments: object) -> tuple[int, str]:
    """Exit code and standard output, whatever the code is."""
    result = CliRunner().invoke(app, [str(one) for one in arguments], env={"COLUMNS": "200"})
    return result.exit_code, result.stdout


@pytest.mark.parametrize(("name", "code", "word"), [("knowing", 3, "fail"), ("innocent", 0, "pass")])
def test_the_gate(place: Path, name: str, code: int, word: str) -> None:
    """One audit each; all that follows reads what it wrote."""
    found, printed = invoked(*audit_of(place, name, "strict", "--explain"))
    assert found == code, printed
    stored = json.loads((place / name / "decision.json").read_text())
    assert stored["outcome"] == word
    assert stored["sentence"] in printed.replace("\n", "")
    assert all(part in printed for part in ("images recovered", "at most 0 beyond the control", "measured", "why"))
    assert problems("decision", stored) == []
    assert stored["sentence"] in html.unescape((place / name / "report.html").read_text()), "the report shows it"
    report = json.loads((place / name / "report.json").read_text())
    assert problems("report", report) == []
    assert stored["audited"]["command"] == report["command"]
    assert stored["policy"]["thresholds"]["images_recovered"] == 0
    # the same again from the finished run, to the letter
    found, printed = invoked("policy", "check", place / name, "--policy", place / "strict.toml", "--json")
    assert (found, json.loads(printed)) == (code, stored)
    # another policy
    found, printed = invoked("policy", "check", place / name, "--policy", place / "more.toml")
    assert found == (3 if word == "fail" else 4)
    assert json.loads((place / name / "decision.json").read_text()) == stored, "written only with --save"
    invoked("policy", "check", place / name, "--policy", place / "more.toml", "--save")
    assert (
        json.loads((place / name / "decision.json").read_text())["policy"]["sha256"] != stored["policy"]["sha256"]
    )
    if word == "pass":
        assert "give 80 more with --held-out" in printed
        # a resumed run goes on under its policy, and keeps the command that started it
        resumed = [one for one in audit_of(place, name, "strict") if str(one) not in ("--budget", "2s")]
        at = resumed.index("--policy")
        found, _ = invoked(*resumed[:at], *resumed[at + 2 :], "--resume")
        assert found == 0
        again = json.loads((place / name / "decision.json").read_text())
        assert again["outcome"] == "pass"
        assert again["audited"]["command"] == stored["audited"]["command"]


def test_membership_alone_is_judged_too(place: Path) -> None:
    (place / "members.toml").write_text("members_at_0_fpr = 0.05\nsmallest_control = 20\n")
    data = ("--data", f"npz:{place / 'own.npz'}", "--held-out", f"npz:{place / 'other.npz'}")
    shape, out = ("--input-shape", "1x25x25"), place / "asked"
    policy = ("--policy", place / "members.toml")
    code, printed = invoked("membership", place / "knowing.safetensors", *shape, *data, *policy, "-o", out)
    assert (code, "Fail: members identified at 0% FPR" in printed) == (3, True), printed
    stored = json.loads((out / "decision.json").read_text())
    assert problems("decision", stored) == []
    assert stored["audited"]["weights_sha256"] == memorising(0).digest()
    code, printed = invoked("policy", "check", out, *policy, "--json")
    assert (code, json.loads(printed)) == (3, stored)
    code, printed = invoked("policy", "check", out, "--policy", place / "strict.toml")
    assert code == 3 or "engram membership does not try it" in printed


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--fail-on-leak",), "--policy and --fail-on-leak both set the exit code"),
        (("--policy", "none.toml"), "none.toml is not a readable policy"),
        (("--policy", "WRONG"), "did you mean images_recovered?"),
    ],
)
def test_a_bad_gate_is_refused_before_anything_is_computed(
    place: Path, tmp_path: Path, more: tuple[str, ...], message: str
) -> None:
    (tmp_path / "wrong.toml").write_text("image_recovered = 0")
    given = [str(tmp_path / "wrong.toml") if one == "WRONG" else one for one in more]
    for command in ("audit", "membership"):
        arguments = [
            command,
            "no-such-model.pt",
            "--policy",
            place / "strict.toml",
            *given,
            "-o",
            tmp_path / "run",
        ]
        assert message in engram(*arguments, expect=1)
    assert not (tmp_path / "run").exists()


def test_explain_needs_a_policy(place: Path, tmp_path: Path) -> None:
    error = engram("audit", place / "knowing.safetensors", "--explain", "-o", tmp_path / "run", expect=1)
    assert "--explain does nothing without --policy" in error


def test_a_policy_is_written_and_never_replaced_unasked(tmp_path: Path) -> None:
    path = tmp_path / "new" / "policy.toml"
    assert str(path) in engram("policy", "init", path).replace("\n", "")
    path.write_text("epsilon = 1")
    assert "replace it with --force" in engram("policy", "init", path, expect=1)
    assert path.read_text() == "epsilon = 1"
    engram("policy", "init", path, "--force")
    assert "images_recovered = 0" in path.read_text()
    assert "is a directory" in engram("policy", "init", tmp_path, "--force", expect=1)


def test_what_is_no_run_is_refused(place: Path, tmp_path: Path) -> None:
    check = ("policy", "check", tmp_path, "--policy", place / "strict.toml")
    assert "has no report.json; give the directory of a finished" in engram(*check, expect=1)
    for content in ("[]", "{", "{}", '{"mode": "with data"}', "[" * 100_000):
        (tmp_path / "report.json").write_text(content)
        assert "audit again" in engram(*check, expect=1)
