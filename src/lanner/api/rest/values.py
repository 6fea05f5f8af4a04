"""Bytes in JSON: as text where they are UTF-8, else as base64 with an `encoding` that says so."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Literal

from msgspec import UNSET, UnsetType

from lanner.errors import ValidationError

TextEncoding = Literal["base64"] | UnsetType


def text_of(data: bytes) -> tuple[str, TextEncoding]:
    """The text of some bytes, and how it stands for them."""
    try:
        return str(data, "utf-8"), UNSET
    except UnicodeDecodeError:
        return base64.b64encode(data).decode("ascii"), "base64"


def texts_of(values: Mapping[str, bytes]) -> tuple[dict[str, str], TextEncoding]:
    """The same for headers: one value that is not UTF-8 makes all of them base64."""
    try:
        return {name: str(value, "utf-8") for name, value in values.items()}, UNSET
    except UnicodeDecodeError:
        return {name: base64.b64encode(value).decode("ascii") for name, value in values.items()}, "base64"


def bytes_of(text: str, encoding: str | UnsetType, field: str) -> bytes:
    """The bytes that a text stands for."""
    if encoding != "base64":
        return text.encode("utf-8")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValidationError(
            f"{field} is not base64 ({error}): encode it, or leave the encoding out to send plain text", field=field
        ) from None


def given(text: str | UnsetType) -> str:
    """A text that may be left out; empty: it was."""
    return "" if isinstance(text, UnsetType) else text
