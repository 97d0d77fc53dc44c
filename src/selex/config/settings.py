"""What a setting is: a default, a description, and which values are allowed. Groups of them are frozen dataclasses.

`setting` describes one where it is defined; command-line help, TOML files and the manual are made from that.
"""

from __future__ import annotations

import json
from dataclasses import Field, field, fields
from functools import cache
from numbers import Integral, Real
from types import NoneType
from typing import Any, ClassVar, Literal, get_args, get_origin, get_type_hints

from selex.errors import InputError

LARGEST = 10**12
"""Of numbers: beyond this are some that numpy and torch do not compute with."""
_KINDS: dict[type, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def setting(
    default: Any,
    summary: str,
    more: str = "",
    *,
    least: float | None = None,
    over: float | None = None,
    most: float | None = None,
    none: str = "none",
    shown: str = "",
) -> Any:
    """A field of a group of settings.

    Args:
        default: its value in the preset `photos`.
        summary: what it is, in a short sentence for `--help`.
        more: what else the manual says of it.
        least: smallest value allowed.
        over: values must be larger than this.
        most: largest value allowed.
        none: how None is written on the command line and in a file, where the setting may be None.
        shown: what stands for its value in help, where the type does not say it.
    """
    limits = {"least": least, "over": over, "most": most}
    return field(default=default, metadata={"summary": summary, "more": more, "none": none, "shown": shown, **limits})


class Group:
    """Settings that belong together; subclasses are frozen dataclasses whose fields are made by `setting`."""

    group: ClassVar[str]

    def __post_init__(self) -> None:
        for about in fields(self):  # type: ignore[arg-type]  # subclasses are dataclasses
            value = _checked(f"{self.group}.{about.name}", type(self), about, getattr(self, about.name))
            object.__setattr__(self, about.name, value)


def allowed(cls: type, name: str) -> tuple[type, tuple[Any, ...], bool]:
    """Of a setting: the type of its values, which ones it may take (empty: any), and whether it may be None."""
    hint = _hints(cls)[name]
    parts = [part for part in (get_args(hint) or (hint,)) if part is not NoneType] if not _is_literal(hint) else [hint]
    choices = tuple(value for part in parts if _is_literal(part) for value in get_args(part))
    kind = type(choices[0]) if choices else parts[0]
    return kind, choices, not _is_literal(hint) and NoneType in get_args(hint)


def metavar(cls: type, about: Field[Any]) -> str:
    """What stands for its value in help: `N`, `X`, `FILE`, or the values that it may take."""
    kind, choices, optional = allowed(cls, about.name)
    usual = about.metadata["shown"] or {int: "N", float: "X", bool: "true|false", str: "TEXT"}[kind]
    words = [str(choice) for choice in choices] or [usual]
    return "|".join([*words, *([about.metadata["none"]] if optional and kind is not str else [])])


def parse(cls: type, about: Field[Any], text: str) -> Any:
    """The value that a word of the command line stands for; what stands for none is left for the check."""
    kind, _, optional = allowed(cls, about.name)
    if optional and text == about.metadata["none"]:
        return None
    if kind is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    try:
        return kind(text)
    except ValueError:
        return text


def as_toml(about: Field[Any], value: Any) -> str:
    """Lines of TOML that give a setting this value, and say what it is."""
    value = about.metadata["none"] if value is None else value
    text = json.dumps(value) if isinstance(value, (str, bool)) else repr(value)
    return f"# {about.metadata['summary']}\n{about.name} = {text}"


def from_file(cls: type, about: Field[Any], value: Any) -> Any:
    """The value that stands in a file: the word for None becomes None."""
    return None if allowed(cls, about.name)[2] and value == about.metadata["none"] else value


@cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def _is_literal(hint: Any) -> bool:
    return get_origin(hint) is Literal


def _checked(path: str, cls: type, about: Field[Any], value: Any) -> Any:
    """The value as the type of its setting, or an `InputError` that says what is allowed."""
    kind, choices, optional = allowed(cls, about.name)
    if value is None and optional:
        return None
    if choices:
        if value in choices:
            return value
        raise InputError(f"{path} must be {_either(choices)}, not {value!r}")
    if not _is(kind, value):
        or_none = f", or {about.metadata['none']!r}" if optional else ""
        raise InputError(f"{path} must be {_KINDS[kind]}{or_none}, not {value!r}")
    _check_limits(path, about.metadata, value)
    return kind(value)


def _is(kind: type, value: Any) -> bool:
    if kind in (int, float):
        return isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool)
    return isinstance(value, kind)


def _check_limits(path: str, limits: Any, value: Any) -> None:
    least, over, most = limits["least"], limits["over"], limits["most"]
    if not isinstance(value, str) and value > LARGEST:
        raise InputError(f"{path} is too large: {value}")
    if least is not None and most is not None and not least <= value <= most:
        raise InputError(f"{path} must be from {least} to {most}, not {value}")
    if least is not None and not least <= value < float("inf"):
        raise InputError(f"{path} must be at least {least}, not {value}")
    if over is not None and not over < value < float("inf"):
        raise InputError(f"{path} must be greater than {over}, not {value}")


def _either(choices: tuple[Any, ...]) -> str:
    words = [str(choice) for choice in choices]
    return f"{', '.join(words[:-1])} or {words[-1]}"
