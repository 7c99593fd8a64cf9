"""A run speaks once, however many processes it has."""

from __future__ import annotations

from megalith.log import say, warn


def test_only_the_first_process_speaks(monkeypatch, capsys) -> None:
    monkeypatch.delenv("RANK", raising=False)
    say("alone")
    monkeypatch.setenv("RANK", "1")
    say("second")
    warn("second")
    monkeypatch.setenv("RANK", "0")
    warn("first")
    assert tuple(capsys.readouterr()) == ("alone\n", "warning: first\n")
