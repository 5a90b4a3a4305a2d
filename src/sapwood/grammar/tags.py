"""Structural tags: free text in which certain openings oblige the model to a form.

Owns the translation of SGLang's `structures`/`triggers` and of the newer `format`; compiles nothing. Invariant: text outside
of tags stays free, inside of them nothing but their content can be written, and a form that is not known is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from llguidance import regex_to_lark

from sapwood.errors import InvalidRequest

MAX_TAGS = 512
MAX_DEPTH = 32
TEXT = "TEXT: /(.|\\n)*/"


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
        self._schema, self._to_lark, self._control_ids = schema, to_lark, control_ids
        parts = sorted(filter(None, control_ids), key=len, reverse=True)
        self._controls = re.compile("|".join(map(re.escape, parts))) if parts else None
        self._rules: list[str] = []
        self._grammars: list[dict[str, str]] = []

    def write(self, form: Any) -> dict[str, Any]:
        """All grammars, the main one first."""
        start = self._form(form, is_last=True, depth=0)
        lark = "\n".join(["%llguidance {}", f"start: {start}", TEXT, *self._rules])
        return {"grammars": [{"name": "structural_tag", "lark_grammar": lark}, *self._grammars]}

    def _form(self, form: Any, *, is_last: bool, depth: int) -> str:
        """One form as the right side of a rule; only the last one may go on as long as it likes."""
        if depth > MAX_DEPTH:
            _refuse(f"is nested more than {MAX_DEPTH} levels deep")
        match _get(form, "type", str):
            case "const_string":
                return self._literal(_get(form, "value", str))
            case "json_schema":
                return f"%json {json.dumps(self._schema(_get(form, 'json_schema', (dict, bool))))}"
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
                return self._rule(" | ".join(options) or '""')
            case "tag":
                return f"{self._literal(_get(form, 'begin', str))} {self._content(form, depth)}"
            case "triggered_tags" if not form.get("excludes"):
                return self._triggered(form, is_last, depth)
            case "tags_with_separator":
                return self._separated(form, depth)
            case kind:
                _refuse(f"has a form {kind[:100]!r} that is not supported here" + ("" if is_last else " before others"))

    def _rule(self, right: str, suffix: str = "") -> str:
        name = f"part_{len(self._rules)}"
        self._rules.append(f"{name}{suffix}: {right}")
        return name

    def _literal(self, text: str) -> str:
        """A text, its control tokens by their ids."""
        if self._controls is None:
            return json.dumps(text)
        parts, end = [], 0
        for found in self._controls.finditer(text):
            parts += [json.dumps(text[end : found.start()]), f"<[{self._control_ids[found[0]]}]>"]
            end = found.end()
        return " ".join(part for part in (*parts, json.dumps(text[end:])) if part != '""') or '""'

    def _grammar(self, text: str) -> str:
        name = f"grammar_{len(self._grammars)}"
        self._grammars.append({"name": name, "lark_grammar": self._to_lark(text)})
        return f"@{name}"

    def _sequence(self, elements: list[Any], is_last: bool, depth: int) -> str:
        end = len(elements) - 1
        parts = [self._form(each, is_last=is_last and index == end, depth=depth + 1) for index, each in enumerate(elements)]
        return self._rule(" ".join(parts) or '""')

    def _content(self, tag: Any, depth: int) -> str:
        """The content of a tag and its end; a free text goes on up to the end's first occurrence."""
        ends = tag.get("end", "")
        ends = [ends] if isinstance(ends, str) else ends
        if not isinstance(ends, list) or not ends or not all(isinstance(end, str) for end in ends):
            _refuse("has a tag whose end is no text")
        content = _get(tag, "content", dict)
        closing = [self._literal(end) for end in ends]
        if content.get("type") == "any_text" and all(ends):
            if any("<[" in end for end in closing):
                return f"TEXT {self._rule(' | '.join(closing))}"
            return self._rule(f"TEXT ({' | '.join(closing)})", "[lazy]")
        return f"{self._form(content, is_last=False, depth=depth + 1)} {self._rule(' | '.join(closing))}"

    def _triggered(self, form: Any, is_last: bool, depth: int) -> str:
        tags, triggers = self._tags(form), _get(form, "triggers", list)
        if not triggers or not all(isinstance(trigger, str) and trigger for trigger in triggers):
            _refuse("has triggers that are no texts")
        once, surely = form.get("stop_after_first") is True, form.get("at_least_one") is True
        if not (is_last or (once and surely)):
            _refuse("has triggered tags that other forms follow; only with at_least_one and stop_after_first can they")
        heads: dict[str, str] = {}
        options = []
        for tag in tags:
            begin = _get(tag, "begin", str)
            trigger = min((trigger for trigger in triggers if begin.startswith(trigger)), key=len, default=None)
            if trigger is None:
                _refuse("has a tag that begins with none of the triggers")
            if trigger not in heads:
                heads[trigger] = self._head(trigger)
            options.append(f"{heads[trigger]} {self._literal(begin[len(trigger) :])} {self._content(tag, depth)}")
        tag_rule = self._rule(" | ".join(options))
        if once:
            return tag_rule if surely else self._rule(f"{tag_rule} | TEXT")
        return f"({tag_rule}){'+' if surely else '*'} TEXT"

    def _head(self, trigger: str) -> str:
        """Free text up to the first occurrence of a trigger."""
        literal = self._literal(trigger)
        if "<[" not in literal:
            return self._rule(f"TEXT {literal}", "[lazy]")
        if not literal.startswith("<["):
            _refuse("has a trigger with text before a control token")
        return self._rule(f"TEXT {literal}")

    def _separated(self, form: Any, depth: int) -> str:
        tags = [f"{self._literal(_get(tag, 'begin', str))} {self._content(tag, depth)}" for tag in self._tags(form)]
        tag_rule = self._rule(" | ".join(tags))
        more = "" if form.get("stop_after_first") is True else f" ({self._literal(_get(form, 'separator', str))} {tag_rule})*"
        return f"({tag_rule}{more}){'' if form.get('at_least_one') is True else '?'}"

    def _tags(self, form: Any) -> list[Any]:
        tags: list[Any] = _get(form, "tags", list)
        if not tags or len(tags) > MAX_TAGS:
            _refuse(f"has {len(tags)} tags; send 1 to {MAX_TAGS}")
        return tags


def _get(value: Any, name: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
    """A field of an object that came over the wire."""
    found = value.get(name, default) if isinstance(value, dict) else None
    if not isinstance(found, kind):
        _refuse(f"has a part whose {name!r} is missing or of the wrong type")
    return found


def _refuse(what: str) -> NoReturn:
    raise InvalidRequest(f"structural_tag {what}; see the guide for what it may be", param="structural_tag")
