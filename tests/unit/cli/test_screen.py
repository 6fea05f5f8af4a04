from __future__ import annotations

import io
import json

import pytest
import typer
from rich.console import Console

from lanner.cli import screen
from lanner.cli.screen import Screen
from lanner.errors import TopicNotFound


def test_an_error_of_the_catalogue_is_one_line_and_exit_code_1(capsys):
    def work() -> None:
        raise TopicNotFound("topic 'orders' does not exist; create it first", topic="orders")

    with pytest.raises(typer.Exit) as end:
        Screen(as_json=False).guard(work)
    assert end.value.exit_code == 1
    assert capsys.readouterr().err.strip() == "TopicNotFound: topic 'orders' does not exist; create it first"


def test_an_error_is_json_where_json_is_asked_for(capsys):
    def work() -> None:
        raise TopicNotFound("gone", topic="orders")

    with pytest.raises(typer.Exit):
        Screen(as_json=True).guard(work)
    output = capsys.readouterr()
    assert output.out == ""
    assert json.loads(output.err) == {"type": "TopicNotFound", "message": "gone", "details": {"topic": "orders"}}


def test_an_error_of_the_system_is_one_line_too(capsys):
    def work() -> None:
        raise OSError(98, "Address already in use")

    with pytest.raises(typer.Exit) as end:
        Screen(as_json=False).guard(work)
    assert end.value.exit_code == 1
    assert "Address already in use" in capsys.readouterr().err


def test_a_file_that_cannot_be_used_is_named_without_a_number(capsys, tmp_path):
    with pytest.raises(typer.Exit):
        Screen(as_json=False).guard((tmp_path / "none").read_text)
    assert capsys.readouterr().err.strip() == f"FileNotFoundError: {tmp_path / 'none'}: No such file or directory"


def test_ctrl_c_is_130():
    def work() -> None:
        raise KeyboardInterrupt

    with pytest.raises(typer.Exit) as end:
        Screen(as_json=False).guard(work)
    assert end.value.exit_code == 130


def test_what_cannot_be_undone_needs_a_yes_where_nobody_can_answer(capsys):
    Screen(as_json=True).confirm("Delete?", yes=True)
    with pytest.raises(typer.Exit) as end:
        Screen(as_json=True).confirm("Delete?", yes=False)
    assert end.value.exit_code == 2
    assert "--yes" in capsys.readouterr().err


def test_values_that_look_like_markup_are_shown_as_they_are(capsys):
    Screen(as_json=False).table(["value"], [["[red]x[/red]"], [1_000]])
    shown = capsys.readouterr().out
    assert "[red]x[/red]" in shown
    assert "1,000" in shown


def test_what_others_wrote_does_not_drive_the_terminal(capsys):
    assert (
        screen.harmless("\x1b[31mred\x1b]0;title\x07\r\x00\x9b\u202e") == r"\x1b[31mred\x1b]0;title\x07\r\x00\x9b\u202e"
    )
    assert screen.harmless("ünï\tcødé 🎉\n") == "ünï\tcødé 🎉\n"
    Screen(as_json=False).table(["value"], [["\x1b]0;title\x07"]])
    assert r"\x1b]0;title\x07" in capsys.readouterr().out
    with pytest.raises(typer.Exit):
        Screen(as_json=False).fail("no \x1b[2J")
    assert r"no \x1b[2J" in capsys.readouterr().err


def narrow(columns: int) -> tuple[Screen, io.StringIO]:
    shown, seen = Screen(as_json=False), io.StringIO()
    shown._console = Console(file=seen, force_terminal=True, color_system=None, width=columns, soft_wrap=True)
    return shown, seen


def test_a_table_that_does_not_fit_is_a_list_and_no_number_is_torn():
    names = ["topic", "messages", "bytes", "lag", "partitions", "led by"]
    row = ["orders", 33_617, 1_234_567, 0, 3, "broker-3594ae3d:3"]
    shown, seen = narrow(40)
    shown.table(names, [row, row], title="all of them")
    text = seen.getvalue()
    assert text.startswith("all of them\n\ntopic ")
    assert text.count("33,617") == text.count("1,234,567") == text.count("broker-3594ae3d:3") == 2
    shown, seen = narrow(100)
    shown.table(names, [row])
    assert "topic    messages" in seen.getvalue()


def test_a_fact_that_does_not_fit_is_folded_and_not_cut():
    shown, seen = narrow(30)
    shown.facts({"cluster": "22d5598e4871fb935c231badddf33cc6"})
    assert "".join(seen.getvalue().replace("cluster", "").split()) == "22d5598e4871fb935c231badddf33cc6"


def test_bytes_are_text_or_base64():
    assert screen.text_of(None) == (None, None)
    assert screen.text_of("ü".encode()) == ("ü", None)
    assert screen.text_of(b"\xff") == ("/w==", "base64")


def test_sizes_ages_and_times_are_for_people():
    assert screen.bytes_text(512) == "512 B"
    assert screen.bytes_text(1536) == "1.5 KiB"
    assert screen.bytes_text(5 << 40) == "5.0 TiB"
    assert screen.age_text(5) == "5.0 s"
    assert screen.age_text(7_200) == "2.0 h"
    assert screen.time_text(0) == "-"
    assert screen.time_text(1_000) == "1970-01-01 00:00:01"


def test_text_that_cannot_be_written_is_one_line_too(capsys):
    with pytest.raises(typer.Exit):
        Screen(as_json=False).guard(lambda: "gr\udcfcn".encode())
    assert capsys.readouterr().err == "ValidationError: '\\udcfc' cannot be written as utf-8: surrogates not allowed\n"
