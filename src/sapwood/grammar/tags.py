"""Structural tags: free text in which certain openings oblige the model to a form.

Owns the translation of SGLang's `structures`/`triggers` and of the newer `format`; compiles nothing. Invariant: text outside
of tags stays free, inside of them nothing but their content can be written, and a form that is not known is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from llguidance import regex_to_lark

from sapwood.errors import InvalidRequest
from sapwood.grammar.arguments import STYLES, ArgumentsWriter
from sapwood.grammar.rules import RuleBook

MAX_TAGS = 4096
MAX_DEPTH = 32


def tag_grammar(
    value: Any, schema: Callable[[Any], Any], to_lark: Callable[[str], str], control_ids: Mapping[str, int]
) -> dict[str, Any]:
    """The grammars of a structural tag, in llguidance's notation. `schema` makes a checked schema with its layout, `to_lark` a
    Lark grammar; the control tokens in literal texts become their ids."""
    if not isinstance(value, dict):
        _refuse("is no JSON object")
    return TagWriter(schema, to_lark, control_ids).write(_format_of(value))


def _format_of(value: dict[str, Any]) -> Any:
    """The newer form of either one."""
    if "format" in value:
        return value["format"]
    structures = _get(value, "structures", list)
    tags = [
        {
            "begin": _get(item, "begin", str),
            "content": {"type": "json_schema", "json_schema": _get(item, "schema", (dict, bool), {})},
            "end": _get(item, "end", str),
        }
        for item in structures
        if isinstance(item, dict) or _refuse("has a structure that is no object")
    ]
    return {"type": "triggered_tags", "triggers": _get(value, "triggers", list), "tags": tags}


class TagWriter:
    """Writes the rules of one structural tag."""

    def __init__(self, schema: Callable[[Any], Any], to_lark: Callable[[str], str], control_ids: Mapping[str, int]) -> None:
        self._schema, self._to_lark = schema, to_lark
        self._book = RuleBook(control_ids)
        self._arguments = ArgumentsWriter(self._book, schema)
        self._grammars: list[dict[str, str]] = []

    def write(self, form: Any) -> dict[str, Any]:
        """All grammars, the main one first."""
        start = self._form(form, is_last=True, depth=0)
        return {"grammars": [{"name": "structural_tag", "lark_grammar": self._book.lark(start)}, *self._grammars]}

    def _form(self, form: Any, *, is_last: bool, depth: int) -> str:
        """One form as the right side of a rule; only the last one may go on as long as it likes."""
        if depth > MAX_DEPTH:
            _refuse(f"is nested more than {MAX_DEPTH} levels deep")
        match _get(form, "type", str):
            case "const_string":
                return self._book.literal(_get(form, "value", str))
            case "json_schema":
                return self._by_schema(form)
            case "regex":
                return f"/{regex_to_lark(_get(form, 'pattern', str), '')}/"
            case "grammar":
                return self._grammar(_get(form, "grammar", str))
            case "any_text" if is_last and not form.get("excludes"):
                return "TEXT"
            case "sequence":
                return self._sequence(_get(form, "elements", list), is_last, depth)
            case "or":
                options = [self._form(each, is_last=is_last, depth=depth + 1) for each in _get(form, "elements", list)]
                return self._book.rule(" | ".join(options) or '""')
            case "tag":
                return self._tag(form, depth)
            case "triggered_tags" if not form.get("excludes"):
                return self._triggered(form, is_last, depth)
            case "tags_with_separator":
                return self._separated(form, depth)
            case kind:
                _refuse(f"has a form {kind[:100]!r} that is not supported here" + ("" if is_last else " before others"))

    def _by_schema(self, form: Any) -> str:
        """A value that a schema describes: in JSON, or the arguments of a call in another notation."""
        schema, style = _get(form, "json_schema", (dict, bool)), form.get("style", "json")
        if style in STYLES:
            return self._arguments.write(style, self._schema(schema))
        if style != "json":
            _refuse(f"has a json_schema whose style is none of json, {', '.join(STYLES)}")
        return f"%json {json.dumps(self._schema(schema))}"

    def _grammar(self, text: str) -> str:
        name = f"grammar_{len(self._grammars)}"
        self._grammars.append({"name": name, "lark_grammar": self._to_lark(text)})
        return f"@{name}"

    def _sequence(self, elements: list[Any], is_last: bool, depth: int) -> str:
        end = len(elements) - 1
        parts = [self._form(each, is_last=is_last and index == end, depth=depth + 1) for index, each in enumerate(elements)]
        return self._book.rule(" ".join(parts) or '""')

    def _tag(self, tag: Any, depth: int, head: str = "") -> str:
        """A tag; `head` is what stands for the part of its beginning that was written already."""
        begin = _get(tag, "begin", str)
        return f"{head or self._book.literal(begin)} {self._content(tag, depth)}"

    def _content(self, tag: Any, depth: int) -> str:
        """The content of a tag and its end; a free text goes on up to the end's first occurrence."""
        ends = tag.get("end", "")
        ends = [ends] if isinstance(ends, str) else ends
        if not isinstance(ends, list) or not ends or not all(isinstance(end, str) for end in ends):
            _refuse("has a tag whose end is no text")
        content = _get(tag, "content", dict)
        if content.get("type") == "any_text" and any(ends):
            return self._book.up_to(self._book.free(self._controls(ends)), ends)
        closing = [self._book.literal(end) for end in ends]
        return f"{self._form(content, is_last=False, depth=depth + 1)} {self._book.any_of(closing)}"

    def _triggered(self, form: Any, is_last: bool, depth: int) -> str:
        tags, triggers = self._tags(form), _texts(form, "triggers")
        if not triggers:
            _refuse("has no triggers")
        once, surely = form.get("stop_after_first") is True, form.get("at_least_one") is True
        if not (is_last or (once and surely)):
            _refuse("has triggered tags that other forms follow; only with at_least_one and stop_after_first can they")
        controls = self._controls(triggers)
        text = self._book.free(controls)
        if not form.get("never_begins_with"):
            tag = self._triggered_tag(tags, triggers, text, depth)
            if once:
                return tag if surely else self._book.any_of([tag, text])
            return f"({tag}){'+' if surely else '*'} {text}"
        starts = _texts(form, "never_begins_with")
        first_text = self._book.free(controls, starts)
        first = self._triggered_tag(tags, triggers, first_text, depth)
        more = "" if once else f" ({self._triggered_tag(tags, triggers, text, depth)})* {text}"
        return self._book.any_of([f"{first}{more}", *([] if surely else [first_text])])

    def _triggered_tag(self, tags: list[Any], triggers: list[str], text: str, depth: int) -> str:
        """Free text up to the first occurrence of a trigger, and one of its tags."""
        heads: dict[str, str] = {}
        options = []
        for tag in tags:
            begin = _get(tag, "begin", str)
            trigger = min((trigger for trigger in triggers if begin.startswith(trigger)), key=len, default=None)
            if trigger is None:
                _refuse("has a tag that begins with none of the triggers")
            if trigger not in heads:
                heads[trigger] = self._head(trigger, text)
            options.append(self._tag(tag, depth, f"{heads[trigger]} {self._book.literal(begin[len(trigger) :])}"))
        return self._book.rule(" | ".join(options))

    def _head(self, trigger: str, text: str) -> str:
        if self._book.holds_control(trigger) and not self._book.opening_control(trigger):
            _refuse("has a trigger with text before a control token")
        return self._book.rule(self._book.up_to(text, [trigger]))

    def _controls(self, marks: list[str]) -> list[str]:
        """The control tokens that those marks begin with."""
        return [control for control in map(self._book.opening_control, marks) if control]

    def _separated(self, form: Any, depth: int) -> str:
        tag_rule = self._book.rule(" | ".join(self._tag(tag, depth) for tag in self._tags(form)))
        separator = _get(form, "separator", str)
        between = f"{self._book.literal(separator)} " if separator else ""
        more = "" if form.get("stop_after_first") is True else f" ({between}{tag_rule})*"
        return f"({tag_rule}{more}){'' if form.get('at_least_one') is True else '?'}"

    def _tags(self, form: Any) -> list[Any]:
        tags: list[Any] = _get(form, "tags", list)
        if not tags or len(tags) > MAX_TAGS:
            _refuse(f"has {len(tags)} tags; send 1 to {MAX_TAGS}")
        return tags


def _texts(form: Any, name: str) -> list[str]:
    """A list of texts, none of them empty."""
    found: list[Any] = _get(form, name, list)
    if not all(isinstance(text, str) and text for text in found):
        _refuse(f"has {name} that is no list of texts")
    return found


def _get(value: Any, name: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
    """A field of an object that came over the wire."""
    found = value.get(name, default) if isinstance(value, dict) else None
    if not isinstance(found, kind):
        _refuse(f"has a part whose {name!r} is missing or of the wrong type")
    return found


def _refuse(what: str) -> NoReturn:
    raise InvalidRequest(f"structural_tag {what}; see the guide for what it may be", param="structural_tag")
