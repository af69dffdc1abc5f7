"""Laws of what the command line says when something is wrong: one line, and no secret in it."""

from __future__ import annotations

import sys

import pytest

from fluxguard import cli
from fluxguard.errors import FluxguardError, InputError

TOKEN = "hf_" + "a1B2c3D4e5" * 4
HOOK = "discord://4174216298/JHMHI8qBe7bk2ZwO5U711o3dV_js"


@pytest.mark.parametrize(
    ("words", "error", "secret"),
    [
        (["supervise", "--", "python", "t.py", "--wandb_api_key", "s3cret-value"], "at 's3cret-value'", "s3cret-value"),
        (["supervise", "--", "python", "t.py", "--x", "1"], f"cannot load {TOKEN}", TOKEN),
        (["supervise", "--notify", HOOK, "train.sh"], f"cannot tell {HOOK}", "JHMHI8qBe7bk2ZwO5U711o3dV_js"),
        (["supervise", f"--notify={HOOK}", "train.sh"], f"cannot tell {HOOK}", "JHMHI8qBe7bk2ZwO5U711o3dV_js"),
        (["notify-test", HOOK], f"{HOOK}: no", "JHMHI8qBe7bk2ZwO5U711o3dV_js"),
        (["supervise"], "in the environment: from-the-environment", "from-the-environment"),
    ],
)
@pytest.mark.parametrize("kind", [FluxguardError, RuntimeError, OSError])
def test_no_error_tells_a_secret(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    kind: type[Exception],
    words: list[str],
    error: str,
    secret: str,
) -> None:
    """Whatever failed, and whichever way the secret was given."""

    def fails() -> None:
        raise kind(error)

    monkeypatch.setattr(cli, "app", fails)
    monkeypatch.setattr(sys, "argv", ["fluxguard", *words])
    monkeypatch.setenv("HF_TOKEN", "from-the-environment")
    with pytest.raises(SystemExit):
        cli.main()
    said = capsys.readouterr().err
    assert secret not in said
    assert "***" in said


def test_what_is_no_secret_is_said_as_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message is for the one who has to mend it."""

    def fails() -> None:
        raise InputError("train.sh", "line 3 holds `a | b`, which is no command of a trainer")

    monkeypatch.setattr(cli, "app", fails)
    monkeypatch.setattr(sys, "argv", ["fluxguard", "supervise", "train.sh"])
    with pytest.raises(SystemExit):
        cli.main()
    assert "train.sh: line 3 holds `a | b`, which is no command of a trainer" in capsys.readouterr().err
